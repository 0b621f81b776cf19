//! The kernels of gated delta-rule layers on the CPU, instruction by instruction (`emulator`), beside the CPU's loops:
//! over steps whose runs begin, fork, go on in place and read what others have written; and with the same bits however
//! tokens are divided into runs. Long runs by the chunked form too, which is first defined in clear loops.
//! `gated_norm` and `sigmoid_times` beside their formulas.

use crate::emulator;
use crate::full::some_or_full;

use std::ffi::c_void;
use std::ops::Range;

use emulator::{Emulated, Schedule, When};
use offshoot_backend::{
    ActivationDtype, Backend, DeltaHeads, Dtype, HeadLayout, KvShape, LayerState, RowToken, StateDtype, StateRule,
    StateShape, StepBatch,
};
use offshoot_core::dice::Dice;
use offshoot_core::ids::{LayerIx, StateId, TokenId};
use offshoot_cpu::{Cpu, Isa, KvStore};
use offshoot_cuda::compile::elements::ChunkWalk;
use offshoot_cuda::compile::units;
use offshoot_cuda::delta_rule::chunked;
use offshoot_cuda::delta_rule::runs::{RUN_WORDS, RunPlan};
use offshoot_kv::StateRun;

const AT_ONCE: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
const LAYER: LayerIx = LayerIx(0);
const SLOTS: u32 = 5;

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Bytes where kernels' vectors may begin.
fn aligned(mut bytes: Vec<u8>) -> Vec<u128> {
    bytes.resize(bytes.len().next_multiple_of(16), 0xff);
    bytes.chunks_exact(16).map(bytemuck::pod_read_unaligned).collect()
}

fn decoded(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let one = |bytes: &[u8]| match dtype {
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        Dtype::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        Dtype::Bf16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    };
    bytes.chunks_exact(dtype.bytes()).map(one).collect()
}

