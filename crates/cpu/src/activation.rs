//! Activation functions. The clear loops, which define them, use the standard library's `exp` and `tanh`. The fast
//! loops use the polynomial in `exp`, so that they vectorise.

use std::f32::consts::FRAC_1_SQRT_2;

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

/// In place, the square of `x[r][i]`, or 0 where that is negative.
pub fn relu_squared(cores: &Cores, x: &mut CpuBuffer) {
    for_rows(&cores.team, x, |_, row| relu_squared_row(cores.isa, row));
}

/// In place, `x[r][i] * Phi(x[r][i])`.
pub fn gelu_erf(cores: &Cores, x: &mut CpuBuffer) {
    for_rows(&cores.team, x, |_, row| gelu_erf_row(cores.isa, row));
}

/// See `Backend::xielu`.
pub fn xielu(cores: &Cores, x: &mut CpuBuffer, numbers: &[f32]) {
    let &[positive, negative, slope, most] = numbers else { panic!("xielu: four numbers, found {}", numbers.len()) };
    for_rows(&cores.team, x, |_, row| xielu_row(cores.isa, row, positive, negative, slope, most));
}

/// In place, `x[r][i]`, but not beyond `-most` and `most`.
pub fn clamp(cores: &Cores, x: &mut CpuBuffer, most: f32) {
    for_rows(&cores.team, x, |_, row| clamp_row(cores.isa, row, most));
}

/// In place, `x[r][i] * factors[i]`.
pub fn scale_columns(cores: &Cores, x: &mut CpuBuffer, factors: &[f32]) {
    assert_eq!(x.width, factors.len(), "scale_columns: a factor for each column");
    for_rows(&cores.team, x, |_, row| multiply_row(cores.isa, row, factors));
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

    fn gelu_erf_row[exp](x: &mut [f32]) {
        for x in x {
            let z = FRAC_1_SQRT_2 * x.abs();
            let t = 1.0 / (1.0 + 0.5 * z);
            let tail = 0.5 * *x * t * exp(erfc_power(z, t));
            *x = if *x > 0.0 { *x - tail } else { tail };
        }
    }

    fn xielu_row[exp](x: &mut [f32], positive: f32, negative: f32, slope: f32, most: f32) {
        for x in x {
            let low = x.min(most);
            let grown = if low > -0.5 { small_expm1(low) } else { exp(low) - 1.0 };
            let curved = if *x > 0.0 { positive * *x * *x } else { negative * (grown - *x) };
            *x = curved + slope * *x;
        }
    }

    fn relu_squared_row(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x * *x });
    }

    fn clamp_row(x: &mut [f32], most: f32) {
        x.iter_mut().for_each(|x| *x = if *x < -most { -most } else if *x > most { most } else { *x });
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

/// For `z >= 0`, what `e` is raised to in `erfc(z) = t e^(-z^2 + P(t))` with `t = 1 / (1 + z/2)`. P interpolates that
/// at the Chebyshev nodes of 1/6 to 1, with an error of 5.2e-8.
#[inline(always)]
fn erfc_power(z: f32, t: f32) -> f32 {
    const P: [f32; 10] = [
        0.148_046_05,
        -0.697_536_6,
        1.195_327_7,
        -0.746_469_9,
        -0.039_866_325,
        -0.019_508,
        0.041_395_963,
        0.385_283_63,
        0.998_782_46,
        -1.265_454_9,
    ];
    P.into_iter().fold(0.0, |sum, c| sum * t + c) - z * z
}

/// `e^x - 1` for `-0.5 < x <= 0`: its series, up to x^9.
#[inline(always)]
fn small_expm1(x: f32) -> f32 {
    const INVERSES: [f32; 8] = [1.0 / 9.0, 1.0 / 8.0, 1.0 / 7.0, 1.0 / 6.0, 1.0 / 5.0, 1.0 / 4.0, 1.0 / 3.0, 1.0 / 2.0];
    x * INVERSES.into_iter().fold(1.0, |sum, inverse| 1.0 + x * inverse * sum)
}
