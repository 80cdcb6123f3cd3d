//! Private memory that is read through the kernel: what is read is right, of threads and of processes; a
//! refusal on any rank sends all ranks through the pipeline, at the first call or at a later one, and nobody
//! tries again.

mod common;

use common::{config, same_ranks_with};
use symmem::{Element, Group, ProcessSpawner, Result};

/// Elements of each rank: no multiple of anything.
const LENS: [usize; 4] = [0, 1, 1031, 70_001];

/// What the kernel does with a read of another process.
#[derive(Clone, Copy)]
enum Reads {
    /// It says that this is not permitted.
    Fail,
    /// It ends the process: for who must not even try.
    Kill,
}

/// From now on, for all threads of this process.
fn filter(reads: Reads) {
    let verdict = match reads {
        Reads::Fail => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        Reads::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    };
    let op = |code: u32, skip_unless: u8, value: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: skip_unless,
        k: value,
    };
    // The first word that a filter sees is the number of the call.
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_process_vm_readv as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, verdict),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: filter and program are valid for the calls that read them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, all_threads, &program), 0);
    }
}

/// The same ranks, whose private memory is pulled.
fn pulling(group: &Group) -> Result<Group> {
    same_ranks_with(group, config().algorithm("pull")?)
}

/// An element of `rank`.
fn value(rank: usize, at: usize) -> u32 {
    (rank * 1_000_003 + at) as u32
}

fn gather(group: &Group, len: usize) -> Result<()> {
    let input: Vec<u32> = (0..len).map(|at| value(group.rank(), at)).collect();
    let mut out = vec![u32::MAX; len * group.size()];
    group.all_gather_into(&input, &mut out)?;
    let expected = (0..group.size()).flat_map(|rank| (0..len).map(move |at| value(rank, at)));
    assert!(out.iter().copied().eq(expected), "{len} elements of {} ranks", group.size());
    Ok(())
}

fn exchange(group: &Group, chunk: usize) -> Result<()> {
    let (rank, world) = (group.rank(), group.size());
    let input: Vec<u32> = (0..chunk * world).map(|at| value(rank, at)).collect();
    let mut out = vec![u32::MAX; chunk * world];
    group.all_to_all(&input, &mut out)?;
    let expected = (0..world).flat_map(|from| (0..chunk).map(move |at| value(from, rank * chunk + at)));
    assert!(out.iter().copied().eq(expected), "chunks of {chunk} of {world} ranks");
    Ok(())
}

/// Rank `from` sends `from + 2 * to + base` elements to rank `to`.
fn exchange_parts(group: &Group, base: usize) -> Result<()> {
    let (rank, world) = (group.rank(), group.size());
    let count = |from: usize, to: usize| if from == 1 && to == 0 { 0 } else { from + 2 * to + base };
    let sends: Vec<usize> = (0..world).map(|to| count(rank, to)).collect();
    let receives: Vec<usize> = (0..world).map(|from| count(from, rank)).collect();
    let input: Vec<u32> = (0..sends.iter().sum()).map(|at| value(rank, at)).collect();
    let mut out = vec![u32::MAX; receives.iter().sum()];
    group.all_to_all_v(&input, &sends, &mut out, &receives)?;
    let expected = (0..world).flat_map(|from| {
        let start: usize = (0..rank).map(|to| count(from, to)).sum();
        (0..count(from, rank)).map(move |at| value(from, start + at))
    });
    assert!(out.iter().copied().eq(expected), "parts of {world} ranks");
    Ok(())
}

fn call_all(group: &Group) -> Result<()> {
    for len in LENS {
        gather(group, len)?;
        exchange(group, len)?;
        exchange_parts(group, len)?;
    }
    Ok(())
}

/// Elements of other sizes, a byte off their alignment to lines and pages.
fn gather_odd<T: Element>(group: &Group, ones: &[T]) -> Result<()> {
    let input = &ones[1..];
    let mut out = vec![T::zeroed(); input.len() * group.size() + 1];
    group.all_gather_into(input, &mut out[1..])?;
    let parts = bytemuck::cast_slice::<T, u8>(&out[1..]).chunks_exact(size_of_val(input));
    assert!(parts.into_iter().all(|part| part == bytemuck::cast_slice::<T, u8>(input)));
    Ok(())
}

