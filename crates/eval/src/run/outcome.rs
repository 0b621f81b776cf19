//! The outcome of a run: what finished, what failed, and the error of a run in which something did.

use std::path::Path;

use super::options::RunOptions;
use crate::report::Summary;
use crate::task::Item;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::counted;
use offshoot_core::setting::RESUME;
use offshoot_search::{FailedBranches, Outcome};

/// The outcome of a run.
pub struct RunOutcome {
    pub summary: Summary,
    /// Items by index.
    pub finished: Vec<Finished>,
    /// Items by index.
    pub failed: Vec<Failed>,
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
    /// The error of a run in which `failed` items failed, this one first; `skip_too_long`: those too long were to be left
    /// out.
    pub fn in_run(&self, failed: usize, items: usize, skip_too_long: bool, folder: &Path) -> Error {
        let how = match self.error {
            Error::ContextTooLong { .. } if skip_too_long => "are left out",
            _ => "failed",
        };
        let what =
            format!("{failed} of {items} items {how}, first `{}`: {} ({RESUME} tries again)", self.id, self.error);
        Error::format(folder.join("items.jsonl"), what)
    }
}

impl RunOutcome {
    /// The run's error if items failed, or branches of items that continued without them.
    pub fn failure(&self, items: &[Item], options: &RunOptions, folder: &Path) -> Result<()> {
        if let Some(first) = self.failed.first() {
            return Err(first.in_run(self.failed.len(), self.summary.items_asked, options.skip_too_long, folder));
        }
        let mut failed = self.finished.iter().filter_map(|item| Some((item.index, item.outcome.failed.as_ref()?)));
        let Some((index, FailedBranches { first, .. })) = failed.next() else { return Ok(()) };
        let id = items.iter().find(|item| item.index == index).map_or("", |item| &item.id);
        let branches = counted(self.summary.failed_branches as u64, "continuation");
        let what = format!("{branches} failed, first of item `{id}`: {first} ({RESUME} tries again)");
        Err(Error::format(folder.join("items.jsonl"), what))
    }
}
