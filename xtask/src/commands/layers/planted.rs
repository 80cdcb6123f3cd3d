//! Edges planted into a small library: each way to name a room is found, and none in test code.

use super::graph::Graph;
use super::judge::{judge, shrunk};
use super::page;
use super::table::LayerTable;
use crate::source::{File, Sources};

const TABLE: &str = "[settings]\ncycle = 0\nshare = 100\n[rows]\nmemory | memory | product\n\
    engines | engine/cpu engine/cuda | work\nengine | engine | contract\ngroup | group | ranks\n\
    [leaves]\nerror | - | failures\nsys | error | system\ndevice | error | driver\n[ratchet]\n";

const LIB: &str = "mod engine; mod error; mod group; mod memory; mod sys;\n\
    pub use error::{Error, Failures, Result};\npub use group::Group;\npub use memory::{Allocation, element::DType as Kind};\n\
    pub use symmem_store as store;\npub use sys::fault;\npub fn own() {}\nuse memory as old;\n\
    pub mod device { mod stream; pub use stream::Stream; pub use self::stream::Lane; pub use crate::memory::Block;\n\
    pub use symmem_store::Wait; use crate::memory::View; }\n\
    pub mod hidden { pub use crate::memory::*; }";

/// A library in which nothing is wrong, but for `text` in the file `path`.
fn library(path: &str, text: &str) -> Graph {
    let mut files = vec![
        ("lib.rs", LIB),
        (
            "engine/mod.rs",
            "pub(crate) mod cpu; pub(crate) mod cuda; pub(crate) use cuda::Kernels; use crate::group;",
        ),
        ("device/stream.rs", "use super::Lane; use crate::error::Error;"),
        ("engine/cpu.rs", "use crate::engine::Contract; use crate::{Result, group::Group};"),
        (
            "engine/cuda/mod.rs",
            "mod lane; use lane::Lane; use crate::device::{self, Stream}; use crate::sys;",
        ),
        ("error.rs", "use std::fmt;"),
        (
            "group/mod.rs",
            "mod join; pub use join::Join; use crate::{Error, sys::fault}; use symmem_store as store;",
        ),
        ("group/join.rs", "use super::Group; use crate::sys::fork;"),
        ("memory/mod.rs", "mod element; use crate::engine::{cpu, Kernels};"),
        ("memory/element.rs", "use super::Allocation; use crate::Error;"),
        ("sys/mod.rs", "use crate::error::Error;"),
    ];
    files.retain(|(other, _)| *other != path);
    files.push((path, text));
    let read = |(path, text): (&str, &str)| File::new(path, text.to_owned()).expect("Rust");
    Graph::of(&Sources::of(files.into_iter().map(read).collect()))
}

fn wrong(path: &str, text: &str) -> Vec<String> {
    judge(&library(path, text), &LayerTable::parse(TABLE).expect("a table"))
}

fn is_found(path: &str, text: &str, edge: &str) {
    let wrong = wrong(path, text);
    assert!(wrong.iter().any(|line| line.starts_with(edge)), "{path}: {text}: {wrong:?}");
}

#[test]
fn the_library_without_a_planted_edge_is_fine() {
    assert_eq!(wrong("group/seal.rs", "use crate::sys::secret;"), [""; 0]);
}

