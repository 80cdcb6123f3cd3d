//! Words in files: as parts of names, and in comments, texts and pages alike. Upper and lower case are the
//! same.

use super::tables::{Tables, Unused};
use super::{PAGE, Text};

/// A part of a name: `WatchList` and `watch_list` have two.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// In lower case.
    pub(super) text: String,
    /// The name that it is of: where it begins and ends in the line.
    name: (usize, usize),
}

/// The parts of all names and words of a line, in order.
pub(super) fn parts(line: &str) -> Vec<Part> {
    let mut found = Vec::new();
    let mut at = 0;
    let is_inside = |c: char| c.is_alphanumeric() || c == '_';
    while let Some(start) = line[at..].find(is_inside).map(|start| at + start) {
        let end = line[start..].find(|c| !is_inside(c)).map_or(line.len(), |len| start + len);
        let name = &line[start..end];
        found.extend(split(name).into_iter().map(|text| Part { text, name: (start, end) }));
        at = end;
    }
    found
}

fn split(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for word in name.split('_').filter(|word| !word.is_empty()) {
        let chars: Vec<char> = word.chars().collect();
        let mut part = String::new();
        for (at, c) in chars.iter().enumerate() {
            let follows_small = at > 0 && !chars[at - 1].is_uppercase();
            let before_small = at > 0 && chars.get(at + 1).is_some_and(|next| next.is_lowercase());
            if c.is_uppercase() && (follows_small || before_small) && !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            part.extend(c.to_lowercase());
        }
        parts.push(part);
    }
    parts
}

/// Where words are that are not used.
pub(super) fn forbidden(texts: &[Text], tables: &Tables) -> Vec<String> {
    let mut wrong = Vec::new();
    for Text { path, text } in texts {
        // Most files hold none, which is quicker to see than to split them.
        let small = text.to_lowercase();
        let unused: Vec<&Unused> = tables
            .unused
            .iter()
            .filter(|unused| unused.parts.iter().all(|part| small.contains(part)))
            .collect();
        if unused.is_empty() {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            let number = at + 1;
            if path == PAGE && tables.lines.iter().any(|lines| lines.contains(&number)) {
                continue;
            }
            let parts = parts(line);
            for unused in &unused {
                if holds(unused, path, line, &parts) {
                    let Unused { word, instead, .. } = unused;
                    wrong.push(format!("{path}:{number}: `{word}` is not used here; instead: {instead}"));
                }
            }
        }
    }
    wrong
}

fn holds(unused: &Unused, path: &str, line: &str, parts: &[Part]) -> bool {
    let is_path = |spared: &str| spared.contains(['/', '.']);
    if unused.spared.iter().any(|spared| is_path(spared) && path.starts_with(spared)) {
        return false;
    }
    let mut found = parts.windows(unused.parts.len()).filter(|window| is_same(window, &unused.parts));
    found.any(|window| {
        let names = window.iter().map(|part| &line[part.name.0..part.name.1]);
        !names.into_iter().all(|name| unused.spared.iter().any(|spared| spared == name))
    })
}

/// Whether the parts are these words; the last one may be a plural.
fn is_same(window: &[Part], words: &[String]) -> bool {
    window.iter().zip(words).enumerate().all(|(at, (part, word))| {
        let is_last = at + 1 == words.len();
        part.text == *word || is_last && part.text.strip_suffix('s') == Some(word)
    })
}

/// Rows of the tables that say nothing any more: a word of the project that nobody writes, a word that is
/// used and is not.
pub(super) fn stale(texts: &[Text], tables: &Tables) -> Vec<String> {
    let words = |word: &String| parts(word).into_iter().map(|part| part.text).collect::<Vec<_>>();
    let mut unseen: Vec<(&String, Vec<String>)> =
        tables.used.iter().map(|word| (word, words(word))).collect();
    for line in texts.iter().filter(|file| file.path != PAGE).flat_map(|file| file.text.lines()) {
        if unseen.is_empty() {
            break;
        }
        let parts = parts(line);
        unseen.retain(|(_, words)| !parts.windows(words.len()).any(|window| is_same(window, words)));
    }
    let both = tables.used.iter().filter(|word| tables.unused.iter().any(|unused| unused.word == **word));
    let gone = unseen
        .iter()
        .map(|(word, _)| format!("{PAGE}: `{word}` is a word of the project, and nobody writes it"));
    gone.chain(both.map(|word| format!("{PAGE}: `{word}` is a word of the project, and is not used")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::PAGE as TABLES;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let tables = Tables::parse(TABLES).expect("tables");
        forbidden(&[Text { path: path.to_owned(), text: text.to_owned() }], &tables)
    }

    #[test]
    fn names_have_parts() {
        let of = |name| parts(name).into_iter().map(|part| part.text).collect::<Vec<_>>();
        assert_eq!(of("WatchList watch_list"), ["watch", "list", "watch", "list"]);
        assert_eq!(of("PTXText F16Lanes x2"), ["ptx", "text", "f16", "lanes", "x2"]);
        assert_eq!(of("_kennel, KENNEL"), ["kennel", "kennel"]);
    }

    #[test]
    fn a_word_that_is_not_used_is_found_in_names_comments_texts_and_pages() {
        for line in [
            "struct Kennel;",
            "static MY_KENNEL: u8 = 0;",
            "fn open_kennels() {}",
            "// of the kennel.",
            "let x = \"a Leash\";",
            "The leash, in a page.",
            "\"making of an engine\"",
            "fn put_with_x_twice()",
            "PutWithX",
        ] {
            assert_eq!(found("a.rs", line).len(), 1, "{line}");
        }
        assert_eq!(
            found("docs/a.md", "\nthe kennel\n"),
            ["docs/a.md:2: `kennel` is not used here; instead: watch list"]
        );
    }

    #[test]
    fn other_words_are_not_found() {
        for line in ["kennelling", "leashed", "making it of", "put_with_y", "x_put with"] {
            assert!(found("a.rs", line).is_empty(), "{line}");
        }
    }

    #[test]
    fn foreign_names_and_places_are_spared() {
        assert!(found("a.py", "foreign_put_with_x(1)").is_empty());
        assert!(found("torch/a.py", "put_with_x(1)").is_empty());
        assert_eq!(found("a.py", "foreign_put_with_x(put_with_x)").len(), 1);
        assert_eq!(found("a/torch.py", "put_with_x(1)").len(), 1);
    }

    #[test]
    fn the_tables_may_name_what_is_not_used_and_the_rest_of_the_page_may_not() {
        assert!(found(PAGE, TABLES).is_empty());
        assert_eq!(found(PAGE, &format!("{TABLES}the kennel\n")).len(), 1);
    }

    #[test]
    fn a_row_that_says_nothing_is_found() {
        let tables = Tables::parse(TABLES).expect("tables");
        let text = |path: &str, text: &str| Text { path: path.to_owned(), text: text.to_owned() };
        assert!(stale(&[text("a.rs", "let ranks = 1;")], &tables).is_empty());
        let wrong = stale(&[text("a.rs", "let x = 1;"), text(PAGE, "rank")], &tables);
        assert_eq!(wrong, ["CONTRIBUTING.md: `rank` is a word of the project, and nobody writes it"]);
        let both = Tables::parse(&TABLES.replace("`rank`", "`leash`")).expect("tables");
        assert_eq!(stale(&[text("a.rs", "leash")], &both).len(), 1);
    }
}
