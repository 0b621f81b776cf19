//! The deterministic mode, bit by bit: what is computed for a row alone, among others, by another planner, after others were
//! pruned and in other steps is held against itself. Attention and linear layers by themselves, then whole models; how exact
//! the same numbers are is the rest of the suite's affair, but for attention, whose kernels are others in this mode.

mod attention;
mod linear;
mod model;

use std::fmt::Display;

use super::device::Effort;
use super::report::{Found, Report, Row, Worst};
use crate::backend::{Backend, Dtype};
use crate::error::Result;

/// Runs all cases on devices that `open` opens; `done` is told each part's rows.
pub fn deterministic<B: Backend>(
    open: impl Fn() -> Result<B>,
    effort: Effort,
    mut done: impl FnMut(&[Row]) -> Result<()>,
) -> Result<Report> {
    let mut backend = open()?;
    backend.set_batch_invariant();
    let mut report = Report::default();
    for part in [attention::attention, linear::linear] {
        let before = report.rows.len();
        part(&mut backend, effort, &mut report)?;
        done(&report.rows[before..])?;
    }
    drop(backend);
    let before = report.rows.len();
    model::models(open, effort, &mut report)?;
    done(&report.rows[before..])?;
    Ok(report)
}

/// Values that should be the same to the last bit and are not: how many, and which was the first.
#[derive(Default)]
struct Differences {
    count: usize,
    first: Option<String>,
}

impl Differences {
    /// Compares two results of one row; `row` names it and how the second came about.
    fn see(&mut self, row: impl Display, expected: &[f32], found: &[f32]) {
        let differ = |(expected, found): (&f32, &f32)| expected.to_bits() != found.to_bits();
        let count = expected.iter().zip(found).filter(|&(a, b)| differ((a, b))).count();
        if let Some(at) = expected.iter().zip(found).position(differ) {
            let (expected, found) = (expected[at], found[at]);
            self.note(count, || {
                format!(
                    "{row}: value {at} is {found:e} ({:08x}), which was {expected:e} ({:08x})",
                    found.to_bits(),
                    expected.to_bits()
                )
            });
        } else if expected.len() != found.len() {
            self.note(1, || format!("{row}: {} values, where {} were", found.len(), expected.len()));
        }
    }

    fn note(&mut self, count: usize, what: impl FnOnce() -> String) {
        self.count += count;
        self.first.get_or_insert_with(what);
    }

    /// Files them as one case, which none of them may be in.
    fn file(self, report: &mut Report, op: &'static str, dtype: Dtype, case: impl Display) {
        let found = Found::once(Worst { error: self.count as f64, tolerance: 0.0 });
        match self.first {
            Some(first) => report.see(op, Some(dtype), format_args!("{case}: {first}"), found),
            None => report.see(op, Some(dtype), case, found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filed(expected: &[f32], found: &[f32]) -> Report {
        let (mut report, mut differences) = (Report::default(), Differences::default());
        differences.see("row 1", &[1.0], &[1.0]);
        differences.see("row 2", expected, found);
        differences.file(&mut report, "alone", Dtype::Bf16, "a case");
        report
    }

    #[test]
    fn every_bit_counts() {
        assert!(filed(&[1.0, f32::NAN], &[1.0, f32::NAN]).holds());
        for (expected, found) in
            [(&[1.0, 0.0][..], &[1.0, -0.0][..]), (&[1.0, 2.0], &[1.0, 2.0f32.next_up()]), (&[1.0, 2.0], &[1.0])]
        {
            let report = filed(expected, found);
            assert!(!report.holds());
            let said = report.rows[0].to_string();
            assert!(said.contains("a case: row 2: ") && said.contains("FAILS"), "{said}");
        }
    }
}
