//! The dispatcher: which algorithm carries a collective, by its size.
//!
//! A [`Tuning`] holds, for each collective, up to how many bytes each algorithm is used. Rank 0's is sent to
//! all ranks when a group is made, so the choice depends on nothing but what all ranks agree on. It is built
//! in, or what `symmem tune` measured on this machine (a [`TuningFile`] in the user's cache folder), and can
//! be forced. What was measured of devices travels with it, by names that only engines understand.

mod file;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::file::{TuningFile, machine};
use crate::config::Config;
use crate::operation::forced;
pub use crate::operation::{Algorithm, Collective};
use crate::sync::control::staging_bytes;
use crate::sync::protocol::PARCEL_WORDS;
use crate::{Error, Result};

/// Most ranks whose parcels an operation takes up at once, on its stack.
pub(crate) const PUSH_RANKS: usize = 16;

/// Up to how many bytes per rank the algorithms for smaller messages are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// [`Algorithm::Push`] up to here.
    pub push: usize,
    /// [`Algorithm::Staged`] up to here.
    pub staged: usize,
    /// [`Algorithm::Pipelined`] up to here, and [`Algorithm::Pull`] beyond. Collectives that have no such
    /// algorithm do not look at it.
    #[serde(default = "never")]
    pub pipelined: usize,
}

/// Up to how many bytes each algorithm of devices is used, for each form of an all-reduce, all by their names
/// ([`cuda::Algorithm`](crate::cuda::Algorithm), [`cuda::Form`](crate::cuda::Form)), and for norms
/// (`all_reduce_rms_norm`). What it does not name is as it is built in.
pub type DeviceBounds = BTreeMap<String, BTreeMap<String, usize>>;

/// Which algorithm runs when, in a group of some number of ranks.
///
/// ```
/// use symmem::tuning::{Algorithm, Collective, Tuning};
/// let tuning = Tuning::built_in(2);
/// assert_eq!(tuning.choose(Collective::AllReduce, 64 << 20), Algorithm::TwoShot);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    world: usize,
    bounds: BTreeMap<Collective, Bounds>,
    /// What somebody asked for, whatever the size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forced: BTreeMap<Collective, Algorithm>,
    /// What was measured on devices, by their kind. Engines ask for it, and refuse what means nothing to
    /// them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) devices: BTreeMap<String, DeviceBounds>,
    /// Whether pieces take turns in staging, which all ranks must do alike: rank 0's processor decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    rests: bool,
}

impl Tuning {
    /// What is used on a machine that was never measured.
    pub fn built_in(world: usize) -> Self {
        let bounds = Collective::ALL.map(|collective| (collective, default(collective, world))).into();
        Self { world, bounds, forced: BTreeMap::new(), devices: BTreeMap::new(), rests: false }
    }

    /// Number of ranks it is for.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The bounds of `collective`.
    pub fn bounds(&self, collective: Collective) -> Bounds {
        self.bounds.get(&collective).copied().unwrap_or_else(|| default(collective, self.world))
    }

    /// Sets the bounds of `collective`.
    pub fn set_bounds(&mut self, collective: Collective, bounds: Bounds) {
        self.bounds.insert(collective, bounds);
    }

    /// Uses `algorithm` for `collective` wherever it can: where a message is too large for it, the one for
    /// any size. It is a wish for messages of all sizes; what one handle must have is told by
    /// [`SymmetricMemory::using`](crate::SymmetricMemory::using). An algorithm that cannot carry the
    /// collective at all is an error.
    pub fn force(&mut self, collective: Collective, algorithm: Algorithm) -> Result<()> {
        collective.check(algorithm).map(|()| self.forced.extend([(collective, algorithm)]))
    }

    /// The algorithm for `bytes` per rank.
    pub fn choose(&self, collective: Collective, bytes: usize) -> Algorithm {
        Choices::new(self, self.world).of(collective, bytes)
    }

    /// What rank 0 of a group of `world` brings along: measured or built in, and what the configuration
    /// forces.
    pub(crate) fn from_config(config: &Config, world: usize) -> Result<Self> {
        let file = config.tuning.as_deref().map_or_else(|| Ok(TuningFile::default()), TuningFile::open);
        // A cache that cannot be read must not keep anybody from working.
        let warn = |error: &Error| tracing::warn!(%error, "built-in tuning is used");
        let mut tuning = file.inspect_err(warn).unwrap_or_default().tuning(world);
        tuning.force_by_text(&config.algorithm)?;
        // What is not in the file is filled in here, where it is decided: another rank may see other cores.
        tuning.bounds = Collective::ALL.map(|collective| (collective, tuning.bounds(collective))).into();
        tuning.rests = crate::sys::copy::lines_rest();
        Ok(tuning)
    }

    /// Forces what `choice` says: `"staged"`, or `"all_reduce=push,broadcast=direct"`.
    pub fn force_by_text(&mut self, choice: &str) -> Result<()> {
        forced(choice).map(|all| self.forced.extend(all))
    }
}

