//! Takes test code out of a file: whatever `#[cfg(test)]` or `#[cfg(doctest)]` stands before.

use std::collections::BTreeSet;

use super::token::{Token, closing};

/// What is left of a file without its tests.
#[derive(Debug, Default)]
pub(super) struct Cut {
    pub(super) tokens: Vec<Token>,
    /// Modules in files of their own that are tests: `#[cfg(test)] mod reference;`.
    pub(super) modules: Vec<String>,
    /// Lines that were taken out.
    pub(super) lines: BTreeSet<usize>,
}

/// Takes the tests out.
pub(super) fn cut(tokens: &[Token]) -> Cut {
    let mut left = Cut::default();
    let mut at = 0;
    while at < tokens.len() {
        let Some(attribute) = attribute(tokens, at) else {
            left.tokens.push(tokens[at].clone());
            at += 1;
            continue;
        };
        let end = attribute.end;
        if !attribute.is_test(tokens) {
            left.tokens.extend_from_slice(&tokens[at..=end]);
            at = end + 1;
            continue;
        }
        let item = skip_attributes(tokens, end + 1);
        let last = if attribute.is_inner { rest(tokens, at) } else { end_of_item(tokens, item) };
        if let Some(name) = module_in_its_file(&tokens[item..=last]) {
            left.modules.push(name.to_owned());
        }
        left.lines.extend(tokens[at].line..=tokens[last].line);
        at = last + 1;
    }
    left
}

/// `#[..]` or `#![..]`.
struct Attribute {
    is_inner: bool,
    open: usize,
    end: usize,
}

fn attribute(tokens: &[Token], at: usize) -> Option<Attribute> {
    let is = |at: usize, text| tokens.get(at).is_some_and(|token: &Token| token.is(text));
    let is_inner = is(at + 1, "!");
    let open = at + 1 + usize::from(is_inner);
    (is(at, "#") && is(open, "[")).then(|| Attribute { is_inner, open, end: closing(tokens, open) })
}

impl Attribute {
    fn is_test(&self, tokens: &[Token]) -> bool {
        let inside = &tokens[self.open + 1..self.end];
        inside.len() > 3
            && inside[0].is("cfg")
            && inside[1].is("(")
            && needs_test(&inside[2..inside.len() - 1])
    }
}

/// Whether a condition holds in tests only.
fn needs_test(condition: &[Token]) -> bool {
    match condition {
        [word] => word.is("test") || word.is("doctest"),
        [word, open, inside @ .., _] if open.is("(") => {
            let mut parts = split(inside).into_iter();
            match word.text.as_str() {
                "all" => parts.any(needs_test),
                "any" => parts.all(needs_test),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The parts between commas that are in no inner bracket.
fn split(tokens: &[Token]) -> Vec<&[Token]> {
    let mut parts = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < tokens.len() {
        if tokens[at].is(",") {
            parts.push(&tokens[start..at]);
            start = at + 1;
        }
        at = closing(tokens, at) + 1;
    }
    parts.push(&tokens[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

fn skip_attributes(tokens: &[Token], mut at: usize) -> usize {
    while let Some(next) = attribute(tokens, at) {
        at = next.end + 1;
    }
    at.min(tokens.len() - 1)
}

/// The last token of the brackets that `at` is in, or of the file.
fn rest(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() && !tokens[at].is("}") {
        at = closing(tokens, at) + 1;
    }
    at.saturating_sub(1)
}

/// The last token of the item, statement, field or arm that starts at `at`.
fn end_of_item(tokens: &[Token], at: usize) -> usize {
    let word = first_word(tokens, at);
    // These end with a `;` and may have braces before it.
    let by_sign = ["use", "static", "const", "let", "type"].contains(&word);
    // Commas in the generics of these end nothing.
    let is_item = ["fn", "impl", "struct", "enum", "union", "trait", "mod", "unsafe", "async", "extern"];
    let by_comma = !by_sign && !is_item.contains(&word) && word != "macro_rules";
    let mut now = at;
    while now < tokens.len() {
        let token = &tokens[now];
        let end = closing(tokens, now);
        if [")", "]", "}"].contains(&token.text.as_str()) {
            return now.saturating_sub(1).max(at);
        }
        if token.is(";") || (by_comma && token.is(",")) || (!by_sign && token.is("{")) {
            return end;
        }
        now = end + 1;
    }
    tokens.len() - 1
}

/// The word that says what an item is: not `pub`, and not the `const` of a function.
fn first_word(tokens: &[Token], mut at: usize) -> &str {
    let text = |at: usize| tokens.get(at).map_or("", |token: &Token| token.text.as_str());
    if text(at) == "pub" {
        at += 1;
        if text(at) == "(" {
            at = closing(tokens, at) + 1;
        }
    }
    let function = ["fn", "unsafe", "async", "extern"];
    if text(at) == "const" && function.contains(&text(at + 1)) {
        at += 1;
    }
    text(at)
}

/// The name in `mod name;`.
fn module_in_its_file(item: &[Token]) -> Option<&str> {
    match item {
        [.., word, name, end] if word.is("mod") && end.is(";") => Some(&name.text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::tokens;
    use super::*;

    fn left(text: &str) -> String {
        let cut = cut(&tokens(text).expect("Rust"));
        cut.tokens.iter().map(|token| token.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn test_items_of_every_kind_go() {
        for item in [
            "mod tests { use x::{y}; fn f() {} }",
            "use a::{b, c};",
            "pub(crate) fn f<A, B>(a: A) -> B { g(a) }",
            "const fn f() -> u8 { 1 }",
            "const X: S = S { a: 1 };",
            "#[derive(Debug)] struct S<A, B> { a: A, b: B }",
            "impl<A> T for S<A, u8> { fn f() {} }",
            "macro_rules! m { () => { x; } }",
            "mod other;",
        ] {
            assert_eq!(left(&format!("a; #[cfg(test)] {item} b;")), "a ; b ;", "{item}");
        }
    }

    #[test]
    fn fields_and_statements_go() {
        assert_eq!(left("struct S { a: A, #[cfg(test)] b: B, c: C }"), "struct S { a : A , c : C }");
        assert_eq!(left("struct S { a: A, #[cfg(test)] b: B }"), "struct S { a : A , }");
        assert_eq!(left("{ #[cfg(test)] { f(); } g(); }"), "{ g ( ) ; }");
    }

    #[test]
    fn code_that_is_for_more_than_tests_stays() {
        assert!(left("#[cfg(any(test, miri))] mod a { b }").ends_with("mod a { b }"));
        assert!(left("#[cfg(not(test))] use a;").ends_with("use a ;"));
        assert_eq!(left("#[cfg(all(test, unix))] use a; b"), "b");
        assert_eq!(left("#[cfg(any(test, all(test, unix)))] use a; b"), "b");
        assert_eq!(left("#[cfg(doctest)] #[doc = \"a\"] struct A; b"), "b");
    }

    #[test]
    fn an_inner_attribute_takes_the_rest_of_its_module() {
        assert_eq!(left("mod a { #![cfg(test)] use b; } c"), "mod a { } c");
        assert_eq!(left("#![cfg(test)] use b;"), "");
    }

    #[test]
    fn modules_in_files_and_lines_are_noted() {
        let cut = cut(&tokens("a;\n#[cfg(test)]\nmod other;\nb;").expect("Rust"));
        assert_eq!(cut.modules, ["other"]);
        assert_eq!(cut.lines.into_iter().collect::<Vec<_>>(), [2, 3]);
    }
}
