//! Reads the body of a request for a response as the chat that asks the same. What a chat has under another name is
//! renamed, what only responses have is read here, and every other field goes to the chat as it is. What is not there
//! is refused by name.

use serde_json::{Map, Value, json};

use super::fields::{ChatNames, IGNORED, INCLUDED, NOT_OF_RESPONSES, UNSUPPORTED};
use super::items;
use super::messages::{ItemMessages, MessageOrigin, Turn};
use crate::protocol::fields::{BodyFields, brief};
use crate::protocol::refusal::Refusal;

/// The part of an answer by which `include` asks for log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Most alternatives to a token, as OpenAI has it; a server may allow fewer.
const MOST_TOP: u64 = 1 << 16;

/// A request for a response.
#[derive(Debug)]
pub struct ResponseCall {
    /// The chat's fields, without its messages.
    chat: Map<String, Value>,
    instructions: Option<String>,
    /// The items of `input`, each with an id.
    pub input: Vec<Value>,
    /// The id of the response whose conversation goes on.
    pub previous: Option<String>,
    /// Whether the response is to be kept for later ones. One that cannot be kept says so.
    pub is_stored: bool,
    /// Whether the texts of the response have log-probabilities.
    pub shows_logprobs: bool,
    /// Fields of the request that the response repeats.
    pub(super) repeated: Map<String, Value>,
}

/// A chat that asks for a response, and where its messages come from.
pub struct ResponseChat {
    pub body: Map<String, Value>,
    pub names: ChatNames,
}

impl ResponseCall {
    /// `response`: the id that the response will have; `can_store`: whether there is a place where it could be kept.
    pub fn read(body: &Map<String, Value>, response: &str, can_store: bool) -> Result<ResponseCall, Refusal> {
        let mut fields = BodyFields::new(body);
        fields.unpack("extra_body")?;
        for (field, has_no_effect) in UNSUPPORTED {
            fields.refuse(field, has_no_effect)?;
        }
        let previous = fields.text("previous_response_id")?;
        let instructions = fields.text("instructions")?;
        let input = items::read(fields.take("input").as_ref(), response)?;
        if input.is_empty() && previous.is_none() {
            return Err(Refusal::value("input", "a text or a list of items", "nothing"));
        }
        let is_stored = fields.choice("store")?.unwrap_or(true) && can_store;
        let mut chat = Chat::default();
        let mut repeated = Map::new();
        let most_tokens = fields.count("max_output_tokens", 1, u64::from(u32::MAX))?;
        chat.set("max_completion_tokens", most_tokens);
        repeated.insert("max_output_tokens".to_owned(), json!(most_tokens));
        let shows_logprobs = includes_logprobs(&mut fields)?;
        let top = fields.count("top_logprobs", 0, MOST_TOP)?;
        if shows_logprobs {
            chat.set("logprobs", Some(true));
            chat.set("top_logprobs", top);
        }
        repeated.insert("top_logprobs".to_owned(), json!(top.unwrap_or(0)));
        repeated.insert("text".to_owned(), text(&mut fields, &mut chat)?);
        repeated.insert("reasoning".to_owned(), reasoning(&mut fields, &mut chat)?);
        tools(&mut fields, &mut chat, &mut repeated)?;
        let metadata = fields.strings("metadata")?.unwrap_or_default();
        repeated.insert("metadata".to_owned(), json!(metadata));
        for name in ["user", "safety_identifier", "prompt_cache_key"] {
            let text = fields.text(name)?;
            repeated.insert(name.to_owned(), json!(text));
        }
        fields.ignore(&IGNORED);
        let keep_seconds = fields.take("keep_seconds");
        if is_stored {
            chat.set("keep", Some(true));
            chat.set("keep_seconds", keep_seconds);
        }
        for (name, value) in fields.into_rest() {
            if NOT_OF_RESPONSES.contains(&&*name) {
                return Err(Refusal::unknown(&name));
            }
            chat.fields.insert(name, value);
        }
        for name in ["temperature", "top_p"] {
            repeated.insert(name.to_owned(), chat.fields.get(name).cloned().unwrap_or(json!(1.0)));
        }
        // The reasoning is an item of its own, and an answer a message of its own.
        chat.set("reasoning", Some("split"));
        chat.set("add_generation_prompt", Some(true));
        chat.set("continue_final_message", Some(false));
        repeated.insert("instructions".to_owned(), json!(instructions));
        repeated.insert("previous_response_id".to_owned(), json!(previous));
        repeated.insert("store".to_owned(), json!(is_stored));
        Ok(ResponseCall { chat: chat.fields, instructions, input, previous, is_stored, shows_logprobs, repeated })
    }

    /// The chat that asks for the response behind these turns.
    pub fn chat<'t>(&self, turns: impl IntoIterator<Item = &'t Turn>) -> ResponseChat {
        let mut messages = ItemMessages::default();
        if let Some(instructions) = &self.instructions {
            messages.instruct(instructions);
        }
        let earlier = turns.into_iter().flat_map(Turn::items);
        earlier.for_each(|item| messages.add(item, MessageOrigin::Earlier));
        let own = self.input.iter().enumerate();
        own.for_each(|(index, item)| messages.add(item, MessageOrigin::Input(index)));
        messages.finish();
        let mut body = self.chat.clone();
        body.insert("messages".to_owned(), Value::Array(messages.list));
        ResponseChat { body, names: ChatNames { origins: messages.origins } }
    }
}

