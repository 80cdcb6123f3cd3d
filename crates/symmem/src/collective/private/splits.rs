//! What everybody sends to everybody in an all_to_all_v, as one rank sees it.
//!
//! Every rank says how many elements it sends to each and expects from each; everybody hears all of it and
//! judges it alike, before anything is laid out.

use super::traffic::Stretch;
use crate::Error;
use crate::Result;
use crate::collective::statement::{CallRefusal, decode, encode, refused};
use crate::group::Running;

/// Where the elements of an exchange lie.
#[derive(Debug)]
pub(in crate::collective) struct Splits {
    /// Elements of the longest stream.
    pub(super) longest: usize,
    /// This rank's stream.
    pub(super) given: Vec<Stretch>,
    /// What this rank takes from the stream of each rank.
    pub(super) taken: Vec<Stretch>,
    /// Where in the input of each rank that is which this rank takes.
    pub(super) starts: Vec<usize>,
    /// What this rank has for itself: elements, first one in the input, first one in the output.
    pub(super) own: (usize, usize, usize),
}

/// What one rank says of itself.
struct RankSplits {
    sends: Vec<usize>,
    receives: Vec<usize>,
}

impl Splits {
    /// Collective, within `running`: tells everybody this rank's splits; `number` is what ranks must agree on
    /// besides.
    pub(super) fn exchange(
        running: &Running<'_>,
        number: usize,
        (sends, receives): (&[usize], &[usize]),
    ) -> Result<Self> {
        let inner = running.inner();
        let statement = encode(0, &[], [sends, receives].concat());
        let parts = running.all_gather(running.op(), number, 0, &statement)?;
        let rows: Result<Vec<RankSplits>, CallRefusal> =
            parts.iter().enumerate().map(|(rank, part)| RankSplits::new(rank, inner.world, part)).collect();
        let rows = rows.map_err(|refusal| refused(running, refusal))?;
        if !agree(&rows) {
            let values = rows.iter().enumerate().map(|(rank, row)| row.describe(rank)).collect();
            return Err(Error::Mismatch { context: running.context(), what: "the splits", values });
        }
        Ok(Self::new(&rows, inner.rank))
    }

    /// As rank `me` sees it; the rows agree.
    fn new(rows: &[RankSplits], me: usize) -> Self {
        let world = rows.len();
        let others = |rank: usize| (1..world).map(move |step| (rank + step) % world);
        let streams = |rank: usize| others(rank).map(|taker| rows[rank].sends[taker]).sum();
        let longest = (0..world).map(streams).max().unwrap_or(0);
        let mut end = 0;
        let given = others(me).map(|taker| {
            let len = rows[me].sends[taker];
            end += len;
            Stretch::new(end - len, len, before(&rows[me].sends, taker))
        });
        let given = given.collect();
        let taken = (0..world).map(|source| {
            let ahead: usize =
                others(source).take_while(|taker| *taker != me).map(|taker| rows[source].sends[taker]).sum();
            let len = if source == me { 0 } else { rows[me].receives[source] };
            Stretch::new(if source == me { 0 } else { ahead }, len, before(&rows[me].receives, source))
        });
        let taken = taken.collect();
        let own = (rows[me].sends[me], before(&rows[me].sends, me), before(&rows[me].receives, me));
        let starts = rows.iter().map(|row| before(&row.sends, me)).collect();
        Self { longest, given, taken, starts, own }
    }
}

/// Elements of the chunks before that of `rank`.
pub(super) fn before(chunks: &[usize], rank: usize) -> usize {
    chunks[..rank].iter().sum()
}

/// Whether everybody expects what it is sent.
fn agree(rows: &[RankSplits]) -> bool {
    let pairs = (0..rows.len()).flat_map(|source| (0..rows.len()).map(move |taker| (source, taker)));
    pairs.into_iter().all(|(source, taker)| rows[source].sends[taker] == rows[taker].receives[source])
}

impl RankSplits {
    fn new(rank: usize, world: usize, part: &[u8]) -> Result<Self, CallRefusal> {
        let words = decode(part);
        // The first word is for symmetric memory.
        let chunks = words.get(1..).unwrap_or_default();
        if chunks.len() != 2 * world || total(&chunks[..world]).and(total(&chunks[world..])).is_none() {
            return Err(CallRefusal::Rank(
                rank,
                "what it announced about its splits is impossible".to_owned(),
            ));
        }
        Ok(Self { sends: chunks[..world].to_vec(), receives: chunks[world..].to_vec() })
    }

    fn describe(&self, rank: usize) -> String {
        format!("rank {rank}: sends {:?}, receives {:?}", self.sends, self.receives)
    }
}

/// Their sum, if it can be counted.
fn total(chunks: &[usize]) -> Option<usize> {
    chunks.iter().try_fold(0usize, |sum, chunk| sum.checked_add(*chunk))
}

/// Whether `splits` are one per rank and make up the `len` elements of the `what`.
pub(super) fn check(what: &str, splits: &[usize], world: usize, len: usize) -> Result<()> {
    let problem = match total(splits) {
        _ if splits.len() != world => format!("{} of them for {world} ranks", splits.len()),
        Some(sum) if sum == len => return Ok(()),
        sum => {
            let sum = sum.map_or_else(|| "more than can be counted".to_owned(), |sum| sum.to_string());
            format!("they add up to {sum}, but there are {len} elements")
        }
    };
    Err(Error::invalid(format!("splits of the {what}"), problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_gives_is_what_the_other_takes() {
        let sends = [[1, 2, 3], [4, 0, 5], [6, 7, 8]];
        let row = |rank: usize| RankSplits {
            sends: sends[rank].to_vec(),
            receives: sends.map(|row| row[rank]).to_vec(),
        };
        let rows: Vec<RankSplits> = (0..3).map(row).collect();
        assert!(agree(&rows));
        let splits = Splits::new(&rows, 1);
        assert_eq!((splits.longest, splits.own), (13, (0, 4, 2)));
        // First to rank 2, then to rank 0.
        assert_eq!(splits.given, [Stretch::new(0, 5, 4), Stretch::new(5, 4, 0)]);
        assert_eq!(splits.taken[0], Stretch::new(0, 2, 0));
        assert_eq!(splits.taken[2], Stretch::new(6, 7, 2));
        assert_eq!(splits.starts, [1, 4, 6]);
    }

    #[test]
    fn splits_must_add_up() {
        assert!(check("input", &[1, 2], 2, 3).is_ok());
        assert!(check("input", &[1, 2], 2, 4).is_err());
        assert!(check("input", &[1, 2, 0], 2, 3).is_err());
        assert!(check("input", &[usize::MAX, 2], 2, 1).is_err());
    }
}
