//! What each way of sharing computes of a job's prompts. Samples that are sampled from them are no part of it.

use super::{PromptTree, lru};
use crate::kv::antichain::best_antichain;

/// Prompt tokens of a job, in full and as they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    pub logical: u64,
    pub computed: u64,
}

impl Saving {
    /// BatchLLM's saving ratio: the part of the prompt tokens that is not computed. 0 where there are none.
    pub fn ratio(self) -> f64 {
        match self.logical {
            0 => 0.0,
            logical => (logical - self.computed) as f64 / logical as f64,
        }
    }
}

impl PromptTree {
    /// Tokens of all prompts, each in full.
    pub fn logical_tokens(&self) -> u64 {
        self.logical
    }

    /// Tokens of all nodes: the fewest that can be computed.
    pub fn distinct_tokens(&self) -> u64 {
        self.nodes().iter().map(|node| u64::from(node.tokens())).sum()
    }

    /// Each prompt is computed in full.
    pub fn no_sharing(&self) -> Saving {
        self.saving(self.logical)
    }

    /// Prompts in order of arrival through a cache of whole pages that holds `capacity` tokens; what was used longest
    /// ago makes room. Of a prompt's pages the last is used first, so that a page never outlives the one before it.
    /// Each prompt is computed before the next arrives.
    pub fn lru(&self, capacity: u64, page_tokens: u32) -> Saving {
        self.saving(self.logical - lru::found(self, capacity, page_tokens))
    }

    /// Groups of prompts that share one beginning each, chosen so that most is saved.
    pub fn single_level(&self) -> Saving {
        let saved = |node: u32| self.worth(node as usize);
        self.saving(self.logical - self.single_level_nodes().into_iter().map(saved).sum::<u64>())
    }

    /// Every node is computed once.
    pub fn all_levels(&self) -> Saving {
        self.saving(self.distinct_tokens())
    }

    /// The nodes with whose ends the shared beginnings of `single_level` end, rising; no two lie on one path. BatchLLM
    /// (section 4.1) finds its level from the leaves up, comparing a node with each of its children alone; this is the
    /// optimum that it aims for.
    pub fn single_level_nodes(&self) -> Vec<u32> {
        let worth: Vec<u64> = (0..self.nodes().len()).map(|node| self.worth(node)).collect();
        best_antichain(|node| self.nodes()[node].parent, &worth)
    }

    /// Tokens spared where all prompts of a node share what lies from the root to its end, and nothing else.
    fn worth(&self, node: usize) -> u64 {
        let node = &self.nodes()[node];
        (node.prompts.len() as u64 - 1) * u64::from(node.end)
    }

    fn saving(&self, computed: u64) -> Saving {
        Saving { logical: self.logical, computed }
    }
}
