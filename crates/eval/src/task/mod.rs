//! A task file defines items, prompt, sampling, search, answers and grading. This module defines its keys, as types
//! whose schema checks a file and is printed by `offshoot help task`; renders prompts, extracts answers and grades
//! them. `run` executes a task.

pub mod candidate;
mod documents;
mod file_format;
mod grade;
pub mod help;
pub(crate) mod items;
mod judge;
mod matched;
mod method;
mod prompt;
pub mod scaffold;
mod scorer;
mod shots;
pub(crate) mod template;
mod verdict;

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

pub use grade::VerdictGrade;
pub use items::Item;
pub use judge::{AskedBy, AskedJudge, AskedKey, JudgeChoice, TaskJudge};
pub use method::{
    Choose, EarlyStop, FormSettings, Method, RewardScoring, SampleScorer, Sampling, ThoughtScoring, choose, scoring,
    steps, tree_of_thought,
};
pub use prompt::TaskPrompt;
pub use scorer::TaskScorer;
pub use verdict::{OwnQuestion, SAMPLE_ANSWER, TaskVerdict};

use crate::answer::{ExtractedAnswer, Extractor, TaskAnswer};
use crate::source::TaskSource;
use crate::source::schema::Schema;
use crate::source::values::TaskPath;
use grade::{GradeSettings, TaskGrading};
use items::{ItemSettings, ItemSource, Standard};
use judge::JudgeModelSettings;
use method::MethodSettings;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_engine::LogprobsMode;
use offshoot_form::Form;
use offshoot_search::confidence::ConfidenceSource;
use offshoot_search::settings::BestBy;
use offshoot_text::reasoning::answer_part;
use offshoot_text::{AddSpecial, SharedEncoder, SpecialText, Tokenizer};
use prompt::{PromptSettings, PromptTemplate};
use scorer::ScorerModelSettings;
pub use template::TEMPLATES;

/// A task file. It is JSON; `//` comments and a comma before a closing bracket are allowed, `null` means absent. Paths
/// are relative to the file; those of the command line to the current folder.
#[derive(Deserialize, JsonSchema)]
#[schemars(title = "A task of Offshoot")]
struct TaskSettings {
    /// Where editors find this schema; Offshoot does not read it.
    #[serde(rename = "$schema")]
    #[allow(dead_code, reason = "it is for editors")]
    schema: Option<String>,
    /// The task's name, which names the folder of results (default: the file's).
    name: Option<String>,
    /// The model's folder in Hugging Face layout (or --model).
    model: Option<TaskPath>,
    /// The folder of an adapter (LoRA) of the model, as PEFT writes it, that samples are drawn with (or --lora;
    /// default: none).
    adapter: Option<TaskPath>,
    /// Another model, whose scores a method asks for by `reward`: its folder, or an object (default: none).
    scorer: Option<ScorerModelSettings>,
    /// The model that is asked about samples where the method or `grade` has an object with a `prompt` for it: its
    /// folder, or an object (or --judge, --judge-url; default: the run's own model).
    judge: Option<JudgeModelSettings>,
    /// The problems, each an object of fields; those of a document become one item per question.
    items: ItemSettings,
    /// How an item becomes a prompt.
    prompt: PromptSettings,
    /// What becomes of special tokens' texts, such as "<|im_end|>", in prompts: "allow" makes them the tokens
    /// (default), "escape" makes them plain text, "refuse" refuses the item. Of a chat all texts but the chat
    /// template's own count.
    special_tokens: Option<SpecialTokens>,
    /// How an item is searched, and how its answer is chosen.
    method: MethodSettings,
    /// How tokens are sampled and when a sample ends.
    #[serde(default)]
    sampling: Sampling,
    /// How the answer in a sample is found. A method that votes needs it.
    answer: Option<TaskAnswer>,
    /// How samples are graded (default: they are not).
    grade: Option<GradeSettings>,
}

/// What becomes of special tokens' texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SpecialTokens {
    #[default]
    Allow,
    Escape,
    Refuse,
}

impl SpecialTokens {
    fn of_items(self) -> SpecialText {
        match self {
            SpecialTokens::Allow => SpecialText::Allow,
            SpecialTokens::Escape => SpecialText::Escape,
            SpecialTokens::Refuse => SpecialText::Refuse,
        }
    }

