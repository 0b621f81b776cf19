//! What stands around an answer: a conversation as a chat template renders it, or a text with places. Special tokens in
//! questions are hidden here; those in answers are hidden by the caller.

use std::time::SystemTime;

use crate::form::{ChatForm, PlainForm};
use crate::marked::{hidden, refuse_marks};
use crate::plain::TextTemplate;
use offshoot_core::error::{Error, Result};
use offshoot_text::{AddSpecial, ChatOptions, Message, Speaker, SpecialText, TextFault, Tokenizer};

/// What stands around an answer.
pub(crate) enum Frame {
    /// The answer is the assistant's turn.
    Chat(ChatFrame),
    /// The answer stands in a user's turn, and the assistant's begins.
    Question(ChatFrame, TextTemplate),
    /// The answer stands in a text.
    Plain(TextTemplate, AddSpecial),
}

impl Frame {
    /// A text that ends with the answer if `ends`.
    pub fn plain(form: &PlainForm, ends: bool) -> Result<Frame> {
        let special = if form.special_tokens { AddSpecial::Yes } else { AddSpecial::No };
        Ok(Frame::Plain(TextTemplate::read(&form.text, ends)?, special))
    }

    /// Whether the tokenizer adds special tokens around the text. A chat template writes them itself.
    pub fn special(&self) -> AddSpecial {
        match self {
            Frame::Chat(_) | Frame::Question(..) => AddSpecial::No,
            Frame::Plain(_, special) => *special,
        }
    }

    /// The whole text, with `answer`: a hidden and marked text. `generation_prompt`: whether another turn of the
    /// assistant's begins behind its own.
    pub fn around(
        &self,
        tokenizer: &Tokenizer,
        question: &[Message],
        answer: &str,
        generation_prompt: bool,
    ) -> Result<String> {
        match self {
            Frame::Chat(chat) => {
                let mut turns = chat.turns(tokenizer, question)?;
                // An answer that the question has begun goes on.
                let begun = turns.last_mut().filter(|turn| turn.role() == Some("assistant"));
                if !begun.is_some_and(|turn| turn.append(answer)) {
                    turns.push(Message::assistant(answer));
                }
                chat.text(tokenizer, &turns, generation_prompt)
            }
            Frame::Question(chat, asked) => {
                let asked = asked.filled(&question_text(tokenizer, question)?, answer, bos(tokenizer));
                let system = chat.system.iter().map(Message::system);
                chat.text(tokenizer, &system.chain([Message::user(asked)]).collect::<Vec<_>>(), true)
            }
            Frame::Plain(template, _) => {
                Ok(template.filled(&question_text(tokenizer, question)?, answer, bos(tokenizer)))
            }
        }
    }

    /// The text before the answer.
    pub fn before(&self, tokenizer: &Tokenizer, question: &[Message]) -> Result<String> {
        match self {
            Frame::Chat(chat) => chat.text(tokenizer, &chat.turns(tokenizer, question)?, true),
            Frame::Question(..) | Frame::Plain(..) => self.around(tokenizer, question, "", true),
        }
    }
}

/// How conversations are rendered.
pub(crate) struct ChatFrame {
    system: Option<String>,
    options: ChatOptions,
}

impl ChatFrame {
    /// `now`: the time that templates see.
    ///
    /// # Errors
    ///
    /// There is no chat template.
    pub fn new(tokenizer: &Tokenizer, form: &ChatForm, now: SystemTime) -> Result<ChatFrame> {
        let options = ChatOptions {
            add_generation_prompt: false,
            source: form.template.clone(),
            variables: form.variables.clone(),
            now,
            ..ChatOptions::default()
        };
        if tokenizer.chosen_template(&options).is_none() {
            let what = "the scorer's form renders conversations, and the folder has no chat template (neither \
                        chat_template.jinja nor `chat_template` in tokenizer_config.json); give the form a `template`, \
                        or a `plain` text";
            return Err(Error::format(tokenizer.folder(), what));
        }
        Ok(ChatFrame { system: form.system.clone(), options })
    }

    /// The turns of a question, with their special tokens hidden, and with the form's system turn.
    pub fn turns(&self, tokenizer: &Tokenizer, question: &[Message]) -> Result<Vec<Message>> {
        refuse_marks(&question)?;
        let mut turns = question.to_vec();
        let guarded = tokenizer.guard_chat(SpecialText::Escape, &mut turns, &mut self.options.clone());
        guarded.map_err(|(_, fault)| match fault {
            TextFault::Marks(error) => *error,
            TextFault::Special(text) => Error::Internal(format!("`{text}` is refused where it is to be hidden")),
        })?;
        if let Some(system) = &self.system {
            turns.retain(|turn| !matches!(turn.role(), Some("system" | "developer")));
            turns.insert(0, Message::system(system));
        }
        Ok(turns)
    }

    /// The rendered text of hidden turns.
    pub fn text(&self, tokenizer: &Tokenizer, turns: &[Message], generation_prompt: bool) -> Result<String> {
        let options = ChatOptions { add_generation_prompt: generation_prompt, ..self.options.clone() };
        tokenizer.chat_with(turns, &options)
    }
}

/// What all turns of a question say, a line each.
fn question_text(tokenizer: &Tokenizer, question: &[Message]) -> Result<String> {
    let text = |turn: &Message| {
        let mut turn = turn.clone();
        turn.join_parts();
        hidden(tokenizer, turn.last_text().unwrap_or_default(), Speaker::Anyone)
    };
    Ok(question.iter().map(text).collect::<Result<Vec<_>>>()?.join("\n"))
}

fn bos(tokenizer: &Tokenizer) -> &str {
    tokenizer.named_token("bos_token").unwrap_or_default()
}
