//! Whole lines out of the bytes of one stream, each with its rank before it.
//!
//! Lines of different ranks are never mixed. All bytes are kept as they are. A line that does not end is
//! shown after a while, or when it is very long, and what follows of it is a line of its own.

use std::time::{Duration, Instant};

/// How long the begin of a line waits for its end.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a line may be before it is cut.
const LONGEST: usize = 64 << 10;

/// One stream of one rank.
pub(super) struct Lines {
    prefix: Vec<u8>,
    /// Whether people see the output move: a carriage return goes back to before the prefix, so it is
    /// followed by one more.
    terminal: bool,
    begun: Vec<u8>,
    since: Option<Instant>,
    /// The line before this was cut: an end that comes alone ends that one.
    cut: bool,
}

impl Lines {
    /// Lines that begin with `prefix`, for a terminal or for something else.
    pub(super) fn new(prefix: Vec<u8>, terminal: bool) -> Self {
        Self { prefix, terminal, begun: Vec::new(), since: None, cut: false }
    }

    /// Takes `bytes` that came now, and appends the lines that have ended to `out`.
    pub(super) fn take(&mut self, bytes: &[u8], now: Instant, out: &mut Vec<u8>) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.begun.extend_from_slice(text);
            if ends && self.cut && self.begun.is_empty() {
                self.cut = false;
            } else if ends {
                self.put(out);
                self.cut = false;
            } else if self.begun.len() >= LONGEST {
                self.put(out);
                self.cut = true;
            }
        }
        self.since = if self.begun.is_empty() { None } else { self.since.or(Some(now)) };
    }

    /// When the begun line should be shown, if there is one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + PATIENCE)
    }

    /// Appends the begun line to `out` if there is one, with an end.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.begun.is_empty() {
            self.put(out);
            self.cut = true;
        }
        self.since = None;
    }

    fn put(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        let end = self.begun.strip_suffix(b"\r").map_or(self.begun.len(), <[u8]>::len);
        for (at, byte) in self.begun.iter().enumerate() {
            out.push(*byte);
            if self.terminal && *byte == b'\r' && at < end {
                out.extend_from_slice(&self.prefix);
            }
        }
        out.push(b'\n');
        self.begun.clear();
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(terminal: bool) -> Lines {
        Lines::new(b"[1] ".to_vec(), terminal)
    }

    fn said(lines: &mut Lines, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        lines.take(bytes, Instant::now(), &mut out);
        out
    }

    #[test]
    fn lines_are_whole_and_bytes_survive() {
        let mut lines = lines(false);
        assert_eq!(said(&mut lines, b"a"), b"");
        assert!(lines.due().is_some());
        assert_eq!(said(&mut lines, b"b\n\n\xff\0\r\nrest"), b"[1] ab\n[1] \n[1] \xff\0\r\n");
        let mut out = Vec::new();
        lines.finish(&mut out);
        assert_eq!((out.as_slice(), lines.due()), (b"[1] rest\n".as_slice(), None));
    }

    #[test]
    fn the_end_of_a_line_that_was_shown_already_is_no_line() {
        let mut lines = lines(false);
        let mut out = Vec::new();
        said(&mut lines, b"name? ");
        lines.finish(&mut out);
        assert_eq!(said(&mut lines, b"\nnext\n"), b"[1] next\n");
        assert_eq!(said(&mut lines, b"\n"), b"[1] \n");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut lines = lines(false);
        let out = said(&mut lines, &vec![b'x'; LONGEST]);
        assert_eq!(out.len(), LONGEST + 5);
        assert_eq!(said(&mut lines, b"y\n"), b"[1] y\n");
        assert_eq!(said(&mut lines, b"\n"), b"[1] \n");
    }

    #[test]
    fn on_a_terminal_the_rank_stays_before_what_is_written_over() {
        assert_eq!(said(&mut lines(true), b"1%\r2%\r\n"), b"[1] 1%\r[1] 2%\r\n");
        assert_eq!(said(&mut lines(false), b"1%\r2%\r\n"), b"[1] 1%\r2%\r\n");
    }
}
