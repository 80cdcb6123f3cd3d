//! By which way an import reaches a room: from `crate::` by the room's name. The root hands things on to
//! users of the crate and not to its rooms, and `super::` stays in a room, so that a reader sees at the
//! import which room it is from.

use super::imports::{ELSEWHERE, Import};
use super::rooms::{FROM_ROOT, Rooms, room_of_module};
use crate::source::File;

/// What is wrong with the way of an import, with its file and line.
pub(super) fn detour(rooms: &Rooms, file: &File, import: &Import) -> Option<String> {
    let room = room_of_module(&file.module);
    let depth = room.split('/').count();
    let written = from_root(&import.path);
    let problem = if import.up_to.is_some_and(|up_to| up_to < depth) {
        format!("`super::` leaves the room `{room}`")
    } else if rooms.goes_through_root(&import.path) {
        format!("`{written}` comes through the crate's root, and only {} may", FROM_ROOT.join(" and "))
    } else {
        return None;
    };
    let direct = from_root(&rooms.resolved(&import.path));
    let hint = if direct == written && import.up_to.is_none() {
        "; name what is needed of it, from its room".to_owned()
    } else {
        format!("; it is `{direct}`")
    };
    Some(format!("{}:{}: {problem}{hint}", file.path, import.line))
}

/// A path as code has it.
fn from_root(path: &[String]) -> String {
    match path {
        [elsewhere, path @ ..] if elsewhere == ELSEWHERE => path.join("::"),
        [] => "crate".to_owned(),
        _ => format!("crate::{}", path.join("::")),
    }
}
