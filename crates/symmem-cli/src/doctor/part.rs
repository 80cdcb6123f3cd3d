//! Parts that may hang or crash run as processes of this program: a driver that does not answer is a row, not
//! the end of the doctor.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::row::Fact;
use super::{gpu, self_test};
use crate::args::DoctorPart;
use crate::{child, screen};

/// `symmem doctor-part`: does the part, and prints its facts as JSON.
pub(crate) fn run_part(part: DoctorPart) -> Result<()> {
    screen::print_json(&match part {
        DoctorPart::Gpus => gpu::facts(),
        DoctorPart::Provider(provider) => vec![self_test::run(provider)],
    })
}

/// Runs the part as a process; what is known if it does not come to its end is a failure named `name`.
pub(super) fn ask(part: DoctorPart, name: &str, limit: Duration) -> Vec<Fact> {
    let word = part.name();
    let ended = std::env::current_exe()
        .map_err(anyhow::Error::from)
        .and_then(|program| child::run(Command::new(program).args(["doctor-part", word]), limit));
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => return vec![Fact::failure(name, &format!("it cannot be started: {error:#}"))],
    };
    match serde_json::from_str(&ended.stdout) {
        Ok(facts) if ended.is_good() => facts,
        _ => {
            let said = ended.last_words().map(|words| format!(": {words}")).unwrap_or_default();
            let found = format!("it {}{said}", ended.words(limit));
            let hint = format!("`SYMMEM_LOG=debug symmem doctor-part {word}` shows how far it comes");
            vec![Fact::fail(name, found, hint)]
        }
    }
}
