//! `manifest.json`: the inputs of a run, recorded so that the run can be identified and so that `--resume` continues
//! with the same inputs. Settings that decide the samples are compared; settings that only decide speed are recorded.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::journal::settle;
use crate::report::PromptTokens;
use crate::task::Task;
use offshoot_backend::{KvDtype, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::out;
use offshoot_engine::EngineFacts;

use super::prepare::PreparedRun;
use offshoot_core::setting::{DETERMINISTIC, KV_DTYPE, STATE_DTYPE};
use offshoot_launch::{EngineBudget, Launched};
use offshoot_model::WeightChoice;
use offshoot_model::hashes::{files_named, hash_of_folder, hashes};

pub const NAME: &str = "manifest.json";

/// A run, from its first process to its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of Offshoot that started it.
    pub offshoot: String,
    pub model: PathBuf,
    /// See [`hash_of_folder`].
    pub model_hash: String,
    pub task_file: PathBuf,
    /// The task file's JSON with the command line's changes.
    pub task: Value,
    /// BLAKE3 hashes of the files that the task names, by those names, and of the files matched by its patterns and
    /// folders, by their paths relative to the task's folder.
    pub files: BTreeMap<String, String>,
    /// The same for files that only some items' prompts include, such as a subject's examples.
    pub prompt_files: BTreeMap<String, String>,
    pub seed: u64,
    /// Storage format of keys and values.
    pub kv_dtype: KvDtype,
    /// The same of the states of delta-rule layers; left out if they are f32 or the model has none.
    #[serde(default, skip_serializing_if = "StateDtype::is_f32")]
    pub state_dtype: StateDtype,
    /// What weights became when they were loaded, if that changes anything.
    #[serde(default, skip_serializing_if = "WeightChoice::is_as_stored")]
    pub weights: WeightChoice,
    pub processes: Vec<Process>,
}

/// One process that worked on a run. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub started: u64,
    /// `None`: it was killed.
    pub ended: Option<u64>,
    pub device: String,
    /// Whether that device guarantees the same samples whatever else it computes.
    #[serde(rename = "exact")]
    pub batch_invariant: bool,
    /// The code path that then determines the last bits.
    pub arithmetic: String,
    /// Its prompt tokens. `None`: it was killed.
    pub prompts: Option<PromptTokens>,
}

impl Process {
    pub fn on(launched: &Launched) -> Self {
        let EngineFacts { device, arithmetic, batch_invariant, .. } = launched.engine.facts().clone();
        Self { started: now(), ended: None, device, batch_invariant, arithmetic, prompts: None }
    }

    /// Whether both guarantee the same samples. Also true for two processes on the same device without that guarantee.
    fn draws_as(&self, other: &Process) -> bool {
        match (self.batch_invariant, other.batch_invariant) {
            (true, true) => self.arithmetic == other.arithmetic,
            (false, false) => self.device == other.device,
            _ => false,
        }
    }
}

impl Manifest {
    pub fn new(prepared: &PreparedRun, budget: &EngineBudget) -> Result<Self> {
        let config = &prepared.folder.config;
        let task = &prepared.task;
        let beside = task.path.parent().unwrap_or(Path::new(""));
        let mut files = BTreeMap::new();
        files_named(&task.source, beside, &mut files)?;
        files.extend(hashes(task.item_files()?, beside)?);
        Ok(Self {
            prompt_files: hashes(task.prompt_files(prepared.items.iter())?, beside)?,
            offshoot: env!("CARGO_PKG_VERSION").to_string(),
            model: absolute(&prepared.model)?,
            model_hash: hash_of_folder(&prepared.model)?,
            task_file: absolute(&task.path)?,
            task: task.source.clone(),
            files,
            seed: task.sampling.seed,
            kv_dtype: budget.kv,
            state_dtype: config.state_dtype(budget.states),
            weights: config.effect_of(budget.weights),
            processes: Vec::new(),
        })
    }

