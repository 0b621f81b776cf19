//! Verdict objects of a task file: what a judge, which is a model, is asked about samples, and how its answers become
//! scores from 0 to 1. Checks which of their keys (`settings`) go together and renders their prompts; asking and
//! scoring are left to `offshoot_verdict`, the choice of the judge to `judge`.

mod settings;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

pub(crate) use settings::VerdictSettings;
use settings::{
    CriterionSettings, MOST_TOKENS, RubricSettings, VERDICT, WORDS, placed, rule_of_groups, rule_of_pairs,
    rule_of_score, rule_of_words,
};

use crate::source::Place;
use crate::task::items::Item;
use crate::task::prompt::{PromptTemplate, TaskPrompt};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::{describe, listed, names};
use offshoot_verdict::{AnswerRule, Criterion, RubricRule, Verdict, WordValues, points_in_prompts};

/// The text in question, in prompts.
const SAMPLE: &str = "sample";
/// Another name of it, which prompts of scorers have had first.
const THOUGHTS: &str = "thoughts";
/// The answer found in the text, in prompts of `grade.verdict`; null if there is none.
pub const SAMPLE_ANSWER: &str = "sample_answer";
/// What a rubric must be.
const RUBRIC: &str = "a list of objects with `criterion`, a text, and `points`, a number above 0";

/// A verdict object: what a judge is asked about samples, and how its answers become scores.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskVerdict {
    prompt: Arc<PromptTemplate>,
    asks: Asks,
    /// The task file, and the object's dotted path in it, for errors.
    task: PathBuf,
    at: String,
    /// Where it stands.
    key: VerdictKey,
}

/// A question that the run's own model answers in its own batch: the probabilities of words behind a prompt.
#[derive(Clone, Copy, Debug)]
pub struct OwnQuestion<'a> {
    /// Where it stands.
    pub verdict: &'a TaskVerdict,
    /// The answers, as direct continuations of the prompt, with their values.
    pub words: &'a [(String, f64)],
}

#[derive(Clone, Debug, PartialEq)]
enum Asks {
    /// One question about each text, answered by words, which the run's own model can read in its own batch.
    Words(Vec<(String, f64)>),
    /// The same of all items.
    Fixed(Arc<Verdict>),
    /// By a rubric, which is the item's field `field`.
    RubricOf { field: String, rule: AnswerRule },
}

/// The key at which a verdict object stands, which decides what it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerdictKey {
    /// `by` of `best_of_n`.
    Best,
    /// `weigh_by` of `self_consistency`.
    Votes,
    /// What scores whole and partial solutions of a search.
    Steps,
    /// What scores particles.
    Chances,
    /// `evaluate.judge` of `tree_of_thought`.
    Paths,
    /// `grade.verdict`.
    Grade,
}

impl VerdictKey {
    fn compares(self) -> bool {
        matches!(self, VerdictKey::Best | VerdictKey::Votes)
    }

    /// Whether the run's own model reads the probabilities of words in its own batch.
    fn reads_words(self) -> bool {
        matches!(self, VerdictKey::Best | VerdictKey::Steps | VerdictKey::Chances)
    }
}

