//! Whether the memory of this process grows.

/// Looks before the first half of them is over are warm-up: allocators and caches fill.
const LEAST_LOOKS: usize = 8;
/// How much more may be resident at the end: allocators keep some of what passed through.
const SLACK: usize = 24 << 20;

/// Resident bytes, look by look.
#[derive(Debug, Default)]
pub(crate) struct Growth(Vec<usize>);

impl Growth {
    /// Takes one look.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        self.0.push(resident());
        self.judge()
    }

    /// What was resident first and most, in MiB, for people.
    pub(crate) fn peak(&self) -> usize {
        self.0.iter().max().copied().unwrap_or_default() >> 20
    }

    /// The least of the last quarter against the most of the second: what grows steadily passes it, what
    /// swings does not.
    pub(crate) fn judge(&self) -> Result<(), String> {
        let looks = &self.0;
        if looks.len() < LEAST_LOOKS {
            return Ok(());
        }
        let quarter = looks.len() / 4;
        let early = looks[quarter..2 * quarter].iter().max().copied().unwrap_or_default();
        let late = looks[looks.len() - quarter..].iter().min().copied().unwrap_or_default();
        if late > early + SLACK {
            return Err(format!("resident memory grew from {} to {} MiB", early >> 20, late >> 20));
        }
        Ok(())
    }
}

/// Resident bytes that belong to this process alone: shared memory is counted as mappings.
fn resident() -> usize {
    let words = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = |at| words.split(' ').nth(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
    pages(1).saturating_sub(pages(2)) * rustix::param::page_size()
}
