//! Renders the messages of a chat as the text of a prompt: up to the assistant's next turn, within the assistant's last
//! message where that is to be continued, or as what follows a kept branch.

use serde_json::{Map, Value};

use super::fields::{BodyFields, brief};
use super::messages::{self, Messages};
use super::refusal::Refusal;
use super::request::PromptContent;
use super::tools::RequestedTools;
use super::user_texts::{SPECIAL_TEXTS, UserTexts};
use offshoot_core::ids::TokenId;
use offshoot_text::reasoning::{ContentStart, TextStart};
use offshoot_text::tools::ArgumentsSyntax;
use offshoot_text::{AddSpecial, ChatOptions, Message, SpecialText, Tokenizer};

/// A chat as text.
#[derive(Default)]
pub struct ChatText {
    pub text: String,
    /// The same with the special tokens' texts in its messages hidden; `None`: they are tokens like the template's.
    pub hidden: Option<String>,
    /// The last message, if it goes on.
    pub continued: Option<String>,
    /// Where in the answer it ends.
    pub start: TextStart,
    /// Where in what is sampled behind it the content begins.
    pub content: ContentStart,
    /// What becomes of calls in the answer.
    pub tools: RequestedTools,
}

/// How chats are read.
#[derive(Clone, Copy)]
pub struct ChatReader<'t> {
    pub texts: UserTexts<'t>,
    /// Whether `chat_template` may replace the model's.
    pub takes_template: bool,
}

/// Ends the message to continue, so that its end is found in the rendered text. The space shows whether the template
/// trims messages.
const END_MARK: &str = "OFFSHOOT-END-OF-THE-MESSAGE ";
/// Stands for the answers of a kept branch.
const BRANCH_MARK: &str = "OFFSHOOT-KEPT-BRANCH";
/// Stands for whatever a user says next.
const NEXT_MARK: &str = "OFFSHOOT-NEXT-MESSAGE";

/// Variables of templates that only fields of the request set: `chat_template_kwargs` may not have them.
const SET_BY_FIELDS: [&str; 5] =
    ["messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"];

