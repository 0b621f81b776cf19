//! Renders a model's chat template as transformers does. What Jinja is stands in `jinja`; the callers provide the
//! conversation.
#![warn(missing_docs)]

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Deserializer, Map, Value};

use super::jinja::{Environment, Template, Whitespace};
use super::message::Message;
use offshoot_core::bounded::{Bounds, Work, is_unbounded};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::footprint;

/// How a conversation is rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Whether the text ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Which of a folder's several templates.
    pub template: String,
    /// A template in place of the folder's.
    pub source: Option<String>,
    /// The tools that the assistant can call, each as the template is to see it. Without `source`, transformers takes
    /// the folder's template `tool_use` for them, if there is one.
    pub tools: Vec<Value>,
    /// Further variables of the template, such as `enable_thinking` or `date_string`.
    pub variables: Map<String, Value>,
    /// The time of `strftime_now`, in UTC. A template that writes the date gives different tokens every day; most have
    /// a variable (`date_string`) that fixes it.
    pub now: SystemTime,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions {
            add_generation_prompt: true,
            template: "default".to_string(),
            source: None,
            tools: Vec::new(),
            variables: Map::new(),
            now: SystemTime::now(),
        }
    }
}

/// The templates of a model folder, by name, and the special tokens that they can use (`bos_token` and so on).
pub(super) struct ChatTemplates {
    templates: Vec<(String, String)>,
    /// The file that has them, and the key in it, for error messages.
    place: &'static str,
    tokens: Map<String, Value>,
}

impl ChatTemplates {
    /// `value` is tokenizer_config.json's `chat_template`: a string, or a list of `{name, template}`.
    pub fn new(value: Option<&Value>, place: &'static str, tokens: Map<String, Value>) -> ChatTemplates {
        let named = |v: &Value| Some((v["name"].as_str()?.to_string(), v["template"].as_str()?.to_string()));
        let templates = match value {
            Some(Value::String(one)) => vec![("default".to_string(), one.clone())],
            Some(Value::Array(many)) => many.iter().filter_map(named).collect(),
            _ => Vec::new(),
        };
        ChatTemplates { templates, place, tokens }
    }

    /// The text of a special token by its name in the config.
    pub fn token(&self, name: &str) -> Option<&str> {
        self.tokens.get(name)?.as_str()
    }

    /// The texts of special tokens by their names, as templates see them.
    pub fn tokens(&self) -> &Map<String, Value> {
        &self.tokens
    }

    /// The default template.
    pub fn source(&self) -> Option<&str> {
        self.templates.iter().find(|(name, _)| name == "default").map(|(_, source)| source.as_str())
    }

    /// All templates, one behind the other.
    pub fn sources(&self) -> String {
        self.templates.iter().map(|(_, source)| source.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// The template that these options choose.
    pub fn chosen<'a>(&'a self, options: &'a ChatOptions) -> Option<&'a str> {
        let named = |name: &str| Some(&*self.templates.iter().find(|(own, _)| own == name)?.1);
        let of_tools = || named("tool_use").filter(|_| !options.tools.is_empty() && options.template == "default");
        options.source.as_deref().or_else(of_tools).or_else(|| named(&options.template))
    }

    pub fn render(&self, folder: &Path, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let fault = |what: String| Error::format(folder, what);
        let Some(source) = self.chosen(options) else {
            let names: Vec<&str> = self.templates.iter().map(|(name, _)| name.as_str()).collect();
            return Err(fault(match names.is_empty() {
                true => "the model has no chat template (neither chat_template.jinja nor `chat_template` in \
                         tokenizer_config.json); give it plain prompts instead of messages"
                    .to_string(),
                false => format!(
                    "{}: no chat template is called `{}`; there are {}",
                    self.place,
                    options.template,
                    names.join(", ")
                ),
            }));
        };
        let place = if options.source.is_some() { "the given text" } else { self.place };
        let mut context = self.tokens.clone();
        context.insert("messages".to_string(), serde_json::json!(messages));
        context.insert("add_generation_prompt".to_string(), options.add_generation_prompt.into());
        let tools = if options.tools.is_empty() { Value::Null } else { options.tools.clone().into() };
        context.insert("tools".to_string(), tools);
        context.insert("documents".to_string(), Value::Null);
        context.extend(options.variables.clone());
        let bounds = Bounds::of_text(source.len() + footprint(&context));
        let now = options.now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut request = serde_json::to_vec(&(source, now)).expect("a text and a number are JSON");
        serde_json::to_writer(&mut request, &context).expect("values are JSON, and memory takes them");
        let rendered: Result<String, String> = match CHAT_TEMPLATES.call(bounds, &request) {
            Ok(answer) => serde_json::from_slice(&answer).expect("`rendered` writes it"),
            Err(stopped) => Err(format!("fails: {stopped}")),
        };
        rendered.map_err(|why| fault(format!("{place}: the chat template {why}")))
    }
}

/// Renders templates.
pub static CHAT_TEMPLATES: Work =
    Work::new("chat template", |request| serde_json::to_vec(&rendered(request)).expect("texts are JSON"));

/// `request`: a template's source and the time in seconds since 1970, and then its variables.
fn rendered(request: &[u8]) -> Result<String, String> {
    let mut values = Deserializer::from_slice(request);
    let unread = |error: serde_json::Error| format!("cannot be filled: {error}");
    let (source, now) = <(String, u64)>::deserialize(&mut values).map_err(unread)?;
    let context = Map::<String, Value>::deserialize(&mut values).map_err(unread)?;
    let whitespace = Whitespace { trims_blocks: true, strips_blocks: true, keeps_last_line_end: false };
    let template = Template::read(&source, whitespace).map_err(|fault| format!("is broken: {fault}"))?;
    let environment = Environment {
        is_strict: false,
        refuses_null: false,
        now: Some(UNIX_EPOCH + Duration::from_secs(now)),
        steps: is_unbounded().then_some(STEPS),
    };
    template.render(&environment, &context).map_err(|fault| format!("refuses: {fault}"))
}

/// Steps that a template may take where nothing else ends it.
const STEPS: u64 = 1 << 20;
