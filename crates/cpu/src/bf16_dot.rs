//! For tests alone: the bf16 instructions of AVX-512 and AMX for one lane, in software, following the pseudo-code of
//! VDPBF16PS, TDPBF16PS and VCVTNEPS2BF16 in Intel's instruction set reference. Where the processor has the instructions
//! they are compared with it, and so are the products of linear layers, whose order of sums it defines to the bit.

/// `acc` plus the products of two pairs of bf16 (VDPBF16PS): first the high elements, then the low ones, each by one
/// f32 fused multiply-add rounded to nearest even. Subnormal operands and subnormal sums become zeros of the same sign.
pub fn dot(acc: f32, a: u32, b: u32) -> f32 {
    let acc = fused(flushed(acc), flushed(high(a)), flushed(high(b)));
    fused(acc, flushed(low(a)), flushed(low(b)))
}

/// `acc` plus the product of a row and a column of bf16 tiles (TDPBF16PS), pairs of elements along the sum: a chain of
/// fused multiply-adds over the low elements and one over the high ones, then their sum.
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

fn low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

fn high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

/// `x`, or a zero of its sign if it is subnormal.
fn flushed(x: f32) -> f32 {
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[cfg(target_arch = "x86_64")]
    mod hardware {
        use std::arch::x86_64::*;

        use super::super::*;
        use crate::amx::{self, ShapedTiles, TILE_ROWS, TileShapes};
        use crate::tile_order::{PairChains, SplitPair};
        use crate::{Cpu, CpuBuffer, Isa};
        use offshoot_backend::{Backend, Dtype, MatrixPart, WeightView};

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

        /// A xorshift generator of words.
        struct RandomBits(u64);

        impl RandomBits {
            fn next(&mut self) -> u32 {
                for shift in [13, -7, 17] {
                    self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
                }
                self.0 as u32
            }

            /// A pair of bf16 with exponents in `exponent .. exponent + 16`; a quarter are powers of two.
            fn pair(&mut self, exponent: u32) -> u32 {
                let mut half = || {
                    let bits = self.next();
                    let mantissa = if bits & 0x300 == 0 { 0 } else { bits & 0x7f };
                    (bits >> 16 & 0x8000) | (exponent + (bits >> 10 & 15)) << 7 | mantissa
                };
                half() | half() << 16
            }
        }

        /// Returns random operands `(acc, a, b)`.
        type OperandSource = fn(&mut RandomBits) -> (f32, u32, u32);

        /// Arbitrary bits (with NaN, infinities and overflowing sums); numbers near 1, where rounding matters;
        /// subnormal operands; products near the smallest normal number; sums near it from above and below.
        const OPERAND_SOURCES: [(&str, OperandSource); 5] = [
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

        /// Sums plus the product of two tiles.
        ///
        /// # Safety
        /// The processor has AMX.
        unsafe fn product_of_tiles(sums: &Tile<f32>, a: &Tile<u32>, b: &Tile<u32>) -> Tile<f32> {
            let mut out = [[0.0; TILE_ROWS]; TILE_ROWS];
            let row_bytes = size_of::<[u32; TILE_ROWS]>();
            // SAFETY: the processor has the instructions; all operands are whole tiles.
            unsafe {
                let _tiles = ShapedTiles::new(&TileShapes::new([[TILE_ROWS; 2]; 8]));
                amx::load::<0>(sums.as_ptr().cast(), row_bytes);
                amx::load::<1>(a.as_ptr().cast(), row_bytes);
                amx::load::<2>(b.as_ptr().cast(), row_bytes);
                amx::add_product::<0, 1, 2>();
                amx::store::<0>(out.as_mut_ptr().cast(), row_bytes);
            }
            out
        }

        type Tile<T> = [[T; TILE_ROWS]; TILE_ROWS];

        /// Bit for bit, except for the payload of a NaN.
        #[test]
        fn the_emulation_computes_what_products_of_tiles_compute() {
            if !Isa::available().contains(&Isa::Amx) {
                return crate::skip::skipped("this processor has no AMX");
            }
            let mut bits = RandomBits(0x9e37_79b9_7f4a_7c15);
            for (kind, operands_of) in OPERAND_SOURCES {
                for _ in 0..200 {
                    let operands: Tile<(f32, u32, u32)> =
                        std::array::from_fn(|_| std::array::from_fn(|_| operands_of(&mut bits)));
                    let (sums, a, b) = (
                        operands.map(|row| row.map(|of| of.0)),
                        operands.map(|row| row.map(|of| of.1)),
                        operands.map(|row| row.map(|of| of.2)),
                    );
                    // SAFETY: the processor has the instructions.
                    let found = unsafe { product_of_tiles(&sums, &a, &b) };
                    for (r, c) in (0..TILE_ROWS).flat_map(|r| (0..TILE_ROWS).map(move |c| (r, c))) {
                        let own = tile_dot(sums[r][c], a[r].into_iter(), b.iter().map(|row| row[c]));
                        let same = found[r][c].to_bits() == own.to_bits() || (found[r][c].is_nan() && own.is_nan());
                        assert!(same, "{kind}: row {r}, column {c}: {} is {}, not {own}", sums[r][c], found[r][c]);
                    }
                }
            }
        }

        /// Row 0 of a product of tiles, added to sums.
        ///
        /// # Safety
        /// The processor has AVX-512 BF16, BW and DQ.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
        unsafe fn product_of_one_row(sums: &[f32; 16], a: &[u32], b: &Tile<u32>) -> [f32; 16] {
            let mut out = [0.0; 16];
            // SAFETY: the processor has the instructions; all operands have sixteen words.
            unsafe {
                let mut sums = [_mm512_loadu_ps(sums.as_ptr())];
                let mut chains = PairChains::<1>::zero();
                for (a, b) in a.iter().zip(b) {
                    chains.add(0, SplitPair::load(a), b.as_ptr());
                }
                chains.add_to(&mut sums);
                _mm512_storeu_ps(out.as_mut_ptr(), sums[0]);
            }
            out
        }

        /// Bit for bit, except for the sign of a zero; for chains of all lengths. Operands are finite: an infinity times
        /// the zero of a pair is a NaN.
        #[test]
        fn products_of_one_row_are_those_of_tiles() {
            if !Isa::available().contains(&Isa::Avx512Bf16) {
                return crate::skip::skipped("this processor has no bf16 dot products");
            }
            let mut bits = RandomBits(0x2545_f491_4f6c_dd1d);
            for (kind, operands_of) in OPERAND_SOURCES {
                let mut finite = || loop {
                    let (sum, a, b) = operands_of(&mut bits);
                    if [sum, low(a), high(a), low(b), high(b)].iter().all(|x| x.is_finite()) {
                        return (sum, a, b);
                    }
                };
                for pairs in (1..=TILE_ROWS).cycle().take(30 * TILE_ROWS) {
                    let operands: Tile<(f32, u32, u32)> = std::array::from_fn(|_| std::array::from_fn(|_| finite()));
                    // Sums of products are never subnormal.
                    let (sums, a) = (operands[0].map(|of| flushed(of.0)), operands[0].map(|of| of.1));
                    let b = operands.map(|row| row.map(|of| of.2));
                    // SAFETY: the processor has the instructions.
                    let found = unsafe { product_of_one_row(&sums, &a[..pairs], &b) };
                    for c in 0..TILE_ROWS {
                        let own = tile_dot(sums[c], a[..pairs].iter().copied(), b.iter().map(|row| row[c]));
                        let same =
                            found[c].to_bits() == own.to_bits() || found[c] == own || own.is_nan() && found[c].is_nan();
                        assert!(same, "{kind}: column {c}: {} is {}, not {own}", sums[c], found[c]);
                    }
                }
            }
        }

        /// Every output is one chain of dot products of pairs of inputs in rising order, an odd last one beside a zero,
        /// whatever the numbers of rows and outputs.
        #[test]
        fn linear_layers_have_the_bits_of_chains_of_dot_products() {
            if !Isa::available().contains(&Isa::Avx512Bf16) {
                return crate::skip::skipped("this processor has no bf16 dot products");
            }
            let pairs = |numbers: &[f32]| -> Vec<u32> {
                let pair =
                    |pair: &[f32]| u32::from(round(pair[0])) | u32::from(pair.get(1).map_or(0, |&x| round(x))) << 16;
                numbers.chunks(2).map(pair).collect()
            };
            for (rows, outputs, inputs) in [(1, 1, 1), (3, 47, 31), (14, 33, 577), (45, 16, 64)] {
                let mut bits = RandomBits(0x9e37_79b9_7f4a_7c15);
                let mut random =
                    |n: usize| -> Vec<f32> { (0..n).map(|_| f32::from_bits(bits.pair(119) & 0xffff_0000)).collect() };
                let (x, w) = (random(rows * inputs), random(outputs * inputs));
                let bytes: Vec<u8> = w.iter().flat_map(|&w| round(w).to_le_bytes()).collect();
                let view = WeightView { dtype: Dtype::Bf16, rows: outputs, cols: inputs, bytes: &bytes };
                let mut cpu = Cpu::with_isa(Isa::Avx512Bf16);
                let packed = cpu.matrix(&[MatrixPart::Dense(view)]).expect("a dense matrix is packed");
                let mut out = CpuBuffer::new(rows, outputs);
                let x = CpuBuffer { rows, width: inputs, data: x };
                cpu.linear(&mut out, &x, &packed, None);
                for (row, output) in (0..rows).flat_map(|row| (0..outputs).map(move |output| (row, output))) {
                    let chain = pairs(x.row(row)).into_iter().zip(pairs(&w[output * inputs..][..inputs]));
                    let expected = chain.fold(0.0, |sum, (x, w)| dot(sum, x, w));
                    let found = out.row(row)[output];
                    assert_eq!(found.to_bits(), expected.to_bits(), "{rows} x {inputs}: row {row}, output {output}");
                }
            }
        }

        /// Bit for bit, except for the payload of a NaN.
        #[test]
        fn the_emulation_computes_what_the_instructions_compute() {
            if !Isa::available().contains(&Isa::Avx512Bf16) {
                return crate::skip::skipped("this processor has no bf16 dot products");
            }
            let mut bits = RandomBits(0x9e37_79b9_7f4a_7c15);
            for (kind, operands_of) in OPERAND_SOURCES {
                for _ in 0..20_000 {
                    let operands: [(f32, u32, u32); 16] = std::array::from_fn(|_| operands_of(&mut bits));
                    let (acc, a, b) = (operands.map(|o| o.0), operands.map(|o| o.1), operands.map(|o| o.2));
                    // SAFETY: the processor has the instructions.
                    let (found, rounded) = unsafe { (dots(&acc, &a, &b), rounds(&acc)) };
                    for i in 0..16 {
                        let own = dot(acc[i], a[i], b[i]);
                        let same = found[i].to_bits() == own.to_bits() || (found[i].is_nan() && own.is_nan());
                        assert!(same, "{kind}: {} + {:08x} . {:08x} is {}, not {own}", acc[i], a[i], b[i], found[i]);
                        assert_eq!(rounded[i], round(acc[i]), "{kind}: {} rounded", acc[i]);
                    }
                }
            }
        }
    }
}
