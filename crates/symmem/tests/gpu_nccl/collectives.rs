//! Every collective, verified, with 2 and 4 processes; graphs; and ranks that may not share.

use symmem::cuda::{Buffer, Device, Stream};
use symmem::nccl::{Communicator, UniqueId};
use symmem::{Error, F8E4M3, ReduceOp, Result, bf16, f16};

use crate::common::assert_error;
use crate::nccl_cases::{Rank, try_all, try_moves};
use crate::stage::{PATIENCE, alone, can_share, ranks};

/// Collective. Every type that must be right, small and large.
pub(crate) fn try_types(rank: &Rank) -> Result<()> {
    for len in [5, 100_000] {
        try_all(rank, len, |number| number as f32)?;
        try_all(rank, len, |number| f16::from_f32(number as f32))?;
        try_all(rank, len, |number| bf16::from_f32(number as f32))?;
        try_all(rank, len, |number| number)?;
        try_all(rank, len, i64::from)?;
    }
    try_all(rank, 17, f64::from)?;
    try_all(rank, 17, |number| number as u8)?;
    try_all(rank, 17, |number| number as u64)?;
    try_moves(rank, 17, |number| number as i16)?;
    try_moves(rank, 17, |number| F8E4M3::from_f32(number as f32))
}

#[test]
fn every_collective_is_right() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    for world in [1, 2, 4] {
        ranks("collectives::every_collective_is_right", world)
            .run(|group| {
                let nccl = Communicator::new(&group, &Device::new(0)?)?;
                assert_eq!((nccl.rank(), nccl.size()), (group.rank(), group.size()));
                let rank = Rank::new(nccl.clone())?;
                try_types(&rank)?;
                group.barrier()?;
                nccl.finish(PATIENCE)
            })
            .unwrap();
    }
}

#[test]
fn a_split_communicator_works_beside_its_parent() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("collectives::a_split_communicator_works_beside_its_parent", 4)
        .run(|group| {
            let all = Communicator::new(&group, &Device::new(0)?)?;
            let half = all.split(Some((group.rank() % 2) as u32), group.rank())?.expect("a colour");
            assert_eq!((half.rank(), half.size()), (group.rank() / 2, 2));
            try_all(&Rank::new(half.clone())?, 1000, |number| number as f32)?;
            try_all(&Rank::new(all.clone())?, 1000, |number| number as f32)?;
            group.barrier()?;
            half.finish(PATIENCE)?;
            all.finish(PATIENCE)
        })
        .unwrap();
}

#[test]
fn a_captured_collective_is_replayed() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("collectives::a_captured_collective_is_replayed", 2)
        .run(|group| {
            let nccl = Communicator::new(&group, &Device::new(0)?)?;
            let stream = Stream::new(nccl.device())?;
            let mut data = Buffer::from_slice(nccl.device(), &[1.0f32; 1000], &stream)?;
            // The first one outside of a capture: it makes connections.
            nccl.all_reduce_in_place(&mut data, ReduceOp::Sum, &stream)?;
            stream.synchronize()?;
            stream.begin_capture()?;
            nccl.all_reduce_in_place(&mut data, ReduceOp::Sum, &stream)?;
            let graph = stream.end_capture()?;
            for _ in 0..3 {
                graph.launch(&stream)?;
            }
            assert_eq!(data.read(&stream)?, [16.0; 1000]);
            drop(graph);
            group.barrier()
        })
        .unwrap();
}

#[test]
fn ranks_that_may_not_share_get_nccls_words() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("collectives::ranks_that_may_not_share_get_nccls_words", 2)
        .env("NCCL_MULTI_RANK_GPU_ENABLE", 0)
        .run(|group| {
            let error = Communicator::new(&group, &Device::new(0)?).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("NCCL error"), "{text}");
            assert_error!(Err::<(), _>(error), Error::Rank { .. });
            group.barrier()
        })
        .unwrap();
}

#[test]
fn a_rank_that_does_not_come_ends_with_the_deadline() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    let device = Device::new(0).unwrap();
    let within = std::time::Duration::from_secs(2);
    let start = std::time::Instant::now();
    let made = Communicator::with_id_within(&UniqueId::new().unwrap(), 0, 2, &device, within);
    assert_error!(made, Error::Library { code: 8, .. });
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}
