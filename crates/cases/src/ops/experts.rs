//! Mixtures of experts: the router, the grouped linear layer with and without a gate, the sum of a row's experts, and
//! the experts that are kept in pages. `routed` has the rows and what they should choose.

use super::activations::{gate_tolerance, gated};
use super::linear::{RowSize, made_of, sum_tolerance};
use super::quantised::{FORMATS, is_cut};
use super::routed::{Chosen, Routed};
use super::suite::OpSuite;
use crate::attention::solitary;
use crate::case::{
    ANY_HEADS, ANY_VOCAB, CheckEffort, F32, OpCase, buffer, dot, numbers, rounded, rows_at, stacked, vector,
};
use crate::setting::hints;
use offshoot_backend::{
    ActivationDtype, Backend, Dtype, ExpertInput, ExpertKind, Gate, GroupMerit, KvShape, LeastSum, MatrixPart,
    OutputMode, QuantFormat, Rounding, RouteShape, Router, RouterGroups, RouterScores, RouterWeighs, StepBatch,
    WeightFormat,
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

/// No quotient of two scores of a case is near it.
const SPREAD: f32 = 0.309_017;

const SCORES: [RouterScores; 7] = [
    RouterScores::Softmax { normalise: false },
    RouterScores::Softmax { normalise: true },
    RouterScores::SoftmaxOfChosen,
    RouterScores::Sigmoid { sum: None },
    RouterScores::Sigmoid { sum: Some(LeastSum::Tiny) },
    RouterScores::Sigmoid { sum: Some(LeastSum::Millionth) },
    RouterScores::SparseMixer { spread: SPREAD },
];

/// A router that chooses by merits, or among identities.
struct JudgingRouter {
    rows: usize,
    experts: usize,
    router: Router,
    biased: bool,
}

impl JudgingRouter {
    /// `groups`: all of them, those that a row keeps, and what they are judged by.
    fn of(
        [rows, experts, chosen, identities]: [usize; 4],
        scores: RouterScores,
        groups: Option<(usize, usize, GroupMerit)>,
        biased: bool,
    ) -> Self {
        let groups = groups.map(|(count, chosen, merit)| RouterGroups { count, chosen, merit });
        Self { rows, experts, router: Router { groups, identities, ..Router::new(chosen, scores) }, biased }
    }

    /// Those of DeepSeek-V3, DeepSeek-V2, Mistral 4, LongCat-Flash and Moonlight in small, and some with as many
    /// groups, or with as few experts, as there may be.
    fn all() -> [Self; 9] {
        use GroupMerit::{Best, SumOfTwo};
        let softmax = |normalise| RouterScores::Softmax { normalise };
        let sigmoid = |sums: bool| RouterScores::Sigmoid { sum: sums.then_some(LeastSum::Tiny) };
        [
            Self::of([70, 64, 8, 0], sigmoid(true), Some((8, 4, SumOfTwo)), true),
            Self::of([33, 60, 6, 0], softmax(false), Some((4, 2, Best)), false),
            Self::of([50, 32, 4, 0], softmax(true), Some((4, 2, SumOfTwo)), false),
            Self::of([70, 72, 12, 24], softmax(false), None, true),
            Self::of([130, 64, 6, 0], sigmoid(false), None, true),
            Self::of([20, 64, 4, 0], sigmoid(true), Some((32, 3, SumOfTwo)), true),
            Self::of([9, 768, 12, 256], softmax(false), None, true),
            Self::of([40, 5, 2, 1], RouterScores::SoftmaxOfChosen, None, false),
            Self::of([17, 40, 3, 9], sigmoid(true), Some((5, 5, Best)), false),
        ]
    }

    fn routed(&self, dice: &mut Dice) -> Routed {
        let &Self { rows, experts, router, biased } = self;
        if biased { Routed::biased(dice, rows, experts, router) } else { Routed::random(dice, rows, experts, router) }
    }
}

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let shapes = if suite.effort == CheckEffort::Quick { &SHAPES[1..3] } else { &SHAPES };
    for (number, &[rows, experts, chosen, outputs, inputs]) in shapes.iter().enumerate() {
        let routed = Routed::random(dice, rows, experts, Router::new(chosen, SCORES[number % SCORES.len()]));
        let factors = (number % 2 == 1).then(|| dice.numbers(experts));
        for adds in [false, true] {
            let case = CombineCase::new(dice, dtype, routed.clone(), factors.clone(), outputs, adds);
            suite.hold("route, combine", &case)?;
        }

        let router = Router { weighs: RouterWeighs::Inputs, ..routed.router };
        let x = numbers(dice, dtype, rows * inputs);
        let case = WeighCase { dtype, routed: Routed { router, ..routed.clone() }, width: inputs, x };
        suite.hold("weigh_places, combine", &case)?;
        if rows <= 520 {
            suite.hold("keep_routes", &KeptCase { dtype, routed: routed.clone() })?;
        }
        if number == 3 {
            let many = Routed::random(dice, 45, 700, Router::new(chosen, SCORES[0]));
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
                for format in FORMATS.into_iter().filter(|&format| is_cut(format, inputs)) {
                    // Static scales need one for each expert.
                    let is_dynamic = matches!(format.rounding, Rounding::Dynamic { .. });
                    if is_dynamic && suite.backend.multiplies_experts(WeightFormat::Quantised(format), inputs) {
                        let op = if gated { "expert_gated, e4m3" } else { "expert_linear, e4m3" };
                        suite.hold(op, &case(Some(format)))?;
                    }
                }
            }
        }
    }
    for (number, judging) in JudgingRouter::all().into_iter().enumerate() {
        let routed = judging.routed(dice);
        let (outputs, inputs) = (40, 24);
        for adds in [false, true] {
            let factors = (number % 2 == 1).then(|| dice.numbers(judging.experts));
            let case = CombineCase::new(dice, dtype, routed.clone(), factors, outputs, adds);
            suite.hold("route, combine", &case)?;
        }
        suite.hold("keep_routes", &KeptCase { dtype, routed: routed.clone() })?;
        if judging.router.identities > 0 && routed.experts < 100 {
            let x = numbers(dice, dtype, routed.rows * inputs);
            let weights = numbers(dice, dtype, routed.multiplied() * outputs * inputs);
            let to = (ExpertInput::Rows, GroupedOutput::Sums);
            let case = GroupedCase::new((dtype, None), routed, x, weights, None, inputs, to);
            suite.hold("expert_linear", &case)?;
        }
    }
    Ok(())
}

