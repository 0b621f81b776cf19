//! Writes whole responses in OpenAI's format for completions and chats. Pure data: candidates in, JSON out. `chunks`
//! writes the same in parts.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;

use super::choice::{
    AnswerCalls, ChatMessage, Choice, ChoiceText, EchoedText, PromptFields, StopReason, VersionFields, finish_word,
};
use super::endpoint::Endpoint;
use super::kept::{RecordFields, routed_experts};
use super::logprobs::{ChoiceLogprobs, ShownToken};
use super::request::{EncodedPrompt, ProtocolRequest, Reasoning};
use super::scores::scored_choice;
use super::shown::TokenPlacer;
use super::tools::{AnswerText, CallIds};
use offshoot_engine::{Finish, FinishReason, TokenRecord, WeightLabels};
use offshoot_text::Tokenizer;

/// The results of one prompt.
#[derive(Default)]
pub struct PromptCandidates {
    /// By index.
    pub drawn: Vec<Finish>,
    /// The ids of those candidates or continuations that are kept, by index; shorter if the last ones are not.
    pub kept: Vec<Option<String>>,
    /// The log-probabilities of its own tokens, without the first, if the request wants them.
    pub scored: Option<Finish>,
    /// The log-probabilities of its continuations' tokens, by index. A `Finish` may have more tokens before those of
    /// the continuation.
    pub choices: Vec<Finish>,
    /// Tokens of the prompt that were not computed for this request.
    pub cached: usize,
}

/// The results of one prompt as they come, in any order: index of the sample or continuation, its end, and the id under
/// which it is kept.
#[derive(Default)]
pub struct PromptResults(Vec<(usize, Finish, Option<String>)>);

impl PromptResults {
    /// Adds a result; the prompt's own scores have the index behind its samples. Returns the number of results so far.
    pub fn add(&mut self, sample: usize, finish: Finish, branch: Option<String>) -> usize {
        self.0.push((sample, finish, branch));
        self.0.len()
    }

    /// The candidates of prompt number `prompt`, whose results have all come.
    pub fn candidates(mut self, request: &ProtocolRequest, prompt: usize, cached: usize) -> PromptCandidates {
        self.0.sort_by_key(|&(sample, ..)| sample);
        let (mut finishes, kept): (Vec<Finish>, _) =
            self.0.into_iter().map(|(_, finish, branch)| (finish, branch)).unzip();
        if !request.prompts[prompt].choices.is_empty() {
            return PromptCandidates { choices: finishes, kept, cached, ..PromptCandidates::default() };
        }
        let scored = finishes.pop_if(|last| last.reason == FinishReason::Given);
        // Where nothing is sampled, a prompt that is kept has ended, too.
        finishes.truncate(request.best_of);
        PromptCandidates { drawn: finishes, kept, scored, choices: Vec::new(), cached }
    }
}

/// The header fields of a response.
#[derive(Clone, Debug, Default)]
pub struct AnswerHead {
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub system_fingerprint: String,
    /// What the versions of weights are called.
    pub labels: Arc<WeightLabels>,
}

/// A whole response; serialises to its JSON.
#[derive(Serialize)]
pub struct Response<'a> {
    #[serde(flatten)]
    head: ResponseHead<'a>,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    /// vLLM's fields of a chat, which has one prompt.
    #[serde(flatten)]
    prompt: PromptFields<'a>,
}

/// What a response, and each of its chunks, begins with.
#[derive(Serialize)]
pub struct ResponseHead<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
}

impl<'a> ResponseHead<'a> {
    pub fn new(request: &'a ProtocolRequest, head: &'a AnswerHead, is_chunk: bool) -> Self {
        let object = match (request.endpoint, is_chunk) {
            (Endpoint::Completions, _) => "text_completion",
            (Endpoint::Chat, false) => "chat.completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
        };
        let AnswerHead { id, created, system_fingerprint, .. } = head;
        ResponseHead { id, object, created: *created, model: &request.model, system_fingerprint }
    }
}

