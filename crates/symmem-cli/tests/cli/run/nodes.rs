//! Jobs of several nodes, which are all this machine.

use super::run_and_meet;
use crate::program::{Outcome, Running, TempFile, symmem};

/// Starts both nodes of a job, with a secret, and gives how they ended. `node` makes the arguments of one,
/// after its options.
fn two_nodes(name: &str, ranks: [&str; 2], node: impl Fn(&[&str]) -> Vec<String>) -> [Outcome; 2] {
    let secret = TempFile::new(name);
    symmem(&["run", "--new-secret", secret.arg()], &[]).ok();
    // A port that is free now; whoever takes it meanwhile makes the test fail, not hang.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let master = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let start = |rank: &str, ranks: &str| {
        let options =
            ["--nnodes=2", "--node-rank", rank, "--master", &master, "--meet-within", "60", "-n", ranks];
        let args = node(&options);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Running::start(&args, &[("SYMMEM_SECRET_FILE", secret.arg())])
    };
    let (one, zero) = (start("1", ranks[1]), start("0", ranks[0]));
    [zero.end(), one.end()]
}

/// The arguments that run a program of any kind.
fn program(options: &[&str], program: &[&str]) -> Vec<String> {
    [&["run"], options, &["--"], program].concat().into_iter().map(str::to_owned).collect()
}

#[test]
fn the_ranks_of_two_nodes_meet() {
    let [zero, one] = two_nodes("two-nodes", ["2", "1"], run_and_meet);
    assert_eq!(zero.ok().stdout.matches("met 3").count(), 2);
    let said = one.ok().stdout;
    assert!(said.contains("[2] ") && said.matches("met 3").count() == 1, "{said}");
}

#[test]
fn a_failure_on_one_node_ends_the_other_with_the_same_status() {
    let script = "[ $RANK = 1 ] && exit 7; exec sleep 100";
    let outcomes = two_nodes("failing-node", ["1", "1"], |options| program(options, &["sh", "-c", script]));
    for outcome in outcomes {
        assert_eq!(outcome.code, Some(7));
        let complaint = outcome.complaint();
        assert!(
            complaint.starts_with("error: rank 1 (node 1) failed first: it exited with 7"),
            "{complaint}"
        );
    }
}

#[test]
fn a_program_that_one_node_does_not_have_ends_the_job() {
    let choose = |options: &[&str]| match options.contains(&"1") && options[2] == "1" {
        true => program(options, &["/no/such/program"]),
        false => program(options, &["sleep", "100"]),
    };
    let [zero, one] = two_nodes("missing-program", ["1", "1"], choose);
    assert_eq!((zero.code, one.code), (Some(127), Some(127)));
    let complaint = zero.complaint();
    assert!(
        complaint.starts_with("error: node 1 failed first: cannot start /no/such/program"),
        "{complaint}"
    );
}

#[test]
fn several_nodes_need_a_secret_before_anything_starts() {
    let args = ["run", "-n", "1", "--nnodes", "2", "--master", "127.0.0.1:1", "--", "echo", "started"];
    let outcome = symmem(&args, &[]);
    assert_eq!(outcome.stdout, "");
    let complaint = outcome.complaint();
    assert!(complaint.contains("SYMMEM_SECRET_FILE") && complaint.contains("--new-secret"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    let complaint = symmem(&args, &[("SYMMEM_SECRET_FILE", "/no/such/file")]).complaint();
    assert!(complaint.contains("/no/such/file"), "{complaint}");
}

#[test]
fn several_nodes_need_an_address_and_patience() {
    let without_proof = [("SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS", "1")];
    let complaint = symmem(&["run", "--nnodes", "2", "--", "true"], &without_proof).complaint();
    assert!(complaint.contains("--master"), "{complaint}");
    let late = [
        "run",
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--master",
        "127.0.0.1:1",
        "--meet-within",
        "0.3",
        "--",
        "true",
    ];
    let complaint = symmem(&late, &without_proof).complaint();
    assert!(complaint.contains("127.0.0.1:1"), "{complaint}");
}
