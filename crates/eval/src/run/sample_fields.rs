//! Where a record of samples that were made elsewhere has an item's id and the samples' texts: in fields that the user
//! names, or in the usual ones. `vote` and `score` read such records.

use std::path::Path;

use serde_json::Value;

use crate::records::FileRecord;
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::json::{describe, listed, names};
use offshoot_core::setting::{ID, Setting, TEXT};

const IDS: [&str; 5] = ["id", "task_id", "question_id", "custom_id", "unique_id"];
const TEXTS: [&str; 6] = ["text", "completion", "response", "output", "samples", "completions"];

/// The fields of the records in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleFields<'o> {
    pub path: &'o Path,
    /// The fields that the user names; `None`: the first of the usual ones that a record has.
    pub id: Option<&'o str>,
    pub text: Option<&'o str>,
}

/// The texts of a record.
pub(super) struct SampleTexts {
    pub texts: Vec<String>,
    /// The field that has them.
    pub field: String,
    /// Whether it is a text, and no list of texts.
    pub is_lone: bool,
}

impl SampleFields<'_> {
    /// The id of a record's item, and its field.
    pub fn id_of(&self, record: &FileRecord) -> Result<(String, String)> {
        let field = field_of(self.path, record, self.id, &IDS, ID)?;
        let value = &record.1[&field];
        let id = json::id(Some(value)).ok_or_else(|| {
            let expected = format!("a string or a number at {}", record.0);
            Error::field(self.path, &field, expected, describe(value))
        })?;
        Ok((id, field))
    }

    /// The texts of a record: one, or a list.
    pub fn texts_of(&self, record: &FileRecord) -> Result<SampleTexts> {
        let field = field_of(self.path, record, self.text, &TEXTS, TEXT)?;
        let wrong = |found: String| {
            Error::field(self.path, &field, format!("a text or a list of texts at {}", record.0), found)
        };
        let text = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            other => Err(wrong(format!("{} in it", describe(other)))),
        };
        let (texts, is_lone) = match &record.1[&field] {
            Value::String(text) => (vec![text.clone()], true),
            Value::Array(list) => (list.iter().map(text).collect::<Result<_>>()?, false),
            other => return Err(wrong(describe(other))),
        };
        Ok(SampleTexts { texts, field, is_lone })
    }
}

/// The name of the given field, or of the first of `usual` that the record has. `option` names another one.
pub(super) fn field_of(
    path: &Path,
    (place, fields): &FileRecord,
    given: Option<&str>,
    usual: &[&str],
    option: Setting,
) -> Result<String> {
    let known = given.map_or(usual.to_vec(), |name| vec![name]);
    let found = known.iter().find(|name| fields.contains_key(**name));
    found.map(|name| name.to_string()).ok_or_else(|| {
        let expected = format!("one of the fields {} (or another by {option})", listed(&known));
        Error::field(path, place.to_string(), expected, format!("the fields {}", names(fields)))
    })
}
