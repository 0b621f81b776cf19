//! `causal_conv` and `state_update`, over steps in which states are made, forked, continued in place, read
//! again and written over.

use std::collections::HashMap;
use std::fmt;

use super::activations::{gate_tolerance, sigmoid, silu};
use super::suite::OpSuite;
use crate::case::{ANY_HEADS, ANY_VOCAB, CheckEffort, F32, OpCase, buffer, numbers, rounded, rows_at, vector};
use offshoot_backend::{
    ActivationDtype, Backend, DeltaHeads, Dtype, Gate, KvShape, LayerState, Pick, SampleRequest, StateDtype, StateRule,
    StateShape, StepBatch,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_kv::{KvSlot, StateRun};

const EPS: f32 = 1e-6;

/// Layers of the memory; only the last one is used.
const LAYERS: usize = 2;
const LAYER: LayerIx = LayerIx(1);

/// States of the memory.
const SLOTS: usize = 6;

/// Heads that vectors do not divide, those of the golden models and those of published ones.
const HEADS: [DeltaHeads; 6] = [
    heads(1, 1, 7, 5),
    heads(2, 4, 16, 16),
    heads(1, 3, 40, 72),
    heads(1, 2, 64, 32),
    heads(2, 4, 128, 128),
    heads(1, 1, 256, 64),
];

/// Inputs that a convolution reads, and whether it has a bias.
const CONVS: [(usize, bool); 4] = [(4, false), (4, true), (3, false), (2, true)];

const fn heads(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> DeltaHeads {
    DeltaHeads { key_heads, value_heads, key_dim, value_dim }
}

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let all = if suite.effort == CheckEffort::Quick { &HEADS[1..3] } else { &HEADS[..] };
    for &heads in all {
        let case = StatesCase { may_chunk: B::IS_ASYNC && dtype != Dtype::F32, ..StatesCase::new(dice, dtype, heads) };
        for (tokens, has_bias) in CONVS {
            suite.hold("causal_conv", &ConvCase::new(case.with_conv(dice, tokens, has_bias)))?;
        }
        suite.hold("state_update", &DeltaRuleCase::new(&case))?;
        let case = StatesCase { state: StateDtype::Bf16, ..case };
        suite.hold("state_update", &DeltaRuleCase::new(&case))?;
    }
    Ok(())
}

/// One step of the script, and whether it is advanced once after it was computed.
#[derive(Clone)]
struct ScriptStep {
    runs: Vec<StateRun>,
    advances: bool,
}

impl ScriptStep {
    fn rows(&self) -> usize {
        self.runs.iter().map(|run| run.rows.len()).sum()
    }
}

fn step(runs: &[(u32, Option<u32>, Option<u32>)]) -> ScriptStep {
    let mut first = 0;
    let run = |&(rows, from, to): &(u32, Option<u32>, Option<u32>)| {
        let run = StateRun { rows: first..first + rows, from: from.map(StateId), is_in: false, to: to.map(StateId) };
        first += rows;
        run
    };
    ScriptStep { runs: runs.iter().map(run).collect(), advances: false }
}

/// Two sequences begin, one of them kept; it is forked, and read again with its last token and without; children go on
/// in place, in two runs of one step, and into a slot that a run before them reads; then all take single tokens, twice.
fn script() -> Vec<ScriptStep> {
    let mut forks = step(&[(3, Some(0), Some(1)), (1, Some(0), Some(2)), (2, Some(0), Some(3)), (1, Some(0), None)]);
    forks.runs[2].is_in = true;
    forks.runs[3].is_in = true;
    let goes_on = [(5, Some(1), Some(1)), (1, Some(0), Some(5)), (2, Some(1), Some(4)), (1, Some(2), Some(0))];
    let singles: Vec<_> = (0..SLOTS as u32).map(|slot| (1, Some(slot), Some(slot))).collect();
    let ends = ScriptStep { advances: true, ..step(&singles) };
    vec![step(&[(70, None, Some(0)), (2, None, None)]), forks, step(&goes_on), ends]
}

/// The inputs of a layer's ops in every row of the script.
#[derive(Clone)]
struct StatesCase {
    dtype: Dtype,
    state: StateDtype,
    heads: DeltaHeads,
    script: Vec<ScriptStep>,
    /// `[rows, conv_width]`
    x: Vec<f32>,
    /// `[conv_width, conv_tokens]`
    conv: Vec<f32>,
    conv_tokens: usize,
    bias: Option<Vec<f32>>,
    /// `[rows, 2 * value_heads]`
    ba: Vec<f32>,
    rate: Vec<f32>,
    dt: Vec<f32>,
    /// Whether the backend may compute long runs in chunks, with operands rounded to the dtype.
    may_chunk: bool,
}

impl StatesCase {
    fn new(dice: &mut Dice, dtype: Dtype, heads: DeltaHeads) -> Self {
        let script = script();
        let rows: usize = script.iter().map(|step| step.rows() * if step.advances { 2 } else { 1 }).sum();
        let (width, value_heads) = (heads.conv_width(), heads.value_heads);
        Self {
            x: numbers(dice, dtype, rows * width),
            conv: dice.numbers(4 * width),
            conv_tokens: 4,
            bias: None,
            ba: dice.numbers(rows * 2 * value_heads).into_iter().map(|gate| 3.0 * gate).collect(),
            rate: dice.numbers(value_heads).into_iter().map(|a_log| -(2.0 * a_log).exp()).collect(),
            dt: dice.numbers(value_heads),
            dtype,
            state: StateDtype::F32,
            heads,
            script,
            may_chunk: false,
        }
    }

    /// The case with another convolution.
    fn with_conv(&self, dice: &mut Dice, tokens: usize, has_bias: bool) -> Self {
        let width = self.heads.conv_width();
        let (conv, bias) = (dice.numbers(tokens * width), has_bias.then(|| dice.numbers(width)));
        Self { conv, conv_tokens: tokens, bias, ..self.clone() }
    }

    fn layer(&self) -> LayerState {
        LayerState::delta(self.heads, self.conv_tokens)
    }

    /// Calls `op` in each step, advanced ones too; returns its output in all rows, which are `width` wide. The
    /// arguments of `op` end with the number of the step's first row, and its padded rows.
    fn over_steps<B: Backend>(
        &self,
        backend: &mut B,
        width: usize,
        mut op: impl FnMut(&mut B, &mut B::Buffer, &mut B::Kv, &B::Step, (usize, usize)) -> Result<()>,
    ) -> Result<Vec<f32>> {
        let states = StateShape { layers: vec![self.layer(); LAYERS], slots: SLOTS, dtype: self.state };
        let shape = KvShape { states, ..KvShape::uniform(1, ANY_HEADS, self.dtype, 1) };
        let mut kv = backend.kv(&shape)?;
        let mut loaded = backend.step(&[ANY_HEADS], self.dtype, ANY_VOCAB)?;
        let (mut first, mut results) = (0, Vec::new());
        for step in &self.script {
            let rows = step.rows();
            let mut shape = backend.load(&mut loaded, batch(step))?;
            for is_advanced in if step.advances { &[false, true][..] } else { &[false] } {
                if *is_advanced {
                    shape = backend.advance(&mut loaded, &vec![0.0; rows], &[])?;
                }
                let mut out = buffer(backend, ActivationDtype::Operands(self.dtype), shape.rows, width, &[])?;
                let zeros = vec![0.0; shape.logit_rows * ANY_VOCAB];
                let logits = buffer(backend, ActivationDtype::Sums, shape.logit_rows, ANY_VOCAB, &zeros)?;
                // Called once: the buffers are of this step.
                backend.run_once(&mut loaded, shape, |backend, loaded| {
                    op(backend, &mut out, &mut kv, loaded, (first, shape.rows))?;
                    if shape.samples {
                        backend.sample(&logits, loaded);
                    }
                    Ok(())
                })?;
                backend.collect(&mut loaded)?;
                results.extend(backend.read(&out, rows)?);
                first += rows;
            }
        }
        Ok(results)
    }

    /// Calls `see` with each run in the order of the output's rows: its first row there, and the run.
    fn each_run(&self, mut see: impl FnMut(usize, &StateRun)) {
        let mut first = 0;
        for step in &self.script {
            step.runs.iter().for_each(|run| see(first, run));
            first += step.rows();
            if step.advances {
                let mut runs = step.runs.clone();
                StateRun::advance(&mut runs);
                runs.iter().for_each(|run| see(first, run));
                first += step.rows();
            }
        }
    }
}

fn batch(step: &ScriptStep) -> StepBatch {
    let rows = step.rows();
    let plain = rows_at(&vec![0; rows]);
    let state_runs = step.runs.clone();
    if !step.advances {
        return StepBatch { state_runs, ..plain };
    }
    StepBatch {
        slots: vec![vec![KvSlot { page: PageId(0), slot: 0 }; rows]],
        logit_rows: (0..rows as u32).collect(),
        requests: vec![SampleRequest::of(Pick::Greedy); rows].into(),
        state_runs,
        ..plain
    }
}

/// `rows` rows of `values` `[all rows, width]` from number `first` on; those behind the last are unspecified.
fn rows_from<B: Backend>(
    backend: &mut B,
    holds: ActivationDtype,
    values: &[f32],
    (first, rows, width): (usize, usize, usize),
) -> Result<B::Buffer> {
    let values = &values[first * width..];
    buffer(backend, holds, rows, width, &values[..values.len().min(rows * width)])
}

impl fmt::Display for StatesCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            StateDtype::F32 => self.heads.fmt(f),
            StateDtype::Bf16 => write!(f, "{}, bf16 states", self.heads),
        }
    }
}

