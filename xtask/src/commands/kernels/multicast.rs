//! Follows the multicast addresses of a launch through a kernel: only multimem instructions may touch what
//! they point at, and multimem instructions nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::ptx::Function;

/// Where a launch has them: `multicast` and `control_multicast` of `kernels/control.cuh`.
const PLACES: [i64; 2] = [80, 88];

/// What registers hold, as far as it matters here.
#[derive(Default)]
struct KnownRegisters<'a> {
    /// The address of the parameters and so many bytes.
    parameters: BTreeMap<&'a str, i64>,
    /// A multicast address, or what was computed of one.
    multicast: BTreeSet<&'a str>,
}

/// What is wrong with a kernel.
pub(super) fn problems(kernel: &Function) -> Vec<String> {
    let name = format!("{}_param_0", kernel.name);
    let instructions: Vec<_> = kernel.code.iter().zip(&kernel.operands).collect();
    let mut known = KnownRegisters::default();
    // Loops: until nothing more is learnt.
    loop {
        let before = known.parameters.len() + known.multicast.len();
        instructions.iter().for_each(|(opcode, operands)| known.learn(&name, opcode, operands));
        if known.parameters.len() + known.multicast.len() == before {
            break;
        }
    }
    instructions.iter().filter_map(|(opcode, operands)| known.problem(opcode, operands)).collect()
}

impl<'a> KnownRegisters<'a> {
    fn learn(&mut self, name: &str, opcode: &str, operands: &'a str) {
        let operands = split(operands);
        let Some((target, sources)) = operands.split_first() else { return };
        if opcode.starts_with("ld.param") {
            let place = sources.first().and_then(|address| self.place(name, address));
            let size = if opcode.ends_with("64") { 8 } else { 4 };
            let targets = registers(target).zip(0..);
            let held = |at: i64| place.is_some_and(|place| PLACES.contains(&(place + at * size)));
            self.multicast.extend(targets.filter(|(_, at)| held(*at)).map(|(register, _)| register));
            return;
        }
        // What is loaded is not an address, and what is compared is none any more.
        if is_access(opcode) || opcode.starts_with("setp") || opcode.starts_with("call") {
            return;
        }
        let place = match sources {
            [source] if opcode.starts_with("mov") => self.place(name, source),
            [base, more] if opcode.starts_with("add") => {
                self.place(name, base).zip(more.parse::<i64>().ok()).map(|(base, more)| base + more)
            }
            _ => None,
        };
        self.parameters.extend(place.and_then(|place| Some((registers(target).next()?, place))));
        if sources.iter().any(|source| self.holds_multicast(source)) {
            self.multicast.extend(registers(target));
        }
    }

    /// The place in the parameters that an address, with brackets or without, is of.
    fn place(&self, name: &str, address: &str) -> Option<i64> {
        let address = address.trim_matches(['[', ']']);
        let (base, more) = address.split_once('+').unwrap_or((address, "0"));
        let base = if base == name { Some(0) } else { self.parameters.get(base).copied() };
        Some(base? + more.parse::<i64>().ok()?)
    }

    fn holds_multicast(&self, operand: &str) -> bool {
        registers(operand).any(|register| self.multicast.contains(register))
    }

    fn problem(&self, opcode: &str, operands: &str) -> Option<String> {
        if opcode.starts_with("st.param") {
            let handed = self.holds_multicast(operands);
            return handed
                .then(|| format!("`{opcode} {operands}`: a multicast address is handed to a function"));
        }
        if !is_access(opcode) {
            return None;
        }
        let address = operands.split_once('[')?.1.split(']').next()?;
        match (opcode.starts_with("multimem."), self.holds_multicast(address)) {
            (true, false) => {
                Some(format!("`{opcode} {operands}`: the address comes from no multicast address"))
            }
            (false, true) => Some(format!(
                "`{opcode} {operands}`: only multimem instructions may touch a multicast address"
            )),
            _ => None,
        }
    }
}

/// Whether an instruction loads or stores.
fn is_access(opcode: &str) -> bool {
    let first = opcode.split('.').next().unwrap_or_default();
    ["ld", "st", "atom", "red", "multimem", "cp", "prefetch"].contains(&first)
}

/// Operands at the commas between them; braces and brackets hold together.
fn split(operands: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, letter) in operands.char_indices() {
        match letter {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&operands[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&operands[start..]);
    parts
}

/// The registers that a text names.
fn registers(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |letter: char| !letter.is_ascii_alphanumeric() && !"%_.".contains(letter);
    text.split(is_end).filter(|word| word.starts_with('%'))
}

#[cfg(test)]
mod tests {
    use super::super::ptx;
    use super::*;

    fn said(code: &[&str]) -> String {
        let text =
            format!(".visible .entry k(\n.param .b64 a\n)\n{{\n\t{};\n\tret;\n}}\n", code.join(";\n\t"));
        problems(&ptx::parse(&text)[0]).join("\n")
    }

    const LOAD: &str = "ld.param.u64 %rd1, [k_param_0+80]";

    #[test]
    fn multimem_instructions_touch_multicast_addresses() {
        let ways: [&[&str]; 4] = [
            &[LOAD],
            &["ld.param.v2.u64 {%rd0, %rd1}, [k_param_0+72]"],
            &["mov.b64 %rd8, k_param_0", "add.s64 %rd9, %rd8, 96", "ld.param.u64 %rd1, [%rd9+-8]"],
            // Learnt only in the second round of a loop.
            &["add.s64 %rd1, %rd2, 8", "mov.b64 %rd2, %rd3", "ld.param.u64 %rd3, [k_param_0+88]"],
        ];
        for way in ways {
            let whole =
                [way, &["add.s64 %rd4, %rd7, %rd1", "multimem.st.global.u64 [%rd4+16], %rd5"]].concat();
            assert_eq!(said(&whole), "", "{way:?}");
        }
        // An address that comes from elsewhere.
        let other = ["ld.param.u64 %rd1, [k_param_0+72]", "multimem.st.global.u64 [%rd1], %rd5"];
        assert!(said(&other).contains("comes from no multicast address"));
    }

    #[test]
    fn nothing_else_touches_them() {
        for opcode in ["st.global.u64 [%rd2], %rd5", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2+16]"] {
            assert!(said(&[LOAD, "add.s64 %rd2, %rd1, %rd3", opcode]).contains("only multimem"), "{opcode}");
            assert_eq!(said(&[LOAD, "add.s64 %rd2, %rd9, %rd3", opcode]), "", "{opcode}");
        }
        assert!(said(&[LOAD, "@%p1 red.global.add.u32 [%rd1], 1"]).contains("only multimem"));
        assert!(said(&[LOAD, "st.param.b64 [param0], %rd1"]).contains("handed to a function"));
        // What is loaded through one is data, and may go anywhere.
        let data = [LOAD, "multimem.ld_reduce.global.add.u64 %rd2, [%rd1]", "st.global.u64 [%rd9], %rd2"];
        assert_eq!(said(&data), "");
    }
}
