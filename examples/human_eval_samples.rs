//! Judges the real samples of HumanEval that another model made and holds the verdicts against those of the reference harness.
//!
//! `cargo run --release --example human_eval_samples -- HumanEval.jsonl.gz SAMPLES.jsonl REFERENCE.jsonl [EVERY]`: SAMPLES has a row
//! a problem, `{"samples": [text, ...]}`; REFERENCE a row a sample, `{"task_id", "row", "index", "result"}`: which problem the row
//! of SAMPLES is about, which of its samples this is, and "passed" where the reference harness accepts it. Of each problem's samples every EVERY-th is judged. Each difference is a line.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use offshoot::judge::sandbox::enter_if_helper;
use offshoot::judge::{Isolation, Judge, Judgement, Language};
use offshoot::task::benchmark;
use offshoot::task::problem::Problem;
use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    enter_if_helper();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [problems, samples, reference, rest @ ..] = arguments.as_slice() else {
        return Err("three files are expected: problems, samples, reference verdicts".into());
    };
    let every: usize = rest.first().map_or(Ok(1), |every| every.parse())?;
    let problems = benchmark::read(problems.as_ref(), None)?;
    let rows = lines(File::open(samples)?)?;
    let mut by_id: HashMap<String, Problem> = HashMap::new();
    for entry in problems {
        let entry = entry?;
        by_id.extend(entry.problem.map(|problem| (entry.id, problem)));
    }
    let mut jobs = Vec::new();
    for told in lines(File::open(reference)?)? {
        let (row, index) = (number(&told, "row"), number(&told, "index"));
        if index % every == 0 {
            let id = text(&told, "task_id");
            let problem = by_id.get(&id).ok_or_else(|| format!("{id} is not among the problems"))?;
            let sample = rows[row]["samples"][index].as_str().ok_or("a sample that is no text")?.to_string();
            jobs.push((problem, index, sample, text(&told, "result")));
        }
    }
    let judge = Judge::open(Isolation::Required)?;
    let next = AtomicUsize::new(0);
    let judged: Mutex<Vec<Judgement>> = Mutex::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((problem, index, sample, result)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match judge.judge(problem, &Language::Python, sample) {
                        Ok(judgement) => {
                            if (result == "passed") != judgement.accepted() {
                                let Judgement { verdict, message, cpu, .. } = &judgement;
                                let why = message.as_deref().unwrap_or("");
                                println!("{} {index}: {verdict} {why} ({cpu:.1?}); reference: {result}", problem.id);
                            }
                            judged.lock().unwrap_or_else(PoisonError::into_inner).push(judgement);
                        }
                        Err(error) => println!("{} {index}: {error}", problem.id),
                    }
                }
            });
        }
    });
    let judged = judged.into_inner().unwrap_or_else(PoisonError::into_inner);
    let total = |of: fn(&Judgement) -> Duration| judged.iter().map(|judgement| of(judgement)).sum::<Duration>();
    println!(
        "{} samples, {} accepted, in {:.1?} on 2 threads; candidates: {:.1?} on the clock, {:.1?} of processor time",
        judged.len(),
        judged.iter().filter(|judgement| judgement.accepted()).count(),
        start.elapsed(),
        total(|judgement| judgement.wall),
        total(|judgement| judgement.cpu),
    );
    Ok(())
}

fn lines(file: impl Read) -> Result<Vec<Value>, Box<dyn Error>> {
    BufReader::new(file).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn number(row: &Value, field: &str) -> usize {
    row[field].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

fn text(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or("").to_string()
}
