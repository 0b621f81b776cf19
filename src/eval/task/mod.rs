//! A task file defines items, prompt, sampling, search, answers and grading. This module reads and checks it, renders
//! prompts, extracts answers and grades them; `run` executes it.
//!
//! The file is JSON; `//` comments and a comma before a closing bracket are allowed, `null` means absent, paths are
//! relative to the file. Unknown keys are errors.
//!
//! | key | value |
//! |---|---|
//! | `name` | the task's name; default: the file's |
//! | `model` | the model's folder |
//! | `items` | a path, a list of items, or `{path, id, format, columns, matched, questions, skip, limit}` |
//! | `prompt` | a template, or `{shared, item}`, `{shared, levels}` (a level is a template or `{shots: {path, template, count, format, columns}}`), or `{chat: {system, messages, user, template, options}}` |
//! | `method` | one of `{self_consistency: {samples, stop_when_decided}}` (`true`, or `{confidence: P}`: see [`Decided`](crate::search::vote::Decided)), `{best_of_n: {samples, by, stop_when_passed}}` (by `logprob`, `mean_logprob`, `grade` or `judge`), `{sample: {samples}}`, `{tree_of_thought: …}` (see [`tree_of_thought`]), `{choose: …}` (see [`choose`]), `{step_beam: …}` and `{dvts: …}` (see [`steps`]), `{mcts: …}` (see [`steps`]) |
//! | `sampling` | see [`Sampling`] |
//! | `answer` | `{boxed, regex, take, normalise}`: `true` if answers are in `\boxed{…}` or `\fbox{…}`, regex or list of them (tried if there is no box), `last` or `first`, `number`, `text`, `choice`, `latex` (mathematics: see [`latex`](crate::eval::answer::latex)) or `none` |
//! | `grade` | one of `{exact: {field, boxed, regex, take, normalise}}`, `{number: {field, boxed, regex, take, tolerance}}`, `{regex: {field}}`, `{regex: {pattern}}`, `{contains: {field, ignore_case}}`, `{expression: {numbers, value}}`: fields as `{field: NAME}`, the value also as a number; or `{judge: {format, extract, language, timeout, memory_mb, checker}}`: the item is a programming problem of a benchmark (see [`benchmark`](crate::eval::benchmark)), samples are run against its tests; `extract` is `auto`, `completion` or `fence` (a Markdown code block), `timeout` in seconds of processor time |
//!
//! Items are JSON lines, a JSON list or CSV, gzipped or not; items listed in the task file itself are named by their
//! field `id` where all have one. A folder's `.txt` and `.md` files, or one such file, are one item each, with the
//! fields `id` (the file's name without extension), `name` and `document` (the text). `questions` names a field that
//! lists a document's questions, or is `{path, document, format, columns}`: a file of questions, in which the field
//! named by `document` contains the document's id or file name; without `document`, every question is asked about every
//! document. Each question becomes an item `document/0`, `document/1` … with the document's fields and its own.
//! `shared` is plain text; `item`, `levels` and a chat's turns are Jinja templates over the item's fields. Each of
//! these texts is a string or `{file: PATH}`.

pub mod candidate;
mod documents;
mod grade;
pub(crate) mod items;
mod matched;
mod method;
mod prompt;
pub mod scaffold;
mod shots;
mod template;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub use grade::GradedText;
pub use items::Item;
pub use method::{
    Choose, EarlyStop, Method, Sampling, ThoughtScoring, Verdicts, choose, scoring, steps, tree_of_thought,
};
pub use prompt::TaskPrompt;

use crate::error::{Error, Result};
use crate::eval::answer;
use crate::eval::answer::{ExtractedAnswer, Extractor};
use crate::eval::source::TaskSource;
use crate::search::settings::BestBy;
use grade::{Grader, TaskGrading};
use items::{ItemSource, Standard};
use prompt::PromptTemplate;

/// Settings of the command line that override those of the task file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `key=value`, `key` a dotted path into the task file, `value` JSON or else a string.
    pub set: Vec<String>,
    pub samples: Option<u32>,
    pub seed: Option<u64>,
    /// Model folder; relative to the current folder, unlike the task file's `model`.
    pub model: Option<PathBuf>,
}

/// A checked task file.
#[derive(Debug)]
pub struct Task {
    pub path: PathBuf,
    pub name: String,
    pub model: Option<PathBuf>,
    pub method: Method,
    pub sampling: Sampling,
    /// The file's JSON with the overrides applied, stored with the results.
    pub source: Value,
    items: ItemSource,
    prompt: PromptTemplate,
    answer: Option<Extractor>,
    grade: Option<TaskGrading>,
}

const KEYS: [&str; 8] = ["name", "model", "items", "prompt", "method", "sampling", "answer", "grade"];

