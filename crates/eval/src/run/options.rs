//! The options of `offshoot run`, as plain data.

use std::path::PathBuf;

use super::tables::ResultFormat;
use crate::task::{AskedJudge, Overrides};
use offshoot_judge::JudgeSetup;
use offshoot_launch::{EngineOptions, ScorerOptions};

/// The options of `offshoot run`.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// `None`: the bundled demo.
    pub task: Option<PathBuf>,
    /// Changes to the task file.
    pub overrides: Overrides,
    pub limit: Option<usize>,
    pub out: Option<PathBuf>,
    pub format: ResultFormat,
    /// The k of pass@k and the like; `None`: the usual ones for the number of samples.
    pub k: Option<Vec<u32>>,
    /// Continue a run of an earlier process.
    pub resume: bool,
    /// Also write each item's sampling tree.
    pub trees: bool,
    /// Whether items that exceed the context are left out; otherwise they are an error before the run begins.
    pub skip_too_long: bool,
    pub dry_run: bool,
    /// Whether the summary is printed as JSON.
    pub json: bool,
    /// What the user says of the model that answers the questions of verdicts, in place of the task's `judge`.
    pub asked_judge: AskedJudge,
    /// Candidates judged at once; `None`: one per core.
    pub judges: Option<usize>,
    pub judge: JudgeSetup,
    /// A scorer beside the model, in place of the task's; `None`: the task's, if it names one.
    pub scorer: Option<ScorerOptions>,
    pub engine: EngineOptions,
}
