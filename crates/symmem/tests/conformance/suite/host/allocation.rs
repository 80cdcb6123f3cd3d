//! Allocations and signal pad sizes: local, before any rendezvous.

use symmem::{DEFAULT_SIGNAL_PAD_SIZE, Error, Group, Result};

use crate::common::assert_error;

pub(crate) fn only_live_allocations_are_symmetric(group: &Group) -> Result<()> {
    let context = group.context();
    assert!(!context.is_symmetric(&0u32));
    assert!(!context.is_symmetric(vec![0u8; 1 << 20].as_ptr()));
    let x = group.alloc::<u32>(1000)?;
    assert!(context.is_symmetric(x.as_ptr()));
    assert!(context.is_symmetric(x.as_ptr().wrapping_add(999)));
    assert!(!context.is_symmetric(x.as_ptr().wrapping_add(1000)));
    assert!(!context.is_symmetric(x.as_ptr().wrapping_sub(1)));
    let gone = x.as_ptr();
    drop(x);
    assert!(!context.is_symmetric(gone));
    Ok(())
}

pub(crate) fn an_empty_allocation_works_like_any_other(group: &Group) -> Result<()> {
    let x = group.alloc::<f64>(0)?;
    assert!(x.is_empty() && x.local()?.is_empty());
    let mem = x.rendezvous(group)?;
    assert!(mem.is_empty() && mem.buffer_size() == 0);
    let peer = mem.peer(group.next())?;
    assert!(peer.to_vec()?.is_empty());
    assert_error!(peer.read(0), Error::OutOfBounds { .. });
    mem.get(group.next(), 0, &mut [])?;
    mem.put_signal(group.next(), 0)?;
    mem.wait_signal(group.prev(), 0)?;
    assert!(mem.salvage().is_empty());
    mem.close()
}

pub(crate) fn the_pad_size_is_positive_and_the_same_wherever_asked(group: &Group) -> Result<()> {
    let context = group.context();
    assert_eq!(context.signal_pad_size(), DEFAULT_SIGNAL_PAD_SIZE);
    let row = context.config().rows().into_iter().find(|row| row.variable == "SYMMEM_SIGNAL_PAD_SIZE");
    assert_eq!(row.map(|row| row.value), Some(context.signal_pad_size().to_string()));
    assert_eq!(group.alloc::<u8>(1)?.signal_pad_size(), context.signal_pad_size());
    Ok(())
}

pub(crate) fn a_new_pad_size_is_visible_and_can_be_restored(group: &Group) -> Result<()> {
    let context = group.context();
    let before = context.signal_pad_size();
    context.set_signal_pad_size(1 << 20)?;
    assert_eq!(context.signal_pad_size(), 1 << 20);
    assert_eq!(context.clone().signal_pad_size(), 1 << 20);
    context.set_signal_pad_size(before)?;
    assert_eq!(context.signal_pad_size(), before);
    Ok(())
}

pub(crate) fn pads_have_the_size_that_was_set_before_the_allocation(group: &Group) -> Result<()> {
    let context = group.context();
    let before = context.signal_pad_size();
    context.set_signal_pad_size(2 * before)?;
    let x = group.alloc::<u8>(64)?;
    // Too late for `x`.
    context.set_signal_pad_size(before)?;
    let mem = x.rendezvous(group)?;
    assert_eq!(mem.signal_pad_size(), 2 * before);
    let pad = mem.signal_pad(group.rank())?;
    assert_eq!(pad.len(), 2 * before / 4);
    pad.write(pad.len() - 1, 42)?;
    assert_eq!(pad.read(pad.len() - 1)?, 42);
    mem.close()
}

pub(crate) fn a_pad_size_of_no_whole_words_is_refused(group: &Group) -> Result<()> {
    let before = group.context().signal_pad_size();
    for bad in [0, 4, 12, 1 << 31, usize::MAX] {
        assert_error!(group.context().set_signal_pad_size(bad), Error::Invalid { .. });
    }
    assert_eq!(group.context().signal_pad_size(), before);
    Ok(())
}

pub(crate) fn a_persistent_id_gives_the_same_memory_and_the_cached_rendezvous(group: &Group) -> Result<()> {
    let id = format!("same/{}", group.id());
    let context = group.context();
    let mut x = context.alloc_persistent::<u32>(&id, 100)?;
    x.fill(group.rank() as u32)?;
    let address = x.as_ptr();
    let first = x.rendezvous(group)?;
    drop(x);
    let x = context.alloc_persistent::<u32>(&id, 100)?;
    assert_eq!(x.as_ptr(), address);
    let second = x.rendezvous(group)?;
    assert_eq!(first.base_ptrs(), second.base_ptrs());
    second.barrier(0)?;
    assert_eq!(second.peer(group.next())?.read(99)?, group.next() as u32);
    context.release_persistent(&id);
    second.close()
}

pub(crate) fn a_persistent_id_in_use_or_of_another_size_is_refused(group: &Group) -> Result<()> {
    let id = format!("refused/{}", group.id());
    let context = group.context();
    let x = context.alloc_persistent::<u32>(&id, 8)?;
    assert_error!(context.alloc_persistent::<u32>(&id, 8), Error::Persistent { problem, .. } if problem.contains("still active"));
    drop(x);
    assert_error!(context.alloc_persistent::<u32>(&id, 9), Error::Persistent { problem, .. }
        if problem.contains("36") && problem.contains("32"));
    // What counts is bytes, and other ids are other memory.
    let bytes = context.alloc_persistent::<u8>(&id, 32)?;
    let other = context.alloc_persistent::<u8>(&format!("{id}/other"), 32)?;
    assert_ne!(bytes.as_ptr(), other.as_ptr());
    Ok(())
}

pub(crate) fn a_released_persistent_id_is_new_memory(group: &Group) -> Result<()> {
    let id = format!("released/{}", group.id());
    let context = group.context();
    let mut old = context.alloc_persistent::<u32>(&id, 4)?;
    old.fill(1)?;
    assert!(context.release_persistent(&id));
    assert!(!context.release_persistent(&id));
    let new = context.alloc_persistent::<u32>(&id, 400)?;
    assert_eq!(new.local()?[0], 0);
    assert_eq!(old.local()?[0], 1);
    drop((old, new));
    assert!(context.release_persistent(&id));
    Ok(())
}