    /// Reads the manifest in `folder`; `None` if there is none.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        settle(folder)?;
        let path = folder.join(NAME);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        let manifest = serde_json::from_str(&text);
        manifest.map(Some).map_err(|error| Error::format(&path, format!("not a run's manifest: {error}")))
    }

    /// Reads the manifest in the folder `run`, which `what` names in the error if there is none.
    pub fn of(run: &Path, what: &str) -> Result<Self> {
        let none =
            || Error::value(what, format!("a folder of results with {NAME}"), format!("none in {}", run.display()));
        Self::read(run)?.ok_or_else(none)
    }

    pub fn text(&self) -> Result<String> {
        json::pretty("the manifest", self).map(|text| text + "\n")
    }

    /// Checks that the run of this manifest, in `folder`, can continue with the inputs `now`: the same model, task,
    /// files, formats of keys, values and states, and weights, and at least as many samples if their number may change
    /// (`samples_may_rise`). The error names the difference.
    pub fn check(&self, folder: &Path, now: &Manifest, samples_may_rise: bool) -> Result<()> {
        let path = folder.join(NAME);
        let differs = |field: &str, expected: String, found: String| {
            let expected = format!("{expected}, with which the run in this folder was made or last graded");
            Err(Error::field(&path, field, expected, found))
        };
        if self.model_hash != now.model_hash {
            let model = |of: &Manifest| format!("{} ({})", of.model.display(), of.model_hash);
            return differs("model", model(self), model(now));
        }
        if self.kv_dtype != now.kv_dtype {
            let option = |of: &Manifest| format!("{KV_DTYPE} {}", of.kv_dtype);
            return differs("kv_dtype", option(self), option(now));
        }
        if self.state_dtype != now.state_dtype {
            let option = |of: &Manifest| format!("{STATE_DTYPE} {}", of.state_dtype);
            return differs("state_dtype", option(self), option(now));
        }
        if self.weights != now.weights {
            return differs("weights", self.weights.to_string(), now.weights.to_string());
        }
        if let Some((field, expected, found)) = difference("", Some(&self.task), Some(&now.task), samples_may_rise) {
            return differs(&format!("task.{field}"), expected, found);
        }
        let mut names = self.files.keys().chain(now.files.keys());
        if let Some(name) = names.find(|name| self.files.get(*name) != now.files.get(*name)) {
            let hash = |of: &Manifest| of.files.get(name).map_or("no such file", String::as_str).to_string();
            return differs(&format!("files.{name}"), hash(self), hash(now));
        }
        let of_both =
            self.prompt_files.iter().filter_map(|(name, hash)| Some((name, hash, now.prompt_files.get(name)?)));
        if let Some((name, before, now)) = of_both.into_iter().find(|(_, before, now)| before != now) {
            return differs(&format!("prompt_files.{name}"), before.clone(), now.clone());
        }
        if self.offshoot != now.offshoot {
            out::aside(format_args!(
                "warning: the run in {} was begun by Offshoot {}, this is {}: samples may differ",
                folder.display(),
                self.offshoot,
                now.offshoot
            ));
        }
        Ok(())
    }

    /// The first of the files with `task`'s items that the run did not use or that has changed since. Inline items
    /// count as part of the task file.
    pub fn changed_items(&self, task: &Task) -> Result<Option<PathBuf>> {
        let items = task.source.get("items");
        if items.is_some_and(Value::is_array) {
            return Ok((items != self.task.get("items")).then(|| task.path.clone()));
        }
        let beside = task.path.parent().unwrap_or(Path::new(""));
        let mut now = hashes(task.item_files()?, beside)?;
        items.map_or(Ok(()), |items| files_named(items, beside, &mut now))?;
        let is_known = |hash: &String| self.files.values().any(|before| before == hash);
        Ok(now.into_iter().find(|(_, hash)| !is_known(hash)).map(|(name, _)| beside.join(name)))
    }

    /// Records the end of the current process and its prompt tokens.
    pub fn end(&mut self, prompts: PromptTokens) {
        if let Some(process) = self.processes.last_mut() {
            (process.ended, process.prompts) = (Some(now()), Some(prompts));
        }
    }

    /// Prompt tokens of all processes together, and the number of processes that recorded none.
    pub fn prompts(&self) -> (PromptTokens, usize) {
        let told = self.processes.iter().filter_map(|process| process.prompts);
        let uncounted = self.processes.iter().filter(|process| process.prompts.is_none()).count();
        (told.fold(PromptTokens::default(), PromptTokens::add), uncounted)
    }

    /// Warns if samples may differ from those of a single process, because devices differ.
    pub fn warn_of_devices(&self, now: &Process) {
        let Some(before) = self.processes.iter().find(|before| !before.draws_as(now)) else { return };
        let [begun, goes_on] = [before, now].map(|process| {
            let Process { device, batch_invariant, arithmetic, .. } = process;
            match (before.device == now.device, before.batch_invariant == now.batch_invariant) {
                (false, _) => format!("on {device}"),
                (true, true) => format!("on {arithmetic}"),
                (true, false) if *batch_invariant => format!("with {DETERMINISTIC}"),
                (true, false) => format!("without {DETERMINISTIC}"),
            }
        });
        out::aside(format_args!("warning: the run was started {begun} and continues {goes_on}: samples may differ"));
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::io(path, "find the current folder beside"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The first difference between two task files that affects samples or their grading: its dotted path and both values.
fn difference(
    at: &str,
    before: Option<&Value>,
    now: Option<&Value>,
    samples_may_rise: bool,
) -> Option<(String, String, String)> {
    // Names do not matter, the model is compared by its hash, and more items or samples do not change the others.
    let is_free = matches!(at, "name" | "model" | "items.limit");
    let is_count = at.starts_with("method.") && at.ends_with(".samples") && at.split('.').count() == 3;
    let rises = || Some(now?.as_u64()? >= before?.as_u64()?);
    if is_free || before == now || (is_count && samples_may_rise && rises() == Some(true)) {
        return None;
    }
    if let (Some(Value::Object(before)), Some(Value::Object(now))) = (before, now) {
        let inside = |key: &String| {
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            difference(&at, before.get(key), now.get(key), samples_may_rise)
        };
        return before.keys().chain(now.keys()).find_map(inside);
    }
    let show = |value: Option<&Value>| value.map_or("nothing".to_string(), Value::to_string);
    let least = if is_count && samples_may_rise { "at least " } else { "" };
    let hint =
        if at.starts_with("grade") || at.starts_with("answer") { " (to grade anew: `offshoot rescore`)" } else { "" };
    Some((at.to_string(), format!("{least}{}{hint}", show(before)), show(now)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_decides_samples_is_told_from_what_does_not() {
        let before = json!({"name": "a", "model": "m", "method": {"sample": {"samples": 4}},
            "sampling": {"seed": 1, "top_p": 0.9}});
        let with = |path: &str, value: Value| {
            let mut task = before.clone();
            *task.pointer_mut(path).expect("it is there") = value;
            difference("", Some(&before), Some(&task), true).map(|(field, ..)| field)
        };
        assert_eq!(with("/name", json!("b")), None);
        assert_eq!(with("/model", json!("elsewhere/m")), None);
        assert_eq!(with("/method/sample/samples", json!(8)), None);
        assert_eq!(with("/method/sample/samples", json!(3)).as_deref(), Some("method.sample.samples"));
        assert_eq!(with("/sampling/seed", json!(2)).as_deref(), Some("sampling.seed"));
        assert_eq!(with("/sampling", json!({"seed": 1})).as_deref(), Some("sampling.top_p"));
        let fixed = difference("", Some(&before), Some(&json!({"method": {"sample": {"samples": 8}}})), false);
        assert_eq!(fixed.map(|(field, ..)| field).as_deref(), Some("method.sample.samples"));
    }
}
