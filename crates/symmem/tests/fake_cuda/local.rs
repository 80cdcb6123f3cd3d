//! All ranks in the hands of one thread.

use std::time::Duration;

use symmem::cuda::Device;
use symmem::{Error, Group, ReduceOp};

use crate::{DEVICES, fake};

#[test]
fn one_thread_sets_up_and_drives_all_ranks() {
    fake::run("local::one_thread_sets_up_and_drives_all_ranks", &[DEVICES], || {
        let devices: Vec<Device> = (0..3).map(|ordinal| Device::new(ordinal).unwrap()).collect();
        let ranks = Group::all_local(&devices).unwrap();
        let streams = ranks.streams().unwrap();
        let memories = ranks.alloc::<f32>(100).unwrap();
        for (rank, (memory, stream)) in memories.iter().zip(&streams).enumerate() {
            assert_eq!((memory.rank(), memory.world_size()), (rank, 3));
            memory.all_reduce(ReduceOp::Sum, stream).unwrap();
        }
        ranks.sync(&streams, Duration::from_secs(5)).unwrap();
        let error = ranks.rendezvous(&[devices[0].alloc::<f32>(8).unwrap()]).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        // What ranks disagree on is one error, and the ranks stay usable.
        let lens = [8, 8, 9].into_iter().zip(&devices);
        let uneven: Vec<_> = lens.map(|(len, device)| device.alloc::<f32>(len).unwrap()).collect();
        let error = ranks.rendezvous(&uneven).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(ranks.alloc::<u8>(1).unwrap().len(), 3);
        // Closing waits for all ranks, so it is done for all at once.
        let last = memories[2].clone();
        assert!(ranks.close(memories[..2].to_vec()).is_err(), "one is missing");
        ranks.close(memories).unwrap();
        assert!(matches!(last.barrier(0, &streams[2]), Err(Error::Closed { .. })));
    });
}
