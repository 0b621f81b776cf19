//! Tools of chats: reads which ones a request has and which of them its answers may or must call, and shows the calls
//! of an answer. How models write calls is `offshoot_text`'s.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::answer_form::is_demanded;
use super::choice::AnswerCalls;
use super::fields::{BodyFields, brief};
use super::form::{parameters_field, refused};
use super::refusal::Refusal;
use offshoot_form::{COMPILE_WAIT, Form};
use offshoot_text::tools::{AnswerPart, CallDemand, CallReader, CallSyntax, Tool, ToolSet, UnwritableTool};

/// The tools of a chat.
#[derive(Debug, Default)]
pub struct RequestedTools {
    /// Which calls its answers show as such; `None`: calls stay in the content, as in chats without tools.
    pub calls: Option<CallReader>,
    /// What its answers must call; `None`: whatever the model decides.
    pub demand: Option<CallDemand>,
    /// Whether there are tools, and the model decides whether it calls one.
    pub may_call: bool,
}

impl RequestedTools {
    /// Takes the fields that say what becomes of `tools`, as the template shows them. `template`: its source.
    pub fn take(fields: &mut BodyFields, tools: &[Value], template: &str) -> Result<RequestedTools, Refusal> {
        let is_single = fields.choice("parallel_tool_calls")? == Some(false);
        let choice = fields.take("tool_choice");
        let choice = choice.as_ref().map_or(Ok(ToolChoice::Auto), ToolChoice::of)?;
        let names = || tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
        let demand = match choice {
            ToolChoice::None => return Ok(RequestedTools::default()),
            ToolChoice::Auto => None,
            ToolChoice::Required if is_single => Some(CallDemand::One),
            ToolChoice::Required => Some(CallDemand::Some),
            ToolChoice::Named(name) if tools.is_empty() || names().any(|own| own == name) => {
                Some(CallDemand::Named(name))
            }
            ToolChoice::Named(name) => {
                let known: Vec<String> = names().map(|name| format!("`{name}`")).collect();
                let expected = format!("the name of one of the tools: {}", known.join(", "));
                return Err(
                    Refusal::value("tool_choice.function.name", &expected, &format!("{name:?}")).about("tool_choice")
                );
            }
        };
        if tools.is_empty() {
            return match demand {
                None => Ok(RequestedTools::default()),
                Some(_) => Err(Refusal::value("tool_choice", "`tools` beside it", "none")),
            };
        }
        // A family's own syntax, or, where a call must be made, one that any model can keep.
        let syntax = CallSyntax::of(template).or_else(|| demand.is_some().then(CallSyntax::unknown));
        let reader =
            syntax.map(|syntax| CallReader::new(syntax, Arc::new(tool_set(tools))).with_single_call(is_single));
        let may_call = demand.is_none();
        Ok(RequestedTools { calls: reader, demand, may_call })
    }
}

/// `tool_choice`.
enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

impl ToolChoice {
    fn of(value: &Value) -> Result<ToolChoice, Refusal> {
        let expected = "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
        let wrong = |found: &Value| Err(Refusal::value("tool_choice", expected, &brief(found)));
        match value {
            Value::String(word) => match &**word {
                "none" => Ok(ToolChoice::None),
                "auto" => Ok(ToolChoice::Auto),
                "required" => Ok(ToolChoice::Required),
                _ => wrong(value),
            },
            Value::Object(object) if object.get("type").is_some_and(|kind| kind == "function") => {
                match &value["function"]["name"] {
                    Value::String(name) => Ok(ToolChoice::Named(name.clone())),
                    _ => wrong(value),
                }
            }
            Value::Object(object) if object.get("type").is_some_and(|kind| kind == "allowed_tools") => {
                let message = "`tool_choice`: `allowed_tools` is not supported; send those tools alone as `tools`, and \
                               \"auto\" or \"required\"";
                Err(Refusal::new("unsupported_parameter", message).about("tool_choice"))
            }
            other => wrong(other),
        }
    }
}

/// The tools as functions. They have names.
fn tool_set(tools: &[Value]) -> ToolSet {
    let tool = |tool: &Value| {
        let function = &tool["function"];
        let parameters = Some(function["parameters"].clone()).filter(Value::is_object);
        Tool { name: function["name"].as_str().unwrap_or_default().to_owned(), parameters }
    };
    ToolSet { tools: tools.iter().map(tool).collect() }
}

