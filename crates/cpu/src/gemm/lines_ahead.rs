//! The lines of weights that a kernel call prefetches, one after another, and the cache they go to. `drive` chooses
//! them; kernels say when the next one is due.

#[cfg(target_arch = "x86_64")]
use crate::memory::prefetch_line;
use crate::memory::{CacheLevel, CacheLine};

/// Lines of the first panel of a kernel call. May lie past the end of the weights.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "kernels are for x86"))]
pub struct LinesAhead {
    into: CacheLevel,
    at: *const u8,
    /// Lines to prefetch from here, before those at `then`.
    left: usize,
    then: *const u8,
}

impl LinesAhead {
    /// Lines between one in use and the one that is prefetched with it, where they are prefetched soon before they are
    /// read. Half as many brought less (benches/cpu/NOTES.md).
    pub const DISTANCE: usize = 32;

    /// Cache lines that are `DISTANCE` lines ahead of the strip at `strip`, which has `lines` lines; the strip at
    /// `next` follows it. They are prefetched into the first-level cache.
    pub fn soon(strip: *const u8, lines: usize, next: *const u8) -> Self {
        let ahead = Self::DISTANCE * size_of::<CacheLine>();
        match lines.checked_sub(Self::DISTANCE) {
            Some(left) => Self { into: CacheLevel::First, at: strip.wrapping_add(ahead), left, then: next },
            None => Self::all_from(next.wrapping_add(ahead - lines * size_of::<CacheLine>()), CacheLevel::First),
        }
    }

    /// All from one place on.
    pub fn all_from(at: *const u8, into: CacheLevel) -> Self {
        Self { into, at, left: usize::MAX, then: at }
    }

    /// The next line.
    #[inline(always)]
    pub fn next_line(&mut self) -> *const u8 {
        if self.left == 0 {
            (self.at, self.left) = (self.then, usize::MAX);
        }
        let line = self.at;
        self.at = line.wrapping_add(size_of::<CacheLine>());
        self.left -= 1;
        line
    }

    /// Prefetches the next line of each of `PANELS` panels. One branch for all of them.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn prefetch<const PANELS: usize>(&mut self, panel_bytes: usize) {
        match self.into {
            CacheLevel::First => self.prefetch_into::<PANELS>(panel_bytes, CacheLevel::First),
            CacheLevel::Second => self.prefetch_into::<PANELS>(panel_bytes, CacheLevel::Second),
        }
    }

    /// Like `prefetch`, where it is known that the lines go to the cache `into`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn prefetch_into<const PANELS: usize>(&mut self, panel_bytes: usize, into: CacheLevel) {
        debug_assert_eq!(self.into, into);
        let line = self.next_line();
        for p in 0..PANELS {
            prefetch_line(line.wrapping_add(p * panel_bytes), into);
        }
    }
}
