//! Gated delta-rule layers, token by token: the clear loops of `backend::delta_rule`. Loops over the columns of a state
//! are compiled for every instruction set and have one order, so all compute the same bits. `states` holds the memory.

use super::rows::{for_each_isa, for_rows, sum};
use super::states::LayerStates;
use super::{Cores, CpuBuffer, Isa, exp};
use crate::backend::{CONV_TOKENS, DeltaHeads, L2_EPS};
use crate::kv::StateRun;

/// Memory of the ops of delta-rule layers; nothing lasts from one to the next.
#[derive(Default)]
pub struct DeltaScratch {
    /// The inputs before each run that its convolution reads, `[runs][CONV_TOKENS][width]`.
    tails: Vec<f32>,
    /// The run of each row, and the row's place in it.
    places: Vec<(usize, usize)>,
    /// `[value_heads][rows][value_dim]`
    outputs: Vec<f32>,
}

/// The gates of a layer, one number for each value head.
pub struct Gates<'a> {
    pub rate: &'a [f32],
    pub dt: &'a [f32],
}

/// `out[r][c] = silu(sum over k of weight[c][k] * x[r - 3 + k][c])`, where the rows before a run's first are those of
/// the state that it continues.
pub fn causal_conv(
    cores: &Cores,
    scratch: &mut DeltaScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    weight: &[f32],
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let width = x.width;
    let expected = (x.rows, states.heads().conv_width(), CONV_TOKENS * width);
    assert_eq!((out.rows, out.width, weight.len()), expected, "causal_conv: shapes");
    assert_eq!(width, out.width, "causal_conv: width of the input");
    let DeltaScratch { tails, places, .. } = scratch;
    tails.resize(runs.len() * CONV_TOKENS * width, 0.0);
    places.resize(x.rows, (0, 0));
    for (number, (run, tail)) in runs.iter().zip(tails.chunks_exact_mut(CONV_TOKENS * width)).enumerate() {
        match run.from {
            Some(from) => tail.copy_from_slice(states.tail(from)),
            None => tail.fill(0.0),
        }
        if run.is_in {
            // The last of the four inputs is the first row's own.
            tail.copy_within(0..(CONV_TOKENS - 1) * width, width);
        }
        for (place, row) in run.rows.clone().enumerate() {
            places[row as usize] = (number, place);
        }
        let Some(to) = run.to else { continue };
        // The last inputs of the run, and before them those of the tail.
        let rows = run.rows.len();
        let kept = states.tail_mut(to);
        for (k, kept) in kept.chunks_exact_mut(width).enumerate() {
            match (rows + k).checked_sub(CONV_TOKENS) {
                Some(row) => kept.copy_from_slice(x.row(run.rows.start as usize + row)),
                None => kept.copy_from_slice(&tail[(rows + k) * width..][..width]),
            }
        }
    }
    let (tails, places) = (&*tails, &*places);
    for_rows(&cores.team, out, |r, out| {
        let (run, place) = places[r];
        let tail = &tails[run * CONV_TOKENS * width..][..CONV_TOKENS * width];
        // Input k of the row is that of `CONV_TOKENS - 1 - k` positions before.
        let inputs = std::array::from_fn(|k| match (place + k + 1).checked_sub(CONV_TOKENS) {
            Some(before) => x.row(r - place + before),
            None => &tail[(place + k + 1) * width..][..width],
        });
        conv_row(cores.isa, out, inputs, weight);
    });
}

/// The delta rule; see `backend::delta_rule`.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn delta_rule(
    cores: &Cores,
    scratch: &mut DeltaScratch,
    out: &mut CpuBuffer,
    qkv: &CpuBuffer,
    ba: &CpuBuffer,
    gates: &Gates<'_>,
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let heads = states.heads();
    let (rows, width) = (out.rows, heads.value_dim);
    assert_eq!((qkv.rows, qkv.width), (rows, heads.conv_width()), "delta_rule: shape of queries, keys and values");
    assert_eq!(
        (ba.rows, ba.width, out.width),
        (rows, 2 * heads.value_heads, heads.value_width()),
        "delta_rule: shapes"
    );
    scratch.outputs.resize(heads.value_heads * rows * width, 0.0);
    let outputs = scratch.outputs.chunks_exact_mut((rows * width).max(1));
    let mut work: Vec<_> = states.by_head().zip(outputs).collect();
    cores.team.for_each(&mut work, |head, (matrices, outputs)| {
        let mut one = Head::new(cores.isa, heads, head);
        for run in runs {
            one.run(run, matrices, outputs, |r| (qkv.row(r), ba.row(r)), gates);
        }
    });
    let outputs = &scratch.outputs;
    for_rows(&cores.team, out, |r, out| {
        for (head, out) in out.chunks_exact_mut(width).enumerate() {
            out.copy_from_slice(&outputs[(head * rows + r) * width..][..width]);
        }
    });
}

