//! The key `scorer` of several methods: how a complete or partial solution is scored. The search does the scoring.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::source::Place;
use crate::source::values::Pairs;
use crate::task::items::Item;
use crate::task::prompt::{PromptSettings, PromptTemplate, TaskPrompt};
use offshoot_core::error::{Error, Result};
use offshoot_search::settings::Aggregate;

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "`mean_logprob`, `grade`, `reward`, or an object with `prompt` and `words`"))]
pub(crate) enum ScorerSettings {
    Named(ScorerName),
    Verdicts(VerdictSettings),
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

/// A question to the model about a solution, and the words that may answer it.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct VerdictSettings {
    /// The question, over the item's fields and `thoughts`, the solution.
    prompt: PromptSettings,
    /// The answers as they continue the prompt, with their values: {" yes": 1, " no": 0}. The score is the mean of the
    /// values, weighted by the words' probabilities.
    #[schemars(extend("x-expected" = "at least two words with their values, {\" yes\": 1, \" no\": 0}"))]
    words: Pairs<f64>,
}

/// Scores lie in [0, 1]; those of `Verdicts` in the range of the words' values, those of `Reward` wherever the scorer
/// has them.
#[derive(Clone, Debug, PartialEq)]
pub enum ThoughtScoring {
    /// The model's probability per token: the exponential of the mean log-probability.
    MeanLogprob,
    /// The task's grader: 1 or 0.
    Grade,
    /// The model's answer to a question about the solution.
    Verdicts(Verdicts),
    /// The scores of the task's scorer, on its own scale.
    Reward,
}

/// What scores whole samples, where a score chooses among them.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleScorer {
    /// The model's answer to a question about the sample.
    Verdicts(Verdicts),
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

/// A prompt about a solution, and the words that may answer it. The score is the mean of the words' values, each
/// weighted by its probability as the continuation of the prompt, normalised over these words.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdicts {
    prompt: PromptTemplate,
    /// The answers, as direct continuations of the prompt, with their values.
    pub words: Vec<(String, f64)>,
}

impl ThoughtScoring {
    /// `place`: of the key `scorer`.
    pub(crate) fn new(place: &Place<'_>, settings: ScorerSettings) -> Result<ThoughtScoring> {
        match settings {
            ScorerSettings::Named(ScorerName::MeanLogprob) => Ok(ThoughtScoring::MeanLogprob),
            ScorerSettings::Named(ScorerName::Grade) => Ok(ThoughtScoring::Grade),
            ScorerSettings::Named(ScorerName::Reward) => Ok(ThoughtScoring::Reward),
            ScorerSettings::Verdicts(settings) => Verdicts::new(place, settings).map(ThoughtScoring::Verdicts),
        }
    }

    /// Scoring whose values are probabilities. `place`: of the key `scorer`.
    pub(crate) fn of_chances(place: &Place<'_>, settings: ScorerSettings) -> Result<ThoughtScoring> {
        let scoring = ThoughtScoring::new(place, settings)?;
        match &scoring {
            ThoughtScoring::Verdicts(Verdicts { words, .. })
                if words.iter().any(|(_, value)| !(0.0..=1.0).contains(value)) =>
            {
                Err(place.key("words").wrong("words with values from 0 to 1, by whose mean particles are drawn"))
            }
            _ => Ok(scoring),
        }
    }
}

impl Verdicts {
    pub(crate) fn new(place: &Place<'_>, settings: VerdictSettings) -> Result<Verdicts> {
        let prompt = PromptTemplate::new(&place.key("prompt"), settings.prompt)?;
        if !prompt.takes_in(THOUGHTS) {
            let expected = "a prompt that contains `{{thoughts}}`, the solution to score";
            return Err(place.key("prompt").wrong_as(expected, "one without it"));
        }
        let words = settings.words.0;
        if words.len() < 2 || words.iter().any(|(word, _)| word.is_empty()) {
            let expected = "at least two words with their values, {\" yes\": 1, \" no\": 0}";
            return Err(place.key("words").wrong(expected));
        }
        Ok(Verdicts { prompt, words })
    }

    /// The question about `thoughts`, which the prompt's templates can use in addition to the item's fields.
    pub fn question(&self, item: &Item, thoughts: &str) -> Result<TaskPrompt> {
        self.prompt.render(&with(item, thoughts)?)
    }

    pub(crate) fn prompt_files(&self, item: &Item) -> Result<Vec<PathBuf>> {
        self.prompt.files(&with(item, "")?)
    }
}

/// The field of the solution in a scorer's prompt.
const THOUGHTS: &str = "thoughts";

fn with(item: &Item, thoughts: &str) -> Result<Item> {
    if item.fields.contains_key(THOUGHTS) {
        let expected = "items without a field `thoughts`, which is the solution in a scorer's prompt";
        return Err(Error::value(format!("item `{}`", item.id), expected, "one"));
    }
    let mut item = item.clone();
    item.fields.insert(THOUGHTS.to_string(), json!(thoughts));
    Ok(item)
}
