//! Gates of what layers give: a norm that is multiplied by a gate, and gates alone.

use super::rows::{for_each_isa, for_rows, sum};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{GateFunction, GatedNorm, NormOrder};

/// In place, for each `how.width` neighbours of a row, as `Backend::gated_norm` says.
pub fn gated_norm(cores: &Cores, x: &mut CpuBuffer, gate: &CpuBuffer, weight: Option<&Vec<f32>>, how: GatedNorm) {
    let GatedNorm { width, eps, gate: by, order } = how;
    assert_eq!((x.rows, x.width), (gate.rows, gate.width), "gated_norm: shapes");
    assert!(x.width.is_multiple_of(width), "gated_norm: width of a norm");
    assert!(weight.is_none_or(|weight| [width, x.width].contains(&weight.len())), "gated_norm: length of the weights");
    let isa = cores.isa;
    let times = match by {
        GateFunction::Silu => silu_times,
        GateFunction::Sigmoid => sigmoid_times_row,
    };
    for_rows(&cores.team, x, |r, x| {
        let Some(weight) = weight else { return times(isa, x, gate.row(r)) };
        let gates = gate.row(r).chunks_exact(width);
        for ((x, gate), weight) in x.chunks_exact_mut(width).zip(gates).zip(weight.chunks_exact(width).cycle()) {
            match (order, by) {
                (NormOrder::NormFirst, GateFunction::Silu) => norm_then_silu(isa, x, gate, weight, eps),
                (NormOrder::NormFirst, GateFunction::Sigmoid) => norm_then_sigmoid(isa, x, gate, weight, eps),
                (NormOrder::GateFirst, _) => {
                    times(isa, x, gate);
                    norm(isa, x, weight, eps);
                }
            }
        }
    });
}

/// In place, `x[r][i] * sigmoid(y[r][i])`, or `sigmoid(y[r][0])` if `y` has one column.
pub fn sigmoid_times(cores: &Cores, x: &mut CpuBuffer, y: &CpuBuffer) {
    assert!(x.rows == y.rows && [1, x.width].contains(&y.width), "sigmoid_times: shapes");
    for_rows(&cores.team, x, |r, x| match y.row(r) {
        [gate] if x.len() > 1 => {
            let factor = 1.0 / (1.0 + (-gate).exp());
            x.iter_mut().for_each(|x| *x *= factor);
        }
        gates => sigmoid_times_row(cores.isa, x, gates),
    });
}

/// What a norm multiplies by: `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn scale_of(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt()
}

for_each_isa! {
    fn norm_then_silu[exp](x: &mut [f32], gate: &[f32], weight: &[f32], eps: f32) {
        let scale = scale_of(x, eps);
        for ((x, gate), weight) in x.iter_mut().zip(gate).zip(weight) {
            *x = *x * scale * weight * (gate / (1.0 + exp(-gate)));
        }
    }

    fn norm_then_sigmoid[exp](x: &mut [f32], gate: &[f32], weight: &[f32], eps: f32) {
        let scale = scale_of(x, eps);
        for ((x, gate), weight) in x.iter_mut().zip(gate).zip(weight) {
            *x = *x * scale * weight * (1.0 / (1.0 + exp(-gate)));
        }
    }

    fn silu_times[exp](x: &mut [f32], gate: &[f32]) {
        x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= gate / (1.0 + exp(-gate)));
    }

    fn sigmoid_times_row[exp](x: &mut [f32], gate: &[f32]) {
        x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= 1.0 / (1.0 + exp(-gate)));
    }

    fn norm(x: &mut [f32], weight: &[f32], eps: f32) {
        let scale = scale_of(x, eps);
        x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
    }
}
