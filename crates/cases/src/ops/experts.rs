//! Mixtures of experts: the router, the grouped linear layer with and without a gate, the sum of a row's experts, and
//! the experts that are kept in pages.
//! Scores are skewed, so that some experts have most rows and some none, and few, so that many are equal.

use std::fmt;

use super::activations::{gate_tolerance, gated, sigmoid};
use super::linear::{RowSize, made_of, sum_tolerance};
use super::quantised::{FORMATS, is_cut};
use super::suite::OpSuite;
use crate::attention::solitary;
use crate::case::{
    ANY_HEADS, ANY_VOCAB, CheckEffort, F32, OpCase, buffer, dot, numbers, rounded, rows_at, stacked, vector,
};
use crate::setting::hints;
use offshoot_backend::{
    ActivationDtype, Backend, Dtype, ExpertInput, ExpertKind, Gate, KvShape, MatrixPart, OutputMode, QuantFormat,
    Rounding, RouteShape, Router, RouterScores, StepBatch, WeightFormat,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{GroupIx, LayerIx, PageId};
use offshoot_kv::KvSlot;

/// Rows, experts, chosen ones, outputs and inputs.
const SHAPES: [[usize; 5]; 12] = [
    [1, 1, 1, 8, 8],
    [1, 8, 2, 48, 72],
    [3, 5, 2, 33, 40],
    [7, 16, 4, 130, 64],
    [16, 8, 8, 64, 200],
    [33, 32, 4, 256, 128],
    [64, 6, 1, 96, 31],
    [130, 8, 2, 192, 96],
    [300, 4, 3, 112, 136],
    [520, 128, 8, 64, 64],
    [1000, 3, 2, 80, 80],
    [4100, 40, 2, 32, 24],
];

const SCORES: [RouterScores; 5] = [
    RouterScores::Softmax { normalise: false },
    RouterScores::Softmax { normalise: true },
    RouterScores::SoftmaxOfChosen,
    RouterScores::Sigmoid { normalise: false },
    RouterScores::Sigmoid { normalise: true },
];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let shapes = if suite.effort == CheckEffort::Quick { &SHAPES[1..3] } else { &SHAPES };
    for (number, &[rows, experts, chosen, outputs, inputs]) in shapes.iter().enumerate() {
        let routed = Routed::random(dice, rows, experts, Router { chosen, scores: SCORES[number % SCORES.len()] });
        let factors = (number % 2 == 1).then(|| dice.numbers(experts));
        let x = numbers(dice, dtype, rows * chosen * outputs);
        for adds in [false, true] {
            let (factors, x) = (factors.clone(), x.clone());
            suite.hold(
                "route, combine",
                &CombineCase { dtype, routed: routed.clone(), factors, width: outputs, x, adds },
            )?;
        }

        if rows <= 520 {
            suite.hold("keep_routes", &KeptCase { dtype, routed: routed.clone() })?;
        }
        if number == 3 {
            let many = Routed::random(dice, 45, 700, Router { chosen, scores: SCORES[0] });
            suite.hold("keep_routes", &KeptCase { dtype, routed: many })?;
        }
        let weights = numbers(dice, dtype, experts * outputs * inputs);
        let bias = (number % 2 == 0).then(|| numbers(dice, dtype, experts * outputs));
        for into in [GroupedOutput::Operands, GroupedOutput::Sums, GroupedOutput::Gated(GATES[number % GATES.len()])] {
            for input in [ExpertInput::Rows, ExpertInput::Places] {
                let gated = matches!(into, GroupedOutput::Gated(_));
                if gated && (input == ExpertInput::Places || outputs % 2 == 1) {
                    continue;
                }
                let inputs_of = if input == ExpertInput::Rows { rows } else { rows * chosen };
                let x = numbers(dice, dtype, inputs_of * inputs);
                let case = |format: Option<QuantFormat>| {
                    let (routed, x, weights, bias) = (routed.clone(), x.clone(), weights.clone(), bias.clone());
                    GroupedCase::new((dtype, format), routed, x, weights, bias, inputs, (input, into))
                };
                suite.hold(if gated { "expert_gated" } else { "expert_linear" }, &case(None))?;
                for format in FORMATS.into_iter().filter(|&format| !gated && is_cut(format, inputs)) {
                    // Static scales need one for each expert.
                    let is_dynamic = matches!(format.rounding, Rounding::Dynamic { .. });
                    if is_dynamic && suite.backend.multiplies_experts(WeightFormat::Quantised(format), inputs) {
                        suite.hold("expert_linear, e4m3", &case(Some(format)))?;
                    }
                }
            }
        }
    }
    Ok(())
}

