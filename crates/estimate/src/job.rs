//! A job as it is known before it runs: its prompts in tokens, and the samples of each.

use std::path::Path;
use std::sync::Arc;

use offshoot_core::error::Result;
use offshoot_kv::PackedPrompts;
use offshoot_launch::{JudgeFolderOptions, SecondFolder};

/// The samples of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptSamples {
    pub samples: u32,
    /// Expected tokens per sample.
    pub tokens: u32,
}

/// Prompts in order of arrival, each of at least one token, and their samples: at least one sample of one token per
/// prompt.
#[derive(Default)]
pub struct PlannedJob {
    pub prompts: PackedPrompts,
    pub per_prompt: Vec<PromptSamples>,
    /// The scorer or the embedder that a run or a server would load beside the model.
    pub scorer: Option<SecondFolder>,
    /// The judge that a run would load beside the model.
    pub judge: Option<JudgeFolderOptions>,
    /// What the estimate leaves out, one sentence each.
    pub notes: Vec<String>,
}

impl PlannedJob {
    /// The model that would be loaded beside the job's.
    ///
    /// # Errors
    ///
    /// The judge's folder is no model that generates; there are a scorer and a judge.
    pub fn second(&self) -> Result<Option<SecondFolder>> {
        let judge = self.judge.as_ref().map(JudgeFolderOptions::open).transpose()?;
        SecondFolder::either(self.scorer.clone(), judge.map(Arc::new))
    }

    /// Adds the judge that a run would load beside the model in the folder `model`: none, if it is that model.
    pub fn judged_by(&mut self, judge: Option<JudgeFolderOptions>, model: &Path) {
        match judge {
            Some(judge) if judge.is_the_model(model) => {
                self.notes.push("the judge is the model itself: no second model is loaded".to_owned());
            }
            judge => self.judge = judge,
        }
    }

    /// Expected output tokens of each prompt, over all its samples.
    pub fn draws(&self) -> Vec<u64> {
        self.per_prompt.iter().map(|ask| u64::from(ask.samples) * u64::from(ask.tokens)).collect()
    }

    pub fn samples(&self) -> u64 {
        self.per_prompt.iter().map(|ask| u64::from(ask.samples)).sum()
    }
}
