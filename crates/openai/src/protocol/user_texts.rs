//! The texts that a user wrote in a request, on their way into a prompt: texts of prompts and continuations, and
//! whatever a chat template sees but the template itself. Where special tokens' texts are not allowed in them, they are
//! refused or become plain text here.

use super::refusal::Refusal;
use super::request::{ChoiceContent, PromptContent};
use offshoot_core::error::Error;
use offshoot_text::message::map_texts;
use offshoot_text::{AddSpecial, ChatOptions, Message, Speaker, SpecialText, Tokenizer};

/// The values of the field `special_tokens_in_text`.
pub const SPECIAL_TEXTS: [(&str, SpecialText); 3] =
    [("allow", SpecialText::Allow), ("escape", SpecialText::Escape), ("refuse", SpecialText::Refuse)];

/// What becomes of the texts of users.
#[derive(Clone, Copy)]
pub struct UserTexts<'t> {
    pub tokenizer: &'t Tokenizer,
    /// What becomes of special tokens' texts in them.
    pub special: SpecialText,
}

impl UserTexts<'_> {
    /// A prompt's text in `field`, with these special tokens around it.
    pub fn prompt(self, field: &str, text: &str, around: AddSpecial) -> Result<PromptContent, Refusal> {
        self.check(text).map_err(|error| error.about(field))?;
        Ok(match self.special {
            SpecialText::Allow => PromptContent::Text(around),
            SpecialText::Escape | SpecialText::Refuse => PromptContent::Plain(around),
        })
    }

    /// The text of number `index` of `choices`.
    pub fn choice(self, index: usize, text: &str) -> Result<ChoiceContent, Refusal> {
        self.check(text).map_err(|error| error.about(&format!("choices[{index}]")))?;
        Ok(match self.special {
            SpecialText::Allow => ChoiceContent::Text(text.to_owned()),
            SpecialText::Escape | SpecialText::Refuse => ChoiceContent::Plain(text.to_owned()),
        })
    }

    /// Refuses or hides the texts of special tokens in everything that a template sees, but the roles, which the
    /// template knows, and itself.
    pub fn hide(self, list: &mut [Message], options: &mut ChatOptions) -> Result<(), Refusal> {
        if self.special == SpecialText::Allow {
            return Ok(());
        }
        for (index, message) in list.iter_mut().enumerate() {
            let speaker = match message.role() {
                Some("assistant" | "system" | "developer") => Speaker::Assistant,
                _ => Speaker::Anyone,
            };
            let refused = |(field, error): (_, TextError)| error.about(&format!("messages[{index}].{field}"));
            message.map_texts(&mut |text: &str| self.hidden(text, speaker)).map_err(refused)?;
        }
        let mut hide = |text: &str| self.hidden(text, Speaker::Anyone);
        // Every field is named, so that none is forgotten.
        let ChatOptions { tools, variables, source: _, template: _, add_generation_prompt: _, now: _ } = options;
        for (index, tool) in tools.iter_mut().enumerate() {
            map_texts(tool, &mut hide).map_err(|error| error.about(&format!("tools[{index}]")))?;
        }
        for (name, value) in variables.iter_mut() {
            let field = match name.as_str() {
                "documents" | "reasoning_effort" => name.clone(),
                name => format!("chat_template_kwargs.{name}"),
            };
            map_texts(value, &mut hide).map_err(|error| error.about(&field))?;
        }
        Ok(())
    }

    /// Refuses a chat whose hidden texts make a special token side by side. Where they are escaped, they stay plain
    /// text.
    pub fn check_joined(self, rendered: &str) -> Result<(), Refusal> {
        let joined = || self.tokenizer.special_joined(rendered);
        match Some(()).filter(|()| self.special == SpecialText::Refuse).and_then(|()| joined()) {
            Some(found) => {
                let what = "texts that make no special token side by side";
                Err(Refusal::value("messages", what, &format!("{found:?}")).about("messages"))
            }
            None => Ok(()),
        }
    }

    fn check(self, text: &str) -> Result<(), TextError> {
        match self.tokenizer.special_in(text).filter(|_| self.special == SpecialText::Refuse) {
            Some(found) => Err(TextError::Special(found.to_owned())),
            None => Ok(()),
        }
    }

    fn hidden(self, text: &str, of: Speaker) -> Result<String, TextError> {
        self.check(text)?;
        self.tokenizer.hide_special(text, of).map_err(TextError::Marks)
    }
}

/// Why a text of a user is refused.
enum TextError {
    /// It has this text of a special token.
    Special(String),
    Marks(Error),
}

impl TextError {
    /// `field`: the place of the text, in a field of the request.
    fn about(self, field: &str) -> Refusal {
        let param = field.split(['[', '.']).next().unwrap_or_default();
        match self {
            TextError::Special(found) => Refusal::value(field, "a text without special tokens", &format!("{found:?}")),
            TextError::Marks(error) => Refusal::of(&error),
        }
        .about(param)
    }
}
