//! Renders an item's prompt: fixed texts and templates, level by level from the root, or a chat's messages. The
//! tokenizer encodes texts and applies chat templates.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::source::Place;
use crate::task::items::Item;
use crate::task::shots::{ShotSettings, Shots};
use crate::task::template::{Template, TextSettings};
use offshoot_core::error::{Error, Result};
use offshoot_text::reasoning::ContentStart;
use offshoot_text::{
    AddSpecial, ChatOptions, ChoiceTokens, LevelTokens, Message, SharedEncoder, SpecialText, TextFault, Tokenizer,
};

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

    /// Where in a sample behind the prompt, whose text is `text`, the content of its answer begins.
    pub fn content_start(&self, text: &str, tokenizer: &Tokenizer) -> ContentStart {
        let template = match self {
            TaskPrompt::Levels(_) => None,
            TaskPrompt::Chat { options, .. } => tokenizer.chosen_template(options),
        };
        ContentStart::of(text, None, template)
    }

    /// Encodes the prompt like Hugging Face transformers: the whole text, with the tokenizer's special tokens (a
    /// beginning of text), or a rendered chat without them, because it contains its own. A chat counts as one level.
    pub fn encode(&self, encoder: &mut SharedEncoder) -> Result<LevelTokens> {
        let tokenizer = encoder.tokenizer();
        let (levels, special) = self.guarded(encoder)?;
        let encoded = encoder.encode_levels(&levels, special)?;
        match encoded.tokens[..] {
            [] => return Err(Error::value("prompt", "at least one token", "an empty text")),
            [first, second, ..] if first == second && tokenizer.bos() == Some(first) => {
                log::warn!("the prompt contains the beginning of text, which the tokenizer also adds: it occurs twice");
            }
            _ => {}
        }
        Ok(encoded)
    }

    /// Like [`TaskPrompt::encode`], with possible continuations.
    pub fn encode_choices(&self, encoder: &mut SharedEncoder, continuations: &[String]) -> Result<ChoiceTokens> {
        let (levels, special) = self.guarded(encoder)?;
        let continuations = guarded_texts(encoder, continuations)?;
        encoder.encode_choices(&levels, &continuations, special)
    }

    /// The levels as they are encoded, special tokens in texts treated as the encoder says, and what stands around
    /// them.
    fn guarded(&self, encoder: &SharedEncoder) -> Result<(Vec<String>, AddSpecial)> {
        match self {
            TaskPrompt::Levels(levels) => {
                if encoder.special_text() == SpecialText::Refuse {
                    // Two levels may make a special token side by side.
                    encoder.guard(&levels.concat()).map_err(refused)?;
                }
                Ok((guarded_texts(encoder, levels)?, AddSpecial::Yes))
            }
            TaskPrompt::Chat { messages, options } => {
                let (mut messages, mut options) = (messages.clone(), options.clone());
                let tokenizer = encoder.tokenizer();
                let guarded = tokenizer.guard_chat(encoder.special_text(), &mut messages, &mut options);
                guarded.map_err(|(_, fault)| refused(fault))?;
                let text = tokenizer.chat_with(&messages, &options)?;
                let joined = || tokenizer.special_joined(&text).map(TextFault::Special);
                match (encoder.special_text() == SpecialText::Refuse).then(joined).flatten() {
                    Some(fault) => Err(refused(fault)),
                    None => Ok((vec![text], AddSpecial::No)),
                }
            }
        }
    }
}

/// `texts` as `encoder` encodes them.
fn guarded_texts(encoder: &SharedEncoder, texts: &[String]) -> Result<Vec<String>> {
    texts.iter().map(|text| encoder.guard(text).map_err(refused)).collect()
}

fn refused(fault: TextFault) -> Error {
    match fault {
        TextFault::Special(found) => Error::value("prompt", "a text without special tokens", format!("{found:?}")),
        TextFault::Marks(error) => *error,
    }
}

/// The task file's key `prompt`, or another key of the same form. Templates are Jinja over the item's fields.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "a template, or an object with `item`, `levels` or `chat`"))]
pub(crate) enum PromptSettings {
    /// A template.
    Template(String),
    Parts(Box<PromptPartSettings>),
}

/// Text that is common to all items, then `item` or `levels`; or a `chat`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct PromptPartSettings {
    /// Fixed text, or a list of texts, the same for all items: its keys and values are computed and kept once.
    shared: Option<SharedSettings>,
    /// A template of the item's own text.
    item: Option<PartSettings>,
    /// Templates from the most common text to the item's own: what several items share is computed and kept once.
    #[schemars(length(min = 1), extend("x-expected" = "a list of templates and `shots`"))]
    levels: Option<Vec<PartSettings>>,
    /// A chat, written by the model's own template.
    chat: Option<ChatSettings>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "a text, {\"file\": PATH}, or a list of them"))]
