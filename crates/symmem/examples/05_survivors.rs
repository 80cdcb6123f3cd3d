//! One process dies; the others notice at once, learn who it was, regroup and go on.

use std::time::{Duration, Instant};

use symmem::{Deadline, ProcessSpawner, Result};

fn main() -> Result<()> {
    let outcomes = ProcessSpawner::new("survivors", 4).run_all(|group| {
        if group.rank() == 2 {
            std::process::abort(); // as if it had crashed
        }
        let start = Instant::now();
        let error = group.barrier().expect_err("rank 2 is dead");
        println!("rank {} after {:.0?}: {error}", group.rank(), start.elapsed());
        assert_eq!(error.culprit(), Some(2));

        let rest = group.survivors(Deadline::after(Duration::from_secs(10)))?;
        rest.barrier()?;
        rest.all_gather(&group.rank())
    })?;
    for (rank, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(members) => assert_eq!(*members, [0, 1, 3]),
            Err(error) => {
                println!("{error}");
                assert_eq!(rank, 2);
            }
        }
    }
    Ok(())
}