#[test]
fn what_is_pulled_is_right_on_threads() {
    for world in 1..=4 {
        symmem::spawn(world, |group| {
            let group = pulling(&group)?;
            gather_odd(&group, &[7_u8; 9001])?;
            gather_odd(&group, &[1.5_f64; 9001])?;
            call_all(&group)
        })
        .unwrap();
    }
}

#[test]
fn what_is_pulled_is_right_on_processes() {
    for world in 2..=4 {
        ProcessSpawner::new("what_is_pulled_is_right_on_processes", world)
            .run(|group| call_all(&pulling(&group)?))
            .unwrap();
    }
}

#[test]
fn a_refusal_on_one_rank_sends_all_through_the_pipeline_for_good() {
    for refused in [0, 2] {
        ProcessSpawner::new("a_refusal_on_one_rank_sends_all_through_the_pipeline_for_good", 3)
            .env("SYMMEM_PULL_REFUSED", refused)
            .run(|group| {
                let group = pulling(&group)?;
                let refused = std::env::var("SYMMEM_PULL_REFUSED").expect("the launcher's word");
                if group.rank().to_string() == refused {
                    filter(Reads::Fail);
                }
                gather(&group, 70_001)?;
                filter(Reads::Kill);
                call_all(&group)
            })
            .unwrap();
    }
}

#[test]
fn a_refusal_after_the_trial_does_so_too() {
    ProcessSpawner::new("a_refusal_after_the_trial_does_so_too", 3)
        .run(|group| {
            let group = pulling(&group)?;
            call_all(&group)?;
            if group.rank() == 1 {
                filter(Reads::Fail);
            }
            exchange_parts(&group, 50_000)?;
            filter(Reads::Kill);
            call_all(&group)
        })
        .unwrap();
}

#[test]
fn nobody_is_read_where_something_else_is_asked_for() {
    ProcessSpawner::new("nobody_is_read_where_something_else_is_asked_for", 2)
        .run(|group| {
            let group = same_ranks_with(&group, config().algorithm("private=pipelined")?)?;
            filter(Reads::Kill);
            call_all(&group)?;
            gather(&group, 1 << 20)
        })
        .unwrap();
}

/// The owner has announced the second meeting when it gives up, so only the verdict tells the reader.
#[cfg(feature = "faults")]
#[test]
fn what_an_owner_wrote_after_it_gave_up_is_not_taken_for_its_memory() {
    use std::sync::mpsc;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use symmem::Error;
    use symmem::fault::{Point, arm};

    const PATIENCE: Duration = Duration::from_secs(20);
    let ((written, is_written), (read, is_read)) = (mpsc::channel(), mpsc::channel());
    let (is_written, is_read) = (Arc::new(Mutex::new(is_written)), Mutex::new(is_read));
    symmem::spawn(2, |group| {
        let group = pulling(&group)?;
        // The trial, and proof that it was not refused: else nobody comes by the point below.
        gather(&group, LENS[3])?;
        let mut input = vec![1_u32; LENS[3]];
        let mut out = vec![0; 2 * LENS[3]];
        if group.rank() == 0 {
            let gave_up = group.within(Duration::from_millis(100)).all_gather_into(&input, &mut out);
            common::assert_error!(gave_up, Error::Timeout { .. });
            std::hint::black_box(&mut input).fill(9);
            written.send(()).expect("the other rank waits");
            is_read.lock().expect("once").recv_timeout(PATIENCE).expect("the other rank reads");
            return Ok(());
        }
        let is_written = Arc::clone(&is_written);
        arm(Point::PullEntered, move || {
            is_written.lock().expect("once").recv_timeout(PATIENCE).expect("the owner gives up");
        });
        let taken = group.all_gather_into(&input, &mut out);
        common::assert_error!(taken, Error::GroupFailed { culprit: 1, .. });
        read.send(()).expect("the owner waits");
        Ok(())
    })
    .unwrap();
}
