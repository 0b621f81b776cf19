//! What the prefix tree holds, for a page that draws the memory for keys and values as a tree map.

use offshoot_core::ids::TokenId;

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
