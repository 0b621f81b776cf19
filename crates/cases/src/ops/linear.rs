//! `linear`, which replaces or adds, with and without bias: here with dense weights; with codes in `quantised` and
//! `four_bit`.

use super::suite::OpSuite;
use crate::case::{CheckEffort, F32, OpCase, buffer, dot, numbers, parts, rounded, stacked, vector};
use offshoot_backend::quantised::ActivationScale;
use offshoot_backend::{
    ActivationDtype, Backend, Dtype, MatrixPart, OutputMode, QuantFormat, QuantRow, QuantSource, QuantView, Rounding,
    WeightView,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Rows, outputs and inputs; the last one's rows are more than one pass of the CPU takes.
const SHAPES: [[usize; 3]; 19] = [
    [1, 1, 1],
    [1, 300, 193],
    [2, 16, 3],
    [3, 15, 2],
    [4, 260, 1025],
    [5, 17, 191],
    [5, 172, 64],
    [7, 64, 172],
    [8, 128, 256],
    [15, 33, 385],
    [17, 105, 48],
    [29, 65, 577],
    [31, 2304, 768],
    [33, 200, 4096],
    [64, 512, 512],
    [128, 96, 320],
    [255, 64, 130],
    [300, 384, 256],
    [300, 40, 2000],
];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let shapes: Vec<_> = match suite.effort {
        CheckEffort::Quick => vec![[3, 15, 2], [5, 64, 48]],
        // And every number of rows that kernels divide.
        CheckEffort::Full => (1..=45).map(|rows| [rows, 47 + rows % 19, 31 + rows % 13]).chain(SHAPES).collect(),
    };
    for shape in shapes {
        let layer = TestLayer::random(dice, dtype, None, shape);
        // `linear_add` is `linear`, adding.
        layer.hold(suite, ["linear", "linear_add"], &[false, true])?;
    }
    Ok(())
}

/// Where a layer's result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    Operands,
    Sums,
    /// Added to sums.
    Added,
}

impl Destination {
    pub const ALL: [Destination; 3] = [Destination::Operands, Destination::Sums, Destination::Added];

    /// What the result is stored as.
    pub fn stores(self, dtype: Dtype) -> ActivationDtype {
        match self {
            Destination::Operands => ActivationDtype::Operands(dtype),
            Destination::Sums | Destination::Added => ActivationDtype::Sums,
        }
    }

    /// The buffer that the result goes to; `before`: what it is added to, if it is.
    pub fn buffer<B: Backend>(
        self,
        backend: &mut B,
        dtype: Dtype,
        [rows, outputs]: [usize; 2],
        before: &[f32],
    ) -> Result<B::Buffer> {
        let before = if self == Destination::Added { before } else { &[] };
        buffer(backend, self.stores(dtype), rows, outputs, before)
    }

    /// Computes a layer of all rows of `x` into such a buffer.
    pub fn compute<B: Backend>(
        self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        weights: &B::Matrix,
        bias: Option<&B::Vector>,
    ) {
        let mode = if self == Destination::Added { OutputMode::Add } else { OutputMode::Replace };
        backend.linear(out, x, weights, bias, mode);
    }

    /// What two results of about `y` may differ by because they are stored; `added`: the size of what is added to the
    /// sums, which may be stored before.
    pub fn rounding(self, dtype: Dtype, y: f64, added: f64) -> f64 {
        match self {
            Destination::Operands => 2.0 * rounded(dtype, y.abs() + added),
            Destination::Sums => 2.0 * F32 * (y.abs() + added),
            Destination::Added => 4.0 * F32 * (y.abs() + added),
        }
    }
}

/// The largest size of a row's numbers, and the row's length.
#[derive(Clone, Copy, Default)]
pub struct RowSize {
    pub largest: f64,
    pub length: f64,
}

impl RowSize {
    pub fn of_rows(numbers: &[f32], width: usize) -> Vec<Self> {
        let of = |row: &[f32]| RowSize {
            largest: row.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max),
            length: dot(row, row).sqrt(),
        };
        numbers.chunks_exact(width).map(of).collect()
    }

    /// The sizes of the rows of weights made of `numbers`: of what their codes stand for, if activations are exact.
    pub fn of_weights(numbers: &[f32], width: usize, format: Option<QuantFormat>) -> Vec<Self> {
        let Some(format) = format.filter(|format| format.rounding == Rounding::Exact) else {
            return Self::of_rows(numbers, width);
        };
        let bytes = Dtype::F32.encode(numbers);
        let (view, mut scratch) = (made_of(format, &bytes, width), QuantRow::default());
        let mut read = vec![0.0; numbers.len()];
        for (output, row) in read.chunks_exact_mut(width).enumerate() {
            view.numbers(output, &mut scratch, row);
        }
        Self::of_rows(&read, width)
    }

    /// At least the size of each of these rows.
    pub fn most(sizes: &[Self]) -> Self {
        sizes.iter().fold(Self::default(), |most, size| RowSize {
            largest: most.largest.max(size.largest),
            length: most.length.max(size.length),
        })
    }
}