const GATES: [Gate; 3] = [Gate::Silu, Gate::Gelu, Gate::Clamped];

/// A router, and the sum of rows that stand at the places.
struct CombineCase {
    dtype: Dtype,
    routed: Routed,
    factors: Option<Vec<f32>>,
    width: usize,
    /// `[places, width]`, NaN at identities.
    x: Vec<f32>,
    /// What identities give, `[rows, width]`.
    input: Option<Vec<f32>>,
    /// To ones.
    adds: bool,
}

impl CombineCase {
    fn new(dice: &mut Dice, dtype: Dtype, routed: Routed, factors: Option<Vec<f32>>, width: usize, adds: bool) -> Self {
        let mut x = numbers(dice, dtype, routed.multiplied_places() * width);
        x.resize(routed.places() * width, f32::NAN);
        // Identities that give nothing are those of a rank that does not add them.
        let gives = routed.router.identities > 0 && !(adds && routed.rows % 2 == 1);
        let input = gives.then(|| numbers(dice, dtype, routed.rows * width));
        Self { dtype, routed, factors, width, x, input, adds }
    }
}

impl OpCase for CombineCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let routes = self.routed.route(backend, self.factors.as_ref())?;
        let operands = ActivationDtype::Operands(self.dtype);
        let x = buffer(backend, operands, self.routed.places(), self.width, &self.x)?;
        let input = self.input.as_ref().map(|input| buffer(backend, operands, self.routed.rows, self.width, input));
        let input = input.transpose()?;
        let before = vec![1.0; if self.adds { self.routed.rows * self.width } else { 0 }];
        let mut out = buffer(backend, ActivationDtype::Sums, self.routed.rows, self.width, &before)?;
        let mode = if self.adds { OutputMode::Add } else { OutputMode::Replace };
        backend.combine(&mut out, &x, input.as_ref(), &routes, mode);
        backend.read(&out, self.routed.rows)
    }

    /// A weight is a power of e to a difference of scores up to 72, with as many roundings and a few more, divided by a
    /// sum of at most `experts` of them; the sum over `chosen` products has as many roundings of at most the sum of
    /// weights, which is at most 1 (sigmoids, and those of a sparse mixer: 1 each) times a factor of at most 1, times a
    /// number of at most 1. Adding rounds a number of at most 1 more than that.
    fn tolerance(&self, _: usize, _: f64) -> f64 {
        let Routed { experts, router, .. } = self.routed;
        let sum = match router.scores {
            RouterScores::Sigmoid { sum: None } | RouterScores::SparseMixer { .. } => router.chosen as f64,
            _ => 1.0,
        };
        let adding = if self.adds { (1.0 + sum) * F32 } else { 0.0 };
        2.0 * ((72.0 + 16.0 + experts as f64 + router.chosen as f64) * F32 * sum + adding)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let mut exact = vec![if self.adds { 1.0 } else { 0.0 }; self.routed.rows * self.width];
        let width = self.width;
        for ((row, Chosen { expert, weight }), x) in self.routed.places_in_order().into_iter().zip(self.x.chunks(width))
        {
            let x = match &self.input {
                _ if expert < self.routed.multiplied() => x,
                Some(input) => &input[row * width..][..width],
                None => continue,
            };
            let weight = weight * self.factors.as_ref().map_or(1.0, |factors| f64::from(factors[expert]));
            let sums = &mut exact[row * width..][..width];
            sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += weight * f64::from(x));
        }
        Some(exact)
    }

    fn name(&self) -> String {
        let factors = if self.factors.is_some() { "factors" } else { "no factors" };
        let adds = if self.adds { ", added" } else { "" };
        let input = if self.input.is_some() { ", with their input" } else { "" };
        format!("{}{input}, {:?}, {factors}, width {}{adds}", self.routed, self.routed.router.scores, self.width)
    }
}

