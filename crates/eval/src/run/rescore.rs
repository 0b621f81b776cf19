//! `offshoot rescore`: computes answers, votes and grades again from the recorded texts of a run; no model is loaded
//! and nothing is sampled. Choices that a search made by other means than answers and grades are kept. A method whose
//! outcome cannot be computed from the samples is refused; omissions are reported. The old results are replaced
//! atomically: see [`replace`].

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::journal::folder::{free_path, keep};
use crate::journal::{Journal, replace};
use crate::judged::lacks_grade;
use crate::records::write::write_parquet;
use crate::report::{JudgeTotals, RunScores, in_short};
use crate::task::{AskedJudge, EarlyStop, JudgeChoice, Method, Overrides, RewardScoring, SampleScorer, Task};
use crate::view::lines;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::counted;
use offshoot_core::json;
use offshoot_core::out;
use offshoot_core::out::files::FolderClaim;
use offshoot_core::setting::{JUDGE_URL, RESUME, SET};
use offshoot_judge::JudgeSetup;
use offshoot_search::Sample;
use offshoot_search::confidence::ConfidenceSource;
use offshoot_verdict::{Ask, ServerJudge};

use super::assess::{Graders, RunJudge};
use super::judge::JudgeRecord;
use super::manifest::{self, Manifest, RecordedScores};
use super::regrade::{Graded, Regrader};
use super::summary::scores;
use super::tables::{ResultFormat, TABLES};

/// The options of `offshoot rescore`.
#[derive(Clone, Debug)]
pub struct RescoreOptions {
    pub run: PathBuf,
    /// `None`: the run's own task, from its manifest.
    pub task: Option<PathBuf>,
    /// `key=value` changes to the task.
    pub set: Vec<String>,
    /// The k of pass@k and the like; `None`: the usual ones for the number of samples.
    pub k: Option<Vec<u32>>,
    /// `None`: the run's folder, in which the old files are kept as `*.before`.
    pub out: Option<PathBuf>,
    pub format: ResultFormat,
    /// Candidates judged at once; `None`: one per core.
    pub judges: Option<usize>,
    pub judge: JudgeSetup,
    /// What the user says of the model that `grade.verdict` asks, in place of the task's `judge`.
    pub asked_judge: AskedJudge,
}

const SAMPLES: &str = "samples.jsonl";
const ITEMS: &str = "items.jsonl";

