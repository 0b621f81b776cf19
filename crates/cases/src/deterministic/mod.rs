//! Checks the deterministic mode of the ops bit by bit: the result of a row alone, among others and with another
//! planner must be the same, of attention, also of latents, linear layers, adapters, experts and delta-rule layers.
//! Accuracy is checked by the other cases, except for attention, which uses other kernels in this mode. Whole models
//! are checked in `lab`.

mod attention;
mod differences;
mod experts;
mod latents;
mod linear;
mod lora;
mod states;

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
    report.part_of(&["exact, attention", "alone, attention"], &mut done, |report| {
        attention::attention(backend, effort, report)
    })?;
    report.part_of(&["alone, latents"], &mut done, |report| latents::latents(backend, effort, report))?;
    report.part_of(&["alone, linear", "alone, linear, e4m3"], &mut done, |report| {
        linear::linear(backend, effort, report)
    })?;
    report.part_of(&["alone, add_lora"], &mut done, |report| lora::lora(backend, effort, report))?;
    report.part_of(&["alone, experts"], &mut done, |report| experts::experts(backend, effort, report))?;
    report.part_of(&["alone, states"], &mut done, |report| states::states(backend, effort, report))?;
    Ok(())
}
