//! Two processes of this program meet, share memory, reduce, signal, and check the numbers: once for each
//! provider.
//!
//! Runs within [`super::part`], which bounds its time; the ranks' own waits end earlier, with an error that
//! says more.

mod device;
mod host;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symmem::cuda::{PlaceKind, Provider};

use super::row::Fact;

/// Ranks of a self-test.
const RANKS: usize = 2;
/// Elements that are reduced: 1 MiB.
const LEN: usize = 1 << 18;
/// Barriers that are timed.
const BARRIERS: u32 = 100;
/// Seconds after which a rank stops to wait: less than the doctor waits for the whole.
const PATIENCE: &str = "8";

/// Tries memory of `provider`.
pub(super) fn run(provider: Provider) -> Fact {
    match provider.place() {
        PlaceKind::Device => device::run(provider),
        _ => host::run(provider),
    }
}

/// What a rank found.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    /// Microseconds for the rendezvous, the all-reduce and one barrier.
    rendezvous: f64,
    all_reduce: f64,
    barrier: f64,
    /// The first element that is wrong, with what it is and what it should be.
    wrong: Option<(usize, f32, f32)>,
}

/// What `rank` puts into element `at`: sums are exact, and no two ranks or neighbours have the same.
fn input(rank: usize, at: usize) -> f32 {
    ((rank + 1) * 1000 + at % 977) as f32
}

/// The first element of a sum over all ranks that is wrong.
fn first_wrong(found: &[f32]) -> Option<(usize, f32, f32)> {
    let expected = |at| (0..RANKS).map(|rank| input(rank, at)).sum::<f32>();
    let wrong = found.iter().enumerate().find(|(at, value)| **value != expected(*at));
    wrong.map(|(at, value)| (at, *value, expected(at)))
}

/// The row: how long everything took by the slowest rank, or what went wrong.
fn fact(name: &str, start: Instant, outcome: symmem::Result<Vec<Outcome>>) -> Fact {
    let ranks = match outcome {
        Ok(ranks) => ranks,
        Err(error) => return Fact::failure(name, &error.to_string()),
    };
    if let Some((rank, (at, value, expected))) =
        ranks.iter().enumerate().find_map(|(rank, outcome)| Some((rank, outcome.wrong?)))
    {
        return Fact::fail(
            name,
            format!(
                "the all-reduce is wrong: element {at} on rank {rank} is {value}, and should be {expected}"
            ),
            "this must never happen; please report it with the output of `symmem doctor --json`",
        );
    }
    let slowest = |of: fn(&Outcome) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
    let all = ms(start.elapsed());
    Fact::ok(
        name,
        format!(
            "{RANKS} processes: rendezvous {:.1} ms, all-reduce of 1 MiB {:.0} us and right, barrier {:.1} us; {all} in all",
            slowest(|outcome| outcome.rendezvous) / 1000.0,
            slowest(|outcome| outcome.all_reduce),
            slowest(|outcome| outcome.barrier)
        ),
    )
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    fn outcome(wrong: Option<(usize, f32, f32)>) -> Outcome {
        Outcome { rendezvous: 1500.0, all_reduce: 120.0, barrier: 0.5, wrong }
    }

    #[test]
    fn a_wrong_element_is_found_and_named() {
        let mut sum: Vec<f32> = (0..2000).map(|at| input(0, at) + input(1, at)).collect();
        assert_eq!(first_wrong(&sum), None);
        sum[1234] += 1.0;
        let wrong = first_wrong(&sum);
        assert_eq!(wrong.map(|(at, ..)| at), Some(1234));
        let fact = fact("shm", Instant::now(), Ok(vec![outcome(None), outcome(wrong)]));
        assert_eq!(fact.status, Status::Fail);
        assert!(fact.found.contains("element 1234 on rank 1 is 3515"), "{}", fact.found);
    }

    #[test]
    fn times_are_those_of_the_slowest_rank() {
        let slow = Outcome { barrier: 7.25, ..outcome(None) };
        let fact = fact("shm", Instant::now(), Ok(vec![outcome(None), slow]));
        assert_eq!(fact.status, Status::Ok);
        assert!(
            fact.found.contains("rendezvous 1.5 ms") && fact.found.contains("barrier 7.2 us"),
            "{fact:?}"
        );
    }
}
