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

use super::judge::JudgeRecord;
use super::prepare::PreparedRun;
use offshoot_core::setting::{DETERMINISTIC, JUDGE, JUDGE_MODEL, JUDGE_URL, KV_DTYPE, LATENT_COPIES, STATE_DTYPE};
use offshoot_launch::{EngineBudget, Launched};
use offshoot_model::WeightChoice;
use offshoot_model::hashes::{files_named, hash_of_folder, hashes};
use offshoot_score::{Aggregate, Scale, ScorerIdentity};

pub const NAME: &str = "manifest.json";

/// A run, from its first process to its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of Offshoot that started it.
    pub offshoot: String,
    pub model: PathBuf,
    /// See [`hash_of_folder`].
    pub model_hash: String,
    /// The adapter that its samples are drawn with, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterFiles>,
    /// The model that its method asks for scores, or that has scored its samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scorer: Option<ScorerFiles>,
    /// The model that answers the questions of its verdicts, if that is not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeRecord>,
    pub task_file: PathBuf,
    /// The run's own folder, from which model and task file are found again where all were moved together.
    #[serde(default)]
    pub folder: Option<PathBuf>,
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
    /// The same of the states of recurrent layers; left out if they are f32 or the model has none.
    #[serde(default, skip_serializing_if = "StateDtype::is_f32")]
    pub state_dtype: StateDtype,
    /// What weights became when they were loaded, if that changes anything.
    #[serde(default, skip_serializing_if = "WeightChoice::is_as_stored")]
    pub weights: WeightChoice,
    pub processes: Vec<Process>,
}

/// The folder of an adapter, and the hash of what it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterFiles {
    pub folder: PathBuf,
    /// See [`hash_of_folder`].
    pub hash: String,
}

impl AdapterFiles {
    fn of(folder: &Path) -> Result<Self> {
        Ok(AdapterFiles { folder: absolute(folder)?, hash: hash_of_folder(folder)? })
    }
}

/// The folder of a scorer, and what tells it from others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScorerFiles {
    pub folder: PathBuf,
    #[serde(flatten)]
    pub identity: ScorerIdentity,
    /// How it scores whole samples; `None`: it scores steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<RecordedScores>,
}

/// How the samples of a run have the scores that they have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedScores {
    /// What the scores are.
    pub scale: Scale,
    /// Ends a step.
    pub delimiter: String,
    /// What made one score of those of a sample's steps.
    pub aggregate: Aggregate,
    /// What does, by the scorer's form.
    pub form_aggregate: Aggregate,
}

impl ScorerFiles {
    pub fn new(folder: &Path, identity: ScorerIdentity) -> Result<Self> {
        Ok(ScorerFiles { folder: absolute(folder)?, identity, samples: None })
    }

    /// Whether both are one folder at two times.
    fn is(&self, other: &ScorerFiles) -> bool {
        self.folder == other.folder
    }

