//! Reports the state of the judge on this machine: the layers of its sandbox, what they hide, and the programs that run
//! candidates.

use std::fmt::Display;
use std::path::PathBuf;

use super::problems::Problems;
use crate::benchmark::BenchmarkFormat;
use crate::task::candidate::LimitChanges;
use offshoot_core::error::Result;
use offshoot_core::out;
use offshoot_judge::{Isolation, Judge, JudgeSetup, language};

/// The options of `offshoot judge --doctor`.
#[derive(Clone, Debug)]
pub struct DoctorOptions {
    pub judge: JudgeSetup,
    /// Problems whose tests' needs are reported too.
    pub problems: Option<PathBuf>,
    pub format: Option<BenchmarkFormat>,
}

/// Prints the layers in force, what they hide, the programs found, what tests need, and whether candidates can be
/// judged. If they cannot, it fails like `offshoot judge`.
pub fn doctor(options: &DoctorOptions) -> Result<()> {
    let DoctorOptions { judge: setup, problems, format } = options;
    let withheld = problems.as_slice();
    let judge = Judge::open(&JudgeSetup { isolation: Isolation::Unsafe, ..setup.clone() }, withheld)?;
    out::text(judge.sandbox().in_force())?;
    let line = |name: &str, found: &dyn Display| out::line(format_args!("{name:<12} {found}"));
    match &judge.lower_limits()[..] {
        [] => line("limits", &"no limit of this process is lower than a candidate's")?,
        lower => {
            lower.iter().try_for_each(|lower| line("limits", &format_args!("candidates have less here: {lower}")))?
        }
    }
    match judge.hidden() {
        [] => line("hidden", &"nothing found that holds answers")?,
        hidden => hidden.iter().try_for_each(|path| line("hidden", &path.display()))?,
    }
    match judge.interpreter() {
        Ok(python) => line("python", &format_args!("{} at {}", python.version, python.path.display()))?,
        Err(error) => line("python", &format_args!("none: {error}"))?,
    }
    match judge.starts_python_for() {
        Ok(None) => line("python", &"loaded once; each candidate of a function is a fork of it")?,
        Ok(Some(why)) => line("python", &format_args!("started for each candidate: {why}"))?,
        Err(_) => {}
    }
    match judge.compiler() {
        Ok(compiler) => line("c++", &format_args!("{} at {}", compiler.version, compiler.path.display()))?,
        Err(error) => line("c++", &format_args!("none: {error}"))?,
    }
    for (name, commands, program) in language::EXAMPLES {
        let found = match judge.try_language(commands, program)? {
            None => "not found".to_string(),
            Some(judgement) if judgement.accepted() => "works".to_string(),
            Some(judgement) => format!("does not work here: {}", judgement.message.unwrap_or_default()),
        };
        line(&name.to_lowercase(), &format_args!("{found}: {commands}"))?;
    }
    if let Some(path) = problems {
        let problems = Problems::read(path, *format, LimitChanges::default(), false)?;
        let lacking = judge.lacking(&mut problems.tests())?;
        if lacking.is_empty() {
            let has_all = "the interpreter has all that the tests of";
            line("modules", &format_args!("{has_all} {} import", path.display()))?;
        }
        lacking.iter().try_for_each(|module| line("modules", module))?;
    }
    drop(judge);
    Judge::open(setup, withheld)?.interpreter()?;
    out::line("candidates can be judged here")
}