enum SharedSettings {
    Several(Vec<TextSettings>),
    One(TextSettings),
}

/// A template, or worked examples.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "a template, {\"file\": PATH} or {\"shots\": …}"))]
enum PartSettings {
    Shots {
        /// Worked examples from a file.
        shots: ShotSettings,
    },
    Text(TextSettings),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChatSettings {
    /// A template of the system's turn.
    system: Option<TextSettings>,
    /// Turns before the user's last.
    #[serde(default)]
    #[schemars(extend("x-expected" = "a list of objects with `role` and `content`"))]
    messages: Vec<TurnSettings>,
    /// Tools that the assistant can call, each as the chat template is to see it.
    #[schemars(extend("x-expected" = "a list of objects"))]
    tools: Option<Vec<Map<String, Value>>>,
    /// A template of the user's last turn.
    #[schemars(extend("x-expected" = "a template: a chat ends with the user's turn"))]
    user: Option<TextSettings>,
    /// The name of one of the model's chat templates.
    template: Option<String>,
    /// Variables for the chat template, such as {"enable_thinking": false}.
    options: Option<Map<String, Value>>,
}

#[derive(Deserialize, JsonSchema)]
struct TurnSettings {
    #[schemars(extend("x-expected" = "a role, such as \"user\""))]
    role: String,
    /// A template. A turn with `tool_calls` may have none.
    #[schemars(extend("x-expected" = "a template"))]
    content: Option<TextSettings>,
    /// A template of the reasoning before the content; chat templates know it as `reasoning_content`, `thinking` or
    /// `reasoning`.
    #[schemars(extend("x-expected" = "a template"))]
    reasoning_content: Option<TextSettings>,
    /// Calls of tools, as the chat template is to see them.
    #[schemars(extend("x-expected" = "a list of objects"))]
    tool_calls: Option<Vec<Map<String, Value>>>,
    /// The call that a tool's turn answers.
    tool_call_id: Option<String>,
    /// The name of who speaks, or of the tool.
    name: Option<String>,
    /// Whatever else the chat template is to see of the turn.
    fields: Option<Map<String, Value>>,
}

/// The levels of a prompt, or the turns of a chat.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PromptTemplate {
    Levels(Vec<PromptPart>),
    Chat { turns: Vec<TurnTemplate>, options: Box<ChatOptions> },
}

/// A turn of a chat.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TurnTemplate {
    role: String,
    content: Option<Template>,
    reasoning: Option<Template>,
    /// The other fields, the same for every item.
    more: Map<String, Value>,
}

/// A part of a level.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PromptPart {
    Fixed(String),
    Template(Template),
    Shots(Shots),
}

impl PromptTemplate {
    /// `place`: of the prompt.
    pub fn new(place: &Place<'_>, settings: PromptSettings) -> Result<PromptTemplate> {
        let parts = match settings {
            PromptSettings::Template(text) => {
                return Ok(PromptTemplate::Levels(vec![PromptPart::Template(Template::new(place, text)?)]));
            }
            PromptSettings::Parts(parts) => *parts,
        };
        let wrong =
            |found: &str| Err(place.wrong_as("a template, or an object with `item`, `levels` or `chat`", found));
        match (parts.item, parts.levels, parts.chat) {
            (None, None, Some(_)) if parts.shared.is_some() => {
                wrong("`shared` beside `chat`; put shared text into `chat.system` or `chat.messages`")
            }
            (None, None, Some(chat)) => chat_of(&place.key("chat"), chat),
            (Some(item), None, None) => levels_of(place, parts.shared, vec![(place.key("item"), item)]),
            (None, Some(levels), None) => {
                let at = |ix: usize| place.key("levels").key(&ix.to_string());
                let levels = levels.into_iter().enumerate().map(|(ix, level)| (at(ix), level));
                levels_of(place, parts.shared, levels.collect())
            }
            (None, None, None) => wrong("none of them"),
            _ => wrong("more than one of them"),
        }
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
            PromptTemplate::Chat { turns, .. } => turns.iter().any(|turn| turn.takes_in(name)),
        }
    }

    pub fn render(&self, item: &Item) -> Result<TaskPrompt> {
        match self {
            PromptTemplate::Levels(parts) => {
                Ok(TaskPrompt::Levels(parts.iter().map(|part| part.render(item)).collect::<Result<_>>()?))
            }
            PromptTemplate::Chat { turns, options } => {
                let messages = turns.iter().map(|turn| turn.render(item)).collect::<Result<_>>()?;
                Ok(TaskPrompt::Chat { messages, options: ChatOptions::clone(options) })
            }
        }
    }
}

