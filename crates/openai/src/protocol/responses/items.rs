//! Reads the items of a response's `input`: messages, reasoning, calls of functions and their outputs. Each becomes an
//! object as lists of items show it: with its type and an id, and its content as a list of parts.

use serde_json::{Map, Value, json};

use crate::protocol::fields::brief;
use crate::protocol::refusal::Refusal;

/// The roles of messages.
const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];
/// The kinds of parts that are text.
const TEXT_PARTS: [&str; 3] = ["input_text", "output_text", "text"];

/// The items of `input`: a text, which is the user's, or a list. `response`: the id that the response will have, from
/// which the ids of its items are made.
pub fn read(input: Option<&Value>, response: &str) -> Result<Vec<Value>, Refusal> {
    let wrong = |found: &str| Refusal::value("input", "a text or a list of items", found);
    let items = match input {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![json!({ "type": "message", "role": "user", "content": text })],
        Some(Value::Array(items)) => items.clone(),
        Some(other) => return Err(wrong(&brief(other))),
    };
    let read = |(index, item): (usize, Value)| match item {
        Value::Object(fields) => ItemReader { index, response }.read(fields),
        other => {
            let field = format!("input[{index}]");
            Err(Refusal::value(&field, "an object with a `type`", &brief(&other)).about("input"))
        }
    };
    items.into_iter().enumerate().map(read).collect()
}

/// The id of a response's item number `number`; `prefix` says of which kind.
pub fn id_of(prefix: &str, response: &str, number: &str) -> String {
    format!("{prefix}{}_{number}", response.trim_start_matches(super::RESPONSE_ID_PREFIX))
}

struct ItemReader<'a> {
    index: usize,
    response: &'a str,
}

impl ItemReader<'_> {
    fn read(&self, mut item: Map<String, Value>) -> Result<Value, Refusal> {
        let kind = match item.get("type") {
            None | Some(Value::Null) => "message".to_owned(),
            Some(Value::String(kind)) => kind.clone(),
            Some(other) => return Err(self.wrong(".type", "the kind of the item", &brief(other))),
        };
        let prefix = match &*kind {
            "message" => {
                self.message(&mut item)?;
                "msg_"
            }
            "reasoning" => {
                self.reasoning(&mut item)?;
                "rs_"
            }
            "function_call" => {
                self.call(&item)?;
                "fc_"
            }
            "function_call_output" => {
                self.call_output(&item)?;
                "fco_"
            }
            other => {
                let place = "here: items are `message`, `reasoning`, `function_call` and `function_call_output`";
                let field = format!("input[{}]", self.index);
                let shown: String = other.chars().take(60).collect();
                let message = format!("`{field}`: the item type {shown:?} is not supported {place}");
                return Err(Refusal::new("unsupported_parameter", message).about("input"));
            }
        };
        item.insert("type".to_owned(), kind.into());
        if !item.get("id").is_some_and(Value::is_string) {
            item.insert("id".to_owned(), id_of(prefix, self.response, &format!("in{}", self.index)).into());
        }
        item.retain(|_, value| !value.is_null());
        Ok(Value::Object(item))
    }

    /// A message: its role, and its content as a list of parts.
    fn message(&self, item: &mut Map<String, Value>) -> Result<(), Refusal> {
        let role = item.get("role").and_then(Value::as_str).filter(|role| ROLES.contains(role));
        let Some(role) = role.map(str::to_owned) else {
            let known = ROLES.map(|role| format!("{role:?}")).join(", ");
            let found = item.get("role").map_or_else(|| "nothing".to_owned(), brief);
            return Err(self.wrong(".role", &format!("one of {known}"), &found));
        };
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        let part = |text: String| match kind {
            "output_text" => json!({ "type": kind, "text": text, "annotations": [] }),
            _ => json!({ "type": kind, "text": text }),
        };
        let parts = self.texts(".content", item.get("content"))?.into_iter().map(part).collect();
        item.insert("content".to_owned(), Value::Array(parts));
        item.entry("status").or_insert("completed".into());
        Ok(())
    }

    /// Reasoning: the texts of its content and of its summary. What others have encrypted says nothing here.
    fn reasoning(&self, item: &mut Map<String, Value>) -> Result<(), Refusal> {
        for (field, kind) in [("content", "reasoning_text"), ("summary", "summary_text")] {
            let parts = match item.get(field) {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::Array(parts)) => parts.clone(),
                Some(other) => return Err(self.wrong(&format!(".{field}"), "a list of parts", &brief(other))),
            };
            if let Some(at) = parts.iter().position(|part| !part["text"].is_string()) {
                let place = format!(".{field}[{at}]");
                return Err(self.wrong(&place, &format!("an object of type {kind:?} with `text`"), &brief(&parts[at])));
            }
            item.insert(field.to_owned(), Value::Array(parts));
        }
        Ok(())
    }

    fn call(&self, item: &Map<String, Value>) -> Result<(), Refusal> {
        ["call_id", "name", "arguments"].into_iter().try_for_each(|field| self.is_text(item, field))
    }

    fn call_output(&self, item: &Map<String, Value>) -> Result<(), Refusal> {
        self.is_text(item, "call_id")?;
        self.texts(".output", item.get("output")).map(drop)
    }

    fn is_text(&self, item: &Map<String, Value>, field: &str) -> Result<(), Refusal> {
        match item.get(field) {
            Some(Value::String(_)) => Ok(()),
            other => {
                let found = other.map_or_else(|| "nothing".to_owned(), brief);
                Err(self.wrong(&format!(".{field}"), "a string", &found))
            }
        }
    }

    /// The texts of a content: one, or those of a list of parts.
    fn texts(&self, field: &str, content: Option<&Value>) -> Result<Vec<String>, Refusal> {
        let parts = match content {
            Some(Value::String(text)) => return Ok(vec![text.clone()]),
            Some(Value::Array(parts)) => parts,
            other => {
                let found = other.map_or_else(|| "nothing".to_owned(), brief);
                return Err(self.wrong(field, "a text or a list of parts of text", &found));
            }
        };
        let text = |(at, part): (usize, &Value)| match text_of(part) {
            Some(text) => Ok(text.to_owned()),
            None if part["type"].is_string() => {
                let (field, found) = (format!("input[{}]{field}[{at}]", self.index), brief(&part["type"]));
                let message = format!("`{field}`: parts are texts here, and {found} is not supported; leave it out");
                Err(Refusal::new("unsupported_parameter", message).about("input"))
            }
            None => Err(self.wrong(&format!("{field}[{at}]"), "a part with `type` and `text`", &brief(part))),
        };
        parts.iter().enumerate().map(text).collect()
    }

    fn wrong(&self, field: &str, expected: &str, found: &str) -> Refusal {
        Refusal::value(&format!("input[{}]{field}", self.index), expected, found).about("input")
    }
}

/// The text of a part, if it is one of text. A refusal is what the assistant said, too.
fn text_of(part: &Value) -> Option<&str> {
    match part["type"].as_str()? {
        "refusal" => part["refusal"].as_str(),
        kind if TEXT_PARTS.contains(&kind) => part["text"].as_str(),
        _ => None,
    }
}
