//! The key `scorer` of several methods: how a complete or partial solution is scored. The search does the scoring.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::items::Item;
use crate::eval::task::prompt::{PromptTemplate, TaskPrompt};

/// Scores lie in [0, 1]; those of `Verdicts` in the range of the words' values.
#[derive(Clone, Debug, PartialEq)]
pub enum ThoughtScoring {
    /// The model's probability per token: the exponential of the mean log-probability.
    MeanLogprob,
    /// The task's grader: 1 or 0.
    Grade,
    /// The model's answer to a question about the solution.
    Verdicts(Verdicts),
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
    /// `"mean_logprob"`, `"grade"`, or `{"prompt": …, "words": {" yes": 1, " no": 0}}`; `at` is its dotted path.
    pub(crate) fn read(source: &TaskSource, at: &str, value: Option<&Value>) -> Result<ThoughtScoring> {
        match value {
            Some(Value::String(name)) if name == "mean_logprob" => Ok(ThoughtScoring::MeanLogprob),
            Some(Value::String(name)) if name == "grade" => Ok(ThoughtScoring::Grade),
            Some(object @ Value::Object(_)) => Ok(ThoughtScoring::Verdicts(Verdicts::read(source, at, object)?)),
            other => {
                let expected = "`mean_logprob`, `grade`, or an object with `prompt` and `words`";
                Err(source.wrong(at, expected, other))
            }
        }
    }
}

impl Verdicts {
    pub(crate) fn read(source: &TaskSource, at: &str, value: &Value) -> Result<Verdicts> {
        let section = TaskSection::open(source, at.to_string(), value, &["prompt", "words"])?;
        let prompt = PromptTemplate::read(source, &section.field("prompt"), section.get("prompt"))?;
        if !prompt.takes_in(THOUGHTS) {
            let expected = "a prompt that contains `{{thoughts}}`, the solution to score";
            return Err(Error::field(&source.path, section.field("prompt"), expected, "one without it"));
        }
        let wrong = || section.wrong("words", "at least two words with their values, {\" yes\": 1, \" no\": 0}");
        let words =
            section.get("words").and_then(Value::as_object).filter(|words| words.len() > 1).ok_or_else(wrong)?;
        let worth =
            |(word, worth): (&String, &Value)| Some((word.clone(), worth.as_f64()?)).filter(|_| !word.is_empty());
        let words = words.iter().map(|pair| worth(pair).ok_or_else(wrong)).collect::<Result<_>>()?;
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
