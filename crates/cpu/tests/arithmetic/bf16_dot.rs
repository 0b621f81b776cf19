//! The bf16 instructions of AVX-512 and AMX for one lane, in software, following the pseudo-code of VDPBF16PS,
//! TDPBF16PS and VCVTNEPS2BF16 in Intel's instruction set reference. Where the processor has the instructions they are
//! compared with it, and so are the products of linear layers, whose order of sums it defines to the bit.

/// `acc` plus the products of two pairs of bf16 (VDPBF16PS): first the high elements, then the low ones, each by one
/// f32 fused multiply-add rounded to nearest even. Subnormal operands and subnormal sums become zeros of the same sign.
pub fn dot(acc: f32, a: u32, b: u32) -> f32 {
    let acc = fused(flushed(acc), flushed(high(a)), flushed(high(b)));
    fused(acc, flushed(low(a)), flushed(low(b)))
}

/// `acc` plus the product of a row and a column of bf16 tiles (TDPBF16PS), pairs of elements along the sum: a chain of
/// fused multiply-adds over the low elements and one over the high ones, then their sum.
#[cfg(target_arch = "x86_64")]
#[cfg(target_arch = "x86_64")]
pub fn tile_dot(acc: f32, a: impl Iterator<Item = u32>, b: impl Iterator<Item = u32>) -> f32 {
    let mut sums = (0.0, 0.0);
    for (a, b) in a.zip(b) {
        sums.0 = fused(sums.0, flushed(low(a)), flushed(low(b)));
        sums.1 = fused(sums.1, flushed(high(a)), flushed(high(b)));
    }
    flushed(flushed(acc) + flushed(sums.0 + sums.1))
}

/// `x` rounded to bf16, to nearest even (VCVTNEPS2BF16). Subnormals become zero; a NaN stays a NaN.
pub fn round(x: f32) -> u16 {
    let bits = flushed(x).to_bits();
    let rounded = if x.is_nan() { bits | 0x0040_0000 } else { bits + (0x7fff + (bits >> 16 & 1)) };
    (rounded >> 16) as u16
}

/// The first element of a pair.
pub fn low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

/// The second element of a pair.
pub fn high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

/// `x`, or a zero of its sign if it is subnormal.
pub fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// `acc + a * b`, rounded once and then flushed. The instruction rounds to 24 bits with an unbounded exponent and
/// flushes a result below the smallest normal number. `mul_add` rounds to fewer bits there and may round up to that
/// number, so this case is checked separately.
fn fused(acc: f32, a: f32, b: f32) -> f32 {
    let sum = a.mul_add(b, acc);
    match sum.abs() == f32::MIN_POSITIVE && rounds_below_normal(acc, a, b) {
        true => 0f32.copysign(sum),
        false => flushed(sum),
    }
}

/// Whether `|acc + a * b|` rounds to less than the smallest normal number when rounded to 24 bits with an unbounded
/// exponent: whether it lies more than a quarter unit (of that number's last place) below it. The sum is exact: the
/// product is exact in f64, and the rounding error of the addition is kept (Knuth's two-sum).
fn rounds_below_normal(acc: f32, a: f32, b: f32) -> bool {
    let (acc, product) = (f64::from(acc), f64::from(a) * f64::from(b));
    let sum = acc + product;
    let of_product = sum - acc;
    let rest = (acc - (sum - of_product)) + (product - of_product);
    let threshold = f64::from(f32::MIN_POSITIVE) * (1.0 - 2f64.powi(-25));
    sum.abs() < threshold || (sum.abs() == threshold && rest * sum.signum() < 0.0)
}

#[test]
fn high_elements_are_added_first_and_each_sum_is_rounded() {
    let pair = |low: f32, high: f32| u32::from(round(low)) | u32::from(round(high)) << 16;
    // 1 + 2^-24 is a tie and goes to 1; 2^-24 + 2^-24 first would have reached the next number.
    let small = 2f32.powi(-24);
    assert_eq!(dot(1.0, pair(small, small), pair(1.0, 1.0)), 1.0);
    // The high product takes the sum to 2^24, where adding 1 is lost; the other way round it is not.
    assert_eq!(dot(-1.0, pair(1.0, 16_777_216.0), pair(1.0, 1.0)), 16_777_216.0);
    assert_eq!(dot(-16_777_216.0, pair(1.0, 16_777_216.0), pair(1.0, 1.0)), 1.0);
}

#[test]
fn subnormals_are_zeros_of_their_sign() {
    let tiny = f32::from_bits(1);
    assert_eq!(dot(-tiny, 0, 0).to_bits(), 0f32.to_bits(), "-0 + 0 * 0 twice");
    assert_eq!(dot(tiny, 1, 0x3f80).to_bits(), 0);
    assert_eq!((round(tiny), round(-tiny), round(f32::MIN_POSITIVE)), (0, 0x8000, 0x80));
    // 2^-126 - 2^-150 is a tie for `mul_add`, which rounds up; with 24 bits it is exact and subnormal.
    let (a, b) = (u32::from(round(2f32.powi(-75))), u32::from(round(-(2f32.powi(-75)))));
    assert_eq!(dot(f32::MIN_POSITIVE, a, b).to_bits(), 0);
    // 2^-126 - 2^-152 rounds to 2^-126 even with an unbounded exponent.
    let b = u32::from(round(-(2f32.powi(-77))));
    assert_eq!(dot(f32::MIN_POSITIVE, a, b), f32::MIN_POSITIVE);
}