/// What a request cost, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Each prompt counts once, however many choices it has.
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Tokens of the prompts that were not computed for this request.
    pub cached_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, completion_tokens: usize, cached_tokens: usize) -> Self {
        let prompt_tokens_details = PromptTokensDetails { cached_tokens };
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details,
        }
    }
}

impl ProtocolRequest {
    /// The tokens of the prompts and of their continuations, each counted once.
    pub fn prompt_tokens(&self) -> usize {
        let of = |prompt: &EncodedPrompt| {
            prompt.tokens.len() + prompt.choices.iter().map(|choice| choice.tokens.len()).sum::<usize>()
        };
        self.prompts.iter().map(of).sum()
    }
}

/// The response to a request; `candidates`: one element per prompt.
pub fn response<'a>(
    request: &'a ProtocolRequest,
    candidates: &'a [PromptCandidates],
    head: &'a AnswerHead,
    tokenizer: &'a Tokenizer,
) -> Response<'a> {
    let mut choices = Vec::new();
    for (prompt, candidates) in request.prompts.iter().zip(candidates) {
        match prompt.choices.is_empty() {
            true => sampled_choices(request, prompt, candidates, tokenizer, head, &mut choices),
            false => {
                for (at, (choice, scored)) in prompt.choices.iter().zip(&candidates.choices).enumerate() {
                    let branch = candidates.kept.get(at).and_then(Option::as_deref);
                    let scored = scored_choice(request, prompt, choice, scored, choices.len(), tokenizer);
                    choices.push(Choice { branch, ..scored });
                }
            }
        }
    }
    let drawn = candidates.iter().flat_map(|candidates| &candidates.drawn);
    let completion_tokens = drawn.map(Finish::sampled).sum();
    let cached = candidates.iter().map(|candidates| candidates.cached).sum();
    let chat_prompt = match (request.endpoint, &request.prompts[..], candidates) {
        (Endpoint::Chat, [prompt], [candidates]) => {
            PromptFields::new(request, prompt, candidates.scored.as_ref(), tokenizer)
        }
        _ => PromptFields::default(),
    };
    Response {
        head: ResponseHead::new(request, head, false),
        choices,
        usage: Usage::new(request.prompt_tokens(), completion_tokens, cached),
        prompt: chat_prompt,
    }
}

