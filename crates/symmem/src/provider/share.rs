//! Sharing memory, once for all providers: every rank exports, sends, registers, imports, and votes.
//!
//! Collective. Used by rendezvous for data and pads, and by engines for their control blocks. What it
//! guarantees: what ranks can compare is compared before anything is sent, and is the same typed error on
//! every rank; a rank that fails later goes straight to the vote, all ranks get its error, nothing is left
//! mapped, exported or registered, and the same memory can be tried again, unless the provider ends the group
//! (`Joined::refused`).
//!
//! Threads of one process do the same: an import within a process is a mapping of its own, with a life of its
//! own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Halt;
use crate::group::{Proposal, Running};
use crate::provider::{Export, Joined, LocalMemory};
use crate::sys::channel::MAX_FDS;
use crate::sys::fault::{self, Point};
use crate::sys::ids;
use crate::table::{Column, Keep, Reach};
use crate::{Error, Result};

/// What the message with the descriptors says it is.
const HANDLES: &str = "memory";

/// What a rank brings of one memory: by which provider, and what; `None` if it brings nothing.
#[derive(Clone, Debug)]
pub(crate) struct Bring {
    pub(crate) joined: Arc<dyn Joined>,
    pub(crate) local: Option<Arc<dyn LocalMemory>>,
}

/// What came of a step in which ranks shared memory.
pub(crate) struct SharedStep<T> {
    /// One for each memory that was brought.
    pub(crate) columns: Vec<Column>,
    /// What this rank made of them before the vote.
    pub(crate) finished: T,
    /// Which step of the group it was, the same on every rank.
    pub(crate) number: u64,
}

/// Collective: everybody's memory, a column for each that this rank `brought`, of which all ranks bring the
/// same number. The ranks in `far` count as out of reach of all others.
///
/// A rank that failed to make its memory tells the others instead of staying away. `finish` is what each rank
/// does with the columns before the vote: its failure is a failure of the step.
pub(crate) fn share<T>(
    running: &Running<'_>,
    far: &[usize],
    brought: Result<Vec<Bring>>,
    finish: impl FnOnce(&[Column]) -> Result<T>,
) -> Result<SharedStep<T>> {
    let tag = running.next_tag()?;
    let exports = brought.and_then(Exports::new);
    let offers = running.compare(running.op(), &MemoryProposal::new(&exports))?;
    // Fails on every rank above if it failed on one.
    let exports = exports?;
    // What this rank exported stays until the vote, whatever fails here: a peer may be importing it.
    let outcome = map_everybody(running, tag, far, &exports, &offers).and_then(|columns| {
        let finished = finish(&columns)?;
        Ok((columns, finished))
    });
    fault::point(Point::PadMapped);
    let joined = || exports.memories.iter().map(|(bring, _)| &*bring.joined);
    let refused = |error| joined().fold(error, |error, joined| joined.refused(running, error));
    let (mut columns, finished) = running.conclude(tag, outcome).map_err(refused)?;
    agree_on_reach(running, far, joined, &mut columns)?;
    Ok(SharedStep { columns, finished, number: tag })
}

/// Collective: one address for everybody's part of `column`, of which this rank brought `bring`, where there
/// can be one.
pub(crate) fn share_multicast(running: &Running<'_>, bring: &Bring, column: &mut Column) -> Result<()> {
    let made = match &bring.local {
        // All ranks see alike who brought nothing, and who is out of reach.
        _ if column.reach.contains(&Reach::Absent) => Err("a rank brought no memory".to_owned()),
        Some(local) if column.reaches_all => bring.joined.multicast(running, local, column)?,
        _ => Err("a rank is out of reach of another".to_owned()),
    };
    match made {
        Ok((address, keep)) => (column.multicast, column.multicast_keep) = (Ok(address), Some(keep)),
        Err(problem) => column.multicast = Err(problem),
    }
    Ok(())
}

/// This rank's memories with what it says of each, and the descriptors of all of them.
struct Exports {
    memories: Vec<(Bring, Option<ProposedMemory>)>,
    fds: Vec<OwnedFd>,
}

impl Exports {
    fn new(brought: Vec<Bring>) -> Result<Self> {
        let mut exports = Self { memories: Vec::with_capacity(brought.len()), fds: Vec::new() };
        for bring in brought {
            let offered = match &bring.local {
                Some(local) => {
                    let Export { bytes, note, fds } = bring.joined.export(&**local)?;
                    let (asked, count, note) = (local.bytes(), fds.len(), ids::hex(&note));
                    exports.fds.extend(fds);
                    Some(ProposedMemory { asked, bytes, note, fds: count })
                }
                None => None,
            };
            exports.memories.push((bring, offered));
        }
        if exports.fds.len() > MAX_FDS {
            let problem = format!("{} descriptors at once are more than {MAX_FDS}", exports.fds.len());
            return Err(Error::invalid("exchange of memory", problem));
        }
        Ok(exports)
    }
}

/// What a rank says of one memory that it brings.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ProposedMemory {
    /// Bytes that were asked for, which must agree, and that there are, which may differ by device.
    asked: usize,
    bytes: usize,
    /// The provider's own words, in hexadecimal digits.
    note: String,
    fds: usize,
}

