//! One thread that drives every rank.

use symmem::{Group, ReduceOp};

use crate::stage::{PATIENCE, alone, device};

#[test]
fn one_thread_drives_all_ranks() {
    let Some(device) = device() else { return };
    let _alone = alone();
    // SAFETY: read under a lock of the standard library only; tests of this binary take turns on the device.
    unsafe { std::env::set_var("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1") };
    let devices = vec![device; 3];
    let ranks = Group::all_local(&devices).unwrap();
    let streams = ranks.streams().unwrap();
    let memories = ranks.alloc::<f32>(10_000).unwrap();
    for (rank, (memory, stream)) in memories.iter().zip(&streams).enumerate() {
        memory.write(&vec![rank as f32 + 1.0; 10_000], stream).unwrap();
    }
    for _ in 0..3 {
        for (memory, stream) in memories.iter().zip(&streams) {
            memory.all_reduce(ReduceOp::Sum, stream).unwrap();
        }
    }
    ranks.sync(&streams, PATIENCE).unwrap();
    for (memory, stream) in memories.iter().zip(&streams) {
        assert_eq!(memory.read(stream).unwrap(), vec![54.0; 10_000]);
    }
    let short = [devices[0].alloc::<f32>(8).unwrap()];
    assert!(ranks.rendezvous(&short).unwrap_err().to_string().contains("3 ranks"));
}
