//! Gated delta-rule layers, token by token: the clear loops of `backend::delta_rule`. Loops over the columns of a state
//! are compiled for every instruction set and have one order, so all compute the same bits. `states` holds the memory.
//!
//! Columns do not depend on each other. So where a run is long and a processor's own instructions are used, some
//! columns at a time go through many tokens, in a copy that stays in the nearest cache: the same sums in the same
//! order.

use std::ops::Range;

use half::bf16;

use super::rows::{bf16_bits, for_each_isa, for_rows, sum};
use super::states::{HeadMatrices, LayerStates};
use super::{Cores, CpuBuffer, Isa, exp};
use offshoot_backend::{CONV_TOKENS, DeltaHeads, L2_EPS};
use offshoot_kv::StateRun;

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
    let mut work: Vec<_> = states.by_head().into_iter().zip(outputs).collect();
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
    /// `[tokens][2][key_dim]`: query and key, normalised.
    vectors: Vec<f32>,
    /// `[key_dim]`, the columns of a strip; what is past the last of a head belongs to nobody.
    state: Vec<[f32; STRIP]>,
    /// `[tokens]`, the same of values, and then of what is read.
    values: Vec<[f32; STRIP]>,
}

#[derive(Clone, Copy)]
struct TokenGates {
    decay: f32,
    beta: f32,
    /// Whether the state has the token already, which is only read then.
    is_in: bool,
}

/// A token's vectors in one head, query and key normalised.
struct Token<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    gates: TokenGates,
}

impl Head {
    fn new(isa: Isa, heads: DeltaHeads, head: usize) -> Self {
        let zeros = |n: usize| vec![0.0; n];
        let (query, key, delta) = (zeros(heads.key_dim), zeros(heads.key_dim), zeros(heads.value_dim));
        Self { isa, heads, head, query, key, delta, unkept: Vec::new(), strips: Strips::default() }
    }

