//! Linear layers and experts whose weights are codes, in every weight-only format that the device multiplies as it is
//! stored. Codes are made of random numbers, so both backends read the same ones.

use std::fmt;

use super::OpSuite;
use super::experts::{Routed, score};
use crate::check::case::{F32, OpCase, buffer, numbers, rounded, vector};
use crate::check::device::CheckEffort;
use offshoot_backend::{
    ActivationDtype, Backend, CodeFormat, Dtype, ExpertInput, ExpertKind, MatrixPart, QuantFormat, QuantRow,
    QuantSource, QuantView, Rounding, Router, RouterScores, WeightFormat, WeightView,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Codes and the inputs that share a scale.
const FORMATS: [(CodeFormat, Option<u32>, bool); 5] = [
    (CodeFormat::Int4, Some(32), false),
    (CodeFormat::Int4, Some(64), true),
    (CodeFormat::Int4, Some(128), true),
    (CodeFormat::Int4, None, false),
    (CodeFormat::Fp4, Some(32), false),
];

/// Rows, outputs and inputs.
const SHAPES: [[usize; 3]; 9] = [
    [1, 64, 128],
    [3, 33, 256],
    [8, 512, 4096],
    [16, 130, 384],
    [17, 200, 640],
    [64, 192, 1024],
    [70, 4096, 256],
    [256, 320, 1024],
    [300, 96, 128],
];

/// Rows, experts, chosen ones, outputs and inputs.
const GROUPED: [[usize; 5]; 4] =
    [[1, 8, 4, 96, 128], [20, 6, 2, 130, 256], [150, 32, 4, 64, 384], [700, 3, 2, 80, 128]];

pub fn check<B: Backend>(suite: &mut OpSuite<'_, B>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let is_quick = suite.effort == CheckEffort::Quick;
    for (codes, group, zeros) in FORMATS {
        let format = QuantFormat { codes, group, zeros, rounding: Rounding::Exact };
        let stored = WeightFormat::Quantised(format);
        let shapes: &[_] = match suite.backend.multiplies(stored) {
            false => &[],
            true if is_quick => &SHAPES[1..2],
            true => &SHAPES,
        };
        for &[rows, outputs, inputs] in shapes {
            let x = numbers(dice, dtype, rows * inputs);
            let weights = Codes::new(format, dice.numbers(outputs * inputs), outputs, inputs);
            let bias = dice.numbers(outputs);
            for into in [Destination::Operands, Destination::Sums, Destination::Added] {
                let (x, weights, bias) = (x.clone(), weights.clone(), bias.clone());
                suite.hold("linear of codes", &CodesCase { dtype, into, x, weights, bias, routed: None })?;
            }
        }
        let shapes = if is_quick { &GROUPED[..1] } else { &GROUPED[..] };
        let multiplied = shapes.iter().filter(|shape| suite.backend.multiplies_experts(stored, shape[4]));
        for [rows, experts, chosen, outputs, inputs] in multiplied.copied().collect::<Vec<_>>() {
            let scores = (0..rows * experts).map(|i| score(dice, i % experts)).collect();
            let router = Router { chosen, scores: RouterScores::SoftmaxOfChosen };
            let routed = Routed { rows, experts, router, scores };
            let x = numbers(dice, dtype, rows * inputs);
            let weights = Codes::new(format, dice.numbers(experts * outputs * inputs), outputs, inputs);
            let bias = dice.numbers(experts * outputs);
            for into in [Destination::Operands, Destination::Sums] {
                let (x, weights, bias, routed) = (x.clone(), weights.clone(), bias.clone(), Some(routed.clone()));
                suite.hold("expert_linear of codes", &CodesCase { dtype, into, x, weights, bias, routed })?;
            }
        }
    }
    Ok(())
}

/// One matrix, or one for each expert, and the numbers of which its codes are made.
#[derive(Clone)]
struct Codes {
    format: QuantFormat,
    bytes: Vec<u8>,
    outputs: usize,
    inputs: usize,
    /// The largest length of a row of the numbers that the codes stand for.
    longest: f64,
}

impl Codes {
    fn new(format: QuantFormat, numbers: Vec<f32>, outputs: usize, inputs: usize) -> Self {
        let mut codes = Self { format, bytes: Dtype::F32.encode(&numbers), outputs, inputs, longest: 0.0 };
        let (mut row, mut scratch) = (vec![0.0; inputs], QuantRow::default());
        for matrix in 0..codes.count() {
            for output in 0..outputs {
                codes.view(matrix).numbers(output, &mut scratch, &mut row);
                let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                codes.longest = codes.longest.max(length);
            }
        }
        codes
    }

    fn count(&self) -> usize {
        self.bytes.len() / size_of::<f32>() / self.outputs / self.inputs
    }

    fn view(&self, matrix: usize) -> QuantView<'_> {
        let (rows, cols, size) = (self.outputs, self.inputs, self.outputs * self.inputs * size_of::<f32>());
        let bytes = &self.bytes[matrix * size..][..size];
        let dense = WeightView { dtype: Dtype::F32, rows, cols, bytes };
        QuantView::of(self.format, rows, cols, QuantSource::Dense(dense))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Operands,
    Sums,
    /// Added to ones.
    Added,
}

/// A layer, or a grouped layer of rows with `routed`.
struct CodesCase {
    dtype: Dtype,
    into: Destination,
    x: Vec<f32>,
    weights: Codes,
    bias: Vec<f32>,
    routed: Option<Routed>,
}

impl OpCase for CodesCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let Codes { outputs, inputs, .. } = self.weights;
        let operands = ActivationDtype::Operands(self.dtype);
        let x = buffer(backend, operands, self.x.len() / inputs, inputs, &self.x)?;
        let matrix = |backend: &mut B, i| backend.matrix(&[MatrixPart::Quantised(self.weights.view(i))]);
        let holds = if self.into == Destination::Operands { operands } else { ActivationDtype::Sums };
        let Some(routed) = &self.routed else {
            let (weights, bias) = (matrix(backend, 0)?, vector(backend, &self.bias)?);
            let rows = self.x.len() / inputs;
            let before = vec![1.0; if self.into == Destination::Added { rows * outputs } else { 0 }];
            let mut out = buffer(backend, holds, rows, outputs, &before)?;
            match self.into {
                Destination::Added => backend.linear_add(&mut out, &x, &weights, Some(&bias)),
                Destination::Operands | Destination::Sums => backend.linear(&mut out, &x, &weights, Some(&bias)),
            }
            return backend.read(&out, rows);
        };
        let routes = routed.route(backend, None)?;
        let matrices = (0..routed.experts).map(|i| matrix(backend, i)).collect::<Result<_>>()?;
        let biases = self.bias.chunks_exact(outputs).map(|bias| vector(backend, bias)).collect::<Result<_>>()?;
        let experts = backend.experts(matrices, biases, ExpertKind::Linear)?;
        let mut out = buffer(backend, holds, routed.places(), outputs, &[])?;
        backend.expert_linear(&mut out, &x, &experts, &routes, ExpertInput::Rows);
        backend.read(&out, routed.places())
    }

    /// As for `linear`, with the lengths of all rows at most: a group's sum is rounded once more, by its scale.
    fn tolerance(&self, _: usize, y: f64) -> f64 {
        let inputs = self.weights.inputs;
        // Numbers of x are at most 1.
        let size = self.weights.longest * (inputs as f64).sqrt();
        let walk = 2.0 * (9.0 * (inputs as f64).sqrt() + 4.0) * F32 * size;
        match self.into {
            Destination::Operands => walk + 2.0 * rounded(self.dtype, y.abs()),
            Destination::Sums | Destination::Added => walk + 4.0 * F32 * (y.abs() + 2.0),
        }
    }
}

impl fmt::Display for CodesCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Codes { format, outputs, inputs, .. } = self.weights;
        match &self.routed {
            Some(routed) => write!(f, "{routed}, ")?,
            None => write!(f, "{} rows, ", self.x.len() / inputs)?,
        }
        write!(f, "{inputs} -> {outputs}, {format}, into {:?}", self.into)
    }
}
