//! A candidate as a runnable program: its file in its own folder, compiled if its language requires it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::judge::Judge;
use super::message::first_error;
use super::sandbox::{Confined, Ended, How, Limit, StdinMode, WorkFolder};
use super::verdict::Verdict;
use crate::fair_clock::RealTimeEnd;
use crate::language::{Commands, Language};
use crate::problem::Limits;
use offshoot_core::error::{Error, Result};

/// Limits of a compiler and of what it writes; the candidate's own apply to its runs.
const COMPILING: Limits = Limits {
    cpu: Duration::from_secs(60),
    wall: Duration::from_secs(120),
    memory_bytes: 4 << 30,
    output_bytes: 256 << 20,
    processes: 256,
};

/// Runs a program as a function's body.
const AS_FUNCTION: &str = include_str!("as_function.py");

/// A candidate that can be run, any number of times, each time in a fresh folder.
pub(super) struct CandidateProgram {
    home: WorkFolder,
    start: StartOfRun,
    arguments: Vec<String>,
    readable: Vec<PathBuf>,
}

/// The program that a run executes, and what its folder holds.
enum StartOfRun {
    /// A program that needs nothing in its folder.
    InEmptyFolder(PathBuf),
    /// A program of this machine, beside a copy of what the home folder holds after compiling.
    BesideCopy(PathBuf),
    /// A file of that copy.
    OfCopy(PathBuf),
}

pub(super) enum CompiledCandidate {
    Ready(CandidateProgram),
    /// The program does not compile: with the compiler's first error, or because the candidate's real time is over.
    Rejected(Verdict, String),
}

impl CandidateProgram {
    /// Real time for compiling: by its clock a compiler may take so long.
    pub const COMPILING: Duration = COMPILING.wall;

    /// Compiles the program, if its language requires it, until its real time ends.
    pub fn prepare(judge: &Judge, language: &Language, text: &str, real: RealTimeEnd) -> Result<CompiledCandidate> {
        let home = judge.sandbox.folder()?;
        match language {
            Language::Python => {
                let python = judge.interpreter()?;
                let file = put(&home, "main.py", text)?;
                let mut readable = python.readable.clone();
                readable.push(home.path().to_path_buf());
                Ok(CompiledCandidate::Ready(CandidateProgram {
                    start: StartOfRun::InEmptyFolder(python.path.clone()),
                    arguments: vec!["-I".to_string(), "-B".to_string(), file.display().to_string()],
                    readable,
                    home,
                }))
            }
            Language::Cpp => {
                let compiler = judge.compiler()?;
                put(&home, "main.cpp", text)?;
                let arguments = ["-O2", "-std=c++17", "-o", "main", "main.cpp"].map(str::to_string).to_vec();
                let (compiler, readable) = (compiler.path.clone(), Vec::new());
                if let Some((verdict, why)) = compile(judge, &home, compiler, arguments, readable, real)? {
                    return Ok(CompiledCandidate::Rejected(verdict, why));
                }
                Ok(CompiledCandidate::Ready(CandidateProgram {
                    start: StartOfRun::InEmptyFolder(home.path().join("main")),
                    arguments: Vec::new(),
                    readable: vec![home.path().to_path_buf()],
                    home,
                }))
            }
            Language::Command(commands) => commanded(judge, home, commands, text, real),
        }
    }

    /// Makes a Python program the body of a function, in which a `return` ends the program.
    pub fn make_function(&mut self) -> Result<()> {
        let launcher = put(&self.home, "as_function.py", AS_FUNCTION)?;
        self.arguments.insert(2, launcher.display().to_string());
        Ok(())
    }

    /// Runs the program once on `input`, until its real time ends; input that it does not read is lost.
    pub fn run(&self, judge: &Judge, input: &[u8], limits: Limits, real: RealTimeEnd) -> Result<Ended> {
        let folder = judge.sandbox.folder()?;
        let program = match &self.start {
            StartOfRun::InEmptyFolder(program) => program.clone(),
            StartOfRun::BesideCopy(program) => {
                copy_folder(self.home.path(), folder.path())?;
                program.clone()
            }
            StartOfRun::OfCopy(file) => {
                copy_folder(self.home.path(), folder.path())?;
                folder.path().join(file)
            }
        };
        let mut running = judge.sandbox.start(Confined {
            readable: self.readable.clone(),
            stdin: StdinMode::Pipe,
            ..Confined::new(program, self.arguments.clone(), folder.path(), limits).within(real.left())
        })?;
        running.write_stdin(input)?;
        running.wait()
    }
}

