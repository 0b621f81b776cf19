//! The states of recurrent layers with a matrix for each value head, token by token: the clear loops of
//! `backend::states`. Loops over the columns of a state are compiled for every instruction set and have one order, so
//! all compute the same bits. `states` holds the memory.
//!
//! Columns do not depend on each other. So where a run is long and a processor's own instructions are used, some
//! columns at a time go through many tokens, in a copy that stays in the nearest cache: the same sums in the same
//! order.

use std::ops::Range;

use super::rows::{bf16_bits, for_each_isa, for_rows, sum};
use super::states::{HeadMatrices, LayerStates};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{DeltaHeads, L2_EPS, StateKind, StateRule};
use offshoot_kv::StateRun;

/// Memory of an update; nothing lasts from one to the next.
#[derive(Default)]
pub struct UpdateScratch {
    /// `[matrices][rows][outputs of one]`
    outputs: Vec<f32>,
}

impl UpdateScratch {
    /// Calls `update(number, matrices, outputs)` for each of a layer's matrices with memory for what it gives, `[rows
    /// of out, width]`, and writes that to `out`, whose rows have it one after the other.
    pub fn by_matrix(
        &mut self,
        cores: &Cores,
        out: &mut CpuBuffer,
        states: &mut LayerStates,
        update: impl Fn(usize, &mut HeadMatrices<'_>, &mut [f32]) + Sync,
    ) {
        let rows = out.rows;
        let width = out.width / states.layer().matrices().0;
        self.outputs.resize(rows * out.width, 0.0);
        let outputs = self.outputs.chunks_exact_mut((rows * width).max(1));
        let mut work: Vec<_> = states.by_head().into_iter().zip(outputs).collect();
        cores.team.for_each(&mut work, |number, (matrices, outputs)| update(number, matrices, outputs));
        let outputs = &self.outputs;
        for_rows(&cores.team, out, |r, out| {
            for (number, out) in out.chunks_exact_mut(width).enumerate() {
                out.copy_from_slice(&outputs[(number * rows + r) * width..][..width]);
            }
        });
    }
}

/// The rows of a layer's inputs, and how its matrices change with them.
struct Inputs<'a> {
    heads: DeltaHeads,
    qkv: &'a CpuBuffer,
    /// b and a, or b alone, or steps.
    gates: &'a CpuBuffer,
    rule: Rule<'a>,
}

enum Rule<'a> {
    Delta { rate: &'a [f32], dt: &'a [f32] },
    Channel { rate: &'a [f32], dt: &'a [f32], decays: &'a CpuBuffer },
    Sum { rate: &'a [f32], dt: &'a [f32], skip: &'a [f32], limits: [f32; 2] },
}

/// The rules as numbers of functions that are compiled for each.
const DELTA: usize = 0;
const CHANNEL: usize = 1;
const SUM: usize = 2;

/// The states and outputs of a layer; see `backend::states`.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn state_update(
    cores: &Cores,
    scratch: &mut UpdateScratch,
    out: &mut CpuBuffer,
    qkv: &CpuBuffer,
    gates: &CpuBuffer,
    rule: StateRule<'_, Vec<f32>>,
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let (heads, width, rule) = match (rule, states.layer().kind) {
        (StateRule::Delta { rate, dt }, StateKind::Delta(heads)) => {
            (heads, 2 * heads.value_heads, Rule::Delta { rate, dt })
        }
        (StateRule::Sum { rate, dt, skip, limits }, StateKind::Sum(heads)) => {
            (heads, heads.value_heads, Rule::Sum { rate, dt, skip, limits })
        }
        _ => panic!("state_update: a rule that is not of {}", states.layer()),
    };
    assert_eq!((gates.rows, gates.width), (out.rows, width), "state_update: shape of the gates");
    update_all(cores, scratch, out, &Inputs { heads, qkv, gates, rule }, states, runs);
}

