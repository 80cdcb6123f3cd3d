//! `cargo xtask peers`: sets up the systems that `symmem bench --peers` compares symmem with.
//!
//! Everything lands in the ignored folder `.peers`. A peer enters the manifest there only after each of its
//! operations gave the right result; one that cannot be had on this machine is left out, and the reason
//! printed.

mod manifest;
mod mpi;
mod setup;
mod torch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bounded;
use crate::workspace::Workspace;
use manifest::{Entry, Manifest};
use setup::Setup;

/// Ignored by git; kept between runs.
const FOLDER: &str = ".peers";

/// What one peer may take: the largest is a download of half a gigabyte.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A system to compare with.
struct Peer {
    name: &'static str,
    about: &'static str,
    /// What it keeps inside `.peers`; several peers may share a folder.
    folders: &'static [&'static str],
    set_up: fn(&Setup) -> Result<Entry>,
}

const PEERS: [Peer; 6] = [
    Peer {
        name: "impi",
        about: "Intel MPI, 250 MB with the MPICH headers it is built with",
        folders: &["impi", "mpich"],
        set_up: mpi::impi,
    },
    Peer { name: "mpich", about: "MPICH, 60 MB", folders: &["mpich"], set_up: mpi::mpich },
    Peer { name: "openmpi", about: "Open MPI, 45 MB", folders: &["openmpi"], set_up: mpi::openmpi },
    Peer {
        name: "gloo",
        about: "Gloo as torch calls it, 1.5 GB of torch",
        folders: &["gloo", "torch"],
        set_up: torch::gloo,
    },
    Peer {
        name: "deepspeed",
        about: "DeepSpeed's all-reduce over shared memory, on the same torch",
        folders: &["deepspeed", "torch"],
        set_up: torch::deepspeed,
    },
    Peer {
        name: "vllm",
        about: "vLLM's shared memory for CPUs, on the same torch",
        folders: &["vllm", "torch"],
        set_up: torch::vllm,
    },
];

/// Which peers, and what to do with them.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// The peers; all of them if none is named.
    #[arg(value_name = "NAME", value_delimiter = ',')]
    names: Vec<String>,
    /// Print the peers and whether each is set up, and end.
    #[arg(long, conflicts_with = "remove")]
    list: bool,
    /// Remove the peers instead of setting them up.
    #[arg(long)]
    remove: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = choose(&options.names)?;
    let workspace = Workspace::find()?;
    let folder = workspace.path(FOLDER);
    let mut manifest = Manifest::load(&folder)?;
    if options.list {
        list(&chosen, &manifest);
        return Ok(());
    }
    if options.remove {
        return remove(&chosen, &folder, &mut manifest);
    }
    let failed = set_up_all(&chosen, &workspace, &folder, &mut manifest)?;
    let ready = manifest.names().join(", ");
    println!("ready: {}", if ready.is_empty() { "none" } else { &ready });
    // A peer that nobody asked for by name may be absent.
    match options.names.is_empty() || failed.is_empty() {
        true => Ok(()),
        false => bail!("not set up: {}", failed.join(", ")),
    }
}

/// The Python environment with torch that several peers share; set up by `deadline` if it is not there yet.
pub(crate) fn torch_environment(workspace: &Workspace, deadline: Instant) -> Result<PathBuf> {
    let folder = workspace.path(FOLDER);
    torch::install(&Setup::new(workspace, &folder, "torch", deadline))
}

/// The named peers in their fixed order, or all.
fn choose(names: &[String]) -> Result<Vec<&'static Peer>> {
    if let Some(unknown) = names.iter().find(|&name| PEERS.iter().all(|peer| peer.name != name)) {
        let known: Vec<_> = PEERS.iter().map(|peer| peer.name).collect();
        bail!("there is no peer `{unknown}`; the peers are {}", known.join(", "));
    }
    let wanted = |peer: &&Peer| names.is_empty() || names.iter().any(|name| name == peer.name);
    Ok(PEERS.iter().filter(wanted).collect())
}

