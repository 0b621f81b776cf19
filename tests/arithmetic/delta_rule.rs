//! The ops of gated delta-rule layers beside their definition in f64, on every code path; and runs that divide the same
//! tokens in every way, which must give the same bits.

use offshoot::backend::cpu::{Cpu, CpuBuffer, Isa, KvStore};
use offshoot::backend::{
    ActivationDtype, Backend, DeltaGates, DeltaHeads, Dtype, HeadLayout, KvShape, RowToken, StateDtype, StateShape,
    StepBatch,
};
use offshoot::ids::{LayerIx, StateId, TokenId};
use offshoot::kv::StateRun;
use offshoot::lab::check::dice::Dice;

const LAYER: LayerIx = LayerIx(0);

/// A layer's weights, and the projections of some tokens.
struct Case {
    heads: DeltaHeads,
    rows: usize,
    conv: Vec<f32>,
    rate: Vec<f32>,
    dt: Vec<f32>,
    x: Vec<f32>,
    ba: Vec<f32>,
}

impl Case {
    fn new(seed: u64, heads: DeltaHeads, rows: usize) -> Self {
        let mut dice = Dice::new(seed);
        let mut numbers = |len: usize| dice.numbers(len);
        Self {
            heads,
            rows,
            conv: numbers(4 * heads.conv_width()),
            rate: numbers(heads.value_heads).into_iter().map(|a_log| -(2.0 * a_log).exp()).collect(),
            dt: numbers(heads.value_heads),
            x: numbers(rows * heads.conv_width()),
            ba: numbers(rows * 2 * heads.value_heads),
        }
    }

    /// What the layer reads at each token, by the definition, in f64 but for the rounding of states.
    fn expected(&self, dtype: StateDtype) -> Vec<f64> {
        let stored = |x: f64| match dtype {
            StateDtype::F32 => x,
            StateDtype::Bf16 => half::bf16::from_f64(x).to_f64(),
        };
        let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = self.heads;
        let width = self.heads.conv_width();
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let mut states = vec![vec![0.0; key_dim * value_dim]; value_heads];
        let mut read = Vec::new();
        for t in 0..self.rows {
            let input = |c: usize, k: usize| (t + k).checked_sub(3).map_or(0.0, |at| f64::from(self.x[at * width + c]));
            let conv = |c: usize| (0..4).map(|k| f64::from(self.conv[4 * c + k]) * input(c, k)).sum::<f64>();
            let mixed: Vec<f64> = (0..width).map(|c| silu(conv(c))).collect();
            let normed = |from: usize| {
                let x = &mixed[from..from + key_dim];
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / norm).collect::<Vec<f64>>()
            };
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = head / (value_heads / key_heads);
                let query = normed(key_head * key_dim);
                let key = normed((key_heads + key_head) * key_dim);
                let value = &mixed[2 * key_heads * key_dim + head * value_dim..][..value_dim];
                let gate = |at: usize| f64::from(self.ba[t * 2 * value_heads + at]);
                let beta = 1.0 / (1.0 + (-gate(head)).exp());
                let step = (gate(value_heads + head) + f64::from(self.dt[head])).exp().ln_1p();
                let decay = (f64::from(self.rate[head]) * step).exp();
                state.iter_mut().for_each(|s| *s *= decay);
                for (j, value) in value.iter().enumerate() {
                    let held: f64 = (0..key_dim).map(|i| state[i * value_dim + j] * key[i]).sum();
                    for i in 0..key_dim {
                        let s = &mut state[i * value_dim + j];
                        *s = stored(*s + key[i] * beta * (value - held));
                    }
                    let out: f64 = (0..key_dim).map(|i| state[i * value_dim + j] * query[i]).sum();
                    read.push(out / (key_dim as f64).sqrt());
                }
            }
        }
        read
    }

    /// The rows at `positions` in these runs. What is read at each.
    fn run(&self, cpu: &mut Cpu, kv: &mut KvStore, positions: &[usize], runs: Vec<StateRun>) -> Vec<f32> {
        let width = self.heads.conv_width();
        let buffer = |cpu: &mut Cpu, width: usize| {
            let mut buffer = cpu.buffer(width, ActivationDtype::Sums).unwrap();
            cpu.resize(&mut buffer, positions.len()).unwrap();
            buffer
        };
        let of =
            |all: &[f32], width: usize| positions.iter().flat_map(|&t| &all[t * width..][..width]).copied().collect();
        let filled = |cpu: &mut Cpu, values: Vec<f32>, width: usize| -> CpuBuffer {
            let mut to = buffer(cpu, width);
            cpu.write(&mut to, positions.len(), &values).unwrap();
            to
        };
        let x = filled(cpu, of(&self.x, width), width);
        let ba = filled(cpu, of(&self.ba, 2 * self.heads.value_heads), 2 * self.heads.value_heads);
        let (mut mixed, mut out) = (buffer(cpu, width), buffer(cpu, self.heads.value_width()));
        let mut step = cpu.step(&[], Dtype::F32, 1).unwrap();
        let tokens = vec![RowToken::Known(TokenId(0)); positions.len()];
        cpu.load(&mut step, StepBatch { tokens, state_runs: runs, ..StepBatch::default() }).unwrap();
        cpu.causal_conv(&mut mixed, &x, &self.conv, kv, LAYER, &step);
        let gates = DeltaGates { rate: &self.rate, dt: &self.dt };
        cpu.delta_rule(&mut out, &mixed, &ba, gates, kv, LAYER, &step);
        cpu.read(&out, positions.len()).unwrap()
    }

    fn memory(&self, cpu: &mut Cpu, slots: usize, dtype: StateDtype) -> KvStore {
        let heads = HeadLayout { q_heads: 1, kv_heads: 1, head_dim: 2 };
        let states = StateShape { heads: vec![self.heads], slots: 0, dtype };
        let shape = KvShape { states, ..KvShape::uniform(1, heads, Dtype::F32, 1) };
        cpu.kv(&shape.with_states(slots)).unwrap()
    }
}

