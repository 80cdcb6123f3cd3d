//! What the PTX of the kernels may and must hold: the memory model of docs/gpu.md, as far as instructions
//! show it.
//!
//! One GPU hides nearly every mistake in memory order, so no test on hardware would notice what these rules
//! do.

use super::multicast;
use super::ptx::{self, Function};
use super::table::{BENCH, MULTIMEM as MULTICAST, Routine};

/// Which rules a source file is under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Works on memory that peers work on.
    Protocol,
    /// As `Protocol`, and may touch multicast addresses.
    Multimem,
    /// Touches memory of one rank only.
    Local,
}

impl Kind {
    /// By the list that `file` is in; what is in none is under the strictest rules.
    pub(super) fn of(file: &str) -> Self {
        match file {
            _ if file == BENCH.0 => Self::Local,
            _ if MULTICAST.iter().any(|(name, _)| *name == file) => Self::Multimem,
            _ => Self::Protocol,
        }
    }
}

/// Every strong access there is: flags, packets, tickets, verdicts. Anything else must be added here with its
/// argument.
const STRONG: [&str; 15] = [
    "ld.relaxed.sys.global.u32",
    "ld.relaxed.sys.global.u64",
    "ld.acquire.sys.global.u32",
    "ld.acquire.sys.global.u64",
    "st.relaxed.sys.global.u32",
    "st.relaxed.sys.global.u64",
    "st.release.sys.global.u32",
    "st.release.sys.global.u64",
    // The same where all ranks are on one device.
    "st.release.gpu.global.u64",
    // Packets: two times {data, flag}, each of which is atomic.
    "ld.relaxed.sys.global.v2.b64",
    "st.relaxed.sys.global.v2.b64",
    // A verdict, on whichever rank.
    "atom.relaxed.sys.global.cas.b64",
    // Between blocks of one launch.
    "atom.relaxed.gpu.global.add.u64",
    "red.relaxed.gpu.global.add.u32",
    // A rank of the same device has come.
    ARRIVE,
];

/// Says that earlier kernels have ended, to a rank of the same device: for kernels that only such ranks run.
const ARRIVE: &str = "red.relaxed.gpu.global.add.u64";
/// In the names of those.
const TOGETHER: &str = "_together";

/// Every access through a multicast address: sums and copies of units between two meetings, and the words
/// that a meeting tells.
const MULTIMEM: [&str; 6] = [
    "multimem.ld_reduce.relaxed.sys.global.add.v4.f32",
    "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2",
    "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2",
    COPY,
    "multimem.st.relaxed.sys.global.u64",
    "multimem.st.release.sys.global.u64",
];

/// A sum of units, of any type.
const SUM: &str = "multimem.ld_reduce.relaxed.sys.global.add.*";
/// Units go to everybody.
const COPY: &str = "multimem.st.relaxed.sys.global.v4.f32";

/// Between accesses through a multicast address and others to the same memory.
const ALIAS: &str = "fence.proxy.alias";

/// The one fence: anything that is weaker does not reach the peer's GPU, `fence.sc` costs more and promises
/// nothing we need.
const FENCE: &str = "fence.acq_rel.sys";

/// The kernel before this one has ended, and what it wrote is there.
const WAIT: &str = "griddepcontrol.wait";
/// The next kernel may be launched.
const NEXT: &str = "griddepcontrol.launch_dependents";
/// The oldest architecture that has both.
const WAITING: u32 = 90;

/// Parts of an opcode that make an access strong.
const ORDERS: [&str; 5] = ["relaxed", "acquire", "release", "acq_rel", "mmio"];

