//! `symmem config`, and the log.

use crate::program::symmem;
use serde_json::Value;

#[test]
fn the_table_shows_every_setting_with_value_origin_and_meaning() {
    let table = symmem(&["config"], &[("SYMMEM_TIMEOUT", "42.5")]).ok().stdout;
    for word in ["setting", "value", "origin", "meaning", "SYMMEM_SIGNAL_PAD_SIZE", "9216", "default"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let timeout = table.lines().find(|line| line.contains("SYMMEM_TIMEOUT")).expect("a row");
    assert!(timeout.contains("42.5") && timeout.contains("environment"), "{timeout}");
}

#[test]
fn the_same_as_json() {
    let text = symmem(&["config", "--json"], &[("SYMMEM_SPIN", "7")]).ok().stdout;
    let settings: Vec<Value> = serde_json::from_str(&text).expect("a list");
    assert!(settings.len() >= 9);
    assert!(settings.iter().all(|setting| setting["meaning"].as_str().is_some_and(|text| !text.is_empty())));
    let spins = settings.iter().find(|setting| setting["setting"] == "SYMMEM_SPIN").expect("a row");
    assert_eq!((spins["value"].as_str(), spins["origin"].as_str()), (Some("7"), Some("environment")));
}

#[test]
fn a_setting_that_cannot_be_understood_is_named() {
    let complaint = symmem(&["config"], &[("SYMMEM_TIMEOUT", "soon")]).complaint();
    assert!(complaint.contains("SYMMEM_TIMEOUT") && complaint.contains("soon"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
}

#[test]
fn a_log_filter_that_cannot_be_understood_is_named() {
    let complaint = symmem(&["config"], &[("SYMMEM_LOG", "symmem=loud")]).complaint();
    assert!(complaint.contains("SYMMEM_LOG"), "{complaint}");
}

#[test]
fn no_command_is_an_error_and_help_is_none() {
    assert_eq!(symmem(&[], &[]).code, Some(2));
    assert!(symmem(&["--help"], &[]).ok().stdout.contains("bench"));
}

#[test]
fn the_help_tells_of_gpus_and_a_typo_leads_to_no_hidden_command() {
    assert!(symmem(&["--help"], &[]).ok().stdout.lines().next().is_some_and(|title| title.contains("GPUs")));
    for typo in ["bensh", "bench-rnak", "compile-kernel"] {
        let complaint = symmem(&[typo], &[]).complaint();
        let tip = complaint.lines().find(|line| line.contains("similar")).unwrap_or_default();
        assert!(!["bench-", "compile-"].iter().any(|hidden| tip.contains(hidden)), "{complaint}");
    }
    let complaint = symmem(&["bensh"], &[]).complaint();
    assert!(complaint.contains("a similar subcommand exists: 'bench'"), "{complaint}");
}

#[test]
fn a_misspelt_variable_is_a_warning_with_the_one_that_is_meant() {
    let outcome = symmem(&["config"], &[("SYMMEM_TIMEOUTS", "5"), ("SYMMEM_SPAWN_X", "1")]).ok();
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("SYMMEM_TIMEOUTS is set, and means nothing"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("did you mean SYMMEM_TIMEOUT?"), "{}", outcome.stderr);

    let bench = ["bench", "--quick", "--ranks", "2,3", "--ops", "barrier"];
    let outcome = symmem(&bench, &[("SYMMEM_ALGORITM", "push")]).ok();
    let lines = outcome.stderr.lines().filter(|line| line.contains("did you mean SYMMEM_ALGORITHM?"));
    assert_eq!(lines.count(), 1, "the launcher says it for all ranks: {}", outcome.stderr);
}
