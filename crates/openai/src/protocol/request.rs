//! A request in the engine's terms: prompts, sampling parameters, and what to report. `reader` reads it; the callers
//! run it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::answer_form::AnswerForm;
use super::endpoint::Endpoint;
use super::refusal::Refusal;
use offshoot_core::error::Error;
use offshoot_core::ids::{AdapterVersion, TokenId};
use offshoot_engine::{EngineFacts, KeptForm, Priority, SamplingParams, Stop, UniformKey};
use offshoot_kv::CacheSalt;
use offshoot_launch::{MoreTokens, OutputTokens, PromptRequest, check_path};
use offshoot_text::reasoning::TextStart;
use offshoot_text::tools::{AnswerSplitter, CallReader, ReasoningText};
use offshoot_text::{AddSpecial, TextKind, Tokenizer};

/// A request; `P`: its prompts, in tokens or, before they are encoded, as text.
#[derive(Clone, Debug)]
pub struct ProtocolRequest<P = EncodedPrompt> {
    pub endpoint: Endpoint,
    /// The model's name in the request, else its own.
    pub model: String,
    /// The adapter that it is sampled with; `None`: none.
    pub adapter: Option<AdapterVersion>,
    pub prompts: Vec<P>,
    /// Choices of each prompt.
    pub n: usize,
    /// Candidates sampled per prompt; the best `n` are returned. 0 if only the prompt is wanted (`max_tokens` is 0) or
    /// continuations are scored (`choices`).
    pub best_of: usize,
    /// The samples of a prompt that still run are cancelled once so many have finished; `None`: never.
    pub min_finished: Option<NonZeroUsize>,
    /// Whether the prompts are only computed, for the cache: `max_tokens` is 0, and nothing keeps them.
    pub computes_prompts_alone: bool,
    pub seed: RequestSeed,
    /// Whether each choice's text (and its log-probabilities) starts with the prompt.
    pub echo: bool,
    pub logprobs: bool,
    /// Whether each prompt's own log-probabilities are reported, and how many of the likeliest tokens beside each.
    pub prompt_logprobs: Option<usize>,
    pub params: SamplingParams,
    /// Which calls of tools its answers show as such; `None`: none.
    pub calls: Option<CallReader>,
    /// The form of its answers, if they have one, as the body asks for it. `params` has it once it is compiled.
    pub form: Option<AnswerForm>,
    /// How the answer is streamed; `None`: it is sent as a whole.
    pub stream: Option<StreamOptions>,
    /// Whether texts leave special tokens out.
    pub skips_special: bool,
    pub return_token_ids: bool,
    /// In which form each choice has the sets that its tokens were drawn from; `None`: it has none.
    pub kept: Option<KeptForm>,
    /// Whether the answer shows the model's confidence in its tokens' places (`return_confidence`).
    pub shows_confidence: bool,
    /// The first token of prompt and sample from which on each choice has the experts of its tokens; `None`: it has
    /// none.
    pub routes: Option<usize>,
    /// Whether log-probabilities name each token by its id (`token_id:7`), which no two share, instead of its text.
    pub ids_as_tokens: bool,
    pub reasoning: Reasoning,
    /// Requests with smaller numbers go first.
    pub priority: Priority,
    /// Time that the answer may take, from the arrival of the request.
    pub timeout: Option<Duration>,
    /// Whether each choice is kept as a branch.
    pub keep: Option<Keep>,
    /// Id of the kept branch that the prompt follows.
    pub parent: Option<String>,
    /// Requests of other salts share no cached prefix with it, nor does one without.
    pub salt: Option<CacheSalt>,
    /// The client's own name of it, by which it can be ended.
    pub request_id: Option<String>,
    /// Whether each choice says which weights its tokens were sampled under, also if they were the same for all.
    pub return_weight_versions: bool,
}

/// What happens to a chat's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// The content has it, as it was sampled.
    #[default]
    Keep,
    /// `reasoning_content` has it, without the marks.
    Split,
}

impl Reasoning {
    /// The values of the field `reasoning`.
    pub const WORDS: [(&str, Reasoning); 2] = [("keep", Reasoning::Keep), ("split", Reasoning::Split)];
}

/// The seed of a request's random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestSeed {
    /// The request's own: its answer depends on its body alone.
    Own(u64),
    /// The caller's: the answer depends on the request's id too.
    Callers(u64),
}

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whether a last chunk has the usage.
    pub include_usage: bool,
    /// Whether each chunk has the usage so far.
    pub continuous_usage: bool,
}

