//! Finds in which syntax a chat template takes the arguments of earlier calls: as values, which most templates write as
//! JSON, or as texts of JSON, which some put together with other texts.

use serde_json::{Value, json};

use crate::chat::ChatOptions;
use crate::message::Message;
use crate::tokenizer::Tokenizer;

/// What the arguments of a call are to a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentsSyntax {
    /// A value.
    Value,
    /// A text of JSON.
    Text,
}

impl Tokenizer {
    /// How the chat template that `options` choose takes arguments of calls: as values, unless it cannot show them so
    /// and can show texts.
    pub fn arguments_syntax(&self, options: &ChatOptions) -> ArgumentsSyntax {
        const VALUE: &str = "OFFSHOOT-ARGUMENT";
        let shows = |arguments: Value| {
            let function = json!({"name": "f", "arguments": arguments});
            let call = json!({"id": "offshoot1", "type": "function", "function": function});
            let messages = [
                Message::user("."),
                Message::assistant("").with("tool_calls", vec![call]),
                Message::new("tool", ".").with("tool_call_id", "offshoot1").with("name", "f"),
            ];
            let options = ChatOptions { tools: Vec::new(), ..options.clone() };
            // Python's own text of a value has its strings in single quotes; a text that is written as JSON once more
            // has them behind backslashes.
            let is_shown = |text: String| text.contains(VALUE) && !text.contains("'k'") && !text.contains("\\\"k\\\"");
            self.chat_with(&messages, &options).is_ok_and(is_shown)
        };
        match !shows(json!({"k": VALUE})) && shows(json!({"k": VALUE}).to_string().into()) {
            true => ArgumentsSyntax::Text,
            false => ArgumentsSyntax::Value,
        }
    }
}
