//! Handles and views: what everybody sees of everybody.

use symmem::{Error, Group, Result, SymmetricMemory};

use crate::common::assert_error;

/// Collective. Symmetric memory of `len` elements, `rank * 1000 + index` each.
fn numbered(group: &Group, len: usize) -> Result<SymmetricMemory<u32>> {
    let mut x = group.alloc::<u32>(len)?;
    for (index, value) in x.local_mut()?.iter_mut().enumerate() {
        *value = number(group.rank(), index);
    }
    let mem = x.rendezvous(group)?;
    mem.barrier(0)?;
    Ok(mem)
}

fn number(rank: usize, index: usize) -> u32 {
    rank as u32 * 1000 + index as u32
}

pub(crate) fn a_handle_knows_its_rank_sizes_and_offset(group: &Group) -> Result<()> {
    let x = group.alloc::<u32>(100)?;
    let mem = x.rendezvous_at(group, 30)?;
    assert_eq!((mem.rank(), mem.world_size()), (group.rank(), group.size()));
    assert_eq!((mem.offset(), mem.len(), mem.buffer_size()), (30, 70, 400));
    assert_eq!(mem.signal_pad_size(), x.signal_pad_size());
    assert_eq!(mem.group().id(), group.id());
    // Buffers start at the allocation, whatever the offset.
    assert_eq!(mem.base_ptrs()[group.rank()].cast_const().cast(), x.as_ptr());
    assert_eq!((mem.base_ptrs().len(), mem.pad_ptrs().len()), (group.size(), group.size()));
    mem.close()
}

pub(crate) fn get_reads_into_parts_of_the_destination(group: &Group) -> Result<()> {
    let mem = numbered(group, 100)?;
    for rank in 0..group.size() {
        let whole: Vec<u32> = (0..100).map(|index| number(rank, index)).collect();
        let mut out = [0; 100];
        mem.get(rank, 0, &mut out)?;
        assert_eq!(out[..], whole);
        // The rest of the destination stays as it was.
        let mut out = [7; 30];
        mem.get(rank, 90, &mut out[5..15])?;
        assert_eq!((&out[..5], &out[5..15], &out[15..]), (&[7; 5][..], &whole[90..], &[7; 15][..]));
    }
    mem.close()
}

pub(crate) fn a_refused_get_changes_nothing(group: &Group) -> Result<()> {
    let mem = numbered(group, 10)?;
    let mut out = [9; 4];
    for start in [7, 10, 11, usize::MAX - 1, usize::MAX] {
        for rank in 0..group.size() {
            assert_error!(mem.get(rank, start, &mut out), Error::OutOfBounds { .. });
        }
    }
    assert_error!(mem.get(group.size(), 0, &mut out), Error::RankOutOfRange { .. });
    assert_error!(mem.peer(usize::MAX), Error::RankOutOfRange { .. });
    assert_eq!(out, [9; 4]);
    mem.close()
}

pub(crate) fn pad_views_have_any_shape_and_element(group: &Group) -> Result<()> {
    let mem = group.alloc::<u8>(8)?.rendezvous(group)?;
    let (me, bytes) = (group.rank(), mem.signal_pad_size());
    assert_eq!(mem.signal_pad(me)?.as_ptr().cast(), mem.pad_ptrs()[me]);
    assert_eq!(mem.signal_pad(me)?.len(), bytes / 4);
    let square = mem.signal_pad_view::<u32>(me, &[8, 8], 0)?;
    assert_eq!((square.shape(), square.len()), (&[8, 8][..], 64));
    assert_eq!(mem.signal_pad_view::<u64>(me, &[bytes / 8], 0)?.len(), bytes / 8);
    assert_eq!(mem.signal_pad_view::<u64>(me, &[2, 2], 3)?.len(), 4);
    assert_error!(mem.signal_pad_view::<u64>(me, &[bytes / 8], 1), Error::OutOfBounds { .. });
    assert_error!(mem.signal_pad_view::<u8>(me, &[usize::MAX, 2], 0), Error::OutOfBounds { .. });
    assert_error!(mem.signal_pad_view::<u64>(me, &[1], usize::MAX), Error::OutOfBounds { .. });
    mem.close()
}

