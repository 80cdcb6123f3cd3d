//! What the help of commands ends with: examples that can be copied.

/// Of the program.
pub(super) const PROGRAM: &str = "\
Examples:
  symmem doctor                      what this machine offers, and what stands in the way
  symmem bench --quick               does everything work, and how fast?
  symmem help bench                  options and examples of a command

Most commands print JSON with --json. Settings are SYMMEM_* variables: see symmem config.";

/// Of `symmem tune`.
pub(super) const TUNE: &str = "\
Examples:
  symmem tune                        measure with 2 and 4 ranks, and keep what was found
  symmem tune --ranks 8,16           the numbers of ranks of your jobs
  symmem tune --dry-run --json       measure and print, keep nothing";

/// Of `symmem config`.
pub(super) const CONFIG: &str = "\
Examples:
  symmem config                      every setting, its value and where that comes from
  SYMMEM_SPIN=50 symmem config       what a variable would change
  symmem config --json | jq '.[] | select(.origin == \"environment\")'";

/// Of `symmem doctor`.
pub(super) const DOCTOR: &str = "\
Examples:
  symmem doctor                      look at everything, and try each provider with two processes
  symmem doctor --ranks 64           are the limits enough for 64 ranks on this machine?
  symmem doctor --no-self-test --json | jq '.rows[] | select(.status != \"ok\")'

Exit status: 0 if nothing failed (warnings are fine), 1 if something did.";

/// Of `symmem completions`.
pub(super) const COMPLETIONS: &str = "\
Examples:
  source <(symmem completions bash)                                 for this shell
  symmem completions bash > ~/.local/share/bash-completion/completions/symmem
  symmem completions fish > ~/.config/fish/completions/symmem.fish
  symmem completions zsh > \"${fpath[1]}/_symmem\"";

/// Of `symmem man`.
pub(super) const MAN: &str = "\
Examples:
  symmem man | man -l -              read the page of the program
  symmem man bench | man -l -        read that of a command
  symmem man --out ~/.local/share/man/man1          install all of them";
