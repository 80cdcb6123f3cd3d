//! Multicast as an algorithm: who may choose it, what is launched then, and what the others are told.

use symmem::cuda::{Algorithm, Buffer, DeviceSliceMut, Engine, Form, Stream, SymmetricMemory};
use symmem::{DType, Error, Group, ReduceOp, Result};

use crate::common::{config, same_ranks_with};
use crate::{DEVICES, engine, fake, unanimous};

const MULTICAST: (&str, &str) = ("FAKECUDA_MULTICAST", "1");
const LEN: usize = 1000;
/// Where a launch has its multicast addresses, in words: of the memory, and of the control blocks.
const ADDRESSES: [u32; 2] = [10, 11];

/// Every operation that can use multicast, with what it is called and the kernel it launches.
const OPERATIONS: [(&str, &str); 6] = [
    ("in place", "all_reduce_multimem_two_shot_f32"),
    ("out", "all_reduce_multimem_one_shot_f32"),
    ("private", "all_reduce_multimem_one_shot_f32"),
    ("reduce", "all_reduce_multimem_one_shot_f32"),
    ("gather", "all_gather_multimem"),
    ("barrier", "barrier_multimem"),
];

/// Runs one of them on `memory`, whose engine uses what it uses.
fn run(what: &str, memory: &SymmetricMemory<f32>, stream: &Stream) -> Result<()> {
    let device = memory.device();
    let (part, root) = (memory.len() / memory.world_size(), 1);
    let input = Buffer::<f32>::new(device, if what == "gather" { part } else { memory.len() })?;
    let mut out = Buffer::<f32>::new(device, memory.len())?;
    match what {
        "in place" => memory.all_reduce(ReduceOp::Sum, stream),
        "out" => memory.all_reduce_out(ReduceOp::Avg, &mut out, stream),
        "private" => memory.all_reduce_from(ReduceOp::Sum, &input, &mut out, stream),
        "reduce" => {
            let out: Option<DeviceSliceMut<'_, f32>> = (memory.rank() == root).then(|| (&mut out).into());
            memory.reduce(ReduceOp::Sum, root, out, stream)
        }
        "gather" => memory.slice(..part * memory.world_size())?.all_gather_from(&input, stream),
        _ => memory.barrier(0, stream),
    }
}

/// Collective. Every rank is told the same by every operation that was to use multicast: something with `why`
/// in it. Nothing is launched.
fn refused(group: &Group, memory: &SymmetricMemory<f32>, why: &str) -> Result<()> {
    let stream = Stream::new(memory.device())?;
    let chosen = memory.using(Algorithm::Multimem);
    let before = fake::launched();
    for (what, _) in OPERATIONS.iter().filter(|(what, _)| !why.contains("offsets") || *what != "barrier") {
        let result = run(what, &chosen, &stream);
        assert!(matches!(result, Err(Error::NoMulticast { .. })), "{what}: {result:?}");
        let said = unanimous(group, &result)?;
        assert!(said.contains(why) && said.contains("Hint"), "{what}: {said}");
    }
    assert_eq!(fake::launched(), before);
    // Others are not concerned.
    memory.all_reduce(ReduceOp::Sum, &stream)?;
    assert!(!fake::launched().contains("multimem"));
    group.barrier()
}

fn rendezvous(engine: &Engine) -> Result<SymmetricMemory<f32>> {
    engine.device().alloc::<f32>(LEN)?.rendezvous(engine)
}

#[test]
fn without_multicast_all_ranks_are_told_why() {
    fake::run("multimem::without_multicast_all_ranks_are_told_why", &[DEVICES], || {
        symmem::spawn(3, |group| {
            let engine = engine(&group)?;
            let plan = engine.using(Algorithm::Multimem).plan(Form::InPlace, DType::F32, 64);
            assert!(matches!(plan, Err(Error::NoMulticast { .. })), "{plan:?}");
            refused(&group, &rendezvous(&engine)?, "rank 0: device 0 (Fake GPU")
        })
        .unwrap();
    });
}

