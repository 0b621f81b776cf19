//! `offshoot score`: a scorer's scores of texts that are there already, with no other model. The lines of a file are
//! written again with the scores of their texts (`file`), by which `vote` chooses; the samples of a run get theirs in
//! place (`of_run`), by which `rescore` chooses. Which texts are scored at once is left to `queue`.

mod file;
mod of_run;
mod questions;
mod queue;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::report::PromptTokens;
use crate::task::{Overrides, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{count, counted, saved};
use offshoot_core::interrupt::Interrupt;
use offshoot_core::setting::{AGGREGATE, DELIMITER, SCORER, SET, TASK};
use offshoot_launch::{EngineOptions, LaunchedScorer, ScorerFolder, ScorerOptions};
use offshoot_score::{Aggregate, Scale, ScorerIdentity};
use offshoot_search::SampleScore;

use super::manifest;

pub use offshoot_score::FormChoice;

/// The options of `offshoot score`.
#[derive(Clone, Debug)]
pub struct ScoreTextsOptions {
    /// A file of samples as `offshoot vote` reads them, or the folder of a run.
    pub samples: PathBuf,
    /// The scorer's folder; `None`: the task's.
    pub scorer: Option<PathBuf>,
    /// Its form; `None`: the task's, or the one in its folder, or that of its class.
    pub form: Option<FormChoice>,
    /// What the texts answer, as the scorer is told it: a template, or the name of a field. `None`: the task says it,
    /// or the first of the usual fields.
    pub question: Option<String>,
    /// The task about whose items the texts of a file are; a run has its own.
    pub task: Option<PathBuf>,
    /// `key=value` changes to the task.
    pub set: Vec<String>,
    /// The fields of an item's id and of the text; `None`: the first of the usual names.
    pub id: Option<String>,
    pub text: Option<String>,
    /// Ends a step of a text; `None`: as the task's method says, or a line end.
    pub delimiter: Option<String>,
    /// What makes one score of those of a text's steps; `None`: as the task's method says, or the scorer's form.
    pub aggregate: Option<Aggregate>,
    /// The file that is written, of JSON lines; `None`: beside the samples.
    pub out: Option<PathBuf>,
    /// What the names of written fields begin with; `None`: they are `scores`, `score` and `score_error`.
    pub name: Option<String>,
    /// Whether the totals are printed as JSON.
    pub json: bool,
    pub engine: EngineOptions,
}

/// Scores the texts of a file or of a run.
///
/// # Errors
///
/// The samples, the task or the scorer are no such; a text has no score, once all others are written.
pub fn score(options: &ScoreTextsOptions, interrupt: &Interrupt) -> Result<()> {
    if let Some(delimiter) = options.delimiter.as_ref().filter(|text| text.is_empty() || text.contains("\\n")) {
        let expected = "the characters that end a step (a shell writes a line end as $'\\n')";
        return Err(Error::value(DELIMITER, expected, format!("`{delimiter}`")));
    }
    match options.samples.join(manifest::NAME).is_file() {
        true => of_run::score(options, interrupt),
        false => file::score(options, interrupt),
    }
}

impl ScoreTextsOptions {
    /// The task about whose items the texts of a file are; a run has its own.
    fn task(&self) -> Result<Option<Task>> {
        let allowed = ["items", "prompt", "scorer"];
        let key = |set: &&String| set.split(['.', '=']).next().unwrap_or_default().trim().to_owned();
        if let Some(set) = self.set.iter().find(|set| !allowed.contains(&key(set).as_str())) {
            return Err(Error::value(SET, "a key of `items`, `prompt` or `scorer`", format!("`{set}`")));
        }
        let overrides = Overrides { set: self.set.clone(), ..Overrides::default() };
        match (&self.task, &self.set[..]) {
            (Some(path), _) => Task::load(path, &overrides).map(Some),
            (None, []) => Ok(None),
            (None, _) => Err(Error::value(SET, format!("none without {TASK}"), "one")),
        }
    }

    /// The scorer's folder: the one that the user names, or the task's.
    fn folder(&self, task: Option<&Task>) -> Result<ScorerFolder> {
        let form = self.form.clone();
        let asked = self.scorer.clone().map(|path| ScorerOptions { path, form: form.clone(), memory: None });
        let found = match task {
            Some(task) => task.scorer.options(asked.as_ref()),
            None => asked,
        };
        let ScorerOptions { path, form: of_task, .. } =
            found.ok_or_else(|| Error::value(SCORER, "the folder of a scorer", "none"))?;
        ScorerFolder::open(&path, form.or(of_task).as_ref())
    }

    /// What makes one score of those of a text's parts.
    fn aggregate(&self, of_method: Option<Aggregate>, folder: &ScorerFolder) -> Result<Aggregate> {
        let form = folder.resolved()?;
        let aggregate = self.aggregate.or(of_method).unwrap_or(form.aggregate());
        match aggregate.fits(form.scale()) {
            true => Ok(aggregate),
            false => Err(Error::value(AGGREGATE, "last, min or mean, as the scorer's scores are logits", "product")),
        }
    }
}

/// The error of an interrupt, if there was one.
fn check(interrupted: &AtomicBool) -> Result<()> {
    if interrupted.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

/// What was scored.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct TextTotals {
    /// Texts with a score; equal ones count each.
    texts: usize,
    /// The scorer's tokens of these with their questions.
    tokens: usize,
    /// Texts without a score.
    unscored: usize,
    /// Where the first of these is, and why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
}

impl TextTotals {
    /// Counts the score of a text at `place`.
    fn add(&mut self, place: &dyn fmt::Display, score: &SampleScore) {
        match score {
            SampleScore::Scored { score_tokens, .. } => {
                (self.texts, self.tokens) = (self.texts + 1, self.tokens + score_tokens.unwrap_or_default());
            }
            SampleScore::Unscored { score_error } => {
                self.unscored += 1;
                self.first_error.get_or_insert_with(|| format!("{place}: {score_error}"));
            }
        }
    }

    /// The error of texts without a score.
    fn left_out(&self) -> Option<String> {
        let first = self.first_error.as_ref()?;
        let all = counted((self.texts + self.unscored) as u64, "text");
        let verb = if self.unscored == 1 { "has" } else { "have" };
        Some(format!("{} of {all} {verb} no score, first {first}", count(self.unscored as u64)))
    }
}

/// What is printed in the end.
#[derive(Serialize)]
struct ScoringReport<'r> {
    scorer: &'r ScorerIdentity,
    scale: Scale,
    #[serde(flatten)]
    totals: &'r TextTotals,
    /// Tokens that the scorer's engine was given and computed.
    prompts: PromptTokens,
    results: String,
}

