//! The systems that are compared, and how a rank of each is started.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use symmem::cuda::{PlaceKind, Provider};

use crate::args::Form;

/// The program of a rank of a peer.
const PEER: &str = include_str!("peer.py");

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    Symmem,
    /// PyTorch's symmetric memory.
    Torch,
    Nccl,
    /// Ours, with memory of this provider, beside the one that the bench is about.
    Ours(Provider),
}

impl System {
    /// The peers that "all" means.
    pub(super) const PEERS: [Self; 2] = [Self::Torch, Self::Nccl];

    /// Its name in rows and on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Symmem => "symmem",
            Self::Torch => "torch",
            Self::Nccl => "nccl",
            Self::Ours(provider) => provider.name(),
        }
    }

    /// The operations of a peer that are an all-reduce of that form.
    pub(super) fn variants(self, form: Form) -> &'static [&'static str] {
        match (self, form) {
            (Self::Symmem, _) => &[],
            (Self::Ours(_), _) => &["auto"],
            (Self::Nccl, _) => &["ncclAllReduce"],
            (Self::Torch, Form::InPlace) => &["two_shot_all_reduce_"],
            (Self::Torch, Form::Out) => &["one_shot_all_reduce_out", "two_shot_all_reduce_out"],
            (Self::Torch, Form::Private) => &["one_shot_all_reduce_copy_out"],
        }
    }

    /// The peers of these names; "all" is every one.
    pub(super) fn peers(names: &[String]) -> Result<Vec<Self>> {
        if names.iter().any(|name| name == "all") {
            return Ok(Self::PEERS.to_vec());
        }
        // A library's own name comes before that of memory from it.
        let is_peer = |ours: &Self| Self::PEERS.iter().any(|peer| peer.name() == ours.name());
        let ours = Provider::of(PlaceKind::Device).map(Self::Ours).filter(|ours| !is_peer(ours));
        let known: Vec<Self> = Self::PEERS.into_iter().chain(ours).collect();
        let find = |name: &String| match known.iter().find(|peer| peer.name() == name) {
            Some(peer) => Ok(*peer),
            None => {
                let names = known.iter().map(|peer| peer.name()).collect::<Vec<_>>().join(", ");
                bail!("--peers {name}: on GPUs there are {names} and all")
            }
        };
        names.iter().map(find).collect()
    }
}

/// How to start a rank. Who it is, the fleet adds to its environment.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// Whether its ranks meet in a store that the fleet serves; else rank 0 says where they do.
    pub(super) needs_store: bool,
}

impl Launch {
    /// A rank of `system`; `folder` is for files of this run.
    pub(super) fn of(
        system: System,
        provider: Provider,
        folder: &Path,
        python: Option<&Path>,
    ) -> Result<Self> {
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        let ours = match system {
            System::Symmem => Some(provider),
            System::Ours(other) => Some(other),
            System::Torch | System::Nccl => None,
        };
        if let Some(provider) = ours {
            let program = std::env::current_exe().context("finding this program")?;
            let env = env(&[
                ("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1"),
                ("SYMMEM_PROVIDER", provider.name()),
                ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
            ]);
            return Ok(Self { program, args: vec!["bench-gpu-rank".to_owned()], env, needs_store: true });
        }
        let script = folder.join("peer.py");
        std::fs::write(&script, PEER).with_context(|| format!("{} cannot be written", script.display()))?;
        let env = env(&[
            ("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1"),
            ("TORCH_SYMMMEM", "CUDA"),
            ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
            ("GLOO_SOCKET_IFNAME", "lo"),
            ("PYTHONUNBUFFERED", "1"),
        ]);
        let args = vec!["-u".to_owned(), script.display().to_string(), system.name().to_owned()];
        Ok(Self { program: crate::python::find(python), args, env, needs_store: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_by_name() {
        let peers =
            |names: &[&str]| System::peers(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(peers(&[]).expect("none"), []);
        assert_eq!(peers(&["nccl", "torch"]).expect("both"), [System::Nccl, System::Torch]);
        assert_eq!(peers(&["all"]).expect("all"), System::PEERS);
        assert_eq!(peers(&["vmm"]).expect("ours"), [System::Ours(Provider::Vmm)]);
        let error = peers(&["gloo"]).expect_err("unknown").to_string();
        assert_eq!(error, "--peers gloo: on GPUs there are torch, nccl, vmm and all");
    }
}
