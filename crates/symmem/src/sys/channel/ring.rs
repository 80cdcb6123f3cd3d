//! Exchanges of fds among all ranks, made of single messages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use symmem_store::Wait;

use super::Endpoint;
use crate::error::{Error, Halt};

impl Endpoint {
    /// Collective: everybody gets everybody's fd, in rank order (one's own as a duplicate). Each rank passes
    /// on to the next what it got last, so `source` is the rank an fd comes from, not the one that passed it
    /// on.
    pub(crate) fn all_gather_fds(
        &self,
        rank: usize,
        addresses: &[String],
        tag: u64,
        fd: BorrowedFd<'_>,
        wait: &Wait<'_>,
    ) -> Result<Vec<OwnedFd>, Halt> {
        let world = addresses.len();
        let next = (rank + 1) % world;
        // Slots fill backwards from our own rank: rank, rank - 1, ...
        let mut fds = vec![duplicate(fd)?];
        for step in 1..world {
            let newest = fds[step - 1].as_fd();
            let source = (rank + world + 1 - step) % world;
            self.send(next, &addresses[next], tag, source as u32, &[], &[newest], wait)?;
            let source = (rank + world - step) % world;
            fds.push(self.recv_fd(source, addresses, tag, wait)?);
        }
        fds.reverse();
        fds.rotate_right((rank + 1) % world);
        Ok(fds)
    }

    /// Collective: everybody gets the fds that `root` gave (the root as duplicates). What others give is
    /// ignored.
    pub(crate) fn broadcast_fds(
        &self,
        rank: usize,
        root: usize,
        addresses: &[String],
        tag: u64,
        fds: &[BorrowedFd<'_>],
        wait: &Wait<'_>,
    ) -> Result<Vec<OwnedFd>, Halt> {
        if rank != root {
            return Ok(self.recv(tag, root as u32, wait)?.fds);
        }
        for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != root) {
            self.send(peer, address, tag, root as u32, &[], fds, wait)?;
        }
        fds.iter().map(|fd| duplicate(*fd)).collect()
    }

    fn recv_fd(
        &self,
        source: usize,
        addresses: &[String],
        tag: u64,
        wait: &Wait<'_>,
    ) -> Result<OwnedFd, Halt> {
        let mut fds = self.recv(tag, source as u32, wait)?.fds;
        if fds.len() != 1 {
            let problem = format!("it sent {} fds, not 1", fds.len());
            return Err(Error::Channel { rank: source, address: addresses[source].clone(), problem }.into());
        }
        Ok(fds.remove(0))
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Halt> {
    fd.try_clone_to_owned().map_err(|e| Error::sys_hint("duplicating an fd", e, "check ulimit -n").into())
}
