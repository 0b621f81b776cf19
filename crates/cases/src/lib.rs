//! One list of cases for the ops of every backend: each op against its definition and, where a formula is at hand,
//! against f64, with tolerances that are derived where they stand; and cases that compare bits (`deterministic`).
//! Whoever runs them opens the devices: the one that is checked, and the one whose results define each op. What a whole
//! model computes is checked in `lab`.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod attention;
pub mod case;
pub mod dense;
pub mod deterministic;
mod latents;
mod leaves;
mod levels;
mod ops;
pub mod report;
mod sampling;
pub mod setting;

use offshoot_backend::{AttentionLevels, Backend};
use offshoot_core::error::Result;

pub use case::CheckEffort;
pub use deterministic::deterministic;
pub use latents::latents;
pub use levels::levels;
pub use ops::linear::Destination;
pub use ops::ops;
pub use report::{CaseResult, CheckReport, ReportRow, WorstError};
pub use sampling::allowed_requests;

/// Runs all cases but those that compare bits: `definition` is the backend whose results define the ops. `done` gets
/// the rows of each part of the report when they are complete.
///
/// # Errors
///
/// A device's, or one of `done`.
pub fn suite<B: AttentionLevels, D: Backend>(
    backend: &mut B,
    definition: &mut D,
    effort: CheckEffort,
    report: &mut CheckReport,
    mut done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<()> {
    ops(backend, definition, (effort, effort), report, &mut done)?;
    report.part_of(&sampling::OPS, &mut done, |report| sampling::sampling(backend, definition, effort, report))?;
    report.part_of(&attention::OPS, &mut done, |report| attention::attention(backend, effort, report))?;
    report.part_of(&latents::OPS, &mut done, |report| latents(backend, effort, report))?;
    report.part_of(&levels::OPS, &mut done, |report| levels(backend, effort, report))?;
    report.part_of(&["advance"], &mut done, |report| leaves::leaves(backend, effort, report))
}
