//! The supervisor of one candidate: forks it, watches all its processes, kills them when a limit is exceeded, the main
//! process has ended or the caller requests it, and reports.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid, fork, setsid};

use super::asked::AskedCall;
use super::caller::CallerProcess;
use super::candidate::{self, ProgramStart};
use super::confinement::Confinement;
use super::connections::Connector;
use super::delays::{CandidateClock, JudgePipes};
use super::disk::CandidateFiles;
use super::groups::Group;
use super::identity::Identity;
use super::processes::{self, Among, ProcessMeter, ProcessScope};
use super::root::OwnFiles;
use super::setup_error::{SetupError, doing};
use super::tree::CopyError;
use super::wire::{self, CandidateFds, CandidateSpec, ProgramFds, ServerRequest, SupervisorReport};
use super::{Confined, How, Limit, WallLimit, calls, timer};
use crate::fair_clock::{self, ClockFile};

/// What a candidate has done that executes a program which cannot be read.
const HIDES: &str = "a program that nobody may read";
/// Milliseconds between two checks of the processes.
const LOOK_MS: u8 = 5;

/// Runs one candidate from its request to its report, then ends this process.
pub(super) fn supervise(
    requests: UnixStream,
    confinement: &Confinement,
    caller: &CallerProcess,
    start: ProgramStart,
    group: Option<Group>,
) -> ! {
    let code = match serve(requests, confinement, caller, start, group) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    // This fork has a copy of the server's values: no destructor of theirs may run here.
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(code) }
}

fn serve(
    requests: UnixStream,
    confinement: &Confinement,
    caller: &CallerProcess,
    start: ProgramStart,
    group: Option<Group>,
) -> io::Result<()> {
    umask(Mode::from_bits_truncate(0o022));
    let prepared = Prepared::fork(&requests, confinement, start, group);
    let ServerRequest::Run(ends) = CandidateFds::receive(&requests)? else { return Ok(()) };
    drop(requests);
    let CandidateFds { control, clock, program } = ends;
    let clock = ClockFile::new(File::from(clock));
    let mut control = UnixStream::from(control);
    if !caller.waits_for(&control)? {
        return Ok(());
    }
    let order: CandidateSpec = wire::receive_message(&mut control)?;
    let ends = CandidateEnds { control: &control, caller, clock, program };
    let report = match prepared.and_then(|prepared| prepared.run(&order, ends, confinement)) {
        Ok(report) => report,
        Err(SetupError { doing, why }) => SupervisorReport::Failed { doing, why: why.to_string() },
    };
    wire::send_message(&mut control, &report)
}

/// What connects a candidate with its caller.
struct CandidateEnds<'a> {
    control: &'a UnixStream,
    caller: &'a CallerProcess,
    clock: ClockFile,
    program: ProgramFds,
}

/// A supervisor that has forked the process of its candidate, which enters its control group and waits for the order.
struct Prepared {
    /// Between the two.
    word: UnixStream,
    main: Pid,
    group: Option<Group>,
    seen: ProcessScope,
}

