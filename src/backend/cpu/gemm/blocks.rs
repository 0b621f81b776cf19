//! Linear layers with weights in the blocks of GGUF files, which stay as they are stored. A block's codes are unpacked once
//! and multiplied by all rows.
//!
//! Activations are rounded to int8, each 32 neighbours by a scale of their own, as llama.cpp rounds them for these types.
//! Every output is summed in 16 lanes: lane `i` of the inputs `i` and `i + 16` of each 32, whose products of codes are
//! exact and added exactly where the two share a scale. Then the sum goes across the lanes. Every instruction set computes
//! the same bits. Where activations are to stay as they are, weights are unpacked to f32 and summed in the same lanes.

use std::ops::Range;

use super::OutputMode;
use crate::backend::cpu::rows::{for_each_isa, for_rows, sum_lanes};
use crate::backend::cpu::{Cores, CpuBuffer, Isa};
use crate::backend::{BlockView, RoundingKind};
use crate::gguf::{CodedBlock, LIFTED, SCALED, TensorType};

/// Lanes of a sum.
const LANES: usize = 16;
/// Outputs whose products one thread computes at a time.
const SHARE: usize = 32;

/// A matrix `[rows, cols]` (outputs, inputs) in blocks, row after row.
pub struct BlockRows {
    pub rows: usize,
    pub cols: usize,
    kind: TensorType,
    exact: bool,
    bytes: Vec<u8>,
}

impl BlockRows {
    /// Stacks `views`, which agree in all but their rows and bytes.
    pub fn pack(views: &[BlockView<'_>]) -> Self {
        let first = views.first().expect("a matrix has at least one part");
        let rows = views.iter().map(|view| view.rows).sum();
        let mut bytes = Vec::with_capacity(rows * first.kind.row_bytes(first.cols));
        for view in views {
            let own = view.rows * view.kind.row_bytes(view.cols);
            assert_eq!(view.bytes.len(), own, "a part's bytes fit its shape");
            bytes.extend_from_slice(view.bytes);
        }
        Self { rows, cols: first.cols, kind: first.kind, exact: first.exact, bytes }
    }

    fn row(&self, row: usize) -> &[u8] {
        let width = self.kind.row_bytes(self.cols);
        &self.bytes[row * width..][..width]
    }

    /// Row `row` as numbers.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        self.kind.decode(self.row(row), out);
    }
}

/// Rows of activations rounded to int8.
struct Rounded {
    /// `[rows][cols]`
    codes: Vec<i8>,
    /// For each row and 32 inputs: the scale, and the sum of the rounded activations.
    scales: Vec<f32>,
    sums: Vec<f32>,
}

impl Rounded {
    fn of(cores: &Cores, x: &CpuBuffer) -> Self {
        let groups = x.width / LIFTED;
        let mut rounded = Self {
            codes: vec![0; x.rows * x.width],
            scales: vec![0.0; x.rows * groups],
            sums: vec![0.0; x.rows * groups],
        };
        let scales = rounded.scales.chunks_exact_mut(groups.max(1));
        let sums = rounded.sums.chunks_exact_mut(groups.max(1));
        let codes = rounded.codes.chunks_exact_mut(x.width.max(1));
        let mut rows: Vec<_> = codes.zip(scales.zip(sums)).collect();
        let team = &cores.team;
        team.for_each(&mut rows, |r, (codes, (scales, sums))| round_row(cores.isa, x.row(r), codes, scales, sums));
        rounded
    }
}

for_each_isa! {
    /// Rounds a row; see [`Rounded`].
    fn round_row(row: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) = round_row_loop;
}

