//! Recurrent layers: the rows of a sequence in one run are compared with the same rows in steps of all sizes,
//! alone and beside another sequence, and with each step's last row computed again from the state that has it.

use std::fmt;
use std::ops::Range;

use super::differences::Differences;
use crate::case::{ANY_HEADS, ANY_VOCAB, CheckEffort, buffer, numbers, rows_at, vector};
use crate::report::CheckReport;
use offshoot_backend::{
    ActivationDtype, Backend, DeltaHeads, Dtype, KvShape, LayerState, StateDtype, StateRule, StateShape, StepBatch,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, StateId};
use offshoot_kv::StateRun;

const LAYER: LayerIx = LayerIx(0);
const HEADS: [DeltaHeads; 3] = [
    DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 16 },
    DeltaHeads { key_heads: 1, value_heads: 2, key_dim: 7, value_dim: 5 },
    DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128 },
];

/// Rows of the sequence, and of the one beside it.
const ROWS: usize = 300;
const BESIDE: usize = 40;

/// Rows of steps, in turn.
const STEPS: [usize; 6] = [1, 33, 2, 64, 7, 100];

pub fn states<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let mut dice = Dice::new(7);
    let all = if effort == CheckEffort::Quick { &HEADS[..1] } else { &HEADS[..] };
    for dtype in Dtype::ALL {
        for &heads in all {
            for state in StateDtype::ALL {
                let layer = DeltaLayer::new(&mut dice, dtype, state, heads);
                let differences = layer.divided(backend)?;
                differences.file(report, "alone, states", dtype, layer);
            }
        }
    }
    Ok(())
}

/// A layer's weights, and its inputs in all rows.
struct DeltaLayer {
    dtype: Dtype,
    state: StateDtype,
    heads: DeltaHeads,
    conv: Vec<f32>,
    rate: Vec<f32>,
    dt: Vec<f32>,
    x: Vec<f32>,
    ba: Vec<f32>,
}

impl DeltaLayer {
    fn new(dice: &mut Dice, dtype: Dtype, state: StateDtype, heads: DeltaHeads) -> Self {
        let rows = ROWS + BESIDE;
        Self {
            dtype,
            state,
            heads,
            conv: dice.numbers(4 * heads.conv_width()),
            // States forget slowly, so that early tokens are in the last ones' bits.
            rate: dice.numbers(heads.value_heads).into_iter().map(|a_log| -(a_log - 3.0).exp()).collect(),
            dt: dice.numbers(heads.value_heads),
            x: numbers(dice, dtype, rows * heads.conv_width()),
            ba: dice.numbers(rows * 2 * heads.value_heads),
        }
    }

    fn divided<B: Backend>(&self, backend: &mut B) -> Result<Differences> {
        let states = StateShape { layers: vec![LayerState::delta(self.heads, 4)], slots: 3, dtype: self.state };
        let mut kv = backend.kv(&KvShape { states, ..KvShape::uniform(1, ANY_HEADS, self.dtype, 1) })?;
        let width = self.heads.value_width();
        let mut differences = Differences::default();
        let whole = self.compute(backend, &mut kv, &[(0..ROWS, run(None, None))])?;
        let (mut at, mut sizes) = (0, STEPS.iter().cycle());
        while at < ROWS {
            let rows = at..ROWS.min(at + sizes.next().expect("they recur"));
            let from = (at > 0).then_some(0);
            // The sequence beside it is longer, so that this one is not the first of its wave.
            let parts = [(ROWS..ROWS + BESIDE, run(None, Some(2))), (rows.clone(), run(from, Some(0)))];
            let found = match at % 2 {
                0 => self.compute(backend, &mut kv, &parts[1..])?,
                _ => self.compute(backend, &mut kv, &parts)?.split_off(BESIDE * width),
            };
            differences.see(format_args!("rows {rows:?}"), &whole[rows.start * width..rows.end * width], &found);
            let last = rows.end - 1..rows.end;
            let again = StateRun { is_in: true, ..run(Some(0), None) };
            let found = self.compute(backend, &mut kv, &[(last.clone(), again)])?;
            differences.see(format_args!("row {} again", last.start), &whole[last.start * width..][..width], &found);
            at = rows.end;
        }
        Ok(differences)
    }

    /// The convolution and the delta rule of these rows, each part in a run: `[rows, value_width]`.
    fn compute<B: Backend>(
        &self,
        backend: &mut B,
        kv: &mut B::Kv,
        parts: &[(Range<usize>, StateRun)],
    ) -> Result<Vec<f32>> {
        let (mut state_runs, mut count) = (Vec::new(), 0);
        for (rows, run) in parts {
            state_runs.push(StateRun { rows: count..count + rows.len() as u32, ..run.clone() });
            count += rows.len() as u32;
        }
        let mut step = backend.step(&[ANY_HEADS], self.dtype, ANY_VOCAB)?;
        let batch = StepBatch { state_runs, ..rows_at(&vec![0; count as usize]) };
        let shape = backend.load(&mut step, batch)?;
        let (heads, operands) = (self.heads, ActivationDtype::Operands(self.dtype));
        let given = |values: &[f32], width: usize| -> Vec<f32> {
            parts.iter().flat_map(|(rows, _)| &values[rows.start * width..rows.end * width]).copied().collect()
        };
        let (x, ba) = (given(&self.x, heads.conv_width()), given(&self.ba, 2 * heads.value_heads));
        let x = buffer(backend, operands, shape.rows, heads.conv_width(), &x)?;
        let ba = buffer(backend, ActivationDtype::Sums, shape.rows, 2 * heads.value_heads, &ba)?;
        let mut mixed = buffer(backend, operands, shape.rows, heads.conv_width(), &[])?;
        let mut out = buffer(backend, operands, shape.rows, heads.value_width(), &[])?;
        let [conv, rate, dt] = [&self.conv, &self.rate, &self.dt].map(|values| vector(backend, values));
        let (conv, rate, dt) = (conv?, rate?, dt?);
        backend.run_once(&mut step, shape, |backend, step| {
            backend.causal_conv(&mut mixed, &x, &conv, None, kv, LAYER, step);
            let rule = StateRule::Delta { rate: &rate, dt: &dt };
            backend.state_update(&mut out, &mixed, &ba, rule, kv, LAYER, step);
            Ok(())
        })?;
        backend.collect(&mut step)?;
        backend.read(&out, count as usize)
    }
}

/// A run whose rows are set where it is computed.
fn run(from: Option<u32>, to: Option<u32>) -> StateRun {
    StateRun { rows: 0..0, from: from.map(StateId), is_in: false, to: to.map(StateId) }
}

impl fmt::Display for DeltaLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} states, {ROWS} rows", self.heads, self.state)
    }
}
