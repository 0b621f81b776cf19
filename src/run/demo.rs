//! `offshoot run` without a task: the first five minutes. A few word problems by vote, one sample beside the vote; then the
//! same samples drawn under a flat and under a tree plan, side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use crate::error::{Error, Result};
use crate::plan::Planner;
use crate::report::{bytes, count};

use super::progress::Progress;
use super::worker::{Finished, Run, work};
use super::{Prepared, RunOptions, dry_run, load};

/// Problems of the vote, and of the comparison of plans; few enough that the first result is there in seconds.
const VOTE_ITEMS: usize = 8;
const PLAN_ITEMS: usize = 3;

pub fn run(options: &RunOptions, interrupted: &AtomicBool) -> Result<ExitCode> {
    let path = bundled("words-vote.json")?;
    let vote = RunOptions { limit: options.limit.or(Some(VOTE_ITEMS)), ..options.clone() };
    let prepared = Prepared::new(&path, &vote)?;
    if options.dry_run {
        print!("{}", dry_run::report(&prepared, &vote)?);
        return Ok(ExitCode::SUCCESS);
    }
    let samples = prepared.task.method.samples();
    println!("{} word problems, {samples} samples each, the majority's answer counts.\n", prepared.prompts.len());
    let run = quietly(&prepared, &vote, interrupted)?;
    if let Some(first) = run.finished.first() {
        show(&prepared, first);
    }
    println!("\n{}", run.summary);
    if let Some(ended) = run.ended {
        return Err(ended);
    }

    println!("The same samples with and without sharing ({PLAN_ITEMS} problems):\n");
    compare_plans(&path, options, interrupted)?;
    println!("\nNext: offshoot run {} for all of them, with results on disk.", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Draws the same samples under two plans; the tokens must be the same, only time and bytes differ.
fn compare_plans(path: &Path, options: &RunOptions, interrupted: &AtomicBool) -> Result<()> {
    println!("{:<6} {:>9} {:>12} {:>12}", "plan", "seconds", "tokens/s", "KV read");
    let mut texts: Option<Vec<String>> = None;
    for plan in [Planner::Flat, Planner::Tree] {
        let options = RunOptions { limit: Some(PLAN_ITEMS), plan, ..options.clone() };
        let run = quietly(&Prepared::new(path, &options)?, &options, interrupted)?;
        if let Some(ended) = run.ended {
            return Err(ended);
        }
        let summary = &run.summary;
        let rate = count(summary.tokens_per_second() as u64);
        let read = bytes(summary.engine.kv_bytes_read);
        println!("{:<6} {:>9.2} {rate:>12} {read:>12}", summary.plan, summary.seconds);
        let drawn: Vec<String> = run.finished.iter().flat_map(texts_of).collect();
        match &texts {
            Some(before) if *before != drawn => {
                return Err(Error::Internal("two plans drew different samples".to_string()));
            }
            Some(_) => println!("\nAll {} samples are the same, to the letter.", drawn.len()),
            None => texts = Some(drawn),
        }
    }
    Ok(())
}

fn texts_of(item: &Finished) -> impl Iterator<Item = String> {
    item.outcome.samples.iter().map(|sample| sample.text.clone())
}

/// A run that leaves nothing on disk.
fn quietly(prepared: &Prepared, options: &RunOptions, interrupted: &AtomicBool) -> Result<Run> {
    let loaded = load(prepared, options)?;
    let progress = Progress::new(prepared.prompts.len());
    let run = work(prepared, &loaded, options, None, &progress, interrupted);
    progress.finish();
    run
}

/// One problem: its question, its first sample, and what all samples voted for.
fn show(prepared: &Prepared, item: &Finished) {
    let Some(prompt) = prepared.prompts.iter().find(|prompt| prompt.item.index == item.index) else { return };
    let question = prompt.item.fields.get("question").and_then(|value| value.as_str()).unwrap_or_default();
    println!("{question}");
    if let Some(first) = item.outcome.samples.first() {
        println!("\none sample ({}):", verdict(first.correct));
        for line in first.text.trim().lines() {
            println!("  {line}");
        }
    }
    println!("\nthe vote of {} ({}):", item.outcome.samples.len(), verdict(item.outcome.correct));
    for (answer, votes) in item.outcome.votes.iter().take(4) {
        println!("  {votes:>4} x {answer}");
    }
}

fn verdict(correct: Option<bool>) -> &'static str {
    match correct {
        Some(true) => "right",
        Some(false) => "wrong",
        None => "not graded",
    }
}

/// A file of the bundled tasks: beneath the current folder, beside the binary's build folder, or where it was built.
fn bundled(name: &str) -> Result<PathBuf> {
    let beside_binary = std::env::current_exe().ok();
    let folders = beside_binary.iter().flat_map(|exe| exe.ancestors().skip(1)).map(Path::to_path_buf);
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let places = [PathBuf::new()].into_iter().chain(folders).chain([built]);
    let found = places.map(|folder| folder.join("tasks").join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let expected = "beneath the current folder or beside the binary";
        Error::value(
            format!("the bundled task tasks/{name}"),
            expected,
            "nothing: name a task file, or use `offshoot new`",
        )
    })
}