impl Prepared {
    fn fork(
        requests: &UnixStream,
        confinement: &Confinement,
        start: ProgramStart,
        group: Option<Group>,
    ) -> Result<Prepared, SetupError> {
        let among = match confinement.namespaced() {
            true => Among::Namespace,
            false => {
                setsid().map_err(doing("start a session"))?;
                prctl::set_child_subreaper(true).map_err(doing("adopt orphans"))?;
                Among::Descendants
            }
        };
        let seen = ProcessScope { among, identity: confinement.identity };
        let (word, theirs) = UnixStream::pair().map_err(doing("make a socket"))?;
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        let main = match unsafe { fork() }.map_err(doing("fork"))? {
            ForkResult::Child => {
                // SAFETY: this fork never uses the stream of requests, nor runs its destructor.
                unsafe { libc::close(requests.as_raw_fd()) };
                drop(word);
                let mut say = OwnedFd::from(theirs);
                if let Err(SetupError { doing, why }) = follow(group, confinement, start, &mut say) {
                    let _ = UnixStream::from(say).write_all(format!("{doing}\n{why}").as_bytes());
                }
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(127) }
            }
            ForkResult::Parent { child } => child,
        };
        prctl::set_dumpable(false).map_err(doing("close the supervisor"))?;
        Ok(Prepared { word, main, group, seen })
    }

    fn run(
        mut self,
        spec: &CandidateSpec,
        CandidateEnds { control, caller, clock, program: ends }: CandidateEnds<'_>,
        confinement: &Confinement,
    ) -> Result<SupervisorReport, SetupError> {
        let order = &spec.confined;
        if spec.probes.is_none() && !order.program.is_file() {
            return Err(doing("find it")(io::Error::from(io::ErrorKind::NotFound)));
        }
        let own =
            confinement.common_root.as_ref().map(|common| common.enter(order, &confinement.hidden)).transpose()?;
        confinement.identity.own(&order.folder).map_err(doing("give it its folder"))?;
        confinement.identity.own_pipes(&ends).map_err(doing("give it its pipes"))?;
        if let Some(group) = &self.group {
            group.bound(order.limits.memory_bytes).map_err(doing("bound the memory of its control group"))?;
        }
        // If the process has failed and ended, its own words say why.
        let _ = ends.send(&self.word).and_then(|()| wire::send_message(&mut self.word, spec));
        let pipes = JudgePipes::of(order, ends);
        let (listener, stopped) = started(&mut self.word).map_err(doing("hear from the candidate"))?;
        if let Some(stopped) = stopped {
            self.seen.end(|_| ());
            return Err(stopped);
        }
        let own_device = own.as_ref().map(OwnFiles::device).transpose().map_err(doing("look at its files"))?;
        let asked = listener.map(|listener| AskedCalls { listener, connector: own_device.map(Connector::within) });
        timer::be_interrupted().map_err(doing("be interrupted"))?;
        let files = own.map_or_else(CandidateFiles::measured, CandidateFiles::Own);
        let kills = self.group.as_ref().map_or(0, Group::kills);
        let cpu_before = self.group.as_ref().and_then(Group::cpu);
        let clock = CandidateClock::start(clock, self.seen, confinement.delays, pipes, self.group.as_ref());
        let watch = CandidateWatch {
            order,
            main: self.main,
            meter: ProcessMeter::new(self.seen),
            own_user: confinement.identity != Identity::Caller,
            group: self.group,
            cpu_before,
            kills,
            files,
            started: Instant::now(),
            clock,
            status: None,
            peak_bytes: 0,
        };
        watch.until_ended(control, caller, asked)
    }
}

/// The candidate's process: enters its group, waits for its order and becomes the program.
fn follow(
    group: Option<Group>,
    confinement: &Confinement,
    start: ProgramStart,
    say: &mut OwnedFd,
) -> Result<(), SetupError> {
    if let Some(group) = group {
        group.enter().map_err(doing("enter its control group"))?;
    }
    let Some(ends) = ProgramFds::receive(say).map_err(doing("receive its streams"))? else { return Ok(()) };
    let mut stream = UnixStream::from(say.try_clone().map_err(doing("receive its order"))?);
    let order: CandidateSpec = wire::receive_message(&mut stream).map_err(doing("receive its order"))?;
    drop(stream);
    let Err(error) = candidate::become_program(&order, confinement, start, ends, say);
    Err(error)
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

/// A running candidate.
struct CandidateWatch<'a> {
    order: &'a Confined,
    main: Pid,
    meter: ProcessMeter,
    /// Whether RLIMIT_NPROC counts this candidate's threads only.
    own_user: bool,
    group: Option<Group>,
    /// The group's count of earlier candidates: of CPU time, and of processes killed for memory.
    cpu_before: Option<Duration>,
    kills: u64,
    files: CandidateFiles,
    started: Instant,
    clock: CandidateClock,
    status: Option<WaitStatus>,
    peak_bytes: u64,
}

