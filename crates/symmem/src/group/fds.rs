//! File descriptors between the ranks of a host, for memory and events of one's own.

use std::os::fd::{BorrowedFd, OwnedFd};

use symmem_store::Wait;

use super::{Group, Running};
use crate::error::{Cause, Halt};
use crate::operation::{Op, signature};
use crate::sync::control::Verdict;
use crate::sys::channel::{Endpoint, MAX_FDS};
use crate::{Error, Result};

impl Group {
    /// Collective. Every rank's `fd`, in rank order, as descriptors of this process. All ranks must be on one
    /// host.
    ///
    /// ```
    /// # use std::os::fd::AsFd;
    /// symmem::spawn(3, |group| {
    ///     let mine = std::fs::File::open("/dev/null").expect("every system has one");
    ///     let all = group.all_gather_fds(mine.as_fd())?;
    ///     assert_eq!(all.len(), 3);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_fds(&self, fd: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
        let exchange = |endpoint: &Endpoint, addresses: &[String], tag: u64, wait: &Wait<'_>| {
            endpoint.all_gather_fds(self.rank(), addresses, tag, fd, wait)
        };
        self.operate(Op::AllGatherFds, None, |running| running.pass_fds(0, exchange))
    }

    /// Collective. The descriptors that rank `root` gives (at most 8), on every rank; what the others give is
    /// ignored. All ranks must be on one host.
    pub fn broadcast_fds(&self, root: usize, fds: &[BorrowedFd<'_>]) -> Result<Vec<OwnedFd>> {
        let given = if self.rank() == root { fds.len() } else { 0 };
        let arguments = self.check_rank("broadcast_fds", root).and_then(|()| check_fds(given));
        let exchange = |endpoint: &Endpoint, addresses: &[String], tag: u64, wait: &Wait<'_>| {
            endpoint.broadcast_fds(self.rank(), root, addresses, tag, fds, wait)
        };
        self.operate(Op::BroadcastFds, None, |running| {
            running.check_local()?;
            running.told(arguments)?;
            running.pass_fds(root, exchange)
        })
    }
}

fn check_fds(given: usize) -> Result<()> {
    if given <= MAX_FDS {
        return Ok(());
    }
    Err(Error::invalid("broadcast_fds", format!("{given} descriptors, but at most {MAX_FDS} can be sent")))
}

impl Running<'_> {
    /// Agrees on the call, then runs `exchange` under a fresh tag. A rank that fails alone fails the group,
    /// since the others are left without its part.
    fn pass_fds(
        &self,
        root: usize,
        exchange: impl FnOnce(&Endpoint, &[String], u64, &Wait<'_>) -> Result<Vec<OwnedFd>, Halt>,
    ) -> Result<Vec<OwnedFd>> {
        self.check_local()?;
        self.meet(signature(self.op(), root, 0))?;
        let inner = self.inner();
        let tag = self.next_tag()?;
        let addresses: Vec<String> = inner.members.iter().map(|member| member.address.clone()).collect();
        let everybody = |_: usize| true;
        let watch = self.watch(&everybody);
        let exchanged = exchange(&inner.endpoint, &addresses, tag, &self.terms(&watch));
        let fds = exchanged.map_err(|halt| match halt {
            Halt::Interrupted(interrupt) => self.fail(interrupt, &everybody),
            Halt::Failed(error) => self.give_up(&error),
        })?;
        // Nobody leaves before everybody is done: a rank that had left would look as if its part could not
        // come.
        self.meet(signature(self.op(), root, 1))?;
        Ok(fds)
    }

    /// Fails the group with this rank's own error, unless a death explains it.
    fn give_up(&self, error: &Error) -> Error {
        let inner = self.inner();
        if let Some(rank) = inner.look_for_a_death() {
            let (standing, _) = inner.convict(Verdict { culprit: rank, cause: Cause::Died });
            return self.failed_by(standing);
        }
        self.end_with(error)
    }

    /// Host memory and descriptors reach the ranks of this host only.
    pub(crate) fn check_local(&self) -> Result<()> {
        let inner = self.inner();
        let ranks: Vec<usize> = (0..inner.world).filter(|rank| inner.controls[*rank].is_none()).collect();
        if ranks.is_empty() { Ok(()) } else { Err(Error::NotLocal { op: self.op().name(), ranks }) }
    }
}