impl ChatReader<'_> {
    /// Renders `messages` as the chat's other fields say. `follows_branch`: the messages follow a branch that ends with
    /// the assistant's words; without messages, those words go on.
    pub fn take(
        self,
        fields: &mut BodyFields,
        messages: Option<Value>,
        follows_branch: bool,
    ) -> Result<ChatText, Refusal> {
        let (options, end) = (self.options(fields)?, ChatEnd::take(fields)?);
        let tools = RequestedTools::take(fields, &options.tools, self.source(&options))?;
        let Some(messages) = messages else {
            return match follows_branch {
                true => Ok(ChatText { tools, ..ChatText::default() }),
                false => Err(Refusal::value("messages", "a list of messages with `role` and `content`", "nothing")),
            };
        };
        let messages = self.messages(&messages, &options)?;
        Ok(ChatText { tools, ..self.render(messages, end, follows_branch, options)? })
    }

    /// What of a chat's fields its template sees beside the messages.
    fn options(self, fields: &mut BodyFields) -> Result<ChatOptions, Refusal> {
        let mut variables = fields.object("chat_template_kwargs")?;
        if let Some(own) = SET_BY_FIELDS.into_iter().find(|name| variables.contains_key(*name)) {
            let field = format!("chat_template_kwargs.{own}");
            return Err(Refusal::value(&field, &format!("it as the field `{own}` of the request"), "it here"));
        }
        let source = fields.text("chat_template")?;
        if source.is_some() && !self.takes_template {
            let place = "here: this server was not started so that it trusts the templates of requests";
            return Err(Refusal::out_of_place("chat_template", place));
        }
        if let Some(documents) = fields.take("documents") {
            if !documents.as_array().is_some_and(|list| list.iter().all(Value::is_object)) {
                return Err(Refusal::value("documents", "a list of objects", &brief(&documents)));
            }
            variables.entry("documents").or_insert(documents);
        }
        let tools = fields.take("tools").map_or(Ok(Vec::new()), |tools| messages::tools(&tools))?;
        let options = ChatOptions { variables, source, tools, ..ChatOptions::default() };
        let shows = |name: &str| self.source(&options).contains(name);
        if !options.tools.is_empty() && !shows("tools") && !self.source(&options).is_empty() {
            let message = "`tools`: the chat template shows none, so that the model would not know of them";
            return Err(Refusal::new("unsupported_parameter", message).about("tools"));
        }
        // Of other templates it changes nothing, and `official` refuses it.
        let effort = if shows("reasoning_effort") { fields.text("reasoning_effort")? } else { None };
        let mut options = options;
        if let Some(effort) = effort {
            options.variables.entry("reasoning_effort").or_insert(effort.into());
        }
        Ok(options)
    }

    /// The source of the template; empty without one, which rendering refuses.
    fn source<'a>(&'a self, options: &'a ChatOptions) -> &'a str {
        self.texts.tokenizer.chosen_template(options).unwrap_or_default()
    }

    /// Contents of several parts become one text, unless the template takes lists of parts.
    fn join_parts(self, list: &mut [Message], options: &ChatOptions) {
        let is_list = |message: &Message| message.parts().is_some();
        if list.iter().any(is_list) && !self.texts.tokenizer.takes_parts(options) {
            list.iter_mut().for_each(Message::join_parts);
        }
    }

    /// Reads messages as the template takes them.
    fn messages(self, messages: &Value, options: &ChatOptions) -> Result<Messages, Refusal> {
        let has_calls = |message: &Value| message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        let arguments = match messages.as_array().is_some_and(|list| list.iter().any(has_calls)) {
            true => self.texts.tokenizer.arguments_syntax(options),
            false => ArgumentsSyntax::Value,
        };
        let mut messages = messages::read(messages, self.source(options), arguments)?;
        self.join_parts(&mut messages.list, options);
        Ok(messages)
    }

    fn render(
        self,
        mut messages: Messages,
        end: ChatEnd,
        follows_branch: bool,
        mut options: ChatOptions,
    ) -> Result<ChatText, Refusal> {
        let continues = end.continues(&messages)?;
        self.texts.hide(&mut messages.list, &mut options)?;
        let list = &mut messages.list;
        let shown = |text: &str| match self.texts.special {
            // Nothing is hidden: the text may have characters that look like marks.
            SpecialText::Allow => text.to_owned(),
            SpecialText::Escape | SpecialText::Refuse => self.texts.tokenizer.show_special(text).into_owned(),
        };
        let last = list.last().and_then(Message::last_text).map_or_else(String::new, shown);
        if let Some(last) = list.last_mut().filter(|_| continues)
            && !last.append(END_MARK)
        {
            return Err(Refusal::value("messages", "a text at the end of the message to continue", "none"));
        }
        if follows_branch {
            list.splice(0..0, [Message::user("."), Message::assistant(BRANCH_MARK)]);
        }
        options.add_generation_prompt = !continues && end.adds_prompt.unwrap_or(true);
        let mut text = self.texts.tokenizer.chat_with(list, &options).map_err(|error| Refusal::of(&error))?;
        if continues {
            cut_at_end(&mut text)?;
        }
        if follows_branch {
            let at = text.find(BRANCH_MARK).ok_or_else(|| hidden("an earlier message"))?;
            text.drain(..at + BRANCH_MARK.len());
        }
        self.texts.check_joined(&text)?;
        let (text, hidden) = match self.texts.special {
            SpecialText::Allow => (text, None),
            SpecialText::Escape | SpecialText::Refuse => (shown(&text), Some(text)),
        };
        let answer = continues.then_some(&*last);
        let start = TextStart::of(&text, answer);
        let content = ContentStart::of(&text, answer, Some(self.source(&options)));
        Ok(ChatText { text, hidden, continued: continues.then_some(last), start, content, ..ChatText::default() })
    }
}

/// What the request says about the end of the text.
struct ChatEnd {
    adds_prompt: Option<bool>,
    continues: Option<bool>,
}

impl ChatEnd {
    fn take(fields: &mut BodyFields) -> Result<Self, Refusal> {
        let adds_prompt = fields.choice("add_generation_prompt")?;
        Ok(ChatEnd { adds_prompt, continues: fields.choice("continue_final_message")? })
    }

    /// Whether the last message goes on. By default, an assistant's does.
    fn continues(&self, messages: &Messages) -> Result<bool, Refusal> {
        let is_assistants = messages.list.last().is_some_and(|last| last.role() == Some("assistant"));
        let asked = self.continues.unwrap_or(false) || messages.is_prefix;
        match (asked, is_assistants, self.adds_prompt) {
            (true, false, _) => {
                Err(Refusal::value("continue_final_message", "a last message of the assistant", "another"))
            }
            (true, true, Some(true)) => {
                Err(Refusal::value("add_generation_prompt", "false beside a message to continue", "true"))
            }
            (true, true, _) => Ok(true),
            (false, is_assistants, None) => Ok(is_assistants && self.continues.is_none()),
            (false, ..) => Ok(false),
        }
    }
}