/// What a rank brings.
#[derive(Debug, Serialize, Deserialize)]
struct MemoryProposal {
    providers: Vec<String>,
    memories: Vec<Option<ProposedMemory>>,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl MemoryProposal {
    fn new(exports: &Result<Exports>) -> Self {
        let memories = || exports.iter().flat_map(|exports| &exports.memories);
        Self {
            providers: memories().map(|(bring, _)| bring.joined.provider().name().to_owned()).collect(),
            memories: memories().map(|(_, offered)| offered.clone()).collect(),
            error: exports.as_ref().err().map(ToString::to_string),
        }
    }

    fn fds(&self) -> usize {
        self.memories.iter().flatten().map(|offered| offered.fds).sum()
    }
}

impl Proposal for MemoryProposal {
    const WHAT: &str = "the memory";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        let terms = self.providers.iter().zip(&self.memories).map(|(provider, offered)| match offered {
            Some(offered) => format!("{} bytes in {provider}", offered.asked),
            None => format!("nothing in {provider}"),
        });
        terms.collect::<Vec<_>>().join(" and ")
    }

    fn is_nothing(&self) -> bool {
        self.memories.iter().any(Option::is_none)
    }
}

fn map_everybody(
    running: &Running<'_>,
    tag: u64,
    far: &[usize],
    exports: &Exports,
    offers: &[MemoryProposal],
) -> Result<Vec<Column>, Halt> {
    let me = running.inner().rank;
    let fds: Vec<BorrowedFd<'_>> = exports.fds.iter().map(AsFd::as_fd).collect();
    let is_neighbour = |rank: &usize| *rank != me && running.is_on_this_host(*rank);
    for peer in (0..offers.len()).filter(|_| !fds.is_empty()).filter(is_neighbour) {
        running.send_handles(peer, tag, HANDLES, &fds)?;
    }
    fault::point(Point::PadFdSent);
    for (rank, offer) in offers.iter().enumerate() {
        if offer.memories.iter().flatten().any(|offered| offered.bytes < offered.asked) {
            let problem = "there is less of it than was asked for";
            return Err(Error::invalid(format!("memory of rank {rank}"), problem).into());
        }
    }
    let mut received = Vec::with_capacity(offers.len());
    for (rank, offer) in offers.iter().enumerate() {
        // Received whether they are used or not: the message would stay in the channel, and the memory with
        // it.
        received.push(match offer.fds() {
            0 => Vec::new(),
            _ if !is_neighbour(&rank) => Vec::new(),
            count => running.receive_handles(rank, tag, HANDLES, count)?,
        });
    }
    let mut received: Vec<_> = received.into_iter().map(Vec::into_iter).collect();
    let mut columns = Vec::with_capacity(exports.memories.len());
    for (index, (bring, _)) in exports.memories.iter().enumerate() {
        // In rank order, and in the order in which each rank exported.
        let exported = offers.iter().zip(&mut received).map(|(offer, fds)| {
            let ProposedMemory { bytes, note, fds: count, .. } = offer.memories.get(index)?.as_ref()?;
            let note = ids::unhex(note).unwrap_or_default();
            Some(Export { bytes: *bytes, note, fds: fds.take(*count).collect() })
        });
        columns.push(map(running, far, bring, exported.collect())?);
    }
    Ok(columns)
}

/// Everybody's part of one memory, of which this rank brought `bring` and the others `exported`.
fn map(
    running: &Running<'_>,
    far: &[usize],
    bring: &Bring,
    exported: Vec<Option<Export>>,
) -> Result<Column, Halt> {
    let Bring { joined, local } = bring;
    let me = running.inner().rank;
    // All ranks take part in it, so all must have brought something.
    let registration = match local {
        Some(local) if exported.iter().all(Option::is_some) => joined.register(running, local)?,
        _ => None,
    };
    let mut keep: Vec<Keep> = Vec::with_capacity(exported.len());
    let mut reach = Vec::with_capacity(exported.len());
    for (rank, export) in exported.into_iter().enumerate() {
        let theirs = match (export, local) {
            (None, _) => Reach::Absent,
            (Some(_), Some(local)) if rank == me => {
                keep.push(Arc::clone(local) as _);
                Reach::at(local.address())
            }
            (Some(_), _) if far.contains(&rank) || far.contains(&me) => Reach::Unreachable,
            (Some(export), _) => match joined.import(rank, export, registration.as_ref())? {
                Some((address, kept)) => {
                    keep.push(kept);
                    Reach::at(address)
                }
                None => Reach::Unreachable,
            },
        };
        reach.push(theirs);
    }
    Ok(Column::new(reach, registration, keep))
}

/// Collective, where the ranks do not know it: whether every rank reaches every other's part of each column.
fn agree_on_reach<'a, I: Iterator<Item = &'a dyn Joined>>(
    running: &Running<'_>,
    far: &[usize],
    joined: impl Fn() -> I,
    columns: &mut [Column],
) -> Result<()> {
    let known = |joined: &dyn Joined| if far.is_empty() { joined.reaches_all() } else { Some(false) };
    if joined().all(|joined| known(joined).is_some()) {
        for (joined, column) in joined().zip(columns) {
            column.reaches_all = known(joined) == Some(true);
        }
        return Ok(());
    }
    let mine: Vec<u8> =
        columns.iter().map(|column| u8::from(!column.reach.contains(&Reach::Unreachable))).collect();
    let said = running.all_gather(running.op(), 0, mine.len() as u64, &mine)?;
    for (index, column) in columns.iter_mut().enumerate() {
        column.reaches_all = said.iter().all(|said| said.get(index) == Some(&1));
    }
    Ok(())
}
