//! Mixtures of experts: each row of a mixture of many rows is compared with the same row among fewer, so that its
//! experts have other numbers of places.

use std::fmt;

use super::differences::{Rows, alone};
use crate::case::{CheckEffort, buffer, numbers};
use crate::report::CheckReport;
use offshoot_backend::{
    ActivationDtype, Backend, Dtype, ExpertInput, ExpertKind, Gate, MatrixPart, OutputMode, RandomWeight, Router,
    RouterScores, Uniform,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Numbers of rows, rising.
const ROWS: [usize; 11] = [1, 2, 5, 16, 33, 64, 130, 257, 400, 700, 1500];

/// Experts, and the widths of rows and between the two layers of each.
struct TestMixture {
    experts: usize,
    chosen: usize,
    hidden: usize,
    width: usize,
}

const SMALL: TestMixture = TestMixture { experts: 5, chosen: 2, hidden: 72, width: 40 };
const LARGE: TestMixture = TestMixture { experts: 8, chosen: 2, hidden: 2048, width: 768 };

pub fn experts<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let mut dice = Dice::new(4);
    for dtype in Dtype::ALL {
        SMALL.hold(backend, dtype, if effort == CheckEffort::Quick { &ROWS[..6] } else { &ROWS }, &mut dice, report)?;
        // Tests the tensor-core kernels, which do not take f32.
        if effort == CheckEffort::Full && B::IS_ASYNC && dtype != Dtype::F32 {
            LARGE.hold(backend, dtype, &ROWS, &mut dice, report)?;
        }
    }
    Ok(())
}

impl TestMixture {
    fn hold<B: Backend>(
        &self,
        backend: &mut B,
        dtype: Dtype,
        counts: &[usize],
        dice: &mut Dice,
        report: &mut CheckReport,
    ) -> Result<()> {
        let TestMixture { experts, chosen, hidden, width } = *self;
        let most = counts[counts.len() - 1];
        let mut layer = |outputs: usize, inputs: usize, kind: ExpertKind| {
            let mut matrix = || {
                let numbers = Uniform { stream: dice.next(), centre: 0.0, reach: 0.1 };
                backend.matrix(&[MatrixPart::Random(RandomWeight::of(dtype, outputs, inputs, numbers))])
            };
            let matrices = (0..experts).map(|_| matrix()).collect::<Result<_>>()?;
            backend.experts(matrices, Vec::new(), kind)
        };
        let (up, down) = (layer(2 * width, hidden, ExpertKind::Gated)?, layer(hidden, width, ExpertKind::Linear)?);
        let x = numbers(dice, dtype, most * hidden);
        // The first expert gets most rows.
        let scores: Vec<f32> =
            (0..most * experts).map(|i| dice.number() + if i % experts == 0 { 0.8 } else { 0.0 }).collect();
        let router = Router::new(chosen, RouterScores::Softmax { normalise: true });
        let mixture = |part: Rows| -> Result<Vec<f32>> {
            let (first, rows) = (part.start, part.len());
            let operands = ActivationDtype::Operands(dtype);
            let (x, scores) = (&x[first * hidden..][..rows * hidden], &scores[first * experts..][..rows * experts]);
            let x = buffer(backend, operands, rows, hidden, x)?;
            let scores = buffer(backend, ActivationDtype::Sums, rows, experts, scores)?;
            let mut routes = backend.routes(experts, router)?;
            backend.resize_routes(&mut routes, rows)?;
            let places = rows * chosen;
            let mut inner = buffer(backend, operands, places, 2 * width, &[])?;
            let mut gated = buffer(backend, operands, places, width, &[])?;
            let mut outputs = buffer(backend, operands, places, hidden, &[])?;
            let mut out = buffer(backend, ActivationDtype::Sums, rows, hidden, &[])?;
            backend.route(&mut routes, &scores, None, None);
            backend.expert_gated(&mut gated, &mut inner, &x, &up, &routes, Gate::Silu);
            backend.expert_linear(&mut outputs, &gated, &down, &routes, ExpertInput::Places);
            backend.combine(&mut out, &outputs, None, &routes, OutputMode::Replace);
            backend.read(&out, rows)
        };
        let differences = alone(counts, hidden, dice, mixture)?;
        differences.file(report, "alone, experts", dtype, self);
        Ok(())
    }
}

impl fmt::Display for TestMixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TestMixture { experts, chosen, hidden, width } = self;
        write!(f, "{chosen} of {experts} experts, {hidden} -> {width} -> {hidden}")
    }
}
