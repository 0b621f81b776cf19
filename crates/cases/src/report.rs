//! The report of the suite: for each op and dtype, the number of cases and the worst of them. Displays as a table,
//! serialises as JSON lines.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use offshoot_backend::Dtype;
use offshoot_core::error::Result;

/// All cases of one op in one dtype.
#[derive(Clone, Debug, Serialize)]
pub struct ReportRow {
    pub op: &'static str,
    pub dtype: Option<Dtype>,
    pub cases: usize,
    /// The largest error, in the op's own unit.
    pub error: f64,
    /// The largest ratio of error to tolerance, and the error and tolerance of that case.
    pub share: f64,
    pub worst: WorstError,
    /// What its cases took, the definition among it.
    pub seconds: f64,
    pub holds: bool,
    /// The first failed case, and its failure.
    pub failure: Option<String>,
    /// What the cases exercised, if their number does not tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct WorstError {
    pub error: f64,
    pub tolerance: f64,
}

/// The result of one case.
#[derive(Clone, Copy, Debug)]
pub struct CaseResult {
    pub worst: WorstError,
    /// Whether two runs gave the same bits; `None` if there was one run.
    repeats: Option<bool>,
}

impl CaseResult {
    pub fn once(worst: WorstError) -> Self {
        CaseResult { worst, repeats: None }
    }

    pub fn twice(worst: WorstError, repeats: bool) -> Self {
        CaseResult { worst, repeats: Some(repeats) }
    }
}

#[derive(Clone, Debug)]
pub struct CheckReport {
    pub rows: Vec<ReportRow>,
    /// What the names of ops hold whose cases are asked for; `None`: all are.
    only: Option<String>,
    /// When the last case was seen, or the report was begun.
    seen: Instant,
}

impl Default for CheckReport {
    fn default() -> Self {
        Self::only(None)
    }
}

impl CheckReport {
    /// An empty report, for the cases of ops alone whose names hold `only`.
    pub fn only(only: Option<String>) -> Self {
        Self { rows: Vec::new(), only, seen: Instant::now() }
    }

    /// Whether cases of any of these ops are asked for. Others need not be run, and are not seen.
    pub fn wants(&self, ops: &[&str]) -> bool {
        self.only.as_ref().is_none_or(|only| ops.iter().any(|op| op.contains(only)))
    }