/// Cuts the text at the end of the message that is to be continued.
fn cut_at_end(text: &mut String) -> Result<(), Refusal> {
    let at = text.rfind(END_MARK.trim_end()).ok_or_else(|| hidden("the last message"))?;
    let is_trimmed = !text[at..].starts_with(END_MARK);
    text.truncate(at);
    if is_trimmed {
        text.truncate(text.trim_end().len());
    }
    Ok(())
}

/// What all chats begin with that begin with these messages and go on with the user's words, or with the assistant's if
/// the last message is not its own. `chat`: the messages, or an object with `messages` and, of a chat's other fields,
/// `tools`, `documents` and `chat_template_kwargs`.
pub fn beginning(chat: &Value, tokenizer: &Tokenizer) -> Result<String, Refusal> {
    let object = match chat {
        Value::Object(object) => object.clone(),
        list => Map::from_iter([("messages".to_owned(), list.clone())]),
    };
    let mut fields = BodyFields::new(&object);
    let messages = fields.take("messages").unwrap_or_default();
    let texts = UserTexts { tokenizer, special: SpecialText::Allow };
    let reader = ChatReader { texts, takes_template: false };
    let options = reader.options(&mut fields)?;
    fields.finish()?;
    let mut messages = reader.messages(&messages, &options)?;
    let last = messages.list.last().and_then(Message::role);
    let is_answered = last.is_some_and(|role| ["system", "developer", "assistant"].contains(&role));
    if is_answered {
        messages.list.push(Message::user(NEXT_MARK));
    }
    let end = ChatEnd { adds_prompt: Some(true), continues: None };
    let mut text = reader.render(Messages { is_prefix: false, ..messages }, end, false, options)?.text;
    if is_answered {
        text.truncate(text.find(NEXT_MARK).ok_or_else(|| hidden("a next message"))?);
    }
    Ok(text)
}

fn hidden(what: &str) -> Refusal {
    let message = format!("`messages`: the model's chat template does not show {what}, so it cannot be continued");
    Refusal::new("invalid_value", message).about("messages")
}

/// The prompt of a chat as transformers makes it: the template sees the messages and tools as they are written, and the
/// last message goes on only where `continue_final_message` says so. `body` has the fields of a chat that its template
/// sees.
pub fn chat_prompt(body: &Map<String, Value>, tokenizer: &Tokenizer) -> Result<String, Refusal> {
    let mut fields = BodyFields::new(body);
    let messages = messages::as_written(&fields.take("messages").unwrap_or_default())?;
    let tools = match fields.take("tools") {
        None => Vec::new(),
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(Refusal::value("tools", "a list of tools", &brief(&other))),
    };
    let variables = fields.object("chat_template_kwargs")?;
    let options = ChatOptions { source: fields.text("chat_template")?, tools, variables, ..ChatOptions::default() };
    let ChatEnd { adds_prompt, continues } = ChatEnd::take(&mut fields)?;
    fields.finish()?;
    let end = ChatEnd { adds_prompt, continues: Some(continues.unwrap_or(false)) };
    let texts = UserTexts { tokenizer, special: SpecialText::Allow };
    let reader = ChatReader { texts, takes_template: true };
    Ok(reader.render(messages, end, false, options)?.text)
}

/// The prompt of a chat outside a request as a server makes it, and its tokens. `body` has the fields of a chat that
/// its template sees, and `special_tokens_in_text`.
pub fn chat_tokens(body: &Map<String, Value>, tokenizer: &Tokenizer) -> Result<(String, Vec<TokenId>), Refusal> {
    let mut fields = BodyFields::new(body);
    let special = fields.word("special_tokens_in_text", &SPECIAL_TEXTS)?.unwrap_or_default();
    let reader = ChatReader { texts: UserTexts { tokenizer, special }, takes_template: true };
    let messages = fields.take("messages");
    let ChatText { text, hidden, .. } = reader.take(&mut fields, messages, false)?;
    fields.finish()?;
    let content = PromptContent::of_chat(hidden, AddSpecial::No);
    let tokens = content.tokens(&text, tokenizer).map_err(|error| Refusal::of(&error))?;
    Ok((text, tokens))
}