#[test]
fn a_planted_edge_of_each_kind_is_found() {
    for text in [
        "use crate::memory::Block;",
        "pub(crate) use crate::memory::Block;",
        "pub use crate::memory;",
        "use crate::{Error, memory::{view::{Peer, Local}, Block}, sys};",
        "use {crate::memory};",
        "fn f() -> crate::memory::Block { g() }",
        "fn f() { let x = crate::memory::table::<u8>(); }",
        "macro_rules! m { () => { $crate::memory::f() }; }",
        "fn f() { trace!(x = crate::memory::f()); }",
        "use crate::Allocation;",
        "use crate::{Kind as Other, Result};",
        "fn f(x: crate::Kind) {}",
        "use super::memory::Block;",
        "use super::Allocation;",
        "mod inner { use super::super::memory::Block; }",
        "mod inner { fn f(x: &super::super::Allocation) {} }",
        "#[cfg(feature = \"faults\")] use crate::memory::Block;",
        "use crate::old::Block;",
        "use crate::device::Block;",
        "use crate::hidden::Block;",
        "#[cfg(any(test, feature = \"faults\"))] mod tests { use crate::memory::Block; }",
    ] {
        is_found("group/mod.rs", text, "group -> memory: the table does not allow it");
    }
    is_found("group/join.rs", "use super::super::memory::Block;", "group -> memory");
    is_found("error.rs", "use crate::sys::fork;", "error -> sys");
    is_found("error.rs", "use super::group::Group;", "error -> group");
}

#[test]
fn parts_of_engine_and_provider_are_rooms() {
    is_found("engine/cuda/mod.rs", "use super::cpu::barrier;", "engine/cuda -> engine/cpu");
    is_found("engine/cuda/lane.rs", "fn f() { super::super::cpu::barrier() }", "engine/cuda -> engine/cpu");
    is_found("group/mod.rs", "use crate::engine::Kernels;", "group -> engine/cuda");
    is_found("group/mod.rs", "use crate::engine; fn f() { engine::cpu::barrier() }", "group -> engine/cpu");
    is_found("engine/mod.rs", "mod cpu; mod cuda; fn f() { cpu::barrier() }", "engine -> engine/cpu");
    is_found("engine/mod.rs", "mod cpu; mod cuda; use self::cuda::Lane;", "engine -> engine/cuda");
    is_found("engine/mod.rs", "mod cpu; mod cuda; pub(crate) use crate::memory::Block;", "engine -> memory");
}

/// The only thing that is wrong is the way of the import.
fn is_detour(path: &str, text: &str, message: &str) {
    assert_eq!(wrong(path, text), [message], "{path}: {text}");
}

#[test]
fn nothing_comes_through_the_root_but_error_and_result() {
    let only = "comes through the crate's root, and only Error and Result may";
    for (text, written, direct) in [
        ("use crate::fault;", "crate::fault", "crate::sys::fault"),
        ("use crate::{Error, fault::point};", "crate::fault::point", "crate::sys::fault::point"),
        ("pub(crate) use crate::fault as points;", "crate::fault", "crate::sys::fault"),
        ("fn f() { crate::fault::point() }", "crate::fault::point", "crate::sys::fault::point"),
        ("macro_rules! m { () => { $crate::fault::f() } }", "crate::fault::f", "crate::sys::fault::f"),
        ("mod inner { use crate::fault; }", "crate::fault", "crate::sys::fault"),
        ("use crate::Failures;", "crate::Failures", "crate::error::Failures"),
        ("use crate::Group;", "crate::Group", "crate::group::Group"),
        ("use crate::store::Wait;", "crate::store::Wait", "symmem_store::Wait"),
        ("use crate::device::Wait;", "crate::device::Wait", "symmem_store::Wait"),
        ("use crate::device; fn f(x: device::Wait) {}", "crate::device::Wait", "symmem_store::Wait"),
        ("use crate::device as d; fn f(x: d::Wait) {}", "crate::device::Wait", "symmem_store::Wait"),
    ] {
        is_detour("group/mod.rs", text, &format!("group/mod.rs:1: `{written}` {only}; it is `{direct}`"));
    }
    is_detour(
        "group/mod.rs",
        "use crate::device::*;",
        &format!("group/mod.rs:1: `crate::device::*` {only}; name what is needed of it, from its room"),
    );
    for text in ["use crate::Allocation;", "use crate::old::Block;", "use crate::hidden::Block;"] {
        let wrong = wrong("memory/view.rs", text);
        assert!(wrong.len() == 1 && wrong[0].contains(only), "{text}: {wrong:?}");
    }
    for name in ["Block", "View"] {
        let found = format!("device/stream.rs:1: `crate::device::{name}` comes through");
        is_found("device/stream.rs", &format!("use super::{name};"), &found);
    }
    is_found("group/mod.rs", "use crate::*;", "group -> lib");
    is_found("group/mod.rs", "use crate as root; fn f(x: root::Group) {}", "group -> lib");
}

