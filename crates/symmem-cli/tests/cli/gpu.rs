//! `symmem bench --provider vmm` on machines without a GPU, and what it says about input it cannot use.

use crate::doctor::fake_driver;
use crate::program::symmem;

#[test]
fn without_a_driver_there_is_one_clear_sentence() {
    // Hides the devices of a machine that has some.
    let outcome = symmem(&["bench", "--provider", "vmm", "--ranks", "2"], &[("CUDA_VISIBLE_DEVICES", "")]);
    let complaint = outcome.complaint();
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.contains("CUDA") || complaint.contains("device"), "{complaint}");
    let nccl = symmem(&["bench", "--provider", "nccl", "--ranks", "2"], &[("CUDA_VISIBLE_DEVICES", "")]);
    assert_eq!(nccl.complaint(), complaint);
    for preset in ["quick", "inference", "training"] {
        let args = ["bench", "--provider", "vmm", "--ranks", "2", "--preset", preset];
        assert_eq!(
            symmem(&args, &[("CUDA_VISIBLE_DEVICES", "")]).complaint(),
            complaint,
            "{preset} is for GPUs too"
        );
    }
}

#[test]
fn devices_are_not_tuned_without_a_driver_and_nothing_is_kept() {
    let file = std::env::temp_dir().join(format!("symmem-tune-device-{}.json", std::process::id()));
    let path = file.to_str().expect("a path");
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    let complaint = symmem(&["tune", "--device", "--quick", "--out", path], &hidden).complaint();
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.contains("CUDA") || complaint.contains("device"), "{complaint}");
    assert!(!file.exists());
}

#[test]
fn devices_whose_kernels_do_nothing_are_not_tuned_and_nothing_is_kept() {
    // Those of the fake driver.
    let (folder, env) = fake_driver("tune-device");
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
    let file = folder.0.join("tuning.json");
    let args = ["tune", "--device", "--ranks", "2", "--out", file.to_str().expect("a path")];
    let outcome = symmem(&args, &env);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let last = outcome.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: symmem could not start: rank "), "{last}");
    assert!(last.ends_with("the bench's fill kernel does not do what it must"), "{last}");
    assert!(!file.exists());
}

#[test]
fn without_devices_tune_says_so_and_tunes_the_host() {
    let file = std::env::temp_dir().join(format!("symmem-tune-host-{}.json", std::process::id()));
    let path = file.to_str().expect("a path");
    let sentence =
        "there is no CUDA device on this machine, so only the algorithms of the host were measured";
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    let outcome = symmem(&["tune", "--quick", "--ranks", "2", "--json", "--out", path], &hidden).ok();
    assert_eq!(outcome.stderr.matches(sentence).count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("kept for "), "{}", outcome.stderr);
    let found: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let found = found.as_array().expect("a list");
    assert!(found.iter().all(|one| one["collective"].is_string() && one["ranks"] == 2), "{found:?}");
    assert!(file.exists());
    std::fs::remove_file(file).expect("the file");
}

#[test]
fn what_was_found_of_the_host_is_kept_where_devices_cannot_be_measured() {
    // Those of the fake driver, whose kernels do nothing.
    let (folder, env) = fake_driver("tune-both");
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
    let file = folder.0.join("tuning.json");
    let args = ["tune", "--quick", "--ranks", "2", "--out", file.to_str().expect("a path")];
    let outcome = symmem(&args, &env);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let last = outcome.stderr.lines().last().unwrap_or_default();
    assert!(last.ends_with("the bench's fill kernel does not do what it must"), "{last}");
    assert!(outcome.stdout.contains("all_reduce") && file.exists(), "{}", outcome.stdout);
    let complaint = symmem(&["tune", "--device", "--host"], &[]).complaint();
    assert!(complaint.contains("cannot be used with"), "{complaint}");
}

#[test]
fn a_rank_without_a_driver_answers_why() {
    let outcome = symmem(&["bench-gpu-rank"], &[("CUDA_VISIBLE_DEVICES", ""), ("LOCAL_RANK", "0")]).ok();
    let answer: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one answer");
    assert!(answer["error"].as_str().is_some_and(|why| !why.is_empty()), "{answer}");
}

#[test]
fn what_is_not_for_gpus_is_named() {
    for (args, words) in [
        (&["--ops", "broadcast"][..], "--ops broadcast is not for this provider, which has startup, barrier"),
        (&["--peers", "gloo"], "--peers gloo: on GPUs there are torch, nccl, vmm and all"),
        (&["--sizes", "10"], "a multiple of 16 bytes"),
        (&["--ops", "all_reduce_rms_norm", "--sizes", "2K"], "a multiple of 16K, a row"),
        (&["--dtypes", "u8"], "leave --dtypes out"),
        (&["--plot", "/dev/null"], "--plot draws"),
    ] {
        let complaint = symmem(&[&["bench", "--provider", "vmm"], args].concat(), &[]).complaint();
        assert!(complaint.contains(words), "{complaint}");
    }
    let complaint = symmem(&["bench", "--ops", "eager"], &[]).complaint();
    assert!(complaint.contains("--ops eager is not for this provider"), "{complaint}");
}

#[test]
fn kernels_are_not_compiled_ahead_without_a_compiler() {
    let nowhere = [("SYMMEM_NVRTC_LIBRARY", "/nowhere")];
    let complaint = symmem(&["compile-kernels", "/nowhere/either"], &nowhere).complaint();
    assert!(complaint.contains("NVRTC") && complaint.lines().count() == 1, "{complaint}");
    let complaint = symmem(&["compile-kernels", "/nowhere", "--capability", "sm_90"], &[]).complaint();
    assert!(complaint.contains("is not a compute capability, such as 9.0"), "{complaint}");
}