const GATES: [Gate; 3] = [Gate::Silu, Gate::Gelu, Gate::Clamped];

/// One of few scores, larger for the first experts; some experts are never chosen where there are others.
fn score(dice: &mut Dice, expert: usize) -> f32 {
    let lead = if expert % 5 == 4 { -40.0 } else { -((expert % 7) as f32) / 2.0 };
    lead + dice.within(0, 16) as f32 / 4.0
}

/// Rows whose experts are chosen.
#[derive(Clone)]
pub(super) struct Routed {
    pub rows: usize,
    pub experts: usize,
    pub router: Router,
    pub scores: Vec<f32>,
}

impl Routed {
    pub fn random(dice: &mut Dice, rows: usize, experts: usize, router: Router) -> Self {
        let scores = (0..rows * experts).map(|i| score(dice, i % experts)).collect();
        Self { rows, experts, router, scores }
    }

    pub fn places(&self) -> usize {
        self.rows * self.router.chosen
    }

    pub fn route<B: Backend>(&self, backend: &mut B, factors: Option<&Vec<f32>>) -> Result<B::Routes> {
        let mut routes = backend.routes(self.experts, self.router)?;
        backend.resize_routes(&mut routes, self.rows)?;
        let scores = buffer(backend, ActivationDtype::Sums, self.rows, self.experts, &self.scores)?;
        let factors = factors.map(|factors| vector(backend, factors)).transpose()?;
        backend.route(&mut routes, &scores, factors.as_ref());
        Ok(routes)
    }

    /// The experts of each row, the likeliest first.
    fn chosen(&self) -> Vec<usize> {
        let of_row = |scores: &[f32]| {
            let mut order: Vec<usize> = (0..self.experts).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            order.truncate(self.router.chosen);
            order
        };
        self.scores.chunks_exact(self.experts).flat_map(of_row).collect()
    }

    /// Expert and row of each place.
    fn places_in_order(&self) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for (row, scores) in self.scores.chunks_exact(self.experts).enumerate() {
            let mut order: Vec<usize> = (0..self.experts).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            places.extend(order[..self.router.chosen].iter().map(|&expert| (expert, row)));
        }
        places.sort_unstable();
        places
    }

    /// The weight of an expert that a row has chosen.
    fn weight(&self, (expert, row): (usize, usize), places: &[(usize, usize)]) -> f64 {
        let scores = &self.scores[row * self.experts..][..self.experts];
        let (score, sum): (fn(f64) -> f64, f64) = match self.router.scores {
            RouterScores::Softmax { normalise: false } => (f64::exp, scores.iter().map(|&s| f64::from(s).exp()).sum()),
            RouterScores::Sigmoid { normalise: false } => (sigmoid, 1.0),
            RouterScores::Softmax { normalise: true } | RouterScores::SoftmaxOfChosen => (f64::exp, 0.0),
            RouterScores::Sigmoid { normalise: true } => (sigmoid, 0.0),
        };
        let of = |expert: usize| score(f64::from(scores[expert]));
        // Where it is not known yet: the sum over the row's chosen experts.
        let chosen = || places.iter().filter(|place| place.1 == row).map(|place| of(place.0)).sum();
        of(expert) / if sum == 0.0 { chosen() } else { sum }
    }
}