/// A tuning made quick to ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    /// Below how many bytes each of a collective's algorithms but the last is used, as far as there are so
    /// many.
    below: [[usize; 3]; Collective::ALL.len()],
    /// Whether pieces take turns in staging.
    pub(crate) rests: bool,
}

impl Choices {
    /// What `tuning` says, for a group of `world` ranks. The tuning came through a store or a file: what it
    /// takes its own world to be must not decide what fits a parcel or staging.
    pub(crate) fn new(tuning: &Tuning, world: usize) -> Self {
        let below = Collective::ALL.map(|collective| {
            let algorithms = collective.algorithms();
            let Bounds { push, staged, pipelined } = tuning.bounds(collective);
            let asked = match tuning.forced.get(&collective) {
                None => [push, staged, pipelined].map(|bytes| bytes.saturating_add(1)),
                Some(forced) => {
                    let first = algorithms.iter().position(|algorithm| algorithm == forced).unwrap_or(2);
                    std::array::from_fn(|at| if at < first { 0 } else { usize::MAX })
                }
            };
            std::array::from_fn(|at| asked[at].min(too_much(algorithms[at], world)))
        });
        Self { below, rests: tuning.rests }
    }

    /// Below how many bytes of `collective` one meeting is preferred.
    pub(crate) fn staged_below(&self, collective: Collective) -> usize {
        self.below[collective as usize][1]
    }

    /// The algorithm for `bytes` per rank.
    #[inline]
    pub(crate) fn of(&self, collective: Collective, bytes: usize) -> Algorithm {
        let algorithms = collective.algorithms();
        // Constants, not places in a list: what is done with a small message is known after one comparison.
        match self.below[collective as usize] {
            [push, ..] if bytes < push => Algorithm::Push,
            [_, staged, _] if bytes < staged => Algorithm::Staged,
            [.., pipelined] if bytes < pipelined => algorithms[2],
            _ => algorithms[algorithms.len() - 1],
        }
    }
}

impl Collective {
    /// `algorithm` and no other: an error where it cannot carry `bytes` per rank in a group of `world`.
    pub(crate) fn exactly(self, algorithm: Algorithm, world: usize, bytes: usize) -> Result<Algorithm> {
        self.check(algorithm)?;
        let problem = match too_much(algorithm, world).checked_sub(1) {
            None => format!("it is for groups of at most {PUSH_RANKS} ranks, not {world}"),
            Some(most) if bytes > most => {
                format!("it carries at most {most} bytes of a rank in a group of {world}, not {bytes}")
            }
            Some(_) => return Ok(algorithm),
        };
        Err(Error::invalid(format!("algorithm {algorithm}"), problem))
    }
}

/// The fewest bytes of a rank that `algorithm` does not carry in a group of `world`; 0: there are too many
/// ranks for it.
fn too_much(algorithm: Algorithm, world: usize) -> usize {
    match algorithm {
        Algorithm::Push if world > PUSH_RANKS => 0,
        Algorithm::Push => PARCEL_WORDS * 8 + 1,
        Algorithm::Staged => staging_bytes(world.max(1)) + 1,
        _ => usize::MAX,
    }
}

/// Measured with 2 and 4 ranks on 2 cores of a Zen 3, and sane elsewhere. A parcel that fits the line of its
/// announcement saves a cache miss. Staging saves a meeting: that is worth a copy of a few lines, and of more
/// where ranks outnumber the cores and every meeting takes turns on them.
fn default(collective: Collective, world: usize) -> Bounds {
    let crowded = world > crate::sys::limits::usable_cores();
    let staged = match (crowded, collective) {
        // Without a copy into staging that symmetric memory could save.
        (false, Collective::Private) => 2 << 10,
        (false, _) => 1 << 10,
        (true, Collective::AllReduce) => 8 << 10,
        (true, _) => 16 << 10,
    };
    // Measured with 2 ranks on 2 cores of a Sapphire Rapids: from 128 KB of each rank on one copy less is
    // worth the system calls. Where ranks outnumber the cores it is not, and elsewhere nobody has measured
    // it. With more ranks the chunks of an all_to_all are smaller.
    let pulls = !crowded && crate::sys::copy::lines_rest();
    let pipelined = if pulls { world.saturating_mul(64 << 10) } else { never() };
    Bounds { push: 32, staged, pipelined }
}

