//! `generate`: samples a list of prompts, each with its own number of samples and sampling parameters, and returns a
//! stream of events. It uses the engine's branches directly and is the base of everything that samples. Searches that
//! fork sampled branches use `tree`; scoring samples is left to the caller.
//!
//! [`generate`] is for jobs whose prompts are known in advance: it starts them in the order in which they share the
//! most ([`PromptOrder`]), a bounded number at a time. [`Generator`] is for prompts that arrive at any time. Neither
//! starts a thread: reading events drives the work.

mod generation;
mod generator;
mod request;

pub use generation::{Generation, GenerationEvent};
pub use generator::{BeginOptions, ChoicesRequest, FormBegun, Generator, KeptSample, Release};
pub use request::{AsRequest, PromptRequest, RefusedPrompt, SampleId};

use offshoot_engine::{EngineHandle, Hear};

/// Samples `requests`, in the order in which they share the most. Nothing starts before the first call of `next` or
/// `poll`.
pub fn generate<R: AsRequest>(engine: &EngineHandle, requests: Vec<R>, hear: Hear) -> Generation<R> {
    Generation::new(requests, Generator::new(engine.clone(), hear, Release::EachSample))
}
