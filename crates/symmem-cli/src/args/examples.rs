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
  symmem tune --device --ranks 2     only the algorithms of this machine's GPUs
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

/// Of `symmem store`.
pub(super) const STORE: &str = "\
Examples:
  symmem store serve --port 29500
  symmem store set --store localhost:29500 colour green
  symmem store get --store localhost:29500 colour
  symmem store list --store localhost:29500
  symmem help store get              options and examples of one of them

Inside of a job, MASTER_ADDR and MASTER_PORT say where the store is. PyTorch keeps the keys of init_process_group under names that begin
with default_pg/ or /worker/attempt_0/.";

/// Of `symmem store serve`.
pub(super) const STORE_SERVE: &str = "\
Examples:
  symmem store serve                                    at any free port, for this machine
  symmem store serve --port 29500 --host '*'            for everybody who reaches this machine
  symmem store serve --json | jq --unbuffered .port";

/// Of `symmem store get`.
pub(super) const STORE_GET: &str = "\
Examples:
  symmem store get --store localhost:29500 colour
  symmem store get colour                               inside of a job
  symmem store get --store localhost:29500 --wait --timeout 60 colour
  symmem store get --store localhost:29500 --raw noise > noise.bin";

/// Of `symmem store set`.
pub(super) const STORE_SET: &str = "\
Examples:
  symmem store set --store localhost:29500 colour green
  symmem store set --store localhost:29500 --hex noise '00ff 0a'
  head -c 100 /dev/urandom | symmem store set --store localhost:29500 noise -";

/// Of `symmem store add`.
pub(super) const STORE_ADD: &str = "\
Examples:
  symmem store add --store localhost:29500 count             one more
  symmem store add --store localhost:29500 count -7
  symmem store add --store localhost:29500 count 0           print it as it is";

/// Of `symmem store list`.
pub(super) const STORE_LIST: &str = "\
Examples:
  symmem store list --store localhost:29500
  symmem store list --store localhost:29500 --values default_pg/
  symmem store list --store localhost:29500 --json | jq length";

/// Of `symmem store wait`.
pub(super) const STORE_WAIT: &str = "\
Examples:
  symmem store wait --store localhost:29500 ready/0 ready/1
  symmem store wait --store localhost:29500 --timeout 600 done && echo done";

/// Of `symmem store delete`.
pub(super) const STORE_DELETE: &str = "\
Examples:
  symmem store delete --store localhost:29500 colour
  symmem store delete --store localhost:29500 ready/0 ready/1";

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
