//! Linear layers with weights in the blocks of GGUF files, which stay as they are stored. A block's codes are unpacked once
//! and multiplied by all rows.
//!
//! Activations are rounded to int8, each 32 neighbours by a scale of their own, as llama.cpp rounds them for these types.
//! Products of codes are exact. Every output is summed in 16 lanes, lane `i` of the inputs `i`, `i + 16`, ... in rising
//! order, then across the lanes; every instruction set computes the same bits. Where activations are to stay as they are,
//! weights are unpacked to f32 and summed in the same lanes.

use std::ops::Range;

use rayon::prelude::*;

use super::OutputMode;
use crate::backend::cpu::rows::{for_each_isa, for_rows, sum_lanes};
use crate::backend::cpu::{CpuBuffer, Isa};
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
    fn of(isa: Isa, x: &CpuBuffer) -> Self {
        let groups = x.width / LIFTED;
        let mut rounded = Self {
            codes: vec![0; x.rows * x.width],
            scales: vec![0.0; x.rows * groups],
            sums: vec![0.0; x.rows * groups],
        };
        let rows = rounded.codes.par_chunks_exact_mut(x.width.max(1)).enumerate();
        let of_groups =
            rounded.scales.par_chunks_exact_mut(groups.max(1)).zip(rounded.sums.par_chunks_exact_mut(groups.max(1)));
        rows.zip(of_groups).for_each(|((r, codes), (scales, sums))| round_row(isa, x.row(r), codes, scales, sums));
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
pub fn linear(isa: Isa, out: &mut CpuBuffer, x: &CpuBuffer, w: &BlockRows, bias: Option<&[f32]>, mode: OutputMode) {
    if w.rows == 0 || x.rows == 0 {
        return;
    }
    let rounded = (!w.exact).then(|| Rounded::of(isa, x));
    let shares: Vec<Range<usize>> =
        (0..w.rows.div_ceil(SHARE)).map(|i| i * SHARE..w.rows.min((i + 1) * SHARE)).collect();
    // [shares][outputs of a share][rows]
    let products: Vec<Vec<f32>> = shares
        .into_par_iter()
        .map(|outputs| {
            let mut products = vec![0.0; outputs.len() * x.rows];
            match &rounded {
                Some(rounded) => multiply_codes(isa, w, outputs, rounded, x.rows, &mut products),
                None => multiply_numbers(isa, w, outputs, x, &mut products),
            }
            products
        })
        .collect();
    let rows = x.rows;
    for_rows(out, |r, out| {
        for (o, out) in out.iter_mut().enumerate() {
            let y = products[o / SHARE][o % SHARE * rows + r] + bias.map_or(0.0, |bias| bias[o]);
            match mode {
                OutputMode::Replace => *out = y,
                OutputMode::Add => *out += y,
            }
        }
    });
}

for_each_isa! {
    /// The products of some outputs and all rows: `products[output][row]`.
    fn multiply_codes(w: &BlockRows, outputs: Range<usize>, x: &Rounded, rows: usize, products: &mut [f32]) =
        multiply_codes_loop;
}

#[inline(always)]
fn multiply_codes_loop(w: &BlockRows, outputs: Range<usize>, x: &Rounded, rows: usize, products: &mut [f32]) {
    let (cols, groups, elements) = (w.cols, w.cols / LIFTED, w.kind.block_elements());
    let mut block = CodedBlock::default();
    // For each row: the lanes of its sum, and what the smallest values subtract from it.
    let mut sums = vec![[0.0f32; LANES]; rows];
    let mut least = vec![0.0f32; rows];
    for (output, products) in outputs.zip(products.chunks_exact_mut(rows)) {
        sums.fill([0.0; LANES]);
        least.fill(0.0);
        for (b, bytes) in w.row(output).chunks_exact(w.kind.block_bytes()).enumerate() {
            w.kind.codes(bytes, &mut block);
            for r in 0..rows {
                let x_codes = &x.codes[r * cols + b * elements..][..elements];
                let first = r * groups + b * elements / LIFTED;
                for g in 0..elements / LIFTED {
                    let (scale, sum) = (x.scales[first + g], x.sums[first + g]);
                    let [low, high] = [2 * g, 2 * g + 1].map(|half| {
                        let codes: &[i8; SCALED] = block.codes[half * SCALED..][..SCALED].try_into().expect("16 codes");
                        let x: &[i8; SCALED] = x_codes[half * SCALED..][..SCALED].try_into().expect("16 codes");
                        (codes, x)
                    });
                    add_products(&mut sums[r], low, block.scales[2 * g] * scale);
                    add_products(&mut sums[r], high, block.scales[2 * g + 1] * scale);
                    least[r] += block.least[g] * sum;
                }
            }
        }
        for (product, (lanes, least)) in products.iter_mut().zip(sums.iter().zip(&least)) {
            *product = sum_lanes(*lanes) - least;
        }
    }
}

/// `sums[i] += scale * a[i] * b[i]`; the products of codes are exact in 16 bits.
#[inline(always)]
fn add_products(sums: &mut [f32; LANES], (a, b): (&[i8; SCALED], &[i8; SCALED]), scale: f32) {
    for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
        *sum += scale * f32::from(i16::from(a) * i16::from(b));
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
