//! The tables of a bench on host memory: for each number of ranks and condition the few columns that answer a
//! person's question, or all of them, and what they come to in short.

use super::report::Row;
use super::sheet::{Column, Set, Sheet, grouped};
use super::summary;
use crate::units::{digits, rate, size, time};

/// All tables as text; with all columns if it is to be `wide`.
pub(super) fn text(rows: &[Row], wide: bool) -> String {
    let of_group = |group: &Vec<&Row>| {
        let sheet = if wide { all(group) } else { few(group) };
        let parts = [sheet.text(wide), summary::text(group, wide)];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    };
    groups(rows).iter().map(of_group).collect::<Vec<_>>().join("\n\n")
}

/// The rows of one table each: those on the same terms, of one element type where there are several, and with
/// a form or without.
pub(super) fn groups(rows: &[Row]) -> Vec<Vec<&Row>> {
    let several = grouped(rows.iter().filter(|row| row.has_type()), |row| row.dtype.clone()).len() > 1;
    let dtype = |row: &Row| (several && row.has_type()).then(|| row.dtype.clone());
    grouped(rows, |row| (row.ranks, row.pinned, row.load, dtype(row), row.form.is_empty()))
}

/// What a person asks for.
fn few(rows: &[&Row]) -> Sheet {
    let typed = rows.iter().any(|row| row.has_type());
    let compared = rows.iter().any(|row| best_peer(row).is_some());
    let unless = |hidden: bool, text: String| if hidden { String::new() } else { text };
    let columns = [
        Column::new("system", Set::Head, name),
        Column::new("op", Set::Words, |row: &Row| row.op.clone()),
        Column::new("form", Set::Words, |row: &Row| row.form.clone()),
        Column::new("dtype", Set::Head, |row: &Row| unless(typed && !row.has_type(), row.dtype.clone())),
        Column::new("ranks", Set::Head, |row: &Row| row.ranks.to_string()),
        Column::new("pinned", Set::Head, |row: &Row| yes(row.pinned, "no")),
        Column::new("load", Set::Head, |row: &Row| row.load.to_string()),
        // A form says it better.
        Column::new("size", Set::Number, |row: &Row| {
            unless(row.bytes == 0 || !row.form.is_empty(), size(row.bytes))
        }),
        Column::new("typical", Set::Number, |row: &Row| time(row.us.p50)),
        // Beside busy loops means count.
        Column::new("mean", Set::Number, |row: &Row| unless(row.load == 0, time(row.us.mean))),
        Column::new("p99", Set::Number, |row: &Row| time(row.us.p99)),
        Column::new("bandwidth", Set::Number, |row: &Row| {
            unless(row.load > 0, optional(row.bandwidth(), rate))
        }),
        Column::new("x limit", Set::Number, |row: &Row| unless(compared, optional(to_limit(row), digits))),
        Column::new("best peer", Set::Words, |row: &Row| best_peer(row).cloned().unwrap_or_default()),
        Column::new("/ peer", Set::Number, |row: &Row| optional(to_peer(row), digits)),
        Column::new("verified", Set::Head, |row: &Row| yes(row.verified, "NO")),
    ];
    Sheet::new(rows, &columns)
}

/// Everything, in microseconds, bytes and gigabytes.
pub(super) fn all(rows: &[&Row]) -> Sheet {
    let us = |us: f64| format!("{us:.3}");
    let columns = [
        Column::new("system", Set::Words, |row: &Row| row.system.clone()),
        Column::new("op", Set::Words, |row: &Row| row.op.clone()),
        Column::new("form", Set::Words, |row: &Row| row.form.clone()),
        Column::new("memory", Set::Head, |row: &Row| row.memory.clone()),
        Column::new("algorithm", Set::Words, |row: &Row| row.algorithm.clone()),
        Column::new("dtype", Set::Head, |row: &Row| row.dtype.clone()),
        Column::new("ranks", Set::Head, |row: &Row| row.ranks.to_string()),
        Column::new("pinned", Set::Head, |row: &Row| yes(row.pinned, "no")),
        Column::new("load", Set::Head, |row: &Row| row.load.to_string()),
        Column::new("bytes", Set::Number, |row: &Row| row.bytes.to_string()),
        Column::new("samples", Set::Number, |row: &Row| row.samples.to_string()),
        Column::new("min us", Set::Number, move |row: &Row| us(row.us.min)),
        Column::new("p50 us", Set::Number, move |row: &Row| us(row.us.p50)),
        Column::new("mean us", Set::Number, move |row: &Row| us(row.us.mean)),
        Column::new("p90 us", Set::Number, move |row: &Row| us(row.us.p90)),
        Column::new("p99 us", Set::Number, move |row: &Row| us(row.us.p99)),
        Column::new("GB/s", Set::Number, |row: &Row| optional(row.bandwidth(), two)),
        Column::new("x limit", Set::Number, |row: &Row| optional(to_limit(row), two)),
        Column::new("us above barrier", Set::Number, |row: &Row| optional(row.above_barrier_us, two)),
        Column::new("x by hand", Set::Number, |row: &Row| optional(row.to_hand.map(|ratio| ratio.p50), two)),
        Column::new("best peer", Set::Words, |row: &Row| best_peer(row).cloned().unwrap_or_default()),
        Column::new("symmem / peer", Set::Number, |row: &Row| optional(to_peer(row), digits)),
        Column::new("verified", Set::Head, |row: &Row| yes(row.verified, "NO")),
    ];
    Sheet::new(rows, &columns)
}

