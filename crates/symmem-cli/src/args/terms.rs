//! On what terms `symmem bench` measures: in which memory, beside how much other work, on which cores.

use clap::{Args, ValueEnum, value_parser};
use serde::{Deserialize, Serialize};

/// Where the elements of a collective lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// Symmetric memory.
    Symmetric,
    /// A Vec like any other, which is all that other systems have.
    #[default]
    Private,
    /// The same, which the caller copies into symmetric memory and out again.
    ByHand,
}

impl Memory {
    /// Its name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Symmetric => "symmetric",
            Self::Private => "private",
            Self::ByHand => "by_hand",
        }
    }
}

/// Whether a rank keeps to a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pin {
    /// Rank r stays on the r-th core, modulo their number.
    Yes,
    /// Ranks run on any core.
    No,
}

/// What all systems of one measurement have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) pin: bool,
    /// Busy loops beside the ranks.
    pub(crate) load: usize,
}

/// Options that say on what terms to measure.
#[derive(Args)]
pub(crate) struct TermsArgs {
    /// Which memory holds the elements of the collectives [default: symmetric, and with --peers private too].
    #[arg(long, value_name = "WHERE,...", value_delimiter = ',')]
    memory: Vec<Memory>,
    /// Busy loops, each a process that may run on any core, beside every system while it is measured.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "0")]
    #[arg(value_parser = value_parser!(u16).range(0..=256))]
    load: Vec<u16>,
    /// Pin rank r to the r-th core, modulo their number (yes, the default), or let ranks run on any core
    /// (no); ranks of other systems too. On GPUs: the thread that launches, on a physical core of its own,
    /// where there are enough.
    #[arg(long, value_name = "yes|no,...", value_delimiter = ',', num_args = 0..=1, default_missing_value = "yes")]
    #[arg(overrides_with = "no_pin")]
    pin: Vec<Pin>,
    /// The same as --pin no.
    #[arg(long, overrides_with = "pin")]
    no_pin: bool,
}

impl TermsArgs {
    /// Where elements lie: as was said, else in `default`.
    pub(crate) fn memories(&self, default: &[Memory]) -> Vec<Memory> {
        without_repeats(if self.memory.is_empty() { default } else { &self.memory })
    }

    /// What to measure under, one after the other.
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        let loads = without_repeats(&self.load);
        let under = |pin: Pin| loads.iter().map(move |load| (pin, usize::from(*load)));
        let all = self.pins().into_iter().flat_map(under);
        all.map(|(pin, load)| Condition { pin: pin == Pin::Yes, load }).collect()
    }

    fn pins(&self) -> Vec<Pin> {
        match (self.no_pin, self.pin.is_empty()) {
            (true, _) => vec![Pin::No],
            (false, true) => vec![Pin::Yes],
            (false, false) => without_repeats(&self.pin),
        }
    }

    /// Whether anything was asked for that only host memory has.
    pub(crate) fn is_of_hosts(&self) -> bool {
        !self.memory.is_empty() || self.conditions().iter().any(|one| one.load > 0) || self.pins().len() > 1
    }
}

fn without_repeats<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(value) {
            all.push(*value);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        terms: TermsArgs,
    }

    fn conditions(args: &[&str]) -> Vec<(bool, usize)> {
        let all = ["symmem"].iter().chain(args);
        let terms = Only::try_parse_from(all).expect("these can be used").terms;
        terms.conditions().iter().map(|one| (one.pin, one.load)).collect()
    }

    #[test]
    fn every_pinning_is_measured_beside_every_load() {
        assert_eq!(conditions(&[]), [(true, 0)]);
        assert_eq!(conditions(&["--pin"]), [(true, 0)]);
        assert_eq!(conditions(&["--no-pin"]), [(false, 0)]);
        assert_eq!(conditions(&["--no-pin", "--pin"]), [(true, 0)]);
        assert_eq!(conditions(&["--pin", "no", "--load", "0,2,0"]), [(false, 0), (false, 2)]);
        assert_eq!(conditions(&["--pin=yes,no", "--load", "1"]), [(true, 1), (false, 1)]);
    }
}
