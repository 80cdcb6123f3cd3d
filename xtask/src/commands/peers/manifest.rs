//! `.peers/peers.json`: what the bench reads to find and launch the peers.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

const FILE: &str = "peers.json";

/// How the bench calls a peer.
pub(super) enum Kind {
    /// A library with the functions of `peers/peers.h`; the bench itself is launched.
    Shim(PathBuf),
    /// A program that starts its own ranks and runs the loop itself.
    Script,
}

/// A variable of the environment, and its value.
pub(super) type Variable = (&'static str, String);

/// One peer as the manifest shows it.
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) version: String,
    /// `{ranks}` stands for the number of ranks.
    pub(super) launch: Vec<String>,
    pub(super) env: Vec<Variable>,
    /// Set in addition when there are more ranks than cores.
    pub(super) env_oversubscribed: Vec<Variable>,
}

impl Entry {
    fn to_json(&self, name: &str) -> Value {
        let mut entry = json!({
            "name": name,
            "version": self.version,
            "launch": self.launch,
            "env": to_map(&self.env),
        });
        match &self.kind {
            Kind::Shim(path) => {
                entry["kind"] = "shim".into();
                entry["shim"] = path.display().to_string().into();
            }
            Kind::Script => entry["kind"] = "script".into(),
        }
        if !self.env_oversubscribed.is_empty() {
            entry["env_oversubscribed"] = to_map(&self.env_oversubscribed);
        }
        entry
    }
}

fn to_map(variables: &[Variable]) -> Value {
    let map: Map<_, _> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect();
    map.into()
}

/// The peers that are ready, by name.
#[derive(Default)]
pub(super) struct Manifest {
    peers: BTreeMap<String, Value>,
}

impl Manifest {
    /// Reads the manifest in `folder`; an absent one is empty.
    pub(super) fn load(folder: &Path) -> Result<Self> {
        let file = folder.join(FILE);
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| format!("{} cannot be read", file.display()))?,
        };
        let hint = || format!("{} is damaged; delete it and run the command again", file.display());
        Self::parse(&text).with_context(hint)
    }

    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)?;
        let list = value["peers"].as_array().context("it has no list of peers")?;
        let named = |peer: &Value| Some((peer["name"].as_str()?.to_owned(), peer.clone()));
        let peers: BTreeMap<_, _> = list.iter().filter_map(named).collect();
        ensure!(peers.len() == list.len(), "each peer needs its own name");
        Ok(Self { peers })
    }

    pub(super) fn insert(&mut self, name: &str, entry: &Entry) {
        self.peers.insert(name.to_owned(), entry.to_json(name));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.peers.remove(name);
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.peers.keys().map(String::as_str).collect()
    }

    /// The version of a peer that is ready.
    pub(super) fn version(&self, name: &str) -> Option<&str> {
        self.peers.get(name)?["version"].as_str()
    }

    /// Writes the manifest, the peers of `order` in that order; others are dropped.
    pub(super) fn save(&self, folder: &Path, order: &[&str]) -> Result<()> {
        let file = folder.join(FILE);
        let peers: Vec<_> = order.iter().filter_map(|&name| self.peers.get(name)).collect();
        let text = format!("{:#}\n", json!({ "peers": peers }));
        // Renamed into place: a bench that starts now reads the old manifest or the new one, never half of
        // one.
        let fresh = folder.join(format!("{FILE}.{}", std::process::id()));
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&fresh, text))
            .and_then(|()| fs::rename(&fresh, &file))
            .with_context(|| format!("{} cannot be written", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Entry {
        pub(in super::super) fn example() -> Self {
            Self {
                kind: Kind::Shim("/w/.peers/x/libpeer.so".into()),
                version: "X 1.0".into(),
                launch: vec!["mpiexec".into(), "-n".into(), "{ranks}".into()],
                env: vec![("A", "1".into())],
                env_oversubscribed: vec![("B", "2".into())],
            }
        }
    }

    /// A folder of its own, removed afterwards.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("xtask-peers-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_shim_is_written_as_the_bench_reads_it() {
        let expected = json!({
            "name": "x", "kind": "shim", "version": "X 1.0", "shim": "/w/.peers/x/libpeer.so",
            "launch": ["mpiexec", "-n", "{ranks}"], "env": {"A": "1"}, "env_oversubscribed": {"B": "2"},
        });
        assert_eq!(Entry::example().to_json("x"), expected);
    }

    #[test]
    fn a_script_has_no_shim() {
        let script =
            Entry { kind: Kind::Script, env_oversubscribed: vec![], ..Entry::example() }.to_json("x");
        assert_eq!(script["kind"], "script");
        assert!(script.get("shim").is_none() && script.get("env_oversubscribed").is_none());
    }

    #[test]
    fn what_was_saved_is_loaded_in_the_given_order() {
        let folder = Folder::new("saved");
        let mut manifest = Manifest::default();
        ["a", "b", "gone"].iter().for_each(|name| manifest.insert(name, &Entry::example()));
        manifest.remove("gone");
        manifest.save(&folder.0, &["b", "a", "gone"]).expect("a writable folder");
        let text = fs::read_to_string(folder.0.join(FILE)).expect("a manifest");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let names: Vec<_> =
            value["peers"].as_array().expect("a list").iter().map(|peer| &peer["name"]).collect();
        assert_eq!(names, ["b", "a"]);
        let loaded = Manifest::load(&folder.0).expect("a good manifest");
        assert_eq!(loaded.names(), ["a", "b"]);
        assert_eq!(loaded.version("a"), Some("X 1.0"));
        assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 1, "nothing else is left behind");
    }

    #[test]
    fn an_absent_manifest_is_empty() {
        assert!(Manifest::load(Path::new("/no/such/folder")).expect("empty").names().is_empty());
    }

    #[test]
    fn a_damaged_manifest_is_a_clear_error() {
        for text in ["", "{}", r#"{"peers": [{"kind": "shim"}]}"#] {
            assert!(Manifest::parse(text).is_err(), "{text}");
        }
        let folder = Folder::new("damaged");
        fs::create_dir_all(&folder.0).expect("a folder");
        fs::write(folder.0.join(FILE), "nonsense").expect("a file");
        let error = Manifest::load(&folder.0).err().expect("damaged");
        assert!(error.to_string().ends_with("is damaged; delete it and run the command again"), "{error}");
    }
}