/// The difference of two sums over the products of a row of activations and a row of weights.
///
/// Of k products summed in f32 in any order, roundings add up like a random walk: with a probability beyond doubt at
/// most `8 sqrt(k)` of them, each of a sum that is at most the product of the rows' lengths (Higham and Mary, "A new
/// approach to probabilistic rounding error analysis", 2019); on both sides. Tensor cores cut off instead of rounding,
/// once for each 8 or 16 products: at most `k / 8` cuts of two roundings each of the partial sum, which is some
/// `sqrt(k)` times less than the bound. Products of numbers cut to fewer bits (TF32) do not pass. Where activations are
/// not rounded, a group of codes adds one rounding of its sum, by its scale.
pub fn sum_tolerance(format: Option<QuantFormat>, inputs: usize, x: RowSize, w: RowSize) -> f64 {
    let steps = match format.map(|format| format.rounding) {
        None => 8.0,
        Some(Rounding::Exact) => 9.0,
        Some(_) => return e4m3_tolerance(inputs, x.largest * w.largest, x.length * w.length),
    };
    2.0 * (steps * (inputs as f64).sqrt() + 4.0) * F32 * x.length * w.length
}

/// What numbers that were rounded to e4m3 may differ from others: three bits follow the first.
const E4M3: f64 = 1.0 + 1.0 / 16.0;

/// The difference of two sums over `inputs` products of e4m3, of which none is larger than `largest`. A tensor core
/// adds 32 of them at a time to a sum of at most 128, each cut to 13 bits below the largest (DeepSeek-V3, section
/// 3.3.2, says 14 bits in all): errors of random sign, which add up like a random walk, 8 times its mean length at
/// most. `size`: the product of the lengths; sums in f32 differ as those of `linear`.
fn e4m3_tolerance(inputs: usize, largest: f64, size: f64) -> f64 {
    let walk = 8.0 * (inputs as f64).sqrt();
    E4M3 * E4M3 * (walk * 2f64.powi(-13) * largest + 2.0 * (walk + 4.0) * F32 * size)
}

/// Codes of this format, of numbers in `bytes` (f32), `cols` of them a row.
pub fn made_of(format: QuantFormat, bytes: &[u8], cols: usize) -> QuantView<'_> {
    let rows = bytes.len() / size_of::<f32>() / cols;
    let view = WeightView { dtype: Dtype::F32, rows, cols, bytes };
    QuantView::of(format, rows, cols, QuantSource::Dense(view))
}

/// A matrix of these numbers: dense weights of `dtype` in parts, as models stack projections; codes whose activations
/// are rounded in two parts, whose static scales of activations are `scales`.
pub fn weights<B: Backend>(
    backend: &mut B,
    (dtype, format): (Dtype, Option<QuantFormat>),
    numbers: &[f32],
    cols: usize,
    scales: [f32; 2],
) -> Result<B::Matrix> {
    let outputs = numbers.len() / cols;
    let Some(format) = format else { return stacked(backend, dtype, &parts(outputs), numbers) };
    let bytes = Dtype::F32.encode(numbers);
    let whole = made_of(format, &bytes, cols);
    if format.rounding == Rounding::Exact {
        return backend.matrix(&[MatrixPart::Quantised(whole)]);
    }
    let is_static = matches!(format.rounding, Rounding::Static { .. });
    let part = |first: usize, rows: usize, fixed: f32| {
        let activations = ActivationScale { fixed: is_static.then_some(fixed), most: None };
        MatrixPart::Quantised(QuantView { first, rows, activations, ..whole })
    };
    let half = outputs / 2;
    let parts = [part(0, half, scales[0]), part(half, outputs - half, scales[1])];
    backend.matrix(if half == 0 { &parts[1..] } else { &parts })
}

/// Scales of activations that differ between the parts of a matrix.
pub const SCALES: [f32; 2] = [1.0 / 448.0, 1.0 / 300.0];

/// The operands of a layer.
pub struct TestLayer {
    dtype: Dtype,
    /// What the weights are made into; `None`: dense.
    format: Option<QuantFormat>,
    inputs: usize,
    /// `[rows, inputs]`
    x: Vec<f32>,
    /// `[outputs, inputs]`: of what the weights are made.
    weights: Vec<f32>,
    bias: Vec<f32>,
    /// `[rows, outputs]`: what a result is added to.
    before: Vec<f32>,
    /// Sizes of the rows of `x` and of `weights`.
    sizes: [Vec<RowSize>; 2],
}

