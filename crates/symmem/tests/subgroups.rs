//! Many overlapping subgroups, in every order: all values right, nobody hangs.

mod common;

use std::thread;

use common::{PATIENCE, Random};
use symmem::{Group, ProcessSpawner, Result};

const RANKS: usize = 4;
const GROUPS: usize = 50;

/// One subgroup to make: who is in it, in which order, and under which name.
#[derive(Clone, Debug)]
struct Plan {
    members: Vec<usize>,
    name: String,
}

/// A random member list of at least one rank, in random order.
fn members(random: &mut Random) -> Vec<usize> {
    let mut ranks: Vec<usize> = (0..RANKS).collect();
    random.shuffle(&mut ranks);
    ranks.truncate(1 + random.below(RANKS));
    ranks
}

/// The same plans on every rank. Names come from a few, or each is new.
fn plans(seed: u64, names_recur: bool) -> Vec<Plan> {
    let mut random = Random::new(seed);
    let plan = |index: usize| {
        let members = members(&mut random);
        let name = if names_recur { format!("team {}", random.below(3)) } else { format!("team {index}") };
        Plan { members, name }
    };
    (0..GROUPS).map(plan).collect()
}

/// What a member does in the subgroup of `plan`, and checks. `value` tells the subgroups apart.
fn work(group: &Group, plan: &Plan, value: usize) -> Result<()> {
    let sub = group.subgroup(&plan.members, &plan.name)?;
    assert_eq!(sub.all_gather(&group.rank())?, plan.members);
    let mut x = group.alloc::<u64>(32)?;
    x.fill((value * 100 + group.rank()) as u64)?;
    let mem = x.rendezvous(&sub)?;
    mem.barrier(0)?;
    for (place, rank) in plan.members.iter().enumerate() {
        assert_eq!(mem.peer(place)?.to_vec()?, [(value * 100 + rank) as u64; 32], "{plan:?}");
    }
    mem.close()
}

/// The subgroups one after the other, in the order of the list.
fn one_after_the_other(group: &Group, plans: &[Plan]) -> Result<()> {
    for (value, plan) in plans.iter().enumerate() {
        if plan.members.contains(&group.rank()) {
            work(group, plan, value)?;
        }
    }
    group.barrier()
}

/// All subgroups at once, a thread for each, started in this rank's own order.
fn all_at_once(group: &Group, plans: &[Plan]) -> Result<()> {
    let mut order: Vec<(usize, &Plan)> = plans.iter().enumerate().collect();
    order.retain(|(_, plan)| plan.members.contains(&group.rank()));
    Random::new(group.rank() as u64 + 99).shuffle(&mut order);
    thread::scope(|scope| {
        let threads: Vec<_> =
            order.into_iter().map(|(value, plan)| scope.spawn(move || work(group, plan, value))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a subgroup's thread"))
    })?;
    group.barrier()
}

/// Runs `f` on `RANKS` processes for the test `name`.
fn on_processes(name: &str, f: impl FnOnce(&Group) -> Result<()>) {
    let spawner = ProcessSpawner::new(name, RANKS).env("SYMMEM_TIMEOUT", PATIENCE.as_secs());
    spawner.run(|group| f(&group)).unwrap();
}

fn on_threads(f: impl Fn(&Group) -> Result<()> + Sync) {
    symmem::spawn(RANKS, |group| f(&group.within(PATIENCE))).unwrap();
}

/// The plans without rank `absent`, who sits out every second one that it was in.
fn without(absent: usize, mut plans: Vec<Plan>) -> Vec<Plan> {
    for plan in plans.iter_mut().step_by(2) {
        plan.members.retain(|rank| *rank != absent);
    }
    plans.retain(|plan| !plan.members.is_empty());
    plans
}

mod processes {
    use super::*;

    #[test]
    fn in_the_same_order_on_all_ranks() {
        on_processes("processes::in_the_same_order_on_all_ranks", |group| {
            one_after_the_other(group, &plans(1, true))
        });
    }

    #[test]
    fn all_at_once_in_each_ranks_own_order() {
        on_processes("processes::all_at_once_in_each_ranks_own_order", |group| {
            all_at_once(group, &plans(2, false))
        });
    }

    #[test]
    fn with_one_rank_sitting_out_some() {
        on_processes("processes::with_one_rank_sitting_out_some", |group| {
            one_after_the_other(group, &without(2, plans(3, true)))
        });
    }

    #[test]
    fn all_at_once_with_one_rank_sitting_out_some() {
        on_processes("processes::all_at_once_with_one_rank_sitting_out_some", |group| {
            all_at_once(group, &without(0, plans(4, false)))
        });
    }
}

mod threads {
    use super::*;

    #[test]
    fn in_the_same_order_on_all_ranks() {
        on_threads(|group| one_after_the_other(group, &plans(5, true)));
    }

    #[test]
    fn all_at_once_in_each_ranks_own_order() {
        on_threads(|group| all_at_once(group, &plans(6, false)));
    }

    #[test]
    fn with_one_rank_sitting_out_some() {
        on_threads(|group| one_after_the_other(group, &without(1, plans(7, true))));
    }
}
