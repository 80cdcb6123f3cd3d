//! Runs the program's bench once, quickly, and looks at what it wrote.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::plan::{Job, Outcome};

pub(super) fn run(job: &Job) -> Result<Outcome> {
    let folder = job.workspace.target("smoke");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let report = folder.join(format!("bench-{}.json", std::process::id()));
    let result = bench(job, &report);
    // The report of a failed run may be half written or absent; the first error is the one to show.
    let _ = fs::remove_file(&report);
    result?;
    Ok(Outcome::Passed)
}

fn bench(job: &Job, report: &std::path::Path) -> Result<()> {
    job.run(job.workspace.cargo(["run", "--release", "--", "bench", "--quick", "--json"]).arg(report))?;
    let text = fs::read_to_string(report).context("the bench wrote no report")?;
    check(&text)
}

/// A report is `{"machine": ..., "results": [...]}` with at least one row, every row verified.
fn check(report: &str) -> Result<()> {
    let report: Value = serde_json::from_str(report).context("the report of the bench is not JSON")?;
    ensure!(!report["machine"].is_null(), "the report of the bench does not name the machine");
    let Some(rows) = report["results"].as_array() else {
        bail!("the report of the bench has no list of results");
    };
    ensure!(!rows.is_empty(), "the bench reported no result");
    match rows.iter().find(|row| row["verified"] != Value::Bool(true)) {
        Some(row) => bail!("the bench did not verify this row: {row}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(report: &str) -> String {
        check(report).expect_err("the report must be refused").to_string()
    }

    #[test]
    fn a_report_with_every_row_verified_passes() {
        check(r#"{"machine": {"cores": 2}, "results": [{"op": "barrier", "verified": true}]}"#)
            .expect("a good report");
    }

    #[test]
    fn a_row_that_is_not_verified_is_shown() {
        let report = r#"{"machine": "m", "results": [{"verified": true}, {"op": "put", "verified": false}]}"#;
        assert_eq!(refusal(report), r#"the bench did not verify this row: {"op":"put","verified":false}"#);
    }

    #[test]
    fn a_row_that_does_not_say_is_not_verified() {
        assert!(refusal(r#"{"machine": "m", "results": [{"op": "put"}]}"#).contains("did not verify"));
    }

    #[test]
    fn a_report_without_rows_machine_or_json_is_refused() {
        assert!(refusal(r#"{"machine": "m", "results": []}"#).contains("no result"));
        assert!(refusal(r#"{"machine": "m"}"#).contains("no list of results"));
        assert!(refusal(r#"{"results": []}"#).contains("machine"));
        assert!(refusal("nothing").contains("not JSON"));
    }
}