impl TaskVerdict {
    /// `place`: of the object.
    pub(crate) fn new(place: &Place<'_>, settings: VerdictSettings, key: VerdictKey) -> Result<TaskVerdict> {
        let VerdictSettings { prompt, words, score, rubric, pairs, groups, max_tokens } = settings;
        let prompt = Arc::new(PromptTemplate::new(&place.key("prompt"), prompt)?);
        let is_given = [
            ("words", words.is_some()),
            ("score", score.is_some()),
            ("pairs", pairs.is_some()),
            ("groups", groups.is_some()),
        ];
        let given: Vec<&str> = is_given.iter().filter(|(_, is_given)| *is_given).map(|(key, _)| *key).collect();
        if given.len() != 1 {
            let found = if given.is_empty() { "none of the four".to_owned() } else { listed(&given) };
            return Err(place.wrong_as(VERDICT, found));
        }
        let is_written = score.is_some() || groups.is_some() || pairs.as_ref().is_some_and(|by| by.winner.is_some());
        if max_tokens.is_some() && !is_written {
            return Err(place.key("max_tokens").wrong("nothing where words answer: they are read, not written"));
        }
        if rubric.is_some() && words.is_none() && score.is_none() {
            return Err(place.key("rubric").wrong(format!("nothing beside `{}`", given[0])));
        }
        if !key.compares() && (pairs.is_some() || groups.is_some()) {
            let expected =
                "nothing here: only `by` of `best_of_n` and `weigh_by` of `self_consistency` compare samples";
            return Err(place.key(given[0]).wrong(expected));
        }
        let tokens = max_tokens.map_or(MOST_TOKENS, |tokens| tokens as usize);
        let (task, at) = (place.source.path.clone(), place.field().to_owned());
        let of = |asks| TaskVerdict { prompt, asks, task, at, key };
        let rule = match (words, score) {
            (Some(words), _) if rubric.is_none() && key.reads_words() => {
                if words.0.len() < 2 || words.0.iter().any(|(word, _)| word.is_empty()) {
                    return Err(place.key("words").wrong(WORDS));
                }
                if key == VerdictKey::Chances && words.0.iter().any(|(_, value)| !(0.0..=1.0).contains(value)) {
                    let expected = "words with values from 0 to 1, by whose mean particles are drawn";
                    return Err(place.key("words").wrong(expected));
                }
                return of(Asks::Words(words.0)).checked(place);
            }
            (Some(words), _) => Some(rule_of_words(&place.key("words"), words.0)?),
            (None, Some(score)) => Some(rule_of_score(&place.key("score"), score, tokens)?),
            (None, None) => None,
        };
        let asks = match (rule, rubric, pairs, groups) {
            (Some(rule), Some(RubricSettings::Field(field)), ..) => Asks::RubricOf { field, rule },
            (Some(rule), Some(RubricSettings::Criteria(criteria)), ..) => {
                let criteria =
                    criteria.into_iter().map(|CriterionSettings { criterion, points }| Criterion { criterion, points });
                let rubric = RubricRule::new(criteria.collect(), rule).map_err(placed(&place.key("rubric")))?;
                Asks::Fixed(Arc::new(Verdict::Rubric(rubric)))
            }
            (Some(rule), None, ..) => Asks::Fixed(Arc::new(Verdict::Each(rule))),
            (None, _, Some(pairs), _) => {
                Asks::Fixed(Arc::new(Verdict::Pairs(rule_of_pairs(&place.key("pairs"), pairs, tokens)?)))
            }
            (None, _, None, groups) => {
                let groups = groups.expect("one of the four is given, and none of the other three is");
                Asks::Fixed(Arc::new(Verdict::Groups(rule_of_groups(&place.key("groups"), groups, tokens)?)))
            }
        };
        of(asks).checked(place)
    }

    /// Refuses a prompt that does not contain what it asks about.
    fn checked(self, place: &Place<'_>) -> Result<TaskVerdict> {
        let has = |name: &str| self.prompt.takes_in(name);
        let lacking = match &self.asks {
            Asks::Fixed(verdict) if matches!(**verdict, Verdict::Pairs(_)) => match has("first") && has("second") {
                true => None,
                false => Some("`{{first}}` and `{{second}}`, the samples to compare"),
            },
            Asks::Fixed(verdict) if matches!(**verdict, Verdict::Groups(_)) => match has("samples") {
                true => None,
                false => Some("`samples`, the list of the samples to pick from"),
            },
            _ if !has(SAMPLE) && !has(THOUGHTS) => Some("`{{sample}}`, the text to judge"),
            _ if self.has_rubric() && !has("criterion") => Some("`{{criterion}}`, what is asked of the text"),
            _ => None,
        };
        match lacking {
            Some(what) => Err(place.key("prompt").wrong_as(format!("a prompt that contains {what}"), "one without it")),
            None => Ok(self),
        }
    }

    fn has_rubric(&self) -> bool {
        match &self.asks {
            Asks::Words(_) => false,
            Asks::Fixed(verdict) => matches!(**verdict, Verdict::Rubric(_)),
            Asks::RubricOf { .. } => true,
        }
    }

