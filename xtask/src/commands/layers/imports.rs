//! What a file names of its crate: `use` of any form, and paths in the midst of code.

use std::collections::BTreeMap;

use crate::source::{Token, closing};

/// A path of the crate, as seen from its root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The module that it stands in: the file's, or one inside of the file.
    pub(super) module: Vec<String>,
    pub(super) line: usize,
    /// The name it gets in this file, if it comes by `use`.
    pub(super) name: Option<String>,
    /// Whether others can import it from here.
    pub(super) is_public: bool,
    /// How deep the module is that its `super::` reach, 0 for the root; none if it has none.
    pub(super) up_to: Option<usize>,
}

/// The first word of a path that is not one of the crate's root: of another crate, or of this very module. No
/// module is called so.
pub(super) const ELSEWHERE: &str = "::";

/// Everything that the module `module` names by `crate::`, `self::` or `super::`, or by a name of `known`:
/// those that stand for a path. Whatever else comes by `use` is [`ELSEWHERE`].
pub(super) fn imports(
    tokens: &[Token],
    module: &[String],
    known: &BTreeMap<String, Vec<String>>,
) -> Vec<Import> {
    let mut found = Vec::new();
    let mut scan = Scan { tokens, home: module, known, found: &mut found };
    scan.within(0, tokens.len(), module);
    found
}

struct Scan<'a> {
    tokens: &'a [Token],
    home: &'a [String],
    known: &'a BTreeMap<String, Vec<String>>,
    found: &'a mut Vec<Import>,
}

