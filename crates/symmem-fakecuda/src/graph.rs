//! Graphs: what was captured in them, and what they keep alive.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use crate::control;
use crate::node::{Node, NodeWork, give, record, replay};
use crate::result::{Code, INVALID_HANDLE, INVALID_VALUE, Out, SUCCESS, UNKNOWN, call, put, put_at};
use crate::state::{DriverState, state};
use crate::stream::captured;

/// Something that goes when the last graph that keeps it does.
pub(crate) struct UserObject {
    data: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
    references: usize,
}

/// A graph, or an executable form of one.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Objects, and how many references to them.
    kept: Vec<(u64, usize)>,
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

pub(crate) fn new_graph(state: &mut DriverState) -> u64 {
    let number = state.number();
    state.graphs.insert(number, Graph::default());
    number
}

/// Takes `count` references away.
fn release(state: &mut DriverState, object: u64, count: usize) -> Result<Option<Farewell>, Code> {
    let kept =
        state.objects.get_mut(&object).filter(|kept| kept.references >= count).ok_or(INVALID_HANDLE)?;
    kept.references -= count;
    if kept.references > 0 {
        return Ok(None);
    }
    Ok(state.objects.remove(&object).map(|UserObject { data, destroy, .. }| Farewell { data, destroy }))
}

/// Ends a graph; what only it kept is to be told.
fn end(state: &mut DriverState, graph: u64) -> Result<Vec<Farewell>, Code> {
    let kept = state.graphs.remove(&graph).ok_or(INVALID_HANDLE)?.kept;
    Ok(kept.into_iter().filter_map(|(object, count)| release(state, object, count).ok().flatten()).collect())
}

/// Counts the call, does `work` under the lock, and says the farewells without it.
fn call_with_farewells(
    name: &'static std::ffi::CStr,
    work: impl FnOnce(&mut DriverState) -> Result<Vec<Farewell>, Code>,
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

/// Makes another graph of the same work, which keeps the same.
///
/// # Safety
/// `copy` can be written, or is null.
unsafe fn copy_graph(state: &mut DriverState, copy: *mut u64, graph: u64) -> Result<(), Code> {
    let made = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
    let number = state.number();
    // SAFETY: as promised by the caller.
    unsafe { put_at(copy, number) }?;
    for (object, count) in &made.kept {
        state.objects.get_mut(object).ok_or(INVALID_HANDLE)?.references += count;
    }
    state.graphs.insert(number, made);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(executable: *mut u64, graph: u64, _flags: u64) -> Code {
    // SAFETY: the caller's place for the result.
    call(c"cuGraphInstantiateWithFlags", |state| unsafe { copy_graph(state, executable, graph) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphClone(clone: *mut u64, graph: u64) -> Code {
    // SAFETY: the caller's place for the result.
    call(c"cuGraphClone", |state| unsafe { copy_graph(state, clone, graph) })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphCreate(graph: Out<'_, u64>, _flags: c_uint) -> Code {
    call(c"cuGraphCreate", |state| {
        let number = new_graph(state);
        put(graph, number)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddChildGraphNode(
    node: *mut u64,
    graph: u64,
    _dependencies: *const u64,
    _count: usize,
    child: u64,
) -> Code {
    call(c"cuGraphAddChildGraphNode", |state| {
        // The node has a copy of the child, which keeps what the child keeps.
        let Graph { nodes, kept } = state.graphs.get(&child).ok_or(INVALID_HANDLE)?.clone();
        for (object, count) in &kept {
            state.objects.get_mut(object).ok_or(INVALID_HANDLE)?.references += count;
        }
        record(state, graph, &[], NodeWork::Child(nodes))?;
        let parent = state.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?;
        parent.kept.extend(kept);
        let number = parent.nodes.last().map_or(0, |node| node.number);
        // SAFETY: the caller's place for the result.
        unsafe { put_at(node, number) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(graph: u64, stream: u64) -> Code {
    call(c"cuGraphLaunch", |state| {
        let nodes = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.nodes.clone();
        match captured(state, stream)? {
            None => replay(state, &nodes),
            Some(_) => give(state, stream, &[], NodeWork::Child(nodes)),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: u64) -> Code {
    call_with_farewells(c"cuGraphDestroy", |state| end(state, graph))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(graph: u64) -> Code {
    call_with_farewells(c"cuGraphExecDestroy", |state| end(state, graph))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> Code {
    call(c"cuGraphGetNodes", |state| {
        let found = &state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.nodes;
        if !nodes.is_null() {
            // SAFETY: the caller's number, and its room for as many nodes.
            let room = unsafe { std::slice::from_raw_parts_mut(nodes, count.as_ref().copied().unwrap_or(0)) };
            room.iter_mut().zip(found).for_each(|(to, node)| *to = node.number);
        }
        // SAFETY: the caller's place for the result.
        unsafe { put_at(count, found.len()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetType(node: u64, kind: *mut c_uint) -> Code {
    call(c"cuGraphNodeGetType", |state| {
        let mut all = state.graphs.values().flat_map(|graph| &graph.nodes);
        let found = all.find(|known| known.number == node).ok_or(INVALID_HANDLE)?.work.kind();
        // SAFETY: the caller's place for the result.
        unsafe { put_at(kind, found) }
    })
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
        unsafe { put_at(object, number) }?;
        let references = references as usize;
        state.objects.insert(number, UserObject { data: data as usize, destroy, references });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuUserObjectRelease(object: u64, count: c_uint) -> Code {
    call_with_farewells(c"cuUserObjectRelease", |state| {
        release(state, object, count as usize).map(|farewell| farewell.into_iter().collect())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphRetainUserObject(graph: u64, object: u64, count: c_uint, flags: c_uint) -> Code {
    call(c"cuGraphRetainUserObject", |state| {
        let kept = state.objects.get_mut(&object).ok_or(INVALID_HANDLE)?;
        // CU_GRAPH_USER_OBJECT_MOVE: the caller's references become the graph's.
        if flags & 1 == 0 {
            kept.references += count as usize;
        }
        state.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?.kept.push((object, count as usize));
        Ok(())
    })
}
