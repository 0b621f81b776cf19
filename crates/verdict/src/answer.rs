//! How a judge's answer about one text becomes a score: by the values of words and their probabilities, or by a number
//! in a JSON answer.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::question::{JudgeAnswer, WantedAnswer};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;

/// What is answered about one text, and the score of each answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerRule {
    /// One of some words: the mean of their values, weighted by their probabilities.
    Words(WordValues),
    /// JSON with a number.
    Score(ScoreField),
}

impl AnswerRule {
    /// What the judge may answer.
    pub fn wanted(&self) -> WantedAnswer {
        match self {
            AnswerRule::Words(words) => WantedAnswer::Words(Arc::clone(&words.words)),
            AnswerRule::Score(field) => {
                WantedAnswer::Json { schema: Arc::clone(&field.schema), max_tokens: field.max_tokens }
            }
        }
    }

    /// The score of an answer, from 0 to 1.
    ///
    /// # Errors
    ///
    /// The answer is not of this kind, or has no number in its place or one out of range.
    pub fn score(&self, answer: &JudgeAnswer) -> Result<f64> {
        match (self, answer) {
            (AnswerRule::Words(words), JudgeAnswer::Words(shares)) => words.expected(shares),
            (AnswerRule::Score(field), JudgeAnswer::Json(value)) => field.share(value),
            (_, answer) => Err(other_kind(answer)),
        }
    }

    /// An answer as records have it: the JSON value, or an object of the words' probabilities.
    pub fn recorded(&self, answer: &JudgeAnswer) -> Value {
        match (self, answer) {
            (AnswerRule::Words(words), JudgeAnswer::Words(shares)) => recorded_words(&words.words, shares),
            (_, answer) => recorded(answer),
        }
    }
}

/// Words that a judge may answer with, and the value of each.
#[derive(Clone, Debug, PartialEq)]
pub struct WordValues {
    words: Arc<[String]>,
    values: Vec<f64>,
}

impl WordValues {
    /// These words with their values.
    ///
    /// # Errors
    ///
    /// There are fewer than two, an empty one or one twice, or a value that is not from 0 to 1.
    pub fn new(words: impl IntoIterator<Item = (String, f64)>) -> Result<WordValues> {
        let (words, values): (Vec<String>, Vec<f64>) = words.into_iter().unzip();
        check_words(&words)?;
        match words.iter().zip(&values).find(|(_, value)| !(0.0..=1.0).contains(*value)) {
            Some((word, value)) => Err(Error::value(format!("value of the word {word:?}"), UNIT, value.to_string())),
            None => Ok(WordValues { words: words.into(), values }),
        }
    }

    /// The mean of the values, weighted by the words' probabilities, of which there is one for each word.
    fn expected(&self, shares: &[f64]) -> Result<f64> {
        check_shares(shares, self.words.len())?;
        let sum: f64 = shares.iter().sum();
        let weighted: f64 = self.values.iter().zip(shares).map(|(value, share)| value * share).sum();
        Ok((weighted / sum).clamp(0.0, 1.0))
    }
}

/// The place of a number in a JSON answer, and the range of the number.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreField {
    at: String,
    low: f64,
    high: f64,
    schema: Arc<Value>,
    max_tokens: usize,
}

impl ScoreField {
    /// A number from `low` to `high` at the JSON pointer `at` of the answer. `schema`: the schema of the answer;
    /// without one it is an object of a text `reasoning` and then the number, named as `at` says.
    ///
    /// # Errors
    ///
    /// `at` is no JSON pointer, or, without a schema, not that of a field of the answer; the range is empty or not
    /// finite; there is no token to answer with.
    pub fn new(
        at: impl Into<String>,
        (low, high): (f64, f64),
        schema: Option<Value>,
        max_tokens: usize,
    ) -> Result<ScoreField> {
        let at = at.into();
        if !(low.is_finite() && high.is_finite() && low < high) {
            let found = format!("low {low}, high {high}");
            return Err(Error::value("range of a judge's score", "finite numbers `low` < `high`", found));
        }
        let number = || json!({"type": "number", "minimum": low, "maximum": high});
        let schema = schema_of(&at, schema, number)?;
        check_tokens(max_tokens)?;
        Ok(ScoreField { at, low, high, schema, max_tokens })
    }

