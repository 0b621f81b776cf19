//! Seeded choices (SplitMix64), so that every failure can be replayed from the seed that its message names.

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `from ..= to`.
    pub fn within(&mut self, from: u32, to: u32) -> u32 {
        from + u32::try_from(self.next() % u64::from(to - from + 1)).expect("smaller than a u32")
    }

    /// True once in `n` throws on average.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.within(1, n) == 1
    }

    /// Panics when there is nothing to pick.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(1, u32::try_from(from.len()).expect("a short list")) as usize - 1]
    }
}
