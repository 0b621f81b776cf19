//! Activations as a quantised matrix multiplies them: in the order of its inputs, rounded as its format says, and
//! padded to whole words of codes.

use super::panels::QuantPanels;
use crate::rows::for_each_isa;
use crate::{Cores, Isa};
use offshoot_backend::quantised::{CodeFormat, Rounding, RoundingKind, int8_code, largest, round_row};

/// Fewer numbers than this are packed on the calling thread.
const PARALLEL_FROM: usize = 16 * 1024;

/// The form in which kernels read activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandForm {
    /// One f32 each.
    Numbers,
    /// One signed byte each.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "a form of AVX2's kernels"))]
    Signed,
    /// One byte each, 128 added.
    Offset,
}

impl OperandForm {
    /// Words of a row: inputs padded to eight, which whole words of codes have at most.
    pub fn words(self, inputs: usize) -> usize {
        let inputs = inputs.next_multiple_of(8);
        if self == OperandForm::Numbers { inputs } else { inputs / 4 }
    }
}

/// Rows of activations.
#[derive(Default)]
pub struct OperandRows {
    /// `[rows][stride]`
    words: Vec<u32>,
    stride: usize,
    /// Factor of each row's products.
    pub scales: Vec<f32>,
    /// Each row in the order of the codes.
    ordered: Vec<Vec<f32>>,
}

impl OperandRows {
    /// Packs `rows` rows for `w`; `input`: the activations of each.
    pub fn pack<'x>(
        &mut self,
        cores: &Cores,
        w: &QuantPanels,
        rows: usize,
        form: OperandForm,
        input: impl Fn(usize) -> &'x [f32] + Sync,
    ) {
        let words = form.words(w.cols);
        // An odd number of cache lines and one word from row to row, so that rows do not compete for cache sets.
        self.stride = (words.div_ceil(16) | 1) * 16 + 1;
        self.words.resize(rows * self.stride, 0);
        self.ordered.resize_with(self.ordered.len().max(rows), Vec::new);
        self.scales.resize(rows, 0.0);
        let pack = |r: usize, words: &mut [u32], scale: &mut f32, ordered: &mut Vec<f32>| {
            let row = input(r);
            ordered.clear();
            match &w.order {
                Some(order) => ordered.extend(order.iter().map(|&k| row[k as usize])),
                None => ordered.extend_from_slice(row),
            }
            *scale = pack_row(cores.isa, w, ordered, words, form);
        };
        let out = self.words.chunks_exact_mut(self.stride).map(|out| &mut out[..words]);
        let mut rows: Vec<_> = out.zip(self.scales.iter_mut().zip(&mut self.ordered)).collect();
        if rows.len() * w.cols < PARALLEL_FROM {
            rows.iter_mut().enumerate().for_each(|(r, (out, (scale, ordered)))| pack(r, out, scale, ordered));
        } else {
            cores.team.for_each(&mut rows, |r, (out, (scale, ordered))| pack(r, out, scale, ordered));
        }
    }

    /// The words from row `row` on, and the distance of rows.
    pub fn rows_from(&self, row: usize) -> (&[u32], usize) {
        (&self.words[row * self.stride..], self.stride)
    }
}

for_each_isa! {
    /// Packs one row, in the order of the codes, and returns the factor of its products.
    fn pack_row(w: &QuantPanels, row: &mut [f32], out: &mut [u32], form: OperandForm) -> f32 {
        if form == OperandForm::Numbers {
            round_row(row, w.format.rounding, w.activations);
            out.iter_mut().zip(row.iter()).for_each(|(out, x)| *out = x.to_bits());
            out[row.len()..].fill(0);
            return 1.0;
        }
        let scale = integer_scale(w, row).expect("bytes are packed where products are those of integers");
        let offset = if form == OperandForm::Offset { 128 } else { 0 };
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        let reciprocal = 1.0 / scale;
        out.iter_mut()
            .zip(row.iter())
            .for_each(|(out, x)| *out = int8_code(x * reciprocal).cast_unsigned().wrapping_add(offset));
        out[row.len()..].fill(offset);
        scale
    }
}

/// Whether the products with `w` are those of integers.
pub fn is_integer(w: &QuantPanels) -> bool {
    let rounding = w.format.rounding;
    let by_row = rounding == Rounding::Dynamic { to: RoundingKind::Int8, group: None };
    let whole = w.format.codes == CodeFormat::Int8 && w.format.group.is_none();
    whole && (by_row || rounding == Rounding::Static { to: RoundingKind::Int8 })
}

/// The scale of a row whose products with `w` are those of integers; `None` where they are not. NaN if any input is.
#[inline(always)]
fn integer_scale(w: &QuantPanels, row: &[f32]) -> Option<f32> {
    if !is_integer(w) {
        return None;
    }
    let largest = largest(row);
    Some(match w.activations.fixed {
        Some(scale) if !largest.is_nan() => scale,
        _ => w.activations.dynamic(RoundingKind::Int8, largest),
    })
}

/// A row of activations in the clear loops.
pub enum Operand {
    /// Numbers, rounded or not.
    Numbers(Vec<f32>),
    /// Codes times one scale, for products of integers.
    Int8 { codes: Vec<i8>, scale: f32 },
}

impl Operand {
    /// `row`: activations in the model's order.
    pub fn of(w: &QuantPanels, row: &[f32]) -> Self {
        let mut numbers: Vec<f32> = match &w.order {
            Some(order) => order.iter().map(|&k| row[k as usize]).collect(),
            None => row.to_vec(),
        };
        match integer_scale(w, &numbers) {
            Some(scale) => {
                let reciprocal = 1.0 / scale;
                Operand::Int8 { codes: numbers.iter().map(|x| int8_code(x * reciprocal)).collect(), scale }
            }
            None => {
                round_row(&mut numbers, w.format.rounding, w.activations);
                Operand::Numbers(numbers)
            }
        }
    }
}