    /// The number's place between the ends of its range, from 0 to 1.
    fn share(&self, answer: &Value) -> Result<f64> {
        let expected = || format!("a number from {} to {} at {:?}", self.low, self.high, self.at);
        let found = answer.pointer(&self.at);
        match found.and_then(Value::as_f64) {
            Some(number) if (self.low..=self.high).contains(&number) => {
                Ok((number - self.low) / (self.high - self.low))
            }
            _ => Err(Error::value("answer of the judge", expected(), shown_at(found, answer))),
        }
    }
}

/// What a value or score must be.
const UNIT: &str = "a number from 0 to 1";

/// Refuses words of which a judge cannot choose one.
pub(crate) fn check_words(words: &[String]) -> Result<()> {
    let what = "words that a judge may answer with";
    if words.len() < 2 {
        return Err(Error::value(what, "at least two", words.len().to_string()));
    }
    match words.iter().enumerate().find(|(at, word)| word.is_empty() || words[..*at].contains(word)) {
        Some((_, word)) => Err(Error::value(what, "different texts, none of them empty", format!("{word:?}"))),
        None => Ok(()),
    }
}

/// Refuses a number of tokens in which nothing can be answered.
pub(crate) fn check_tokens(max_tokens: usize) -> Result<()> {
    match max_tokens {
        0 => Err(Error::value("max_tokens of a judge's answer", "a number from 1 up", "0")),
        _ => Ok(()),
    }
}

/// The given schema of an answer with a value at the pointer `at`; without one, an object of a text `reasoning` and
/// then the value, which keeps the schema of `value`.
pub(crate) fn schema_of(at: &str, schema: Option<Value>, value: impl FnOnce() -> Value) -> Result<Arc<Value>> {
    if !at.starts_with('/') {
        return Err(Error::value("place of a judge's answer", "a JSON pointer such as \"/score\"", format!("{at:?}")));
    }
    match schema {
        Some(schema) => Ok(Arc::new(schema)),
        None => Ok(Arc::new(reasoned(&named(at)?, value()))),
    }
}

/// The name of the field that a pointer of one step points to.
fn named(at: &str) -> Result<String> {
    let name = at[1..].replace("~1", "/").replace("~0", "~");
    match at[1..].contains('/') || name.is_empty() || name == REASONING {
        false => Ok(name),
        true => {
            let expected = format!("a field other than {REASONING:?}, as no schema is given");
            Err(Error::value("place of a judge's answer", expected, format!("{at:?}")))
        }
    }
}

/// The field of the default schemas in which a judge reasons before it answers.
const REASONING: &str = "reasoning";

/// The schema of an object with a text and then a value.
fn reasoned(name: &str, value: Value) -> Value {
    let properties: Map<String, Value> =
        [(REASONING.to_owned(), json!({"type": "string"})), (name.to_owned(), value)].into_iter().collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": [REASONING, name],
        "additionalProperties": false,
    })
}

/// Refuses probabilities that are not one for each of `words` words.
pub(crate) fn check_shares(shares: &[f64], words: usize) -> Result<()> {
    let is_share = |share: &f64| share.is_finite() && *share >= 0.0;
    let holds = shares.len() == words && shares.iter().all(is_share) && shares.iter().sum::<f64>() > 0.0;
    match holds {
        true => Ok(()),
        false => {
            let found = format!("{shares:?}");
            Err(Error::value("answer of the judge", format!("the probabilities of {words} words"), found))
        }
    }
}

/// The error of an answer of another kind than was asked for.
pub(crate) fn other_kind(answer: &JudgeAnswer) -> Error {
    let found = match answer {
        JudgeAnswer::Words(_) => "the probabilities of words",
        JudgeAnswer::Json(_) => "JSON",
    };
    Error::Internal(format!("a judge answers with {found} where something else was asked for"))
}

/// What an answer has in the place that is read: `found`, or all of it where it has nothing there.
pub(crate) fn shown_at(found: Option<&Value>, answer: &Value) -> String {
    /// The most characters of an answer in an error, which each sample's record repeats.
    const MOST_SHOWN: usize = 300;
    let shown = |value: &Value| shortened(value.to_string(), MOST_SHOWN);
    found.map_or_else(|| format!("nothing there in {}", shown(answer)), shown)
}

/// The probabilities of words as an object.
pub(crate) fn recorded_words(words: &[String], shares: &[f64]) -> Value {
    words.iter().cloned().zip(shares.iter().map(|&share| Value::from(share))).collect::<Map<_, _>>().into()
}

