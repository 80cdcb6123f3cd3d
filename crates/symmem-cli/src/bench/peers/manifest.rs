//! Which peers are installed, and how each is launched: `peers.json` in their folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::job;

const FOLDER: &str = ".peers";
const FILE: &str = "peers.json";

/// How a peer takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Its launcher starts ranks of this program, which load the peer's library.
    Shim,
    /// It starts its ranks and measures them itself.
    Script,
}

/// An installed peer.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) kind: Kind,
    #[serde(default)]
    pub(super) version: String,
    #[serde(default)]
    pub(super) shim: PathBuf,
    /// The start of its command line; `{ranks}` stands for their number.
    launch: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// More of it for when ranks outnumber cores.
    #[serde(default)]
    env_oversubscribed: BTreeMap<String, String>,
}

impl Peer {
    /// The start of the command line for `ranks` ranks.
    pub(super) fn command(&self, ranks: usize) -> Vec<String> {
        self.launch.iter().map(|word| word.replace("{ranks}", &ranks.to_string())).collect()
    }

    /// Its environment; `crowded` says that ranks outnumber the cores.
    pub(super) fn env(&self, crowded: bool) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        if crowded {
            env.extend(self.env_oversubscribed.clone());
        }
        env
    }
}

/// The installed peers.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// What their paths are relative to.
    pub(super) root: PathBuf,
    folder: PathBuf,
    pub(super) peers: Vec<Peer>,
}

#[derive(Deserialize)]
struct File {
    peers: Vec<Peer>,
}

impl Manifest {
    /// The peers in `folder`, else in the one that is nearest to here or to the program. No peers where there
    /// is none.
    pub(super) fn find(folder: Option<&Path>) -> Result<Self> {
        let folder = std::path::absolute(folder.map_or_else(nearest, Path::to_owned))?;
        let root = folder.parent().unwrap_or(&folder).to_owned();
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(Self { root, folder, peers: Vec::new() });
        }
        let File { peers } = job::read(&path)?;
        for peer in &peers {
            let complete = !peer.launch.is_empty() || peer.kind == Kind::Shim;
            ensure!(complete, "{}: peer {} has no launch command", path.display(), peer.name);
            let loadable = peer.kind == Kind::Script || peer.shim != Path::new("");
            ensure!(loadable, "{}: peer {} has no shim", path.display(), peer.name);
            let taken = ["symmem", "limit"].contains(&peer.name.as_str());
            ensure!(!taken, "{}: no peer can have the name {}", path.display(), peer.name);
        }
        Ok(Self { root, folder, peers })
    }

    /// The folder, for people.
    pub(super) fn folder(&self) -> std::path::Display<'_> {
        self.folder.display()
    }
}

/// The folder of peers nearest to here, else to the program; the one here where there is none.
fn nearest() -> PathBuf {
    let places = [std::env::current_dir(), std::env::current_exe()];
    let above = places.iter().flatten().flat_map(|place| place.ancestors());
    let mut folders = above.map(|place| place.join(FOLDER));
    folders.find(|folder| folder.join(FILE).exists()).unwrap_or_else(|| PathBuf::from(FOLDER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_environment_are_filled_in() {
        let text = r#"{"name": "mpi", "kind": "shim", "shim": "a.so", "launch": ["mpiexec", "-n", "{ranks}"],
            "env": {"A": "1", "B": "1"}, "env_oversubscribed": {"B": "2", "C": "2"}}"#;
        let peer: Peer = serde_json::from_str(text).expect("a peer");
        assert_eq!(peer.command(4), ["mpiexec", "-n", "4"]);
        let values = |crowded| peer.env(crowded).into_values().collect::<Vec<_>>().concat();
        assert_eq!((values(false), values(true)), ("11".to_owned(), "122".to_owned()));
    }
}
