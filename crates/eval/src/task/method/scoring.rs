//! The key `scorer` of several methods: how a complete or partial solution is scored. The search does the scoring.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::source::Place;
use crate::task::verdict::{TaskVerdict, VerdictKey, VerdictSettings};
use offshoot_core::error::Result;
use offshoot_search::settings::Aggregate;

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend(
    "x-expected" = "`mean_logprob`, `grade`, `reward`, or an object with `prompt` and `words` or `score`"
))]
pub(crate) enum ScorerSettings {
    Named(ScorerName),
    Verdict(Box<VerdictSettings>),
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScorerName {
    /// The model's probability per token.
    MeanLogprob,
    /// The task's grader: 1 or 0.
    Grade,
    /// The task's `scorer`.
    Reward,
}

/// Scores lie in [0, 1]; those of `Verdict` by the run's own model in the range of the words' values, those of `Reward`
/// wherever the scorer has them.
#[derive(Clone, Debug, PartialEq)]
pub enum ThoughtScoring {
    /// The model's probability per token: the exponential of the mean log-probability.
    MeanLogprob,
    /// The task's grader: 1 or 0.
    Grade,
    /// A judge's answer to a question about the solution.
    Verdict(TaskVerdict),
    /// The scores of the task's scorer, on its own scale.
    Reward,
}

/// What scores whole samples, where a score chooses among them.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleScorer {
    /// A judge's answer to questions about the samples.
    Verdict(TaskVerdict),
    /// The task's scorer.
    Reward(RewardScoring),
}

/// How the task's scorer scores whole samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewardScoring {
    /// Ends a step.
    pub delimiter: String,
    /// How the scores of a sample's steps become its own; `None`: as the scorer's form says.
    pub aggregate: Option<Aggregate>,
}

impl RewardScoring {
    /// `None`: a step is a line.
    pub(crate) fn new(delimiter: Option<String>, aggregate: Option<Aggregate>) -> RewardScoring {
        RewardScoring { delimiter: delimiter.unwrap_or_else(|| "\n".to_owned()), aggregate }
    }
}

impl ThoughtScoring {
    /// `place`: of the key `scorer`; `key`: which one that is.
    pub(crate) fn new(place: &Place<'_>, settings: ScorerSettings, key: VerdictKey) -> Result<ThoughtScoring> {
        match settings {
            ScorerSettings::Named(ScorerName::MeanLogprob) => Ok(ThoughtScoring::MeanLogprob),
            ScorerSettings::Named(ScorerName::Grade) => Ok(ThoughtScoring::Grade),
            ScorerSettings::Named(ScorerName::Reward) => Ok(ThoughtScoring::Reward),
            ScorerSettings::Verdict(settings) => TaskVerdict::new(place, *settings, key).map(ThoughtScoring::Verdict),
        }
    }
}
