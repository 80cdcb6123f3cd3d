//! The report for people: one HTML file that needs nothing else, readable on light and dark screens and on
//! paper.
//!
//! It is XML too, so that programs can read it.

use std::fmt::Write;

use super::sheet::Sheet;

/// What a report shows.
pub(super) struct Page {
    /// What was measured on, each with a name.
    pub(super) facts: Vec<(&'static str, String)>,
    /// Those that have rows are shown.
    pub(super) tables: Vec<Sheet>,
    /// Pictures, as SVG.
    pub(super) plots: Vec<String>,
}

const STYLE: &str = include_str!("report.css");

impl Page {
    /// The file, of a bench that this very program was asked for.
    pub(super) fn text(&self) -> String {
        let mut facts = String::new();
        let command = [("command", command(std::env::args()))];
        for (name, value) in command.iter().chain(&self.facts) {
            let _ = writeln!(facts, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
        }
        let tables: String = self.tables.iter().filter(|sheet| !sheet.rows.is_empty()).map(table).collect();
        let plots: String = self.plots.iter().map(|plot| format!("<figure>\n{plot}</figure>\n")).collect();
        let section = |title, body: &str| match body {
            "" => String::new(),
            body => format!("<section>\n<h2>{title}</h2>\n{body}</section>\n"),
        };
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <title>symmem bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>symmem bench</h1>\n\
             <dl>\n{facts}</dl>\n{}{}</body>\n</html>\n",
            section("Plots", &plots),
            section("Tables", &tables)
        )
    }
}

fn table(sheet: &Sheet) -> String {
    let class = |number: bool| if number { " class=\"number\"" } else { "" };
    let cells = |tag: &str, cells: &[String]| -> String {
        let cell = |(text, (_, number)): (&String, &(String, bool))| {
            format!("<{tag}{}>{}</{tag}>", class(*number), escape(text))
        };
        let cells: String = cells.iter().zip(&sheet.columns).map(cell).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let names: Vec<String> = sheet.columns.iter().map(|(name, _)| name.clone()).collect();
    let rows: String = sheet.rows.iter().map(|row| cells("td", row)).collect();
    let head =
        if sheet.head.is_empty() { String::new() } else { format!("<h3>{}</h3>\n", escape(&sheet.head)) };
    format!(
        "{head}<div class=\"table\"><table>\n<thead>\n{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
        cells("th", &names)
    )
}

/// The words as a shell takes them; the first one is this program, wherever it lies.
fn command(words: impl Iterator<Item = String>) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./,:=%+@".contains(letter);
    let quoted = |word: String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    ["symmem".to_owned()].into_iter().chain(words.skip(1).map(quoted)).collect::<Vec<_>>().join(" ")
}

/// `text` in XML.
pub(super) fn escape(text: &str) -> String {
    let legal = text.chars().filter(|letter| !letter.is_control()).collect::<String>();
    legal.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sheet::{Column, Set};

    #[test]
    fn a_page_is_xml_and_says_what_it_was_given_letter_by_letter() {
        let nasty = "<script>&\"'</td>\u{1b}";
        let sheet =
            Sheet::new(&[&nasty], &[Column::new("a < b", Set::Words, |text: &&str| (*text).to_owned())]);
        let page =
            Page { facts: vec![("processor", nasty.to_owned())], tables: vec![sheet], plots: Vec::new() };
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let text = page.text();
        let document = roxmltree::Document::parse_with_options(&text, options).expect("XML");
        let said = |tag: &str| -> Vec<&str> {
            document
                .descendants()
                .filter(|node| node.has_tag_name(tag))
                .filter_map(|node| node.text())
                .collect()
        };
        assert_eq!(said("td"), ["<script>&\"'</td>"]);
        assert_eq!(said("th"), ["a < b"]);
        assert!(said("dd").contains(&"<script>&\"'</td>") && said("script").is_empty());
        assert_eq!(said("h2"), ["Tables"], "a section without a word has no title");
    }

    #[test]
    fn the_command_can_be_pasted_into_a_shell() {
        let words = ["/usr/bin/symmem", "bench", "--sizes", "8,1K", "--html", "it's a file", "", "$HOME"];
        let text = command(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(text, r"symmem bench --sizes 8,1K --html 'it'\''s a file' '' '$HOME'");
    }
}
