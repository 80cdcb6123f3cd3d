//! `symmem completions` and `symmem man`: what shells and `man` read, made of the command line itself.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Command;
use clap_mangen::Man;

use crate::args::{CompletionsArgs, ManArgs, shown_program};
use crate::screen;

/// Prints the completions of a shell.
pub(crate) fn run_completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown_program(), "symmem", &mut script);
    screen::print(String::from_utf8_lossy(&script).trim_end())
}

/// Prints a page, or writes all of them.
pub(crate) fn run_man(args: &ManArgs) -> Result<()> {
    let mut program = shown_program().disable_help_subcommand(true);
    program.build();
    match &args.out {
        Some(folder) => write_all(&program, folder),
        None => screen::print(page(find(&program, &args.command)?)?.trim_end()),
    }
}

/// The command of these names.
fn find<'a>(program: &'a Command, names: &[String]) -> Result<&'a Command> {
    let mut command = program;
    for name in names {
        let Some(below) = command.find_subcommand(name) else {
            let known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            bail!("{} has no command {name:?}. Hint: there are {known}", title(command));
        };
        command = below;
    }
    Ok(command)
}

fn write_all(program: &Command, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    write(program, folder)
}

fn write(command: &Command, folder: &Path) -> Result<()> {
    let path = folder.join(format!("{}.1", title(command)));
    fs::write(&path, page(command)?).with_context(|| format!("{} cannot be written", path.display()))?;
    screen::print(path.display().to_string())?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| write(below, folder))
}

/// `symmem-bench`.
fn title(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The page as roff.
fn page(command: &Command) -> Result<String> {
    let mut roff = Vec::new();
    let version = concat!("symmem ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(version).manual("symmem").render(&mut roff)?;
    Ok(with_examples(&String::from_utf8_lossy(&roff)))
}

/// `page` with the examples, which end the help, under a heading of their own; their lines stay lines.
fn with_examples(page: &str) -> String {
    let Some((before, rest)) = page.split_once("\n.SH EXTRA\n") else { return page.to_owned() };
    let (examples, after) = rest.split_once("\n.SH ").map_or((rest, None), |(one, other)| (one, Some(other)));
    let examples = examples.strip_prefix("Examples:\n").unwrap_or(examples).trim_end();
    let after = after.map(|after| format!(".SH {after}")).unwrap_or_default();
    format!("{before}\n.SH EXAMPLES\n.nf\n{examples}\n.fi\n{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let page = ".SH OPTIONS\nx\n.SH EXTRA\nExamples:\n  a\n  b\n.SH VERSION\nv1\n";
        assert_eq!(
            with_examples(page),
            ".SH OPTIONS\nx\n.SH EXAMPLES\n.nf\n  a\n  b\n.fi\n.SH VERSION\nv1\n"
        );
        assert_eq!(with_examples(".SH NAME\nx\n"), ".SH NAME\nx\n");
        assert!(with_examples("x\n.SH EXTRA\nExamples:\n  a").ends_with("  a\n.fi\n"));
    }
}
