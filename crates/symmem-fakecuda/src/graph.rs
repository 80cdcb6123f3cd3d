//! Graphs: nothing is recorded, but what a graph keeps alive is.

use std::ffi::{c_uint, c_void};

use crate::control;
use crate::result::{Code, INVALID_HANDLE, INVALID_VALUE, SUCCESS, UNKNOWN, call, put};
use crate::state::{State, state};

/// Something that goes when the last graph that keeps it does.
pub(crate) struct UserObject {
    data: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
    references: usize,
}

/// To be called without the lock: it may call the driver.
struct Farewell {
    data: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
}

impl Farewell {
    fn say(self) {
        // SAFETY: what the user handed in with the data, called once.
        unsafe { (self.destroy)(self.data as *mut c_void) };
    }
}

pub(crate) fn new_graph(state: &mut State) -> u64 {
    let number = state.number();
    state.graphs.insert(number, Vec::new());
    number
}

/// Takes `count` references away.
fn release(state: &mut State, object: u64, count: usize) -> Result<Option<Farewell>, Code> {
    let kept =
        state.objects.get_mut(&object).filter(|kept| kept.references >= count).ok_or(INVALID_HANDLE)?;
    kept.references -= count;
    if kept.references > 0 {
        return Ok(None);
    }
    Ok(state.objects.remove(&object).map(|UserObject { data, destroy, .. }| Farewell { data, destroy }))
}

/// Ends a graph; what only it kept is to be told.
fn end(state: &mut State, graph: u64) -> Result<Vec<Farewell>, Code> {
    let kept = state.graphs.remove(&graph).ok_or(INVALID_HANDLE)?;
    Ok(kept.into_iter().filter_map(|(object, count)| release(state, object, count).ok().flatten()).collect())
}

/// Counts the call, does `work` under the lock, and says the farewells without it.
fn call_with_farewells(
    name: &'static std::ffi::CStr,
    work: impl FnOnce(&mut State) -> Result<Vec<Farewell>, Code>,
) -> Code {
    if control::must_fail(name) {
        return UNKNOWN;
    }
    let farewells = work(&mut state());
    match farewells {
        Ok(farewells) => farewells.into_iter().for_each(Farewell::say),
        Err(code) => return code,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(executable: *mut u64, graph: u64, _flags: u64) -> Code {
    call(c"cuGraphInstantiateWithFlags", |state| {
        let kept = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let number = state.number();
        // SAFETY: the caller's place for the result.
        unsafe { put(executable, number) }?;
        for (object, count) in &kept {
            state.objects.get_mut(object).ok_or(INVALID_HANDLE)?.references += count;
        }
        state.graphs.insert(number, kept);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphLaunch(graph: u64, _stream: u64) -> Code {
    call(c"cuGraphLaunch", |state| state.graphs.get(&graph).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(graph: u64) -> Code {
    call_with_farewells(c"cuGraphDestroy", |state| end(state, graph))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(graph: u64) -> Code {
    call_with_farewells(c"cuGraphExecDestroy", |state| end(state, graph))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetNodes(graph: u64, _nodes: *mut u64, count: *mut usize) -> Code {
    call(c"cuGraphGetNodes", |state| {
        state.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
        // SAFETY: the caller's place for the result.
        unsafe { put(count, 0) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetType(_node: u64, _kind: *mut c_uint) -> Code {
    call(c"cuGraphNodeGetType", |_| Err(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuUserObjectCreate(
    object: *mut u64,
    data: *mut c_void,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    references: c_uint,
    _flags: c_uint,
) -> Code {
    call(c"cuUserObjectCreate", |state| {
        let destroy = destroy.filter(|_| references > 0).ok_or(INVALID_VALUE)?;
        let number = state.number();
        // SAFETY: the caller's place for the result.
        unsafe { put(object, number) }?;
        let references = references as usize;
        state.objects.insert(number, UserObject { data: data as usize, destroy, references });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuUserObjectRelease(object: u64, count: c_uint) -> Code {
    call_with_farewells(c"cuUserObjectRelease", |state| {
        release(state, object, count as usize).map(|farewell| farewell.into_iter().collect())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphRetainUserObject(graph: u64, object: u64, count: c_uint, flags: c_uint) -> Code {
    call(c"cuGraphRetainUserObject", |state| {
        let kept = state.objects.get_mut(&object).ok_or(INVALID_HANDLE)?;
        // CU_GRAPH_USER_OBJECT_MOVE: the caller's references become the graph's.
        if flags & 1 == 0 {
            kept.references += count as usize;
        }
        state.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?.push((object, count as usize));
        Ok(())
    })
}
