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

type Parse<T> = dyn Fn(&str) -> Option<Result<T>>;

/// The texts of a setting's values.
pub(super) struct Kind<T> {
    /// What a variable must be, for errors and for the table in README.md.
    pub(super) expects: String,
    /// What a text means; `None` if it is not what is expected.
    parse: Box<Parse<T>>,
    /// The text of a value; `None` if it stands for nothing.
    pub(super) show: fn(&T) -> Option<String>,
    /// The value nearest to one that was set in code that is allowed.
    pub(super) fit: Box<dyn Fn(T) -> T>,
}

impl<T: 'static> Kind<T> {
    fn new(
        expects: impl Into<String>,
        parse: impl Fn(&str) -> Option<T> + 'static,
        show: fn(&T) -> Option<String>,
    ) -> Self {
        let parse = move |text: &str| parse(text).map(Ok);
        Self { expects: expects.into(), parse: Box::new(parse), show, fit: Box::new(|value| value) }
    }

    /// What `text` means, or the error that names `variable`.
    pub(super) fn read(&self, variable: &str, text: &str) -> Result<T> {
        let wrong = || Error::invalid(variable, format!("{text:?} is not {}", self.expects));
        (self.parse)(text.trim()).ok_or_else(wrong)?
    }
}

pub(super) fn switch() -> Kind<bool> {
    Kind::new("0 or 1", parse_bool, |on| Some(on.to_string()))
}

pub(super) fn seconds() -> Kind<Option<Duration>> {
    Kind::new("a number of seconds above zero, or \"never\"", parse_timeout, |time| {
        Some(time.map_or_else(|| "never".to_owned(), |time| time.as_secs_f64().to_string()))
    })
}

pub(super) fn pad_size() -> Kind<usize> {
    let parse = |text: &str| text.parse().ok().filter(|bytes| is_pad_size(*bytes));
    Kind::new("a multiple of 8 between 8 and 2^30", parse, |bytes| Some(bytes.to_string()))
}

pub(super) fn node() -> Kind<Option<u32>> {
    let parse = |text: &str| text.parse().ok().map(Some);
    Kind::new("the number of a NUMA node", parse, |node| Some(node.as_ref()?.to_string()))
}

pub(super) fn algorithm() -> Kind<String> {
    let parse = |text: &str| each_forced(text, |_, _| ()).is_ok().then(|| text.to_owned());
    Kind::new("an algorithm, or a list like all_reduce=push,broadcast=direct", parse, |text| not_empty(text))
}

pub(super) fn ranks() -> Kind<Vec<usize>> {
    Kind::new("a list of ranks like 1,3", parse_ranks, |ranks| {
        not_empty(&ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
    })
}

/// A name or path; a variable that is set to nothing is none.
pub(super) fn text<T: From<String> + AsRef<OsStr> + 'static>(expects: &str) -> Kind<Option<T>> {
    let show = |value: &Option<T>| Some(value.as_ref()?.as_ref().to_string_lossy().into_owned());
    Kind::new(expects, |text| Some(not_empty(text).map(T::from)), show)
}

/// A path, or "off" for none.
pub(super) fn path_or_off(expects: &str) -> Kind<Option<PathBuf>> {
    Kind::new(
        expects,
        |text| Some((text != "off").then(|| PathBuf::from(text))),
        |path| Some(path.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string())),
    )
}

/// A provider's name.
pub(super) fn provider() -> Kind<Provider> {
    Kind::new(Provider::names(), |text| text.parse().ok(), |provider| Some(provider.to_string()))
}

/// A number inside of bounds.
pub(super) fn number<T: Copy + Ord + Display + FromStr + 'static>(bounds: RangeInclusive<T>) -> Kind<T> {
    let (least, most) = (*bounds.start(), *bounds.end());
    let parse = move |text: &str| text.parse().ok().filter(|number| bounds.contains(number));
    let kind =
        Kind::new(format!("a number from {least} to {most}"), parse, |number| Some(number.to_string()));
    Kind { fit: Box::new(move |number| number.clamp(least, most)), ..kind }
}

/// A time of at most so many microseconds.
pub(super) fn micros(most: u64) -> Kind<Duration> {
    let parse = move |text: &str| Some(Duration::from_micros(text.parse().ok().filter(|it| *it <= most)?));
    let expects = format!("a number of microseconds from 0 to {most}");
    let kind = Kind::new(expects, parse, |time| Some(time.as_micros().to_string()));
    Kind { fit: Box::new(move |time| time.min(Duration::from_micros(most))), ..kind }
}

/// The job secret, in a file. It is shown as that, never as what it is.
pub(super) fn secret_file() -> Kind<Option<Secret>> {
    secret("a file", |path| Some(Secret::from_file(Path::new(path))))
}

/// The same in a descriptor.
pub(super) fn secret_fd() -> Kind<Option<Secret>> {
    secret("the number of a descriptor", |number| Some(Secret::from_descriptor(number.parse().ok()?)))
}

fn secret(expects: &str, read: fn(&str) -> Option<Result<Secret>>) -> Kind<Option<Secret>> {
    let kind =
        Kind::new(expects, |_| None, |secret| Some(Option::<Secret>::as_ref(secret)?.source().to_string()));
    let parse = move |text: &str| if text.is_empty() { Some(Ok(None)) } else { Some(read(text)?.map(Some)) };
    Kind { parse: Box::new(parse), ..kind }
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
        let spin = micros(10_000);
        assert_eq!(spin.read("x", "0").unwrap(), Duration::ZERO);
        assert_eq!(spin.read("x", " 200").unwrap(), Duration::from_micros(200));
        for bad in ["-1", "1.5", "many", "10001", "18446744073709551616"] {
            let said = spin.read("SYMMEM_SPIN", bad).unwrap_err().to_string();
            assert!(said.contains("SYMMEM_SPIN") && said.contains("microseconds from 0 to 10000"), "{said}");
        }
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let number = number(1..=16);
        assert_eq!(number.read("x", "16").unwrap(), 16);
        assert_eq!(((number.fit)(0), (number.fit)(7), (number.fit)(99)), (1, 7, 16));
        for bad in ["0", "17", "-1", ""] {
            assert!(number.read("x", bad).is_err(), "{bad}");
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
        assert_eq!(pad_size().read("x", "9216").unwrap(), 9216);
        for bad in ["0", "7", "12", "-8", "2147483648"] {
            assert!(pad_size().read("x", bad).is_err(), "{bad}");
        }
    }
}
