//! One setting: its value, and where that came from.

use std::ffi::OsString;
use std::ops::Deref;

use super::Origin;
use super::kind::SettingKind;
use crate::Result;

/// A value and where it came from. It is read as the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: 'static> Setting<T> {
    /// What the `text` of `variable` says, if it is set, else what is built in.
    pub(super) fn read(
        built_in: T,
        variable: &str,
        kind: &SettingKind<T>,
        text: Option<OsString>,
    ) -> Result<Self> {
        let Some(text) = text else { return Ok(Self { value: built_in, origin: Origin::Default }) };
        Ok(Self { value: kind.read(variable, &text.to_string_lossy())?, origin: Origin::Variable })
    }

    /// What the `text` of PyTorch's variable says in its own way, where ours is not set: `value` if it is
    /// exactly "1".
    pub(super) fn or_torch(self, text: Option<OsString>, value: T) -> Self {
        let says = self.origin == Origin::Default && text.is_some_and(|text| text == "1");
        if says { Self { value, origin: Origin::Variable } } else { self }
    }

    /// Its value in words; `unset` is said of one that stands for nothing.
    pub(super) fn shown(&self, kind: &SettingKind<T>, unset: &str) -> String {
        let shown = (kind.show)(&self.value);
        if shown.is_empty() { unset.to_owned() } else { shown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytorchs_variables_count_where_ours_are_not_set() {
        let unset = || Setting { value: false, origin: Origin::Default };
        let ours = Setting { value: false, origin: Origin::Variable };
        let torchs = |text: &str| Some(text.into());
        assert_eq!(unset().or_torch(torchs("1"), true), Setting { value: true, origin: Origin::Variable });
        assert_eq!(unset().or_torch(torchs("true"), true), unset());
        assert_eq!(unset().or_torch(None, true), unset());
        assert_eq!(ours.clone().or_torch(torchs("1"), true), ours);
    }
}
