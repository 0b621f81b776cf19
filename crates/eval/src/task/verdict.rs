//! Verdict objects of a task file: what a judge, which is a model, is asked about samples, and how its answers become
//! scores from 0 to 1. Defines their keys and renders their prompts; asking and scoring are left to `offshoot_verdict`,
//! the choice of the judge to `judge`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::source::Place;
use crate::source::values::Pairs;
use crate::task::items::Item;
use crate::task::method::SchemaSettings;
use crate::task::prompt::{PromptSettings, PromptTemplate, TaskPrompt};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::{describe, listed, names};
use offshoot_verdict::{
    AnswerRule, Criterion, GroupRule, PairAnswer, PairRule, RubricRule, ScoreField, Verdict, WinnerField, WordValues,
};

/// What a judge is asked about samples, and how its answers become scores: exactly one of `words`, `score`, `pairs` and
/// `groups`; a `rubric` beside the first two.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("x-expected" = VERDICT))]
pub(crate) struct VerdictSettings {
    /// The question, over the item's fields and `sample`, the text in question (`thoughts` is the same text). With
    /// `rubric` also `criterion` and `points`; with `pairs` two texts, `first` and `second`, instead; with `groups` the
    /// list `samples`, its length `count`, and `take`.
    prompt: PromptSettings,
    /// The answers as they continue the prompt, with their values: {" yes": 1, " no": 0}. The score is the mean of the
    /// values, weighted by the words' probabilities.
    #[schemars(extend("x-expected" = WORDS))]
    words: Option<Pairs<f64>>,
    /// The judge answers with JSON that holds the score.
    score: Option<ScoreSettings>,
    /// Criteria with points, each a question of its own: a list, or the item's field that has one. The score is the
    /// share of all points.
    rubric: Option<RubricSettings>,
    /// Samples of an item are compared two by two. A sample's score is the share of its comparisons that it wins.
    pairs: Option<PairSettings>,
    /// The judge picks the best of several samples, whose score is 1; that of the others is 0.
    groups: Option<GroupSettings>,
    /// With `score`, `pairs.winner` or `groups`: the most tokens of an answer (default: 512).
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
}

/// What a verdict object must be.
pub(crate) const VERDICT: &str = "an object with `prompt` and one of `words`, `score`, `pairs` and `groups`";
const WORDS: &str = "at least two words with their values, {\" yes\": 1, \" no\": 0}";

#[derive(Deserialize, JsonSchema)]
struct ScoreSettings {
    /// Where the number stands in the answer, as a JSON Pointer.
    #[serde(default = "at_score")]
    #[schemars(extend("x-expected" = POINTER))]
    at: String,
    /// The number of the worst sample, which becomes 0.
    #[serde(default)]
    low: f64,
    /// The number of the best sample, which becomes 1.
    high: f64,
    /// The answer's JSON Schema, or a file with it (default: an object with `reasoning`, a text, and `score`).
    schema: Option<SchemaSettings>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline, extend("x-expected" = "a list of objects with `criterion` and `points`, or an item's field"))]
enum RubricSettings {
    Field(String),
    Criteria(Vec<CriterionSettings>),
}

#[derive(Deserialize, JsonSchema)]
struct CriterionSettings {
    /// What the sample must do, as the prompt's `criterion`.
    criterion: String,
    /// What it counts.
    #[schemars(extend("exclusiveMinimum" = 0, "x-expected" = "a number above 0"))]
    points: f64,
}

