//! Items in flight: threads that each take the next item, drive its search and write its results. The engine merges what all
//! of them grow into one batch, so threads here only wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;
use serde_json::json;

use crate::engine::{SamplingParams, Stop};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::journal::Journal;
use crate::report::Summary;
use crate::search::{Assessment, Job, Outcome, best_of_n, sample, self_consistency};
use crate::task::{Method, Sampling, Task};
use crate::tree::SamplingTree;

use super::progress::Progress;
use super::summary::summarise;
use super::{ItemPrompt, Loaded, Prepared, RunOptions};

/// Items worked on at once: enough that their samples fill a step, and one more so that the next prompt is computed meanwhile.
pub fn in_flight(prepared: &Prepared, max_rows: usize) -> usize {
    let samples = prepared.task.method.samples() as usize;
    (max_rows.div_ceil(samples) + 1).min(prepared.prompts.len()).min(MOST_THREADS)
}

/// Threads that wait cost memory for their stacks, nothing else.
const MOST_THREADS: usize = 256;

/// What came of a run.
pub struct Run {
    pub summary: Summary,
    /// Items by index.
    pub finished: Vec<Finished>,
    /// The interrupt or error that ended the run early.
    pub ended: Option<Error>,
}

/// An item whose search has ended.
pub struct Finished {
    pub index: usize,
    pub outcome: Outcome,
}

/// Works on all items; writes results to `journal` where there is one.
pub fn work(
    prepared: &Prepared,
    loaded: &Loaded,
    options: &RunOptions,
    journal: Option<&Journal>,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Result<Run> {
    let started = Instant::now();
    let shared = Shared {
        prepared,
        loaded,
        trees: options.trees,
        progress,
        interrupted,
        next: AtomicUsize::new(0),
        ended: Mutex::new(None),
        finished: Mutex::new(Vec::new()),
        journal,
    };
    std::thread::scope(|threads| {
        for _ in 0..in_flight(prepared, options.budget.max_rows) {
            threads.spawn(|| shared.take_items());
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    let panicked = || Error::Internal("a worker panicked".to_string());
    let mut finished = shared.finished.into_inner().map_err(|_| panicked())?;
    finished.sort_by_key(|item| item.index);
    let mut ended = shared.ended.into_inner().map_err(|_| panicked())?;
    if interrupted.load(Ordering::Relaxed) {
        ended.get_or_insert(Error::Interrupted);
    }
    let summary = summarise(prepared, loaded, options, &finished, seconds)?;
    Ok(Run { summary, finished, ended })
}

/// What the threads of one run share.
struct Shared<'a> {
    prepared: &'a Prepared,
    loaded: &'a Loaded,
    trees: bool,
    progress: &'a Progress,
    interrupted: &'a AtomicBool,
    next: AtomicUsize,
    /// The first error; once it is set nobody takes another item.
    ended: Mutex<Option<Error>>,
    finished: Mutex<Vec<Finished>>,
    journal: Option<&'a Journal>,
}

impl Shared<'_> {
    fn take_items(&self) {
        while let Some(prompt) = self.next_item() {
            match self.search(prompt) {
                Ok(finished) => {
                    self.finished.lock().expect("pushing does not panic").push(finished);
                    self.progress.item_done();
                }
                Err(error) => {
                    self.ended.lock().expect("storing does not panic").get_or_insert(error);
                }
            }
        }
    }

    fn next_item(&self) -> Option<&ItemPrompt> {
        let ended = self.ended.lock().expect("storing does not panic").is_some();
        if ended || self.interrupted.load(Ordering::Relaxed) {
            return None;
        }
        self.prepared.prompts.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// One problem: its tree, its driver, its results.
    fn search(&self, prompt: &ItemPrompt) -> Result<Finished> {
        let task = &self.prepared.task;
        let (params, stop) = how_to_sample(&task.sampling);
        let mut record = |sample: &crate::search::Sample| {
            if let Some(journal) = self.journal {
                journal.sample(&Line { id: &prompt.item.id, rest: sample })?;
            }
            self.progress.sample_done(sample.tokens);
            Ok(())
        };
        let mut job = Job {
            params: &params,
            stop: &stop,
            assess: &|text| assess(task, prompt, text),
            record: &mut record,
            interrupted: self.interrupted,
        };
        let engine = self.loaded.engine.clone();
        let mut tree =
            SamplingTree::new(engine, &prompt.item.id, task.sampling.seed, prompt.tokens.clone(), prompt.text.clone())?;
        let outcome = drive(task.method, &mut tree, &mut job)?;
        if let Some(journal) = self.journal {
            journal.item(&item_line(prompt, &outcome))?;
            if self.trees {
                write_tree(journal, &tree, prompt.item.index)?;
            }
        }
        Ok(Finished { index: prompt.item.index, outcome })
    }
}

fn write_tree(journal: &Journal, tree: &SamplingTree, index: usize) -> Result<()> {
    journal.file(&format!("trees/{index}.json"), &format!("{:#}\n", tree.to_json()))?;
    journal.file(&format!("trees/{index}.dot"), &tree.to_dot())
}

fn drive(method: Method, tree: &mut SamplingTree, job: &mut Job<'_>) -> Result<Outcome> {
    let (root, samples) = (tree.root(), method.samples() as usize);
    match method {
        Method::SelfConsistency { stop_when_decided, .. } => {
            self_consistency(tree, root, samples, stop_when_decided, job)
        }
        Method::BestOfN { by, .. } => best_of_n(tree, root, samples, by, job),
        Method::Sample { .. } => sample(tree, root, samples, job),
    }
}

fn assess(task: &Task, prompt: &ItemPrompt, text: &str) -> Assessment {
    let answer = task.answer(text);
    let verdict = task.grade(&prompt.item, text, answer.as_ref());
    Assessment { answer: answer.map(|answer| answer.value), correct: verdict.map(|verdict| verdict.correct) }
}

/// A task's sampling section in the engine's terms.
fn how_to_sample(sampling: &Sampling) -> (SamplingParams, Stop) {
    let params = SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        logit_bias: sampling.logit_bias.iter().map(|&(id, bias)| (TokenId(id), bias)).collect(),
        top_logprobs: sampling.logprobs.unwrap_or(0) as usize,
    };
    let stop = Stop {
        max_tokens: sampling.max_tokens as usize,
        min_tokens: sampling.min_tokens as usize,
        strings: sampling.stop.clone(),
        tokens: sampling.stop_token_ids.iter().map(|&id| TokenId(id)).collect(),
        ignore_eos: sampling.ignore_eos,
        include_stop: sampling.include_stop,
    };
    (params, stop)
}

/// A result with the id of its item before it.
#[derive(Serialize)]
struct Line<'a, T> {
    id: &'a str,
    #[serde(flatten)]
    rest: &'a T,
}

fn item_line(prompt: &ItemPrompt, outcome: &Outcome) -> serde_json::Value {
    json!({
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
        "prompt_tokens": prompt.tokens.len(),
        "sampled_tokens": outcome.samples.iter().map(|sample| sample.tokens).sum::<usize>(),
    })
}
