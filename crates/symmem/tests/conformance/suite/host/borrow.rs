//! The borrow rules: they belong to the allocation, so they hold across all its handles.

use symmem::{Error, Group, Result};

use crate::common::assert_error;

pub(crate) fn readers_share_and_keep_writers_out(group: &Group) -> Result<()> {
    let mut x = group.alloc::<u32>(8)?;
    let mut mem = x.rendezvous(group)?;
    let reader = mem.local()?;
    assert_eq!(*reader, *x.local()?);
    assert_error!(x.local_mut(), Error::Borrowed { borrowed_by: "local", .. });
    assert_error!(x.fill(1), Error::Borrowed { .. });
    assert_eq!(mem.peer(group.rank())?.read(0)?, 0);
    drop(reader);
    mem.fill(2)?;
    assert_eq!(x.local()?[7], 2);
    mem.close()
}

pub(crate) fn a_writer_keeps_everybody_of_its_rank_out(group: &Group) -> Result<()> {
    let mut x = group.alloc::<u32>(8)?;
    let mut mem = x.rendezvous(group)?;
    let own = mem.peer(group.rank())?;
    let mut writer = x.local_mut()?;
    writer[3] = 9;
    assert_error!(mem.local(), Error::Borrowed { .. });
    assert_error!(mem.local_mut(), Error::Borrowed { .. });
    assert_error!(own.read(3), Error::Borrowed { .. });
    assert_error!(mem.get(group.rank(), 3, &mut [0]), Error::Borrowed { .. });
    // Salvage copies opaquely and asks nobody.
    assert_eq!(mem.salvage()[3], 9);
    drop(writer);
    assert_eq!(own.read(3)?, 9);
    mem.close()
}

pub(crate) fn borrows_hold_through_every_handle_of_the_allocation(group: &Group) -> Result<()> {
    let x = group.alloc::<u32>(8)?;
    let other = group.try_clone()?;
    let mut inside = x.rendezvous_at(group, 4)?;
    let mut elsewhere = x.rendezvous(&other)?;
    let reader = inside.local()?;
    assert_error!(elsewhere.local_mut(), Error::Borrowed { .. });
    drop(reader);
    let writer = elsewhere.local_mut()?;
    assert_error!(inside.local(), Error::Borrowed { .. });
    assert_error!(inside.local_mut(), Error::Borrowed { .. });
    drop(writer);
    inside.local_mut()?.fill(3);
    assert_eq!(*x.local()?, [0, 0, 0, 0, 3, 3, 3, 3]);
    inside.close()?;
    elsewhere.close()
}

/// A peer's copy is opaque; it may see old and new elements, and asks nobody.
pub(crate) fn peers_read_through_a_borrow(group: &Group) -> Result<()> {
    let mut x = group.alloc::<u32>(8)?;
    x.fill(group.rank() as u32 + 1)?;
    let mem = x.rendezvous(group)?;
    let guard = x.local()?;
    mem.barrier(0)?;
    assert_eq!(mem.peer(group.next())?.to_vec()?, [group.next() as u32 + 1; 8]);
    mem.barrier(0)?;
    drop(guard);
    mem.close()
}
