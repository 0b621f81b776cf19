//! `linear` with weights of e4m3 whose activations are rounded to it: by rows, by 128 inputs, by a scale that comes
//! with the weights, other for each of two parts. On devices that multiply these formats as they are. And `rms_norm`
//! and `gated` for them alone, which change no bit.

use super::linear::{SCALES, TestLayer, weights};
use super::suite::OpSuite;
use crate::case::{CheckEffort, OpCase, buffer, vector};
use offshoot_backend::{
    ActivationDtype, Backend, CodeFormat, Dtype, Gate, OutputMode, QuantFormat, Rounding, RoundingKind, WeightFormat,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Rows, outputs and inputs; those of more than 128 rows and multiples of 16 may be a library's.
const SHAPES: [[usize; 3]; 11] = [
    [1, 1, 1],
    [3, 15, 2],
    [8, 128, 256],
    [17, 105, 48],
    [31, 200, 384],
    [64, 512, 512],
    [128, 96, 1280],
    [255, 64, 130],
    [300, 384, 256],
    [300, 128, 4096],
    [1000, 256, 512],
];

/// e4m3 with a scale for an output, or for 128 of its inputs.
pub const FORMATS: [QuantFormat; 4] = [
    e4m3(None, Rounding::Dynamic { to: RoundingKind::Fp8, group: None }),
    e4m3(None, Rounding::Static { to: RoundingKind::Fp8 }),
    e4m3(Some(GROUP), Rounding::Dynamic { to: RoundingKind::Fp8, group: Some(GROUP) }),
    e4m3(Some(GROUP), Rounding::Static { to: RoundingKind::Fp8 }),
];

const GROUP: u32 = 128;

const fn e4m3(group: Option<u32>, rounding: Rounding) -> QuantFormat {
    QuantFormat { codes: CodeFormat::Fp8, group, zeros: false, rounding }
}

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let few = [[3, 15, 2], [5, 64, 128]];
    let shapes: &[_] = if suite.effort == CheckEffort::Quick { &few } else { &SHAPES };
    for format in FORMATS {
        if !suite.backend.multiplies(WeightFormat::Quantised(format)) {
            continue;
        }
        for &[rows, outputs, inputs] in shapes.iter().filter(|[.., inputs]| is_cut(format, *inputs)) {
            let layer = TestLayer::random(dice, dtype, Some(format), [rows, outputs, inputs]);
            // `linear_add` is `linear`, adding.
            layer.hold(suite, ["linear, e4m3", "linear_add, e4m3"], &[false, true])?;
            let weights = dice.numbers(outputs * inputs);
            for by in [MadeBy::Norm, MadeBy::Gate] {
                let x = dice.numbers(rows * inputs * by.width());
                suite.hold("for e4m3", &ForCase { dtype, format, by, x, inputs, weights: weights.clone() })?;
            }
        }
    }
    Ok(())
}

/// Whether the format's groups divide the inputs.
pub fn is_cut(format: QuantFormat, inputs: usize) -> bool {
    format.group.is_none_or(|group| inputs.is_multiple_of(group as usize))
}

/// What makes the inputs of a product.
#[derive(Clone, Copy)]
enum MadeBy {
    Norm,
    Gate,
}

impl MadeBy {
    /// Numbers that an input is made of.
    fn width(self) -> usize {
        match self {
            MadeBy::Norm => 1,
            MadeBy::Gate => 2,
        }
    }
}

/// The difference between a product whose inputs were made for it, and one whose inputs anybody might read: none.
struct ForCase {
    dtype: Dtype,
    format: QuantFormat,
    by: MadeBy,
    x: Vec<f32>,
    inputs: usize,
    weights: Vec<f32>,
}

impl OpCase for ForCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (rows, outputs) = (self.x.len() / self.inputs / self.by.width(), self.weights.len() / self.inputs);
        let operands = ActivationDtype::Operands(self.dtype);
        let mut made = buffer(backend, operands, rows, self.inputs, &[])?;
        let ones = vector(backend, &vec![1.0; self.inputs])?;
        let mut results = Vec::new();
        // Parts whose scales differ read inputs twice, once each.
        for scales in [[SCALES[0]; 2], SCALES] {
            let w = weights(backend, (self.dtype, Some(self.format)), &self.weights, self.inputs, scales)?;
            for next in [None, Some(&w)] {
                match self.by {
                    MadeBy::Norm => {
                        let x = buffer(backend, ActivationDtype::Sums, rows, self.inputs, &self.x)?;
                        backend.rms_norm(&mut made, &x, &ones, 1e-6, next);
                    }
                    MadeBy::Gate => {
                        let x = buffer(backend, operands, rows, self.inputs * 2, &self.x)?;
                        backend.gated(&mut made, &x, Gate::Silu, next);
                    }
                }
                let mut out = buffer(backend, ActivationDtype::Sums, rows, outputs, &[])?;
                backend.linear(&mut out, &made, &w, None, OutputMode::Replace);
                results.push(backend.read(&out, rows)?);
            }
        }
        let pairs = results.chunks_exact(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
        Ok(pairs.map(|(usual, made_for)| usual - made_for).collect())
    }

    fn tolerance(&self, _: usize, _: f64) -> f64 {
        0.0
    }

    fn name(&self) -> String {
        let by = match self.by {
            MadeBy::Norm => "rms_norm for it",
            MadeBy::Gate => "gated for it",
        };
        let outputs = self.weights.len() / self.inputs;
        format!("{by}, {} -> {outputs}, {}, {}", self.inputs, self.format, self.format.rounding)
    }
}
