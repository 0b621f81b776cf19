//! What a job's samples share: per level of the tree, and the prompt tokens that each sharing policy computes.

use serde::Serialize;

use super::job::PlannedJob;
use super::pool::Pool;
use offshoot_core::ids::TokenId;
use offshoot_kv::{PromptTree, Prompts, Saving};

/// The nodes of one level of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TreeLevel {
    pub nodes: u64,
    /// Tokens of these nodes, each counted once.
    pub tokens: u64,
    /// Tokens of these nodes, counted once for each sample below them.
    pub tokens_unshared: u64,
    /// Whether deeper levels are included.
    pub has_deeper: bool,
}

/// Most levels that are reported separately; deeper ones are combined into the last.
const MOST_LEVELS: usize = 8;

/// The levels of the samples' tree, roots first; the last of [`MOST_LEVELS`] includes all deeper ones.
pub fn levels(samples: &PromptTree) -> Vec<TreeLevel> {
    let mut levels: Vec<TreeLevel> = Vec::new();
    let mut depths: Vec<usize> = Vec::with_capacity(samples.nodes().len());
    for node in samples.nodes() {
        let below = node.parent.map_or(0, |parent| depths[parent as usize] + 1);
        depths.push(below);
        let depth = below.min(MOST_LEVELS - 1);
        if levels.len() == depth {
            levels.push(TreeLevel::default());
        }
        let level = &mut levels[depth];
        level.has_deeper |= below > depth;
        level.nodes += 1;
        level.tokens += u64::from(node.tokens());
        level.tokens_unshared += u64::from(node.tokens()) * node.prompts.len() as u64;
    }
    levels
}

/// The prompt tokens that one sharing policy computes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharingCost {
    pub policy: &'static str,
    /// Prompt tokens of all samples.
    pub tokens_asked: u64,
    pub tokens_computed: u64,
    /// 1 - computed / asked.
    pub saving: f64,
}

/// All policies, from the least to the most sharing.
pub fn policies(samples: &PromptTree, pool: &Pool) -> Vec<SharingCost> {
    let sharing = |policy, saving: Saving| SharingCost {
        policy,
        tokens_asked: saving.logical,
        tokens_computed: saving.computed,
        saving: saving.ratio(),
    };
    vec![
        sharing("no sharing", samples.no_sharing()),
        sharing("lru of pages", samples.lru(pool.tokens(), pool.page_tokens)),
        sharing("single level", samples.single_level()),
        sharing("all levels", samples.all_levels()),
    ]
}

/// The samples of a job as separate requests: each prompt is repeated for each sample. Their tree has the same nodes as
/// the prompts' tree, in the same order.
pub struct SamplePrompts<'a> {
    job: &'a PlannedJob,
    /// The prompt of each sample, rising.
    pub prompts: Vec<u32>,
}

impl<'a> SamplePrompts<'a> {
    pub fn of(job: &'a PlannedJob) -> Self {
        let prompts = job.per_prompt.iter().zip(0u32..);
        let prompts = prompts.flat_map(|(ask, prompt)| std::iter::repeat_n(prompt, ask.samples as usize)).collect();
        Self { job, prompts }
    }
}

impl Prompts for SamplePrompts<'_> {
    fn count(&self) -> usize {
        self.prompts.len()
    }

    fn tokens(&self, sample: usize) -> &[TokenId] {
        self.job.prompts.tokens(self.prompts[sample] as usize)
    }
}
