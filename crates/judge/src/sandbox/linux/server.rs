//! The sandbox server: our own executable, run again, forks a supervisor for each candidate. It prepares once what all
//! candidates can share, and detects what the machine allows.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use serde::{Deserialize, Serialize};

use super::caller::CallerProcess;
use super::calls::CandidateUser;
use super::candidate::ProgramStart;
use super::confinement::{Confinement, ConfinementFacts};
use super::groups::{self, Groups};
use super::identity::Identity;
use super::probe::{ProbeTarget, SandboxProbe};
use super::running::{CallerEnds, Running};
use super::wire::{self, CandidateFds, CandidateSpec, FAREWELL, ProgramFds, ServerRequest};
use super::{
    Confined, InForce, Isolation, SandboxSetup, StdinMode, StdoutMode, WarmInterpreter, WorkFolder, folder,
    interpreter, own_limits, signals, supervisor,
};
use crate::fair_clock::ClockFile;
use crate::problem::{FileForm, Limits};
use offshoot_core::error::{Error, Result};

/// The helper's argv[0]; no program has this path.
const HELPER: &str = "offshoot [sandbox helper]";
/// Environment variable set for the helper. A program whose `main` does not begin with [`enter_if_helper`] stops when
/// it finds it, instead of starting itself forever.
const MARK: &str = "OFFSHOOT_SANDBOX_HELPER";
/// Longest wait for the helper's first message.
const START_LIMIT: Duration = Duration::from_secs(60);

/// If this process was started as the helper, becomes the helper and never returns. Must be the first line of `main` of
/// every program that uses a [`Sandbox`].
pub fn enter_if_helper() {
    let mut arguments = std::env::args_os();
    if arguments.next().is_none_or(|name| name != HELPER)
        || arguments.next().is_some()
        || std::env::var_os(MARK).is_none()
    {
        return;
    }
    let Ok(stdin) = io::stdin().as_fd().try_clone_to_owned() else { return };
    let caller = UnixStream::from(stdin);
    if caller.peer_addr().is_err() {
        return;
    }
    let code = match leave_stdin().and_then(|()| receive_setup(caller)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("offshoot: the sandbox's helper fails: {error}");
            1
        }
    };
    std::process::exit(code);
}

/// Empties the standard input of this process. Its supervisors inherit it, and the caller would not see that a server
/// has gone while one of them holds the server's end of their stream.
fn leave_stdin() -> io::Result<()> {
    let null = File::open("/dev/null")?;
    // SAFETY: dup2 between descriptors; the library's standard input owns none.
    Errno::result(unsafe { libc::dup2(null.as_raw_fd(), libc::STDIN_FILENO) })?;
    Ok(())
}

/// The caller's first message to the server; the server answers with its [`ConfinementFacts`].
#[derive(Serialize, Deserialize)]
struct ServerSetup {
    sandbox: SandboxSetup,
    /// The caller's process.
    caller: u32,
    /// The folder in which the caller creates its work folders.
    folders: PathBuf,
    /// What all candidates are forked from.
    interpreter: Option<WarmInterpreter>,
}

fn receive_setup(mut caller: UnixStream) -> io::Result<()> {
    // A separate session, so that signals of the terminal reach only the caller.
    let _ = setsid();
    // Before an interpreter is loaded, which remembers what it finds. Writing to a caller that has gone is an error.
    signals::reset(&[Signal::SIGPIPE])?;
    let mut wanted: ServerSetup = wire::receive_message(&mut caller)?;
    match wanted.interpreter.take() {
        None => serve(caller, &wanted, ProgramStart::Execute),
        Some(warm) => {
            let begin = move |interpreter| serve(caller, &wanted, ProgramStart::Interpret(interpreter));
            Err(interpreter::run(&warm, Box::new(begin)))
        }
    }
}

