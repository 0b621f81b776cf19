//! The settings of `choose`: the answers offered for an item, and the measure by which one is chosen.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::items::Item;
use crate::eval::task::template::Template;
use crate::json::{describe, listed, names};
use crate::search::settings::ChooseBy;

/// `{"choices": [TEMPLATE, …] | {"field": NAME}, "labels": […], "separator": " ", "by": …, "neutral": …}`
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

const KEYS: [&str; 5] = ["choices", "labels", "separator", "by", "neutral"];
const MEASURES: [(&str, ChooseBy); 3] =
    [("logprob", ChooseBy::Logprob), ("mean_logprob", ChooseBy::MeanLogprob), ("per_byte", ChooseBy::PerByte)];

impl Choose {
    pub(crate) fn read(source: &TaskSource, at: String, value: &Value) -> Result<Choose> {
        let section = TaskSection::open(source, at, value, &KEYS)?;
        let by = match section.text("by")? {
            None => ChooseBy::Logprob,
            Some(given) => *MEASURES
                .iter()
                .find(|(name, _)| *name == given)
                .map(|(_, by)| by)
                .ok_or_else(|| section.wrong("by", format!("one of {}", listed(&MEASURES.map(|(name, _)| name)))))?,
        };
        Ok(Choose {
            choices: Choices::read(&section)?,
            labels: section.texts("labels")?,
            separator: section.text("separator")?.unwrap_or(" ").to_string(),
            by,
            neutral: section.text("neutral")?.map(str::to_string),
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
            Choices::Field(field) => listed_in(item, field)?,
        };
        let what = || format!("the choices of item `{}`", item.id);
        if texts.len() < 2 || texts.iter().any(String::is_empty) {
            return Err(Error::value(what(), "at least two texts, none of them empty", format!("{texts:?}")));
        }
        if !self.labels.is_empty() && self.labels.len() != texts.len() {
            let expected = format!("one for each of the {} `labels`", self.labels.len());
            return Err(Error::value(what(), expected, texts.len().to_string()));
        }
        let offer = |(ix, text): (usize, String)| OfferedAnswer {
            label: self.labels.get(ix).unwrap_or(&text).clone(),
            bytes: text.len(),
            text: format!("{}{text}", self.separator),
        };
        Ok(texts.into_iter().enumerate().map(offer).collect())
    }
}

impl Choices {
    fn read(section: &TaskSection) -> Result<Choices> {
        let wrong = || section.wrong("choices", "a list of at least two templates, or {\"field\": NAME}");
        match section.need("choices", "a list of at least two templates, or {\"field\": NAME}")? {
            Value::Array(list) if list.len() > 1 => {
                let template =
                    |(ix, value)| Template::read(section.source, section.field(&format!("choices.{ix}")), value);
                Ok(Choices::Templates(list.iter().enumerate().map(template).collect::<Result<_>>()?))
            }
            value @ Value::Object(_) => {
                let inside = TaskSection::open(section.source, section.field("choices"), value, &["field"])?;
                inside.need("field", "the name of an item's field")?;
                Ok(Choices::Field(inside.text("field")?.expect("`need` found it").to_string()))
            }
            _ => Err(wrong()),
        }
    }
}

fn listed_in(item: &Item, field: &str) -> Result<Vec<String>> {
    let wrong = |found: String| {
        Error::value(format!("field `{field}` of item `{}`", item.id), "a list of strings or numbers", found)
    };
    let Some(value) = item.fields.get(field) else { return Err(wrong(format!("the fields {}", names(&item.fields)))) };
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(wrong(format!("{} in it", describe(other)))),
    };
    value.as_array().ok_or_else(|| wrong(describe(value)))?.iter().map(text).collect()
}
