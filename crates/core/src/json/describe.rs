//! JSON values and names as error messages show them.

use serde_json::{Map, Value};

use crate::figures::beginning;

/// Characters of a string that a message shows.
pub(super) const MOST: usize = 60;

/// The beginning of a value's JSON.
pub fn cut_json(value: &Value, most: usize) -> String {
    let text = value.to_string();
    beginning(&text, most).map(|start| format!("{start}...")).unwrap_or(text)
}

/// A JSON value as an error message shows it.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => match beginning(text, MOST) {
            Some(start) => format!("\"{}…\"", start.escape_debug()),
            None => format!("\"{}\"", text.escape_debug()),
        },
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_string(),
    }
}

/// An id as text: that of a string or a number; `None` for anything else.
pub fn id(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

/// `a`, `b`, `c`
pub fn listed<S: AsRef<str>>(names: &[S]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// The names of an item's fields, for an error message.
pub fn names(fields: &Map<String, Value>) -> String {
    listed(&fields.keys().collect::<Vec<_>>())
}
