//! Recurrent layers on every code path: runs that divide the same tokens in every way give the same bits, and these are
//! what the formulas of `backend::states` give in f64.

use offshoot_backend::{
    ActivationDtype, Backend, ConvShape, DeltaHeads, Dtype, HeadLayout, KvShape, LayerState, RowToken, ScanRule,
    StateDtype, StateKind, StateRule, StateShape, StepBatch,
};
use offshoot_core::dice::Dice;
use offshoot_core::ids::{LayerIx, StateId, TokenId};
use offshoot_cpu::{Cpu, CpuBuffer, Isa, KvStore};
use offshoot_kv::StateRun;

const LAYER: LayerIx = LayerIx(0);
const ROWS: usize = 60;

/// Steps below and above which limits bind in some of the rows.
const LIMITS: [f32; 2] = [0.3, 1.1];

/// A layer's weights, and the projections of some tokens.
struct Case {
    layer: LayerState,
    conv: Vec<f32>,
    bias: Option<Vec<f32>>,
    rate: Vec<f32>,
    dt: Vec<f32>,
    skip: Vec<f32>,
    /// Inputs of the ops, `[rows, width]` each: first that of the convolution.
    inputs: Vec<(usize, Vec<f32>)>,
}

impl Case {
    fn new(seed: u64, layer: LayerState, has_bias: bool) -> Self {
        let mut dice = Dice::new(seed);
        let mut numbers = |len: usize| dice.numbers(len);
        let ConvShape { width, tokens } = layer.conv;
        let (widths, rates, steps) = match layer.kind {
            StateKind::Delta(heads) => (vec![width, 2 * heads.value_heads], heads.value_heads, heads.value_heads),
            StateKind::Sum(heads) => (vec![width, heads.value_heads], heads.value_heads, heads.value_heads),
            StateKind::Channel(heads) => {
                let decays = heads.value_heads * heads.key_dim;
                (vec![width, heads.value_heads, decays], heads.value_heads, decays)
            }
            StateKind::Scan { channels, state } => (vec![width, channels, state, state], state * channels, channels),
            StateKind::Conv => (vec![3 * width], 0, 0),
        };
        Self {
            layer,
            conv: numbers(tokens * width),
            bias: has_bias.then(|| numbers(width)),
            rate: numbers(rates).into_iter().map(|a_log| -(2.0 * a_log).exp()).collect(),
            dt: numbers(steps),
            skip: numbers(steps),
            inputs: widths.into_iter().map(|width| (width, numbers(ROWS * width))).collect(),
        }
    }

