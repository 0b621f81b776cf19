//! Linear layers: each row of a product of many rows is compared with the same row of a product of fewer rows.

use std::fmt;

use super::differences::{Rows, alone};
use crate::case::{CheckEffort, buffer, numbers, vector};
use crate::ops::linear::Destination;
use crate::ops::quantised::{FORMATS, is_cut};
use crate::report::CheckReport;
use offshoot_backend::{ActivationDtype, Backend, Dtype, MatrixPart, RandomWeight, Rounding, Uniform, WeightFormat};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Numbers of rows for large layers, and for others, in rising order.
const FEW_ROWS: [usize; 9] = [1, 8, 40, 128, 256, 304, 512, 1024, 2560];
const ROWS: [usize; 20] = [1, 2, 7, 8, 9, 16, 24, 33, 64, 96, 128, 200, 256, 304, 512, 1000, 1024, 1600, 2048, 2560];

/// A layer: its outputs and inputs, where its result goes, and whether it has a bias.
#[derive(Clone, Copy)]
struct LayerShape {
    outputs: usize,
    inputs: usize,
    into: Destination,
    biased: bool,
}

const fn layer(outputs: usize, inputs: usize, into: Destination, biased: bool) -> LayerShape {
    LayerShape { outputs, inputs, into, biased }
}

/// Odd shapes, then those of models up to a width of 768.
const SMALL: [LayerShape; 7] = [
    layer(33, 40, Destination::Operands, true),
    layer(300, 193, Destination::Added, false),
    layer(96, 320, Destination::Added, true),
    layer(1000, 256, Destination::Sums, false),
    layer(260, 1025, Destination::Sums, true),
    layer(2304, 768, Destination::Operands, true),
    layer(768, 2048, Destination::Added, false),
];
/// Layers of llama3-8b and codellama-7b, without the full vocabularies.
const LARGE: [LayerShape; 7] = [
    layer(6144, 4096, Destination::Operands, false),
    layer(12288, 4096, Destination::Operands, false),
    layer(4096, 4096, Destination::Added, false),
    layer(28672, 4096, Destination::Operands, false),
    layer(4096, 14336, Destination::Added, false),
    layer(4096, 11008, Destination::Added, false),
    layer(32016, 4096, Destination::Sums, false),
];

pub fn linear<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let mut dice = Dice::new(3);
    for dtype in Dtype::ALL {
        let (small, rows) = match effort {
            CheckEffort::Quick => (&SMALL[..3], &ROWS[..9]),
            CheckEffort::Full if B::IS_ASYNC => (&SMALL[..], &ROWS[..]),
            CheckEffort::Full => (&SMALL[..], &ROWS[..15]),
        };
        for layer in small {
            layer.hold(backend, (dtype, WeightFormat::Dense(dtype)), rows, &mut dice, report)?;
        }
        // Every number of rows that kernels divide.
        let every: Vec<usize> = (1..=45).collect();
        small[0].hold(backend, (dtype, WeightFormat::Dense(dtype)), &every, &mut dice, report)?;
        for format in FORMATS.into_iter().filter(|format| matches!(format.rounding, Rounding::Dynamic { .. })) {
            let quantised = WeightFormat::Quantised(format);
            let layers = small.iter().filter(|layer| is_cut(format, layer.inputs) && backend.multiplies(quantised));
            for layer in layers.collect::<Vec<_>>() {
                layer.hold(backend, (dtype, quantised), rows, &mut dice, report)?;
            }
        }
        // These layers test a GPU's library, which is not used for f32 models.
        if effort == CheckEffort::Full && B::IS_ASYNC && dtype != Dtype::F32 {
            for layer in &LARGE {
                layer.hold(backend, (dtype, WeightFormat::Dense(dtype)), &FEW_ROWS, &mut dice, report)?;
            }
        }
    }
    Ok(())
}

impl LayerShape {
    fn hold<B: Backend>(
        &self,
        backend: &mut B,
        (dtype, format): (Dtype, WeightFormat),
        counts: &[usize],
        dice: &mut Dice,
        report: &mut CheckReport,
    ) -> Result<()> {
        let LayerShape { outputs, inputs, biased, .. } = *self;
        let most = counts[counts.len() - 1];
        let reach = Uniform { stream: dice.next(), centre: 0.0, reach: 1.0 };
        let w = RandomWeight::of(dtype, outputs, inputs, reach);
        let w = backend.matrix(&[MatrixPart::random(w, format)])?;
        let bias = biased.then(|| vector(backend, &dice.numbers(outputs))).transpose()?;
        let x = numbers(dice, dtype, most * inputs);
        // Contents of the residual before.
        let before = if self.into == Destination::Added { dice.numbers(most * outputs) } else { Vec::new() };
        let product = |part: Rows| -> Result<Vec<f32>> {
            let (first, rows) = (part.start, part.len());
            let part = &x[first * inputs..][..rows * inputs];
            let x = buffer(backend, ActivationDtype::Operands(dtype), rows, inputs, part)?;
            let before = before.get(first * outputs..(first + rows) * outputs).unwrap_or_default();
            let mut out = self.into.buffer(backend, dtype, [rows, outputs], before)?;
            self.into.compute(backend, &mut out, &x, &w, bias.as_ref());
            backend.read(&out, rows)
        };
        let differences = alone(counts, outputs, dice, product)?;
        let op = if format.dense().is_some() { "alone, linear" } else { "alone, linear, e4m3" };
        differences.file(report, op, dtype, self);
        Ok(())
    }
}

impl fmt::Display for LayerShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bias = if self.biased { "with bias" } else { "no bias" };
        write!(f, "{} -> {}, into {:?}, {bias}", self.inputs, self.outputs, self.into)
    }
}
