//! The tables of CONTRIBUTING.md: which words there are, which are not used, which types are defined twice, and
//! which names say too little for a type.
//!
//! A table stands between `<!-- words: NAME -->` and `<!-- end of NAME -->`; its first two lines are its
//! head.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

/// A word that is not used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unused {
    /// In lower case, as parts of a name: `put_with_x` has three.
    pub(super) parts: Vec<String>,
    /// As the table writes it.
    pub(super) word: String,
    pub(super) instead: String,
    /// Names that hold it all the same, and folders or files (with a `/` or a `.`) where it may be.
    pub(super) spared: Vec<String>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) used: Vec<String>,
    pub(super) unused: Vec<Unused>,
    /// Types that are defined more than once.
    pub(super) several: Vec<String>,
    /// Names that no type may have alone.
    pub(super) bare: Vec<String>,
    /// Lines of the page, from 1 on, that are tables: they hold the words that are not used.
    pub(super) lines: Vec<Range<usize>>,
}

impl Tables {
    /// Reads the page.
    pub(super) fn parse(page: &str) -> Result<Self> {
        let mut tables = Self::default();
        for (word, _) in tables.rows(page, "used")? {
            tables.used.extend(words_of(&word[0]));
        }
        for (cells, line) in tables.rows(page, "not used")? {
            let [words, instead, spared] = &cells[..] else {
                anyhow::bail!("line {line}: a row has a word, the one instead, and where it may be");
            };
            let named = words_of(words);
            ensure!(!named.is_empty(), "line {line}: there is no `word`");
            for word in named {
                let parts = super::search::parts(&word).into_iter().map(|part| part.text).collect();
                tables.unused.push(Unused {
                    parts,
                    word,
                    instead: instead.clone(),
                    spared: words_of(spared),
                });
            }
        }
        for (cells, _) in tables.rows(page, "types defined more than once")? {
            tables.several.extend(words_of(&cells[0]));
        }
        for (cells, _) in tables.rows(page, "no names of types")? {
            tables.bare.extend(words_of(&cells[0]));
        }
        Ok(tables)
    }

    /// The rows of one table, each with its line.
    fn rows(&mut self, page: &str, name: &str) -> Result<Vec<(Vec<String>, usize)>> {
        let (begin, end) = (format!("<!-- words: {name} -->"), format!("<!-- end of {name} -->"));
        let at = |mark: &str| page.lines().position(|line| line == mark);
        let begin = at(&begin).with_context(|| format!("there is no line `{begin}`"))?;
        let end = at(&end).filter(|end| *end > begin).with_context(|| format!("there is no line `{end}`"))?;
        self.lines.push(begin + 1..end + 2);
        let lines = page.lines().enumerate().take(end).skip(begin + 3);
        let cells =
            |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        Ok(lines.map(|(at, line)| (cells(line), at + 1)).collect())
    }
}

/// What is in backticks.
fn words_of(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const PAGE: &str = "\
a page
<!-- words: used -->
| word | means |
|---|---|
| `rank` | one of several |
<!-- end of used -->
<!-- words: not used -->
| not used | instead | may be in |
|---|---|---|
| `kennel`, `leash` | watch list | |
| `put_with_x` | `put_with_y` | `foreign_put_with_x`, `torch/` |
| `making of` | set-up | |
<!-- end of not used -->
<!-- words: types defined more than once -->
| type | why |
|---|---|
| `Algorithm` | host and device |
<!-- end of types defined more than once -->
<!-- words: no names of types -->
| name | say instead |
|---|---|
| `Inner`, `Lump` | what is inside |
<!-- end of no names of types -->
";

    #[test]
    fn the_page_has_four_tables() {
        let tables = Tables::parse(PAGE).expect("tables");
        assert_eq!(
            (&tables.used[..], &tables.several[..]),
            (&["rank".into()][..], &["Algorithm".into()][..])
        );
        let words: Vec<_> = tables.unused.iter().map(|unused| unused.word.as_str()).collect();
        assert_eq!(words, ["kennel", "leash", "put_with_x", "making of"]);
        assert_eq!(tables.unused[2].spared, ["foreign_put_with_x", "torch/"]);
        assert_eq!(tables.unused[3].parts, ["making", "of"]);
        assert_eq!(tables.lines[1], 7..14);
    }

    #[test]
    fn a_page_that_lacks_a_table_is_an_error() {
        let without = PAGE.replace("<!-- words: not used -->", "");
        assert!(Tables::parse(&without).expect_err("no table").to_string().contains("words: not used"));
        let short = PAGE.replace("| watch list | |", "|");
        assert!(Tables::parse(&short).is_err());
    }
}
