//! The ops that compute a row from a row, with random inputs: shapes odd and even, every dtype. Tolerances are stated beside
//! each op, from the roundings that the prose at `Backend` allows: sums and intermediate results in f32, what is stored in the
//! dtype of its buffer. Inputs are numbers that the dtype holds, so that rounding them changes nothing.

mod activations;
mod heads;
mod linear;
mod norms;
mod pages;
mod rows;

use crate::backend::{Backend, Dtype};
use crate::error::Result;

use super::case::{Case, compare};
use super::device::Effort;
use super::dice::Dice;
use super::report::Report;

/// Runs every op.
pub fn ops<B: Backend>(backend: &mut B, effort: Effort, report: &mut Report) -> Result<()> {
    let mut dice = Dice::new(1);
    for dtype in Dtype::ALL {
        let mut suite = Suite { backend, report, dtype, effort };
        rows::check(&mut suite, &mut dice)?;
        norms::check(&mut suite, &mut dice)?;
        linear::check(&mut suite, &mut dice)?;
        heads::check(&mut suite, &mut dice)?;
        activations::check(&mut suite, &mut dice)?;
        pages::check(&mut suite, &mut dice)?;
    }
    Ok(())
}

/// Where cases of one dtype are sent.
struct Suite<'a, B: Backend> {
    backend: &'a mut B,
    report: &'a mut Report,
    dtype: Dtype,
    effort: Effort,
}

impl<B: Backend> Suite<'_, B> {
    fn hold(&mut self, op: &'static str, case: &impl Case) -> Result<()> {
        let found = compare(self.backend, case)?;
        self.report.see(op, Some(self.dtype), case, found);
        Ok(())
    }

    /// Rows and widths of plain rows: tiny, odd, no multiple of a vector, large.
    fn shapes(&self) -> &'static [(usize, usize)] {
        match self.effort {
            Effort::Quick => &[(1, 33), (5, 64)],
            Effort::Full => &[
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
