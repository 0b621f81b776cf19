//! The outcome of a run: what finished, what failed, and the error of a run in which something did.

use std::path::Path;

use super::options::RunOptions;
use crate::report::{Summary, in_short};
use crate::task::{Item, Method};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::counted;
use offshoot_core::setting::{RESUME, SKIP_TOO_LONG};
use offshoot_search::{FailedBranches, Outcome};

/// The outcome of a run.
pub struct RunOutcome {
    pub summary: Summary,
    /// Items by index.
    pub finished: Vec<Finished>,
    /// Items by index.
    pub failed: Vec<Failed>,
    /// Whether scores of the method's texts are a judge's.
    pub scored_by_judge: bool,
    /// The interrupt or error that ended the run early.
    pub ended: Option<Error>,
}

/// An item with a finished search.
pub struct Finished {
    pub index: usize,
    pub outcome: Outcome,
}

/// An item with a failed search. The other items continue.
pub struct Failed {
    pub index: usize,
    pub id: String,
    pub error: Error,
}

impl Failed {
    /// Whether its prompt is too long, and such items are skipped.
    pub fn is_skipped(&self, options: &RunOptions) -> bool {
        options.skip_too_long && self.error.is_too_long()
    }
}

impl RunOutcome {
    /// The run's error if items failed, or branches of items that continued without them.
    pub fn failure(&self, items: &[Item], options: &RunOptions, folder: &Path) -> Result<()> {
        let (left_out, failed): (Vec<&Failed>, Vec<&Failed>) =
            self.failed.iter().partition(|item| item.is_skipped(options));
        let (of_a_kind, how, then) = match failed.first() {
            None => (left_out, "are left out", String::new()),
            Some(first) if first.error.is_too_long() => {
                (failed, "failed", format!(" ({RESUME} tries again, {SKIP_TOO_LONG} leaves such items out)"))
            }
            Some(_) => (failed, "failed", format!(" ({RESUME} tries again)")),
        };
        if let Some(Failed { id, error, .. }) = of_a_kind.first() {
            let (some, items) = (of_a_kind.len(), self.summary.items_asked);
            let what = format!("{some} of {items} items {how}, first `{id}`: {error}{then}");
            return Err(Error::format(folder.join("items.jsonl"), what));
        }
        self.unjudged(folder)?;
        let id_of = |index: usize| items.iter().find(|item| item.index == index).map_or("", |item| &item.id);
        let mut unscored = self.finished.iter().filter_map(|item| Some((item.index, nothing_scored(&item.outcome)?)));
        if let Some((index, why)) = unscored.next() {
            let (some, items) = (1 + unscored.count(), self.summary.items_asked);
            let verb = if some == 1 { "has" } else { "have" };
            let what = format!(
                "{some} of {items} items {verb} no text with a score, first `{}`: {why} ({RESUME} tries again)",
                id_of(index)
            );
            return Err(Error::format(folder.join("items.jsonl"), what));
        }
        let mut failed = self.finished.iter().filter_map(|item| Some((item.index, item.outcome.failed.as_ref()?)));
        let Some((index, FailedBranches { first, .. })) = failed.next() else { return Ok(()) };
        let id = id_of(index);
        let branches = counted(self.summary.failed_branches as u64, "continuation");
        let what = format!("{branches} failed, first of item `{id}`: {first} ({RESUME} tries again)");
        Err(Error::format(folder.join("items.jsonl"), what))
    }

    /// The run's error if a judge could not judge samples, which are all on disk.
    fn unjudged(&self, folder: &Path) -> Result<()> {
        if self.summary.judge.is_none() {
            return Ok(());
        }
        let scores = &self.summary.scores;
        let of_method = scores.scorer.as_ref().filter(|_| self.scored_by_judge).and_then(|scorer| {
            let lacking = match scorer.unscored {
                0 => "texts with a score that lacks comparisons".to_owned(),
                some => format!("{} without a score", counted(some as u64, "text")),
            };
            Some((lacking, scorer.first_error.as_ref()?))
        });
        let of_grade = scores.first_ungraded.as_ref();
        let of_grade =
            of_grade.map(|why| (format!("{} without a grade", counted(scores.ungraded as u64, "sample")), why));
        let Some((lacking, why)) = of_grade.or(of_method) else { return Ok(()) };
        let what = format!("{lacking} by the judge, first: {} ({RESUME} asks again)", in_short(why));
        Err(Error::format(folder.join("samples.jsonl"), what))
    }
}

/// Whether a search would go otherwise with scores that it lacks: any of a judge, all of a scorer, to which some texts
/// may always be too long.
pub fn lacks_scores(method: &Method, outcome: &Outcome) -> bool {
    match method.verdict() {
        Some(_) => outcome.scorer.as_ref().is_some_and(|work| work.unscored > 0),
        None => nothing_scored(outcome).is_some(),
    }
}

/// Why the first text of an item has no score, where none has one.
fn nothing_scored(outcome: &Outcome) -> Option<&str> {
    let work = outcome.scorer.as_ref().filter(|work| work.texts == 0)?;
    work.first_error.as_deref()
}
