//! Reads the messages and tools of a chat as vLLM's server hands them to a chat template: contents as texts, or lists
//! of parts of text; the arguments of tool calls as values; reasoning under each of its names; and whatever else a
//! message has. `chat` renders them.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::fields::brief;
use super::refusal::Refusal;
use offshoot_text::Message;
use offshoot_text::message::{REASONING, ROLES};
use offshoot_text::tools::ArgumentsSyntax;

/// OpenAI's fields of a message that no known template shows.
const UNSUPPORTED: [&str; 3] = ["function_call", "refusal", "audio"];

/// The kinds of parts whose text is a part of the content.
const TEXT_PARTS: [&str; 3] = ["text", "input_text", "output_text"];

/// The messages of a chat.
pub struct Messages {
    pub list: Vec<Message>,
    /// Whether the last message, the assistant's, says that it is a beginning (`prefix`).
    pub is_prefix: bool,
}

/// `messages`: the field's value; `template`: the source of the chat template that is to show them; `arguments`: how it
/// takes the arguments of calls.
pub fn read(messages: &Value, template: &str, arguments: ArgumentsSyntax) -> Result<Messages, Refusal> {
    let list = list_of(messages)?;
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
    let read = |(index, value)| MessageReader { index, template, arguments }.read(value);
    let messages = list.iter().enumerate().map(read);
    Ok(Messages { list: messages.collect::<Result<_, _>>()?, is_prefix: is_prefix(last) })
}

/// The messages as transformers (from 5.24 on) hands them to a template: as they are written, without null fields, and
/// with the reasoning under each of its names.
pub fn as_written(messages: &Value) -> Result<Messages, Refusal> {
    let message = |(index, value): (usize, &Value)| {
        let wrong = || wrong(index, "", "an object with `role` and `content`", &brief(value));
        value.as_object().cloned().map(|fields| Message::of(fields).completed()).ok_or_else(wrong)
    };
    let list = list_of(messages)?.iter().enumerate().map(message).collect::<Result<_, _>>()?;
    Ok(Messages { list, is_prefix: false })
}

fn list_of(messages: &Value) -> Result<&Vec<Value>, Refusal> {
    let wrong = || Refusal::value("messages", "a list of messages with `role` and `content`", &brief(messages));
    messages.as_array().filter(|list| !list.is_empty()).ok_or_else(wrong)
}

/// Refuses answers to calls that no message before them makes, and calls that no message behind them answers. Their ids
/// tell which belong together; answers without one are of whichever calls are left. `last_is_open`: the last message,
/// if it is the assistant's, goes on, so that its calls need no answers yet.
pub fn check_calls(messages: &Value, last_is_open: bool) -> Result<(), Refusal> {
    let list = messages.as_array().map_or(&[][..], Vec::as_slice);
    let (mut made, mut open, mut nameless): (HashSet<&str>, Vec<OpenCall<'_>>, usize) = Default::default();
    for (index, message) in list.iter().enumerate() {
        match message["role"].as_str() {
            Some("assistant") if index + 1 < list.len() || !last_is_open => {
                for call in calls_of(index, message) {
                    made.insert(call.id);
                    open.push(call);
                }
            }
            Some("tool") => match message["tool_call_id"].as_str() {
                Some(id) if made.contains(id) => open.retain(|call| call.id != id),
                Some(id) => {
                    let shown: String = id.chars().take(60).collect();
                    let expected = "the id of a call before it";
                    return Err(wrong(index, ".tool_call_id", expected, &format!("{shown:?}")));
                }
                None => nameless += 1,
            },
            _ => {}
        }
    }
    match open.get(nameless) {
        Some(OpenCall { message, call, id }) => {
            let shown: String = id.chars().take(60).collect();
            let expected = format!("an answer to the call {shown:?} behind it");
            Err(wrong(*message, &format!(".tool_calls[{call}]"), &expected, "none"))
        }
        None => Ok(()),
    }
}

/// A call that is not answered.
struct OpenCall<'m> {
    message: usize,
    call: usize,
    id: &'m str,
}