/// A router that weighs what experts read: the weighed rows at their places, and behind these the sums of places that
/// hold their rows as they are.
struct WeighCase {
    dtype: Dtype,
    routed: Routed,
    width: usize,
    /// `[rows, width]`
    x: Vec<f32>,
}

impl WeighCase {
    fn row(&self, row: usize) -> &[f32] {
        &self.x[row * self.width..][..self.width]
    }
}

impl OpCase for WeighCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (routes, operands) = (self.routed.route(backend, None)?, ActivationDtype::Operands(self.dtype));
        let (rows, places) = (self.routed.rows, self.routed.places());
        let x = buffer(backend, operands, rows, self.width, &self.x)?;
        let mut weighed = buffer(backend, operands, places, self.width, &[])?;
        backend.weigh_places(&mut weighed, &x, &routes);
        let copied: Vec<f32> =
            self.routed.places_in_order().into_iter().flat_map(|(row, _)| self.row(row).to_vec()).collect();
        let copied = buffer(backend, operands, places, self.width, &copied)?;
        let mut out = buffer(backend, ActivationDtype::Sums, rows, self.width, &[])?;
        backend.combine(&mut out, &copied, None, &routes, OutputMode::Replace);
        let mut found = backend.read(&weighed, places)?;
        found.extend(backend.read(&out, rows)?);
        Ok(found)
    }

    /// Weights are as of [`CombineCase`], at most 1; sums of as many numbers of at most 1 as are chosen.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let Routed { experts, router, .. } = self.routed;
        match at < self.routed.places() * self.width {
            true => rounded(self.dtype, y) + 2.0 * (72.0 + 16.0 + experts as f64 + router.chosen as f64) * F32,
            false => (router.chosen * router.chosen) as f64 * F32,
        }
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let places = self.routed.places_in_order();
        let weighed = places.iter().flat_map(|(row, chosen)| {
            let weight = chosen.weight;
            self.row(*row).iter().map(move |&x| weight * f64::from(x))
        });
        let chosen = self.routed.router.chosen as f64;
        Some(weighed.chain(self.x.iter().map(|&x| chosen * f64::from(x))).collect())
    }

    fn name(&self) -> String {
        format!("{}, {:?}, width {}, inputs weighed", self.routed, self.routed.router.scores, self.width)
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
        let (Routed { rows, experts, router, bias, .. }, heads) = (self.routed.clone(), ANY_HEADS);
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
            let bias = bias.clone();
            let chosen = Routed { rows: padded.rows, experts, router, scores, bias }.route(backend, None)?;
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
        let rows = self.routed.rows;
        let chosen = (0..rows).flat_map(|row| [row, rows - 1 - row]).flat_map(|row| self.routed.choice(row));
        let kept: Vec<f64> = chosen.map(|chosen| chosen.expert as f64).collect();
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
    /// For each place and output, the result of dense weights before it is gated and stored; of codes only where it is
    /// gated, and about: the weights are not rounded yet.
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
        let outputs = weights.len() / inputs / routed.multiplied();
        let sizes = [RowSize::of_rows(&x, inputs), RowSize::of_weights(&weights, inputs, format)];
        let sizes = sizes.map(|sizes| RowSize::most(&sizes));
        let mut sums = Vec::new();
        let gated = matches!(into, GroupedOutput::Gated(_));
        let mut places = if format.is_none() || gated { routed.places_in_order() } else { Vec::new() };
        places.retain(|(_, chosen)| chosen.expert < routed.multiplied());
        for (place, (row, Chosen { expert, .. })) in places.into_iter().enumerate() {
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
        backend.read(&out, self.routed.multiplied_places())
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
        // Rounded to e4m3, products are by up to an eighth others; most of that cancels.
        let others = if self.format.is_some() { self.sizes[0].length * self.sizes[1].length / 8.0 } else { 0.0 };
        let [g, u] = [g, u].map(|sum| sum + others.copysign(sum));
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
