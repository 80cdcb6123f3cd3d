//! A terminal that the program is run in, and what its user sees there.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::program;

/// How long something may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program in a terminal of its own.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keyboard: File,
    /// Kept open, so that the terminal outlives the program.
    line: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Runs `symmem` with `args` in a terminal of this size.
    pub(crate) fn start(args: &[&str], rows: u16, columns: u16) -> Self {
        let (keyboard, line) = pair();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&line, size).expect("a terminal has a size");
        let stream = || line.try_clone().expect("another descriptor");
        let mut command = Command::new(env!("CARGO_BIN_EXE_symmem"));
        command.args(args).env("TERM", "xterm-256color").stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: two system calls between fork and exec, on the descriptor that is stdin by then.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().expect("the program starts");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut output, shown) = (keyboard.try_clone().expect("another descriptor"), Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("a screen").process(&bytes[..count]);
            }
        });
        Self { child, keyboard, line, screen }
    }

    /// Types `keys`.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// What `look` finds on the screen.
    pub(crate) fn see<R>(&self, look: impl FnOnce(&vt100::Screen) -> R) -> R {
        look(self.screen.lock().expect("a screen").screen())
    }

    /// Waits until the screen is as `wanted`; its text.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&vt100::Screen) -> bool) -> String {
        let start = Instant::now();
        while !self.see(&wanted) {
            assert!(start.elapsed() < PATIENCE, "it never came: {}", self.see(vt100::Screen::contents));
            thread::sleep(Duration::from_millis(20));
        }
        self.see(vt100::Screen::contents)
    }

    /// How keys are taken at the moment.
    pub(crate) fn mode(&self) -> Termios {
        tcgetattr(&self.line).expect("it is a terminal")
    }

    /// The exit code of the program, which must end by itself.
    pub(crate) fn end(&mut self) -> Option<i32> {
        program::wait(&mut self.child)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // For a test that failed; else it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a new terminal: the user's, and the program's.
fn pair() -> (File, OwnedFd) {
    // SAFETY: plain system calls; each descriptor is owned once, and the name has room.
    unsafe {
        let user = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(user >= 0, "no terminal: {}", std::io::Error::last_os_error());
        let user = File::from_raw_fd(user);
        let mut name = [0; 128];
        assert_eq!(libc::grantpt(user.as_raw_fd()), 0);
        assert_eq!(libc::unlockpt(user.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(user.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        let line = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(line >= 0, "no terminal: {}", std::io::Error::last_os_error());
        (user, OwnedFd::from_raw_fd(line))
    }
}
