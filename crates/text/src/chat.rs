//! Renders a model's chat template as transformers does: Jinja with Python's methods, `raise_exception`, `strftime_now`
//! and Python's JSON. The callers provide the conversation.
#![warn(missing_docs)]

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value as JinjaValue};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Map, Value};

use super::message::Message;
use offshoot_core::bounded::{Bounds, Work, is_unbounded};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
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
        let source = without_generation_marks(source);
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
    let env = environment(UNIX_EPOCH + Duration::from_secs(now));
    let template = env.template_from_str(&source).map_err(|e| format!("is broken: {}", describe(&e)))?;
    template.render(context).map_err(|e| format!("refuses: {}", describe(&e)))
}

/// Instructions that a template may run where nothing else ends it.
const FUEL: u64 = 1 << 20;

/// One line: what the template raised, or what is wrong and where.
fn describe(e: &minijinja::Error) -> String {
    let detail = e.detail().map_or_else(|| e.kind().to_string(), str::to_string);
    e.line().map_or(detail.clone(), |line| format!("{detail} (line {line} of the template)"))
}

/// Jinja's options in transformers' `apply_chat_template`.
fn environment(now: SystemTime) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_fuel(is_unbounded().then_some(FUEL));
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", move |format: String| strftime(&format, now));
    env.add_filter("tojson", to_json);
    env
}

/// Removes the effect of `{% generation %}`, which marks the assistant's words for training and prints nothing.
fn without_generation_marks(source: &str) -> String {
    let mark = |pattern: &str| regex::Regex::new(pattern).expect("a pattern of ours");
    let open = mark(r"\{%(-?)\s*generation\s*(-?)%\}");
    let close = mark(r"\{%(-?)\s*endgeneration\s*(-?)%\}");
    let source = open.replace_all(source, "{%$1 if true $2%}");
    close.replace_all(&source, "{%$1 endif $2%}").into_owned()
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`: a space after `,` and `:`, nothing escaped for HTML.
fn to_json(value: JinjaValue, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let fault = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match indent {
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter)).map_err(fault)?;
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)).map_err(fault)?,
    }
    Ok(String::from_utf8(out).expect("JSON is UTF-8"))
}

/// JSON on one line, with spaces as Python writes them.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// 1970-01-01 was a Thursday.
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The directives of `strftime` that chat templates use, in English and UTC; unknown ones are left unchanged.
pub fn strftime(format: &str, now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = figures::civil(days as i64);
    let (name, weekday) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => out += &format!("{day:02}"),
            Some('b') => out += &name[..3],
            Some('B') => out += name,
            Some('m') => out += &format!("{month:02}"),
            Some('Y') => out += &format!("{year}"),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('H') => out += &format!("{hour:02}"),
            Some('I') => out += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{:02}", second % 60),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_strftime_writes_them() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(strftime("%d %b %Y, %A %H:%M:%S%%", at(0)), "01 Jan 1970, Thursday 00:00:00%");
        assert_eq!(strftime("%Y-%m-%d %a %I %p %Q", at(1_709_208_000)), "2024-02-29 Thu 12 PM %Q");
        assert_eq!(strftime("%d %B %y", at(4_107_542_399)), "28 February 00");
    }

    #[test]
    fn json_as_python_writes_it() {
        let value = JinjaValue::from_serialize(serde_json::json!({"a": ["<é>", 1, {}], "b": null}));
        let json = to_json(value, Kwargs::from_iter(Vec::<(String, JinjaValue)>::new())).unwrap();
        assert_eq!(json, r#"{"a": ["<é>", 1, {}], "b": null}"#);
    }
}
