//! Writes an answer in parts, as server-sent events in OpenAI's format: the events of its samples become chunks as they
//! come. All chunks of a choice together are the choice that `answer` writes, however the events were joined.

use std::borrow::Cow;
use std::sync::Arc;

use super::answer::{AnswerHead, ResponseHead, Usage};
use super::choice::{
    AnswerCalls, ChatMessage, Choice, ChoiceText, EchoedText, PromptFields, StopReason, VersionFields, finish_word,
};
use super::endpoint::Endpoint;
use super::kept::{RecordFields, routed_experts};
use super::logprobs::{ChoiceLogprobs, ShownToken};
use super::request::{ProtocolRequest, StreamOptions};
use super::shown::TokenPlacer;
use super::sse;
use super::tools::{AnswerText, CallIds};
use offshoot_core::ids::TokenId;
use offshoot_engine::{Finish, FinishReason, SampledToken, TokenRecord, WeightLabels};
use offshoot_launch::SampleId;
use offshoot_text::Tokenizer;
use offshoot_text::tools::AnswerSplitter;

/// Writes the chunks of one request, whose `stream` says how. Its samples are those of its prompts, `n` each.
pub struct ChunkWriter {
    request: Arc<ProtocolRequest>,
    tokenizer: Arc<Tokenizer>,
    options: StreamOptions,
    /// What each chunk begins with, up to its choices.
    head: Vec<u8>,
    /// The scores of each prompt, as far as they have come.
    scored: Vec<Option<Finish>>,
    /// By index of the choice.
    samples: Vec<SampleStream>,
    usage: Usage,
    labels: Arc<WeightLabels>,
    /// The answer's.
    id: String,
}

/// One choice so far.
struct SampleStream {
    splitter: AnswerSplitter,
    /// Calls that have begun.
    calls: usize,
    /// Whether a chunk has had content.
    has_content: bool,
    placer: Option<TokenPlacer>,
    /// Tokens that have come.
    tokens: usize,
    /// Bytes of its text that have come.
    bytes: usize,
    has_begun: bool,
    has_ended: bool,
    unsent: UnsentPart,
}

/// What has come and is in no chunk yet.
#[derive(Default)]
struct UnsentPart {
    text: String,
    /// Empty where the request shows none.
    tokens: Vec<SampledToken>,
    /// The number of characters before each of them; empty where no log-probabilities are shown.
    offsets: Vec<usize>,
    end: Option<SampleEnd>,
}

struct SampleEnd {
    reason: FinishReason,
    routed_experts: Option<String>,
    branch: Option<String>,
    versions: VersionFields,
}

impl ChunkWriter {
    pub fn new(request: Arc<ProtocolRequest>, head: &AnswerHead, tokenizer: Arc<Tokenizer>) -> Self {
        let samples = request.prompts.iter().flat_map(|prompt| {
            let begin = if request.echo { prompt.text.chars().count() } else { 0 };
            let (request, tokenizer) = (&request, &tokenizer);
            (0..request.n).map(move |_| SampleStream {
                splitter: request.splitter(prompt),
                calls: 0,
                has_content: false,
                placer: request
                    .logprobs
                    .then(|| TokenPlacer::new(&prompt.tokens, request.skips_special, begin, tokenizer)),
                tokens: 0,
                bytes: 0,
                has_begun: false,
                has_ended: false,
                unsent: UnsentPart::default(),
            })
        });
        ChunkWriter {
            options: request.stream.unwrap_or_default(),
            head: head_of_chunks(&request, head),
            scored: request.prompts.iter().map(|_| None).collect(),
            samples: samples.collect(),
            usage: Usage::new(request.prompt_tokens(), 0, 0),
            labels: head.labels.clone(),
            id: head.id.clone(),
            request,
            tokenizer,
        }
    }

    /// Tokens of all prompts that are not computed for this request, for the usage.
    pub fn set_cached(&mut self, tokens: usize) {
        self.usage.prompt_tokens_details.cached_tokens = tokens;
    }

    /// Tokens were sampled, with this text that is final: appends a chunk, if there is something to show.
    pub fn tokens(&mut self, sample: SampleId, tokens: Vec<SampledToken>, text: &str, out: &mut Vec<u8>) {
        self.count(tokens.len());
        let stream = &mut self.samples[sample.prompt * self.request.n + sample.sample];
        stream.take(tokens, text, self.request.shows_tokens());
        self.write_if_ready(sample, out);
    }

