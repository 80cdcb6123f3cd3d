//! The settings that a program started here would have: are they understood, and does each mean something?

use symmem::tuning::TuningFile;
use symmem::{Config, ConfigRow, Origin};
use tracing_subscriber::util::SubscriberInitExt;

use super::row::{Fact, split_hint};

pub(super) fn facts(ranks: usize) -> Vec<Fact> {
    let config = {
        // Variables that mean nothing become rows here, and not lines of the log as well.
        let _quiet = tracing_subscriber::registry().set_default();
        Config::from_env()
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => return vec![Fact::failure("variables", &error.to_string())],
    };
    let mut facts = vec![chosen(&config.rows())];
    facts.extend(config.unknown_variables().iter().map(|sentence| unknown(sentence)));
    facts.push(tuning(&config.rows(), ranks));
    facts
}

/// What is set, and to what.
fn chosen(rows: &[ConfigRow]) -> Fact {
    let set: Vec<String> = rows
        .iter()
        .filter(|row| row.origin != Origin::Default)
        .map(|row| format!("{}={}", row.variable, row.value))
        .collect();
    Fact::ok(
        "variables",
        match set.is_empty() {
            true => "none is set; `symmem config` lists all".to_owned(),
            false => set.join(", "),
        },
    )
}

/// A row of the library's sentence: "SYMMEM_X is set, and means nothing. Hint: ...".
fn unknown(sentence: &str) -> Fact {
    let name = sentence.split_whitespace().next().unwrap_or_default().to_owned();
    let (found, hint) = split_hint(sentence);
    Fact::warn(name, found, hint.unwrap_or_default())
}

fn tuning(rows: &[ConfigRow], ranks: usize) -> Fact {
    const NAME: &str = "tuning";
    let path = rows.iter().find(|row| row.variable == "SYMMEM_TUNING").map(|row| row.value.as_str());
    let Some(path) = path.filter(|path| !matches!(*path, "" | "off" | "none")) else {
        return Fact::ok(NAME, "off: built-in choices count");
    };
    match TuningFile::open(path.as_ref()) {
        Err(error) => Fact::failure(NAME, &error.to_string()),
        Ok(file) if file.has(ranks) => Fact::ok(NAME, format!("{path} has this machine with {ranks} ranks")),
        Ok(_) => Fact::ok(
            NAME,
            format!("nothing measured for {ranks} ranks, so built-in choices count; `symmem tune` measures"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    #[test]
    fn a_variable_that_means_nothing_is_a_warning_by_its_name() {
        let fact = unknown("SYMMEM_TIMEOUTS is set, and means nothing. Hint: did you mean SYMMEM_TIMEOUT?");
        assert!(fact.name.ends_with("TIMEOUTS") && fact.status == Status::Warn, "{fact:?}");
        assert_eq!(fact.found, "SYMMEM_TIMEOUTS is set, and means nothing");
        assert_eq!(fact.hint.as_deref(), Some("did you mean SYMMEM_TIMEOUT?"));
    }
}
