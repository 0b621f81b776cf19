//! Runs the items of a task on threads: each thread takes the next item, drives its search and writes its results. The
//! engine merges the branches of all items into one batch, so these threads mostly wait. One more thread encodes the
//! prompts in advance.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::Receiver;
use serde::Serialize;
use serde_json::{Value, json};

use crate::journal::Journal;
use crate::judged::{is_ungraded, lacks_grade};
use crate::report::Summary;
use crate::task::{Item, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::out::Progress;
use offshoot_core::sorting::sort_by_number;
use offshoot_engine::{LogprobsMode, RootOptions};
use offshoot_launch::{Launched, PromptOrder, TextKey, guarded, in_bytes, work_ahead};
use offshoot_search::rollout::{TreeLeaf, TrieBuilder};
use offshoot_search::tree::{Prompt, SamplingTree, Trace};
use offshoot_search::{Assessment, FailedBranches, Outcome, Sample, SampleScore, SearchJob};

use super::assess::{Graders, answer_of, grade, question_of, samples_correct};
use super::drive::{Scorers, drive};
use super::levels::LevelCounts;
use super::options::RunOptions;
use super::outcome::{Failed, Finished, RunOutcome};
use super::prepare::PreparedRun;
use super::prompts::ItemPrompt;
use super::regrade::choice_kept;
use super::resume::Earlier;
use super::summary::summarise;

/// The outcome of searching several items.
pub struct Searched {
    pub finished: Vec<Finished>,
    pub failed: Vec<Failed>,
    /// The interrupt or error that ended it early.
    pub ended: Option<Error>,
    /// Samples on disk of items that are not finished.
    pub unfinished_samples: usize,
    /// The level counts of finished items.
    pub levels: LevelCounts,
}

/// The context that all searches of a process share.
#[derive(Clone, Copy)]
pub struct ItemRunner<'a> {
    pub prepared: &'a PreparedRun,
    pub launched: &'a Launched,
    /// What scores solutions, where the method asks for it, and what grades samples.
    pub by: Scorers<'a>,
    pub options: &'a RunOptions,
    /// The journal for the results; `None`: nothing is written.
    pub journal: Option<&'a Journal>,
    pub progress: &'a Progress,
    pub interrupted: &'a AtomicBool,
}

impl<'a> ItemRunner<'a> {
    /// Searches all items except those finished in `earlier`, and summarises.
    pub fn work(&self, earlier: Earlier) -> Result<RunOutcome> {
        let started = Instant::now();
        let searched = self.search_all(&self.prepared.items, earlier);
        self.sum_up(searched, started.elapsed().as_secs_f64())
    }

    /// Summarises the finished items. An error that ended the run early is returned rather than an error of the
    /// summary.
    pub fn sum_up(&self, searched: Searched, seconds: f64) -> Result<RunOutcome> {
        let Searched { mut finished, mut failed, ended, unfinished_samples, levels } = searched;
        sort_by_number(&mut finished, |item| item.index as u64);
        sort_by_number(&mut failed, |item| item.index as u64);
        match summarise(
            self.prepared,
            self.launched,
            self.by.judge.map(|judge| &**judge),
            self.options,
            &finished,
            levels,
            seconds,
        ) {
            Ok(summary) => {
                let of = |item: &Finished| item.outcome.failed.as_ref().map_or(0, |failed| failed.branches);
                let failed_branches = finished.iter().map(of).sum();
                let is_skipped = |item: &&Failed| item.is_skipped(self.options);
                let skipped = failed.iter().filter(is_skipped).count();
                let failed_items = failed.len() - skipped;
                let summary = Summary { failed: failed_items, skipped, failed_branches, unfinished_samples, ..summary };
                let scored_by_judge = self.prepared.task.method.verdict().is_some();
                Ok(RunOutcome { summary, finished, failed, scored_by_judge, ended })
            }
            Err(error) => Err(ended.unwrap_or(error)),
        }
    }

