//! Where the cases of all ops are run: the device, the backend that defines the results, and the report.

use crate::case::{CheckEffort, OpCase, compare};
use crate::report::CheckReport;
use offshoot_backend::{Backend, Dtype};
use offshoot_core::error::Result;

/// Runs cases of one dtype and adds them to the report.
pub(crate) struct OpSuite<'a, B: Backend, D: Backend> {
    pub backend: &'a mut B,
    pub definition: &'a mut D,
    pub report: &'a mut CheckReport,
    pub dtype: Dtype,
    pub effort: CheckEffort,
}

impl<B: Backend, D: Backend> OpSuite<'_, B, D> {
    pub fn hold(&mut self, op: &'static str, case: &impl OpCase) -> Result<()> {
        if !self.report.wants(&[op]) {
            return Ok(());
        }
        let found = compare(self.backend, self.definition, case)?;
        self.report.see(op, Some(self.dtype), case.name(), found);
        Ok(())
    }

    /// Rows and widths of plain rows: tiny, odd, no multiple of a vector, large.
    pub fn shapes(&self) -> &'static [(usize, usize)] {
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