#[test]
fn older_devices_are_told_what_they_lack() {
    let vars = [DEVICES, MULTICAST, ("FAKECUDA_CAPABILITY", "8")];
    fake::run("multimem::older_devices_are_told_what_they_lack", &vars, || {
        symmem::spawn(2, |group| refused(&group, &rendezvous(&engine(&group)?)?, "compute capability 8.0"))
            .unwrap();
    });
}

#[test]
fn one_rank_that_cannot_is_enough() {
    fake::run("multimem::one_rank_that_cannot_is_enough", &[DEVICES, MULTICAST], || {
        symmem::spawn(3, |group| {
            let without = same_ranks_with(&group, config().multicast(group.rank() != 1))?;
            refused(&without, &rendezvous(&engine(&without)?)?, "rank 1: it is switched off")?;
            // The engine has it, this memory has not: no one address is everybody's.
            let engine = engine(&group)?;
            let apart = engine.device().alloc::<f32>(LEN)?.rendezvous_at(&engine, group.rank())?;
            refused(&group, &apart, "offsets of the ranks differ")
        })
        .unwrap();
    });
}

#[test]
fn with_multicast_its_kernels_are_launched_where_it_is_chosen() {
    const NAME: &str = "multimem::with_multicast_its_kernels_are_launched_where_it_is_chosen";
    fake::run(NAME, &[DEVICES, MULTICAST], || {
        symmem::spawn(3, |group| {
            let engine = engine(&group)?;
            let memory = rendezvous(&engine)?;
            let stream = Stream::new(memory.device())?;
            let chosen = memory.using(Algorithm::Multimem);
            let mut control = 0;
            for (what, kernel) in OPERATIONS {
                run(what, &chosen, &stream)?;
                assert_eq!(fake::launched(), kernel, "{what}");
                let [data, flags] = ADDRESSES.map(fake::launched_word);
                assert_eq!(data, if what == "barrier" { 0 } else { memory.multicast_ptr().unwrap() });
                assert!(flags != 0 && (control == 0 || control == flags), "{what}");
                control = flags;
            }
            // A part is where it is in everybody's memory.
            chosen.slice(5..100)?.all_reduce(ReduceOp::Sum, &stream)?;
            assert_eq!(Some(fake::launched_word(ADDRESSES[0])), memory.multicast_ptr().map(|base| base + 20));
            for form in Form::ALL {
                let plan = chosen.engine().plan(form, DType::BF16, 1 << 20)?;
                assert_eq!(plan.algorithm, Algorithm::Multimem);
                assert!((1..=64).contains(&plan.grid) && plan.threads == 512, "{plan:?}");
            }
            // Nobody chooses it but who says so.
            for bytes in [4, 8 << 10, 1 << 20, 1 << 30] {
                for form in Form::ALL {
                    assert_ne!(engine.plan(form, DType::F32, bytes)?.algorithm, Algorithm::Multimem);
                }
            }
            for what in ["in place", "out", "private", "reduce", "barrier"] {
                run(what, &memory, &stream)?;
                assert!(!fake::launched().contains("multimem"), "{what}");
            }
            let gather = run("gather", &memory, &stream).unwrap_err().to_string();
            assert!(gather.contains("all_gather") && gather.contains("Hint"), "{gather}");
            group.barrier()
        })
        .unwrap();
        assert_eq!(fake::violations(), 0);
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn a_gather_takes_what_makes_up_the_memory() {
    fake::run("multimem::a_gather_takes_what_makes_up_the_memory", &[DEVICES, MULTICAST], || {
        symmem::spawn(2, |group| {
            let memory = rendezvous(&engine(&group)?)?.using(Algorithm::Multimem);
            let stream = Stream::new(memory.device())?;
            let text = |result: Result<()>| result.unwrap_err().to_string();
            let short = Buffer::<f32>::new(memory.device(), LEN / 2 - 1)?;
            assert!(text(memory.all_gather_from(&short, &stream)).contains("do not make"));
            // This rank's own part, and one that is not.
            let parts = [memory.slice(..LEN / 2)?, memory.slice(LEN / 2..)?];
            memory.all_gather_from(parts[group.rank()].local()?, &stream)?;
            let result = memory.all_gather_from(parts[1 - group.rank()].local()?, &stream);
            assert!(text(result).contains("overlaps"));
            group.barrier()
        })
        .unwrap();
    });
}