/// `causal_conv` over the script.
struct ConvCase {
    states: StatesCase,
    /// For each output the sum that it is the gate of, and that of its terms' sizes.
    sums: Vec<(f64, f64)>,
}

impl ConvCase {
    fn new(states: StatesCase) -> Self {
        let (width, tokens) = (states.heads.conv_width(), states.conv_tokens);
        let mut sums = vec![(0.0, 0.0); states.x.len()];
        // The rows whose inputs a state has kept.
        let mut kept: HashMap<StateId, Vec<Option<usize>>> = HashMap::new();
        states.each_run(|first, run| {
            let mut tail = run.from.map_or(vec![None; tokens], |from| kept[&from].clone());
            if run.is_in {
                tail.rotate_right(1);
            }
            for row in run.rows.clone().map(|row| first + row as usize) {
                tail.rotate_left(1);
                tail[tokens - 1] = Some(row);
                for c in 0..width {
                    let term = |k: usize| {
                        let input = tail[k].map_or(0.0, |row| states.x[row * width + c]);
                        f64::from(states.conv[tokens * c + k]) * f64::from(input)
                    };
                    let bias = states.bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
                    let sum: f64 = bias + (0..tokens).map(term).sum::<f64>();
                    sums[row * width + c] = (sum, bias.abs() + (0..tokens).map(|k| term(k).abs()).sum::<f64>());
                }
            }
            if let Some(to) = run.to {
                kept.insert(to, tail);
            }
        });
        Self { states, sums }
    }
}