/// One value head, with the vectors of one token.
struct Head {
    isa: Isa,
    heads: DeltaHeads,
    head: usize,
    query: Vec<f32>,
    key: Vec<f32>,
    delta: Vec<f32>,
    /// The state of a run that keeps none.
    unkept: Vec<f32>,
}

impl Head {
    fn new(isa: Isa, heads: DeltaHeads, head: usize) -> Self {
        let zeros = |n: usize| vec![0.0; n];
        let (query, key, delta) = (zeros(heads.key_dim), zeros(heads.key_dim), zeros(heads.value_dim));
        Self { isa, heads, head, query, key, delta, unkept: Vec::new() }
    }

    /// `matrices`: this head's in every slot. `row`: a row's queries, keys and values, and its b and a.
    fn run<'a>(
        &mut self,
        run: &StateRun,
        matrices: &mut [f32],
        outputs: &mut [f32],
        row: impl Fn(usize) -> (&'a [f32], &'a [f32]),
        gates: &Gates<'_>,
    ) {
        let DeltaHeads { value_dim, .. } = self.heads;
        let size = self.heads.matrix();
        let mut unkept = std::mem::take(&mut self.unkept);
        let state = match (run.from, run.to) {
            (Some(from), Some(to)) if from == to => &mut matrices[to.ix() * size..][..size],
            (Some(from), Some(to)) => {
                matrices.copy_within(from.ix() * size..(from.ix() + 1) * size, to.ix() * size);
                &mut matrices[to.ix() * size..][..size]
            }
            (None, Some(to)) => {
                let state = &mut matrices[to.ix() * size..][..size];
                state.fill(0.0);
                state
            }
            (from, None) => {
                unkept.clear();
                match from {
                    Some(from) => unkept.extend_from_slice(&matrices[from.ix() * size..][..size]),
                    None => unkept.resize(size, 0.0),
                }
                &mut unkept[..]
            }
        };
        for (place, r) in run.rows.clone().map(|r| r as usize).enumerate() {
            let (qkv, ba) = row(r);
            let value = self.load(qkv);
            let out = &mut outputs[r * value_dim..][..value_dim];
            if run.is_in && place == 0 {
                read(self.isa, state, &self.query, out);
                continue;
            }
            let beta = 1.0 / (1.0 + (-ba[self.head]).exp());
            let step = softplus(ba[self.heads.value_heads + self.head] + gates.dt[self.head]);
            let decay = (gates.rate[self.head] * step).exp();
            update(self.isa, state, &self.query, &self.key, value, &mut self.delta, out, decay, beta);
        }
        self.unkept = unkept;
    }

    /// Normalises the token's query and key; returns its value.
    fn load<'a>(&mut self, qkv: &'a [f32]) -> &'a [f32] {
        let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = self.heads;
        let key_head = self.head / (value_heads / key_heads);
        let (queries, rest) = qkv.split_at(self.heads.key_width());
        let (keys, values) = rest.split_at(self.heads.key_width());
        let normed = |to: &mut [f32], x: &[f32], factor: f32| {
            let scale = factor / (sum(x, |x| x * x) + L2_EPS).sqrt();
            to.iter_mut().zip(x).for_each(|(to, x)| *to = x * scale);
        };
        normed(&mut self.query, &queries[key_head * key_dim..][..key_dim], 1.0 / (key_dim as f32).sqrt());
        normed(&mut self.key, &keys[key_head * key_dim..][..key_dim], 1.0);
        &values[self.head * value_dim..][..value_dim]
    }
}

/// `ln(1 + e^x)`; above 20 it is `x` to the last bit.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// In place, for each head: `x / sqrt(mean(x^2) + eps) * weight * silu(gate)`.
pub fn gated_rms_norm(cores: &Cores, x: &mut CpuBuffer, gate: &CpuBuffer, weight: &[f32], eps: f32) {
    assert_eq!((x.rows, x.width), (gate.rows, gate.width), "gated_rms_norm: shapes");
    assert!(x.width.is_multiple_of(weight.len()), "gated_rms_norm: length of the weights");
    for_rows(&cores.team, x, |r, x| gated_norm_row(cores.isa, x, gate.row(r), weight, eps));
}