fn dims(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> DeltaHeads {
    DeltaHeads { key_heads, value_heads, key_dim, value_dim }
}

fn run(rows: Range<u32>, from: Option<u32>, to: Option<u32>) -> StateRun {
    StateRun { rows, from: from.map(StateId), is_in: false, to: to.map(StateId) }
}

/// A layer with its weights, and its states as the kernels have them.
struct Layer {
    dtype: Dtype,
    state: StateDtype,
    heads: DeltaHeads,
    conv: Vec<u128>,
    rate: Vec<f32>,
    dt: Vec<f32>,
    matrices: Vec<u128>,
    tails: Vec<u128>,
    causal_conv: Emulated,
    delta_rule: Emulated,
    /// The kernels of long runs; `None`: all go token by token.
    chunked: Option<(Emulated, Emulated, ChunkWalk)>,
    how: Schedule,
}

impl Layer {
    fn new(dice: &mut Dice, dtype: Dtype, state: StateDtype, heads: DeltaHeads) -> Option<Self> {
        let unit = units::delta_rule(dtype, state, heads.key_dim, heads.value_dim);
        // States that nobody has written hold no numbers.
        let unwritten = |bytes: usize| aligned(vec![0xff; SLOTS as usize * bytes]);
        Some(Self {
            dtype,
            state,
            heads,
            conv: aligned(Dtype::F32.encode(&dice.numbers(4 * heads.conv_width()))),
            rate: dice.numbers(heads.value_heads).into_iter().map(|a_log| -(2.0 * a_log).exp()).collect(),
            dt: dice.numbers(heads.value_heads),
            matrices: unwritten(LayerState::delta(heads, 4).matrix_bytes(state)),
            tails: unwritten(LayerState::delta(heads, 4).tail_bytes()),
            causal_conv: Emulated::compile(&units::causal_conv(dtype, 4), "causal_conv")?,
            delta_rule: Emulated::compile(&unit, "delta_rule")?,
            chunked: None,
            how: AT_ONCE,
        })
    }

    /// Computes long runs in chunks from now on.
    fn in_chunks(self, walk: ChunkWalk, how: Schedule) -> Option<Self> {
        assert!(chunked::takes(self.dtype, self.heads));
        let DeltaHeads { key_dim, value_dim, .. } = self.heads;
        let products = Emulated::compile(&units::chunk_products(self.dtype, key_dim, value_dim), "chunk_products")?;
        let states =
            Emulated::compile(&units::chunk_states(self.dtype, self.state, key_dim, value_dim, walk), "chunk_states")?;
        Some(Self { chunked: Some((products, states, walk)), how, ..self })
    }

    /// What both kernels give for the rows of `x` `[rows, conv_width]` and `ba`: the convolution, and the delta rule of
    /// the same `x`.
    fn compute(&mut self, x: &[f32], ba: &[f32], runs: &[StateRun]) -> [Vec<f32>; 2] {
        let rows = ba.len() / 2 / self.heads.value_heads;
        // A padded row, which nobody reads.
        let padded = rows + 1;
        let plan = RunPlan::new(runs, padded);
        let words = aligned(bytemuck::cast_slice(plan.words()).to_vec());
        let pad = |values: &[f32], width: usize| {
            let mut values = values.to_vec();
            values.resize(padded * width, 0.5);
            values
        };
        let (width, value_width) = (self.heads.conv_width(), self.heads.value_width());
        let x = aligned(self.dtype.encode(&pad(x, width)));
        let ba = pad(ba, 2 * self.heads.value_heads);
        let bytes = |width: usize| padded * width * self.dtype.bytes();
        let mut outs = [width, value_width].map(|width| aligned(vec![0xff; bytes(width) + 16]));
        let [mixed, out] = &mut outs;
        let (mut mixed_at, mut out_at) = (mixed.as_mut_ptr(), out.as_mut_ptr());
        let (mut x_at, mut ba_at, mut conv_at) = (x.as_ptr(), ba.as_ptr(), self.conv.as_ptr());
        let mut bias_at: *const f32 = std::ptr::null();
        let (mut rate_at, mut dt_at) = (self.rate.as_ptr(), self.dt.as_ptr());
        let (mut matrices_at, mut tails_at) = (self.matrices.as_mut_ptr(), self.tails.as_mut_ptr());
        let [mut channels, mut key_heads, mut value_heads] =
            [width, self.heads.key_heads, self.heads.value_heads].map(|count| count as u32);
        let warps = self.heads.value_dim.div_ceil(16).min(4);
        let blocks = self.heads.value_heads * self.heads.value_dim.div_ceil(16 * warps);
        for wave in plan.waves() {
            let behind = |number: usize| words[number * RUN_WORDS / 4..].as_ptr();
            let long = if self.chunked.is_some() { wave.long } else { 0 };
            let mut segments_at = behind(wave.segments.start);
            if let Some((products, states, walk)) = self.chunked.as_ref().filter(|_| long > 0) {
                let chunks = wave.long_segments * self.heads.value_heads;
                let mut memory = aligned(vec![0xff; chunks * chunked::product_bytes(self.heads)]);
                let (mut memory_at, mut long_at) = (memory.as_mut_ptr(), behind(wave.runs.start));
                let of_products = [
                    at(&mut memory_at),
                    at(&mut x_at),
                    at(&mut ba_at),
                    at(&mut rate_at),
                    at(&mut dt_at),
                    at(&mut segments_at),
                    at(&mut key_heads),
                    at(&mut value_heads),
                ];
                let of_states = [
                    at(&mut out_at),
                    at(&mut memory_at),
                    at(&mut x_at),
                    at(&mut matrices_at),
                    at(&mut long_at),
                    at(&mut key_heads),
                    at(&mut value_heads),
                ];
                let blocks = long * self.heads.value_heads * self.heads.value_dim / walk.strip;
                let [of_one, of_all] =
                    [chunked::products_shared(self.heads), chunked::states_shared(self.heads, *walk)];
                // SAFETY: the arguments of each kernel, in its order, each with memory for what its head says.
                unsafe {
                    let grid = chunked::products_blocks(self.heads, wave.long_segments) as u32;
                    products.launch(grid, chunked::PRODUCTS_THREADS, of_one, self.how, &of_products);
                    states.launch(blocks as u32, walk.threads(), of_all, self.how, &of_states);
                }
            }
            // Where all are long there is none.
            let mut runs_at = words[((wave.runs.start + long) * RUN_WORDS / 4).min(words.len())..].as_ptr();
            let of_conv = [
                at(&mut mixed_at),
                at(&mut x_at),
                at(&mut conv_at),
                at(&mut bias_at),
                at(&mut tails_at),
                at(&mut segments_at),
                at(&mut channels),
            ];
            let of_rule = [
                at(&mut out_at),
                at(&mut x_at),
                at(&mut ba_at),
                at(&mut rate_at),
                at(&mut dt_at),
                at(&mut matrices_at),
                at(&mut runs_at),
                at(&mut key_heads),
                at(&mut value_heads),
            ];
            // SAFETY: the arguments of each kernel, in its order, each with memory for what its head says.
            unsafe {
                self.causal_conv.launch(wave.segments.len() as u32, 128, 0, AT_ONCE, &of_conv);
                let grid = ((wave.runs.len() - long) * blocks) as u32;
                if grid > 0 {
                    self.delta_rule.launch(grid, 32 * warps as u32, 0, AT_ONCE, &of_rule);
                }
            }
        }
        let mut widths = [width, value_width].into_iter();
        outs.map(|out| {
            let (out, width) = (bytemuck::cast_slice::<u128, u8>(&out), widths.next().unwrap());
            assert!(out[bytes(width)..].iter().all(|&byte| byte == 0xff), "nothing behind the last row");
            let found = decoded(self.dtype, &out[..bytes(width)]);
            assert!(found.iter().all(|x| x.is_finite()), "padded rows are finite too");
            found[..rows * width].to_vec()
        })
    }
}

/// The same layer on the CPU.
struct Twin {
    cpu: Cpu,
    kv: KvStore,
}

impl Twin {
    fn new(layer: &Layer) -> Self {
        let mut cpu = Cpu::with_isa(Isa::Portable);
        let heads = HeadLayout::new(1, 1, 2);
        let states =
            StateShape { layers: vec![LayerState::delta(layer.heads, 4)], slots: SLOTS as usize, dtype: layer.state };
        let kv = cpu.kv(&KvShape { states, ..KvShape::uniform(1, heads, Dtype::F32, 1) }).unwrap();
        Self { cpu, kv }
    }

    fn compute(&mut self, layer: &Layer, x: &[f32], ba: &[f32], runs: &[StateRun]) -> [Vec<f32>; 2] {
        let Self { cpu, kv } = self;
        let rows = ba.len() / 2 / layer.heads.value_heads;
        let filled = |cpu: &mut Cpu, width: usize, values: &[f32]| {
            let mut buffer = cpu.buffer(width, ActivationDtype::Sums).unwrap();
            cpu.resize(&mut buffer, rows).unwrap();
            cpu.write(&mut buffer, values.len() / width, values).unwrap();
            buffer
        };
        let (width, value_width) = (layer.heads.conv_width(), layer.heads.value_width());
        let (x, ba) = (filled(cpu, width, x), filled(cpu, 2 * layer.heads.value_heads, ba));
        let (mut mixed, mut out) = (filled(cpu, width, &[]), filled(cpu, value_width, &[]));
        let mut step = cpu.step(&[], Dtype::F32, 1).unwrap();
        let tokens = vec![RowToken::Known(TokenId(0)); rows];
        cpu.load(&mut step, StepBatch { tokens, state_runs: runs.to_vec(), ..StepBatch::default() }).unwrap();
        let conv: Vec<f32> = bytemuck::cast_slice(&layer.conv)[..4 * width].to_vec();
        cpu.causal_conv(&mut mixed, &x, &conv, None, kv, LAYER, &step);
        let rule = StateRule::Delta { rate: &layer.rate, dt: &layer.dt };
        cpu.state_update(&mut out, &x, &ba, rule, kv, LAYER, &step);
        [cpu.read(&mixed, rows).unwrap(), cpu.read(&out, rows).unwrap()]
    }
}

/// The runs of a step: one state is continued, forked or read again by several, in any order.
fn any_runs(dice: &mut Dice, written: &mut [bool; SLOTS as usize], lengths: &[u32]) -> Vec<StateRun> {
    let (mut runs, mut first) = (Vec::new(), 0);
    for _ in 0..dice.within(1, 5) {
        let rows = dice.pick(lengths);
        let known: Vec<u32> = (0..SLOTS).filter(|&slot| written[slot as usize]).collect();
        let from = if known.is_empty() || dice.within(0, 4) == 0 { None } else { Some(dice.pick(&known)) };
        let to = match dice.within(0, 3) {
            0 => None,
            1 if from.is_some() => from,
            _ => Some(dice.within(0, SLOTS - 1)),
        };
        let is_in = from.is_some() && dice.within(0, 3) == 0;
        runs.push(StateRun { is_in, ..run(first..first + rows, from, to) });
        to.into_iter().for_each(|to| written[to as usize] = true);
        first += rows;
    }
    runs
}

/// Where a state of bf16 is between two numbers, the kernel and the CPU may take either: 2^-8 of an element of a
/// column.
const OTHER_WAY: f64 = 1.0 / 256.0;

fn hold(dtype: Dtype, state: StateDtype, heads: DeltaHeads, steps: usize) {
    let mut dice = Dice::new(heads.key_dim as u64);
    let Some(layer) = Layer::new(&mut dice, dtype, state, heads) else { return };
    // A sum of `key_dim` products, rounded a few times for each token that its state remembers.
    let of_sums = 64e-7 * (heads.key_dim as f64).sqrt();
    let allowed = of_sums + if state == StateDtype::Bf16 { OTHER_WAY } else { 0.0 };
    hold_layer(layer, &mut dice, steps, &[1, 1, 2, 3, 4, 9, 33], allowed, |_, _| 1.0);
}

/// `allowed`: the error of the delta rule before it is stored, as a share of the largest number of a step. `size`: the
/// largest number of a row in a channel.
fn hold_layer(
    mut layer: Layer,
    dice: &mut Dice,
    steps: usize,
    lengths: &[u32],
    allowed: f64,
    size: impl Fn(usize, usize) -> f32,
) {
    let (dtype, heads) = (layer.dtype, layer.heads);
    let mut twin = Twin::new(&layer);
    let mut written = [false; SLOTS as usize];
    for number in 0..steps {
        let runs = any_runs(dice, &mut written, lengths);
        let rows: usize = runs.iter().map(|run| run.rows.len()).sum();
        let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| dtype.round(dice.number())).collect() };
        let (mut x, ba) = (numbers(rows * heads.conv_width()), numbers(rows * 2 * heads.value_heads));
        for (i, x) in x.iter_mut().enumerate() {
            *x = dtype.round(*x * size(i / heads.conv_width(), i % heads.conv_width()));
        }
        let (found, expected) = (layer.compute(&x, &ba, &runs), twin.compute(&layer, &x, &ba, &runs));
        for (op, (found, expected)) in ["causal_conv", "state_update"].into_iter().zip(found.iter().zip(&expected)) {
            let most = expected.iter().fold(0.0, |most: f32, y| most.max(y.abs()));
            let allowed = f64::from(most) * if op == "state_update" { allowed } else { 64e-7 };
            for (i, (&x, &y)) in found.iter().zip(expected).enumerate() {
                let (x, y) = (f64::from(x), f64::from(y));
                let stored = (y.abs() * dtype.rounding()).max(2f64.powi(-25));
                assert!((x - y).abs() <= allowed + stored, "{op}, {heads}, step {number}, {i}: {x}, not {y}: {runs:?}");
            }
        }
    }
}

