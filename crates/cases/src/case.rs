//! One op with its inputs, run on any backend, and how many cases there are of each. `compare` runs it twice on the
//! device and once on the backend that defines the result, whose numbers are compared with f64 where a case computes
//! that.

use offshoot_backend::{
    ActivationDtype, Backend, Dtype, HeadLayout, LatentHeads, MatrixPart, RowToken, SampledToken, StepBatch, StepShape,
    WeightView,
};
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;

use crate::report::{CaseResult, WorstError};
use offshoot_core::dice::Dice;

/// How many cases are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckEffort {
    /// Every op and code path, with few and small cases.
    Quick,
    Full,
}

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

pub trait OpCase {
    /// What tells the case from others of its op, where it fails.
    fn name(&self) -> String;
    /// Runs the op and returns its output.
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>>;
    /// Largest allowed difference of value `at` from the definition's `y`: the rounding errors of both.
    fn tolerance(&self, at: usize, y: f64) -> f64;
    /// The output in f64, by a formula that shares nothing with the definition's code; `None`: other suites hold those.
    fn exact(&self) -> Option<Vec<f64>> {
        None
    }
}

pub fn compare<B: Backend, D: Backend>(backend: &mut B, definition: &mut D, case: &impl OpCase) -> Result<CaseResult> {
    let definition = case.run(definition)?;
    let found = case.run(backend)?;
    let again = case.run(backend)?;
    let repeats = found.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
    let defined: Vec<f64> = definition.iter().map(|&y| f64::from(y)).collect();
    let mut worst = WorstError::default();
    worst_of(case, &found, &defined, &mut worst);
    let mut same_length = definition.len() == found.len() && found.len() == again.len();
    if let Some(exact) = case.exact() {
        worst_of(case, &definition, &exact, &mut worst);
        same_length &= exact.len() == definition.len();
    }
    Ok(CaseResult::twice(worst, repeats && same_length))
}

/// Raises `worst` to the worst difference of `found` from `expected`.
fn worst_of(case: &impl OpCase, found: &[f32], expected: &[f64], worst: &mut WorstError) {
    for (at, (&x, &y)) in found.iter().zip(expected).enumerate() {
        let x = f64::from(x);
        // Two equal infinities or two NaNs have no error.
        let error = if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() };
        worst.raise(error, case.tolerance(at, y));
    }
}

/// The sum of the products of two rows.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The root of the mean square of `x` and epsilon, by which an RMS norm divides.
pub fn root_mean_square(x: &[f32], eps: f32) -> f64 {
    (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt()
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

/// Absorbed queries with the rotated parts of `queries`, `[R, heads, nope + rope]`, and zeros for the rest: what
/// `prepare_latents` leaves to `absorb_queries`.
pub fn tails(heads: LatentHeads, queries: &[f32]) -> Vec<f32> {
    let head = |query: &[f32]| [&vec![0.0; heads.rank], &query[heads.nope..]].concat();
    queries.chunks_exact(heads.nope + heads.rope).flat_map(head).collect()
}

/// Numbers in [-1, 1) as a matrix or vector of `dtype` holds them.
pub fn numbers(dice: &mut Dice, dtype: Dtype, len: usize) -> Vec<f32> {
    (0..len).map(|_| dtype.round(dice.number())).collect()
}

/// `values` `[rows, cols]`, which `dtype` can hold, as a matrix of parts of these rows, as models stack projections.
pub fn stacked<B: Backend>(backend: &mut B, dtype: Dtype, parts: &[usize], values: &[f32]) -> Result<B::Matrix> {
    let cols = values.len() / parts.iter().sum::<usize>();
    // One byte before the weights: files do not align them.
    let bytes = [vec![0xff], dtype.encode(values)].concat();
    let mut rest = &bytes[1..];
    let parts = parts.iter().map(|&rows| {
        let bytes = rest.split_off(..rows * cols * dtype.bytes()).expect("the parts are the matrix");
        MatrixPart::Dense(WeightView { dtype, rows, cols, bytes })
    });
    backend.matrix(&parts.collect::<Vec<_>>())
}

/// The rows of the parts of a matrix of `rows` rows: one, or three where there are enough of them.
pub fn parts(rows: usize) -> Vec<usize> {
    if rows.is_multiple_of(3) && rows > 15 { vec![5, 10, rows - 15] } else { vec![rows] }
}

pub fn vector<B: Backend>(backend: &mut B, values: &[f32]) -> Result<B::Vector> {
    let bytes = Dtype::F32.encode(values);
    backend.vector(&[WeightView { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: &bytes }])
}

/// Runs `ops` in a step that was loaded or advanced, and waits for its samples.
pub fn run<B: Backend>(
    backend: &mut B,
    step: &mut B::Step,
    shape: StepShape,
    ops: impl FnOnce(&mut B, &mut B::Step),
) -> Result<Vec<Option<SampledToken>>> {
    backend.run(step, shape, |backend, step| {
        ops(backend, step);
        Ok(())
    })?;
    backend.collect(step)
}

/// Heads and vocabulary of steps for ops that depend on neither.
pub const ANY_HEADS: HeadLayout = HeadLayout::new(1, 1, 16);
pub const ANY_VOCAB: usize = 32;

/// A step of rows at these positions, all with token 0, without logits.
pub fn rows_at(positions: &[u32]) -> StepBatch {
    let tokens = vec![RowToken::Known(TokenId(0)); positions.len()];
    StepBatch { tokens, positions: positions.to_vec(), ..StepBatch::default() }
}