/// The calls of message number `message` that have ids.
fn calls_of(message: usize, value: &Value) -> impl Iterator<Item = OpenCall<'_>> {
    let calls = value["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    let with_id = calls.iter().enumerate().filter_map(|(call, value)| Some((call, value["id"].as_str()?)));
    with_id.map(move |(call, id)| OpenCall { message, call, id })
}

/// The longest name of a function, as OpenAI has it.
const LONGEST_NAME: usize = 64;

/// Whether calls in all families' forms can name a function so, and are read again.
fn is_function_name(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_of_name)
}

/// `tools`: the field's value, a list of functions that the assistant can call.
pub fn tools(tools: &Value) -> Result<Vec<Value>, Refusal> {
    let wrong =
        |field: &str, expected: &str, found: &Value| Refusal::value(field, expected, &brief(found)).about("tools");
    let list = tools.as_array().ok_or_else(|| wrong("tools", "a list of functions", tools))?;
    for (index, tool) in list.iter().enumerate() {
        let at = |field: &str| format!("tools[{index}]{field}");
        if tool["type"] != "function" {
            return Err(wrong(&at(".type"), "\"function\"", &tool["type"]));
        }
        let function = &tool["function"];
        let Some(name) = function["name"].as_str() else {
            return Err(wrong(&at(".function"), "an object with the function's `name`", function));
        };
        if !is_function_name(name) {
            let expected = format!("a name of 1 to {LONGEST_NAME} letters, digits, `_`, `-` and `.`");
            return Err(wrong(&at(".function.name"), &expected, &function["name"]));
        }
        if list[..index].iter().any(|earlier| earlier["function"]["name"] == name) {
            return Err(wrong(&at(".function.name"), "a name that no tool before it has", &function["name"]));
        }
        let parameters = &function["parameters"];
        if !parameters.is_null() && !parameters.is_object() {
            return Err(wrong(&at(".function.parameters"), "a JSON Schema: an object", parameters));
        }
    }
    Ok(list.clone())
}

/// Reads one message.
struct MessageReader<'t> {
    index: usize,
    template: &'t str,
    arguments: ArgumentsSyntax,
}