/// What the block wrote is gathered, then published to a peer: to the whole system, or to the one device
/// where all ranks are.
const PUBLISH: [&str; 2] = ["bar.sync", RELEASE];
/// Of either scope: the compiler puts one of them aside.
const RELEASE: &str = "st.release.*";
/// A flag is polled for, which acquires what it stands for, and that is handed to the block.
const HEAR: [&str; 2] = ["ld.acquire.sys.global.u64", "bar.red.and.pred"];
/// The same in a block of one warp.
const HEAR_WARP: [&str; 3] = ["ld.acquire.sys.global.u64", "bar.warp.sync", "vote.sync.all.pred"];
/// What kernels before this one wrote is released as well: on one device a relaxed store would do, between
/// devices it would not.
const TELL: [&str; 1] = [RELEASE_TO_ALL];
/// What a flag is stored by where ranks are on several devices, whatever it stands for.
const RELEASE_TO_ALL: &str = "st.release.sys.global.u64";
/// Packets are sent and polled for. They order no other memory.
const PACKETS: [&str; 2] = ["st.relaxed.sys.global.v2.b64", "ld.relaxed.sys.global.v2.b64"];
/// A slot of a pad is acquired, and handed on.
const SIGNAL: [&str; 2] = ["ld.acquire.sys.global.u32", "st.release.sys.global.u32"];

/// Everybody is told at once what the block wrote, and the block hears from everybody, with a fence of
/// aliases before what is told, before the words are looked at, and before what is heard of is used.
const MEET_ALL: [&str; 7] = [
    ALIAS,
    "bar.sync",
    "multimem.st.release.sys.global.u64",
    ALIAS,
    "ld.acquire.sys.global.u64",
    "bar.red.and.pred",
    ALIAS,
];

/// The instructions of a step that the table of kernels names.
fn step(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "tell" => &TELL,
        "publish" => &PUBLISH,
        "hear" => &HEAR,
        // Whoever hears of it has nothing left to do that the block would have to know of.
        "listen" => &HEAR[..1],
        "fence" => &[FENCE],
        "packets" => &PACKETS,
        "meet_all" => &MEET_ALL,
        "sum" => &[SUM],
        "copy" => &[COPY],
        _ => return None,
    })
}

/// The steps of kernels that are no row of the table. The first name that fits counts.
const OTHERS: [(&str, &[&[&str]]); 15] = [
    ("barrier_multimem", &[&MEET_ALL]),
    ("barrier_together_any", &[&[ARRIVE], &HEAR]),
    ("barrier_together", &[&[ARRIVE], &HEAR_WARP]),
    ("barrier_any", &[&TELL, &HEAR]),
    ("barrier", &[&TELL, &HEAR_WARP]),
    ("put_signal", &[&SIGNAL]),
    ("wait_signal", &[&SIGNAL]),
    ("copy", &[]),
    ("begin_work", &[]),
    ("end_work", &[]),
    ("open_records", &[]),
    ("mark_", &[]),
    ("user_signals", &[&SIGNAL, &SIGNAL]),
    ("user_barrier", &[&["bar.sync"], &SIGNAL, &SIGNAL, &["bar.red.and.pred"]]),
    ("user_packets", &[&PACKETS]),
];

/// The steps that the kernel called `name` has in this order; other instructions may stand between theirs,
/// and a `*` is for any end.
fn shape_of(name: &str) -> Option<Vec<&'static [&'static str]>> {
    let rows = Routine::ALL.iter().chain(Routine::MULTIMEM);
    // One name may be the head of another.
    let row = rows.filter(|row| name.starts_with(row.name())).max_by_key(|row| row.name().len());
    match row {
        Some(row) => row.steps().trim_matches(['[', ']']).split_whitespace().map(step).collect(),
        None => OTHERS.iter().find(|(head, _)| name.starts_with(head)).map(|(_, shape)| shape.to_vec()),
    }
}