    fn shown(&self) -> String {
        let ScorerIdentity { name, form, digest } = &self.identity;
        format!("{name} in {}, form {form} ({digest})", self.folder.display())
    }
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
    /// The manifest of a run whose folder is not chosen yet. `scorer`: what its method asks for scores.
    pub fn new(prepared: &PreparedRun, budget: &EngineBudget, scorer: Option<ScorerFiles>) -> Result<Self> {
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
            adapter: prepared.adapter.as_ref().map(|adapter| AdapterFiles::of(&adapter.path)).transpose()?,
            scorer,
            judge: None,
            task_file: absolute(&task.path)?,
            folder: None,
            task: task.source.clone(),
            files,
            seed: task.sampling.seed,
            kv_dtype: budget.kv,
            state_dtype: config.state_dtype(budget.states),
            weights: config.effect_of(budget.weights),
            processes: Vec::new(),
        })
    }

    /// The manifest of a run into `folder`.
    pub fn of_run_into(self, folder: &Path) -> Result<Self> {
        Ok(Self { folder: Some(absolute(folder)?), ..self })
    }

    /// Reads the manifest in `folder`; `None` if there is none.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        settle(folder)?;
        let path = folder.join(NAME);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        let manifest: Result<Manifest, _> = serde_json::from_str(&text);
        let mut manifest = manifest.map_err(|error| Error::format(&path, format!("not a run's manifest: {error}")))?;
        if let Some(before) = manifest.folder.replace(absolute(folder)?) {
            for path in [&mut manifest.model, &mut manifest.task_file] {
                let moved = moved_with(path, &before, folder);
                *path = moved.filter(|moved| !path.exists() && moved.exists()).unwrap_or_else(|| path.clone());
            }
        }
        Ok(Some(manifest))
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
        let hash = |of: &Manifest| of.adapter.as_ref().map(|adapter| adapter.hash.clone());
        if hash(self) != hash(now) {
            let adapter = |of: &Manifest| {
                let shown = |of: &AdapterFiles| format!("{} ({})", of.folder.display(), of.hash);
                of.adapter.as_ref().map_or_else(|| "no adapter".to_owned(), shown)
            };
            return differs("adapter", adapter(self), adapter(now));
        }
        if let Some(scorer) = &now.scorer {
            self.check_scorer(folder, scorer)?;
        }
        if !is_same_judge(self.judge.as_ref(), now.judge.as_ref()) {
            let judge =
                |of: &Manifest| of.judge.as_ref().map_or_else(|| "the run's own model".to_owned(), JudgeRecord::shown);
            let before = format!("{} ({JUDGE}, {JUDGE_URL} and {JUDGE_MODEL} name a judge)", judge(self));
            return differs("judge", before, judge(now));
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
        let moves = self.moves(now);
        let is_moved = |before: &Value, now: &Value| moves.iter().any(|one| one.is(before, now));
        let asks_scorer = now.scorer.is_some();
        let differences = DifferenceRules { samples_may_rise, asks_scorer, is_same: &is_moved };
        if let Some(Difference { field, expected, found }) = differences.first("", Some(&self.task), Some(&now.task)) {
            return differs(&format!("task.{field}"), expected, found);
        }
        let files = renamed(&self.files, &moves, &now.files);
        let prompt_files = renamed(&self.prompt_files, &moves, &now.prompt_files);
        let mut names = files.keys().chain(now.files.keys());
        if let Some(name) = names.find(|name| files.get(*name) != now.files.get(*name)) {
            let (before, now) = (files.get(name), now.files.get(name));
            return differs(&format!("files.{name}"), unchanged(before), changed(before, now));
        }
        let of_both = prompt_files.iter().filter_map(|(name, hash)| Some((name, hash, now.prompt_files.get(name)?)));
        if let Some((name, before, now)) = of_both.into_iter().find(|(_, before, now)| before != now) {
            return differs(&format!("prompt_files.{name}"), unchanged(Some(before)), changed(Some(before), Some(now)));
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

    /// Checks that samples of the run in `folder` may have scores by this scorer.
    pub fn check_scorer(&self, folder: &Path, now: &ScorerFiles) -> Result<()> {
        match &self.scorer {
            // A copy under another name gives the same scores.
            Some(before) if before.identity.digest != now.identity.digest => {
                let expected = format!("{}, with which the run in this folder was made or scored", before.shown());
                let changed =
                    if before.is(now) { ", whose weights, configuration or form have changed since" } else { "" };
                let found =
                    format!("{}{changed} (give the scorer as it was, or another folder for results)", now.shown());
                Err(Error::field(folder.join(NAME), "scorer", expected, found))
            }
            _ => Ok(()),
        }
    }

    /// The places that the task names by other paths now, and under which files lie as they lay before: what counts is
    /// the bytes.
    fn moves(&self, now: &Manifest) -> Vec<Move> {
        let mut moves = Vec::new();
        other_strings(&self.task, &now.task, &mut |before, path| moves.extend(Move::new(before, path)));
        let is_confirmed = |one: &Move| {
            let both = [(&self.files, &now.files), (&self.prompt_files, &now.prompt_files)];
            let mut names = both.into_iter().flat_map(|(before, now)| before.keys().map(move |name| (name, now)));
            names.any(|(name, now)| one.of(name).is_some_and(|name| now.contains_key(&name)))
        };
        moves.retain(is_confirmed);
        moves
    }

    /// Notes the judge by which the samples of the run in `folder` are graded now. `scores`: whether its method asks a
    /// judge, too.
    ///
    /// # Errors
    ///
    /// The samples have scores of another judge.
    pub fn is_regraded_by(&mut self, judge: JudgeRecord, scores: bool, folder: &Path) -> Result<()> {
        if scores && !is_same_judge(self.judge.as_ref(), Some(&judge)) {
            let before = self.judge.as_ref().map_or_else(|| "the run's own model".to_owned(), JudgeRecord::shown);
            let expected = format!("{before}, whose scores its samples have");
            return Err(Error::field(folder.join(NAME), "judge", expected, judge.shown()));
        }
        self.judge = Some(judge);
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
                (true, false) if *batch_invariant => "where no sample depends on others".to_owned(),
                (true, false) => format!("where samples depend on others (see {DETERMINISTIC}, {LATENT_COPIES})"),
            }
        });
        out::aside(format_args!("warning: the run was started {begun} and continues {goes_on}: samples may differ"));
    }
}

