//! Ops that compute rows from rows, with random inputs: odd and even shapes, every dtype. Tolerances are stated at each
//! op; they follow from the rounding that the documentation of `Backend` allows: sums and intermediate results in f32,
//! stored values in the dtype of their buffer. Inputs are exactly representable in the dtype.

mod activations;
mod delta_rule;
mod experts;
mod four_bit;
mod heads;
mod linear;
mod mixed;
mod norms;
mod pages;
pub(super) mod quantised;
mod rows;

use crate::backend::{Backend, Dtype};
use crate::error::Result;

use super::case::{OpCase, compare};
use super::device::CheckEffort;
use super::dice::Dice;
use super::report::{CheckReport, ReportRow};

/// Checks ops of one kind.
type OpCheck<B> = fn(&mut OpSuite<'_, B>, &mut Dice) -> Result<()>;

/// Runs every op; `done` gets the rows of each kind of them when they are complete.
pub fn ops<B: Backend>(
    backend: &mut B,
    effort: CheckEffort,
    report: &mut CheckReport,
    mut done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<()> {
    let kinds: [OpCheck<B>; 11] = [
        rows::check,
        norms::check,
        linear::check,
        heads::check,
        activations::check,
        delta_rule::check,
        pages::check,
        mixed::check,
        experts::check,
        quantised::check,
        four_bit::check,
    ];
    let mut dice = Dice::new(1);
    for dtype in Dtype::ALL {
        for kind in kinds {
            let before = report.rows.len();
            kind(&mut OpSuite { backend, report, dtype, effort }, &mut dice)?;
            done(&report.rows[before..])?;
        }
    }
    Ok(())
}

/// Runs cases of one dtype and adds them to the report.
struct OpSuite<'a, B: Backend> {
    backend: &'a mut B,
    report: &'a mut CheckReport,
    dtype: Dtype,
    effort: CheckEffort,
}

impl<B: Backend> OpSuite<'_, B> {
    fn hold(&mut self, op: &'static str, case: &impl OpCase) -> Result<()> {
        let found = compare(self.backend, case)?;
        self.report.see(op, Some(self.dtype), case, found);
        Ok(())
    }

    /// Rows and widths of plain rows: tiny, odd, no multiple of a vector, large.
    fn shapes(&self) -> &'static [(usize, usize)] {
        match self.effort {
            CheckEffort::Quick => &[(1, 33), (5, 64)],
            CheckEffort::Full => &[
                (1, 1),
                (1, 64),
                (3, 37),
                (2, 172),
                (9, 105),
                (17, 768),
                (64, 1000),
                (5, 4096),
                (300, 130),
                (2, 14336),
            ],
        }
    }
}
