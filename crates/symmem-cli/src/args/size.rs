//! Sizes in bytes, as people write them.

const UNITS: [(&str, usize); 3] = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// The number of bytes of "8", "64K", "64KB", "64KiB", "1M" or "2G". A unit is 1024 of the one before,
/// however it is written: sizes of messages are powers of two, in every table of this program.
pub(super) fn parse(text: &str) -> Result<usize, String> {
    let upper = text.trim().to_ascii_uppercase();
    let plain = ["IB", "B"].iter().find_map(|end| upper.strip_suffix(end)).unwrap_or(&upper);
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((plain.strip_suffix(unit)?, *bytes)));
    // "8iB" is nothing.
    let (number, bytes) = unit.unwrap_or((upper.strip_suffix('B').unwrap_or(&upper), 1));
    let size = number.parse::<usize>().ok().and_then(|number| number.checked_mul(bytes));
    size.filter(|size| *size > 0)
        .ok_or_else(|| "a size is a number of bytes from 1 on, or has a unit: 1K, 1KB and 1KiB are 1024 bytes, M and G 1024 of the one before".to_owned())
}

/// `bytes` in the largest unit that it is a multiple of.
pub(crate) fn short(bytes: usize) -> String {
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("8", 8), ("1K", 1024), ("64k", 65_536), ("1M", 1 << 20), ("2G", 2 << 30)] {
            assert_eq!(parse(text), Ok(bytes));
            assert_eq!(short(bytes), text.to_ascii_uppercase());
        }
        assert_eq!(short(1025), "1025");
        let written =
            [("8B", 8), ("1KB", 1024), ("1kb", 1024), ("64KiB", 65_536), ("1MB", 1 << 20), ("2gib", 2 << 30)];
        for (text, bytes) in written {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "0", "K", "B", "KB", "8iB", "8Ki", "1KBB", "-1", "1.5K", "1T", "99999999999G"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
