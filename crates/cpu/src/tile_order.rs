//! Products of one row by AVX-512 BF16, added up in the order of tiles (see `amx`): for each element two chains of
//! fused multiply-adds, over the first and over the second of each pair, of 16 pairs at most, whose sum is added. So
//! one row is multiplied at the speed at which vectors are read, which is faster than tiles are loaded, with the
//! results that it has among other rows.
//!
//! A dot product of two pairs, of which one element is zero, is one fused multiply-add of the others, and like tiles it
//! counts subnormal numbers as zeros. What differs: the zero that is left of a negative sum of magnitude below 1.2e-38
//! may have the other sign, and an infinity in a column gives NaN.

use std::arch::x86_64::*;

use super::amx::TILE_ROWS;

/// Pairs of a chain: those of one product of tiles.
pub const CHAIN: usize = TILE_ROWS;

/// Two bf16 in all lanes: once without the second one, once without the first.
#[derive(Clone, Copy)]
pub struct SplitPair {
    first: __m512bh,
    second: __m512bh,
}

impl SplitPair {
    /// # Safety
    /// The processor has AVX-512 BF16 and BW; `pair` can be read.
    #[inline(always)]
    pub unsafe fn load(pair: *const u32) -> Self {
        const FIRSTS: __mmask32 = 0x5555_5555;
        // SAFETY: promised by the caller; all types are 512 bits without invalid values.
        unsafe {
            let pair = _mm512_set1_epi32(pair.read().cast_signed());
            Self {
                first: std::mem::transmute::<__m512i, __m512bh>(_mm512_maskz_mov_epi16(FIRSTS, pair)),
                second: std::mem::transmute::<__m512i, __m512bh>(_mm512_maskz_mov_epi16(!FIRSTS, pair)),
            }
        }
    }
}

/// The chains of `N` vectors of sixteen columns.
pub struct PairChains<const N: usize> {
    firsts: [__m512; N],
    seconds: [__m512; N],
}

impl<const N: usize> PairChains<N> {
    /// # Safety
    /// As for all functions here: the processor has AVX-512 BF16, BW and DQ.
    #[inline(always)]
    pub unsafe fn zero() -> Self {
        // SAFETY: promised by the caller.
        let zero = unsafe { _mm512_setzero_ps() };
        Self { firsts: [zero; N], seconds: [zero; N] }
    }

    /// Adds the products of the row's pair with a pair of each column of vector `n`, which are read from `columns`.
    ///
    /// # Safety
    /// As above; sixteen words can be read.
    #[inline(always)]
    pub unsafe fn add(&mut self, n: usize, row: SplitPair, columns: *const u32) {
        // SAFETY: promised by the caller; both types are 512 bits without invalid values.
        unsafe {
            let columns = std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(columns.cast()));
            self.firsts[n] = _mm512_dpbf16_ps(self.firsts[n], row.first, columns);
            self.seconds[n] = _mm512_dpbf16_ps(self.seconds[n], row.second, columns);
        }
    }

    /// Adds the sum of the two chains of each vector to `sums`, of which none is subnormal.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    pub unsafe fn add_to(&self, sums: &mut [__m512; N]) {
        for (sum, (first, second)) in sums.iter_mut().zip(self.firsts.iter().zip(&self.seconds)) {
            // SAFETY: promised by the caller.
            unsafe { *sum = flushed(_mm512_add_ps(*sum, flushed(_mm512_add_ps(*first, *second)))) };
        }
    }
}

/// `x`, or in lanes that are subnormal a zero of their sign.
#[inline(always)]
unsafe fn flushed(x: __m512) -> __m512 {
    const SUBNORMAL: i32 = 0x20;
    // SAFETY: promised by the caller.
    unsafe { _mm512_mask_and_ps(x, _mm512_fpclass_ps_mask::<SUBNORMAL>(x), x, _mm512_set1_ps(-0.0)) }
}