impl Scan<'_> {
    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is(text))
    }

    /// Looks at the tokens from `at` to `end`, which are in `module`.
    fn within(&mut self, mut at: usize, end: usize, module: &[String]) {
        while at < end {
            at = self.step(at, module);
        }
    }

    /// Looks at what starts at `at`; where the next thing starts.
    fn step(&mut self, at: usize, module: &[String]) -> usize {
        let tokens = self.tokens;
        if self.is(at, "pub") && self.is(at + 1, "(") && self.is_scope(at + 2) {
            return closing(tokens, at + 1) + 1;
        }
        if self.is(at, "mod") && self.is(at + 2, "{") {
            let inner = [module, &[tokens[at + 1].text.clone()]].concat();
            let end = closing(tokens, at + 2);
            self.within(at + 3, end, &inner);
            return end + 1;
        }
        if self.is(at, "use") && !self.is(at + 1, "<") {
            let is_public = at > 0 && (self.is(at - 1, "pub") || self.is_after_scope(at));
            return self.tree(at + 1, &[], module, is_public);
        }
        let is_start = self.is(at + 1, "::") && (at == 0 || !self.is(at - 1, "::"));
        if is_start && self.anchor(&tokens[at].text, module).is_some() {
            return self.path(at, module);
        }
        at + 1
    }

    fn is_scope(&self, at: usize) -> bool {
        ["crate", "super", "self", "in"].iter().any(|word| self.is(at, word))
    }

    /// Whether `pub(crate)` or the like ends before `at`.
    fn is_after_scope(&self, at: usize) -> bool {
        let open = (0..at).rev().find(|&before| self.is(before, "("));
        self.is(at - 1, ")") && open.is_some_and(|open| open > 0 && self.is(open - 1, "pub"))
    }

    /// What the first word of a path stands for: a path from the root.
    fn anchor(&self, word: &str, module: &[String]) -> Option<Vec<String>> {
        match word {
            "crate" => Some(Vec::new()),
            "self" => Some(module.to_vec()),
            "super" => Some(module[..module.len().saturating_sub(1)].to_vec()),
            _ => self.known.get(word).filter(|_| module == self.home).cloned(),
        }
    }

    /// A path in code.
    fn path(&mut self, mut at: usize, module: &[String]) -> usize {
        let line = self.tokens[at].line;
        let mut words = vec![self.tokens[at].text.clone()];
        while self.is(at + 1, "::") && self.tokens.get(at + 2).is_some_and(Token::is_word) {
            words.push(self.tokens[at + 2].text.clone());
            at += 2;
        }
        self.add(&words, module, line, None, false);
        at + 1
    }

    /// The tree of a `use`, up to its `;`, or to the comma or brace that ends this branch of it.
    fn tree(&mut self, mut at: usize, before: &[String], module: &[String], is_public: bool) -> usize {
        let mut words = before.to_vec();
        let line = self.tokens.get(at).map_or(0, |token| token.line);
        let mut name = None;
        let mut is_branch = false;
        while at < self.tokens.len() && ![",", ";", "}"].iter().any(|end| self.is(at, end)) {
            let token = &self.tokens[at];
            if token.is("{") {
                let end = closing(self.tokens, at);
                let mut inner = at + 1;
                while inner < end {
                    inner = self.tree(inner, &words, module, is_public).max(inner + 1);
                }
                is_branch = true;
                at = end;
            } else if token.is("as") {
                name = self.tokens.get(at + 1).map(|token| token.text.clone());
                at += 1;
            } else if token.is_word() || token.is("*") {
                words.push(token.text.clone());
            }
            at += 1;
        }
        if !is_branch && words.len() > before.len() {
            // `a::{self}` is `a`.
            if words.len() > 1 && words.last().is_some_and(|word| word == "self") {
                words.pop();
            }
            let name = name.or_else(|| words.last().cloned());
            self.add(&words, module, line, name, is_public);
        }
        if self.is(at, "}") { at } else { at + 1 }
    }

    fn add(
        &mut self,
        words: &[String],
        module: &[String],
        line: usize,
        name: Option<String>,
        is_public: bool,
    ) {
        let Some(first) = words.first() else { return };
        let mut path =
            self.anchor(first, module).unwrap_or_else(|| vec![ELSEWHERE.to_owned(), first.clone()]);
        let mut up_to = (first == "super").then_some(path.len());
        for word in &words[1..] {
            match word.as_str() {
                "super" => {
                    path.pop();
                    up_to = Some(path.len());
                }
                "self" => {}
                _ => path.push(word.clone()),
            }
        }
        self.found.push(Import { path, module: module.to_vec(), line, name, is_public, up_to });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tokens;

    fn found(text: &str, module: &str) -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        let known = BTreeMap::from([("engine".to_owned(), vec!["engine".to_owned()])]);
        let found = imports(&tokens(text).expect("Rust"), &module, &known);
        let ours =
            found.into_iter().filter(|import| import.path.first().is_none_or(|word| word != ELSEWHERE));
        ours.map(|import| import.path.join("::")).collect()
    }

    #[test]
    fn every_branch_of_a_use_is_a_path() {
        let text = "use crate::{a::{self, B, c::*}, d as e, self as root}; use std::{x, y}; f();";
        assert_eq!(found(text, "m"), ["a", "a::B", "a::c::*", "d", ""]);
        assert_eq!(found("use {crate::a, super::b};", "m::n"), ["a", "m::b"]);
    }

    #[test]
    fn paths_in_code_and_in_macros_are_found() {
        let text = "fn f(x: crate::a::B<u8>) { g!(crate::c::d(), $crate::e); Vec::<crate::h::I>::new() }";
        assert_eq!(found(text, "m"), ["a::B", "c::d", "e", "h::I"]);
    }

    #[test]
    fn super_counts_from_the_module_it_is_in() {
        assert_eq!(found("use super::super::a; mod n { fn f() { super::b() } }", "m::o"), ["a", "m::o::b"]);
    }

    #[test]
    fn how_far_super_goes_is_marked() {
        let text =
            "use super::{a, super::b}; use self::super::super::c; use crate::d; mod n { use super::e; }";
        let module = ["m", "o"].map(str::to_owned);
        let found = imports(&tokens(text).expect("Rust"), &module, &BTreeMap::new());
        let up_to: Vec<_> = found.iter().map(|one| one.up_to).collect();
        assert_eq!(up_to, [Some(1), Some(0), Some(0), None, Some(2)]);
    }

    #[test]
    fn visibility_is_no_path() {
        assert!(found("pub(in crate::a) struct S { pub(crate) x: u8, pub(super) y: u8 }", "m").is_empty());
        assert!(found("fn f(self) -> impl I + use<'_> { self.x }", "m").is_empty());
    }

    #[test]
    fn names_that_stand_for_a_path_are_followed() {
        assert_eq!(found("engine::cuda::f(); x.engine; a::engine::b()", "m"), ["engine::cuda::f"]);
        assert!(found("mod n { fn f() { engine::cuda::f() } }", "m").is_empty());
    }

    #[test]
    fn what_others_can_import_is_marked() {
        let text = "use crate::a; pub(crate) use crate::b; pub use crate::c as d; f(x); use crate::e;";
        let found = imports(&tokens(text).expect("Rust"), &[], &BTreeMap::new());
        let seen: Vec<_> = found.iter().map(|one| (one.name.as_deref(), one.is_public)).collect();
        assert_eq!(seen, [(Some("a"), false), (Some("b"), true), (Some("d"), true), (Some("e"), false)]);
    }
}
