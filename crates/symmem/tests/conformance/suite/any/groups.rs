//! Subgroups, several groups at once, names and membership.

use std::sync::Arc;

use symmem::{Group, Result};

use crate::common::{context, new_store};
use crate::suite::any::rendezvous::check;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::value::assert_elements;

/// Collective over `seat`. What everybody in reach has in new memory, of which this rank has `value`, is
/// `expected`.
fn check_members<S: Seat>(seat: &S, value: usize, expected: &[usize]) -> Result<()> {
    let mut memory = seat.memory::<u32>(16)?;
    memory.write(&[value as u32; 16])?;
    seat.meet()?;
    assert_eq!(seat.world(), expected.len());
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        assert_elements("a member", &memory.get(peer, 0, 16)?, |_| expected[peer]);
    }
    if seat.works() {
        assert_elements("all members", &memory.all_gather()?, |at| expected[at / 16]);
    }
    seat.meet()
}

/// Collective over `members`.
fn subgroup<S: Seat>(seat: &S, members: &[usize], name: &str) -> Result<S> {
    seat.among(seat.group().subgroup(members, name)?, members)
}

pub(crate) fn one_allocation_serves_the_world_and_its_halves<S: Seat>(seat: &S) -> Result<()> {
    let (me, world) = (seat.rank(), seat.world());
    let half = |rank: usize| rank * 2 / world.max(2);
    let members: Vec<usize> = (0..world).filter(|rank| half(*rank) == half(me)).collect();
    let part = subgroup(seat, &members, "half")?;
    let mut x = seat.alloc::<u32>(64)?;
    x.write(&[me as u32; 64])?;
    let (whole, own) = (x.rendezvous(seat)?, x.rendezvous(&part)?);
    assert_eq!((whole.rank(), whole.world_size()), (me, world));
    assert_eq!((own.rank(), own.world_size()), (part.rank(), members.len()));
    assert_eq!(whole.peer_ptr(me)?, own.peer_ptr(part.rank())?);
    assert_ne!(whole.pad_ptr(me)?, own.pad_ptr(part.rank())?);
    seat.meet()?;
    for peer in (0..world).filter(|peer| seat.reaches(*peer)) {
        assert_elements("the world", &whole.get(peer, 0, 64)?, |_| peer);
    }
    for peer in (0..members.len()).filter(|peer| part.reaches(*peer)) {
        assert_elements("the half", &own.get(peer, 0, 64)?, |_| members[peer]);
    }
    seat.meet()
}

pub(crate) fn a_rank_may_sit_out_a_rendezvous_of_others<S: Seat>(seat: &S) -> Result<()> {
    let others: Vec<usize> = (0..seat.world() - 1).collect();
    if others.contains(&seat.rank()) {
        check_members(&subgroup(seat, &others, "without the last")?, seat.rank(), &others)?;
    }
    let all: Vec<usize> = (0..seat.world()).collect();
    check_members(seat, seat.rank(), &all)
}

/// Rank 1 is in both: its second rendezvous must not meet what the first left.
pub(crate) fn overlapping_subgroups_pair_correctly<S: Seat>(seat: &S) -> Result<()> {
    for pair in [[0, 1], [1, 2]] {
        if pair.contains(&seat.rank()) {
            let part = subgroup(seat, &pair, "pair")?;
            check_members(&part, 10 * seat.rank() + pair[0], &pair.map(|member| 10 * member + pair[0]))?;
        }
    }
    seat.meet()
}

pub(crate) fn members_have_the_order_of_the_list<S: Seat>(seat: &S) -> Result<()> {
    let backwards: Vec<usize> = (0..seat.world()).rev().collect();
    let part = subgroup(seat, &backwards, "backwards")?;
    assert_eq!(part.rank(), seat.world() - 1 - seat.rank());
    check_members(&part, seat.rank(), &backwards)?;
    drop(part);
    seat.meet()
}

pub(crate) fn a_name_may_recur_with_other_members_on_a_new_store<S: Seat>(seat: &S) -> Result<()> {
    for members in [[0, 1], [2, 1]] {
        let (server, store) = new_store(seat.group())?;
        if let Some(place) = members.iter().position(|member| *member == seat.rank()) {
            let group = Group::from_store_in(&context(), Arc::clone(&store), place, 2, "1")?;
            check_members(&seat.among(group, &members)?, seat.rank(), &members)?;
        }
        seat.meet()?;
        drop(server);
    }
    Ok(())
}

pub(crate) fn groups_on_one_allocation_do_not_collide<S: Seat>(seat: &S) -> Result<()> {
    let other = seat.again()?;
    let x = seat.alloc::<u32>(100)?;
    let (mut a, mut b) = (x.rendezvous(seat)?, x.rendezvous(&other)?);
    assert_eq!(a.peer_ptr(seat.rank())?, b.peer_ptr(seat.rank())?);
    assert_ne!(a.pad_ptr(seat.rank())?, b.pad_ptr(seat.rank())?);
    // Memory of each alone, made in turns.
    let (mut c, mut d) = (seat.memory::<u32>(10)?, other.memory::<u32>(10)?);
    check(seat, &mut a)?;
    check(&other, &mut b)?;
    check(seat, &mut c)?;
    check(&other, &mut d)?;
    // One of them goes, and the other goes on.
    drop((b, d));
    other.meet()?;
    drop(other);
    check(seat, &mut a)
}

pub(crate) fn a_group_that_is_gone_leaves_room_for_the_next<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<f32>(100)?;
    for _ in 0..3 {
        let next = seat.again()?;
        check(&next, &mut x.rendezvous(&next)?)?;
        drop(next);
        seat.meet()?;
    }
    // The memory, too, goes on.
    check(seat, &mut x.rendezvous(seat)?)
}