fn run(rows: std::ops::Range<u32>, from: Option<u32>, to: Option<u32>) -> StateRun {
    StateRun { rows, from: from.map(StateId), is_in: false, to: to.map(StateId) }
}

fn shapes() -> [DeltaHeads; 4] {
    [(1, 1, 4, 3), (2, 4, 16, 16), (2, 6, 8, 20), (4, 4, 32, 64)]
        .map(|(key_heads, value_heads, key_dim, value_dim)| DeltaHeads { key_heads, value_heads, key_dim, value_dim })
}

#[test]
fn the_delta_rule_is_what_its_definition_says() {
    for ((seed, heads), dtype) in (0..).zip(shapes()).flat_map(|shape| StateDtype::ALL.map(|dtype| (shape, dtype))) {
        let case = Case::new(seed, heads, 70);
        let expected = case.expected(dtype);
        let scale = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        for isa in Isa::available() {
            let mut cpu = Cpu::with_isa(isa);
            let mut kv = case.memory(&mut cpu, 1, dtype);
            let all: Vec<usize> = (0..70).collect();
            let found = case.run(&mut cpu, &mut kv, &all, vec![run(0..70, None, Some(0))]);
            let apart = found.iter().zip(&expected).fold(0.0, |most: f64, (a, b)| most.max((f64::from(*a) - b).abs()));
            // Each number is a sum of `key_dim` products of the last tokens (older ones decay), rounded a few times each.
            let of_sums = scale * 1e-7 * 64.0 * (heads.key_dim as f64).sqrt();
            // An element near the middle of two of bf16 may become the other one, 2^-8 of it away, here and there.
            let tolerance = of_sums + if dtype == StateDtype::Bf16 { scale / 128.0 } else { 0.0 };
            assert!(apart < tolerance, "{isa}, {heads}, {dtype} states: {apart} of {scale}");
        }
    }
}