#[test]
fn what_may_come_through_the_root_and_what_rooms_hand_on_is_fine() {
    for text in [
        "use crate::{Error as Failure, Result};",
        "fn f() -> crate::Result<()> { Err(crate::Error::Gone) }",
        "use crate::device::{Lane, Stream}; fn f(x: crate::device::Own) {}",
        "use crate::sys::{fault, fork};",
    ] {
        assert_eq!(wrong("group/mod.rs", text), [""; 0], "{text}");
    }
    assert_eq!(wrong("memory/view.rs", "use crate::engine::Kernels;"), [""; 0]);
}

#[test]
fn super_never_leaves_a_room() {
    for (path, text, room, direct) in [
        ("group/mod.rs", "use super::sys::fork;", "group", "crate::sys::fork"),
        ("group/mod.rs", "use super::Error;", "group", "crate::error::Error"),
        ("group/mod.rs", "use super::fault;", "group", "crate::sys::fault"),
        ("group/mod.rs", "use super::store::Wait;", "group", "symmem_store::Wait"),
        ("group/mod.rs", "mod inner { use super::super::sys::fork; }", "group", "crate::sys::fork"),
        ("group/join.rs", "use super::super::sys::fork;", "group", "crate::sys::fork"),
        ("group/join.rs", "use super::{Group, super::sys::fork};", "group", "crate::sys::fork"),
        ("group/join.rs", "use self::super::super::sys::fork;", "group", "crate::sys::fork"),
        ("group/join.rs", "fn f() { super::super::sys::fork() }", "group", "crate::sys::fork"),
        ("group/join.rs", "use super::super::group::Group;", "group", "crate::group::Group"),
        ("memory/mod.rs", "use super::engine;", "memory", "crate::engine"),
        ("engine/cpu.rs", "use super::Contract;", "engine/cpu", "crate::engine::Contract"),
        ("engine/cuda/lane.rs", "use super::super::Contract;", "engine/cuda", "crate::engine::Contract"),
        ("error.rs", "use super::error::Cause;", "error", "crate::error::Cause"),
    ] {
        is_detour(path, text, &format!("{path}:1: `super::` leaves the room `{room}`; it is `{direct}`"));
    }
    let handed_on = "mod cpu; mod cuda; pub use super::engine::cuda::Kernels;";
    is_found("engine/mod.rs", handed_on, "engine/mod.rs:1: `super::` leaves the room `engine`");
}

#[test]
fn super_inside_of_a_room_is_fine() {
    for (path, text) in [
        ("group/join.rs", "use super::{Group, join}; mod inner { use super::super::Group; }"),
        ("group/mod.rs", "mod inner { use super::Group; } pub(super) fn f() {}"),
        ("engine/cuda/lane.rs", "use super::Kernels;"),
    ] {
        assert_eq!(wrong(path, text), [""; 0], "{text}");
    }
}

#[test]
fn a_detour_has_its_line() {
    let wrong = wrong("group/join.rs", "use std::fmt;\n\nuse crate::{\n    Error,\n    fault,\n};\n");
    assert!(wrong[0].starts_with("group/join.rs:5: `crate::fault`"), "{wrong:?}");
}

#[test]
fn what_is_in_the_root_itself_may_not_be_imported() {
    is_found("group/mod.rs", "fn f() { crate::own() }", "group -> lib: nothing may be imported");
}

