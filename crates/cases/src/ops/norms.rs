//! `rms_norm` and `layer_norm`: f32 rows in, operands out; `rms_norm_add`, `round`, `add`, `scale` and `softcap`
//! of f32 rows.

use super::suite::OpSuite;
use crate::case::{F32, OpCase, buffer, root_mean_square, rounded, vector};
use offshoot_backend::{ActivationDtype, Backend, Dtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

const EPS: f32 = 1e-5;

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    for &(rows, width) in suite.shapes() {
        // Rows of all sizes: where they are small, epsilon counts.
        let size = dice.pick(&[1e-3, 1.0, 300.0]);
        let x: Vec<f32> = (0..rows * width).map(|_| size * (dice.number() + 0.2)).collect();
        let (weight, bias) = (dice.numbers(width), dice.numbers(width));
        let spreads: Vec<RowSpread> = x.chunks_exact(width).map(RowSpread::of).collect();
        let norm = |bias: Option<Vec<f32>>| {
            let (x, weight, spreads) = (x.clone(), weight.clone(), spreads.clone());
            NormCase { dtype: suite.dtype, width, x, weight, bias, spreads }
        };
        let (rms, layer) = (norm(None), norm(Some(bias)));
        suite.hold("rms_norm", &rms)?;
        suite.hold("layer_norm", &layer)?;
        let dtype = suite.dtype;
        let sums = |op| SumsCase { dtype, width, x: x.clone(), weight: weight.clone(), op };
        suite.hold("rms_norm_add", &sums(SumsOp::RmsNormAdd))?;
        suite.hold("round", &sums(SumsOp::Round))?;
        suite.hold("add", &sums(SumsOp::Add))?;
        suite.hold("scale", &sums(SumsOp::Scale))?;
        suite.hold("softcap", &sums(SumsOp::Softcap))?;
    }
    Ok(())
}

struct NormCase {
    dtype: Dtype,
    width: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    /// The bias of a layer norm; an RMS norm has none.
    bias: Option<Vec<f32>>,
    /// The spread of each row.
    spreads: Vec<RowSpread>,
}

/// Mean, standard deviation with epsilon, and mean magnitude of a row.
#[derive(Clone, Copy)]
struct RowSpread {
    mean: f64,
    deviation: f64,
    magnitude: f64,
}

impl RowSpread {
    fn of(row: &[f32]) -> Self {
        let mean_of = |f: &dyn Fn(f64) -> f64| row.iter().map(|&x| f(f64::from(x))).sum::<f64>() / row.len() as f64;
        let mean = mean_of(&|x| x);
        let deviation = (mean_of(&|x| (x - mean).powi(2)) + f64::from(EPS)).sqrt();
        Self { mean, deviation, magnitude: mean_of(&f64::abs) }
    }
}

impl OpCase for NormCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.x.len() / self.width;
        let x = buffer(backend, ActivationDtype::Sums, rows, self.width, &self.x)?;
        let mut out = buffer(backend, ActivationDtype::Operands(self.dtype), rows, self.width, &[])?;
        let weight = vector(backend, &self.weight)?;
        match &self.bias {
            None => backend.rms_norm(&mut out, &x, &weight, EPS, None),
            Some(bias) => {
                let bias = vector(backend, bias)?;
                backend.layer_norm(&mut out, &x, &weight, &bias, EPS);
            }
        }
        backend.read(&out, rows)
    }

    /// A sum of n squares has an error of at most n roundings in any order, its root half of that, plus a few other
    /// roundings; on both sides. A layer norm's mean has an error of n roundings of the mean magnitude, divided by the
    /// root; the error of its variance, twice the mean's error times the mean distance, is smaller.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (n, i) = (self.width as f64, at % self.width);
        let RowSpread { mean, deviation, magnitude } = self.spreads[at / self.width];
        let stored = rounded(self.dtype, y);
        let Some(bias) = &self.bias else { return stored + y.abs() * (n + 12.0) * F32 };
        let size = magnitude / deviation;
        let normed = (f64::from(self.x[at]) - mean).abs() / deviation;
        let weight = f64::from(self.weight[i]).abs();
        let mean_error = 2.0 * (n + 2.0) * F32 * size;
        let square_error = 2.0 * mean_error + (n + 12.0) * F32;
        stored + 2.0 * F32 * (y.abs() + f64::from(bias[i]).abs()) + weight * (mean_error + normed * square_error)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let row = |(row, spread): (&[f32], &RowSpread)| {
            let (mean, divisor) = match self.bias {
                None => (0.0, root_mean_square(row, EPS)),
                Some(_) => (spread.mean, spread.deviation),
            };
            let value = |(i, &x): (usize, &f32)| {
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias[i]);
                (f64::from(x) - mean) / divisor * f64::from(self.weight[i]) + f64::from(bias)
            };
            row.iter().enumerate().map(value).collect::<Vec<_>>()
        };
        Some(self.x.chunks_exact(self.width).zip(&self.spreads).flat_map(row).collect())
    }

    fn name(&self) -> String {
        format!("{} x {}", self.x.len() / self.width, self.width)
    }
}