/// What is wrong with a module: one line for each function and rule.
pub(super) fn breaches(kind: Kind, module: &str) -> Vec<String> {
    let functions = ptx::parse(module);
    if functions.is_empty() {
        return vec!["there is no function in it".to_owned()];
    }
    let is_for_waiting = ptx::target(module).is_some_and(|target| target >= WAITING);
    let mut found = Vec::new();
    for function in &functions {
        let mut add = |problem: String| found.push(format!("{}: {problem}", function.name));
        for opcode in &function.code {
            if let Some(why) = why_not(kind, opcode, function.is_kernel) {
                add(format!("`{opcode}`: {why}"));
            }
        }
        scope_problem(function).into_iter().for_each(&mut add);
        if kind != Kind::Local && function.is_kernel {
            shape_problem(function).or_else(|| release_problem(function)).into_iter().for_each(&mut add);
            let waits = is_for_waiting && takes_turn(&function.name);
            early_problem(function, waits).into_iter().for_each(&mut add);
            multicast::problems(function).into_iter().for_each(&mut add);
        }
    }
    found.dedup();
    found
}

/// Why `opcode` may not be there.
fn why_not(kind: Kind, opcode: &str, in_kernel: bool) -> Option<&'static str> {
    let parts: Vec<_> = opcode.split('.').collect();
    let has = |part: &str| parts.contains(&part);
    if has("volatile") || has("cv") {
        return Some("volatile accesses have no order towards another GPU");
    }
    if has("nc") {
        return Some("the read-only cache does not see what a peer writes");
    }
    if kind != Kind::Multimem && (parts[0] == "multimem" || has("proxy")) {
        return Some("only files of the list MULTIMEM may touch a multicast address");
    }
    if kind == Kind::Local {
        return None;
    }
    match parts[0] {
        "multimem" => (!MULTIMEM.contains(&opcode)).then_some("this access is not one of those argued for"),
        "fence" if has("proxy") => {
            (opcode != ALIAS).then_some("the only fence of proxies is that of aliases")
        }
        "membar" | "fence" if opcode != FENCE => Some("the only fence is fence.acq_rel.sys"),
        "cp" | "cpasync" | "discard" | "applypriority" => {
            Some("asynchronous copies are outside the argument")
        }
        "atom" | "red" => (!STRONG.contains(&opcode)).then_some("this atomic is not one of those argued for"),
        "ld" | "st" if ORDERS.iter().any(|order| has(order)) => {
            (!STRONG.contains(&opcode)).then_some("this strong access is not one of those argued for")
        }
        "ld" | "st" if has("async") || has("bulk") => Some("asynchronous stores are outside the argument"),
        "ld" | "st" => weak_problem(&parts, in_kernel),
        _ => None,
    }
}

/// Weak accesses name their memory, so that the ones to `global` can be told from parameters and shared
/// memory. Cold functions read the launch parameters through a reference.
fn weak_problem(parts: &[&str], in_kernel: bool) -> Option<&'static str> {
    let spaces =
        ["global", "param", "param::entry", "param::func", "shared", "shared::cta", "local", "const"];
    let named = parts.iter().any(|part| spaces.contains(part));
    let cold_load = parts[0] == "ld" && !in_kernel;
    (!named && !cold_load).then_some("an access that names no memory cannot be checked")
}

/// What is released to one device only is also released to the system, elsewhere in the function: for ranks
/// on several devices. Arrivals release nothing, and are for kernels that ranks of one device run.
fn scope_problem(function: &Function) -> Option<String> {
    if function.code.iter().any(|code| code == ARRIVE) && !function.name.contains(TOGETHER) {
        return Some(format!("`{ARRIVE}` is for kernels named *{TOGETHER}*, which ranks of one device run"));
    }
    let count = |opcode: &str| function.code.iter().filter(|code| *code == opcode).count();
    let (here, everywhere) = (count("st.release.gpu.global.u64"), count("st.release.sys.global.u64"));
    (here > everywhere)
        .then(|| format!("{here} releases to the device, and {everywhere} to the system: one is missing"))
}

