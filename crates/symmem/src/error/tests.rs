//! What all errors have: their group's end, hints in one line, and no more bytes than they need.

use symmem_store::StoreError;

use super::*;

fn hinted(error: &Error) -> String {
    let text = error.to_string();
    assert!(text.contains("Hint: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// One error of each variant that has no context.
fn without_context() -> Vec<Error> {
    let (op, rank, world, library) = ("op", 0, 1, "x");
    let text = || "x".to_owned();
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    vec![
        Error::Borrowed { op, borrowed_by: "x" },
        Error::Poisoned { op, cause: text() },
        Error::Closed { op },
        Error::Forked { op },
        Error::OutOfMemory { asked: 1, left: 0, limit: text() },
        Error::RankOutOfRange { op, rank, world },
        Error::ChannelOutOfRange { op, channel: 0, channels: 0 },
        Error::OutOfBounds { op, offset: 0, bytes: 0, size: 0 },
        Error::Invalid { what: text(), problem: text() },
        Error::Persistent { id: text(), problem: text() },
        Error::NotLocal { op, ranks: vec![rank] },
        Error::Store(StoreError::Cancelled { op }),
        Error::Channel { rank, address: text(), problem: text() },
        Error::Sys { call: "x", source: gone(), hint: "" },
        Error::NoCuda { problem: text() },
        Error::Cuda { call: "x", code: 1, name: text(), hint: "" },
        Error::OverlappingDevices { ranks: vec![rank], device: text() },
        Error::NoPeerAccess { rank, peer: 1, problem: text() },
        Error::NoMulticast { problem: text() },
        Error::NoLibrary { library, problem: text() },
        Error::LibraryTooOld { library, what: "x", needed: "x".into(), found: "x".into(), path: "x".into() },
        Error::Library { library, call: "x", code: 1, text: "x".into(), detail: "x".into(), hint: "" },
        Error::Spawned { rank, message: text() },
        Error::NothingBrought { op, ranks: vec![rank] },
        Error::NotShared { problem: text() },
    ]
}

/// One error of each variant that has a context, of a group that has failed or not.
fn with_context(group_failed: bool) -> Vec<Error> {
    let context = || {
        let mut context = Context::new("op", "g", 0, 2);
        context.group_failed = group_failed;
        context
    };
    let (rank, cause) = (1, Cause::Failed);
    let text = || "x".to_owned();
    vec![
        Error::Timeout { context: context(), missing: vec![rank] },
        Error::Cancelled { context: context() },
        Error::PeerLost { context: context(), rank, pid: 1 },
        Error::PeerLeft { context: context(), rank },
        Error::GroupFailed { context: context(), culprit: rank, cause, reason: text() },
        Error::Mismatch { context: context(), what: "x", values: vec![text()] },
        Error::Rank { context: context(), rank, message: text() },
        Error::MessageSize { context: context(), rank, tag: 0, bytes: 0, room: 1 },
        Error::Busy { context: context(), started: false },
        Error::Unproven { context: context(), ranks: vec![rank], problem: text() },
        Error::Device { context: context(), culprit: rank, cause, detail: text() },
    ]
}

/// A variant's number. A new variant belongs into one of the lists above.
fn number(error: &Error) -> usize {
    match error {
        Error::Timeout { .. } => 0,
        Error::Cancelled { .. } => 1,
        Error::PeerLost { .. } => 2,
        Error::PeerLeft { .. } => 3,
        Error::GroupFailed { .. } => 4,
        Error::Mismatch { .. } => 5,
        Error::Rank { .. } => 6,
        Error::MessageSize { .. } => 7,
        Error::Busy { .. } => 8,
        Error::Unproven { .. } => 9,
        Error::Device { .. } => 10,
        Error::Borrowed { .. } => 11,
        Error::Poisoned { .. } => 12,
        Error::Closed { .. } => 13,
        Error::Forked { .. } => 14,
        Error::OutOfMemory { .. } => 15,
        Error::RankOutOfRange { .. } => 16,
        Error::ChannelOutOfRange { .. } => 17,
        Error::OutOfBounds { .. } => 18,
        Error::Invalid { .. } => 19,
        Error::Persistent { .. } => 20,
        Error::NotLocal { .. } => 21,
        Error::Store(_) => 22,
        Error::Channel { .. } => 23,
        Error::Sys { .. } => 24,
        Error::NoCuda { .. } => 25,
        Error::Cuda { .. } => 26,
        Error::OverlappingDevices { .. } => 27,
        Error::NoPeerAccess { .. } => 28,
        Error::NoMulticast { .. } => 29,
        Error::NoLibrary { .. } => 30,
        Error::LibraryTooOld { .. } => 31,
        Error::Library { .. } => 32,
        Error::Spawned { .. } => 33,
        Error::NothingBrought { .. } => 34,
        Error::NotShared { .. } => 35,
    }
}

#[test]
fn every_error_says_whether_its_group_is_over() {
    let all = with_context(true).into_iter().chain(without_context());
    let numbers: Vec<usize> = all.map(|error| number(&error)).collect();
    assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>(), "a variant is not in the lists");
    for error in with_context(true) {
        assert!(error.is_group_failure() && error.context().is_some(), "{error:?}");
    }
    for error in with_context(false) {
        let by_name = matches!(error, Error::GroupFailed { .. } | Error::Device { .. });
        assert_eq!(error.is_group_failure(), by_name, "{error:?}");
        assert!(error.of_failed_group().is_group_failure());
    }
    for error in without_context() {
        assert!(!error.is_group_failure() && error.context().is_none(), "{error:?}");
    }
}

#[test]
fn a_lack_of_descriptors_is_called_by_its_name_whatever_the_call() {
    for errno in [libc::EMFILE, libc::ENFILE] {
        let text = hinted(&Error::sys_hint("read", io::Error::from_raw_os_error(errno), "is /proc mounted?"));
        assert!(text.contains("too many open files") && !text.contains("mounted"), "{text}");
        hinted(&Error::sys("pipe", io::Error::from_raw_os_error(errno)));
    }
    let text =
        hinted(&Error::sys_hint("read", io::Error::from_raw_os_error(libc::ENOENT), "is /proc mounted?"));
    assert!(text.contains("is /proc mounted?"), "{text}");
}

#[test]
fn errors_of_the_gpu_side_name_who_and_what_to_do() {
    let overlap = Error::OverlappingDevices { ranks: vec![0, 2], device: "device 0 (NVIDIA H200)".into() };
    let text = hinted(&overlap);
    assert!(text.contains("[0, 2]") && text.contains("H200") && text.contains("SYMMEM_ALLOW"), "{text}");

    let access = Error::NoPeerAccess { rank: 1, peer: 3, problem: "it is a MIG instance".into() };
    let text = hinted(&access);
    assert!(text.contains("rank 1") && text.contains("rank 3") && text.contains("MIG"), "{text}");

    let text = hinted(&Error::NoMulticast { problem: "rank 1: device 1 (H100) has none".into() });
    assert!(text.contains("rank 1") && text.contains("H100"), "{text}");

    let context = Context::new("all_reduce", "g", 0, 2);
    let device = Error::Device { context, culprit: 1, cause: Cause::TimedOut, detail: "epoch 7".into() };
    let text = hinted(&device);
    assert!(text.contains("rank 1 did not show up in time: epoch 7"), "{text}");
    assert!(device.is_group_failure());
    assert_eq!(device.culprit(), Some(1));
}

#[test]
fn errors_of_foreign_libraries_say_what_is_needed_and_in_their_own_words() {
    let library = "NCCL";
    let none = Error::NoLibrary { library, problem: "not found. Hint: install it".into() };
    assert!(hinted(&none).starts_with("NCCL cannot be used: not found"), "{none}");
    let old = Error::LibraryTooOld {
        library,
        what: "signals",
        needed: "2.29.2".into(),
        found: "2.28.9".into(),
        path: "/x/libnccl.so.2".into(),
    };
    let text = hinted(&old);
    assert!(text.ends_with("or set SYMMEM_NCCL_LIBRARY to its file"), "{text}");
    assert!(text.starts_with("signals needs NCCL 2.29.2 or newer, and /x/libnccl.so.2 is 2.28.9"), "{text}");
    let error = |detail: &str, hint| Error::Library {
        library,
        call: "ncclAllReduce",
        code: 5,
        text: "invalid usage".into(),
        detail: detail.into(),
        hint,
    };
    assert_eq!(error("", "").to_string(), "ncclAllReduce: invalid usage (NCCL error 5)");
    let text = hinted(&error("Duplicate GPU detected", "share none"));
    assert_eq!(text, "ncclAllReduce: invalid usage (NCCL error 5): Duplicate GPU detected. Hint: share none");
}

/// Every call returns one by value, or room for it.
#[test]
fn no_error_is_larger_than_it_must_be() {
    assert!(size_of::<Error>() <= 96, "{}", size_of::<Error>());
}

#[test]
fn an_error_of_cuda_has_its_call_name_and_code() {
    let error =
        |hint| Error::Cuda { call: "cuMemCreate", code: 2, name: "CUDA_ERROR_OUT_OF_MEMORY".into(), hint };
    assert_eq!(error("").to_string(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (error 2)");
    assert!(hinted(&error("free some")).ends_with("Hint: free some"));
}
