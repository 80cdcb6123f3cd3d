//! Rust text as a flat list of words.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A word, a sign, a literal or a bracket; `::` is one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl Token {
    /// Whether it is this word or sign.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Whether it is a word, so a name or a keyword.
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphabetic() || first == '_') && !self.is_literal()
    }

    /// `b"x"`, `c"x"` and `r"x"` start as words do.
    fn is_literal(&self) -> bool {
        self.text.ends_with(['"', '\'', '#'])
    }
}

/// Reads a file's text.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>> {
    let stream = TokenStream::from_str(text).map_err(|error| anyhow!("it is no Rust: {error}"))?;
    let mut found = Vec::new();
    flatten(stream, &mut found);
    Ok(found)
}

fn flatten(stream: TokenStream, found: &mut Vec<Token>) {
    let mut half = false;
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |text: &str, line| found.push(Token { text: text.to_owned(), line });
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = brackets(group.delimiter());
                push(open, line);
                let end = group.span_close().start().line;
                flatten(group.stream(), found);
                found.push(Token { text: close.to_owned(), line: end });
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                if half {
                    push("::", line);
                    half = false;
                } else if punct.spacing() == Spacing::Joint {
                    half = true;
                } else {
                    push(":", line);
                }
                continue;
            }
            TokenTree::Punct(punct) => push(punct.as_char().encode_utf8(&mut [0; 4]), line),
            TokenTree::Ident(ident) => push(ident.to_string().trim_start_matches("r#"), line),
            TokenTree::Literal(literal) => push(&literal.to_string(), line),
        }
        half = false;
    }
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

/// Where the bracket that opens at `open` is closed; the last token if it is none.
pub(crate) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        tokens(text).expect("Rust").into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn a_path_is_words_and_separators() {
        assert_eq!(texts("a::b(x: T)"), ["a", "::", "b", "(", "x", ":", "T", ")"]);
        assert_eq!(texts("x:::: y"), ["x", "::", "::", "y"]);
    }

    #[test]
    fn comments_and_strings_are_no_words() {
        assert_eq!(texts("// crate::a\n/* crate::b */ f(\"crate::c\")"), ["f", "(", "\"crate::c\"", ")"]);
        assert!(tokens("b\"x\" 'c' r\"y\" 3").expect("Rust").iter().all(|token| !token.is_word()));
    }

    #[test]
    fn lines_are_counted_from_one() {
        let lines: Vec<_> = tokens("a\n\n{ b\n}").expect("Rust").iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 3, 4]);
    }

    #[test]
    fn a_bracket_finds_its_end() {
        let list = tokens("f(a[1], {b}) c").expect("Rust");
        assert_eq!(closing(&list, 1), list.len() - 2);
        assert_eq!(closing(&list, 0), 0);
    }
}
