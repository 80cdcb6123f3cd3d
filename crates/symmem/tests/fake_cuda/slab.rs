//! A provider with a heap of its own: the places of allocations differ by rank, nothing is sent, and a rank
//! may be out of reach.

use symmem::cuda::{Device, Engine, Provider, Settings, Stream};
use symmem::{Error, ReduceOp};

use crate::common::assert_error;
use crate::{DEVICES, fake, peek};

#[test]
fn places_differ_by_rank_and_a_rank_is_out_of_reach() {
    fake::run("slab::places_differ_by_rank_and_a_rank_is_out_of_reach", &[DEVICES], || {
        symmem::spawn(3, |group| {
            let provider = Some("slab".parse::<Provider>()?);
            let device = Device::new(group.rank())?;
            let settings = Settings { provider, unreachable: vec![1], ..Settings::default() };
            let engine = Engine::with(&group, &device, settings)?;
            assert!(!engine.is_direct());
            // Of an allocation before it, so that places differ by more than the device's number.
            let _before = engine.alloc::<u8>(1000 * (group.rank() + 1))?;
            let memory = engine.alloc::<f32>(100)?.rendezvous(&engine)?;
            let stream = Stream::new(&device)?;
            memory.write(&[group.rank() as f32; 100], &stream)?;
            group.barrier()?;
            for peer in 0..3 {
                let is_near = peer == group.rank() || (peer != 1 && group.rank() != 1);
                match memory.peer_ptr(peer) {
                    Ok(address) if is_near => assert_eq!(peek::<f32>(address, 99), peer as f32),
                    refused => assert_error!(refused, Error::NoPeerAccess { .. } if !is_near),
                }
            }
            // Nobody carries it: that is told, and the group is whole.
            let refused =
                memory.all_reduce(ReduceOp::Sum, &stream).expect_err("nobody carries it").to_string();
            assert!(refused.contains("SYMMEM_PROVIDER=nccl"), "{refused}");
            group.barrier()
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}
