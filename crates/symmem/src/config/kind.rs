//! What values of settings look like as text: how variables are understood, and how `symmem config` shows
//! them.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::sys::secret::Secret;
use crate::{Error, Result};

type Parse<T> = dyn Fn(&str) -> Option<Result<T>>;

/// The texts of a setting's values.
pub(super) struct SettingKind<T> {
    /// What a variable must be, for errors and for the table in docs/settings.md.
    pub(super) expects: String,
    /// What a text means; `None` if it is not what is expected.
    parse: Box<Parse<T>>,
    /// The text of a value; empty if it stands for nothing.
    pub(super) show: Box<dyn Fn(&T) -> String>,
    /// The value nearest to one that was set in code that is allowed.
    pub(super) fit: Box<dyn Fn(T) -> T>,
}

impl<T: 'static> SettingKind<T> {
    fn new(
        expects: impl Into<String>,
        parse: impl Fn(&str) -> Option<Result<T>> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self { expects: expects.into(), parse: Box::new(parse), show: Box::new(show), fit: Box::new(|it| it) }
    }

    /// The same, or none, for which `word` stands.
    pub(super) fn or(self, word: &'static str) -> SettingKind<Option<T>> {
        let Self { expects, parse, show, .. } = self;
        let parse =
            move |text: &str| if text == word { Some(Ok(None)) } else { Some(parse(text)?.map(Some)) };
        SettingKind::new(expects, parse, move |value| value.as_ref().map_or_else(|| word.to_owned(), &show))
    }

    /// What `text` means, or the error that names `variable`.
    pub(super) fn read(&self, variable: &str, text: &str) -> Result<T> {
        let wrong = || Error::invalid(variable, format!("{text:?} is not {}", self.expects));
        (self.parse)(text.trim()).ok_or_else(wrong)?
    }
}

/// A value that is shown as it is written, if it `fits`.
pub(super) fn value<T: Display + FromStr + 'static>(
    expects: impl Into<String>,
    fits: impl Fn(&T) -> bool + 'static,
) -> SettingKind<T> {
    SettingKind::new(expects, move |text| text.parse().ok().filter(&fits).map(Ok), T::to_string)
}

pub(super) fn switch() -> SettingKind<bool> {
    const WORDS: [[&str; 4]; 2] = [["0", "false", "no", "off"], ["1", "true", "yes", "on"]];
    let parse = |text: &str| WORDS.iter().position(|words| words.contains(&text)).map(|at| Ok(at == 1));
    SettingKind::new("0 or 1", parse, bool::to_string)
}

pub(super) fn seconds() -> SettingKind<Option<Duration>> {
    let time = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok().filter(|it| !it.is_zero());
    let show = |time: &Duration| time.as_secs_f64().to_string();
    SettingKind::new("a number of seconds above zero, or \"never\"", move |text| time(text).map(Ok), show)
        .or("never")
}

pub(super) fn pad_size() -> SettingKind<usize> {
    value("a multiple of 8 between 8 and 2^30", |bytes| check_pad_size(*bytes).is_ok())
}

pub(super) fn ranks() -> SettingKind<Vec<usize>> {
    let show = |ranks: &Vec<usize>| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    SettingKind::new("a list of ranks like 1,3", |text| parse_ranks(text).map(Ok), show)
}

/// A name or path.
pub(super) fn text<T: From<String> + AsRef<OsStr> + 'static>(expects: &str) -> SettingKind<T> {
    let show = |text: &T| text.as_ref().to_string_lossy().into_owned();
    SettingKind::new(expects, |text| Some(Ok(T::from(text.to_owned()))), show)
}

/// A number inside of bounds.
pub(super) fn number<T: Copy + Ord + Display + FromStr + 'static>(
    bounds: RangeInclusive<T>,
) -> SettingKind<T> {
    let (least, most) = (*bounds.start(), *bounds.end());
    let kind = value(format!("a number from {least} to {most}"), move |number| bounds.contains(number));
    SettingKind { fit: Box::new(move |number| number.clamp(least, most)), ..kind }
}

/// A time of at most so many microseconds.
pub(super) fn micros(most: u64) -> SettingKind<Duration> {
    let time = move |micros: u64| (micros <= most).then(|| Ok(Duration::from_micros(micros)));
    let expects = format!("a number of microseconds from 0 to {most}");
    let kind =
        SettingKind::new(expects, move |text| time(text.parse().ok()?), |time| time.as_micros().to_string());
    SettingKind { fit: Box::new(move |time| time.min(Duration::from_micros(most))), ..kind }
}

/// The job secret, which `read` finds. It is shown as where it is, never as what it is.
pub(super) fn secret(expects: &str, read: fn(&str) -> Option<Result<Secret>>) -> SettingKind<Option<Secret>> {
    SettingKind::new(expects, read, |secret: &Secret| secret.source().to_string()).or("")
}

/// `1,3`; nothing for none.
fn parse_ranks(text: &str) -> Option<Vec<usize>> {
    text.split(',').map(str::trim).filter(|rank| !rank.is_empty()).map(|rank| rank.parse().ok()).collect()
}

/// A pad holds whole 8-byte words, so that it can be viewed as any dtype, and at least one.
pub(crate) fn check_pad_size(bytes: usize) -> Result<usize> {
    let is_one = bytes.is_multiple_of(8) && (8..=1 << 30).contains(&bytes);
    let problem = || format!("{bytes} is not a multiple of 8 from 8 to 2^30");
    is_one.then_some(bytes).ok_or_else(|| Error::invalid("signal pad size", problem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_seconds_or_never() {
        let read = |text| seconds().read("x", text).ok();
        assert_eq!(read("1.5"), Some(Some(Duration::from_millis(1500))));
        assert_eq!(read("never"), Some(None));
        for bad in ["0", "-1", "soon", "nan", "1e400"] {
            assert_eq!(read(bad), None, "{bad}");
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