fn list(chosen: &[&Peer], manifest: &Manifest) {
    for peer in chosen {
        let state = manifest.version(peer.name).unwrap_or("not set up");
        println!("{:<10} {:<60} {state}", peer.name, peer.about);
    }
}

/// Sets the peers up one after the other; returns the names of those that could not be had.
fn set_up_all(
    chosen: &[&Peer],
    workspace: &Workspace,
    folder: &Path,
    manifest: &mut Manifest,
) -> Result<Vec<&'static str>> {
    let mut failed = Vec::new();
    for (index, peer) in chosen.iter().enumerate() {
        println!("[{}/{}] {}: {}", index + 1, chosen.len(), peer.name, peer.about);
        let started = Instant::now();
        let setup = Setup::new(workspace, folder, peer.name, started + LIMIT);
        match (peer.set_up)(&setup) {
            Ok(entry) => {
                println!("{}: ready in {:.1} s\n", peer.name, started.elapsed().as_secs_f64());
                manifest.insert(peer.name, &entry);
            }
            Err(error) if bounded::is_interrupted() => return Err(error),
            Err(error) => {
                println!("{}: skipped, {error:#}\n", peer.name);
                manifest.remove(peer.name);
                failed.push(peer.name);
            }
        }
        // After each one: what is ready stays usable if a later peer is interrupted.
        manifest.save(folder, &PEERS.map(|peer| peer.name))?;
    }
    Ok(failed)
}

/// Removes the peers from the manifest, then the folders that no remaining one uses.
fn remove(chosen: &[&Peer], folder: &Path, manifest: &mut Manifest) -> Result<()> {
    chosen.iter().for_each(|peer| manifest.remove(peer.name));
    if manifest.names().is_empty() {
        return delete(folder);
    }
    manifest.save(folder, &PEERS.map(|peer| peer.name))?;
    for name in unused_folders(chosen, manifest) {
        delete(&folder.join(name))?;
    }
    Ok(())
}

fn unused_folders(removed: &[&Peer], manifest: &Manifest) -> Vec<&'static str> {
    let remaining = || PEERS.iter().filter(|peer| manifest.version(peer.name).is_some());
    let is_used = |folder: &&str| remaining().any(|peer| peer.folders.contains(folder));
    removed.iter().flat_map(|peer| peer.folders).copied().filter(|folder| !is_used(folder)).collect()
}

fn delete(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => println!("removed {}", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("{} cannot be removed", path.display())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn chosen(names: &[&str]) -> Vec<&'static str> {
        choose(&owned(names)).expect("known peers").iter().map(|peer| peer.name).collect()
    }

    fn manifest_of(names: &[&str]) -> Manifest {
        let mut manifest = Manifest::default();
        names.iter().for_each(|name| manifest.insert(name, &Entry::example()));
        manifest
    }

    #[test]
    fn without_names_all_peers_are_meant() {
        assert_eq!(chosen(&[]), PEERS.map(|peer| peer.name));
    }

    #[test]
    fn named_peers_come_in_their_fixed_order() {
        assert_eq!(chosen(&["openmpi", "impi"]), ["impi", "openmpi"]);
    }

    #[test]
    fn an_unknown_peer_is_an_error_that_lists_the_known_ones() {
        let error = choose(&owned(&["impi", "nccl"])).err().expect("unknown");
        assert!(
            error.to_string().starts_with("there is no peer `nccl`; the peers are impi, mpich"),
            "{error}"
        );
    }

    #[test]
    fn a_folder_that_another_peer_uses_stays() {
        let mpich = choose(&owned(&["mpich"])).expect("known");
        assert_eq!(unused_folders(&mpich, &manifest_of(&["impi"])), [""; 0]);
        assert_eq!(unused_folders(&mpich, &manifest_of(&["gloo"])), ["mpich"]);
    }
}
