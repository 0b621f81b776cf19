//! The test suite for a device: its parts, their order, and the printed report. Users run it to check a GPU; tests run
//! it to check the suite.

use offshoot_backend::AttentionLevels;
use offshoot_cases::{CheckEffort, CheckReport, ReportRow};
use offshoot_core::error::{Error, Result};
use offshoot_core::out;

use super::forward::definition;
use super::options::DeviceCheck;
use super::{deterministic, forward, late, long, whole};
use crate::bench::tables::print;

/// Runs the parts that need no model folder and no engine; `done` gets each part's rows.
///
/// # Errors
///
/// The device's, or one of `done`.
pub fn suite<B: AttentionLevels>(
    backend: &mut B,
    effort: CheckEffort,
    done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    suite_of(backend, effort, &mut report, done)?;
    Ok(report)
}

/// Adds those of the cases that `report` wants.
fn suite_of<B: AttentionLevels>(
    backend: &mut B,
    effort: CheckEffort,
    report: &mut CheckReport,
    mut done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<()> {
    offshoot_cases::suite(backend, &mut definition(), effort, report, &mut done)?;
    report
        .part_of(&["forward", "forward, adapters"], &mut done, |report| forward::forwards(backend, effort, report))?;
    report.part_of(&["run, late"], &mut done, |report| late::late(backend, report))
}

/// Runs and prints the whole suite, or what compares bits; returns whether everything holds. `again` opens the device
/// once more.
pub fn device<B: AttentionLevels>(
    mut backend: B,
    again: impl Fn() -> Result<B>,
    options: &DeviceCheck,
) -> Result<bool> {
    let effort = if options.quick { CheckEffort::Quick } else { CheckEffort::Full };
    let goldens = options.goldens.as_deref().map(whole::golden_files).transpose()?.unwrap_or_default();
    let device = backend.describe();
    if !options.json {
        out::line(format_args!("{device}\n"))?;
        out::line(ReportRow::head())?;
    }
    let mut print = |rows: &[ReportRow]| rows.iter().try_for_each(|row| print(options.json, row));
    let mut report = CheckReport::only(options.only.clone());
    if !options.deterministic {
        suite_of(&mut backend, effort, &mut report, print)?;
        report.part_of(&["golden"], &mut print, |report| whole::goldens(&mut backend, &goldens, report))?;
        report.part_of(&["run, given", "run, mean", "run, greedy"], &mut print, |report| {
            whole::runs(backend, effort, report)
        })?;
        report.part_of(&["long", "long, mean"], &mut print, |report| long::long(&again, effort, report))?;
    }
    deterministic::deterministic_of(again, effort, &mut report, print)?;
    if let (Some(only), true) = (&options.only, report.rows.is_empty()) {
        return Err(Error::value("--only", "a part of a row's name", only.clone()));
    }
    let holds = report.holds();
    if !options.json {
        let cases: usize = report.rows.iter().map(|row| row.cases).sum();
        let failing = report.rows.iter().filter(|row| !row.holds).count();
        out::line(match holds {
            true => format!("\n{device} is correct: {cases} cases within tolerance."),
            false => {
                format!("\n{device} is not correct: {failing} of {} rows fail.", report.rows.len())
            }
        })?;
    }
    Ok(holds)
}
