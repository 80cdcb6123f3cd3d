//! Tables before they are drawn: the columns that say something, and above them what all rows share.
//!
//! Both benches make their tables here, for terminals and for HTML.

use comfy_table::{CellAlignment, ContentArrangement, Table};

use crate::screen;

/// A column: its name, how it is set, and what it says of a row. A column that says nothing of any row is
/// left out.
pub(super) struct Column<'a, R> {
    name: String,
    set: Set,
    says: Box<dyn Fn(&R) -> String + 'a>,
}

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    Words,
    Number,
    /// Above the table instead, where all rows that say something say the same.
    Head,
}

impl<'a, R> Column<'a, R> {
    pub(super) fn new(name: &str, set: Set, says: impl Fn(&R) -> String + 'a) -> Self {
        Self { name: name.to_owned(), set, says: Box::new(says) }
    }

    /// What all of `rows` share; nothing where they differ or say nothing.
    fn common(&self, rows: &[&R]) -> Option<String> {
        let mut said = rows.iter().map(|row| (self.says)(row)).filter(|text| !text.is_empty());
        let first = said.next().filter(|_| self.set == Set::Head)?;
        said.all(|text| text == first).then_some(first)
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sheet {
    /// What all rows share.
    pub(super) head: String,
    /// Names, and whether it is numbers that stand below.
    pub(super) columns: Vec<(String, bool)>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Sheet {
    pub(super) fn new<R>(rows: &[&R], columns: &[Column<'_, R>]) -> Self {
        let head: Vec<String> = columns
            .iter()
            .filter_map(|column| Some(format!("{} {}", column.name, column.common(rows)?)))
            .collect();
        let says = |column: &&Column<'_, R>| rows.iter().any(|row| !(column.says)(row).is_empty());
        let shown: Vec<_> =
            columns.iter().filter(says).filter(|column| column.common(rows).is_none()).collect();
        Self {
            head: head.join(", "),
            columns: shown.iter().map(|column| (column.name.clone(), column.set == Set::Number)).collect(),
            rows: rows.iter().map(|row| shown.iter().map(|column| (column.says)(row)).collect()).collect(),
        }
    }

    /// The head and the table; no wider than the screen unless it may be `wide`.
    pub(super) fn text(&self, wide: bool) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let mut table: Table = screen::table(&names);
        if wide {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        table.add_rows(&self.rows);
        for (column, _) in table.column_iter_mut().zip(&self.columns).filter(|(_, (_, number))| *number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let head = if self.head.is_empty() { String::new() } else { format!("{}\n", self.head) };
        format!("{head}{table}")
    }
}

/// The rows that have a key in common, in the order of their first ones.
pub(super) fn grouped<'a, R, K: PartialEq>(
    rows: impl IntoIterator<Item = &'a R>,
    key: impl Fn(&R) -> K,
) -> Vec<Vec<&'a R>> {
    let mut groups: Vec<Vec<&R>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| key(group[0]) == key(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_rows_share_is_said_above_and_what_says_nothing_is_left_out() {
        let columns = [
            Column::new("same", Set::Head, |_: &usize| "x".to_owned()),
            Column::new(
                "some",
                Set::Head,
                |row: &usize| if *row > 1 { "y".to_owned() } else { String::new() },
            ),
            Column::new("differs", Set::Head, usize::to_string),
            Column::new("empty", Set::Words, |_| String::new()),
            Column::new("number", Set::Number, |row: &usize| (10 * row).to_string()),
        ];
        let sheet = Sheet::new(&[&1, &2], &columns);
        assert_eq!(sheet.head, "same x, some y");
        assert_eq!(sheet.columns, [("differs".to_owned(), false), ("number".to_owned(), true)]);
        assert_eq!(sheet.rows, [["1", "10"], ["2", "20"]]);
        assert!(sheet.text(false).starts_with("same x, some y\n"), "{}", sheet.text(false));
        assert_eq!(Sheet::new(&[], &columns), Sheet::default());
        assert_eq!(grouped(&[1, 2, 3, 4], |row| row % 2), [[&1, &3], [&2, &4]]);
    }

    #[test]
    fn only_a_wide_table_is_wider_than_the_screen() {
        let columns = [0, 1, 2, 3].map(|at| {
            Column::new(&format!("column {at}"), Set::Words, move |_: &()| "a few words ".repeat(at + 2))
        });
        let sheet = Sheet::new(&[&()], &columns);
        let widest = |wide| sheet.text(wide).lines().map(|line| line.chars().count()).max();
        assert!(widest(false) <= Some(screen::width()) && widest(true) > Some(100));
    }
}
