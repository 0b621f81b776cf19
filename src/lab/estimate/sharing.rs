//! What a job's samples share: by level of the tree, and what each way of sharing computes of their prompts.

use serde::Serialize;

use super::job::Job;
use super::pool::Pool;
use crate::ids::TokenId;
use crate::kv::{PromptTree, Prompts, Saving};

/// The nodes of one level, counted from the roots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level {
    pub nodes: u64,
    /// Tokens of these nodes, each counted once.
    pub tokens: u64,
    /// The same for each sample beneath them.
    pub tokens_unshared: u64,
    /// Whether levels further down are counted with it.
    pub has_deeper: bool,
}

/// Levels that are told apart; those further down are one.
const MOST_LEVELS: usize = 8;

/// The levels of the samples' tree, roots first; the last of [`MOST_LEVELS`] has all that are further down.
pub fn levels(samples: &PromptTree) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    let mut depths: Vec<usize> = Vec::with_capacity(samples.nodes().len());
    for node in samples.nodes() {
        let below = node.parent.map_or(0, |parent| depths[parent as usize] + 1);
        depths.push(below);
        let depth = below.min(MOST_LEVELS - 1);
        if levels.len() == depth {
            levels.push(Level::default());
        }
        let level = &mut levels[depth];
        level.has_deeper |= below > depth;
        level.nodes += 1;
        level.tokens += u64::from(node.tokens());
        level.tokens_unshared += u64::from(node.tokens()) * node.prompts.len() as u64;
    }
    levels
}

/// What a way of sharing computes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sharing {
    pub policy: &'static str,
    /// Prompt tokens of all samples.
    pub tokens_asked: u64,
    pub tokens_computed: u64,
    /// 1 - computed / asked.
    pub saving: f64,
}

/// Each way, from the least to the most that can be shared.
pub fn policies(samples: &PromptTree, pool: &Pool) -> Vec<Sharing> {
    let sharing = |policy, saving: Saving| Sharing {
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

/// The samples of a job as requests of their own: each prompt as often as it is sampled. Their tree has the nodes of the prompts'
/// tree, in the same order.
pub struct Samples<'a> {
    job: &'a Job,
    /// The prompt of each sample, rising.
    pub prompts: Vec<u32>,
}

impl<'a> Samples<'a> {
    pub fn of(job: &'a Job) -> Self {
        let prompts = job.asks.iter().zip(0u32..);
        let prompts = prompts.flat_map(|(ask, prompt)| std::iter::repeat_n(prompt, ask.samples as usize)).collect();
        Self { job, prompts }
    }
}

impl Prompts for Samples<'_> {
    fn count(&self) -> usize {
        self.prompts.len()
    }

    fn tokens(&self, sample: usize) -> &[TokenId] {
        self.job.prompts.tokens(self.prompts[sample] as usize)
    }
}
