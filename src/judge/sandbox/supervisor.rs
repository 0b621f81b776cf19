//! The supervisor of one candidate: forks it, watches all its processes, ends them when a limit is passed, the main process has
//! ended or the caller wants so, and reports.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid, fork};

use super::candidate::{self, Stopped, doing};
use super::processes::{self, Seen, Used};
use super::wire::{self, Ends, Order, Report};
use super::{How, Limit};

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(5);

/// One candidate from its order to its report; ends this process.
pub(super) fn supervise(ends: Ends) -> ! {
    let code = match ends.control.try_clone().map(UnixStream::from).and_then(|control| serve(control, ends)) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    // The warden's memory is shared with this fork: nothing of it is to be run down here.
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(code) }
}

fn serve(mut control: UnixStream, ends: Ends) -> io::Result<()> {
    let order: Order = wire::hear(&mut control)?;
    let report = match run(&order, &control, ends) {
        Ok(report) => report,
        Err(Stopped { doing, why }) => Report::NotStarted { doing, why: why.to_string() },
    };
    wire::say(&mut control, &report)
}

fn run(order: &Order, control: &UnixStream, ends: Ends) -> Result<Report, Stopped> {
    if candidate::missing(&order.program) {
        return Err(doing("find it")(io::Error::from(io::ErrorKind::NotFound)));
    }
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(doing("wait for children"))?;
    prctl::set_child_subreaper(true).map_err(doing("adopt orphans"))?;
    prctl::set_dumpable(false).map_err(doing("close the supervisor"))?;
    let (mut word, theirs) = UnixStream::pair().map_err(doing("make a socket"))?;
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    let main = match unsafe { fork() }.map_err(doing("fork"))? {
        ForkResult::Child => {
            let mut say = OwnedFd::from(theirs);
            let Err(Stopped { doing, why }) = candidate::become_program(order, ends, &mut say);
            let _ = UnixStream::from(say).write_all(format!("{doing}\n{why}").as_bytes());
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(127) }
        }
        ForkResult::Parent { child } => child,
    };
    drop((theirs, ends));
    let mut text = String::new();
    word.read_to_string(&mut text).map_err(doing("hear from the candidate"))?;
    if let Some((doing, why)) = text.split_once('\n') {
        Seen::Descendants.end(|_| ());
        return Ok(Report::NotStarted { doing: doing.into(), why: why.into() });
    }
    watch(order, control, main, Seen::Descendants)
}

/// What a candidate has come to so far.
struct Watch<'a> {
    order: &'a Order,
    main: Pid,
    started: Instant,
    status: Option<WaitStatus>,
    peak_bytes: u64,
}

impl Watch<'_> {
    fn reaped(&mut self, status: WaitStatus) {
        if status.pid() == Some(self.main) {
            self.status = Some(status);
        }
    }

    /// The limit that the living processes, those that have ended and the clock have passed.
    fn passed(&mut self, seen: Seen) -> Option<Limit> {
        let Used { resident_bytes, cpu, processes } = seen.used();
        let mut held = resident_bytes;
        if held > self.order.memory_bytes && processes > 1 {
            held = seen.proportional_bytes();
        }
        self.peak_bytes = self.peak_bytes.max(held);
        if self.peak_bytes > self.order.memory_bytes {
            return Some(Limit::Memory);
        }
        if cpu + ended_children().0 > self.order.cpu
            || self.started.elapsed() > 2 * self.order.cpu + Duration::from_secs(1)
        {
            return Some(Limit::Time);
        }
        None
    }
}

fn watch(order: &Order, control: &UnixStream, main: Pid, seen: Seen) -> Result<Report, Stopped> {
    // SAFETY: opens a descriptor for a child that has not been waited for, so the number names no other process.
    let pidfd = unsafe {
        let fd = nix::errno::Errno::result(libc::syscall(libc::SYS_pidfd_open, main.as_raw(), 0))
            .map_err(doing("watch it"))?;
        OwnedFd::from_raw_fd(fd as i32)
    };
    let mut watch = Watch { order, main, started: Instant::now(), status: None, peak_bytes: 0 };
    let ended_by_us = loop {
        let mut waited =
            [PollFd::new(control.as_fd(), PollFlags::POLLIN), PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut waited, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO));
        if waited[0].any().unwrap_or(true) {
            break Some(How::Killed);
        }
        processes::reap(|status| watch.reaped(status));
        if watch.status.is_some() {
            break None;
        }
        if let Some(limit) = watch.passed(seen) {
            break Some(How::Limit(limit));
        }
    };
    let wall = watch.started.elapsed();
    seen.end(|status| watch.reaped(status));
    let (cpu, largest) = ended_children();
    let peak_bytes = watch.peak_bytes.max(largest);
    let how = ended_by_us.unwrap_or_else(|| judge(order, watch.status, cpu, peak_bytes));
    Ok(Report::Ended { how, wall, cpu, peak_bytes })
}

/// How the main process's own end reads beside the limits.
fn judge(order: &Order, status: Option<WaitStatus>, cpu: Duration, peak_bytes: u64) -> How {
    let near = order.memory_bytes - order.memory_bytes / 10;
    match status {
        _ if cpu > order.cpu => How::Limit(Limit::Time),
        _ if peak_bytes > order.memory_bytes => How::Limit(Limit::Memory),
        Some(WaitStatus::Exited(_, 0)) => How::Exit(0),
        _ if peak_bytes > near => How::Limit(Limit::Memory),
        Some(WaitStatus::Exited(_, code)) => How::Exit(code),
        Some(WaitStatus::Signaled(_, Signal::SIGXFSZ, _)) => How::Limit(Limit::Output),
        Some(WaitStatus::Signaled(_, signal, _)) => How::Signal(signal as i32),
        _ => How::Signal(Signal::SIGKILL as i32),
    }
}

/// Processor time of, and the most memory held by one of, the processes that have been waited for.
fn ended_children() -> (Duration, u64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return (Duration::ZERO, 0) };
    let time = |value: nix::sys::time::TimeVal| Duration::new(value.tv_sec() as u64, value.tv_usec() as u32 * 1000);
    (time(usage.user_time()) + time(usage.system_time()), (usage.max_rss() as u64) << 10)
}
