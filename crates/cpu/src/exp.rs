//! `e^x` by a polynomial, for 1, 8 and 16 numbers at a time; used by activations and sampling. All widths compute the
//! same bits, with the same fused operations in the same order. The error is below 1.5 units in the last place (tested
//! over the whole range).
//!
//! Arguments below [`LOWEST`] give 0 (no denormals), above [`HIGHEST`] `e^HIGHEST`; NaN stays NaN.

/// Below this, `e^x` is less than the smallest normal f32 and is returned as zero.
pub const LOWEST: f32 = -87.336_54;
/// Arguments are clamped to this: `e^88` is still finite in f32.
pub const HIGHEST: f32 = 88.0;

// x = n ln 2 + r with |r| <= ln 2 / 2. ln 2 is split in two, the high part with trailing zeros so that n * LN2_HIGH is
// exact.
const LOG2_E: f32 = std::f32::consts::LOG2_E;
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// e^r = 1 + r + r^2 P(r) for |r| <= ln 2 / 2; coefficients of Cephes' expf, highest power first.
const P: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
/// Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits; subtracting it gives that integer.
const ROUND: f32 = 12_582_912.0;

/// `e^x`. Vectorises inside functions compiled for FMA; elsewhere each fused multiply-add is a library call.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = x.clamp(LOWEST, HIGHEST);
    let shifted = clamped.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(LN2_LOW, (-n).mul_add(LN2_HIGH, clamped));
    let mut p = P[0];
    for c in &P[1..] {
        p = p.mul_add(r, *c);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    // The low bits of `shifted` hold n; the set bits of ROUND itself lie at bit 22 and above, so the shift drops them.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let y = p * power;
    if x < LOWEST { 0.0 } else { y }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;

    /// Eight `e^x`.
    ///
    /// # Safety
    /// Within functions compiled for AVX2 and FMA it is safe; elsewhere the processor must have them.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn exp_avx2(x: __m256) -> __m256 {
        // max and min return their second operand when one is NaN: so NaN passes through both.
        let clamped = _mm256_min_ps(_mm256_set1_ps(HIGHEST), _mm256_max_ps(_mm256_set1_ps(LOWEST), x));
        let shifted = _mm256_fmadd_ps(clamped, _mm256_set1_ps(LOG2_E), _mm256_set1_ps(ROUND));
        let n = _mm256_sub_ps(shifted, _mm256_set1_ps(ROUND));
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_HIGH), clamped);
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_LOW), r);
        let mut p = _mm256_set1_ps(P[0]);
        for c in &P[1..] {
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
        }
        let p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0));
        let power = _mm256_add_epi32(
            _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted)),
            _mm256_castps_si256(_mm256_set1_ps(1.0)),
        );
        let y = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
        _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(LOWEST)), y)
    }

    /// Sixteen `e^x`.
    ///
    /// # Safety
    /// Within functions compiled for AVX-512 F it is safe; elsewhere the processor must have it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn exp_avx512(x: __m512) -> __m512 {
        // max and min return their second operand when one is NaN: so NaN passes through both.
        let clamped = _mm512_min_ps(_mm512_set1_ps(HIGHEST), _mm512_max_ps(_mm512_set1_ps(LOWEST), x));
        let shifted = _mm512_fmadd_ps(clamped, _mm512_set1_ps(LOG2_E), _mm512_set1_ps(ROUND));
        let n = _mm512_sub_ps(shifted, _mm512_set1_ps(ROUND));
        let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_HIGH), clamped);
        let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_LOW), r);
        let mut p = _mm512_set1_ps(P[0]);
        for c in &P[1..] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
        }
        let p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0));
        let power = _mm512_add_epi32(
            _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted)),
            _mm512_castps_si512(_mm512_set1_ps(1.0)),
        );
        let y = _mm512_mul_ps(p, _mm512_castsi512_ps(power));
        _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(LOWEST)), _mm512_setzero_ps())
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{exp_avx2, exp_avx512};
