//! From an item to its prompt: fixed texts and templates, level by level from the root, or a chat's turns. How text becomes
//! tokens, and a chat becomes text, is left to the tokenizer.

use minijinja::{Environment, UndefinedBehavior};
use serde_json::Value;

use super::file::{Section, Source, read_text};
use super::items::{Item, names};
use crate::error::{Error, Result};
use crate::tokenizer::{AddSpecial, ChatOptions, LevelTokens, Message, Tokenizer};

/// What the model is given for one item.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// The texts of the levels, root first; the prompt is their concatenation.
    Levels(Vec<String>),
    /// To be rendered by the model's own chat template.
    Chat { messages: Vec<Message>, options: ChatOptions },
}

impl Prompt {
    /// The prompt as one text, a chat rendered with the opening of the assistant's turn.
    pub fn text(&self, tokenizer: &Tokenizer) -> Result<String> {
        match self {
            Prompt::Levels(levels) => Ok(levels.concat()),
            Prompt::Chat { messages, options } => tokenizer.chat_with(messages, options),
        }
    }

    /// The tokens that Hugging Face transformers makes of this prompt: of the whole text, with the tokenizer's special tokens
    /// (a beginning of text); of a rendered chat, which brings its own, without. A chat counts as one level.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<LevelTokens> {
        let encoded = match self {
            Prompt::Levels(levels) => tokenizer.encode_levels(levels, AddSpecial::Yes)?,
            Prompt::Chat { .. } => tokenizer.encode_levels(&[self.text(tokenizer)?], AddSpecial::No)?,
        };
        match encoded.tokens[..] {
            [] => return Err(Error::value("prompt", "at least one token", "an empty text")),
            [first, second, ..] if first == second && tokenizer.bos() == Some(first) => {
                log::warn!(
                    "the prompt writes the beginning of text out, which the tokenizer adds too: it is there twice"
                );
            }
            _ => {}
        }
        Ok(encoded)
    }
}

/// The task file's key `prompt`, or another of its shape.
#[derive(Debug)]
pub(super) struct PromptTemplate {
    task: std::path::PathBuf,
    templates: Environment<'static>,
    shape: Shape,
}

#[derive(Debug)]
enum Shape {
    Levels(Vec<Part>),
    Chat { turns: Vec<(String, Part)>, options: ChatOptions },
}

#[derive(Debug)]
enum Part {
    Fixed(String),
    /// The name of a template, which is the path of its key in the task file.
    Template(String),
}

impl PromptTemplate {
    /// `at`: the dotted path of `value` in the task file.
    pub fn read(source: &Source, at: &str, value: Option<&Value>) -> Result<PromptTemplate> {
        let mut reader = Reader { source, at: at.to_string(), templates: environment() };
        let shape = reader.shape(value)?;
        Ok(PromptTemplate { task: source.path.clone(), templates: reader.templates, shape })
    }

    pub fn render(&self, item: &Item) -> Result<Prompt> {
        match &self.shape {
            Shape::Levels(parts) => {
                Ok(Prompt::Levels(parts.iter().map(|p| self.part(p, item)).collect::<Result<_>>()?))
            }
            Shape::Chat { turns, options } => {
                let message =
                    |(role, part): &(String, Part)| Ok(Message { role: role.clone(), content: self.part(part, item)? });
                let messages = turns.iter().map(message).collect::<Result<_>>()?;
                Ok(Prompt::Chat { messages, options: options.clone() })
            }
        }
    }

    fn part(&self, part: &Part, item: &Item) -> Result<String> {
        let name = match part {
            Part::Fixed(text) => return Ok(text.clone()),
            Part::Template(name) => name,
        };
        let template = self.templates.get_template(name).expect("added under this name when the task was read");
        template.render(&item.fields).map_err(|e| {
            let missing = template.undeclared_variables(false).into_iter().filter(|v| !item.fields.contains_key(v));
            let mut missing: Vec<String> = missing.map(|v| format!("`{v}`")).collect();
            missing.sort();
            match (e.kind(), missing.is_empty()) {
                (minijinja::ErrorKind::UndefinedError, false) => {
                    let expected = format!("fields {} in item `{}`", missing.join(", "), item.id);
                    Error::field(&self.task, name, expected, format!("the fields {}", names(&item.fields)))
                }
                _ => Error::field(
                    &self.task,
                    name,
                    format!("a template that item `{}` fills", item.id),
                    template_error(&e),
                ),
            }
        })
    }
}

/// Jinja as in Python, except that the last line end is kept, undefined names are errors and nothing is escaped.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_keep_trailing_newline(true);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env
}

/// A template error in one line, without the template's name, which our own error says.
fn template_error(e: &minijinja::Error) -> String {
    let detail = e.detail().map_or_else(|| e.kind().to_string(), |detail| format!("{}: {detail}", e.kind()));
    e.line().map_or(detail.clone(), |line| format!("{detail} (line {line} of the template)"))
}

