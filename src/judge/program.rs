//! A candidate as a runnable program: its file in its own folder, compiled if its language requires it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Judge;
use super::message::first_error;
use super::sandbox::{Confined, Ended, How, Limit, StdinMode, StdoutMode, WorkFolder};
use super::toolchain::on_search_path;
use crate::error::{Error, Result};
use crate::judge::language::{Commands, Language};
use crate::judge::problem::Limits;

/// Limits of the compiler.
const COMPILING: Limits =
    Limits { cpu: Duration::from_secs(10), memory_bytes: 1 << 30, output_bytes: 1 << 20, processes: 32 };

/// A candidate that can be run, any number of times.
pub(super) struct CandidateProgram {
    home: WorkFolder,
    program: PathBuf,
    arguments: Vec<String>,
    readable: Vec<PathBuf>,
    /// Whether it runs in its own folder, as a task's commands expect, or each time in a fresh one.
    at_home: bool,
}

pub(super) enum CompiledCandidate {
    Ready(CandidateProgram),
    /// The program does not compile: the compiler's first error.
    Rejected(String),
}

impl CandidateProgram {
    pub fn prepare(judge: &Judge, language: &Language, text: &str) -> Result<CompiledCandidate> {
        let home = judge.sandbox.folder()?;
        match language {
            Language::Python => {
                let python = judge.interpreter()?;
                let file = put(&home, "main.py", text)?;
                let mut readable = python.readable.clone();
                readable.push(home.path().to_path_buf());
                Ok(CompiledCandidate::Ready(CandidateProgram {
                    program: python.path.clone(),
                    arguments: vec!["-I".to_string(), "-B".to_string(), file.display().to_string()],
                    readable,
                    at_home: false,
                    home,
                }))
            }
            Language::Cpp => {
                let compiler = judge.compiler()?;
                put(&home, "main.cpp", text)?;
                let arguments = ["-O2", "-std=c++17", "-o", "main", "main.cpp"].map(str::to_string).to_vec();
                if let Some(complaint) = compile(judge, &home, compiler.path.clone(), arguments, Vec::new())? {
                    return Ok(CompiledCandidate::Rejected(complaint));
                }
                Ok(CompiledCandidate::Ready(CandidateProgram {
                    program: home.path().join("main"),
                    arguments: Vec::new(),
                    readable: vec![home.path().to_path_buf()],
                    at_home: false,
                    home,
                }))
            }
            Language::Command(commands) => commanded(judge, home, commands, text),
        }
    }

    /// Runs the program once on `input`; input that it does not read is lost.
    pub fn run(&self, judge: &Judge, input: &[u8], limits: Limits) -> Result<Ended> {
        let fresh = if self.at_home { None } else { Some(judge.sandbox.folder()?) };
        let mut running = judge.sandbox.start(Confined {
            program: self.program.clone(),
            arguments: self.arguments.clone(),
            environment: Vec::new(),
            readable: self.readable.clone(),
            folder: fresh.as_ref().unwrap_or(&self.home).path().to_path_buf(),
            keep_files: false,
            limits,
            stdin: StdinMode::Pipe,
            stdout: StdoutMode::Capture,
            channel: false,
        })?;
        running.write_stdin(input)?;
        running.wait()
    }
}

fn commanded(judge: &Judge, home: WorkFolder, commands: &Commands, text: &str) -> Result<CompiledCandidate> {
    put(&home, &commands.file, text)?;
    if let Some(words) = &commands.compile {
        let (program, arguments) = command(&home, words)?;
        if let Some(complaint) = compile(judge, &home, program, arguments, commands.readable.clone())? {
            return Ok(CompiledCandidate::Rejected(complaint));
        }
    }
    let (program, arguments) = command(&home, &commands.run)?;
    Ok(CompiledCandidate::Ready(CandidateProgram {
        program,
        arguments,
        readable: commands.readable.clone(),
        at_home: true,
        home,
    }))
}

/// The program and the arguments of a command's words.
fn command(home: &WorkFolder, words: &[String]) -> Result<(PathBuf, Vec<String>)> {
    let (first, arguments) =
        words.split_first().ok_or_else(|| Error::value("a language's command", "a word", "none"))?;
    let program = match first.contains('/') {
        true => home.path().join(first.strip_prefix("./").unwrap_or(first)),
        false => on_search_path(first)
            .ok_or_else(|| Error::value("a language's command", "a program of the search path", first.clone()))?,
    };
    Ok((program, arguments.to_vec()))
}

/// Compiles in the candidate's folder, confined: the program's text decides which files a compiler reads. Returns the
/// compiler's first error, if any.
fn compile(
    judge: &Judge,
    home: &WorkFolder,
    program: PathBuf,
    arguments: Vec<String>,
    readable: Vec<PathBuf>,
) -> Result<Option<String>> {
    let running = judge.sandbox.start(Confined {
        program,
        arguments,
        environment: Vec::new(),
        readable,
        folder: home.path().to_path_buf(),
        keep_files: true,
        limits: COMPILING,
        stdin: StdinMode::Null,
        stdout: StdoutMode::Capture,
        channel: false,
    })?;
    let ended = running.wait()?;
    let complaint = first_error(&ended.stderr).or_else(|| first_error(&ended.stdout));
    if ended.how == How::Exit(0) {
        make_executable(home)?;
    }
    Ok(match ended.how {
        How::Exit(0) => None,
        How::Limit(Limit::Time) => Some(format!("compiling takes more than {} s", COMPILING.cpu.as_secs())),
        How::Limit(Limit::Memory) => Some(format!("compiling takes more than {} MiB", COMPILING.memory_bytes >> 20)),
        How::Limit(Limit::Output) => Some("the compiler prints more than the output limit".to_string()),
        How::Sandbox(call) => Some(format!("compiling called {call}")),
        how => Some(complaint.unwrap_or_else(|| format!("the compiler failed: {how:?}"))),
    })
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
