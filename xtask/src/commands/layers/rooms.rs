//! The rooms of the library: each direct child of `src`, and each part of `engine` and `provider`. Says which
//! room a path belongs to.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{ELSEWHERE, Import, imports};
use crate::source::{File, Sources};

/// Folders whose children are rooms of their own.
const PARTED: [&str; 2] = ["engine", "provider"];

/// What is in `lib.rs` itself.
pub(super) const ROOT: &str = "lib";

/// What every room may import from the root.
pub(super) const FROM_ROOT: [&str; 2] = ["Error", "Result"];

/// The rooms, and what the root and the parted folders hand on of them.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: BTreeSet<String>,
    /// Every module that is a file.
    modules: BTreeSet<Vec<String>>,
    /// By the name that it has outside: `DType`, `provider::Shm`.
    handed_on: BTreeMap<Vec<String>, Vec<String>>,
}

impl Rooms {
    pub(super) fn of(sources: &Sources) -> Self {
        let mut all = Self::default();
        for file in sources.files.iter().filter(|file| !file.module.is_empty()) {
            all.rooms.insert(room_of_module(&file.module));
            all.modules.insert(file.module.clone());
        }
        let faces = sources.files.iter().filter(|file| all.is_face(&file.module));
        let handed_on: Vec<_> = faces.flat_map(|file| all.hand_on(file)).collect();
        all.handed_on.extend(handed_on);
        all
    }

    /// Whether others reach rooms through this module: the root, `engine`, `provider`.
    pub(super) fn is_face(&self, module: &[String]) -> bool {
        match module {
            [] => true,
            [name] => PARTED.contains(&name.as_str()),
            _ => false,
        }
    }

    /// What others reach through this face, by its name there. The root's own `use` is seen by the whole
    /// crate, public or not; it also has modules that only hand on, so that the interface of the crate is not
    /// that of its rooms.
    fn hand_on(&self, file: &File) -> Vec<(Vec<String>, Vec<String>)> {
        let is_root = file.module.is_empty();
        let named = |import: Import| {
            let is_seen = if import.module == file.module {
                is_root || import.path.starts_with(&file.module)
            } else {
                is_root && !self.is_of_its_module(&import)
            };
            let name = import.name.filter(|_| is_seen)?;
            let outside = [import.module.as_slice(), &[name]].concat();
            (outside != import.path).then_some((outside, import.path))
        };
        let children = self.children(&file.module);
        imports(&file.tokens, &file.module, &children).into_iter().filter_map(named).collect()
    }

    /// Whether a module inside of the root's file hands on what a file below it has:
    /// `mod stream; pub use stream::Stream;`.
    fn is_of_its_module(&self, import: &Import) -> bool {
        let [elsewhere, first, ..] = import.path.as_slice() else { return false };
        let child = [import.module.as_slice(), std::slice::from_ref(first)].concat();
        elsewhere == ELSEWHERE && self.modules.contains(&child)
    }

    /// The rooms that a face names without `crate::` or `self::`, because they are its children.
    fn children(&self, module: &[String]) -> BTreeMap<String, Vec<String>> {
        let inside = |room: &String| -> Option<(String, Vec<String>)> {
            let path: Vec<String> = room.split('/').map(str::to_owned).collect();
            let is_child = path.len() == module.len() + 1 && path.starts_with(module);
            path.last().cloned().filter(|_| is_child).map(|name| (name, path))
        };
        if self.is_face(module) { self.rooms.iter().filter_map(inside).collect() } else { BTreeMap::new() }
    }

    /// Everything a file names of its crate; through names of modules that hand on what others have, too.
    pub(super) fn imports(&self, file: &File) -> Vec<Import> {
        let mut known = self.children(&file.module);
        let first = imports(&file.tokens, &file.module, &known);
        let names = first.iter().filter(|import| self.is_name(import) || self.hands_on_others(&import.path));
        known.extend(names.filter_map(|import| Some((import.name.clone()?, import.path.clone()))));
        imports(&file.tokens, &file.module, &known)
    }

    /// Whether an import reaches something, so that it is an edge.
    pub(super) fn reaches(&self, file: &File, import: &Import) -> bool {
        // What is reached through the name counts; the name alone reaches nothing.
        let is_name_alone = self.is_name(import) && import.name.is_some();
        !is_name_alone && !self.hands_on(file, import)
    }