struct Reader<'a> {
    source: &'a Source,
    /// The dotted path of the whole prompt.
    at: String,
    templates: Environment<'static>,
}

const KEYS: [&str; 4] = ["shared", "item", "levels", "chat"];

impl Reader<'_> {
    fn shape(&mut self, value: Option<&Value>) -> Result<Shape> {
        let expected = "a template, or an object with `item`, `levels` or `chat`";
        let value = value.ok_or_else(|| self.source.wrong(&self.at, expected, None))?;
        if value.is_string() {
            return Ok(Shape::Levels(vec![self.template(self.at.clone(), value)?]));
        }
        let section = Section::open(self.source, self.at.clone(), value, &KEYS)?;
        let wrong = |found: &str| Error::field(&self.source.path, &self.at, expected, found);
        match (section.get("item"), section.get("levels"), section.get("chat")) {
            (None, None, Some(chat)) => match section.get("shared") {
                Some(_) => Err(wrong("`shared` beside `chat`; put shared text into `chat.system` or `chat.messages`")),
                None => self.chat(chat),
            },
            (Some(_), None, None) | (None, Some(_), None) => self.levels(&section),
            (None, None, None) => Err(wrong("none of them")),
            _ => Err(wrong("more than one of them")),
        }
    }

    /// `shared` (fixed texts, the same for every item), then `levels` or the one level `item` (templates).
    fn levels(&mut self, section: &Section) -> Result<Shape> {
        let mut parts = Vec::new();
        match section.get("shared") {
            None => {}
            Some(Value::Array(list)) => {
                for (ix, level) in list.iter().enumerate() {
                    parts.push(Part::Fixed(self.text(&section.field(&format!("shared.{ix}")), level)?));
                }
            }
            Some(level) => parts.push(Part::Fixed(self.text(&section.field("shared"), level)?)),
        }
        match (section.get("item"), section.get("levels")) {
            (Some(item), _) => parts.push(self.template(section.field("item"), item)?),
            (None, Some(Value::Array(list))) if !list.is_empty() => {
                for (ix, level) in list.iter().enumerate() {
                    parts.push(self.template(section.field(&format!("levels.{ix}")), level)?);
                }
            }
            _ => return Err(section.wrong("levels", "a list of templates")),
        }
        Ok(Shape::Levels(parts))
    }

    fn chat(&mut self, value: &Value) -> Result<Shape> {
        let keys = ["system", "messages", "user", "template", "options"];
        let section = Section::open(self.source, format!("{}.chat", self.at), value, &keys)?;
        let mut turns = Vec::new();
        if let Some(system) = section.get("system") {
            turns.push(("system".to_string(), self.template(section.field("system"), system)?));
        }
        match section.get("messages") {
            None => {}
            Some(Value::Array(list)) => {
                for (ix, turn) in list.iter().enumerate() {
                    let at = section.field(&format!("messages.{ix}"));
                    let turn = Section::open(self.source, at, turn, &["role", "content"])?;
                    turn.need("role", "a role, such as \"user\"")?;
                    let role = turn.text("role")?.expect("`need` found it").to_string();
                    let content = turn.need("content", "a template")?;
                    turns.push((role, self.template(turn.field("content"), content)?));
                }
            }
            Some(_) => return Err(section.wrong("messages", "a list of objects with `role` and `content`")),
        }
        if let Some(user) = section.get("user") {
            turns.push(("user".to_string(), self.template(section.field("user"), user)?));
        }
        if turns.last().is_none_or(|(role, _)| role != "user") {
            return Err(section.wrong("user", "a template: a chat ends with the user's turn"));
        }
        // One moment for the whole task, so that all items are told the same date.
        let mut options = ChatOptions::default();
        match section.get("options") {
            None => {}
            Some(Value::Object(variables)) => options.variables = variables.clone(),
            Some(_) => return Err(section.wrong("options", "an object of variables for the chat template")),
        }
        if let Some(name) = section.text("template")? {
            options.template = name.to_string();
        }
        Ok(Shape::Chat { turns, options })
    }

    fn template(&mut self, name: String, value: &Value) -> Result<Part> {
        let text = self.text(&name, value)?;
        self.templates
            .add_template_owned(name.clone(), text)
            .map_err(|e| Error::field(&self.source.path, &name, "a template", template_error(&e)))?;
        Ok(Part::Template(name))
    }

    /// A string, or the text of `{"file": PATH}`.
    fn text(&self, at: &str, value: &Value) -> Result<String> {
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Object(_) => {
                let section = Section::open(self.source, at.to_string(), value, &["file"])?;
                section.need("file", "a path, relative to the task file")?;
                read_text(&self.source.resolve(section.text("file")?.expect("`need` found it")))
            }
            _ => Err(self.source.wrong(at, "a string or an object with `file`", Some(value))),
        }
    }
}