impl OpCase for ConvCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let &StatesCase { dtype, heads, ref x, ref conv, ref bias, .. } = &self.states;
        let (width, operands) = (heads.conv_width(), ActivationDtype::Operands(dtype));
        let weight = vector(backend, conv)?;
        let bias = bias.as_ref().map(|bias| vector(backend, bias)).transpose()?;
        self.states.over_steps(backend, width, |backend, out, kv, loaded, (first, rows)| {
            let x = rows_from(backend, operands, x, (first, rows, width))?;
            backend.causal_conv(out, &x, &weight, bias.as_ref(), kv, LAYER, loaded);
            Ok(())
        })
    }

    /// A sum has a rounding for each of its terms on both sides, which the gate multiplies by its slope, at most 1.1.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (sum, size) = self.sums[at];
        let terms = (self.states.conv_tokens + 1) as f64;
        rounded(self.states.dtype, y) + gate_tolerance(Gate::Silu, sum as f32, 1.0, y) + 1.1 * 2.0 * terms * F32 * size
    }

    fn exact(&self) -> Option<Vec<f64>> {
        Some(self.sums.iter().map(|&(sum, _)| silu(sum)).collect())
    }

    fn name(&self) -> String {
        let bias = if self.states.bias.is_some() { " and a bias" } else { "" };
        format!("{}, convolution of {}{bias}", self.states, self.states.conv_tokens)
    }
}

