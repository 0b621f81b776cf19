//! Prefixes by the hashes of their blocks: what two paths share, and what a replica has computed or will, without a
//! second copy of the tokens. Different blocks with equal hashes only make a choice worse.

use std::collections::HashSet;
use std::sync::Arc;

use crate::TokenPath;
use crate::path_adapters::PathAdapters;
use offshoot_core::ids::TokenId;
use offshoot_core::mix::{GOLDEN, mix};
use offshoot_kv::CacheSalt;

/// Tokens of a block; the last one of a path may have fewer.
pub const BLOCK: usize = 16;

/// A path: the hash of its salt and of all tokens, and their adapters, up to the end of each block.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    tokens: usize,
    blocks: Arc<[u64]>,
}

impl Prefix {
    /// That of a path, followed by `given`.
    pub fn of(path: &TokenPath, given: &[TokenId]) -> Self {
        match given.is_empty() {
            true => Self::of_tokens(path.salt(), path.adapters(), &path.all()),
            false => Self::of_tokens(path.salt(), path.adapters(), &[&path.all()[..], given].concat()),
        }
    }

    fn of_tokens(salt: Option<CacheSalt>, adapters: &PathAdapters, tokens: &[TokenId]) -> Self {
        let mut hash = salt.map_or(0, |CacheSalt(salt)| mix(u128::from_le_bytes(salt) as u64));
        let (mut position, first) = (0, adapters.first().unwrap_or(usize::MAX));
        let block = |block: &[TokenId]| {
            for token in block {
                if position >= first {
                    let adapter = adapters.at(position).map_or(0, |version| version.0 + 1);
                    hash = mix(hash ^ adapter.wrapping_mul(GOLDEN));
                }
                hash = mix(hash.wrapping_add(u64::from(token.0) + 1).wrapping_mul(GOLDEN));
                position += 1;
            }
            hash
        };
        Prefix { tokens: tokens.len(), blocks: tokens.chunks(BLOCK).map(block).collect() }
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Its first `tokens`, whole blocks.
    pub fn first(&self, tokens: usize) -> Self {
        debug_assert!(tokens <= self.tokens && tokens.is_multiple_of(BLOCK));
        Prefix { tokens, blocks: self.blocks[..tokens / BLOCK].into() }
    }

    fn of_blocks(&self, blocks: usize) -> usize {
        (blocks * BLOCK).min(self.tokens)
    }

    /// Whether both are the same memory, as those of forks are.
    pub fn is(&self, other: &Prefix) -> bool {
        Arc::ptr_eq(&self.blocks, &other.blocks)
    }

    /// Tokens of whole blocks that both begin with; all if they are equal.
    pub fn shared_with(&self, other: &Prefix) -> usize {
        if self.is(other) {
            return self.tokens;
        }
        let equal = self.blocks.iter().zip(&*other.blocks).take_while(|(own, other)| own == other).count();
        self.of_blocks(equal)
    }
}

/// Most blocks of one generation: two of them are 32 million tokens.
const MOST_BLOCKS: usize = 1 << 20;

/// The prefixes that were given to a replica. The oldest are forgotten, a generation at a time.
#[derive(Default)]
pub struct KnownPrefixes {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl KnownPrefixes {
    fn has(&self, block: &u64) -> bool {
        self.young.contains(block) || self.old.contains(block)
    }

    /// How many of its tokens are known.
    pub fn known(&self, prefix: &Prefix) -> usize {
        prefix.of_blocks(prefix.blocks.iter().take_while(|block| self.has(block)).count())
    }

    /// Makes all of its tokens known; how many of them were.
    pub fn note(&mut self, prefix: &Prefix) -> usize {
        let known = self.known(prefix);
        self.young.extend(prefix.blocks.iter());
        if self.young.len() > MOST_BLOCKS {
            self.old = std::mem::take(&mut self.young);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_core::ids::AdapterVersion;

    fn with_adapter(text: &str, adapter: Option<AdapterVersion>) -> Prefix {
        Prefix::of(&TokenPath::of(None, adapter, text.bytes().map(|byte| TokenId(u32::from(byte))).collect()), &[])
    }

    fn prefix(text: &str) -> Prefix {
        with_adapter(text, None)
    }

    #[test]
    fn what_is_shared_is_counted_in_whole_blocks_and_equal_paths_share_all() {
        let (header, body) = ("a".repeat(40), "b".repeat(10));
        let long = prefix(&(header.clone() + &body));
        assert_eq!(long.shared_with(&prefix(&(header.clone() + "c"))), 32);
        assert_eq!(long.shared_with(&prefix(&(header.clone() + &body))), 50);
        assert_eq!(long.shared_with(&prefix(&body)), 0);
        let [first, again, other] = [0, 0, 1].map(|version| with_adapter(&header, Some(AdapterVersion(version))));
        assert_eq!([&again, &other, &prefix(&header)].map(|path| first.shared_with(path)), [40, 0, 0]);
        let mut adapted = TokenPath::new(header.bytes().map(|byte| TokenId(u32::from(byte))).collect());
        adapted.set_adapter(Some(AdapterVersion(0)));
        assert_eq!(Prefix::of(&adapted, &[]).shared_with(&prefix(&header)), 32, "all but the last token");
        let mut known = KnownPrefixes::default();
        assert_eq!(known.note(&long), 0);
        assert_eq!(known.known(&prefix(&header)), 32);
        assert_eq!(known.note(&long), 50);
    }
}