pub fn rescore(options: &RescoreOptions) -> Result<()> {
    let run = &options.run;
    let mut manifest = Manifest::of(run, "the run to rescore")?;
    check_both_are_there(run)?;
    let was = Task::method_of(&manifest.task_file, manifest.task.clone())?;
    let task = task_of(options, &manifest, &was)?;
    let claim = FolderClaim::of(options.out.as_ref().unwrap_or(run))?;
    let folder = claim.path();
    if options.out.is_some() {
        Journal::check_free(folder)?;
    }
    let items = task.items(None)?;
    let changed = manifest.changed_items(&task)?;
    if let Some(path) = &changed {
        out::aside(format_args!(
            "warning: {} has changed since the run: its present content is used for grading",
            path.display()
        ));
    }
    // While the journal is open, no other process writes to the run.
    let (_journal, recorded) = Journal::reopen(run, &items)?;
    let lines = lines(&run.join(ITEMS))?;
    check_method(&task, &manifest, &was, &lines)?;
    let scored = match manifest.scorer.as_ref().is_some_and(|scorer| scorer.samples.is_some()) {
        true => new_scores(&task, &manifest)?,
        // Scores of a search by steps, or by an earlier version, stay as they are.
        false => None,
    };
    let withheld = [run.clone(), folder.to_path_buf()];
    let judging = RunJudge::open(&task, &items, &options.judge, &withheld, options.judges)?;
    let keeps_grades = changed.is_none() && !options.asked_judge.is_given() && asks_the_same(&task, &manifest.task);
    let judge = match keeps_grades {
        true => judge_of_the_rest(&task, recorded.samples.values().flatten())?,
        false => open_judge(&task, options)?,
    };
    if let Some(judge) = &judge {
        manifest.is_regraded_by(JudgeRecord::of_server(&**judge), task.method.verdict().is_some(), run)?;
    }
    let asks_judge = task.verdicts().iter().any(Option::is_some);
    if !asks_judge {
        manifest.judge = None;
    }
    let graders = Graders { programs: judging.as_ref(), judge: judge.as_ref() };
    let grading = Regrader { task: &task, graders, keeps_grades, scored: scored.as_ref() };
    let mut graded = Graded::new(&grading, &items, recorded.samples, lines)?;
    if let (Some(scored), Some(scorer)) = (scored, &mut manifest.scorer) {
        scorer.samples = Some(scored);
    }
    say_what_is_left_out(&graded);
    say_what_was_stopped(&graded, &task, &manifest);
    let scores = scores(&task, &graded.finished, options.k.as_deref());
    if let Some(why) = scores.first_ungraded.as_ref().filter(|_| scores.ungraded == scores.samples) {
        let expected = "a judge that grades some sample: no file of the run is changed";
        return Err(Error::value("the judge", expected, in_short(why)));
    }

    let summary = run.join("summary.json");
    let mut before = match summary.exists() {
        true => serde_json::from_slice(&fs::read(&summary).map_err(Error::io(&summary, "read"))?)
            .map_err(|error| Error::format(&summary, format!("not a JSON object: {error}")))?,
        false => Map::from_iter([("task".to_string(), json!(task.name))]),
    };
    before.insert("method".to_string(), json!(task.method.described()));
    before.insert("failed".to_string(), json!(graded.failed.len() + graded.unjudged.len()));
    if let Ok(Value::Object(scores)) = serde_json::to_value(&scores) {
        RunScores::OF_SOME_METHODS.iter().for_each(|key| drop(before.remove(*key)));
        before.extend(scores);
    }
    if !asks_judge {
        before.remove("judge");
    }
    if let Some(judge) = &judge {
        before.insert("judge".to_string(), json::value("the judge", &JudgeTotals::of(&**judge))?);
    }
    for key in ["answer", "grade", "method", "judge"] {
        match (task.source.get(key), manifest.task.as_object_mut()) {
            (Some(value), Some(recorded)) => drop(recorded.insert(key.to_string(), value.clone())),
            (None, Some(recorded)) => drop(recorded.shift_remove(key)),
            (_, None) => {}
        }
    }
    let files = [
        (SAMPLES, graded.samples),
        (ITEMS, graded.items),
        ("summary.json", format!("{:#}\n", Value::Object(before))),
        ("task.json", format!("{:#}\n", manifest.task)),
        (manifest::NAME, manifest.text()?),
    ];
    if graded.moved {
        put_trees_aside(folder)?;
    }
    let mut files = Vec::from(files.map(|(name, text)| (name, text.into_bytes())));
    if wants_tables(options) {
        for (lines, table, kind) in TABLES {
            let text = files.iter().find(|(name, _)| *name == lines).map(|(_, text)| text.clone());
            let text = Cursor::new(text.expect("both files of lines are among them"));
            let mut bytes = Vec::new();
            write_parquet(kind, &folder.join(lines), Box::new(text), &mut bytes)?;
            files.push((table, bytes));
        }
    }
    // The run's original files stay as `*.before`, also after a second rescore.
    files.iter().try_for_each(|(name, _)| keep(&folder.join(name)))?;
    replace(folder, &files)?;
    out::text(format_args!("{scores}{:<11} {}\n", "results", folder.display()))?;
    if let (true, Some(why)) = (graded.unjudged.is_empty(), &scores.first_ungraded) {
        let some = counted(scores.ungraded as u64, "sample");
        return Err(Error::format(folder.join(SAMPLES), format!("{some} without a grade by the judge, first: {why}")));
    }
    if graded.unjudged.is_empty() {
        return Ok(());
    }
    let (failed, first) = (graded.unjudged.len(), graded.unjudged.swap_remove(0));
    let what = format!("{} could not be graded, first `{}`: {}", counted(failed as u64, "item"), first.id, first.error);
    Err(Error::format(folder.join(ITEMS), what))
}

/// The judge that grades the samples, where `grade` asks one: a server, as no model is loaded.
fn open_judge(task: &Task, options: &RescoreOptions) -> Result<Option<Arc<dyn Ask>>> {
    if task.graded_by_judge().is_none() {
        if options.asked_judge.is_given() {
            out::aside(format_args!("note: `grade` of the task has no `verdict`: the judge is not asked"));
        }
        return Ok(None);
    }
    open_judge_of(task, &options.asked_judge).map(Some)
}

fn open_judge_of(task: &Task, asked: &AskedJudge) -> Result<Arc<dyn Ask>> {
    match task.judge.asked(asked)? {
        JudgeChoice::Server(server) => Ok(Arc::new(ServerJudge::open(*server)?)),
        JudgeChoice::Own | JudgeChoice::Folder(_) => {
            let expected = format!("a server, by {JUDGE_URL} or as `judge.url`, for `grade.verdict` asks a judge");
            let found = "a model that would have to be loaded, which only a run does";
            Err(Error::field(&task.path, "judge", expected, found))
        }
    }
}

