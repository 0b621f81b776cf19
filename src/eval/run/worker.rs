//! Runs the items of a task on threads: each thread takes the next item, drives its search and writes its results. The
//! engine merges the branches of all items into one batch, so these threads mostly wait.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::eval::journal::Journal;
use crate::eval::report::Summary;
use crate::figures::counted;
use crate::search::{FailedBranches, Outcome, Sample, SearchJob};
use crate::tree::{SamplingTree, Trace};

use super::assess::{assessor, grade};
use super::drive::drive;
use super::resume::Earlier;
use super::summary::summarise;
use super::{ItemPrompt, PreparedRun, RunOptions};
use crate::launch::{Launched, PromptOrder};
use crate::out::Progress;

/// Items worked on at once: enough that their samples are all the branches that the engine grows at once, and some more
/// that wait, so that there is always one to begin where others end.
pub fn in_flight(prepared: &PreparedRun, branches: usize) -> usize {
    let samples = prepared.task.method.samples_at_once() as usize;
    let full = branches.div_ceil(samples);
    (full + full.div_ceil(8)).min(prepared.prompts.len()).min(MOST_THREADS)
}

/// The most threads. A waiting thread reserves addresses for its stack, and memory only for the pages it has touched.
const MOST_THREADS: usize = 2048;

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

/// An item with a failed search. The other items go on.
pub struct Failed {
    pub index: usize,
    pub id: String,
    pub error: Error,
}

impl Failed {
    /// The error of a run in which so many items failed, this one first.
    pub fn in_run(&self, failed: usize, items: usize, folder: &Path) -> Error {
        let what =
            format!("{failed} of {items} items failed, first `{}`: {} (--resume tries again)", self.id, self.error);
        Error::format(folder.join("items.jsonl"), what)
    }
}

impl RunOutcome {
    /// The error of the run where items failed, or branches of items that continued without them.
    pub fn failure(&self, prepared: &PreparedRun, folder: &Path) -> Result<()> {
        if let Some(first) = self.failed.first() {
            return Err(first.in_run(self.failed.len(), self.summary.items_asked, folder));
        }
        let mut failed = self.finished.iter().filter_map(|item| Some((item.index, item.outcome.failed.as_ref()?)));
        let Some((index, FailedBranches { first, .. })) = failed.next() else { return Ok(()) };
        let id = prepared.prompts.iter().find(|prompt| prompt.item.index == index).map_or("", |prompt| &prompt.item.id);
        let branches = counted(self.summary.failed_branches as u64, "continuation");
        let what = format!("{branches} failed, first of item `{id}`: {first} (--resume tries again)");
        Err(Error::format(folder.join("items.jsonl"), what))
    }
}

/// Works on all items; writes results to `journal` where there is one.
pub fn work(
    prepared: &PreparedRun,
    launched: &Launched,
    options: &RunOptions,
    journal: Option<&Journal>,
    earlier: Earlier,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Result<RunOutcome> {
    let started = Instant::now();
    let searched = search_all(&prepared.prompts, prepared, launched, options, journal, earlier, progress, interrupted);
    sum_up(prepared, launched, options, searched, started.elapsed().as_secs_f64())
}

/// The outcome of searching several items.
pub struct Searched {
    pub finished: Vec<Finished>,
    pub failed: Vec<Failed>,
    /// The interrupt or error that ended it early.
    pub ended: Option<Error>,
    /// Samples on disk of items that are not finished.
    pub unfinished_samples: usize,
}

/// Summarises the finished items. An error that ended the run early is returned rather than an error of the summary.
pub fn sum_up(
    prepared: &PreparedRun,
    launched: &Launched,
    options: &RunOptions,
    searched: Searched,
    seconds: f64,
) -> Result<RunOutcome> {
    let Searched { mut finished, mut failed, ended, unfinished_samples } = searched;
    finished.sort_by_key(|item| item.index);
    failed.sort_by_key(|item| item.index);
    match summarise(prepared, launched, options, &finished, seconds) {
        Ok(summary) => {
            let of = |item: &Finished| item.outcome.failed.as_ref().map_or(0, |failed| failed.branches);
            let failed_branches = finished.iter().map(of).sum();
            let summary = Summary { failed: failed.len(), failed_branches, unfinished_samples, ..summary };
            Ok(RunOutcome { summary, finished, failed, ended })
        }
        Err(error) => Err(ended.unwrap_or(error)),
    }
}

/// Searches those of `prompts` that `earlier` has not finished, several at once.
#[expect(clippy::too_many_arguments, reason = "each is a part of the run that the demo puts together otherwise")]
pub fn search_all(
    prompts: &[ItemPrompt],
    prepared: &PreparedRun,
    launched: &Launched,
    options: &RunOptions,
    journal: Option<&Journal>,
    earlier: Earlier,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Searched {
    let done: HashSet<usize> = earlier.finished.iter().map(|item| item.index).collect();
    done.iter().for_each(|_| progress.item_done());
    let unfinished_samples = earlier.samples.values().map(Vec::len).sum();
    let shared = WorkerContext {
        prompts,
        prepared,
        launched,
        trees: options.trees,
        progress,
        interrupted,
        order: Mutex::new(PromptOrder::new(prompts, prepared.draws(prompts))),
        ended: Mutex::new(None),
        finished: Mutex::new(earlier.finished),
        failed: Mutex::new(Vec::new()),
        unfinished_samples: AtomicUsize::new(unfinished_samples),
        done,
        earlier: Mutex::new(earlier.samples),
        journal,
    };
    let threads = in_flight(prepared, launched.engine.facts().max_branches).min(prompts.len());
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..threads {
            match std::thread::Builder::new().spawn_scoped(scope, || shared.take_items()) {
                Ok(worker) => workers.push(worker),
                Err(error) if workers.is_empty() => shared.end(Error::io("a thread", "start")(error)),
                Err(error) => {
                    log::warn!("{} items at once, not {threads}: no more threads start: {error}", workers.len());
                    break;
                }
            }
        }
        for worker in workers {
            if worker.join().is_err() {
                shared.end(panicked());
            }
        }
    });
    if interrupted.load(Ordering::Relaxed) {
        shared.end(Error::Interrupted);
    }
    Searched {
        finished: shared.finished.into_inner().expect("pushing does not panic"),
        failed: shared.failed.into_inner().expect("pushing does not panic"),
        ended: shared.ended.into_inner().expect("storing does not panic"),
        unfinished_samples: shared.unfinished_samples.into_inner(),
    }
}