/// Whether two runs' judges answer alike; `None`: the run's own model.
fn is_same_judge(one: Option<&JudgeRecord>, other: Option<&JudgeRecord>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.is_same(other),
        (None, None) => true,
        _ => false,
    }
}

pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::io(path, "find the current folder beside"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A path of a task that was one and is another.
#[derive(Debug, PartialEq)]
struct Move {
    before: String,
    now: String,
    /// The parts of both before what their ends have in common: a folder, or the whole path of a file.
    prefixes: [String; 2],
}

impl Move {
    /// `None` if they end alike all the way, or one of them is no path.
    fn new(before: &str, now: &str) -> Option<Move> {
        let is_path = |text: &str| !text.is_empty() && text.len() <= 1024 && !text.contains(['\n', '\0']);
        if before == now || !is_path(before) || !is_path(now) {
            return None;
        }
        let [from, to] = [before, now].map(|path| path.split('/').collect::<Vec<_>>());
        let alike = from.iter().rev().zip(to.iter().rev()).take_while(|(from, to)| from == to).count();
        // A pattern is no name of a file: what it matches lies below what stands before it.
        let pattern =
            |parts: &[&str]| parts.iter().rposition(|part| !part.contains(['*', '{', '?'])).map_or(0, |ix| ix + 1);
        let prefix = |parts: &[&str]| parts[..(parts.len() - alike).min(pattern(parts))].join("/");
        Some(Move { before: before.to_owned(), now: now.to_owned(), prefixes: [prefix(&from), prefix(&to)] })
    }

    fn is(&self, before: &Value, now: &Value) -> bool {
        before == &self.before && now == &self.now
    }

    /// The name now of the file `name`, if it is one that moved.
    fn of(&self, name: &str) -> Option<String> {
        let [before, now] = &self.prefixes;
        let rest = name.strip_prefix(before.as_str())?;
        let whole = rest.is_empty() || rest.starts_with('/') || before.is_empty();
        let name = format!("{now}{}{rest}", if before.is_empty() && !now.is_empty() { "/" } else { "" });
        whole.then(|| if now.is_empty() { name.trim_start_matches('/').to_owned() } else { name })
    }
}

/// Files by the names that they have `now`: those that are no longer there and lie where one of the moves took them.
fn renamed(
    files: &BTreeMap<String, String>,
    moves: &[Move],
    now: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut renamed = BTreeMap::new();
    for (name, hash) in files {
        let moved = || moves.iter().filter_map(|one| one.of(name)).find(|moved| now.contains_key(moved));
        let is_there = now.contains_key(name);
        // Two of one name, of which one has other bytes, are told apart by the old name.
        let moved =
            if is_there { None } else { moved() }.filter(|moved| renamed.get(moved).is_none_or(|one| one == hash));
        renamed.insert(moved.unwrap_or_else(|| name.clone()), hash.clone());
    }
    renamed
}

/// Tells of the strings of `before` that are others in `now`.
fn other_strings(before: &Value, now: &Value, tell: &mut impl FnMut(&str, &str)) {
    match (before, now) {
        (Value::String(before), Value::String(now)) if before != now => tell(before, now),
        (Value::Array(before), Value::Array(now)) => {
            before.iter().zip(now).for_each(|(before, now)| other_strings(before, now, tell));
        }
        (Value::Object(before), Value::Object(now)) => {
            let both = before.iter().filter_map(|(key, value)| Some((value, now.get(key)?)));
            both.for_each(|(before, now)| other_strings(before, now, tell));
        }
        _ => {}
    }
}

/// Where `path` is if it moved together with a folder that was `before` and is `now`; `None` if they have no folder in
/// common.
fn moved_with(path: &Path, before: &Path, now: &Path) -> Option<PathBuf> {
    let common = before.ancestors().find(|ancestor| path.starts_with(ancestor) && ancestor.parent().is_some())?;
    let ups = before.strip_prefix(common).ok()?.components().count();
    let now = absolute(now).ok()?;
    Some(now.ancestors().nth(ups)?.join(path.strip_prefix(common).ok()?))
}

/// A file as it was, by its BLAKE3 hash.
fn unchanged(before: Option<&String>) -> String {
    before.map_or("no such file".to_string(), |hash| format!("the file unchanged (BLAKE3 {hash})"))
}

/// A file as it is now, by its BLAKE3 hash.
fn changed(before: Option<&String>, now: Option<&String>) -> String {
    match (before, now) {
        (_, None) => "no such file".to_string(),
        (None, Some(hash)) => format!("a new file (BLAKE3 {hash})"),
        (Some(_), Some(hash)) => format!("it changed (BLAKE3 {hash})"),
    }
}

/// A field of the task that is another now, by its dotted path.
#[derive(Debug)]
struct Difference {
    field: String,
    expected: String,
    found: String,
}

/// The question that a task's key `scorer` asks.
fn asked_of_scorer(scorer: Option<&Value>) -> Option<&Value> {
    value_of(scorer, "question")
}

/// What a task's key `judge` has in requests, beside who it is and how it is reached.
fn asked_of_judge(judge: Option<&Value>) -> Option<&Value> {
    value_of(judge, "request")
}

fn value_of<'v>(object: Option<&'v Value>, key: &str) -> Option<&'v Value> {
    object.and_then(|object| object.get(key)).filter(|value| !value.is_null())
}

