//! Element-wise ops on buffers of sums: additions, factors and caps. Each is one loop, compiled for every instruction
//! set; the clear cap uses the standard library's `tanh`, the fast one the polynomial in `exp`.

use super::exp::exp;
use super::rows::{for_each_isa, for_rows};
use super::{Cores, CpuBuffer, Isa};

/// `out[r] += x[r]`.
pub fn add(cores: &Cores, out: &mut CpuBuffer, x: &CpuBuffer) {
    assert_eq!((out.rows, out.width), (x.rows, x.width), "add: shapes");
    for_rows(&cores.team, out, |r, out| add_row(cores.isa, out, x.row(r)));
}

/// In place, `x[r][i] * factor`.
pub fn scale(cores: &Cores, x: &mut CpuBuffer, factor: f32) {
    for_rows(&cores.team, x, |_, row| scale_row(cores.isa, row, factor));
}

/// In place, `cap * tanh(x[r][i] / cap)`.
pub fn softcap(cores: &Cores, x: &mut CpuBuffer, cap: f32) {
    for_rows(&cores.team, x, |_, row| softcap_row(cores.isa, row, cap));
}

for_each_isa! {
    fn softcap_row(x: &mut [f32], cap: f32) = softcap_clear or softcap_loop;
}

for_each_isa! {
    fn add_row(out: &mut [f32], x: &[f32]) {
        out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
    }

    fn scale_row(x: &mut [f32], factor: f32) {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

fn softcap_clear(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
}

#[inline(always)]
fn softcap_loop(x: &mut [f32], cap: f32) {
    let inverse = 1.0 / cap;
    x.iter_mut().for_each(|x| *x = cap * tanh(*x * inverse));
}

/// `(1 - e^-2|x|) / (1 + e^-2|x|)` with the sign of `x`: an error of an ulp of 1 at most, so absolute near zero.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let power = exp(-2.0 * x.abs());
    ((1.0 - power) / (1.0 + power)).copysign(x)
}
