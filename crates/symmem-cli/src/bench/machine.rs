//! What the numbers were measured on.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::system::uname;
use serde::Serialize;

/// The machine and the program. What cannot be found out is "unknown" or 0.
#[derive(Serialize)]
pub(super) struct Machine {
    cpu: String,
    cores: usize,
    memory_bytes: u64,
    os: String,
    kernel: String,
    arch: &'static str,
    version: &'static str,
    debug: bool,
    date: String,
}

impl Machine {
    /// This machine, now.
    pub(super) fn this() -> Self {
        let kernel = uname();
        let kilobytes = field("/proc/meminfo", "MemTotal", ':');
        let kilobytes = kilobytes.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            cpu: field("/proc/cpuinfo", "model name", ':'),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kilobytes.unwrap_or(0) * 1024,
            os: field("/etc/os-release", "PRETTY_NAME", '='),
            kernel: kernel.release().to_string_lossy().into_owned(),
            arch: std::env::consts::ARCH,
            version: env!("CARGO_PKG_VERSION"),
            debug: cfg!(debug_assertions),
            date: date(now.as_secs()),
        }
    }

    /// What there is to know about it, each with a name.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let build = if self.debug { ", a debug build: times are far too long" } else { "" };
        vec![
            ("processor", format!("{}, {} cores, {}", self.cpu, self.cores, self.arch)),
            ("memory", format!("{:.1} GB", self.memory_bytes as f64 / (1u64 << 30) as f64)),
            ("system", format!("{}, Linux {}", self.os, self.kernel)),
            ("symmem", format!("{}{build}", self.version)),
            ("date", self.date.clone()),
        ]
    }

    /// It in a few words.
    pub(super) fn words(&self) -> String {
        format!("{}, {} cores, Linux {}", self.cpu, self.cores, self.kernel)
    }
}

/// Bytes of memory that programs can still have; as good as infinite where that cannot be found out.
pub(super) fn free_memory() -> usize {
    let kilobytes = field("/proc/meminfo", "MemAvailable", ':');
    let kilobytes = kilobytes.split(' ').next().and_then(|number| number.parse::<usize>().ok());
    kilobytes.map_or(usize::MAX, |kilobytes| kilobytes * 1024)
}

/// The value of the first line `key <separator> value` of a file.
fn field(path: &str, key: &str, separator: char) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut pairs = text.lines().filter_map(|line| line.split_once(separator));
    let value = pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().trim_matches('"'));
    value.unwrap_or("unknown").to_owned()
}

/// The moment `seconds` after 1970 began, in UTC, as ISO 8601 writes it.
fn date(seconds: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, clock) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days_and_years() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn a_field_that_is_not_there_is_unknown() {
        assert_eq!(field("/no/such/file", "key", ':'), "unknown");
    }
}
