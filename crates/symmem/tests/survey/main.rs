//! A survey of kills: `kill -9` of one of four ranks at a random moment of random work, as often as asked.
//!
//! Four processes form a world again and again; each time one of them is killed, and the others must return
//! an error that blames it, soon, regroup, and hold afterwards what they held before. The dead one is
//! replaced, so three of four processes carry whatever earlier rounds left behind. As a test it does a few
//! kills; `cargo xtask survey` does many.

mod activity;
mod arguments;
#[path = "../kill/rank.rs"]
mod rank;
mod round;
mod seat;
mod seats;
mod tally;
#[path = "../kill/traces.rs"]
mod traces;
#[path = "../trial/mod.rs"]
mod trial;

/// Under the name that the modules of the kill tests know.
mod random {
    pub(crate) use super::trial::{Random, entropy};
}

use std::process::ExitCode;
use std::time::Instant;

use arguments::Arguments;
use random::Random;
use round::Round;
use seats::Seats;
use tally::Tally;
use traces::{Holdings, Scene};

fn main() -> ExitCode {
    if seat::is_asked_for() {
        seat::sit();
        return ExitCode::SUCCESS;
    }
    let Some(arguments) = Arguments::from_command_line() else { return ExitCode::SUCCESS };
    let tally = survey(&arguments);
    tally.print(&arguments);
    if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn survey(arguments: &Arguments) -> Tally {
    println!("survey: {} kills, --seed {}", arguments.kills, arguments.seed);
    let scene = Scene::new();
    let mut random = Random::new(arguments.seed);
    let mut tally = Tally::new(arguments.bound);
    let before = Holdings::now();
    {
        let mut seats = Seats::new(&scene);
        let started = Instant::now();
        while tally.kills() < arguments.kills {
            let round = Round::random(&mut random, arguments.only.as_deref());
            round.run(&scene, &mut seats, &mut tally);
            tally.show_progress(arguments, started);
            if tally.gives_up() {
                println!("survey: too much is wrong to go on");
                break;
            }
        }
    }
    let after = Holdings::settled(before);
    if after != before {
        tally.leaked(format!("the launcher held {before:?} and holds {after:?}"));
    }
    for (what, left) in [("files", scene.files().len()), ("processes", scene.processes().len())] {
        if left > 0 {
            tally.leaked(format!("{left} {what} are left over: {:?} {:?}", scene.files(), scene.processes()));
        }
    }
    tally
}
