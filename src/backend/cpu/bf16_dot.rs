//! The software twin of AVX-512's bf16 instructions, for one lane: the same bits on every processor, so that the
//! arithmetic of `Isa::Avx512Bf16` can be tested where the instructions are missing. After the pseudo-code of VDPBF16PS
//! and VCVTNEPS2BF16 in Intel's instruction set reference; the tests hold it against the instructions where the
//! processor has them.

/// `acc` plus the products of two pairs of bf16 (VDPBF16PS): the later, high elements first, each product added by one
/// f32 multiply-add that rounds to nearest even. Subnormal operands count as zero, and so does a subnormal sum; both
/// keep their sign.
#[inline(always)]
pub fn dot(acc: f32, a: u32, b: u32) -> f32 {
    let acc = fused(flushed(acc), flushed(high(a)), flushed(high(b)));
    fused(acc, flushed(low(a)), flushed(low(b)))
}

/// `x` rounded to bf16, to nearest even (VCVTNEPS2BF16); subnormals become zero, a NaN stays one.
#[inline(always)]
pub fn round(x: f32) -> u16 {
    let bits = flushed(x).to_bits();
    let rounded = if x.is_nan() { bits | 0x0040_0000 } else { bits + (0x7fff + (bits >> 16 & 1)) };
    (rounded >> 16) as u16
}

#[inline(always)]
fn low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

#[inline(always)]
fn high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

/// `x`, or a zero of its sign where it is subnormal.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// `acc + a * b`, rounded once and then flushed. A sum is subnormal if it lies below the smallest normal number when
/// rounded to 24 bits as if the exponent had no end; `mul_add` rounds to fewer bits there and may reach that number all
/// the same.
#[inline(always)]
fn fused(acc: f32, a: f32, b: f32) -> f32 {
    let sum = a.mul_add(b, acc);
    match sum.abs() == f32::MIN_POSITIVE && rounds_below_normal(acc, a, b) {
        true => 0f32.copysign(sum),
        false => flushed(sum),
    }
}