/// Whether `grade` asks the judge of the recorded task the questions that it has answered; what is right may differ.
fn asks_the_same(task: &Task, recorded: &Value) -> bool {
    let Some(by) = task.graded_by_judge() else { return false };
    let question = |task: &Value| {
        let mut verdict = task.pointer("/grade/verdict")?.as_object()?.clone();
        verdict.shift_remove("right_from");
        Some(verdict)
    };
    let is_same = |key: &str| task.source.get(key) == recorded.get(key);
    let sees_the_same = is_same("answer") || !by.verdict.asks_about_answers();
    sees_the_same && is_same("judge") && question(&task.source) == question(recorded)
}

/// The server that is asked about samples without a grade, where the others keep theirs; `None`: there is none, or
/// nothing to ask.
fn judge_of_the_rest<'s>(task: &Task, mut samples: impl Iterator<Item = &'s Sample>) -> Result<Option<Arc<dyn Ask>>> {
    match &task.judge.by {
        JudgeChoice::Server(_) if samples.any(lacks_grade) => open_judge_of(task, &AskedJudge::default()).map(Some),
        JudgeChoice::Server(_) | JudgeChoice::Own | JudgeChoice::Folder(_) => Ok(None),
    }
}

/// Whether the folder of results gets Parquet files: if the user asks for them, or the run has them.
fn wants_tables(options: &RescoreOptions) -> bool {
    options.format == ResultFormat::Parquet || TABLES.iter().any(|(_, table, _)| options.run.join(table).exists())
}

/// Fails if one of the run's two files of lines is missing.
fn check_both_are_there(run: &Path) -> Result<()> {
    for (one, other) in [(SAMPLES, ITEMS), (ITEMS, SAMPLES)] {
        let has_lines = fs::metadata(run.join(one)).is_ok_and(|file| file.len() > 0);
        let lost = run.join(other);
        if has_lines && !lost.exists() {
            return Err(Error::format(lost, format!("it is missing, though {one} has lines")));
        }
    }
    Ok(())
}

/// The task to grade by: the run's recorded task or another one, with the requested changes and the run's number of
/// samples.
fn task_of(options: &RescoreOptions, manifest: &Manifest, was: &Method) -> Result<Task> {
    const OF_SAMPLES: [&str; 6] = ["sampling", "prompt", "model", "adapter", "scorer", "name"];
    let of_samples = |set: &&String| OF_SAMPLES.contains(&set.split(['.', '=']).next().unwrap_or_default().trim());
    if let Some(set) = options.set.iter().find(of_samples) {
        let expected = "a key of `answer`, `grade`, `judge`, `method` or `items`, because the samples do not change";
        return Err(Error::value(SET, expected, format!("`{set}`")));
    }
    let overrides = Overrides { set: options.set.clone(), ..Overrides::default() };
    let task = match &options.task {
        Some(path) => Task::load(path, &overrides)?,
        None => Task::reload(&manifest.task_file, manifest.task.clone(), &overrides)?,
    };
    let (drawn, asked) = (was.samples(), task.method.samples());
    if drawn == asked || !was.draws_alike() || !task.method.draws_alike() {
        return Ok(task);
    }
    out::aside(format_args!("warning: the task has {asked} samples, the run {drawn}: the run's number is used"));
    Task::reload(&task.path, task.source, &Overrides { samples: Some(drawn), ..Overrides::default() })
}

/// Checks that the outcome of the task's method can be computed from samples of the run's method `was`.
fn check_method(task: &Task, manifest: &Manifest, was: &Method, lines: &[Map<String, Value>]) -> Result<()> {
    if task.method == *was || task.source.get("method") == manifest.task.get("method") {
        return Ok(());
    }
    let refused = |expected: &str| Err(Error::field(&task.path, "method", expected, task.method.described()));
    let is_told_by_samples = match &task.method {
        Method::SelfConsistency { scorer: None, .. } | Method::BestOfN { .. } | Method::Sample { .. } => true,
        // By the scores that samples have.
        Method::SelfConsistency { scorer: Some(SampleScorer::Reward(_)), .. }
        | Method::BestByScorer { scorer: SampleScorer::Reward(_), .. } => {
            new_scores(task, manifest)?;
            true
        }
        // Samples have the scores that a judge gave them, and these alone.
        Method::SelfConsistency { .. } | Method::BestByScorer { .. } => {
            lines.iter().all(|line| line.contains_key("scorer")) && task.method.sample_scorer() == was.sample_scorer()
        }
        _ => false,
    };
    if !was.draws_alike() || !is_told_by_samples || task.method.spares().is_some() {
        return refused(
            "the run's own method (or, of independent samples, `sample`, or `self_consistency` and `best_of_n` by \
             `logprob`, `mean_logprob` or `grade` that stop nothing early), for no model is asked",
        );
    }
    if was.warm_up().is_some() || !knows_confidences(was, &task.method) {
        return refused(
            "the run's own method (or, of samples that are whole, one whose `confidence` is of windows that the run \
             has measured)",
        );
    }
    let cancelled = |line: &Map<String, Value>| line.get("cancelled").and_then(Value::as_u64).unwrap_or(0);
    match lines.iter().map(cancelled).sum::<u64>() {
        0 => Ok(()),
        spared => refused(&format!("the run's own method, by which {} were spared", counted(spared, "sample"))),
    }
}

