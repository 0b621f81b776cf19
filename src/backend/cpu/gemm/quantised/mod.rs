//! Linear layers with quantised weights: the layout (`panels`), activations (`operand`) and the clear loops (`clear`).

mod clear;
mod operand;
mod panels;

use super::OutputMode;
use crate::backend::cpu::CpuBuffer;
use crate::backend::cpu::team::Team;

pub use panels::QuantPanels;

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`. A row's result does not depend on the number of rows.
pub fn linear(
    team: &Team,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &QuantPanels,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    clear::linear(team, out, x, w, bias, mode);
}