    /// A sample has ended: appends its last chunk. `branch`: the id under which it is kept. The sample with index `n`
    /// is its prompt's scores.
    pub fn finished(&mut self, sample: SampleId, finish: Finish, branch: Option<String>, out: &mut Vec<u8>) {
        if sample.sample >= self.request.n || finish.reason == FinishReason::Given {
            self.scored[sample.prompt] = Some(finish);
            return (0..self.request.n)
                .for_each(|index| self.write_if_ready(SampleId { sample: index, ..sample }, out));
        }
        let stream = &mut self.samples[sample.prompt * self.request.n + sample.sample];
        // With the token that ended the sample, of which no event tells.
        let rest: Vec<SampledToken> = finish.sampled_records().skip(stream.tokens).map(SampledToken::from).collect();
        let late = rest.len();
        let versions = VersionFields::of(&self.request, &finish, &self.labels);
        stream.take(rest, &finish.text[stream.bytes..], self.request.shows_tokens());
        stream.has_ended = true;
        let routes = self.request.routes.zip(finish.routes.as_ref());
        let routed_experts = routes.map(|(start, routes)| routed_experts(routes, start));
        stream.unsent.end = Some(SampleEnd { reason: finish.reason, routed_experts, branch, versions });
        self.count(late);
        self.write_if_ready(sample, out);
    }

