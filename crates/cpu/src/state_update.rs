//! The states of recurrent layers, token by token: the clear loops of `backend::states`. Loops over the columns of a state
//! are compiled for every instruction set and have one order, so all compute the same bits. `states` holds the memory.
//!
//! Columns do not depend on each other. So where a run is long and a processor's own instructions are used, some
//! columns at a time go through many tokens, in a copy that stays in the nearest cache: the same sums in the same
//! order.

use std::ops::Range;

use half::bf16;

use super::rows::{bf16_bits, for_each_isa, for_rows, sum};
use super::states::{HeadMatrices, LayerStates};
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{DeltaHeads, L2_EPS, StateRule};
use offshoot_kv::StateRun;

/// Memory of an update; nothing lasts from one to the next.
#[derive(Default)]
pub struct UpdateScratch {
    /// `[value_heads][rows][value_dim]`
    outputs: Vec<f32>,
}

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
    let StateRule::Delta { rate, dt } = rule;
    let heads = states.layer().heads();
    let (rows, width) = (out.rows, heads.value_dim);
    assert_eq!((qkv.rows, qkv.width), (rows, heads.conv_width()), "state_update: shape of queries, keys and values");
    assert_eq!(
        (gates.rows, gates.width, out.width),
        (rows, 2 * heads.value_heads, heads.value_width()),
        "state_update: shapes"
    );
    let learned = Learned { rate, dt };
    scratch.outputs.resize(heads.value_heads * rows * width, 0.0);
    let outputs = scratch.outputs.chunks_exact_mut((rows * width).max(1));
    let mut work: Vec<_> = states.by_head().into_iter().zip(outputs).collect();
    cores.team.for_each(&mut work, |head, (matrices, outputs)| {
        let mut one = Head::new(cores.isa, heads, head);
        for run in runs {
            one.run(run, matrices, outputs, |r| (qkv.row(r), gates.row(r)), &learned);
        }
    });
    let outputs = &scratch.outputs;
    for_rows(&cores.team, out, |r, out| {
        for (head, out) in out.chunks_exact_mut(width).enumerate() {
            out.copy_from_slice(&outputs[(head * rows + r) * width..][..width]);
        }
    });
}

/// The learned part of a layer's gates, one number for each value head.
struct Learned<'a> {
    rate: &'a [f32],
    dt: &'a [f32],
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

    /// `matrices`: this head's in every slot. `row`: a row's queries, keys and values, and its gates.
    fn run<'a>(
        &mut self,
        run: &StateRun,
        matrices: &mut HeadMatrices<'_>,
        outputs: &mut [f32],
        row: impl Fn(usize) -> (&'a [f32], &'a [f32]),
        learned: &Learned<'_>,
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
        let gates_of = |r: usize| gates_of(heads, head, row(r).1, learned, run.is_in && r == rows.start);
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
fn gates_of(heads: DeltaHeads, head: usize, ba: &[f32], learned: &Learned<'_>, is_in: bool) -> TokenGates {
    let beta = 1.0 / (1.0 + (-ba[head]).exp());
    let step = softplus(ba[heads.value_heads + head] + learned.dt[head]);
    TokenGates { decay: (learned.rate[head] * step).exp(), beta, is_in }
}

/// `ln(1 + e^x)`; above 20 it is `x` to the last bit.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
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
