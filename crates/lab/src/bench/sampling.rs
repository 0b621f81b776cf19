//! Options of a benchmark that say how its tokens are sampled, and what is reported of each.

use std::num::NonZeroU16;

use clap::Args;
use serde::Serialize;

use offshoot_args::whole;
use offshoot_args::words::{Word, one_of};
use offshoot_backend::Records;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_engine::SamplingParams;

const TEMPERATURE: f32 = 0.8;

/// The likeliest tokens that a confidence is of, as DeepConf's.
const CONFIDENCE: Option<NonZeroU16> = NonZeroU16::new(20);

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
    /// Records of each token. Every workload runs with one choice after the other, which may come again: with
    /// none,all,none each can be compared with its neighbours
    #[arg(long, value_name = "WHAT", value_parser = one_of(RECORDED), value_delimiter = ',', default_value = "none")]
    #[serde(skip)]
    pub records: Vec<Recorded>,
}

/// What a benchmark records of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recorded {
    None,
    Drawn,
    Ids,
    Entropy,
    Confidence,
    All,
}

const RECORDED: &[Word<Recorded>] = &[
    ("none", Recorded::None, "Its log-probability alone"),
    ("drawn", Recorded::Drawn, "The distribution it is drawn from: its log-probability, the number of tokens kept"),
    ("ids", Recorded::Ids, "That, and the ids of the tokens kept"),
    ("entropy", Recorded::Entropy, "The model's entropy"),
    ("confidence", Recorded::Confidence, "The mean log-probability of the 20 likeliest tokens"),
    ("all", Recorded::All, "All of these"),
];

impl Recorded {
    pub fn is_none(&self) -> bool {
        *self == Recorded::None
    }

    fn records(self) -> Records {
        let none = Records::default();
        match self {
            Recorded::None => none,
            Recorded::Drawn => Records { drawn: true, ..none },
            Recorded::Ids => Records { drawn: true, kept_ids: true, ..none },
            Recorded::Entropy => Records { entropy: true, ..none },
            Recorded::Confidence => Records { confidence: CONFIDENCE, ..none },
            Recorded::All => Records { drawn: true, kept_ids: true, entropy: true, confidence: CONFIDENCE },
        }
    }
}

impl SamplingOptions {
    /// The parameters with which `recorded` is recorded, for a vocabulary of `vocab` tokens.
    pub fn params(&self, vocab: usize, recorded: Recorded) -> Result<SamplingParams> {
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
            records: recorded.records(),
            ..SamplingParams::default()
        })
    }
}
