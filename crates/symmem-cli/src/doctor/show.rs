//! The rows as text: grouped, with hints below what is not as it should be, no wider than the screen.

use super::row::{Fact, Row, Status, Summary};
use crate::screen::{self, Tone};

/// Columns before what was found: blanks, the status and the name.
const STATUS: usize = 6;
/// Longer names push what was found to the right.
const NAME: usize = 18;
/// The widest text that is good to read.
const WIDEST: usize = 100;

/// The whole report, without a new line at its end.
pub(super) fn text(rows: &[Row], width: usize) -> String {
    let width = width.clamp(60, WIDEST);
    let mut lines = Vec::new();
    let mut section = None;
    for row in rows {
        if section != Some(row.section) {
            if section.is_some() {
                lines.push(String::new());
            }
            section = Some(row.section);
            lines.push(screen::paint(Tone::Strong, row.section.title()));
        }
        lines.extend(fact_lines(&row.fact, width));
    }
    lines.push(String::new());
    let summary = Summary::of(rows);
    let tone = match summary {
        Summary { failures: 0, warnings: 0, .. } => Tone::Good,
        Summary { failures: 0, .. } => Tone::Doubtful,
        _ => Tone::Bad,
    };
    lines.push(screen::paint(tone, &summary.words()));
    lines.join("\n")
}

fn fact_lines(fact: &Fact, width: usize) -> Vec<String> {
    let indent = 2 + STATUS + NAME + 1;
    let mut lines = Vec::new();
    for (at, part) in wrap(&fact.found, width - indent).into_iter().enumerate() {
        lines.push(match at {
            0 => {
                // Padded before it is painted: colours have no width.
                let status = screen::paint(fact.status.tone(), &format!("{:STATUS$}", fact.status.name()));
                format!("  {status}{:NAME$} {part}", fact.name)
            }
            _ => format!("{:indent$}{part}", ""),
        });
    }
    let hint = fact.hint.as_deref().filter(|_| matches!(fact.status, Status::Warn | Status::Fail));
    for (at, part) in hint.map(|hint| wrap(hint, width - indent - 6)).into_iter().flatten().enumerate() {
        let mark = if at == 0 { screen::paint(Tone::Strong, "hint: ") } else { " ".repeat(6) };
        lines.push(format!("{:indent$}{mark}{part}", ""));
    }
    lines
}

/// `text` in lines of at most `width` characters where its words allow; at least one line. A longer word is
/// cut.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    let words = text.split_whitespace().flat_map(|word| {
        let letters: Vec<char> = word.chars().collect();
        letters.chunks(width).map(|part| part.iter().collect::<String>()).collect::<Vec<_>>()
    });
    for word in words {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(&word);
            used += length;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::row::Section;
    use super::*;

    #[test]
    fn lines_break_between_words_and_cut_what_is_too_long() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn no_line_is_wider_than_the_screen_and_hints_are_below_what_is_wrong() {
        let long = "word ".repeat(60);
        let fact = Fact::warn("open files", &long, &long);
        let rows = [
            Row { section: Section::Kernel, fact: Fact::ok("version", "6.1") },
            Row { section: Section::Limits, fact },
        ];
        for width in [60, 100, 300] {
            let text = text(&rows, width);
            assert!(text.lines().all(|line| console::measure_text_width(line) <= width.min(100)), "{text}");
            let plain = console::strip_ansi_codes(&text).into_owned();
            assert!(plain.contains("\n                           hint: word"), "{plain}");
            assert!(plain.ends_with("\n1 ok, 1 warning, 0 failures"), "{plain}");
        }
    }
}