/// What differences between two task files affect samples or their grading.
struct DifferenceRules<'a> {
    samples_may_rise: bool,
    /// Whether the method asks a scorer. Otherwise what the task says of one is of scores that samples got later.
    asks_scorer: bool,
    /// Whether two other values mean the same.
    is_same: &'a dyn Fn(&Value, &Value) -> bool,
}

impl DifferenceRules<'_> {
    /// The first one below the path `at`.
    fn first(&self, at: &str, before: Option<&Value>, now: Option<&Value>) -> Option<Difference> {
        // Names do not matter, the model is compared by its hash, and more items or samples do not change the others.
        let is_free = matches!(at, "name" | "model" | "adapter" | "items.limit")
            // A scorer is compared by its identity, and what becomes of texts without a score changes no other.
            || matches!(at, "scorer.model" | "scorer.form" | "scorer.on_error")
            || (at == "scorer" && (!self.asks_scorer || asked_of_scorer(before) == asked_of_scorer(now)))
            // And a judge by its own.
            || matches!(at, "judge.model" | "judge.memory" | "judge.url" | "judge.name")
            || matches!(at, "judge.requests" | "judge.timeout" | "judge.retries" | "judge.on_error")
            || (at == "judge" && asked_of_judge(before) == asked_of_judge(now));
        let is_count = at.starts_with("method.") && at.ends_with(".samples") && at.split('.').count() == 3;
        let may_rise = is_count && self.samples_may_rise;
        let rises = || Some(now?.as_u64()? >= before?.as_u64()?);
        if is_free || before == now || (may_rise && rises() == Some(true)) {
            return None;
        }
        if let (Some(before), Some(now)) = (before, now)
            && (self.is_same)(before, now)
        {
            return None;
        }
        if let (Some(Value::Object(before)), Some(Value::Object(now))) = (before, now) {
            let inside = |key: &String| {
                let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                self.first(&at, before.get(key), now.get(key))
            };
            return before.keys().chain(now.keys()).find_map(inside);
        }
        let show = |value: Option<&Value>| value.map_or("nothing".to_string(), Value::to_string);
        let least = if may_rise { "at least " } else { "" };
        let is_graded = at.starts_with("grade") || at.starts_with("answer");
        let hint = if is_graded { " (to grade anew: `offshoot rescore`)" } else { "" };
        let expected = format!("{least}{}{hint}", show(before));
        Some(Difference { field: at.to_string(), expected, found: show(now) })
    }
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
            let differences = DifferenceRules { samples_may_rise: true, asks_scorer: true, is_same: &|_, _| false };
            differences.first("", Some(&before), Some(&task)).map(|one| one.field)
        };
        assert_eq!(with("/name", json!("b")), None);
        assert_eq!(with("/model", json!("elsewhere/m")), None);
        assert_eq!(with("/method/sample/samples", json!(8)), None);
        assert_eq!(with("/method/sample/samples", json!(3)).as_deref(), Some("method.sample.samples"));
        assert_eq!(with("/sampling/seed", json!(2)).as_deref(), Some("sampling.seed"));
        assert_eq!(with("/sampling", json!({"seed": 1})).as_deref(), Some("sampling.top_p"));
        let fixed = DifferenceRules { samples_may_rise: false, asks_scorer: true, is_same: &|_, _| false };
        let fixed = fixed.first("", Some(&before), Some(&json!({"method": {"sample": {"samples": 8}}})));
        assert_eq!(fixed.map(|one| one.field).as_deref(), Some("method.sample.samples"));
    }

    #[test]
    fn a_scorer_is_known_by_what_it_computes_and_not_by_its_name() {
        let of = |scorer: Value| -> Manifest {
            let manifest = json!({"offshoot": env!("CARGO_PKG_VERSION"), "model": "m", "model_hash": "0",
                "scorer": scorer, "task_file": "t", "task": {}, "files": {}, "prompt_files": {}, "seed": 1,
                "kv_dtype": "model", "processes": []});
            serde_json::from_value(manifest).expect("a manifest")
        };
        let scorer = |folder: &str, name: &str, digest: &str| {
            of(json!({"folder": folder, "name": name, "form": "step-tag", "digest": digest}))
        };
        let before = scorer("/a/reward", "reward", "1");
        let check = |now: &Manifest| before.check(Path::new("out"), now, true);
        check(&scorer("/b/copy", "copy", "1")).expect("a copy gives the same scores");
        let said = |now: &Manifest| check(now).expect_err("it gives others").to_string();
        let changed = said(&scorer("/a/reward", "reward", "2"));
        for part in ["`scorer`", "weights, configuration or form have changed", "another folder for results"] {
            assert!(changed.contains(part), "{changed}");
        }
        let other = said(&scorer("/b/other", "other", "2"));
        assert!(other.contains("/a/reward") && other.contains("/b/other") && !other.contains("changed"), "{other}");
        check(&of(Value::Null)).expect("scores that are there stay");
    }

    #[test]
    fn files_are_known_by_where_their_folder_went() {
        let of = |before: &str, now: &str, name: &str| Move::new(before, now).and_then(|one| one.of(name));
        assert_eq!(of("/a/d/x.jsonl", "/b/c/d/x.jsonl", "/a/d/x.jsonl").as_deref(), Some("/b/c/d/x.jsonl"));
        assert_eq!(of("/a/d/x.jsonl", "/a/d/y.jsonl", "/a/d/x.jsonl").as_deref(), Some("/a/d/y.jsonl"));
        assert_eq!(of("/a/parts/*.jsonl", "/b/parts/*.jsonl", "/a/parts/x.jsonl").as_deref(), Some("/b/parts/x.jsonl"));
        assert_eq!(of("parts", "../data/parts", "parts/x.jsonl").as_deref(), Some("../data/parts/x.jsonl"));
        assert_eq!(of("../data/parts", "parts", "../data/parts/x.jsonl").as_deref(), Some("parts/x.jsonl"));
        assert_eq!(of("a/{{part}}.jsonl", "b/{{part}}.jsonl", "a/x.jsonl").as_deref(), Some("b/x.jsonl"));
        assert_eq!(of("/a/parts", "/b/parts", "/about/x.jsonl"), None);
    }

    #[test]
    fn what_moved_with_a_folder_is_found_from_it() {
        let moved = |path: &str| moved_with(Path::new(path), Path::new("/a/b/runs/out"), Path::new("/c/runs/out"));
        assert_eq!(moved("/a/b/task.json"), Some(PathBuf::from("/c/task.json")));
        assert_eq!(moved("/a/b/runs/out/task.json"), Some(PathBuf::from("/c/runs/out/task.json")));
        assert_eq!(moved("/other/task.json"), None);
    }
}
