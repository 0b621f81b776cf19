//! Renders the messages of a chat as the text of a prompt: up to the assistant's next turn, within the assistant's last
//! message where that is to be continued, or as what follows a kept branch.

use serde_json::{Map, Value};

use super::fields::BodyFields;
use super::messages::{self, Messages};
use super::refusal::Refusal;
use offshoot_text::reasoning::TextStart;
use offshoot_text::{ChatOptions, Message, Tokenizer};

/// A chat as text.
pub struct ChatText {
    pub text: String,
    /// Where in the answer it ends.
    pub start: TextStart,
}

/// Ends the message to continue, so that its end is found in the rendered text. The space shows whether the template
/// trims messages.
const END_MARK: &str = "OFFSHOOT-END-OF-THE-MESSAGE ";
/// Stands for the answers of a kept branch.
const BRANCH_MARK: &str = "OFFSHOOT-KEPT-BRANCH";
/// Stands for whatever a user says next.
const NEXT_MARK: &str = "OFFSHOOT-NEXT-MESSAGE";

/// Renders `messages` as the chat's other fields say, by the template `source` in place of the model's if there is one.
/// `follows_branch`: the messages follow a branch that ends with the assistant's words; without messages, those words
/// go on.
pub fn take(
    fields: &mut BodyFields,
    messages: Option<Value>,
    follows_branch: bool,
    source: Option<String>,
    tokenizer: &Tokenizer,
) -> Result<ChatText, Refusal> {
    let variables = fields.object("chat_template_kwargs")?;
    let adds_prompt = fields.choice("add_generation_prompt")?;
    let continues = fields.choice("continue_final_message")?;
    let Some(messages) = messages else {
        return match follows_branch {
            true => Ok(ChatText { text: String::new(), start: TextStart::default() }),
            false => Err(Refusal::value("messages", "a list of messages with `role` and `content`", "nothing")),
        };
    };
    let options = ChatOptions { variables, source, ..ChatOptions::default() };
    render(messages::read(&messages)?, ChatEnd { adds_prompt, continues }, follows_branch, options, tokenizer)
}

/// What the request says about the end of the text.
struct ChatEnd {
    adds_prompt: Option<bool>,
    continues: Option<bool>,
}

impl ChatEnd {
    /// Whether the last message goes on. By default, an assistant's does.
    fn continues(&self, messages: &Messages) -> Result<bool, Refusal> {
        let is_assistants = messages.list.last().is_some_and(|last| last.role == "assistant");
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

fn render(
    mut messages: Messages,
    end: ChatEnd,
    follows_branch: bool,
    options: ChatOptions,
    tokenizer: &Tokenizer,
) -> Result<ChatText, Refusal> {
    let continues = end.continues(&messages)?;
    let list = &mut messages.list;
    let last = list.last().map_or_else(String::new, |last| last.content.clone());
    if let Some(last) = list.last_mut().filter(|_| continues) {
        last.content.push_str(END_MARK);
    }
    if follows_branch {
        let turn = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
        list.splice(0..0, [turn("user", "."), turn("assistant", BRANCH_MARK)]);
    }
    let add_generation_prompt = !continues && end.adds_prompt.unwrap_or(true);
    let options = ChatOptions { add_generation_prompt, ..options };
    let mut text = tokenizer.chat_with(list, &options).map_err(|error| Refusal::of(&error))?;
    if continues {
        cut_at_end(&mut text)?;
    }
    if follows_branch {
        let at = text.find(BRANCH_MARK).ok_or_else(|| hidden("an earlier message"))?;
        text.drain(..at + BRANCH_MARK.len());
    }
    let start = TextStart::of(&text, continues.then_some(&*last));
    Ok(ChatText { text, start })
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
/// the last message is not its own. `chat`: the messages, or an object with `messages` and `chat_template_kwargs`.
pub fn beginning(chat: &Value, tokenizer: &Tokenizer) -> Result<String, Refusal> {
    let object = match chat {
        Value::Object(object) => object.clone(),
        list => Map::from_iter([("messages".to_owned(), list.clone())]),
    };
    let mut fields = BodyFields::new(&object);
    let mut messages = messages::read(&fields.take("messages").unwrap_or_default())?;
    let variables = fields.object("chat_template_kwargs")?;
    fields.finish()?;
    let is_answered = messages.list.last().is_some_and(|last| ["system", "assistant"].contains(&&*last.role));
    if is_answered {
        messages.list.push(Message { role: "user".to_owned(), content: NEXT_MARK.to_owned() });
    }
    let end = ChatEnd { adds_prompt: Some(true), continues: None };
    let options = ChatOptions { variables, ..ChatOptions::default() };
    let mut text = render(Messages { is_prefix: false, ..messages }, end, false, options, tokenizer)?.text;
    if is_answered {
        text.truncate(text.find(NEXT_MARK).ok_or_else(|| hidden("a next message"))?);
    }
    Ok(text)
}

fn hidden(what: &str) -> Refusal {
    let message = format!("`messages`: the model's chat template does not show {what}, so it cannot be continued");
    Refusal::new("invalid_value", message).about("messages")
}

/// The prompt of a chat outside a request: `body` has `messages` and, of a request's other fields,
/// `add_generation_prompt`, `continue_final_message` and `chat_template_kwargs`; `chat_template` is a template in place
/// of the model's.
pub fn chat_prompt(body: &Map<String, Value>, tokenizer: &Tokenizer) -> Result<String, Refusal> {
    let mut fields = BodyFields::new(body);
    let source = fields.text("chat_template")?;
    let messages = fields.take("messages");
    let chat = take(&mut fields, messages, false, source, tokenizer)?;
    fields.finish()?;
    Ok(chat.text)
}
