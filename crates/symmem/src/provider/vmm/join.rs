//! Device memory among the ranks of a group: who reaches whom, and how memory travels.
//!
//! The ranks show each other their cards once, when they join. A rank then exports every kind of handle that
//! it can make; the importer takes a fabric handle where both ranks are in the same NVLink domain, else a
//! file descriptor where both are on the same host.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::card::{self, DeviceCard};
use super::shareable::{self, FabricHandle};
use super::{DeviceMapping, DeviceMemory, Vmm, multicast_setup};
use crate::cuda::Device;
use crate::cuda::capture::check_no_capture;
use crate::group::{Proposal, Running};
use crate::provider::{Export, Joined, LocalMemory, MemoryProvider, own, own_shared};
use crate::table::{Column, Keep};
use crate::{Error, Result};

/// A rank's device, as it introduces itself.
#[derive(Debug, Serialize, Deserialize)]
struct DeviceProposal {
    card: Option<DeviceCard>,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Proposal for DeviceProposal {
    const WHAT: &str = "the devices";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        String::new()
    }
}

/// Device memory that the ranks of a group can share.
#[derive(Debug)]
pub(super) struct JoinedVmm {
    vmm: Vmm,
    /// Every rank's, in rank order.
    pub(super) cards: Vec<DeviceCard>,
    rank: usize,
    /// Whether all devices reach each other.
    reaches_all: bool,
}

impl JoinedVmm {
    /// Collective. Devices that are out of each other's reach are an error, unless `vmm` does without.
    pub(super) fn join(vmm: &Vmm, running: &Running<'_>) -> Result<Self> {
        let mine = match DeviceCard::new(running, &vmm.device) {
            Ok(card) => DeviceProposal { card: Some(card), error: None },
            Err(error) => DeviceProposal { card: None, error: Some(error.to_string()) },
        };
        let all = running.compare(running.op(), &mine)?;
        let cards: Option<Vec<DeviceCard>> = all.into_iter().map(|said| said.card).collect();
        let cards =
            cards.ok_or_else(|| Error::invalid("the devices", "a rank did not say which is its own"))?;
        card::check_overlap(&cards)?;
        let reach = card::check_reach(&cards);
        let reaches_all = reach.is_ok();
        if !vmm.may_be_apart {
            reach?;
        }
        Ok(Self { vmm: vmm.clone(), cards, rank: running.inner().rank, reaches_all })
    }

    pub(super) fn device(&self) -> &Device {
        &self.vmm.device
    }

    /// The memory of `bytes` behind the best handle that `rank` gave.
    fn take(
        &self,
        rank: usize,
        bytes: usize,
        fabric: Option<&FabricHandle>,
        fd: Option<&OwnedFd>,
    ) -> Result<super::Physical> {
        let device = self.device();
        let is_same_domain = self.cards[rank].shares_domain(&self.cards[self.rank]);
        let by_fabric =
            fabric.filter(|_| is_same_domain).map(|handle| shareable::import_fabric(device, handle, bytes));
        match (by_fabric, fd) {
            (Some(Ok(physical)), _) => Ok(physical),
            (Some(Err(error)), None) => Err(error),
            (other, Some(fd)) => {
                if let Some(Err(error)) = other {
                    tracing::debug!(rank, %error, "a fabric handle was refused, taking the file descriptor");
                }
                shareable::import_fd(device, fd.as_fd(), bytes)
            }
            (None, None) => {
                let problem = "there is no handle that this rank could use";
                Err(Error::invalid(format!("device memory of rank {rank}"), problem))
            }
        }
    }
}

impl Joined for JoinedVmm {
    fn provider(&self) -> &dyn MemoryProvider {
        &self.vmm
    }

    fn reaches_all(&self) -> Option<bool> {
        Some(self.reaches_all)
    }

    fn export(&self, local: &dyn LocalMemory) -> Result<Export> {
        check_no_capture("exchange of device memory")?;
        let memory = own::<DeviceMemory>(local)?;
        let mut export = Export { bytes: memory.mapped_bytes(), ..Export::default() };
        if self.reaches_all {
            let kinds = shareable::kinds(self.device())?;
            if shareable::includes_fd(kinds) {
                export.fds.push(shareable::export_fd(memory.physical())?);
            }
            if shareable::includes_fabric(kinds) {
                export.note.extend(shareable::export_fabric(memory.physical())?);
            }
        }
        Ok(export)
    }

    fn import(&self, rank: usize, export: Export, _: Option<&Keep>) -> Result<Option<(u64, Keep)>> {
        if !self.reaches_all {
            return Ok(None);
        }
        let fabric = FabricHandle::try_from(export.note).ok();
        let physical = self.take(rank, export.bytes, fabric.as_ref(), export.fds.first())?;
        let mapping = DeviceMapping::new(self.device(), Arc::new(physical))?;
        Ok(Some((mapping.address(), Arc::new(mapping))))
    }

    fn multicast(
        &self,
        running: &Running<'_>,
        local: &Arc<dyn LocalMemory>,
        _: &Column,
    ) -> Result<Result<(u64, Keep), String>> {
        let made = multicast_setup::share_multicast(running, self, &own_shared(local)?)?;
        Ok(made.map(|multicast| (multicast.address(), Arc::new(multicast) as _)))
    }
}
