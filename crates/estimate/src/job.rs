//! A job as it is known before it runs: its prompts in tokens, and the samples of each.

use offshoot_kv::PackedPrompts;
use offshoot_launch::ScorerOptions;

/// The samples of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptSamples {
    pub samples: u32,
    /// Expected tokens per sample.
    pub tokens: u32,
}

/// Prompts in order of arrival, each of at least one token, and their samples: at least one sample of one token per
/// prompt.
#[derive(Debug, Default)]
pub struct PlannedJob {
    pub prompts: PackedPrompts,
    pub per_prompt: Vec<PromptSamples>,
    /// The scorer that a run would load beside the model.
    pub scorer: Option<ScorerOptions>,
    /// What the estimate leaves out, one sentence each.
    pub notes: Vec<String>,
}

impl PlannedJob {
    /// Expected output tokens of each prompt, over all its samples.
    pub fn draws(&self) -> Vec<u64> {
        self.per_prompt.iter().map(|ask| u64::from(ask.samples) * u64::from(ask.tokens)).collect()
    }

    pub fn samples(&self) -> u64 {
        self.per_prompt.iter().map(|ask| u64::from(ask.samples)).sum()
    }
}
