//! The cache line that buffers are made of, and prefetching one into a cache. How much memory is free is left to
//! `core::memory`.

use bytemuck::{Pod, Zeroable};

/// 64 bytes, aligned: buffers of lines let no vector load cross a cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct CacheLine(pub [f32; 16]);

/// A cache of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLevel {
    First,
    Second,
}

/// Brings the line at `address` into a cache. The address need not be valid.
#[inline(always)]
pub fn prefetch_line(address: *const u8, into: CacheLevel) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match into {
            CacheLevel::First => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
            CacheLevel::Second => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, into);
}
