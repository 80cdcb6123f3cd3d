//! The vote that ends every set-up step: all ranks succeed, or all get the same rank's error.

use serde::{Deserialize, Serialize};
use symmem_store::Interrupt;

/// A peer has voted, so what it was going to send is here or will never come.
#[derive(Debug, thiserror::Error)]
#[error("the peer gave up")]
pub(crate) struct GaveUp;

impl GaveUp {
    /// Whether this is what ended the wait.
    pub(crate) fn ended(interrupt: &Interrupt) -> bool {
        matches!(interrupt, Interrupt::Watch(cause) if cause.is::<Self>())
    }
}

/// One rank's vote; an error is why it failed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Vote {
    error: Option<String>,
    /// The failure is only that another rank's part did not come.
    secondary: bool,
}

impl Vote {
    pub(crate) fn yes() -> Self {
        Self { error: None, secondary: false }
    }

    /// This rank failed by itself.
    pub(crate) fn no(error: &crate::Error) -> Self {
        Self { error: Some(error.to_string()), secondary: false }
    }

    /// This rank failed because another one did.
    pub(crate) fn waited_in_vain() -> Self {
        Self { error: Some("another rank's part did not come".to_owned()), secondary: true }
    }

    /// Whether the encoded `vote` only says that another rank's part did not come.
    pub(crate) fn is_secondary(vote: &[u8]) -> bool {
        serde_json::from_slice::<Self>(vote).is_ok_and(|vote| vote.secondary)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The rank whose failure counts, with its error: the lowest that failed by itself, else the lowest.
    pub(crate) fn tally(votes: &[Vec<u8>]) -> Option<(usize, String)> {
        let failure = |(rank, vote): (usize, &Vec<u8>)| match serde_json::from_slice::<Vote>(vote) {
            Ok(Vote { error: None, .. }) => None,
            Ok(Vote { error: Some(error), secondary }) => Some((secondary, rank, error)),
            Err(error) => Some((false, rank, format!("its vote cannot be read: {error}"))),
        };
        let (_, rank, error) = votes.iter().enumerate().filter_map(failure).min()?;
        Some((rank, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn the_lowest_rank_that_failed_by_itself_counts() {
        let no = |what: &str| Vote::no(&Error::invalid(what, "broke")).encode();
        let votes = [Vote::yes().encode(), Vote::waited_in_vain().encode(), no("disk"), no("net")];
        assert_eq!(Vote::tally(&votes), Some((2, "disk: broke".to_owned())));
        assert_eq!(Vote::tally(&votes[..2]).map(|(rank, _)| rank), Some(1));
        assert!(Vote::is_secondary(&votes[1]) && !Vote::is_secondary(&votes[2]));
        assert_eq!(Vote::tally(&votes[..1]), None);
        assert_eq!(Vote::tally(&[b"junk".to_vec()]).map(|(rank, _)| rank), Some(0));
    }
}