#[test]
fn the_kernels_of_delta_rule_layers_compute_what_the_cpu_does() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        hold(dtype, StateDtype::F32, dims(2, 4, 16, 16), 8);
    }
    hold(Dtype::F32, StateDtype::F32, dims(1, 2, 7, 5), 8);
    hold(Dtype::F32, StateDtype::F32, dims(1, 3, 40, 72), 5);
    hold(Dtype::Bf16, StateDtype::F32, dims(1, 1, 128, 128), 3);
    hold(Dtype::F32, StateDtype::Bf16, dims(1, 2, 7, 5), 8);
    hold(Dtype::Bf16, StateDtype::Bf16, dims(1, 1, 128, 128), 2);
}

/// The chunked form of the delta rule in clear loops (kernels/delta_rule/chunk.cuh), in f64: one head, values of one
/// number, chunks of `chunk` tokens. What is read at each token.
fn chunked_form([q, k]: [&[Vec<f64>]; 2], [v, beta, decay]: [&[f64]; 3], chunk: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (mut state, mut read) = (vec![0.0; k[0].len()], Vec::new());
    for first in (0..v.len()).step_by(chunk) {
        let tokens = first..v.len().min(first + chunk);
        let product = |t: usize| decay[first..=t].iter().product::<f64>();
        let mut changes: Vec<f64> = Vec::new();
        for t in tokens.clone() {
            // Forward substitution of (I + L) D = diag(beta) (V - diag(c) K S).
            let own = beta[t] * (v[t] - product(t) * dot(&k[t], &state));
            let others = (first..t).map(|j| beta[t] * product(t) / product(j) * dot(&k[t], &k[j]) * changes[j - first]);
            let change = own - others.sum::<f64>();
            changes.push(change);
        }
        for t in tokens.clone() {
            let within = (first..=t).map(|j| product(t) / product(j) * dot(&q[t], &k[j]) * changes[j - first]);
            read.push(product(t) * dot(&q[t], &state) + within.sum::<f64>());
        }
        let last = product(tokens.end - 1);
        state.iter_mut().for_each(|s| *s *= last);
        for t in tokens {
            state.iter_mut().zip(&k[t]).for_each(|(s, k)| *s += last / product(t) * k * changes[t - first]);
        }
    }
    read
}