impl fmt::Display for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows, {} of {} experts", self.rows, self.router.chosen, self.experts)
    }
}

/// A router, and the sum of rows that stand at the places.
struct CombineCase {
    dtype: Dtype,
    routed: Routed,
    factors: Option<Vec<f32>>,
    width: usize,
    /// `[places, width]`
    x: Vec<f32>,
    /// To ones.
    adds: bool,
}

impl OpCase for CombineCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let routes = self.routed.route(backend, self.factors.as_ref())?;
        let operands = ActivationDtype::Operands(self.dtype);
        let x = buffer(backend, operands, self.routed.places(), self.width, &self.x)?;
        let before = vec![1.0; if self.adds { self.routed.rows * self.width } else { 0 }];
        let mut out = buffer(backend, ActivationDtype::Sums, self.routed.rows, self.width, &before)?;
        let mode = if self.adds { OutputMode::Add } else { OutputMode::Replace };
        backend.combine(&mut out, &x, &routes, mode);
        backend.read(&out, self.routed.rows)
    }

    /// A weight is a power of e to a difference of scores up to 64, with as many roundings and a few more, divided by a
    /// sum of at most `experts` of them; the sum over `chosen` products has as many roundings of at most the sum of
    /// weights, which is at most 1 (sigmoids: 1 each) times a factor of at most 1, times a number of at most 1. Adding
    /// rounds a number of at most 1 more than that.
    fn tolerance(&self, _: usize, _: f64) -> f64 {
        let Routed { experts, router, .. } = self.routed;
        let sum = match router.scores {
            RouterScores::Sigmoid { normalise: false } => router.chosen as f64,
            _ => 1.0,
        };
        let adding = if self.adds { (1.0 + sum) * F32 } else { 0.0 };
        2.0 * ((64.0 + 16.0 + experts as f64 + router.chosen as f64) * F32 * sum + adding)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let mut exact = vec![if self.adds { 1.0 } else { 0.0 }; self.routed.rows * self.width];
        let places = self.routed.places_in_order();
        for (&(expert, row), x) in places.iter().zip(self.x.chunks_exact(self.width)) {
            let factor = self.factors.as_ref().map_or(1.0, |factors| f64::from(factors[expert]));
            let weight = factor * self.routed.weight((expert, row), &places);
            let sums = &mut exact[row * self.width..][..self.width];
            sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += weight * f64::from(x));
        }
        Some(exact)
    }

    fn name(&self) -> String {
        let factors = if self.factors.is_some() { "factors" } else { "no factors" };
        let adds = if self.adds { ", added" } else { "" };
        format!("{}, {:?}, {factors}, width {}{adds}", self.routed, self.routed.router.scores, self.width)
    }
}

/// The experts of rows that are kept in pages, those of two layers, and read again; also after pages were saved and
/// restored elsewhere. Each row has a page of its own, in which its slot is any.
struct KeptCase {
    dtype: Dtype,
    routed: Routed,
}

impl KeptCase {
    /// The slot of each row, in page number `first` and those behind it, in another order than the rows.
    fn slots<B: Backend>(&self, backend: &B, first: usize) -> Vec<KvSlot> {
        let slot = |row: usize| u32::try_from(row * 7).expect("there are few rows") % backend.page_tokens();
        let rows = self.routed.rows;
        (0..rows).map(|row| KvSlot { page: PageId::new(first + rows - 1 - row), slot: slot(row) }).collect()
    }
}