    /// The rows at `positions` in these runs. What is read at each.
    fn run(&self, cpu: &mut Cpu, kv: &mut KvStore, positions: &[usize], runs: Vec<StateRun>) -> Vec<f32> {
        let rows = positions.len();
        let buffer = |cpu: &mut Cpu, width: usize| {
            let mut buffer = cpu.buffer(width, ActivationDtype::Sums).unwrap();
            cpu.resize(&mut buffer, rows).unwrap();
            buffer
        };
        let filled = |cpu: &mut Cpu, (width, all): &(usize, Vec<f32>)| -> CpuBuffer {
            let values: Vec<f32> = positions.iter().flat_map(|&t| &all[t * width..][..*width]).copied().collect();
            let mut to = buffer(cpu, *width);
            cpu.write(&mut to, rows, &values).unwrap();
            to
        };
        let inputs: Vec<CpuBuffer> = self.inputs.iter().map(|input| filled(cpu, input)).collect();
        let (mut mixed, mut out) = (buffer(cpu, self.layer.conv.width), buffer(cpu, self.layer.out_width()));
        let mut step = cpu.step(&[], Dtype::F32, 1).unwrap();
        let tokens = vec![RowToken::Known(TokenId(0)); rows];
        cpu.load(&mut step, StepBatch { tokens, state_runs: runs, ..StepBatch::default() }).unwrap();
        let bias = self.bias.as_ref();
        let (rate, dt, skip) = (&self.rate, &self.dt, &self.skip);
        if self.layer.kind != StateKind::Conv {
            cpu.causal_conv(&mut mixed, &inputs[0], &self.conv, bias, kv, LAYER, &step);
        }
        match self.layer.kind {
            StateKind::Delta(_) => {
                let rule = StateRule::Delta { rate, dt };
                cpu.state_update(&mut out, &mixed, &inputs[1], rule, kv, LAYER, &step);
            }
            StateKind::Sum(_) => {
                let rule = StateRule::Sum { rate, dt, skip, limits: LIMITS };
                cpu.state_update(&mut out, &mixed, &inputs[1], rule, kv, LAYER, &step);
            }
            StateKind::Channel(_) => {
                cpu.channel_update(&mut out, &mixed, &inputs[1], &inputs[2], rate, dt, kv, LAYER, &step);
            }
            StateKind::Scan { .. } => {
                let rule = ScanRule { rate, dt, skip };
                cpu.selective_scan(&mut out, &mixed, &inputs[1], &inputs[2], &inputs[3], rule, kv, LAYER, &step);
            }
            StateKind::Conv => cpu.gated_conv(&mut out, &inputs[0], &self.conv, bias, kv, LAYER, &step),
        }
        cpu.read(&out, rows).unwrap()
    }

    fn memory(&self, cpu: &mut Cpu, slots: usize, dtype: StateDtype) -> KvStore {
        let heads = HeadLayout::new(1, 1, 2);
        let states = StateShape { layers: vec![self.layer], slots: 0, dtype };
        let shape = KvShape { states, ..KvShape::uniform(1, heads, Dtype::F32, 1) };
        cpu.kv(&shape.with_states(slots)).unwrap()
    }