impl Task {
    /// Reads and checks a task file and the text files that its prompt names; items are not read.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Task> {
        Task::of(path, TaskSource::read(path, &overrides.assignments())?, overrides)
    }

    /// The task with the source `value` ([`Task::source`]) of an earlier run, changed by `overrides`; `path`: the path
    /// of its file.
    pub fn reload(path: &Path, value: Value, overrides: &Overrides) -> Result<Task> {
        Task::of(path, TaskSource::of(path, value, &overrides.assignments())?, overrides)
    }

    /// Only the method of the task with the source `value`.
    pub fn method_of(path: &Path, value: Value) -> Result<Method> {
        let source = TaskSource::of(path, value, &[])?;
        Method::read(&source, source.root(&KEYS)?.get("method"))
    }

    fn of(path: &Path, mut source: TaskSource, overrides: &Overrides) -> Result<Task> {
        if let Some(samples) = overrides.samples {
            source.set_samples(samples);
        }
        let root = source.root(&KEYS)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let answer = answer::read(&source, root.get("answer"))?;
        let grade = Grader::read(&source, root.get("grade"), answer.as_ref().map(|a| a.normalise))?;
        let model = root.text("model")?.map(|path| source.resolve(path));
        let task = Task {
            path: path.to_path_buf(),
            name: root.text("name")?.map_or(stem, str::to_string),
            model: overrides.model.clone().or(model),
            method: Method::read(&source, root.get("method"))?,
            sampling: Sampling::read(&source, root.get("sampling"))?,
            items: ItemSource::read(&source, root.get("items"))?,
            prompt: PromptTemplate::read(&source, "prompt", root.get("prompt"))?,
            answer,
            grade,
            source: source.value.clone(),
        };
        task.check()?;
        Ok(task)
    }

    /// Checks keys that require other keys.
    fn check(&self) -> Result<()> {
        let missing =
            |key: &str, expected: &str| Error::field(&self.path, key, expected, "nothing (the key is missing)");
        match &self.method {
            method if method.votes() && self.answer.is_none() => Err(missing(
                "answer",
                &format!("how to find a sample's answer, because `{}` votes on answers", method.name()),
            )),
            Method::BestOfN { by: BestBy::Grade, .. } if self.grade.is_none() => {
                Err(missing("grade", "a grader, because `best_of_n` chooses by it"))
            }
            method if method.scoring() == Some(&ThoughtScoring::Grade) && self.grade.is_none() => {
                Err(missing("grade", &format!("a grader, because `{}` scores by it", method.name())))
            }
            _ => Ok(()),
        }
    }

    /// The items file; the task file itself if the items are inline.
    pub fn items_path(&self) -> &Path {
        &self.items.path
    }

    /// The items files that the task names only by a pattern or folder.
    pub fn item_files(&self) -> Result<Vec<PathBuf>> {
        self.items.files()
    }

    /// The files included in the prompts of `items` by paths that are templates.
    pub fn prompt_files<'i>(&self, items: impl Iterator<Item = &'i Item>) -> Result<BTreeSet<PathBuf>> {
        let mut files = BTreeSet::new();
        for item in items {
            files.extend(self.prompt.files(item)?);
            files.extend(self.method.prompt_files(item)?);
        }
        Ok(files)
    }

    /// The task's items in the file's order, at most `limit`, each checked for the fields that grader and method need.
    pub fn items(&self, limit: Option<usize>) -> Result<Vec<Item>> {
        let mut items = self.items.load(limit)?;
        if let Some(grader) = &self.grade {
            for item in &mut items {
                let (path, id, fields) = (&self.items.path, &item.id, &item.fields);
                item.standard = Some(match grader {
                    TaskGrading::Text(grader) => Standard::Reference(grader.reference(path, id, fields)?),
                    TaskGrading::Judge(judge) => Standard::Tests(Arc::new(judge.tests(path, id, fields)?)),
                });
            }
        }
        Ok(items)
    }

    /// Renders the item's prompt. An error names the item and its missing fields.
    pub fn prompt(&self, item: &Item) -> Result<TaskPrompt> {
        self.prompt.render(item)
    }

    /// The answer in a sample. `None`: it has none, or the task has no answers.
    pub fn answer(&self, text: &str) -> Option<ExtractedAnswer> {
        self.answer.as_ref().and_then(|extractor| extractor.extract(text))
    }

    /// Whether the task defines how to find an answer.
    pub fn has_answers(&self) -> bool {
        self.answer.is_some()
    }

    /// Grades a sample; `answer`: the result of [`Task::answer`]. If the task does not define answers, the whole text
    /// is the answer. `None`: the task has no grader, or a judge grades.
    pub fn grade(&self, item: &Item, text: &str, answer: Option<&ExtractedAnswer>) -> Option<GradedText> {
        let given = match self.answer {
            Some(_) => answer.map(|a| a.found.as_str()),
            None => Some(text),
        };
        match &item.standard {
            Some(Standard::Reference(reference)) => Some(reference.judge(text, given)),
            Some(Standard::Tests(_)) | None => None,
        }
    }

    /// Whether samples are programs for the judge.
    pub fn is_judged(&self) -> bool {
        matches!(self.grade, Some(TaskGrading::Judge(_)))
    }
}

impl Overrides {
    /// The overrides of keys that every task file has, as `key=value` assignments.
    fn assignments(&self) -> Vec<String> {
        let seed = self.seed.map(|seed| format!("sampling.seed={seed}"));
        self.set.iter().cloned().chain(seed).collect()
    }
}