#[test]
fn however_tokens_are_divided_into_runs_the_bits_are_the_same() {
    for (seed, heads) in (10..).zip(shapes()) {
        let case = Case::new(seed, heads, 60);
        for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| StateDtype::ALL.map(|dtype| (isa, dtype))) {
            let mut cpu = Cpu::with_isa(isa);
            let mut kv = case.memory(&mut cpu, 3, dtype);
            let all: Vec<usize> = (0..60).collect();
            let expected = case.run(&mut cpu, &mut kv, &all, vec![run(0..60, None, None)]);
            let width = heads.value_width();
            let mut dice = Dice::new(seed);
            for _ in 0..6 {
                // Slot 1 holds the state before each step, slot 2 the one after; then they change places.
                let (mut at, mut slots) = (0, [1, 2]);
                while at < 60 {
                    let rows = (dice.within(1, 9) as usize).min(60 - at);
                    let positions: Vec<usize> = (at..at + rows).collect();
                    let from = (at > 0).then_some(slots[0]);
                    let cut = dice.within(1, rows as u32);
                    // In one run, or in two of which the second reads what the first has written.
                    let runs = match cut < rows as u32 {
                        true => vec![run(0..cut, from, Some(0)), run(cut..rows as u32, Some(0), Some(slots[1]))],
                        false => vec![run(0..rows as u32, from, Some(slots[1]))],
                    };
                    let found = case.run(&mut cpu, &mut kv, &positions, runs);
                    assert_eq!(found, expected[at * width..][..rows * width], "{isa}, {heads}: {positions:?}");
                    at += rows;
                    slots.swap(0, 1);
                    // The last row again, alone and with the next one behind it, from the state that has it.
                    let again = StateRun { is_in: true, ..run(0..1, Some(slots[0]), None) };
                    let found = case.run(&mut cpu, &mut kv, &[at - 1], vec![again]);
                    assert_eq!(found, expected[(at - 1) * width..][..width], "{isa}, {heads}: row {} again", at - 1);
                    if at < 60 {
                        let both = StateRun { is_in: true, ..run(0..2, Some(slots[0]), Some(0)) };
                        let found = case.run(&mut cpu, &mut kv, &[at - 1, at], vec![both]);
                        assert_eq!(found, expected[(at - 1) * width..][..2 * width], "{isa}, {heads}: rows from {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn gates_multiply_by_their_sigmoid() {
    for isa in Isa::available() {
        let mut cpu = Cpu::with_isa(isa);
        let mut dice = Dice::new(5);
        let filled = |cpu: &mut Cpu, width: usize, values: &[f32]| {
            let mut buffer = cpu.buffer(width, ActivationDtype::Sums).unwrap();
            cpu.resize(&mut buffer, 3).unwrap();
            cpu.write(&mut buffer, 3, values).unwrap();
            buffer
        };
        let (x, y, weight) = (dice.numbers(3 * 20), dice.numbers(3 * 20), dice.numbers(10));
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        let close = |found: Vec<f32>, expected: Vec<f64>| {
            let apart = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 2e-6 * (1.0 + b.abs());
            assert!(found.iter().zip(&expected).all(apart), "{isa}: {found:?}, not {expected:?}");
        };
        for width in [20, 1] {
            let (mut to, gate) = (filled(&mut cpu, 20, &x), filled(&mut cpu, width, &y[..3 * width]));
            cpu.sigmoid_times(&mut to, &gate);
            let gate = |i: usize| y[if width == 1 { i / 20 } else { i }];
            close(cpu.read(&to, 3).unwrap(), (0..60).map(|i| f64::from(x[i]) * sigmoid(gate(i))).collect());
        }
        let (mut to, gate) = (filled(&mut cpu, 20, &x), filled(&mut cpu, 20, &y));
        cpu.gated_rms_norm(&mut to, &gate, &weight, 1e-6);
        let normed = |i: usize| {
            let head = &x[i / 10 * 10..][..10];
            let mean = head.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 10.0;
            f64::from(x[i]) / (mean + 1e-6).sqrt() * f64::from(weight[i % 10]) * f64::from(y[i]) * sigmoid(y[i])
        };
        close(cpu.read(&to, 3).unwrap(), (0..60).map(normed).collect());
    }
}