impl TurnTemplate {
    fn new(role: &str, content: Template) -> Self {
        TurnTemplate { role: role.to_owned(), content: Some(content), reasoning: None, more: Map::new() }
    }

    /// `place`: of the turn.
    fn read(place: &Place<'_>, settings: TurnSettings) -> Result<Self> {
        let read =
            |key: &str, text: Option<TextSettings>| text.map(|text| Template::read(&place.key(key), text)).transpose();
        let TurnSettings { role, content, reasoning_content, tool_calls, tool_call_id, name, fields } = settings;
        let (content, reasoning) = (read("content", content)?, read("reasoning_content", reasoning_content)?);
        let calls: Option<Value> = tool_calls.map(|calls| calls.into_iter().map(Value::Object).collect());
        if content.is_none() && calls.is_none() {
            return Err(place.key("content").wrong("a template, or `tool_calls` beside it"));
        }
        let named =
            [("tool_calls", calls), ("tool_call_id", tool_call_id.map(Value::from)), ("name", name.map(Value::from))];
        let named = named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Ok(TurnTemplate { role, content, reasoning, more: named.chain(fields.unwrap_or_default()).collect() })
    }

    fn render(&self, item: &Item) -> Result<Message> {
        let render = |template: &Option<Template>| {
            template.as_ref().map(|template| template.render(&item.id, &item.fields)).transpose()
        };
        let mut message = Message::new(&*self.role, render(&self.content)?.unwrap_or_default());
        if let Some(reasoning) = render(&self.reasoning)? {
            message = message.with("reasoning_content", reasoning);
        }
        let message = self.more.iter().fold(message, |message, (field, value)| message.with(field, value.clone()));
        Ok(message.completed())
    }

    /// Whether the turn uses the item's field `name`.
    fn takes_in(&self, name: &str) -> bool {
        [&self.content, &self.reasoning].into_iter().flatten().any(|template| template.takes_in(name))
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

/// `shared` (fixed texts, the same for every item), then the others (templates or examples).
fn levels_of(
    place: &Place<'_>,
    shared: Option<SharedSettings>,
    others: Vec<(Place<'_>, PartSettings)>,
) -> Result<PromptTemplate> {
    let at = place.key("shared");
    let mut parts: Vec<PromptPart> = match shared {
        None => Vec::new(),
        Some(SharedSettings::One(text)) => vec![PromptPart::Fixed(text.read(&at)?)],
        Some(SharedSettings::Several(texts)) => {
            let fixed = |(ix, text): (usize, TextSettings)| text.read(&at.key(&ix.to_string())).map(PromptPart::Fixed);
            texts.into_iter().enumerate().map(fixed).collect::<Result<_>>()?
        }
    };
    for (place, part) in others {
        parts.push(match part {
            PartSettings::Shots { shots } => PromptPart::Shots(Shots::new(&place.key("shots"), shots)?),
            PartSettings::Text(text) => PromptPart::Template(Template::read(&place, text)?),
        });
    }
    Ok(PromptTemplate::Levels(parts))
}

fn chat_of(place: &Place<'_>, chat: ChatSettings) -> Result<PromptTemplate> {
    let mut turns = Vec::new();
    if let Some(system) = chat.system {
        turns.push(TurnTemplate::new("system", Template::read(&place.key("system"), system)?));
    }
    for (ix, message) in chat.messages.into_iter().enumerate() {
        turns.push(TurnTemplate::read(&place.key("messages").key(&ix.to_string()), message)?);
    }
    if let Some(user) = chat.user {
        turns.push(TurnTemplate::new("user", Template::read(&place.key("user"), user)?));
    }
    if turns.last().is_none_or(|last| !["user", "tool"].contains(&&*last.role)) {
        return Err(place.key("user").wrong("a template: a chat ends with the user's turn, or with a tool's answer"));
    }
    // One time for the whole task, so that the date is the same in all prompts.
    let mut options = ChatOptions::default();
    if let Some(variables) = chat.options {
        options.variables = variables;
    }
    options.tools = chat.tools.into_iter().flatten().map(Value::Object).collect();
    if let Some(name) = chat.template {
        options.template = name;
    }
    Ok(PromptTemplate::Chat { turns, options: Box::new(options) })
}