/// `state_update` with a decay for each row of a matrix.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn channel_update(
    cores: &Cores,
    scratch: &mut UpdateScratch,
    out: &mut CpuBuffer,
    qkv: &CpuBuffer,
    beta: &CpuBuffer,
    decays: &CpuBuffer,
    [rate, dt]: [&[f32]; 2],
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let StateKind::Channel(heads) = states.layer().kind else { panic!("channel_update: {}", states.layer()) };
    assert_eq!((beta.rows, beta.width), (out.rows, heads.value_heads), "channel_update: shape of beta");
    assert_eq!((decays.rows, decays.width), (out.rows, heads.key_width()), "channel_update: shape of decays");
    let rule = Rule::Channel { rate, dt, decays };
    update_all(cores, scratch, out, &Inputs { heads, qkv, gates: beta, rule }, states, runs);
}

fn update_all(
    cores: &Cores,
    scratch: &mut UpdateScratch,
    out: &mut CpuBuffer,
    inputs: &Inputs<'_>,
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let (heads, qkv) = (inputs.heads, inputs.qkv);
    assert_eq!((qkv.rows, qkv.width), (out.rows, heads.conv_width()), "queries, keys and values: shape");
    assert_eq!(out.width, heads.value_width(), "what a layer gives: width");
    scratch.by_matrix(cores, out, states, |head, matrices, outputs| {
        let mut one = Head::new(cores.isa, inputs, head);
        runs.iter().for_each(|run| one.run(run, matrices, outputs));
    });
}

/// One value head, with the vectors of one token.
struct Head<'a> {
    isa: Isa,
    inputs: &'a Inputs<'a>,
    head: usize,
    /// The vectors of one token, as [`Strips::vectors`].
    vectors: Vec<f32>,
    delta: Vec<f32>,
    /// The state of a run that keeps none, or stores it in another dtype.
    unkept: Vec<f32>,
    strips: Strips,
}

/// Columns of a state that go through tokens together: 16 KiB of it with keys of 128, and enough sums for the units
/// that add to have one after the other.
const STRIP: usize = 32;

/// Tokens that a strip goes through before the next one does, and the fewest for which copies pay.
const STRIP_TOKENS: usize = 64;
const FEWEST_STRIP_TOKENS: usize = 4;

/// What a strip and its tokens need.
#[derive(Default)]
struct Strips {
    tokens: Vec<TokenGates>,
    /// `[tokens][key_dim]` of queries, keys and, where they are by channel, decays, one after the other in a token.
    vectors: Vec<f32>,
    /// `[key_dim]`, the columns of a strip; what is past the last of a head belongs to nobody.
    state: Vec<[f32; STRIP]>,
    /// `[tokens]`, the same of values, and then of what is read.
    values: Vec<[f32; STRIP]>,
}

#[derive(Clone, Copy)]
struct TokenGates {
    /// The decay of all rows of the state, where they have no own ones.
    decay: f32,
    /// The factor of what is added: beta, or the step.
    factor: f32,
    /// Whether the state has the token already, which is only read then.
    is_in: bool,
}

/// A token's vectors in one head.
struct Token<'a> {
    /// As [`Strips::vectors`].
    vectors: &'a [f32],
    value: &'a [f32],
    gates: TokenGates,
}

