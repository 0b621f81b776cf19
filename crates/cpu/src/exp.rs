//! `e^x` by a polynomial; used by activations and sampling. Loops over it vectorise, and compute the same bits with
//! vectors of every width. The error is below 1.5 units in the last place (tested over the whole range).
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