    /// Appends the usage, if the request wants it, and the end of the stream. All samples have ended.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        if self.request.best_of == 0 {
            for index in 0..self.samples.len() {
                let stream = &mut self.samples[index];
                if stream.has_ended {
                    continue; // It was told already: the sample whose branch is kept ends by an event of its own.
                }
                stream.unsent.end = Some(SampleEnd {
                    reason: FinishReason::Length,
                    routed_experts: None,
                    branch: None,
                    versions: VersionFields::default(),
                });
                let (prompt, sample) = (index / self.request.n, index % self.request.n);
                self.write_if_ready(SampleId { prompt, sample }, out);
            }
        }
        if self.options.include_usage {
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b"],\"usage\":");
            sse::write_json(&self.usage, out);
            out.push(b'}');
            out.extend_from_slice(sse::END);
        }
        out.extend_from_slice(sse::DONE);
    }

    fn count(&mut self, tokens: usize) {
        self.usage.completion_tokens += tokens;
        self.usage.total_tokens += tokens;
    }

    /// Appends a chunk of what has come, unless the prompt's scores, which stand before it, have not.
    fn write_if_ready(&mut self, sample: SampleId, out: &mut Vec<u8>) {
        let waits = self.request.scored_top().is_some() && self.scored[sample.prompt].is_none();
        let index = sample.prompt * self.request.n + sample.sample;
        if waits || !self.samples[index].has_news() {
            return;
        }
        let is_first = !self.samples[index].has_begun;
        let begin = out.len();
        out.extend_from_slice(&self.head);
        if !self.write_choice(sample.prompt, index, out) {
            return out.truncate(begin);
        }
        out.push(b']');
        if is_first && self.request.return_token_ids && self.request.endpoint == Endpoint::Chat {
            out.extend_from_slice(b",\"prompt_token_ids\":");
            sse::write_json(&self.request.prompts[sample.prompt].tokens, out);
        }
        if self.options.continuous_usage {
            out.extend_from_slice(b",\"usage\":");
            sse::write_json(&self.usage, out);
        } else if self.options.include_usage {
            out.extend_from_slice(b",\"usage\":null");
        }
        out.push(b'}');
        out.extend_from_slice(sse::END);
    }

    /// Appends what has come of a sample; false if it says nothing yet, as a text that may begin a call does.
    fn write_choice(&mut self, prompt: usize, index: usize, out: &mut Vec<u8>) -> bool {
        let (request, tokenizer) = (&*self.request, &*self.tokenizer);
        let (prompt, scored) = (&request.prompts[prompt], self.scored[prompt].as_ref());
        let stream = &mut self.samples[index];
        let is_first = !std::mem::replace(&mut stream.has_begun, true);
        let UnsentPart { text, tokens, offsets, end } = &mut stream.unsent;
        let records = tokens.iter().map(TokenRecord::of);
        let mode = request.params.logprobs_mode;
        let shown = records.clone().zip(&*offsets).map(|(record, &at)| ShownToken::sampled(record, at, mode));
        let scored = scored.filter(|_| is_first);
        let logprobs = request.logprobs.then(|| ChoiceLogprobs::new(request, prompt, scored, shown, tokenizer));
        let mut answer_calls = AnswerCalls::None;
        let mut says_something = is_first || end.is_some() || !tokens.is_empty();
        let (shown_text, fields) = match request.endpoint {
            Endpoint::Completions => {
                let echoed = if is_first && request.echo { &*prompt.text } else { "" };
                let fields = is_first.then(|| PromptFields::new(request, prompt, None, tokenizer));
                says_something |= !text.is_empty();
                (ChoiceText::Completion { text: EchoedText { echoed, own: text.as_str().into() } }, fields)
            }
            Endpoint::Chat => {
                let splitter = &mut stream.splitter;
                let mut answer = AnswerText::following(stream.calls);
                answer.add(if end.is_some() { splitter.push_last(text) } else { splitter.push(text) });
                answer_calls = answer.answer_calls();
                stream.calls += answer.begun_calls();
                let AnswerText { reasoning, mut content, calls, .. } = answer;
                if let Some(begun) = prompt.repeated.as_ref().filter(|_| is_first) {
                    content.insert_str(0, begun);
                }
                // Where calls may come, only the end tells that there is no content.
                let is_told_empty = match request.calls {
                    None => is_first && reasoning.is_empty(),
                    Some(_) => end.is_some() && !stream.has_content && stream.calls == 0,
                };
                let has_content = !content.is_empty() || is_told_empty;
                stream.has_content |= has_content;
                let ids = CallIds { answer: &self.id, choice: index, are_short: request.has_short_call_ids() };
                let delta = ChatMessage {
                    role: is_first.then_some("assistant"),
                    content: has_content.then_some(Some(content.into())),
                    refusal: None,
                    reasoning_content: Some(reasoning.into()).filter(|reasoning: &Cow<str>| !reasoning.is_empty()),
                    tool_calls: calls.into_iter().map(|call| call.shown(&ids, true)).collect(),
                };
                says_something |= delta.content.is_some() || delta.reasoning_content.is_some();
                says_something |= !delta.tool_calls.is_empty();
                // Its prompt's fields are beside its choices.
                (ChoiceText::ChatChunk { delta }, None)
            }
        };
        let ids = || tokens.iter().map(|sampled| sampled.token).collect();
        let token_ids = request.return_token_ids.then(ids);
        let choice = Choice {
            index,
            text: shown_text,
            logprobs: logprobs.filter(|logprobs| !logprobs.shown.is_empty()),
            finish_reason: end.as_ref().map(|end| finish_word(&end.reason, answer_calls)),
            stop_reason: end.as_ref().and_then(|end| StopReason::of(&end.reason)),
            score: None,
            prompt: fields.unwrap_or_default(),
            token_ids: token_ids.filter(|ids: &Vec<TokenId>| !ids.is_empty()).map(Cow::Owned),
            versions: end.as_mut().map(|end| std::mem::take(&mut end.versions)).unwrap_or_default(),
            records: if tokens.is_empty() { RecordFields::default() } else { RecordFields::new(request, records) },
            routed_experts: end.as_mut().and_then(|end| end.routed_experts.take()),
            branch: end.as_ref().and_then(|end| end.branch.as_deref()),
        };
        sse::write_json(&choice, out);
        text.clear();
        tokens.clear();
        offsets.clear();
        *end = None;
        says_something
    }
}

impl SampleStream {
    /// Takes tokens and text that have come.
    fn take(&mut self, tokens: Vec<SampledToken>, text: &str, shows_tokens: bool) {
        self.tokens += tokens.len();
        self.bytes += text.len();
        self.unsent.text.push_str(text);
        if let Some(placer) = &mut self.placer {
            self.unsent.offsets.extend(tokens.iter().map(|sampled| placer.place(sampled.token)));
        }
        if shows_tokens {
            self.unsent.tokens.extend(tokens);
        }
    }

    fn has_news(&self) -> bool {
        let UnsentPart { text, tokens, offsets: _, end } = &self.unsent;
        !text.is_empty() || !tokens.is_empty() || end.is_some()
    }
}

/// The frame's beginning and the fields before the choices.
fn head_of_chunks(request: &ProtocolRequest, head: &AnswerHead) -> Vec<u8> {
    let mut out = sse::BEGIN.to_vec();
    sse::write_json(&ResponseHead::new(request, head, true), &mut out);
    out.pop();
    out.extend_from_slice(b",\"choices\":[");
    out
}
