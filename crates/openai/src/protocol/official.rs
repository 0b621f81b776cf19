//! Fields of OpenAI's and vLLM's that a request may have although they change no answer here, and those that are not
//! supported.

use serde_json::Value;

use super::fields::BodyFields;
use super::refusal::Refusal;

/// Fields that change no answer.
const IGNORED: [&str; 9] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    // vLLM's, by which its routers send the requests of one session to one server.
    "session_id",
    // vLLM's, for tokenizers written in Python: others put no spaces there.
    "spaces_between_special_tokens",
];

/// Whether a field with this value changes nothing.
type HasNoEffect = fn(&Value) -> bool;

/// Fields that are not supported.
const UNSUPPORTED: [(&str, HasNoEffect); 13] = [
    ("suffix", |value| value == ""),
    ("tools", is_empty),
    ("parallel_tool_calls", Value::is_boolean),
    ("modalities", |value| value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "text"))),
    ("audio", |_| false),
    ("prediction", |_| false),
    ("reasoning_effort", |value| value == "none"),
    ("verbosity", |value| value == "medium"),
    ("web_search_options", |_| false),
    ("moderation", |_| false),
    // vLLM's.
    ("logprob_token_ids", is_empty),
    ("truncation_side", |value| value == "left"),
    ("kv_transfer_params", |_| false),
];

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// Takes these fields; refuses one that asks for something that is not supported.
pub fn take(fields: &mut BodyFields) -> Result<(), Refusal> {
    fields.ignore(&IGNORED);
    take_functions(fields)?;
    fields.refuse("tool_choice", |choice| choice == "none" || choice == "auto")?;
    UNSUPPORTED.iter().try_for_each(|(key, has_no_effect)| fields.refuse(key, has_no_effect))
}

/// OpenAI's older fields for tools.
fn take_functions(fields: &mut BodyFields) -> Result<(), Refusal> {
    let refused = |field: &str, instead: &str| {
        let message = format!("`{field}` is not supported; send {instead}");
        Err(Refusal::new("unsupported_parameter", message).about(field))
    };
    if fields.take("functions").is_some_and(|functions| !is_empty(&functions)) {
        return refused("functions", "`tools`, a list of {\"type\": \"function\", \"function\": …}");
    }
    match fields.take("function_call").filter(|choice| choice != "none" && choice != "auto") {
        Some(_) => refused("function_call", "`tool_choice`: {\"type\": \"function\", \"function\": {\"name\": …}}"),
        None => Ok(()),
    }
}
