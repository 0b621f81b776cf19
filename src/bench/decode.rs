//! `bench decode`: one prompt, N samples, tokens per second, beside the physical floor of the same shape on the rates that
//! this machine shows in the same run. Works through the engine as a run does; greedy, and blind to end-of-text, so that
//! every case does the same work.

use std::time::Instant;

use serde::Serialize;

use crate::engine::{CoinKey, Continuation, EngineHandle, Event, Extend, ForkKind, SamplingParams, Stop};
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};

/// One shape to measure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DecodeCase {
    pub prompt: usize,
    pub samples: usize,
    pub generate: usize,
}

/// Seconds of one run of a case.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DecodeRun {
    /// From the prompt's arrival to its first token.
    pub prompt_seconds: f64,
    /// From the fork to the last token of the last sample.
    pub decode_seconds: f64,
}

impl DecodeCase {
    pub fn prompt_rate(&self, run: &DecodeRun) -> f64 {
        self.prompt as f64 / run.prompt_seconds
    }

    pub fn decode_rate(&self, run: &DecodeRun) -> f64 {
        (self.samples * self.generate) as f64 / run.decode_seconds
    }

    /// Samples `generate` tokens from each of `samples` forks of a prompt of its own (`salt` makes prompts differ, so that
    /// nothing is found in the cache).
    pub fn run(&self, engine: &EngineHandle, salt: u64) -> Result<DecodeRun> {
        let started = Instant::now();
        let root = engine.root(self.prompt_tokens(engine.facts().vocab, salt))?;
        let first = engine.fork(root, 1)?;
        drain(engine, &first, 1)?;
        let prompt_seconds = started.elapsed().as_secs_f64();
        engine.release(&first);

        let started = Instant::now();
        let branches = engine.fork(root, self.samples)?;
        let drawn = drain(engine, &branches, self.generate)?;
        let decode_seconds = started.elapsed().as_secs_f64();
        engine.discard(&branches);
        engine.discard(&[root]);
        if drawn != self.samples * self.generate {
            let expected = self.samples * self.generate;
            return Err(Error::Internal(format!("{drawn} tokens were drawn where {expected} were asked for")));
        }
        Ok(DecodeRun { prompt_seconds, decode_seconds })
    }

    fn prompt_tokens(&self, vocab: usize, salt: u64) -> Vec<TokenId> {
        let key = CoinKey::root(salt, "bench").child(ForkKind::Sample, 0);
        (0..self.prompt as u32).map(|position| TokenId::new((key.coin(position) * vocab as f64) as usize)).collect()
    }
}

/// Draws exactly `tokens` tokens from each branch; returns how many came.
fn drain(engine: &EngineHandle, branches: &[BranchId], tokens: usize) -> Result<usize> {
    let stop = Stop { ignore_eos: true, ..Stop::max_tokens(tokens) };
    let extends = branches
        .iter()
        .map(|&branch| Extend {
            branch,
            continuation: Continuation::Sampled {
                params: SamplingParams::greedy(),
                stop: stop.clone(),
                coins: CoinKey::root(0, "bench"),
            },
        })
        .collect();
    let mut extension = engine.start(extends)?;
    let mut drawn = 0;
    while let Some(event) = extension.next() {
        match event {
            Event::Token { .. } => drawn += 1,
            Event::Finished { .. } => {}
            Event::Failed { error, .. } => return Err(error),
        }
    }
    Ok(drawn)
}
