//! Renders an item's prompt: fixed texts and templates, level by level from the root, or a chat's messages. The
//! tokenizer encodes texts and applies chat templates.

use std::path::PathBuf;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::items::Item;
use crate::eval::task::shots::Shots;
use crate::eval::task::template::{Template, read_string};
use crate::tokenizer::{AddSpecial, ChatOptions, ChoiceTokens, LevelTokens, Message, SharedEncoder, Tokenizer};

/// The prompt of one item.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskPrompt {
    /// The texts of the levels, root first; the prompt is their concatenation.
    Levels(Vec<String>),
    /// To be rendered by the model's own chat template.
    Chat { messages: Vec<Message>, options: ChatOptions },
}

impl TaskPrompt {
    /// The prompt as one text; a chat is rendered up to the start of the assistant's turn.
    pub fn text(&self, tokenizer: &Tokenizer) -> Result<String> {
        match self {
            TaskPrompt::Levels(levels) => Ok(levels.concat()),
            TaskPrompt::Chat { messages, options } => tokenizer.chat_with(messages, options),
        }
    }

    /// Encodes the prompt like Hugging Face transformers: the whole text, with the tokenizer's special tokens (a
    /// beginning of text), or a rendered chat without them, because it contains its own. A chat counts as one level.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<LevelTokens> {
        self.encode_shared(&mut SharedEncoder::new(tokenizer))
    }

    /// Like [`TaskPrompt::encode`], for one prompt of many.
    pub fn encode_shared(&self, encoder: &mut SharedEncoder) -> Result<LevelTokens> {
        let tokenizer = encoder.tokenizer();
        let encoded = match self {
            TaskPrompt::Levels(levels) => encoder.encode_levels(levels, AddSpecial::Yes)?,
            TaskPrompt::Chat { .. } => encoder.encode_levels(&[self.text(tokenizer)?], AddSpecial::No)?,
        };
        match encoded.tokens[..] {
            [] => return Err(Error::value("prompt", "at least one token", "an empty text")),
            [first, second, ..] if first == second && tokenizer.bos() == Some(first) => {
                log::warn!("the prompt contains the beginning of text, which the tokenizer also adds: it occurs twice");
            }
            _ => {}
        }
        Ok(encoded)
    }

    /// Like [`TaskPrompt::encode_shared`], with possible continuations.
    pub fn encode_choices_shared(&self, encoder: &mut SharedEncoder, continuations: &[String]) -> Result<ChoiceTokens> {
        match self {
            TaskPrompt::Levels(levels) => encoder.encode_choices(levels, continuations, AddSpecial::Yes),
            TaskPrompt::Chat { .. } => {
                let text = self.text(encoder.tokenizer())?;
                encoder.encode_choices(&[text], continuations, AddSpecial::No)
            }
        }
    }
}

/// The task file's key `prompt`, or another key of the same form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PromptTemplate {
    Levels(Vec<PromptPart>),
    Chat { turns: Vec<(String, Template)>, options: ChatOptions },
}

/// A part of a level.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PromptPart {
    Fixed(String),
    Template(Template),
    Shots(Shots),
}

impl PromptTemplate {
    /// `at`: the dotted path of `value` in the task file.
    pub fn read(source: &TaskSource, at: &str, value: Option<&Value>) -> Result<PromptTemplate> {
        PromptReader { source, at }.prompt(value)
    }

    /// The files included in the prompt of `item` by paths that are templates.
    pub fn files(&self, item: &Item) -> Result<Vec<PathBuf>> {
        let PromptTemplate::Levels(parts) = self else { return Ok(Vec::new()) };
        let file = |part: &PromptPart| match part {
            PromptPart::Shots(shots) => Some(shots.path(item)),
            PromptPart::Fixed(_) | PromptPart::Template(_) => None,
        };
        parts.iter().filter_map(file).collect()
    }

    /// Whether the item's own text uses the field `name`.
    pub fn takes_in(&self, name: &str) -> bool {
        let template = |part: &PromptPart| matches!(part, PromptPart::Template(template) if template.takes_in(name));
        match self {
            PromptTemplate::Levels(parts) => parts.iter().any(template),
            PromptTemplate::Chat { turns, .. } => turns.iter().any(|(_, content)| content.takes_in(name)),
        }
    }

