//! The program as a whole: its commands in groups, and its help no wider than a page.
//!
//! The derived command is the truth; this only says how it is shown. What is hidden is hidden everywhere: in
//! the help, in completions and in the manual.

use clap::{Command, CommandFactory};

use super::Cli;

/// How wide help texts are at most.
const WIDTH: usize = 100;

/// The commands by what people want of them. One that is in no group is shown in the last.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run and watch jobs", &["run", "inspect", "trace", "store"]),
    ("Know the machine", &["doctor", "config"]),
    ("Measure", &["bench", "tune"]),
    ("More", &["completions", "man", "help"]),
];

/// The program, with its help in groups.
pub(crate) fn program() -> Command {
    let command = Cli::command().max_term_width(WIDTH);
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        groups(&command)
    );
    command.help_template(template)
}

/// The program without hidden commands: for completions, which would offer them.
pub(crate) fn shown_program() -> Command {
    let full = program();
    let shown = full.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = Command::new("symmem").version(env!("CARGO_PKG_VERSION"));
    command = command.subcommands(shown).subcommand_required(true);
    if let Some(about) = full.get_about() {
        command = command.about(about.clone());
    }
    if let Some(examples) = full.get_after_help() {
        command = command.after_help(examples.clone());
    }
    command
}

/// The commands under their headings, one line each.
fn groups(command: &Command) -> String {
    let help = Command::new("help").about("Print the help of a command");
    let mut shown: Vec<&Command> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).chain([&help]).collect();
    let wide = shown.iter().map(|command| command.get_name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for (at, (heading, names)) in GROUPS.iter().enumerate() {
        let is_last = at + 1 == GROUPS.len();
        let place = |command: &&Command| names.iter().position(|name| *name == command.get_name());
        let (mut members, rest): (Vec<_>, Vec<_>) =
            shown.into_iter().partition(|command| is_last || place(command).is_some());
        shown = rest;
        members.sort_by_key(|command| place(command).unwrap_or(0));
        if members.is_empty() {
            continue;
        }
        text += &format!("{heading}:\n");
        for command in members {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format!("  {:wide$}  {}\n", command.get_name(), about.trim_end_matches('.'));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command that people see, with the names before it.
    fn walk(command: &Command, above: &str, look: &mut impl FnMut(&str, &Command)) {
        let name = format!("{above} {}", command.get_name()).trim().to_owned();
        look(&name, command);
        for below in command.get_subcommands() {
            if !below.is_hide_set() && below.get_name() != "help" {
                walk(below, &name, look);
            }
        }
    }

    fn each_command(mut look: impl FnMut(&str, &Command)) {
        let mut program = program();
        program.build();
        walk(&program, "", &mut look);
    }

    #[test]
    fn the_command_line_is_consistent() {
        program().debug_assert();
        shown_program().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_is_for_and_has_examples() {
        each_command(|name, command| {
            assert!(command.get_about().is_some(), "{name} has no about");
            let help = command.clone().render_long_help().to_string();
            let depth = name.split(' ').count();
            // The examples of a family are in the help of its head.
            assert!(depth > 2 || help.contains("\nExamples:\n"), "{name} has no examples: {help}");
        });
    }

    #[test]
    fn no_help_is_wider_than_a_page() {
        each_command(|name, command| {
            for help in [command.clone().render_help(), command.clone().render_long_help()] {
                let text = help.to_string();
                let wide = text.lines().find(|line| line.chars().count() > WIDTH);
                assert_eq!(wide, None, "help of {name}");
            }
        });
    }

    #[test]
    fn the_program_lists_every_command_once_in_a_group_of_its_own() {
        let program = program();
        let help = program.clone().render_help().to_string();
        let named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for command in program.get_subcommands() {
            let name = command.get_name();
            let lines = help.lines().filter(|line| line.split_whitespace().next() == Some(name)).count();
            assert_eq!(lines, usize::from(!command.is_hide_set()), "{name}: {help}");
            assert!(command.is_hide_set() || named.contains(&name), "{name} is in no group");
        }
    }

    #[test]
    fn hidden_commands_are_in_nothing_that_is_generated() {
        let program = shown_program();
        assert!(program.get_subcommands().all(|command| !command.is_hide_set()));
        assert!(program.find_subcommand("bench").is_some());
    }
}
