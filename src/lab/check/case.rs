//! One op with its inputs, run on any backend. `compare` runs it twice on the device and once in the CPU's clear loops,
//! which define the result.

use std::fmt::Display;

use crate::backend::cpu::{Cpu, Isa};
use crate::backend::{ActivationDtype, Backend, Dtype, HeadLayout, MatrixPart, RowToken, StepBatch, WeightView};
use crate::error::Result;
use crate::ids::TokenId;

use super::dice::Dice;
use super::report::{CaseResult, WorstError, share};

/// One rounding to f32, relative.
pub const F32: f64 = Dtype::F32.rounding();

/// One rounding of `y` to `dtype`, and at least half the smallest positive number of that dtype.
pub fn rounded(dtype: Dtype, y: f64) -> f64 {
    let smallest = match dtype {
        Dtype::F16 => 2f64.powi(-25),
        Dtype::F32 | Dtype::Bf16 => f64::from(f32::MIN_POSITIVE),
    };
    (y.abs() * dtype.rounding()).max(smallest)
}

pub trait OpCase: Display {
    /// Runs the op and returns its output.
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>>;
    /// Largest allowed difference of value `at` from the definition's `y`: the rounding errors of both.
    fn tolerance(&self, at: usize, y: f64) -> f64;
}

pub fn compare<B: Backend>(backend: &mut B, case: &impl OpCase) -> Result<CaseResult> {
    let definition = case.run(&mut Cpu::with_isa(Isa::Portable))?;
    let found = case.run(backend)?;
    let again = case.run(backend)?;
    let repeats = found.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
    let mut worst = WorstError::default();
    for (at, (&y, &x)) in definition.iter().zip(&found).enumerate() {
        let (x, y) = (f64::from(x), f64::from(y));
        // Two equal infinities or two NaNs have no error.
        let error = if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() };
        let seen =
            WorstError { error: if error.is_nan() { f64::INFINITY } else { error }, tolerance: case.tolerance(at, y) };
        if seen.error > 0.0 && share(seen) >= share(worst) {
            worst = seen;
        }
    }
    let same_length = definition.len() == found.len() && found.len() == again.len();
    Ok(CaseResult::twice(worst, repeats && same_length))
}

/// A buffer of `rows` rows that begins with `values`.
pub fn buffer<B: Backend>(
    backend: &mut B,
    holds: ActivationDtype,
    rows: usize,
    width: usize,
    values: &[f32],
) -> Result<B::Buffer> {
    let mut buffer = backend.buffer(width, holds)?;
    backend.resize(&mut buffer, rows)?;
    backend.write(&mut buffer, values.len() / width, values)?;
    Ok(buffer)
}

/// Numbers in [-1, 1) as a matrix or vector of `dtype` holds them.
pub fn numbers(dice: &mut Dice, dtype: Dtype, len: usize) -> Vec<f32> {
    (0..len).map(|_| dtype.round(dice.number())).collect()
}

/// `values` `[rows, cols]`, which `dtype` can hold, as a matrix of the backend.
pub fn matrix<B: Backend>(backend: &mut B, dtype: Dtype, rows: usize, values: &[f32]) -> Result<B::Matrix> {
    let bytes = dtype.encode(values);
    backend.matrix(&[MatrixPart::Dense(WeightView { dtype, rows, cols: values.len() / rows, bytes: &bytes })])
}

pub fn vector<B: Backend>(backend: &mut B, values: &[f32]) -> Result<B::Vector> {
    let bytes = Dtype::F32.encode(values);
    backend.vector(&[WeightView { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: &bytes }])
}

/// Heads and vocabulary of steps for ops that depend on neither.
pub const ANY_HEADS: HeadLayout = HeadLayout { q_heads: 1, kv_heads: 1, head_dim: 16 };
pub const ANY_VOCAB: usize = 32;

/// A step of rows at these positions, all with token 0, without logits.
pub fn rows_at(positions: &[u32]) -> StepBatch {
    let tokens = vec![RowToken::Known(TokenId(0)); positions.len()];
    StepBatch { tokens, positions: positions.to_vec(), ..StepBatch::default() }
}
