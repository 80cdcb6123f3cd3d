//! The same bits on every rank, in every run, by every algorithm, from threads and from processes.

use symmem::tuning::{Algorithm, Collective};
use symmem::{F8E4M3, Group, ProcessSpawner, ReduceOp, Result, bf16, f16};

use crate::common::{config, same_ranks_with};
use crate::trial::{Number, Pattern, Random};

/// The results of all reductions of `T`, by all algorithms that can carry them: each a list of bytes.
fn results_of<T: Number>(group: &Group, len: usize) -> Result<Vec<Vec<u8>>> {
    let mut input = vec![T::zeroed(); len];
    Pattern::new(77, group.rank(), len).write(0, &mut input);
    let mut results = Vec::new();
    let mut keep = |elements: &[T]| results.push(bytemuck::cast_slice::<T, u8>(elements).to_vec());
    for algorithm in Algorithm::ALL {
        let mut mem = group.alloc::<T>(len)?.rendezvous(group)?.using(algorithm);
        let mut out = vec![T::zeroed(); len];
        mem.local_mut()?.copy_from_slice(&input);
        // All lengths fit staging; the parcels of push are too small for some.
        let can = |collective: Collective| {
            let fits = algorithm != Algorithm::Push || size_of_val(&input[..]) <= 500;
            assert_eq!(
                mem.algorithm(collective).is_ok(),
                fits && collective.algorithms().contains(&algorithm)
            );
            mem.algorithm(collective).is_ok()
        };
        let (out_of_place, in_place) = (can(Collective::AllReduceOut), can(Collective::AllReduce));
        if out_of_place {
            mem.all_reduce_out(ReduceOp::Sum, &mut out)?;
            keep(&out);
        }
        if in_place {
            mem.all_reduce(ReduceOp::Sum)?;
            keep(&mem.local()?);
        }
        mem.close()?;
        let own = same_ranks_with(group, config().algorithm(algorithm.name())?)?;
        own.all_reduce_out(ReduceOp::Sum, &input, &mut out)?;
        keep(&out);
    }
    Ok(results)
}

/// What a rank got, in few bytes. Sums of f32 depend on the order they are made in, so that this can fail.
fn digest(group: &Group) -> Result<Vec<u64>> {
    let mut digests = Vec::new();
    for len in [1, 100, 3001] {
        let lists = [
            results_of::<f32>(group, len)?,
            results_of::<f64>(group, len)?,
            results_of::<bf16>(group, len)?,
            results_of::<f16>(group, len)?,
            results_of::<F8E4M3>(group, len)?,
        ];
        for results in lists {
            assert!(results.iter().all(|result| *result == results[0]), "algorithms differ, {len} elements");
            let mix = |hash: u64, byte: &u8| Random::new(hash ^ u64::from(*byte)).next();
            digests.push(results[0].iter().fold(0, mix));
        }
    }
    Ok(digests)
}

#[test]
fn every_rank_run_and_algorithm_gives_the_same_bits() {
    let world = 4;
    let processes = ProcessSpawner::new("identity::every_rank_run_and_algorithm_gives_the_same_bits", world)
        .run(|group| digest(&group))
        .unwrap();
    let threads: Vec<_> =
        (0..2).flat_map(|_| symmem::spawn(world, |group| digest(&group)).unwrap()).collect();
    assert!(processes.iter().chain(&threads).all(|digests| *digests == processes[0]));
}
