//! Activation functions. The clear loops, which define them, use the standard library's `exp` and `tanh`. The fast
//! loops use the polynomial in `exp`, so that they vectorise.

use super::exp::exp;
use super::rows::{for_each_isa, for_rows};
use super::{CpuBuffer, Isa};

/// `out[r][i] = silu(x[r][i]) * x[r][F + i]`, where `silu(x) = x / (1 + e^-x)` and `F = out.width`.
pub fn gated_silu(isa: Isa, out: &mut CpuBuffer, x: &CpuBuffer) {
    assert_eq!((x.rows, x.width), (out.rows, 2 * out.width), "gated_silu: shapes");
    for_rows(out, |r, out| {
        let (gate, up) = x.row(r).split_at(out.len());
        gated_silu_row(isa, out, gate, up);
    });
}

/// In place, `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
pub fn gelu(isa: Isa, x: &mut CpuBuffer) {
    for_rows(x, |_, row| gelu_row(isa, row));
}

for_each_isa! {
    fn gated_silu_row(out: &mut [f32], gate: &[f32], up: &[f32]) = gated_silu_clear or gated_silu_loop;
}

for_each_isa! {
    fn gelu_row(x: &mut [f32]) = gelu_clear or gelu_loop;
}

fn gated_silu_clear(out: &mut [f32], gate: &[f32], up: &[f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + (-gate).exp()) * up;
    }
}

#[inline(always)]
fn gated_silu_loop(out: &mut [f32], gate: &[f32], up: &[f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
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
