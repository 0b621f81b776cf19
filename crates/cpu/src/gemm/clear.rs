//! The definition of a linear layer: every output is one chain of f32 multiply-adds over the inputs in rising order.
//! With bf16 weights the inputs are first rounded to bf16 (to nearest even), as the dot products of the fast path
//! require.

use super::output::OutputMode;
use super::pack::{CpuMatrix, PANEL, element};
use crate::team::Team;
use crate::{CpuBuffer, Isa};

/// See `gemm::linear`.
pub fn linear(team: &Team, out: &mut CpuBuffer, x: &CpuBuffer, w: &CpuMatrix, bias: Option<&[f32]>, mode: OutputMode) {
    if w.rows == 0 || x.rows == 0 {
        return;
    }
    let operand = Isa::Portable.linear_operand(w.dtype());
    let parts = x.rows.div_ceil(ROWS).next_multiple_of(team.threads());
    let each = x.rows.div_ceil(parts).max(1);
    team.for_chunks(&mut out.data, w.rows * each, |part, out| {
        let round = |r: usize| x.row(r).iter().map(|&v| operand.round(v)).collect();
        let rows: Vec<Vec<f32>> = (part * each..x.rows.min((part + 1) * each)).map(round).collect();
        let mut weights = vec![[0.0; PANEL]; w.cols];
        for p in 0..w.panels() {
            widen(w, p, &mut weights);
            for (x, out) in rows.iter().zip(out.chunks_mut(w.rows)) {
                let out = &mut out[p * PANEL..w.rows.min((p + 1) * PANEL)];
                for (lane, (out, sum)) in out.iter_mut().zip(panel_dot(x, &weights)).enumerate() {
                    let y = sum + bias.map_or(0.0, |bias| bias[p * PANEL + lane]);
                    match mode {
                        OutputMode::Replace => *out = y,
                        OutputMode::Add => *out += y,
                    }
                }
            }
        }
    });
}

/// Most rows for which a panel is widened once.
const ROWS: usize = 128;

/// The weights of panel `p`, by input and output.
fn widen(w: &CpuMatrix, p: usize, weights: &mut [[f32; PANEL]]) {
    let panel = w.panel(p);
    for (k, weights) in weights.iter_mut().enumerate() {
        *weights = std::array::from_fn(|lane| element(panel, w.dtype(), k, lane));
    }
}

/// The 16 outputs of a panel.
fn panel_dot(x: &[f32], weights: &[[f32; PANEL]]) -> [f32; PANEL] {
    let mut sums = [0.0; PANEL];
    for (x, weights) in x.iter().zip(weights) {
        sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
    }
    sums
}
