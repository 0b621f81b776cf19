//! The texts that a user wrote in a request, on their way into a prompt: texts of prompts and continuations, and
//! whatever a chat template sees but the template itself. Where special tokens' texts are not allowed in them, they are
//! refused or become plain text here.

use super::refusal::Refusal;
use super::request::{ChoiceContent, PromptContent};
use offshoot_text::{AddSpecial, ChatOptions, ChatPlace, Message, Speaker, SpecialText, TextFault, Tokenizer};

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
        self.check(field, text)?;
        Ok(match self.special {
            SpecialText::Allow => PromptContent::Text(around),
            SpecialText::Escape | SpecialText::Refuse => PromptContent::Plain(around),
        })
    }

    /// The text of number `index` of `choices`.
    pub fn choice(self, index: usize, text: &str) -> Result<ChoiceContent, Refusal> {
        self.check(&format!("choices[{index}]"), text)?;
        Ok(match self.special {
            SpecialText::Allow => ChoiceContent::Text(text.to_owned()),
            SpecialText::Escape | SpecialText::Refuse => ChoiceContent::Plain(text.to_owned()),
        })
    }

    /// Refuses or hides the texts of special tokens in everything that a template sees.
    pub fn hide(self, list: &mut [Message], options: &mut ChatOptions) -> Result<(), Refusal> {
        let refused = |(place, fault)| {
            let field = match place {
                ChatPlace::Message(index, field) => format!("messages[{index}].{field}"),
                ChatPlace::Tool(index) => format!("tools[{index}]"),
                ChatPlace::Variable(name) if ALSO_FIELDS.contains(&&*name) => name,
                ChatPlace::Variable(name) => format!("chat_template_kwargs.{name}"),
            };
            refusal(&field, fault)
        };
        self.tokenizer.guard_chat(self.special, list, options).map_err(refused)
    }

    fn check(self, field: &str, text: &str) -> Result<(), Refusal> {
        let guarded = self.tokenizer.guard_text(self.special, text, Speaker::Assistant);
        guarded.map(drop).map_err(|fault| refusal(field, fault))
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
}

/// Variables of templates that a request may also give as fields beside `chat_template_kwargs`. Refusals name the
/// field.
const ALSO_FIELDS: [&str; 2] = ["documents", "reasoning_effort"];

/// `field`: the place of the text, in a field of the request.
fn refusal(field: &str, fault: TextFault) -> Refusal {
    let param = field.split(['[', '.']).next().unwrap_or_default();
    match fault {
        TextFault::Special(found) => Refusal::value(field, "a text without special tokens", &format!("{found:?}")),
        TextFault::Marks(error) => Refusal::of(&error),
    }
    .about(param)
}
