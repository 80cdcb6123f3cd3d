//! Sizes in bytes, as people write them.

const UNITS: [(&str, usize); 3] = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// The number of bytes of "8", "64K", "1M" or "2G"; a unit is 1024 of the one before.
pub(super) fn parse(text: &str) -> Result<usize, String> {
    let upper = text.trim().to_ascii_uppercase();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((upper.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((&upper, 1));
    let size = number.parse::<usize>().ok().and_then(|number| number.checked_mul(bytes));
    size.filter(|size| *size > 0)
        .ok_or_else(|| "a size is a number from 1 on, with K, M or G after it".to_owned())
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
        for wrong in ["", "0", "K", "-1", "1.5K", "1T", "99999999999G"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