/// In place, `x[r][i] * sigmoid(y[r][i])`, or `sigmoid(y[r][0])` if `y` has one column.
pub fn sigmoid_times(cores: &Cores, x: &mut CpuBuffer, y: &CpuBuffer) {
    assert!(x.rows == y.rows && [1, x.width].contains(&y.width), "sigmoid_times: shapes");
    for_rows(&cores.team, x, |r, x| match y.row(r) {
        [gate] if x.len() > 1 => {
            let factor = 1.0 / (1.0 + (-gate).exp());
            x.iter_mut().for_each(|x| *x *= factor);
        }
        gates => sigmoid_row(cores.isa, x, gates),
    });
}

for_each_isa! {
    fn conv_row(out: &mut [f32], inputs: [&[f32]; CONV_TOKENS], weight: &[f32]) = conv_clear or conv_loop;
}

for_each_isa! {
    /// Decays the state, adds the token to it, and reads it.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn update(
        state: &mut [f32],
        query: &[f32],
        key: &[f32],
        value: &[f32],
        delta: &mut [f32],
        out: &mut [f32],
        decay: f32,
        beta: f32,
    ) = update_loop;
}

for_each_isa! {
    /// `out = state^T query`
    fn read(state: &[f32], query: &[f32], out: &mut [f32]) = read_loop;
}

for_each_isa! {
    fn gated_norm_row(x: &mut [f32], gate: &[f32], weight: &[f32], eps: f32) = gated_norm_clear or gated_norm_loop;
}

for_each_isa! {
    fn sigmoid_row(x: &mut [f32], gate: &[f32]) = sigmoid_clear or sigmoid_loop;
}

fn conv_clear(out: &mut [f32], inputs: [&[f32]; CONV_TOKENS], weight: &[f32]) {
    for (c, out) in out.iter_mut().enumerate() {
        let x: f32 = (0..CONV_TOKENS).map(|k| weight[c * CONV_TOKENS + k] * inputs[k][c]).sum();
        *out = x / (1.0 + (-x).exp());
    }
}

#[inline(always)]
fn conv_loop(out: &mut [f32], inputs: [&[f32]; CONV_TOKENS], weight: &[f32]) {
    let inputs = inputs.map(|input| &input[..out.len()]);
    let (weight, _) = weight.as_chunks::<CONV_TOKENS>();
    for (c, (out, weight)) in out.iter_mut().zip(weight).enumerate() {
        let mut x = 0.0;
        for k in 0..CONV_TOKENS {
            x += weight[k] * inputs[k][c];
        }
        *out = x / (1.0 + exp::exp(-x));
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
fn update_loop(
    state: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &[f32],
    delta: &mut [f32],
    out: &mut [f32],
    decay: f32,
    beta: f32,
) {
    // What the decayed state holds for the key.
    delta.fill(0.0);
    for (row, key) in state.chunks_exact_mut(value.len()).zip(key) {
        for (state, delta) in row.iter_mut().zip(&mut *delta) {
            *state *= decay;
            *delta += *state * key;
        }
    }
    for (delta, value) in delta.iter_mut().zip(value) {
        *delta = beta * (value - *delta);
    }
    out.fill(0.0);
    for ((row, key), query) in state.chunks_exact_mut(value.len()).zip(key).zip(query) {
        for ((state, delta), out) in row.iter_mut().zip(&*delta).zip(&mut *out) {
            *state += key * delta;
            *out += *state * query;
        }
    }
}

#[inline(always)]
fn read_loop(state: &[f32], query: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (row, query) in state.chunks_exact(out.len()).zip(query) {
        for (state, out) in row.iter().zip(&mut *out) {
            *out += *state * query;
        }
    }
}

fn gated_norm_clear(x: &mut [f32], gate: &[f32], weight: &[f32], eps: f32) {
    for (x, gate) in x.chunks_exact_mut(weight.len()).zip(gate.chunks_exact(weight.len())) {
        let scale = 1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt();
        for ((x, gate), weight) in x.iter_mut().zip(gate).zip(weight) {
            *x = *x * scale * weight * (gate / (1.0 + (-gate).exp()));
        }
    }
}

#[inline(always)]
fn gated_norm_loop(x: &mut [f32], gate: &[f32], weight: &[f32], eps: f32) {
    for (x, gate) in x.chunks_exact_mut(weight.len()).zip(gate.chunks_exact(weight.len())) {
        let scale = 1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt();
        for ((x, gate), weight) in x.iter_mut().zip(gate).zip(weight) {
            *x = *x * scale * weight * (gate / (1.0 + exp::exp(-gate)));
        }
    }
}

fn sigmoid_clear(x: &mut [f32], gate: &[f32]) {
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= 1.0 / (1.0 + (-gate).exp()));
}

#[inline(always)]
fn sigmoid_loop(x: &mut [f32], gate: &[f32]) {
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= 1.0 / (1.0 + exp::exp(-gate)));
}
