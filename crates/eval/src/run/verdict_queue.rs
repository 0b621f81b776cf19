//! Grades samples by a judge, which is a model, while other samples decode: each text is a question, and its grade
//! comes with the answer. What the judge is asked is the task's to say.

use serde_json::{Map, json};

use crate::judged::GradeByJudge;
use crate::task::SAMPLE_ANSWER;
use offshoot_core::error::Result;
use offshoot_core::json;
use offshoot_search::{Assess, Assessment, AssessmentRequest, OnScorerError};
use offshoot_text::reasoning::answer_part;
use offshoot_verdict::{ItemVerdicts, TextVerdict};

/// Asks a judge about the texts of one item.
pub struct VerdictQueue<'a> {
    /// Finds the answers of texts.
    pub grade: &'a dyn Fn(&str) -> Assessment,
    pub verdicts: ItemVerdicts,
    /// The least score of a right text.
    pub right_from: f64,
    /// What becomes of a text that the judge cannot grade.
    pub on_error: OnScorerError,
    /// Whether texts are recorded before they are graded.
    pub records_first: bool,
}

impl Assess for VerdictQueue<'_> {
    fn grades(&self) -> bool {
        true
    }

    fn assess(&self, text: &str, request: &mut dyn FnMut() -> AssessmentRequest) -> Option<Assessment> {
        let (graded, request) = ((self.grade)(text), request());
        let (right_from, on_error) = (self.right_from, self.on_error);
        let answer = Map::from_iter([(SAMPLE_ANSWER.to_owned(), json!(graded.answer))]);
        let then = move |verdict| request.reply(with(verdict, graded, right_from, on_error));
        self.verdicts.of_one(&answer_part(text), answer, Box::new(then));
        None
    }

    fn before_reply(&self, text: &str) -> Option<Assessment> {
        self.records_first.then(|| (self.grade)(text))
    }
}

/// The assessment by a judge's verdict; the grader has found the answer.
fn with(
    verdict: Result<TextVerdict>,
    graded: Assessment,
    right_from: f64,
    on_error: OnScorerError,
) -> Result<Assessment> {
    let (correct, detail) = match verdict {
        Ok(TextVerdict { score, detail: verdict, .. }) => {
            (Some(score >= right_from), GradeByJudge::Graded { score, verdict })
        }
        Err(error) if on_error == OnScorerError::Fail || error.ends_all() => return Err(error),
        Err(error) => (None, GradeByJudge::Ungraded { error: error.to_string() }),
    };
    Ok(Assessment { correct, detail: Some(json::value("a judge's grade", &detail)?), ..graded })
}
