//! The judge as Python holds it: runs candidate programs against a problem's tests, each in a sandbox. Its helper
//! processes are the `offshoot` command of this package, never the Python interpreter.

use std::path::PathBuf;

use offshoot::Error;
use offshoot::judge::{self, Isolation, JudgeSetup, Language, problem_of_row};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::errors::OrRaise;
use crate::process::{self, OfProcess};

/// A judge; threads may share it.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Judge(OfProcess<judge::Judge>);

#[pymethods]
impl Judge {
    /// `helper`: the `offshoot` command. `python`: the interpreter of candidates. `withheld`: files that candidates
    /// must not read. `sandboxed`: whether candidates that cannot be isolated are refused.
    #[new]
    #[pyo3(signature = (helper, *, python=None, withheld=Vec::new(), sandboxed=true, all_tests=false))]
    fn new(
        py: Python<'_>,
        helper: PathBuf,
        python: Option<PathBuf>,
        withheld: Vec<PathBuf>,
        sandboxed: bool,
        all_tests: bool,
    ) -> PyResult<Judge> {
        process::check()?;
        let isolation = if sandboxed { Isolation::Required } else { Isolation::Unsafe };
        let setup = JudgeSetup { isolation, python, helper: Some(helper) };
        let judge = py.detach(|| judge::Judge::open(&setup, &withheld)).or_raise()?;
        Ok(Judge(OfProcess::new(if all_tests { judge.with_all_tests() } else { judge })))
    }

    /// Judges the programs in some texts on one problem, several at once: a verdict each, as JSON. `problem`: JSON of a
    /// row of a benchmark's file. `language`: python, cpp or commands.
    fn judge(&self, py: Python<'_>, problem: &str, programs: Vec<String>, language: &str) -> PyResult<Vec<String>> {
        let judge = self.0.get()?;
        let problem = problem_of_row("problem", problem).or_raise()?;
        let language = Language::parse("language", language).or_raise()?;
        let judged = |program: &String| {
            let judgement = judge.judge(&problem, &language, program)?;
            let not_json = |error: serde_json::Error| Error::Internal(format!("a verdict is not JSON: {error}"));
            serde_json::to_string(&judgement).map_err(not_json)
        };
        py.detach(|| programs.par_iter().map(judged).collect::<Result<_, _>>()).or_raise()
    }
}
