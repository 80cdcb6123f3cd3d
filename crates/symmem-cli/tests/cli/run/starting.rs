//! How ranks are started, and what they are told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use super::{ranks, run_and_meet, sorted};
use crate::program::{Running, TempFile, symmem};

#[test]
fn ranks_learn_who_they_are_and_where_they_meet() {
    let script = r#"echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $GROUP_RANK $TORCHELASTIC_USE_AGENT_STORE""#;
    let outcome = ranks("3", &[], script).ok();
    let expected =
        ["[0] 0/3 0/3 127.0.0.1 0 True", "[1] 1/3 1/3 127.0.0.1 0 True", "[2] 2/3 2/3 127.0.0.1 0 True"];
    assert_eq!(sorted(&outcome.stdout), expected);
    assert_eq!(outcome.stderr, "", "a job that went well is silent");
}

#[test]
fn the_store_of_the_job_is_served() {
    let program = env!("CARGO_BIN_EXE_symmem");
    let outcome = ranks("2", &[], &format!("{program} store add arrived")).ok();
    let mut counts: Vec<&str> = outcome.stdout.lines().map(|line| &line[4..]).collect();
    counts.sort_unstable();
    assert_eq!(counts, ["1", "2"]);
}

#[test]
fn ranks_of_this_library_meet() {
    let args = run_and_meet(&["-n", "4"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert_eq!(symmem(&args, &[]).ok().stdout.matches("met 4").count(), 4);
}

#[test]
fn a_crowd_meets() {
    let args = run_and_meet(&["-n", "64"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert_eq!(symmem(&args, &[]).ok().stdout.matches("met 64").count(), 64);
}

#[test]
fn rank_0_reads_stdin_and_the_others_nothing() {
    let mut running = Running::start(&["run", "-n", "2", "--", "cat"], &[]);
    running.say("hello\n");
    assert_eq!(running.end().ok().stdout, "[0] hello\n");
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let programs =
        [("no-such-program-here", 127), ("/no/such/program", 127), ("/etc/passwd", 126), ("/", 126)];
    for (program, code) in programs {
        let outcome = symmem(&["run", "-n", "2", "--", program], &[]);
        assert_eq!(outcome.code, Some(code), "{program}: {}", outcome.stderr);
        let complaint = outcome.complaint();
        assert!(complaint.contains(program) && complaint.lines().count() == 1, "{complaint}");
    }
}

#[test]
fn ranks_are_pinned_on_request() {
    let script = "grep Cpus_allowed_list /proc/self/status";
    let lists = |options: &[&str]| -> Vec<String> {
        let outcome = ranks("2", options, script).ok();
        sorted(&outcome.stdout).iter().map(|line| line[4..].to_owned()).collect()
    };
    let (free, pinned) = (lists(&[]), lists(&["--pin", "cores"]));
    assert_eq!(free[0], free[1]);
    let cores = symmem::Placement::new(1, Some(symmem::Pin::Cores)).expect("cores").cores(0).len();
    if cores > 1 {
        assert!(pinned[0] != pinned[1] && pinned[0] != free[0], "{pinned:?}");
    }
    assert_eq!(lists(&["--pin", "nodes"]).len(), 2);
    assert_eq!(symmem(&["run", "--pin", "sockets", "--", "true"], &[]).code, Some(2));
}

#[test]
fn math_libraries_share_the_cores_unless_told() {
    let threads = |env: &[(&str, &str)]| {
        symmem(&["run", "-n", "64", "--", "sh", "-c", "echo $OMP_NUM_THREADS"], env).ok().stdout
    };
    let fair = (thread::available_parallelism().map_or(1, usize::from) / 64).max(1);
    assert!(threads(&[]).lines().all(|line| {
        line.split(' ')
            .nth(1)
            .is_some_and(|one| one.parse::<usize>().is_ok_and(|one| (1..=fair).contains(&one)))
    }));
    assert!(threads(&[("OMP_NUM_THREADS", "3")]).lines().all(|line| line.ends_with("] 3")));
}

#[test]
fn a_new_secret_is_private_and_never_overwritten() {
    let secret = TempFile::new("new-secret");
    symmem(&["run", "--new-secret", secret.arg()], &[]).ok();
    let meta = fs::metadata(&secret.0).expect("a file");
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&secret.0).expect("text");
    assert_eq!(text.trim().len(), 64);
    let complaint = symmem(&["run", "--new-secret", secret.arg()], &[]).complaint();
    assert!(complaint.contains("exists already"), "{complaint}");
    assert_eq!(fs::read_to_string(&secret.0).expect("text"), text);
}

#[test]
fn options_that_do_not_fit_are_named() {
    assert!(symmem(&["run", "--node-rank", "1", "--", "true"], &[]).complaint().contains("--nnodes"));
    for wrong in [["-n", "0"], ["--grace", "soon"], ["--master", "a:b"], ["--nnodes", "0"]] {
        assert_eq!(symmem(&[&["run"], &wrong[..], &["--", "true"]].concat(), &[]).code, Some(2), "{wrong:?}");
    }
    assert_eq!(symmem(&["run", "-n", "2"], &[]).code, Some(2), "no program");
    let help = symmem(&["run", "--help"], &[]).ok().stdout;
    assert!(help.contains("symmem run -n 4 -- python train.py"), "{help}");
}

#[test]
fn words_of_torchrun_are_understood() {
    let args =
        ["run", "--nproc_per_node=2", "--nnodes=1", "--node_rank=0", "sh", "-c", "echo $0 $RANK", "--flag"];
    assert_eq!(sorted(&symmem(&args, &[]).ok().stdout), ["[0] --flag 0", "[1] --flag 1"]);
}