fn serve(mut caller: UnixStream, wanted: &ServerSetup, start: ProgramStart) -> io::Result<()> {
    let caller_process = match CallerProcess::open(wanted.caller) {
        Err(Errno::ESRCH) => return Ok(()),
        opened => opened?,
    };
    let (groups, counted) = Groups::prepare(wanted.sandbox.groups, wanted.caller);
    let (confinement, found) = Confinement::new(wanted.sandbox.namespaces, &counted, &wanted.sandbox.hidden);
    if let Some(filters) = &confinement.filters {
        prctl::set_no_new_privs()?;
        filters.confine_server()?;
    }
    wire::send_message(&mut caller, &found)?;
    let mut supervisors = Supervisors {
        first: confinement.identity,
        confinement,
        start,
        groups,
        number: 0,
        waiting: VecDeque::new(),
        busy: HashMap::new(),
        caller: caller.as_raw_fd(),
        caller_process,
    };
    let most_waiting = std::thread::available_parallelism().map_or(1, usize::from);
    loop {
        let request = match supervisors.caller_process.waits_for(&caller)? {
            true => CandidateFds::receive(&caller)?,
            false => ServerRequest::Gone,
        };
        match request {
            ServerRequest::Run(ends) => {
                if let Err(error) = supervisors.assign(&ends) {
                    // The caller notices that its control stream closes.
                    eprintln!("offshoot: no supervisor can be started: {error}");
                }
                drop(ends);
                // One more after each request, up to one for each of this machine's processors.
                for _ in 0..2 {
                    if supervisors.waiting.len() < most_waiting {
                        let _ = supervisors.prepare();
                    }
                }
            }
            ServerRequest::Farewell => {
                supervisors.end(PatienceAtEnd::Short);
                return Ok(());
            }
            ServerRequest::Gone => {
                supervisors.end(PatienceAtEnd::Long);
                folder::sweep_behind(wanted.caller, &wanted.folders);
                return Ok(());
            }
        }
    }
}

/// The supervisors of a server. To enter a control group can take the kernel 20 ms, so some supervisors have been
/// forked, and their candidates' processes have entered their groups, before a candidate is there.
struct Supervisors {
    confinement: Confinement,
    start: ProgramStart,
    first: Identity,
    groups: Groups,
    /// The number of the next supervisor.
    number: u32,
    /// They take their candidates from these streams; if a stream ends, they end.
    waiting: VecDeque<UnixStream>,
    /// The groups of the living supervisors.
    busy: HashMap<Pid, Option<u32>>,
    caller: RawFd,
    caller_process: CallerProcess,
}

/// How long a server waits for its supervisors before it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PatienceAtEnd {
    /// The caller waits for the server, and may itself end a candidate only later.
    Short,
    Long,
}

impl Supervisors {
    /// Hands a candidate to a supervisor.
    fn assign(&mut self, ends: &CandidateFds) -> io::Result<()> {
        loop {
            if self.waiting.is_empty() {
                self.prepare()?;
            }
            let Some(stream) = self.waiting.pop_front() else { continue };
            // It may have been killed; then the next one gets the candidate.
            if ends.send(&stream).is_ok() {
                return Ok(());
            }
        }
    }

    /// Forks a supervisor.
    fn prepare(&mut self) -> io::Result<()> {
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let Some(pid) = status.pid() else { break };
            if let Some(Some(group)) = self.busy.remove(&pid) {
                self.groups.give_back(group);
            }
        }
        let (stream, theirs) = UnixStream::pair()?;
        let (group_number, group) = self.groups.take()?.unzip();
        self.confinement.identity = self.first.of(self.number);
        self.number = self.number.wrapping_add(1);
        match fork_into(self.confinement.namespaced(), self.start) {
            Ok(ForkSide::Child) => {
                drop(stream);
                self.waiting.clear();
                // SAFETY: this fork never uses the server's stream to the caller, nor runs its destructor.
                unsafe { libc::close(self.caller) };
                supervisor::supervise(theirs, &self.confinement, &self.caller_process, self.start, group);
            }
            Ok(ForkSide::Parent(pid)) => {
                self.waiting.push_back(stream);
                self.busy.insert(pid, group_number);
                Ok(())
            }
            Err(error) => {
                if let Some(number) = group_number {
                    self.groups.give_back(number);
                }
                Err(error)
            }
        }
    }

    /// Ends the waiting supervisors and waits for the others.
    fn end(&mut self, patience: PatienceAtEnd) {
        const SHORT: Duration = Duration::from_secs(1);
        self.waiting.clear();
        let begun = Instant::now();
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) if patience == PatienceAtEnd::Long || begun.elapsed() < SHORT => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(WaitStatus::StillAlive) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }
}

