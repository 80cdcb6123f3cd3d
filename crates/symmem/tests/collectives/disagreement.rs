//! Ranks that disagree: everybody is told `Mismatch`, nobody's memory changes, and the group goes on.
//!
//! Where a rank need not hear from everybody it may return before it can know, and its *next* operation tells
//! it.

use std::time::Duration;

use symmem::tuning::Algorithm;
use symmem::{Error, Group, ReduceOp, Result, SymmetricMemory};

use crate::common::{config, same_ranks_with};

const RANKS: usize = 3;
/// Elements of the memory, all of them the rank's number.
const LEN: usize = 12;

struct Trial {
    group: Group,
    floats: SymmetricMemory<f32>,
    words: SymmetricMemory<u32>,
}

/// A call in which rank 1, the odd one, says something else than the others.
type Call = fn(&mut Trial, odd: bool) -> Result<()>;

/// Whatever the algorithm.
const CALLS: [(&str, Call); 37] = [
    ("all_reduce of another op", |on, odd| on.floats.all_reduce(either(odd, ReduceOp::Max, ReduceOp::Sum))),
    ("all_reduce of another type", |on, odd| match odd {
        true => on.words.all_reduce(ReduceOp::Sum),
        false => on.floats.all_reduce(ReduceOp::Sum),
    }),
    ("all_reduce of other bytes", |on, odd| on.cut(odd)?.all_reduce(ReduceOp::Sum)),
    ("another collective", |on, odd| match odd {
        true => on.floats.all_reduce(ReduceOp::Sum),
        false => on.floats.all_reduce_out(ReduceOp::Sum, &mut [0.0; LEN]),
    }),
    ("reduce to another root", |on, odd| on.floats.reduce(ReduceOp::Sum, either(odd, 0, 2), &mut [0.0; LEN])),
    ("reduce of another op", |on, odd| {
        on.floats.reduce(either(odd, ReduceOp::Prod, ReduceOp::Sum), 0, &mut [0.0; LEN])
    }),
    ("reduce_scatter of another op", |on, odd| {
        on.floats.reduce_scatter(either(odd, ReduceOp::Avg, ReduceOp::Sum), &mut [0.0; LEN / RANKS])
    }),
    ("all_gather of other bytes", |on, odd| {
        let memory = on.cut(odd)?;
        memory.all_gather(&mut vec![0.0; memory.len() * RANKS])
    }),
    ("all_to_all or all_gather", |on, odd| match odd {
        true => on.floats.all_to_all(&mut [0.0; LEN]),
        false => on.floats.all_gather(&mut [0.0; LEN * RANKS]),
    }),
    ("scan of another op", |on, odd| {
        on.floats.scan(either(odd, ReduceOp::Max, ReduceOp::Sum), &mut [0.0; LEN])
    }),
    ("scan or all_reduce", |on, odd| match odd {
        true => on.floats.all_reduce_out(ReduceOp::Sum, &mut [0.0; LEN]),
        false => on.floats.scan(ReduceOp::Sum, &mut [0.0; LEN]),
    }),
    ("scan or exclusive_scan", |on, odd| match odd {
        true => on.floats.exclusive_scan(ReduceOp::Sum, &mut [0.0; LEN]),
        false => on.floats.scan(ReduceOp::Sum, &mut [0.0; LEN]),
    }),
    ("private exclusive_scan of another op", |on, odd| {
        let op = either(odd, ReduceOp::Min, ReduceOp::Max);
        on.unharmed([1u8; 40], |out| on.group.exclusive_scan(op, &[2; 40], out))
    }),
    ("all_gather_v of other counts", |on, odd| {
        on.floats.all_gather_v(&either(odd, [1, 2, 1], [2, 1, 1]), &mut [0.0; 4])
    }),
    ("private all_gather_v of other counts", |on, odd| {
        let counts = either(odd, [4, 3, 0], [5, 3, 0]);
        let (input, mut out) = (vec![1u16; counts[on.group.rank()]], vec![7; counts.iter().sum()]);
        let told = on.group.all_gather_v(&input, &counts, &mut out);
        assert!(out.iter().all(|element| *element == 7));
        told
    }),
    ("private all_gather_v or all_gather", |on, odd| match odd {
        true => on.unharmed([7u8; 9], |out| on.group.all_gather_into(&[1u8; 3], out)),
        false => on.unharmed([7u8; 9], |out| on.group.all_gather_v(&[1u8; 3], &[3; 3], out)),
    }),
    ("gather_v of other counts", |on, odd| {
        on.floats.gather_v(0, &either(odd, [1, 2, 1], [2, 1, 1]), &mut [0.0; 4])
    }),
    ("private gather_v to another root", |on, odd| {
        on.unharmed([7u8; 9], |out| on.group.gather_v(either(odd, 0, 2), &[1u8; 3], &[3; 3], out))
    }),
    ("scatter_v of other counts", |on, odd| {
        let counts = either(odd, [1, 2, 1], [2, 2, 0]);
        on.floats.scatter_v(0, &counts, &mut vec![0.0; counts[on.group.rank()]])
    }),
    ("private scatter_v of other counts", |on, odd| {
        let counts = either(odd, [1, 3, 2], [2, 3, 1]);
        let mut out = vec![7u8; counts[on.group.rank()]];
        let told = on.group.scatter_v(0, &[1u8; 6], &counts, &mut out);
        assert!(out.iter().all(|byte| *byte == 7));
        told
    }),
    ("private scan of another op", |on, odd| {
        let op = either(odd, ReduceOp::Min, ReduceOp::Max);
        on.unharmed([1u8; 40], |out| on.group.scan(op, &[2; 40], out))
    }),
    ("private scan of other bytes", |on, odd| {
        let len = either(odd, 90_000, 9);
        on.group.scan(ReduceOp::Sum, &vec![1u64; len], &mut vec![0; len])
    }),
    ("private all_reduce of another op", |on, odd| {
        on.group.all_reduce(either(odd, ReduceOp::Min, ReduceOp::Max), &mut [1u8; 40])
    }),
    ("private all_reduce of another type", |on, odd| match odd {
        true => on.group.all_reduce(ReduceOp::Sum, &mut [1u32; 8]),
        false => on.group.all_reduce(ReduceOp::Sum, &mut [1f32; 8]),
    }),
    ("private all_reduce of other bytes", |on, odd| {
        on.group.all_reduce(ReduceOp::Sum, &mut vec![1u64; either(odd, 90_000, 9)])
    }),
    ("private all_reduce of another shape", |on, odd| {
        let group = on.group.shaped(either(odd, &[4, 10], &[5, 8]));
        on.unharmed([1u8; 40], |data| group.all_reduce(ReduceOp::Sum, data))
    }),
    ("private broadcast of another shape", |on, odd| {
        let group = on.group.shaped(either(odd, &[300_000, 1], &[1, 300_000]));
        group.broadcast_into(0, &mut vec![1u16; 300_000])
    }),
    ("private gather of a shape and of any", |on, odd| {
        let group = if odd { on.group.shaped(&[3]) } else { on.group.within(Duration::from_secs(60)) };
        group.gather(0, &[1u8; 3], &mut [0; 9])
    }),
    ("private reduce to another root", |on, odd| {
        on.unharmed([1u8; 40], |data| on.group.reduce(ReduceOp::Sum, either(odd, 0, 2), data))
    }),
    ("private reduce_scatter of another op", |on, odd| {
        let op = either(odd, ReduceOp::Min, ReduceOp::Max);
        on.unharmed([1f32; 2], |out| on.group.reduce_scatter(op, &[0.0; 6], out))
    }),
    ("private all_gather of other bytes", |on, odd| {
        let len = either(odd, 3, 300_000);
        on.group.all_gather_into(&vec![1u16; len], &mut vec![0; len * RANKS])
    }),
    ("private broadcast from another root", |on, odd| {
        on.unharmed([1i32; 3], |data| on.group.broadcast_into(either(odd, 0, 2), data))
    }),
    ("private all_to_all or all_gather", |on, odd| match odd {
        true => on.group.all_to_all(&[1u8; 3], &mut [0; 3]),
        false => on.unharmed([7u8; 9], |out| on.group.all_gather_into(&[1u8; 3], out)),
    }),
    ("private all_to_all of another type", |on, odd| match odd {
        true => on.group.all_to_all(&[1i8; 3], &mut [0; 3]),
        false => on.unharmed([7u8; 3], |out| on.group.all_to_all(&[1u8; 3], out)),
    }),
    ("private all_to_all_v with other splits", |on, odd| {
        let sends = either(odd, [0, 1, 2], [1; 3]);
        on.unharmed([7u8; 3], |out| on.group.all_to_all_v(&[1u8; 3], &sends, out, &[1; 3]))
    }),
    ("private gather to another root", |on, odd| {
        on.unharmed([7u8; 9], |out| on.group.gather(either(odd, 0, 2), &[1u8; 3], out))
    }),
    ("private scatter of other bytes", |on, odd| {
        let mut out = vec![7u8; either(odd, 4, 3)];
        on.group.scatter(0, &[1u8; 9], &mut out).inspect_err(|_| assert!(out.iter().all(|byte| *byte == 7)))
    }),
];

