//! How the texts of finished candidates become assessments: at once where that is cheap (answers, graders), on threads of their own
//! where it is dear (judges), while the item's other candidates grow. To a driver both look the same: a text is handed over, and
//! its assessment comes when it is known. What an assessment says is left to the task and the judge.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, never, unbounded};
use petgraph::graph::NodeIndex;
use serde::{Deserialize, Serialize};

use super::PATIENCE;
use crate::error::{Error, Result};
use crate::judge::{self, Judgement};

/// What is made of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// The answer in the form that is voted on.
    pub answer: Option<String>,
    /// Whether it is right; `None` where the task has no grader.
    pub correct: Option<bool>,
    /// What the judge says, where the task has one.
    pub judged: Option<Judged>,
}

/// The judge's word on a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    pub verdict: judge::Verdict,
    /// Why, in a line, where it is not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Of the tests that were run.
    pub tests_passed: usize,
    pub tests: usize,
    /// On the clock, and of a processor.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub peak_bytes: u64,
}

impl From<Judgement> for Judged {
    fn from(of: Judgement) -> Self {
        Self {
            verdict: of.verdict,
            message: of.message,
            tests_passed: of.tests.iter().filter(|test| test.verdict == judge::Verdict::Accepted).count(),
            tests: of.tests.len(),
            seconds: of.wall.as_secs_f64(),
            cpu_seconds: of.cpu.as_secs_f64(),
            peak_bytes: of.peak_bytes,
        }
    }
}

/// The threads on which judges work; the same for all items of a run. Dropping it waits for those that are at work, so that they
/// clean up behind themselves.
pub struct Judges {
    pool: rayon::ThreadPool,
    at_work: Arc<()>,
}

impl Drop for Judges {
    fn drop(&mut self) {
        while Arc::strong_count(&self.at_work) > 1 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Judges {
    pub fn new(threads: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|ix| format!("judge-{ix}")).build();
        pool.map(|pool| Self { pool, at_work: Arc::default() })
            .map_err(|error| Error::Internal(format!("the judges' threads do not start: {error}")))
    }
}

/// Assesses the texts of one item. The same text always gets the same assessment.
pub struct Assessor<'a> {
    grade: &'a dyn Fn(&str) -> Assessment,
    judging: Option<Judging<'a>>,
    ready: VecDeque<(NodeIndex, Assessment)>,
}

type Judge = dyn Fn(&str) -> Result<Judgement> + Send + Sync;

struct Judging<'a> {
    judges: &'a Judges,
    judge: Arc<Judge>,
    texts: HashMap<Arc<str>, Known>,
    desk: Desk,
}

/// What is known of a text that was handed over.
enum Known {
    Judged(Judged),
    /// These wait for it.
    Awaited(Vec<NodeIndex>),
}

/// What a judge makes of a text.
pub struct Ruling {
    text: Arc<str>,
    judgement: Result<Judgement>,
}

/// Where rulings come in. Dropping it leaves the texts that nobody has begun to judge unjudged.
struct Desk {
    sender: Sender<Ruling>,
    receiver: Receiver<Ruling>,
    left: Arc<AtomicBool>,
}

impl Desk {
    fn new() -> Self {
        let (sender, receiver) = unbounded();
        Self { sender, receiver, left: Arc::default() }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.left.store(true, Ordering::Relaxed);
    }
}

impl<'a> Assessor<'a> {
    /// By `grade`, which takes microseconds, in the driver's thread.
    pub fn new(grade: &'a dyn Fn(&str) -> Assessment) -> Self {
        Self { grade, judging: None, ready: VecDeque::new() }
    }

    /// By `judge` too, on the threads of `judges`, each text once: it says what is right. It fails for its own failures alone, and
    /// then the search fails.
    pub fn judged_by(
        self,
        judges: &'a Judges,
        judge: impl Fn(&str) -> Result<Judgement> + Send + Sync + 'static,
    ) -> Self {
        let judging = Judging { judges, judge: Arc::new(judge), texts: HashMap::new(), desk: Desk::new() };
        Self { judging: Some(judging), ..self }
    }

    /// Whether it says what is right at all.
    pub fn grades(&self) -> bool {
        self.judging.is_some() || (self.grade)("").correct.is_some()
    }

