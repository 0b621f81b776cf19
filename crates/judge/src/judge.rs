//! What a judge works with: its settings, the sandbox, and the programs of this machine, each located on first use. The
//! crate's root judges with it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::answers;
use super::limits::CandidateTime;
use super::problem::{FileForm, Limits};
use super::python::Python;
use super::sandbox::{Isolation, Sandbox, SandboxSetup};
use super::toolchain::{CppCompiler, Interpreter, Tools};
use offshoot_core::error::Result;

/// How a judge is set up; by default isolation is required.
#[derive(Clone, Debug, Default)]
pub struct JudgeSetup {
    /// Whether candidates may run where files and network cannot be isolated.
    pub isolation: Isolation,
    /// The interpreter of candidates and tests, or the folder of a virtual environment; `None`: see
    /// [`Interpreter::find`].
    pub python: Option<PathBuf>,
    /// The program that becomes the sandbox's helper processes, which must begin with
    /// [`enter_if_helper`](crate::sandbox::enter_if_helper); `None`: this one.
    pub helper: Option<PathBuf>,
}

/// Judges candidates; shared by the judging threads.
pub struct Judge {
    hidden: Vec<PathBuf>,
    chosen_python: Option<PathBuf>,
    /// Located on first use.
    interpreter: OnceLock<Interpreter>,
    compiler: OnceLock<CppCompiler>,
    pub(super) tools: Tools,
    python: OnceLock<Python>,
    pub(super) all_tests: bool,
    pub(super) time: CandidateTime,
    forks: bool,
    told_limits: Mutex<ToldLimits>,
    /// Dropped last: its server ends when none of its programs runs.
    pub(super) sandbox: Sandbox,
}

impl Judge {
    /// Probes the sandbox, which hides the files `withheld` (the problems, the run) and the places where this machine
    /// has answers of benchmarks. Fails if `setup` requires isolation and files and network cannot be isolated, or if
    /// the interpreter that it names does not work.
    pub fn open(setup: &JudgeSetup, withheld: &[PathBuf]) -> Result<Judge> {
        let mut interpreter = match Interpreter::find(setup.python.as_deref()) {
            Err(error) if setup.python.is_some() => return Err(error),
            found => found.ok(),
        };
        let places = answers::places(interpreter.as_ref());
        let hidden = answers::existing(places.into_iter().chain(withheld.iter().cloned()));
        // What is hidden is not shown as one of the folders where the interpreter looks for modules.
        if let Some(interpreter) = &mut interpreter {
            interpreter.readable.retain(|path| {
                let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                !hidden.iter().any(|hidden| real.starts_with(hidden))
            });
        }
        let sandbox =
            SandboxSetup { hidden: hidden.clone(), helper: setup.helper.clone(), ..SandboxSetup::new(setup.isolation) };
        let judge = Judge { hidden, chosen_python: setup.python.clone(), ..Judge::over(Sandbox::set_up(&sandbox)?) };
        Ok(match interpreter {
            Some(interpreter) => Judge { interpreter: OnceLock::from(interpreter), ..judge },
            None => judge,
        })
    }

    /// A judge that uses an existing sandbox.
    pub fn over(sandbox: Sandbox) -> Judge {
        Judge {
            sandbox,
            hidden: Vec::new(),
            chosen_python: None,
            interpreter: OnceLock::new(),
            compiler: OnceLock::new(),
            tools: Tools::default(),
            python: OnceLock::new(),
            all_tests: false,
            time: CandidateTime::USUAL,
            forks: true,
            told_limits: Mutex::default(),
        }
    }

    /// The sandbox that it uses.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The files and folders of this machine that may hold answers and that no candidate can read.
    pub fn hidden(&self) -> &[PathBuf] {
        &self.hidden
    }

    /// Continues after a failed test.
    pub fn with_all_tests(self) -> Judge {
        Judge { all_tests: true, ..self }
    }

    /// Ends each candidate after so much real time, instead of what its limits give it (ten minutes at least).
    pub fn within(self, time: Duration) -> Judge {
        Judge { time: CandidateTime::exactly(time), ..self }
    }

    /// Starts an interpreter for each Python candidate, even if candidates could be forked from one that is loaded
    /// once.
    pub fn without_forks(self) -> Judge {
        Judge { forks: false, ..self }
    }

    /// The Python interpreter, located on first use.
    pub fn interpreter(&self) -> Result<&Interpreter> {
        found(&self.interpreter, || Interpreter::find(self.chosen_python.as_deref()))
    }

    /// The judge of Python functions, set up on first use.
    pub(super) fn python(&self) -> Result<&Python> {
        found(&self.python, || {
            let mut interpreter = self.interpreter()?.clone();
            interpreter.library.take_if(|_| !self.forks);
            Python::set_up(interpreter, &self.sandbox)
        })
    }

    /// Why an interpreter is started for each Python candidate, if candidates are not forked from one that is loaded
    /// once. Fails if there is no interpreter that works.
    pub fn starts_python_for(&self) -> Result<Option<&str>> {
        Ok(self.python()?.started_for())
    }

    /// The limits of this process (`ulimit`) that leave candidates less than usual, each in words.
    pub fn lower_limits(&self) -> Vec<String> {
        self.sandbox.lower_than(&Limits::of(FileForm::Programs))
    }

    /// Warns of limits of this process that leave candidates less than `limits`, of each once.
    pub(super) fn tell_lower_limits(&self, limits: &Limits) {
        let mut told = self.told_limits.lock().unwrap_or_else(PoisonError::into_inner);
        for lower in told.new_lines(limits, |limits| self.sandbox.lower_than(limits)) {
            log::warn!("this process leaves candidates less than their limits: {lower}; verdicts may differ");
        }
    }

    /// The C++ compiler, located on first use.
    pub fn compiler(&self) -> Result<&CppCompiler> {
        found(&self.compiler, CppCompiler::find)
    }
}

/// What has been told of the limits of this process that leave candidates less than their own.
#[derive(Default)]
struct ToldLimits {
    /// The limits of candidates that have been compared with this process's.
    compared: HashSet<Limits>,
    lines: HashSet<String>,
}

impl ToldLimits {
    /// What `lower_than` says of these limits and has not been told before.
    fn new_lines(&mut self, limits: &Limits, lower_than: impl FnOnce(&Limits) -> Vec<String>) -> Vec<String> {
        if !self.compared.insert(*limits) {
            return Vec::new();
        }
        lower_than(limits).into_iter().filter(|line| self.lines.insert(line.clone())).collect()
    }
}

/// Initialises the cell once; threads that race get the same value.
fn found<T>(cell: &OnceLock<T>, find: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(found) => Ok(found),
        None => find().map(|found| cell.get_or_init(|| found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_problem_with_larger_limits_is_warned_of_too() {
        let mut told = ToldLimits::default();
        let mut asked = 0;
        let mut new_lines = |memory_bytes: u64, cpu: u64| {
            let limits = Limits { memory_bytes, cpu: Duration::from_secs(cpu), ..Limits::of(FileForm::Programs) };
            told.new_lines(&limits, |limits| {
                asked += 1;
                (limits.memory_bytes > 4).then(|| format!("memory: {}", limits.memory_bytes)).into_iter().collect()
            })
        };
        assert!(new_lines(4, 1).is_empty());
        assert_eq!(new_lines(8, 1), ["memory: 8"]);
        assert!(new_lines(8, 1).is_empty() && new_lines(8, 2).is_empty());
        assert_eq!(new_lines(9, 1), ["memory: 9"]);
        assert_eq!(asked, 4, "the same limits are compared once");
    }
}