impl OpCase for KeptCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (Routed { rows, experts, router, .. }, heads) = (self.routed.clone(), ANY_HEADS);
        let routes = RouteShape { layers: 2, chosen: router.chosen, experts, group: GroupIx(0) };
        let shape = KvShape { routes: Some(routes), ..KvShape::uniform(1, heads, self.dtype, 2 * rows) };
        let mut kv = backend.kv(&shape)?;
        let mut step = backend.step(&[heads], self.dtype, ANY_VOCAB)?;
        let (slots, others) = (self.slots(backend, 0), self.slots(backend, rows));
        let pages = |slots: &[KvSlot]| slots.iter().map(|at| at.page).collect::<Vec<_>>();
        let plan = solitary(&pages(&slots), &hints(backend, heads, self.dtype, None), backend.page_tokens());
        let batch = StepBatch { slots: vec![slots.clone()], plans: vec![plan], ..rows_at(&vec![0; rows]) };
        let padded = backend.load(&mut step, batch)?;
        // Rows behind the last are those that a backend pads: their experts are kept nowhere.
        let mut scores = self.routed.scores.clone();
        scores.resize(padded.rows * experts, 0.0);
        // The second layer chooses by the rows in reverse.
        let reversed = self.routed.scores.rchunks_exact(experts).flatten().copied();
        let second: Vec<f32> = reversed.chain(scores[rows * experts..].iter().copied()).collect();
        for (layer, scores) in [scores, second].into_iter().enumerate() {
            let chosen = Routed { rows: padded.rows, experts, router, scores }.route(backend, None)?;
            backend.run_once(&mut step, padded, |backend, step| {
                backend.keep_routes(&mut kv, LayerIx::new(layer), &chosen, step);
                Ok(())
            })?;
            backend.collect(&mut step)?;
        }
        let mut kept = backend.read_routes(&kv, &slots)?;
        let saved = backend.save_pages(&kv, &pages(&slots))?;
        backend.restore_pages(&mut kv, &saved, &pages(&others))?;
        kept.extend(backend.read_routes(&kv, &others)?);
        Ok(kept.into_iter().map(f32::from).collect())
    }

    fn tolerance(&self, _: usize, _: f64) -> f64 {
        0.0
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let (chosen, of_row) = (self.routed.chosen(), self.routed.router.chosen);
        let rows = chosen.chunks_exact(of_row).zip(chosen.rchunks_exact(of_row));
        let kept: Vec<f64> = rows.flat_map(|(first, second)| [first, second].concat()).map(|id| id as f64).collect();
        Some([kept.clone(), kept].concat())
    }

    fn name(&self) -> String {
        self.routed.to_string()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum GroupedOutput {
    Operands,
    Sums,
    Gated(Gate),
}

/// A grouped linear layer.
pub(super) struct GroupedCase {
    dtype: Dtype,
    routed: Routed,
    x: Vec<f32>,
    /// `[experts, outputs, inputs]`
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
    input: ExpertInput,
    into: GroupedOutput,
    /// What the weights are made into; `None`: dense.
    format: Option<QuantFormat>,
    /// For each place and output, the result of dense weights before it is gated and stored; of codes nothing.
    sums: Vec<f64>,
    /// At least the sizes of all rows of `x` and of `weights`.
    sizes: [RowSize; 2],
}

impl GroupedCase {
    pub fn new(
        (dtype, format): (Dtype, Option<QuantFormat>),
        routed: Routed,
        x: Vec<f32>,
        weights: Vec<f32>,
        bias: Option<Vec<f32>>,
        inputs: usize,
        (input, into): (ExpertInput, GroupedOutput),
    ) -> Self {
        let outputs = weights.len() / inputs / routed.experts;
        let sizes = [RowSize::of_rows(&x, inputs), RowSize::of_weights(&weights, inputs, format)];
        let sizes = sizes.map(|sizes| RowSize::most(&sizes));
        let mut sums = Vec::new();
        let places = if format.is_none() { routed.places_in_order() } else { Vec::new() };
        for (place, (expert, row)) in places.into_iter().enumerate() {
            let input = if input == ExpertInput::Rows { row } else { place };
            sums.extend((0..outputs).map(|output| {
                let at = expert * outputs + output;
                let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[at]));
                dot(&x[input * inputs..][..inputs], &weights[at * inputs..][..inputs]) + bias
            }));
        }
        Self { dtype, routed, x, weights, bias, inputs, outputs, input, into, format, sums, sizes }
    }

    /// The sums of a gate and its up, of gated value `at`.
    fn halves(&self, at: usize) -> (f64, f64) {
        let width = self.outputs / 2;
        let first = at / width * self.outputs + at % width;
        (self.sums[first], self.sums[first + width])
    }

    fn sum_tolerance(&self) -> f64 {
        sum_tolerance(self.format, self.inputs, self.sizes[0], self.sizes[1])
    }
}

