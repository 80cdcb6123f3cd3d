//! Memory that is shared by a handle, outside of groups: another process opens it, whatever becomes of the
//! one that shares it.
//!
//! The process that shares is this program again (`Keeper`), which is killed, stopped, or forks.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use symmem::store::Wait;
use symmem::{Error, RankContext, ShareHandle};

const LEN: usize = 5000;
const PATIENCE: Duration = Duration::from_secs(20);
/// Far less than anybody waits for in vain.
const AT_ONCE: Duration = Duration::from_secs(5);
const ROLE: &str = "SYMMEM_TEST_SHARING";
const STRANGER: u32 = 2000;

/// A process that shares an array. Killed in the end.
struct Keeper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    handle: ShareHandle,
}

impl Keeper {
    /// Its part is the test of this name.
    fn start(test: &str, role: &str) -> Self {
        let mut child = rerun(test, role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let handle = line(&mut output, "handle ").parse().unwrap();
        Self { child, input, output, handle }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").unwrap();
        line(&mut self.output, "answer ")
    }

    /// Returns once all its threads have stopped, which takes them a moment.
    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let start = Instant::now();
        let is_stopped = |stat: String| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T"));
        let threads = || fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        while !threads()
            .all(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).is_ok_and(is_stopped))
        {
            assert!(start.elapsed() < PATIENCE);
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rerun(test: &str, role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// The rest of the first line that starts with `word`, which may come after something of the test harness'
/// own.
fn line(output: &mut impl BufRead, word: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the other process has ended");
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim_end().to_owned();
        }
    }
}

/// The keeper's part: shares, and answers questions until nobody is there to ask.
fn keep() {
    let mut x = Some(RankContext::from_env().unwrap().alloc::<u32>(LEN).unwrap());
    x.as_mut().unwrap().fill(7).unwrap();
    println!("\nhandle {}", x.as_ref().unwrap().share().unwrap());
    for question in std::io::stdin().lines() {
        let answer = match &*question.unwrap() {
            "look" => x.as_ref().unwrap().local().unwrap()[3],
            "drop" => {
                x = None;
                0
            }
            // A child that has the socket open and does nothing.
            "fork" => {
                // SAFETY: the child only sleeps and exits.
                match unsafe { libc::fork() } {
                    0 => {
                        std::thread::sleep(4 * PATIENCE);
                        // SAFETY: ends the child at once.
                        unsafe { libc::_exit(0) }
                    }
                    child => child as u32,
                }
            }
            other => panic!("{other}"),
        };
        println!("\nanswer {answer}");
    }
}

/// Whether this process is a keeper that the test started.
fn is_keeper() -> bool {
    let is = env::var(ROLE).as_deref() == Ok("keeper");
    if is {
        keep();
    }
    is
}

fn within(time: Duration) -> Wait<'static> {
    Wait::for_at_most(time)
}