/// Who did it, and in which memory if that is ours and not the usual one.
pub(super) fn name(row: &Row) -> String {
    match (row.system.as_str(), row.memory.as_str()) {
        ("symmem", "private" | "by_hand") => format!("symmem, {}", row.memory.replace('_', " ")),
        ("python", _) => format!("python, {}", row.algorithm),
        ("limit", _) if row.load > 0 => row.algorithm.clone(),
        (system, _) => system.to_owned(),
    }
}

fn yes(is_so: bool, no: &str) -> String {
    if is_so { "yes" } else { no }.to_owned()
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

fn optional(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map(text).unwrap_or_default()
}

/// Beside busy loops means count.
fn to_limit(row: &Row) -> Option<f64> {
    if row.load > 0 { row.mean_ratio_to_limit } else { row.ratio_to_limit }
}

fn to_peer(row: &Row) -> Option<f64> {
    if row.load > 0 { row.mean_ratio_to_peer } else { row.ratio_to_peer }
}

fn best_peer(row: &Row) -> Option<&String> {
    if row.load > 0 { row.mean_best_peer.as_ref() } else { row.best_peer.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stats::{Percentiles, Ratio};

    /// The widest row there is.
    fn row(system: &str, memory: &str, load: usize) -> Row {
        Row {
            system: system.to_owned(),
            op: "reduce_scatter".to_owned(),
            memory: memory.to_owned(),
            algorithm: "futex ping-pong".to_owned(),
            dtype: "f8e4m3".to_owned(),
            ranks: 64,
            bytes: 256 << 20,
            us: Percentiles { min: 101.0, p50: 123.4, p90: 150.0, p99: 177.7, mean: 166.0 },
            load,
            bus_gb_per_s: Some(123.4),
            ratio_to_limit: Some(123.4),
            mean_ratio_to_limit: Some(123.4),
            to_hand: Some(Ratio { p50: 123.4, mean: 123.4, above_us: 1.0 }),
            ratio_to_peer: Some(0.001234),
            mean_ratio_to_peer: Some(0.001234),
            best_peer: Some("deepspeed".to_owned()),
            mean_best_peer: Some("deepspeed".to_owned()),
            ..Row::default()
        }
    }

    #[test]
    fn the_widest_rows_of_every_kind_fit_in_a_hundred_columns() {
        for load in [0, 3] {
            let mut rows: Vec<Row> =
                ["symmetric", "private", "by_hand"].map(|memory| row("symmem", memory, load)).into();
            rows.extend([row("limit", "", load), row("deepspeed", "private", load)]);
            rows.push(Row { dtype: "bf16".to_owned(), pinned: true, verified: true, ..rows[0].clone() });
            let table = text(&rows, false);
            for line in table.lines() {
                assert!(line.chars().count() <= 100, "{} columns: {table}", line.chars().count());
            }
            // Nothing is broken over two lines to get there.
            for words in ["reduce_scatter", "symmem, private", "deepspeed", "0.00123", "178 us"] {
                assert!(table.contains(words), "{words}: {table}");
            }
            assert!(text(&rows, true).lines().any(|line| line.chars().count() > 100));
        }
    }

    #[test]
    fn fused_operations_have_a_table_whose_rows_say_their_shape() {
        let form = "2048x2048x2048 unfused";
        let (op, form) = ("matmul_reduce_scatter".to_owned(), form.to_owned());
        let fused = Row { op, form, bus_gb_per_s: None, ratio_to_peer: None, ..row("symmem", "", 0) };
        let fused = Row { mean_ratio_to_peer: None, best_peer: None, mean_best_peer: None, ..fused };
        let rows = [row("deepspeed", "private", 0), fused];
        assert_eq!(groups(&rows).len(), 2);
        let table = text(&rows, false);
        for line in table.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {table}", line.chars().count());
        }
        assert!(
            table.contains("matmul_reduce_scatter") && table.contains("2048x2048x2048 unfused"),
            "{table}"
        );
    }

    #[test]
    fn tables_are_by_condition_and_by_type_where_collectives_have_several() {
        let signal = Row { bus_gb_per_s: None, dtype: "u64".to_owned(), ..row("symmem", "", 0) };
        let bf16 = Row { dtype: "bf16".to_owned(), ..row("symmem", "symmetric", 0) };
        let rows = [signal.clone(), bf16.clone(), row("symmem", "symmetric", 1)];
        assert_eq!(groups(&rows).len(), 3);
        let same = [signal, bf16.clone(), bf16];
        assert_eq!(groups(&same).len(), 1);
        let table = text(&same, false);
        assert!(table.starts_with("system symmem, dtype bf16, ranks 64, pinned no, load 0"), "{table}");
    }
}
