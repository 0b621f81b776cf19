//! Judges the samples of a run on a thread pool while other samples decode. `judge` runs the candidates; the search
//! decides which texts are assessed and when.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_judge::{Judgement, Verdict};
use offshoot_search::{Assess, Assessment, AssessmentRequest, Sample};

/// The judge's result on a sample: its [`Assessment::detail`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    pub verdict: Verdict,
    /// Why it is not accepted, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of accepted tests among those that were run.
    pub tests_passed: usize,
    pub tests: usize,
    /// Wall-clock time and CPU time.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub peak_bytes: u64,
}

impl From<Judgement> for Judged {
    fn from(of: Judgement) -> Self {
        Self {
            verdict: of.verdict,
            message: of.message,
            tests_passed: of.tests.iter().filter(|test| test.verdict == Verdict::Accepted).count(),
            tests: of.tests.len(),
            seconds: of.wall.as_secs_f64(),
            cpu_seconds: of.cpu.as_secs_f64(),
            peak_bytes: of.peak_bytes,
        }
    }
}

impl Judged {
    /// The judge's result on `sample`; `None`: it was not judged.
    pub fn of(sample: &Sample) -> Option<Judged> {
        Judged::deserialize(sample.detail.as_ref()?).ok()
    }
}

/// The judging threads, shared by all items of a run. Dropping the pool waits for running judgements, so that they
/// remove their folders.
pub struct JudgePool {
    pool: rayon::ThreadPool,
    at_work: Arc<()>,
}

impl Drop for JudgePool {
    fn drop(&mut self) {
        while Arc::strong_count(&self.at_work) > 1 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl JudgePool {
    pub fn new(threads: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|ix| format!("judge-{ix}")).build();
        pool.map(|pool| Self { pool, at_work: Arc::default() })
            .map_err(|error| Error::Internal(format!("the judges' threads do not start: {error}")))
    }
}

type JudgeFn = dyn Fn(&str) -> Result<Judgement> + Send + Sync;

/// Queues the texts of one item for the thread pool, in order of arrival.
pub struct JudgeQueue<'a> {
    grade: &'a dyn Fn(&str) -> Assessment,
    pool: &'a JudgePool,
    judge: Arc<JudgeFn>,
}

impl<'a> JudgeQueue<'a> {
    /// `grade` finds answers, in microseconds; `judge` decides whether the text is right. An error of `judge` is never
    /// the candidate's fault and fails the search.
    pub fn new(
        grade: &'a dyn Fn(&str) -> Assessment,
        pool: &'a JudgePool,
        judge: impl Fn(&str) -> Result<Judgement> + Send + Sync + 'static,
    ) -> Self {
        Self { grade, pool, judge: Arc::new(judge) }
    }
}

impl Assess for JudgeQueue<'_> {
    fn grades(&self) -> bool {
        true
    }

    fn assess(&self, text: &str, request: &mut dyn FnMut() -> AssessmentRequest) -> Option<Assessment> {
        let (judge, at_work) = (self.judge.clone(), self.pool.at_work.clone());
        let (graded, request) = ((self.grade)(text), request());
        self.pool.pool.spawn_fifo(move || {
            // `judge` is dropped before `at_work`: a thread that waits for `at_work` then continues only after the
            // judge has removed its folders.
            let (_at_work, judge) = (at_work, judge);
            if request.is_abandoned() {
                return;
            }
            let judgement = catch_unwind(AssertUnwindSafe(|| judge(request.text())));
            let judgement = judgement.unwrap_or_else(|_| Err(Error::Internal("a judge panicked".to_string())));
            request.reply(judgement.and_then(|judgement| with(judgement, graded)));
        });
        None
    }
}

/// Combines a judgement with the answer found by the grader; the judge decides whether it is right.
fn with(judgement: Judgement, graded: Assessment) -> Result<Assessment> {
    let judged = Judged::from(judgement);
    let detail = json::value("a judgement", &judged)?;
    Ok(Assessment { correct: Some(judged.verdict == Verdict::Accepted), detail: Some(detail), ..graded })
}
