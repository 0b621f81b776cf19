//! Reads the fields of a request's body one by one, by name and type. `null` counts as absent, as in OpenAI's own
//! clients; fields that were not read are an error.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::error::Category;
use serde_json::{Map, Value};

use super::refusal::Refusal;
use offshoot_core::ids::TokenId;

type ProtocolResult<T> = Result<T, Refusal>;

/// The JSON object of a request's body.
pub fn parse_body(bytes: &[u8]) -> Result<Map<String, Value>, Refusal> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(body)) => Ok(body),
        Ok(other) => Err(Refusal::not_json(&brief(&other))),
        Err(error) => Err(Refusal::not_json(&json_fault(bytes, &error))),
    }
}

/// Why `bytes` are not the JSON that is expected, and where.
fn json_fault(bytes: &[u8], error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
    match error.classify() {
        _ if bytes.iter().all(u8::is_ascii_whitespace) => "nothing".to_owned(),
        Category::Eof => format!("JSON that ends too early, at byte {} ({what})", bytes.len()),
        // The library counts from 1; 0 stands for the line's end before.
        _ if error.column() == 0 && error.line() > 1 => {
            format!("text that is not JSON: {what}, at the end of line {}", error.line() - 1)
        }
        Category::Syntax | Category::Io => {
            format!("text that is not JSON: {what}, at line {}, column {}", error.line(), error.column())
        }
        Category::Data => what.to_owned(),
    }
}

/// The fields of a JSON object that were not read yet.
#[derive(Clone)]
pub struct BodyFields {
    left: Map<String, Value>,
}

impl BodyFields {
    pub fn new(body: &Map<String, Value>) -> Self {
        let given = |(key, value): (&String, &Value)| (!value.is_null()).then(|| (key.clone(), value.clone()));
        BodyFields { left: body.iter().filter_map(given).collect() }
    }

