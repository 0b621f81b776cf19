//! Activations as codes multiply them: int8, each 32 neighbours by a scale of their own.

use super::codes::raised_by;
use super::panels::BlockPanels;
use crate::rows::for_each_isa;
use crate::{Cores, Isa};
use offshoot_backend::RoundingKind;
use offshoot_backend::quantised::{int8_code, largest};
use offshoot_gguf::LIFTED;

/// Fewer activations than this are rounded on the calling thread.
const PARALLEL_FROM: usize = 16 * 1024;

/// Rows of rounded activations.
#[derive(Default)]
pub struct RoundedRows {
    /// `[rows][stride]`, an odd number of cache lines from row to row, so that rows do not compete for cache sets.
    codes: Vec<i8>,
    pub stride: usize,
    rows: Vec<RoundedRow>,
}

/// What comes with a row's codes.
#[derive(Default)]
pub struct RoundedRow {
    /// `[groups]`
    pub scales: Vec<f32>,
    /// `[groups * splits]`: the sum of the rounded activations.
    pub sums: Vec<f32>,
    /// `[groups * splits]`: what a sum of products with raised codes begins with, so that it is that of the codes.
    pub starts: Vec<i32>,
}

impl RoundedRows {
    /// Rounds `rows` rows for `w`; `input`: the activations of each.
    pub fn round<'x>(
        &mut self,
        cores: &Cores,
        w: &BlockPanels,
        rows: usize,
        input: impl Fn(usize) -> &'x [f32] + Sync,
    ) {
        self.stride = (w.cols.div_ceil(64) | 1) * 64;
        self.codes.resize(rows * self.stride, 0);
        self.rows.resize_with(rows, RoundedRow::default);
        let (splits, raised) = (w.splits(), i32::from(raised_by(w.kind)));
        let round = |r: usize, codes: &mut [i8], row: &mut RoundedRow| {
            row.scales.resize(w.groups(), 0.0);
            row.sums.resize(w.groups() * splits, 0.0);
            row.starts.resize(w.groups() * splits, 0);
            round_row(cores.isa, input(r), &mut codes[..w.cols], row, splits, raised);
        };
        let mut both: Vec<_> = self.codes.chunks_exact_mut(self.stride).zip(&mut self.rows).collect();
        if rows * w.cols < PARALLEL_FROM {
            both.iter_mut().enumerate().for_each(|(r, (codes, row))| round(r, codes, row));
        } else {
            cores.team.for_each(&mut both, |r, (codes, row)| round(r, codes, row));
        }
    }

    /// The codes from row `row` on.
    pub fn codes_from(&self, row: usize) -> &[i8] {
        &self.codes[row * self.stride..]
    }

    pub fn row(&self, row: usize) -> &RoundedRow {
        &self.rows[row]
    }
}

for_each_isa! {
    /// A NaN makes the scale of its group NaN.
    fn round_row(x: &[f32], codes: &mut [i8], row: &mut RoundedRow, splits: usize, raised: i32) {
        let (groups, _) = x.as_chunks::<LIFTED>();
        let (codes, _) = codes.as_chunks_mut::<LIFTED>();
        for (g, (x, codes)) in groups.iter().zip(codes).enumerate() {
            let scale = RoundingKind::Int8.scale(largest(x));
            let inverse = 1.0 / scale;
            for (code, x) in codes.iter_mut().zip(x) {
                *code = int8_code(x * inverse);
            }
            let total = |codes: &[i8]| codes.iter().map(|code| i32::from(*code)).sum::<i32>();
            let own = row.starts[g * splits..].iter_mut().zip(&mut row.sums[g * splits..]);
            for ((start, sum), codes) in own.zip(codes.chunks_exact(LIFTED / splits)) {
                let total = total(codes);
                *start = -raised * total;
                *sum = scale * total as f32;
            }
            row.scales[g] = scale;
        }
    }
}