enum ForkSide {
    Parent(Pid),
    Child,
}

/// Forks; with namespaces, into a pid and a mount namespace and an empty network of the child's own.
fn fork_into(namespaces: bool, start: ProgramStart) -> io::Result<ForkSide> {
    let flags = if namespaces { libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET } else { 0 };
    // SAFETY: as fork(2), and this process has one thread, so the child may do whatever the parent may.
    let fork = || Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) });
    let child = match start {
        ProgramStart::Execute => fork(),
        ProgramStart::Interpret(interpreter) => {
            interpreter.before_fork();
            let child = fork();
            if child != Ok(0) {
                interpreter.forked();
            }
            child
        }
    };
    Ok(match child? {
        0 => ForkSide::Child,
        child => ForkSide::Parent(Pid::from_raw(child as i32)),
    })
}

/// Runs programs confined; see the module.
#[derive(Debug)]
pub struct Sandbox {
    caller: UnixStream,
    server: Mutex<Child>,
    in_force: InForce,
    /// The folders of the server's control groups.
    groups: Vec<PathBuf>,
    /// Whose user the candidates have.
    user: CandidateUser,
    /// As it is in force: without namespaces if they do not suffice.
    setup: SandboxSetup,
}

impl Sandbox {
    /// Starts the helper and detects which layers are in force. Fails if isolation is required and not available.
    pub fn set_up(setup: &SandboxSetup) -> Result<Sandbox> {
        if std::env::var_os(MARK).is_some() {
            return Err(Error::Internal(
                "the main function of this program does not begin with enter_if_helper()".into(),
            ));
        }
        folder::sweep();
        let (mut sandbox, mut found) = Sandbox::start_server(setup, None)?;
        let tried = match sandbox.try_out() {
            // Namespaces may be allowed but not sufficient for a separate root and /proc.
            Err(error) if found.namespaces.is_ok() => {
                let without = SandboxSetup { namespaces: false, ..setup.clone() };
                (sandbox, found) = Sandbox::start_server(&without, None)?;
                found.namespaces = Err(format!("they are not sufficient ({error})"));
                sandbox.try_out()?
            }
            tried => tried?,
        };
        sandbox.in_force = found.in_force(&tried);
        match tried.iter().find(|probe| setup.isolation == Isolation::Required && **probe != SandboxProbe::Signal) {
            Some(probe) => Err(Error::value(
                "judging programs",
                "isolation of files and network",
                format!("that {} is not refused on this machine", probe.words()),
            )),
            None => Ok(sandbox),
        }
    }

    /// A sandbox of the same kind, all of whose programs are forks of `interpreter`: of a [`Confined`], their arguments
    /// count, and its program is a name.
    pub fn warmed(&self, interpreter: WarmInterpreter) -> Result<Sandbox> {
        let (mut sandbox, _) = Sandbox::start_server(&self.setup, Some(interpreter))?;
        sandbox.in_force = self.in_force.clone();
        Ok(sandbox)
    }