/// An op on rows of sums.
#[derive(Clone, Copy)]
enum SumsOp {
    RmsNormAdd,
    Round,
    Add,
    Scale,
    Softcap,
}

struct SumsCase {
    dtype: Dtype,
    width: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    op: SumsOp,
}

/// The factor of `scale`.
const FACTOR: f32 = 45.254_834;

/// The cap of `softcap`: some rows are far below it, some far above.
const CAP: f32 = 30.0;

impl SumsCase {
    /// What element `at` is added to.
    fn before(&self, at: usize) -> f32 {
        self.x[self.x.len() - 1 - at]
    }
}

impl OpCase for SumsCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.x.len() / self.width;
        let x = buffer(backend, ActivationDtype::Sums, rows, self.width, &self.x)?;
        let mut out = match self.op {
            SumsOp::RmsNormAdd | SumsOp::Add => {
                let before: Vec<f32> = (0..self.x.len()).map(|at| self.before(at)).collect();
                buffer(backend, ActivationDtype::Sums, rows, self.width, &before)?
            }
            SumsOp::Round => buffer(backend, ActivationDtype::Operands(self.dtype), rows, self.width, &[])?,
            SumsOp::Scale | SumsOp::Softcap => buffer(backend, ActivationDtype::Sums, rows, self.width, &self.x)?,
        };
        match self.op {
            SumsOp::RmsNormAdd => {
                let weight = vector(backend, &self.weight)?;
                backend.rms_norm_add(&mut out, &x, &weight, EPS);
            }
            SumsOp::Round => backend.round(&mut out, &x),
            SumsOp::Add => backend.add(&mut out, &x),
            SumsOp::Softcap => backend.softcap(&mut out, CAP),
            SumsOp::Scale => backend.scale(&mut out, FACTOR),
        }
        backend.read(&out, rows)
    }

    /// A norm has the error of `rms_norm`, and the sum one more rounding; a sum and a product have one; rounding is
    /// that of the dtype. A hyperbolic tangent has a few roundings of its own, or of 1 near zero, and one of x / cap,
    /// whose slope there is at most 1.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let x = f64::from(self.x[at]);
        match self.op {
            SumsOp::RmsNormAdd => {
                let before = f64::from(self.before(at));
                (y - before).abs() * (self.width as f64 + 12.0) * F32 + 2.0 * (y.abs() + before.abs()) * F32
            }
            SumsOp::Round => rounded(self.dtype, y),
            SumsOp::Softcap => 2.0 * (4.0 * y.abs() + 2.0 * f64::from(CAP) + x.abs().min(20.0 * f64::from(CAP))) * F32,
            SumsOp::Add | SumsOp::Scale => 2.0 * y.abs() * F32,
        }
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let roots: Vec<f64> = self.x.chunks_exact(self.width).map(|row| root_mean_square(row, EPS)).collect();
        let value = |at: usize| {
            let (x, before) = (f64::from(self.x[at]), f64::from(self.before(at)));
            match self.op {
                SumsOp::RmsNormAdd => before + x / roots[at / self.width] * f64::from(self.weight[at % self.width]),
                SumsOp::Round => x,
                SumsOp::Add => before + x,
                SumsOp::Scale => x * f64::from(FACTOR),
                SumsOp::Softcap => f64::from(CAP) * (x / f64::from(CAP)).tanh(),
            }
        };
        Some((0..self.x.len()).map(value).collect())
    }

    fn name(&self) -> String {
        format!("{} x {}", self.x.len() / self.width, self.width)
    }
}
