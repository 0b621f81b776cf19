//! Reports the state of the judge on this machine: the layers of its sandbox, what they hide, and the programs that run
//! candidates.

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
    match judge.hidden() {
        [] => out::line(format_args!("{:<12} nothing found that holds answers", "hidden"))?,
        hidden => hidden.iter().try_for_each(|path| out::line(format_args!("{:<12} {}", "hidden", path.display())))?,
    }
    match judge.interpreter() {
        Ok(python) => out::line(format_args!("{:<12} {} at {}", "python", python.version, python.path.display()))?,
        Err(error) => out::line(format_args!("{:<12} none: {error}", "python"))?,
    }
    match judge.starts_python_for() {
        Ok(None) => {
            out::line(format_args!("{:<12} loaded once; each candidate of a function is a fork of it", "python"))?
        }
        Ok(Some(why)) => out::line(format_args!("{:<12} started for each candidate: {why}", "python"))?,
        Err(_) => {}
    }
    match judge.compiler() {
        Ok(compiler) => out::line(format_args!("{:<12} {} at {}", "c++", compiler.version, compiler.path.display()))?,
        Err(error) => out::line(format_args!("{:<12} none: {error}", "c++"))?,
    }
    for (name, commands, program) in language::EXAMPLES {
        let found = match judge.try_language(commands, program)? {
            None => "not found".to_string(),
            Some(judgement) if judgement.accepted() => "works".to_string(),
            Some(judgement) => format!("does not work here: {}", judgement.message.unwrap_or_default()),
        };
        out::line(format_args!("{:<12} {found}: {commands}", name.to_lowercase()))?;
    }
    if let Some(path) = problems {
        let problems = Problems::read(path, *format, LimitChanges::default(), false)?;
        let lacking = judge.lacking(&mut problems.tests())?;
        if lacking.is_empty() {
            out::line(format_args!(
                "{:<12} the interpreter has all that the tests of {} import",
                "modules",
                path.display()
            ))?;
        }
        lacking.iter().try_for_each(|module| out::line(format_args!("{:<12} {module}", "modules")))?;
    }
    drop(judge);
    Judge::open(setup, withheld)?.interpreter()?;
    out::line("candidates can be judged here")
}
