//! Numbers for people: three digits that count, in the unit that suits each one.

/// Microseconds as "123 ns", "1.23 us", "12.3 ms" or "1.23 s".
pub(crate) fn time(us: f64) -> String {
    scaled(us * 1e3, &["ns", "us", "ms", "s"])
}

/// Gigabytes per second as "1.23 GB/s", "123 MB/s" and so on, a thousand from one unit to the next.
pub(crate) fn rate(gb_per_s: f64) -> String {
    scaled(gb_per_s * 1e9, &["B/s", "KB/s", "MB/s", "GB/s", "TB/s"])
}

/// Bytes in the largest unit in which three digits say it exactly, 1024 from one unit to the next.
pub(crate) fn size(bytes: usize) -> String {
    let exact = |(unit, shift): &(&str, u32)| {
        let value = bytes as f64 / (1u64 << shift) as f64;
        (value >= 1.0 && rounded(value) == value).then(|| format!("{value} {unit}"))
    };
    let units = [("GB", 30), ("MB", 20), ("KB", 10)];
    units.iter().find_map(exact).unwrap_or_else(|| format!("{bytes} B"))
}

/// A number with three digits that count, or more before the point.
pub(crate) fn digits(value: f64) -> String {
    let value = rounded(value);
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (2.0 - value.abs().log10().floor()).clamp(0.0, 5.0);
    format!("{value:.*}", decimals as usize)
}

fn scaled(value: f64, units: &[&str]) -> String {
    let value = rounded(value);
    let last = units.len() - 1;
    let power = (value.abs().max(1.0).log10() / 3.0).floor().clamp(0.0, last as f64);
    format!("{} {}", digits(value / 1e3f64.powf(power)), units[power as usize])
}

/// The nearest number of three digits, so that 999.9 is in the next unit.
fn rounded(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_have_three_digits_in_the_unit_that_suits() {
        for (us, text) in [
            (0.0, "0 ns"),
            (0.00123, "1.23 ns"),
            (0.1234, "123 ns"),
            (0.9996, "1.00 us"),
            (1.0, "1.00 us"),
            (12.34, "12.3 us"),
            (999.4, "999 us"),
            (999.6, "1.00 ms"),
            (45_678.0, "45.7 ms"),
            (1.5e6, "1.50 s"),
            (123_456_789.0, "123 s"),
        ] {
            assert_eq!(time(us), text);
        }
        assert_eq!((rate(12.345), rate(0.5)), ("12.3 GB/s".to_owned(), "500 MB/s".to_owned()));
        assert_eq!((rate(4321.0), rate(1e-9)), ("4.32 TB/s".to_owned(), "1.00 B/s".to_owned()));
        assert_eq!(
            (digits(0.012345), digits(1234.5), digits(-2.5)),
            ("0.0123".into(), "1230".into(), "-2.50".into())
        );
    }

    #[test]
    fn sizes_are_exact() {
        for (bytes, text) in [
            (8, "8 B"),
            (1023, "1023 B"),
            (1024, "1 KB"),
            (1025, "1025 B"),
            (1536, "1.5 KB"),
            (64 << 10, "64 KB"),
            (512 << 20, "512 MB"),
            (1 << 30, "1 GB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