#[test]
fn the_chunked_form_is_the_delta_rule() {
    let mut dice = Dice::new(9);
    let (tokens, width) = (150, 12);
    let unit = |x: Vec<f32>| {
        let length = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        x.into_iter().map(|x| f64::from(x) / length).collect::<Vec<f64>>()
    };
    let [q, k] = [0; 2].map(|_| (0..tokens).map(|_| unit(dice.numbers(width))).collect::<Vec<_>>());
    let mut around = |centre: f64, reach: f64| -> Vec<f64> {
        dice.numbers(tokens).into_iter().map(|x| centre + reach * f64::from(x)).collect()
    };
    let (v, beta, decay) = (around(0.0, 1.0), around(0.5, 0.5), around(0.9, 0.1));
    let (mut state, mut expected) = (vec![0.0; width], Vec::new());
    for t in 0..tokens {
        state.iter_mut().for_each(|s| *s *= decay[t]);
        let held: f64 = state.iter().zip(&k[t]).map(|(s, k)| s * k).sum();
        state.iter_mut().zip(&k[t]).for_each(|(s, k)| *s += k * beta[t] * (v[t] - held));
        expected.push(state.iter().zip(&q[t]).map(|(s, q)| s * q).sum::<f64>());
    }
    for chunk in [1, 7, 64, 150] {
        let found = chunked_form([&q, &k], [&v, &beta, &decay], chunk);
        let apart = found.iter().zip(&expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
        // Numbers of at most 1, of some thousand terms.
        assert!(apart < 1e-11, "chunks of {chunk}: {apart}");
    }
}

#[test]
fn long_runs_in_chunks_are_what_the_cpu_computes_token_by_token() {
    let late = Schedule { copies: When::Late, products: When::Late, seed: 3, held: None };
    let (f32, bf16) = (StateDtype::F32, StateDtype::Bf16);
    let all = [
        (Dtype::Bf16, f32, dims(1, 2, 64, 32), 0, late),
        (Dtype::Bf16, bf16, dims(1, 2, 64, 32), 0, AT_ONCE),
        (Dtype::Bf16, f32, dims(1, 1, 128, 128), 1, AT_ONCE),
        (Dtype::F16, f32, dims(1, 5, 64, 128), 2, late),
        // The same walks with other heads and dtypes.
        (Dtype::F16, f32, dims(2, 2, 64, 32), 1, late),
        (Dtype::Bf16, f32, dims(1, 3, 128, 128), 2, late),
    ];
    for &(dtype, state, heads, many, how) in some_or_full(&all[..4], &all) {
        let walk = ChunkWalk::of(heads.value_dim)[many];
        let mut dice = Dice::new(11);
        let Some(layer) = Layer::new(&mut dice, dtype, state, heads) else { return };
        let Some(layer) = layer.in_chunks(walk, how) else { return };
        // Operands are rounded, of U, W, S and the changes; the squares of the errors of 64 tokens add, and their terms
        // are a quarter of the largest number of a step or less. A state of bf16 is rounded after each token on the
        // CPU, and here at the end of a run.
        let of_state = if state == StateDtype::Bf16 { 8.0 * Dtype::Bf16.rounding() } else { 0.0 };
        hold_layer(layer, &mut dice, 5, &[1, 32, 63, 64, 65, 150], 8.0 * dtype.rounding() + of_state, |_, _| 1.0);
    }
}

#[test]
fn chunks_of_f16_hold_the_largest_values_and_keys_of_any_length() {
    let (dtype, heads) = (Dtype::F16, dims(1, 2, 64, 32));
    for walk in ChunkWalk::of(heads.value_dim) {
        let mut dice = Dice::new(12);
        let Some(mut layer) = Layer::new(&mut dice, dtype, StateDtype::F32, heads) else { return };
        // What four inputs are at most is an f16 too.
        let conv: Vec<f32> = dice.numbers(4 * heads.conv_width()).into_iter().map(|weight| weight / 5.0).collect();
        layer.conv = aligned(Dtype::F32.encode(&conv));
        let Some(layer) = layer.in_chunks(walk, AT_ONCE) else { return };
        let size = |row: usize, channel: usize| match channel / heads.key_width() {
            0 => [60_000.0, 1e-3][row % 2],
            1 => [60_000.0, 1.0, 2e-3][row % 3],
            _ => 60_000.0,
        };
        hold_layer(layer, &mut dice, 4, &[32, 64, 65, 150], 8.0 * dtype.rounding(), size);
    }
}

#[test]
fn however_tokens_are_divided_into_runs_the_kernels_give_the_same_bits() {
    let (f32, bf16) = (StateDtype::F32, StateDtype::Bf16);
    for (dtype, state, heads) in [
        (Dtype::F32, f32, dims(1, 1, 7, 5)),
        (Dtype::Bf16, f32, dims(1, 2, 32, 64)),
        (Dtype::F32, bf16, dims(1, 1, 7, 5)),
        (Dtype::Bf16, bf16, dims(1, 2, 32, 64)),
    ] {
        let mut dice = Dice::new(3);
        let Some(mut layer) = Layer::new(&mut dice, dtype, state, heads) else { return };
        let (width, gates) = (heads.conv_width(), 2 * heads.value_heads);
        let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| dtype.round(dice.number())).collect() };
        let (x, ba) = (numbers(80 * width), numbers(80 * gates));
        let widths = [width, heads.value_width()];
        let expected = layer.compute(&x, &ba, &[run(0..80, None, None)]);
        let mut dice = Dice::new(4);
        for _ in 0..3 {
            let (mut place, mut slots) = (0, [1, 2]);
            while place < 80 {
                let rows = dice.pick(&[1, 2, 7, 33, 40]).min(80 - place);
                let from = (place > 0).then_some(slots[0]);
                let cut = dice.within(1, rows as u32);
                let runs = match cut < rows as u32 {
                    true => vec![run(0..cut, from, Some(0)), run(cut..rows as u32, Some(0), Some(slots[1]))],
                    false => vec![run(0..rows as u32, from, Some(slots[1]))],
                };
                let same = |layer: &mut Layer, rows: Range<usize>, runs: &[StateRun]| {
                    let x = &x[rows.start * width..rows.end * width];
                    let found = layer.compute(x, &ba[rows.start * gates..rows.end * gates], runs);
                    for ((found, expected), width) in found.iter().zip(&expected).zip(widths) {
                        let expected = &expected[rows.start * width..rows.end * width];
                        assert!(found == expected, "{dtype:?}, {heads}, {state} states: {rows:?} by {runs:?}");
                    }
                };
                same(&mut layer, place..place + rows, &runs);
                place += rows;
                slots.swap(0, 1);
                // The last row again, alone and with the next one behind it, from the state that has it.
                let again = StateRun { is_in: true, ..run(0..1, Some(slots[0]), None) };
                same(&mut layer, place - 1..place, &[again]);
                if place < 80 {
                    let both = StateRun { is_in: true, ..run(0..2, Some(slots[0]), Some(0)) };
                    same(&mut layer, place - 1..place + 1, &[both]);
                }
            }
        }
    }
}