    pub fn render(&self, item: &Item) -> Result<TaskPrompt> {
        match self {
            PromptTemplate::Levels(parts) => {
                Ok(TaskPrompt::Levels(parts.iter().map(|part| part.render(item)).collect::<Result<_>>()?))
            }
            PromptTemplate::Chat { turns, options } => {
                let message = |(role, content): &(String, Template)| {
                    Ok(Message { role: role.clone(), content: content.render(&item.id, &item.fields)? })
                };
                let messages = turns.iter().map(message).collect::<Result<_>>()?;
                Ok(TaskPrompt::Chat { messages, options: options.clone() })
            }
        }
    }
}

impl PromptPart {
    fn render(&self, item: &Item) -> Result<String> {
        match self {
            PromptPart::Fixed(text) => Ok(text.clone()),
            PromptPart::Template(template) => template.render(&item.id, &item.fields),
            PromptPart::Shots(shots) => shots.render(item),
        }
    }
}

struct PromptReader<'a> {
    source: &'a TaskSource,
    /// The dotted path of the whole prompt.
    at: &'a str,
}

const KEYS: [&str; 4] = ["shared", "item", "levels", "chat"];

impl PromptReader<'_> {
    fn prompt(&self, value: Option<&Value>) -> Result<PromptTemplate> {
        let expected = "a template, or an object with `item`, `levels` or `chat`";
        let value = value.ok_or_else(|| self.source.wrong(self.at, expected, None))?;
        if value.is_string() {
            return Ok(PromptTemplate::Levels(vec![self.part(self.at.to_string(), value)?]));
        }
        let section = TaskSection::open(self.source, self.at.to_string(), value, &KEYS)?;
        let wrong = |found: &str| Error::field(&self.source.path, self.at, expected, found);
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

    /// `shared` (fixed texts, the same for every item), then `levels` or the one level `item` (templates or examples).
    fn levels(&self, section: &TaskSection) -> Result<PromptTemplate> {
        let mut parts = Vec::new();
        match section.get("shared") {
            None => {}
            Some(Value::Array(list)) => {
                for (ix, level) in list.iter().enumerate() {
                    parts.push(PromptPart::Fixed(read_string(
                        self.source,
                        &section.field(&format!("shared.{ix}")),
                        level,
                    )?));
                }
            }
            Some(level) => parts.push(PromptPart::Fixed(read_string(self.source, &section.field("shared"), level)?)),
        }
        match (section.get("item"), section.get("levels")) {
            (Some(item), _) => parts.push(self.part(section.field("item"), item)?),
            (None, Some(Value::Array(list))) if !list.is_empty() => {
                for (ix, level) in list.iter().enumerate() {
                    parts.push(self.part(section.field(&format!("levels.{ix}")), level)?);
                }
            }
            _ => return Err(section.wrong("levels", "a list of templates and `shots`")),
        }
        Ok(PromptTemplate::Levels(parts))
    }

    fn chat(&self, value: &Value) -> Result<PromptTemplate> {
        let keys = ["system", "messages", "user", "template", "options"];
        let section = TaskSection::open(self.source, format!("{}.chat", self.at), value, &keys)?;
        let mut turns = Vec::new();
        if let Some(system) = section.get("system") {
            turns.push(("system".to_string(), self.template(section.field("system"), system)?));
        }
        match section.get("messages") {
            None => {}
            Some(Value::Array(list)) => {
                for (ix, turn) in list.iter().enumerate() {
                    let at = section.field(&format!("messages.{ix}"));
                    let turn = TaskSection::open(self.source, at, turn, &["role", "content"])?;
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
        // One time for the whole task, so that the date is the same in all prompts.
        let mut options = ChatOptions::default();
        match section.get("options") {
            None => {}
            Some(Value::Object(variables)) => options.variables = variables.clone(),
            Some(_) => return Err(section.wrong("options", "an object of variables for the chat template")),
        }
        if let Some(name) = section.text("template")? {
            options.template = name.to_string();
        }
        Ok(PromptTemplate::Chat { turns, options })
    }

    fn template(&self, at: String, value: &Value) -> Result<Template> {
        Template::read(self.source, at, value)
    }

    /// A template, or `{"shots": …}`.
    fn part(&self, at: String, value: &Value) -> Result<PromptPart> {
        match value.get("shots") {
            Some(shots) => {
                let section = TaskSection::open(self.source, at, value, &["shots"])?;
                Ok(PromptPart::Shots(Shots::read(self.source, section.field("shots"), shots)?))
            }
            None => Ok(PromptPart::Template(self.template(at, value)?)),
        }
    }
}
