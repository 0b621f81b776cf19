//! The scorer of a run: the one that the command line names, or else the task. It is read and checked before any
//! weights are loaded; the engine loads it beside the model.

use std::path::Path;
use std::sync::Arc;

use super::manifest::{RecordedScores, ScorerFiles};
use super::prepare::PreparedRun;
use crate::task::{Method, RewardScoring, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::count;
use offshoot_core::out;
use offshoot_core::setting::SCORER;
use offshoot_launch::{ScorerFolder, ScorerOptions};
use offshoot_text::{AddSpecial, Message};

/// A scorer whose weights are not loaded.
pub struct RunScorer {
    pub folder: Arc<ScorerFolder>,
}

impl RunScorer {
    /// The scorer of a task's method; `None`: the method asks for none, or nothing names one, which
    /// [`check`](Self::check) refuses. `asked`: what the command line names.
    pub fn open(task: &Task, asked: Option<&ScorerOptions>) -> Result<Option<RunScorer>> {
        if task.method.reward_key().is_none() {
            if asked.is_some() {
                let method = task.method.name();
                out::aside(format_args!(
                    "note: `{method}` of the task asks for no `reward` (as its `by`, `weigh_by` or `scorer`): the \
                     scorer is not loaded"
                ));
            }
            return Ok(None);
        }
        let Some(options) = task.scorer_options(asked) else { return Ok(None) };
        let folder = Arc::new(options.open()?);
        let aggregate = task.method.reward_aggregate().unwrap_or(folder.resolved()?.aggregate());
        if !aggregate.fits(folder.resolved()?.scale()) {
            let expected =
                "another than product, or a form with the activation sigmoid: the scorer's scores are logits";
            return Err(Error::field(&task.path, key(&task.method, "aggregate"), expected, "product"));
        }
        Ok(Some(RunScorer { folder }))
    }

    /// Refuses a run whose method asks for a scorer that nothing names.
    pub fn check(task: &Task, scorer: Option<&RunScorer>) -> Result<()> {
        match (task.method.reward_key(), scorer) {
            (Some(by), None) => {
                let asks = key(&task.method, by);
                let expected =
                    format!("the folder of a scorer here or by {SCORER}, because `{asks}` asks for its scores");
                Err(Error::field(&task.path, "scorer", expected, "nothing (the key is missing)"))
            }
            _ => Ok(()),
        }
    }

    /// For the manifest of a run of `task`.
    pub fn files(&self, task: &Task) -> Result<ScorerFiles> {
        let form = self.folder.resolved()?;
        let recorded = |how: &RewardScoring| RecordedScores {
            scale: form.scale(),
            delimiter: how.delimiter.clone(),
            aggregate: how.aggregate.unwrap_or(form.aggregate()),
            form_aggregate: form.aggregate(),
        };
        let samples = task.method.reward_of_samples().map(recorded);
        Ok(ScorerFiles { samples, ..ScorerFiles::new(self.folder.path(), self.folder.identity().clone())? })
    }

    /// Warns if the scorer's context may be too short for the longest question with a sample.
    pub fn warn_of_context(&self, prepared: &PreparedRun) -> Result<()> {
        let task = &prepared.task;
        let longest = prepared.items.iter().max_by_key(|item| prepared.texts[&item.index].bytes);
        let Some(item) = longest else { return Ok(()) };
        let question = task.scorer.question(item, task.prompt(item)?)?;
        let text: String = question.iter().filter_map(Message::last_text).collect();
        let asked = self.folder.tokenizer().encode_plain(&text, AddSpecial::No)?.len();
        let (most, context) = (asked + prepared.own_tokens(), self.folder.context());
        if most > context {
            out::aside(format_args!(
                "warning: the question of item `{}` and a sample may have about {} tokens together; the scorer in {} \
                 reads {}: samples that are longer have no score",
                item.id,
                count(most as u64),
                shown(self.folder.path()),
                count(context as u64)
            ));
        }
        Ok(())
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The dotted path of a key of the method in the task file.
fn key(method: &Method, key: &str) -> String {
    format!("method.{}.{key}", method.name())
}