    /// What a model spells out is not the items' fault: it is never refused.
    fn of_samples(self) -> SpecialText {
        match self {
            SpecialTokens::Allow => SpecialText::Allow,
            SpecialTokens::Escape | SpecialTokens::Refuse => SpecialText::Escape,
        }
    }
}

/// The schema of a task file.
pub(crate) static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::of::<TaskSettings>);

/// Settings of the command line that override those of the task file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// `key=value`, `key` a dotted path into the task file, `value` JSON or else a string.
    pub set: Vec<String>,
    pub samples: Option<u32>,
    /// Model folder; relative to the current folder, unlike the task file's `model`.
    pub model: Option<PathBuf>,
    /// Folder of an adapter; relative to the current folder, too.
    pub adapter: Option<PathBuf>,
}

/// A checked task file.
#[derive(Debug)]
pub struct Task {
    pub path: PathBuf,
    pub name: String,
    pub model: Option<PathBuf>,
    /// The folder of the adapter that samples are drawn with.
    pub adapter: Option<PathBuf>,
    /// What scores solutions where the method asks for `reward`.
    pub scorer: TaskScorer,
    /// Who is asked about samples where a verdict object says so.
    pub judge: TaskJudge,
    pub method: Method,
    pub sampling: Sampling,
    /// The form of `sampling`.
    pub form: Option<Arc<Form>>,
    /// The file's JSON with the overrides applied, stored with the results.
    pub source: Value,
    items: ItemSource,
    prompt: PromptTemplate,
    /// `None`: the task does not say, and they are allowed.
    special_tokens: Option<SpecialTokens>,
    answer: Option<Extractor>,
    grade: Option<TaskGrading>,
}

