//! Links of pages: which there are, and which lead nowhere. Only what is in the repository is looked at,
//! never the network.

use std::collections::BTreeSet;
use std::ops::Range;

use super::pages::Pages;

/// Where a page leads to, as it is written there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) target: String,
    /// Where in the page the target is.
    pub(super) at: Range<usize>,
}

/// What is before a target, and the character that ends it.
const OPENINGS: [(&str, char); 4] = [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"'), ("href=\"", '"')];

/// Every link of `text` that is not in code.
pub(super) fn targets(text: &str) -> Vec<Link> {
    let prose = without_code(text);
    let mut links: Vec<_> = OPENINGS.iter().flat_map(|(open, end)| found(&prose, text, open, *end)).collect();
    links.sort_by_key(|link| link.at.start);
    links
}

fn found<'a>(prose: &'a str, text: &'a str, open: &'a str, end: char) -> impl Iterator<Item = Link> + 'a {
    prose.match_indices(open).filter_map(move |(at, _)| {
        let start = at + open.len();
        let length = prose[start..].find([end, '\n'])?;
        let at = start..start + length;
        Some(Link { target: text[at.clone()].to_owned(), at })
    })
}

/// The same text with spaces in the place of code, so that places stay what they are.
fn without_code(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        if fenced || fence {
            prose.extend(line.bytes().map(blank));
        } else {
            // Every second part is between two backticks.
            let parts = line.split('`').enumerate();
            let blanked = parts.map(|(n, part)| {
                if n % 2 == 0 { part.to_owned() } else { part.bytes().map(blank).collect::<String>() }
            });
            prose.push_str(&blanked.collect::<Vec<_>>().join("`"));
        }
        fenced ^= fence;
    }
    prose
}

fn blank(byte: u8) -> char {
    if byte == b'\n' { '\n' } else { ' ' }
}

/// Whether a target is elsewhere than in the repository.
pub(super) fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The path in the repository that `target` on the page `from` means.
pub(super) fn resolved(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<_> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// What headings of `text` are called in links, as GitHub and mdBook make it of them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let name = anchor(heading.trim());
        let taken = (1..).map(|n| format!("{name}-{n}"));
        let free = [name.clone()].into_iter().chain(taken).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

fn anchor(heading: &str) -> String {
    let kept = |letter: char| letter.is_alphanumeric() || "-_ ".contains(letter);
    let letters = heading.chars().filter(|letter| kept(*letter));
    letters.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Links that lead nowhere. `exists` says whether the repository has a path.
pub(super) fn problems(pages: &Pages, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (page, text) in &pages.texts {
        for link in targets(text) {
            if let Some(problem) = problem(pages, &exists, page, &link.target) {
                let line = text[..link.at.start].lines().count();
                problems.push(format!("{page}:{line}: {problem}"));
            }
        }
    }
    problems
}

fn problem(pages: &Pages, exists: &impl Fn(&str) -> bool, page: &str, target: &str) -> Option<String> {
    if is_elsewhere(target) {
        return None;
    }
    let (path, name) = target.split_once('#').map_or((target, None), |(path, name)| (path, Some(name)));
    let Some(path) = (if path.is_empty() { Some(page.to_owned()) } else { resolved(page, path) }) else {
        return Some(format!("the link `{target}` leaves the repository"));
    };
    if target.starts_with('/') || !exists(&path) {
        return Some(format!("the link `{target}` leads nowhere: there is no {path}"));
    }
    let name = name?;
    let known = pages.text(&path).is_none_or(|text| anchors(text).contains(name));
    (!known).then(|| format!("the link `{target}` leads nowhere: {path} has no heading `{name}`"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn found(text: &str) -> Vec<String> {
        targets(text).into_iter().map(|link| link.target).collect()
    }

    #[test]
    fn links_are_found_in_prose_and_not_in_code() {
        assert_eq!(found("[a](b.md), [c](d.md#e) and ![f](g.svg)"), ["b.md", "d.md#e", "g.svg"]);
        assert_eq!(found("<source srcset=\"a.svg\"><img src=\"b.svg\">"), ["a.svg", "b.svg"]);
        assert_eq!(found("`x[i](y)` and\n```python\nmem[1](2)\n```\n[a](b)"), ["b"]);
        assert_eq!(found("| [`Code`](a.md) | ß `[b](c)` [d](e.md) |"), ["a.md", "e.md"]);
    }

    #[test]
    fn headings_have_the_names_that_github_gives_them() {
        let text = "# A b\n## `install()` and uninstall()\n## A b\n```sh\n# not this\n```\n#no\n### A rank died, what now?";
        let names = ["a-b", "a-b-1", "a-rank-died-what-now", "install-and-uninstall"];
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), names);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_noticed() {
        let page = |links: &str| Pages {
            texts: BTreeMap::from([
                ("README.md".to_owned(), "# Top\n".to_owned()),
                ("docs/a/b.md".to_owned(), format!("# Here\n\n{links}\n")),
            ]),
            library: String::new(),
        };
        let exists = |path: &str| ["README.md", "docs/a/b.md", "docs", "crates/x"].contains(&path);
        let wrong = |links: &str| problems(&page(links), exists);
        let right =
            "[a](../../README.md#top) [b](#here) [c](b.md) [d](https://example.org/x) [e](../../crates/x)";
        assert_eq!(wrong(right), [""; 0]);
        for (planted, said) in [
            ("[a](c.md)", "docs/a/b.md:3: the link `c.md` leads nowhere: there is no docs/a/c.md"),
            (
                "[a](#there)",
                "docs/a/b.md:3: the link `#there` leads nowhere: docs/a/b.md has no heading `there`",
            ),
            ("[a](../../README.md#here)", "README.md has no heading `here`"),
            ("<img src=\"x.svg\">", "there is no docs/a/x.svg"),
            ("[a](/README.md)", "leads nowhere"),
            ("[a](../../../x)", "the link `../../../x` leaves the repository"),
        ] {
            let found = wrong(&format!("{right} {planted}"));
            assert!(found.len() == 1 && found[0].contains(said), "{planted}: {found:?}");
        }
    }
}
