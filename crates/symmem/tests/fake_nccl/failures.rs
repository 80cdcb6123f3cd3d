//! What becomes of a group when NCCL fails it: calls that fail, at once or beside the calls, or never end.

use std::time::{Duration, Instant};

use symmem::cuda::{Device, Engine, Settings, Status, Stream};
use symmem::{Cause, Error, ReduceOp};

use crate::common::{AT_ONCE, config, same_ranks_with};
use crate::provider::{self, NCCL, check_direct, nothing_is_left};
use crate::{DEVICES, fake};

#[test]
fn every_call_of_a_rendezvous_fails_once_on_each_rank() {
    const NAME: &str = "failures::every_call_of_a_rendezvous_fails_once_on_each_rank";
    fake::run(NAME, &[DEVICES, NCCL], || {
        symmem::spawn(2, |group| {
            for victim in 0..group.size() {
                for n in 1.. {
                    // A registration that fails takes its group with it.
                    let engine = provider::engine(&same_ranks_with(&group, config())?)?;
                    let x = engine.alloc::<f32>(100)?;
                    group.barrier()?;
                    fake::fail(if group.rank() == victim { n } else { 0 });
                    let result = x.rendezvous(&engine);
                    let failed = fake::failed();
                    fake::fail(0);
                    let failed = group.all_gather(&u32::from(failed))?[victim] == 1;
                    let fine = group.all_gather(&u32::from(result.is_ok()))?;
                    assert!(fine.iter().all(|other| *other == fine[0]), "ranks disagree: {fine:?}");
                    match &result {
                        Ok(memory) => check_direct(memory)?,
                        Err(Error::Rank { rank, .. }) => assert_eq!((*rank, failed), (victim, true)),
                        Err(other) => panic!("{other}"),
                    }
                    if !failed {
                        break;
                    }
                    // The memory can be tried on another engine.
                    let another = provider::engine(&same_ranks_with(&group, config())?)?;
                    check_direct(&x.rendezvous(&another)?)?;
                    group.barrier()?;
                }
            }
            Ok(())
        })
        .unwrap();
        nothing_is_left();
    });
}