#[test]
fn test_code_is_no_edge() {
    for text in [
        "#[cfg(test)] mod tests { use crate::memory::Block; }",
        "#[cfg(test)] use crate::memory::Block;",
        "#[cfg(all(test, feature = \"faults\"))] fn f() { crate::memory::f() }",
        "#[cfg(test)] mod reference;",
        "#[cfg(test)] mod tests { use crate::{Kind, fault}; use super::super::sys; }",
        "/// Of [`crate::memory`].\n// crate::memory\nfn f() -> &'static str { \"crate::memory\" }",
    ] {
        assert_eq!(wrong("group/mod.rs", text), [""; 0], "{text}");
    }
    for path in ["group/tests.rs", "group/testing.rs", "group/tests/more.rs"] {
        assert_eq!(wrong(path, "use crate::memory::Block;"), [""; 0], "{path}");
    }
}

#[test]
fn the_message_names_file_line_and_path() {
    let wrong = wrong("group/mod.rs", "use std::fmt;\nuse crate::Kind;");
    assert!(wrong[0].ends_with("\n    group/mod.rs:2 memory::element::DType"), "{wrong:?}");
}

#[test]
fn the_list_only_shrinks() {
    let graph = library("group/mod.rs", "use crate::memory::{Block, View};");
    let with = |listed: &str, cycle: &str| {
        LayerTable::parse(&(TABLE.replace("cycle = 0", cycle) + listed)).expect("a table")
    };
    let wrong = |listed, cycle| judge(&graph, &with(listed, cycle));
    assert_eq!(wrong("group -> memory 2\n", "cycle = 4"), [""; 0]);
    assert!(wrong("group -> memory 1\n", "cycle = 4")[0].contains("only 1 imports are listed"));
    assert!(wrong("group -> memory 3\n", "cycle = 4")[0].contains("has 2 imports and not 3: lower it"));
    assert!(wrong("group -> memory 2\nsys -> group 1\n", "cycle = 4")[0].contains("remove it from the list"));
    assert!(
        wrong("group -> memory 2\nmemory -> group 1\n", "cycle = 4")[0].contains("remove it from the list")
    );
    assert!(
        wrong("group -> memory 2\n", "cycle = 3")[0].starts_with("a cycle of 4 rooms, at most 3 are fine")
    );
    assert!(wrong("group -> memory 2\n", "cycle = 5")[0].contains("has 4 rooms and not 5: lower it"));
}

#[test]
fn writing_takes_out_what_is_gone_and_adds_nothing_unasked() {
    let graph = library("group/mod.rs", "use crate::memory::{Block, View}; use crate::engine::cpu;");
    let table =
        LayerTable::parse(&(TABLE.to_owned() + "group -> memory 3\nsys -> group 1\n")).expect("a table");
    let list = |table: &LayerTable| table.render().split_once("[ratchet]\n").expect("a list").1.to_owned();
    assert_eq!(list(&shrunk(&graph, &table, false)), "group -> memory 2\n");
    assert_eq!(list(&shrunk(&graph, &table, true)), "group -> engine/cpu 1\ngroup -> memory 2\n");
    assert_eq!(judge(&graph, &shrunk(&graph, &table, true)), [""; 0]);
}

#[test]
fn a_room_without_a_row_and_a_room_that_is_too_large_are_found() {
    assert_eq!(wrong("mail/mod.rs", "fn f() {}"), ["the room `mail` has no row in the table"]);
    let table = LayerTable::parse(&TABLE.replace("share = 100", "share = 20")).expect("a table");
    let wrong = judge(&library("group/mod.rs", &"fn f() {}\n".repeat(90)), &table);
    assert!(
        wrong.iter().any(|line| line.starts_with("`group` has 8") && line.contains("at most 20 %")),
        "{wrong:?}"
    );
}

#[test]
fn the_page_shows_the_rooms_that_are_there() {
    let table =
        LayerTable::parse(&TABLE.replace("| memory | product", "| memory mail | product")).expect("a table");
    let page = page::render(&library("sys/mod.rs", "use std::fs;"), &table);
    assert!(page.contains("| memory | `memory` | product |\n"), "{page}");
    assert!(page.contains("| `sys` | `error` | system |\n"), "{page}");
    assert!(page.ends_with("Nothing is imported against this table.\n"), "{page}");
}
