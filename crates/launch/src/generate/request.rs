//! A prompt to sample from, and the names of its samples.

use offshoot_core::error::Error;
use offshoot_core::ids::{AdapterVersion, TokenId};
use offshoot_engine::{GroupEnd, Priority, RootOptions, SamplingParams, Stop, UniformKey};

use super::BeginOptions;
use crate::OutputTokens;

/// A prompt to sample from, and how.
#[derive(Clone, Copy, Debug)]
pub struct PromptRequest<'a> {
    pub tokens: &'a [TokenId],
    /// Number of samples; at least 1 unless the prompt is scored.
    pub n: usize,
    /// Whether the prompt itself is scored, with so many of the likeliest tokens in each one's place. It ends as the
    /// sample with index `n`, whose tokens are the prompt's without the first.
    pub prompt_logprobs: Option<usize>,
    pub params: &'a SamplingParams,
    pub stop: &'a Stop,
    /// Key of the random numbers: sample `i` uses child `i` of this key, independent of what else runs, like child `i`
    /// of a `SamplingTree`'s root.
    pub uniforms: UniformKey,
    /// Its samples' priority in the engine's queue.
    pub priority: Priority,
}

/// What holds a prompt's request: the request itself, or an owner of its parts.
pub trait AsRequest {
    fn as_request(&self) -> PromptRequest<'_>;

    /// When the group of its samples ends before all of them have.
    fn group_end(&self) -> Option<GroupEnd> {
        None
    }

    /// The adapter that the prompt and its samples are computed with; `None`: none.
    fn adapter(&self) -> Option<AdapterVersion> {
        None
    }
}

impl AsRequest for PromptRequest<'_> {
    fn as_request(&self) -> PromptRequest<'_> {
        *self
    }
}

impl PromptRequest<'_> {
    /// Number of results: the samples, and the prompt's own scores.
    pub fn results(&self) -> usize {
        self.n + usize::from(self.prompt_logprobs.is_some())
    }

    pub(super) fn place(&self, options: &BeginOptions) -> RootOptions {
        let BeginOptions { home, salt, adapter, .. } = *options;
        RootOptions { priority: self.priority, beside: None, home, salt, adapter }
    }

    /// Output tokens of its samples, for a model with `context` positions.
    pub(super) fn draws(&self, context: usize) -> OutputTokens {
        let most = self.stop.max_tokens.min(context.saturating_sub(self.tokens.len()));
        OutputTokens { most: self.n as u64 * most as u64, is_exact: self.stop.is_exact() }
    }
}

/// A sample of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleId {
    /// The prompt's number: its index in the list given to [`generate`](super::generate), or the number passed to
    /// [`Generator::begin`](super::Generator::begin).
    pub prompt: usize,
    /// From 0, below `n`; `n`: the prompt's own scores. Or the index of a continuation
    /// ([`Generator::begin_choices`](super::Generator::begin_choices)).
    pub sample: usize,
}

/// A prompt that the engine refused: it is too long, or its parameters are out of range. Its samples have no events.
#[derive(Debug)]
pub struct RefusedPrompt {
    pub prompt: usize,
    pub error: Error,
}