/// The fewest rows of a run that a backend computes in chunks, and the roundings in one of its numbers: of U, W and S,
/// and of the change itself.
const LEAST_CHUNKED: usize = 32;
const CHUNK_ERRORS: f64 = 4.0;

/// `state_update` over the script.
struct DeltaRuleCase<'a> {
    states: &'a StatesCase,
    /// For each row and value head, the allowed error of its outputs before they are stored.
    allowed: Vec<f64>,
}

/// Bounds for one head's state: of the length of its columns, of their error by sums in f32, and of the sum of the
/// squares of the errors by roundings in chunks.
#[derive(Clone, Copy, Default)]
struct ColumnBounds {
    length: f64,
    error: f64,
    squares: f64,
}

impl<'a> DeltaRuleCase<'a> {
    /// A token's key has length 1, its query `1 / sqrt(key_dim)`, and a column `c` of the state becomes
    /// `(1 - beta k k^T) decay c + beta v k`: no longer than `decay` times before plus `beta |v|`. So errors made
    /// earlier only shrink, and a token adds, for n = key_dim, in units of one rounding: n and a few of the product of
    /// key and column; n / 2 and a few of the key's norm, which is in the change of the column twice; and those of the
    /// gates: of the decay as many as its exponent is long, and a few each. Reading adds n of the sum, and n / 2 of the
    /// query's norm.
    ///
    /// In chunks of 64 tokens the operands of products are rounded to the dtype: a token's change `D = U - W S` is a
    /// difference of numbers as long as a value and a column together, wrong by `CHUNK_ERRORS` roundings of that
    /// length, and so is the column from that token on, but for what decays. These errors are independent, so their
    /// squares add. The operands of a token's reads, of which up to 64 are in a number, add 8 times as much.
    ///
    /// Where states are bf16, each token rounds its column on either side, to the same number but where both are close
    /// to a middle, or where one side rounds at the end of a run alone: an element is then wrong by up to two
    /// roundings. These are independent among elements and tokens, so their squares add, over a column to its length.
    fn new(states: &'a StatesCase) -> Self {
        let DeltaHeads { value_heads, key_dim, value_dim, .. } = states.heads;
        let (width, n) = (states.heads.conv_width(), key_dim as f64);
        let mut allowed = vec![0.0; states.x.len() / width * value_heads];
        let mut kept: HashMap<StateId, Vec<ColumnBounds>> = HashMap::new();
        states.each_run(|first, run| {
            let mut bounds = run.from.map_or(vec![ColumnBounds::default(); value_heads], |from| kept[&from].clone());
            for (place, row) in run.rows.clone().map(|row| first + row as usize).enumerate() {
                for (head, bounds) in bounds.iter_mut().enumerate() {
                    let gate = |at: usize| f64::from(states.ba[row * 2 * value_heads + at]);
                    let beta = 1.0 / (1.0 + (-gate(head)).exp());
                    let exponent = f64::from(states.rate[head])
                        * (gate(value_heads + head) + f64::from(states.dt[head])).exp().ln_1p();
                    let decay = exponent.exp();
                    let values =
                        &states.x[row * width + 2 * states.heads.key_width() + head * value_dim..][..value_dim];
                    let value = values.iter().fold(0.0, |most: f64, value| most.max(f64::from(value.abs())));
                    let in_chunks = if states.may_chunk && run.rows.len() >= LEAST_CHUNKED {
                        CHUNK_ERRORS * states.dtype.rounding() * (value + bounds.length)
                    } else {
                        0.0
                    };
                    let of_state = match states.state {
                        StateDtype::F32 => 0.0,
                        StateDtype::Bf16 => 2.0 * Dtype::Bf16.rounding() * (bounds.length + value),
                    };
                    if !(run.is_in && place == 0) {
                        let ColumnBounds { length, error, squares } = *bounds;
                        let held = decay * length;
                        let of_held = 2.0 * n + 20.0 + 4.0 * exponent.abs();
                        bounds.error = decay * error + F32 * (of_held * held + (n / 2.0 + 20.0) * beta * value);
                        bounds.squares = decay.powi(2) * squares + in_chunks.powi(2) + of_state.powi(2);
                        bounds.length = held + beta * value;
                    }
                    let read =
                        bounds.error + bounds.squares.sqrt() + 8.0 * in_chunks + F32 * (1.5 * n + 12.0) * bounds.length;
                    allowed[row * value_heads + head] = 2.0 * read / n.sqrt();
                }
            }
            if let Some(to) = run.to {
                kept.insert(to, bounds);
            }
        });
        Self { states, allowed }
    }
}