/// Every meeting of ranks on several devices is told of by a release, also one that stands for what earlier
/// kernels wrote: PTX promises that to another device by nothing less.
fn release_problem(kernel: &Function) -> Option<String> {
    if kernel.name.contains(TOGETHER) {
        return None;
    }
    let shape = shape_of(&kernel.name)?;
    let count = |opcode: &str| kernel.code.iter().filter(|code| *code == opcode).count();
    let meetings = shape.iter().filter(|part| ***part == HEAR || ***part == HEAR_WARP).count();
    let (releases, fences) = (count(RELEASE_TO_ALL), count(FENCE));
    if releases < meetings {
        return Some(format!(
            "{meetings} meetings, and {releases} `{RELEASE_TO_ALL}`: a flag between devices is relaxed"
        ));
    }
    let sends = shape.iter().any(|part| **part == PACKETS) && takes_turn(&kernel.name);
    (sends && fences < 2)
        .then(|| format!("{fences} `{FENCE}`: packets without a meeting need one before and one after"))
}

/// Whether the engine may launch a kernel of this name before the one ahead of it has ended.
fn takes_turn(name: &str) -> bool {
    const OTHERS: [&str; 9] = [
        "put_signal",
        "wait_signal",
        "copy",
        "begin_work",
        "end_work",
        "open_records",
        "mark_",
        "norm_alone_",
        "user_",
    ];
    !OTHERS.iter().any(|prefix| name.starts_with(prefix))
}

/// A kernel that may be launched early waits before it touches memory, calls anything or goes anywhere, in
/// every thread, and lets the next one come after that: else any number of them might take the place of
/// kernels that peers wait for.
fn early_problem(kernel: &Function, waits: bool) -> Option<String> {
    let position = |wanted: &str| kernel.code.iter().position(|opcode| opcode == wanted);
    let touches = |opcode: &String| {
        let kind = opcode.split('.').next().unwrap_or_default();
        let is_access = matches!(kind, "ld" | "st" | "atom" | "red" | "multimem");
        matches!(kind, "call" | "bra" | "brx" | "ret" | "exit") || is_access && !opcode.contains(".param")
    };
    let first = kernel.code.iter().position(touches).unwrap_or(usize::MAX);
    match (position(WAIT), position(NEXT)) {
        (Some(wait), Some(next)) if waits && wait < first.min(next) && !kernel.guarded[wait] => None,
        (None, None) if !waits => None,
        _ if waits => Some(format!("`{WAIT}` must come before everything else, then `{NEXT}`")),
        _ => Some(format!("`{WAIT}` and `{NEXT}` are for kernels that take a turn, from sm_{WAITING} on")),
    }
}