    /// What all rows give as one run, by the formulas in f64.
    fn exact(&self) -> Vec<f64> {
        let ConvShape { width, tokens } = self.layer.conv;
        let input = |which: usize, t: usize, at: usize| {
            let (width, all) = &self.inputs[which];
            f64::from(all[t * width + at])
        };
        let gated = |t: usize, c: usize| match self.layer.kind {
            StateKind::Conv => input(0, t, c) * input(0, t, 2 * width + c),
            _ => input(0, t, c),
        };
        let conv = |t: usize, c: usize| {
            let before = (0..tokens).filter(|k| t + k + 1 >= tokens);
            let sum: f64 = before.map(|k| f64::from(self.conv[c * tokens + k]) * gated(t + k + 1 - tokens, c)).sum();
            sum + self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]))
        };
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let softplus = |x: f64| x.exp().ln_1p();
        let learned = |numbers: &[f32], at: usize| f64::from(numbers[at]);
        let mut out = Vec::new();
        let (matrices, elements) = self.layer.matrices();
        let mut states = vec![vec![0.0; elements]; matrices];
        for t in 0..ROWS {
            let x: Vec<f64> = (0..width).map(|c| silu(conv(t, c))).collect();
            match self.layer.kind {
                StateKind::Conv => out.extend((0..width).map(|c| conv(t, c) * input(0, t, width + c))),
                StateKind::Scan { channels, state } => {
                    let mut of_channels: Vec<f64> = Vec::new();
                    let block = channels / matrices;
                    for c in 0..channels {
                        let step = softplus(input(1, t, c) + learned(&self.dt, c));
                        let mut read = learned(&self.skip, c) * x[c];
                        for n in 0..state {
                            let s = &mut states[c / block][n * block + c % block];
                            let decay = (step * learned(&self.rate, n * channels + c)).exp();
                            *s = *s * decay + step * x[c] * input(2, t, n);
                            read += *s * input(3, t, n);
                        }
                        of_channels.push(read);
                    }
                    out.extend(of_channels);
                }
                StateKind::Delta(heads) | StateKind::Channel(heads) | StateKind::Sum(heads) => {
                    for (head, matrix) in states.iter_mut().enumerate() {
                        self.exact_head(t, heads, head, matrix, &x, &input, &mut out);
                    }
                }
            }
        }
        out
    }

    #[expect(clippy::too_many_arguments, reason = "a token in one head, as the formulas have it")]
    fn exact_head(
        &self,
        t: usize,
        heads: DeltaHeads,
        head: usize,
        matrix: &mut [f64],
        x: &[f64],
        input: &impl Fn(usize, usize, usize) -> f64,
        out: &mut Vec<f64>,
    ) {
        let DeltaHeads { key_dim, value_dim, value_heads, key_heads } = heads;
        let key_head = head / (value_heads / key_heads);
        let (sigmoid, softplus) = (|x: f64| 1.0 / (1.0 + (-x).exp()), |x: f64| x.exp().ln_1p());
        let sums = matches!(self.layer.kind, StateKind::Sum(_));
        let vector = |from: usize, factor: f64| -> Vec<f64> {
            let x = &x[from..from + key_dim];
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| if sums { *x } else { x / length * factor }).collect()
        };
        let query = vector(key_head * key_dim, 1.0 / (key_dim as f64).sqrt());
        let key = vector(heads.key_width() + key_head * key_dim, 1.0);
        let (rate, dt) = (f64::from(self.rate[head]), |at: usize| f64::from(self.dt[at]));
        let (decays, factor) = match self.layer.kind {
            StateKind::Channel(_) => {
                let decay =
                    |i: usize| (rate * softplus(input(2, t, head * key_dim + i) + dt(head * key_dim + i))).exp();
                ((0..key_dim).map(decay).collect(), sigmoid(input(1, t, head)))
            }
            StateKind::Sum(_) => {
                let [least, most] = LIMITS.map(f64::from);
                let step = softplus(input(1, t, head) + dt(head)).clamp(least, most);
                (vec![(rate * step).exp(); key_dim], step)
            }
            _ => {
                let decay = (rate * softplus(input(1, t, value_heads + head) + dt(head))).exp();
                (vec![decay; key_dim], sigmoid(input(1, t, head)))
            }
        };
        for j in 0..value_dim {
            let value = x[2 * heads.key_width() + head * value_dim + j];
            let column = |i: usize| i * value_dim + j;
            let held: f64 = (0..key_dim).map(|i| decays[i] * matrix[column(i)] * key[i]).sum();
            let change = factor * (value - if sums { 0.0 } else { held });
            for i in 0..key_dim {
                matrix[column(i)] = decays[i] * matrix[column(i)] + key[i] * change;
            }
            let read: f64 = (0..key_dim).map(|i| matrix[column(i)] * query[i]).sum();
            out.push(read + if sums { f64::from(self.skip[head]) * value } else { 0.0 });
        }
    }
}

fn run(rows: std::ops::Range<u32>, from: Option<u32>, to: Option<u32>) -> StateRun {
    StateRun { rows, from: from.map(StateId), is_in: false, to: to.map(StateId) }
}

/// Layers of all kinds, each with whether its convolution has a bias.
fn layers() -> Vec<(LayerState, bool)> {
    let heads = [(1, 1, 4, 3), (2, 4, 16, 16), (2, 6, 8, 20), (4, 4, 32, 64)]
        .map(|(key_heads, value_heads, key_dim, value_dim)| DeltaHeads { key_heads, value_heads, key_dim, value_dim });
    let delta = heads.map(|heads| (LayerState::delta(heads, 4), false));
    let sums = heads.map(|heads| (LayerState::of_heads(StateKind::Sum, heads, 4), true));
    let channels = [heads[0], heads[3]].map(|heads| (LayerState::of_heads(StateKind::Channel, heads, 3), false));
    let of_width = |kind, width, tokens| LayerState { kind, conv: ConvShape { width, tokens } };
    let scan = |channels, state| (of_width(StateKind::Scan { channels, state }, channels, 4), true);
    let conv = |width, tokens, bias| (of_width(StateKind::Conv, width, tokens), bias);
    let others = [scan(7, 5), scan(192, 16), conv(33, 3, false), conv(64, 7, true), conv(5, 1, true)];
    delta.into_iter().chain(sums).chain(channels).chain(others).collect()
}

