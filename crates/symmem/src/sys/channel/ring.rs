//! Exchanges of fds among all ranks, made of single messages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use symmem_store::Wait;

use super::{ChannelError, Endpoint};
use crate::error::Error;

impl Endpoint {
    /// Collective: everybody gets everybody's fd, in rank order (one's own as a duplicate). Each rank passes on
    /// to the next what it got last, so `source` is the rank an fd comes from, not the one that passed it on.
    pub(crate) fn all_gather_fds(
        &self,
        rank: usize,
        addresses: &[String],
        tag: u64,
        fd: BorrowedFd<'_>,
        wait: &Wait<'_>,
    ) -> Result<Vec<OwnedFd>, ChannelError> {
        let world = addresses.len();
        let next = (rank + 1) % world;
        // Slots fill backwards from our own rank: rank, rank - 1, ...
        let mut fds = vec![duplicate(fd)?];
        for step in 1..world {
            let newest = fds[step - 1].as_fd();
            let source = (rank + world + 1 - step) % world;
            self.send(next, &addresses[next], tag, source as u32, &[], &[newest], wait)?;
            let source = (rank + world - step) % world;
            fds.push(self.recv_fds(source, addresses, tag, 1, wait)?.remove(0));
        }
        fds.reverse();
        fds.rotate_right((rank + 1) % world);
        Ok(fds)
    }

    /// Collective: everybody gets the `count` fds that `root` gave (the root as duplicates). Others pass `None`.
    #[expect(clippy::too_many_arguments, reason = "a collective call has that many terms")]
    pub(crate) fn broadcast_fds(
        &self,
        rank: usize,
        root: usize,
        addresses: &[String],
        tag: u64,
        fds: Option<&[BorrowedFd<'_>]>,
        count: usize,
        wait: &Wait<'_>,
    ) -> Result<Vec<OwnedFd>, ChannelError> {
        if rank != root {
            return self.recv_fds(root, addresses, tag, count, wait);
        }
        let fds = fds.unwrap_or_default();
        if fds.len() != count {
            return Err(Error::invalid("fds", format!("the root gave {} of {count}", fds.len())).into());
        }
        for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != root) {
            self.send(peer, address, tag, root as u32, &[], fds, wait)?;
        }
        fds.iter().map(|fd| duplicate(*fd)).collect()
    }

    fn recv_fds(
        &self,
        source: usize,
        addresses: &[String],
        tag: u64,
        count: usize,
        wait: &Wait<'_>,
    ) -> Result<Vec<OwnedFd>, ChannelError> {
        let fds = self.recv(tag, source as u32, wait)?.fds;
        if fds.len() != count {
            let problem = format!("it sent {} fds, not {count}", fds.len());
            return Err(Error::Channel { rank: source, address: addresses[source].clone(), problem }.into());
        }
        Ok(fds)
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, ChannelError> {
    fd.try_clone_to_owned().map_err(|e| Error::sys_hint("duplicating an fd", e, "check ulimit -n").into())
}
