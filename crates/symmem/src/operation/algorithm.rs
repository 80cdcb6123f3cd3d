//! The one table of algorithms on the host, and what a choice among them looks like as text. Which of them
//! carry which collective says the table of operations.

use serde::{Deserialize, Serialize};

use super::Collective;
use crate::named::named;
use crate::{Error, Result};

named! {
    /// How a collective moves its bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Algorithm read as "algorithm" {
        /// Every algorithm.
        ALL: {
            /// The bytes travel in the cache lines of the announcement itself. For a few hundred bytes at
            /// most.
            Push = "push",
            /// Each rank copies its bytes into its staging, meets the others once, and works on everybody's
            /// staging. No second meeting: staging has two halves.
            Staged = "staged",
            /// Meet, read the peers' memory where it is, meet again.
            Direct = "direct",
            /// Meet, reduce a slice that this rank alone owns and write the result into everybody's memory,
            /// meet again.
            TwoShot = "two_shot",
            /// Staged, piece by piece, each piece staying in the caches from its copy to its use. For private
            /// memory. In reductions each rank reduces a slice of every piece and hands the result back in
            /// place.
            Pipelined = "pipelined",
            /// Meet, read the peers' private memory through the kernel (`process_vm_readv`), meet again. For
            /// large private memory that everybody gives to everybody, where the kernel allows it on all
            /// ranks; else pipelined.
            Pull = "pull",
        }
    }
}

impl Collective {
    /// An error unless `algorithm` can carry it.
    pub(crate) fn check(self, algorithm: Algorithm) -> Result<()> {
        let possible = self.algorithms();
        if possible.contains(&algorithm) {
            return Ok(());
        }
        let names = possible.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
        let problem = format!("{algorithm} cannot carry {self}, which has {names}");
        Err(Error::invalid("algorithm", problem))
    }
}

/// What `choice` forces: `"staged"` all collectives that it can carry, or
/// `"all_reduce=push,broadcast=direct"`.
pub(crate) fn forced(choice: &str) -> Result<Vec<(Collective, Algorithm)>> {
    let mut all = Vec::new();
    for part in choice.split(',').filter(|part| !part.is_empty()) {
        let (only, name) = part.split_once('=').map_or((None, part), |(only, name)| (Some(only), name));
        let only = only.map(str::parse::<Collective>).transpose()?;
        let algorithm = name.parse()?;
        only.map_or(Ok(()), |only| only.check(algorithm))?;
        let can = |one: &Collective| one.check(algorithm).is_ok() && only.is_none_or(|it| it == *one);
        all.extend(Collective::ALL.into_iter().filter(can).map(|collective| (collective, algorithm)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_files_and_on_the_command_line() {
        for algorithm in Algorithm::ALL {
            assert_eq!(serde_json::to_value(algorithm).unwrap(), algorithm.name());
            assert_eq!(algorithm.name().parse::<Algorithm>().unwrap(), algorithm);
        }
        for collective in Collective::ALL {
            assert_eq!(serde_json::to_value(collective).unwrap(), collective.name());
            assert_eq!(collective.name().parse::<Collective>().unwrap(), collective);
        }
        let said = "ring".parse::<Algorithm>().unwrap_err().to_string();
        assert!(
            said.contains("\"ring\" is none of push, staged, direct, two_shot, pipelined, pull"),
            "{said}"
        );
    }
}
