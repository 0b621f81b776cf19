//! One op with its inputs, run on any backend: what the suite compares. `compare` runs it on the device, twice, and once in the
//! CPU's clear loops, which define it.

use std::fmt::Display;

use crate::backend::cpu::{Cpu, Isa};
use crate::backend::{ActivationDtype, Backend, Dtype, HeadLayout, MatrixPart, RowToken, StepBatch, WeightView};
use crate::error::Result;
use crate::ids::TokenId;

use super::dice::Dice;
use super::report::{Found, Worst, share};

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

pub trait Case: Display {
    /// What the op leaves in its output.
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>>;
    /// How far value `at` may be from the definition's, which is `y`: the roundings of both.
    fn tolerance(&self, at: usize, y: f64) -> f64;
}

pub fn compare<B: Backend>(backend: &mut B, case: &impl Case) -> Result<Found> {
    let definition = case.run(&mut Cpu::with_isa(Isa::Portable))?;
    let found = case.run(backend)?;
    let again = case.run(backend)?;
    let repeats = found.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
    let mut worst = Worst::default();
    for (at, (&y, &x)) in definition.iter().zip(&found).enumerate() {
        let (x, y) = (f64::from(x), f64::from(y));
        // Of two infinities or two that are no numbers, nothing is off.
        let error = if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() };
        let seen =
            Worst { error: if error.is_nan() { f64::INFINITY } else { error }, tolerance: case.tolerance(at, y) };
        if seen.error > 0.0 && share(seen) >= share(worst) {
            worst = seen;
        }
    }
    let same_length = definition.len() == found.len() && found.len() == again.len();
    Ok(Found::twice(worst, repeats && same_length))
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

/// Heads and vocabulary of steps whose op knows neither.
pub const ANY_HEADS: HeadLayout = HeadLayout { q_heads: 1, kv_heads: 1, head_dim: 16 };
pub const ANY_VOCAB: usize = 32;

/// A step of rows at these positions, all of token 0, which wants nothing.
pub fn rows_at(positions: &[u32]) -> StepBatch {
    let tokens = vec![RowToken::Known(TokenId(0)); positions.len()];
    StepBatch { tokens, positions: positions.to_vec(), ..StepBatch::default() }
}
