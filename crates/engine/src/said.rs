//! What the client of an extend has heard of it. An extend whose engine is lost goes on behind this on another one: the
//! client hears each token once, whatever weights the other engine has. Which extends are lost is left to `replicas`.

use crate::records::TokenRecords;
use crate::request::{Finish, FinishReason};
use crate::weights::{AdapterSpan, Versions, WeightSpan};
use offshoot_backend::SampledToken;

/// The tokens of an extend that its client has heard. A client that hears only ends has heard none.
#[derive(Clone, Default)]
pub(crate) struct Said {
    pub tokens: Vec<SampledToken>,
    /// Their text, as far as it was final.
    pub text: String,
    /// The weights that they were sampled under, as `Finish::weights`.
    pub weights: Vec<WeightSpan>,
    /// The adapters, as `Finish::adapters`.
    pub adapters: Vec<AdapterSpan>,
}

impl Said {
    /// Adds tokens that the client hears now.
    pub fn add(&mut self, tokens: &[SampledToken], text: &str, versions: Versions) {
        if !tokens.is_empty() {
            versions.note(&mut self.weights, &mut self.adapters, self.tokens.len());
        }
        self.tokens.extend_from_slice(tokens);
        self.text.push_str(text);
    }

    /// The end of an extend that is cut behind these tokens.
    pub fn as_finish(&self, reason: FinishReason) -> Finish {
        let records: TokenRecords = self.tokens.iter().cloned().collect();
        Finish {
            tokens: self.tokens.iter().map(|token| token.token).collect(),
            text: self.text.clone(),
            logprob: records.logprobs().iter().copied().map(f64::from).sum(),
            records,
            weights: self.weights.clone(),
            adapters: self.adapters.clone(),
            ..Finish::empty(reason)
        }
    }
}