#[inline(always)]
fn round_row_loop(row: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
    let groups = row.chunks_exact(LIFTED).zip(codes.chunks_exact_mut(LIFTED)).zip(scales.iter_mut().zip(sums));
    for ((row, codes), (scale, sum)) in groups {
        *scale = RoundingKind::Int8.scale(row.iter().fold(0.0, |most: f32, x| most.max(x.abs())));
        let inverse = 1.0 / *scale;
        let mut total = 0;
        for (code, x) in codes.iter_mut().zip(row) {
            // To nearest: the fraction's bits beyond those of an f32 near this number are rounded away.
            const MAGIC: f32 = 12_582_912.0;
            let whole = (x * inverse + MAGIC) - MAGIC;
            *code = whole.clamp(-127.0, 127.0) as i8;
            total += i32::from(*code);
        }
        *sum = *scale * total as f32;
    }
}

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`. A row's result does not depend on the number of rows.
pub fn linear(
    cores: &Cores,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &BlockRows,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    if w.rows == 0 || x.rows == 0 {
        return;
    }
    let rounded = (!w.exact).then(|| Rounded::of(cores, x));
    let rows = x.rows;
    // [outputs][rows]
    let mut products = vec![0.0; w.rows * rows];
    cores.team.for_chunks(&mut products, SHARE * rows, |share, products| {
        let outputs = share * SHARE..share * SHARE + products.len() / rows;
        match &rounded {
            Some(rounded) => multiply_codes(cores.isa, w, outputs, rounded, rows, products),
            None => multiply_numbers(cores.isa, w, outputs, x, products),
        }
    });
    for_rows(&cores.team, out, |r, out| {
        for (o, out) in out.iter_mut().enumerate() {
            let y = products[o * rows + r] + bias.map_or(0.0, |bias| bias[o]);
            match mode {
                OutputMode::Replace => *out = y,
                OutputMode::Add => *out += y,
            }
        }
    });
}

/// The products of some outputs and all rows: `products[output][row]`.
fn multiply_codes(isa: Isa, w: &BlockRows, outputs: Range<usize>, x: &Rounded, rows: usize, products: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: these paths are chosen on processors that have these instructions.
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::multiply_codes(w, outputs, x, rows, products) },
        _ => multiply_codes_loop(w, outputs, x, rows, products, add_group),
    }
}

/// Adds the products of 32 codes to the lanes of a sum. The two scales are those of the first 16 and the last 16.
type Group<'a> = (&'a [i8; LIFTED], &'a [i8; LIFTED], [f32; 2]);

/// `add(sums, group, split)`: `split`: whether the two scales may differ.
#[inline(always)]
fn multiply_codes_loop(
    w: &BlockRows,
    outputs: Range<usize>,
    x: &Rounded,
    rows: usize,
    products: &mut [f32],
    add: impl Fn(&mut [f32; LANES], Group<'_>, bool),
) {
    const MOST: usize = LIFTED * 8;
    let (cols, groups, split) = (w.cols, w.cols / LIFTED, w.kind == TensorType::Q6K);
    let mut block = CodedBlock::default();
    // For each row: the lanes of its sum, and what the smallest values subtract from it.
    let mut sums = vec![[0.0f32; LANES]; rows];
    let mut least = vec![0.0f32; rows];
    for (output, products) in outputs.zip(products.chunks_exact_mut(rows)) {
        sums.fill([0.0; LANES]);
        least.fill(0.0);
        for (b, bytes) in w.row(output).chunks(CodedBlock::bytes(w.kind)).enumerate() {
            block.read(w.kind, bytes);
            let (codes, _) = block.codes.as_chunks::<LIFTED>();
            let (scales, _) = block.scales.as_chunks::<2>();
            let (first, count) = (b * MOST / LIFTED, (groups - b * MOST / LIFTED).min(MOST / LIFTED));
            for (r, (sums, least)) in sums.iter_mut().zip(&mut least).enumerate() {
                let (x_codes, _) = x.codes[r * cols + b * MOST..].as_chunks::<LIFTED>();
                let x_scales = &x.scales[r * groups + first..][..count];
                let x_sums = &x.sums[r * groups + first..][..count];
                let mut lanes = *sums;
                for ((codes, x_codes), (scales, x_scale)) in
                    codes[..count].iter().zip(x_codes).zip(scales.iter().zip(x_scales))
                {
                    add(&mut lanes, (codes, x_codes, scales.map(|scale| scale * x_scale)), split);
                }
                *sums = lanes;
                if w.kind.has_least() {
                    block.least.iter().zip(x_sums).for_each(|(value, sum)| *least += value * sum);
                }
            }
        }
        for (product, (lanes, least)) in products.iter_mut().zip(sums.iter().zip(&least)) {
            *product = sum_lanes(*lanes) - least;
        }
    }
}

/// The definition: products and their sums of two are exact in 16 bits.
#[inline(always)]
fn add_group(sums: &mut [f32; LANES], (a, b, [low, high]): Group<'_>, split: bool) {
    for (i, sum) in sums.iter_mut().enumerate() {
        let products = [i, i + SCALED].map(|i| i16::from(a[i]) * i16::from(b[i]));
        if split {
            *sum += low * f32::from(products[0]);
            *sum += high * f32::from(products[1]);
        } else {
            *sum += low * f32::from(products[0] + products[1]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::*;

    /// See `super::multiply_codes`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn multiply_codes(w: &BlockRows, outputs: Range<usize>, x: &Rounded, rows: usize, products: &mut [f32]) {
        let add = |sums: &mut [f32; LANES], group: Group<'_>, split: bool| add_group(sums, group, split);
        multiply_codes_loop(w, outputs, x, rows, products, add);
    }

    /// See `super::add_group`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn add_group(sums: &mut [f32; LANES], (a, b, [low, high]): Group<'_>, split: bool) {
        // SAFETY: the loads and the store are of whole arrays of 32 bytes and of 16 floats.
        let (a, b, mut sum) = unsafe {
            (
                _mm256_loadu_si256(a.as_ptr().cast()),
                _mm256_loadu_si256(b.as_ptr().cast()),
                _mm512_loadu_ps(sums.as_ptr()),
            )
        };
        // All 32 products, in 16 bits.
        let products = _mm512_mullo_epi16(_mm512_cvtepi8_epi16(a), _mm512_cvtepi8_epi16(b));
        let (first, second) = (_mm512_castsi512_si256(products), _mm512_extracti64x4_epi64::<1>(products));
        let numbers = |products| _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(products));
        if split {
            sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(low), numbers(first)));
            sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(high), numbers(second)));
        } else {
            let both = _mm256_add_epi16(first, second);
            sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(low), numbers(both)));
        }
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), sum) };
    }
}

for_each_isa! {
    /// The products of some outputs and all rows, whose activations are not rounded: `products[output][row]`.
    fn multiply_numbers(w: &BlockRows, outputs: Range<usize>, x: &CpuBuffer, products: &mut [f32]) =
        multiply_numbers_loop;
}

#[inline(always)]
fn multiply_numbers_loop(w: &BlockRows, outputs: Range<usize>, x: &CpuBuffer, products: &mut [f32]) {
    let mut numbers = vec![0.0; w.cols];
    for (output, products) in outputs.zip(products.chunks_exact_mut(x.rows)) {
        w.copy_row(output, &mut numbers);
        for (r, product) in products.iter_mut().enumerate() {
            let mut lanes = [0.0f32; LANES];
            for (numbers, x) in numbers.chunks_exact(LANES).zip(x.row(r).chunks_exact(LANES)) {
                for ((lane, number), x) in lanes.iter_mut().zip(numbers).zip(x) {
                    *lane += number * x;
                }
            }
            *product = sum_lanes(lanes);
        }
    }
}
