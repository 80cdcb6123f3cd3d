//! Providers are known by name in few places only: a new one must not be a reason to change the others.
//!
//! The names are read from `config/provider.rs`. Nothing but the folders below, and tests, may say
//! `Provider::Name`, import a provider's room, or hold its name as a text; public names that contain one are
//! listed here.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::source::{File, Sources, Token, closing};
use crate::workspace::Workspace;

const NAMES: &str = "crates/symmem/src/config/provider.rs";
const API: &str = "xtask/listings/api-symmem.txt";
/// What is looked at, and who may know providers there: the providers themselves, engines, and the wrappers
/// of libraries.
const CRATES: [(&str, &[&str]); 3] = [
    ("crates/symmem/src", &["config/provider.rs", "provider/", "engine/", "nccl/", "cuda/"]),
    // Here `nccl` is the library as a system to compare with.
    ("crates/symmem-cli/src", &["bench/gpu/system.rs"]),
    ("crates/symmem-python/src", &["nccl/", "nccl.rs"]),
];
/// Public names with a provider's name in them, the module of NCCL's own calls apart.
const PUBLIC: [&str; 5] = [
    "symmem::cuda::Provider::Nccl",
    "symmem::cuda::Provider::Shm",
    "symmem::cuda::Provider::Vmm",
    "symmem::SymmetricMemory::nccl_window",
    "symmem::nccl",
];

/// An error that lists the places that know a provider and may not.
pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let names = names(&fs::read_to_string(workspace.path(NAMES)).with_context(|| NAMES.to_owned())?)?;
    let mut wrong = Vec::new();
    for (folder, allowed) in CRATES {
        let sources = Sources::read(&workspace.path(folder))?;
        let others = |file: &&File| !allowed.iter().any(|path| file.path.starts_with(path));
        for file in sources.files.iter().filter(others) {
            let found = find(file, &names).into_iter();
            wrong.extend(found.map(|(line, name)| format!("{folder}/{}:{line} knows {name}", file.path)));
        }
    }
    let api = fs::read_to_string(workspace.path(API)).with_context(|| API.to_owned())?;
    let public = public(&api, &names);
    wrong.extend(
        public.iter().filter(|name| !PUBLIC.contains(&name.as_str())).map(|name| format!("{name} is public")),
    );
    let is_gone = |name: &&&str| !public.iter().any(|known| known == **name);
    wrong.extend(PUBLIC.iter().filter(is_gone).map(|name| format!("{name} is listed here and not public")));
    if !wrong.is_empty() {
        bail!("providers are known by name where they should not be:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

/// The names of providers, in code and in text, from the rows `Name = "text",`; those for tests go on with
/// `if "faults",`.
fn names(text: &str) -> Result<Vec<[String; 2]>> {
    let tokens = crate::source::tokens(text)?;
    let row = |row: &[Token]| {
        let is_row = row[1].is("=") && row[2].text.starts_with('"') && (row[3].is(",") || row[3].is("if"));
        is_row.then(|| [row[0].text.clone(), row[2].text.clone()])
    };
    let names: Vec<_> = tokens.windows(4).filter_map(row).collect();
    if names.len() < 3 {
        bail!("{NAMES} has no rows that can be read")
    }
    Ok(names)
}

/// The lines of code, not of tests, that know a provider.
fn find(file: &File, names: &[[String; 2]]) -> Vec<(usize, String)> {
    let tokens = &file.tokens;
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is(text));
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        for [code, text] in names {
            let word = text.trim_matches('"');
            let variant = token.is("Provider") && is(at + 1, "::") && is(at + 2, code);
            let room = token.is("provider") && is(at + 1, "::") && is(at + 2, word);
            let among = token.is("provider") && is(at + 1, "::") && is(at + 2, "{");
            let in_list = among && tokens[at + 2..closing(tokens, at + 2)].iter().any(|token| token.is(word));
            let renamed = token.is("Provider") && (is(at + 1, "as") || (is(at + 1, "::") && is(at + 2, "*")));
            if variant || room || in_list || renamed || token.is(text) {
                found.push((token.line, word.to_owned()));
            }
        }
    }
    found
}

/// `line` without what is between angle brackets, which may have commas and names of other types.
fn without_generics(line: &str) -> String {
    let mut depth = 0usize;
    let line = line.replace("->", "");
    let outside = |letter: &char| {
        depth += usize::from(*letter == '<');
        let is_outside = depth == 0;
        depth -= usize::from(*letter == '>' && depth > 0);
        is_outside
    };
    line.chars().filter(outside).collect()
}

/// The names in the listing of the interface that contain a provider's, but for those in NCCL's module.
fn public(api: &str, names: &[[String; 2]]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in api.lines().filter(|line| !line.starts_with("impl")) {
        let line = without_generics(line);
        let words = line.split([' ', '(', ',', '&', ')']).filter(|word| word.starts_with("symmem::"));
        // The first is what the line is about; the others are its types.
        let Some(name) = words.into_iter().next().map(|name| name.trim_end_matches(':')) else { continue };
        let last = name.rsplit("::").next().unwrap_or_default().to_lowercase();
        let has = |[_, text]: &[String; 2]| last.contains(text.trim_matches('"'));
        if !name.starts_with("symmem::nccl::")
            && names.iter().any(has)
            && !found.iter().any(|known| known == name)
        {
            found.push(name.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<[String; 2]> {
        names(r#"named! { ALL: { Shm = "shm", #[doc = "x"] Vmm = "vmm", } TESTS: { Nccl = "nccl" if "faults", } }"#)
            .expect("rows")
    }

    #[test]
    fn a_planted_name_is_found_and_a_test_is_not() {
        let found = |text: &str| {
            let file = File::new("memory/x.rs", text.to_owned()).expect("Rust");
            find(&file, &rows()).into_iter().map(|(line, name)| format!("{line} {name}")).collect::<Vec<_>>()
        };
        assert_eq!(found("fn f(p: Provider) -> bool {\n p == Provider::Vmm }"), ["2 vmm"]);
        assert_eq!(found("use crate::provider::nccl;"), ["1 nccl"]);
        assert_eq!(found("use crate::provider::{LocalMemory, vmm};"), ["1 vmm"]);
        assert_eq!(found("use crate::config::Provider as Name;").len(), 3);
        assert_eq!(found("fn f(name: &str) -> bool { name == \"shm\" }"), ["1 shm"]);
        assert_eq!(found("// vmm\nfn f(p: Provider) -> Place { p.place() }"), Vec::<String>::new());
        assert_eq!(
            found("#[cfg(test)] mod tests { const P: Provider = Provider::Vmm; }"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_public_name_is_found_by_its_last_part() {
        let api = "pub fn symmem::cuda::X::nccl_thing(&self) -> u8\npub fn symmem::nccl::Y::f()\npub fn symmem::cuda::Z::f(&symmem::nccl::Y)\npub symmem::cuda::Provider::Vmm\npub fn symmem::W<T, symmem::V<u8>>::nccl_more(&self) -> u8";
        let found = ["symmem::cuda::X::nccl_thing", "symmem::cuda::Provider::Vmm", "symmem::W::nccl_more"];
        assert_eq!(public(api, &rows()), found);
    }
}
