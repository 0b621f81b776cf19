//! Sets of allowed tokens on the device. Each lies in a place of its own, where it stays for as many steps as requests
//! have it and no other set needs the place: a set that many requests share is copied once. A step whose requests have
//! other sets than the step before copies those alone, so a set may change with every step.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use super::CHUNK;
use crate::driver::device::Device;
use crate::driver::memory::{Memory, Pinned};
use crate::memory::staged::{STAGING_SLOTS, StagingSlot};
use offshoot_backend::{AllowedTokens, SampleRequest};
use offshoot_core::error::Result;

/// The bytes of a set on the device: one bit for each token of whole chunks of the vocabulary.
pub fn place_bytes(vocab: usize) -> usize {
    vocab.div_ceil(CHUNK) * CHUNK / 8
}

/// The set that decides what a request samples; a given token is sampled whatever is allowed, and may be recorded as
/// one that the set excludes.
fn set_of(request: &SampleRequest) -> Option<&Arc<AllowedTokens>> {
    request.allowed.as_ref().filter(|_| request.depends_on_scores())
}

/// Which set lies in which place.
#[derive(Default)]
pub struct Places {
    sets: Vec<Weak<AllowedTokens>>,
}

/// Where the sets of a step's requests lie.
#[derive(Debug, Default)]
pub struct Placed<'a> {
    /// The place of each request's set.
    pub of_requests: Vec<Option<u32>>,
    /// The places that get another set.
    pub filled: Vec<(u32, &'a AllowedTokens)>,
}

impl Places {
    /// Gives every set of `requests` a place. First come those of sets that nobody has any more, then new ones up to
    /// `room`, then those of sets that no request of this step has, then new ones beyond it.
    pub fn place<'a>(&mut self, requests: &'a [SampleRequest], room: usize) -> Placed<'a> {
        let of_requests = vec![None; requests.len()];
        let mut placed = Placed { of_requests, filled: Vec::new() };
        if requests.iter().all(|request| set_of(request).is_none()) {
            return placed;
        }
        // A place's weak reference keeps the address of its set from being another's.
        let mut place_of: HashMap<*const AllowedTokens, u32> = self.sets.iter().map(Weak::as_ptr).zip(0..).collect();
        let used: HashSet<u32> =
            requests.iter().filter_map(set_of).filter_map(|set| place_of.get(&Arc::as_ptr(set)).copied()).collect();
        let others = (0u32..).zip(&self.sets).filter(|(place, _)| !used.contains(place));
        let (held, dead): (Vec<_>, Vec<_>) = others.partition(|(_, set)| set.strong_count() > 0);
        let places = |of: Vec<(u32, &Weak<_>)>| of.into_iter().map(|(place, _)| place).rev().collect::<Vec<u32>>();
        let (mut held, mut dead) = (places(held), places(dead));
        for (request, of_request) in requests.iter().zip(&mut placed.of_requests) {
            let Some(set) = set_of(request) else { continue };
            let place = *place_of.entry(Arc::as_ptr(set)).or_insert_with(|| {
                let count = self.sets.len();
                let reused = dead.pop().or_else(|| if count < room { None } else { held.pop() });
                let place = reused.unwrap_or_else(|| {
                    self.sets.push(Weak::new());
                    u32::try_from(count).expect("a place for each of a step's requests")
                });
                self.sets[place as usize] = Arc::downgrade(set);
                placed.filled.push((place, &**set));
                place
            });
            *of_request = Some(place);
        }
        placed
    }

    /// Places that have, or had, a set.
    pub fn count(&self) -> usize {
        self.sets.len()
    }
}

/// The sets of a vocabulary on the device, u32 `[places, chunks, 16]`.
pub struct AllowedMemory {
    vocab: usize,
    places: Places,
    memory: Memory,
    /// The sets that a step copies, one after the other.
    pinned: [Pinned; STAGING_SLOTS],
}

