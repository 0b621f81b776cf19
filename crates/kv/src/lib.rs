//! Floor 1, bookkeeping of KV memory in integers: which tokens are stored where. `groups` says which layers share
//! pages, `page_pool` allocates these, `page_counts` says how many texts will take, `prefix_tree` records which runs of
//! tokens share them, `origin` keeps prompts apart that are to share none, `forest` is the snapshot of one step,
//! `states` holds what steps do with the states of recurrent layers, `copies` and `copy_cache` have the copies of
//! latents that are expanded to keys and values, `prompt_tree` finds what all prompts of a job share, and cuts a job
//! into parts. Keys, values and devices belong to the backends.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod antichain;
mod copies;
mod copy_cache;
pub mod forest;
pub mod groups;
mod origin;
pub mod page_counts;
pub mod page_pool;
pub mod plan;
pub mod prefix_tree;
pub mod prompt_tree;
pub mod states;

pub use copies::{CopyStore, Expansion};
pub use copy_cache::{Copied, CopyCache};
pub use forest::{Forest, ForestSegment, StepRow};
pub use groups::{LayerPlace, PageGroups, Reach, Window};
pub use origin::{AdapterChange, CacheSalt, Origin, PathStart, PathTokens};
pub use page_counts::PageCounts;
pub use page_pool::{OutOfPages, PagePool};
pub use prefix_tree::{
    Leased, MOST_KEPT_TOP, MappedSegment, PathMark, PrefixTree, StatePlace, TokenScore, TreeStats, Usage,
};
pub use prompt_tree::{
    DistinctTokens, PackedPrompts, PromptNode, PromptPart, PromptParts, PromptTree, Prompts, Saving, TokenCosts,
    tokens_in_batches,
};
pub use states::StateRun;

use offshoot_core::ids::PageId;

/// The place of one token's key and value in every layer of one page group. Pages are aligned to positions: a token at
/// position `p` always has `slot == p % page_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSlot {
    pub page: PageId,
    pub slot: u32,
}
