//! What is run confined, under which layers, and how it ended: the same words on every system. How a system confines it
//! is left to `linux` and `elsewhere`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::most_real;
use crate::problem::Limits;
use crate::verdict::Verdict;

/// Whether candidates may run if their files and network cannot be isolated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolation {
    /// Refuses to set up a judge where they cannot.
    #[default]
    Required,
    /// Runs candidates anyway, with whatever isolation the machine has.
    Unsafe,
}

/// How a sandbox is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxSetup {
    pub isolation: Isolation,
    /// The executable to run as the helper; its `main` must begin with [`enter_if_helper`](super::enter_if_helper).
    /// `None`: this one.
    // Not sent to the helper, which does not read it: JSON holds no path that is not UTF-8.
    #[serde(skip)]
    pub helper: Option<PathBuf>,
    /// Whether to use namespaces, if they work. Without them (as in most containers) only the other layers isolate.
    pub namespaces: bool,
    /// Files and folders in readable folders that programs cannot read all the same. What a program names as readable
    /// in a hidden folder stays readable.
    pub hidden: Vec<PathBuf>,
    /// Whether to use control groups, if they can be made. Without them the supervisors measure memory and CPU time.
    pub groups: bool,
}

impl SandboxSetup {
    pub fn new(isolation: Isolation) -> SandboxSetup {
        SandboxSetup { isolation, helper: None, namespaces: true, groups: true, hidden: Vec::new() }
    }
}

/// The layers of a sandbox, as a probe found them, each a line of the report: by which means it is in force, or why it
/// is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce(pub(super) Vec<(String, Result<String, String>)>);

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, state) in &self.0 {
            match state {
                Ok(how) => writeln!(f, "{name:<12} in force: {how}")?,
                Err(why) => writeln!(f, "{name:<12} not in force: {why}")?,
            }
        }
        Ok(())
    }
}

/// A Python to load, and the script that it runs before it serves.
///
/// The script imports the module `_offshoot` and calls its function `serve` with a function of two arguments, which is
/// called in each candidate with the candidate's arguments and its environment, as bytes, with a zero byte between two.
/// The call of `serve` never returns; when the function does, the candidate ends with code 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WarmInterpreter {
    /// The shared library of the interpreter.
    pub library: PathBuf,
    /// The interpreter's name for itself and the rest of its command line.
    pub command: Vec<String>,
}

/// One program to run confined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Confined {
    /// Absolute path; it and the paths in `readable` can be read and executed.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Added to, and overriding, a minimal environment (`PATH`, `LANG`, `HOME` and `TMPDIR` in the folder, one thread
    /// for BLAS).
    pub environment: Vec<(String, String)>,
    /// Absolute paths of files and folders that can be read in addition to the system's programs and libraries.
    pub readable: Vec<PathBuf>,
    /// The working folder, the only place that can be written: a [`WorkFolder`](super::WorkFolder)'s path. If
    /// candidates run as the caller's user they cannot change modes, so the caller may have to make a compiler's output
    /// executable.
    pub folder: PathBuf,
    /// Whether the program's files are wanted in `folder` afterwards. In a mount namespace the program works on a copy
    /// in memory, which is otherwise dropped.
    pub keep_files: bool,
    pub limits: Limits,
    pub wall: WallLimit,
    /// Real time after which a program with [`WallLimit::Own`] is ended, whatever its clock says, if that is less than
    /// what [`Limits::wall`] gives.
    pub real: Option<Duration>,
    pub stdin: StdinMode,
    pub stdout: StdoutMode,
    /// A stream between the caller ([`Running::channel`](super::Running::channel)) and the program, which has it as
    /// file descriptor 3.
    pub channel: bool,
}

impl Confined {
    /// A program with an empty standard input, whose output is captured and whose files are dropped.
    pub fn new(program: impl Into<PathBuf>, arguments: Vec<String>, folder: &Path, limits: Limits) -> Self {
        Self {
            program: program.into(),
            arguments,
            environment: Vec::new(),
            readable: Vec::new(),
            folder: folder.to_path_buf(),
            keep_files: false,
            limits,
            wall: WallLimit::Own,
            real: None,
            stdin: StdinMode::Null,
            stdout: StdoutMode::Capture,
            channel: false,
        }
    }

    /// This program, ended after the real time `real` at the latest.
    #[must_use]
    pub fn within(self, real: Duration) -> Confined {
        Confined { real: Some(self.real.map_or(real, |own| own.min(real))), ..self }
    }

    /// Real time after which the program is ended, if its own clock ends it.
    pub(super) fn most_real(&self) -> Duration {
        let most = most_real(self.limits.wall);
        self.real.map_or(most, |real| real.min(most))
    }
}

/// What ends a program that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WallLimit {
    /// [`Limits::wall`].
    Own,
    /// The caller, which knows when the program waits for nobody but itself.
    ByCaller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinMode {
    /// Empty.
    Null,
    Pipe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdoutMode {
    Null,
    /// Captured up to `Limits::output_bytes`; more ends the program.
    Capture,
}

/// How a confined program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Exit(i32),
    /// Killed by this signal, by itself or a child.
    Signal(i32),
    /// Ended by a limit.
    Limit(Limit),
    /// Ended for a forbidden system call: its name.
    Sandbox(String),
    /// Ended by [`Running::kill`](super::Running::kill).
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// CPU time, or time by the program's clock.
    Time,
    /// [`Confined::real`].
    RealTime,
    Memory,
    Output,
    /// `MOST_FILES`.
    Files,
    /// Folders nested deeper than `DEEPEST`.
    Depth,
}

/// Files, folders and links that a candidate may have at once.
pub(crate) const MOST_FILES: u64 = 4096;
/// How deep its folders may be nested where they are measured, or copied back.
pub(crate) const DEEPEST: usize = 64;

impl Limit {
    /// That this one of `limits` is exceeded, in words.
    pub(crate) fn passed(self, limits: &Limits) -> String {
        match self {
            Limit::Time if limits.cpu == limits.wall => format!("it takes more than {} s", limits.cpu.as_secs_f64()),
            Limit::Time => {
                let (cpu, wall) = (limits.cpu.as_secs_f64(), limits.wall.as_secs_f64());
                format!("it takes more than {cpu} s of processor time, or {wall} s")
            }
            Limit::RealTime => {
                let real = most_real(limits.wall).as_secs_f64();
                format!("it is not done after {real} s of real time, whatever its clock says")
            }
            Limit::Memory => format!("it takes more than {} MiB of memory", limits.memory_bytes >> 20),
            Limit::Output => format!("it writes more than {} MiB", limits.output_bytes >> 20),
            Limit::Files => format!("it makes more than {MOST_FILES} files, folders and links"),
            Limit::Depth => format!("it nests more than {DEEPEST} folders"),
        }
    }
}

impl From<Limit> for Verdict {
    fn from(limit: Limit) -> Verdict {
        match limit {
            Limit::Time | Limit::RealTime => Verdict::TimeLimit,
            Limit::Memory => Verdict::MemoryLimit,
            Limit::Output | Limit::Files | Limit::Depth => Verdict::OutputLimit,
        }
    }
}

/// The result of a confined program: how it ended, the resources it used, and its output.
#[derive(Clone, Debug)]
pub struct Ended {
    pub how: How,
    /// Wall-clock time from the program's start to its end.
    pub wall: Duration,
    /// CPU time of all its processes.
    pub cpu: Duration,
    /// Peak memory of all its processes together.
    pub peak_bytes: u64,
    pub stdout: Vec<u8>,
    /// The last 64 KiB.
    pub stderr: Vec<u8>,
}
