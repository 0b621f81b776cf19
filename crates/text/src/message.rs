//! A turn of a conversation as a chat template sees it: an object with a role, its content and whatever else the turn
//! has, in the order in which it was written. Whoever makes a turn decides what belongs in it; `chat` renders it.
#![warn(missing_docs)]

use serde::Serialize;
use serde_json::{Map, Value};

/// The names by which chat templates know what was thought before the content. vLLM's server hands over the first and
/// the last, transformers from 5.24 on the first two.
pub const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The roles that every template is taken to know. `developer` is OpenAI's newer name for `system`.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What a text in a turn, in a tool or in a variable is to a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPlace {
    /// The role of a turn, with which a template compares the roles that it knows.
    Role,
    /// The name of a field, or the value of a field `type`: a template may look for them by their words.
    Name,
    /// Any other text.
    Value,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Message {
    fields: Map<String, Value>,
}

impl Message {
    /// A turn of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let fields = [("role", role.into()), ("content", content.into())];
        Message { fields: fields.map(|(name, text)| (name.to_owned(), text.into())).into_iter().collect() }
    }

    /// What the user said.
    pub fn user(content: impl Into<String>) -> Self {
        Message::new("user", content)
    }

    /// What the assistant said.
    pub fn assistant(content: impl Into<String>) -> Self {
        Message::new("assistant", content)
    }

    /// What the assistant is told before the conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Message::new("system", content)
    }

    /// The turn with these fields, as the template is to see them.
    pub fn of(fields: Map<String, Value>) -> Self {
        Message { fields }
    }

    /// The same turn with a further field, such as `reasoning_content` or `tool_calls`.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(field.into(), value.into());
        self
    }

    /// The same turn without fields that are null, which many templates would print, and with the reasoning under each
    /// of its names. Of several that are given, each is kept, and the first in [`REASONING`] fills the others.
    #[must_use]
    pub fn completed(mut self) -> Self {
        self.fields.retain(|_, value| !value.is_null());
        if let Some(reasoning) = REASONING.iter().find_map(|name| self.fields.get(*name)).cloned() {
            for name in REASONING {
                self.fields.entry(name).or_insert_with(|| reasoning.clone());
            }
        }
        self
    }

    /// The role, if it is a text.
    pub fn role(&self) -> Option<&str> {
        self.fields.get("role").and_then(Value::as_str)
    }

    /// A field's value.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field)
    }

    /// The content as one text: of a list of parts, the text of the last one.
    pub fn last_text(&self) -> Option<&str> {
        match self.fields.get("content")? {
            Value::Array(parts) => parts.last()?.get("text")?.as_str(),
            content => content.as_str(),
        }
    }

    /// Adds a text to the end of the content, which is a text, a list that ends with a part of text, or missing.
    /// Returns whether it is one of these.
    pub fn append(&mut self, more: &str) -> bool {
        let content = self.fields.entry("content").or_insert(Value::Null);
        if content.is_null() {
            *content = Value::String(String::new());
        }
        let last = match content {
            Value::Array(parts) => parts.last_mut().and_then(|part| part.get_mut("text")),
            content => Some(content),
        };
        match last {
            Some(Value::String(text)) => {
                text.push_str(more);
                true
            }
            _ => false,
        }
    }

    /// The parts of a content that is a list.
    pub fn parts(&self) -> Option<&[Value]> {
        self.fields.get("content")?.as_array().map(Vec::as_slice)
    }

    /// Puts the parts of text together, a line each, as vLLM does for templates that expect a text.
    pub fn join_parts(&mut self) {
        let Some(Value::Array(parts)) = self.fields.get("content") else { return };
        let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
        let text = texts.join("\n");
        self.fields.insert("content".to_owned(), text.into());
    }

    /// Replaces each text in the turn, names of fields among them, but not the names `role` and `content`.
    ///
    /// # Errors
    ///
    /// The first of `replace`, with the name of the turn's field.
    pub fn map_texts<E>(
        &mut self,
        replace: &mut impl FnMut(&str, TextPlace) -> Result<String, E>,
    ) -> Result<(), (String, E)> {
        let mut replaced = Map::new();
        for (name, mut value) in std::mem::take(&mut self.fields) {
            let named = match (&*name, &mut value) {
                ("role", Value::String(role)) => replace(role, TextPlace::Role).map(|replaced| {
                    *role = replaced;
                    name.clone()
                }),
                ("role" | "content", value) => map_texts(value, replace).map(|()| name.clone()),
                (_, value) => map_field(&name, value, replace),
            };
            let named = named.map_err(|error| (name, error))?;
            replaced.insert(named, value);
        }
        self.fields = replaced;
        Ok(())
    }
}

/// Replaces each text in `value`, names of fields among them.
pub fn map_texts<E>(
    value: &mut Value,
    replace: &mut impl FnMut(&str, TextPlace) -> Result<String, E>,
) -> Result<(), E> {
    match value {
        Value::String(text) => *text = replace(text, TextPlace::Value)?,
        Value::Array(list) => list.iter_mut().try_for_each(|value| map_texts(value, replace))?,
        Value::Object(fields) => {
            let mut replaced = Map::new();
            for (name, mut value) in std::mem::take(fields) {
                replaced.insert(map_field(&name, &mut value, replace)?, value);
            }
            *fields = replaced;
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

/// Replaces the texts in a field's value, and returns what its name becomes.
fn map_field<E>(
    name: &str,
    value: &mut Value,
    replace: &mut impl FnMut(&str, TextPlace) -> Result<String, E>,
) -> Result<String, E> {
    match (name, &mut *value) {
        ("type", Value::String(kind)) => *kind = replace(kind, TextPlace::Name)?,
        (_, value) => map_texts(value, replace)?,
    }
    replace(name, TextPlace::Name)
}
