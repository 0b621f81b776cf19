//! `embed`, `select_rows` and `keep_values`: copies, which are exact; and `add_positions`, one sum.

use super::suite::OpSuite;
use crate::case::{ANY_HEADS, ANY_VOCAB, F32, OpCase, buffer, numbers, parts, rows_at, run, stacked};
use offshoot_backend::{ActivationDtype, Backend, Dtype, RowToken, StepBatch, StepRequests};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    for &(rows, width) in suite.shapes() {
        let vocab = dice.pick(&[1, 7, 321, 1001]);
        let table = numbers(dice, dtype, vocab * width);
        suite.hold("embed", &EmbedCase { dtype, width, table, tokens: dice.text(rows, vocab) })?;
        let table = numbers(dice, dtype, POSITIONS * width);
        let positions = (0..rows).map(|_| dice.within(0, POSITIONS as u32 - 1)).collect();
        suite.hold(
            "add_positions",
            &AddPositionsCase { dtype, width, table, positions, x: dice.numbers(rows * width) },
        )?;
        let x = numbers(dice, dtype, rows * width);
        let mut logit_rows: Vec<u32> = (0..dice.within(1, 40)).map(|_| dice.within(0, rows as u32 - 1)).collect();
        logit_rows.sort_unstable();
        for holds in [ActivationDtype::Sums, ActivationDtype::Operands(dtype)] {
            suite.hold(
                "select_rows",
                &SelectRowsCase { holds, rows, width, x: x.clone(), logit_rows: logit_rows.clone() },
            )?;
        }
        let x = dice.numbers(logit_rows.len() * width);
        suite.hold("keep_values", &KeepValuesCase { rows, width, x, logit_rows })?;
    }
    Ok(())
}

/// Rows of a table of positions.
const POSITIONS: usize = 40;

struct AddPositionsCase {
    dtype: Dtype,
    width: usize,
    table: Vec<f32>,
    positions: Vec<u32>,
    x: Vec<f32>,
}

impl OpCase for AddPositionsCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let table = stacked(backend, self.dtype, &parts(POSITIONS), &self.table)?;
        let mut step = backend.step(&[ANY_HEADS], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, rows_at(&self.positions))?;
        let mut out = buffer(backend, ActivationDtype::Sums, shape.rows, self.width, &self.x)?;
        run(backend, &mut step, shape, |backend, step| backend.add_positions(&mut out, &table, step))?;
        backend.read(&out, self.positions.len())
    }

    fn tolerance(&self, _: usize, y: f64) -> f64 {
        y.abs() * F32
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let rows = self.positions.iter().zip(self.x.chunks_exact(self.width));
        let sums = rows.flat_map(|(&position, x)| {
            let added = &self.table[position as usize * self.width..][..self.width];
            x.iter().zip(added).map(|(&x, &added)| f64::from(x) + f64::from(added))
        });
        Some(sums.collect())
    }

    fn name(&self) -> String {
        format!("{} rows of {}", self.positions.len(), self.width)
    }
}

struct EmbedCase {
    dtype: Dtype,
    width: usize,
    table: Vec<f32>,
    tokens: Vec<TokenId>,
}

impl OpCase for EmbedCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.tokens.len();
        let table = stacked(backend, self.dtype, &parts(self.table.len() / self.width), &self.table)?;
        let mut step = backend.step(&[ANY_HEADS], self.dtype, ANY_VOCAB)?;
        let tokens = self.tokens.iter().copied().map(RowToken::Known).collect();
        let shape = backend.load(&mut step, StepBatch { tokens, ..rows_at(&vec![0; rows]) })?;
        let mut out = buffer(backend, ActivationDtype::Sums, shape.rows, self.width, &[])?;
        run(backend, &mut step, shape, |backend, step| backend.embed(&mut out, &table, step))?;
        backend.read(&out, rows)
    }

    fn tolerance(&self, _: usize, _: f64) -> f64 {
        0.0
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let row = |token: &TokenId| &self.table[token.ix() * self.width..][..self.width];
        Some(self.tokens.iter().flat_map(row).map(|&x| f64::from(x)).collect())
    }

    fn name(&self) -> String {
        format!("{} rows of a table of {} x {}", self.tokens.len(), self.table.len() / self.width, self.width)
    }
}

struct SelectRowsCase {
    holds: ActivationDtype,
    rows: usize,
    width: usize,
    x: Vec<f32>,
    logit_rows: Vec<u32>,
}

impl OpCase for SelectRowsCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let mut step = backend.step(&[ANY_HEADS], Dtype::F32, ANY_VOCAB)?;
        let batch = StepBatch { logit_rows: self.logit_rows.clone(), ..rows_at(&vec![0; self.rows]) };
        let shape = backend.load(&mut step, batch)?;
        let x = buffer(backend, self.holds, shape.rows, self.width, &self.x)?;
        let mut out = buffer(backend, self.holds, shape.logit_rows, self.width, &[])?;
        run(backend, &mut step, shape, |backend, step| backend.select_rows(&mut out, &x, step))?;
        backend.read(&out, self.logit_rows.len())
    }

    fn tolerance(&self, _: usize, _: f64) -> f64 {
        0.0
    }

    fn name(&self) -> String {
        format!("{} of {} x {} ({:?})", self.logit_rows.len(), self.rows, self.width, self.holds)
    }
}

/// Values that a step keeps, of two steps of which the first is collected when the second has run.
struct KeepValuesCase {
    rows: usize,
    width: usize,
    x: Vec<f32>,
    logit_rows: Vec<u32>,
}

impl OpCase for KeepValuesCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let mut step = backend.step(&[ANY_HEADS], Dtype::F32, self.width)?;
        let turned: Vec<f32> = self.x.iter().rev().copied().collect();
        for values in [&self.x, &turned] {
            let requests = StepRequests::Values;
            let batch = StepBatch { logit_rows: self.logit_rows.clone(), requests, ..rows_at(&vec![0; self.rows]) };
            let shape = backend.load(&mut step, batch)?;
            let values = buffer(backend, ActivationDtype::Sums, shape.logit_rows, self.width, values)?;
            backend.run(&mut step, shape, |backend, step| backend.keep_values(&values, step))?;
        }
        let mut kept = backend.collect_values(&mut step)?;
        kept.extend(backend.collect_values(&mut step)?);
        Ok(kept)
    }

    fn tolerance(&self, _: usize, _: f64) -> f64 {
        0.0
    }

    fn exact(&self) -> Option<Vec<f64>> {
        Some(self.x.iter().chain(self.x.iter().rev()).map(|&x| f64::from(x)).collect())
    }

    fn name(&self) -> String {
        format!("{} of {} x {}", self.logit_rows.len(), self.rows, self.width)
    }
}