impl OpCase for GroupedCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let &Self { dtype, outputs, inputs, .. } = self;
        let routes = self.routed.route(backend, None)?;
        let matrices = self.weights.chunks_exact(outputs * inputs);
        let matrices = matrices.map(|values| match self.format {
            None => stacked(backend, dtype, &[outputs], values),
            Some(format) => {
                backend.matrix(&[MatrixPart::Quantised(made_of(format, &Dtype::F32.encode(values), inputs))])
            }
        });
        let matrices = matrices.collect::<Result<_>>()?;
        let biases = self.bias.iter().flat_map(|bias| bias.chunks_exact(outputs));
        let biases = biases.map(|values| vector(backend, values)).collect::<Result<_>>()?;
        let gated = matches!(self.into, GroupedOutput::Gated(_));
        let kind = if gated { ExpertKind::Gated } else { ExpertKind::Linear };
        let experts = backend.experts(matrices, biases, kind)?;
        let operands = ActivationDtype::Operands(dtype);
        let x = buffer(backend, operands, self.x.len() / inputs, inputs, &self.x)?;
        let places = self.routed.places();
        let out = match self.into {
            GroupedOutput::Gated(gate) => {
                let mut inner = buffer(backend, operands, places, outputs, &[])?;
                let mut out = buffer(backend, operands, places, outputs / 2, &[])?;
                backend.expert_gated(&mut out, &mut inner, &x, &experts, &routes, gate);
                out
            }
            into => {
                let holds = if matches!(into, GroupedOutput::Sums) { ActivationDtype::Sums } else { operands };
                let mut out = buffer(backend, holds, places, outputs, &[])?;
                backend.expert_linear(&mut out, &x, &experts, &routes, self.input);
                out
            }
        };
        backend.read(&out, places)
    }

    /// A sum has the tolerance of `linear`. A gate passes on the errors of its halves, which may be stored: a slope of
    /// at most 1.2 times the other half (and 1, where that is added), and `|gate| <= |g|` times that of the other half.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let GroupedOutput::Gated(gate) = self.into else {
            let bias = self.bias.as_ref().map_or(0.0, |_| 1.0);
            let stored = match self.into {
                GroupedOutput::Operands => rounded(self.dtype, y.abs() + bias),
                _ => F32 * (y.abs() + bias),
            };
            return self.sum_tolerance() + 2.0 * stored;
        };
        let (g, u) = self.halves(at);
        let error = |sum: f64| self.sum_tolerance() + rounded(self.dtype, sum);
        let halves = 1.2 * (u.abs() + 1.0) * error(g) + g.abs() * error(u);
        halves + gate_tolerance(gate, g as f32, u as f32, y) + 2.0 * rounded(self.dtype, y)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        match (self.format, self.into) {
            (Some(_), _) => None,
            (None, GroupedOutput::Operands | GroupedOutput::Sums) => Some(self.sums.clone()),
            (None, GroupedOutput::Gated(gate)) => {
                let values = (0..self.sums.len() / 2).map(|at| self.halves(at));
                Some(values.map(|(g, u)| gated(gate, g, u)).collect())
            }
        }
    }

    fn name(&self) -> String {
        let Self { routed, inputs, outputs, input, into, .. } = self;
        let bias = if self.bias.is_some() { "with bias" } else { "no bias" };
        let format = self.format.map(|format| format!(", {format}")).unwrap_or_default();
        format!("{routed}, {inputs} -> {outputs}, {input:?} into {into:?}, {bias}{format}")
    }
}
