//! How many prompt tokens of a job are computed under each way of sharing. Sampled tokens are not counted.

use super::{PromptTree, lru};
use crate::antichain::best_antichain;

/// The prompt tokens of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// Tokens of all prompts.
    pub logical: u64,
    /// Tokens that are computed.
    pub computed: u64,
}

impl Saving {
    /// BatchLLM's saving ratio: the fraction of prompt tokens that is not computed. 0 if there are no tokens.
    pub fn ratio(self) -> f64 {
        match self.logical {
            0 => 0.0,
            logical => (logical - self.computed) as f64 / logical as f64,
        }
    }
}

impl PromptTree {
    /// Tokens of all prompts.
    pub fn logical_tokens(&self) -> u64 {
        self.logical
    }

    /// Tokens of all nodes: the least number that must be computed.
    pub fn distinct_tokens(&self) -> u64 {
        self.nodes().iter().map(|node| u64::from(node.tokens())).sum()
    }

    /// Without sharing: every prompt is computed in full.
    pub fn no_sharing(&self) -> Saving {
        self.saving(self.logical)
    }

    /// With an LRU cache of whole pages that holds `capacity` tokens, for prompts in order of arrival, each computed
    /// before the next one arrives. A prompt's last page counts as used first, so that a page never outlives the one
    /// before it.
    pub fn lru(&self, capacity: u64, page_tokens: u32) -> Saving {
        self.saving(self.logical - lru::hit_tokens(self, capacity, page_tokens))
    }

    /// With one shared prefix per group of prompts; the groups are chosen to save most.
    pub fn single_level(&self) -> Saving {
        let saved = |node: u32| self.worth(node as usize);
        self.saving(self.logical - self.single_level_nodes().into_iter().map(saved).sum::<u64>())
    }

    /// With sharing on all levels: every node is computed once.
    pub fn all_levels(&self) -> Saving {
        self.saving(self.distinct_tokens())
    }

    /// The nodes at whose ends the shared prefixes of `single_level` end, rising; no two are on one path. BatchLLM
    /// (section 4.1) approximates this choice bottom-up, comparing a node with each of its children; this is the
    /// optimum.
    pub fn single_level_nodes(&self) -> Vec<u32> {
        let worth: Vec<u64> = (0..self.nodes().len()).map(|node| self.worth(node)).collect();
        best_antichain(|node| self.nodes()[node].parent, &worth)
    }

    /// Tokens saved if the prompts of a node share the path from the root to its end and nothing else.
    fn worth(&self, node: usize) -> u64 {
        let node = &self.nodes()[node];
        (node.prompts.len() as u64 - 1) * u64::from(node.end)
    }

    fn saving(&self, computed: u64) -> Saving {
        Saving { logical: self.logical, computed }
    }
}
