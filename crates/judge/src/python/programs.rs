//! The runner and the checker program, compiled for the interpreter that runs them, and how they are started: a runner
//! is forked from an interpreter that has it loaded already, where the interpreter comes as a shared library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::stream::{self, StreamRead};
use crate::fair_clock::Deadline;
use crate::message::last_line;
use crate::problem::{FileForm, Limits};
use crate::sandbox::{Confined, Running, Sandbox, StdoutMode, WallLimit, WarmInterpreter, WorkFolder};
use crate::toolchain::Interpreter;
use offshoot_core::error::{Error, Result};

const COMPILE: &str = "import py_compile, sys; py_compile.compile(sys.argv[1], cfile=sys.argv[2], doraise=True)";

const WIRE: &str = include_str!("wire.py");
const RUNNER: &str = include_str!("runner.py");
const STARTED_RUNNER: &[&str] = &[WIRE, RUNNER, include_str!("started.py")];
const WARMED_RUNNER: &[&str] = &[WIRE, RUNNER, include_str!("warmed.py")];
const CHECKER: &[&str] = &[WIRE, include_str!("checker.py"), include_str!("eval_plus.py"), include_str!("serve.py")];

/// Options of the interpreter, for each program: nothing of the user's settings, no `site` module, no files written.
const OPTIONS: [&str; 3] = ["-I", "-S", "-B"];

/// Longest time until the first runner is ready.
const TRIAL: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Programs {
    python: Interpreter,
    runner: PathBuf,
    checker: PathBuf,
    /// Its runners are forked; or why there is none.
    warm: Result<Sandbox, String>,
    /// Contains the programs: compiled once, so that they start some milliseconds faster.
    folder: WorkFolder,
}

impl Programs {
    /// Compiles the programs and, if `python` can be loaded as a library, starts the interpreter that runners are
    /// forked from.
    pub fn compile(python: Interpreter, sandbox: &Sandbox) -> Result<Programs> {
        let folder = sandbox.folder()?;
        let runner = compiled(&python, folder.path(), "runner", STARTED_RUNNER)?;
        let checker = compiled(&python, folder.path(), "checker", CHECKER)?;
        let why = "it has no shared library".to_string();
        let programs = Programs { python, runner, checker, warm: Err(why), folder };
        Ok(match &programs.python.library {
            Some(library) => {
                let warm = programs.warmed(library, sandbox).map_err(|error| error.to_string());
                Programs { warm, ..programs }
            }
            None => programs,
        })
    }

    /// Why runners are started, if they are not forked.
    pub fn started_for(&self) -> Option<&str> {
        self.warm.as_ref().err().map(String::as_str)
    }

    /// Starts an interpreter that has loaded the runner, and sees that a fork of it runs a program.
    fn warmed(&self, library: &Path, sandbox: &Sandbox) -> Result<Sandbox> {
        let script = compiled(&self.python, self.folder.path(), "warmed", WARMED_RUNNER)?;
        let mut command = vec![self.python.path.display().to_string()];
        command.extend(self.command(&script));
        command.push(self.python.version.clone());
        let warm = sandbox.warmed(WarmInterpreter { library: library.to_path_buf(), command })?;
        let folder = sandbox.folder()?;
        let mut trial = started(warm.start(self.runner(folder.path(), Limits::of(FileForm::Functions)))?)?;
        let channel = trial.channel().expect("a runner is started with a channel");
        let mut deadline = Deadline::new(trial.clock(), TRIAL);
        let loaded = match stream::send(channel, b'P', b"answer = 42", &mut deadline) {
            Ok(()) => stream::receive(channel, 1 << 10, &mut deadline),
            Err(why) => why,
        };
        trial.kill();
        let ended = trial.wait()?;
        match loaded {
            StreamRead::Frame { kind: b'L', .. } => Ok(warm),
            _ => {
                let why = last_line(&ended.stderr).unwrap_or_else(|| format!("{:?}", ended.how));
                Err(Error::value(library.display().to_string(), "a library whose interpreter runs programs", why))
            }
        }
    }

    /// Starts the process of a candidate, confined to `folder`, with a channel.
    pub fn start_runner(&self, sandbox: &Sandbox, folder: &Path, limits: Limits) -> Result<Running> {
        match &self.warm {
            Ok(warm) => started(warm.start(self.runner(folder, limits))?),
            Err(_) => {
                let mut runner = self.runner(folder, limits);
                runner.arguments.splice(0..0, self.command(&self.runner));
                runner.readable.push(self.runner.clone());
                started(sandbox.start(runner)?)
            }
        }
    }

    /// A runner, with the arguments of its program.
    fn runner(&self, folder: &Path, limits: Limits) -> Confined {
        let mut arguments = vec![limits.output_bytes.to_string()];
        arguments.extend(self.python.packages.iter().cloned());
        self.confined(arguments, folder, limits)
    }

    /// Starts a checker, confined to `folder`, with a channel.
    pub fn start_checker(&self, sandbox: &Sandbox, folder: &Path, limits: Limits) -> Result<Running> {
        let mut arguments = self.command(&self.checker);
        arguments.extend(self.python.packages.iter().cloned());
        let mut checker = self.confined(arguments, folder, limits);
        checker.readable.push(self.checker.clone());
        started(sandbox.start(checker)?)
    }

    fn command(&self, program: &Path) -> Vec<String> {
        OPTIONS.map(String::from).into_iter().chain([program.display().to_string()]).collect()
    }

    fn confined(&self, arguments: Vec<String>, folder: &Path, limits: Limits) -> Confined {
        Confined {
            readable: self.python.readable.clone(),
            wall: WallLimit::ByCaller,
            stdout: StdoutMode::Null,
            channel: true,
            ..Confined::new(&self.python.path, arguments, folder, limits)
        }
    }
}

/// A program whose channel does not block: see [`stream`].
fn started(running: Running) -> Result<Running> {
    let channel = running.channel().expect("it is started with a channel");
    channel.set_nonblocking(true).map_err(Error::io("a channel to Python", "use"))?;
    Ok(running)
}

/// Compiles a program of these parts into `folder`.
fn compiled(python: &Interpreter, folder: &Path, name: &str, parts: &[&str]) -> Result<PathBuf> {
    let source = folder.join(name).with_extension("py");
    let compiled = source.with_extension("pyc");
    std::fs::write(&source, parts.concat()).map_err(Error::io(&source, "write"))?;
    let done = Command::new(&python.path)
        .args(["-I", "-S", "-c", COMPILE])
        .args([&source, &compiled])
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(&python.path, "run"))?;
    if !done.status.success() {
        let why = last_line(&done.stderr).unwrap_or_else(|| done.status.to_string());
        return Err(Error::value(python.path.display().to_string(), "a working Python 3.10 or later", why));
    }
    Ok(compiled)
}
