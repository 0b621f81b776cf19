//! The cache of masks, by state, and of their sets, each once. Bounded in bytes: what was unused longest is dropped.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use offshoot_backend::AllowedTokens;

use crate::mask::{RawMask, StateMask};
use crate::state::{ByState, StateKey};

/// Bytes of a state's entry beside its set: the key, the mask, and room of the table.
const ENTRY_BYTES: usize = 256;
/// Parts of the sets: a power of 2.
const PARTS: usize = 32;

/// Two generations of masks: when the younger has half of the bytes allowed, the older is forgotten, and the younger
/// becomes the older. A mask that is used becomes young again.
pub(crate) struct MaskCache {
    young: Generation,
    old: Generation,
    most_bytes: usize,
}

#[derive(Default)]
struct Generation {
    masks: ByState<Arc<StateMask>>,
    /// The addresses of the sets of its masks, so that each set's bytes count once.
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
        MaskCache { young: Generation::default(), old: Generation::default(), most_bytes }
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

    /// Keeps the mask of a state.
    pub fn put(&mut self, key: StateKey, mask: Arc<StateMask>) {
        self.young.insert(key, mask);
        if self.young.bytes > self.most_bytes / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

/// The sets that masks have, each once. Many threads look for theirs at a time: each part has a lock of its own, which
/// is not held while sets are compared.
#[derive(Default)]
pub(crate) struct SharedSets {
    parts: [Mutex<SetsPart>; PARTS],
}

/// The sets whose hashes have some bits in common.
#[derive(Default)]
struct SetsPart {
    sets: HashMap<u64, Vec<Weak<AllowedTokens>>>,
    /// Entries of `sets` when those that nobody has were last removed.
    swept: usize,
}

impl SharedSets {
    /// The mask, and whether its set is one that another mask has.
    pub fn share(&self, raw: RawMask, vocab: usize) -> (Arc<StateMask>, bool) {
        let RawMask { words, hash, forced, may_end, only_end } = raw;
        let (set, is_shared) = self.share_set(AllowedTokens::from_words(words, vocab), hash);
        (Arc::new(StateMask { allowed: Some(set), forced, may_end, only_end }), is_shared)
    }

    fn share_set(&self, set: AllowedTokens, hash: u64) -> (Arc<AllowedTokens>, bool) {
        let held: Vec<Arc<AllowedTokens>> = self.part(hash).held(hash).collect();
        if let Some(held) = held.into_iter().find(|held| **held == set) {
            return (held, true);
        }
        let mut part = self.part(hash);
        // Another thread may have added it meanwhile.
        if let Some(held) = part.held(hash).find(|held| **held == set) {
            return (held, true);
        }
        let set = Arc::new(set);
        part.add(hash, &set);
        (set, false)
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, SetsPart> {
        self.parts[(hash >> 32) as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SetsPart {
    fn held(&self, hash: u64) -> impl Iterator<Item = Arc<AllowedTokens>> {
        self.sets.get(&hash).into_iter().flatten().filter_map(Weak::upgrade)
    }

    fn add(&mut self, hash: u64, set: &Arc<AllowedTokens>) {
        if self.sets.len() > 2 * self.swept.max(512 / PARTS) {
            self.sets.retain(|_, same_hash| {
                same_hash.retain(|held| held.strong_count() > 0);
                !same_hash.is_empty()
            });
            self.swept = self.sets.len();
        }
        let same_hash = self.sets.entry(hash).or_default();
        same_hash.retain(|held| held.strong_count() > 0);
        same_hash.push(Arc::downgrade(set));
    }
}