impl CandidateWatch<'_> {
    fn until_ended(
        mut self,
        control: &UnixStream,
        caller: &CallerProcess,
        mut asked: Option<AskedCalls>,
    ) -> Result<SupervisorReport, SetupError> {
        // SAFETY: opens a descriptor for a child that has not been waited for, so the number names no other process.
        let pidfd = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, self.main.as_raw(), 0);
            OwnedFd::from_raw_fd(Errno::result(fd).map_err(doing("watch it"))? as i32)
        };
        let ended_by_us = loop {
            let listener = asked.as_ref().map(|asked| asked.listener.as_fd());
            let sources = [Some(control.as_fd()), Some(caller.as_fd()), Some(pidfd.as_fd()), listener];
            let mut waited: Vec<_> = sources.iter().flatten().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let begun = fair_clock::now();
            let _ = poll(&mut waited, LOOK_MS);
            self.clock.slept(begun);
            let has =
                |source: usize| waited.get(source).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
            if has(0) || has(1) {
                break Some(How::Killed);
            }
            let asks = waited.get(3).and_then(PollFd::revents).is_some_and(|events| events.contains(PollFlags::POLLIN));
            if let Some(hostile) = asked.as_mut().and_then(|asked| asked.take(asks)) {
                break Some(How::Sandbox(hostile));
            }
            self.reap();
            if self.status.is_some() {
                break None;
            }
            if let Some(how) = self.passed() {
                break Some(how);
            }
        };
        let wall = self.started.elapsed();
        self.look();
        let hides = self.hides();
        // Unlinked files last as long as the processes that hold them.
        let files = self.files.exceeded(self.order, self.meter.scope());
        self.meter.scope().end(|status| note(&mut self.status, self.main, status));
        let (_, largest) = processes::ended_children();
        let cpu = self.counted_cpu().unwrap_or_else(|| self.meter.used(self.order.limits.memory_bytes).cpu);
        // What the kernel tells of one process includes pages of programs and libraries, which are nobody's.
        let most = self.group.as_ref().and_then(|group| group.most(self.order.limits.memory_bytes));
        self.peak_bytes = self.peak_bytes.max(most.map_or(largest, |most| largest.min(most)));
        let killed = self.lost_one();
        if killed {
            self.peak_bytes = self.peak_bytes.max(self.order.limits.memory_bytes);
        }
        let how = match ended_by_us {
            Some(how @ (How::Limit(_) | How::Sandbox(_))) => how,
            _ if killed => How::Limit(Limit::Memory),
            _ if hides => How::Sandbox(HIDES.into()),
            ended_by_us => match (files.or_else(|| self.files.exceeded(self.order, self.meter.scope())), ended_by_us) {
                (Some(limit), _) => How::Limit(limit),
                (None, Some(How::Killed))
                    if cpu <= self.order.limits.most_cpu() && self.peak_bytes <= self.order.limits.memory_bytes =>
                {
                    How::Killed
                }
                _ => judge(self.order, self.status, cpu, self.peak_bytes),
            },
        };
        let failed = matches!(how, How::Exit(code) if code != 0) || matches!(how, How::Signal(_));
        if failed && self.files.disk_is_full(self.order) {
            return Err(doing("write its files")(Errno::ENOSPC));
        }
        let how = self.kept(how)?;
        Ok(SupervisorReport::Ended { how, wall, cpu, peak_bytes: self.peak_bytes })
    }

    fn reap(&mut self) {
        processes::reap(|status| note(&mut self.status, self.main, status));
    }

    /// Measures memory and CPU time. Returns the time, and the number of threads where only we count them.
    fn look(&mut self) -> (Duration, u32) {
        let held = self.group.as_ref().and_then(Group::held);
        let counted = self.counted_cpu();
        match (held, counted) {
            (Some(held), Some(cpu)) if self.own_user => {
                self.peak_bytes = self.peak_bytes.max(held);
                (cpu, 0)
            }
            _ => {
                let used = self.meter.used(self.order.limits.memory_bytes);
                self.peak_bytes = self.peak_bytes.max(held.unwrap_or(used.memory_bytes));
                (counted.unwrap_or(used.cpu), used.threads)
            }
        }
    }

    /// Whether the kernel has killed one of its processes for memory, of a kind perhaps that no count here shows: the
    /// others would wait for it.
    fn lost_one(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.kills() > self.kills)
    }

    /// Whether a process hides what it holds from a supervisor that has to know it.
    fn hides(&self) -> bool {
        matches!(self.files, CandidateFiles::Measured(_)) && self.meter.scope().hides()
    }

    fn counted_cpu(&self) -> Option<Duration> {
        Some(self.group.as_ref()?.cpu()?.saturating_sub(self.cpu_before?))
    }

    /// The limit, if any, that the living and ended processes, their files or the clock have exceeded.
    fn passed(&mut self) -> Option<How> {
        let (cpu, threads) = self.look();
        let order = self.order;
        if self.peak_bytes > order.limits.memory_bytes || self.lost_one() {
            return Some(How::Limit(Limit::Memory));
        }
        self.clock.look(cpu, self.group.as_ref());
        let wall = order.limits.wall;
        let ends_by_clock = order.wall == WallLimit::Own;
        if cpu > order.limits.most_cpu() || ends_by_clock && self.clock.charged() > wall {
            return Some(How::Limit(Limit::Time));
        }
        if ends_by_clock && self.started.elapsed() > order.most_real() {
            return Some(How::Limit(Limit::RealTime));
        }
        // If the user has other processes, RLIMIT_NPROC is no exact limit; this one ends the forking.
        if threads > 2 * order.limits.processes + 64 {
            return Some(How::Sandbox("fork".into()));
        }
        if self.hides() {
            return Some(How::Sandbox(HIDES.into()));
        }
        self.files.exceeded_now(order, self.meter.scope()).map(How::Limit)
    }

    /// Keeps the candidate's files if they are wanted; more than the output limit allows is no candidate's to keep.
    fn kept(&self, how: How) -> Result<How, SetupError> {
        if !self.order.keep_files {
            return Ok(how);
        }
        match self.files.keep(self.order) {
            Ok(()) => Ok(how),
            Err(CopyError::TooLarge) => Ok(How::Limit(Limit::Output)),
            Err(CopyError::Unbounded(exceeded)) => Ok(How::Limit(exceeded.into())),
            Err(CopyError::Io(why)) => Err(doing("keep its files")(why)),
        }
    }
}

