//! The public interface of a crate: one line for each item, by the path that users have it by.
//!
//! What rustdoc writes for programs is asked of the stable compiler, which has it behind a switch.
//! Definitions may move between private modules: only public paths are in the lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use public_api::PublicApi;
use serde_json::Value;

use crate::plan::Job;

/// The crates that others depend on.
pub(super) const PACKAGES: [&str; 2] = ["symmem", "symmem-store"];

/// What `public-api` understands: the `format_version` of Rust 1.95. Both change together.
const FORMAT: u64 = 57;

/// Traits that follow from the fields, and that nobody asks for by name.
const UNASKED: [&str; 5] =
    ["Freeze", "Unpin", "UnsafeUnpin", "unwind_safe::RefUnwindSafe", "unwind_safe::UnwindSafe"];

/// What a type is called by that has no public path.
const PRIVATE: &str = "private";

pub(super) fn file(package: &str) -> String {
    format!("api-{package}.txt")
}

/// The listing, or why this machine cannot make it.
pub(super) fn text(job: &Job, package: &str) -> Result<Result<String, String>> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(Err("the public interface is listed on x86_64 Linux only".to_owned()));
    }
    let path = document(job, package)?;
    let json = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let json: Value =
        serde_json::from_str(&json).with_context(|| format!("{} is not JSON", path.display()))?;
    let format = json["format_version"].as_u64();
    if format != Some(FORMAT) {
        let found = format.map_or("another one".to_owned(), |format| format.to_string());
        return Ok(Err(format!(
            "the public interface is read from rustdoc's format {FORMAT}, and this toolchain has {found}"
        )));
    }
    let api = public_api::Builder::from_rustdoc_json(&path).omit_blanket_impls(true).build();
    Ok(Ok(render(
        &api.with_context(|| format!("the interface of {package} cannot be read"))?,
        &definitions(&json),
    )))
}

/// Has rustdoc write what it knows about `package`; the file.
fn document(job: &Job, package: &str) -> Result<PathBuf> {
    // Its own target folder: the variable would rebuild everything else.
    let target = job.workspace.target("listings");
    let mut cargo =
        job.workspace.cargo(["rustdoc", "--quiet", "--lib", "--package", package, "--target-dir"]);
    cargo.arg(&target).args(["--", "-Z", "unstable-options", "--output-format", "json"]);
    job.run(cargo.env("RUSTC_BOOTSTRAP", "1"))?;
    Ok(target.join("doc").join(format!("{}.json", package.replace('-', "_"))))
}

/// Where each item of the crate is defined, by its number.
fn definitions(json: &Value) -> BTreeMap<u32, String> {
    let Some(all) = json["paths"].as_object() else { return BTreeMap::new() };
    let own = all.iter().filter(|(_, item)| item["crate_id"] == 0 && item["kind"] != "module");
    own.filter_map(|(number, item)| {
        let parts: Option<Vec<_>> = item["path"].as_array()?.iter().map(Value::as_str).collect();
        Some((number.parse().ok()?, parts?.join("::")))
    })
    .collect()
}

fn render(api: &PublicApi, definitions: &BTreeMap<u32, String>) -> String {
    let items: Vec<_> = api.items().map(|item| (item.id().0, item.to_string())).collect();
    let names = names(&items, definitions);
    let lines = items.iter().map(|(_, line)| line).filter(|line| !is_unasked(line));
    let lines: BTreeSet<_> = lines.map(|line| renamed(line, &names)).collect();
    lines.into_iter().fold(String::new(), |text, line| text + &line + "\n")
}

/// Public paths of items, by where they are defined. Of several the first of the shortest.
fn names(items: &[(u32, String)], definitions: &BTreeMap<u32, String>) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for (number, definition) in definitions {
        let paths = items.iter().filter(|(other, _)| other == number).filter_map(|(_, line)| declared(line));
        let public = paths.min_by_key(|path| (path.matches("::").count(), path.to_owned()));
        let hidden = || {
            let (krate, _) = definition.split_once("::").unwrap_or((definition, ""));
            let (_, name) = definition.rsplit_once("::").unwrap_or(("", definition));
            format!("{krate}::{PRIVATE}::{name}")
        };
        names.insert(definition.clone(), public.map_or_else(hidden, str::to_owned));
    }
    names
}