impl OpCase for DeltaRuleCase<'_> {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let &StatesCase { dtype, heads, ref x, ref ba, ref rate, ref dt, .. } = self.states;
        let operands = ActivationDtype::Operands(dtype);
        let (rate, dt) = (vector(backend, rate)?, vector(backend, dt)?);
        self.states.over_steps(backend, heads.value_width(), |backend, out, kv, loaded, (first, rows)| {
            let qkv = rows_from(backend, operands, x, (first, rows, heads.conv_width()))?;
            let ba = rows_from(backend, ActivationDtype::Sums, ba, (first, rows, 2 * heads.value_heads))?;
            backend.state_update(out, &qkv, &ba, StateRule::Delta { rate: &rate, dt: &dt }, kv, LAYER, loaded);
            Ok(())
        })
    }

    fn tolerance(&self, at: usize, y: f64) -> f64 {
        rounded(self.states.dtype, y) + self.allowed[at / self.states.heads.value_dim]
    }

    /// Token by token, in f64 but for states that are stored in bf16.
    fn exact(&self) -> Option<Vec<f64>> {
        let states = self.states;
        let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = states.heads;
        let width = states.heads.conv_width();
        let stored = |x: f64| match states.state {
            StateDtype::F32 => x,
            StateDtype::Bf16 => half::bf16::from_f64(x).to_f64(),
        };
        let mut exact = vec![0.0; states.x.len() / width * value_heads * value_dim];
        let mut kept: HashMap<StateId, Vec<f64>> = HashMap::new();
        states.each_run(|first, run| {
            let mut matrices =
                run.from.map_or(vec![0.0; value_heads * key_dim * value_dim], |from| kept[&from].clone());
            for (place, row) in run.rows.clone().map(|row| first + row as usize).enumerate() {
                let x = &states.x[row * width..][..width];
                let normed = |from: usize| -> Vec<f64> {
                    let x = &x[from..from + key_dim];
                    let length = (x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() + f64::from(EPS)).sqrt();
                    x.iter().map(|&x| f64::from(x) / length).collect()
                };
                for (head, state) in matrices.chunks_exact_mut(key_dim * value_dim).enumerate() {
                    let key_head = head / (value_heads / key_heads);
                    let (query, key) = (normed(key_head * key_dim), normed((key_heads + key_head) * key_dim));
                    let values = &x[2 * key_heads * key_dim + head * value_dim..][..value_dim];
                    let gate = |at: usize| f64::from(states.ba[row * 2 * value_heads + at]);
                    let step = (gate(value_heads + head) + f64::from(states.dt[head])).exp().ln_1p();
                    let decay = (f64::from(states.rate[head]) * step).exp();
                    for (j, &value) in values.iter().enumerate() {
                        let column = |i: usize| i * value_dim + j;
                        if !(run.is_in && place == 0) {
                            let held: f64 = (0..key_dim).map(|i| decay * state[column(i)] * key[i]).sum();
                            let change = sigmoid(gate(head)) * (f64::from(value) - held);
                            for (i, key) in key.iter().enumerate() {
                                state[column(i)] = stored(decay * state[column(i)] + key * change);
                            }
                        }
                        let read: f64 = (0..key_dim).map(|i| state[column(i)] * query[i]).sum();
                        exact[(row * value_heads + head) * value_dim + j] = read / (key_dim as f64).sqrt();
                    }
                }
            }
            if let Some(to) = run.to {
                kept.insert(to, matrices);
            }
        });
        Some(exact)
    }

    fn name(&self) -> String {
        self.states.to_string()
    }
}
