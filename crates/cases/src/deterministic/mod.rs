//! Checks the deterministic mode of the ops bit by bit: the result of a row alone, among others and with another
//! planner must be the same, of attention, also of latents, linear layers, adapters, experts and delta-rule layers.
//! Accuracy is checked by the other cases, except for attention, which uses other kernels in this mode. Whole models are checked in `lab`.

mod attention;
mod delta_rule;
mod differences;
mod experts;
mod latents;
mod linear;
mod lora;

pub use differences::Differences;

use crate::case::CheckEffort;
use crate::report::{CheckReport, ReportRow};
use offshoot_backend::Backend;
use offshoot_core::error::Result;

/// Runs all cases on `backend`, which is made batch-invariant; `done` gets each part's rows.
///
/// # Errors
///
/// The device's, or one of `done`.
pub fn deterministic<B: Backend>(
    backend: &mut B,
    effort: CheckEffort,
    report: &mut CheckReport,
    mut done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<()> {
    backend.set_batch_invariant();
    let parts =
        [attention::attention, latents::latents, linear::linear, lora::lora, experts::experts, delta_rule::delta_rule];
    for part in parts {
        report.part(&mut done, |report| part(backend, effort, report))?;
    }
    Ok(())
}
