//! The masks that were computed, by state, and their sets, each once. Bounded in bytes: what was not used lately goes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use offshoot_backend::AllowedTokens;

use crate::mask::{RawMask, StateMask};
use crate::state::StateKey;

/// Bytes of a state's entry beside its set: the key, the mask, and room of the table.
const ENTRY_BYTES: usize = 256;

/// Two generations of masks: when the younger has half of the bytes allowed, the older is forgotten, and the younger
/// becomes the older. A mask that is used becomes young again.
pub(crate) struct MaskCache {
    young: Generation,
    old: Generation,
    sets: HashMap<u64, Vec<Weak<AllowedTokens>>>,
    /// Entries of `sets` when those that nobody has were last removed.
    swept: usize,
    most_bytes: usize,
    /// Masks computed whose set another mask had.
    pub shared_sets: u64,
}

#[derive(Default)]
struct Generation {
    masks: HashMap<StateKey, Arc<StateMask>>,
    /// The addresses of the sets that its masks have.
    sets: HashSet<usize>,
    bytes: usize,
}

impl Generation {
    fn insert(&mut self, key: StateKey, mask: Arc<StateMask>) {
        self.bytes += ENTRY_BYTES;
        if let Some(set) = &mask.allowed
            && self.sets.insert(Arc::as_ptr(set) as usize)
        {
            self.bytes += 4 * set.words().len();
        }
        self.masks.insert(key, mask);
    }
}

impl MaskCache {
    pub fn new(most_bytes: usize) -> MaskCache {
        MaskCache {
            young: Generation::default(),
            old: Generation::default(),
            sets: HashMap::new(),
            swept: 0,
            most_bytes,
            shared_sets: 0,
        }
    }

    pub fn bytes(&self) -> usize {
        self.young.bytes + self.old.bytes
    }

    pub fn get(&mut self, key: &StateKey) -> Option<Arc<StateMask>> {
        if let Some(mask) = self.young.masks.get(key) {
            return Some(mask.clone());
        }
        let mask = self.old.masks.get(key)?.clone();
        self.put(*key, mask.clone());
        Some(mask)
    }

    /// Keeps the mask of a state that has none yet.
    pub fn insert(&mut self, key: StateKey, raw: RawMask, vocab: usize) -> Arc<StateMask> {
        let RawMask { words, hash, forced, may_end, only_end } = raw;
        let allowed = Some(self.share(AllowedTokens::from_words(words, vocab), hash));
        let mask = Arc::new(StateMask { allowed, forced, may_end, only_end });
        self.put(key, mask.clone());
        mask
    }

    fn put(&mut self, key: StateKey, mask: Arc<StateMask>) {
        self.young.insert(key, mask);
        if self.young.bytes > self.most_bytes / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// The set that another mask has, if one has the same.
    fn share(&mut self, set: AllowedTokens, hash: u64) -> Arc<AllowedTokens> {
        if self.sets.len() > 2 * self.swept.max(512) {
            self.sets.retain(|_, same_hash| {
                same_hash.retain(|held| held.strong_count() > 0);
                !same_hash.is_empty()
            });
            self.swept = self.sets.len();
        }
        let same_hash = self.sets.entry(hash).or_default();
        if let Some(held) = same_hash.iter().filter_map(Weak::upgrade).find(|held| **held == set) {
            self.shared_sets += 1;
            return held;
        }
        let set = Arc::new(set);
        same_hash.retain(|held| held.strong_count() > 0);
        same_hash.push(Arc::downgrade(&set));
        set
    }
}
