//! Communicators: how they are made, split, and ended; what happens when a call fails.

use std::time::{Duration, Instant};

use symmem::cuda::{Buffer, Device, Stream};
use symmem::nccl::{Communicator, GroupCall, UniqueId};
use symmem::{Error, Group, ReduceOp, Result};

use crate::common::{AT_ONCE, assert_error, config, same_ranks_with};
use crate::{DEVICES, communicator, fake};

const PATIENCE: Duration = Duration::from_secs(20);

/// The sum of everybody's rank + 1, by a collective.
fn try_out(communicator: &Communicator) -> Result<f32> {
    let stream = Stream::new(communicator.device())?;
    let mine = [communicator.rank() as f32 + 1.0; 5];
    let mut data = Buffer::from_slice(communicator.device(), &mine, &stream)?;
    communicator.all_reduce_in_place(&mut data, ReduceOp::Sum, &stream)?;
    Ok(data.read(&stream)?[4])
}

#[test]
fn ranks_of_a_group_become_a_communicator_and_end_it() {
    const NAME: &str = "communicator::ranks_of_a_group_become_a_communicator_and_end_it";
    fake::run(NAME, &[DEVICES], || {
        symmem::spawn(3, |group| {
            let communicator = communicator(&group)?;
            assert_eq!((communicator.rank(), communicator.size()), (group.rank(), 3));
            assert!(communicator.poll()?);
            assert_eq!(try_out(&communicator)?, 6.0);
            communicator.finish(PATIENCE)?;
            assert!(communicator.raw().is_null());
            assert_error!(communicator.poll(), Error::Closed { .. });
            assert_error!(try_out(&communicator), Error::Closed { .. });
            // Nothing is left to end.
            communicator.abort();
            Ok(())
        })
        .unwrap();
        let log = fake::log();
        assert!(fake::place(&log, "ncclCommFinalize") < fake::place(&log, "ncclCommDestroy"));
        assert!(!log.iter().any(|call| call == "ncclCommAbort"), "{log:?}");
        assert_eq!((fake::live(), fake::violations()), ([0; 3], 0));
    });
}

#[test]
fn a_dropped_communicator_is_aborted_at_once() {
    fake::run("communicator::a_dropped_communicator_is_aborted_at_once", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let communicator = communicator(&group)?;
            let clone = communicator.clone();
            drop(communicator);
            assert!(clone.poll()?);
            group.barrier()?;
            // Only one rank drops it; it does not wait for the other.
            let start = Instant::now();
            if group.rank() == 0 {
                drop(clone);
                assert!(start.elapsed() < AT_ONCE);
            }
            group.barrier()
        })
        .unwrap();
        let log = fake::log();
        assert_eq!(log.iter().filter(|call| *call == "ncclCommAbort").count(), 2);
        assert_eq!((fake::live(), fake::violations()), ([0; 3], 0));
    });
}

#[test]
fn communicators_are_split_and_shrunk() {
    fake::run("communicator::communicators_are_split_and_shrunk", &[DEVICES], || {
        symmem::spawn(4, |group| {
            let all = communicator(&group)?;
            let rank = group.rank();
            // Rank 3 has no part in it; the others in the opposite order.
            let colour = (rank < 3).then_some(0);
            let some = all.split(colour, 10 - rank)?;
            assert_eq!(some.is_some(), rank < 3);
            if let Some(some) = &some {
                assert_eq!((some.rank(), some.size()), (2 - rank, 3));
                assert_eq!(try_out(some)?, 6.0);
            }
            group.barrier()?;
            if rank != 1 {
                let rest = all.shrink(&[1], true)?;
                assert_eq!((rest.rank(), rest.size()), (rank.saturating_sub(1), 3));
                assert_eq!(try_out(&rest)?, 6.0);
            }
            group.barrier()
        })
        .unwrap();
        assert_eq!((fake::live(), fake::violations()), ([0; 3], 0));
    });
}

#[test]
fn one_thread_can_be_all_ranks() {
    fake::run("communicator::one_thread_can_be_all_ranks", &[DEVICES], || {
        let devices: Vec<Device> = (0..3).map(|ordinal| Device::new(ordinal).unwrap()).collect();
        let all = Communicator::for_devices(&devices).unwrap();
        assert_eq!(all.iter().map(Communicator::rank).collect::<Vec<_>>(), [0, 1, 2]);
        let streams: Vec<Stream> = devices.iter().map(|device| Stream::new(device).unwrap()).collect();
        let buffer =
            |rank: usize| Buffer::from_slice(&devices[rank], &[rank as i32], &streams[rank]).unwrap();
        let mut buffers: Vec<Buffer<i32>> = (0..3).map(buffer).collect();
        let group = GroupCall::start().unwrap();
        for (rank, data) in buffers.iter_mut().enumerate() {
            // A group within it changes nothing.
            let inner = GroupCall::start().unwrap();
            all[rank].all_reduce_in_place(data, ReduceOp::Max, &streams[rank]).unwrap();
            inner.end().unwrap();
        }
        assert_eq!(buffers[0].read(&streams[0]).unwrap(), [0], "nothing is done before the end");
        group.end().unwrap();
        for (data, stream) in buffers.iter().zip(&streams) {
            assert_eq!(data.read(stream).unwrap(), [2]);
        }
        let twice = Communicator::for_devices(&[devices[0].clone(), devices[0].clone()]);
        assert_error!(twice, Error::Invalid { .. });
        assert_error!(Communicator::for_devices(&[]), Error::Invalid { .. });
        drop(all);
        assert_eq!((fake::live(), fake::violations()), ([0; 3], 0));
    });
}

