//! One setting: its value, where it came from, and how variables are read.

use std::time::Duration;

use super::{MAX_SPIN, Origin};
use crate::{Error, Result};

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

impl<T> Setting<T> {
    /// What `variable` says, else `default`. What `parse` cannot understand is an error that says what it `expects`.
    pub(super) fn read(
        variable: &str,
        default: T,
        parse: impl Fn(&str) -> Option<T>,
        expects: &str,
    ) -> Result<Self> {
        let Some(text) = std::env::var_os(variable) else {
            return Ok(Self { value: default, origin: Origin::Default });
        };
        let text = text.to_string_lossy();
        let value = parse(text.trim())
            .ok_or_else(|| Error::invalid(variable, format!("{text:?} is not {expects}")))?;
        Ok(Self { value, origin: Origin::Variable })
    }

    /// What PyTorch's `variable` says in its own way, where ours is not set: `value` if it is exactly "1".
    pub(super) fn or_torch(self, variable: &str, value: T) -> Self {
        if self.origin != Origin::Default || std::env::var_os(variable).is_none_or(|text| text != "1") {
            return self;
        }
        Self { value, origin: Origin::Variable }
    }

    /// Sets it in code.
    pub(super) fn set(&mut self, value: T) {
        *self = Self { value, origin: Origin::Code };
    }
}

pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// `1,3`; nothing for none.
pub(super) fn parse_ranks(text: &str) -> Option<Vec<usize>> {
    text.split(',').map(str::trim).filter(|rank| !rank.is_empty()).map(|rank| rank.parse().ok()).collect()
}

pub(super) fn parse_timeout(text: &str) -> Option<Option<Duration>> {
    if text == "never" {
        return Some(None);
    }
    Duration::try_from_secs_f64(text.parse().ok()?).ok().filter(|timeout| !timeout.is_zero()).map(Some)
}

pub(super) fn parse_spin(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_micros).filter(|spin| *spin <= MAX_SPIN)
}

pub(super) fn parse_pad_size(text: &str) -> Option<usize> {
    text.parse().ok().filter(|bytes| is_pad_size(*bytes))
}

/// A pad holds whole 8-byte words, so that it can be viewed as any dtype, and at least one.
pub(crate) fn is_pad_size(bytes: usize) -> bool {
    bytes >= 8 && bytes.is_multiple_of(8) && bytes <= 1 << 30
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_seconds_or_never() {
        assert_eq!(parse_timeout("1.5"), Some(Some(Duration::from_millis(1500))));
        assert_eq!(parse_timeout("never"), Some(None));
        for bad in ["0", "-1", "soon", "nan", "1e400"] {
            assert_eq!(parse_timeout(bad), None, "{bad}");
        }
    }

    #[test]
    fn spinning_is_microseconds_up_to_a_bound() {
        assert_eq!(parse_spin("0"), Some(Duration::ZERO));
        assert_eq!(parse_spin("200"), Some(Duration::from_micros(200)));
        for bad in ["-1", "1.5", "many", "10001", "18446744073709551616"] {
            assert_eq!(parse_spin(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranks_are_a_list() {
        assert_eq!(parse_ranks("1, 3"), Some(vec![1, 3]));
        assert_eq!(parse_ranks(""), Some(Vec::new()));
        assert_eq!(parse_ranks("1,x"), None);
    }

    #[test]
    fn a_pad_holds_whole_words() {
        assert_eq!(parse_pad_size("9216"), Some(9216));
        for bad in ["0", "7", "12", "-8", "2147483648"] {
            assert_eq!(parse_pad_size(bad), None, "{bad}");
        }
    }

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
