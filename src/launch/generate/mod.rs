//! `generate`, the library's one verb: prompts go in, each with how many samples are wanted of it and how they are
//! drawn; a stream of events comes out. It stands on the floor of `launch`: above the engine, whose branches it makes,
//! and beneath everything that samples. Searches that fork what they sampled are `tree`'s; what a sample is worth is
//! left to the caller.
//!
//! [`generate`] is for jobs whose prompts are all known: it begins them in the order in which they share most
//! ([`Order`]), a bounded number at once. [`Generator`] is for prompts that come at any time. Neither has a thread: who
//! reads, drives.

mod generation;
mod generator;

pub use generation::Generation;
pub use generator::{Generator, Release};

use crate::engine::{UniformKey, EngineHandle, Finish, Hear, SampledToken, SamplingParams, Stop};
use crate::error::Error;
use crate::ids::TokenId;

use super::Draws;

/// A prompt and what is wanted of it.
#[derive(Clone, Copy, Debug)]
pub struct PromptRequest<'a> {
    pub tokens: &'a [TokenId],
    /// Samples, from 1 up.
    pub n: usize,
    pub params: &'a SamplingParams,
    pub stop: &'a Stop,
    /// Keys the uniforms: sample `i` draws by child `i` of this key, whatever else runs, as child `i` of a
    /// `SamplingTree`'s root does.
    pub uniforms: UniformKey,
}

impl PromptRequest<'_> {
    /// What its samples may draw where the model's context is so long.
    fn draws(&self, context: usize) -> Draws {
        let most = self.stop.max_tokens.min(context.saturating_sub(self.tokens.len()));
        Draws { most: self.n as u64 * most as u64, is_exact: self.stop.is_exact() }
    }
}

/// A sample of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleId {
    /// The prompt's number: its place in what [`generate`] was given, or what [`Generator::begin`] was told.
    pub prompt: usize,
    /// From 0, below `n`.
    pub sample: usize,
}

/// What happens to the samples, in the order in which it happens to each of them. Each ends once: with `Finished` or
/// `Failed`, or with its whole prompt's `Refused`.
#[derive(Debug)]
pub enum GenerateEvent {
    /// Tokens were sampled: one, or several where the reader lags. Only with [`Hear::Tokens`].
    Tokens { sample: SampleId, tokens: Vec<SampledToken>, text: String },
    /// The sample is whole, or was cancelled and has what it had.
    Finished { sample: SampleId, finish: Finish },
    /// The sample could not go on; the others do.
    Failed { sample: SampleId, error: Error },
    /// The engine took nothing of this prompt: it is too long, or its parameters are out of range.
    Refused { prompt: usize, error: Error },
}

/// Samples `requests`, in the order in which they share most. Nothing begins before the first event is asked for.
pub fn generate<'a>(engine: &EngineHandle, requests: Vec<PromptRequest<'a>>, hear: Hear) -> Generation<'a> {
    Generation::new(requests, Generator::new(engine.clone(), hear, Release::EachSample))
}
