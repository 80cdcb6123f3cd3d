//! Memory whose element type is known only at run time: bytes that rendezvous as something else, casts and
//! parts.

mod common;

use common::{PATIENCE, assert_error};
use symmem::{Error, ReduceOp, Result, bf16};

#[test]
fn bytes_rendezvous_as_elements_from_different_offsets() -> Result<()> {
    symmem::spawn(3, |group| {
        let group = group.within(PATIENCE);
        let bytes = group.alloc::<u8>(100)?;
        let mut mem = bytes.rendezvous_as::<f32>(&group, group.rank() * 8, 5)?;
        assert_eq!((mem.offset(), mem.len(), mem.buffer_size()), (group.rank() * 2, 5, 100));
        mem.fill(group.rank() as f32)?;
        mem.all_reduce(ReduceOp::Sum)?;
        assert_eq!(*mem.local()?, [3.0; 5]);
        // Of another part, or as another type.
        let halves = bytes.rendezvous_as::<bf16>(&group, 98, 1)?;
        assert_eq!((halves.offset(), halves.len()), (49, 1));
        mem.close()
    })
    .map(drop)
}

/// A cast is of everybody's bytes, from everybody's offset on.
#[test]
fn casts_of_handles_whose_offsets_differ_need_all_of_them_to_fit() -> Result<()> {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let bytes = group.alloc::<u8>(64)?;
        let mem = bytes.rendezvous_as::<u16>(&group, 2 * group.rank(), 20)?;
        assert_error!(mem.cast::<u32>(), Error::Invalid { .. });
        assert_eq!(mem.slice(1..9)?.cast::<u8>()?.offset_of(1)?, 4);
        let mem = bytes.rendezvous_as::<u16>(&group, 4 * group.rank(), 20)?;
        let words = mem.slice(2..10)?.cast::<u32>()?;
        assert_eq!((words.offset(), words.offset_of(0)?, words.offset_of(1)?), (1 + group.rank(), 1, 2));
        assert_error!(words.offset_of(2), Error::RankOutOfRange { .. });
        mem.close()
    })
    .map(drop)
}

#[test]
fn ranks_compare_the_type_they_rendezvous_as() -> Result<()> {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let bytes = group.alloc::<u8>(64)?;
        let said = match group.rank() {
            0 => bytes.rendezvous_as::<f32>(&group, 0, 4).map(drop),
            _ => bytes.rendezvous_as::<i32>(&group, 0, 4).map(drop),
        };
        assert_error!(said, Error::Mismatch { values, .. } if values[0].contains("f32") && values[1].contains("i32"));
        bytes.rendezvous_as::<f32>(&group, 0, 4)?.close()
    })
    .map(drop)
}

#[test]
fn a_rank_that_asks_for_too_much_takes_all_with_it() -> Result<()> {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let bytes = group.alloc::<u8>(64)?;
        for (start, len) in [(2, 4), (0, 17), (64, 1), (8, usize::MAX / 4)] {
            let start = if group.rank() == 1 { start } else { 0 };
            let len = if group.rank() == 1 { len } else { 4 };
            assert_error!(bytes.rendezvous_as::<f32>(&group, start, len), Error::Rank { rank: 1, .. });
        }
        bytes.rendezvous_as::<f32>(&group, 64, 0)?.close()
    })
    .map(drop)
}

#[test]
fn parts_and_casts_stay_inside_the_handle() -> Result<()> {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mut x = group.alloc::<u8>(64)?;
        x.local_mut()?.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        let mem = x.rendezvous(&group)?;
        let words = mem.slice(16..48)?.cast::<u32>()?;
        assert_eq!((words.offset(), words.len()), (4, 8));
        assert_eq!(words.local()?[0], u32::from_le_bytes([16, 17, 18, 19]));
        assert_eq!(words.slice(8..8)?.len(), 0);
        assert_error!(words.slice(7..9), Error::OutOfBounds { .. });
        assert_error!(words.slice(usize::MAX..), Error::OutOfBounds { .. });
        assert_error!(mem.slice(2..10)?.cast::<u32>(), Error::Invalid { .. });
        assert_error!(mem.slice(4..10)?.cast::<u32>(), Error::Invalid { .. });
        // What ranks make of the memory must agree in a collective.
        let mixed = match group.rank() {
            0 => mem.cast::<f32>()?.all_reduce(ReduceOp::Sum),
            _ => mem.cast::<i32>()?.all_reduce(ReduceOp::Sum),
        };
        assert_error!(mixed, Error::Mismatch { .. });
        mem.close()
    })
    .map(drop)
}
