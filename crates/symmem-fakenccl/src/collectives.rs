//! Collectives, sends and signals: a first half that lays down this rank's part, and a second that waits for
//! the others'. A group does all first halves before the second ones, so that one thread can be several
//! ranks.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};

use crate::clique::Part;
use crate::comm::comm;
use crate::control::{Code, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, call, failure, lock};
use crate::memory::is_captured;
use crate::reduce::{reduce, size_of_type};

/// The second half of an operation.
type Second = Box<dyn FnOnce() -> Result<(), Code>>;
/// The first half, which gives the second.
type First = Box<dyn FnOnce() -> Result<Second, Code>>;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static QUEUE: RefCell<Vec<First>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Code {
    call("ncclGroupStart", || {
        DEPTH.set(DEPTH.get() + 1);
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Code {
    let depth = DEPTH.get();
    // Whether it is made to fail or not, the group has ended.
    DEPTH.set(depth.saturating_sub(1));
    let queued = if depth == 1 { QUEUE.take() } else { Vec::new() };
    call("ncclGroupEnd", || match depth {
        0 => Err(failure(INVALID_USAGE, "there is no group to end")),
        _ => run(queued),
    })
}

fn run(firsts: Vec<First>) -> Result<Code, Code> {
    let seconds = firsts.into_iter().map(|first| first()).collect::<Result<Vec<_>, _>>()?;
    seconds.into_iter().try_for_each(|second| second())?;
    Ok(SUCCESS)
}

/// Where an operation goes, and the memory it uses: in a graph it is recorded, with that, and does nothing.
struct Place {
    stream: *mut c_void,
    memory: [u64; 2],
}

/// An operation: now, or when the group ends.
fn operation(name: &str, place: &Place, first: impl FnOnce() -> Result<Second, Code> + 'static) -> Code {
    call(name, || {
        if is_captured(place.stream as u64, &place.memory) {
            return Ok(SUCCESS);
        }
        if DEPTH.get() > 0 {
            QUEUE.with_borrow_mut(|queue| queue.push(Box::new(first)));
            return Ok(SUCCESS);
        }
        run(vec![Box::new(first)])
    })
}

/// The bytes at a device address: host memory here.
fn bytes(address: u64, count: usize) -> Vec<u8> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller of NCCL promised that much memory there.
    unsafe { std::slice::from_raw_parts(address as *const u8, count) }.to_vec()
}

fn store(address: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: the caller of NCCL promised that much memory there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }
}

/// A collective: everybody lays down `sent` bytes, and does with all parts what `receive` says, which is told
/// this rank and the number of ranks.
fn collective(
    name: &'static str,
    handle: *mut c_void,
    place: &Place,
    sent: usize,
    receive: impl FnOnce(&[Part], usize) -> Result<(), Code> + 'static,
) -> Code {
    let (handle, from) = (handle as usize, place.memory[0]);
    operation(name, place, move || {
        let found = comm(handle as *mut c_void)?;
        let (clique, rank, step) = {
            let mut comm = lock(&found);
            if comm.is_revoked {
                return Err(failure(INVALID_USAGE, "the communicator was revoked"));
            }
            let step = comm.next_step();
            (comm.clique.clone(), comm.rank, step)
        };
        clique.post(step, rank, bytes(from, sent));
        Ok(Box::new(move || receive(&clique.all(step)?, rank)) as Second)
    })
}

fn world_of(handle: *mut c_void) -> usize {
    comm(handle).map_or(0, |comm| lock(&comm).clique.world)
}

fn slices(parts: &[Part]) -> Vec<&[u8]> {
    parts.iter().map(|part| part.as_slice()).collect()
}

fn total(count: usize, dtype: c_int) -> usize {
    count * size_of_type(dtype).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Code {
    collective(
        "ncclAllReduce",
        comm,
        &Place { stream, memory: [from, to] },
        total(count, dtype),
        move |parts, _| {
            store(to, &reduce(&slices(parts), dtype, op)?);
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Code {
    collective(
        "ncclReduce",
        comm,
        &Place { stream, memory: [from, to] },
        total(count, dtype),
        move |parts, rank| {
            if rank == root as usize {
                store(to, &reduce(&slices(parts), dtype, op)?);
            }
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Code {
    let part = total(count, dtype);
    collective(
        "ncclReduceScatter",
        comm,
        &Place { stream, memory: [from, to] },
        part * world_of(comm),
        move |parts, rank| {
            let mine: Vec<&[u8]> = parts.iter().map(|all| &all[rank * part..(rank + 1) * part]).collect();
            store(to, &reduce(&mine, dtype, op)?);
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Code {
    collective(
        "ncclBroadcast",
        comm,
        &Place { stream, memory: [from, to] },
        total(count, dtype),
        move |parts, _| {
            store(to, &parts[root as usize]);
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Code {
    collective(
        "ncclAllGather",
        comm,
        &Place { stream, memory: [from, to] },
        total(count, dtype),
        move |parts, _| {
            store(to, &slices(parts).concat());
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclAlltoAll(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Code {
    let part = total(count, dtype);
    collective(
        "ncclAlltoAll",
        comm,
        &Place { stream, memory: [from, to] },
        part * world_of(comm),
        move |parts, rank| {
            let mine: Vec<&[u8]> = parts.iter().map(|all| &all[rank * part..(rank + 1) * part]).collect();
            store(to, &mine.concat());
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclGather(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Code {
    collective(
        "ncclGather",
        comm,
        &Place { stream, memory: [from, to] },
        total(count, dtype),
        move |parts, rank| {
            if rank == root as usize {
                store(to, &slices(parts).concat());
            }
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclScatter(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    root: c_int,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Code {
    let part = total(count, dtype);
    let is_root = comm(handle).is_ok_and(|comm| lock(&comm).rank == root as usize);
    let sent = if is_root { part * world_of(handle) } else { 0 };
    collective("ncclScatter", handle, &Place { stream, memory: [from, to] }, sent, move |parts, rank| {
        let all = &parts[root as usize];
        store(to, all.get(rank * part..(rank + 1) * part).ok_or(INVALID_ARGUMENT)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    from: u64,
    count: usize,
    dtype: c_int,
    peer: c_int,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Code {
    let handle = handle as usize;
    operation("ncclSend", &Place { stream, memory: [from, 0] }, move || {
        let found = comm(handle as *mut c_void)?;
        let comm = lock(&found);
        comm.clique.send(comm.rank, peer as usize, bytes(from, total(count, dtype)));
        Ok(Box::new(|| Ok(())) as Second)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    to: u64,
    count: usize,
    dtype: c_int,
    peer: c_int,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Code {
    let handle = handle as usize;
    operation("ncclRecv", &Place { stream, memory: [0, to] }, move || {
        let found = comm(handle as *mut c_void)?;
        let (clique, rank) = {
            let comm = lock(&found);
            (comm.clique.clone(), comm.rank)
        };
        Ok(Box::new(move || {
            let part = clique.receive(peer as usize, rank)?;
            if part.len() != total(count, dtype) {
                return Err(failure(INVALID_USAGE, "what was sent is of another size"));
            }
            store(to, &part);
            Ok(())
        }) as Second)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclSignal(
    peer: c_int,
    signal: c_int,
    context: c_int,
    flags: c_uint,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Code {
    let handle = handle as usize;
    operation("ncclSignal", &Place { stream, memory: [0; 2] }, move || {
        if (signal, context, flags) != (0, 0, 0) {
            return Err(INVALID_ARGUMENT);
        }
        let found = comm(handle as *mut c_void)?;
        let comm = lock(&found);
        comm.clique.signal(comm.rank, peer as usize);
        Ok(Box::new(|| Ok(())) as Second)
    })
}

/// `ncclWaitSignalDesc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wanted {
    count: c_int,
    peer: c_int,
    signal: c_int,
    context: c_int,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclWaitSignal(
    count: c_int,
    wanted: *const Wanted,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Code {
    // SAFETY: as many descriptions as said.
    let wanted = unsafe { std::slice::from_raw_parts(wanted, count as usize) }.to_vec();
    let handle = handle as usize;
    operation("ncclWaitSignal", &Place { stream, memory: [0; 2] }, move || {
        if wanted.iter().any(|wanted| (wanted.signal, wanted.context) != (0, 0)) {
            return Err(INVALID_ARGUMENT);
        }
        let found = comm(handle as *mut c_void)?;
        let (clique, rank) = {
            let comm = lock(&found);
            (comm.clique.clone(), comm.rank)
        };
        let wait = move |wanted: &Wanted| clique.wait_signals(wanted.peer as usize, rank, wanted.count);
        Ok(Box::new(move || wanted.iter().try_for_each(wait)) as Second)
    })
}