    /// [`CheckReport::part`], with cases of `ops`, if any of them are asked for.
    ///
    /// # Errors
    ///
    /// Those of the part.
    pub fn part_of<D: FnMut(&[ReportRow]) -> Result<()>>(
        &mut self,
        ops: &[&str],
        done: &mut D,
        part: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.wants(ops) { self.part(done, part) } else { Ok(()) }
    }

    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }

    /// Runs a part of a suite, which adds its cases; `done` then gets the new rows.
    pub fn part(
        &mut self,
        done: &mut impl FnMut(&[ReportRow]) -> Result<()>,
        part: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.rows.len();
        part(self)?;
        done(&self.rows[before..])
    }

    /// Adds a case to the row of its op; `case` names it in a failure.
    pub fn see(&mut self, op: &'static str, dtype: Option<Dtype>, case: impl fmt::Display, found: CaseResult) {
        let WorstError { error, tolerance } = found.worst;
        let failure = match (found.repeats, error <= tolerance) {
            (Some(false), _) => Some(format!("{case}: two equal runs give different bits")),
            (Some(true) | None, true) => None,
            (Some(true) | None, false) => Some(format!("{case}: an error of {error:.2e}, allowed: {tolerance:.2e}")),
        };
        let share = found.worst.share();
        let seconds = self.seen.elapsed().as_secs_f64();
        self.seen = Instant::now();
        if !self.wants(&[op]) {
            return;
        }
        let row = self.row(op, dtype);
        row.cases += 1;
        row.seconds += seconds;
        row.error = row.error.max(error);
        if share >= row.share {
            (row.share, row.worst) = (share, found.worst);
        }
        row.holds &= failure.is_none();
        row.failure = row.failure.take().or(failure);
    }

    /// Fails the op because its cases left something out.
    pub fn miss(&mut self, op: &'static str, dtype: Option<Dtype>, what: impl fmt::Display) {
        if self.wants(&[op]) {
            let row = self.row(op, dtype);
            row.holds = false;
            row.failure.get_or_insert_with(|| what.to_string());
        }
    }

    /// Notes what a case exercised.
    pub fn note(&mut self, op: &'static str, dtype: Option<Dtype>, what: impl fmt::Display) {
        if self.wants(&[op]) {
            self.row(op, dtype).notes.push(what.to_string());
        }
    }

    fn row(&mut self, op: &'static str, dtype: Option<Dtype>) -> &mut ReportRow {
        let at = self.rows.iter().position(|row| row.op == op && row.dtype == dtype).unwrap_or_else(|| {
            let worst = WorstError::default();
            let (failure, notes) = (None, Vec::new());
            self.rows.push(ReportRow {
                op,
                dtype,
                cases: 0,
                error: 0.0,
                share: 0.0,
                worst,
                seconds: 0.0,
                holds: true,
                failure,
                notes,
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }
}

impl WorstError {
    /// Becomes this error if it is as large a share of what it may be, or larger; one that is no number is infinite.
    pub fn raise(&mut self, error: f64, tolerance: f64) {
        let seen = Self { error: if error.is_nan() { f64::INFINITY } else { error }, tolerance };
        if seen.error > 0.0 && seen.share() >= self.share() {
            *self = seen;
        }
    }

    /// The ratio of error to tolerance; 0 for an exact result with a tolerance of 0.
    pub fn share(self) -> f64 {
        if self.error == 0.0 { 0.0 } else { self.error / self.tolerance }
    }
}

impl ReportRow {
    pub fn head() -> String {
        format!(
            "{:<16} {:<5} {:>6} {:>8} {:>12} {:>12} {:>7}  verdict",
            "op", "dtype", "cases", "seconds", "error", "may be", "share"
        )
    }
}

impl fmt::Display for ReportRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.dtype.map_or_else(String::new, |dtype| format!("{dtype:?}").to_lowercase());
        let verdict = if self.holds { "ok" } else { "FAILS" };
        let (WorstError { error, tolerance }, share) = (self.worst, 100.0 * self.share);
        write!(
            f,
            "{:<16} {dtype:<5} {:>6} {:>8.1} {error:>12.2e} {tolerance:>12.2e} {share:>5.0} %  {verdict}",
            self.op, self.cases, self.seconds
        )?;
        self.failure.iter().chain(&self.notes).try_for_each(|line| write!(f, "\n    {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(error: f64, tolerance: f64, repeats: bool) -> ReportRow {
        let mut report = CheckReport::default();
        report.see("op", None, "a case", CaseResult::once(WorstError { error: 1.0, tolerance: 2.0 }));
        report.see("op", None, "another case", CaseResult::twice(WorstError { error, tolerance }, repeats));
        assert_eq!(report.rows.len(), 1);
        assert_eq!(report.rows[0].cases, 2);
        assert_eq!(report.holds(), report.rows[0].holds);
        report.rows.remove(0)
    }

    #[test]
    fn a_row_fails_by_its_worst_case() {
        assert!(row(0.1, 1.0, true).holds);
        assert!(row(0.0, 0.0, true).holds, "an exact op");
        for (error, tolerance) in [(1.1, 1.0), (1e-9, 0.0), (f64::INFINITY, 1.0), (f64::NAN, 1.0)] {
            let row = row(error, tolerance, true);
            assert!(!row.holds, "{error} where {tolerance} is allowed");
            assert!(row.to_string().contains("another case"), "{row}");
        }
        assert!(row(0.0, 1.0, false).to_string().contains("different bits"));
    }
}
