//! The definition of a linear layer: every output is one chain of f32 multiply-adds over the inputs in rising order.
//! With bf16 weights the inputs are first rounded to bf16 (to nearest even), as the dot products of the fast path
//! require.

use std::ops::Range;

use super::pack::{CpuMatrix, PANEL, element};
use crate::team::Team;
use crate::{CpuBuffer, Isa};
use offshoot_backend::OutputMode;

/// See `gemm::linear`.
pub fn linear(team: &Team, out: &mut CpuBuffer, x: &CpuBuffer, w: &CpuMatrix, bias: Option<&[f32]>, mode: OutputMode) {
    let operand = Isa::Portable.linear_operand(w.dtype());
    let round = |r: usize| x.row(r).iter().map(|&v| operand.round(v)).collect::<Vec<f32>>();
    let widen = |p: usize, weights: &mut [[f32; PANEL]]| {
        let panel = w.panel(p);
        for (k, weights) in weights.iter_mut().enumerate() {
            *weights = std::array::from_fn(|lane| element(panel, w.dtype(), k, lane));
        }
    };
    over_panels(team, out, w.cols, bias, mode, round, widen, |x, _, weights| panel_dot(x, weights));
}

/// The 16 outputs of a panel.
fn panel_dot(x: &[f32], weights: &[[f32; PANEL]]) -> [f32; PANEL] {
    let mut sums = [0.0; PANEL];
    for (x, weights) in x.iter().zip(weights) {
        sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
    }
    sums
}

/// Most rows for which a panel's weights are read once.
const ROWS: usize = 128;

/// The clear loops over rows and panels. `operand`: the operand that a row is; `widen` writes the
/// weights of a panel, by input and output; `products`: those of an operand and a panel with these weights.
#[expect(clippy::too_many_arguments, reason = "one for each operand of the product, and how they are multiplied")]
pub fn over_panels<T>(
    team: &Team,
    out: &mut CpuBuffer,
    inputs: usize,
    bias: Option<&[f32]>,
    mode: OutputMode,
    operand: impl Fn(usize) -> T + Sync,
    widen: impl Fn(usize, &mut [[f32; PANEL]]) + Sync,
    products: impl Fn(&T, usize, &[[f32; PANEL]]) -> [f32; PANEL] + Sync,
) {
    let (rows, width) = (out.rows, out.width);
    if width == 0 || rows == 0 {
        return;
    }
    let parts = rows.div_ceil(ROWS).next_multiple_of(team.threads());
    let each = rows.div_ceil(parts).max(1);
    team.for_chunks(&mut out.data, width * each, |part, out| {
        let of_part: Range<usize> = part * each..rows.min((part + 1) * each);
        let operands: Vec<T> = of_part.map(&operand).collect();
        let mut weights = vec![[0.0; PANEL]; inputs];
        for p in 0..width.div_ceil(PANEL) {
            widen(p, &mut weights);
            for (operand, out) in operands.iter().zip(out.chunks_mut(width)) {
                let out = &mut out[p * PANEL..width.min((p + 1) * PANEL)];
                for (lane, (out, product)) in out.iter_mut().zip(products(operand, p, &weights)).enumerate() {
                    mode.put(out, product + bias.map_or(0.0, |bias| bias[p * PANEL + lane]));
                }
            }
        }
    });
}
