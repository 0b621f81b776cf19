//! Arguments between tags, which become one object of JSON. The text between the tags is a string, or JSON where the
//! tool's schema says that the parameter is no string. Where no tools are known, it is what it looks like.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::ToolSet;
use super::head::{Cursor, Next};
use super::json::BracketScanner;
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

/// A call between tags, as far as it has been read.
#[derive(Clone, Copy)]
pub(super) struct TaggedCall<'a> {
    pub tags: &'a Tagged,
    /// The texts that end calls.
    pub closes: &'a [&'a str],
    /// The tools that can be called, and the name of the one that is.
    pub tools: &'a ToolSet,
    pub name: &'a str,
    /// Whether no argument has been read.
    pub is_first: bool,
}

/// Reads what `text` begins with: the next argument of a call, or the call's end. `ends`: no text follows.
pub(super) fn step(call: TaggedCall<'_>, text: &str, ends: bool) -> TagStep {
    let TaggedCall { tags, closes, tools, name, is_first } = call;
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
    let key = key.trim();
    let schema = tools.get(name).and_then(|tool| tool.part(key));
    let may_be_json = tools.tools.is_empty() || schema.is_some_and(|schema| !schema.is_text());
    let end = tags.after_value;
    let bytes = if may_be_json { json_bytes(cursor.rest(), end, ends) } else { cursor.rest().find(end) };
    let Some(bytes) = bytes else { return TagStep::More };
    let value = &cursor.rest()[..bytes];
    cursor.at += bytes + end.len();
    // Where no tag opens the value, it has a line of its own.
    let value = if tags.before_value.is_empty() { without_breaks(value) } else { value };
    let value = match tools.tools.is_empty() {
        true => value_without_schema(value).to_string(),
        false => value_of(value, schema),
    };
    let comma = if is_first { "" } else { ", " };
    TagStep::Argument { bytes: cursor.at, piece: format!("{comma}{}: {value}", Value::from(key)) }
}

/// Bytes of the value before `close`, which may stand in strings of its JSON, too; `None`: more text decides it, if the
/// text does not end here (`ends`).
fn json_bytes(text: &str, close: &str, ends: bool) -> Option<usize> {
    let mut scanner = BracketScanner::default();
    let has_strings = text.trim_start().starts_with(['{', '[', '"']);
    let mut first = None;
    for (at, byte) in text.bytes().enumerate() {
        if text.as_bytes()[at..].starts_with(close.as_bytes()) {
            let in_string = has_strings && scanner.is_in_string();
            let is_json = || serde_json::from_str::<IgnoredAny>(&text[..at]).is_ok();
            match first {
                None if !in_string => return Some(at),
                None => first = Some(at),
                Some(_) if !in_string && is_json() => return Some(at),
                Some(_) => {}
            }
        }
        scanner.take(byte);
    }
    // What is no JSON ends at the first tag.
    first.filter(|_| ends)
}

/// A text between tags without the line break at each end that is none of its own.
fn without_breaks(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// The value that a text between tags looks like, where no tool says what it is: JSON, unless that is a string.
fn value_without_schema(text: &str) -> Value {
    let read = serde_json::from_str(text.trim()).ok().filter(|value: &Value| !value.is_string());
    read.unwrap_or_else(|| text.into())
}

/// The JSON of the value that a text between tags is.
fn value_of(text: &str, schema: Option<SchemaPart<'_>>) -> String {
    let string = || Value::from(text).to_string();
    let Some(schema) = schema.filter(|schema| !schema.is_text()) else { return string() };
    let kinds = schema.kinds();
    if kinds.is_empty() {
        return string();
    }
    let lower = text.trim().to_lowercase();
    let word = match &*lower {
        // As Python writes them.
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        "none" | "null" => Some(Value::Null),
        _ => None,
    };
    let fits = |value: &Value| kinds.contains(&kind_of(value)) || (value.is_i64() && kinds.contains(&"number"));
    // What is no string by the schema is taken as it is, if it is JSON at all.
    let takes = |value: &Value| fits(value) || !kinds.contains(&"string");
    match word.map_or_else(|| serde_json::from_str(text.trim()), Ok) {
        Ok(value) if takes(&value) => value.to_string(),
        // A number with more digits than are read here.
        Err(_) if !kinds.contains(&"string") && serde_json::from_str::<IgnoredAny>(text).is_ok() => {
            text.trim().to_owned()
        }
        _ => string(),
    }
}
