//! `add_lora`: rows of several adapters and of none in one step, in runs and mixed, with parts of different ranks and
//! parts that an adapter has nothing for; of all rows, and of those whose logits are computed. Against the definition,
//! and the definition against a formula in f64. That a row's bits depend on nothing else is held in `deterministic`.

use std::ops::Range;
use std::sync::OnceLock;

use super::linear::{Destination, RowSize, sum_tolerance};
use super::suite::OpSuite;
use crate::case::{ANY_HEADS, ANY_VOCAB, CheckEffort, F32, OpCase, buffer, dot, numbers, rows_at, run};
use offshoot_backend::{
    ActivationDtype, AdapterSlot, Backend, Dtype, LoraPiece, LoraShape, LoraWeights, Split, StepBatch, StepRows,
    WeightView,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Rows, inputs, outputs of each part, and the largest rank.
const SHAPES: [(usize, usize, &[usize], usize); 9] = [
    (1, 1, &[1], 1),
    (3, 37, &[5], 3),
    (1, 64, &[64, 16, 16], 8),
    (9, 40, &[33, 8], 16),
    (8, 256, &[256, 64, 64], 16),
    (17, 1025, &[260], 5),
    (40, 96, &[96, 96], 33),
    (65, 512, &[130, 7, 300], 64),
    (19, 2048, &[600, 200], 128),
];

/// A part of an adapter: its scale, A and B.
pub type TestPart = (f32, Vec<f32>, Vec<f32>);

/// A layer's adapters and rows.
#[derive(Clone)]
pub struct TestLora {
    pub shape: LoraShape,
    /// For each adapter its parts.
    pub adapters: Vec<Vec<Option<TestPart>>>,
    /// The adapter of each row of the step.
    pub rows: Vec<Option<usize>>,
    /// `None`: all rows.
    pub logit_rows: Option<Vec<u32>>,
    /// `[rows, inputs]`
    pub x: Vec<f32>,
    /// `[rows, outputs]`: what is added to.
    pub before: Vec<f32>,
    pub into: Destination,
    /// See [`TestLora::sums`].
    sums: OnceLock<Vec<Vec<Vec<InnerSum>>>>,
}

/// A row's sum over the inputs with one row of A, scaled, and by how much that may differ.
#[derive(Clone, Copy)]
struct InnerSum {
    sum: f64,
    tolerance: f64,
}

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let shapes = match suite.effort {
        CheckEffort::Quick => &SHAPES[..4],
        CheckEffort::Full => &SHAPES,
    };
    for &(rows, inputs, outputs, rank) in shapes {
        for into in [Destination::Operands, Destination::Added] {
            for of_logits in [false, true] {
                let case = TestLora::random(dice, dtype, rows, inputs, outputs, rank, into, of_logits);
                suite.hold("add_lora", &case)?;
            }
        }
    }
    Ok(())
}