#[test]
fn a_failed_group_aborts_its_communicator_and_windows_go_with_it() {
    const NAME: &str = "failures::a_failed_group_aborts_its_communicator_and_windows_go_with_it";
    fake::run(NAME, &[DEVICES, NCCL], || {
        symmem::spawn(2, |group| {
            let doomed = same_ranks_with(&group, config())?;
            let engine = provider::engine(&doomed)?;
            let memory = engine.alloc::<f32>(100)?.rendezvous(&engine)?;
            group.barrier()?;
            if group.rank() == 1 {
                doomed.abort("it was enough");
            }
            // The watchdog sees it without anybody asking.
            let start = Instant::now();
            let communicator = engine.communicator().expect("a communicator").clone();
            while !communicator.raw().is_null() {
                assert!(start.elapsed() < AT_ONCE, "it was not aborted");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(matches!(engine.status(), Status::Failed { culprit: 1, .. }));
            let stream = Stream::new(memory.device())?;
            assert!(memory.all_reduce(ReduceOp::Sum, &stream).is_err_and(|error| error.is_group_failure()));
            group.barrier()
        })
        .unwrap();
        let log = fake::log();
        assert!(!log.iter().any(|call| call == "ncclCommWindowDeregister"), "they were gone: {log:?}");
        nothing_is_left();
    });
}

#[test]
fn a_call_of_nccl_that_fails_fails_the_group() {
    let vars = [DEVICES, NCCL, ("SYMMEM_UNREACHABLE", "0"), ("FAKENCCL_PATIENCE_MS", "300")];
    fake::run("failures::a_call_of_nccl_that_fails_fails_the_group", &vars, || {
        symmem::spawn(2, |group| {
            let doomed = same_ranks_with(&group, config())?;
            let engine = provider::engine(&doomed)?;
            let memory = engine.alloc::<f32>(100)?.rendezvous(&engine)?;
            let stream = Stream::new(memory.device())?;
            group.barrier()?;
            fake::fail(u64::from(group.rank() == 1));
            let result = memory.all_reduce(ReduceOp::Sum, &stream);
            fake::fail(0);
            assert!(result.is_err());
            group.barrier()?;
            let synced = engine.sync(&stream, Duration::from_secs(5));
            assert!(synced.is_err_and(|error| error.is_group_failure()));
            group.barrier()
        })
        .unwrap();
        nothing_is_left();
    });
}

#[test]
fn a_registration_that_fails_takes_the_windows_before_it_along() {
    const NAME: &str = "failures::a_registration_that_fails_takes_the_windows_before_it_along";
    fake::run(NAME, &[DEVICES, NCCL], || {
        symmem::spawn(2, |group| {
            let doomed = same_ranks_with(&group, config())?;
            let engine = provider::engine(&doomed)?;
            let first = engine.alloc::<f32>(100)?.rendezvous(&engine)?;
            check_direct(&first)?;
            let second = engine.alloc::<f32>(100)?;
            fake::fail(u64::from(group.rank() == 1));
            let refused = second.rendezvous(&engine);
            fake::fail(0);
            assert!(matches!(&refused, Err(Error::Rank { rank: 1, .. })), "{refused:?}");
            let communicator = engine.communicator().expect("a communicator");
            assert!(communicator.raw().is_null(), "it was aborted, and with it all windows");
            // So the first one cannot be used either, for the same reason on every rank.
            let stream = Stream::new(engine.device())?;
            let lost = first.all_reduce(ReduceOp::Sum, &stream).unwrap_err();
            assert!(lost.is_group_failure() && lost.culprit() == Some(1), "{lost}");
            assert!(lost.to_string().contains("ncclCommWindowRegister was made to fail"), "{lost}");
            let status = engine.status();
            assert!(matches!(status, Status::Failed { culprit: 1, cause: Cause::Failed, .. }), "{status:?}");
            let mut out = symmem::cuda::Buffer::<f32>::new(engine.device(), 1)?;
            assert!(first.get(group.next(), 0, &mut out, &stream).is_err(), "its address leads nowhere");
            group.barrier()
        })
        .unwrap();
        nothing_is_left();
    });
}

#[test]
fn what_fails_beside_the_calls_is_found_by_whoever_asks() {
    const NAME: &str = "failures::what_fails_beside_the_calls_is_found_by_whoever_asks";
    fake::run(NAME, &[DEVICES, NCCL], || {
        symmem::spawn(2, |group| {
            let engine = provider::engine(&same_ranks_with(&group, config())?)?;
            assert_eq!(engine.status(), Status::Whole);
            group.barrier()?;
            if group.rank() == 0 {
                fake::make_fail(engine.communicator().expect("a communicator").raw());
                let status = engine.status();
                assert!(matches!(&status, Status::Failed { detail, .. } if detail.contains("another rank is gone")), "{status:?}");
            }
            group.barrier()?;
            assert!(matches!(engine.status(), Status::Failed { culprit: 0, .. }));
            group.barrier()
        })
        .unwrap();
        nothing_is_left();
    });
}

#[test]
fn an_operation_that_nccl_does_not_end_is_a_timeout() {
    const NAME: &str = "failures::an_operation_that_nccl_does_not_end_is_a_timeout";
    let vars = [DEVICES, NCCL, ("SYMMEM_UNREACHABLE", "0"), ("FAKENCCL_PATIENCE_MS", "3000")];
    fake::run(NAME, &vars, || {
        symmem::spawn(2, |group| {
            let doomed = same_ranks_with(&group, config())?;
            let deadline = Some(Duration::from_millis(300));
            let settings = Settings { deadline, ..Settings::from_config(doomed.context().config()) };
            let engine = Engine::with(&doomed, &Device::new(group.rank())?, settings)?;
            let memory = engine.alloc::<f32>(100)?.rendezvous(&engine)?;
            let stream = Stream::new(engine.device())?;
            memory.all_reduce(ReduceOp::Sum, &stream)?;
            engine.sync(&stream, Duration::from_secs(5))?;
            // What was done in time is not counted, nor what was refused.
            assert!(memory.all_reduce(ReduceOp::Xor, &stream).is_err());
            std::thread::sleep(Duration::from_millis(600));
            assert_eq!(engine.status(), Status::Whole);
            group.barrier()?;
            let start = Instant::now();
            if group.rank() == 0 {
                // The fake is in the call while NCCL would be on the device.
                assert!(memory.all_reduce(ReduceOp::Sum, &stream).is_err());
            }
            while engine.status() == Status::Whole {
                assert!(start.elapsed() < Duration::from_millis(2500), "NCCL has a deadline");
                std::thread::sleep(Duration::from_millis(5));
            }
            let status = engine.status();
            assert!(
                matches!(status, Status::Failed { culprit: 1, cause: Cause::TimedOut, .. }),
                "{status:?}"
            );
            let error = engine.sync(&stream, Duration::from_secs(1)).unwrap_err();
            assert!(error.to_string().contains("rank 0 waited for more than 300ms in NCCL"), "{error}");
            group.barrier()
        })
        .unwrap();
        nothing_is_left();
    });
}