/// The calls about which the kernel asks.
struct AskedCalls {
    listener: OwnedFd,
    /// If the candidate has a network of its own, as it has its own files then: the kernel asks for connections.
    connector: Option<Connector>,
}

impl AskedCalls {
    /// Makes the connections that it can make until the next look at the candidate is due. Returns the name of a
    /// hostile call, if there is one.
    fn take(&mut self, mut asks: bool) -> Option<String> {
        let begun = Instant::now();
        if let Some(connector) = &mut self.connector {
            connector.go_on(&self.listener);
        }
        while asks && begun.elapsed() < Duration::from_millis(u64::from(LOOK_MS)) {
            match (AskedCall::receive(&self.listener), &mut self.connector) {
                (Some(call), Some(connector)) if call.is_connect() => connector.connect(&self.listener, call),
                (Some(call), _) => return Some(calls::hostile_call(&call)),
                (None, _) => {}
            }
            let mut waited = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut waited, 0u8);
            asks = waited[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN));
        }
        None
    }
}

/// Notes how the main process ended.
fn note(of_main: &mut Option<WaitStatus>, main: Pid, status: WaitStatus) {
    if status.pid() == Some(main) {
        *of_main = Some(status);
    }
}

/// How the candidate ended, from the main process's status and the limits.
fn judge(order: &Confined, status: Option<WaitStatus>, cpu: Duration, peak_bytes: u64) -> How {
    let near = order.limits.memory_bytes - order.limits.memory_bytes / 10;
    match status {
        _ if cpu > order.limits.most_cpu() => How::Limit(Limit::Time),
        _ if peak_bytes > order.limits.memory_bytes => How::Limit(Limit::Memory),
        Some(WaitStatus::Exited(_, 0)) => How::Exit(0),
        _ if peak_bytes > near => How::Limit(Limit::Memory),
        Some(WaitStatus::Exited(_, code)) => How::Exit(code),
        Some(WaitStatus::Signaled(_, Signal::SIGXFSZ, _)) => How::Limit(Limit::Output),
        Some(WaitStatus::Signaled(_, Signal::SIGSYS, _)) => How::Sandbox("a system call that no program needs".into()),
        Some(WaitStatus::Signaled(_, signal, _)) => How::Signal(signal as i32),
        _ => How::Signal(Signal::SIGKILL as i32),
    }
}