    /// Searches `items`, a subset of the task's, except those finished in `earlier`, several at once.
    pub fn search_all(&self, items: &'a [Item], earlier: Earlier) -> Searched {
        let mut encoder = self.prepared.encoder();
        self.search_encoded(items, earlier, move |item| encoder.encode(item))
    }

    /// Like `search_all`; `encode` makes the prompts, in advance on a separate thread.
    fn search_encoded(
        &self,
        items: &'a [Item],
        earlier: Earlier,
        mut encode: impl FnMut(&'a Item) -> Result<ItemPrompt<'a>> + Send,
    ) -> Searched {
        let done: HashMap<usize, usize> =
            earlier.finished.iter().map(|item| (item.index, item.outcome.samples.len())).collect();
        done.iter().for_each(|_| self.progress.item_done());
        let of_searched = earlier.ungraded.values().map(|outcome| outcome.samples.len());
        let unfinished_samples = earlier.samples.values().map(Vec::len).chain(of_searched).sum();
        let shared = WorkerContext {
            run: *self,
            taking: Mutex::new(()),
            ended: Mutex::new(None),
            finished: Mutex::new(earlier.finished),
            failed: Mutex::new(Vec::new()),
            levels: Mutex::new(earlier.levels),
            unfinished_samples: AtomicUsize::new(unfinished_samples),
            earlier: Mutex::new(earlier.samples),
            ungraded: Mutex::new(earlier.ungraded),
        };
        let finished: Vec<(&Item, usize)> =
            items.iter().filter_map(|item| Some((item, *done.get(&item.index)?))).collect();
        let mut order = self.order(items);
        let next = move || {
            let at = std::iter::from_fn(|| order.next_prompt()).find(|&at| !done.contains_key(&items[at].index))?;
            Some(EncodedItem { item: &items[at], home: order.home(at), prompt: guarded(|| encode(&items[at])) })
        };
        let threads = self.prepared.in_flight(self.launched.engine.facts().max_branches).min(items.len());
        std::thread::scope(|scope| {
            let encoded = match work_ahead(scope, next) {
                Ok(encoded) => encoded,
                Err(error) => return shared.end(error),
            };
            let mut workers = Vec::new();
            for _ in 0..threads {
                let (shared, encoded) = (&shared, encoded.clone());
                match std::thread::Builder::new().spawn_scoped(scope, move || shared.take_items(&encoded)) {
                    Ok(worker) => workers.push(worker),
                    Err(error) if workers.is_empty() => shared.end(Error::io("a thread", "start")(error)),
                    Err(error) => {
                        log::warn!(
                            "{} items at once instead of {threads}: a thread cannot start: {error}",
                            workers.len()
                        );
                        break;
                    }
                }
            }
            // Without a receiver the encoding thread ends.
            drop(encoded);
            let mut encoder = self.prepared.encoder();
            for (item, samples) in finished {
                if self.interrupted.load(Ordering::Relaxed) {
                    break;
                }
                match guarded(|| encoder.encode(item)) {
                    Ok(prompt) => shared.count(&prompt, samples),
                    Err(error) => log::warn!("item `{}` is not counted by level: {error}", item.id),
                }
            }
            for worker in workers {
                if worker.join().is_err() {
                    shared.end(Error::Internal("a worker panicked".to_string()));
                }
            }
        });
        if self.interrupted.load(Ordering::Relaxed) {
            shared.end(Error::Interrupted);
        }
        Searched {
            finished: shared.finished.into_inner().expect("pushing does not panic"),
            failed: shared.failed.into_inner().expect("pushing does not panic"),
            ended: shared.ended.into_inner().expect("storing does not panic"),
            unfinished_samples: shared.unfinished_samples.into_inner(),
            levels: shared.levels.into_inner().expect("counting does not panic"),
        }
    }

    /// The order in which `items` start, computed from their texts.
    fn order(&self, items: &[Item]) -> PromptOrder {
        let keys: Vec<&TextKey> = items.iter().map(|item| &self.prepared.texts[&item.index].key).collect();
        let replicas = self.launched.engine.facts().replicas;
        PromptOrder::among(replicas, TextKey::COSTS, &keys, vec![self.prepared.draws(); items.len()])
    }
}

/// State shared by the threads of one run.
struct WorkerContext<'a> {
    run: ItemRunner<'a>,
    /// Held while a prompt is taken and its tree is created.
    taking: Mutex<()>,
    /// The first error; once it is set, no thread takes another item.
    ended: Mutex<Option<Error>>,
    finished: Mutex<Vec<Finished>>,
    failed: Mutex<Vec<Failed>>,
    levels: Mutex<LevelCounts>,
    /// Samples on disk of items that are not finished.
    unfinished_samples: AtomicUsize,
    /// Samples recorded by earlier processes, by item.
    earlier: Mutex<HashMap<usize, Vec<Sample>>>,
    /// Outcomes of searches by earlier processes that lack grades alone, by item.
    ungraded: Mutex<HashMap<usize, Outcome>>,
}

