//! How the ranks of a group become a communicator: rank 0's id travels through the group, and a vote ends it.
//!
//! What it guarantees: a rank that has no NCCL, or another one, or fails to start, is the same error on every
//! rank; whoever is still in NCCL then comes back and lets go of what it has begun.

use serde::{Deserialize, Serialize};

use crate::cuda::Device;
use crate::cuda::capture::check_no_capture;
use crate::error::Halt;
use crate::group::{Group, Proposal, Running};
use crate::nccl::{self, Communicator, UniqueId};
use crate::operation::Op;
use crate::sys::ids;
use crate::{Error, Result};

/// What a rank says before NCCL is called.
#[derive(Debug, Serialize, Deserialize)]
struct NcclProposal {
    version: String,
    /// Rank 0's id, in hexadecimal digits.
    id: Option<String>,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl NcclProposal {
    fn new(rank: usize) -> Self {
        let said = check_no_capture("communicator").and_then(|()| nccl::version()).and_then(|version| {
            let id = (rank == 0).then(UniqueId::new).transpose()?;
            Ok((version.to_string(), id.map(|id| ids::hex(id.as_bytes()))))
        });
        match said {
            Ok((version, id)) => Self { version, id, error: None },
            Err(error) => Self { version: String::new(), id: None, error: Some(error.to_string()) },
        }
    }

    fn id(&self) -> Result<UniqueId> {
        let bytes = self.id.as_ref().and_then(|id| ids::unhex(id)).unwrap_or_default();
        UniqueId::from_bytes(&bytes)
    }
}

impl Proposal for NcclProposal {
    const WHAT: &str = "NCCL";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        format!("NCCL {}", self.version)
    }
}

impl Communicator {
    /// Collective. The ranks of `group` as a communicator, with the same numbers; this one is on `device`.
    /// Waits for at most the group's timeout, which is also that of later calls. Either all ranks get one or
    /// all get the same error.
    pub fn new(group: &Group, device: &Device) -> Result<Self> {
        let span = tracing::debug_span!("symmem.nccl", group = group.name(), device = device.ordinal());
        let _entered = span.enter();
        group.operate(Op::NcclInit, None, |running| Self::join(running, device))
    }

    /// [`Communicator::new`] as part of another operation.
    pub(crate) fn join(running: &Running<'_>, device: &Device) -> Result<Self> {
        let tag = running.next_tag()?;
        let all = running.compare(running.op(), &NcclProposal::new(running.inner().rank))?;
        let outcome = all[0].id().map_err(Halt::from).and_then(|id| Self::make(running, device, &id));
        running.conclude(tag, outcome)
    }

    fn make(running: &Running<'_>, device: &Device, id: &UniqueId) -> Result<Self, Halt> {
        let group = running.group();
        let begun = Self::begin(id, group.rank(), group.size(), device, group.terms.timeout)?;
        running.wait_in_step(|| begun.is_made())?;
        Ok(begun)
    }
}

/// An error if `communicator` does not have the ranks of `group` in their order.
pub(crate) fn check_same(communicator: &Communicator, group: &Group) -> Result<()> {
    let (theirs, ours) = ((communicator.rank(), communicator.size()), (group.rank(), group.size()));
    if theirs == ours {
        return Ok(());
    }
    let problem = format!(
        "it has this process as rank {} of {}, the group as rank {} of {}",
        theirs.0, theirs.1, ours.0, ours.1
    );
    Err(Error::invalid("communicator", problem))
}