    fn start_server(setup: &SandboxSetup, interpreter: Option<WarmInterpreter>) -> Result<(Sandbox, ConfinementFacts)> {
        let own = || std::env::current_exe().map_err(Error::io("/proc/self/exe", "find"));
        let helper = &setup.helper.clone().map_or_else(own, Ok)?;
        let (mut caller, theirs) = UnixStream::pair().map_err(Error::io(helper, "make a socket for"))?;
        let mut server = Command::new(helper)
            .arg0(HELPER)
            .env_clear()
            .env(MARK, "1")
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::io(helper, "run"))?;
        let first_words = || -> io::Result<ConfinementFacts> {
            caller.set_read_timeout(Some(START_LIMIT))?;
            let setup = ServerSetup {
                sandbox: setup.clone(),
                caller: std::process::id(),
                folders: std::env::temp_dir(),
                interpreter,
            };
            wire::send_message(&mut caller, &setup)?;
            let found: ConfinementFacts = wire::receive_message(&mut caller)?;
            caller.set_read_timeout(None)?;
            Ok(found)
        };
        let found = first_words().map_err(|why| {
            end_server(&caller, &mut server);
            Error::io(helper, "use as the sandbox's helper")(why)
        })?;
        let sandbox = Sandbox {
            caller,
            server: Mutex::new(server),
            in_force: InForce(Vec::new()),
            groups: found.groups.clone(),
            user: found.user,
            setup: setup.clone(),
        };
        Ok((sandbox, found))
    }

    /// Runs the probes in a confined process; returns those that succeeded but should have failed.
    fn try_out(&self) -> Result<Vec<SandboxProbe>> {
        let (folder, outside, shown) = (self.folder()?, self.folder()?, self.folder()?);
        let (probes, _sockets) =
            ProbeTarget::in_folders(outside.path(), shown.path()).map_err(Error::io(outside.path(), "write"))?;
        let limits = Limits::of(FileForm::Programs).within(Duration::from_secs(10));
        let nothing = Confined::new("/bin/sh", Vec::new(), folder.path(), limits);
        let nothing = Confined { readable: vec![shown.path().to_path_buf()], ..nothing };
        let ended = self.send(nothing, Some(probes))?.wait()?;
        serde_json::from_slice(&ended.stdout)
            .map_err(|_| Error::Internal("the process that probes the sandbox ended without a report".to_string()))
    }

    pub fn in_force(&self) -> &InForce {
        &self.in_force
    }

    /// The hard limits of this process that leave candidates less than `limits` give them, each in words.
    pub(crate) fn lower_than(&self, limits: &Limits) -> Vec<String> {
        own_limits::lower_than(limits, self.user)
    }

    pub fn folder(&self) -> Result<WorkFolder> {
        WorkFolder::new()
    }

    /// Starts a program; may be called from several threads at once.
    pub fn start(&self, what: Confined) -> Result<Running> {
        self.send(what, None)
    }

    fn send(&self, what: Confined, probes: Option<ProbeTarget>) -> Result<Running> {
        let failed = || Error::io(&what.program, "start");
        let (mut control, their_control) = UnixStream::pair().map_err(failed())?;
        let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        let (stdin, their_stdin) = match what.stdin {
            StdinMode::Null => (None, null().map_err(failed())?),
            StdinMode::Pipe => {
                let (theirs, ours) = io::pipe().map_err(failed())?;
                (Some(ours), OwnedFd::from(theirs))
            }
        };
        let (stdout, their_stdout) = match what.stdout {
            StdoutMode::Null => (None, null().map_err(failed())?),
            StdoutMode::Capture => {
                let (ours, theirs) = io::pipe().map_err(failed())?;
                (Some(ours), OwnedFd::from(theirs))
            }
        };
        let (stderr, their_stderr) = io::pipe().map_err(failed())?;
        let (channel, their_channel) = match what.channel {
            true => {
                UnixStream::pair().map(|(ours, theirs)| (Some(ours), Some(OwnedFd::from(theirs)))).map_err(failed())?
            }
            false => (None, None),
        };
        let clock = memfd_create("offshoot-clock", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from);
        let clock = File::from(clock.map_err(failed())?);
        let ends = CandidateFds {
            control: their_control.into(),
            clock: clock.try_clone().map_err(failed())?.into(),
            program: ProgramFds {
                stdin: their_stdin,
                stdout: their_stdout,
                stderr: their_stderr.into(),
                channel: their_channel,
            },
        };
        ends.send(&self.caller).map_err(Error::io(&what.program, "start (the sandbox's helper has gone)"))?;
        drop(ends);
        let (program, most) = (what.program.clone(), what.limits.output_bytes);
        let order = CandidateSpec { confined: what, probes };
        wire::send_message(&mut control, &order).map_err(Error::io(&program, "start (its supervisor has gone)"))?;
        let pipes = CallerEnds { control, clock: ClockFile::new(clock), stdin, stdout, stderr, channel };
        Running::over(program, pipes, most)
    }
}

/// Bids a server farewell and waits for its end.
fn end_server(mut caller: &UnixStream, server: &mut Child) {
    let _ = caller.write_all(FAREWELL);
    let _ = caller.shutdown(std::net::Shutdown::Both);
    let _ = server.wait();
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Ok(server) = self.server.get_mut() {
            end_server(&self.caller, server);
            groups::remove_behind(&self.groups);
        }
    }
}