/// The bound that files of before there was [`Algorithm::Pull`] do not have: what was measured then had no
/// such choice.
fn never() -> usize {
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_choose_the_algorithm() {
        let tuning = Tuning::built_in(4);
        let Bounds { push, staged, .. } = tuning.bounds(Collective::AllGather);
        assert_eq!(tuning.choose(Collective::AllGather, 0), Algorithm::Push);
        assert_eq!(tuning.choose(Collective::AllGather, push), Algorithm::Push);
        assert_eq!(tuning.choose(Collective::AllGather, push + 1), Algorithm::Staged);
        assert_eq!(tuning.choose(Collective::AllGather, staged + 1), Algorithm::Direct);
        assert_eq!(tuning.choose(Collective::AllReduce, 1 << 30), Algorithm::TwoShot);
    }

    #[test]
    fn private_memory_beyond_the_pipelines_bound_is_pulled() {
        let mut tuning = Tuning::built_in(2);
        let bounds = Bounds { push: 8, staged: 64, pipelined: 512 };
        tuning.set_bounds(Collective::Private, bounds);
        let expected = [Algorithm::Push, Algorithm::Staged, Algorithm::Pipelined, Algorithm::Pull];
        assert_eq!([8, 64, 512, 513].map(|bytes| tuning.choose(Collective::Private, bytes)), expected);
        tuning.set_bounds(Collective::AllGather, bounds);
        assert_eq!(tuning.choose(Collective::AllGather, 513), Algorithm::Direct);
        tuning.force_by_text("pull").unwrap();
        assert_eq!(tuning.choose(Collective::Private, 1), Algorithm::Pull);
        assert_eq!(tuning.choose(Collective::AllGather, 513), Algorithm::Direct);
        tuning.force_by_text("private=pipelined").unwrap();
        assert_eq!(tuning.choose(Collective::Private, 1 << 30), Algorithm::Pipelined);
    }

    #[test]
    fn bounds_of_before_there_was_a_third_one_are_still_good() {
        let old: Bounds = serde_json::from_str(r#"{"push": 32, "staged": 2048}"#).unwrap();
        assert_eq!(old, Bounds { push: 32, staged: 2048, pipelined: usize::MAX });
    }

    #[test]
    fn a_forced_algorithm_gives_way_where_it_cannot_work() {
        let mut tuning = Tuning::built_in(2);
        tuning.force(Collective::AllReduce, Algorithm::Push).unwrap();
        assert_eq!(tuning.choose(Collective::AllReduce, 8), Algorithm::Push);
        assert_eq!(tuning.choose(Collective::AllReduce, 8 << 10), Algorithm::Staged);
        assert_eq!(tuning.choose(Collective::AllReduce, 8 << 20), Algorithm::TwoShot);
        let error = tuning.force(Collective::Broadcast, Algorithm::TwoShot).unwrap_err().to_string();
        assert!(error.contains("broadcast") && error.contains("direct"), "{error}");
    }

    #[test]
    fn what_is_asked_for_is_had_or_an_error() {
        let had = |algorithm, collective, world, bytes| {
            let had = Collective::exactly(collective, algorithm, world, bytes);
            had.map(|had| assert_eq!(had, algorithm)).map_err(|error| error.to_string())
        };
        let (parcel, staging) = (PARCEL_WORDS * 8, staging_bytes(2));
        for collective in Collective::ALL {
            for algorithm in Algorithm::ALL {
                let most = match algorithm {
                    _ if !collective.algorithms().contains(&algorithm) => {
                        let error = had(algorithm, collective, 2, 8).unwrap_err();
                        assert!(error.contains(&format!("{algorithm} cannot carry {collective}")), "{error}");
                        continue;
                    }
                    Algorithm::Push => parcel,
                    Algorithm::Staged => staging,
                    _ => usize::MAX - 1,
                };
                assert_eq!(had(algorithm, collective, 2, 0), Ok(()));
                assert_eq!(had(algorithm, collective, 2, most), Ok(()));
                if most <= staging {
                    let error = had(algorithm, collective, 2, most + 1).unwrap_err();
                    let words = format!("algorithm {algorithm}: it carries at most {most} bytes");
                    assert!(error.contains(&words), "{error}");
                }
            }
        }
        let error = had(Algorithm::Push, Collective::AllReduce, PUSH_RANKS + 1, 8).unwrap_err();
        assert!(error.contains("at most 16 ranks, not 17"), "{error}");
    }

    #[test]
    fn what_fits_depends_on_the_group_and_not_on_what_the_tuning_says_of_itself() {
        for said in [0, 1, 2, 5000] {
            let bounds = Bounds { push: usize::MAX, staged: usize::MAX, pipelined: 0 };
            let mut tuning = Tuning::built_in(2);
            tuning.set_bounds(Collective::AllReduce, bounds);
            tuning.world = said;
            let choices = Choices::new(&tuning, 1024);
            assert_eq!(choices.of(Collective::AllReduce, 8), Algorithm::Staged, "{said}");
            let most = staging_bytes(1024);
            assert_eq!(choices.of(Collective::AllReduce, most), Algorithm::Staged, "{said}");
            assert_eq!(choices.of(Collective::AllReduce, most + 1), Algorithm::TwoShot, "{said}");
        }
    }

    #[test]
    fn too_many_ranks_for_parcels_stage_instead() {
        let tuning = Tuning::built_in(PUSH_RANKS + 1);
        assert_eq!(tuning.choose(Collective::AllReduce, 8), Algorithm::Staged);
    }
}
