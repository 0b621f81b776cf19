//! The caller's handle of a running candidate. A separate thread reads the candidate's output up to its limit, so that
//! neither side can block the other.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::wire::{self, SupervisorReport};
use super::{Ended, How, Limit};
use crate::fair_clock::ClockFile;
use offshoot_core::error::{Error, Result};

/// Bytes of standard error that are kept, from its end.
const STDERR_TAIL: usize = 64 << 10;

/// A confined program that has been started. Dropping it kills the program.
#[derive(Debug)]
pub struct Running {
    program: PathBuf,
    control: Arc<UnixStream>,
    clock: Arc<ClockFile>,
    stdin: Option<PipeWriter>,
    channel: Option<UnixStream>,
    stdout: Arc<Mutex<Vec<u8>>>,
    taker: Option<JoinHandle<io::Result<FinishedRun>>>,
    killed: bool,
}

struct FinishedRun {
    report: SupervisorReport,
    stderr: Vec<u8>,
    too_much: bool,
}

/// The caller's ends of a candidate's streams.
pub(super) struct CallerEnds {
    pub control: UnixStream,
    pub clock: ClockFile,
    pub stdin: Option<PipeWriter>,
    pub stdout: Option<PipeReader>,
    pub stderr: PipeReader,
    pub channel: Option<UnixStream>,
}

impl Running {
    /// `most`: bytes of output that are kept.
    pub(super) fn over(program: PathBuf, ends: CallerEnds, most: u64) -> Result<Running> {
        let CallerEnds { control, clock, stdin, stdout, stderr, channel } = ends;
        let control = Arc::new(control);
        let kept = Arc::new(Mutex::new(Vec::new()));
        let taker = {
            let (control, kept) = (control.clone(), kept.clone());
            let thread = std::thread::Builder::new().name("candidate".into()).stack_size(256 << 10);
            thread.spawn(move || take(&control, stdout, stderr, &kept, most)).map_err(Error::io(&program, "watch"))?
        };
        let clock = Arc::new(clock);
        Ok(Running { program, control, clock, stdin, channel, stdout: kept, taker: Some(taker), killed: false })
    }

    /// Writes to the program's standard input; blocks while the program does not read, until a limit ends it. Does
    /// nothing if the program has closed its input or ended, or has no input.
    pub fn write_stdin(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        match stdin.write_all(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.close_stdin();
                Ok(())
            }
            Err(error) => Err(Error::io(&self.program, "write the input of")(error)),
        }
    }

    /// Closes the program's standard input.
    pub fn close_stdin(&mut self) {
        if self.stdin.take().is_some() {
            self.clock.end_input();
        }
    }

    /// Our end of the channel, if one was requested. It reaches its end when all processes of the program have closed
    /// theirs.
    pub fn channel(&self) -> Option<&UnixStream> {
        self.channel.as_ref()
    }

    /// Its clock, for a caller that limits its turns ([`WallLimit::ByCaller`](super::WallLimit::ByCaller)).
    pub(crate) fn clock(&self) -> Arc<ClockFile> {
        self.clock.clone()
    }

    /// Takes the output so far; it is then not part of [`Ended::stdout`].
    pub fn take_stdout(&self) -> Vec<u8> {
        std::mem::take(&mut self.stdout.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Kills all processes of the program; [`Running::wait`] then returns `How::Killed`.
    pub fn kill(&mut self) {
        self.killed = true;
        let _ = self.control.shutdown(Shutdown::Write);
    }

    /// Closes its input and waits until none of its processes is left. Fails if it could not be started or watched.
    pub fn wait(mut self) -> Result<Ended> {
        self.close_stdin();
        // An unread descriptor that the program sent over the channel would keep its streams open.
        self.channel = None;
        let taken = self.join()?;
        let (how, wall, cpu, peak_bytes) = match taken.report {
            SupervisorReport::Ended { how, wall, cpu, peak_bytes } => (how, wall, cpu, peak_bytes),
            SupervisorReport::Failed { doing, why } => {
                return Err(Error::format(&self.program, format!("cannot be run: {doing}: {why}")));
            }
        };
        let how = match how {
            How::Killed | How::Exit(_) | How::Signal(_) if taken.too_much => How::Limit(Limit::Output),
            How::Killed if !self.killed => return Err(Error::Internal("a candidate was ended for no reason".into())),
            how => how,
        };
        Ok(Ended { how, wall, cpu, peak_bytes, stdout: self.take_stdout(), stderr: taken.stderr })
    }

    fn join(&mut self) -> Result<FinishedRun> {
        let taker = self.taker.take().expect("joined once: by `wait`, which consumes, or by `drop`");
        let taken =
            taker.join().map_err(|_| Error::Internal("the thread that takes a candidate's output failed".into()))?;
        taken.map_err(Error::io(&self.program, "watch (its supervisor has gone)"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.taker.is_some() {
            self.kill();
            self.stdin = None;
            self.channel = None;
            let _ = self.join();
        }
    }
}

/// Reads until the report has arrived and both outputs have ended.
fn take(
    control: &UnixStream,
    mut stdout: Option<PipeReader>,
    stderr: PipeReader,
    kept: &Mutex<Vec<u8>>,
    most: u64,
) -> io::Result<FinishedRun> {
    let mut stderr = Some(stderr);
    let mut report = None;
    let (mut tail, mut from_stdout, mut from_stderr, mut too_much) = (Vec::new(), 0u64, 0u64, false);
    let mut buffer = vec![0; 64 << 10];
    while report.is_none() || stdout.is_some() || stderr.is_some() {
        let [waits, out_ready, err_ready] =
            ready(report.is_none().then_some(control), stdout.as_ref(), stderr.as_ref())?;
        if out_ready && let Some(pipe) = &mut stdout {
            match pipe.read(&mut buffer)? {
                0 => stdout = None,
                read => {
                    from_stdout += read as u64;
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    let room = (most as usize).saturating_sub(kept.len());
                    kept.extend_from_slice(&buffer[..read.min(room)]);
                }
            }
        }
        if err_ready && let Some(pipe) = &mut stderr {
            match pipe.read(&mut buffer)? {
                0 => stderr = None,
                read => {
                    from_stderr += read as u64;
                    tail.extend_from_slice(&buffer[..read]);
                    if tail.len() > 2 * STDERR_TAIL {
                        tail.drain(..tail.len() - STDERR_TAIL);
                    }
                }
            }
        }
        if !too_much && from_stdout.max(from_stderr) > most {
            too_much = true;
            let _ = control.shutdown(Shutdown::Write);
        }
        if waits {
            let mut control = control;
            report = Some(wire::receive_message(&mut control)?);
        }
    }
    tail.drain(..tail.len().saturating_sub(STDERR_TAIL));
    let report = report.expect("the loop ends with a report");
    Ok(FinishedRun { report, stderr: tail, too_much })
}

/// Waits until one of them is readable (or has ended).
fn ready(
    control: Option<&UnixStream>,
    stdout: Option<&PipeReader>,
    stderr: Option<&PipeReader>,
) -> io::Result<[bool; 3]> {
    let sources = [control.map(AsFd::as_fd), stdout.map(AsFd::as_fd), stderr.map(AsFd::as_fd)];
    let mut waited: Vec<_> = sources.iter().flatten().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut waited, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut answers = waited.iter().map(|fd| fd.any().unwrap_or(true));
    Ok(sources.map(|source| source.is_some() && answers.next().unwrap_or(false)))
}