    /// `matrices`: this head's in every slot. `row`: a row's queries, keys and values, and its b and a.
    fn run<'a>(
        &mut self,
        run: &StateRun,
        matrices: &mut HeadMatrices<'_>,
        outputs: &mut [f32],
        row: impl Fn(usize) -> (&'a [f32], &'a [f32]),
        gates: &Gates<'_>,
    ) {
        let DeltaHeads { value_dim, .. } = self.heads;
        let size = self.heads.matrix();
        let mut unkept = std::mem::take(&mut self.unkept);
        let rounds = matches!(matrices, HeadMatrices::Bf16(_));
        let state = match (&mut *matrices, run.from, run.to) {
            (HeadMatrices::F32(matrices), Some(from), Some(to)) if from == to => {
                &mut matrices[to.ix() * size..][..size]
            }
            (HeadMatrices::F32(matrices), Some(from), Some(to)) => {
                matrices.copy_within(from.ix() * size..(from.ix() + 1) * size, to.ix() * size);
                &mut matrices[to.ix() * size..][..size]
            }
            (HeadMatrices::F32(matrices), None, Some(to)) => {
                let state = &mut matrices[to.ix() * size..][..size];
                state.fill(0.0);
                state
            }
            (HeadMatrices::F32(matrices), Some(from), None) => {
                unkept.clear();
                unkept.extend_from_slice(&matrices[from.ix() * size..][..size]);
                &mut unkept[..]
            }
            (HeadMatrices::Bf16(matrices), Some(from), _) => {
                unkept.resize(size, 0.0);
                widen(self.isa, &mut unkept, &matrices[from.ix() * size..][..size]);
                &mut unkept[..]
            }
            (_, None, _) => {
                unkept.clear();
                unkept.resize(size, 0.0);
                &mut unkept[..]
            }
        };
        let rows = run.rows.start as usize..run.rows.end as usize;
        let values = self.values();
        let (heads, head) = (self.heads, self.head);
        let gates_of = |r: usize| gates_of(heads, head, row(r).1, gates, run.is_in && r == rows.start);
        if self.isa == Isa::Portable || rows.len() < FEWEST_STRIP_TOKENS {
            for r in rows.clone() {
                let gates = gates_of(r);
                let qkv = row(r).0;
                load(heads, head, qkv, &mut self.query, &mut self.key);
                let out = &mut outputs[r * value_dim..][..value_dim];
                if gates.is_in {
                    read(self.isa, state, &self.query, out);
                } else {
                    let token = Token { query: &self.query, key: &self.key, value: &qkv[values.clone()], gates };
                    update(self.isa, state, &token, &mut self.delta, out, rounds);
                }
            }
        } else {
            let mut strips = std::mem::take(&mut self.strips);
            for first in rows.clone().step_by(STRIP_TOKENS) {
                let part = first..rows.end.min(first + STRIP_TOKENS);
                strips.tokens.clear();
                strips.tokens.extend(part.clone().map(gates_of));
                self.run_strips(&mut strips, state, rounds, part, outputs, &row);
            }
            self.strips = strips;
        }
        if let (HeadMatrices::Bf16(matrices), Some(to)) = (matrices, run.to) {
            narrow(self.isa, &mut matrices[to.ix() * size..][..size], &unkept);
        }
        self.unkept = unkept;
    }

    /// The tokens of `rows`, whose gates are there, strip after strip. `rounds`: whether each leaves a state of bf16.
    fn run_strips<'a>(
        &self,
        strips: &mut Strips,
        state: &mut [f32],
        rounds: bool,
        rows: Range<usize>,
        outputs: &mut [f32],
        row: &impl Fn(usize) -> (&'a [f32], &'a [f32]),
    ) {
        let DeltaHeads { key_dim, value_dim, .. } = self.heads;
        let Strips { tokens, vectors, state: strip, values } = strips;
        vectors.resize(STRIP_TOKENS * 2 * key_dim, 0.0);
        strip.resize(key_dim, [0.0; STRIP]);
        values.resize(STRIP_TOKENS, [0.0; STRIP]);
        let vectors = &mut vectors[..rows.len() * 2 * key_dim];
        for (r, vectors) in rows.clone().zip(vectors.chunks_exact_mut(2 * key_dim)) {
            let (query, key) = vectors.split_at_mut(key_dim);
            load(self.heads, self.head, row(r).0, query, key);
        }
        for first in (0..value_dim).step_by(STRIP) {
            let columns = first..value_dim.min(first + STRIP);
            for (to, from) in strip.iter_mut().zip(state.chunks_exact(value_dim)) {
                to[..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
            for (r, to) in rows.clone().zip(&mut *values) {
                to[..columns.len()].copy_from_slice(&row(r).0[self.values()][columns.clone()]);
            }
            update_strip(self.isa, strip, vectors, tokens, values, rounds);
            for (to, from) in state.chunks_exact_mut(value_dim).zip(&*strip) {
                to[columns.clone()].copy_from_slice(&from[..columns.len()]);
            }
            for (r, from) in rows.clone().zip(&*values) {
                outputs[r * value_dim..][columns.clone()].copy_from_slice(&from[..columns.len()]);
            }
        }
    }

    /// Where the head's value is in a row.
    fn values(&self) -> Range<usize> {
        let begin = 2 * self.heads.key_width() + self.head * self.heads.value_dim;
        begin..begin + self.heads.value_dim
    }
}

/// The query and key of value head `head` in a row of queries, keys and values, normalised.
fn load(heads: DeltaHeads, head: usize, qkv: &[f32], query: &mut [f32], key: &mut [f32]) {
    let DeltaHeads { key_heads, value_heads, key_dim, .. } = heads;
    let key_head = head / (value_heads / key_heads);
    let (queries, rest) = qkv.split_at(heads.key_width());
    let normed = |to: &mut [f32], x: &[f32], factor: f32| {
        let scale = factor / (sum(x, |x| x * x) + L2_EPS).sqrt();
        to.iter_mut().zip(x).for_each(|(to, x)| *to = x * scale);
    };
    normed(query, &queries[key_head * key_dim..][..key_dim], 1.0 / (key_dim as f32).sqrt());
    normed(key, &rest[key_head * key_dim..][..key_dim], 1.0);
}

/// `ba`: a row's b and a.
fn gates_of(heads: DeltaHeads, head: usize, ba: &[f32], gates: &Gates<'_>, is_in: bool) -> TokenGates {
    let beta = 1.0 / (1.0 + (-ba[head]).exp());
    let step = softplus(ba[heads.value_heads + head] + gates.dt[head]);
    TokenGates { decay: (gates.rate[head] * step).exp(), beta, is_in }
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
    /// Decays the state, adds the token to it, and reads it. `rounds`: the state is rounded to bf16 before it is read.
    fn update(state: &mut [f32], token: &Token<'_>, delta: &mut [f32], out: &mut [f32], rounds: bool) {
        match rounds {
            true => update_stored::<true>(state, token, delta, out),
            false => update_stored::<false>(state, token, delta, out),
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
        values: &mut [[f32; STRIP]],
        rounds: bool,
    ) {
        match rounds {
            true => strip_stored::<true>(state, vectors, tokens, values),
            false => strip_stored::<false>(state, vectors, tokens, values),
        }
    }

    /// Numbers of bf16 as f32.
    fn widen(to: &mut [f32], from: &[bf16]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(from.to_bits()) << 16));
    }

    /// Numbers that bf16 has, which were rounded as they were computed.
    fn narrow(to: &mut [bf16], from: &[f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_bits((from.to_bits() >> 16) as u16));
    }

    fn gated_norm_row[exp](x: &mut [f32], gate: &[f32], weight: &[f32], eps: f32) {
        for (x, gate) in x.chunks_exact_mut(weight.len()).zip(gate.chunks_exact(weight.len())) {
            let scale = 1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt();
            for ((x, gate), weight) in x.iter_mut().zip(gate).zip(weight) {
                *x = *x * scale * weight * (gate / (1.0 + exp(-gate)));
            }
        }
    }

    fn sigmoid_row[exp](x: &mut [f32], gate: &[f32]) {
        x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= 1.0 / (1.0 + exp(-gate)));
    }
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