#[test]
fn however_tokens_are_divided_into_runs_the_bits_are_the_same() {
    for (seed, (layer, has_bias)) in (10..).zip(layers()) {
        let case = Case::new(seed, layer, has_bias);
        for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| StateDtype::ALL.map(|dtype| (isa, dtype))) {
            let mut cpu = Cpu::with_isa(isa);
            let mut kv = case.memory(&mut cpu, 3, dtype);
            let all: Vec<usize> = (0..ROWS).collect();
            let expected = case.run(&mut cpu, &mut kv, &all, vec![run(0..ROWS as u32, None, None)]);
            let width = layer.out_width();
            let mut dice = Dice::new(seed);
            for _ in 0..6 {
                // Slot 1 holds the state before each step, slot 2 the one after; then they change places.
                let (mut at, mut slots) = (0, [1, 2]);
                while at < ROWS {
                    let rows = (dice.within(1, 9) as usize).min(ROWS - at);
                    let positions: Vec<usize> = (at..at + rows).collect();
                    let from = (at > 0).then_some(slots[0]);
                    let cut = dice.within(1, rows as u32);
                    // In one run, or in two of which the second reads what the first has written.
                    let runs = match cut < rows as u32 {
                        true => vec![run(0..cut, from, Some(0)), run(cut..rows as u32, Some(0), Some(slots[1]))],
                        false => vec![run(0..rows as u32, from, Some(slots[1]))],
                    };
                    let found = case.run(&mut cpu, &mut kv, &positions, runs);
                    assert_eq!(found, expected[at * width..][..rows * width], "{isa}, {layer}: {positions:?}");
                    at += rows;
                    slots.swap(0, 1);
                    // The last row again, alone and with the next one behind it, from the state that has it.
                    let again = StateRun { is_in: true, ..run(0..1, Some(slots[0]), None) };
                    let found = case.run(&mut cpu, &mut kv, &[at - 1], vec![again]);
                    assert_eq!(found, expected[(at - 1) * width..][..width], "{isa}, {layer}: row {} again", at - 1);
                    if at < ROWS {
                        let both = StateRun { is_in: true, ..run(0..2, Some(slots[0]), Some(0)) };
                        let found = case.run(&mut cpu, &mut kv, &[at - 1, at], vec![both]);
                        assert_eq!(found, expected[(at - 1) * width..][..2 * width], "{isa}, {layer}: rows from {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn layers_of_every_kind_compute_their_formulas() {
    for (seed, (layer, has_bias)) in (50..).zip(layers()) {
        let case = Case::new(seed, layer, has_bias);
        let exact = case.exact();
        let most = exact.iter().fold(0.0, |most: f64, y| most.max(y.abs()));
        for isa in Isa::available() {
            let mut cpu = Cpu::with_isa(isa);
            let mut kv = case.memory(&mut cpu, 1, StateDtype::F32);
            let all: Vec<usize> = (0..ROWS).collect();
            let found = case.run(&mut cpu, &mut kv, &all, vec![run(0..ROWS as u32, None, None)]);
            for (i, (&found, &exact)) in found.iter().zip(&exact).enumerate() {
                // Sums of up to 60 tokens and 32 rows in f32, of numbers that are not larger than the largest output.
                assert!((f64::from(found) - exact).abs() <= 1e-5 * most, "{isa}, {layer}, {i}: {found}, not {exact}");
            }
        }
    }
}
