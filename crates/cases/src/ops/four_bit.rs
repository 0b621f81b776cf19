//! Linear layers and experts whose weights are codes, in every weight-only format that the device multiplies as it is
//! stored. Codes are made of random numbers, so both backends read the same ones.

use super::experts::{GroupedCase, GroupedOutput};
use super::linear::TestLayer;
use super::routed::Routed;
use super::suite::OpSuite;
use crate::case::{CheckEffort, numbers};
use offshoot_backend::{Backend, CodeFormat, ExpertInput, QuantFormat, Rounding, Router, RouterScores, WeightFormat};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Codes, the inputs that share a scale, and whether zero points are stored.
const FORMATS: [(CodeFormat, Option<u32>, bool); 6] = [
    (CodeFormat::Int4, Some(32), false),
    (CodeFormat::Int4, Some(64), true),
    (CodeFormat::Int4, Some(128), true),
    (CodeFormat::Int4, None, false),
    (CodeFormat::Fp4, Some(32), false),
    (CodeFormat::Fp4, Some(16), false),
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

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
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
        for &shape in shapes {
            let layer = TestLayer::random(dice, dtype, Some(format), shape);
            layer.hold(suite, ["linear of codes"; 2], &[true])?;
        }
        for &[rows, experts, chosen, outputs, inputs] in if is_quick { &GROUPED[..1] } else { &GROUPED[..] } {
            if !suite.backend.multiplies_experts(stored, inputs) {
                continue;
            }
            let router = Router::new(chosen, RouterScores::SoftmaxOfChosen);
            let routed = Routed::random(dice, rows, experts, router);
            let x = numbers(dice, dtype, rows * inputs);
            let (weights, bias) = (dice.numbers(experts * outputs * inputs), dice.numbers(experts * outputs));
            for into in [GroupedOutput::Operands, GroupedOutput::Sums] {
                let (routed, x, weights, bias) = (routed.clone(), x.clone(), weights.clone(), Some(bias.clone()));
                let to = (ExpertInput::Rows, into);
                let case = GroupedCase::new((dtype, Some(format)), routed, x, weights, bias, inputs, to);
                suite.hold("expert_linear of codes", &case)?;
            }
        }
    }
    Ok(())
}
