//! `gated`, `gelu`, `gelu_times` and `relu`, for numbers of all magnitudes. `in_place` has further activations.

use super::suite::OpSuite;
use crate::case::{F32, OpCase, buffer, rounded};
use offshoot_backend::{ActivationDtype, Backend, Dtype, Gate};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Inputs at which exponentials overflow or vanish, or must not; the last ones are beyond f16's range.
const EDGES: [f32; 12] = [0.0, -0.0, -100.0, 100.0, -3e4, 3e4, -88.5, -87.0, 1e-6, -10.0, -1e30, 1e30];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    for &(rows, width) in suite.shapes() {
        let mut x: Vec<f32> = (0..2 * rows * width).map(|_| dtype.round(12.0 * dice.number())).collect();
        let edges = &EDGES[..if dtype == Dtype::F16 { 10 } else { 12 }];
        x.iter_mut().zip(edges).for_each(|(x, &edge)| *x = dtype.round(edge));
        suite.hold("gelu", &GeluCase { dtype, width, x: x.clone(), times: None })?;
        suite.hold("relu", &ReluCase { dtype, width, x: x.clone() })?;
        // Ups of at most 2 keep products within f16.
        for row in x.chunks_exact_mut(2 * width) {
            row[width..].iter_mut().for_each(|up| *up = dtype.round(2.0 * dice.number()));
        }
        suite.hold("gated_silu", &GatedCase { dtype, width, x: x.clone(), gate: Gate::Silu })?;
        suite.hold("gated_gelu", &GatedCase { dtype, width, x: x.clone(), gate: Gate::Gelu })?;
        suite.hold("gated_clamped", &GatedCase { dtype, width, x, gate: Gate::Clamped })?;
        // Factors of at most 1 from the middle of wider rows, aligned and not.
        for from in [0, 8, 3] {
            let x = (0..rows * width).map(|_| dtype.round(12.0 * dice.number())).collect();
            let y = dice.numbers(rows * (width + 16));
            suite.hold("gelu_times", &GeluCase { dtype, width, x, times: Some((y, from)) })?;
        }
    }
    Ok(())
}

struct GatedCase {
    dtype: Dtype,
    /// Width of the result; `x` is twice as wide.
    width: usize,
    x: Vec<f32>,
    gate: Gate,
}

impl OpCase for GatedCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.x.len() / self.width / 2;
        let x = buffer(backend, ActivationDtype::Operands(self.dtype), rows, 2 * self.width, &self.x)?;
        let mut out = buffer(backend, ActivationDtype::Operands(self.dtype), rows, self.width, &[])?;
        backend.gated(&mut out, &x, self.gate, None);
        backend.read(&out, rows)
    }

    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (row, i) = (at / self.width, at % self.width);
        let (gate, up) = (self.x[row * 2 * self.width + i], self.x[(row * 2 + 1) * self.width + i]);
        rounded(self.dtype, y) + gate_tolerance(self.gate, gate, up, y)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let row = |row: &[f32]| -> Vec<f64> {
            let (gates, ups) = row.split_at(self.width);
            gates.iter().zip(ups).map(|(&gate, &up)| gated(self.gate, gate.into(), up.into())).collect()
        };
        Some(self.x.chunks_exact(2 * self.width).flat_map(row).collect())
    }

    fn name(&self) -> String {
        format!("{} x {}", self.x.len() / self.width / 2, self.width)
    }
}

