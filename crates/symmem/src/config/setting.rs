//! One setting: its value, and where that came from.

use std::ops::Deref;

use super::kind::Kind;
use super::{ConfigRow, Origin};
use crate::Result;

/// A value and where it came from. It is read as the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    value: T,
    origin: Origin,
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: 'static> Setting<T> {
    /// What is built in.
    pub(super) fn built_in(value: T) -> Self {
        Self { value, origin: Origin::Default }
    }

    /// Takes what `variable` says, if it is set.
    pub(super) fn read(self, variable: &str, kind: &Kind<T>) -> Result<Self> {
        let Some(text) = std::env::var_os(variable) else { return Ok(self) };
        Ok(Self { value: kind.read(variable, &text.to_string_lossy())?, origin: Origin::Variable })
    }

    /// What PyTorch's `variable` says in its own way, where ours is not set: `value` if it is exactly "1".
    pub(super) fn or_torch(self, variable: &str, value: T) -> Self {
        let says =
            self.origin == Origin::Default && std::env::var_os(variable).is_some_and(|text| text == "1");
        if says { Self { value, origin: Origin::Variable } } else { self }
    }

    /// Sets it in code, to the nearest value that is allowed.
    pub(super) fn set(&mut self, kind: &Kind<T>, value: T) {
        *self = Self { value: (kind.fit)(value), origin: Origin::Code };
    }

    /// Its row for `symmem config`; `unset` is said of a value that stands for nothing.
    pub(super) fn row(
        &self,
        variable: &'static str,
        kind: &Kind<T>,
        unset: &str,
        meaning: &'static str,
    ) -> ConfigRow {
        let value = (kind.show)(&self.value).unwrap_or_else(|| unset.to_owned());
        ConfigRow { variable, value, origin: self.origin, meaning }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytorchs_variables_count_where_ours_are_not_set() {
        let unset = || Setting { value: false, origin: Origin::Default };
        let ours = Setting { value: false, origin: Origin::Variable };
        // A variable that every test process has, and that is not "1".
        assert_eq!(unset().or_torch("PATH", true), unset());
        assert_eq!(unset().or_torch("SYMMEM_TEST_NO_SUCH_VARIABLE", true), unset());
        assert_eq!(ours.clone().or_torch("PATH", true), ours);
    }
}
