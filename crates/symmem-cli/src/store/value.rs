//! Values of a store: bytes, shown as text where they are text.

use anyhow::{Result, bail};
use serde_json::{Value, json};

/// Most characters of a value in a table.
const SHORT: usize = 60;

/// Text as it is, anything else with escapes for what is none.
pub(super) fn readable(bytes: &[u8]) -> String {
    match as_text(bytes) {
        Some(text) => text.to_owned(),
        None => bytes.escape_ascii().to_string(),
    }
}

/// The same in one short line.
pub(super) fn short(bytes: &[u8]) -> String {
    let line: String = readable(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= SHORT {
        line
    } else {
        line.chars().take(SHORT - 3).chain("...".chars()).collect()
    }
}

/// For programs: `value` is null where the bytes are no text; `hex` is always all of them.
pub(super) fn as_json(key: &str, bytes: &[u8]) -> Value {
    json!({"key": key, "value": as_text(bytes), "hex": hex(bytes), "bytes": bytes.len()})
}

/// Two digits for each byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits, spaces between them allowed.
pub(super) fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let value = |digit: &char| digit.to_digit(16).map(|value| value as u8);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(value(high)? << 4 | value(low)?),
        _ => None,
    });
    match pairs.collect() {
        Some(bytes) => Ok(bytes),
        None => bail!("{text:?} is not an even number of hexadecimal digits"),
    }
}

fn as_text(bytes: &[u8]) -> Option<&str> {
    let is_shown = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(is_shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_as_it_is_and_bytes_are_escaped() {
        assert_eq!(readable("grün\n".as_bytes()), "grün\n");
        assert_eq!(readable(b"a\0\xff"), "a\\x00\\xff");
        assert_eq!(short(b"two\nlines"), "two lines");
        assert_eq!(short(&[b'x'; 100]).len(), SHORT);
        assert_eq!(as_json("k", b"\xff")["value"], Value::Null);
    }

    #[test]
    fn hexadecimal_digits_are_read_back() {
        assert_eq!(from_hex(&hex(b"\0\x7f\xff")).unwrap(), b"\0\x7f\xff");
        assert_eq!(from_hex("DE ad").unwrap(), b"\xde\xad");
        for wrong in ["a", "0g", "é0"] {
            assert!(from_hex(wrong).is_err(), "{wrong}");
        }
    }
}
