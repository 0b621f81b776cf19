//! `relu_squared`, `gelu_erf`, `xielu`, `clamp` and `scale_columns`: functions of one number, in place.

use super::suite::OpSuite;
use crate::case::{F32, OpCase, buffer, rounded, vector};
use offshoot_backend::{ActivationDtype, Backend, Dtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Numbers at which exponentials vanish, squares stay within f16, and series begin or end.
const EDGES: [f32; 12] = [0.0, -0.0, 200.0, -200.0, 1e-6, -1e-6, -0.5, -0.4999, -1e-3, 6.0, -6.0, -14.0];

/// The numbers of xIELU: `p`, `n`, `b` and `e`.
const XIELU: [f32; 4] = [0.8, 1.3, 0.5, -1e-6];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    for &(rows, width) in suite.shapes() {
        let mut x: Vec<f32> = (0..rows * width).map(|_| dtype.round(8.0 * dice.number())).collect();
        x.iter_mut().zip(EDGES).for_each(|(x, edge)| *x = dtype.round(edge));
        let factors = dice.numbers(width);
        let ops = [
            ("relu_squared", InPlaceOp::ReluSquared),
            ("gelu_erf", InPlaceOp::GeluErf),
            ("xielu", InPlaceOp::Xielu),
            ("clamp", InPlaceOp::Clamp(dtype.round(2.5))),
            ("scale_columns", InPlaceOp::ScaleColumns(factors)),
        ];
        for (name, op) in ops {
            suite.hold(name, &InPlaceCase { dtype, width, x: x.clone(), op })?;
        }
    }
    Ok(())
}

enum InPlaceOp {
    ReluSquared,
    GeluErf,
    Xielu,
    Clamp(f32),
    ScaleColumns(Vec<f32>),
}

struct InPlaceCase {
    dtype: Dtype,
    width: usize,
    x: Vec<f32>,
    op: InPlaceOp,
}

impl InPlaceCase {
    fn value(&self, at: usize) -> f64 {
        let x = f64::from(self.x[at]);
        match &self.op {
            InPlaceOp::ReluSquared => x.max(0.0) * x.max(0.0),
            InPlaceOp::GeluErf => 0.5 * x * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            InPlaceOp::Xielu => {
                let [positive, negative, slope, most] = XIELU.map(f64::from);
                let curved = if x > 0.0 { positive * x * x } else { negative * (x.min(most).exp_m1() - x) };
                curved + slope * x
            }
            InPlaceOp::Clamp(most) => x.clamp(-f64::from(*most), f64::from(*most)),
            InPlaceOp::ScaleColumns(factors) => x * f64::from(factors[at % self.width]),
        }
    }
}

impl OpCase for InPlaceCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.x.len() / self.width;
        let mut x = buffer(backend, ActivationDtype::Operands(self.dtype), rows, self.width, &self.x)?;
        match &self.op {
            InPlaceOp::ReluSquared => backend.relu_squared(&mut x),
            InPlaceOp::GeluErf => backend.gelu_erf(&mut x),
            InPlaceOp::Xielu => {
                let numbers = vector(backend, &XIELU)?;
                backend.xielu(&mut x, &numbers);
            }
            InPlaceOp::Clamp(most) => backend.clamp(&mut x, *most),
            InPlaceOp::ScaleColumns(factors) => {
                let factors = vector(backend, factors)?;
                backend.scale_columns(&mut x, &factors);
            }
        }
        backend.read(&x, rows)
    }

    /// Products round once a factor. Of erfc, what e is raised to is the square of a number with its roundings, and its
    /// series has an error of 5.2e-8; a result below e^-87 may vanish. Of xIELU each term rounds a few times.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let x = f64::from(self.x[at]);
        rounded(self.dtype, y)
            + match &self.op {
                InPlaceOp::ReluSquared | InPlaceOp::ScaleColumns(_) => 2.0 * y.abs() * F32,
                InPlaceOp::GeluErf => y.abs() * (48.0 + 6.0 * x * x) * F32 + x.abs() * (-86.0f64).exp(),
                InPlaceOp::Xielu => {
                    16.0 * F32 * (x * x).max(x.abs() + if x < -0.5 { 1.0 } else { 0.0 }).min(4.0 * (x * x + x.abs()))
                }
                InPlaceOp::Clamp(_) => 0.0,
            }
    }

    fn exact(&self) -> Option<Vec<f64>> {
        Some((0..self.x.len()).map(|at| self.value(at)).collect())
    }

    fn name(&self) -> String {
        format!("{} x {}", self.x.len() / self.width, self.width)
    }
}

/// `1 - erf(x)`: near zero by the series of erf, further out by its continued fraction.
fn erfc(x: f64) -> f64 {
    const TERMS: u32 = 120;
    let z = x.abs();
    let of_size = if z < 2.5 {
        let mut term = z;
        let mut sum = z;
        for n in 1..TERMS {
            let n = f64::from(n);
            term *= -z * z / n;
            sum += term / (2.0 * n + 1.0);
        }
        1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum
    } else {
        let fraction = (1..TERMS).rev().fold(z, |below, n| z + 0.5 * f64::from(n) / below);
        (-z * z).exp() / (std::f64::consts::PI.sqrt() * fraction)
    };
    if x < 0.0 { 2.0 - of_size } else { of_size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_compute_erfc_meet_and_have_its_known_values() {
        for (x, known) in [(0.0, 1.0), (1.0, 0.157_299_207_050_285_13), (3.0, 2.209_049_699_858_544_2e-5)] {
            assert!((erfc(x) - known).abs() <= 1e-12 * known, "{x}: {}", erfc(x));
            assert!((erfc(-x) - (2.0 - known)).abs() < 1e-14, "{x}: {}", erfc(-x));
        }
        let (below, above) = (erfc(2.5 - 1e-9), erfc(2.5 + 1e-9));
        assert!((below / above - 1.0).abs() < 1e-7, "{below} {above}");
    }
}