    /// Whether a field that is not taken yet says false.
    pub fn is_false(&self, key: &str) -> bool {
        self.left.get(key) == Some(&Value::Bool(false))
    }

    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key)
    }

    /// Gives a field that is absent this value.
    pub fn put_usual(&mut self, key: &str, value: Value) {
        self.left.entry(key).or_insert(value);
    }

    /// Takes the fields of the object `key` as the body's own; where both have one, the body's holds.
    pub fn unpack(&mut self, key: &str) -> ProtocolResult<()> {
        for (inner, value) in self.object(key)? {
            if !value.is_null() {
                self.left.entry(inner).or_insert(value);
            }
        }
        Ok(())
    }

    /// A field converted by `read`.
    fn read<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> ProtocolResult<Option<T>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| Refusal::value(key, expected, &brief(&value)))
    }

    pub fn count(&mut self, key: &str, least: u64, most: u64) -> ProtocolResult<Option<usize>> {
        let range = format!("a whole number from {least} to {most}");
        self.read(key, &range, |value| {
            let number = value.as_u64().filter(|number| (least..=most).contains(number))?;
            usize::try_from(number).ok()
        })
    }

    /// Like `count`, or true for 1 and false for 0, as pydantic reads them.
    pub fn count_or_flag(&mut self, key: &str, least: u64, most: u64) -> ProtocolResult<Option<usize>> {
        if let Some(Value::Bool(flag)) = self.left.get(key) {
            let number = u64::from(*flag);
            self.left.insert(key.to_owned(), number.into());
        }
        self.count(key, least, most)
    }

    /// Any whole number; a negative one as its two's complement, because a seed is 64 bits.
    pub fn seed(&mut self, key: &str) -> ProtocolResult<Option<u64>> {
        self.read(key, "a whole number", |value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)))
    }

    pub fn whole(&mut self, key: &str) -> ProtocolResult<Option<i64>> {
        self.read(key, "a whole number", Value::as_i64)
    }

    pub fn real(&mut self, key: &str) -> ProtocolResult<Option<f32>> {
        self.read(key, "a number", |value| Some(value.as_f64()? as f32).filter(|number| number.is_finite()))
    }

    /// A number in double precision.
    pub fn finite(&mut self, key: &str) -> ProtocolResult<Option<f64>> {
        self.read(key, "a number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    pub fn flag(&mut self, key: &str) -> ProtocolResult<bool> {
        Ok(self.choice(key)?.unwrap_or(false))
    }

    /// True or false, or absent.
    pub fn choice(&mut self, key: &str) -> ProtocolResult<Option<bool>> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// A time of at most `most` seconds, above 0.
    pub fn seconds(&mut self, key: &str, most: u64) -> ProtocolResult<Option<Duration>> {
        let range = match most {
            u64::MAX => "a number of seconds above 0".to_owned(),
            most => format!("a number of seconds above 0 and up to {most}"),
        };
        self.read(key, &range, |value| {
            let seconds = value.as_f64().filter(|&seconds| seconds > 0.0 && seconds <= most as f64)?;
            Duration::try_from_secs_f64(seconds).ok()
        })
    }

    /// One of these words.
    pub fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> ProtocolResult<Option<T>> {
        let expected = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        let of = |text: &str| words.iter().find(|(word, _)| *word == text).map(|&(_, of)| of);
        self.read(key, &expected, |value| of(value.as_str()?))
    }

    pub fn text(&mut self, key: &str) -> ProtocolResult<Option<String>> {
        self.read(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Strings and token ids: one, or a list of them.
    pub fn stops(&mut self, key: &str) -> ProtocolResult<(Vec<String>, Vec<TokenId>)> {
        let (mut texts, mut tokens) = (Vec::new(), Vec::new());
        let mut take = |value: &Value| {
            match value {
                Value::String(text) if !text.is_empty() => texts.push(text.clone()),
                value => tokens.push(token_id(value)?),
            }
            Some(())
        };
        let read = |value: &Value| match value {
            Value::Array(list) => list.iter().try_for_each(take),
            one => take(one),
        };
        self.read(key, "strings (not empty) or token ids: one, or a list of them", read)?;
        Ok((texts, tokens))
    }

    pub fn token_ids(&mut self, key: &str) -> ProtocolResult<Option<Vec<TokenId>>> {
        self.read(key, "a list of token ids", |value| value.as_array()?.iter().map(token_id).collect())
    }

    /// Texts with more than spaces.
    pub fn words(&mut self, key: &str) -> ProtocolResult<Vec<String>> {
        let word = |value: &Value| Some(value.as_str().filter(|word| !word.trim_start().is_empty())?.to_owned());
        let read = |value: &Value| value.as_array()?.iter().map(word).collect();
        Ok(self.read(key, "a list of strings that are not empty", read)?.unwrap_or_default())
    }

    /// An object of numbers by token id.
    pub fn biases(&mut self, key: &str) -> ProtocolResult<Vec<(u32, f32)>> {
        // One way to write each token, so that none has two biases.
        let id = |token: &str| token.parse::<u32>().ok().filter(|id| id.to_string() == token);
        let number = |value: &Value| Some(value.as_f64()? as f32).filter(|bias| bias.is_finite());
        let bias = |(token, value): (&String, &Value)| Some((id(token)?, number(value)?));
        let read = |value: &Value| value.as_object()?.iter().map(bias).collect();
        Ok(self.read(key, "an object of numbers by token id", read)?.unwrap_or_default())
    }

    pub fn object(&mut self, key: &str) -> ProtocolResult<Map<String, Value>> {
        Ok(self.read(key, "an object", |value| value.as_object().cloned())?.unwrap_or_default())
    }

    /// An object of strings.
    pub fn strings(&mut self, key: &str) -> ProtocolResult<Option<BTreeMap<String, String>>> {
        let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        self.read(key, "an object of strings", |value| value.as_object()?.iter().map(text).collect())
    }

    /// Drops fields that do not affect the answer.
    pub fn ignore(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| drop(self.left.remove(*key)));
    }

    /// Refuses a field that is not supported, unless its value has no effect.
    pub fn refuse(&mut self, key: &str, has_no_effect: impl FnOnce(&Value) -> bool) -> ProtocolResult<()> {
        match self.take(key).filter(|value| !has_no_effect(value)) {
            Some(value) => Err(Refusal::unsupported(key, &brief(&value))),
            None => Ok(()),
        }
    }

    /// The fields that were not read.
    pub fn into_rest(self) -> Map<String, Value> {
        self.left
    }

    /// Refuses any field that was not read.
    /// The names of fields that are left whose values are texts, or lists or objects.
    pub fn with_texts(&self) -> impl Iterator<Item = &str> {
        let has_text = |value: &Value| matches!(value, Value::String(_) | Value::Array(_) | Value::Object(_));
        self.left.iter().filter(move |(_, value)| has_text(value)).map(|(name, _)| name.as_str())
    }

    pub fn finish(self) -> ProtocolResult<()> {
        match self.left.keys().next() {
            Some(key) => Err(Refusal::unknown(key)),
            None => Ok(()),
        }
    }
}

/// A token id, if the value is one.
pub fn token_id(value: &Value) -> Option<TokenId> {
    u32::try_from(value.as_u64()?).ok().map(TokenId)
}

/// A value short enough for a message.
pub fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
