//! What the README tells a newcomer to do.

use anyhow::{Context, Result, ensure};

/// Lines that are seen without scrolling.
const SCREEN: usize = 24;

/// What the link to the answer is called.
const RANK_DIED: &str = "a rank died, what now?";

/// What to do, as the README has it.
#[derive(Debug)]
pub(super) struct Readme {
    /// The first command.
    pub(super) command: Vec<String>,
    /// How the Python package is installed: pip's arguments.
    pub(super) pip: Vec<String>,
    pub(super) python: String,
    /// What the Python program prints, by its last comment.
    pub(super) printed: String,
    pub(super) rust: String,
    /// The page with the answer.
    pub(super) rank_died: String,
    /// Words of the first screen.
    pub(super) words: usize,
}

impl Readme {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let screen: Vec<_> = text.lines().take(SCREEN).collect();
        let first = screen.join("\n");
        let shell = block(&first, "sh").context("the first screen of the README has no command")?;
        let command = shell.lines().next().and_then(|line| line.split('#').next()).unwrap_or_default();
        ensure!(!command.trim().is_empty(), "the first command of the README is empty");
        let pip = text.split('`').find(|code| code.starts_with("pip install "));
        let pip = pip.context("the README does not say how to install the Python package")?;
        let python = block(text, "python").context("the README has no Python program")?;
        let printed = python.lines().last().and_then(|line| line.split_once("# "));
        let printed =
            printed.context("the last line of the README's Python program does not say what it prints")?.1;
        let link = format!("[{RANK_DIED}](");
        let (_, rest) =
            first.split_once(&link).with_context(|| format!("the first screen has no link `{RANK_DIED}`"))?;
        Ok(Self {
            command: words(command),
            pip: words(pip)[1..].to_vec(),
            printed: printed.trim().to_owned(),
            python,
            rust: block(text, "rust").context("the README has no Rust program")?,
            rank_died: rest.split(')').next().unwrap_or_default().to_owned(),
            words: first.split_whitespace().count(),
        })
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The first block of code in this language.
fn block(text: &str, language: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("```{language}\n"))?;
    Some(rest.split_once("\n```")?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn the_readme_has_what_a_newcomer_needs() {
        let workspace = Workspace::find().expect("a workspace");
        let text = std::fs::read_to_string(workspace.path("README.md")).expect("a README");
        let readme = Readme::parse(&text).expect("it is complete");
        assert_eq!(readme.command[0], "cargo");
        assert_eq!(readme.pip[0], "install");
        assert!(readme.python.starts_with("import symmem") && readme.rust.contains("symmem::spawn"));
        assert_eq!(readme.printed, "[6.0, 6.0, 6.0, 6.0]");
        assert!(workspace.path(&readme.rank_died).is_file());
    }

    #[test]
    fn what_is_not_on_the_first_screen_is_missed() {
        let text = "```sh\na b # c\n```\n[a rank died, what now?](d.md)\n`pip install .`\n```python\nprint(1) # 1\n```\n```rust\nx\n```\n";
        assert_eq!(Readme::parse(text).expect("complete").command, ["a", "b"]);
        let below = format!("{}{text}", "\n".repeat(SCREEN));
        assert_eq!(
            Readme::parse(&below).expect_err("below").to_string(),
            "the first screen of the README has no command"
        );
        let no_link = text.replace("rank died", "rank lives");
        assert!(Readme::parse(&no_link).expect_err("no link").to_string().contains("no link"));
    }
}
