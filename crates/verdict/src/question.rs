//! A question to a judge, and its answer, as data. Who answers is left to implementations of `Ask`.

use std::sync::Arc;

use serde_json::Value;

use offshoot_text::{ChatOptions, Message};

/// A question to a judge.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What the judge reads.
    pub prompt: JudgePrompt,
    /// What it may answer.
    pub answer: WantedAnswer,
}

/// What a judge reads.
#[derive(Clone, Debug, PartialEq)]
pub enum JudgePrompt {
    /// A text, which the answer continues.
    Text(String),
    /// A conversation, written by the chat template of the judge's own model.
    Chat {
        /// The turns.
        messages: Vec<Message>,
        /// How the template is rendered, where the judge is an engine of ours.
        options: ChatOptions,
    },
}

/// What a judge may answer.
#[derive(Clone, Debug, PartialEq)]
pub enum WantedAnswer {
    /// One of these texts, each a direct continuation of the prompt; their probabilities are asked for.
    Words(Arc<[String]>),
    /// A JSON text.
    Json {
        /// The JSON Schema that it keeps.
        schema: Arc<Value>,
        /// The most tokens that the judge may write, its reasoning included.
        max_tokens: usize,
    },
}

/// A judge's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum JudgeAnswer {
    /// The probability of each word relative to the others, in the order of the question's words; their sum is 1.
    Words(Vec<f64>),
    /// The JSON value.
    Json(Value),
}

/// A judge's answer, and what it has cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The answer.
    pub answer: JudgeAnswer,
    /// Number of tokens of the prompt, as the judge counts them.
    pub tokens: usize,
}