/// Launches a kernel, with so many blocks for each row, that changes rows of `x` in place by `y`, of which each row has
/// `gates`; `more`: its arguments behind these, with f32 `weight` before them if there are some.
fn gated(
    (kernel, blocks): (&Emulated, u32),
    dtype: Dtype,
    x: &[f32],
    y: &[f32],
    weight: Option<&[f32]>,
    more: &mut [u32],
) -> Vec<f32> {
    let (mut to, y) = (aligned(dtype.encode(x)), aligned(dtype.encode(y)));
    let weight = weight.map(|weight| aligned(Dtype::F32.encode(weight)));
    let (mut x_at, mut y_at) = (to.as_mut_ptr(), y.as_ptr());
    let mut weight_at = weight.as_ref().map_or(std::ptr::null(), |weight| weight.as_ptr());
    let mut args = vec![at(&mut x_at), at(&mut y_at)];
    if weight.is_some() {
        args.push(at(&mut weight_at));
    }
    args.extend(more.iter_mut().map(at));
    // SAFETY: the kernel's arguments, in its order, each with memory for what its head says.
    unsafe { kernel.launch_grid([3, blocks], 128, AT_ONCE, &args) };
    decoded(dtype, &bytemuck::cast_slice::<u128, u8>(&to)[..x.len() * dtype.bytes()])
}

