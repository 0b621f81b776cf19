//! Options of a benchmark that say how its tokens are sampled, and what is reported of each.

use clap::Args;
use serde::Serialize;

use offshoot_args::whole;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_engine::SamplingParams;

const TEMPERATURE: f32 = 0.8;

// How tokens are sampled, at a temperature of 0.8.
#[derive(Clone, Debug, Args, Serialize)]
pub struct SamplingOptions {
    /// Sample from the K likeliest tokens alone
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Sample from the likeliest tokens that together reach the probability P
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Sample from the first N tokens of the vocabulary alone
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<usize>,
    /// Report log-probabilities: the sampled token's, and those of the N likeliest
    #[arg(long, value_name = "N", value_parser = whole::<usize>(0..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<usize>,
}

impl SamplingOptions {
    /// The parameters, for a vocabulary of `vocab` tokens.
    pub fn params(&self, vocab: usize) -> Result<SamplingParams> {
        if let Some(allowed) = self.allowed.filter(|allowed| *allowed > vocab) {
            return Err(Error::value(
                "--allowed",
                format!("at most the vocabulary's {vocab} tokens"),
                allowed.to_string(),
            ));
        }
        Ok(SamplingParams {
            temperature: TEMPERATURE,
            top_k: self.top_k,
            top_p: self.top_p.unwrap_or(1.0),
            allowed: self.allowed.map(|allowed| (0..allowed).map(TokenId::new).collect()),
            top_logprobs: self.top_logprobs,
            ..SamplingParams::default()
        })
    }
}
