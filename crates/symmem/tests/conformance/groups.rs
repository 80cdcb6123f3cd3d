//! Subgroups, names and membership.

use std::sync::Arc;

use symmem::{Error, Group, Result};

use crate::common::{assert_error, context, new_store};

/// Collective over `group`: an allocation filled with `value` on a fresh handle, read at every peer; what they wrote.
fn values_of_peers(group: &Group, value: u64) -> Result<Vec<u64>> {
    let mut x = group.alloc::<u64>(16)?;
    x.fill(value)?;
    let mem = x.rendezvous(group)?;
    mem.barrier(0)?;
    let values = (0..group.size()).map(|rank| mem.peer(rank)?.read(15)).collect();
    mem.close()?;
    values
}

pub(crate) fn a_rank_knows_the_groups_it_is_in_by_name(group: &Group) -> Result<()> {
    let context = group.context();
    assert!(context.has_group("world") && context.has_group(group.name()));
    assert!(!context.has_group("nobody's"));
    let mine = group.subgroup(&[group.rank()], "mine")?;
    assert!(context.has_group("mine"));
    drop(mine);
    assert!(!context.has_group("mine"));
    Ok(())
}

pub(crate) fn one_allocation_serves_the_world_and_its_halves(group: &Group) -> Result<()> {
    let half = |rank: usize| rank * 2 / group.size().max(2);
    let members: Vec<usize> = (0..group.size()).filter(|rank| half(*rank) == half(group.rank())).collect();
    let sub = group.subgroup(&members, "half")?;
    let mut x = group.alloc::<u32>(64)?;
    x.fill(group.rank() as u32)?;
    let (whole, part) = (x.rendezvous(group)?, x.rendezvous(&sub)?);
    assert_eq!((whole.rank(), whole.world_size()), (group.rank(), group.size()));
    assert_eq!((part.rank(), part.world_size()), (sub.rank(), members.len()));
    whole.barrier(0)?;
    assert_eq!(whole.peer(group.next())?.read(63)?, group.next() as u32);
    assert_eq!(part.peer(sub.next())?.read(63)?, members[sub.next()] as u32);
    part.close()?;
    whole.close()
}

pub(crate) fn a_rank_may_sit_out_a_rendezvous_of_others(group: &Group) -> Result<()> {
    let others: Vec<usize> = (0..group.size().max(2) - 1).collect();
    if others.contains(&group.rank()) {
        let sub = group.subgroup(&others, "without the last")?;
        assert_eq!(values_of_peers(&sub, group.rank() as u64)?.len(), others.len());
    }
    let expected: Vec<u64> = (0..group.size() as u64).collect();
    assert_eq!(values_of_peers(group, group.rank() as u64)?, expected);
    Ok(())
}

/// Rank 1 is in both: its second rendezvous must not meet what the first left.
pub(crate) fn overlapping_subgroups_pair_correctly(group: &Group) -> Result<()> {
    if group.size() < 3 {
        return Ok(());
    }
    for pair in [[0, 1], [1, 2]] {
        if pair.contains(&group.rank()) {
            let sub = group.subgroup(&pair, "pair")?;
            let expected = pair.map(|rank| rank as u64 * 10 + pair[0] as u64);
            assert_eq!(values_of_peers(&sub, group.rank() as u64 * 10 + pair[0] as u64)?, expected);
        }
    }
    group.barrier()
}

pub(crate) fn a_name_may_recur_with_other_members_on_a_new_store(group: &Group) -> Result<()> {
    if group.size() < 3 {
        return Ok(());
    }
    for members in [[0, 1], [2, 1]] {
        let (server, store) = new_store(group)?;
        if let Some(rank) = members.iter().position(|member| *member == group.rank()) {
            let recycled = Group::from_store_in(&context(), Arc::clone(&store), rank, 2, "1")?;
            let expected = members.map(|member| member as u64);
            assert_eq!(values_of_peers(&recycled, group.rank() as u64)?, expected);
        }
        group.barrier()?;
        drop(server);
    }
    Ok(())
}

pub(crate) fn a_name_may_recur_with_the_same_members(group: &Group) -> Result<()> {
    let all: Vec<usize> = (0..group.size()).collect();
    let mut ids = Vec::new();
    for round in 0..3 {
        let again = group.subgroup(&all, "again")?;
        assert_eq!(again.all_gather(&round)?, vec![round; group.size()]);
        ids.push(again.id().to_owned());
    }
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
    let (_server, store) = new_store(group)?;
    for round in 0..3 {
        let again =
            Group::from_store_in(&context(), Arc::clone(&store), group.rank(), group.size(), "again")?;
        assert_eq!(again.all_gather(&round)?, vec![round; group.size()]);
    }
    group.barrier()
}

pub(crate) fn members_have_the_order_of_the_list(group: &Group) -> Result<()> {
    let backwards: Vec<usize> = (0..group.size()).rev().collect();
    let sub = group.subgroup(&backwards, "backwards")?;
    assert_eq!(sub.rank(), group.size() - 1 - group.rank());
    assert_eq!(sub.all_gather(&group.rank())?, backwards);
    let pids: Vec<u32> = group.pids().into_iter().rev().collect();
    assert_eq!(sub.pids(), pids);
    Ok(())
}

pub(crate) fn bad_member_lists_are_refused(group: &Group) -> Result<()> {
    let me = group.rank();
    assert_error!(group.subgroup(&[me, me], "twice"), Error::Invalid { .. });
    assert_error!(group.subgroup(&[], "nobody"), Error::Invalid { .. });
    assert_error!(group.subgroup(&[me, group.size()], "stranger"), Error::RankOutOfRange { .. });
    if group.size() > 1 {
        assert_error!(group.subgroup(&[group.next()], "others"), Error::Invalid { problem, .. } if problem.contains("only members"));
    }
    group.barrier()
}

pub(crate) fn all_ranks_of_one_machine_are_local(group: &Group) -> Result<()> {
    let local = group.local()?;
    assert_eq!((local.rank(), local.size()), (group.rank(), group.size()));
    local.barrier()
}
