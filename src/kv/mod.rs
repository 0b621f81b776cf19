//! Floor 1, integers only: which tokens are kept where. `page_pool` hands out pages, `prefix_tree` knows which runs of
//! tokens share them, `forest` is the snapshot of what is live in one step, `prompt_tree` what all prompts of a job
//! share. No keys, no values, no device: those belong to a backend.

pub mod antichain;
pub mod forest;
pub mod page_pool;
pub mod prefix_tree;
pub mod prompt_tree;

pub use forest::{Forest, ForestSegment, StepRow};
pub use page_pool::{OutOfPages, PagePool};
pub use prefix_tree::{Leased, PathMark, PrefixTree, TreeStats, Usage};
pub use prompt_tree::{DistinctTokens, PackedPrompts, PromptNode, PromptTree, Prompts, Saving};

use crate::ids::PageId;

/// Where the key and value of one token lie: slot `slot` of page `page`, in every layer.
/// Pages are aligned to positions: a token at position `p` always has `slot == p % page_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSlot {
    pub page: PageId,
    pub slot: u32,
}
