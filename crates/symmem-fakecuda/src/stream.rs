//! Streams and events. Work is done when the call that gives it returns, so there is nothing to wait for. A
//! test can hold it, and then events say that it is not done.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Instant;

use crate::control::holds;
use crate::device::{current, current_context};
use crate::graph::new_graph;
use crate::node::{NodeWork, give};
use crate::result::{
    Code, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Out, Outcome, call, put, put_at,
};
use crate::state::{DriverState, Recorded};

/// Handles of the default streams: null, legacy, per thread.
const DEFAULTS: std::ops::RangeInclusive<u64> = 0..=2;

pub(crate) fn check_stream(state: &DriverState, stream: u64) -> Outcome {
    let known = DEFAULTS.contains(&stream) || state.streams.contains_key(&stream);
    if known { Ok(()) } else { Err(INVALID_HANDLE) }
}

/// The graph that work on `stream` goes into.
pub(crate) fn captured(state: &DriverState, stream: u64) -> Result<Option<u64>, Code> {
    check_stream(state, stream)?;
    Ok(state.streams.get(&stream).copied().flatten())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: Out<'_, u64>, _flags: c_uint, _priority: c_int) -> Code {
    call(c"cuStreamCreateWithPriority", |state| {
        current()?;
        let number = state.number();
        put(stream, number)?;
        state.streams.insert(number, None);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: u64) -> Code {
    call(c"cuStreamDestroy_v2", |state| state.streams.remove(&stream).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: u64, context: Out<'_, usize>) -> Code {
    call(c"cuStreamGetCtx", |state| {
        check_stream(state, stream)?;
        put(context, current_context()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: u64) -> Code {
    call(c"cuStreamSynchronize", |state| check_stream(state, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: u64) -> Code {
    call(c"cuStreamQuery", |state| check_stream(state, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) -> Code {
    call(c"cuStreamWaitEvent", |state| {
        let mine = captured(state, stream)?;
        let graph = state.events.get(&event).ok_or(INVALID_HANDLE)?.graph;
        // Who waits for work that is captured is captured with it, until the capture ends.
        let joins =
            graph.filter(|graph| mine.is_none() && state.streams.values().any(|of| *of == Some(*graph)));
        if let Some(graph) = joins {
            state.streams.insert(stream, Some(graph));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: u64, _mode: c_uint) -> Code {
    call(c"cuStreamBeginCapture_v2", |state| {
        // The default streams cannot be captured.
        let free = state.streams.get(&stream).ok_or(INVALID_HANDLE)?.is_none();
        if !free {
            return Err(ILLEGAL_STATE);
        }
        let graph = new_graph(state);
        state.streams.insert(stream, Some(graph));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: u64, graph: Out<'_, u64>) -> Code {
    call(c"cuStreamEndCapture", |state| {
        let captured = state.streams.get(&stream).ok_or(INVALID_HANDLE)?.ok_or(ILLEGAL_STATE)?;
        for of in state.streams.values_mut().filter(|of| **of == Some(captured)) {
            *of = None;
        }
        put(graph, captured)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: u64,
    status: Out<'_, c_uint>,
    id: *mut u64,
    graph: *mut u64,
    _dependencies: *mut c_void,
    _edges: *mut c_void,
    _count: *mut usize,
) -> Code {
    call(c"cuStreamGetCaptureInfo_v3", |state| {
        let captured = captured(state, stream)?;
        put(status, c_uint::from(captured.is_some()))?;
        for to in [id, graph].into_iter().filter(|to| !to.is_null()) {
            // SAFETY: the caller's places for the results.
            unsafe { put_at(to, captured.unwrap_or_default()) }?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> Code {
    call(c"cuThreadExchangeStreamCaptureMode", |_| if mode.is_null() { Err(INVALID_VALUE) } else { Ok(()) })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<'_, u64>, _flags: c_uint) -> Code {
    call(c"cuEventCreate", |state| {
        current()?;
        let number = state.number();
        put(event, number)?;
        state.events.insert(number, Recorded { at: Instant::now(), graph: None, held: false });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: u64) -> Code {
    call(c"cuEventDestroy_v2", |state| state.events.remove(&event).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: u64, stream: u64) -> Code {
    call(c"cuEventRecord", |state| {
        let graph = captured(state, stream)?;
        let recorded = state.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        *recorded = Recorded { at: Instant::now(), graph, held: holds() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(event: u64, stream: u64, flags: c_uint) -> Code {
    // CU_EVENT_RECORD_EXTERNAL: in a capture it is work like any other.
    if flags & 1 == 0 {
        return cuEventRecord(event, stream);
    }
    call(c"cuEventRecordWithFlags", |state| {
        state.events.get(&event).ok_or(INVALID_HANDLE)?;
        give(state, stream, &[], NodeWork::Record { event })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: u64) -> Code {
    call(c"cuEventQuery", |state| match state.events.get(&event) {
        Some(recorded) if recorded.held && holds() => Err(NOT_READY),
        known => known.map(drop).ok_or(INVALID_HANDLE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: u64) -> Code {
    call(c"cuEventSynchronize", |state| state.events.get(&event).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<'_, f32>, start: u64, end: u64) -> Code {
    call(c"cuEventElapsedTime", |state| {
        let time = |event: u64| state.events.get(&event).map(|recorded| recorded.at).ok_or(INVALID_HANDLE);
        let elapsed = time(end)?.saturating_duration_since(time(start)?);
        put(milliseconds, elapsed.as_secs_f32() * 1e3)
    })
}
