//! Carries what ranks write to stdout and stderr of this program, line by line.
//!
//! One thread reads the pipes of all ranks, so that whoever watches processes and signals never waits for a
//! slow reader of this program's output. When that reader is gone, the pipes are closed, and ranks that go on
//! writing get SIGPIPE as they would without a launcher.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use console::{Color, Style};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::lines::Lines;

const CHUNK: usize = 64 << 10;
/// How long streams may stay open after all ranks have ended: `tee` in the background may have something to
/// say, and a daemon that a rank left behind must not keep this program.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// Most bytes of a stream that are read after that: more than a pipe holds.
const LAST: usize = 2 << 20;
/// Colours of prefixes, in the order of ranks.
const COLOURS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::Blue, Color::Red];

/// Where a stream leads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

impl Target {
    fn fd(self) -> BorrowedFd<'static> {
        match self {
            Self::Stdout => rustix::stdio::stdout(),
            Self::Stderr => rustix::stdio::stderr(),
        }
    }

    fn prefix(self, rank: usize) -> Vec<u8> {
        let colours = match self {
            Self::Stdout => console::colors_enabled(),
            Self::Stderr => console::colors_enabled_stderr(),
        };
        let style = Style::new().fg(COLOURS[rank % COLOURS.len()]).force_styling(colours);
        format!("{} ", style.apply_to(format_args!("[{rank}]"))).into_bytes()
    }
}

/// The streams of the ranks that are started, until they are carried.
#[derive(Default)]
pub(super) struct Streams(Vec<Stream>);

struct Stream {
    reader: PipeReader,
    target: Target,
    lines: Lines,
}

impl Streams {
    /// The end of a new stream that a rank writes to.
    pub(super) fn add(&mut self, rank: usize, target: Target) -> Result<PipeWriter> {
        let (reader, writer) = io::pipe().context("making a pipe for the output of a rank")?;
        rustix::io::ioctl_fionbio(&reader, true).context("preparing a pipe for the output of a rank")?;
        let lines = Lines::new(target.prefix(rank), rustix::termios::isatty(target.fd()));
        self.0.push(Stream { reader, target, lines });
        Ok(writer)
    }

    /// Starts the thread that carries them. It rings `wake` when it has ended.
    pub(super) fn carry(self, wake: Arc<OwnedFd>) -> Result<Output> {
        let stop = Arc::new(event()?);
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new().name("symmem-output".into()).spawn(move || {
            carry(self.0, &told);
            ring(&wake);
        });
        Ok(Output { stop, thread: thread.context("starting the thread for output")? })
    }
}

/// Output on its way.
pub(super) struct Output {
    stop: Arc<OwnedFd>,
    thread: thread::JoinHandle<()>,
}

impl Output {
    /// Says that all ranks have ended: the thread ends when it has carried what they wrote.
    pub(super) fn finish(&self) {
        ring(&self.stop);
    }

    /// Whether everything is carried.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// An event that threads ring for another one.
pub(super) fn event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("making an event")
}

/// Wakes up who waits for `event`.
pub(super) fn ring(event: &OwnedFd) {
    // It fails only when it was rung already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Waits until one of `fds` can be read, or `until`; which of them can.
pub(super) fn readable(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Vec<bool> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => polled.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}

/// What a look at a stream found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Bytes(usize),
    /// Nothing now, and maybe later.
    Nothing,
    End,
    /// Who read this program's output is gone.
    NobodyReads,
}

impl Stream {
    /// Carries what is there, at most a chunk.
    fn read(&mut self, chunk: &mut [u8]) -> Found {
        match self.reader.read(chunk) {
            Ok(0) => match self.finish() {
                Ok(()) => Found::End,
                Err(_) => Found::NobodyReads,
            },
            Ok(count) => {
                let mut out = Vec::with_capacity(count + count / 8);
                self.lines.take(&chunk[..count], Instant::now(), &mut out);
                if write_all(self.target.fd(), &out).is_ok() {
                    Found::Bytes(count)
                } else {
                    Found::NobodyReads
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Found::Nothing
            }
            Err(_) => Found::End,
        }
    }

    /// Shows a line that has begun and may not end.
    fn finish(&mut self) -> Result<(), Errno> {
        let mut out = Vec::new();
        self.lines.finish(&mut out);
        write_all(self.target.fd(), &out)
    }

    /// Carries what is left, but not for ever.
    fn drain(&mut self, chunk: &mut [u8]) {
        let mut left = LAST;
        while let Found::Bytes(count) = self.read(chunk) {
            if count >= left {
                break;
            }
            left -= count;
        }
        let _ = self.finish();
    }
}

fn carry(mut streams: Vec<Stream>, stop: &OwnedFd) {
    let mut end: Option<Instant> = None;
    let mut chunk = vec![0; CHUNK];
    while !streams.is_empty() && end.is_none_or(|end| Instant::now() < end) {
        let due = streams.iter().filter_map(|stream| stream.lines.due()).chain(end).min();
        let mut fds: Vec<BorrowedFd<'_>> = streams.iter().map(|stream| stream.reader.as_fd()).collect();
        if end.is_none() {
            fds.push(stop.as_fd());
        }
        let ready = readable(&fds, due);
        if end.is_none() && ready.last() == Some(&true) {
            end = Some(Instant::now() + AFTERWARDS);
        }
        let mut deaf = Vec::new();
        let mut ready = ready.into_iter();
        streams.retain_mut(|stream| {
            let found = if ready.next() == Some(true) { stream.read(&mut chunk) } else { Found::Nothing };
            let is_late = stream.lines.due().is_some_and(|due| due <= Instant::now());
            if found == Found::NobodyReads || is_late && stream.finish().is_err() {
                deaf.push(stream.target);
            }
            found != Found::End
        });
        streams.retain(|stream| !deaf.contains(&stream.target));
    }
    streams.iter_mut().for_each(|stream| stream.drain(&mut chunk));
}

/// Writes all of `bytes`, also to a terminal that some other program has made non-blocking.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
