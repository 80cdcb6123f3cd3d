//! The book's sources as mdBook takes them: pages of the repository's root become pages of the book, and
//! links follow.
//!
//! A page of `docs/` may be another page of the repository: the line `{{#include ../ARCHITECTURE.md}}`. What
//! a page links to outside of the book stays as words: the book is read without the repository too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::links;
use super::pages::Pages;

/// Writes `docs`, with its pages as the book has them, into the folder `to`, from scratch.
pub(super) fn write(pages: &Pages, docs: &Path, to: &Path) -> Result<()> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context("an earlier book");
        }
        _ => {}
    }
    copy(docs, to)?;
    let moved = moved(pages);
    let mut all: Vec<_> = pages.of_the_book().collect();
    all.extend(pages.text("docs/SUMMARY.md").map(|summary| ("docs/SUMMARY.md", summary)));
    for (page, text) in all {
        let path = to.join(page.trim_start_matches("docs/"));
        fs::write(&path, staged(pages, &moved, page, text)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// What a page includes, as it is written there.
fn included(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("{{#include ")?;
    rest.split_once("}}").map(|(path, _)| path.trim())
}

/// Pages of the repository that are pages of the book under another name.
fn moved(pages: &Pages) -> BTreeMap<String, String> {
    let including = pages
        .of_the_book()
        .filter_map(|(page, text)| Some((links::resolved(page, included(text)?)?, page.to_owned())));
    including.collect()
}

/// A page as the book has it.
fn staged(pages: &Pages, moved: &BTreeMap<String, String>, page: &str, text: &str) -> String {
    let source = included(text).and_then(|path| links::resolved(page, path));
    match source.as_deref().and_then(|source| Some((source, pages.text(source)?))) {
        Some((source, text)) => relinked(pages, moved, source, page, text),
        None => relinked(pages, moved, page, page, text),
    }
}

/// `text`, whose links are those of the page `from`, as the page `to` of the book.
fn relinked(pages: &Pages, moved: &BTreeMap<String, String>, from: &str, to: &str, text: &str) -> String {
    let mut result = text.to_owned();
    // From the end on, so that places before stay what they are.
    for link in links::targets(text).into_iter().rev() {
        let (path, name) = link.target.split_once('#').unwrap_or((&link.target, ""));
        if links::is_elsewhere(&link.target) || path.is_empty() {
            continue;
        }
        let Some(path) = links::resolved(from, path) else { continue };
        let path = moved.get(&path).map_or(path.as_str(), String::as_str);
        let name = if name.is_empty() { String::new() } else { format!("#{name}") };
        if path.starts_with("docs/") && (pages.text(path).is_some() || !path.ends_with(".md")) {
            result.replace_range(link.at, &(relative(to, path) + &name));
        } else {
            unlink(&mut result, &link);
        }
    }
    result
}

/// Leaves the words of a link: `[words](target)` becomes `words`.
fn unlink(text: &mut String, link: &links::Link) {
    let Some(words_end) = link.at.start.checked_sub("](".len()) else { return };
    let Some(open) = text[..words_end].rfind('[').filter(|_| text[words_end..].starts_with("](")) else {
        return;
    };
    text.replace_range(words_end..link.at.end + 1, "");
    text.replace_range(open..=open, "");
}

/// How the page `from` of the book writes the path `to`.
fn relative(from: &str, to: &str) -> String {
    let above = from.matches('/').count() - 1;
    "../".repeat(above) + to.trim_start_matches("docs/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        let texts = [
            ("ARCHITECTURE.md", "See [a](docs/a.md#x), [code](crates/b.rs) and [the log](CHANGELOG.md)."),
            ("CHANGELOG.md", ""),
            (
                "docs/a.md",
                "[map](../ARCHITECTURE.md#y), ![p](images/p.svg), [deep](c/d.md), [web](https://e.org).",
            ),
            ("docs/c/d.md", "[a](../a.md), [here](#z), [code](../../crates/b.rs)."),
            ("docs/architecture.md", "{{#include ../ARCHITECTURE.md}}\n"),
        ];
        let texts = texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Pages { texts, library: String::new() }
    }

    #[test]
    fn links_of_the_book_stay_in_the_book() {
        let pages = pages();
        let moved = moved(&pages);
        let staged = |page: &str| staged(&pages, &moved, page, pages.text(page).expect("a page"));
        assert_eq!(staged("docs/architecture.md"), "See [a](a.md#x), code and the log.");
        let page = "[map](architecture.md#y), ![p](images/p.svg), [deep](c/d.md), [web](https://e.org).";
        assert_eq!(staged("docs/a.md"), page);
        assert_eq!(staged("docs/c/d.md"), "[a](../a.md), [here](#z), code.");
    }
}
