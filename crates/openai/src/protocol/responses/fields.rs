//! The names of fields: those of responses that change nothing, those that are not supported, and what a chat's fields
//! are called in a request for a response, for refusals.

use serde_json::Value;

use super::messages::MessageOrigin;
use crate::protocol::refusal::Refusal;

/// Whether a field with this value changes nothing.
type HasNoEffect = fn(&Value) -> bool;

/// Fields of responses that are not supported.
pub const UNSUPPORTED: [(&str, HasNoEffect); 11] = [
    ("background", |value| value == false),
    ("background_options", |_| false),
    ("conversation", |_| false),
    ("prompt", |_| false),
    ("max_tool_calls", |_| false),
    ("truncation", |value| value == "disabled"),
    ("context_management", |value| value.as_array().is_some_and(Vec::is_empty)),
    ("moderation", |_| false),
    ("image", |_| false),
    ("access_programs", |_| false),
    ("modalities", |value| value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "text"))),
];

/// Fields of responses that change no answer.
pub const IGNORED: [&str; 3] = ["service_tier", "prompt_cache_retention", "prompt_cache_options"];

/// What `include` may name: log-probabilities, what is in a response anyway, and parts of what no response here has.
pub const INCLUDED: [&str; 8] = [
    "message.output_text.logprobs",
    // The reasoning is there, not encrypted.
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];

/// Fields of chats that requests for responses do not have: what has another name there, and what asks for more than
/// one answer or for something that no response shows.
pub const NOT_OF_RESPONSES: [&str; 30] = [
    "messages",
    "n",
    "best_of",
    "min_finished",
    "max_tokens",
    "max_completion_tokens",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "functions",
    "function_call",
    "logprobs",
    "prompt_logprobs",
    "echo",
    "choices",
    "keep",
    "parent",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "return_kept",
    "return_entropy",
    "return_confidence",
    "confidence_stop",
    "vllm_xargs",
    "return_routed_experts",
    "routed_experts_prompt_start",
    "return_weight_versions",
    "truncate_prompt_tokens",
    "add_generation_prompt",
    "continue_final_message",
];

/// What fields of chats are called in a request for a response; the longer names first.
const RENAMED: [(&str, &str); 7] = [
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("verbosity", "text.verbosity"),
    // A tool and the choice of one have no object `function`.
    ("tool_choice.function", "tool_choice"),
    ("messages", "input"),
];

/// What stands in a chat that asks for a response is called in the request for the response.
#[derive(Debug)]
pub struct ChatNames {
    /// Where each of the chat's messages comes from.
    pub(super) origins: Vec<MessageOrigin>,
}

impl ChatNames {
    /// A refusal of the chat as one of the request for the response.
    pub fn refusal(&self, refusal: Refusal) -> Refusal {
        let message = self.message_named(&refusal.message).unwrap_or_else(|| named_in(&refusal.message));
        let param = refusal.param.as_deref().map(|param| match param {
            // Either of them may be at fault where the messages are.
            "messages" if message.starts_with("`instructions") => "instructions".to_owned(),
            "messages" if message.starts_with("`previous_response_id") => "previous_response_id".to_owned(),
            param => renamed(param).unwrap_or_else(|| param.to_owned()),
        });
        Refusal { message, param, ..refusal }
    }

    /// A message of an error about one of the chat's messages, which the request has under another name.
    fn message_named(&self, message: &str) -> Option<String> {
        let (index, rest) = message.strip_prefix("`messages[")?.split_once(']')?;
        let origin = self.origins.get(index.parse::<usize>().ok()?)?;
        // Behind it stands the place in the message, which an item has elsewhere.
        let (_, rest) = rest.split_once('`')?;
        Some(match origin {
            MessageOrigin::Instructions => format!("`instructions`{rest}"),
            MessageOrigin::Earlier => format!("`previous_response_id`, an item of its conversation{rest}"),
            MessageOrigin::Input(item) => format!("`input[{item}]`{rest}"),
        })
    }
}

/// The message with its fields renamed: the one that is named at its beginning, and the one beside which that stands.
fn named_in(message: &str) -> String {
    const BESIDE: &str = " beside `";
    let renamed_first = |text: &str| {
        let (field, rest) = text.split_once('`')?;
        Some(format!("{}`{rest}", renamed(field)?))
    };
    let (before, after) = match message.split_once(BESIDE) {
        Some((before, after)) => {
            (before, format!("{BESIDE}{}", renamed_first(after).unwrap_or_else(|| after.to_owned())))
        }
        None => (message, String::new()),
    };
    let begin = before.strip_prefix('`').and_then(renamed_first).map(|renamed| format!("`{renamed}"));
    begin.unwrap_or_else(|| before.to_owned()) + &after
}

/// A field of a chat, with what stands in it, as requests for responses call it; `None`: the same.
fn renamed(field: &str) -> Option<String> {
    if field.starts_with("tools[") {
        return Some(field.replacen("].function", "]", 1));
    }
    let rest_of = |name: &str| field.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    RENAMED.iter().find_map(|(chat, own)| Some(format!("{own}{}", rest_of(chat)?)))
}
