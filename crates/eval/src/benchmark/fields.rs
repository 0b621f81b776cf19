//! Typed access to the fields of one benchmark record. Errors do not contain the record's place in the file; the caller
//! adds it.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use offshoot_core::json;
use offshoot_core::json::RawJson;
use offshoot_core::json::describe;

/// A field with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub field: String,
    pub expected: String,
    pub found: String,
}

pub(crate) type FieldResult<T> = std::result::Result<T, Wrong>;

/// The fields of one record.
#[derive(Clone, Copy)]
pub(crate) struct JsonRecord<'a>(pub &'a Map<String, Value>);

pub(crate) fn wrong(field: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Wrong {
    Wrong { field: field.into(), expected: expected.into(), found: found.into() }
}

impl<'a> JsonRecord<'a> {
    /// The field's value; `null` counts as absent.
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn need(self, name: &str, expected: &str) -> FieldResult<&'a Value> {
        self.get(name).ok_or_else(|| wrong(name, expected, "nothing (the field is missing)"))
    }

    pub fn text(self, name: &str) -> FieldResult<&'a str> {
        text(name, self.need(name, "a text")?)
    }

    pub fn optional_text(self, name: &str) -> FieldResult<Option<&'a str>> {
        self.get(name).map(|value| text(name, value)).transpose()
    }

    pub fn texts(self, name: &str) -> FieldResult<Vec<&'a str>> {
        let list = list(name, self.need(name, "a list of texts")?)?;
        list.iter().enumerate().map(|(ix, value)| text(&format!("{name}.{ix}"), value)).collect()
    }

    pub fn optional_texts(self, name: &str) -> FieldResult<Vec<&'a str>> {
        self.get(name).map_or(Ok(Vec::new()), |_| self.texts(name))
    }

    /// A field that contains JSON, or JSON as a string, as data sets on the Hub do. An empty string counts as absent.
    pub fn json(self, name: &str) -> FieldResult<Option<Value>> {
        self.held(name, parse, Value::clone)
    }

    /// Like [`JsonRecord::json`], but as text for Python.
    pub fn raw(self, name: &str) -> FieldResult<Option<RawJson>> {
        self.held(name, raw, |value| value.into())
    }

    fn held<T>(
        self,
        name: &str,
        parse: fn(&str, &str) -> FieldResult<T>,
        held: fn(&Value) -> T,
    ) -> FieldResult<Option<T>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(Value::String(text)) => parse(name, text).map(Some),
            Some(value) => Ok(Some(held(value))),
        }
    }
}

pub(crate) fn text<'a>(field: &str, value: &'a Value) -> FieldResult<&'a str> {
    value.as_str().ok_or_else(|| wrong(field, "a text", describe(value)))
}

pub(crate) fn list<'a>(field: &str, value: &'a Value) -> FieldResult<&'a Vec<Value>> {
    value.as_array().ok_or_else(|| wrong(field, "a list", describe(value)))
}

pub(crate) fn object<'a>(field: &str, value: &'a Value) -> FieldResult<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| wrong(field, "an object", describe(value)))
}

pub(crate) fn parse<T: DeserializeOwned>(field: &str, text: &str) -> FieldResult<T> {
    json::read(text).map_err(|error| no_json(field, error))
}

pub(crate) fn raw(field: &str, text: &str) -> FieldResult<RawJson> {
    RawJson::parse(text).map_err(|error| no_json(field, error))
}

fn no_json(field: &str, error: serde_json::Error) -> Wrong {
    wrong(field, "JSON in a string", format!("a string that is not JSON ({error})"))
}

pub(crate) fn raw_list(field: &str, value: &RawJson) -> FieldResult<Vec<RawJson>> {
    value.list().ok_or_else(|| no_list(field, value))
}

/// Like [`raw_list`], without parsing the list's values.
pub(crate) fn check_raw_list(field: &str, value: &RawJson) -> FieldResult<()> {
    if value.is_list() { Ok(()) } else { Err(no_list(field, value)) }
}

fn no_list(field: &str, value: &RawJson) -> Wrong {
    wrong(field, "a list", value.describe())
}

pub(crate) fn raw_object(field: &str, value: &RawJson) -> FieldResult<HashMap<String, RawJson>> {
    value.object().ok_or_else(|| wrong(field, "an object", value.describe()))
}

pub(crate) fn raw_text(field: &str, value: &RawJson) -> FieldResult<String> {
    value.text().ok_or_else(|| wrong(field, "a text", value.describe()))
}
