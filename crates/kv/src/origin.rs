//! What keeps paths of the prefix tree apart whose tokens are the same: the weights and the adapter that their keys and
//! values were computed with, and a salt, because a client of a server measures by the time of its first token whether
//! somebody else has sent a prompt. What a salt is made of is left to those who read requests; when weights change, to
//! the engine.

use offshoot_core::ids::{AdapterVersion, SegmentId, TokenId, WeightVersion};

/// A hash of what a client's prompts are kept apart by. Prompts with another one, or with none, share no cached prefix
/// with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheSalt(pub [u8; 16]);

/// What keys and values, states and scores of a token follow from, beside the tokens up to it. A segment of the prefix
/// tree has one origin; what has another one is never matched with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The weights that computed them: the same on a whole path.
    pub weights: WeightVersion,
    /// The adapter that was added to these; `None`: none. It may change along a path, so that what was computed without
    /// an adapter is shared by those that go on with different ones.
    pub adapter: Option<AdapterVersion>,
    /// The same on a whole path.
    pub salt: Option<CacheSalt>,
}

impl Origin {
    /// Of prompts without a salt, computed with the weights that an engine was started with, without an adapter.
    pub const FIRST: Origin = Origin { weights: WeightVersion::FIRST, adapter: None, salt: None };

    /// This origin with another adapter, or with none.
    pub fn with_adapter(self, adapter: Option<AdapterVersion>) -> Self {
        Origin { adapter, ..self }
    }

    /// Whether a path with this origin may go on with `next`: only the adapter may change.
    pub fn may_go_on_with(self, next: Origin) -> bool {
        self.with_adapter(next.adapter) == next
    }

    /// Numbers that stand before the tokens of a prompt where distinct tokens are counted: other origins have others,
    /// and the first one none.
    pub(crate) fn tokens(self) -> Vec<TokenId> {
        if self == Origin::FIRST {
            return Vec::new();
        }
        let salt = self.salt.map_or([0; 16], |CacheSalt(salt)| salt);
        // 0 for none.
        let adapter = self.adapter.map_or(0, |AdapterVersion(adapter)| adapter.wrapping_add(1));
        let parts =
            [&self.weights.0.to_le_bytes()[..], &adapter.to_le_bytes(), &[u8::from(self.salt.is_some())], &salt];
        let bytes = parts.concat();
        let word = |bytes: &[u8]| {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            TokenId(u32::from_le_bytes(word))
        };
        bytes.chunks(4).map(word).collect()
    }
}

/// A place in a run of tokens from which on they are computed with this adapter, or with none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterChange {
    /// The number of the first of these tokens.
    pub at: usize,
    pub adapter: Option<AdapterVersion>,
}

/// The tokens behind a [`PathStart`], which says what the first of them are computed with.
#[derive(Clone, Copy, Debug)]
pub struct PathTokens<'a> {
    pub tokens: &'a [TokenId],
    /// Where the adapter changes behind the first token, by rising place.
    pub changes: &'a [AdapterChange],
}

impl<'a, Tokens: AsRef<[TokenId]> + ?Sized> From<&'a Tokens> for PathTokens<'a> {
    /// Tokens that are all computed with the same adapter.
    fn from(tokens: &'a Tokens) -> Self {
        PathTokens { tokens: tokens.as_ref(), changes: &[] }
    }
}

impl PathTokens<'_> {
    /// The place at which the run of tokens ends that begins at `at` and has one adapter; and that adapter, if it is
    /// not the one of the start.
    pub(crate) fn run(self, at: usize) -> (usize, Option<Option<AdapterVersion>>) {
        let begun = self.changes.partition_point(|change| change.at <= at);
        let end = self.changes.get(begun).map_or(self.tokens.len(), |next| next.at);
        (end, begun.checked_sub(1).map(|last| self.changes[last].adapter))
    }
}

/// Where the search for a prompt's tokens begins in the prefix tree, and what they are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathStart {
    /// Before the first token, among the prompts of this origin.
    Root(Origin),
    /// At the end of the path of a segment, whose origin what follows has, too.
    Behind(SegmentId),
    /// At the end of the path of a segment, whose weights and salt what follows has, too, but this adapter.
    Adapted(SegmentId, Option<AdapterVersion>),
}

impl PathStart {
    /// Before the first token of prompts of the first origin.
    pub const FIRST: PathStart = PathStart::Root(Origin::FIRST);

    pub fn segment(self) -> Option<SegmentId> {
        match self {
            PathStart::Root(_) => None,
            PathStart::Behind(segment) | PathStart::Adapted(segment, _) => Some(segment),
        }
    }
}
