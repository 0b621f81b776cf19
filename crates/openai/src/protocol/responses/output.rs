//! The items of a response: what was thought, the message, and calls of functions, in the order in which they were
//! sampled.

use serde_json::{Value, json};

use super::items::id_of;

/// An item that is being written, or was.
#[derive(Debug)]
pub struct OutputItem {
    pub kind: ItemKind,
    pub id: String,
    /// The reasoning, what is said, or the arguments of the call.
    pub text: String,
    /// The log-probabilities of a message's tokens, if they are shown.
    pub logprobs: Option<Vec<Value>>,
    pub status: ItemStatus,
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
        OutputItem { kind, id, text: String::new(), logprobs, status: ItemStatus::InProgress }
    }

    /// The item as it was before it had any text.
    pub fn begun(&self) -> Value {
        match &self.kind {
            ItemKind::Call { .. } => self.with("", None),
            ItemKind::Reasoning | ItemKind::Message => self.with("", Some(json!([]))),
        }
    }

    /// The item as it is.
    pub fn shown(&self) -> Value {
        self.with(&self.text, self.part().map(|part| json!([part])))
    }

    fn with(&self, arguments: &str, content: Option<Value>) -> Value {
        let (id, status) = (&self.id, self.status.word());
        match &self.kind {
            ItemKind::Reasoning => json!({
                "id": id, "type": "reasoning", "summary": [], "content": content, "encrypted_content": null,
                "status": status,
            }),
            ItemKind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
            }),
            ItemKind::Call { name, call_id } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": arguments,
            }),
        }
    }

    /// The part of its content, without text.
    pub fn empty_part(&self) -> Option<Value> {
        self.part_with("", &[])
    }

    /// The part of its content; a call has none.
    pub fn part(&self) -> Option<Value> {
        self.part_with(&self.text, self.logprobs.as_deref().unwrap_or_default())
    }

    fn part_with(&self, text: &str, logprobs: &[Value]) -> Option<Value> {
        match &self.kind {
            ItemKind::Reasoning => Some(json!({ "type": "reasoning_text", "text": text })),
            ItemKind::Message => {
                Some(json!({ "type": "output_text", "annotations": [], "logprobs": logprobs, "text": text }))
            }
            ItemKind::Call { .. } => None,
        }
    }
}
