//! Parts of prefixes that engines of one model lend each other, and requests for them. What is lent when is decided in
//! `lending`.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::prefix_store::ChunkBytes;
use offshoot_core::ids::{TokenId, WeightVersion};

/// A request for a part of a prefix.
pub(crate) struct Lend {
    /// The whole prefix: whole pages.
    pub tokens: Arc<[TokenId]>,
    /// What comes before is there already; whole pages.
    pub from: usize,
    /// Gets one part. Closed without one if the engine ends.
    pub reply: Sender<LentPart>,
}

/// Keys and values of some tokens of a prefix, whole pages, in host memory.
pub(crate) struct LentPart {
    /// Empty if the lender has nothing to lend.
    pub positions: Range<usize>,
    /// Whether nothing follows that is worth waiting for.
    pub is_last: bool,
    /// As [`RunnerFacts::page_layout`](offshoot_model::RunnerFacts::page_layout) of the lender.
    pub layout: String,
    /// The weights that they were computed with.
    pub weights: WeightVersion,
    pub bytes: ChunkBytes,
}

/// A request that waits for what it asks for to be computed.
pub(super) struct PendingLend {
    pub lend: Lend,
    /// How much of the prefix was computed at the last look, and turns since that changed.
    pub computed: usize,
    pub turns: u32,
}
