//! What the suite found: for each op and dtype how many cases there were, and the worst of them. Printable as a table and as
//! JSON lines.

use std::fmt;

use serde::Serialize;

use crate::backend::Dtype;

/// All cases of one op in one dtype.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub op: &'static str,
    pub dtype: Option<Dtype>,
    pub cases: usize,
    /// The largest error, in the op's own unit.
    pub error: f64,
    /// The largest share of its tolerance that an error takes, and the error and tolerance of that case.
    pub share: f64,
    pub worst: Worst,
    pub holds: bool,
    /// Which case failed first, and how.
    pub failure: Option<String>,
    /// What cases went through, where their number does not say it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Worst {
    pub error: f64,
    pub tolerance: f64,
}

/// What one case came to.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub worst: Worst,
    /// Whether the same work twice gave the same bits; `None` where it was done once.
    repeats: Option<bool>,
}

impl Found {
    pub fn once(worst: Worst) -> Self {
        Found { worst, repeats: None }
    }

    pub fn twice(worst: Worst, repeats: bool) -> Self {
        Found { worst, repeats: Some(repeats) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub rows: Vec<Row>,
}

impl Report {
    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }

    /// Files one case under its op; `case` names it where it fails.
    pub fn see(&mut self, op: &'static str, dtype: Option<Dtype>, case: impl fmt::Display, found: Found) {
        let Worst { error, tolerance } = found.worst;
        let failure = match (found.repeats, error <= tolerance) {
            (Some(false), _) => Some(format!("{case}: the same work twice gives other bits")),
            (Some(true) | None, true) => None,
            (Some(true) | None, false) => {
                Some(format!("{case}: an error of {error:.2e}, which may be {tolerance:.2e}"))
            }
        };
        let share = share(found.worst);
        let row = self.row(op, dtype);
        row.cases += 1;
        row.error = row.error.max(error);
        if share >= row.share {
            (row.share, row.worst) = (share, found.worst);
        }
        row.holds &= failure.is_none();
        row.failure = row.failure.take().or(failure);
    }

    /// Fails the op for what its cases leave out.
    pub fn miss(&mut self, op: &'static str, dtype: Option<Dtype>, what: impl fmt::Display) {
        let row = self.row(op, dtype);
        row.holds = false;
        row.failure.get_or_insert_with(|| what.to_string());
    }

    /// Says of a case what it went through.
    pub fn note(&mut self, op: &'static str, dtype: Option<Dtype>, what: impl fmt::Display) {
        self.row(op, dtype).notes.push(what.to_string());
    }

    fn row(&mut self, op: &'static str, dtype: Option<Dtype>) -> &mut Row {
        let at = self.rows.iter().position(|row| row.op == op && row.dtype == dtype).unwrap_or_else(|| {
            let worst = Worst::default();
            let (failure, notes) = (None, Vec::new());
            self.rows.push(Row { op, dtype, cases: 0, error: 0.0, share: 0.0, worst, holds: true, failure, notes });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }
}

/// An error as a share of what it may be; an exact result has none of a tolerance of zero.
pub fn share(worst: Worst) -> f64 {
    if worst.error == 0.0 { 0.0 } else { worst.error / worst.tolerance }
}

impl Row {
    pub fn head() -> String {
        format!("{:<16} {:<5} {:>6} {:>12} {:>12} {:>7}  verdict", "op", "dtype", "cases", "error", "may be", "share")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.dtype.map_or_else(String::new, |dtype| format!("{dtype:?}").to_lowercase());
        let verdict = if self.holds { "ok" } else { "FAILS" };
        let (Worst { error, tolerance }, share) = (self.worst, 100.0 * self.share);
        write!(
            f,
            "{:<16} {dtype:<5} {:>6} {error:>12.2e} {tolerance:>12.2e} {share:>5.0} %  {verdict}",
            self.op, self.cases
        )?;
        self.failure.iter().chain(&self.notes).try_for_each(|line| write!(f, "\n    {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(error: f64, tolerance: f64, repeats: bool) -> Row {
        let mut report = Report::default();
        report.see("op", None, "a case", Found::once(Worst { error: 1.0, tolerance: 2.0 }));
        report.see("op", None, "another case", Found::twice(Worst { error, tolerance }, repeats));
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
        assert!(row(0.0, 1.0, false).to_string().contains("other bits"));
    }
}
