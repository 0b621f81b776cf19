//! What keeps prompts apart in the prefix tree that are to share nothing, though their tokens are the same: a client of
//! a server measures by the time of its first token whether somebody else has sent a prompt. What a salt is made of is
//! left to those who read requests.

use offshoot_core::ids::{SegmentId, TokenId};

/// A hash of what a client's prompts are kept apart by. Prompts with another one, or with none, share no cached prefix
/// with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheSalt(pub [u8; 16]);

impl CacheSalt {
    /// Numbers that stand before the tokens of a prompt where distinct tokens are counted: other salts have others.
    pub(crate) fn tokens(self) -> [TokenId; 4] {
        let (words, _) = self.0.as_chunks::<4>();
        std::array::from_fn(|at| TokenId(u32::from_le_bytes(words[at])))
    }
}

/// Where the search for a prompt's tokens begins in the prefix tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathStart {
    /// Before the first token, among the prompts with this salt; `None`: among those without one.
    Root(Option<CacheSalt>),
    /// At the end of the path of a segment, which has the salt of that.
    Behind(SegmentId),
}

impl PathStart {
    /// Before the first token of prompts without a salt.
    pub const UNSALTED: PathStart = PathStart::Root(None);

    pub fn segment(self) -> Option<SegmentId> {
        match self {
            PathStart::Root(_) => None,
            PathStart::Behind(segment) => Some(segment),
        }
    }
}
