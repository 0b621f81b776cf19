//! The supervisor of one candidate: forks it, watches all its processes, kills them when a limit is exceeded, the main
//! process has ended or the caller requests it, and reports.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid, fork, setsid};

use super::candidate::{self, SetupError, doing};
use super::confinement::Confinement;
use super::processes::{self, ProcessScope, ProcessUsage};
use super::wire::{self, CandidateFds, CandidateSpec, SupervisorReport};
use super::{How, Limit, calls, root};
use crate::judge::fair_clock::FairClock;

/// Milliseconds between two checks of the processes.
const LOOK_MS: u8 = 5;
/// The files are checked at every `LOOKS_AT_FILES`-th check.
const LOOKS_AT_FILES: u32 = 8;
/// More files and folders than this, or deeper nesting than this, exceed the output limit whatever their size.
const MOST_FILES: usize = 4096;
const DEEPEST: usize = 64;

/// Runs one candidate from its order to its report, then ends this process.
pub(super) fn supervise(ends: CandidateFds, confinement: &Confinement) -> ! {
    let code =
        match ends.control.try_clone().map(UnixStream::from).and_then(|control| serve(control, ends, confinement)) {
            Ok(()) => 0,
            Err(_) => 1,
        };
    // This fork has a copy of the server's values: no destructor of theirs may run here.
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(code) }
}

fn serve(mut control: UnixStream, ends: CandidateFds, confinement: &Confinement) -> io::Result<()> {
    let order: CandidateSpec = wire::receive_message(&mut control)?;
    let report = match run(&order, &control, ends, confinement) {
        Ok(report) => report,
        Err(SetupError { doing, why }) => SupervisorReport::NotStarted { doing, why: why.to_string() },
    };
    wire::send_message(&mut control, &report)
}

fn run(
    order: &CandidateSpec,
    control: &UnixStream,
    ends: CandidateFds,
    confinement: &Confinement,
) -> Result<SupervisorReport, SetupError> {
    if order.probes.is_none() && !order.program.is_file() {
        return Err(doing("find it")(io::Error::from(io::ErrorKind::NotFound)));
    }
    umask(Mode::from_bits_truncate(0o022));
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(doing("wait for children"))?;
    confinement.identity.own(&order.folder).map_err(doing("give it its folder"))?;
    confinement.identity.own_pipes(&[&ends.stdin, &ends.stdout, &ends.stderr]).map_err(doing("give it its pipes"))?;
    let seen = match confinement.namespaced {
        true => {
            root::enter(order, &confinement.hidden)?;
            ProcessScope::Namespace
        }
        false => {
            setsid().map_err(doing("start a session"))?;
            prctl::set_child_subreaper(true).map_err(doing("adopt orphans"))?;
            ProcessScope::Descendants
        }
    };
    let (mut word, theirs) = UnixStream::pair().map_err(doing("make a socket"))?;
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    let main = match unsafe { fork() }.map_err(doing("fork"))? {
        ForkResult::Child => {
            let mut say = OwnedFd::from(theirs);
            let Err(SetupError { doing, why }) = candidate::become_program(order, confinement, ends, &mut say);
            let _ = UnixStream::from(say).write_all(format!("{doing}\n{why}").as_bytes());
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(127) }
        }
        ForkResult::Parent { child } => child,
    };
    drop((theirs, ends));
    prctl::set_dumpable(false).map_err(doing("close the supervisor"))?;
    let (listener, stopped) = started(&mut word).map_err(doing("hear from the candidate"))?;
    if let Some(stopped) = stopped {
        seen.end(|_| ());
        return Err(stopped);
    }
    watch(order, control, main, seen, listener)
}

/// Waits until the program is executed or its setup has failed. The listener for hostile calls may come with the first
/// byte.
fn started(word: &mut UnixStream) -> io::Result<(Option<OwnedFd>, Option<SetupError>)> {
    let mut text = String::new();
    let listener = match wire::receive_fds(word)? {
        None => return Ok((None, None)),
        Some((first, fds)) => {
            if fds.is_empty() {
                text.push(char::from(first));
            }
            fds.into_iter().next()
        }
    };
    word.read_to_string(&mut text)?;
    Ok((listener, text.split_once('\n').map(|(what, why)| doing(what)(io::Error::other(why)))))
}

/// The state of a running candidate.
struct CandidateWatch<'a> {
    order: &'a CandidateSpec,
    main: Pid,
    started: Instant,
    clock: FairClock,
    status: Option<WaitStatus>,
    peak_bytes: u64,
}

