//! Sets of allowed tokens on the device. Each lies in a place of its own, where it stays for as many steps as requests
//! have it and no other set needs the place: a set that many requests share is copied once. A step whose requests have
//! other sets than the steps before copies those alone, all at once and beside what the device computes, so a set may
//! change with every step and every row.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use rayon::prelude::*;

use super::CHUNK;
use crate::compile::unit::Unit;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::copies::CopyStream;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::memory::{Memory, Pinned};
use crate::memory::staged::{STAGING_SLOTS, StagingSlot};
use offshoot_backend::{AllowedTokens, SampleRequest};
use offshoot_core::error::Result;

/// Places beside one for each request: for sets that no request of a step has and a later one may have again.
const SPARE: usize = 512;

/// Bytes of sets from which several threads copy them to page-locked memory.
const MANY: usize = 1 << 18;

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
    places: Vec<Place>,
    /// The place of each set that has one, by the set's address, which the place's weak reference keeps from being
    /// another's.
    of_set: HashMap<usize, u32>,
    /// Steps so far whose requests had sets.
    steps: u64,
}

struct Place {
    set: Weak<AllowedTokens>,
    /// The last step with a request of this set.
    used: u64,
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
    /// `room`, then those of sets that no request of this step has, the longest unused first, then new ones beyond
    /// `room`.
    pub fn place<'a>(&mut self, requests: &'a [SampleRequest], room: usize) -> Placed<'a> {
        let mut placed = Placed { of_requests: vec![None; requests.len()], filled: Vec::new() };
        if requests.iter().all(|request| set_of(request).is_none()) {
            return placed;
        }
        self.steps += 1;
        let mut lacking = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let Some(set) = set_of(request) else { continue };
            match self.of_set.get(&Arc::as_ptr(set).addr()) {
                Some(&place) => {
                    self.places[place as usize].used = self.steps;
                    placed.of_requests[at] = Some(place);
                }
                None => lacking.push((at, set)),
            }
        }
        if lacking.is_empty() {
            return placed;
        }
        let (mut dead, mut held) = self.unused();
        for (at, set) in lacking {
            let place = match self.of_set.get(&Arc::as_ptr(set).addr()) {
                Some(&place) => place, // A request before this one has it, too.
                None => {
                    let place = self.free(&mut dead, &mut held, room);
                    self.put(place, set);
                    placed.filled.push((place, &**set));
                    place
                }
            };
            placed.of_requests[at] = Some(place);
        }
        placed
    }

    /// The places of sets that no request of this step has: of those that nobody has any more, and of the others, each
    /// list such that its last is to be taken first.
    fn unused(&self) -> (Vec<u32>, Vec<u32>) {
        let unused = (0u32..).zip(&self.places).filter(|(_, place)| place.used < self.steps);
        let (mut held, dead): (Vec<_>, Vec<_>) = unused.partition(|(_, place)| place.set.strong_count() > 0);
        held.sort_by_key(|(_, place)| place.used);
        let numbers = |of: Vec<(u32, &Place)>| of.into_iter().rev().map(|(number, _)| number).collect();
        (numbers(dead), numbers(held))
    }

    /// A place for another set.
    fn free(&mut self, dead: &mut Vec<u32>, held: &mut Vec<u32>, room: usize) -> u32 {
        let count = self.places.len();
        let reused = dead.pop().or_else(|| if count < room { None } else { held.pop() });
        reused.unwrap_or_else(|| {
            self.places.push(Place { set: Weak::new(), used: 0 });
            u32::try_from(count).expect("a place for each of a step's requests")
        })
    }

    /// Puts a set in the place of another one.
    fn put(&mut self, place: u32, set: &Arc<AllowedTokens>) {
        let new = Place { set: Arc::downgrade(set), used: self.steps };
        let old = std::mem::replace(&mut self.places[place as usize], new);
        self.of_set.remove(&old.set.as_ptr().addr());
        self.of_set.insert(Arc::as_ptr(set).addr(), place);
    }

    /// Places that have, or had, a set.
    pub fn count(&self) -> usize {
        self.places.len()
    }
}

/// The sets of a vocabulary on the device, u32 `[places, chunks, 16]`.
pub struct AllowedMemory {
    vocab: usize,
    places: Places,
    memory: Memory,
    place_sets: Function,
    copies: CopyStream,
    /// What a step copies: its new sets one after the other, then their places.
    copied: [CopiedSets; STAGING_SLOTS],
}

/// Sets on their way from the host to their places.
struct CopiedSets {
    pinned: Pinned,
    memory: Memory,
}