    /// Whether it is `engine` or `provider`, of which only the parts count.
    fn is_name(&self, import: &Import) -> bool {
        !import.path.is_empty() && self.is_face(&import.path)
    }

    /// Whether a face only hands on what belongs to a room below it; the root hands on other crates, too.
    fn hands_on(&self, file: &File, import: &Import) -> bool {
        let is_below = import.path.starts_with(&file.module) && import.path.len() > file.module.len() + 1;
        self.is_face(&file.module) && import.is_public && is_below
    }

    /// The room of a path, and the path by which that room has it; none if it belongs to another crate.
    pub(super) fn of_path(&self, path: &[String]) -> Option<(String, Vec<String>)> {
        let path = self.resolved(path);
        let room = match path.as_slice() {
            [] => ROOT.to_owned(),
            [first, ..] if first == ELSEWHERE => return None,
            [first, ..] => {
                let room = self.find(&path);
                room.unwrap_or_else(|| if self.is_folder(first) { first.clone() } else { ROOT.to_owned() })
            }
        };
        Some((room, path))
    }

    /// Where a path leads, by all names that are handed on.
    pub(super) fn resolved(&self, path: &[String]) -> Vec<String> {
        let mut path = path.to_vec();
        // Each turn follows one name; there are no more faces than a module of the root, the root, and a
        // parted folder.
        for _ in 0..4 {
            let Some((_, next)) = self.follow(&path) else { break };
            path = next;
        }
        path
    }

    /// Whether a path goes by a name that `lib.rs` hands on of another room or crate, and that is not one of
    /// [`FROM_ROOT`].
    pub(super) fn goes_through_root(&self, path: &[String]) -> bool {
        let by_star = || match path {
            [module @ .., star] => star == "*" && self.hands_on_others(module),
            [] => false,
        };
        self.follow(path).is_some_and(|(name, _)| self.is_of_root(&name)) || by_star()
    }

    /// Whether a module that is inside of the root's file hands on what is not its own.
    fn hands_on_others(&self, module: &[String]) -> bool {
        let is_in = |name: &Vec<String>| name.len() == module.len() + 1 && name.starts_with(module);
        !module.is_empty() && self.handed_on.keys().any(|name| is_in(name) && self.is_of_root(name))
    }

    /// Whether it is the root that hands on this name, of another room than the one that the name is in.
    fn is_of_root(&self, name: &[String]) -> bool {
        let (is_alone, face) = (name.len() == 1, &name[..name.len() - 1]);
        let is_roots = is_alone || !self.is_face(face);
        let is_fine = is_alone && FROM_ROOT.contains(&name[0].as_str());
        let room = self.of_path(name).map(|(room, _)| room);
        is_roots && !is_fine && room != Some(room_of_module(name))
    }

    /// The name that a path starts with and that is handed on, and where the path leads by it; by `*` only if
    /// no room is called as its first word.
    fn follow(&self, path: &[String]) -> Option<(Vec<String>, Vec<String>)> {
        let by_name = |end: usize| {
            let (name, rest) = path.split_at(end);
            Some((name.to_vec(), [self.handed_on.get(name)?.as_slice(), rest].concat()))
        };
        let by_star = |end: usize| {
            let star = [&path[..end], &["*".to_owned()]].concat();
            let target = self.handed_on.get(&star).filter(|_| !self.rooms.contains(&path[0]))?;
            let next = [&target[..target.len() - 1], &path[end..]].concat();
            Some((star, next))
        };
        (1..=path.len()).rev().find_map(by_name).or_else(|| (1..path.len()).rev().find_map(by_star))
    }

    fn find(&self, path: &[String]) -> Option<String> {
        let parted = PARTED.contains(&path[0].as_str()).then(|| path[..path.len().min(2)].join("/"));
        parted.into_iter().chain([path[0].clone()]).find(|room| self.rooms.contains(room))
    }

    fn is_folder(&self, name: &str) -> bool {
        PARTED.contains(&name) && self.rooms.iter().any(|room| room.starts_with(&format!("{name}/")))
    }
}

/// The room that the code of a module is in.
pub(super) fn room_of_module(module: &[String]) -> String {
    match module {
        [] => ROOT.to_owned(),
        [first, part, ..] if PARTED.contains(&first.as_str()) => format!("{first}/{part}"),
        [first, ..] => first.clone(),
    }
}