fn commanded(
    judge: &Judge,
    home: WorkFolder,
    commands: &Commands,
    text: &str,
    real: RealTimeEnd,
) -> Result<CompiledCandidate> {
    put(&home, &commands.file, text)?;
    if let Some(words) = &commands.compile {
        let Command { start, arguments, readable } = command(judge, commands, words)?;
        let program = match start {
            StartOfRun::OfCopy(file) => home.path().join(file),
            StartOfRun::BesideCopy(program) | StartOfRun::InEmptyFolder(program) => program,
        };
        if let Some((verdict, why)) = compile(judge, &home, program, arguments, readable, real)? {
            return Ok(CompiledCandidate::Rejected(verdict, why));
        }
    }
    let Command { start, arguments, readable } = command(judge, commands, &commands.run)?;
    Ok(CompiledCandidate::Ready(CandidateProgram { start, arguments, readable, home }))
}

/// A command of a language, its first word found.
struct Command {
    start: StartOfRun,
    arguments: Vec<String>,
    readable: Vec<PathBuf>,
}

fn command(judge: &Judge, commands: &Commands, words: &[String]) -> Result<Command> {
    let (first, arguments) =
        words.split_first().ok_or_else(|| Error::value("a language's command", "a word", "none"))?;
    let mut readable = commands.readable.clone();
    let start = match first.as_str() {
        path if path.contains('/') => StartOfRun::OfCopy(PathBuf::from(path.strip_prefix("./").unwrap_or(path))),
        "python" | "python3" => {
            let python = judge.interpreter()?;
            readable.extend(python.readable.iter().cloned());
            StartOfRun::BesideCopy(python.path.clone())
        }
        name => {
            let tool = judge.tools.find(name)?;
            readable.extend(tool.readable);
            StartOfRun::BesideCopy(tool.path)
        }
    };
    Ok(Command { start, arguments: arguments.to_vec(), readable })
}

/// Copies files, folders and links. No process of a candidate may run in either folder.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    let mut folders = vec![(from.to_path_buf(), to.to_path_buf())];
    while let Some((from, to)) = folders.pop() {
        for entry in fs::read_dir(&from).map_err(Error::io(&from, "list"))? {
            let entry = entry.map_err(Error::io(&from, "list"))?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type().map_err(Error::io(&source, "read"))?;
            let copied = match () {
                () if kind.is_dir() => {
                    folders.push((source.clone(), target.clone()));
                    fs::create_dir(&target)
                }
                () if kind.is_file() => fs::copy(&source, &target).map(drop),
                () if kind.is_symlink() => fs::read_link(&source).and_then(|link| symlink(link, &target)),
                // Pipes and sockets.
                () => Ok(()),
            };
            copied.map_err(Error::io(&source, "copy"))?;
        }
    }
    Ok(())
}

/// Compiles in the candidate's folder, confined: the program's text decides which files a compiler reads. Returns the
/// verdict and the compiler's first error, if any.
fn compile(
    judge: &Judge,
    home: &WorkFolder,
    program: PathBuf,
    arguments: Vec<String>,
    readable: Vec<PathBuf>,
    real: RealTimeEnd,
) -> Result<Option<(Verdict, String)>> {
    let confined = Confined::new(program, arguments, home.path(), COMPILING).within(real.left());
    let running = judge.sandbox.start(Confined { readable, keep_files: true, ..confined })?;
    let ended = running.wait()?;
    let complaint = first_error(&ended.stderr).or_else(|| first_error(&ended.stdout));
    if ended.how == How::Exit(0) {
        make_executable(home)?;
    }
    let why = match ended.how {
        How::Exit(0) => return Ok(None),
        How::Limit(Limit::RealTime) if real.is_over() => return Ok(Some((Verdict::TimeLimit, real.passed()))),
        How::Limit(limit) => format!("compiling: {}", limit.passed(&COMPILING)),
        How::Sandbox(call) => format!("compiling called {call}"),
        how => complaint.unwrap_or_else(|| format!("the compiler failed: {how:?}")),
    };
    Ok(Some((Verdict::CompileError, why)))
}

/// If candidates run as the caller's user, the linker may not change a file's mode, and its output is not executable.
fn make_executable(home: &WorkFolder) -> Result<()> {
    for entry in fs::read_dir(home.path()).map_err(Error::io(home.path(), "list"))? {
        let entry = entry.map_err(Error::io(home.path(), "list"))?;
        // Links are skipped: they could lead out of the folder.
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let path = entry.path();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).map_err(Error::io(&path, "make executable"))?;
        }
    }
    Ok(())
}

fn put(home: &WorkFolder, name: &str, text: &str) -> Result<PathBuf> {
    let path: PathBuf = Path::new(home.path()).join(name);
    fs::write(&path, text).map_err(Error::io(&path, "write"))?;
    Ok(path)
}
