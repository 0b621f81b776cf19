//! The candidate's process between the supervisor's fork and the program: sets up descriptors, limits and confinement.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{chdir, execve, setsid, write};

use super::base::ENVIRONMENT;
use super::confinement::{self, Confinement};
use super::identity::Identity;
use super::interpreter::ServingInterpreter;
use super::setup_error::{SetupError, doing};
use super::wire::{self, CandidateSpec, ProgramFds};
use super::{Confined, calls, files, own_limits, signals};

/// How a confined process becomes the program.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProgramStart {
    Execute,
    /// It goes on in the interpreter that it was forked from.
    Interpret(ServingInterpreter),
}

/// Confines this process and becomes the program; returns only on failure. The listener for hostile calls is sent over
/// `say`, which closes when the program begins.
pub(super) fn become_program(
    order: &CandidateSpec,
    confinement: &Confinement,
    start: ProgramStart,
    ends: ProgramFds,
    say: &mut OwnedFd,
) -> Result<Infallible, SetupError> {
    confine(order, confinement, start, ends, say)?;
    match start {
        ProgramStart::Execute => execute(&order.confined),
        ProgramStart::Interpret(interpreter) => interpret(&order.confined, interpreter),
    }
}

/// All that comes before the program.
fn confine(
    CandidateSpec { confined: order, probes }: &CandidateSpec,
    confinement: &Confinement,
    start: ProgramStart,
    ends: ProgramFds,
    say: &mut OwnedFd,
) -> Result<(), SetupError> {
    setsid().map_err(doing("start a session"))?;
    // Where the machine's memory is short, the kernel ends candidates first. Not every kernel has this file.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    chdir(&order.folder).map_err(doing("enter its folder"))?;
    let of_interpreter: &[Signal] = match start {
        ProgramStart::Execute => &[],
        ProgramStart::Interpret(_) => &[Signal::SIGINT, Signal::SIGPIPE, Signal::SIGXFSZ],
    };
    signals::reset(of_interpreter).map_err(doing("reset signals"))?;
    place(ends, say).map_err(doing("place file descriptors"))?;
    confinement.identity.enter_namespace()?;
    limit(order, confinement.identity)?;
    prctl::set_no_new_privs().map_err(doing("give up new privileges"))?;
    if confinement.landlock.is_some() {
        let Confinement { hidden, common_rules, .. } = confinement;
        files::confine(order, confinement.namespaced(), hidden, common_rules.as_ref())
            .map_err(io::Error::other)
            .map_err(doing("confine its files"))?;
    }
    confinement.identity.take(order, confinement.landlock.is_some(), confinement.namespaced())?;
    // After the change of user, which resets it.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(doing("follow the supervisor"))?;
    // The change of user closed its own /proc, to it and to the supervisor. An execve opens it again, but only when the
    // supervisor may already look.
    prctl::set_dumpable(true).map_err(doing("open its own /proc"))?;
    // A separate user number does not protect from signals, because numbers are reused.
    let scoped = confinement.namespaced() || confinement.landlock.is_some_and(|version| version >= confinement::SCOPES);
    if let Some(filters) = &confinement.filters {
        if !scoped {
            calls::signal_only_itself().map_err(doing("confine its signals"))?;
        }
        if let Some(listener) = filters.confine().map_err(doing("confine its system calls"))? {
            wire::send_fds(say, &[listener.as_raw_fd()]).map_err(doing("hand over the listener"))?;
        }
        filters.refuse_messages().map_err(doing("confine its messages"))?;
    }
    if let Some(probes) = probes {
        begin()?;
        let done = serde_json::to_vec(&probes.done()).map_err(io::Error::other);
        done.and_then(|text| Ok(write(io::stdout(), &text)?)).map_err(doing("report the probes"))?;
        // SAFETY: ends the process at once, its output written.
        unsafe { libc::_exit(0) }
    }
    Ok(())
}

/// Does what an execve would, as far as it concerns the program, and goes on in the interpreter.
fn interpret(order: &Confined, interpreter: ServingInterpreter) -> Result<Infallible, SetupError> {
    let environment = environment(order)?;
    let name = order.program.file_name().map(OsStrExt::as_bytes).map(c_string).transpose()?;
    prctl::set_name(&name.unwrap_or_default()).map_err(doing("take the program's name"))?;
    begin()?;
    interpreter.begin(&order.arguments, &environment)
}

/// Closes all descriptors but the program's. The stream to the supervisor is among them: that it closes says that the
/// program begins.
fn begin() -> Result<(), SetupError> {
    // SAFETY: no value of this forked process that owns one of these descriptors is used again or dropped.
    Errno::result(unsafe { libc::close_range(4, u32::MAX, 0) }).map_err(doing("close file descriptors"))?;
    Ok(())
}

fn execute(order: &Confined) -> Result<Infallible, SetupError> {
    let program = c_string(order.program.as_os_str().as_bytes())?;
    let mut arguments = vec![program.clone()];
    for argument in &order.arguments {
        arguments.push(c_string(argument.as_bytes())?);
    }
    let environment = environment(order)?;
    execve(&program, &arguments, &environment).map_err(doing("execute it"))
}

fn c_string(bytes: &[u8]) -> Result<CString, SetupError> {
    CString::new(bytes).map_err(doing("pass it text with a zero byte"))
}

/// The environment; overriding settings come first, because programs use the first entry of a name.
fn environment(order: &Confined) -> Result<Vec<CString>, SetupError> {
    let folder = order.folder.to_string_lossy();
    let places = [("HOME", &*folder), ("TMPDIR", &*folder)];
    let base = ENVIRONMENT.into_iter().chain(places);
    let own = order.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let given = |name: &str| order.environment.iter().any(|(own, _)| own == name);
    let all = own.chain(base.filter(|(name, _)| !given(name)));
    all.map(|(name, value)| c_string(format!("{name}={value}").as_bytes())).collect()
}

fn limit(order: &Confined, identity: Identity) -> Result<(), SetupError> {
    own_limits::set(&order.limits, own_limits::others(identity.candidate_user()))
}

/// Places the standard streams at 0, 1, 2 and the channel at 3; moves `say` above them. All others close when the
/// program is executed.
fn place(ends: ProgramFds, say: &mut OwnedFd) -> io::Result<()> {
    let ProgramFds { stdin, stdout, stderr, channel } = ends;
    *say = above(say)?;
    let sources =
        [Some(above(&stdin)?), Some(above(&stdout)?), Some(above(&stderr)?), channel.as_ref().map(above).transpose()?];
    drop((stdin, stdout, stderr, channel));
    for (target, source) in sources.iter().enumerate() {
        match source {
            // SAFETY: dup2 between descriptors; no value in this forked process owns the descriptor that is replaced.
            Some(source) => Errno::result(unsafe { libc::dup2(source.as_raw_fd(), target as RawFd) }).map(drop)?,
            None => {
                // SAFETY: as above.
                unsafe { libc::close(target as RawFd) };
            }
        }
    }
    // SAFETY: changes a flag of descriptors only.
    Errno::result(unsafe { libc::close_range(4, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) })?;
    Ok(())
}

fn above(fd: &OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: duplicates an open descriptor; the new one is ours alone.
    unsafe {
        let copy = Errno::result(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 10))?;
        Ok(OwnedFd::from_raw_fd(copy))
    }
}