/// The path that a line declares an item by: the first one in it that has parts.
fn declared(line: &str) -> Option<&str> {
    paths(line).map(|(from, to)| &line[from..to]).find(|path| path.contains("::"))
}

/// The line with every path in it as users know it.
fn renamed(line: &str, names: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut done = 0;
    for (from, to) in paths(line) {
        let path = &line[from..to];
        let mut ends = [path.len()].into_iter().chain(path.rmatch_indices("::").map(|(at, _)| at));
        let known = ends.find_map(|end| Some((end, names.get(&path[..end])?)));
        if let Some((end, name)) = known {
            text += &line[done..from];
            text += name;
            done = from + end;
        }
    }
    text + &line[done..]
}

/// Where the paths of a line are: words, and `::` between them.
fn paths(line: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let bytes = line.as_bytes();
    let is_word =
        move |at: usize| bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() && !is_word(at) {
            at += 1;
        }
        let from = at;
        while is_word(at) || (bytes[at..].starts_with(b"::") && is_word(at + 2)) {
            at += if is_word(at) { 1 } else { 2 };
        }
        (from < at).then_some((from, at))
    })
}

fn is_unasked(line: &str) -> bool {
    let implements = |name: &str| {
        let path = if name.contains("::") {
            format!("core::panic::{name}")
        } else {
            format!("core::marker::{name}")
        };
        line.starts_with("impl") && line.contains(&format!("{path} for "))
    };
    UNASKED.iter().any(|name| implements(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(items: &[(u32, &str)], definitions: &[(u32, &str)]) -> BTreeMap<String, String> {
        let items: Vec<_> = items.iter().map(|(number, line)| (*number, (*line).to_owned())).collect();
        names(&items, &definitions.iter().map(|(number, path)| (*number, (*path).to_owned())).collect())
    }

    #[test]
    fn items_are_called_by_the_path_that_users_have() {
        let items = [
            (1, "#[non_exhaustive] pub struct a::far::Thing<T>"),
            (1, "pub struct a::Thing<T>"),
            (2, "pub fn a::go()"),
        ];
        let names = names_of(&items, &[(1, "a::hidden::inner::Thing"), (2, "a::go"), (3, "a::seal::Sealed")]);
        assert_eq!(
            renamed(
                "pub fn a::hidden::inner::Thing<T>::at(&self, n: usize) -> core::option::Option<&a::hidden::inner::Thing<T>>",
                &names
            ),
            "pub fn a::Thing<T>::at(&self, n: usize) -> core::option::Option<&a::Thing<T>>"
        );
        assert_eq!(
            renamed("impl a::seal::Sealed for a::hidden::inner::Things", &names),
            "impl a::private::Sealed for a::hidden::inner::Things"
        );
        assert_eq!(renamed("pub a::hidden::inner::Thing::field: u8", &names), "pub a::Thing::field: u8");
    }

    #[test]
    fn paths_are_found_among_signs() {
        let line = "pub fn a::f<'b, T: b::C>(&'b self, [u8; 2]) -> T::Out";
        let found: Vec<_> = paths(line).map(|(from, to)| &line[from..to]).collect();
        assert_eq!(found, ["pub", "fn", "a::f", "b", "T", "b::C", "b", "self", "u8", "2", "T::Out"]);
    }

    #[test]
    fn traits_that_nobody_asks_for_are_left_out() {
        assert!(is_unasked("impl core::marker::Freeze for a::B"));
        assert!(is_unasked("impl<T> !core::marker::Unpin for a::B<T>"));
        assert!(is_unasked("impl core::panic::unwind_safe::UnwindSafe for a::B"));
        assert!(!is_unasked("impl core::marker::Send for a::B"));
        assert!(!is_unasked("pub fn a::f(impl core::marker::Unpin)"));
    }
}