/// How the task's method scores samples, of the scores that those of the run have; `None`: it asks for none.
///
/// # Errors
///
/// The samples have no scores, those of other steps, or logits, which have no product.
fn new_scores(task: &Task, manifest: &Manifest) -> Result<Option<RecordedScores>> {
    let Some(RewardScoring { delimiter, aggregate }) = task.method.reward_of_samples() else { return Ok(None) };
    let of_method = format!("method.{}", task.method.name());
    let Some(recorded) = manifest.scorer.as_ref().and_then(|scorer| scorer.samples.as_ref()) else {
        let expected = "a run whose samples have a scorer's scores (`offshoot score RUN` gives them)";
        return Err(Error::field(&task.path, of_method, expected, "one whose manifest says of none"));
    };
    if *delimiter != recorded.delimiter {
        let expected = format!("{:?}, behind which the steps end that have scores", recorded.delimiter);
        return Err(Error::field(&task.path, format!("{of_method}.delimiter"), expected, format!("{delimiter:?}")));
    }
    let aggregate = aggregate.unwrap_or(recorded.form_aggregate);
    if !aggregate.fits(recorded.scale) {
        let expected = "last, min or mean, as the scorer's scores are logits";
        return Err(Error::field(&task.path, format!("{of_method}.aggregate"), expected, "product"));
    }
    Ok(Some(RecordedScores { aggregate, ..recorded.clone() }))
}

/// Whether samples of the method `was` have the confidences that the method `now` weighs. What they list is told by
/// each sample.
fn knows_confidences(was: &Method, now: &Method) -> bool {
    let measured = |method: &Method| match method {
        Method::SelfConsistency { confidence: Some(how), .. } if how.source != ConfidenceSource::Listed => {
            Some((how.source, how.windows.window))
        }
        _ => None,
    };
    measured(now).is_none_or(|now| measured(was) == Some(now))
}

fn say_what_is_left_out(graded: &Graded) {
    if let [first, ..] = &graded.failed[..] {
        let failed = counted(graded.failed.len() as u64, "item");
        out::aside(format_args!(
            "warning: {failed} failed in the run, first `{first}`, and left out (`offshoot run {RESUME}` tries again)"
        ));
    }
    if graded.unfinished > 0 {
        let unfinished = counted(graded.unfinished as u64, "item");
        out::aside(format_args!("warning: {unfinished} not finished by the run: their samples are not counted"));
    }
}

/// Warns that sampling was stopped early by the old answers and grades.
fn say_what_was_stopped(graded: &Graded, task: &Task, manifest: &Manifest) {
    let (stopped, open) = graded.stopped_early(&task.method);
    let has_changed = |key: &str| task.source.get(key) != manifest.task.get(key);
    let items = counted(stopped as u64, "item");
    match task.method.spares() {
        Some(EarlyStop::Decided) if stopped > 0 && (open > 0 || has_changed("answer")) => out::aside(format_args!(
            "warning: the votes of {items} were stopped when the run's own answers decided them; {open} of these are \
             not decided by the answers found now"
        )),
        Some(EarlyStop::Passed) if stopped > 0 && (open > 0 || has_changed("answer") || has_changed("grade")) => {
            out::aside(format_args!(
                "warning: {items} were stopped when a sample passed the run's own grader; in {open} of these none \
                 passes now"
            ));
        }
        _ => {}
    }
}

/// Moves the trees to another folder: their names are the items' indices in the run.
fn put_trees_aside(folder: &Path) -> Result<()> {
    let trees = folder.join("trees");
    if !trees.exists() {
        return Ok(());
    }
    let aside = free_path(&folder.join("trees.before"));
    out::aside(format_args!(
        "warning: items have other indices than in the run: its trees are now in {}",
        aside.display()
    ));
    fs::rename(&trees, &aside).map_err(Error::io(&trees, "rename"))
}
