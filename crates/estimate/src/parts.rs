//! A job cut into parts for several processes: what each part computes, what is computed twice, and what batches in
//! order of arrival compute instead. The cut is `PromptTree::parts`.

use serde::Serialize;

use super::job::PlannedJob;
use offshoot_core::figures::{count, counted};
use offshoot_kv::{PromptPart, PromptTree, TokenCosts, tokens_in_batches};

/// The batches with which the parts are compared: those of Ray Data's processors.
const BATCH: usize = 32;

#[derive(Debug, Serialize)]
pub struct JobParts {
    pub parts: Vec<PartSizes>,
    /// Prompt tokens that one process computes, all parts together, and batches in order of arrival, each by itself.
    pub tokens_of_one_process: u64,
    pub tokens_computed: u64,
    pub tokens_twice: u64,
    pub batch: usize,
    pub tokens_in_batches: u64,
}

/// Work counts a computed and a sampled token alike.
#[derive(Debug, Serialize)]
pub struct PartSizes {
    pub prompts: usize,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub work: u64,
}

impl PartSizes {
    fn of(part: &PromptPart) -> Self {
        let PromptPart { prompts, prompt_tokens, output_tokens, work } = part;
        Self { prompts: prompts.len(), prompt_tokens: *prompt_tokens, output_tokens: *output_tokens, work: *work }
    }
}

impl JobParts {
    pub fn of(job: &PlannedJob, tree: &PromptTree, parts: usize) -> Self {
        let cut = tree.parts(&job.draws(), TokenCosts::default(), parts);
        Self {
            parts: cut.parts.iter().map(PartSizes::of).collect(),
            tokens_of_one_process: cut.distinct_tokens,
            tokens_computed: cut.prompt_tokens(),
            tokens_twice: cut.tokens_twice(),
            batch: BATCH,
            tokens_in_batches: tokens_in_batches(&job.prompts, BATCH),
        }
    }

    /// Names and texts of the report's lines.
    pub fn lines(&self) -> Vec<(String, String)> {
        let times = |tokens: u64| format!("{:.3} x", tokens as f64 / self.tokens_of_one_process.max(1) as f64);
        let (computed, twice) = (counted(self.tokens_computed, "prompt token"), count(self.tokens_twice));
        let of_parts = format!(
            "{}: {computed} computed, {twice} of them twice: {} one process'",
            count(self.parts.len() as u64),
            times(self.tokens_computed)
        );
        let batched = format!(
            "batches of {} in order of arrival, each by itself: {} computed: {}",
            self.batch,
            counted(self.tokens_in_batches, "prompt token"),
            times(self.tokens_in_batches)
        );
        let part = |(number, part): (usize, &PartSizes)| {
            let text = format!(
                "{}, {} computed, {} sampled",
                counted(part.prompts as u64, "prompt"),
                counted(part.prompt_tokens, "prompt token"),
                count(part.output_tokens)
            );
            (format!("part {}", number + 1), text)
        };
        let all = [("parts".to_string(), of_parts), (String::new(), batched)];
        all.into_iter().chain(self.parts.iter().enumerate().map(part)).collect()
    }
}
