//! The messages of the chat that a conversation of items is: what the assistant thought, said and called between two
//! items of others is one message of its own.

use serde_json::{Map, Value, json};

/// A request and its response, as later ones go on from them.
#[derive(Debug)]
pub struct Turn {
    /// The items of the request, without those of earlier turns.
    pub input: Vec<Value>,
    /// The response as it was answered.
    pub response: Value,
}

impl Turn {
    /// The items of the response.
    pub fn output(&self) -> &[Value] {
        self.response["output"].as_array().map_or(&[], Vec::as_slice)
    }

    /// All items in order.
    pub fn items(&self) -> impl Iterator<Item = &Value> {
        self.input.iter().chain(self.output())
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.input.iter().chain([&self.response]).map(bytes_of).sum()
    }
}

/// Bytes of memory that a value takes, about.
fn bytes_of(value: &Value) -> usize {
    /// A field's name and place in its object, beside its characters.
    const FIELD: usize = 64;
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(bytes_of).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + FIELD + bytes_of(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inner
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOrigin {
    Instructions,
    /// Items of earlier turns.
    Earlier,
    /// An item of the request's own, the first of those that the message has.
    Input(usize),
}

/// The messages, each with its origin.
#[derive(Debug, Default)]
pub struct ItemMessages {
    pub list: Vec<Value>,
    pub origins: Vec<MessageOrigin>,
    /// The assistant's message that is being put together.
    open: Option<AssistantMessage>,
}

#[derive(Debug)]
struct AssistantMessage {
    origin: MessageOrigin,
    reasoning: String,
    content: Option<Value>,
    calls: Vec<Value>,
}

impl ItemMessages {
    /// What the assistant is told first.
    pub fn instruct(&mut self, instructions: &str) {
        self.push(MessageOrigin::Instructions, json!({ "role": "system", "content": instructions }));
    }

    /// Adds an item as [`items::read`](super::items::read) or a response has it.
    pub fn add(&mut self, item: &Value, origin: MessageOrigin) {
        match (item["type"].as_str(), item["role"].as_str()) {
            (Some("reasoning"), _) => {
                let open = self.assistant(origin, |open| open.content.is_some() || !open.calls.is_empty());
                open.reasoning += &reasoning(item);
            }
            // A call that was cut short was not made: nobody can answer it, and its arguments may be no JSON.
            (Some("function_call"), _) if item["status"] == "incomplete" => {}
            (Some("function_call"), _) => {
                let function = json!({ "name": item["name"], "arguments": item["arguments"] });
                let call = json!({ "id": item["call_id"], "type": "function", "function": function });
                self.assistant(origin, |_| false).calls.push(call);
            }
            (Some("function_call_output"), _) => {
                let content = content(&item["output"]);
                let message = json!({ "role": "tool", "tool_call_id": item["call_id"], "content": content });
                self.push(origin, message);
            }
            (_, Some("assistant")) => {
                let open = self.assistant(origin, |open| open.content.is_some() || !open.calls.is_empty());
                open.content = Some(content(&item["content"]));
            }
            (_, role) => self.push(origin, json!({ "role": role, "content": content(&item["content"]) })),
        }
    }

    /// Ends the last message.
    pub fn finish(&mut self) {
        let Some(AssistantMessage { origin, reasoning, content, calls }) = self.open.take() else { return };
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), content.unwrap_or_default());
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        self.list.push(Value::Object(message));
        self.origins.push(origin);
    }

    /// The assistant's message that goes on; a new one if `is_over` says so of the one before.
    fn assistant(
        &mut self,
        origin: MessageOrigin,
        is_over: impl FnOnce(&AssistantMessage) -> bool,
    ) -> &mut AssistantMessage {
        if self.open.as_ref().is_some_and(is_over) {
            self.finish();
        }
        let new = || AssistantMessage { origin, reasoning: String::new(), content: None, calls: Vec::new() };
        self.open.get_or_insert_with(new)
    }

    fn push(&mut self, origin: MessageOrigin, message: Value) {
        self.finish();
        self.list.push(message);
        self.origins.push(origin);
    }
}

/// What was thought: the content or, without one, its summary.
fn reasoning(item: &Value) -> String {
    let texts = |field: &str| {
        let parts = item[field].as_array().map_or(&[][..], Vec::as_slice);
        parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
    };
    let mut content = texts("content");
    if content.is_empty() {
        content = texts("summary");
    }
    content
}

/// A content as chats have it: one text, or a list of parts of text.
fn content(content: &Value) -> Value {
    let Some(parts) = content.as_array() else { return content.clone() };
    let text = |part: &Value| part["text"].as_str().or(part["refusal"].as_str()).unwrap_or_default().to_owned();
    let mut texts: Vec<String> = parts.iter().map(text).collect();
    match texts.len() {
        0 => "".into(),
        1 => texts.remove(0).into(),
        _ => texts.into_iter().map(|text| json!({ "type": "text", "text": text })).collect(),
    }
}
