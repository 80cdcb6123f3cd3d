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
