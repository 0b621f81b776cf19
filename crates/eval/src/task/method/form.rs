//! The task file's key `sampling.form`: what each sample's text must be. A schema may stand in a file of its own.
//! Whether the model's tokens can spell the form is left to who compiles it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::source::Place;
use crate::source::values::TaskPath;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{beginning, bytes, counted};
use offshoot_form::Form;

/// Characters of a pattern that a description shows.
const MOST_SHOWN: usize = 60;

/// What a sample's text must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(extend(
    "x-expected" = "`json_object`, or exactly one of `json`, `regex`, `grammar`, `choice` with its value"
))]
pub enum FormSettings {
    /// A JSON object.
    JsonObject,
    /// JSON that a JSON Schema accepts: the schema, or the path of a file that holds it.
    Json(SchemaSettings),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// A text that a grammar accepts, in llguidance's dialect of Lark or in GBNF.
    Grammar(String),
    /// One of these texts.
    Choice(#[schemars(length(min = 1), extend("x-expected" = "a list of texts, at least one"))] Vec<String>),
}

// A JSON Schema, or the file that holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline, extend("x-expected" = "a JSON Schema, or a path, relative to the task file"))]
pub enum SchemaSettings {
    File(TaskPath),
    Schema(Map<String, Value>),
}

impl SchemaSettings {
    /// The schema; `place`: where it is said.
    pub(crate) fn read(&self, place: &Place<'_>) -> Result<Value> {
        match self {
            SchemaSettings::Schema(schema) => Ok(Value::Object(schema.clone())),
            SchemaSettings::File(path) => {
                let text = place.read_text(&path.0)?;
                let path = place.source.resolve(&path.0);
                serde_json::from_str(&text).map_err(|error| Error::format(&path, format!("not a JSON Schema: {error}")))
            }
        }
    }
}

impl FormSettings {
    /// The form; `place`: where it is said.
    pub(crate) fn read(&self, place: &Place<'_>) -> Result<Form> {
        Ok(match self {
            FormSettings::JsonObject => Form::JsonObject,
            FormSettings::Json(schema) => Form::Json(schema.read(&place.key("json"))?),
            FormSettings::Regex(pattern) => Form::Regex(pattern.clone()),
            FormSettings::Grammar(grammar) => Form::of_grammar(grammar).map_err(|error| match error {
                Error::Value { expected, found, .. } => place.key("grammar").wrong_as(expected, found),
                other => other,
            })?,
            FormSettings::Choice(texts) => Form::Choice(texts.clone()),
        })
    }

    /// The dotted path of its value in the task file.
    pub(crate) fn key(&self) -> &'static str {
        match self {
            FormSettings::JsonObject => "sampling.form",
            FormSettings::Json(_) => "sampling.form.json",
            FormSettings::Regex(_) => "sampling.form.regex",
            FormSettings::Grammar(_) => "sampling.form.grammar",
            FormSettings::Choice(_) => "sampling.form.choice",
        }
    }

    /// The form in words.
    pub fn described(&self) -> String {
        match self {
            FormSettings::JsonObject => "a JSON object".to_owned(),
            FormSettings::Json(SchemaSettings::File(path)) => format!("JSON by the schema in {}", path.0),
            FormSettings::Json(SchemaSettings::Schema(schema)) => {
                let text = Value::Object(schema.clone()).to_string();
                format!("JSON by a schema of {}", bytes(text.len() as u64))
            }
            FormSettings::Regex(pattern) => match beginning(pattern, MOST_SHOWN) {
                Some(start) => format!("the pattern `{}…`", start.escape_debug()),
                None => format!("the pattern `{}`", pattern.escape_debug()),
            },
            FormSettings::Grammar(grammar) => format!("a grammar of {}", bytes(grammar.len() as u64)),
            FormSettings::Choice(texts) => format!("one of {}", counted(texts.len() as u64, "text")),
        }
    }
}
