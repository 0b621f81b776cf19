//! The warden: our own executable run again, which forks a supervisor for each candidate. It also makes once what all candidates
//! can share, and finds out what the machine allows.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal, signal};
use serde::{Deserialize, Serialize};

use super::running::Running;
use super::wire::{self, Ends, Order};
use super::{Confined, InForce, Input, Isolation, Output, Setup, WorkFolder, supervisor};
use crate::error::{Error, Result};

/// The name under which the helper is run: no program is called that way by its path.
const HELPER: &str = "offshoot [sandbox helper]";
/// Set for the helper, so that a program whose `main` does not begin with [`enter_if_helper`] notices instead of running itself
/// for ever.
const MARK: &str = "OFFSHOOT_SANDBOX_HELPER";
/// For the helper's first word.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Becomes the helper and never returns where this process was started as one. The first line of `main` of every program that
/// uses a [`Sandbox`].
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
    let code = match serve(caller) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("offshoot: the sandbox's helper fails: {error}");
            1
        }
    };
    std::process::exit(code);
}

/// What the caller tells the warden first.
#[derive(Serialize, Deserialize)]
struct Wanted {
    namespaces: bool,
}

/// What the warden answers.
#[derive(Serialize, Deserialize)]
struct Found {}

fn serve(mut caller: UnixStream) -> io::Result<()> {
    let _wanted: Wanted = wire::hear(&mut caller)?;
    // In a session of its own: what a terminal sends to its programs is the caller's to handle.
    let _ = nix::unistd::setsid();
    // SAFETY: ignoring a signal runs no code of ours; children are reaped by the kernel.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    wire::say(&mut caller, &Found {})?;
    while let Some(ends) = Ends::receive(&caller)? {
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        if let nix::unistd::ForkResult::Child = unsafe { nix::unistd::fork() }? {
            drop(caller);
            supervisor::supervise(ends);
        }
    }
    Ok(())
}

/// A place where programs run confined; see the module.
#[derive(Debug)]
pub struct Sandbox {
    caller: UnixStream,
    warden: Mutex<Child>,
    in_force: InForce,
}

impl Sandbox {
    /// Starts the helper and finds out what is in force. An error, in one sentence, where isolation is required and cannot be had.
    pub fn probe(isolation: Isolation) -> Result<Sandbox> {
        Sandbox::set_up(&Setup::new(isolation))
    }

    pub fn set_up(setup: &Setup) -> Result<Sandbox> {
        if std::env::var_os(MARK).is_some() {
            return Err(Error::Internal(
                "the main function of this program does not begin with enter_if_helper()".into(),
            ));
        }
        let helper = match &setup.helper {
            Some(path) => path.clone(),
            None => std::env::current_exe().map_err(Error::io("/proc/self/exe", "find"))?,
        };
        let (mut caller, theirs) = UnixStream::pair().map_err(Error::io(&helper, "make a socket for"))?;
        let warden = Command::new(&helper)
            .arg0(HELPER)
            .env_clear()
            .env(MARK, "1")
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::io(&helper, "run"))?;
        let mut sandbox = Sandbox {
            caller: caller.try_clone().map_err(Error::io(&helper, "talk to"))?,
            warden: Mutex::new(warden),
            in_force: InForce { layers: Vec::new() },
        };
        let first_words = |caller: &mut UnixStream| -> io::Result<Found> {
            caller.set_read_timeout(Some(START_LIMIT))?;
            wire::say(caller, &Wanted { namespaces: setup.namespaces })?;
            let found = wire::hear(caller)?;
            caller.set_read_timeout(None)?;
            Ok(found)
        };
        let Found {} = first_words(&mut caller).map_err(Error::io(&helper, "use as the sandbox's helper"))?;
        sandbox.in_force = InForce { layers: Vec::new() };
        Ok(sandbox)
    }

    pub fn in_force(&self) -> &InForce {
        &self.in_force
    }

    pub fn folder(&self) -> Result<WorkFolder> {
        WorkFolder::new()
    }

    /// Starts a program; may be called from several threads at once.
    pub fn start(&self, what: Confined) -> Result<Running> {
        let failed = || Error::io(&what.program, "start");
        let (mut control, their_control) = UnixStream::pair().map_err(failed())?;
        let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        let (stdin, their_stdin) = match what.stdin {
            Input::Null => (None, null().map_err(failed())?),
            Input::Pipe => {
                let (theirs, ours) = io::pipe().map_err(failed())?;
                (Some(ours), OwnedFd::from(theirs))
            }
        };
        let (stdout, their_stdout) = match what.stdout {
            Output::Null => (None, null().map_err(failed())?),
            Output::Capture => {
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
        let ends = Ends {
            control: their_control.into(),
            stdin: their_stdin,
            stdout: their_stdout,
            stderr: their_stderr.into(),
            channel: their_channel,
        };
        ends.send(&self.caller).map_err(Error::io(&what.program, "start (the sandbox's helper has gone)"))?;
        drop(ends);
        let Confined { program, arguments, environment, readable, folder, limits, .. } = what;
        let order = Order {
            arguments,
            environment,
            readable,
            folder,
            cpu: limits.cpu,
            memory_bytes: limits.memory_bytes,
            output_bytes: limits.output_bytes,
            processes: limits.processes,
            program: program.clone(),
        };
        wire::say(&mut control, &order).map_err(Error::io(&program, "start"))?;
        Running::over(program, control, stdin, stdout, stderr, channel, limits.output_bytes)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.caller.shutdown(std::net::Shutdown::Both);
        if let Ok(warden) = self.warden.get_mut() {
            let _ = warden.wait();
        }
    }
}