impl TestLora {
    #[expect(clippy::too_many_arguments, reason = "what cases differ by, each named once")]
    pub fn random(
        dice: &mut Dice,
        dtype: Dtype,
        rows: usize,
        inputs: usize,
        outputs: &[usize],
        rank: usize,
        into: Destination,
        of_logits: bool,
    ) -> Self {
        let mut pieces: Vec<LoraPiece> =
            outputs.iter().enumerate().map(|(part, &count)| LoraPiece { part, rows: 0..count }).collect();
        // Outputs of one module may lie in pieces, in another order.
        if let [first, ..] = &mut pieces[..] {
            let (LoraPiece { part, rows }, half) = (first.clone(), first.rows.len() / 2);
            first.rows = half..rows.end;
            pieces.push(LoraPiece { part, rows: 0..half });
        }
        pieces.retain(|piece| !piece.rows.is_empty());
        let shape = LoraShape { dtype, inputs, parts: outputs.len(), pieces };
        let count = dice.within(1, 4) as usize;
        let adapters: Vec<_> = (0..count)
            .map(|_| {
                let part = |&outputs: &usize| {
                    let rank = dice.within(0, rank as u32) as usize;
                    let (a, b) = (numbers(dice, dtype, rank * inputs), numbers(dice, dtype, outputs * rank));
                    (rank > 0).then_some((0.25 + dice.number().abs(), a, b))
                };
                outputs.iter().map(part).collect()
            })
            .collect();
        // In runs, as rows stand depth-first.
        let mut of_rows: Vec<Option<usize>> = Vec::new();
        while of_rows.len() < rows {
            let adapter = dice.within(0, count as u32) as usize;
            let run = dice.within(1, 12) as usize;
            of_rows.extend(vec![adapter.checked_sub(1); run]);
        }
        of_rows.truncate(rows);
        // `logit_rows` may leave some out, and name some twice.
        let logit_rows = of_logits.then(|| {
            let mut chosen: Vec<u32> = (0..rows).map(|_| dice.within(0, rows as u32 - 1)).collect();
            chosen.sort_unstable();
            chosen
        });
        let x = numbers(dice, dtype, rows * inputs);
        let before = numbers(dice, dtype, rows * shape.outputs());
        Self { shape, adapters, rows: of_rows, logit_rows, x, before, into, sums: OnceLock::new() }
    }

    /// The same of some rows, of all.
    pub fn of_rows(&self, rows: Range<usize>) -> Self {
        assert!(self.logit_rows.is_none(), "buffers have all rows of the step");
        let of = |values: &[f32], width: usize| values[rows.start * width..rows.end * width].to_vec();
        Self {
            x: of(&self.x, self.shape.inputs),
            before: of(&self.before, self.shape.outputs()),
            rows: self.rows[rows.clone()].to_vec(),
            sums: OnceLock::new(),
            ..self.clone()
        }
    }

    /// The adapter of a row of the buffers.
    fn adapter(&self, row: usize) -> Option<&[Option<TestPart>]> {
        let row = self.logit_rows.as_ref().map_or(row, |rows| rows[row] as usize);
        self.rows[row].map(|adapter| self.adapters[adapter].as_slice())
    }