impl<'r> ScoringReport<'r> {
    fn new(launched: &'r LaunchedScorer, totals: &'r TextTotals, results: String) -> Result<ScoringReport<'r>> {
        let prompts = PromptTokens::of(&launched.scorer.engine().metrics()?);
        let scale = launched.scorer.form().scale();
        Ok(ScoringReport { scorer: launched.folder.identity(), scale, totals, prompts, results })
    }
}

impl fmt::Display for ScoringReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, text: String| writeln!(f, "{name:<11} {text}");
        let scale = match self.scale {
            Scale::Probability => "probabilities",
            Scale::Logit => "logits",
        };
        line("scorer", format!("{}, form {}, whose scores are {scale}", self.scorer.name, self.scorer.form))?;
        let TextTotals { texts, tokens, unscored, first_error } = self.totals;
        let [texts, tokens] = [(*texts, "text"), (*tokens, "token")].map(|(n, what)| counted(n as u64, what));
        let lacking = match first_error {
            Some(first) => format!("; {} not scored, first {first}", counted(*unscored as u64, "text")),
            None => String::new(),
        };
        line("scored", format!("{texts} of {tokens}{lacking}"))?;
        if let PromptTokens { asked: asked @ 1.., computed, .. } = self.prompts {
            let [all, own] = [asked, computed].map(count);
            line("scoring", format!("{all} tokens to score, {own} computed: {} saved", saved(computed, asked)))?;
        }
        line("results", self.results.clone())
    }
}