#[derive(Deserialize, JsonSchema)]
struct PairSettings {
    /// The two words that name the better text, the first one's before the second one's: [" A", " B"].
    #[schemars(extend("x-expected" = "two words, [\" A\", \" B\"]"))]
    words: Option<Vec<String>>,
    /// Instead of words: the judge answers with JSON that names the better text.
    winner: Option<WinnerSettings>,
    /// Whether each pair is asked about in both orders, so that a judge that prefers a place prefers no sample.
    #[serde(default = "yes")]
    both_orders: bool,
    /// Each sample is compared with so many others at least (default: with all).
    #[schemars(range(min = 1))]
    opponents: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
struct WinnerSettings {
    /// Where the better text is named in the answer, as a JSON Pointer.
    #[serde(default = "at_winner")]
    #[schemars(extend("x-expected" = POINTER))]
    at: String,
    /// What names the first text.
    #[serde(default = "letter_a")]
    first: String,
    /// What names the second one.
    #[serde(default = "letter_b")]
    second: String,
    /// What says that none is better.
    #[serde(default = "tie")]
    tie: String,
    /// The answer's JSON Schema, or a file with it (default: an object with `reasoning`, a text, and `winner`).
    schema: Option<SchemaSettings>,
}

#[derive(Deserialize, JsonSchema)]
struct GroupSettings {
    /// How many samples of a group the judge picks.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    take: u32,
    /// The most samples of a group. More are drawn into several.
    #[serde(default = "eight")]
    #[schemars(range(min = 2))]
    size: u32,
    /// How often each group is asked about, each time in another order; the score is the mean.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    rotations: u32,
    /// Where the list of the picked numbers stands in the answer, as a JSON Pointer. They count from 1.
    #[serde(default = "at_selected")]
    #[schemars(extend("x-expected" = POINTER))]
    at: String,
    /// The answer's JSON Schema, or a file with it (default: an object with `reasoning`, a text, and `selected`).
    schema: Option<SchemaSettings>,
}

const POINTER: &str = "a JSON Pointer, such as \"/score\"";

fn at_score() -> String {
    "/score".to_owned()
}

fn at_winner() -> String {
    "/winner".to_owned()
}

fn at_selected() -> String {
    "/selected".to_owned()
}

fn letter_a() -> String {
    "A".to_owned()
}

fn letter_b() -> String {
    "B".to_owned()
}

fn tie() -> String {
    "tie".to_owned()
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn eight() -> u32 {
    8
}

/// The most tokens of an answer in JSON, where nothing else is said.
const MOST_TOKENS: usize = 512;
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
                    let of_rubric = fields([("criterion", json!(criterion)), ("points", json!(points))]);
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

/// Gives an error about a value its place.
fn placed<'p>(place: &'p Place<'_>) -> impl Fn(Error) -> Error + 'p {
    move |error| match error {
        Error::Value { what, expected, found } => place.wrong_as(format!("{expected} as the {what}"), found),
        other => other,
    }
}

fn rule_of_words(place: &Place<'_>, words: Vec<(String, f64)>) -> Result<AnswerRule> {
    WordValues::new(words).map(AnswerRule::Words).map_err(placed(place))
}

fn rule_of_score(place: &Place<'_>, score: ScoreSettings, tokens: usize) -> Result<AnswerRule> {
    let ScoreSettings { at: pointer, low, high, schema } = score;
    if low >= high {
        return Err(place.key("high").wrong(format!("a number above `low`, {low}")));
    }
    let schema = schema.map(|schema| schema.read(&place.key("schema"))).transpose()?;
    ScoreField::new(pointer, (low, high), schema, tokens).map(AnswerRule::Score).map_err(placed(&place.key("at")))
}

fn rule_of_pairs(place: &Place<'_>, pairs: PairSettings, tokens: usize) -> Result<PairRule> {
    let PairSettings { words, winner, both_orders, opponents } = pairs;
    let answer = match (words, winner) {
        (Some(words), None) => {
            let place = place.key("words");
            let Ok([first, second]) = <[String; 2]>::try_from(words) else {
                return Err(place.wrong("two words, [\" A\", \" B\"]"));
            };
            PairAnswer::words(first, second).map_err(placed(&place))?
        }
        (None, Some(winner)) => {
            let place = place.key("winner");
            let WinnerSettings { at: pointer, first, second, tie, schema } = winner;
            let schema = schema.map(|schema| schema.read(&place.key("schema"))).transpose()?;
            let names = (first, second, Some(tie));
            WinnerField::new(pointer, names, schema, tokens).map(PairAnswer::Winner).map_err(placed(&place))?
        }
        (None, None) => return Err(place.wrong_as("`words` or `winner`", "none of them")),
        (Some(_), Some(_)) => return Err(place.wrong_as("`words` or `winner`", "both")),
    };
    PairRule::new(answer, both_orders, opponents.map(|most| most as usize)).map_err(placed(&place.key("opponents")))
}

fn rule_of_groups(place: &Place<'_>, groups: GroupSettings, tokens: usize) -> Result<GroupRule> {
    let GroupSettings { take, size, rotations, at: pointer, schema } = groups;
    if take >= size {
        return Err(place.key("take").wrong(format!("less than the samples of a group, {size}")));
    }
    let schema = schema.map(|schema| schema.read(&place.key("schema"))).transpose()?;
    GroupRule::new(take as usize, size as usize, rotations as usize, pointer, schema, tokens).map_err(placed(place))
}