/// `x`, rounded to bf16 if the state is.
#[inline(always)]
fn stored<const ROUNDS: bool>(x: f32) -> f32 {
    if ROUNDS { f32::from_bits(bf16_bits(x) << 16) } else { x }
}

#[inline(always)]
fn update_stored<const ROUNDS: bool>(state: &mut [f32], token: &Token<'_>, delta: &mut [f32], out: &mut [f32]) {
    let &Token { query, key, value, gates: TokenGates { decay, beta, .. } } = token;
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
            *state = stored::<ROUNDS>(*state + key * delta);
            *out += *state * query;
        }
    }
}

#[inline(always)]
fn strip_stored<const ROUNDS: bool>(
    state: &mut [[f32; STRIP]],
    vectors: &[f32],
    tokens: &[TokenGates],
    values: &mut [[f32; STRIP]],
) {
    let vectors = vectors.chunks_exact(2 * state.len());
    for ((&TokenGates { decay, beta, is_in }, vectors), value) in tokens.iter().zip(vectors).zip(values) {
        let (query, key) = vectors.split_at(state.len());
        let mut out = [0.0; STRIP];
        if is_in {
            for (row, query) in state.iter().zip(query) {
                for c in 0..STRIP {
                    out[c] += row[c] * query;
                }
            }
        } else {
            let mut held = [0.0; STRIP];
            for (row, key) in state.iter().zip(key) {
                for c in 0..STRIP {
                    held[c] += row[c] * decay * key;
                }
            }
            let delta: [f32; STRIP] = std::array::from_fn(|c| beta * (value[c] - held[c]));
            for ((row, key), query) in state.iter_mut().zip(key).zip(query) {
                for c in 0..STRIP {
                    row[c] = stored::<ROUNDS>(row[c] * decay + key * delta[c]);
                    out[c] += row[c] * query;
                }
            }
        }
        *value = out;
    }
}
