//! The definition of a linear layer: every output is one chain of f32 multiply-adds over the inputs in rising order.
//! With bf16 weights the inputs are first rounded to bf16 (to nearest even), as the dot products of the fast path
//! require.

use super::pack::{PANEL, element};
use super::{CpuMatrix, OutputMode};
use crate::backend::cpu::team::Team;
use crate::backend::cpu::{CpuBuffer, Isa};

/// See `gemm::linear`.
pub fn linear(team: &Team, out: &mut CpuBuffer, x: &CpuBuffer, w: &CpuMatrix, bias: Option<&[f32]>, mode: OutputMode) {
    if w.rows == 0 {
        return;
    }
    let operand = Isa::Portable.linear_operand(w.dtype());
    team.for_chunks(&mut out.data, w.rows, |r, out| {
        let x: Vec<f32> = x.row(r).iter().map(|&v| operand.round(v)).collect();
        for (p, out) in out.chunks_mut(PANEL).enumerate() {
            let sums = panel_dot(w, p, &x);
            for (lane, out) in out.iter_mut().enumerate() {
                let y = sums[lane] + bias.map_or(0.0, |bias| bias[p * PANEL + lane]);
                match mode {
                    OutputMode::Replace => *out = y,
                    OutputMode::Add => *out += y,
                }
            }
        }
    });
}

/// The 16 outputs of panel `p`.
fn panel_dot(w: &CpuMatrix, p: usize, x: &[f32]) -> [f32; PANEL] {
    let panel = w.panel(p);
    let mut sums = [0.0; PANEL];
    for (k, x) in x.iter().enumerate() {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += x * element(panel, w.dtype(), k, lane);
        }
    }
    sums
}