/// Runs `work`; a panic in it is an error like others (what it said is on standard error).
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    Error::Internal("a worker panicked".to_string())
}

/// What the threads of one run share.
struct WorkerContext<'a> {
    prompts: &'a [ItemPrompt],
    prepared: &'a PreparedRun,
    launched: &'a Launched,
    trees: bool,
    progress: &'a Progress,
    interrupted: &'a AtomicBool,
    order: Mutex<PromptOrder>,
    /// The first error; once it is set no thread takes another item.
    ended: Mutex<Option<Error>>,
    finished: Mutex<Vec<Finished>>,
    failed: Mutex<Vec<Failed>>,
    /// Samples on disk of items that are not finished.
    unfinished_samples: AtomicUsize,
    /// Items that are finished already.
    done: HashSet<usize>,
    /// Samples that others have already.
    earlier: Mutex<HashMap<usize, Vec<Sample>>>,
    journal: Option<&'a Journal>,
}

impl WorkerContext<'_> {
    fn take_items(&self) {
        while let Some((prompt, tree)) = self.next_item() {
            match guarded(|| self.search(prompt, tree?)) {
                Ok(finished) => {
                    log::info!("item `{}`: {} samples", prompt.item.id, finished.outcome.samples.len());
                    self.finished.lock().expect("pushing does not panic").push(finished);
                    self.progress.item_done();
                }
                Err(error) => match self.launched.in_bytes(error) {
                    error if self.ends_the_run(&error) => self.end(error),
                    error => self.fail(prompt, error),
                },
            }
        }
    }

    /// Whether no other item could fare better: the engine is gone, the user has had enough, results cannot be written.
    fn ends_the_run(&self, error: &Error) -> bool {
        match error {
            Error::Interrupted | Error::EngineStopped { .. } | Error::Cuda { .. } | Error::DeviceMemory { .. } => true,
            Error::Io { path, .. } => self.journal.is_none_or(|journal| path.starts_with(journal.folder())),
            _ => self.journal.is_none(),
        }
    }

    fn fail(&self, prompt: &ItemPrompt, error: Error) {
        let (index, id) = (prompt.item.index, prompt.item.id.clone());
        log::info!("item `{id}` failed: {error}");
        let line = json!({ "id": id, "index": index, "error": error.to_string() });
        match self.journal.map_or(Ok(()), |journal| journal.item(index, &line)) {
            Ok(()) => self.failed.lock().expect("pushing does not panic").push(Failed { index, id, error }),
            Err(unwritten) => self.end(unwritten),
        }
        self.progress.item_done();
    }

    /// The first error stays.
    fn end(&self, error: Error) {
        self.ended.lock().expect("storing does not panic").get_or_insert(error);
    }

    /// The next item and its tree. Trees are made in the order of the items: the engine serves branches in the order of
    /// their roots.
    fn next_item(&self) -> Option<(&ItemPrompt, Result<SamplingTree>)> {
        let mut order = self.order.lock().expect("taking does not panic");
        loop {
            let ended = self.ended.lock().expect("storing does not panic").is_some();
            if ended || self.interrupted.load(Ordering::Relaxed) {
                return None;
            }
            let prompt = &self.prompts[order.next_prompt()?];
            if !self.done.contains(&prompt.item.index) {
                let (engine, seed) = (self.launched.engine.clone(), self.prepared.task.sampling.seed);
                let (id, tokens, text) = (&prompt.item.id, prompt.tokens().to_vec(), prompt.text.clone());
                return Some((prompt, SamplingTree::new(engine, id, seed, tokens, text)));
            }
        }
    }

    /// One problem: its tree, its driver, its results.
    fn search(&self, prompt: &ItemPrompt, mut tree: SamplingTree) -> Result<Finished> {
        let task = &self.prepared.task;
        let mut others = self.earlier.lock().expect("taking does not panic");
        let earlier = others.remove(&prompt.item.index).unwrap_or_default();
        drop(others);
        let mut on_disk = earlier.len();
        let mut record = |sample: &Sample| {
            if let Some(journal) = self.journal {
                journal.sample(prompt.item.index, sample.index, &LineWithId { id: &prompt.item.id, rest: sample })?;
            }
            if let Some(error) = &sample.error {
                log::info!("sample {} of item `{}` failed: {error}", sample.index, prompt.item.id);
                return Ok(());
            }
            on_disk += 1;
            self.unfinished_samples.fetch_add(1, Ordering::Relaxed);
            self.progress.sample_done(sample.tokens);
            Ok(())
        };
        let grade = |text: &str| grade(task, &prompt.item, text);
        let mut job = SearchJob {
            params: &self.prepared.params,
            stop: &self.prepared.stop,
            assessor: assessor(self.prepared.judging.as_ref(), &prompt.item, &grade),
            earlier,
            record: &mut record,
            interrupted: self.interrupted,
        };
        let mut outcome = drive(self.prepared, prompt, &mut tree, &mut job)?;
        drop(job);
        let mut failures = tree.take_failures();
        let branches = failures.len();
        if let Some((_, first)) = failures.pop_first() {
            if outcome.samples.is_empty() {
                return Err(first);
            }
            outcome.failed = Some(FailedBranches { branches, first: self.launched.in_bytes(first).to_string() });
        }
        if let Some(journal) = self.journal {
            // The item's line last: what it says is done is not done again.
            if self.trees {
                write_tree(journal, &tree, prompt)?;
            }
            journal.item(prompt.item.index, &item_line(prompt, &outcome))?;
        }
        self.unfinished_samples.fetch_sub(on_disk, Ordering::Relaxed);
        Ok(Finished { index: prompt.item.index, outcome })
    }
}