pub(crate) fn filling_the_data_leaves_the_pads_alone(group: &Group) -> Result<()> {
    let mut mem = group.alloc::<u8>(5000)?.rendezvous(group)?;
    let pad = mem.signal_pad(group.rank())?;
    (0..pad.len()).try_for_each(|at| pad.write(at, 42))?;
    mem.fill(0xff)?;
    mem.barrier(0)?;
    let theirs = mem.signal_pad(group.next())?;
    assert_eq!(theirs.to_vec()?, vec![42; theirs.len()]);
    assert_eq!(mem.peer(group.next())?.to_vec()?, vec![0xff; 5000]);
    mem.close()
}

pub(crate) fn a_signal_of_one_group_is_none_of_another(group: &Group) -> Result<()> {
    let other = group.try_clone()?;
    let x = group.alloc::<u32>(8)?;
    let (a, b) = (x.rendezvous(group)?, x.rendezvous(&other)?);
    assert_eq!(a.base_ptrs()[group.rank()], b.base_ptrs()[group.rank()]);
    assert_ne!(a.pad_ptrs()[group.rank()], b.pad_ptrs()[group.rank()]);
    a.put_signal(group.next(), 0)?;
    group.barrier()?;
    // The signal on one group is none on the other, and barriers of one do not consume it.
    assert!(!b.try_wait_signal(group.prev(), 0)?);
    b.barrier(0)?;
    a.wait_signal(group.prev(), 0)?;
    b.close()?;
    // Closing on one group leaves the other.
    a.barrier(0)?;
    a.close()
}

pub(crate) fn a_second_rendezvous_is_local_and_the_same(group: &Group) -> Result<()> {
    let x = group.alloc::<u32>(8)?;
    let first = x.rendezvous(group)?;
    // Only rank 0 does it: anything collective would not come back.
    if group.rank() == 0 {
        let second = x.rendezvous(group)?;
        assert_eq!(first.base_ptrs(), second.base_ptrs());
        assert_eq!(first.pad_ptrs(), second.pad_ptrs());
    }
    // At an offset all do.
    let third = x.rendezvous_at(group, 2)?;
    assert_eq!(first.base_ptrs(), third.base_ptrs());
    assert_eq!(first.pad_ptrs(), third.pad_ptrs());
    assert_eq!((first.len(), third.len()), (8, 6));
    first.barrier(0)?;
    first.close()
}

pub(crate) fn the_handle_outlives_allocation_and_group(group: &Group) -> Result<()> {
    let own = group.try_clone()?;
    let x = own.alloc::<u32>(64)?;
    let mut mem = x.rendezvous(&own)?;
    drop((x, own));
    let first = mem.buffer::<u8>(0, &[mem.buffer_size()], 0)?;
    assert_eq!((first.len(), first.as_ptr()), (256, mem.base_ptrs()[0].cast_const()));
    // The last rank fills its memory and signals; then all fill theirs and meet.
    let last = group.size() - 1;
    if group.rank() == last {
        mem.fill(42)?;
        mem.put_signal(0, 0)?;
    }
    if group.rank() == 0 {
        mem.wait_signal(last, 0)?;
        assert_eq!(mem.peer(last)?.to_vec()?, [42; 64]);
    }
    mem.barrier(0)?;
    mem.fill(43)?;
    mem.barrier(0)?;
    assert_eq!(mem.peer(group.next())?.to_vec()?, [43; 64]);
    mem.close()
}

pub(crate) fn views_outlive_close(group: &Group) -> Result<()> {
    let own = group.try_clone()?;
    let mem = numbered(&own, 10)?;
    let (view, pad) = (mem.peer(group.next())?, mem.signal_pad(group.next())?);
    mem.close()?;
    drop(own);
    // Everybody has closed, dropped its allocation and left; the view alone keeps the memory mapped.
    group.barrier()?;
    assert_eq!(view.read(9)?, number(group.next(), 9));
    assert_eq!(pad.read(0)?, 0);
    group.barrier()
}

