//! Reads the messages of a chat: their roles, and their contents as text.

use serde_json::{Map, Value};

use super::fields::brief;
use super::refusal::Refusal;
use offshoot_text::Message;

/// The roles, and the names that templates have for them: `developer` is OpenAI's newer name for `system`, which
/// templates do not know.
const ROLES: [(&str, &str); 5] =
    [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")];

/// OpenAI's fields of a message that are not supported; `name` for tools alone.
const UNSUPPORTED: [&str; 6] = ["tool_calls", "tool_call_id", "function_call", "refusal", "audio", "name"];

/// The messages of a chat.
pub struct Messages {
    pub list: Vec<Message>,
    /// Whether the last message, the assistant's, says that it is a beginning (`prefix`).
    pub is_prefix: bool,
}

/// `messages`: the field's value.
pub fn read(messages: &Value) -> Result<Messages, Refusal> {
    let list = messages
        .as_array()
        .filter(|list| !list.is_empty())
        .ok_or_else(|| Refusal::value("messages", "a list of messages with `role` and `content`", &brief(messages)))?;
    let is_prefix = |value: &Value| value["prefix"] == true;
    if let Some(index) = list[..list.len() - 1].iter().position(is_prefix) {
        let field = format!("messages[{index}].prefix");
        return Err(Refusal::value(&field, "it on the last message", "a message after it").about("messages"));
    }
    let last = &list[list.len() - 1];
    if is_prefix(last) && last["role"] != "assistant" {
        let field = format!("messages[{}].prefix", list.len() - 1);
        return Err(Refusal::value(&field, "the role `assistant`", &brief(&last["role"])).about("messages"));
    }
    let messages = list.iter().enumerate().map(|(index, value)| message(index, value));
    Ok(Messages { list: messages.collect::<Result<_, _>>()?, is_prefix: is_prefix(last) })
}

/// The message at `index`; its content is a text or a list of text parts.
fn message(index: usize, value: &Value) -> Result<Message, Refusal> {
    let at = |field: &str| format!("messages[{index}]{field}");
    let wrong =
        |field: &str, expected: &str, found: &str| Refusal::value(&at(field), expected, found).about("messages");
    let fields: &Map<String, Value> =
        value.as_object().ok_or_else(|| wrong("", "an object with `role` and `content`", &brief(value)))?;
    for (key, value) in fields.iter().filter(|(_, value)| !is_nothing(value)) {
        match key.as_str() {
            // Templates leave the reasoning of earlier turns out.
            "role" | "content" | "reasoning_content" => {}
            // Of a person it changes no prompt; of a tool, templates show it.
            "name" if fields.get("role").is_none_or(|role| role != "tool") => {}
            "prefix" if value.is_boolean() => {}
            key if UNSUPPORTED.contains(&key) => {
                return Err(Refusal::unsupported(&at(&format!(".{key}")), &brief(value)).about("messages"));
            }
            key => {
                let what = format!("`{}` is not a field of a message", at(&format!(".{key}")));
                return Err(Refusal::new("unknown_parameter", what).about("messages"));
            }
        }
    }
    let shown = |field: &str| fields.get(field).map_or_else(|| "nothing".to_owned(), brief);
    let part = |part: &Value| (part["type"] == "text").then(|| part["text"].as_str()).flatten().map(str::to_owned);
    let content = match fields.get("content") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        _ => None,
    };
    let role = fields.get("role").and_then(Value::as_str);
    let Some((_, role)) = ROLES.iter().find(|(name, _)| Some(*name) == role) else {
        let known = ROLES.map(|(name, _)| format!("`{name}`")).join(", ");
        return Err(wrong(".role", &format!("one of {known}"), &shown("role")));
    };
    Ok(Message {
        role: role.to_string(),
        content: content.ok_or_else(|| wrong(".content", "a text or a list of text parts", &shown("content")))?,
    })
}

/// Whether a field says no more than its absence would.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}
