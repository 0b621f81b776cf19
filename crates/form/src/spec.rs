//! What a sampled text must be, and where in a sample that text begins. Plain data.
#![warn(missing_docs)]

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use offshoot_text::reasoning::ContentStart;

/// What a text must be, from its first byte to its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Form {
    /// A JSON object.
    JsonObject,
    /// JSON that this JSON Schema accepts.
    Json(Value),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A text that this grammar accepts, in llguidance's dialect of Lark.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Where in a sample the text begins that must have the form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FormBegin {
    /// With the first sampled token.
    #[default]
    AtOnce,
    /// Behind the reasoning.
    BehindReasoning {
        /// The mark that opens the reasoning, where the sample may begin with it or else with the form. `None`: the
        /// prompt has opened the reasoning.
        open: Option<String>,
        /// The mark that closes the reasoning. What stands before it is free.
        close: String,
    },
    /// Behind the header of the channel `final` (gpt-oss' harmony format): what stands before it is free, but does not
    /// end the text, not even as a call.
    FinalChannel,
}

impl From<ContentStart> for FormBegin {
    /// A form begins where the content of an answer does.
    fn from(start: ContentStart) -> Self {
        match start {
            ContentStart::AtOnce => FormBegin::AtOnce,
            ContentStart::BehindReasoning { open, close } => {
                FormBegin::BehindReasoning { open: open.map(str::to_owned), close: close.to_owned() }
            }
            ContentStart::FinalChannel => FormBegin::FinalChannel,
        }
    }
}

/// The form of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleForm {
    /// What the text must be; shared by all samples of one request.
    pub form: Arc<Form>,
    /// Where it begins.
    #[serde(default)]
    pub begin: FormBegin,
    /// Whether it ends with the extend, wherever that stops: what is sampled behind it begins the form anew, and a
    /// branch that is kept keeps nothing of it.
    #[serde(default)]
    pub ends_with_extend: bool,
}

impl SampleForm {
    /// The form of the whole sample, shared with others.
    pub fn shared(form: Arc<Form>) -> Self {
        SampleForm { form, begin: FormBegin::AtOnce, ends_with_extend: false }
    }
}

impl From<Form> for SampleForm {
    /// The form of the whole sample.
    fn from(form: Form) -> Self {
        SampleForm::shared(Arc::new(form))
    }
}
