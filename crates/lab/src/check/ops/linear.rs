//! `linear` into operands and into sums, and `linear_add`, with and without bias.

use std::fmt;

use super::OpSuite;
use crate::check::case::{F32, OpCase, buffer, dot, numbers, parts, rounded, stacked, vector};
use crate::check::device::CheckEffort;
use offshoot_backend::{ActivationDtype, Backend, Dtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Rows, outputs and inputs; the last one's rows are more than one pass of the CPU takes.
const SHAPES: [(usize, usize, usize); 19] = [
    (1, 1, 1),
    (1, 300, 193),
    (2, 16, 3),
    (3, 15, 2),
    (4, 260, 1025),
    (5, 17, 191),
    (5, 172, 64),
    (7, 64, 172),
    (8, 128, 256),
    (15, 33, 385),
    (17, 105, 48),
    (29, 65, 577),
    (31, 2304, 768),
    (33, 200, 4096),
    (64, 512, 512),
    (128, 96, 320),
    (255, 64, 130),
    (300, 384, 256),
    (300, 40, 2000),
];

pub fn check<B: Backend>(suite: &mut OpSuite<'_, B>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let shapes: Vec<_> = match suite.effort {
        CheckEffort::Quick => vec![(3, 15, 2), (5, 64, 48)],
        // And every number of rows that kernels divide.
        CheckEffort::Full => (1..=45).map(|rows| (rows, 47 + rows % 19, 31 + rows % 13)).chain(SHAPES).collect(),
    };
    for (rows, outputs, inputs) in shapes {
        // Inputs are rounded to bf16 where weights are; to f16 by those devices alone whose buffers hold it.
        let x = if dtype == Dtype::F16 { numbers(dice, dtype, rows * inputs) } else { dice.numbers(rows * inputs) };
        let read: Vec<f32> = x.iter().map(|&x| dtype.round(x)).collect();
        let weights = numbers(dice, dtype, outputs * inputs);
        let (before, bias) = (dice.numbers(rows * outputs), dice.numbers(outputs));
        for bias in [None, Some(bias)] {
            let linear = |into: LinearDestination| LinearCase {
                dtype,
                into,
                inputs,
                x: x.clone(),
                weights: weights.clone(),
                bias: bias.clone(),
                norms: [norms(&read, inputs), norms(&weights, inputs)],
            };
            suite.hold("linear", &linear(LinearDestination::Replace(ActivationDtype::Operands(dtype))))?;
            suite.hold("linear", &linear(LinearDestination::Replace(ActivationDtype::Sums)))?;
            suite.hold("linear_add", &linear(LinearDestination::Add(before.clone())))?;
        }
    }
    Ok(())
}

/// The length of each row.
fn norms(values: &[f32], width: usize) -> Vec<f64> {
    values.chunks_exact(width).map(|row| dot(row, row).sqrt()).collect()
}

enum LinearDestination {
    Replace(ActivationDtype),
    /// Contents of the residual before.
    Add(Vec<f32>),
}

struct LinearCase {
    dtype: Dtype,
    into: LinearDestination,
    inputs: usize,
    x: Vec<f32>,
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// Lengths of the rows of `x` and of `weights`.
    norms: [Vec<f64>; 2],
}

impl LinearCase {
    fn rows(&self) -> usize {
        self.x.len() / self.inputs
    }

    fn outputs(&self) -> usize {
        self.weights.len() / self.inputs
    }
}

impl OpCase for LinearCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (rows, outputs) = (self.rows(), self.outputs());
        let x = buffer(backend, ActivationDtype::Operands(self.dtype), rows, self.inputs, &self.x)?;
        let weights = stacked(backend, self.dtype, &parts(outputs), &self.weights)?;
        let bias = self.bias.as_ref().map(|bias| vector(backend, bias)).transpose()?;
        let out = match &self.into {
            LinearDestination::Replace(holds) => {
                let mut out = buffer(backend, *holds, rows, outputs, &[])?;
                backend.linear(&mut out, &x, &weights, bias.as_ref());
                out
            }
            LinearDestination::Add(before) => {
                let mut out = buffer(backend, ActivationDtype::Sums, rows, outputs, before)?;
                backend.linear_add(&mut out, &x, &weights, bias.as_ref());
                out
            }
        };
        backend.read(&out, rows)
    }

    /// Of k products summed in f32 in any order, roundings add up like a random walk: with a probability beyond doubt
    /// at most `8 sqrt(k)` of them, each of a sum that is at most the product of the rows' lengths (Higham and Mary, "A
    /// new approach to probabilistic rounding error analysis", 2019); on both sides. Tensor cores cut off instead of
    /// rounding, once for each 8 or 16 products: at most `k / 8` cuts of two roundings each of the partial sum, which
    /// is some `sqrt(k)` times less than the bound. Products of numbers cut to fewer bits (TF32) do not pass.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (row, output) = (at / self.outputs(), at % self.outputs());
        let size = self.norms[0][row] * self.norms[1][output];
        let walk = 2.0 * (8.0 * (self.inputs as f64).sqrt() + 4.0) * F32 * size;
        let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[output]).abs());
        match &self.into {
            // The bias may be added to a result that was stored already.
            LinearDestination::Replace(ActivationDtype::Operands(dtype)) => {
                walk + 2.0 * rounded(*dtype, y.abs() + bias)
            }
            LinearDestination::Replace(ActivationDtype::Sums) => walk + 2.0 * F32 * (y.abs() + bias),
            LinearDestination::Add(before) => walk + 4.0 * F32 * (y.abs() + bias + f64::from(before[at]).abs()),
        }
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let read: Vec<f32> = self.x.iter().map(|&x| self.dtype.round(x)).collect();
        let value = |at: usize| {
            let (row, output) = (at / self.outputs(), at % self.outputs());
            let [x, w] =
                [(&read, row), (&self.weights, output)].map(|(of, row)| &of[row * self.inputs..][..self.inputs]);
            let before = if let LinearDestination::Add(before) = &self.into { before[at] } else { 0.0 };
            dot(x, w) + f64::from(self.bias.as_ref().map_or(0.0, |bias| bias[output])) + f64::from(before)
        };
        Some((0..self.rows() * self.outputs()).map(value).collect())
    }
}

impl fmt::Display for LinearCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let into = match &self.into {
            LinearDestination::Replace(holds) => format!("into {holds:?}"),
            LinearDestination::Add(_) => "added".to_owned(),
        };
        let bias = if self.bias.is_some() { "with bias" } else { "no bias" };
        write!(f, "{} rows, {} -> {}, {into}, {bias}", self.rows(), self.inputs, self.outputs())
    }
}
