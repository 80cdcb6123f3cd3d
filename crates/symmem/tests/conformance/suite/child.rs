//! This program again, for one run of a stage: with its own environment, and with nothing of other tests in
//! it.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Says which test, with which variables, a process was started for.
const TEST: &str = "SYMMEM_TEST_OF_A_STAGE";
/// Longer than any run takes, whatever goes wrong: all waits in it are bounded.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs `body` in a new process of the test `name` with `vars` set. Panics unless that ends well.
pub(crate) fn run(name: &str, vars: &[(&str, &str)], body: impl FnOnce()) {
    let mark = format!("{name} {vars:?}");
    if std::env::var(TEST).is_ok_and(|running| running == mark) {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(TEST, mark).envs(vars.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
    wait(command.spawn().expect("the test program starts"), name);
}

fn wait(mut child: Child, name: &str) {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            assert!(status.success(), "{name}: {status}");
            return;
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{name} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