/// An item and its prompt, or the error of encoding it.
struct EncodedItem<'a> {
    item: &'a Item,
    /// Its part of the job ([`PromptOrder::home`]).
    home: Option<usize>,
    prompt: Result<ItemPrompt<'a>>,
}

/// An item and what its search starts with.
type StartedItem<'a> = (&'a Item, Result<(ItemPrompt<'a>, SamplingTree)>);

impl<'a> WorkerContext<'a> {
    fn take_items(&self, encoded: &Receiver<EncodedItem<'a>>) {
        while let Some((item, started)) = self.next_item(encoded) {
            match guarded(|| started.and_then(|(prompt, tree)| self.search(&prompt, tree))) {
                Ok(finished) => {
                    log::info!("item `{}`: {} samples", item.id, finished.outcome.samples.len());
                    self.finished.lock().expect("pushing does not panic").push(finished);
                    self.run.progress.item_done();
                }
                Err(error) => match in_bytes(error, self.run.launched.engine.facts()) {
                    error if self.ends_the_run(&error) => self.end(error),
                    error => self.fail(item, error),
                },
            }
        }
    }

    /// Whether an error ends the run instead of only one item: the engine stopped, an interrupt, or results that cannot
    /// be written.
    fn ends_the_run(&self, error: &Error) -> bool {
        let journal = self.run.journal;
        match error {
            Error::Interrupted | Error::EngineStopped { .. } | Error::Cuda { .. } => true,
            Error::Io { path, .. } => journal.is_none_or(|journal| path.starts_with(journal.folder())),
            _ => journal.is_none(),
        }
    }

    fn fail(&self, item: &Item, error: Error) {
        let (index, id) = (item.index, item.id.clone());
        let is_skipped = error.is_too_long() && self.run.options.skip_too_long;
        log::info!("item `{id}` {}: {error}", if is_skipped { "is skipped" } else { "failed" });
        let question = question_of(&self.run.prepared.task, item).ok();
        let mut line = json!({ "id": id, "index": index, "question": question, "error": error.to_string() });
        if let (Some(line), true) = (line.as_object_mut(), is_skipped) {
            line.insert("skipped".to_string(), json!(true));
        }
        match self.run.journal.map_or(Ok(()), |journal| journal.item(index, &line)) {
            Ok(()) => self.failed.lock().expect("pushing does not panic").push(Failed { index, id, error }),
            Err(unwritten) => self.end(unwritten),
        }
        self.run.progress.item_done();
    }

    /// Counts the prompt of a finished item.
    fn count(&self, prompt: &ItemPrompt<'_>, samples: usize) {
        self.levels.lock().expect("counting does not panic").add(&prompt.levels, samples);
    }

    /// Ends the run with `error`, unless it has already ended with another.
    fn end(&self, error: Error) {
        self.ended.lock().expect("storing does not panic").get_or_insert(error);
    }

    /// The next item with its prompt and its tree. Trees are made in the order of the prompts: the engine serves
    /// branches in the order of their roots.
    fn next_item(&self, encoded: &Receiver<EncodedItem<'a>>) -> Option<StartedItem<'a>> {
        let _taking = self.taking.lock().expect("taking does not panic");
        let ended = self.ended.lock().expect("storing does not panic").is_some();
        if ended || self.run.interrupted.load(Ordering::Relaxed) {
            return None;
        }
        let EncodedItem { item, home, prompt } = encoded.recv().ok()?;
        let started = prompt.and_then(|prompt| {
            let ItemRunner { prepared, launched, .. } = self.run;
            prepared.check_path(launched.engine.facts(), &prompt)?;
            let (engine, seed) = (launched.engine.clone(), prepared.task.sampling.seed);
            let adapter = prepared.adapter_in(&engine)?;
            let place = RootOptions { home, adapter, ..RootOptions::default() };
            let of_tree = Prompt { text: prompt.text.clone(), tokens: prompt.tokens().to_vec() };
            let tree = SamplingTree::placed(engine, of_tree, place)?.seed(seed).named(&item.id);
            Ok((prompt, tree))
        });
        Some((item, started))
    }

    /// Searches one item and writes its results.
    fn search(&self, prompt: &ItemPrompt<'_>, mut tree: SamplingTree) -> Result<Finished> {
        let ItemRunner { prepared, launched, by, options, journal, progress, interrupted } = self.run;
        let task = &prepared.task;
        let searched = self.ungraded.lock().expect("taking does not panic").remove(&prompt.item.index);
        if let Some(searched) = searched {
            return self.grade_searched(prompt, searched);
        }
        let mut others = self.earlier.lock().expect("taking does not panic");
        let mut earlier = others.remove(&prompt.item.index).unwrap_or_default();
        drop(others);
        let grade = |text: &str| grade(task, prompt.item, text);
        let graders = Graders { programs: prepared.judging.as_ref(), judge: by.judge };
        self.grade_again(graders, prompt.item, &grade, &mut earlier)?;
        let mut on_disk = earlier.len();
        let scored: HashMap<u64, SampleScore> =
            earlier.iter().filter_map(|sample| Some((sample.index, sample.scored.clone()?))).collect();
        let mut record = |sample: &Sample| {
            if let Some(journal) = journal {
                journal.sample(prompt.item.index, sample.index, &LineWithId { id: &prompt.item.id, rest: sample })?;
            }
            if let Some(error) = &sample.error {
                log::info!("sample {} of item `{}` failed: {error}", sample.index, prompt.item.id);
                return Ok(());
            }
            // It waits for its grade, and is recorded again with it.
            if task.graded_by_judge().is_some() && lacks_grade(sample) && !is_ungraded(sample) {
                return Ok(());
            }
            on_disk += 1;
            self.unfinished_samples.fetch_add(1, Ordering::Relaxed);
            progress.sample_done(sample.tokens);
            Ok(())
        };
        let params = prepared.params_behind(prompt);
        let job = SearchJob::new(&params, &prepared.stop).recorded_by(&mut record);
        let mut job = job.interrupted_by(interrupted).resuming(earlier);
        job.assessor = graders.assessor(task, prompt.item, &grade)?;
        job.group_end = task.method.group_end();
        let mut outcome = drive(prepared, prompt, by, &mut tree, &mut job)?;
        let leaves = std::mem::take(&mut job.leaves);
        drop(job);
        let mut failures = tree.take_failures();
        let branches = failures.len();
        if let Some((_, first)) = failures.pop_first() {
            if outcome.samples.is_empty() {
                return Err(first);
            }
            outcome.failed =
                Some(FailedBranches { branches, first: in_bytes(first, launched.engine.facts()).to_string() });
        }
        if let Some(journal) = journal {
            if prepared.scores_late() {
                // They were written when they were sampled; these lines replace those.
                let is_known = |sample: &&Sample| scored.get(&sample.index) == sample.scored.as_ref();
                for sample in outcome.samples.iter().filter(|sample| !is_known(sample)) {
                    journal.sample(
                        prompt.item.index,
                        sample.index,
                        &LineWithId { id: &prompt.item.id, rest: sample },
                    )?;
                }
            }
            // The item's line is written last: a resumed run skips items that have one.
            if options.trees {
                write_tree(journal, &tree, prompt)?;
            }
            if task.method.makes_rollouts() {
                write_rollouts(journal, &tree, prompt, &leaves, prepared.params.logprobs_mode)?;
            }
            journal.item(prompt.item.index, &item_line(task, prompt, &outcome)?)?;
        }
        self.count(prompt, outcome.samples.len());
        self.unfinished_samples.fetch_sub(on_disk, Ordering::Relaxed);
        Ok(Finished { index: prompt.item.index, outcome })
    }

    /// Asks for the grades that samples of an earlier process lack, and writes each sample as it has its own.
    fn grade_again(
        &self,
        graders: Graders<'_>,
        item: &Item,
        grade: &dyn Fn(&str) -> Assessment,
        samples: &mut [Sample],
    ) -> Result<()> {
        let ItemRunner { prepared, journal, interrupted, .. } = self.run;
        let check = || if interrupted.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
        graders.grade_again(&prepared.task, item, grade, samples, check, |sample| {
            let line = LineWithId { id: &item.id, rest: sample };
            journal.map_or(Ok(()), |journal| journal.sample(item.index, sample.index, &line))
        })
    }

    /// Grades the samples of an item that was searched to its end, and writes its results: its choice stays.
    fn grade_searched(&self, prompt: &ItemPrompt<'_>, mut outcome: Outcome) -> Result<Finished> {
        let ItemRunner { prepared, by, journal, .. } = self.run;
        let (task, item) = (&prepared.task, prompt.item);
        let graders = Graders { programs: prepared.judging.as_ref(), judge: by.judge };
        self.grade_again(graders, item, &|text| grade(task, item, text), &mut outcome.samples)?;
        let outcome = choice_kept(&task.method, outcome);
        if let Some(journal) = journal {
            journal.item(item.index, &item_line(task, prompt, &outcome)?)?;
        }
        self.count(prompt, outcome.samples.len());
        self.unfinished_samples.fetch_sub(outcome.samples.len(), Ordering::Relaxed);
        Ok(Finished { index: item.index, outcome })
    }
}

fn write_tree(journal: &Journal, tree: &SamplingTree, prompt: &ItemPrompt<'_>) -> Result<()> {
    let trace = Trace { level_ends: Some(prompt.levels.level_ends.clone()), ..tree.trace() };
    journal.file(&format!("trees/{}.json", prompt.item.index), &(json::text("a sampling tree", &trace)? + "\n"))
}

/// Writes an item's samples as rollouts that share prefixes; their rewards are what the task's grader says.
fn write_rollouts(
    journal: &Journal,
    tree: &SamplingTree,
    prompt: &ItemPrompt<'_>,
    leaves: &[TreeLeaf],
    mode: LogprobsMode,
) -> Result<()> {
    let mut builder = TrieBuilder::new();
    builder.tree(tree, prompt.item.index as u64, leaves, mode)?;
    let folder = journal.folder().join("rollouts");
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
    builder.build().write(&folder.join(format!("{}.safetensors", prompt.item.index)))
}

/// A result line that starts with the id of its item.
#[derive(Serialize)]
pub struct LineWithId<'a, T> {
    pub id: &'a str,
    #[serde(flatten)]
    pub rest: &'a T,
}

fn item_line(task: &Task, prompt: &ItemPrompt<'_>, outcome: &Outcome) -> Result<Value> {
    let mut line = json!({
        "id": prompt.item.id,
        "index": prompt.item.index,
        "question": question_of(task, prompt.item)?,
        "reference": prompt.item.reference(),
        "answer": answer_of(task, outcome),
        "prediction": outcome.prediction,
        "correct": outcome.correct,
        "chosen": outcome.chosen,
        "votes": outcome.votes,
        "samples": outcome.samples.len(),
        "samples_correct": samples_correct(prompt.item, &outcome.samples),
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
    if let (Some(line), Some(scorer)) = (line.as_object_mut(), &outcome.scorer) {
        line.insert("scorer".to_string(), json!(scorer));
    }
    if let (Some(line), [_, ..]) = (line.as_object_mut(), &outcome.stragglers[..]) {
        line.insert("stragglers".to_string(), json!(outcome.stragglers));
    }
    if let (Some(line), [_, ..]) = (line.as_object_mut(), &outcome.tied[..]) {
        line.insert("tied".to_string(), json!(outcome.tied));
    }
    if let (Some(line), [_, ..]) = (line.as_object_mut(), &outcome.weights[..]) {
        line.insert("weights".to_string(), json!(outcome.weights));
    }
    if let (Some(line), Some(bar)) = (line.as_object_mut(), outcome.bar) {
        line.insert("bar".to_string(), json!(bar));
    }
    if let Some(details) = &outcome.details
        && let (Some(line), Ok(Value::Object(more))) = (line.as_object_mut(), serde_json::to_value(details))
    {
        line.extend(more);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::run::ResultFormat;
    use crate::task::{AskedJudge, Overrides};
    use offshoot_judge::{Isolation, JudgeSetup};
    use offshoot_launch::{DeviceChoice, EngineBudget, EngineOptions, LOOK_AHEAD};

    const MOST_BRANCHES: usize = 4;

    fn options() -> RunOptions {
        RunOptions {
            task: None,
            overrides: Overrides::default(),
            limit: None,
            format: ResultFormat::Jsonl,
            out: None,
            k: None,
            resume: false,
            trees: false,
            skip_too_long: false,
            dry_run: false,
            json: false,
            asked_judge: AskedJudge::default(),
            judges: None,
            judge: JudgeSetup { isolation: Isolation::Required, python: None, helper: None },
            scorer: None,
            engine: EngineOptions {
                devices: DeviceChoice::Cpu.into(),
                budget: EngineBudget { max_branches: Some(MOST_BRANCHES), ..EngineBudget::default() },
                ..EngineOptions::default()
            },
        }
    }

    /// The last prompt is encoded only after the engine's first step: a run that encoded all prompts first would never
    /// start. The number of waiting prompts is bounded at any time.
    #[test]
    fn prompts_are_encoded_while_the_engine_works() {
        const ITEMS: usize = 4 * LOOK_AHEAD;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let items: Vec<Value> = (0..ITEMS).map(|id| json!({ "id": id.to_string(), "pens": id })).collect();
        let task = json!({
            "name": "ahead",
            "model": Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo"),
            "items": items,
            "prompt": "Tom has {{pens}} pens.",
            "method": { "sample": { "samples": 1 } },
            "sampling": { "max_tokens": 1 },
        });
        let path = folder.path().join("task.json");
        std::fs::write(&path, task.to_string()).expect("the temporary folder is writable");
        let options = options();
        let prepared = PreparedRun::new(&path, &options).expect("a sound task");
        let launched = prepared.start(&options).expect("a small model");
        let (progress, interrupted) = (Progress::new(ITEMS), AtomicBool::new(false));
        let run = ItemRunner {
            prepared: &prepared,
            launched: &launched,
            by: Scorers::default(),
            options: &options,
            journal: None,
            progress: &progress,
            interrupted: &interrupted,
        };
        let (mut encoder, mut encoded) = (prepared.encoder(), 0);
        let metrics = || launched.engine.metrics().expect("the engine runs");
        let searched = run.search_encoded(&prepared.items, Earlier::default(), |item| {
            encoded += 1;
            let patience = Instant::now() + Duration::from_secs(60);
            while encoded == ITEMS && metrics().steps == 0 {
                assert!(Instant::now() < patience, "the engine waits for the last prompt");
            }
            let waiting = encoded - metrics().tokens_sampled as usize;
            assert!(waiting <= LOOK_AHEAD + prepared.in_flight(MOST_BRANCHES) + 2, "{waiting} prompts wait");
            encoder.encode(item)
        });
        assert!(searched.ended.is_none() && searched.failed.is_empty(), "{:?}", searched.ended);
        assert_eq!(searched.finished.len(), ITEMS);
    }
}
