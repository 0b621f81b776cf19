//! The grade of a sample by a judge, which is a model, as results have it: a score and what the judge answered, or why
//! there is none.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use offshoot_engine::FinishReason;
use offshoot_search::Sample;

/// What a judge made of a sample: its [`Sample::detail`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GradeByJudge {
    /// It is graded.
    Graded {
        /// From 0 to 1.
        score: f64,
        /// What the judge answered, or the probabilities of the words.
        verdict: Value,
    },
    /// It is not.
    Ungraded {
        /// Why.
        error: String,
    },
}

/// Why a sample that a judge was to grade has no grade; `None`: it has one, or no judge was asked.
pub fn ungraded(sample: &Sample) -> Option<&str> {
    sample.detail.as_ref()?.get("error")?.as_str()
}

/// The score by which a judge graded a sample; `None`: it has none.
pub fn score_of_grade(sample: &Sample) -> Option<f64> {
    sample.detail.as_ref()?.get("score")?.as_f64()
}

/// Whether a judge was to grade a sample and could not.
pub fn is_ungraded(sample: &Sample) -> bool {
    ungraded(sample).is_some()
}

/// Whether a sample of a task that a judge grades waits for its grade, or could not be graded.
pub fn lacks_grade(sample: &Sample) -> bool {
    // What a sample that lost confidence would have answered is not known.
    is_ungraded(sample) || (sample.detail.is_none() && sample.finish != FinishReason::LowConfidence)
}
