//! The options of `offshoot judge`, as plain data.

use std::path::PathBuf;

use crate::benchmark::BenchmarkFormat;
use crate::program::ExtractMode;
use crate::task::candidate::LimitChanges;
use offshoot_judge::{JudgeSetup, Language};

/// The candidates to judge.
#[derive(Clone, Debug)]
pub enum CandidateSource {
    Samples(PathBuf),
    /// The problem file's own solutions.
    References,
}

/// The options of `offshoot judge`.
#[derive(Clone, Debug)]
pub struct ScoreOptions {
    pub problems: PathBuf,
    pub candidates: CandidateSource,
    pub out: Option<PathBuf>,
    pub format: Option<BenchmarkFormat>,
    pub language: Language,
    pub limits: LimitChanges,
    /// Threads that judge; `None`: one per core.
    pub workers: Option<usize>,
    pub all_tests: bool,
    /// `None`: the default ks.
    pub ks: Option<Vec<u32>>,
    pub extract: ExtractMode,
    /// Report no numbers unless every problem has a sample.
    pub all_attempted: bool,
    pub resume: bool,
    pub judge: JudgeSetup,
    pub json: bool,
}
