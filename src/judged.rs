//! The judge as an assessor of searches.

use offshoot_judge::problem::Problem;
use offshoot_judge::{Judge, Judgement, Language};
use offshoot_search::{Assess, Assessment, AssessmentRequest};

use offshoot_core::{Error, Result};

/// Assesses a search's candidates as programs ([`SearchJob::assessed_by`](crate::search::SearchJob::assessed_by)): one
/// is right if it passes the problem's tests, and [`Assessment::detail`] is the judgement as JSON. The search's thread
/// judges one program at a time, while other candidates are sampled.
pub struct JudgedBy<'a> {
    judge: &'a Judge,
    problem: &'a Problem,
    language: &'a Language,
}

impl<'a> JudgedBy<'a> {
    /// Judges solutions of `problem`, in this language.
    pub fn new(judge: &'a Judge, problem: &'a Problem, language: &'a Language) -> Self {
        JudgedBy { judge, problem, language }
    }

    fn assessment(&self, text: &str) -> Result<Assessment> {
        let judgement: Judgement = self.judge.judge(self.problem, self.language, text)?;
        let detail = serde_json::to_value(&judgement)
            .map_err(|error| Error::Internal(format!("a judgement is not JSON: {error}")))?;
        Ok(Assessment { correct: Some(judgement.accepted()), detail: Some(detail), ..Assessment::default() })
    }
}

impl Assess for JudgedBy<'_> {
    fn grades(&self) -> bool {
        true
    }

    fn assess(&self, text: &str, request: &mut dyn FnMut() -> AssessmentRequest) -> Option<Assessment> {
        match self.assessment(text) {
            Ok(assessment) => Some(assessment),
            // The error reaches the search as the reply.
            Err(error) => {
                request().reply(Err(error));
                None
            }
        }
    }
}

/// The problem in a row of a benchmark's file (HumanEval, EvalPlus, MBPP, APPS, LiveCodeBench), recognised by its
/// fields. `row`: an object in JSON; `id`: its name in errors.
///
/// # Errors
///
/// Not JSON, no row of these benchmarks, or one with a wrong field.
#[cfg(feature = "eval")]
pub fn problem_of_row(id: &str, row: &str) -> Result<Problem> {
    let fields = serde_json::from_str(row).map_err(|error| Error::value(id, "an object in JSON", error.to_string()))?;
    offshoot_eval::benchmark::problem(None, id, &fields)
}
