//! What the dispatcher is asked to sample: one job for each request, with its prompts in tokens. `openai` decides what a
//! request means; the queue decides when its samples begin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use offshoot_core::ids::TokenId;
use offshoot_engine::{Hear, Priority, SamplingParams, Stop, UniformKey};
use offshoot_launch::PromptRequest;

use super::outbox::Outbox;
use crate::keys::ClientId;

/// Names a job; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// A request, as it is sampled.
pub struct Job {
    pub id: JobId,
    pub client: ClientId,
    /// Among the jobs of its client; lower numbers are served first.
    pub priority: Priority,
    /// Among the jobs of all clients, and in the engine.
    pub among_all: Priority,
    pub prompts: Vec<JobPrompt>,
    /// Samples of each prompt; 0 if only the prompts are scored.
    pub samples: usize,
    /// Whether each prompt is scored, with so many of the likeliest tokens in each one's place.
    pub prompt_logprobs: Option<usize>,
    pub params: SamplingParams,
    /// Which events are delivered.
    pub hear: Hear,
    /// How long the branches of finished samples are kept; `None`: they are not.
    pub keep: Option<Duration>,
    /// When the samples that have not ended are cut short.
    pub deadline: Option<Instant>,
    pub outbox: Arc<Outbox>,
}

/// A prompt of a job.
pub struct JobPrompt {
    pub tokens: Arc<[TokenId]>,
    /// Continuations that are scored. With any, nothing is sampled.
    pub choices: Vec<Vec<TokenId>>,
    /// How many of the likeliest tokens are reported in each one's place.
    pub choices_top: usize,
    pub stop: Stop,
    pub uniforms: UniformKey,
}

impl Job {
    /// The results of all prompts: samples, scored continuations, and the prompts' own scores.
    pub fn results(&self) -> usize {
        let scored = usize::from(self.prompt_logprobs.is_some());
        self.prompts.iter().map(|prompt| self.samples + scored + prompt.choices.len()).sum()
    }

    /// Branches that it will keep: each sample, or each prompt if nothing is sampled.
    pub fn promised(&self) -> usize {
        self.keep.map_or(0, |_| self.prompts.len() * self.samples.max(1))
    }

    /// Whether it scores prompts or continuations.
    pub fn scores(&self) -> bool {
        self.prompt_logprobs.is_some() || self.prompts.iter().any(|prompt| !prompt.choices.is_empty())
    }

    /// Tokens of its prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }

    /// `samples` of prompt number `prompt` from `first` on. The prompt's scores come with its first samples.
    pub fn part(&self, prompt: usize, first: usize, samples: usize) -> PromptRequest<'_> {
        let JobPrompt { tokens, stop, uniforms, .. } = &self.prompts[prompt];
        PromptRequest {
            tokens,
            n: samples,
            prompt_logprobs: self.prompt_logprobs.filter(|_| first == 0),
            params: &self.params,
            stop,
            uniforms: *uniforms,
            priority: self.among_all,
        }
    }
}
