//! What ptxas says about a kernel: warnings, registers, stack.

use anyhow::{Result, bail, ensure};

/// Bytes of stack that a kernel may have: for small arrays that are indexed by a number known only at run
/// time.
const MAX_STACK: u32 = 64;

/// What the largest function of a file uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) registers: u32,
    pub(super) stack: u32,
}

impl Resources {
    pub(super) fn max(self, other: Self) -> Self {
        Self { registers: self.registers.max(other.registers), stack: self.stack.max(other.stack) }
    }
}

/// Reads the log of a compilation. An error if it holds anything but information, a spill, or too much stack.
pub(super) fn read(log: &str) -> Result<Resources> {
    let mut found = Resources::default();
    let mut function = "";
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            function = name.trim();
        } else if line.contains("bytes stack frame") {
            let [stack, stores, loads] = numbers(line)[..] else { bail!("cannot be understood: {line}") };
            ensure!(stores + loads == 0, "{function} spills {stores} bytes of registers");
            ensure!(
                stack <= MAX_STACK,
                "{function} has {stack} bytes of stack, at most {MAX_STACK} are fine"
            );
            found.stack = found.stack.max(stack);
        } else if let Some((_, used)) = line.split_once(": Used ") {
            found.registers = found.registers.max(numbers(used).first().copied().unwrap_or_default());
        } else {
            ensure!(line.starts_with("ptxas info"), "the compiler says: {line}");
        }
    }
    Ok(found)
}

fn numbers(line: &str) -> Vec<u32> {
    line.split(|other: char| !other.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(stack: u32, spill: u32) -> String {
        format!(
            "ptxas info    : 40 bytes gmem\n\
             ptxas info    : Compiling entry function 'barrier' for 'sm_90a'\n\
             ptxas info    : Function properties for barrier\n\
             ptxas         .     {stack} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads\n\
             ptxas info    : Used 37 registers, used 1 barriers, 16 bytes smem\n\
             ptxas info    : Compile time = 5.1 ms\n"
        )
    }

    #[test]
    fn registers_and_stack_are_read() {
        assert_eq!(read(&log(16, 0)).expect("a good log"), Resources { registers: 37, stack: 16 });
        assert_eq!(read("").expect("nothing to say"), Resources::default());
    }

    #[test]
    fn spills_and_a_large_stack_are_refused() {
        assert!(read(&log(16, 8)).expect_err("a spill").to_string().starts_with("barrier spills 8"));
        assert!(read(&log(MAX_STACK + 8, 0)).expect_err("a stack").to_string().starts_with("barrier has 72"));
    }

    #[test]
    fn warnings_are_refused() {
        let warning = "signals.cu(3): warning #177-D: variable \"x\" was declared but never referenced";
        assert!(read(&(log(0, 0) + warning)).expect_err("a warning").to_string().contains("#177-D"));
        assert!(read("ptxas warning : Registers are spilled").is_err());
    }
}
