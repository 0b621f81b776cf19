//! The task file's key `scorer`: the model that scores solutions where the method asks for `reward`, what it is told of
//! an item, and what becomes of solutions that it cannot score. The method says what is scored.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::source::Place;
use crate::source::values::TaskPath;
use crate::task::Task;
use crate::task::items::Item;
use crate::task::prompt::TaskPrompt;
use crate::task::template::Template;
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_launch::{ScorerOptions, same_folder};
use offshoot_score::FormChoice;
use offshoot_search::OnScorerError;
use offshoot_text::Message;

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "a path, or an object with `model`"))]
pub(crate) enum ScorerModelSettings {
    Model(TaskPath),
    Keys(Box<ScorerKeys>),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ScorerKeys {
    /// The folder of the scorer, in Hugging Face layout.
    model: Option<TaskPath>,
    /// How it reads a solution and what its numbers mean: the name of a form, or a form (default: the folder's
    /// scorer.json, or else what the model's class says).
    form: Option<ScoreFormSettings>,
    /// A template: the question, as the scorer is told it (default: the last level of the prompt, or the chat).
    question: Option<String>,
    /// What becomes of a solution that it cannot score.
    #[serde(default)]
    on_error: OnScorerError,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline, extend("x-expected" = "the name of a form, or an object that is a form"))]
enum ScoreFormSettings {
    Named(String),
    Own(Map<String, Value>),
}

/// The scorer of a task. By default it has no model, and the rest as the task file has it by default.
#[derive(Debug, Default)]
pub struct TaskScorer {
    /// Its folder.
    pub model: Option<PathBuf>,
    /// Its form; `None`: the folder's.
    pub form: Option<FormChoice>,
    /// What becomes of a solution that it cannot score.
    pub on_error: OnScorerError,
    question: Option<Template>,
}

impl Task {
    /// The scorer that a run of the task loads beside the model; `None`: the method asks for none, or nothing names
    /// one. `asked`: the one that the user names, in place of the task's.
    pub fn scorer_options(&self, asked: Option<&ScorerOptions>) -> Option<ScorerOptions> {
        self.method.reward_key()?;
        self.scorer.options(asked)
    }
}

impl TaskScorer {
    /// The scorer to open; `None`: nothing names one. `asked`: the one that the user names, in place of the task's.
    pub fn options(&self, asked: Option<&ScorerOptions>) -> Option<ScorerOptions> {
        let of_task = || self.model.as_ref().map(ScorerOptions::new);
        let options = asked.cloned().or_else(of_task)?;
        // The task's form is that of the folder that the task names.
        let is_the_tasks = self.model.as_ref().is_none_or(|model| same_folder(model, &options.path));
        let of_task = || self.form.clone().filter(|_| is_the_tasks);
        Some(ScorerOptions { form: options.form.or_else(of_task), ..options })
    }

    /// `place`: of the key `scorer`.
    pub(crate) fn new(place: &Place<'_>, settings: ScorerModelSettings) -> Result<TaskScorer> {
        let keys = match settings {
            ScorerModelSettings::Model(model) => {
                return Ok(TaskScorer { model: Some(place.source.resolve(&model.0)), ..TaskScorer::default() });
            }
            ScorerModelSettings::Keys(keys) => *keys,
        };
        let form = keys.form.map(|form| {
            let form = match form {
                ScoreFormSettings::Named(name) => Value::String(name),
                ScoreFormSettings::Own(form) => Value::Object(form),
            };
            let place = place.key("form");
            let found = json::cut_json(&form, 60);
            let form = FormChoice::deserialize(form);
            let form = form.map_err(|error| place.wrong_as(format!("a form of a scorer ({error})"), found))?;
            // A name without a form is told here, with its place.
            form.form().map_err(|error| match error {
                Error::Value { expected, found, .. } => place.wrong_as(expected, found),
                other => other,
            })?;
            Ok(form)
        });
        Ok(TaskScorer {
            model: keys.model.map(|model| place.source.resolve(&model.0)),
            form: form.transpose()?,
            on_error: keys.on_error,
            question: keys.question.map(|text| Template::new(&place.key("question"), text)).transpose()?,
        })
    }

    /// What the scorer is told of an item, whose prompt is `prompt`.
    pub fn question(&self, item: &Item, prompt: TaskPrompt) -> Result<Vec<Message>> {
        match (&self.question, prompt) {
            (Some(template), _) => Ok(vec![Message::user(template.render(&item.id, &item.fields)?)]),
            (None, TaskPrompt::Levels(levels)) => Ok(vec![Message::user(levels.last().cloned().unwrap_or_default())]),
            (None, TaskPrompt::Chat { messages, .. }) => Ok(messages),
        }
    }
}