fn problem(handle: &ShareHandle, time: Duration) -> String {
    let start = Instant::now();
    let opened = handle.open::<u8>(&within(time));
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    match opened {
        Err(Error::NotShared { problem }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_process_reads_and_writes_the_memory() {
    if is_keeper() {
        return;
    }
    let mut keeper = Keeper::start("another_process_reads_and_writes_the_memory", "keeper");
    let view = keeper.handle.open::<u32>(&within(PATIENCE)).unwrap();
    assert_eq!(view.to_vec().unwrap(), [7; LEN]);
    // SAFETY: the keeper holds no guard while it waits for a question.
    unsafe { view.write_from(3, &[9]).unwrap() };
    assert_eq!(keeper.ask("look"), "9");
    // As other elements, and again.
    let bytes = keeper.handle.open::<u8>(&within(PATIENCE)).unwrap();
    assert_eq!((bytes.len(), &bytes.to_vec().unwrap()[12..16]), (4 * LEN, &[9, 0, 0, 0][..]));
    assert!(matches!(view.read_into(LEN, &mut [0]), Err(Error::OutOfBounds { .. })));
    // Once the array is gone nobody opens it, and who has it keeps it.
    keeper.ask("drop");
    assert!(problem(&keeper.handle, PATIENCE).contains("no longer shares it. Hint: "));
    assert_eq!(view.to_vec().unwrap()[..4], [7, 7, 7, 9]);
}

#[test]
fn memory_outlives_the_process_that_shared_it_and_opening_it_is_an_error_at_once() {
    if is_keeper() {
        return;
    }
    let test = "memory_outlives_the_process_that_shared_it_and_opening_it_is_an_error_at_once";
    for forks in [false, true] {
        let mut keeper = Keeper::start(test, "keeper");
        // A child that was forked keeps the socket, where nobody answers any more.
        let child = forks.then(|| Pid::from_raw(keeper.ask("fork").parse().unwrap()).unwrap());
        let view = keeper.handle.open::<u32>(&within(PATIENCE)).unwrap();
        keeper.kill();
        assert_eq!(view.to_vec().unwrap(), [7; LEN]);
        assert!(problem(&keeper.handle, PATIENCE).contains("has ended. Hint: "));
        if let Some(child) = child {
            kill_process(child, Signal::KILL).unwrap();
        }
    }
}

#[test]
fn a_process_that_does_not_answer_is_waited_for_until_the_deadline() {
    if is_keeper() {
        return;
    }
    let keeper = Keeper::start("a_process_that_does_not_answer_is_waited_for_until_the_deadline", "keeper");
    keeper.stop();
    let said = problem(&keeper.handle, Duration::from_millis(200));
    assert!(said.contains("has not answered for 2") && said.contains("Hint: "), "{said}");
    kill_process(keeper.pid(), Signal::CONT).unwrap();
    keeper.handle.open::<u32>(&within(PATIENCE)).unwrap();
}

#[test]
fn a_forked_child_opens_what_its_parent_shares_and_shares_what_it_has_itself() {
    if is_keeper() {
        return;
    }
    let test = "a_forked_child_opens_what_its_parent_shares_and_shares_what_it_has_itself";
    if env::var(ROLE).is_err() {
        let out = rerun(test, "forks").output().unwrap();
        assert!(out.status.success(), "{out:?}");
        return;
    }
    let mut x = RankContext::from_env().unwrap().alloc::<u32>(LEN).unwrap();
    x.fill(7).unwrap();
    let handle = x.share().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: no other thread of this process holds a lock that the child needs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let opened = handle.open::<u32>(&within(PATIENCE)).unwrap();
        // SAFETY: the parent holds no guard.
        unsafe { opened.write_from(1, &[8]).unwrap() };
        // It has the memory too, and so can share it.
        let own = x.share().unwrap();
        assert_ne!(own, handle);
        let here = own.open::<u32>(&within(PATIENCE)).unwrap();
        assert_eq!(here.as_ptr(), x.as_ptr());
        writeln!(&writer, "{own}").unwrap();
        std::thread::sleep(4 * PATIENCE);
        std::process::exit(0);
    }
    let mut text = String::new();
    BufReader::new(reader).read_line(&mut text).unwrap();
    let theirs = text.trim().parse::<ShareHandle>().unwrap();
    assert_eq!(theirs.pid(), child as u32);
    let view = theirs.open::<u32>(&within(PATIENCE)).unwrap();
    assert_eq!(view.to_vec().unwrap()[..3], [7, 8, 7]);
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    let start = Instant::now();
    while !matches!(theirs.open::<u32>(&within(PATIENCE)), Err(Error::NotShared { .. })) {
        assert!(start.elapsed() < AT_ONCE);
    }
    // The parent's offer is as it was.
    let again = x.share().unwrap();
    assert_eq!(again, handle);
}

#[test]
fn a_hundred_opens_leave_no_descriptors_behind() {
    if is_keeper() {
        return;
    }
    if env::var(ROLE).is_err() {
        let out = rerun("a_hundred_opens_leave_no_descriptors_behind", "opens").output().unwrap();
        assert!(out.status.success(), "{out:?}");
        return;
    }
    let fds = |process: &str| fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let keeper = Keeper::start("a_hundred_opens_leave_no_descriptors_behind", "keeper");
    let theirs = keeper.child.id().to_string();
    let view = keeper.handle.open::<u32>(&within(PATIENCE)).unwrap();
    // One of them may not have noticed yet that the connection is closed.
    let before = (fds("self"), fds(&theirs));
    let views: Vec<_> = (0..100).map(|_| keeper.handle.open::<u32>(&within(PATIENCE)).unwrap()).collect();
    let after = (fds("self"), fds(&theirs));
    assert!(after.0 <= before.0 && after.1 <= before.1 + 1, "{before:?} {after:?}");
    drop((view, views));
}

#[test]
fn the_process_that_shares_it_opens_the_very_memory() {
    let mut x = RankContext::from_env().unwrap().alloc::<u32>(LEN).unwrap();
    let handle = x.share().unwrap();
    assert_eq!(x.share().unwrap(), handle);
    let view = handle.open::<u32>(&within(PATIENCE)).unwrap();
    assert_eq!((view.as_ptr(), view.len()), (x.as_ptr(), LEN));
    // It is under the same guards.
    let guard = x.local_mut().unwrap();
    assert!(matches!(view.to_vec(), Err(Error::Borrowed { .. })));
    drop(guard);
    view.to_vec().unwrap();
    // The view keeps the memory, and so the handle good.
    drop(x);
    handle.open::<u32>(&within(PATIENCE)).unwrap();
    drop(view);
    assert!(problem(&handle, PATIENCE).contains("no longer shares it"));
}

/// The stranger's part: it has the handle, secret included, and must get nothing, also if it does not look
/// whom it asks.
fn be_a_stranger(text: &str) {
    let handle = text.parse::<ShareHandle>().unwrap();
    assert!(problem(&handle, PATIENCE).contains("belongs to another user"));
    let parts: Vec<&str> = text.split(':').collect();
    let unhex = |digits: &str| -> Vec<u8> {
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    };
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let name = format!("symmem-{}", parts[parts.len() - 1]);
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    let mut packet = b"symmemfd\x01\0\0\0\0\0\0\0".to_vec();
    packet.extend(unhex(parts[0]));
    packet.extend([0; 12]);
    packet.extend(16u32.to_le_bytes());
    packet.extend(unhex(parts[1]));
    let _ = rustix::net::send(&socket, &packet, SendFlags::NOSIGNAL);
    let mut answer = [0; 100];
    let got = rustix::net::recv(socket.as_fd(), &mut answer, RecvFlags::empty());
    assert!(!matches!(got, Ok((1.., _))), "{got:?}");
}

#[test]
fn a_process_of_another_user_gets_nothing_even_with_the_secret() {
    if is_keeper() {
        return;
    }
    if let Ok(text) = env::var(ROLE) {
        return be_a_stranger(&text);
    }
    // SAFETY: only reads this process' uid.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    let test = "a_process_of_another_user_gets_nothing_even_with_the_secret";
    let keeper = Keeper::start(test, "keeper");
    let mut stranger = rerun(test, &keeper.handle.to_string());
    stranger.current_dir("/").uid(STRANGER).gid(STRANGER).stdin(Stdio::null());
    let Ok(out) = stranger.output() else {
        eprintln!("skipped: uid {STRANGER} cannot run this program");
        return;
    };
    assert!(out.status.success(), "{out:?}");
    keeper.handle.open::<u32>(&within(PATIENCE)).unwrap();
}