impl Inputs<'_> {
    /// Elements of [`Strips::vectors`] of one token.
    fn vectors(&self) -> usize {
        let count = if matches!(self.rule, Rule::Channel { .. }) { 3 } else { 2 };
        count * self.heads.key_dim
    }

    /// Writes a token's vectors in value head `head`.
    fn load(&self, head: usize, row: usize, vectors: &mut [f32]) {
        let DeltaHeads { key_heads, value_heads, key_dim, .. } = self.heads;
        let key_head = head / (value_heads / key_heads);
        let (queries, rest) = self.qkv.row(row).split_at(self.heads.key_width());
        let of_head = key_head * key_dim..(key_head + 1) * key_dim;
        let (query, others) = vectors.split_at_mut(key_dim);
        let (key, own_decays) = others.split_at_mut(key_dim);
        let normed = |to: &mut [f32], x: &[f32], factor: f32| {
            let scale = factor / (sum(x, |x| x * x) + L2_EPS).sqrt();
            to.iter_mut().zip(x).for_each(|(to, x)| *to = x * scale);
        };
        match self.rule {
            Rule::Sum { .. } => {
                query.copy_from_slice(&queries[of_head.clone()]);
                key.copy_from_slice(&rest[of_head]);
            }
            Rule::Delta { .. } | Rule::Channel { .. } => {
                normed(query, &queries[of_head.clone()], 1.0 / (key_dim as f32).sqrt());
                normed(key, &rest[of_head], 1.0);
            }
        }
        if let Rule::Channel { rate, dt, decays } = self.rule {
            let at = head * key_dim..(head + 1) * key_dim;
            for ((to, f), dt) in own_decays.iter_mut().zip(&decays.row(row)[at.clone()]).zip(&dt[at]) {
                *to = (rate[head] * softplus(f + dt)).exp();
            }
        }
    }

    fn gates_of(&self, head: usize, row: usize, is_in: bool) -> TokenGates {
        let gates = self.gates.row(row);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        match self.rule {
            Rule::Delta { rate, dt } => {
                let step = softplus(gates[self.heads.value_heads + head] + dt[head]);
                TokenGates { decay: (rate[head] * step).exp(), factor: sigmoid(gates[head]), is_in }
            }
            Rule::Channel { .. } => TokenGates { decay: 1.0, factor: sigmoid(gates[head]), is_in },
            Rule::Sum { rate, dt, limits: [least, most], .. } => {
                let step = softplus(gates[head] + dt[head]).max(least).min(most);
                TokenGates { decay: (rate[head] * step).exp(), factor: step, is_in }
            }
        }
    }

    /// The head's value in a row.
    fn value(&self, head: usize, row: usize) -> &[f32] {
        let DeltaHeads { value_dim, .. } = self.heads;
        &self.qkv.row(row)[2 * self.heads.key_width() + head * value_dim..][..value_dim]
    }

    /// Adds to what a token reads its own value, where the rule says so.
    fn add_skipped(&self, head: usize, value: &[f32], out: &mut [f32]) {
        if let Rule::Sum { skip, .. } = self.rule {
            out.iter_mut().zip(value).for_each(|(out, value)| *out += skip[head] * value);
        }
    }
}

impl<'a> Head<'a> {
    fn new(isa: Isa, inputs: &'a Inputs<'a>, head: usize) -> Self {
        let zeros = |n: usize| vec![0.0; n];
        let (vectors, delta) = (zeros(inputs.vectors()), zeros(inputs.heads.value_dim));
        Self { isa, inputs, head, vectors, delta, unkept: Vec::new(), strips: Strips::default() }
    }

    /// `matrices`: this head's in every slot. `outputs`: of all rows of the step.
    fn run(&mut self, run: &StateRun, matrices: &mut HeadMatrices<'_>, outputs: &mut [f32]) {
        let mut unkept = std::mem::take(&mut self.unkept);
        let rounds = matrices.rounds();
        matrices.advance(self.isa, run, self.inputs.heads.matrix(), &mut unkept, |state| {
            self.go_on(run, state, rounds, outputs);
        });
        self.unkept = unkept;
    }

    fn go_on(&mut self, run: &StateRun, state: &mut [f32], rounds: bool, outputs: &mut [f32]) {
        let (inputs, head) = (self.inputs, self.head);
        let value_dim = inputs.heads.value_dim;
        let rows = run.rows.start as usize..run.rows.end as usize;
        let gates_of = |r: usize| inputs.gates_of(head, r, run.is_in && r == rows.start);
        if self.isa == Isa::Portable || rows.len() < FEWEST_STRIP_TOKENS {
            for r in rows.clone() {
                let gates = gates_of(r);
                inputs.load(head, r, &mut self.vectors);
                let value = inputs.value(head, r);
                let out = &mut outputs[r * value_dim..][..value_dim];
                if gates.is_in {
                    read(self.isa, state, &self.vectors[..inputs.heads.key_dim], out);
                } else {
                    let token = Token { vectors: &self.vectors, value, gates };
                    update(self.isa, state, &token, &inputs.rule, &mut self.delta, out, rounds);
                }
                inputs.add_skipped(head, value, out);
            }
        } else {
            let mut strips = std::mem::take(&mut self.strips);
            for first in rows.clone().step_by(STRIP_TOKENS) {
                let part = first..rows.end.min(first + STRIP_TOKENS);
                strips.tokens.clear();
                strips.tokens.extend(part.clone().map(gates_of));
                self.run_strips(&mut strips, state, rounds, part, outputs);
            }
            self.strips = strips;
        }
    }

