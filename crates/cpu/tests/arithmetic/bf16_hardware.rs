//! The emulation of `bf16_dot` and the order of sums of vector kernels, compared with the processor's instructions.

use std::arch::x86_64::*;

use offshoot_backend::{Backend, Dtype, MatrixPart, OutputMode, WeightView};
use offshoot_cpu::amx::{self, ShapedTiles, TILE_ROWS, TileShapes};
use offshoot_cpu::tile_order::{PairChains, SplitPair};
use offshoot_cpu::{Cpu, CpuBuffer, Isa};

use crate::bf16_dot::{dot, flushed, high, low, round, tile_dot};
use crate::skip::skipped;
use offshoot_core::dice::Dice;

/// # Safety
/// The processor has AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dots(acc: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> [f32; 16] {
    let mut out = [0.0; 16];
    // SAFETY: the arrays hold sixteen words; all types are 512 bits without meaning of their own.
    unsafe {
        let pairs = |x: &[u32; 16]| std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(x.as_ptr().cast()));
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

/// Random words and operands of products.
struct RandomBits(Dice);

impl RandomBits {
    fn new(seed: u64) -> Self {
        Self(Dice::new(seed))
    }

    /// The upper half of a random number.
    fn next(&mut self) -> u32 {
        (self.0.next() >> 32) as u32
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
    ("near 1", |bits| (f32::from_bits(bits.next() & 0x80ff_ffff | 0x3f00_0000), bits.pair(119), bits.pair(119))),
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
        return skipped("this processor has no AMX");
    }
    let mut bits = RandomBits::new(0x9e37_79b9_7f4a_7c15);
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
        return skipped("this processor has no bf16 dot products");
    }
    let mut bits = RandomBits::new(0x2545_f491_4f6c_dd1d);
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
                let same = found[c].to_bits() == own.to_bits() || found[c] == own || own.is_nan() && found[c].is_nan();
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
        return skipped("this processor has no bf16 dot products");
    }
    let pairs = |numbers: &[f32]| -> Vec<u32> {
        let pair = |pair: &[f32]| u32::from(round(pair[0])) | u32::from(pair.get(1).map_or(0, |&x| round(x))) << 16;
        numbers.chunks(2).map(pair).collect()
    };
    for (rows, outputs, inputs) in [(1, 1, 1), (3, 47, 31), (14, 33, 577), (45, 16, 64)] {
        let mut bits = RandomBits::new(0x9e37_79b9_7f4a_7c15);
        let mut random =
            |n: usize| -> Vec<f32> { (0..n).map(|_| f32::from_bits(bits.pair(119) & 0xffff_0000)).collect() };
        let (x, w) = (random(rows * inputs), random(outputs * inputs));
        let bytes: Vec<u8> = w.iter().flat_map(|&w| round(w).to_le_bytes()).collect();
        let view = WeightView { dtype: Dtype::Bf16, rows: outputs, cols: inputs, bytes: &bytes };
        let mut cpu = Cpu::with_isa(Isa::Avx512Bf16);
        let packed = cpu.matrix(&[MatrixPart::Dense(view)]).expect("a dense matrix is packed");
        let mut out = CpuBuffer::new(rows, outputs);
        let x = CpuBuffer { rows, width: inputs, data: x };
        cpu.linear(&mut out, &x, &packed, None, OutputMode::Replace);
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
        return skipped("this processor has no bf16 dot products");
    }
    let mut bits = RandomBits::new(0x9e37_79b9_7f4a_7c15);
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
