//! The live page: the terminal's other screen, drawn again in place, until q, Ctrl-C or a signal. The
//! terminal is as before afterwards, however this ends.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use console::Term;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use symmem::inspect;

use super::{page, select};
use crate::screen::{Tone, paint};

/// How long nobody looks at signals.
const SLICE: Duration = Duration::from_millis(100);

/// Why the page is left or drawn again.
enum Event {
    End(ExitCode),
    Draw,
}

/// Shows the page of `job` until somebody ends it.
pub(super) fn watch(job: Option<&str>, interval: Duration) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGWINCH])?;
    let screen = OtherScreen::enter()?;
    loop {
        let snapshot = inspect::snapshot()?;
        let chosen = select::of_job(&snapshot.groups, job);
        screen.draw(&page::text(&snapshot, &chosen, job))?;
        if let Event::End(code) = wait(&screen, &mut signals, interval)? {
            return Ok(code);
        }
    }
}

/// Waits for a key, a signal, or the next time to draw.
fn wait(screen: &OtherScreen, signals: &mut Signals, interval: Duration) -> Result<Event> {
    let start = Instant::now();
    loop {
        let mut draws = false;
        for signal in signals.pending() {
            match signal {
                SIGINT => return Ok(Event::End(ExitCode::SUCCESS)),
                SIGWINCH => draws = true,
                // As a shell says of a program that the signal ended.
                other => return Ok(Event::End(ExitCode::from(128 + other as u8))),
            }
        }
        let left = interval.saturating_sub(start.elapsed());
        if draws || left.is_zero() {
            return Ok(Event::Draw);
        }
        if screen.key_within(left.min(SLICE))?.is_some_and(|key| matches!(key, b'q' | b'Q')) {
            return Ok(Event::End(ExitCode::SUCCESS));
        }
    }
}

/// The terminal's other screen, with keys that come at once and are not shown. The first one comes back on
/// drop.
struct OtherScreen {
    /// How the terminal was, if keys come from one.
    before: Option<Termios>,
}

impl OtherScreen {
    fn enter() -> Result<Self> {
        let before = match io::stdin().is_terminal() {
            true => Some(tcgetattr(io::stdin())?),
            false => None,
        };
        let screen = Self { before };
        if let Some(mut now) = screen.before.clone() {
            now.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // Ctrl-Z would leave the page on the screen of whatever comes next.
            now.special_codes[SpecialCodeIndex::VSUSP] = 0;
            now.special_codes[SpecialCodeIndex::VMIN] = 0;
            now.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &now)?;
        }
        // Other screen, no cursor.
        say("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// Draws `text` over what is there, as far as there is room, all at once.
    fn draw(&self, text: &str) -> io::Result<()> {
        let (rows, columns) = Term::stdout().size_checked().unwrap_or((24, 80));
        let room = usize::from(rows.max(2)) - 1;
        let lines: Vec<&str> = text.lines().collect();
        let hidden = lines.len().saturating_sub(room);
        let mut page = "\x1b[?2026h\x1b[H".to_owned();
        for line in lines.iter().take(room) {
            page += &console::truncate_str(line, columns.into(), "…");
            // The rest of the line; lines end as they do without the terminal's help.
            page += "\x1b[0m\x1b[K\r\n";
        }
        let foot = match hidden {
            0 => "q ends this".to_owned(),
            _ => format!("q ends this; {hidden} more lines do not fit"),
        };
        page += &paint(Tone::Quiet, &console::truncate_str(&foot, columns.into(), "…"));
        say(&(page + "\x1b[K\x1b[J\x1b[?2026l"))
    }

    /// A key, if one comes within `time`.
    fn key_within(&self, time: Duration) -> io::Result<Option<u8>> {
        if self.before.is_none() {
            std::thread::sleep(time);
            return Ok(None);
        }
        let stdin = io::stdin();
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut key = [0];
        match rustix::io::read(&stdin, &mut key) {
            Ok(1) => Ok(Some(key[0])),
            // Nothing came after all.
            Ok(_) => {
                std::thread::sleep(time);
                Ok(None)
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for OtherScreen {
    fn drop(&mut self) {
        // Best effort: the terminal may be gone.
        let _ = say("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, before);
        }
    }
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