/// The tools that a text of this demand may call, with the schemas of their arguments as a grammar takes them. Each
/// schema's work is bounded, and none is begun behind `deadline`.
pub fn in_grammar(calls: &CallReader, demand: &CallDemand, deadline: Instant) -> Result<ToolSet, Refusal> {
    let tool = |(index, tool): (usize, &Tool)| {
        let field = parameters_field(index);
        if let Some(parameters) = tool.parameters.as_ref().filter(|_| !tool.takes_object()) {
            let expected = "a schema of an object: arguments are one";
            return Err(Refusal::value(&field, expected, &brief(parameters)).about("tools"));
        }
        if Instant::now() > deadline {
            let expected = format!("schemas of tools that take less than {} s together", COMPILE_WAIT.as_secs());
            return Err(Refusal::value(&field, &expected, "one beyond that").about("tools"));
        }
        // A grammar that has a schema as JSON refuses what it can't hold of it.
        let taken = match calls.syntax().has_json_arguments() {
            true => Form::schema_in_grammar,
            false => Form::schema_in_rules,
        };
        let parameters = tool.parameters.clone().map(taken).transpose();
        let parameters = parameters.map_err(|error| refused(&field, &error).about("tools"))?;
        Ok(Tool { name: tool.name.clone(), parameters })
    };
    let tools = calls.tools().tools.iter().enumerate().filter(|(_, tool)| is_demanded(tool, demand));
    Ok(ToolSet { tools: tools.map(tool).collect::<Result<_, Refusal>>()? })
}

/// The refusal of a request with a tool of these that the model's syntax of calls can't write.
pub fn unwritable(calls: &CallReader, tool: &UnwritableTool) -> Refusal {
    let index = calls.tools().tools.iter().position(|own| own.name == tool.tool);
    let field = parameters_field(index.expect("the grammar is of these tools"));
    Refusal::value(&field, tool.expected, &tool.found).about("tools")
}

/// What an answer, or a piece of it, has.
#[derive(Default)]
pub struct AnswerText {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<CallText>,
    /// Whether the text ends within its last call.
    ends_in_call: bool,
    /// The number of calls before it.
    before: usize,
}

/// A call, or what a piece of an answer has of one.
pub struct CallText {
    /// The call's place among those of its choice.
    index: usize,
    /// `None`: it began in an earlier piece.
    name: Option<String>,
    arguments: String,
}

impl AnswerText {
    /// A piece of an answer in whose earlier pieces so many calls began.
    pub fn following(calls: usize) -> Self {
        AnswerText { before: calls, ..AnswerText::default() }
    }

    /// The calls in it and in the pieces before it.
    pub fn answer_calls(&self) -> AnswerCalls {
        match self.before + self.begun_calls() {
            0 => AnswerCalls::None,
            _ if self.ends_in_call => AnswerCalls::LastCut,
            _ => AnswerCalls::Whole,
        }
    }

    /// Calls that begin in it.
    pub fn begun_calls(&self) -> usize {
        self.calls.iter().filter(|call| call.name.is_some()).count()
    }

    /// Adds parts of the answer.
    pub fn add(&mut self, parts: Vec<AnswerPart>) {
        for part in parts {
            match part {
                AnswerPart::Reasoning(text) => self.reasoning += &text,
                AnswerPart::Content(text) => self.content += &text,
                AnswerPart::CallBegins { name } => {
                    let index = self.before + self.begun_calls();
                    self.calls.push(CallText { index, name: Some(name), arguments: String::new() });
                }
                AnswerPart::Arguments(text) => match self.calls.last_mut() {
                    Some(call) => call.arguments += &text,
                    // Arguments stand behind the call that began last, here in an earlier piece.
                    None => {
                        let index = self.before.saturating_sub(1);
                        self.calls.push(CallText { index, name: None, arguments: text });
                    }
                },
                AnswerPart::CallEnds { is_cut } => self.ends_in_call = is_cut,
            }
        }
    }
}

/// How the calls of a choice are named.
pub struct CallIds<'a> {
    /// The answer's id.
    pub answer: &'a str,
    /// The choice's index.
    pub choice: usize,
    /// Whether they are nine letters and digits.
    pub are_short: bool,
}

impl CallIds<'_> {
    /// The id of a call, which differs from those of all other calls, and is the same in a stream as in a whole answer.
    pub fn id(&self, call: usize) -> String {
        let CallIds { answer, choice, are_short } = self;
        let hash = blake3::hash(format!("{answer}\n{choice}\n{call}").as_bytes()).to_hex();
        if *are_short { hash[..9].to_owned() } else { format!("call_{}", &hash[..24]) }
    }
}

impl CallText {
    /// The call as an answer shows it; `is_chunk`: in a chunk of a stream.
    pub fn shown(self, ids: &CallIds<'_>, is_chunk: bool) -> ShownCall {
        let begins = self.name.is_some();
        ShownCall {
            index: is_chunk.then_some(self.index),
            id: begins.then(|| ids.id(self.index)),
            kind: begins.then_some("function"),
            function: ShownFunction { name: self.name, arguments: self.arguments },
        }
    }
}

/// A call in OpenAI's format, or what a chunk has of one.
#[derive(Serialize)]
pub struct ShownCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: ShownFunction,
}

#[derive(Serialize)]
struct ShownFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// JSON, as far as the model wrote it.
    arguments: String,
}