impl TestLayer {
    pub fn random(
        dice: &mut Dice,
        dtype: Dtype,
        format: Option<QuantFormat>,
        [rows, outputs, inputs]: [usize; 3],
    ) -> Self {
        // Ops round inputs to bf16 where dense weights are; to f16 only on devices whose buffers hold it.
        let is_rounded = format.is_some() || dtype == Dtype::F16;
        let x = if is_rounded { numbers(dice, dtype, rows * inputs) } else { dice.numbers(rows * inputs) };
        let read: Vec<f32> = x.iter().map(|&x| dtype.round(x)).collect();
        let made_of = if format.is_some() { Dtype::F32 } else { dtype };
        let weights = numbers(dice, made_of, outputs * inputs);
        let (before, bias) = (dice.numbers(rows * outputs), dice.numbers(outputs));
        let sizes = [RowSize::of_rows(&read, inputs), RowSize::of_weights(&weights, inputs, format)];
        Self { dtype, format, inputs, x, weights, bias, before, sizes }
    }

    /// Holds the layer with these `biases` and every destination; `ops`: the report's names of the op that replaces,
    /// and of the one that adds.
    pub fn hold<B: Backend, D: Backend>(
        &self,
        suite: &mut OpSuite<'_, B, D>,
        ops: [&'static str; 2],
        biases: &[bool],
    ) -> Result<()> {
        for &biased in biases {
            for into in Destination::ALL {
                let op = ops[usize::from(into == Destination::Added)];
                suite.hold(op, &LinearCase { layer: self, into, biased })?;
            }
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        self.x.len() / self.inputs
    }

    fn outputs(&self) -> usize {
        self.weights.len() / self.inputs
    }
}

struct LinearCase<'a> {
    layer: &'a TestLayer,
    into: Destination,
    biased: bool,
}

impl LinearCase<'_> {
    /// What is added to sum `at`: the bias, and what the buffer held.
    fn added(&self, at: usize) -> [f64; 2] {
        let bias = if self.biased { self.layer.bias[at % self.layer.outputs()] } else { 0.0 };
        let before = if self.into == Destination::Added { self.layer.before[at] } else { 0.0 };
        [bias.into(), before.into()]
    }
}

impl OpCase for LinearCase<'_> {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let &TestLayer { dtype, format, inputs, .. } = self.layer;
        let (rows, outputs) = (self.layer.rows(), self.layer.outputs());
        let x = buffer(backend, ActivationDtype::Operands(dtype), rows, inputs, &self.layer.x)?;
        let weights = weights(backend, (dtype, format), &self.layer.weights, inputs, SCALES)?;
        let bias = self.biased.then(|| vector(backend, &self.layer.bias)).transpose()?;
        let mut out = self.into.buffer(backend, dtype, [rows, outputs], &self.layer.before)?;
        self.into.compute(backend, &mut out, &x, &weights, bias.as_ref());
        backend.read(&out, rows)
    }

    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let &TestLayer { dtype, format, inputs, .. } = self.layer;
        let (row, output) = (at / self.layer.outputs(), at % self.layer.outputs());
        let sums = sum_tolerance(format, inputs, self.layer.sizes[0][row], self.layer.sizes[1][output]);
        sums + self.into.rounding(dtype, y, self.added(at).map(f64::abs).iter().sum())
    }

    fn exact(&self) -> Option<Vec<f64>> {
        if self.layer.format.is_some() {
            return None;
        }
        let inputs = self.layer.inputs;
        let read: Vec<f32> = self.layer.x.iter().map(|&x| self.layer.dtype.round(x)).collect();
        let value = |at: usize| {
            let (row, output) = (at / self.layer.outputs(), at % self.layer.outputs());
            let [x, w] = [(&read, row), (&self.layer.weights, output)].map(|(of, row)| &of[row * inputs..][..inputs]);
            dot(x, w) + self.added(at).iter().sum::<f64>()
        };
        Some((0..self.layer.before.len()).map(value).collect())
    }

    fn name(&self) -> String {
        let Self { layer, into, biased } = self;
        let bias = if *biased { "with bias" } else { "no bias" };
        let format = layer.format.map_or(String::new(), |format| format!("{format}, {}, ", format.rounding));
        format!("{} rows, {} -> {}, {format}into {into:?}, {bias}", layer.rows(), layer.inputs, layer.outputs())
    }
}