    /// The part of an adapter that output `output` belongs to, and its row of B.
    fn of_output<'a>(&self, parts: &'a [Option<TestPart>], output: usize) -> Option<(usize, &'a [f32])> {
        let mut first = 0;
        for LoraPiece { part, rows } in &self.shape.pieces {
            if output < first + rows.len() {
                let (_, a, b) = parts[*part].as_ref()?;
                let rank = a.len() / self.shape.inputs;
                return Some((*part, &b[(rows.start + output - first) * rank..][..rank]));
            }
            first += rows.len();
        }
        None
    }

    /// For each row of the buffers and each part of its adapter the sums over the inputs, one for each rank; all
    /// outputs of a part share them.
    fn sums(&self) -> &[Vec<Vec<InnerSum>>] {
        let inputs = self.shape.inputs;
        let of_part = |x: &[f32], of_x: RowSize, part: &Option<TestPart>| -> Vec<InnerSum> {
            let Some((scale, a, _)) = part else { return Vec::new() };
            let scale = f64::from(*scale);
            let rows = a.chunks_exact(inputs).zip(RowSize::of_rows(a, inputs));
            rows.map(|(a, of_a)| {
                let sum = scale * dot(a, x);
                let tolerance = scale * sum_tolerance(None, inputs, of_x, of_a) + 2.0 * F32 * sum.abs();
                InnerSum { sum, tolerance }
            })
            .collect()
        };
        self.sums.get_or_init(|| {
            let rows = self.x.chunks_exact(inputs).zip(RowSize::of_rows(&self.x, inputs)).enumerate();
            rows.map(|(row, (x, of_x))| {
                let parts = self.adapter(row).unwrap_or_default();
                parts.iter().map(|part| of_part(x, of_x, part)).collect()
            })
            .collect()
        })
    }

    /// What is added to value `at`, and by how much that may differ: the sums over the inputs, carried through B, and
    /// those over the rank.
    fn added(&self, at: usize) -> (f64, f64) {
        let (row, output) = (at / self.shape.outputs(), at % self.shape.outputs());
        let Some((part, b)) = self.adapter(row).and_then(|parts| self.of_output(parts, output)) else {
            return (0.0, 0.0);
        };
        let (mut sum, mut tolerance, mut sizes) = (0.0, 0.0, 0.0);
        for (h, &b) in self.sums()[row][part].iter().zip(b) {
            let b = f64::from(b);
            sum += b * h.sum;
            tolerance += b.abs() * h.tolerance;
            sizes += h.sum * h.sum;
        }
        let of_b = RowSize::of_rows(b, b.len())[0];
        let of_sums = RowSize { largest: 0.0, length: sizes.sqrt() };
        (sum, tolerance + sum_tolerance(None, b.len(), of_sums, of_b))
    }

    /// Adds to `before` on a backend, in a step of these rows.
    pub fn compute<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (shape, dtype) = (&self.shape, self.shape.dtype);
        let slot = |adapter: usize| AdapterSlot::new(7 * adapter as u16 + 1).expect("few adapters");
        let mut lora = backend.lora(shape, &Split::Whole)?;
        for (number, adapter) in self.adapters.iter().enumerate() {
            let parts = adapter.iter().map(|part| {
                part.as_ref().map(|(scale, a, b)| (scale, a.len() / shape.inputs, dtype.encode(a), dtype.encode(b)))
            });
            let parts: Vec<_> = parts.collect();
            let weights = parts.iter().map(|part| {
                let (scale, rank, a, b) = part.as_ref()?;
                let view = |rows, cols, bytes| WeightView { dtype, rows, cols, bytes };
                let outputs = b.len() / dtype.bytes() / rank;
                Some(LoraWeights { scale: **scale, a: view(*rank, shape.inputs, a), b: view(outputs, *rank, b) })
            });
            let term = backend.lora_term(&lora, &weights.collect::<Vec<_>>())?;
            backend.set_lora(&mut lora, slot(number), Some(term));
        }
        let count = self.x.len() / shape.inputs;
        let mut step = backend.step(&[ANY_HEADS], dtype, ANY_VOCAB)?;
        let adapters = self.rows.iter().map(|adapter| adapter.map(slot)).collect();
        let logit_rows = self.logit_rows.clone().unwrap_or_default();
        let batch = StepBatch { adapters, logit_rows, ..rows_at(&vec![0; self.rows.len()]) };
        let loaded = backend.load(&mut step, batch)?;
        let (padded, rows) = match self.logit_rows {
            None => (loaded.rows, StepRows::All),
            Some(_) => (loaded.logit_rows, StepRows::Logits),
        };
        let x = buffer(backend, ActivationDtype::Operands(dtype), padded, shape.inputs, &self.x)?;
        let mut out = buffer(backend, self.into.stores(dtype), padded, shape.outputs(), &self.before)?;
        if loaded.adapters {
            run(backend, &mut step, loaded, |backend, step| backend.add_lora(&mut out, &x, &lora, rows, step))?;
        }
        backend.read(&out, count)
    }
}

impl OpCase for TestLora {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        self.compute(backend)
    }

    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (sum, tolerance) = self.added(at);
        match sum == 0.0 && tolerance == 0.0 {
            true => 0.0,
            false => tolerance + self.into.rounding(self.shape.dtype, y, f64::from(self.before[at].abs())),
        }
    }

    fn exact(&self) -> Option<Vec<f64>> {
        Some(self.before.iter().enumerate().map(|(at, &before)| f64::from(before) + self.added(at).0).collect())
    }

    fn name(&self) -> String {
        let Self { shape, adapters, rows, logit_rows, into, .. } = self;
        let of = if logit_rows.is_some() { "logit rows" } else { "rows" };
        let (outputs, adapters) = (shape.outputs(), adapters.len());
        format!("{} {of}, {} -> {outputs}, {adapters} adapters, into {into:?}", rows.len(), shape.inputs)
    }
}
