//! The keys of verdict objects, and the rules that they say: how a judge answers, and what its answers are worth. Which
//! keys go together is left to the parent module.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::source::Place;
use crate::source::values::Pairs;
use crate::task::method::SchemaSettings;
use crate::task::prompt::PromptSettings;
use offshoot_core::error::{Error, Result};
use offshoot_verdict::{AnswerRule, GroupRule, PairAnswer, PairRule, ScoreField, WinnerField, WordValues};

/// What a judge is asked about samples, and how its answers become scores: exactly one of `words`, `score`, `pairs` and
/// `groups`; a `rubric` beside the first two.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("x-expected" = VERDICT))]
pub(crate) struct VerdictSettings {
    /// The question, over the item's fields and `sample`, the text in question (`thoughts` is the same text). With
    /// `rubric` also `criterion` and `points`; with `pairs` two texts, `first` and `second`, instead; with `groups` the
    /// list `samples`, its length `count`, and `take`.
    pub(super) prompt: PromptSettings,
    /// The answers as they continue the prompt, with their values: {" yes": 1, " no": 0}. The score is the mean of the
    /// values, weighted by the words' probabilities.
    #[schemars(extend("x-expected" = WORDS))]
    pub(super) words: Option<Pairs<f64>>,
    /// The judge answers with JSON that holds the score.
    pub(super) score: Option<ScoreSettings>,
    /// Criteria with points, each a question of its own: a list, or the item's field that has one. The score is the
    /// share of all points.
    pub(super) rubric: Option<RubricSettings>,
    /// Samples of an item are compared two by two. A sample's score is the share of its comparisons that it wins.
    pub(super) pairs: Option<PairSettings>,
    /// The judge picks the best of several samples, whose score is 1; that of the others is 0.
    pub(super) groups: Option<GroupSettings>,
    /// With `score`, `pairs.winner` or `groups`: the most tokens of an answer (default: 512).
    #[schemars(range(min = 1))]
    pub(super) max_tokens: Option<u32>,
}

/// What a verdict object must be.
pub(crate) const VERDICT: &str = "an object with `prompt` and one of `words`, `score`, `pairs` and `groups`";
pub(super) const WORDS: &str = "at least two words with their values, {\" yes\": 1, \" no\": 0}";

#[derive(Deserialize, JsonSchema)]
pub(super) struct ScoreSettings {
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
pub(super) enum RubricSettings {
    Field(String),
    Criteria(Vec<CriterionSettings>),
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct CriterionSettings {
    /// What the sample must do, as the prompt's `criterion`.
    pub(super) criterion: String,
    /// What it counts.
    #[schemars(extend("exclusiveMinimum" = 0, "x-expected" = "a number above 0"))]
    pub(super) points: f64,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct PairSettings {
    /// The two words that name the better text, the first one's before the second one's: [" A", " B"].
    #[schemars(extend("x-expected" = "two words, [\" A\", \" B\"]"))]
    words: Option<Vec<String>>,
    /// Instead of words: the judge answers with JSON that names the better text.
    pub(super) winner: Option<WinnerSettings>,
    /// Whether each pair is asked about in both orders, so that a judge that prefers a place prefers no sample.
    #[serde(default = "yes")]
    both_orders: bool,
    /// Each sample is compared with so many others at least (default: with all).
    #[schemars(range(min = 1))]
    opponents: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct WinnerSettings {
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
pub(super) struct GroupSettings {
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
pub(super) const MOST_TOKENS: usize = 512;

/// Gives an error about a value its place.
pub(super) fn placed<'p>(place: &'p Place<'_>) -> impl Fn(Error) -> Error + 'p {
    move |error| match error {
        Error::Value { what, expected, found } => place.wrong_as(format!("{expected} as the {what}"), found),
        other => other,
    }
}

pub(super) fn rule_of_words(place: &Place<'_>, words: Vec<(String, f64)>) -> Result<AnswerRule> {
    WordValues::new(words).map(AnswerRule::Words).map_err(placed(place))
}

pub(super) fn rule_of_score(place: &Place<'_>, score: ScoreSettings, tokens: usize) -> Result<AnswerRule> {
    let ScoreSettings { at: pointer, low, high, schema } = score;
    if low >= high {
        return Err(place.key("high").wrong(format!("a number above `low`, {low}")));
    }
    let schema = schema.map(|schema| schema.read(&place.key("schema"))).transpose()?;
    ScoreField::new(pointer, (low, high), schema, tokens).map(AnswerRule::Score).map_err(placed(&place.key("at")))
}

pub(super) fn rule_of_pairs(place: &Place<'_>, pairs: PairSettings, tokens: usize) -> Result<PairRule> {
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

pub(super) fn rule_of_groups(place: &Place<'_>, groups: GroupSettings, tokens: usize) -> Result<GroupRule> {
    let GroupSettings { take, size, rotations, at: pointer, schema } = groups;
    if take >= size {
        return Err(place.key("take").wrong(format!("less than the samples of a group, {size}")));
    }
    let schema = schema.map(|schema| schema.read(&place.key("schema"))).transpose()?;
    GroupRule::new(take as usize, size as usize, rotations as usize, pointer, schema, tokens).map_err(placed(place))
}