#[test]
fn a_group_that_is_dropped_is_ended() {
    fake::run("communicator::a_group_that_is_dropped_is_ended", &[DEVICES], || {
        let device = Device::new(0).unwrap();
        let alone = Communicator::with_id(&UniqueId::new().unwrap(), 0, 1, &device).unwrap();
        let stream = Stream::new(&device).unwrap();
        let mut data = Buffer::from_slice(&device, &[3i64], &stream).unwrap();
        {
            let _group = GroupCall::start().unwrap();
            alone.all_reduce_in_place(&mut data, ReduceOp::Sum, &stream).unwrap();
        }
        let log = fake::log();
        assert_eq!(log.iter().filter(|call| *call == "ncclGroupEnd").count(), 1);
        // The turn was given back: another thread can use it.
        std::thread::scope(|scope| scope.spawn(|| assert!(try_out(&alone).is_ok())).join().unwrap());
    });
}

#[test]
fn an_adopted_communicator_is_left_to_its_owner() {
    fake::run("communicator::an_adopted_communicator_is_left_to_its_owner", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let theirs = communicator(&group)?;
            // SAFETY: it lives longer than what adopts it.
            let adopted = unsafe { Communicator::adopt(theirs.raw(), None) }?;
            assert_eq!(
                (adopted.rank(), adopted.size(), adopted.device()),
                (group.rank(), 2, theirs.device())
            );
            assert_eq!(try_out(&adopted)?, 3.0);
            assert_error!(adopted.finish(PATIENCE), Error::Invalid { .. });
            adopted.abort();
            assert_error!(try_out(&adopted), Error::Closed { .. });
            drop(adopted);
            assert_eq!(try_out(&theirs)?, 3.0);
            theirs.finish(PATIENCE)
        })
        .unwrap();
        assert_eq!((fake::live(), fake::violations()), ([0; 3], 0));
    });
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_until_the_deadline() {
    const NAME: &str = "communicator::a_rank_that_does_not_come_is_waited_for_until_the_deadline";
    fake::run(NAME, &[DEVICES], || {
        let (id, device) = (UniqueId::new().unwrap(), Device::new(0).unwrap());
        let start = Instant::now();
        let made = Communicator::with_id_within(&id, 0, 2, &device, Duration::from_millis(200));
        let error = made.unwrap_err();
        assert!(matches!(error, Error::Library { code: 8, .. }), "{error}");
        assert!(error.to_string().contains("ncclCommInitRankConfig: not done after"), "{error}");
        assert!(start.elapsed() < AT_ONCE);
        assert_eq!(fake::live(), [0; 3], "what was begun is aborted");
    });
}

#[test]
fn every_call_of_the_making_fails_once_on_each_rank() {
    const NAME: &str = "communicator::every_call_of_the_making_fails_once_on_each_rank";
    fake::run(NAME, &[DEVICES], || {
        symmem::spawn(2, |group| {
            for victim in 0..group.size() {
                for n in 1.. {
                    group.barrier()?;
                    if !fails(&group, victim, n)? {
                        break;
                    }
                    // The group can go on.
                    assert_eq!(try_out(&communicator(&group)?)?, 3.0);
                    group.barrier()?;
                }
            }
            Ok(())
        })
        .unwrap();
        assert_eq!((fake::live(), fake::violations()), ([0; 3], 0));
    });
}

/// Collective. Makes the `n`-th call of `victim` fail; whether there was one. All ranks say the same then.
fn fails(group: &Group, victim: usize, n: u64) -> Result<bool> {
    fake::fail(if group.rank() == victim { n } else { 0 });
    let made = communicator(group);
    let failed = fake::failed();
    fake::fail(0);
    let failed = group.all_gather(&u32::from(failed))?[victim] == 1;
    match made {
        Ok(_) => assert!(!failed, "a call failed, and nobody cared"),
        Err(Error::Rank { rank, message, .. }) => {
            assert!(failed && rank == victim, "{message}");
            assert!(message.contains("internal error (NCCL error 3)"), "{message}");
            assert!(message.contains("was made to fail"), "NCCL's last words: {message}");
        }
        Err(other) => panic!("{other}"),
    }
    group.barrier()?;
    Ok(failed)
}

#[test]
fn a_dead_group_ends_the_making() {
    fake::run("communicator::a_dead_group_ends_the_making", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let doomed = same_ranks_with(&group, config())?;
            let start = Instant::now();
            if group.rank() == 0 {
                let made = communicator(&doomed);
                assert!(made.is_err_and(|error| error.is_group_failure()));
                assert!(start.elapsed() < AT_ONCE);
            } else {
                std::thread::sleep(Duration::from_millis(100));
                doomed.abort("it was enough");
            }
            group.barrier()
        })
        .unwrap();
        assert_eq!(fake::live(), [0; 3]);
    });
}

#[test]
fn a_failed_call_has_nccls_own_words() {
    fake::run("communicator::a_failed_call_has_nccls_own_words", &[DEVICES], || {
        let device = Device::new(0).unwrap();
        let alone = Communicator::with_id(&UniqueId::new().unwrap(), 0, 1, &device).unwrap();
        fake::fail(1);
        let error = try_out(&alone).unwrap_err();
        fake::fail(0);
        let text = error.to_string();
        assert!(text.starts_with("ncclAllReduce: internal error (NCCL error 3): "), "{text}");
        assert!(text.contains("ncclAllReduce was made to fail. Hint: "), "{text}");
        assert_eq!(try_out(&alone).unwrap(), 1.0);
    });
}
