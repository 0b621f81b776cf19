//! What a client may know of an engine: its sizes and limits, which never change.

use crate::adapters::AdapterLimits;
use crate::copies::CopyMemory;
use crate::prefix_costs::PrefixCosts;
use offshoot_core::ids::TokenId;
use offshoot_kv::{PageCounts, PageGroups, Reach};

/// Facts of an engine that never change.
#[derive(Clone, Debug)]
pub struct EngineFacts {
    /// Most tokens of one branch.
    pub context: usize,
    pub vocab: usize,
    pub bos: Option<TokenId>,
    pub eos: Vec<TokenId>,
    /// The device's name, one line.
    pub device: String,
    /// The arithmetic that determines the last bits of exact results (see `RunnerFacts::arithmetic`).
    pub arithmetic: String,
    /// Whether what a branch samples depends on its own tokens and uniforms alone, to the last bit: not on other
    /// branches, on plans, or on which steps computed it.
    pub batch_invariant: bool,
    /// Whether steps run on a device beside the host's cores (see `RunnerFacts::is_async`).
    pub is_async: bool,
    pub page_tokens: usize,
    /// Bytes of one page: all layers of a page group.
    pub page_bytes: usize,
    /// Without padding, which pages may have.
    pub kv_bytes_per_token: usize,
    pub pool_pages: usize,
    /// Memory for copies of latents, of models with latent attention.
    pub copies: CopyMemory,
    /// A token has a slot in a page of each.
    pub page_groups: PageGroups,
    /// Most pages of a branch in each group with a window; `None` if there is none.
    pub window_pages: Option<usize>,
    /// Most branches that run at once.
    pub max_branches: usize,
    /// Bytes of the state of one sequence in all recurrent layers; 0 if the model has none. And how many there are.
    pub state_bytes: usize,
    pub states: usize,
    /// Whether the experts of each token are kept ([`SamplingParams::routes`](crate::SamplingParams::routes)).
    pub keeps_routes: bool,
    /// Numbers that a scorer computes for a position ([`Scoring::Values`](crate::Scoring::Values)); `None`: the model
    /// generates.
    pub values: Option<usize>,
    /// How many adapters can be loaded at once, and of which size.
    pub adapters: AdapterLimits,
    /// What prefixes cost that another engine has computed.
    pub prefix_costs: PrefixCosts,
    /// Engines behind the handle, each with a pool of its own: `pool_pages`, `states` and what follows from them are
    /// those of the smallest one, `max_branches` is the sum.
    pub replicas: usize,
}

impl EngineFacts {
    /// Most pages of a branch of `given` tokens that has sampled `more`, or scored so many given ones, when it is
    /// computed again. The last token has no keys and values.
    pub fn path_pages(&self, given: usize, more: usize) -> usize {
        let end = given + more.saturating_sub(1);
        self.page_counts().of_path(u32::try_from(end).unwrap_or(u32::MAX))
    }

    /// How many pages texts take.
    pub fn page_counts(&self) -> PageCounts {
        let page_tokens = u32::try_from(self.page_tokens).expect("a page has few tokens");
        PageCounts { page_tokens, groups: self.page_groups, window_pages: self.window_pages }
    }

    /// Tokens of which the pool has all pages.
    pub fn pool_tokens(&self) -> usize {
        self.pool_pages / self.page_groups.count() * self.page_tokens
    }

    /// Most tokens, at least one, that a branch of `given` tokens can sample if it has the whole pool.
    pub fn most_sampled(&self, given: usize) -> usize {
        let [all, windowed] = Reach::BOTH.map(|reach| self.page_groups.with(reach));
        let beside = self.pool_pages.saturating_sub(windowed * self.window_pages.unwrap_or(0));
        // With all of its pages, or with as many as a window leaves.
        let tokens = match all {
            0 if beside > 0 => self.context,
            0 => 0,
            _ => beside / all * self.page_tokens,
        };
        tokens.max(self.pool_tokens()).saturating_sub(given) + 1
    }
}