/// How a choice is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Time to live since its last use; `None`: the caller's usual.
    pub time_to_live: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct EncodedPrompt {
    /// Those of the parent branch first.
    pub tokens: Vec<TokenId>,
    /// Without the parent's.
    pub text: String,
    pub stop: Stop,
    /// Whether the request sets no token limit, so that only the context and the memory limit it.
    pub is_unlimited: bool,
    /// Where in an answer the sampled text begins.
    pub start: TextStart,
    /// What the assistant has said already and each choice of a chat repeats (`echo`).
    pub repeated: Option<String>,
    /// Continuations to score.
    pub choices: Vec<EncodedChoice>,
}

/// A continuation of a prompt that is scored.
#[derive(Clone, Debug)]
pub struct EncodedChoice {
    pub text: String,
    /// They follow the prompt's; at least one.
    pub tokens: Vec<TokenId>,
}

/// A prompt that is not encoded yet.
#[derive(Clone, Debug)]
pub struct TextPrompt {
    pub text: String,
    pub(super) content: PromptContent,
    /// Its token limit is the request's, if there is one.
    pub(super) stop: Stop,
    /// Whether the request sets no token limit.
    pub(super) is_unlimited: bool,
    pub(super) start: TextStart,
    pub(super) repeated: Option<String>,
    /// How many of its last tokens are the prompt; `None`: all.
    pub(super) most_kept: Option<MostKept>,
    pub(super) choices: Arc<[ChoiceContent]>,
}

/// Limit of the tokens that are left of a prompt (`truncate_prompt_tokens`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MostKept {
    Tokens(usize),
    /// What the context holds beside this many sampled tokens.
    Beside(usize),
}

impl MostKept {
    /// Number of tokens, for a model with `context` positions.
    pub fn tokens(self, context: usize) -> usize {
        match self {
            MostKept::Tokens(tokens) => tokens,
            MostKept::Beside(sampled) => context.saturating_sub(sampled.max(1)).max(1),
        }
    }
}

/// What a prompt's tokens are computed from.
#[derive(Clone, Debug)]
pub(super) enum PromptContent {
    /// The text, with these special tokens around it; special tokens' texts in it become the tokens.
    Text(AddSpecial),
    /// The text as plain text, with these special tokens around it.
    Plain(AddSpecial),
    /// A chat in which the texts of special tokens are hidden in messages, with these special tokens around it.
    Hidden {
        text: String,
        special: AddSpecial,
    },
    Tokens(Vec<TokenId>),
}

impl PromptContent {
    /// Of a rendered chat; `hidden`: the text with the special tokens of its messages hidden, if they are.
    pub fn of_chat(hidden: Option<String>, special: AddSpecial) -> PromptContent {
        match hidden {
            Some(text) => PromptContent::Hidden { text, special },
            None => PromptContent::Text(special),
        }
    }

