//! `offshoot run` without a task: a demonstration. It solves a few word problems by vote and shows the first one as
//! soon as it is done; then it generates the same samples under a flat and under a tree plan and compares them.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::task::{Item, Method};
use offshoot_core::bundled::bundled;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{bytes, count};
use offshoot_core::interrupt::Interrupt;
use offshoot_core::out;
use offshoot_kv::plan::Planner;
use offshoot_launch::EngineOptions;
use offshoot_search::vote::Decided;

use super::drive::Scorers;
use super::dry_run;
use super::options::RunOptions;
use super::outcome::{Finished, RunOutcome};
use super::prepare::PreparedRun;
use super::resume::Earlier;
use super::worker::ItemRunner;
use offshoot_core::out::Progress;
use offshoot_core::setting::{JSON, OUT, PLAN, RESUME, TREES};
use offshoot_core::sorting::sort_by_number;

/// Number of problems of the vote, and of the comparison of plans; few, so that results appear in seconds.
const VOTE_ITEMS: usize = 8;
const PLAN_ITEMS: usize = 3;

pub fn run(options: &RunOptions, interrupt: &Interrupt) -> Result<ExitCode> {
    refuse_what_needs_a_task(options)?;
    let path = bundled("words-vote.json")?;
    let vote = RunOptions { limit: options.limit.or(Some(VOTE_ITEMS)), ..options.clone() };
    let mut prepared = PreparedRun::new(&path, &vote)?;
    if options.dry_run {
        out::text(dry_run::report(&prepared, &vote)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let by_tokens: Vec<usize> = prepared.encode_all()?.0.iter().map(|prompt| prompt.item.index).collect();
    let place = |item: &Item| by_tokens.iter().position(|&index| index == item.index);
    sort_by_number(&mut prepared.items, |item| place(item).map_or(0, |place| 1 + place as u64));
    let (items, samples) = (prepared.items.len(), prepared.task.method.samples());
    out::line(format_args!("{items} word problems, {samples} samples each, the majority's answer counts.\n"))?;
    let run = the_vote(&prepared, &vote, interrupt)?;
    out::line(format_args!("\n{}", run.summary))?;
    if let Some(ended) = run.ended {
        return Err(ended);
    }

    prepared.items.truncate(PLAN_ITEMS);
    out::line(format_args!("The same samples with and without sharing ({} problems):\n", prepared.items.len()))?;
    compare_plans(&mut prepared, options, interrupt.listen())?;
    out::line(format_args!("\nNext: offshoot run {} for all of them, with results on disk.", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses options that the demo would ignore.
fn refuse_what_needs_a_task(options: &RunOptions) -> Result<()> {
    let given = [
        (OUT, options.out.is_some()),
        (RESUME, options.resume),
        (TREES, options.trees),
        (PLAN, options.engine.plan.is_some()),
        (JSON, options.json),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Error::value(
            *option,
            "a task file with it",
            "none (the demo writes nothing and compares plans itself)",
        )),
        None => Ok(()),
    }
}

/// Solves the problems by vote. The first runs alone and is shown at once; the others follow, several at a time.
fn the_vote(prepared: &PreparedRun, options: &RunOptions, interrupt: &Interrupt) -> Result<RunOutcome> {
    let launched = prepared.start(options)?;
    let interrupted = interrupt.listen();
    let started = Instant::now();
    let progress = Progress::new(prepared.items.len());
    let runner = ItemRunner {
        prepared,
        launched: &launched,
        by: Scorers::default(),
        options,
        journal: None,
        progress: &progress,
        interrupted,
    };
    let (first, others) = prepared.items.split_at(1);
    let mut searched = runner.search_all(first, Earlier::default());
    let shown = progress.aside(|| searched.finished.first().map_or(Ok(()), |item| show(&first[0], item)));
    if searched.ended.is_none() && shown.is_ok() {
        let levels = std::mem::take(&mut searched.levels);
        let rest = runner.search_all(others, Earlier { levels, ..Earlier::default() });
        searched.finished.extend(rest.finished);
        (searched.ended, searched.levels) = (rest.ended, rest.levels);
    }
    progress.finish();
    shown?;
    runner.sum_up(searched, started.elapsed().as_secs_f64())
}

/// Generates the same samples under two plans. Only time and bytes differ; on a device that is not exact, rounding may
/// change a few samples.
fn compare_plans(prepared: &mut PreparedRun, options: &RunOptions, interrupted: &AtomicBool) -> Result<()> {
    // A vote that is decided early would leave little to compare.
    if let Method::SelfConsistency { stop, .. } = &mut prepared.task.method {
        *stop = Decided::Never;
    }
    out::line(format_args!("{:<6} {:>9} {:>12} {:>12} {:>12}", "plan", "seconds", "tokens/s", "KV read", "KV held"))?;
    let mut texts: Option<Vec<String>> = None;
    for plan in [Planner::Flat, Planner::Tree] {
        let engine = EngineOptions { plan: Some(plan), ..options.engine.clone() };
        let options = RunOptions { engine, ..options.clone() };
        let (run, exact) = quietly(prepared, &options, interrupted)?;
        if let Some(ended) = run.ended {
            return Err(ended);
        }
        let summary = &run.summary;
        let rate = count(summary.tokens_per_second() as u64);
        let (read, held) = (bytes(summary.engine.kv_bytes_read), bytes(summary.engine.kv_bytes_peak));
        out::line(format_args!("{plan:<6} {:>9.2} {rate:>12} {read:>12} {held:>12}", summary.seconds))?;
        let drawn: Vec<String> = run.finished.iter().flat_map(texts_of).collect();
        match &texts {
            Some(before) => {
                let same = before.iter().zip(&drawn).filter(|(a, b)| a == b).count();
                match drawn.len() {
                    all if same == all => out::line(format_args!("\nAll {all} samples are the same, to the letter."))?,
                    _ if exact => return Err(Error::Internal("two plans gave different samples".to_string())),
                    all => out::line(format_args!(
                        "\n{same} of {all} samples are the same, to the letter; here plans differ in roundings."
                    ))?,
                }
            }
            None => texts = Some(drawn),
        }
    }
    Ok(())
}

fn texts_of(item: &Finished) -> impl Iterator<Item = String> {
    item.outcome.samples.iter().map(|sample| sample.text.clone())
}

/// Runs without writing to disk; also returns whether the device is exact.
fn quietly(prepared: &PreparedRun, options: &RunOptions, interrupted: &AtomicBool) -> Result<(RunOutcome, bool)> {
    let launched = prepared.start(options)?;
    let progress = Progress::new(prepared.items.len());
    let runner = ItemRunner {
        prepared,
        launched: &launched,
        by: Scorers::default(),
        options,
        journal: None,
        progress: &progress,
        interrupted,
    };
    let run = runner.work(Earlier::default());
    progress.finish();
    Ok((run?, launched.engine.facts().batch_invariant))
}

/// Prints a problem's question, its first sample and the vote of all samples.
fn show(problem: &Item, item: &Finished) -> Result<()> {
    out::line(problem.fields.get("question").and_then(|value| value.as_str()).unwrap_or_default())?;
    if let Some(first) = item.outcome.samples.first() {
        out::line(format_args!("\none sample ({}):", verdict(first.correct)))?;
        for line in first.text.trim().lines() {
            out::line(format_args!("  {line}"))?;
        }
    }
    out::line(format_args!("\nthe vote of {} ({}):", item.outcome.samples.len(), verdict(item.outcome.correct)))?;
    for (answer, votes) in item.outcome.votes.iter().take(4) {
        out::line(format_args!("  {votes:>4} x {answer}"))?;
    }
    Ok(())
}

fn verdict(correct: Option<bool>) -> &'static str {
    match correct {
        Some(true) => "right",
        Some(false) => "wrong",
        None => "not graded",
    }
}
