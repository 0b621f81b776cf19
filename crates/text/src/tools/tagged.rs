//! Arguments between tags, which become one object of JSON. The text between the tags is a string, or JSON where the
//! tool's schema says that the parameter is no string. Where no tools are known, it is what it looks like.

use serde_json::Value;

use super::ToolSet;
use super::head::{Cursor, Next};
use super::schema::{SchemaPart, kind_of};
use super::syntax::Tagged;

/// What comes next of a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TagStep {
    /// More text decides it.
    More,
    /// An argument of `bytes` bytes, as a piece of JSON.
    Argument { bytes: usize, piece: String },
    /// The end, behind `bytes` bytes.
    End { bytes: usize },
}

/// Reads what `text` begins with: the next argument of a call of `tool`, or the call's end. `is_first`: no argument has
/// been read.
pub(super) fn step(tags: &Tagged, closes: &[&str], tools: &ToolSet, tool: &str, is_first: bool, text: &str) -> TagStep {
    let mut cursor = Cursor { text, at: 0 };
    cursor.skip_space();
    let begin = cursor.at;
    if !tags.end.is_empty() && cursor.eat(tags.end) == Next::Found {
        return TagStep::End { bytes: cursor.at };
    }
    let is_close = |rest: &str| closes.iter().any(|close| rest.starts_with(close));
    if is_close(cursor.rest()) {
        return TagStep::End { bytes: begin };
    }
    match cursor.eat(tags.before_key) {
        Next::Found => {}
        Next::More => return TagStep::More,
        Next::Other => {
            let may_close = closes.iter().chain([&tags.end]).any(|close| close.starts_with(cursor.rest()));
            return if may_close { TagStep::More } else { TagStep::End { bytes: begin } };
        }
    }
    let Some((key, _)) = cursor.rest().split_once(tags.after_key) else { return TagStep::More };
    cursor.at += key.len() + tags.after_key.len();
    if !tags.before_value.is_empty() {
        cursor.skip_space();
        match cursor.eat(tags.before_value) {
            Next::Found => {}
            Next::More => return TagStep::More,
            Next::Other => return TagStep::End { bytes: begin },
        }
    }
    let Some((value, _)) = cursor.rest().split_once(tags.after_value) else { return TagStep::More };
    cursor.at += value.len() + tags.after_value.len();
    let key = key.trim();
    let value = match tools.tools.is_empty() {
        true => value_without_schema(value),
        false => value_of(value, tools.get(tool).and_then(|tool| tool.part(key))),
    };
    let comma = if is_first { "" } else { ", " };
    TagStep::Argument { bytes: cursor.at, piece: format!("{comma}{}: {value}", Value::from(key)) }
}

/// A text between tags without the line break at each end that is none of its own.
fn without_breaks(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// The value that a text between tags looks like, where no tool says what it is: JSON, unless that is a string.
fn value_without_schema(text: &str) -> Value {
    let text = without_breaks(text);
    let read = serde_json::from_str(text.trim()).ok().filter(|value: &Value| !value.is_string());
    read.unwrap_or_else(|| text.into())
}

/// The value that a text between tags is.
fn value_of(text: &str, schema: Option<SchemaPart<'_>>) -> Value {
    let text = without_breaks(text);
    let kinds = schema.map_or_else(Vec::new, SchemaPart::kinds);
    if kinds.is_empty() || kinds == ["string"] {
        return text.into();
    }
    let fits = |value: &Value| kinds.contains(&kind_of(value)) || (value.is_i64() && kinds.contains(&"number"));
    let lower = text.trim().to_lowercase();
    let word = match &*lower {
        // As Python writes them.
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        "none" | "null" => Some(Value::Null),
        _ => None,
    };
    let read = word.or_else(|| serde_json::from_str(text.trim()).ok());
    match read {
        Some(value) if fits(&value) => value,
        // What is no string by the schema is taken as it is, if it is JSON at all.
        Some(value) if !kinds.contains(&"string") => value,
        _ => text.into(),
    }
}
