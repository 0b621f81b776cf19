//! Seeded random choices (SplitMix64): every failure can be reproduced from the seed in its message.

use crate::ids::TokenId;
use crate::mix::{GOLDEN, mix};

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest an end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// `from ..= to`.
    pub fn within(&mut self, from: u32, to: u32) -> u32 {
        from + u32::try_from(self.next() % u64::from(to - from + 1)).expect("smaller than a u32")
    }

    /// True with probability 1 / `n`.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.within(1, n) == 1
    }

    /// A random element. Panics if `from` is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(1, u32::try_from(from.len()).expect("a short list")) as usize - 1]
    }

    /// Uniform in [-1, 1), of 24 bits.
    pub fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.number()).collect()
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `len` random tokens of a vocabulary of `vocab` tokens.
    pub fn text(&mut self, len: usize, vocab: usize) -> Vec<TokenId> {
        let last = u32::try_from(vocab - 1).expect("token ids are u32");
        (0..len).map(|_| TokenId(self.within(0, last))).collect()
    }
}

/// A number in [-1, 1) that depends only on the keys: for elements of data that is never stored as a whole.
pub fn noise(keys: [u64; 4]) -> f32 {
    let seed = keys.iter().fold(0, |seed, &key| mix((seed ^ key).wrapping_add(GOLDEN)));
    (mix(seed.wrapping_add(GOLDEN)) >> 40) as f32 / (1 << 23) as f32 - 1.0
}
