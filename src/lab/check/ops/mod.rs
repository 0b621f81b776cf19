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
use super::report::CheckReport;

/// Runs every op.
pub fn ops<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let mut dice = Dice::new(1);
    for dtype in Dtype::ALL {
        let mut suite = OpSuite { backend, report, dtype, effort };
        rows::check(&mut suite, &mut dice)?;
        norms::check(&mut suite, &mut dice)?;
        linear::check(&mut suite, &mut dice)?;
        heads::check(&mut suite, &mut dice)?;
        activations::check(&mut suite, &mut dice)?;
        delta_rule::check(&mut suite, &mut dice)?;
        pages::check(&mut suite, &mut dice)?;
        mixed::check(&mut suite, &mut dice)?;
        experts::check(&mut suite, &mut dice)?;
        quantised::check(&mut suite, &mut dice)?;
        four_bit::check(&mut suite, &mut dice)?;
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
