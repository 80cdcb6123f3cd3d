//! `symmem bench` on collectives: every one is verified, f32 all_reduce runs beside the limit, and it can be
//! drawn.

use std::fs;

use crate::bench::{check_row, rows};
use crate::program::{TempFile, symmem};
use serde_json::Value;

const OPS: [&str; 12] = [
    "all_reduce",
    "all_reduce_out",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "all_to_all",
    "scan",
    "exclusive_scan",
    "all_gather_v",
    "gather_v",
    "scatter_v",
];

fn bench(args: &[&str]) -> Value {
    let fixed = ["bench", "--quick", "--json", "-"];
    let outcome = symmem(&[&fixed, args].concat(), &[]).ok();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"))
}

#[test]
fn every_collective_is_verified_with_two_and_three_ranks() {
    let ops = OPS.join(",");
    let report = bench(&["--ranks", "2,3", "--ops", &ops, "--sizes", "8,1K,64K"]);
    rows(&report).iter().for_each(check_row);
    for ranks in [2.0, 3.0] {
        for op in OPS {
            let of_op =
                |row: &&Value| row["op"] == op && row["system"] == "symmem" && number(row, "ranks") == ranks;
            let found: Vec<&Value> = rows(&report).iter().filter(of_op).collect();
            assert_eq!(found.len(), 3, "{op} {ranks}");
            let factor = match op {
                "all_reduce" | "all_reduce_out" | "scan" | "exclusive_scan" => 2.0 * (ranks - 1.0) / ranks,
                "reduce" | "broadcast" | "gather_v" | "scatter_v" => 1.0,
                _ => (ranks - 1.0) / ranks,
            };
            for row in found {
                let (algorithm, bus) = (number(row, "gb_per_s"), number(row, "bus_gb_per_s"));
                assert!((bus / algorithm - factor).abs() < 1e-6, "{row}");
                let bytes_over_time = number(row, "bytes") / number(&row["us"], "p50") / 1e3;
                assert!((algorithm / bytes_over_time - 1.0).abs() < 1e-6, "{row}");
            }
        }
    }
}

#[test]
fn every_element_type_is_verified() {
    let types = "u8,i8,u16,i16,u32,i32,u64,i64,f8e4m3,f8e5m2,f16,bf16,f32,f64,bool";
    let ops = "all_reduce,reduce_scatter,all_to_all";
    let report =
        bench(&["--ranks", "3", "--ops", ops, "--sizes", "104,4K", "--dtypes", types, "--iters", "5"]);
    rows(&report).iter().for_each(check_row);
    let ours = rows(&report).iter().filter(|row| row["system"] == "symmem").count();
    assert_eq!(ours, 15 * 3 * 2);
}

#[test]
fn fused_operations_are_verified_beside_their_limit() {
    let ops = ["all_gather_matmul", "matmul_reduce_scatter", "all_reduce_rms_norm"];
    let report = bench(&["--ranks", "2,3", "--ops", &ops.join(","), "--dtypes", "f32,bf16,f16,i32"]);
    rows(&report).iter().for_each(check_row);
    for (op, ways) in ops.into_iter().zip([3, 3, 2]) {
        let of_op = rows(&report).iter().filter(|row| row["op"] == op);
        assert_eq!(of_op.clone().count(), 2 * 3 * 3 * ways, "{op}: ranks, types, shapes, ways");
        let limits = of_op.clone().filter(|row| row["system"] == "limit");
        assert_eq!(limits.count(), 2 * 3 * 3, "{op}");
        assert!(of_op.clone().all(|row| number(row, "ratio_to_limit") > 0.0), "{op}");
        let fused = of_op.filter(|row| row["form"].as_str().is_some_and(|form| form.ends_with(" fused")));
        assert_eq!(fused.count(), 2 * 3 * 3, "{op}");
    }
    let refused = symmem(&["bench", "--ops", ops[0], "--dtypes", "i32"], &[]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("all_gather_matmul is of f32, bf16 and f16"), "{}", refused.stderr);
}

#[test]
fn all_reduce_of_f32_runs_beside_the_limit_and_the_barrier() {
    let report =
        bench(&["--ranks", "2", "--ops", "all_reduce", "--sizes", "8K,1M", "--blocks", "3", "--iters", "4"]);
    let systems: Vec<_> = rows(&report).iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
    assert_eq!(systems, ["limit", "symmem", "limit", "symmem"]);
    for row in rows(&report) {
        check_row(row);
        assert_eq!(row["samples"], 12, "{row}");
        assert!(number(row, "ratio_to_limit") > 0.0);
    }
    assert!(rows(&report)[1]["above_barrier_us"].is_f64(), "{report}");
}

#[test]
fn a_plot_is_xml_with_a_line_for_every_system() {
    let file = TempFile::new("plot.svg");
    let ops = "all_reduce,broadcast";
    bench(&["--ranks", "2", "--ops", ops, "--sizes", "8,4K", "--iters", "5", "--plot", file.arg()]);
    let svg = fs::read_to_string(&file.0).expect("a picture");
    let document = roxmltree::Document::parse(&svg).expect("XML");
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let lines = document.descendants().filter(|node| node.has_tag_name("polyline")).count();
    // Two panels: of symmem and the limit, and of symmem alone.
    assert_eq!(lines, 2 * (2 + 1));
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
    assert!(texts.iter().any(|text| text.starts_with("broadcast of f32, 2 ranks")), "{texts:?}");
    assert!(texts.contains(&"limit") && texts.contains(&"symmem"));
}