/// A gate's result.
pub fn gated(kind: Gate, gate: f64, up: f64) -> f64 {
    match kind {
        Gate::Silu => silu(gate) * up,
        Gate::Gelu => gelu(gate) * up,
        Gate::Clamped => {
            let limit = f64::from(Gate::LIMIT);
            let gate = gate.min(limit);
            gate * sigmoid(f64::from(Gate::SLOPE) * gate) * (up.clamp(-limit, limit) + 1.0)
        }
    }
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// The tolerance of a gate's result `y` before it is stored. The exponential of a gate g, computed as a power of two,
/// has an error of |g| roundings (`SLOPE` times as many where it is clamped) and a few more, plus those of a few other
/// operations; on both sides. e^-g of a very negative gate is limited to e^88, which leaves an error below |g| e^-87.
pub fn gate_tolerance(kind: Gate, gate: f32, up: f32, y: f64) -> f64 {
    let size = f64::from(up).abs();
    match kind {
        Gate::Gelu => size * gelu_tolerance(gate) + 2.0 * y.abs() * F32,
        Gate::Silu | Gate::Clamped => {
            // A clamped up is added to 1, which may cancel.
            let size = if kind == Gate::Clamped { size.min(f64::from(Gate::LIMIT)) + 1.0 } else { size };
            let gate = f64::from(gate).abs();
            let turned = if kind == Gate::Clamped { f64::from(Gate::SLOPE) * gate } else { gate };
            let sum = if kind == Gate::Clamped { 2.0 * gate.min(f64::from(Gate::LIMIT)) * size * F32 } else { 0.0 };
            sum + y.abs() * (24.0 + 2.0 * turned.min(100.0)) * F32 + gate * size * (-87.0f64).exp()
        }
    }
}

struct GeluCase {
    dtype: Dtype,
    width: usize,
    x: Vec<f32>,
    /// The factors of `gelu_times`, `[rows, width + 16]`, and the column that is the factor of the first of `x`.
    times: Option<(Vec<f32>, usize)>,
}

impl OpCase for GeluCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.x.len() / self.width;
        let mut x = buffer(backend, ActivationDtype::Operands(self.dtype), rows, self.width, &self.x)?;
        match &self.times {
            None => backend.gelu(&mut x),
            Some((y, from)) => {
                let y = buffer(backend, ActivationDtype::Sums, rows, self.width + 16, y)?;
                backend.gelu_times(&mut x, &y, *from);
            }
        }
        backend.read(&x, rows)
    }

    /// 1 + tanh has an error of a few roundings of numbers up to 2, and of the roundings of the inner sum times the
    /// slope of tanh there; on both sides. A factor multiplies it, and the product is rounded.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let product = if self.times.is_some() { 2.0 * y.abs() * F32 } else { 0.0 };
        rounded(self.dtype, y) + self.factor(at).abs() * gelu_tolerance(self.x[at]) + product
    }

    fn exact(&self) -> Option<Vec<f64>> {
        Some((0..self.x.len()).map(|at| gelu(self.x[at].into()) * self.factor(at)).collect())
    }

    fn name(&self) -> String {
        let factors = self.times.as_ref().map_or(String::new(), |(_, from)| format!(", factors from {from}"));
        format!("{} x {}{factors}", self.x.len() / self.width, self.width)
    }
}

impl GeluCase {
    fn factor(&self, at: usize) -> f64 {
        let (row, i) = (at / self.width, at % self.width);
        self.times.as_ref().map_or(1.0, |(y, from)| f64::from(y[row * (self.width + 16) + from + i]))
    }
}

struct ReluCase {
    dtype: Dtype,
    width: usize,
    x: Vec<f32>,
}

impl OpCase for ReluCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.x.len() / self.width;
        let mut x = buffer(backend, ActivationDtype::Operands(self.dtype), rows, self.width, &self.x)?;
        backend.relu(&mut x);
        backend.read(&x, rows)
    }

    /// Nothing is rounded: inputs are numbers of the dtype.
    fn tolerance(&self, _: usize, _: f64) -> f64 {
        0.0
    }

    fn exact(&self) -> Option<Vec<f64>> {
        Some(self.x.iter().map(|&x| f64::from(x).max(0.0)).collect())
    }

    fn name(&self) -> String {
        format!("{} x {}", self.x.len() / self.width, self.width)
    }
}

/// The tolerance of `gelu(x)` before it is stored.
fn gelu_tolerance(x: f32) -> f64 {
    let x = f64::from(x);
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    let slope = 1.0 / inner.abs().min(300.0).cosh().powi(2);
    0.5 * x.abs() * F32 * (24.0 + 32.0 * inner.abs().min(1e6) * slope)
}