fn either<T>(odd: bool, other: T, usual: T) -> T {
    if odd { other } else { usual }
}

impl Trial {
    fn new(group: &Group, forced: &str) -> Result<Self> {
        let group = same_ranks_with(group, config().algorithm(forced)?)?.within(Duration::from_secs(20));
        let rank = group.rank();
        let mut floats = group.alloc::<f32>(LEN)?.rendezvous(&group)?;
        floats.fill(rank as f32)?;
        let mut words = group.alloc::<u32>(LEN)?.rendezvous(&group)?;
        words.fill(rank as u32)?;
        Ok(Self { group, floats, words })
    }

    /// Makes a call that must leave `data` as it is.
    fn unharmed<T: Copy + PartialEq + std::fmt::Debug, const N: usize>(
        &self,
        mut data: [T; N],
        call: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<()> {
        let before = data;
        let result = call(&mut data);
        assert_eq!(data, before);
        result
    }

    /// The first half of the memory for the odd one.
    fn cut(&self, odd: bool) -> Result<SymmetricMemory<f32>> {
        self.floats.within(Duration::from_secs(20)).slice(..either(odd, LEN / 2, LEN))
    }

    /// Makes the call, and checks that the call itself or the next operation tells of the disagreement, that
    /// the memory is as it was, and that all goes on. Returns whether the call itself told.
    fn check(&mut self, name: &str, call: impl FnOnce(&mut Self) -> Result<()>) -> Result<bool> {
        let at_once = call(self);
        let told_at_once = at_once.is_err();
        let told = if told_at_once { at_once } else { self.group.barrier() };
        match told {
            Err(Error::Mismatch { values, .. }) => {
                assert_eq!(values.len(), RANKS, "{name}: {values:?}");
                assert!(values.iter().all(|value| !value.contains("nothing")), "{name}: {values:?}");
                assert!(values.iter().any(|value| value.rsplit_once(": ") != values[0].rsplit_once(": ")));
            }
            other => panic!("{name}: {other:?}"),
        }
        let rank = self.group.rank();
        assert_eq!(*self.floats.local()?, [rank as f32; LEN], "{name}");
        assert_eq!(*self.words.local()?, [rank as u32; LEN], "{name}");
        self.go_on(name)?;
        Ok(told_at_once)
    }

    /// An operation of every kind of meeting, with the right result.
    fn go_on(&mut self, name: &str) -> Result<()> {
        let mut out = [0.0; LEN];
        self.floats.all_reduce_out(ReduceOp::Sum, &mut out)?;
        assert_eq!(out, [3.0; LEN], "after {name}");
        let mut sum = [self.group.rank() as i64; 5];
        self.group.all_reduce(ReduceOp::Sum, &mut sum)?;
        assert_eq!(sum, [3; 5], "after {name}");
        assert_eq!(self.group.all_gather(&self.group.rank())?, [0, 1, 2], "after {name}");
        self.group.barrier()
    }
}

#[test]
fn ranks_that_disagree_are_all_told_and_keep_their_memory() {
    symmem::spawn(RANKS, |group| {
        for forced in ["", "push", "staged", "direct,two_shot,pipelined", "pull"] {
            let mut trial = Trial::new(&group, forced)?;
            for (name, call) in CALLS {
                let told = trial.check(&format!("{name} ({forced})"), |on| call(on, on.group.rank() == 1))?;
                assert!(told || !name.starts_with("private"), "{name} ({forced})");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_disagreement_is_described() {
    symmem::spawn(RANKS, |group| {
        let mut mem = group.alloc::<f32>(10)?.rendezvous(&group)?;
        let op = if group.rank() == 1 { ReduceOp::Max } else { ReduceOp::Sum };
        let error = mem.all_reduce(op).expect_err("they disagree");
        let Error::Mismatch { values, .. } = error else { panic!("{error}") };
        assert!(values[1].contains("max") && values[2].contains("sum"), "{values:?}");
        mem.close()
    })
    .unwrap();
}

#[test]
fn counts_that_differ_are_shown() {
    symmem::spawn(RANKS, |group| {
        let counts = if group.rank() == 1 { [1, 2, 0] } else { [1, 0, 0] };
        let told = group.all_gather_v(
            &vec![1f32; counts[group.rank()]],
            &counts,
            &mut vec![0.0; counts.iter().sum()],
        );
        let Err(Error::Mismatch { values, .. }) = told else { panic!("{told:?}") };
        let said = ["rank 0: [1, 0, 0] x f32", "rank 1: [1, 2, 0] x f32", "rank 2: [1, 0, 0] x f32"];
        assert_eq!(values, said);
        Ok(())
    })
    .unwrap();
}

#[test]
fn three_roots_are_told_by_the_call_or_by_the_next_operation() {
    symmem::spawn(RANKS, |group| {
        let mut trial = Trial::new(&group, "")?;
        let told = trial.check("three roots", |on| on.floats.broadcast(on.group.rank()))?;
        assert!(!told, "a root of a small broadcast waits for nobody");
        let direct = |on: &mut Trial| on.floats.using(Algorithm::Direct).broadcast(on.group.rank());
        assert!(trial.check("three roots, directly", direct)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_that_disagree_on_the_algorithm_are_told() {
    symmem::spawn(RANKS, |group| {
        let mut trial = Trial::new(&group, "")?;
        for (usual, other) in [
            (Algorithm::Push, Algorithm::Staged),
            (Algorithm::Push, Algorithm::TwoShot),
            (Algorithm::Staged, Algorithm::TwoShot),
            (Algorithm::TwoShot, Algorithm::Push),
        ] {
            let call = |on: &mut Trial| {
                let algorithm = either(on.group.rank() == 1, other, usual);
                on.floats.using(algorithm).all_reduce(ReduceOp::Sum)
            };
            assert!(trial.check(&format!("{usual} or {other}"), call)?);
        }
        Ok(())
    })
    .unwrap();
}