fn close(dtype: Dtype, found: &[f32], expected: impl Fn(usize) -> f64) {
    for (i, &x) in found.iter().enumerate() {
        let y = expected(i);
        // A few roundings of f32, and the one to the dtype.
        let allowed = y.abs() * (dtype.rounding() + 40.0 * Dtype::F32.rounding()) + 2f64.powi(-25);
        assert!((f64::from(x) - y).abs() <= allowed, "{dtype:?}, {i}: {x}, not {y}");
    }
}

#[test]
fn gates_multiply_by_their_sigmoid() {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let Some(times) = Emulated::compile(&units::typed(&units::SIGMOID_TIMES, dtype), "sigmoid_times") else {
            return;
        };
        let norm = units::typed(&units::GATED_NORM, dtype);
        let Some(norm) = Emulated::compile(&norm, "gated_norm") else { return };
        // The last by all warps of a block.
        for (heads, head) in [(3usize, 8usize), (2, 7), (1, 40), (2, 1028)] {
            let mut dice = Dice::new(head as u64);
            let width = heads * head;
            let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| dtype.round(4.0 * dice.number())).collect() };
            let (x, y, weights) = (numbers(3 * width), numbers(3 * width), numbers(width));
            for gates in [width, 1] {
                let mut more = [width as u32, gates as u32];
                let found = gated((&times, 1), dtype, &x, &y[..3 * gates], None, &mut more);
                let gate = |i: usize| y[if gates == 1 { i / width } else { i }];
                close(dtype, &found, |i| f64::from(x[i]) * sigmoid(gate(i)));
            }
            let blocks = if head > 1024 { heads } else { heads.div_ceil(4) } as u32;
            for (own_weights, is_silu, gates_first) in [(false, true, false), (false, false, false), (true, true, true)]
            {
                let flags = u32::from(own_weights) | u32::from(is_silu) << 1 | u32::from(gates_first) << 2;
                let mut more = [heads as u32, head as u32, flags, 1e-6f32.to_bits()];
                let weight = if own_weights { &weights[..] } else { &weights[..head] };
                let found = gated((&norm, blocks), dtype, &x, &y, Some(weight), &mut more);
                let factor = |i: usize| sigmoid(y[i]) * if is_silu { f64::from(y[i]) } else { 1.0 };
                close(dtype, &found, |i| {
                    let first = i / head * head;
                    let seen = |i: usize| f64::from(x[i]) * if gates_first { factor(i) } else { 1.0 };
                    let mean = (first..first + head).map(|i| seen(i).powi(2)).sum::<f64>() / head as f64;
                    let weight = f64::from(weight[i % width % weight.len()]);
                    f64::from(x[i]) / (mean + 1e-6).sqrt() * weight * factor(i)
                });
            }
        }
    }
}
