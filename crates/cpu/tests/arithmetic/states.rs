//! Recurrent layers on every code path: runs that divide the same tokens in every way give the same bits.

use offshoot_backend::{
    ActivationDtype, Backend, DeltaHeads, Dtype, HeadLayout, KvShape, LayerState, RowToken, StateDtype, StateRule,
    StateShape, StepBatch,
};
use offshoot_core::dice::Dice;
use offshoot_core::ids::{LayerIx, StateId, TokenId};
use offshoot_cpu::{Cpu, CpuBuffer, Isa, KvStore};
use offshoot_kv::StateRun;

const LAYER: LayerIx = LayerIx(0);

/// A layer's weights, and the projections of some tokens.
struct Case {
    heads: DeltaHeads,
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
            conv: numbers(4 * heads.conv_width()),
            rate: numbers(heads.value_heads).into_iter().map(|a_log| -(2.0 * a_log).exp()).collect(),
            dt: numbers(heads.value_heads),
            x: numbers(rows * heads.conv_width()),
            ba: numbers(rows * 2 * heads.value_heads),
        }
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
        cpu.causal_conv(&mut mixed, &x, &self.conv, None, kv, LAYER, &step);
        let rule = StateRule::Delta { rate: &self.rate, dt: &self.dt };
        cpu.state_update(&mut out, &mixed, &ba, rule, kv, LAYER, &step);
        cpu.read(&out, positions.len()).unwrap()
    }

    fn memory(&self, cpu: &mut Cpu, slots: usize, dtype: StateDtype) -> KvStore {
        let heads = HeadLayout::new(1, 1, 2);
        let states = StateShape { layers: vec![LayerState::delta(self.heads, 4)], slots: 0, dtype };
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
