//! A task file: which items, what prompt, how to sample, what the answer is and when it is right. This module reads and
//! checks it and turns items into prompts and texts into answers and verdicts; running it is left to `run`.
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
//! | `answer` | `{boxed, regex, take, normalise}`: `true` where an answer stands in `\boxed{…}` or `\fbox{…}`, regex or list of them (tried where there is no box), `last` or `first`, `number`, `text`, `choice`, `latex` (mathematics: see [`latex`](crate::eval::answer::latex)) or `none` |
//! | `grade` | one of `{exact: {field, boxed, regex, take, normalise}}`, `{number: {field, boxed, regex, take, tolerance}}`, `{regex: {field}}`, `{regex: {pattern}}`, `{contains: {field, ignore_case}}`, `{expression: {numbers, value}}`: fields as `{field: NAME}`, the value also as a number; or `{judge: {format, extract, language, timeout, memory_mb, checker}}`: the item is a programming problem of a benchmark (see [`benchmark`](crate::eval::benchmark)), samples are run against its tests; `extract` is `auto`, `completion` or `fence` (a Markdown code block), `timeout` in seconds of processor time |
//!
//! Items are JSON lines, a JSON list or CSV, gzipped or not; items listed in the task file itself are named by their
//! field `id` where all have one. A folder's `.txt` and `.md` files, or one such file, are an item each, with the
//! fields `id` (the file's name without its end), `name` and `document` (the text). `questions` names a field that
//! lists a document's questions, or is `{path, document, format, columns}`: a file of questions, whose field `document`
//! names holds the document's id, or its file's name; without `document`, every question is asked of every document.
//! Each question becomes an item `document/0`, `document/1` … with the document's fields and its own. `shared` is text
//! as it stands; `item`, `levels` and a chat's turns are Jinja templates over the item's fields. Each of these texts is
//! a string or `{file: PATH}`.

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

/// Settings of the command line that replace those of the task file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `key=value`, `key` a dotted path into the task file, `value` JSON or else a string.
    pub set: Vec<String>,
    pub samples: Option<u32>,
    pub seed: Option<u64>,
    /// Relative to the current folder, unlike the task file's own.
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
    /// The file's JSON with the overrides applied, to be kept beside the results.
    pub source: Value,
    items: ItemSource,
    prompt: PromptTemplate,
    answer: Option<Extractor>,
    grade: Option<TaskGrading>,
}

const KEYS: [&str; 8] = ["name", "model", "items", "prompt", "method", "sampling", "answer", "grade"];

impl Task {
    /// Reads and checks a task file and the text files that its prompt names; items are not touched.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Task> {
        Task::of(path, TaskSource::read(path, &overrides.assignments())?, overrides)
    }

    /// The task whose file, at `path`, held `value` (its [`Task::source`]), changed by `overrides`.
    pub fn reload(path: &Path, value: Value, overrides: &Overrides) -> Result<Task> {
        Task::of(path, TaskSource::of(path, value, &overrides.assignments())?, overrides)
    }

    /// The method alone of the task whose file, at `path`, held `value`.
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

    /// What one key demands of another.
    fn check(&self) -> Result<()> {
        let missing =
            |key: &str, expected: &str| Error::field(&self.path, key, expected, "nothing (the key is missing)");
        match &self.method {
            method if method.votes() && self.answer.is_none() => {
                Err(missing("answer", &format!("how to find a sample's answer, which `{}` votes on", method.name())))
            }
            Method::BestOfN { by: BestBy::Grade, .. } if self.grade.is_none() => {
                Err(missing("grade", "a grader, by which `best_of_n` is to choose"))
            }
            method if method.scoring() == Some(&ThoughtScoring::Grade) && self.grade.is_none() => {
                Err(missing("grade", &format!("a grader, by which `{}` is to score", method.name())))
            }
            _ => Ok(()),
        }
    }

    /// The file that holds the items; the task file itself where they are inline.
    pub fn items_path(&self) -> &Path {
        &self.items.path
    }

    /// The items' files where no string of the task names them: those that a pattern matches, those of a folder.
    pub fn item_files(&self) -> Result<Vec<PathBuf>> {
        self.items.files()
    }

    /// The files that the prompts of `items` take in beside those that a string of the task names: their paths are
    /// templates.
    pub fn prompt_files<'i>(&self, items: impl Iterator<Item = &'i Item>) -> Result<BTreeSet<PathBuf>> {
        let mut files = BTreeSet::new();
        for item in items {
            files.extend(self.prompt.files(item)?);
            files.extend(self.method.prompt_files(item)?);
        }
        Ok(files)
    }

    /// The task's items in the file's order, at most `limit` of them, each checked for what the grader needs.
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

    /// The item's prompt, rendered. An error names the item and the fields that it lacks.
    pub fn prompt(&self, item: &Item) -> Result<TaskPrompt> {
        self.prompt.render(item)
    }

    /// What a sample answers. `None`: it gives no answer, or the task asks for none.
    pub fn answer(&self, text: &str) -> Option<ExtractedAnswer> {
        self.answer.as_ref().and_then(|extractor| extractor.extract(text))
    }

    /// Whether the task says how to find an answer.
    pub fn has_answers(&self) -> bool {
        self.answer.is_some()
    }

    /// Whether a sample is right; `answer` is what [`Task::answer`] found in it. Where the task does not say how to
    /// find answers, its whole text is taken for one. `None`: the task does not say what is right, or leaves it to the
    /// judge.
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
    /// What is set at a path that every task file has.
    fn assignments(&self) -> Vec<String> {
        let seed = self.seed.map(|seed| format!("sampling.seed={seed}"));
        self.set.iter().cloned().chain(seed).collect()
    }
}
