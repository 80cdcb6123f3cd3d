//! Subgroups, names and membership.

use std::sync::Arc;

use symmem::{Error, Group, Result};

use crate::common::{assert_error, context, new_store};

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
