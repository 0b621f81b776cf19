//! Activation functions. The clear loops, which define them, use the standard library's `exp` and `tanh`. The fast
//! loops use the polynomial in `exp`, so that they vectorise.

use super::exp::exp;
use super::rows::{for_each_isa, for_rows};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::Gate;

/// `out[r][i] = gate(x[r][i], x[r][F + i])` with `F = out.width`; see [`Gate`].
pub fn gated(cores: &Cores, out: &mut CpuBuffer, x: &CpuBuffer, gate: Gate) {
    assert_eq!((x.rows, x.width), (out.rows, 2 * out.width), "gated: shapes");
    let row = match gate {
        Gate::Silu => gated_silu_row,
        Gate::Gelu => gated_gelu_row,
        Gate::Clamped => gated_clamped_row,
    };
    for_rows(&cores.team, out, |r, out| {
        let (gate, up) = x.row(r).split_at(out.len());
        row(cores.isa, out, gate, up);
    });
}

/// In place, `gelu(x[r][i]) * y[r][from + i]`.
pub fn gelu_times(cores: &Cores, x: &mut CpuBuffer, y: &CpuBuffer, from: usize) {
    assert!(x.rows == y.rows && from + x.width <= y.width, "gelu_times: shapes");
    for_rows(&cores.team, x, |r, row| {
        gelu_row(cores.isa, row);
        multiply_row(cores.isa, row, &y.row(r)[from..][..row.len()]);
    });
}

/// In place, `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
pub fn gelu(cores: &Cores, x: &mut CpuBuffer) {
    for_rows(&cores.team, x, |_, row| gelu_row(cores.isa, row));
}

/// In place, `x[r][i]`, or 0 where that is negative.
pub fn relu(cores: &Cores, x: &mut CpuBuffer) {
    for_rows(&cores.team, x, |_, row| row.iter_mut().filter(|x| **x < 0.0).for_each(|x| *x = 0.0));
}

for_each_isa! {
    fn gated_gelu_row(out: &mut [f32], gate: &[f32], up: &[f32]) = gated_gelu_clear or gated_gelu_loop;
    fn gelu_row(x: &mut [f32]) = gelu_clear or gelu_loop;
}

for_each_isa! {
    fn gated_silu_row[exp](out: &mut [f32], gate: &[f32], up: &[f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }

    fn gated_clamped_row[exp](out: &mut [f32], gate: &[f32], up: &[f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            let (g, u) = (gate.min(Gate::LIMIT), up.clamp(-Gate::LIMIT, Gate::LIMIT));
            *out = g / (1.0 + exp(-Gate::SLOPE * g)) * (u + 1.0);
        }
    }

    fn multiply_row(x: &mut [f32], by: &[f32]) {
        x.iter_mut().zip(by).for_each(|(x, by)| *x *= by);
    }
}

fn gated_gelu_clear(out: &mut [f32], gate: &[f32], up: &[f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = 0.5 * *gate * (1.0 + gelu_inner(*gate).tanh()) * up;
    }
}

#[inline(always)]
fn gated_gelu_loop(out: &mut [f32], gate: &[f32], up: &[f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-2.0 * gelu_inner(*gate))) * up;
    }
}

fn gelu_clear(x: &mut [f32]) {
    for x in x {
        *x = 0.5 * *x * (1.0 + gelu_inner(*x).tanh());
    }
}

/// Uses `0.5 (1 + tanh(u)) = 1 / (1 + e^-2u)`.
#[inline(always)]
fn gelu_loop(x: &mut [f32]) {
    for x in x {
        *x /= 1.0 + exp(-2.0 * gelu_inner(*x));
    }
}

#[inline(always)]
fn gelu_inner(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)
}