    /// The tokens of `rows`, whose gates are there, strip after strip. `rounds`: whether each leaves a state of bf16.
    fn run_strips(
        &self,
        strips: &mut Strips,
        state: &mut [f32],
        rounds: bool,
        rows: Range<usize>,
        outputs: &mut [f32],
    ) {
        let (inputs, head) = (self.inputs, self.head);
        let DeltaHeads { key_dim, value_dim, .. } = inputs.heads;
        let Strips { tokens, vectors, state: strip, values } = strips;
        let of_token = inputs.vectors();
        vectors.resize(STRIP_TOKENS * of_token, 0.0);
        strip.resize(key_dim, [0.0; STRIP]);
        values.resize(STRIP_TOKENS, [0.0; STRIP]);
        let vectors = &mut vectors[..rows.len() * of_token];
        for (r, vectors) in rows.clone().zip(vectors.chunks_exact_mut(of_token)) {
            inputs.load(head, r, vectors);
        }
        for first in (0..value_dim).step_by(STRIP) {
            let columns = first..value_dim.min(first + STRIP);
            for (to, from) in strip.iter_mut().zip(state.chunks_exact(value_dim)) {
                to[..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
            for (r, to) in rows.clone().zip(&mut *values) {
                to[..columns.len()].copy_from_slice(&inputs.value(head, r)[columns.clone()]);
            }
            update_strip(self.isa, strip, vectors, tokens, &inputs.rule, values, rounds);
            for (to, from) in state.chunks_exact_mut(value_dim).zip(&*strip) {
                to[columns.clone()].copy_from_slice(&from[..columns.len()]);
            }
            for (r, from) in rows.clone().zip(&*values) {
                let out = &mut outputs[r * value_dim..][columns.clone()];
                out.copy_from_slice(&from[..columns.len()]);
                inputs.add_skipped(head, &inputs.value(head, r)[columns.clone()], out);
            }
        }
    }
}

/// `ln(1 + e^x)`; above 20 it is `x` to the last bit.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

for_each_isa! {
    /// Decays the state, adds the token to it, and reads it. `rounds`: the state is rounded to bf16 before it is read.
    fn update(
        state: &mut [f32],
        token: &Token<'_>,
        rule: &Rule<'_>,
        delta: &mut [f32],
        out: &mut [f32],
        rounds: bool,
    ) {
        match (rule, rounds) {
            (Rule::Delta { .. }, true) => update_stored::<DELTA, true>(state, token, delta, out),
            (Rule::Delta { .. }, false) => update_stored::<DELTA, false>(state, token, delta, out),
            (Rule::Channel { .. }, true) => update_stored::<CHANNEL, true>(state, token, delta, out),
            (Rule::Channel { .. }, false) => update_stored::<CHANNEL, false>(state, token, delta, out),
            (Rule::Sum { .. }, true) => update_stored::<SUM, true>(state, token, delta, out),
            (Rule::Sum { .. }, false) => update_stored::<SUM, false>(state, token, delta, out),
        }
    }

    /// `out = state^T query`
    fn read(state: &[f32], query: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        for (row, query) in state.chunks_exact(out.len()).zip(query) {
            for (state, out) in row.iter().zip(&mut *out) {
                *out += *state * query;
            }
        }
    }

    /// A strip through all tokens; see [`Strips`]. `rounds`: the state is rounded to bf16 after each token.
    fn update_strip(
        state: &mut [[f32; STRIP]],
        vectors: &[f32],
        tokens: &[TokenGates],
        rule: &Rule<'_>,
        values: &mut [[f32; STRIP]],
        rounds: bool,
    ) {
        match (rule, rounds) {
            (Rule::Delta { .. }, true) => strip_stored::<DELTA, true>(state, vectors, tokens, values),
            (Rule::Delta { .. }, false) => strip_stored::<DELTA, false>(state, vectors, tokens, values),
            (Rule::Channel { .. }, true) => strip_stored::<CHANNEL, true>(state, vectors, tokens, values),
            (Rule::Channel { .. }, false) => strip_stored::<CHANNEL, false>(state, vectors, tokens, values),
            (Rule::Sum { .. }, true) => strip_stored::<SUM, true>(state, vectors, tokens, values),
            (Rule::Sum { .. }, false) => strip_stored::<SUM, false>(state, vectors, tokens, values),
        }
    }
}

/// `x`, rounded to bf16 if the state is.
#[inline(always)]
pub fn stored<const ROUNDS: bool>(x: f32) -> f32 {
    if ROUNDS { f32::from_bits(bf16_bits(x) << 16) } else { x }
}

/// The decay of row `i` of a state.
#[inline(always)]
fn decay_of<const RULE: usize>(gates: TokenGates, decays: &[f32], i: usize) -> f32 {
    if RULE == CHANNEL { decays[i] } else { gates.decay }
}

#[inline(always)]
fn update_stored<const RULE: usize, const ROUNDS: bool>(
    state: &mut [f32],
    token: &Token<'_>,
    delta: &mut [f32],
    out: &mut [f32],
) {
    let &Token { vectors, value, gates } = token;
    let key_dim = state.len() / value.len();
    let (query, others) = vectors.split_at(key_dim);
    let (key, decays) = others.split_at(key_dim);
    if RULE == SUM {
        delta.iter_mut().zip(value).for_each(|(delta, value)| *delta = gates.factor * value);
    } else {
        // What the decayed state holds for the key.
        delta.fill(0.0);
        for (i, (row, key)) in state.chunks_exact(value.len()).zip(key).enumerate() {
            let decay = decay_of::<RULE>(gates, decays, i);
            for (state, delta) in row.iter().zip(&mut *delta) {
                *delta += *state * decay * key;
            }
        }
        for (delta, value) in delta.iter_mut().zip(value) {
            *delta = gates.factor * (value - *delta);
        }
    }
    out.fill(0.0);
    for (i, ((row, key), query)) in state.chunks_exact_mut(value.len()).zip(key).zip(query).enumerate() {
        let decay = decay_of::<RULE>(gates, decays, i);
        for ((state, delta), out) in row.iter_mut().zip(&*delta).zip(&mut *out) {
            *state = stored::<ROUNDS>(*state * decay + key * delta);
            *out += *state * query;
        }
    }
}

#[inline(always)]
fn strip_stored<const RULE: usize, const ROUNDS: bool>(
    state: &mut [[f32; STRIP]],
    vectors: &[f32],
    tokens: &[TokenGates],
    values: &mut [[f32; STRIP]],
) {
    let of_token = if RULE == CHANNEL { 3 } else { 2 } * state.len();
    let vectors = vectors.chunks_exact(of_token);
    for ((&gates, vectors), value) in tokens.iter().zip(vectors).zip(values) {
        let (query, others) = vectors.split_at(state.len());
        let (key, decays) = others.split_at(state.len());
        let mut out = [0.0; STRIP];
        if gates.is_in {
            for (row, query) in state.iter().zip(query) {
                for c in 0..STRIP {
                    out[c] += row[c] * query;
                }
            }
        } else {
            let delta: [f32; STRIP] = if RULE == SUM {
                value.map(|value| gates.factor * value)
            } else {
                let mut held = [0.0; STRIP];
                for (i, (row, key)) in state.iter().zip(key).enumerate() {
                    let decay = decay_of::<RULE>(gates, decays, i);
                    for c in 0..STRIP {
                        held[c] += row[c] * decay * key;
                    }
                }
                std::array::from_fn(|c| gates.factor * (value[c] - held[c]))
            };
            for (i, ((row, key), query)) in state.iter_mut().zip(key).zip(query).enumerate() {
                let decay = decay_of::<RULE>(gates, decays, i);
                for c in 0..STRIP {
                    row[c] = stored::<ROUNDS>(row[c] * decay + key * delta[c]);
                    out[c] += row[c] * query;
                }
            }
        }
        *value = out;
    }
}
