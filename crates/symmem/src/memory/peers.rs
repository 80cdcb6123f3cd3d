//! How ranks come to everybody's memory and pad, whatever the provider.
//!
//! Used by the rendezvous of host memory and by that of device memory, which then give the addresses a type.

use std::sync::Arc;

use crate::Result;
use crate::group::Running;
use crate::provider::share::{Bring, share, share_multicast};
use crate::provider::{Joined, LocalMemory};
use crate::table::{Column, PeerTable};

impl PeerTable {
    /// Collective: everybody's `data`, if this rank has any, and `pad`, by a provider that the ranks have
    /// joined. The ranks in `far` count as out of reach. `finish` is what each rank does with the columns
    /// before the vote on the pads.
    pub(super) fn share<T>(
        running: &Running<'_>,
        joined: &Arc<dyn Joined>,
        far: &[usize],
        data: Option<Arc<dyn LocalMemory>>,
        pad: Result<Arc<dyn LocalMemory>>,
        finish: impl FnOnce(&Column, &Column) -> Result<T>,
    ) -> Result<(Self, T)> {
        let bring = |joined: &Arc<dyn Joined>, local| Bring { joined: Arc::clone(joined), local };
        let own = bring(joined, data);
        let (mut data, pads, finished, number) = match joined.pads() {
            None => {
                let brought = pad.map(|pad| vec![own.clone(), bring(joined, Some(pad))]);
                let shared = share(running, far, brought, |columns| finish(&columns[0], &columns[1]))?;
                let [data, pads] = exactly(shared.columns);
                (data, pads, shared.finished, shared.number)
            }
            // Two steps: what the pads' provider cannot do must not cost the group its communicator.
            Some(joined) => {
                let [data] = exactly(share(running, far, Ok(vec![own.clone()]), |_| Ok(()))?.columns);
                let brought = pad.map(|pad| vec![bring(joined, Some(pad))]);
                let shared = share(running, far, brought, |columns| finish(&data, &columns[0]))?;
                let [pads] = exactly(shared.columns);
                (data, pads, shared.finished, shared.number)
            }
        };
        share_multicast(running, &own, &mut data)?;
        Ok((Self { data, pads, number }, finished))
    }
}

/// As many columns as were brought.
fn exactly<const N: usize>(columns: Vec<Column>) -> [Column; N] {
    columns.try_into().unwrap_or_else(|_| unreachable!("a column for each that was brought"))
}
