//! The README is for somebody who has a minute: it stays short, and its tables fit a page.

/// Lines of the README.
const LINES: usize = 130;
/// Characters of a cell of its tables.
const CELL: usize = 100;

/// What makes the README too long.
pub(super) fn problems(readme: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = readme.lines().count();
    if lines > LINES {
        problems.push(format!(
            "README.md has {lines} lines, of at most {LINES}: what is more belongs into the book"
        ));
    }
    for (at, line) in readme.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let longest = line.split('|').map(|cell| cell.trim().chars().count()).max().unwrap_or_default();
        if longest > CELL {
            problems
                .push(format!("README.md:{}: a cell has {longest} characters, of at most {CELL}", at + 1));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_page_and_a_wide_cell_are_noticed() {
        let short = "Text.\n".repeat(LINES);
        assert!(problems(&short).is_empty());
        assert_eq!(problems(&format!("{short}x\n")).len(), 1);
        let cell = "x".repeat(CELL);
        assert!(problems(&format!("| a | {cell} |")).is_empty());
        assert_eq!(
            problems(&format!("Text.\n| a | {cell}x |")),
            ["README.md:2: a cell has 101 characters, of at most 100"]
        );
    }
}
