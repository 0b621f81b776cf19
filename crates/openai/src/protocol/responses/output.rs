//! The items of a response: what was thought, the message, and calls of functions, in the order in which they were
//! sampled.

use serde_json::{Value, json};

use super::items::id_of;

/// An item that is being written.
#[derive(Debug)]
pub struct OutputItem {
    pub kind: ItemKind,
    pub id: String,
    /// The reasoning, what is said, or the arguments of the call.
    pub text: String,
    /// The log-probabilities of a message's tokens, if they are shown.
    pub logprobs: Option<Vec<Value>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemKind {
    Reasoning,
    Message,
    Call { name: String, call_id: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

impl ItemStatus {
    fn word(self) -> &'static str {
        match self {
            ItemStatus::InProgress => "in_progress",
            ItemStatus::Completed => "completed",
            ItemStatus::Incomplete => "incomplete",
        }
    }
}

impl ItemKind {
    fn id_prefix(&self) -> &'static str {
        match self {
            ItemKind::Reasoning => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call { .. } => "fc_",
        }
    }
}

impl OutputItem {
    /// Item number `number` of a response, without text.
    pub fn new(kind: ItemKind, response: &str, number: usize, shows_logprobs: bool) -> OutputItem {
        let id = id_of(kind.id_prefix(), response, &number.to_string());
        let logprobs = (shows_logprobs && matches!(kind, ItemKind::Message)).then(Vec::new);
        OutputItem { kind, id, text: String::new(), logprobs }
    }

    /// The item before it has any text, with an empty list as its content.
    pub fn begun(&self) -> Value {
        self.head(ItemStatus::InProgress)
    }

    /// The item with its text. What is long moves into the value: it is there once.
    pub fn shown(self, status: ItemStatus) -> Value {
        let mut shown = self.head(status);
        match empty_part(&self.kind) {
            Some(mut part) => {
                part["text"] = Value::String(self.text);
                if let Some(logprobs) = self.logprobs {
                    part["logprobs"] = Value::Array(logprobs);
                }
                shown["content"] = Value::Array(vec![part]);
            }
            None => shown["arguments"] = Value::String(self.text),
        }
        shown
    }

    fn head(&self, status: ItemStatus) -> Value {
        let (id, status) = (&self.id, status.word());
        match &self.kind {
            ItemKind::Reasoning => json!({
                "id": id, "type": "reasoning", "summary": [], "content": [], "encrypted_content": null,
                "status": status,
            }),
            ItemKind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": [],
            }),
            ItemKind::Call { name, call_id } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": "",
            }),
        }
    }
}

/// The part of an item's content, without text; a call has none.
pub fn empty_part(kind: &ItemKind) -> Option<Value> {
    match kind {
        ItemKind::Reasoning => Some(json!({ "type": "reasoning_text", "text": "" })),
        ItemKind::Message => Some(json!({ "type": "output_text", "annotations": [], "logprobs": [], "text": "" })),
        ItemKind::Call { .. } => None,
    }
}