    /// Hands over the text of `node`.
    pub fn begin(&mut self, node: NodeIndex, text: &str) {
        let known = match &mut self.judging {
            None => Some((self.grade)(text)),
            Some(judging) => judging.begin(text, Some(node)).map(|judged| with(judged, (self.grade)(text))),
        };
        self.ready.extend(known.map(|assessment| (node, assessment)));
    }

    /// An assessment that is there.
    pub fn take(&mut self) -> Option<(NodeIndex, Assessment)> {
        self.ready.pop_front()
    }

    /// Whether texts were handed over whose rulings have not come.
    pub fn is_awaited(&self) -> bool {
        let awaited = |judging: &Judging| judging.texts.values().any(|known| matches!(known, Known::Awaited(_)));
        self.judging.as_ref().is_some_and(awaited)
    }

    /// Where rulings come in, each to be given to `receive`; a channel that stays silent where nobody judges.
    pub fn rulings(&self) -> Receiver<Ruling> {
        self.judging.as_ref().map_or_else(never, |judging| judging.desk.receiver.clone())
    }

    /// Makes what a ruling decides ready to be taken.
    pub fn receive(&mut self, ruling: Ruling) -> Result<()> {
        let Ruling { text, judgement } = ruling;
        let judged = Judged::from(judgement?);
        let Some(judging) = &mut self.judging else { return Ok(()) };
        let assessment = with(&judged, (self.grade)(&text));
        if let Some(Known::Awaited(nodes)) = judging.texts.insert(text, Known::Judged(judged)) {
            self.ready.extend(nodes.into_iter().map(|node| (node, assessment.clone())));
        }
        Ok(())
    }

    /// Receives the next ruling, if one comes in a short while.
    pub fn wait(&mut self) -> Result<()> {
        match self.rulings().recv_timeout(PATIENCE) {
            Ok(ruling) => self.receive(ruling),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    /// Forgets the texts that were handed over and not taken back. Those that nobody has begun to judge stay unjudged.
    pub fn forget(&mut self) {
        self.ready.clear();
        if let Some(judging) = &mut self.judging {
            judging.texts.retain(|_, known| matches!(known, Known::Judged(_)));
            judging.desk = Desk::new();
        }
    }

    /// Assesses one text and waits for it. `go_on` says between whiles whether to wait on.
    pub fn assess(&mut self, text: &str, go_on: impl Fn() -> Result<()>) -> Result<Assessment> {
        loop {
            let assessment = (self.grade)(text);
            let Some(judging) = &mut self.judging else { return Ok(assessment) };
            if let Some(judged) = judging.begin(text, None) {
                return Ok(with(judged, assessment));
            }
            go_on()?;
            self.wait()?;
        }
    }
}

/// The judge has the last word on what is right.
fn with(judged: &Judged, graded: Assessment) -> Assessment {
    let correct = Some(judged.verdict == judge::Verdict::Accepted);
    Assessment { correct, judged: Some(judged.clone()), ..graded }
}

impl Judging<'_> {
    /// The ruling on `text` if it is known; else it will be, for `node` too.
    fn begin(&mut self, text: &str, node: Option<NodeIndex>) -> Option<&Judged> {
        if !self.texts.contains_key(text) {
            let text: Arc<str> = text.into();
            self.send(text.clone());
            self.texts.insert(text, Known::Awaited(Vec::new()));
        }
        match self.texts.get_mut(text).expect("just looked up or put there") {
            Known::Judged(judged) => Some(judged),
            Known::Awaited(nodes) => {
                nodes.extend(node);
                None
            }
        }
    }

    fn send(&self, text: Arc<str>) {
        let (judge, to, left) = (self.judge.clone(), self.desk.sender.clone(), self.desk.left.clone());
        let at_work = self.judges.at_work.clone();
        self.judges.pool.spawn_fifo(move || {
            // The judge is dropped first: whoever waits for `at_work` waits until it has given back its folders.
            let (_at_work, judge) = (at_work, judge);
            if left.load(Ordering::Relaxed) {
                return;
            }
            let judgement = catch_unwind(AssertUnwindSafe(|| judge(&text)));
            let judgement = judgement.unwrap_or_else(|_| Err(Error::Internal("a judge panicked".to_string())));
            // Nobody may be there any more, who then does not want it.
            drop(to.send(Ruling { text, judgement }));
        });
    }
}