impl CandidateWatch<'_> {
    fn reaped(&mut self, status: WaitStatus) {
        if status.pid() == Some(self.main) {
            self.status = Some(status);
        }
    }

    /// The limit, if any, that the living and ended processes, their files or the clock have exceeded.
    fn passed(&mut self, seen: ProcessScope, files: bool) -> Option<How> {
        let order = self.order;
        let ProcessUsage { resident_bytes, cpu, threads, processes } = seen.used();
        let mut held = resident_bytes;
        if held > order.memory_bytes && processes > 1 {
            held = seen.proportional_bytes();
        }
        self.peak_bytes = self.peak_bytes.max(held);
        if self.peak_bytes > order.memory_bytes {
            return Some(How::Limit(Limit::Memory));
        }
        if cpu + ended_children().0 > order.cpu || self.clock.elapsed() > 2 * order.cpu + Duration::from_secs(1) {
            return Some(How::Limit(Limit::Time));
        }
        // If the user has other processes, RLIMIT_NPROC is no exact limit; this one ends the forking.
        if threads > 2 * order.processes + 64 {
            return Some(How::Sandbox("fork".into()));
        }
        if files && kept(order, seen) + seen.unlinked_bytes() > order.output_bytes {
            return Some(How::Limit(Limit::Output));
        }
        None
    }
}

fn watch(
    order: &CandidateSpec,
    control: &UnixStream,
    main: Pid,
    seen: ProcessScope,
    listener: Option<OwnedFd>,
) -> Result<SupervisorReport, SetupError> {
    // SAFETY: opens a descriptor for a child that has not been waited for, so the number names no other process.
    let pidfd = unsafe {
        let fd = Errno::result(libc::syscall(libc::SYS_pidfd_open, main.as_raw(), 0)).map_err(doing("watch it"))?;
        OwnedFd::from_raw_fd(fd as i32)
    };
    let mut watch =
        CandidateWatch { order, main, started: Instant::now(), clock: FairClock::start(), status: None, peak_bytes: 0 };
    let mut looks = 0u32;
    let ended_by_us = loop {
        let sources = [Some(control.as_fd()), Some(pidfd.as_fd()), listener.as_ref().map(AsFd::as_fd)];
        let mut waited: Vec<_> = sources.iter().flatten().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut waited, LOOK_MS);
        let has = |source: usize| waited.get(source).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
        if has(0) {
            break Some(How::Killed);
        }
        if let Some(listener) = &listener
            && waited[2].revents().is_some_and(|events| events.contains(PollFlags::POLLIN))
        {
            break Some(How::Sandbox(calls::hostile_call(listener)));
        }
        processes::reap(|status| watch.reaped(status));
        if watch.status.is_some() {
            break None;
        }
        looks += 1;
        if let Some(how) = watch.passed(seen, looks.is_multiple_of(LOOKS_AT_FILES)) {
            break Some(how);
        }
    };
    let wall = watch.started.elapsed();
    seen.end(|status| watch.reaped(status));
    let (cpu, largest) = ended_children();
    let peak_bytes = watch.peak_bytes.max(largest);
    let how = match ended_by_us {
        Some(how) => how,
        None if kept(order, seen) > order.output_bytes => How::Limit(Limit::Output),
        None => judge(order, watch.status, cpu, peak_bytes),
    };
    Ok(SupervisorReport::Ended { how, wall, cpu, peak_bytes })
}

/// How the candidate ended, from the main process's status and the limits.
fn judge(order: &CandidateSpec, status: Option<WaitStatus>, cpu: Duration, peak_bytes: u64) -> How {
    let near = order.memory_bytes - order.memory_bytes / 10;
    match status {
        _ if cpu > order.cpu => How::Limit(Limit::Time),
        _ if peak_bytes > order.memory_bytes => How::Limit(Limit::Memory),
        Some(WaitStatus::Exited(_, 0)) => How::Exit(0),
        _ if peak_bytes > near => How::Limit(Limit::Memory),
        Some(WaitStatus::Exited(_, code)) => How::Exit(code),
        Some(WaitStatus::Signaled(_, Signal::SIGXFSZ, _)) => How::Limit(Limit::Output),
        Some(WaitStatus::Signaled(_, Signal::SIGSYS, _)) => How::Sandbox("a system call that no program needs".into()),
        Some(WaitStatus::Signaled(_, signal, _)) => How::Signal(signal as i32),
        _ => How::Signal(Signal::SIGKILL as i32),
    }
}

/// Total CPU time, and the largest memory of one process, of those that have been waited for.
fn ended_children() -> (Duration, u64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return (Duration::ZERO, 0) };
    let time = |value: nix::sys::time::TimeVal| Duration::new(value.tv_sec() as u64, value.tv_usec() as u32 * 1000);
    (time(usage.user_time()) + time(usage.system_time()), (usage.max_rss() as u64) << 10)
}

/// Bytes in the files of a candidate: in its folder, and in its own shared memory if it has one.
fn kept(order: &CandidateSpec, seen: ProcessScope) -> u64 {
    let shared = match seen {
        ProcessScope::Namespace => written(Path::new(root::SHARED)),
        ProcessScope::Descendants => 0,
    };
    written(&order.folder) + shared
}

/// Bytes on disk under a folder; links are not followed.
fn written(folder: &Path) -> u64 {
    let (mut bytes, mut files) = (0, 0);
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(facts) = entry.metadata() else { continue };
            bytes += facts.blocks() * 512;
            files += 1;
            if files > MOST_FILES || depth > DEEPEST {
                return u64::MAX / 2;
            }
            if facts.is_dir() {
                folders.push((entry.path(), depth + 1));
            }
        }
    }
    bytes
}
