//! What values of settings look like as text: how variables are understood, and how `symmem config` shows them.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::Provider;
use crate::operation::each_forced;
use crate::sys::secret::Secret;
use crate::{Error, Result};

/// The texts of a setting's values.
pub(super) trait Kind<T> {
    /// What a variable must be, for errors and for the table in README.md.
    fn expects(&self) -> String;

    /// What `text` means; `None` if it is not what is expected.
    fn parse(&self, text: &str) -> Option<Result<T>>;

    /// The text of `value`; `None` if it stands for nothing.
    fn show(&self, value: &T) -> Option<String>;

    /// The value nearest to `value` that is allowed, for what is set in code.
    fn fit(&self, value: T) -> T {
        value
    }

    /// As [`Kind::parse`], with the error that names `variable`.
    fn read(&self, variable: &str, text: &str) -> Result<T> {
        let wrong = || Error::invalid(variable, format!("{text:?} is not {}", self.expects()));
        self.parse(text.trim()).ok_or_else(wrong)?
    }
}

/// A kind by what it expects, how it is understood, and how it is shown.
pub(super) struct By<T>(&'static str, fn(&str) -> Option<T>, fn(&T) -> Option<String>);

impl<T> Kind<T> for By<T> {
    fn expects(&self) -> String {
        self.0.to_owned()
    }

    fn parse(&self, text: &str) -> Option<Result<T>> {
        self.1(text).map(Ok)
    }

    fn show(&self, value: &T) -> Option<String> {
        self.2(value)
    }
}

pub(super) const SWITCH: By<bool> = By("0 or 1", parse_bool, |on| Some(on.to_string()));
pub(super) const SECONDS: By<Option<Duration>> =
    By("a number of seconds above zero, or \"never\"", parse_timeout, |time| {
        Some(time.map_or_else(|| "never".to_owned(), |time| time.as_secs_f64().to_string()))
    });
pub(super) const PAD_SIZE: By<usize> =
    By("a multiple of 8 between 8 and 2^30", parse_pad_size, |bytes| Some(bytes.to_string()));
pub(super) const NODE: By<Option<u32>> = By(
    "the number of a NUMA node",
    |text| text.parse().ok().map(Some),
    |node| Some(node.as_ref()?.to_string()),
);
pub(super) const ALGORITHM: By<String> = By(
    "an algorithm, or a list like all_reduce=push,broadcast=direct",
    |text| each_forced(text, |_, _| ()).is_ok().then(|| text.to_owned()),
    |choice| not_empty(choice),
);
pub(super) const RANKS: By<Vec<usize>> = By("a list of ranks like 1,3", parse_ranks, |ranks| {
    not_empty(&ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
});

/// A name or path; a variable that is set to nothing is none.
pub(super) const fn text<T: From<String> + AsRef<OsStr>>(expects: &'static str) -> By<Option<T>> {
    By(
        expects,
        |text| Some(not_empty(text).map(T::from)),
        |value| Some(value.as_ref()?.as_ref().to_string_lossy().into_owned()),
    )
}

/// A path, or "off" for none.
pub(super) const fn path_or_off(expects: &'static str) -> By<Option<PathBuf>> {
    By(
        expects,
        |text| Some((text != "off").then(|| PathBuf::from(text))),
        |path| Some(path.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string())),
    )
}

/// A provider's name.
pub(super) struct ProviderName;

impl Kind<Provider> for ProviderName {
    fn expects(&self) -> String {
        Provider::names()
    }

    fn parse(&self, text: &str) -> Option<Result<Provider>> {
        text.parse().ok().map(Ok)
    }

    fn show(&self, provider: &Provider) -> Option<String> {
        Some(provider.to_string())
    }
}

/// A number inside of bounds.
pub(super) struct Number<T>(pub(super) RangeInclusive<T>);

impl<T: Copy + Ord + Display + FromStr> Kind<T> for Number<T> {
    fn expects(&self) -> String {
        format!("a number from {} to {}", self.0.start(), self.0.end())
    }

    fn parse(&self, text: &str) -> Option<Result<T>> {
        text.parse().ok().filter(|number| self.0.contains(number)).map(Ok)
    }

    fn show(&self, number: &T) -> Option<String> {
        Some(number.to_string())
    }

    fn fit(&self, number: T) -> T {
        number.clamp(*self.0.start(), *self.0.end())
    }
}

/// A time of at most so many microseconds.
pub(super) struct Micros(pub(super) u64);

impl Kind<Duration> for Micros {
    fn expects(&self) -> String {
        format!("a number of microseconds from 0 to {}", self.0)
    }

    fn parse(&self, text: &str) -> Option<Result<Duration>> {
        text.parse().ok().filter(|micros| *micros <= self.0).map(|micros| Ok(Duration::from_micros(micros)))
    }

    fn show(&self, time: &Duration) -> Option<String> {
        Some(time.as_micros().to_string())
    }

    fn fit(&self, time: Duration) -> Duration {
        time.min(Duration::from_micros(self.0))
    }
}

/// The job secret, by what a variable says of where it is. It is shown as that, never as what it is.
pub(super) struct Hidden(&'static str, fn(&str) -> Option<Result<Secret>>);

pub(super) const SECRET_FILE: Hidden = Hidden("a file", |path| Some(Secret::from_file(Path::new(path))));
pub(super) const SECRET_FD: Hidden =
    Hidden("the number of a descriptor", |number| Some(Secret::from_descriptor(number.parse().ok()?)));

impl Kind<Option<Secret>> for Hidden {
    fn expects(&self) -> String {
        self.0.to_owned()
    }

    fn parse(&self, text: &str) -> Option<Result<Option<Secret>>> {
        if text.is_empty() {
            return Some(Ok(None));
        }
        Some(self.1(text)?.map(Some))
    }

    fn show(&self, secret: &Option<Secret>) -> Option<String> {
        Some(secret.as_ref()?.source().to_string())
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// `1,3`; nothing for none.
fn parse_ranks(text: &str) -> Option<Vec<usize>> {
    text.split(',').map(str::trim).filter(|rank| !rank.is_empty()).map(|rank| rank.parse().ok()).collect()
}

fn parse_timeout(text: &str) -> Option<Option<Duration>> {
    if text == "never" {
        return Some(None);
    }
    Duration::try_from_secs_f64(text.parse().ok()?).ok().filter(|timeout| !timeout.is_zero()).map(Some)
}

fn parse_pad_size(text: &str) -> Option<usize> {
    text.parse().ok().filter(|bytes| is_pad_size(*bytes))
}

/// A pad holds whole 8-byte words, so that it can be viewed as any dtype, and at least one.
pub(crate) fn is_pad_size(bytes: usize) -> bool {
    bytes >= 8 && bytes.is_multiple_of(8) && bytes <= 1 << 30
}

/// `text`, unless there is none.
fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
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
        let spin = Micros(10_000);
        assert_eq!(spin.read("x", "0").unwrap(), Duration::ZERO);
        assert_eq!(spin.read("x", " 200").unwrap(), Duration::from_micros(200));
        for bad in ["-1", "1.5", "many", "10001", "18446744073709551616"] {
            let said = spin.read("SYMMEM_SPIN", bad).unwrap_err().to_string();
            assert!(said.contains("SYMMEM_SPIN") && said.contains("microseconds from 0 to 10000"), "{said}");
        }
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let number = Number(1..=16);
        assert_eq!(number.read("x", "16").unwrap(), 16);
        assert_eq!((number.fit(0), number.fit(7), number.fit(99)), (1, 7, 16));
        for bad in ["0", "17", "-1", ""] {
            assert!(number.parse(bad).is_none(), "{bad}");
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
}
