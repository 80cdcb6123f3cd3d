//! What the conductor and a rank say to each other: one JSON object in a line, an answer to every order.
//!
//! A rank speaks first: it says who it is. Orders come on stdin, answers go to stdout, everything else to
//! stderr. An `error` ends the rank's part in the run, `cannot` that in the case.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::plan::Task;

/// An order to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum Order {
    /// Of one rank of ours: compile the kernels that all systems use, into this file.
    Kernels {
        path: PathBuf,
    },
    /// Join the group, load the kernels, have an arena of so many bytes of symmetric memory.
    Open {
        kernels: PathBuf,
        /// Where the ranks meet, if rank 0 told.
        port: Option<u16>,
        arena: usize,
        /// The core on which each rank launches its work; empty: any.
        cores: Vec<usize>,
    },
    Prepare(Task),
    /// One timed run; odd rounds run the two graphs the other way round.
    Round {
        slot: usize,
        round: usize,
    },
    /// One run whose results are checked.
    Verify {
        slot: usize,
    },
    /// Nothing of what was prepared is needed any more.
    Clear,
    Quit,
}

/// An answer. Which fields there are depends on the order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    /// Why it cannot go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Why it cannot do this case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cannot: Option<String>,
    /// Who it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    /// What such devices are called in a tuning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
    /// From the first allocation to the end of its rendezvous, the context being there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) startup_us: Option<f64>,
    /// What the prepared operation is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) algorithm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) grid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) registers: Option<u32>,
    /// Microseconds of fills and operations, and of the fills alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) with_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) without_us: Option<f64>,
    /// Elements that are not what they must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wrong: Option<u64>,
    /// Of a barrier: the device's nanoseconds when this rank came and when it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) came_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_ns: Option<u64>,
}

impl Answer {
    /// That this rank cannot go on.
    pub(super) fn failed(why: impl ToString) -> Self {
        Self { error: Some(why.to_string()), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_are_single_lines() {
        let order = Order::Open { kernels: "/a b/k\n".into(), port: Some(7), arena: 1 << 21, cores: vec![3] };
        let text = serde_json::to_string(&order).expect("JSON");
        assert_eq!(text, r#"{"order":"open","kernels":"/a b/k\n","port":7,"arena":2097152,"cores":[3]}"#);
        assert_eq!(serde_json::to_string(&Order::Clear).expect("JSON"), r#"{"order":"clear"}"#);
        let answer: Answer = serde_json::from_str(r#"{"with_us": 3, "unknown": []}"#).expect("an answer");
        assert_eq!(answer, Answer { with_us: Some(3.0), ..Answer::default() });
        assert_eq!(serde_json::to_string(&Answer::failed("x")).expect("JSON"), r#"{"error":"x"}"#);
    }
}
