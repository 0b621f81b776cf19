//! A choice of an answer as OpenAI's format has it, with vLLM's fields: whole, what a chunk has of one, or a scored
//! continuation. `answer`, `chunks` and `scores` make them.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use super::kept::RecordFields;
use super::logprobs::{ChoiceLogprobs, PromptLogprobs};
use super::request::{EncodedPrompt, ProtocolRequest};
use super::tools::ShownCall;
use super::weight_labels::{LabelledSpan, adapter_spans};
use offshoot_core::ids::TokenId;
use offshoot_engine::{Finish, FinishReason, WeightLabels};
use offshoot_text::Tokenizer;

/// How likely a continuation is. Logarithms are natural.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Sum over the tokens.
    pub logprob: f64,
    /// The sum divided by the number of tokens.
    pub logprob_per_token: f64,
    /// The sum divided by the length of the text in bytes.
    pub logprob_per_byte: f64,
    pub tokens: usize,
    pub bytes: usize,
    /// Whether each token is the likeliest in its place.
    pub is_greedy: bool,
}

/// The text of a choice: that of its prompt, if it is echoed, and its own. Joined only where it is written.
pub struct EchoedText<'a> {
    pub echoed: &'a str,
    pub own: Cow<'a, str>,
}

impl Serialize for EchoedText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}{}", self.echoed, self.own))
    }
}

/// A whole choice, what a chunk has of one, or a scored continuation.
#[derive(Serialize)]
pub struct Choice<'a> {
    pub index: usize,
    #[serde(flatten)]
    pub text: ChoiceText<'a>,
    pub logprobs: Option<ChoiceLogprobs<'a>>,
    /// `None` in chunks before the last.
    pub finish_reason: Option<&'static str>,
    /// `None` where neither a stop string nor a stop token ended it, and in chunks before the last.
    pub stop_reason: Option<StopReason>,
    /// What a scored continuation has; others have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<Score>,
    #[serde(flatten)]
    pub prompt: PromptFields<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Cow<'a, [TokenId]>>,
    #[serde(flatten)]
    pub versions: VersionFields,
    #[serde(flatten)]
    pub records: RecordFields,
    /// By `return_routed_experts`, of a whole sample ([`routed_experts`](super::kept::routed_experts)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum ChoiceText<'a> {
    Completion { text: EchoedText<'a> },
    Chat { message: ChatMessage<'a> },
    ChatChunk { delta: ChatMessage<'a> },
}

/// A message, or what a chunk has of one.
#[derive(Serialize)]
pub struct ChatMessage<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// `Some(None)`: a whole message says that there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Option<Cow<'a, str>>>,
    /// Whole messages say that there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Option<()>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ShownCall>,
}

/// vLLM's fields about a prompt.
#[derive(Clone, Copy, Default, Serialize)]
pub struct PromptFields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

impl<'a> PromptFields<'a> {
    /// Without log-probabilities where the prompt is not `scored`.
    pub fn new(
        request: &ProtocolRequest,
        prompt: &'a EncodedPrompt,
        scored: Option<&'a Finish>,
        tokenizer: &'a Tokenizer,
    ) -> Self {
        let logprobs = |(top, scored)| PromptLogprobs { prompt, scored, top, tokenizer };
        PromptFields {
            prompt_logprobs: request.prompt_logprobs.zip(scored).map(logprobs),
            prompt_token_ids: request.return_token_ids.then_some(&prompt.tokens),
        }
    }
}

/// What a sample's tokens were sampled under, where its request wants to know it or it changed meanwhile.
#[derive(Default, Serialize)]
pub struct VersionFields {
    /// vLLM's: the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Vec<LabelledSpan>>,
    /// The versions of the adapter that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter_versions: Option<Vec<LabelledSpan>>,
}

impl VersionFields {
    pub fn of(request: &ProtocolRequest, finish: &Finish, labels: &WeightLabels) -> Self {
        let shows = |versions: usize| request.return_weight_versions || versions > 1;
        let has_adapter = !finish.adapters.is_empty();
        VersionFields {
            weight_versions: shows(finish.weights.len()).then(|| LabelledSpan::of(finish, labels)),
            adapter_versions: (has_adapter && shows(finish.adapters.len())).then(|| adapter_spans(finish)),
        }
    }
}

/// vLLM's `stop_reason`: the stop string, or the id of the stop token; also what OpenAI has no word for that could be
/// the `finish_reason`, where strict clients take no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    Text(String),
    Token(TokenId),
}

impl StopReason {
    pub fn of(reason: &FinishReason) -> Option<StopReason> {
        match reason {
            FinishReason::StopString(text) => Some(StopReason::Text(text.clone())),
            FinishReason::StopToken(token) => Some(StopReason::Token(*token)),
            FinishReason::OutOfTime => Some(StopReason::Text("cancelled".to_owned())),
            FinishReason::LowConfidence => Some(StopReason::Text("low_confidence".to_owned())),
            FinishReason::DeadEnd => Some(StopReason::Text("dead_end".to_owned())),
            FinishReason::FormLimit => Some(StopReason::Text("form_limit".to_owned())),
            _ => None,
        }
    }
}

/// The calls of tools in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerCalls {
    None,
    /// Some.
    Whole,
    /// Some, and the text ends within the last one.
    LastCut,
}

/// OpenAI's word for why a text ended, and vLLM's for one that somebody cut short: a pause of the engine, or the end of
/// its group.
///
/// A text that ended by itself and calls tools says so; one that a stop string or stop token cut within a call does
/// not, since who runs calls would run half of one.
pub fn finish_word(reason: &FinishReason, calls: AnswerCalls) -> &'static str {
    match reason {
        FinishReason::Length
        | FinishReason::ContextFull
        | FinishReason::OutOfTime
        | FinishReason::LowConfidence
        | FinishReason::DeadEnd
        | FinishReason::FormLimit => "length",
        FinishReason::Aborted | FinishReason::Cancelled => "abort",
        FinishReason::StopString(_) | FinishReason::StopToken(_) if calls == AnswerCalls::LastCut => "stop",
        _ if calls != AnswerCalls::None => "tool_calls",
        _ => "stop",
    }
}
