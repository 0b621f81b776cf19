//! The form of a scorer as it stands in a file: plain data, without a tokenizer. `choice` finds one, `resolved` checks
//! it against a tokenizer and a head.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::aggregate::Aggregate;

/// How a reward model reads a question and an answer, and what its values mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreForm {
    /// How question and answer become text, and at which of its tokens values are read.
    pub text: FormText,
    /// How the values at a token become a score.
    pub output: Output,
    /// How the scores of an answer's steps become the answer's.
    #[serde(default)]
    pub aggregate: Aggregate,
}

impl ScoreForm {
    /// Whether it reads how likely words are as a language model's next ones, and not the values of a head.
    pub fn reads_words(&self) -> bool {
        matches!(self.output, Output::Words { .. } | Output::Logit { .. })
    }
}

/// How question and answer become text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FormText {
    /// By a chat template.
    Chat(ChatForm),
    /// As a text that has both.
    Plain(PlainForm),
}

/// A conversation, rendered by a chat template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatForm {
    /// What the system turn says, in place of the conversation's own; `None`: that one stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// A template in place of the model folder's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Further variables of the template, such as `enable_thinking`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub variables: Map<String, Value>,
    /// Where the answer stands, and where values are read.
    pub read: ChatRead,
}

/// Where in a conversation the answer stands, and where values are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ChatRead {
    /// The answer is the assistant's turn. Its value is read at the last token of the whole text, what the template
    /// writes behind the answer included. A classifier's is read at the last one that is not its padding token.
    End {
        /// Whether the text ends with the start of another assistant's turn.
        #[serde(default)]
        generation_prompt: bool,
        /// A text behind what the template writes, unless it ends with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        append: Option<String>,
    },
    /// The answer is the assistant's turn, with a tag behind each step. Values are read at the tags.
    Tags(StepTags),
    /// Each step is a user's turn, the first one behind the question; the assistant answers each with `reply`. Values
    /// are read at the token before each reply: there the model predicts it.
    Turns {
        /// What the assistant says: one token.
        reply: String,
        /// What steps are split at.
        #[serde(default = "blank_line")]
        separator: String,
    },
    /// The assistant's turn begins, and the parts of the answer follow, each encoded alone. Values are read at the last
    /// token of each part's end.
    Parts(StepParts),
    /// The user asks about question and answer, and the assistant's turn begins. The value is read at the last token.
    Question {
        /// What the user says, with `{{question}}` and `{{answer}}`.
        text: String,
    },
}

/// A text that has question and answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainForm {
    /// The text, with `{{question}}`, one `{{answer}}`, and `{{bos}}` where the beginning of text is written out.
    pub text: String,
    /// Whether the tokenizer adds its special tokens around the text.
    pub special_tokens: bool,
    /// Where values are read.
    pub read: PlainRead,
}

/// Where in a plain text values are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlainRead {
    /// At the last token of the whole text, or a classifier's at the last one that is not its padding token.
    End {},
    /// At a tag behind each step. The text ends with the answer.
    Tags(StepTags),
    /// At the last token of each part's end. The parts are encoded alone, behind the text, which ends with the answer.
    Parts(StepParts),
}

/// Steps with a tag behind each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTags {
    /// The text of the tag, with the space before it where there is one: one token there.
    pub tag: String,
    /// What steps are split at. A step of white space alone is none.
    #[serde(default = "blank_line")]
    pub separator: String,
    /// What stands between a tag and the next step.
    #[serde(default)]
    pub between: String,
    /// Whether white space at a step's end is removed.
    #[serde(default)]
    pub trims_end: bool,
}

/// Parts of an answer that are encoded one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepParts {
    /// What parts are split at.
    #[serde(default = "blank_line")]
    pub separator: String,
    /// The text whose tokens follow each part; `None`: the separator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// Whether an empty part between two separators counts; if not, nor does one of white space alone.
    #[serde(default)]
    pub keeps_empty: bool,
}

/// How the values at a token become a score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Output {
    /// One of the head's columns.
    Column {
        /// Which; `None`: the only one, or of two the one of good texts, which is the second unless their labels say
        /// otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        column: Option<Column>,
        /// What becomes of the values first.
        activation: Activation,
    },
    /// The sum of the head's columns, each by its weight.
    Weighted {
        /// A number for each column.
        weights: Vec<f64>,
        /// What becomes of the values first.
        activation: Activation,
    },
    /// The probability of good words among good and bad ones, as the model's next token.
    Words {
        /// Words for a good text: each is one token.
        good: Vec<TokenName>,
        /// Words for a bad text.
        bad: Vec<TokenName>,
    },
    /// The logit of one token as the model's next one.
    Logit {
        /// Which token.
        token: TokenName,
    },
}

/// What becomes of the values at a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// They stay.
    None,
    /// Each becomes 1 / (1 + e^-value).
    Sigmoid,
    /// They become the probabilities of all columns.
    Softmax,
}

/// A column of a head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a column's number or the name of its label")]
pub enum Column {
    /// Its number, from 0.
    Index(usize),
    /// Its name in config.json's `id2label`.
    Label(String),
}

/// A token of the model's vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected the text of a token or its id")]
pub enum TokenName {
    /// By its id.
    Id(u32),
    /// By its text, with the space before it where there is one.
    Text(String),
}

/// Parts a text into paragraphs.
fn blank_line() -> String {
    "\n\n".to_owned()
}
