//! The settings of `choose`: the answers offered for an item, and the measure by which one is chosen.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::source::Place;
use crate::source::values::Texts;
use crate::task::grade::FieldName;
use crate::task::items::Item;
use crate::task::template::{Template, TextSettings};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::counted;
use offshoot_core::json::{describe, names};
use offshoot_search::settings::ChooseBy;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChooseSettings {
    /// Templates of the offered answers, or {"field": NAME}: the item's field that lists them.
    #[schemars(extend("x-expected" = "a list of at least two templates, or {\"field\": NAME}"))]
    choices: ChoiceSettings,
    /// The names of the answers in votes and grades (default: their own texts).
    #[serde(default)]
    labels: Texts,
    /// Between prompt and answer.
    #[serde(default = "space")]
    separator: String,
    /// The measure of an answer; the largest wins.
    #[serde(default)]
    by: ChooseBy,
    /// A prompt without information about the item: an answer's log-probability behind it is subtracted.
    neutral: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum ChoiceSettings {
    Templates(#[schemars(length(min = 2))] Vec<TextSettings>),
    Field(FieldName),
}

fn space() -> String {
    " ".to_string()
}

/// The offered answers and the measure by which one is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choose {
    choices: Choices,
    /// Names of the choices in answers and grades; empty: their own texts.
    labels: Vec<String>,
    /// Between prompt and choice.
    separator: String,
    pub by: ChooseBy,
    /// A prompt without information about the item. The log-probability of a choice after this prompt is subtracted.
    pub neutral: Option<String>,
    /// The task file and the dotted path of `choices`, for error messages.
    task: PathBuf,
    at: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Choices {
    Templates(Vec<Template>),
    /// The item's field lists them.
    Field(String),
}

/// One of the answers to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedAnswer {
    pub label: String,
    /// The text that follows the prompt, including the separator.
    pub text: String,
    /// Bytes of the text without the separator.
    pub bytes: usize,
}

impl Choose {
    /// `place`: of the key `choose`.
    pub(crate) fn new(place: &Place<'_>, settings: ChooseSettings) -> Result<Choose> {
        let at = place.key("choices");
        let choices = match settings.choices {
            ChoiceSettings::Templates(list) => {
                let template = |(ix, text): (usize, TextSettings)| Template::read(&at.key(&ix.to_string()), text);
                Choices::Templates(list.into_iter().enumerate().map(template).collect::<Result<_>>()?)
            }
            ChoiceSettings::Field(named) => Choices::Field(named.field),
        };
        Ok(Choose {
            choices,
            labels: settings.labels.0,
            separator: settings.separator,
            by: settings.by,
            neutral: settings.neutral,
            task: place.source.path.clone(),
            at: at.field().to_string(),
        })
    }

    /// The number of answers offered for each item; `None`: it depends on the item.
    pub fn count(&self) -> Option<usize> {
        match &self.choices {
            Choices::Templates(templates) => Some(templates.len()),
            Choices::Field(_) => None,
        }
    }

    /// The answers offered for `item`, at least two.
    pub fn offers(&self, item: &Item) -> Result<Vec<OfferedAnswer>> {
        let texts: Vec<String> = match &self.choices {
            Choices::Templates(templates) => {
                templates.iter().map(|template| template.render(&item.id, &item.fields)).collect::<Result<_>>()?
            }
            Choices::Field(field) => self.listed_in(item, field)?,
        };
        if texts.len() < 2 || texts.iter().any(String::is_empty) {
            let empty = texts.iter().filter(|text| text.is_empty()).count();
            let found = format!("{}, {empty} of them empty", counted(texts.len() as u64, "text"));
            return Err(self.wrong(item, "at least two texts, none of them empty,", found));
        }
        if !self.labels.is_empty() && self.labels.len() != texts.len() {
            let expected = format!("one for each of the {} `labels`", self.labels.len());
            return Err(self.wrong(item, &expected, texts.len().to_string()));
        }
        let offer = |(ix, text): (usize, String)| OfferedAnswer {
            label: self.labels.get(ix).unwrap_or(&text).clone(),
            bytes: text.len(),
            text: format!("{}{text}", self.separator),
        };
        Ok(texts.into_iter().enumerate().map(offer).collect())
    }

    fn listed_in(&self, item: &Item, field: &str) -> Result<Vec<String>> {
        let wrong =
            |found: String| self.wrong(item, &format!("a list of strings or numbers in the field `{field}`"), found);
        let Some(value) = item.fields.get(field) else {
            return Err(wrong(format!("the fields {}", names(&item.fields))));
        };
        let text = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            other => Err(wrong(format!("{} in it", describe(other)))),
        };
        value.as_array().ok_or_else(|| wrong(describe(value)))?.iter().map(text).collect()
    }

    fn wrong(&self, item: &Item, expected: &str, found: String) -> Error {
        Error::field(&self.task, &self.at, format!("{expected} of item `{}`", item.id), found)
    }
}
