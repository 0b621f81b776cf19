//! `offshoot run`: runs a task file. Checks the task, loads the model, works on several items at once (one driver per
//! thread, one engine for all), writes each result when it is ready and prints a summary. `search` defines how one
//! problem is searched.

mod assess;
pub mod attention;
pub mod demo;
mod drive;
mod dry_run;
mod judge;
#[cfg(test)]
mod judge_runs;
pub mod judging;
mod levels;
mod manifest;
mod options;
mod outcome;
mod prepare;
mod prompts;
mod regrade;
pub mod rescore;
mod resume;
mod sample_fields;
pub mod score;
#[cfg(test)]
mod scored_runs;
mod scorer;
mod summary;
mod tables;
#[cfg(test)]
mod test_task;
mod verdict_queue;
pub mod vote;
pub mod vote_scores;
mod worker;

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;

use offshoot_core::error::Result;
use offshoot_core::interrupt::Interrupt;
use offshoot_core::json;
use offshoot_core::out;
use offshoot_core::out::Progress;
use offshoot_score::TextScorer;

use drive::Scorers;
use judge::{ConnectedJudge, JudgeModel};
use manifest::Process;
pub use options::RunOptions;
pub use prepare::{PreparedRun, RenderedTask};
pub use prompts::ItemPrompt;
use resume::RunFolder;
use scorer::RunScorer;
pub use tables::ResultFormat;
use worker::ItemRunner;

/// Runs a task until it is done or `interrupt` asks to stop.
pub fn run(options: &RunOptions, interrupt: &Interrupt) -> Result<ExitCode> {
    let Some(path) = &options.task else { return demo::run(options, interrupt) };
    let prepared = PreparedRun::new(path, options)?;
    RunScorer::check(&prepared.task, prepared.scorer.as_ref())?;
    if let Some(scorer) = &prepared.scorer {
        scorer.warn_of_context(&prepared)?;
    }
    if options.dry_run {
        out::text(dry_run::report(&prepared, options)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let connected = prepared.judge.as_ref().map(JudgeModel::connect).transpose()?;
    let scorer = prepared.scorer.as_ref().map(|scorer| scorer.files(&prepared.task)).transpose()?;
    let judge = connected.as_ref().map_or(Ok(None), ConnectedJudge::record)?;
    let mut place = RunFolder::find(&prepared, options, scorer, judge)?;
    let launched = prepared.start(options)?;
    let judge = connected.filter(|_| prepared.asks_judge());
    let judge = judge.map(|judge| judge.start(&prepared, &launched)).transpose()?;
    if !place.is_resumed() {
        prepared.check_longest_path(launched.engine.facts(), |_| false)?;
    }
    let process = Process::on(&launched);
    place.manifest.warn_of_devices(&process);
    place.manifest.processes.push(process);
    let interrupted = interrupt.listen();
    let (journal, earlier) = place.open(&prepared)?;
    let had_tables = tables::remove(place.path())?;
    if place.is_resumed() {
        // Finished items need not fit into memory again.
        let done: HashSet<usize> = earlier.finished.iter().map(|item| item.index).collect();
        prepared.check_longest_path(launched.engine.facts(), |index| done.contains(&index))?;
    }
    let progress = Progress::new(prepared.items.len());
    let runner = ItemRunner {
        prepared: &prepared,
        launched: &launched,
        by: Scorers { reward: launched.scorer().map(|scorer| &**scorer as &dyn TextScorer), judge: judge.as_ref() },
        options,
        journal: Some(&journal),
        progress: &progress,
        interrupted,
    };
    let run = runner.work(earlier);
    progress.finish();
    let mut run = run?;
    place.manifest.end(run.summary.prompts);
    (run.summary.prompts, run.summary.uncounted_processes) = place.manifest.prompts();
    let completions = match prepared.task.is_judged() {
        true => assess::completions(&prepared.items, &run.finished)
            .and_then(|lines| journal.file("completions.jsonl", &lines)),
        false => Ok(()),
    };
    // Everything is written as far as possible; the first error is returned.
    let printed = match options.json {
        true => json_of("the summary", &run.summary, place.path()).and_then(out::line),
        false => out::text(format_args!("{}{:<11} {}\n", run.summary, "results", place.path().display())),
    };
    let summed =
        json::pretty("the summary", &run.summary).and_then(|text| journal.file("summary.json", &(text + "\n")));
    let noted = place.manifest.text().and_then(|text| journal.file(manifest::NAME, &text));
    // Lines that others replace are left out by it.
    let sorted = match run.ended.is_none() || prepared.writes_again() {
        true => journal.finish(),
        false => Ok(()),
    };
    let tabled = match had_tables || options.format == ResultFormat::Parquet {
        true => tables::write(place.path()),
        false => Ok(()),
    };
    let written = summed.and(completions).and(noted).and(sorted).and(tabled);
    run.ended.take().map_or(Ok(()), Err).and(written).and(printed)?;
    run.failure(&prepared.items, options, place.path()).map(|()| ExitCode::SUCCESS)
}

/// A summary and the place of its results, for programs; `what`: its name in an error.
fn json_of(what: &str, summary: &impl Serialize, results: &Path) -> Result<Value> {
    let mut object = json::value(what, summary)?;
    object["results"] = results.display().to_string().into();
    Ok(object)
}
