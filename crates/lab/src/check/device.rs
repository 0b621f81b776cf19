//! The test suite for a device: its parts, their order, and the printed report. Users run it to check a GPU; tests run
//! it to check the suite.

use offshoot_backend::AttentionLevels;
use offshoot_core::error::{Error, Result};
use offshoot_core::out;

use super::report::{CheckReport, ReportRow};
use super::{DeviceCheck, attention, deterministic, forward, leaves, levels, long, ops, sampling, whole};

/// How much of the suite is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckEffort {
    /// Every op and code path, with few and small cases.
    Quick,
    Full,
}

/// A part of the suite: adds its cases to the report.
type SuitePart<B> = fn(&mut B, CheckEffort, &mut CheckReport) -> Result<()>;

/// Runs the parts that need no model folder and no engine; `done` gets each part's rows.
pub fn suite<B: AttentionLevels>(
    backend: &mut B,
    effort: CheckEffort,
    mut done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    ops::ops(backend, (effort, effort), &mut report, &mut done)?;
    let parts: [SuitePart<B>; 5] =
        [sampling::sampling, attention::attention, levels::levels, leaves::leaves, forward::forwards];
    for part in parts {
        let before = report.rows.len();
        part(backend, effort, &mut report)?;
        done(&report.rows[before..])?;
    }
    Ok(report)
}

/// Runs and prints the whole suite, or what compares bits; returns whether everything holds. `again` opens the device
/// once more.
pub fn device<B: AttentionLevels>(
    mut backend: B,
    again: impl Fn() -> Result<B>,
    options: &DeviceCheck,
    deterministic: bool,
) -> Result<bool> {
    let effort = if options.quick { CheckEffort::Quick } else { CheckEffort::Full };
    let goldens = options.goldens.as_deref().map(whole::golden_files).transpose()?.unwrap_or_default();
    let device = backend.describe();
    if !options.json {
        out::line(format_args!("{device}\n"))?;
        out::line(ReportRow::head())?;
    }
    let print = |rows: &[ReportRow]| rows.iter().try_for_each(|row| print(options.json, row));
    let mut report = CheckReport::default();
    if !deterministic {
        report = suite(&mut backend, effort, print)?;
        let before = report.rows.len();
        whole::goldens(&mut backend, &goldens, &mut report)?;
        whole::runs(backend, effort, &mut report)?;
        print(&report.rows[before..])?;
        let before = report.rows.len();
        long::long(&again, effort, &mut report)?;
        print(&report.rows[before..])?;
    }
    report.rows.extend(deterministic::deterministic(again, effort, print)?.rows);
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

fn print(json: bool, row: &ReportRow) -> Result<()> {
    if !json {
        return out::line(row);
    }
    let line = serde_json::to_string(row).map_err(|error| Error::Internal(format!("a row is not JSON: {error}")))?;
    out::line(line)
}
