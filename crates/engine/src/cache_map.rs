//! What the prefix tree holds, for a page that draws the memory for keys and values as a tree map.

use std::collections::HashSet;

use crate::Engine;
use offshoot_core::ids::{SegmentId, TokenId};
use offshoot_kv::MappedSegment;

/// A run of tokens whose keys and values are kept together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSegment {
    /// Index in the map of the segment that it continues; smaller than its own. `None` for a root.
    pub parent: Option<usize>,
    /// Its own tokens, and how many of them have keys and values.
    pub tokens: usize,
    pub computed: usize,
    /// Bytes of its pages, all layers; a page shared with its parent counts there.
    pub bytes: usize,
    /// Bytes of all segments beneath it, also of those that are not in the map.
    pub bytes_beneath: usize,
    /// Branches that end here.
    pub leases: usize,
    /// Branches that end here, and segments directly beneath it that branches keep. 0: it is only cached.
    pub users: usize,
    pub is_pinned: bool,
    /// Its first tokens, 16 at most.
    pub begin: Vec<TokenId>,
}

impl Engine {
    pub(super) fn cache_map(&self, most: usize) -> Vec<CacheSegment> {
        let pins = self.scheduler.pins().filter_map(|id| self.branches.get(&id)?.kept());
        let pinned: HashSet<SegmentId> = pins.flat_map(|end| self.cache.prefix.path(end)).collect();
        let page_bytes = self.facts.page_bytes;
        let segment = |mapped: MappedSegment| CacheSegment {
            parent: mapped.parent,
            tokens: mapped.tokens,
            computed: mapped.computed,
            bytes: mapped.pages * page_bytes,
            bytes_beneath: mapped.pages_beneath * page_bytes,
            leases: mapped.leases,
            users: mapped.users,
            is_pinned: pinned.contains(&mapped.id),
            begin: mapped.begin,
        };
        self.cache.prefix.map(most).into_iter().map(segment).collect()
    }
}