    /// The question that the run's own model can answer in its own batch, where it is the judge: one about each text,
    /// by words. `None`: a judge must be asked.
    pub fn own_question(&self) -> Option<OwnQuestion<'_>> {
        match &self.asks {
            Asks::Words(words) => Some(OwnQuestion { verdict: self, words }),
            Asks::Fixed(_) | Asks::RubricOf { .. } => None,
        }
    }

    /// Refuses values that only the run's own model takes: a judge's are from 0 to 1.
    pub fn check_values(&self) -> Result<()> {
        match &self.asks {
            Asks::Words(words) => self.rule_of(words).map(drop),
            Asks::Fixed(_) | Asks::RubricOf { .. } => Ok(()),
        }
    }

    fn rule_of(&self, words: &[(String, f64)]) -> Result<AnswerRule> {
        WordValues::new(words.iter().cloned()).map(AnswerRule::Words).map_err(|error| match error {
            Error::Value { what, expected, found } => {
                let expected = format!("{expected} as the {what}, for a judge's scores are such numbers");
                Error::field(&self.task, format!("{}.words", self.at), expected, found)
            }
            other => other,
        })
    }

    /// Whether samples of an item are compared with each other.
    pub fn compares(&self) -> bool {
        matches!(&self.asks, Asks::Fixed(verdict) if verdict.compares())
    }

    /// Whether its prompt shows the answer that was found in a text.
    pub(crate) fn asks_about_answers(&self) -> bool {
        self.prompt.takes_in(SAMPLE_ANSWER)
    }

    /// Whether what is asked differs between items: by the rubric that each has.
    pub fn is_of_items(&self) -> bool {
        matches!(self.asks, Asks::RubricOf { .. })
    }

    /// What a judge is asked about the samples of `item`, which is of the file `path`.
    ///
    /// # Errors
    ///
    /// Values of words are not from 0 to 1, which only the run's own model takes; the item's field holds no rubric.
    pub fn of_item(&self, path: &Path, item: &Item) -> Result<Arc<Verdict>> {
        match &self.asks {
            Asks::Fixed(verdict) => Ok(Arc::clone(verdict)),
            Asks::Words(words) => Ok(Arc::new(Verdict::Each(self.rule_of(words)?))),
            Asks::RubricOf { field, rule } => {
                let wrong = |found: String| {
                    let expected = format!("{RUBRIC}, in item `{}`, as `{}.rubric` says", item.id, self.at);
                    Error::field(path, field, expected, found)
                };
                let Some(value) = item.fields.get(field) else {
                    return Err(wrong(format!("the fields {}", names(&item.fields))));
                };
                let criteria = criteria_in(value).ok_or_else(|| wrong(describe(value)))?;
                let rubric = RubricRule::new(criteria, rule.clone()).map_err(|error| wrong(error.to_string()))?;
                Ok(Arc::new(Verdict::Rubric(rubric)))
            }
        }
    }

    /// The prompt of a question about `item` with these names beside its fields.
    ///
    /// # Errors
    ///
    /// The item has a field of such a name, and the prompt uses it.
    pub fn prompt(&self, item: &Item, more: &Map<String, Value>) -> Result<TaskPrompt> {
        let is_taken = |name: &&String| item.fields.contains_key(*name) && self.prompt.takes_in(name);
        if let Some(name) = more.keys().find(is_taken) {
            let expected = format!("items without a field `{name}`, which is another thing in `{}.prompt`", self.at);
            return Err(Error::value(format!("item `{}`", item.id), expected, "one"));
        }
        let mut item = item.clone();
        item.fields.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        self.prompt.render(&item)
    }

    /// The prompt of a question about one text.
    pub fn prompt_about(&self, item: &Item, text: &str) -> Result<TaskPrompt> {
        self.prompt(item, &about_one(text))
    }

    /// The prompt of the first question about `item`, in which samples are only named.
    pub fn first_prompt(&self, path: &Path, item: &Item) -> Result<TaskPrompt> {
        let mut sample = about_one("[a sample]");
        if self.key == VerdictKey::Grade {
            sample.insert(SAMPLE_ANSWER.to_owned(), json!("[its answer]"));
        }
        let more = match &self.asks {
            Asks::Words(_) => sample,
            Asks::Fixed(_) | Asks::RubricOf { .. } => match &*self.of_item(path, item)? {
                Verdict::Each(_) => sample,
                Verdict::Rubric(rubric) => {
                    let Criterion { criterion, points } = &rubric.criteria()[0];
                    let of_rubric = fields([("criterion", json!(criterion)), ("points", points_in_prompts(*points))]);
                    sample.into_iter().chain(of_rubric).collect()
                }
                Verdict::Pairs(_) => fields([("first", json!("[a sample]")), ("second", json!("[another one]"))]),
                Verdict::Groups(rule) => fields([
                    ("samples", json!(["[a sample]", "[another one]"])),
                    ("count", json!(2)),
                    ("take", json!(rule.take())),
                ]),
            },
        };
        self.prompt(item, &more)
    }

    /// The files included in its prompts about `item` by paths that are templates.
    pub(crate) fn prompt_files(&self, item: &Item) -> Result<Vec<PathBuf>> {
        self.prompt.files(item)
    }

    /// Its dotted path in the task file.
    pub fn key(&self) -> &str {
        &self.at
    }
}

/// The names of a question about one text.
fn about_one(text: &str) -> Map<String, Value> {
    fields([SAMPLE, THOUGHTS].map(|name| (name, json!(text))))
}

fn fields<const N: usize>(named: [(&str, Value); N]) -> Map<String, Value> {
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The criteria in an item's field.
fn criteria_in(value: &Value) -> Option<Vec<Criterion>> {
    let criterion = |one: &Value| {
        Some(Criterion { criterion: one.get("criterion")?.as_str()?.to_owned(), points: one.get("points")?.as_f64()? })
    };
    value.as_array()?.iter().map(criterion).collect()
}