/// An answer as JSON.
pub(crate) fn recorded(answer: &JudgeAnswer) -> Value {
    match answer {
        JudgeAnswer::Words(shares) => shares.clone().into(),
        JudgeAnswer::Json(value) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> AnswerRule {
        let words = [(" yes", 1.0), (" partly", 0.5), (" no", 0.0)].map(|(word, value)| (word.to_owned(), value));
        AnswerRule::Words(WordValues::new(words).unwrap())
    }

    #[test]
    fn words_are_weighed_by_their_probabilities() {
        let score = |shares: &[f64]| words().score(&JudgeAnswer::Words(shares.to_vec())).unwrap();
        assert_eq!(score(&[1.0, 0.0, 0.0]), 1.0);
        assert!((score(&[0.5, 0.25, 0.25]) - 0.625).abs() < 1e-12);
        let recorded = words().recorded(&JudgeAnswer::Words(vec![0.5, 0.25, 0.25]));
        assert_eq!(recorded, json!({" yes": 0.5, " partly": 0.25, " no": 0.25}));
        for shares in [vec![0.5, 0.5], vec![f64::NAN, 0.5, 0.5], vec![0.0; 3]] {
            assert!(words().score(&JudgeAnswer::Words(shares.clone())).is_err(), "{shares:?}");
        }
        assert!(words().score(&JudgeAnswer::Json(json!(1))).is_err());
    }

    #[test]
    fn a_number_is_placed_in_its_range() {
        let field = AnswerRule::Score(ScoreField::new("/score", (1.0, 5.0), None, 64).unwrap());
        let score = |answer: Value| field.score(&JudgeAnswer::Json(answer));
        assert_eq!(score(json!({"reasoning": "", "score": 4})).unwrap(), 0.75);
        assert_eq!((score(json!({"score": 1.0})).unwrap(), score(json!({"score": 5})).unwrap()), (0.0, 1.0));
        for (answer, found) in [
            (json!({"score": 5.5}), "found 5.5"),
            (json!({"score": "4"}), "found \"4\""),
            (json!({"points": 4}), "nothing there in {\"points\":4}"),
            (json!(4), "nothing there in 4"),
        ] {
            let error = score(answer.clone()).unwrap_err().to_string();
            assert!(error.contains("a number from 1 to 5 at \"/score\"") && error.contains(found), "{error}");
        }
        let long = score(json!({"reasoning": "so ".repeat(1000)})).unwrap_err().to_string();
        assert!(long.len() < 500, "{long}");
        let nested = ScoreField::new("/a/b~1c", (0.0, 1.0), Some(json!({})), 1).unwrap();
        assert_eq!(nested.share(&json!({"a": {"b/c": 0.5}})).unwrap(), 0.5);
    }

    #[test]
    fn the_default_schema_has_the_reasoning_before_the_answer() {
        let field = ScoreField::new("/score", (0.0, 10.0), None, 64).unwrap();
        assert_eq!(
            field.schema.to_string(),
            concat!(
                r#"{"type":"object","properties":{"reasoning":{"type":"string"},"#,
                r#""score":{"type":"number","minimum":0.0,"maximum":10.0}},"#,
                r#""required":["reasoning","score"],"additionalProperties":false}"#
            )
        );
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_name() {
        let word = |word: &str, value: f64| (word.to_owned(), value);
        for (words, named) in [
            (vec![word("a", 1.0)], "at least two"),
            (vec![word("a", 1.0), word("a", 0.0)], "different texts"),
            (vec![word("a", 1.0), word("", 0.0)], "none of them empty"),
            (vec![word("a", 1.5), word("b", 0.0)], "value of the word \"a\""),
            (vec![word("a", f64::NAN), word("b", 0.0)], "value of the word \"a\""),
        ] {
            let error = WordValues::new(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        for (at, range, schema, tokens, named) in [
            ("score", (0.0, 1.0), None, 1, "JSON pointer"),
            ("", (0.0, 1.0), Some(json!({})), 1, "JSON pointer"),
            ("/", (0.0, 1.0), None, 1, "no schema is given"),
            ("/a/b", (0.0, 1.0), None, 1, "no schema is given"),
            ("/reasoning", (0.0, 1.0), None, 1, "no schema is given"),
            ("/score", (1.0, 1.0), None, 1, "`low` < `high`"),
            ("/score", (0.0, f64::INFINITY), None, 1, "`low` < `high`"),
            ("/score", (0.0, 1.0), None, 0, "max_tokens"),
        ] {
            let error = ScoreField::new(at, range, schema, tokens).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
