//! What `symmem tune --device` measured: rank 0's rows decide on all ranks, and rows that mean nothing do
//! not.

use std::path::PathBuf;

use symmem::cuda::{Algorithm, Device, Engine, Form};
use symmem::tuning::{DeviceBounds, TuningFile};
use symmem::{Config, DType, Group, Result};

use crate::common::same_ranks_with;
use crate::{DEVICES, fake};

/// What devices of the fake driver are called where each rank has its own.
const KIND: &str = "Fake GPU, ranks on several";

/// A file with one row, at a path of its own.
fn file(name: &str, kind: &str, form: &str, algorithm: &str, bytes: usize) -> PathBuf {
    let path = std::env::temp_dir().join(format!("symmem-tuned-{name}-{}.json", std::process::id()));
    let bounds = [(algorithm.to_owned(), bytes)].into();
    let mut file = TuningFile::default();
    file.keep_devices(kind, 2, DeviceBounds::from([(form.to_owned(), bounds)]));
    file.save(&path).unwrap();
    path
}

/// What this rank's engine chooses out of place for 1, 2 and 4 KB, in a group where this rank has the file at
/// `path`.
fn chosen(group: &Group, path: Option<PathBuf>) -> Result<[Algorithm; 3]> {
    let group = same_ranks_with(group, Config::from_env()?.tuning(path))?;
    let engine = Engine::new(&group, &Device::new(group.rank())?)?;
    let choose = |bytes| engine.plan(Form::Out, DType::F32, bytes).map(|plan| plan.algorithm);
    let chosen = [choose(1 << 10)?, choose(2 << 10)?, choose(4 << 10)?];
    group.barrier()?;
    Ok(chosen)
}

#[test]
fn rank_0s_rows_decide_on_all_ranks() {
    fake::run("tuned::rank_0s_rows_decide_on_all_ranks", &[DEVICES], || {
        let (low, two) = (Algorithm::LowLatency, Algorithm::TwoShot);
        let books = [
            file("mine", KIND, "out", "low_latency", 2 << 10),
            file("theirs", KIND, "out", "low_latency", 0),
        ];
        symmem::spawn(2, |group| {
            let (rank, of) = (group.rank(), |at: usize| Some(books[at].clone()));
            assert_eq!(chosen(&group, of(rank))?, [low, low, two]);
            assert_eq!(chosen(&group, of(1 - rank))?, [two, two, two]);
            assert_eq!(chosen(&group, of(0).filter(|_| rank == 0))?, [low, low, two]);
            // Without rank 0's, what is built in.
            assert_eq!(chosen(&group, of(1).filter(|_| rank == 1))?, [low, low, low]);
            Ok(())
        })
        .unwrap();
        books.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    });
}

#[cfg(feature = "bench-support")]
#[test]
fn rank_0s_rows_decide_on_norms_too() {
    use symmem::cuda::bench_support;

    const ROW: usize = 16 << 10;
    fake::run("tuned::rank_0s_rows_decide_on_norms_too", &[DEVICES], || {
        let path = file("norms", KIND, "all_reduce_rms_norm", "one_shot", 4 * ROW);
        symmem::spawn(2, |group| {
            for has in [0, 1] {
                let mine = Some(path.clone()).filter(|_| group.rank() == has);
                let group = same_ranks_with(&group, Config::from_env()?.tuning(mine))?;
                let engine = Engine::new(&group, &Device::new(group.rank())?)?;
                let choose = |rows| bench_support::norm_plan(&engine, (rows, ROW)).map(|plan| plan.0);
                let beyond = if has == 0 { Algorithm::TwoShot } else { Algorithm::OneShot };
                assert_eq!([choose(4)?, choose(5)?], [Algorithm::OneShot, beyond]);
                group.barrier()?;
            }
            Ok(())
        })
        .unwrap();
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn rows_that_mean_nothing_change_nothing() {
    fake::run("tuned::rows_that_mean_nothing_change_nothing", &[DEVICES], || {
        let rows = [
            ("another", "Fake GPU, all ranks on one", "out", "low_latency"),
            ("form", KIND, "sideways", "low_latency"),
            ("norm", KIND, "all_reduce_rms_norm", "ring"),
            ("algorithm", KIND, "out", "ring"),
            // The dispatcher must not choose what gives other bits.
            ("multimem", KIND, "out", "multimem"),
        ];
        for (name, kind, form, algorithm) in rows {
            let path = file(name, kind, form, algorithm, 0);
            symmem::spawn(2, |group| {
                let chosen = chosen(&group, Some(path.clone()))?;
                assert_eq!(chosen, [Algorithm::LowLatency; 3], "{name}");
                Ok(())
            })
            .unwrap();
            std::fs::remove_file(path).unwrap();
        }
        let broken = std::env::temp_dir().join(format!("symmem-tuned-broken-{}.json", std::process::id()));
        let text = format!(r#"{{"machines": {{}}, "devices": {{"{KIND}": {{"2": {{"out": -1}}}}}}}}"#);
        std::fs::write(&broken, text).unwrap();
        assert!(TuningFile::open(&broken).is_err());
        symmem::spawn(2, |group| {
            assert_eq!(chosen(&group, Some(broken.clone()))?, [Algorithm::LowLatency; 3]);
            Ok(())
        })
        .unwrap();
        std::fs::remove_file(broken).unwrap();
    });
}