fn shape_problem(kernel: &Function) -> Option<String> {
    let Some(shape) = shape_of(&kernel.name) else {
        return Some("no rule says what this kernel must hold; its row in the table does, by steps that the rules know".to_owned());
    };
    let wanted = shape.concat();
    let mut code = kernel.code.iter();
    let fits = |opcode: &str, wanted: &str| match wanted.strip_suffix('*') {
        Some(stem) => opcode.starts_with(stem),
        None => opcode == wanted,
    };
    let missing = wanted.iter().find(|&wanted| !code.any(|opcode| fits(opcode, wanted)))?;
    Some(format!("`{missing}` is missing; in order it must have {}", wanted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel of these instructions; those of multicast have an address of it.
    fn kernel(name: &str, code: &[&str]) -> String {
        let address = format!("ld.param.u64 %rd1, [{name}_param_0+80]");
        let with = |opcode: &&str| match opcode.starts_with("multimem.") {
            _ if *opcode == SUM => format!("{} [%rd1]", MULTIMEM[0]),
            _ if *opcode == RELEASE => "st.release.sys.global.u64".to_owned(),
            true => format!("{opcode} [%rd1], %rd2"),
            false => (*opcode).to_owned(),
        };
        let code: Vec<_> = [address].into_iter().chain(code.iter().map(with)).collect();
        format!(".visible .entry {name}(\n.param .b64 a\n)\n{{\n\t{};\n\tret;\n}}\n", code.join(";\n\t"))
    }

    /// The kind of file that a kernel with this name is in.
    fn kind(name: &str) -> Kind {
        let is_in = |file: &str| file.strip_suffix(".cu").is_some_and(|stem| name.starts_with(stem));
        if MULTICAST.iter().any(|(file, _)| is_in(file)) { Kind::Multimem } else { Kind::Protocol }
    }

    /// What the rules say about one more instruction in a kernel that is fine without it.
    fn said(kind: Kind, opcode: &str) -> String {
        let barrier = [&TELL[..], &HEAR_WARP].concat();
        assert_eq!(breaches(kind, &kernel("barrier", &barrier)), [""; 0]);
        breaches(kind, &kernel("barrier", &[&barrier[..], &[opcode]].concat())).join("\n")
    }

    fn refused(opcode: &str) -> bool {
        said(Kind::Protocol, opcode).starts_with(&format!("barrier: `{opcode}`: "))
    }

    /// Accesses that reach one device only.
    const ONE_DEVICE: [&str; 2] = ["st.release.gpu.global.u64", ARRIVE];

    #[test]
    fn only_ranks_of_one_device_arrive() {
        assert!(said(Kind::Protocol, ARRIVE).contains(TOGETHER));
        let barrier = [&[ARRIVE][..], &HEAR_WARP].concat();
        assert_eq!(breaches(Kind::Protocol, &kernel("barrier_together", &barrier)), [""; 0]);
        assert!(
            breaches(Kind::Protocol, &kernel("barrier_together", &HEAR_WARP)).join("").contains("missing")
        );
    }

    #[test]
    fn every_access_of_the_protocols_is_allowed() {
        let others = ["ld.global.v4.u32", "st.global.u16", "ld.param.u64", "st.shared.u64"];
        for opcode in STRONG.iter().chain(&others).filter(|opcode| !ONE_DEVICE.contains(opcode)) {
            assert_eq!(said(Kind::Protocol, opcode), "");
        }
    }

    #[test]
    fn what_is_released_to_a_device_is_released_to_the_system_too() {
        let [here, everywhere] = ["st.release.gpu.global.u64", "st.release.sys.global.u64"];
        let said = |more: &[&str]| {
            let barrier = kernel("barrier", &[&TELL[..], &HEAR_WARP, more].concat());
            breaches(Kind::Protocol, &barrier).join("\n")
        };
        assert!(said(&[here, here]).contains("one is missing"));
        assert_eq!(said(&[here, here, everywhere]), "");
    }

    #[test]
    fn a_relaxed_flag_between_devices_is_refused() {
        const RELAXED: &str = "st.relaxed.sys.global.u64";
        let said =
            |name: &str, code: &[&[&str]]| breaches(Kind::Protocol, &kernel(name, &code.concat())).join("\n");
        assert!(said("barrier", &[&[RELAXED], &HEAR_WARP]).contains(RELEASE_TO_ALL));
        assert!(said("pull", &[&[RELAXED], &HEAR, &PUBLISH, &HEAR]).contains(RELEASE_TO_ALL));
        // One that looks as if it were told of, by a release to the device only.
        let here = ["bar.sync", "st.release.gpu.global.u64"];
        let one_shot = said("all_reduce_one_shot_f32_any", &[&here, &HEAR, &PUBLISH, &HEAR]);
        assert!(one_shot.contains("2 meetings, and 1"), "{one_shot}");
        // Packets that stand for earlier kernels, without a fence before or after.
        for code in [&[PACKETS[0], PACKETS[1], FENCE], &[FENCE, PACKETS[0], PACKETS[1]]] {
            assert!(said("all_reduce_low_latency_whole_f32_any", &[code]).contains(FENCE));
        }
        let two_trip =
            |fences: &[&str]| said("all_reduce_two_trip_f32_any", &[fences, &TELL, &HEAR, &PACKETS]);
        assert!(two_trip(&[FENCE]).contains(FENCE));
        assert_eq!(two_trip(&[FENCE, FENCE]), "");
        assert_eq!(said("all_reduce_low_latency_together_f32_any", &[&PACKETS]), "");
    }

    #[test]
    fn volatile_accesses_are_refused_everywhere() {
        for opcode in
            ["ld.volatile.global.u64", "st.volatile.global.u32", "ld.volatile.u32", "ld.global.cv.u32"]
        {
            assert!(refused(opcode), "{opcode}");
            assert!(!breaches(Kind::Local, &kernel("bench_fill", &[opcode])).is_empty(), "{opcode}");
        }
    }

    #[test]
    fn the_read_only_cache_is_refused_everywhere() {
        for opcode in ["ld.global.nc.v4.u32", "ld.global.nc.L1::no_allocate.u32"] {
            assert!(refused(opcode), "{opcode}");
            assert!(!breaches(Kind::Local, &kernel("bench_fill", &[opcode])).is_empty(), "{opcode}");
        }
    }

    #[test]
    fn fences_other_than_the_one_are_refused() {
        for opcode in [
            "membar.sys",
            "membar.gl",
            "fence.acq_rel.gpu",
            "fence.acq_rel.cta",
            "fence.sc.sys",
            "fence.acquire.sys",
        ] {
            assert!(refused(opcode), "{opcode}");
        }
        assert_eq!(said(Kind::Protocol, FENCE), "");
    }

    #[test]
    fn packets_are_two_times_eight_bytes_for_the_whole_system() {
        for opcode in [
            "st.relaxed.sys.global.v4.b32",
            "ld.relaxed.sys.global.v4.u32",
            "st.relaxed.gpu.global.v2.b64",
            "ld.relaxed.gpu.global.v2.b64",
            "st.release.sys.global.v2.b64",
            "ld.relaxed.sys.global.b128",
        ] {
            assert!(refused(opcode), "{opcode}");
        }
    }

    #[test]
    fn flags_are_released_and_polled_as_argued_for() {
        for opcode in [
            "st.release.gpu.global.u32",
            "st.release.cta.global.u64",
            "ld.relaxed.gpu.global.u64",
            "ld.acquire.gpu.global.u64",
            "ld.acquire.cta.global.u64",
            "st.relaxed.gpu.global.u64",
            "st.mmio.relaxed.sys.global.u64",
        ] {
            assert!(refused(opcode), "{opcode}");
        }
    }

    #[test]
    fn atomics_that_nobody_argued_for_are_refused() {
        for opcode in [
            "atom.global.add.u64",
            "atom.acq_rel.sys.global.cas.b32",
            "red.global.add.u32",
            "atom.relaxed.gpu.global.cas.b64",
        ] {
            assert!(refused(opcode), "{opcode}");
        }
    }

    #[test]
    fn asynchronous_accesses_are_refused() {
        for opcode in [
            "cp.async.cg.shared.global",
            "cp.async.bulk.global.shared::cta.bulk_group",
            "st.async.shared::cluster.u64",
        ] {
            assert!(refused(opcode), "{opcode}");
        }
    }

    #[test]
    fn an_access_that_names_no_memory_is_refused_in_a_kernel() {
        assert!(refused("ld.u64") && refused("st.v4.u32"));
        let cold = |opcode: &str| format!(".func look(\n)\n{{\n\t{opcode};\n}}\n{}", kernel("copy", &[]));
        assert_eq!(breaches(Kind::Protocol, &cold("ld.u64 %rd1, [%rd2]")), [""; 0]);
        assert_eq!(breaches(Kind::Protocol, &cold("st.u64 [%rd2], %rd1")).len(), 1);
    }

    #[test]
    fn multicast_is_for_files_that_say_so() {
        for opcode in MULTIMEM.iter().chain(&[ALIAS]) {
            assert!(refused(opcode), "{opcode}");
            assert!(!said(Kind::Multimem, opcode).contains("argued for"), "{opcode}");
        }
        for opcode in
            ["multimem.st.global.f32", "multimem.red.relaxed.gpu.global.add.u32", "fence.proxy.async"]
        {
            assert!(said(Kind::Multimem, opcode).contains(opcode), "{opcode}");
        }
        assert_eq!(Kind::of("all_reduce_multimem_two_shot.cu"), Kind::Multimem);
        assert_eq!(Kind::of("all_reduce_one_shot.cu"), Kind::Protocol);
        assert_eq!(Kind::of("bench.cu"), Kind::Local);
    }

    #[test]
    fn a_kernel_that_lacks_a_part_of_its_protocol_is_refused() {
        let rows = Routine::ALL.iter().chain(Routine::MULTIMEM).map(|row| row.name());
        for prefix in rows.chain(OTHERS.map(|(head, _)| head)) {
            let shape = shape_of(prefix).expect("its steps are known");
            let lacks_fences = shape.contains(&&PACKETS[..]) && !shape.contains(&&[FENCE][..]);
            let fences: &[&str] = if lacks_fences { &[FENCE, FENCE] } else { &[] };
            let of = |code: &[&str]| breaches(kind(prefix), &kernel(prefix, &[code, fences].concat()));
            let whole = shape.concat();
            assert_eq!(of(&whole), [""; 0]);
            for gone in 0..whole.len() {
                let mut part = whole.clone();
                part.remove(gone);
                assert_eq!(of(&part).len(), 1, "{prefix} without {gone}");
            }
        }
    }

    #[test]
    fn a_kernel_with_the_right_parts_in_the_wrong_order_is_refused() {
        let [gather, publish] = PUBLISH;
        let whole = [&TELL[..], &HEAR, &[publish, gather], &HEAR].concat();
        assert_eq!(breaches(Kind::Protocol, &kernel("all_reduce_two_shot_f32_any", &whole)).len(), 1);
    }

    #[test]
    fn kernels_that_may_come_early_wait_before_all_else() {
        let barrier = [&TELL[..], &HEAR_WARP].concat();
        let for_arch = |arch: &str, name: &str, code: &[&str]| {
            let module = format!(".version 9.0\n.target {arch}\n{}", kernel(name, code));
            breaches(Kind::Protocol, &module).join("\n")
        };
        let with = |head: &[&'static str], tail: &[&'static str]| [head, &barrier[..], tail].concat();
        assert_eq!(for_arch("sm_90a", "barrier", &with(&[WAIT, NEXT], &[])), "");
        assert_eq!(for_arch("sm_80", "barrier", &barrier), "");
        for wrong in [
            with(&[], &[]),
            with(&[WAIT], &[]),
            with(&[NEXT, WAIT], &[]),
            with(&[], &[WAIT, NEXT]),
            with(&["call", WAIT, NEXT], &[]),
            with(&["bra $L1", WAIT, NEXT], &[]),
            with(&["@%p1 griddepcontrol.wait", NEXT], &[]),
        ] {
            assert!(for_arch("sm_90a", "barrier", &wrong).contains("before everything else"), "{wrong:?}");
        }
        assert_eq!(
            for_arch("sm_90a", "barrier", &with(&[WAIT, "@%p1 griddepcontrol.launch_dependents"], &[])),
            ""
        );
        assert!(for_arch("sm_80", "barrier", &with(&[WAIT, NEXT], &[])).contains("take a turn"));
        let signal = [&[WAIT, NEXT][..], &SIGNAL].concat();
        assert!(for_arch("sm_100a", "put_signal", &signal).contains("take a turn"));
    }

    #[test]
    fn a_kernel_that_no_rule_knows_is_refused() {
        assert_eq!(breaches(Kind::Protocol, &kernel("reduce_scatter_f32_any", &HEAR)).len(), 1);
        assert_eq!(breaches(Kind::Protocol, "").len(), 1);
    }
}