impl Task {
    /// Reads and checks a task file and the text files that its prompt names; items are not read.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Task> {
        Task::of(path, TaskSource::read(path, &overrides.set)?, overrides)
    }

    /// The task with the source `value` ([`Task::source`]) of an earlier run, changed by `overrides`; `path`: the path
    /// of its file.
    pub fn reload(path: &Path, value: Value, overrides: &Overrides) -> Result<Task> {
        Task::of(path, TaskSource::of(path, value, &overrides.set)?, overrides)
    }

    /// Only the method of the task with the source `value`.
    pub fn method_of(path: &Path, value: Value) -> Result<Method> {
        let mut source = TaskSource::of(path, value, &[])?;
        let settings: TaskSettings = source.parse(&SCHEMA)?;
        Method::new(&source.root().key("method"), settings.method)
    }

    fn of(path: &Path, mut source: TaskSource, overrides: &Overrides) -> Result<Task> {
        if let Some(samples) = overrides.samples {
            source.set_samples(samples);
        }
        let settings: TaskSettings = source.parse(&SCHEMA)?;
        let root = source.root();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let answer = settings.answer.as_ref().map(|answer| Extractor::of_task(&root.key("answer"), answer));
        let of_answer = answer.as_ref().and_then(|answer| answer.as_ref().ok());
        let grade = settings.grade.map(|grade| TaskGrading::new(&root.key("grade"), grade, of_answer));
        let place = root.key("sampling");
        settings.sampling.check(&place)?;
        let form = settings.sampling.form.as_ref().map(|form| form.read(&place.key("form"))).transpose()?;
        let task = Task {
            path: path.to_path_buf(),
            name: settings.name.unwrap_or(stem),
            model: overrides.model.clone().or(settings.model.map(|model| source.resolve(&model.0))),
            adapter: overrides.adapter.clone().or(settings.adapter.map(|adapter| source.resolve(&adapter.0))),
            scorer: settings
                .scorer
                .map_or(Ok(TaskScorer::default()), |scorer| TaskScorer::new(&root.key("scorer"), scorer))?,
            judge: settings
                .judge
                .map_or(Ok(TaskJudge::default()), |judge| TaskJudge::new(&root.key("judge"), judge))?,
            method: Method::new(&root.key("method"), settings.method)?,
            sampling: settings.sampling,
            form: form.map(Arc::new),
            items: ItemSource::new(&root.key("items"), settings.items)?,
            prompt: PromptTemplate::new(&root.key("prompt"), settings.prompt)?,
            answer: answer.transpose()?,
            grade: grade.transpose()?,
            special_tokens: settings.special_tokens,
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
            Method::SelfConsistency { confidence: Some(confidence), .. }
                if confidence.source == ConfidenceSource::Listed && self.sampling.logprobs.unwrap_or(0) == 0 =>
            {
                let expected = "a number from 1 to 20, of which `confidence` is the mean (or its own key `top`)";
                Err(missing("sampling.logprobs", expected))
            }
            Method::SelfConsistency { confidence: Some(confidence), .. }
                if confidence.source == ConfidenceSource::Listed
                    && self.sampling.logprobs_mode() != LogprobsMode::RawLogprobs =>
            {
                let expected = "raw_logprobs, because `confidence` is that of the model's own distribution";
                Err(Error::field(&self.path, "sampling.logprobs_mode", expected, "processed_logprobs"))
            }
            Method::SelfConsistency { confidence: Some(confidence), .. }
                if self
                    .sampling
                    .return_confidence
                    .is_some_and(|of| confidence.measured_of().is_some_and(|top| top != of)) =>
            {
                let expected = "the number of tokens that `confidence` is the mean of, or none";
                let found = self.sampling.return_confidence.map_or(0, NonZeroU16::get).to_string();
                Err(Error::field(&self.path, "sampling.return_confidence", expected, found))
            }
            Method::BestOfN { by: BestBy::Grade, .. } if self.grade.is_none() => {
                Err(missing("grade", "a grader, because `best_of_n` chooses by it"))
            }
            method if method.scoring() == Some(&ThoughtScoring::Grade) && self.grade.is_none() => {
                Err(missing("grade", &format!("a grader, because `{}` scores by it", method.name())))
            }
            _ if self.answer.is_none() && self.graded_by_judge().is_some_and(|by| by.verdict.asks_about_answers()) => {
                Err(missing("answer", "how to find a sample's answer, which `grade.verdict` has as `sample_answer`"))
            }
            method if method.scoring() == Some(&ThoughtScoring::Grade) && self.graded_by_judge().is_some() => {
                let expected = "`mean_logprob`, `reward`, or an object with a question to the judge about steps: by \
                                `grade.verdict` it grades samples, one after another";
                Err(Error::field(&self.path, format!("method.{}.scorer", method.name()), expected, "grade"))
            }
            _ => Ok(()),
        }
    }

    /// The window by whose confidence samples would end, if none has so many tokens.
    pub fn unfilled_window(&self) -> Option<usize> {
        let Method::SelfConsistency { confidence: Some(how), .. } = &self.method else { return None };
        let window = how.windows.window.get();
        (how.warm_up().is_some() && window > self.sampling.max_tokens as usize).then_some(window)
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
            if let Some(grade) = self.graded_by_judge() {
                files.extend(grade.verdict.prompt_files(item)?);
            }
        }
        Ok(files)
    }

    /// The task's items in the file's order, at most `limit`, each checked for the fields that grader and method need.
    pub fn items(&self, limit: Option<usize>) -> Result<Vec<Item>> {
        let mut items = self.items.load(limit)?;
        if let Some(grader) = self.grade.as_ref().filter(|_| !self.asks_without_answers(&items)) {
            for item in &mut items {
                let (path, id, fields) = (&self.items.path, &item.id, &item.fields);
                item.standard = Some(match grader {
                    TaskGrading::Text(grader) => Standard::Reference(grader.reference(path, id, fields)?),
                    TaskGrading::Judge(judge) => Standard::Tests(Arc::new(judge.tests(path, id, fields)?)),
                    TaskGrading::Verdict(grade) => Standard::Verdict(grade.verdict.of_item(path, item)?),
                });
            }
        }
        Ok(items)
    }

    /// Whether the items are questions from a file of their own, none of which has an answer: then nothing is graded.
    fn asks_without_answers(&self, items: &[Item]) -> bool {
        let Some(TaskGrading::Text(grader)) = &self.grade else { return false };
        let Some(field) = grader.field().filter(|_| self.items.has_own_questions()) else { return false };
        let is_graded = self.method.scoring() == Some(&ThoughtScoring::Grade)
            || matches!(self.method, Method::BestOfN { by: BestBy::Grade, .. });
        let without = !is_graded && items.iter().all(|item| !item.fields.contains_key(field));
        if without {
            log::warn!("no question has the field `{field}`, with which `grade` compares: nothing is graded");
        }
        without
    }

    /// Renders the item's prompt. An error names the item and its missing fields.
    pub fn prompt(&self, item: &Item) -> Result<TaskPrompt> {
        self.prompt.render(item)
    }

    /// Encodes the prompts of items.
    pub fn encoder<'t>(&self, tokenizer: &'t Tokenizer) -> SharedEncoder<'t> {
        SharedEncoder::guarding(tokenizer, self.special_tokens.unwrap_or_default().of_items())
    }

    /// Encodes questions about samples that the model itself answers in the run's own batch.
    pub fn encoder_of_questions<'t>(&self, tokenizer: &'t Tokenizer) -> SharedEncoder<'t> {
        SharedEncoder::guarding(tokenizer, self.special_text_of_questions())
    }

    /// Encodes texts that hold what the model has said.
    pub fn encoder_of_samples<'t>(&self, tokenizer: &'t Tokenizer) -> SharedEncoder<'t> {
        SharedEncoder::guarding(tokenizer, self.special_tokens.unwrap_or_default().of_samples())
    }

    /// What becomes of special tokens' texts in questions to a judge, which is an engine of ours or the run's own
    /// model: they are plain text, unless the task says otherwise, as samples stand in the questions.
    pub fn special_text_of_questions(&self) -> SpecialText {
        self.special_tokens.map_or(SpecialText::Escape, SpecialTokens::of_samples)
    }

    /// The tokens of what the model has said, behind what was before it.
    pub fn encode_sample(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<TokenId>> {
        match self.special_tokens.unwrap_or_default().of_samples() {
            SpecialText::Allow => tokenizer.encode(text, AddSpecial::No),
            SpecialText::Escape | SpecialText::Refuse => tokenizer.encode_plain(text, AddSpecial::No),
        }
    }

    /// The answer in a sample, behind its reasoning. `None`: it has none, or the task has no answers.
    pub fn answer(&self, text: &str) -> Option<ExtractedAnswer> {
        self.answer.as_ref().and_then(|extractor| extractor.of_sample(text))
    }

    /// Whether the task defines how to find an answer.
    pub fn has_answers(&self) -> bool {
        self.answer.is_some()
    }

    /// Whether a sample is right; `answer`: the result of [`Task::answer`]. If the task does not define answers, the
    /// whole text is the answer. `None`: the task has no grader, or the text is run or judged elsewhere.
    pub fn grade(&self, item: &Item, text: &str, answer: Option<&ExtractedAnswer>) -> Option<bool> {
        let text = &*answer_part(text);
        let given = match self.answer {
            Some(_) => answer.map(|a| a.found.as_str()),
            None => Some(text),
        };
        match &item.standard {
            Some(Standard::Reference(reference)) => Some(reference.accepts(text, given)),
            Some(Standard::Tests(_) | Standard::Verdict(_)) | None => None,
        }
    }

    /// How a judge, which is a model, grades samples; `None`: none does.
    pub fn graded_by_judge(&self) -> Option<&VerdictGrade> {
        match &self.grade {
            Some(TaskGrading::Verdict(grade)) => Some(grade),
            Some(TaskGrading::Text(_) | TaskGrading::Judge(_)) | None => None,
        }
    }

    /// The method's question that the run's own model answers in its own batch. `is_own`: whether it is the judge.
    pub fn own_question(&self, is_own: bool) -> Option<OwnQuestion<'_>> {
        self.method.verdict().filter(|_| is_own).and_then(TaskVerdict::own_question)
    }

    /// What a judge is asked about the samples: by the method, and by the grader.
    pub fn verdicts(&self) -> [Option<&TaskVerdict>; 2] {
        [self.method.verdict(), self.graded_by_judge().map(|grade| &grade.verdict)]
    }

    /// Whether samples are programs for the judge.
    pub fn is_judged(&self) -> bool {
        matches!(self.grade, Some(TaskGrading::Judge(_)))
    }
}