/// Adds the choices of one prompt.
fn sampled_choices<'a>(
    request: &'a ProtocolRequest,
    prompt: &'a EncodedPrompt,
    candidates: &'a PromptCandidates,
    tokenizer: &'a Tokenizer,
    AnswerHead { id, labels, .. }: &AnswerHead,
    choices: &mut Vec<Choice<'a>>,
) {
    let fields = PromptFields::new(request, prompt, candidates.scored.as_ref(), tokenizer);
    let kept = |index: usize| candidates.kept.get(index).and_then(Option::as_deref);
    let nothing = || (0..request.n).map(|index| (index, None)).collect();
    let drawn: Vec<(usize, Option<&Finish>)> = match request.best_of {
        0 => nothing(),
        _ => best(&candidates.drawn, request.n).into_iter().map(|(index, drawn)| (index, Some(drawn))).collect(),
    };
    for (at, drawn) in drawn {
        let sample = ShownSample::new(request, prompt, drawn, tokenizer);
        let scored = candidates.scored.as_ref();
        let logprobs = request
            .logprobs
            .then(|| ChoiceLogprobs::new(request, prompt, scored, sample.tokens.into_iter(), tokenizer));
        let (index, branch) = (choices.len(), kept(at));
        let (mut finish_reason, stop_reason) =
            (Some(finish_word(sample.reason, AnswerCalls::None)), StopReason::of(sample.reason));
        let ids = || drawn.map_or(Cow::Borrowed(&[][..]), Finish::sampled_ids);
        let token_ids = request.return_token_ids.then(ids);
        let records = RecordFields::new(request, drawn.into_iter().flat_map(Finish::sampled_records));
        let routes = request.routes.zip(drawn.and_then(|drawn| drawn.routes.as_ref()));
        let routed_experts = routes.map(|(start, routes)| routed_experts(routes, start));
        let (text, prompt) = match request.endpoint {
            Endpoint::Completions => {
                let echoed = if request.echo { &*prompt.text } else { "" };
                (ChoiceText::Completion { text: EchoedText { echoed, own: sample.text.into() } }, fields)
            }
            Endpoint::Chat => {
                let mut answer = AnswerText::default();
                answer.add(request.splitter(prompt).push_last(sample.text));
                let begun = prompt.repeated.as_deref().unwrap_or_default();
                let is_empty = begun.is_empty() && answer.content.is_empty();
                let content =
                    (!is_empty || answer.calls.is_empty()).then(|| format!("{begun}{}", answer.content).into());
                finish_reason = Some(finish_word(sample.reason, answer.answer_calls()));
                let ids = CallIds { answer: id, choice: index, are_short: request.has_short_call_ids() };
                let message = ChatMessage {
                    role: Some("assistant"),
                    content: Some(content),
                    refusal: Some(None),
                    reasoning_content: (request.reasoning == Reasoning::Split).then(|| answer.reasoning.into()),
                    tool_calls: answer.calls.into_iter().map(|call| call.shown(&ids, false)).collect(),
                };
                (ChoiceText::Chat { message }, PromptFields::default())
            }
        };
        let versions = drawn.map(|drawn| VersionFields::of(request, drawn, labels)).unwrap_or_default();
        choices.push(Choice {
            index,
            text,
            logprobs,
            finish_reason,
            stop_reason,
            score: None,
            prompt,
            token_ids,
            versions,
            records,
            routed_experts,
            branch,
        });
    }
}

/// The `n` candidates with the largest mean log-probability per token, best first, of equal ones the first; all in
/// order if there are at most `n`. Each with its index.
fn best(drawn: &[Finish], n: usize) -> Vec<(usize, &Finish)> {
    let mut best: Vec<(usize, &Finish)> = drawn.iter().enumerate().collect();
    if best.len() > n {
        let mean = |drawn: &Finish| drawn.logprob / drawn.sampled().max(1) as f64;
        best.sort_by(|(_, a), (_, b)| mean(b).total_cmp(&mean(a)));
        best.truncate(n);
    }
    best
}

/// A sample as its request shows it.
struct ShownSample<'a> {
    /// Cut at a stop string.
    text: &'a str,
    /// All that were sampled, also those that spell a stop string and the one that ended the text; empty without
    /// log-probabilities.
    tokens: Vec<ShownToken<'a>>,
    reason: &'a FinishReason,
}

impl<'a> ShownSample<'a> {
    /// `drawn`: `None` if nothing was sampled.
    fn new(
        request: &ProtocolRequest,
        prompt: &EncodedPrompt,
        drawn: Option<&'a Finish>,
        tokenizer: &'a Tokenizer,
    ) -> Self {
        let Some(drawn) = drawn else {
            return ShownSample { text: "", tokens: Vec::new(), reason: &FinishReason::Length };
        };
        let mut tokens = Vec::new();
        if request.logprobs {
            let begin = if request.echo { prompt.text.chars().count() } else { 0 };
            let mut placer = TokenPlacer::new(&prompt.tokens, request.skips_special, begin, tokenizer);
            let mode = request.params.logprobs_mode;
            let shown = |record: TokenRecord<'a>| ShownToken::sampled(record, placer.place(record.token), mode);
            tokens.extend(drawn.sampled_records().map(shown));
        }
        ShownSample { text: &drawn.text, tokens, reason: &drawn.reason }
    }
}