/// The fields of a chat.
#[derive(Default)]
struct Chat {
    fields: Map<String, Value>,
}

impl Chat {
    fn set(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.fields.insert(name.to_owned(), value.into());
        }
    }
}

/// `include`: whether log-probabilities are shown. The others are of things that no response here has.
fn includes_logprobs(fields: &mut BodyFields) -> Result<bool, Refusal> {
    let Some(include) = fields.take("include") else { return Ok(false) };
    let known = |value: &Value| value.as_str().filter(|name| INCLUDED.contains(name)).map(str::to_owned);
    let names: Option<Vec<String>> = include.as_array().and_then(|list| list.iter().map(known).collect());
    match names {
        Some(names) => Ok(names.iter().any(|name| name == LOGPROBS)),
        None => {
            let known = INCLUDED.map(|name| format!("{name:?}")).join(", ");
            Err(Refusal::value("include", &format!("a list of {known}"), &brief(&include)))
        }
    }
}

/// `text`: the form of the answer, as chats have it in `response_format`. What the response repeats of it.
fn text(fields: &mut BodyFields, chat: &mut Chat) -> Result<Value, Refusal> {
    let mut text = BodyFields::new(&fields.object("text")?);
    let format = text.take("format").unwrap_or_else(|| json!({ "type": "text" }));
    let verbosity = text.take("verbosity");
    text.finish().map_err(|refusal| within("text", refusal))?;
    match format["type"].as_str() {
        Some("text") => {}
        Some("json_object") => chat.set("response_format", Some(format.clone())),
        Some("json_schema") => {
            let mut schema = format.as_object().cloned().unwrap_or_default();
            schema.remove("type");
            chat.set("response_format", Some(json!({ "type": "json_schema", "json_schema": schema })));
        }
        _ => {
            let expected = "an object of type \"text\", \"json_object\" or \"json_schema\"";
            return Err(Refusal::value("text.format", expected, &brief(&format)));
        }
    }
    let shown = json!({ "format": format, "verbosity": verbosity.clone().unwrap_or_else(|| "medium".into()) });
    chat.set("verbosity", verbosity);
    Ok(shown)
}

/// `reasoning`: the effort, as chats have it. No summary is written: the reasoning itself is in the response.
fn reasoning(fields: &mut BodyFields, chat: &mut Chat) -> Result<Value, Refusal> {
    let mut reasoning = BodyFields::new(&fields.object("reasoning")?);
    let effort = reasoning.text("effort").map_err(|refusal| within("reasoning", refusal))?;
    reasoning.ignore(&["summary", "generate_summary"]);
    reasoning.finish().map_err(|refusal| within("reasoning", refusal))?;
    chat.set("reasoning_effort", effort.clone());
    Ok(json!({ "effort": effort, "summary": null }))
}

/// `tools` and `tool_choice`: those of a response are flat, where those of a chat have an object `function`.
fn tools(fields: &mut BodyFields, chat: &mut Chat, repeated: &mut Map<String, Value>) -> Result<(), Refusal> {
    let tools = fields.take("tools").unwrap_or_else(|| json!([]));
    let list = tools.as_array().ok_or_else(|| Refusal::value("tools", "a list of functions", &brief(&tools)))?;
    let functions = list.iter().enumerate().map(|(index, tool)| function(index, tool));
    let functions = functions.collect::<Result<Vec<_>, _>>()?;
    let choice = fields.take("tool_choice").unwrap_or_else(|| "auto".into());
    let of_chat = match (&choice, choice["type"].as_str(), &choice["name"]) {
        (Value::String(_), ..) => choice.clone(),
        (_, Some("function"), Value::String(name)) => json!({ "type": "function", "function": { "name": name } }),
        _ => {
            let expected = "\"none\", \"auto\", \"required\" or an object of type \"function\" with its `name`";
            return Err(Refusal::value("tool_choice", expected, &brief(&choice)));
        }
    };
    let parallel = fields.choice("parallel_tool_calls")?;
    // Without tools both may say what they usually do, and a chat has neither.
    if !functions.is_empty() {
        chat.set("tools", Some(Value::Array(functions)));
        chat.set("parallel_tool_calls", parallel);
        chat.set("tool_choice", Some(of_chat));
    } else if of_chat != "auto" && of_chat != "none" {
        chat.set("tool_choice", Some(of_chat));
    }
    repeated.insert("tools".to_owned(), tools.clone());
    repeated.insert("tool_choice".to_owned(), choice);
    repeated.insert("parallel_tool_calls".to_owned(), json!(parallel.unwrap_or(true)));
    Ok(())
}

/// A tool as chats have it.
fn function(index: usize, tool: &Value) -> Result<Value, Refusal> {
    let field = format!("tools[{index}]");
    if tool["type"] != "function" {
        let message = format!("`{field}`: tools are functions here, and {} is not supported", brief(&tool["type"]));
        return Err(Refusal::new("unsupported_parameter", message).about("tools"));
    }
    let mut function = tool.as_object().cloned().unwrap_or_default();
    function.remove("type");
    function.retain(|_, value| !value.is_null());
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(Refusal::value(&field, "a function with its `name`", &brief(tool)).about("tools"));
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// The refusal of a field within the object `field`.
fn within(field: &str, refusal: Refusal) -> Refusal {
    let Some(param) = &refusal.param else { return refusal };
    let whole = format!("{field}.{param}");
    let message = refusal.message.replacen(&format!("`{param}`"), &format!("`{whole}`"), 1);
    Refusal { message, param: Some(whole), ..refusal }
}