impl MessageReader<'_> {
    fn read(&self, value: &Value) -> Result<Message, Refusal> {
        let fields = value.as_object();
        let fields = fields.ok_or_else(|| self.wrong("", "an object with `role` and `content`", &brief(value)))?;
        let role = self.role(fields.get("role"))?;
        let is_assistants = role == "assistant";
        let mut shown = Map::new();
        shown.insert("role".to_owned(), role.into());
        shown.insert("content".to_owned(), self.content(fields.get("content"), is_assistants)?);
        for (key, value) in fields.iter().filter(|(_, value)| !is_nothing(value)) {
            match key.as_str() {
                "role" | "content" => {}
                "prefix" if value.is_boolean() => {}
                "tool_calls" if is_assistants => {
                    shown.insert(key.clone(), self.tool_calls(value)?);
                }
                key if REASONING.contains(&key) && is_assistants && !value.is_string() => {
                    return Err(self.wrong(&format!(".{key}"), "a text", &brief(value)));
                }
                key if UNSUPPORTED.contains(&key) && !self.template.contains(key) => {
                    let field = format!("messages[{}].{key}", self.index);
                    return Err(Refusal::unsupported(&field, &brief(value)).about("messages"));
                }
                key => {
                    shown.insert(key.to_owned(), value.clone());
                }
            }
        }
        self.shorten(&mut shown, "tool_call_id");
        let message = Message::of(shown);
        Ok(if is_assistants { message.completed() } else { message })
    }

    /// The role as the template knows it: `developer` as `system`, unless the template has that word too. Other roles
    /// than the usual ones are those that the template names.
    fn role<'v>(&self, role: Option<&'v Value>) -> Result<&'v str, Refusal> {
        let named = |role: &str| ['\'', '"'].iter().any(|q| self.template.contains(&format!("{q}{role}{q}")));
        match role.and_then(Value::as_str) {
            Some("developer") if !self.template.contains("developer") => Ok("system"),
            Some(role) if ROLES.contains(&role) || !role.is_empty() && named(role) => Ok(role),
            _ => {
                let known = ROLES.map(|name| format!("`{name}`")).join(", ");
                let expected = format!("one of {known}, or one that the chat template names");
                Err(self.wrong(".role", &expected, &role.map_or_else(|| "nothing".to_owned(), brief)))
            }
        }
    }

    /// The content: a text, or a list of several parts of text. Only the assistant may have said nothing.
    fn content(&self, content: Option<&Value>, may_be_missing: bool) -> Result<Value, Refusal> {
        let part = |part: &Value| match part {
            Value::String(text) => Some(text.clone()),
            part => {
                part["text"].as_str().filter(|_| TEXT_PARTS.iter().any(|kind| part["type"] == *kind)).map(str::to_owned)
            }
        };
        let parts = match content {
            Some(Value::String(text)) => return Ok(text.clone().into()),
            None | Some(Value::Null) if may_be_missing => return Ok("".into()),
            Some(Value::Array(parts)) => parts.iter().map(part).collect::<Option<Vec<String>>>(),
            _ => None,
        };
        let mut parts = parts.ok_or_else(|| {
            let listed = content.and_then(Value::as_array);
            let kinds = listed.into_iter().flatten().filter_map(|part| part["type"].as_str());
            let found = match (kinds.clone().find(|kind| !TEXT_PARTS.contains(kind)), content) {
                (Some(kind), _) => format!("a part of type \"{kind}\": models read text only"),
                (None, Some(content)) => brief(content),
                (None, None) => "nothing".to_owned(),
            };
            self.wrong(".content", "a text or a list of text parts", &found)
        })?;
        match parts.len() {
            0 => Ok("".into()),
            1 => Ok(parts.remove(0).into()),
            _ => Ok(parts.into_iter().map(|text| json!({"type": "text", "text": text})).collect()),
        }
    }

    /// The calls, with their arguments as the template takes them: clients send JSON texts, and most templates write
    /// objects. A template that demands short ids gets the ends of longer ones, as vLLM's server does.
    fn tool_calls(&self, calls: &Value) -> Result<Value, Refusal> {
        let calls = calls.as_array().ok_or_else(|| self.wrong(".tool_calls", "a list of calls", &brief(calls)))?;
        let call = |(at, call): (usize, &Value)| {
            let place = |field: &str| format!(".tool_calls[{at}]{field}");
            let mut call = call.clone();
            let found = brief(&call);
            let Some(fields) = call.as_object_mut() else {
                return Err(self.wrong(&place(""), "an object with `function`", &found));
            };
            self.shorten(fields, "id");
            let Some(function) = fields.get_mut("function") else { return Ok(call) };
            if !function["name"].is_string() {
                return Err(self.wrong(&place(".function"), "an object with `name` and `arguments`", &brief(function)));
            }
            let arguments = match &function["arguments"] {
                Value::Null => json!({}),
                Value::String(text) if text.is_empty() => json!({}),
                Value::String(text) => serde_json::from_str(text).map_err(|error| {
                    let found = format!("{} ({error})", brief(&function["arguments"]));
                    self.wrong(&place(".function.arguments"), "an object, as JSON", &found)
                })?,
                given => given.clone(),
            };
            let is_text = function["arguments"].as_str().is_some_and(|text| !text.is_empty());
            function["arguments"] = match self.arguments {
                ArgumentsSyntax::Value => arguments,
                ArgumentsSyntax::Text if is_text => function["arguments"].take(),
                ArgumentsSyntax::Text => arguments.to_string().into(),
            };
            Ok(call)
        };
        calls.iter().enumerate().map(call).collect()
    }

    /// Shortens an id, where the template refuses those that have not exactly nine signs.
    fn shorten(&self, fields: &mut Map<String, Value>, key: &str) {
        const DEMANDS: [&str; 2] = ["length != 9", "length == 9"];
        if let Some(Value::String(id)) = fields.get_mut(key)
            && DEMANDS.iter().any(|demand| self.template.contains(demand))
            && let Some((at, _)) = id.char_indices().rev().nth(8)
        {
            id.drain(..at);
        }
    }

    fn wrong(&self, field: &str, expected: &str, found: &str) -> Refusal {
        wrong(self.index, field, expected, found)
    }
}

fn wrong(index: usize, field: &str, expected: &str, found: &str) -> Refusal {
    Refusal::value(&format!("messages[{index}]{field}"), expected, found).about("messages")
}

/// Whether a field says no more than its absence would.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}
