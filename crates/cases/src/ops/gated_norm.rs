//! `gated_norm` in all its forms, and `sigmoid_times`.

use super::activations::{gate_tolerance, sigmoid, silu};
use super::suite::OpSuite;
use crate::case::{F32, OpCase, buffer, numbers, root_mean_square, rounded, vector};
use offshoot_backend::{ActivationDtype, Backend, Dtype, Gate, GateFunction, GatedNorm, NormOrder};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

const EPS: f32 = 1e-6;

/// Rows and widths beside those of all ops: one norm of a row as wide as published ones.
const WIDE: [(usize, usize); 2] = [(3, 8192), (2, 4099)];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    for &(rows, width) in suite.shapes().iter().chain(&WIDE) {
        let x = numbers(dice, dtype, rows * width);
        let gate: Vec<f32> = (0..rows * width).map(|_| dtype.round(12.0 * dice.number())).collect();
        for gates in [width, 1] {
            let y = gate[..rows * gates].to_vec();
            suite.hold("sigmoid_times", &SigmoidTimesCase { dtype, width, x: x.clone(), y })?;
        }
        let most = if WIDE.contains(&(rows, width)) { width } else { 300 };
        let norm = (1..=width.min(most)).rev().find(|norm| width % norm == 0).expect("1 divides every width");
        let (of_norm, of_row) = (dice.numbers(norm), dice.numbers(width));
        for (gate_by, order, weight) in [
            (GateFunction::Silu, NormOrder::NormFirst, Some(&of_norm)),
            (GateFunction::Sigmoid, NormOrder::NormFirst, Some(&of_norm)),
            (GateFunction::Silu, NormOrder::GateFirst, Some(&of_row)),
            (GateFunction::Sigmoid, NormOrder::GateFirst, Some(&of_norm)),
            (GateFunction::Silu, NormOrder::NormFirst, None),
        ] {
            let how = GatedNorm { width: norm, eps: EPS, gate: gate_by, order };
            let weight = weight.map(Vec::as_slice);
            suite.hold("gated_norm", &GatedNormCase { dtype, width, x: &x, gate: &gate, weight, how })?;
        }
    }
    Ok(())
}

struct GatedNormCase<'a> {
    dtype: Dtype,
    width: usize,
    x: &'a [f32],
    gate: &'a [f32],
    /// As long as a norm or a row is wide.
    weight: Option<&'a [f32]>,
    how: GatedNorm,
}

impl GatedNormCase<'_> {
    fn gate_first(&self) -> bool {
        self.weight.is_some() && self.how.order == NormOrder::GateFirst
    }

    fn factor(&self, gate: f32) -> f64 {
        match self.how.gate {
            GateFunction::Silu => silu(gate.into()),
            GateFunction::Sigmoid => sigmoid(gate.into()),
        }
    }

    /// The error of a gate's factor, as a share of it (see `gate_tolerance`).
    fn of_factor(gate: f32) -> f64 {
        (24.0 + 2.0 * f64::from(gate).abs().min(100.0)) * F32
    }
}

impl OpCase for GatedNormCase<'_> {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (rows, operands) = (self.x.len() / self.width, ActivationDtype::Operands(self.dtype));
        let mut x = buffer(backend, operands, rows, self.width, self.x)?;
        let gate = buffer(backend, operands, rows, self.width, self.gate)?;
        let weight = self.weight.map(|weight| vector(backend, weight)).transpose()?;
        backend.gated_norm(&mut x, &gate, weight.as_ref(), self.how);
        backend.read(&x, rows)
    }

    /// As of `rms_norm`, and of a gate whose other factor is the normalised number. A root of what gates have
    /// multiplied is wrong by no larger a share than the worst of these.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let gate = self.gate[at];
        let other = match (y, self.factor(gate)) {
            (_, 0.0) => 0.0,
            (y, factor) => (y / factor).abs(),
        };
        let of_gate = match self.how.gate {
            GateFunction::Silu => gate_tolerance(Gate::Silu, gate, other as f32, y),
            GateFunction::Sigmoid => y.abs() * Self::of_factor(gate),
        };
        let norm = self.how.width;
        let of_root = match self.gate_first() {
            true => self.gate[at / norm * norm..][..norm].iter().map(|&gate| Self::of_factor(gate)).fold(0.0, f64::max),
            false => 0.0,
        };
        rounded(self.dtype, y) + of_gate + y.abs() * (of_root + (norm as f64 + 12.0) * F32)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let GatedNorm { width: norm, eps, .. } = self.how;
        let gated = |at: usize| f64::from(self.x[at]) * self.factor(self.gate[at]);
        let Some(weight) = self.weight else { return Some((0..self.x.len()).map(gated).collect()) };
        let root = |first: usize| match self.gate_first() {
            true => {
                let squares: f64 = (first..first + norm).map(|at| gated(at).powi(2)).sum();
                (squares / norm as f64 + f64::from(eps)).sqrt()
            }
            false => root_mean_square(&self.x[first..first + norm], eps),
        };
        let roots: Vec<f64> = (0..self.x.len()).step_by(norm).map(root).collect();
        let value = |at: usize| gated(at) / roots[at / norm] * f64::from(weight[at % self.width % weight.len()]);
        Some((0..self.x.len()).map(value).collect())
    }

    fn name(&self) -> String {
        let GatedNorm { width, gate, order, .. } = self.how;
        let weights = self.weight.map_or(0, <[f32]>::len);
        let rows = self.x.len() / self.width;
        format!("{rows} x {}, norms of {width}, {weights} weights, {gate:?}, {order:?}", self.width)
    }
}

struct SigmoidTimesCase {
    dtype: Dtype,
    width: usize,
    x: Vec<f32>,
    /// As wide as `x`, or one column.
    y: Vec<f32>,
}

impl OpCase for SigmoidTimesCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (rows, operands) = (self.x.len() / self.width, ActivationDtype::Operands(self.dtype));
        let mut x = buffer(backend, operands, rows, self.width, &self.x)?;
        let y = buffer(backend, operands, rows, self.y.len() / rows, &self.y)?;
        backend.sigmoid_times(&mut x, &y);
        backend.read(&x, rows)
    }

    /// That of the gate's exponential, as `gate_tolerance` derives it.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        rounded(self.dtype, y) + y.abs() * (24.0 + 2.0 * self.gate(at).abs().min(100.0)) * F32
    }

    fn exact(&self) -> Option<Vec<f64>> {
        Some((0..self.x.len()).map(|at| f64::from(self.x[at]) * sigmoid(self.gate(at))).collect())
    }

    fn name(&self) -> String {
        let rows = self.x.len() / self.width;
        format!("{rows} x {}, {} gates a row", self.width, self.y.len() / rows)
    }
}

impl SigmoidTimesCase {
    /// The gate of element `at`.
    fn gate(&self, at: usize) -> f64 {
        let gates = self.y.len() * self.width / self.x.len();
        f64::from(self.y[if gates == 1 { at / self.width } else { at }])
    }
}