/// Whether `|acc + a * b|` is less than what rounds up to the smallest normal number: less than a quarter unit (of that
/// number's last place) below it. The sum is exact: the product is in f64, and what adding to it rounds off is kept
/// (Knuth's two-sum).
#[cold]
fn rounds_below_normal(acc: f32, a: f32, b: f32) -> bool {
    let (acc, product) = (f64::from(acc), f64::from(a) * f64::from(b));
    let sum = acc + product;
    let of_product = sum - acc;
    let rest = (acc - (sum - of_product)) + (product - of_product);
    let border = f64::from(f32::MIN_POSITIVE) * (1.0 - 2f64.powi(-25));
    sum.abs() < border || (sum.abs() == border && rest * sum.signum() < 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_pair_is_added_first_and_each_sum_is_rounded() {
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
        // 2^-126 - 2^-150 is a tie for `mul_add`, which goes back up; it has 24 bits and lies below the normal numbers.
        let (a, b) = (u32::from(round(2f32.powi(-75))), u32::from(round(-(2f32.powi(-75)))));
        assert_eq!(dot(f32::MIN_POSITIVE, a, b).to_bits(), 0);
        // 2^-126 - 2^-152 rounds to 2^-126 whatever the exponent may be.
        let b = u32::from(round(-(2f32.powi(-77))));
        assert_eq!(dot(f32::MIN_POSITIVE, a, b), f32::MIN_POSITIVE);
    }

    #[cfg(target_arch = "x86_64")]
    mod hardware {
        use std::arch::x86_64::*;

        use super::super::*;
        use crate::backend::cpu::Isa;

        /// # Safety
        /// The processor has AVX-512 BF16.
        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn dots(acc: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> [f32; 16] {
            let mut out = [0.0; 16];
            // SAFETY: the arrays hold sixteen words; all types are 512 bits without meaning of their own.
            unsafe {
                let pairs =
                    |x: &[u32; 16]| std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(x.as_ptr().cast()));
                _mm512_storeu_ps(out.as_mut_ptr(), _mm512_dpbf16_ps(_mm512_loadu_ps(acc.as_ptr()), pairs(a), pairs(b)));
            }
            out
        }

        /// # Safety
        /// The processor has AVX-512 BF16.
        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn rounds(x: &[f32; 16]) -> [u16; 16] {
            // SAFETY: `x` holds sixteen numbers; the result is sixteen halves without meaning of their own.
            unsafe { std::mem::transmute::<__m256bh, [u16; 16]>(_mm512_cvtneps_pbh(_mm512_loadu_ps(x.as_ptr()))) }
        }

        /// Words of any bits.
        struct Bits(u64);

        impl Bits {
            fn next(&mut self) -> u32 {
                for shift in [13, -7, 17] {
                    self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
                }
                self.0 as u32
            }

            /// A pair of bf16 whose exponents lie within 16 of `exponent`; a quarter are powers of two.
            fn pair(&mut self, exponent: u32) -> u32 {
                let mut half = || {
                    let bits = self.next();
                    let mantissa = if bits & 0x300 == 0 { 0 } else { bits & 0x7f };
                    (bits >> 16 & 0x8000) | (exponent + (bits >> 10 & 15)) << 7 | mantissa
                };
                half() | half() << 16
            }
        }

        /// Sums, and pairs to be multiplied, of one kind.
        type Kind = fn(&mut Bits) -> (f32, u32, u32);

        /// Any bits at all: NaN, infinities and sums that overflow; numbers near 1, where roundings meet; subnormal
        /// operands; products about the smallest normal number; and sums that reach it from above and below.
        const KINDS: [(&str, Kind); 5] = [
            ("any bits", |bits| (f32::from_bits(bits.next()), bits.next(), bits.next())),
            ("near 1", |bits| {
                (f32::from_bits(bits.next() & 0x80ff_ffff | 0x3f00_0000), bits.pair(119), bits.pair(119))
            }),
            ("subnormal", |bits| (f32::from_bits(bits.next() & 0x80ff_ffff), bits.next() & 0x80ff_80ff, bits.next())),
            ("small products", |bits| (f32::from_bits(bits.next() & 0x81ff_ffff), bits.pair(48), bits.pair(48))),
            ("smallest normal", |bits| {
                (f32::from_bits((bits.next() & 0x8000_0003) + 0x0080_0000), bits.pair(52), bits.pair(52))
            }),
        ];

        /// Bit for bit, but for which NaN it is.
        #[test]
        fn the_twin_computes_what_the_instructions_compute() {
            if !Isa::available().contains(&Isa::Avx512Bf16) {
                println!("skipped: this processor has no bf16 dot products");
                return;
            }
            let mut bits = Bits(0x9e37_79b9_7f4a_7c15);
            for (kind, draw) in KINDS {
                for _ in 0..20_000 {
                    let drawn: [(f32, u32, u32); 16] = std::array::from_fn(|_| draw(&mut bits));
                    let (acc, a, b) = (drawn.map(|d| d.0), drawn.map(|d| d.1), drawn.map(|d| d.2));
                    // SAFETY: the processor has the instructions.
                    let (found, rounded) = unsafe { (dots(&acc, &a, &b), rounds(&acc)) };
                    for i in 0..16 {
                        let twin = dot(acc[i], a[i], b[i]);
                        let same = found[i].to_bits() == twin.to_bits() || (found[i].is_nan() && twin.is_nan());
                        assert!(same, "{kind}: {} + {:08x} . {:08x} is {}, not {twin}", acc[i], a[i], b[i], found[i]);
                        assert_eq!(rounded[i], round(acc[i]), "{kind}: {} rounded", acc[i]);
                    }
                }
            }
        }
    }
}