/// `peer` and `remote` count from the handle's offset, `buffer` from the allocation's start, as in the
/// reference.
pub(crate) fn offsets_are_counted_from_where_the_docs_say(group: &Group) -> Result<()> {
    let x = group.alloc::<u32>(100)?;
    let mut whole = x.rendezvous(group)?;
    for (index, value) in whole.local_mut()?.iter_mut().enumerate() {
        *value = number(group.rank(), index);
    }
    let inside = x.rendezvous_at(group, 40)?;
    whole.barrier(0)?;
    let next = group.next();
    assert_eq!(inside.peer(next)?.read(0)?, number(next, 40));
    assert_eq!(inside.remote::<u32>(next, &[2, 3])?.read_at(&[1, 2])?, number(next, 45));
    assert_eq!(inside.buffer::<u32>(next, &[10], 5)?.read(0)?, number(next, 5));
    assert_eq!(inside.buffer::<u8>(next, &[4], 8)?.to_vec()?, number(next, 2).to_ne_bytes());
    assert_eq!(inside.local()?[0], number(group.rank(), 40));
    assert_eq!(inside.peer(next)?.len(), 60);
    assert_error!(inside.remote::<u32>(next, &[61]), Error::OutOfBounds { .. });
    let empty = x.rendezvous_at(group, 100)?;
    assert!(empty.is_empty() && empty.peer(next)?.is_empty());
    for beyond in [101, usize::MAX / 2, usize::MAX] {
        assert_error!(x.rendezvous_at(group, beyond), Error::Rank { message, .. } if message.contains("exceeds"));
    }
    inside.close()
}

pub(crate) fn close_ends_all_handles_and_the_memory_can_rendezvous_again(group: &Group) -> Result<()> {
    let mut x = group.alloc::<u32>(8)?;
    x.fill(1)?;
    let (first, second) = (x.rendezvous(group)?, x.rendezvous_at(group, 4)?);
    first.close()?;
    assert_error!(second.barrier(0), Error::Closed { .. });
    assert_error!(second.put_signal(0, 0), Error::Closed { .. });
    assert_error!(second.try_wait_signal(0, 0), Error::Closed { .. });
    assert_error!(second.peer(0), Error::Closed { .. });
    assert_error!(second.signal_pad(0), Error::Closed { .. });
    assert_error!(second.get(0, 0, &mut [0]), Error::Closed { .. });
    assert_error!(second.close(), Error::Closed { .. });
    // The memory itself is as it was.
    assert_eq!(*x.local()?, [1; 8]);
    x.fill(group.rank() as u32)?;
    let again = x.rendezvous(group)?;
    again.barrier(0)?;
    assert_eq!(again.peer(group.next())?.read(7)?, group.next() as u32);
    again.close()
}

pub(crate) fn written_peers_see_what_was_written(group: &Group) -> Result<()> {
    let mem = group.alloc::<u32>(8)?.rendezvous(group)?;
    mem.barrier(0)?;
    let (next, me) = (mem.peer(group.next())?, group.rank() as u32);
    // SAFETY: nobody holds a guard before the barrier below.
    unsafe { next.write_from(2, &[me, me + 1]).and(next.write(7, me + 2))? };
    // SAFETY: as above; refused, so nothing is written.
    assert_error!(unsafe { next.write_from(7, &[1, 1]) }, Error::OutOfBounds { .. });
    mem.barrier(0)?;
    let from = group.prev() as u32;
    assert_eq!(*mem.local()?, [0, 0, from, from + 1, 0, 0, 0, from + 2]);
    // SAFETY: nobody writes after the barrier above.
    assert_eq!(unsafe { next.as_slice()?[7] }, me + 2);
    mem.close()
}
