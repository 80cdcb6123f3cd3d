//! Reading what the kernel writes about itself, and writing sizes for people.

use std::path::Path;

/// The text of a file without blanks around it; none if it cannot be read.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The value of the first line `key: value`.
pub(super) fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).next()
}

/// The bytes of the line `key: number kB`.
pub(super) fn kib(text: &str, key: &str) -> Option<u64> {
    let number: u64 = field(text, key)?.strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// Bytes in the unit in which they are a number of one to three digits: `7.5 GiB`.
pub(super) fn bytes(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut amount = bytes as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < units.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let text = if unit == 0 || amount >= 100.0 { format!("{amount:.0}") } else { format!("{amount:.1}") };
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), units[unit])
}

/// `1 core`, `2 cores`.
pub(super) fn many(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (size, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (8 << 20, "8 MiB"),
            (7_516_192_768, "7 GiB"),
            (8_053_063_680, "7.5 GiB"),
            (150_754_820_096, "140 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotalX: 1 kB\nMemTotal:   24576000 kB\nName:\tsh\n";
        assert_eq!(kib(text, "MemTotal"), Some(24_576_000 * 1024));
        assert_eq!((field(text, "Name"), field(text, "None")), (Some("sh"), None));
        assert_eq!(kib("MemTotal: many kB", "MemTotal"), None);
    }
}
