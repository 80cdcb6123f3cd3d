//! Memory beyond what 31 and 32 bits can count.

use symmem::{Group, RankContext, Result};

use crate::common::config;

const GIB: usize = 1 << 30;

pub(crate) fn two_gibibytes_have_that_many_bytes(group: &Group) -> Result<()> {
    let x = group.alloc::<u8>(2 * GIB)?;
    assert_eq!(x.len(), 2 * GIB);
    assert_eq!(x.local()?.len(), 2 * GIB);
    assert_eq!(x.local()?[2 * GIB - 1], 0);
    Ok(())
}

/// Offsets and lengths are not cut to 32 bits anywhere between the handle and the copy.
pub(crate) fn bytes_beyond_4_gib_are_reached(group: &Group) -> Result<()> {
    let lazy = RankContext::new(config().populate(false));
    let group = Group::from_store_in(&lazy, group.store().clone(), group.rank(), group.size(), "lazy")?;
    let bytes = 5 * GIB + 64;
    let mut x = group.alloc::<u64>(bytes / 8)?;
    let (far, near) = (5 * GIB / 8, GIB / 8);
    x.local_mut()?[far] = 7;
    let mem = x.rendezvous_at(&group, near)?;
    mem.barrier(0)?;
    assert_eq!(mem.buffer_size(), bytes);
    assert_eq!(mem.peer(0)?.read(far - near)?, 7);
    assert_eq!(mem.buffer::<u8>(0, &[1], 5 * GIB)?.read(0)?, 7);
    // 5 GiB modulo 4 GiB.
    assert_eq!(mem.buffer::<u8>(0, &[1], GIB)?.read(0)?, 0);
    let mut out = [0];
    mem.get(0, far - near, &mut out)?;
    assert_eq!(out, [7]);
    mem.close()
}
