//! The definition of a linear layer with quantised weights. Activations are rounded as the format says. Where they and the
//! weights are int8, the products of a group are summed as integers, exactly. Otherwise a group's sum is one chain of
//! f32 multiply-adds over its inputs in the order of the codes. Sums of groups, times their scales, are added in rising
//! order.

use super::super::OutputMode;
use super::super::pack::PANEL;
use super::operand::Operand;
use super::panels::QuantPanels;
use crate::backend::cpu::CpuBuffer;
use crate::backend::cpu::team::Team;

/// See `quantised::linear`.
pub fn linear(
    team: &Team,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &QuantPanels,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    if w.rows == 0 {
        return;
    }
    team.for_chunks(&mut out.data, w.rows, |r, out| {
        let operand = Operand::of(w, x.row(r));
        for (p, out) in out.chunks_mut(PANEL).enumerate() {
            for (lane, out) in out.iter_mut().enumerate() {
                let y = operand.product(w, p, lane) + bias.map_or(0.0, |bias| bias[p * PANEL + lane]);
                match mode {
                    OutputMode::Replace => *out = y,
                    OutputMode::Add => *out += y,
                }
            }
        }
    });
}

impl Operand {
    /// The product of this row and output `lane` of panel `p`.
    fn product(&self, w: &QuantPanels, p: usize, lane: usize) -> f32 {
        let group = w.format.group_inputs(w.cols).max(1);
        let mut sum = 0.0;
        for (g, scales) in w.scales(p).chunks_exact(PANEL).enumerate() {
            let inputs = g * group..w.cols.min((g + 1) * group);
            sum += match self {
                Operand::Numbers(x) => {
                    inputs.map(|k| (x[k], w.number(p, k, lane))).fold(0.0, |sum, (x, w)| sum + x * w) * scales[lane]
                }
                Operand::Int8 { codes, scale } => {
                    let products = inputs.map(|k| i32::from(codes[k]) * w.number(p, k, lane) as i32);
                    products.fold(0, i32::wrapping_add) as f32 * (scale * scales[lane])
                }
            };
        }
        sum
    }
}