impl AllowedMemory {
    /// Room for no set.
    pub fn new(device: &Device, vocab: usize) -> Result<Self> {
        let pinned = [device.pinned(0)?, device.pinned(0)?];
        Ok(Self { vocab, places: Places::default(), memory: device.alloc(0)?, pinned })
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Makes room for `sets` sets, those on the device lost where it had less. Returns whether the address changed.
    pub fn reserve(&mut self, device: &Device, sets: usize) -> Result<bool> {
        let bytes = sets.saturating_mul(place_bytes(self.vocab));
        if bytes <= self.memory.bytes() {
            return Ok(false);
        }
        self.places = Places::default();
        // Freed first: there may be no room for both.
        self.memory = device.alloc(0)?;
        self.memory = device.alloc(bytes)?;
        Ok(true)
    }

    /// Enqueues the copies of the sets of `requests` that are not on the device. Returns the place of each request's
    /// set, and whether the address changed. The copies of the step before last must be done.
    pub fn fill(
        &mut self,
        device: &Device,
        slot: StagingSlot,
        requests: &[SampleRequest],
    ) -> Result<(Vec<Option<u32>>, bool)> {
        let bytes = place_bytes(self.vocab);
        let mut placed = self.places.place(requests, self.memory.bytes() / bytes);
        let moves = self.reserve(device, self.places.count())?;
        if moves {
            placed = self.places.place(requests, self.memory.bytes() / bytes);
        }
        let copied = self.copy(device, slot, &placed.filled);
        if copied.is_err() {
            self.places = Places::default();
        }
        copied.map(|()| (placed.of_requests, moves))
    }

    fn copy(&mut self, device: &Device, slot: StagingSlot, filled: &[(u32, &AllowedTokens)]) -> Result<()> {
        let bytes = place_bytes(self.vocab);
        let pinned = &mut self.pinned[slot.ix()];
        if filled.len() * bytes > pinned.len() {
            *pinned = device.pinned((filled.len() * bytes).next_power_of_two())?;
        }
        for (number, &(place, set)) in filled.iter().enumerate() {
            assert_eq!(set.vocab(), self.vocab, "sample: allowed tokens and logits of one vocabulary");
            let at = number * bytes..(number + 1) * bytes;
            let words: &[u8] = bytemuck::cast_slice(set.words());
            let (own, rest) = pinned[at.clone()].split_at_mut(words.len());
            own.copy_from_slice(words);
            rest.fill(0);
            device.upload_pinned(&self.memory, place as usize * bytes, pinned, at)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::Pick;
    use offshoot_core::ids::TokenId;

    fn set(token: u32) -> Arc<AllowedTokens> {
        Arc::new(AllowedTokens::new([TokenId(token)], 40))
    }

    fn requests(sets: &[Option<&Arc<AllowedTokens>>]) -> Vec<SampleRequest> {
        let of = |set: &Option<&Arc<AllowedTokens>>| SampleRequest {
            allowed: set.cloned(),
            ..SampleRequest::of(Pick::Greedy)
        };
        sets.iter().map(of).collect()
    }

    /// The places of a step's requests, and those that are filled.
    fn place(places: &mut Places, sets: &[Option<&Arc<AllowedTokens>>], room: usize) -> (Vec<Option<u32>>, Vec<u32>) {
        let requests = requests(sets);
        let placed = places.place(&requests, room);
        (placed.of_requests, placed.filled.iter().map(|&(place, _)| place).collect())
    }

    #[test]
    fn a_set_is_copied_once_for_all_that_share_it() {
        let (mut places, [a, b]) = (Places::default(), [1, 2].map(set));
        assert_eq!(place(&mut places, &[None, None], 4), (vec![None, None], vec![]));
        let first = place(&mut places, &[Some(&a), None, Some(&b), Some(&a)], 4);
        assert_eq!(first, (vec![Some(0), None, Some(1), Some(0)], vec![0, 1]));
        assert_eq!(place(&mut places, &[Some(&b), Some(&a)], 4), (vec![Some(1), Some(0)], vec![]));
        let mut given = requests(&[Some(&set(3))]);
        given[0].pick = Pick::given(TokenId(1));
        assert!(places.place(&given, 4).of_requests == [None] && places.count() == 2, "given tokens need none");
    }

    #[test]
    fn places_of_sets_that_nobody_has_are_used_again_and_others_only_where_room_is_short() {
        let (mut places, [a, b, c, d]) = (Places::default(), [1, 2, 3, 4].map(set));
        place(&mut places, &[Some(&a), Some(&b)], 3);
        drop(a);
        assert_eq!(place(&mut places, &[Some(&c)], 3), (vec![Some(0)], vec![0]), "nobody has the first one any more");
        assert_eq!(place(&mut places, &[Some(&d)], 3), (vec![Some(2)], vec![2]), "there is room");
        let e = set(5);
        // Place 1 is left by this step alone: its set is copied again when it is needed.
        let fifth = place(&mut places, &[Some(&c), Some(&e), Some(&d)], 3);
        assert_eq!(fifth, (vec![Some(0), Some(1), Some(2)], vec![1]));
        let all = place(&mut places, &[Some(&b), Some(&c), Some(&d), Some(&e)], 3);
        assert_eq!(all, (vec![Some(3), Some(0), Some(2), Some(1)], vec![3]), "one more than there is room for");
    }

    #[test]
    fn a_set_has_whole_chunks() {
        assert_eq!([1, 512, 513, 128_256].map(place_bytes), [64, 64, 128, 251 * 64]);
    }
}