    /// The tokens of the prompt `text`.
    pub fn tokens(&self, text: &str, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, Error> {
        match self {
            PromptContent::Text(special) => tokenizer.encode(text, *special),
            PromptContent::Plain(special) => tokenizer.encode_plain(text, *special),
            PromptContent::Hidden { text, special } => tokenizer.encode_hidden(text, *special),
            PromptContent::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    /// The first `most` tokens of the text `text`.
    pub fn first_tokens(&self, text: &str, most: usize, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, Error> {
        match self {
            PromptContent::Text(special) => tokenizer.encode_beginning(text, *special, most, TextKind::Written),
            PromptContent::Plain(special) => tokenizer.encode_beginning(text, *special, most, TextKind::Plain),
            PromptContent::Hidden { text, special } => {
                tokenizer.encode_beginning(text, *special, most, TextKind::Hidden)
            }
            PromptContent::Tokens(tokens) => Ok(tokens[..most.min(tokens.len())].to_vec()),
        }
    }

    /// The last `most` tokens of the prompt `text`.
    pub fn last_tokens(&self, text: &str, most: usize, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, Error> {
        match self {
            PromptContent::Text(special) => tokenizer.encode_end(text, *special, most, TextKind::Written),
            PromptContent::Plain(special) => tokenizer.encode_end(text, *special, most, TextKind::Plain),
            PromptContent::Hidden { text, special } => tokenizer.encode_end(text, *special, most, TextKind::Hidden),
            PromptContent::Tokens(tokens) => Ok(tokens[tokens.len().saturating_sub(most)..].to_vec()),
        }
    }
}

/// A continuation as the request writes it.
#[derive(Clone, Debug)]
pub(super) enum ChoiceContent {
    /// Special tokens' texts in it become the tokens.
    Text(String),
    /// All of it is plain text.
    Plain(String),
    Tokens(Vec<TokenId>),
}

impl ChoiceContent {
    /// The text, if it is written as one.
    pub fn text(&self) -> Option<&str> {
        match self {
            ChoiceContent::Text(text) | ChoiceContent::Plain(text) => Some(text),
            ChoiceContent::Tokens(_) => None,
        }
    }

    /// Upper bound on its tokens.
    fn most_tokens(&self) -> usize {
        match self {
            ChoiceContent::Text(text) | ChoiceContent::Plain(text) => text.len(),
            ChoiceContent::Tokens(tokens) => tokens.len(),
        }
    }
}

/// Most special tokens around a text.
const SPECIAL_TOKENS: usize = 8;

impl<P> ProtocolRequest<P> {
    /// Whether an answer shows more of its samples' tokens than their text.
    pub fn shows_tokens(&self) -> bool {
        self.logprobs || self.return_token_ids || self.shows_records()
    }

    /// Whether an answer shows what is recorded of its samples' tokens.
    fn shows_records(&self) -> bool {
        self.kept.is_some() || self.params.records.entropy || self.shows_confidence
    }

    /// What an answer shows of each of its samples' tokens: itself, and alternatives to it.
    pub fn shown_per_token(&self) -> usize {
        1 + self.params.top_logprobs.unwrap_or(0)
    }

    /// Whether an answer says which of its samples' tokens their form left no choice: wherever it lists the tokens, or
    /// what is recorded of each.
    pub fn shows_forced(&self) -> bool {
        (self.return_token_ids || self.shows_records()) && self.form.is_some()
    }

    /// The prompts are scored, with so many of the likeliest tokens in each one's place, for `echo` with `logprobs`,
    /// for `prompt_logprobs`, or because nothing else would compute them; `None`: they are not. At least one where a
    /// score is shown: one that is kept with it has its rank, too.
    pub fn scored_top(&self) -> Option<usize> {
        let alone = self.computes_prompts_alone.then_some(0);
        let shown = self.params.top_logprobs.filter(|_| self.echo).max(self.prompt_logprobs);
        shown.map(|most| most.max(1)).max(alone)
    }

    /// The number of likeliest tokens in place of each token of a scored continuation: at least one, which tells
    /// whether the token is the greedy one.
    pub fn choices_top(&self) -> usize {
        self.params.top_logprobs.unwrap_or(0).max(1)
    }

    /// The source of the random numbers of a prompt's samples; `id`: the request's. With a seed of its own, a request
    /// has the same samples in every batch and on every server. The first prompt has the request's own random numbers,
    /// so that a list of one prompt gives the same samples as the prompt alone.
    pub fn uniforms(&self, prompt: usize, id: &str) -> UniformKey {
        let (seed, id) = match self.seed {
            RequestSeed::Own(seed) => (seed, ""),
            RequestSeed::Callers(seed) => (seed, id),
        };
        match prompt {
            0 => UniformKey::root(seed, id),
            later => UniformKey::root(seed, &format!("{id}\n{later}")),
        }
    }

    /// The name of its adapter; `None`: it has none.
    pub fn adapter_name(&self) -> Option<&str> {
        self.adapter.is_some().then_some(&*self.model)
    }

    /// The same request with prompts of another form.
    pub(super) fn try_map<Q>(self, map: impl FnMut(P) -> Result<Q, Refusal>) -> Result<ProtocolRequest<Q>, Refusal> {
        Ok(ProtocolRequest {
            prompts: self.prompts.into_iter().map(map).collect::<Result<_, _>>()?,
            endpoint: self.endpoint,
            model: self.model,
            adapter: self.adapter,
            n: self.n,
            best_of: self.best_of,
            min_finished: self.min_finished,
            computes_prompts_alone: self.computes_prompts_alone,
            seed: self.seed,
            echo: self.echo,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            params: self.params,
            calls: self.calls,
            form: self.form,
            stream: self.stream,
            skips_special: self.skips_special,
            return_token_ids: self.return_token_ids,
            kept: self.kept,
            shows_confidence: self.shows_confidence,
            routes: self.routes,
            ids_as_tokens: self.ids_as_tokens,
            reasoning: self.reasoning,
            priority: self.priority,
            timeout: self.timeout,
            keep: self.keep,
            parent: self.parent,
            salt: self.salt,
            request_id: self.request_id,
            return_weight_versions: self.return_weight_versions,
        })
    }
}

impl TextPrompt {
    /// Upper bound on the prompt's tokens. Only a tokenizer that replaces characters by longer ones exceeds it.
    pub fn most_tokens(&self) -> usize {
        match &self.content {
            PromptContent::Text(_) | PromptContent::Plain(_) | PromptContent::Hidden { .. } => {
                self.text.len() + SPECIAL_TOKENS
            }
            PromptContent::Tokens(tokens) => tokens.len(),
        }
    }

    /// Lets only the context and the memory limit its samples.
    pub(super) fn set_unlimited(&mut self) {
        self.stop.max_tokens = usize::MAX;
        self.is_unlimited = true;
    }

    /// Output tokens of `samples` samples, for a model with `context` positions. The prompt's tokens are not subtracted
    /// from the context, because they are not known before it is encoded.
    pub fn draws(&self, samples: usize, context: usize) -> OutputTokens {
        let most = self.stop.max_tokens.min(context);
        OutputTokens { most: samples as u64 * most as u64, is_exact: self.stop.is_exact() }
    }
}

impl ProtocolRequest<TextPrompt> {
    /// Branches that the request takes: its candidates, its scored prompts and its continuations.
    pub fn branches(&self) -> usize {
        let scored = usize::from(self.scored_top().is_some());
        let of = |prompt: &TextPrompt| self.best_of + scored + prompt.choices.len();
        self.prompts.iter().map(of).fold(0, usize::saturating_add)
    }

    /// Most tokens that its branches hold, for a model with `context` positions.
    pub fn most_tokens(&self, context: usize) -> usize {
        let of = |prompt: &TextPrompt| {
            let drawn = prompt.stop.max_tokens.min(context);
            let given = prompt.most_tokens().min(context) * (1 + usize::from(self.scored_top().is_some()));
            let choices: usize = prompt.choices.iter().map(ChoiceContent::most_tokens).sum();
            given + choices + self.best_of.saturating_mul(drawn)
        };
        self.prompts.iter().map(of).fold(0, usize::saturating_add)
    }
}

impl ProtocolRequest {
    /// Splits a sample of this prompt into what its answer shows: reasoning, content and calls. The text of a
    /// completion is content.
    pub fn splitter(&self, prompt: &EncodedPrompt) -> AnswerSplitter {
        let reasoning = match self.reasoning {
            Reasoning::Keep => ReasoningText::Keep,
            Reasoning::Split => ReasoningText::Split,
        };
        AnswerSplitter::new(prompt.start.clone(), reasoning, self.calls.clone())
    }

    /// Whether the ids of its calls are as short as its model's chat template demands.
    pub fn has_short_call_ids(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.syntax().has_short_ids)
    }

    /// Limits the samples of prompts without a token limit to the memory for keys and values.
    ///
    /// # Errors
    ///
    /// A choice does not fit into the memory even when it runs alone.
    pub fn fit_paths(&mut self, facts: &EngineFacts) -> Result<(), Refusal> {
        for EncodedPrompt { tokens, stop, is_unlimited, choices, .. } in &mut self.prompts {
            if *is_unlimited {
                let most = facts.most_sampled(tokens.len()).max(stop.min_tokens);
                stop.max_tokens = stop.max_tokens.min(most);
            }
            // Nothing is sampled behind a continuation.
            let more = match choices.iter().map(|choice| choice.tokens.len()).max() {
                Some(longest) => MoreTokens::Scored(longest),
                None => MoreTokens::Sampled(stop.max_tokens),
            };
            check_path(facts, || "a prompt".to_owned(), tokens.len(), more)
                .map_err(|error| Refusal::new("out_of_memory", error.to_string()))?;
        }
        Ok(())
    }

    /// What is asked of the engine for prompt number `prompt`, but for its continuations; `id`: the request's.
    pub fn prompt(&self, prompt: usize, id: &str) -> PromptRequest<'_> {
        let EncodedPrompt { tokens, stop, .. } = &self.prompts[prompt];
        PromptRequest {
            tokens,
            n: self.best_of,
            prompt_logprobs: self.scored_top(),
            params: &self.params,
            stop,
            uniforms: self.uniforms(prompt, id),
            priority: self.priority,
        }
    }

    /// Results of prompt number `prompt`: its samples or scored continuations, and its own scores.
    pub fn results(&self, prompt: usize) -> usize {
        self.best_of + self.prompts[prompt].choices.len() + usize::from(self.scored_top().is_some())
    }

    /// Tokens of prompts that the answer repeats, in each choice (`echo`) or once (`prompt_logprobs`), with the
    /// alternatives to each.
    pub fn repeated(&self) -> usize {
        let in_choices = if self.echo { self.n * (1 + self.params.top_logprobs.unwrap_or(0)) } else { 0 };
        let once = self.prompt_logprobs.map_or(0, |tops| 1 + tops);
        self.prompts.iter().map(|prompt| prompt.tokens.len().saturating_mul(in_choices + once)).sum()
    }
}