fn write_tree(journal: &Journal, tree: &SamplingTree, prompt: &ItemPrompt) -> Result<()> {
    let trace = Trace { level_ends: Some(prompt.levels.level_ends.clone()), ..tree.trace() };
    let trace = serde_json::to_string(&trace);
    let trace = trace.map_err(|error| Error::Internal(format!("a sampling tree is not JSON: {error}")))?;
    journal.file(&format!("trees/{}.json", prompt.item.index), &(trace + "\n"))
}

/// A result, written behind the id of its item.
#[derive(Serialize)]
pub struct LineWithId<'a, T> {
    pub id: &'a str,
    #[serde(flatten)]
    pub rest: &'a T,
}

fn item_line(prompt: &ItemPrompt, outcome: &Outcome) -> serde_json::Value {
    let mut line = json!({
        "id": prompt.item.id,
        "index": prompt.item.index,
        "reference": prompt.item.reference(),
        "prediction": outcome.prediction,
        "correct": outcome.correct,
        "chosen": outcome.chosen,
        "votes": outcome.votes,
        "samples": outcome.samples.len(),
        "samples_correct": outcome.samples.iter().filter(|sample| sample.correct == Some(true)).count(),
        "cancelled": outcome.cancelled,
        "cancelled_tokens": outcome.cancelled_tokens,
        "prompt_tokens": prompt.tokens().len(),
        "sampled_tokens": outcome.samples.iter().map(|sample| sample.tokens).sum::<usize>(),
        "search_tokens": outcome.search_tokens,
        "search_prompt_tokens": outcome.search_prompt_tokens,
    });
    if let (Some(line), Some(failed)) = (line.as_object_mut(), &outcome.failed) {
        line.insert("failed".to_string(), json!(failed));
    }
    if let Some(details) = &outcome.details
        && let (Some(line), Ok(Value::Object(more))) = (line.as_object_mut(), serde_json::to_value(details))
    {
        line.extend(more);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_ours() {
        let error = guarded(|| -> Result<()> { panic!("said on purpose, by a test") }).expect_err("it panicked");
        assert!(matches!(error, Error::Internal(_)), "{error}");
        assert_eq!(guarded(|| Ok(7)).expect("no panic"), 7);
    }
}
