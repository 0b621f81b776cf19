//! Two results of one row, compared bit by bit.

use std::fmt::Display;

use crate::report::{CaseResult, CheckReport, WorstError};
use offshoot_backend::Dtype;
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// Rows computed at once: the first, and how many.
pub type Rows = std::ops::Range<usize>;

/// Compares rows computed among all of them with the same rows among fewer. `counts`: numbers of rows, rising, the last
/// of them all; `compute` returns the `[rows, width]` results of these rows.
pub fn alone(
    counts: &[usize],
    width: usize,
    dice: &mut Dice,
    mut compute: impl FnMut(Rows) -> Result<Vec<f32>>,
) -> Result<Differences> {
    let most = counts[counts.len() - 1];
    let all = compute(0..most)?;
    let mut differences = Differences::default();
    for &rows in counts {
        let first = dice.within(0, u32::try_from(most - rows).expect("some thousand rows")) as usize;
        let fewer = compute(first..first + rows)?;
        for (row, found) in (first..).zip(fewer.chunks_exact(width)) {
            let how = format_args!("row {row} of {most}, as number {} of {rows}", row - first);
            differences.see(how, &all[row * width..][..width], found);
        }
    }
    Ok(differences)
}

/// Counts values that should be bit-identical and are not, and describes the first.
#[derive(Default)]
pub struct Differences {
    count: usize,
    first: Option<String>,
}

impl Differences {
    /// Compares two results of one row; `row` names the row and how the second result was computed.
    pub fn see(&mut self, row: impl Display, expected: &[f32], found: &[f32]) {
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

    /// Counts differences that the caller found; `what` describes the first.
    pub fn note(&mut self, count: usize, what: impl FnOnce() -> String) {
        self.count += count;
        self.first.get_or_insert_with(what);
    }

    /// Adds the differences to the report as one case, which fails if there are any.
    pub fn file(self, report: &mut CheckReport, op: &'static str, dtype: Dtype, case: impl Display) {
        let found = CaseResult::once(WorstError { error: self.count as f64, tolerance: 0.0 });
        match self.first {
            Some(first) => report.see(op, Some(dtype), format_args!("{case}: {first}"), found),
            None => report.see(op, Some(dtype), case, found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filed(expected: &[f32], found: &[f32]) -> CheckReport {
        let (mut report, mut differences) = (CheckReport::default(), Differences::default());
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