impl AllowedMemory {
    /// Room for no set.
    pub fn new(device: &Device, vocab: usize) -> Result<Self> {
        let none = || Ok(CopiedSets { pinned: device.pinned(0)?, memory: device.alloc(0)? });
        Ok(Self {
            vocab,
            places: Places::default(),
            memory: device.alloc(0)?,
            place_sets: device.function(&Unit::new(&units::PLACE_SETS), "place_sets")?,
            copies: CopyStream::new(device)?,
            copied: [none()?, none()?],
        })
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Makes room for the sets of so many requests, and for some that are not theirs.
    pub fn reserve(&mut self, device: &Device, requests: usize) -> Result<bool> {
        self.make_room(device, requests.saturating_add(SPARE))
    }

    /// Makes room for `sets` sets, those on the device lost where it had less. Returns whether the address changed.
    fn make_room(&mut self, device: &Device, sets: usize) -> Result<bool> {
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
    /// set, and whether the address changed. The step before last must be done.
    pub fn fill(
        &mut self,
        device: &Device,
        slot: StagingSlot,
        requests: &[SampleRequest],
    ) -> Result<(Vec<Option<u32>>, bool)> {
        let bytes = place_bytes(self.vocab);
        let mut placed = self.places.place(requests, self.memory.bytes() / bytes);
        let moves = self.make_room(device, self.places.count())?;
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
        if filled.is_empty() {
            return Ok(());
        }
        let of_set = place_bytes(self.vocab);
        let of_sets = filled.len() * of_set;
        let bytes = of_sets + filled.len() * size_of::<u32>();
        let CopiedSets { pinned, memory } = &mut self.copied[slot.ix()];
        if bytes > memory.bytes().min(pinned.len()) {
            let larger = bytes.next_power_of_two();
            *pinned = device.pinned(larger)?;
            *memory = device.alloc(0)?;
            *memory = device.alloc(larger)?;
        }
        let (sets, places) = pinned[..bytes].split_at_mut(of_sets);
        let put = |(own, (_, set)): (&mut [u8], &(u32, &AllowedTokens))| {
            assert_eq!(set.vocab(), self.vocab, "sample: allowed tokens and logits of one vocabulary");
            let words: &[u8] = bytemuck::cast_slice(set.words());
            let (own, rest) = own.split_at_mut(words.len());
            own.copy_from_slice(words);
            rest.fill(0);
        };
        match of_sets < MANY {
            true => sets.chunks_exact_mut(of_set).zip(filled).for_each(put),
            false => sets.par_chunks_exact_mut(of_set).zip(filled).for_each(put),
        }
        for (own, (place, _)) in places.chunks_exact_mut(size_of::<u32>()).zip(filled) {
            own.copy_from_slice(&place.to_le_bytes());
        }
        self.copies.upload(memory, pinned, bytes)?;
        let count = u32::try_from(filled.len()).expect("a set for each of a step's requests at most");
        let quads = u32::try_from(of_set / 16).expect("the vocabulary has at most 2^20 tokens");
        let args = Args::new().memory(memory).memory_at(memory, of_sets).memory(&self.memory).u32(quads);
        device.launch(&self.place_sets, [count, 1, 1], 256, 0, &args);
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
        // Place 1 alone is left by this step: its set is copied again when it is needed.
        let fifth = place(&mut places, &[Some(&c), Some(&e), Some(&d)], 3);
        assert_eq!(fifth, (vec![Some(0), Some(1), Some(2)], vec![1]));
        let all = place(&mut places, &[Some(&b), Some(&c), Some(&d), Some(&e)], 3);
        assert_eq!(all, (vec![Some(3), Some(0), Some(2), Some(1)], vec![3]), "one more than there is room for");
    }

    #[test]
    fn the_set_that_is_unused_the_longest_gives_its_place() {
        let (mut places, [a, b, c, d]) = (Places::default(), [1, 2, 3, 4].map(set));
        place(&mut places, &[Some(&a), Some(&b), Some(&c)], 3);
        place(&mut places, &[Some(&a)], 3);
        place(&mut places, &[Some(&c)], 3);
        assert_eq!(place(&mut places, &[Some(&d)], 3), (vec![Some(1)], vec![1]));
        assert_eq!(place(&mut places, &[Some(&c), Some(&b)], 3), (vec![Some(2), Some(0)], vec![0]));
        assert!(place(&mut places, &[Some(&c), Some(&b)], 3).1.is_empty(), "both have places");
    }

    #[test]
    fn a_set_has_whole_chunks() {
        assert_eq!([1, 512, 513, 128_256].map(place_bytes), [64, 64, 128, 251 * 64]);
    }
}
