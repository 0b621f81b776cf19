//! From finished items to the numbers people report: accuracy, pass@k and maj@k with intervals, beside the engine's counters.

use crate::error::Result;
use crate::report::{AtK, Estimate, Summary};
use crate::search::{Sample, tally, verdict_on};
use crate::task::stats;

use super::worker::Finished;
use super::{Loaded, Prepared, RunOptions};

/// The k for which pass@k and maj@k are reported, as far as there are samples.
const KS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

pub fn summarise(
    prepared: &Prepared,
    loaded: &Loaded,
    options: &RunOptions,
    finished: &[Finished],
    seconds: f64,
) -> Result<Summary> {
    let task = &prepared.task;
    let samples: Vec<&[Sample]> = finished.iter().map(|item| item.outcome.samples.as_slice()).collect();
    let all = || samples.iter().flat_map(|samples| samples.iter());
    let chosen: Vec<bool> = finished.iter().filter_map(|item| item.outcome.correct).collect();
    Ok(Summary {
        task: task.name.clone(),
        method: format!("{} with {} samples", task.method.name(), task.method.samples()),
        model: prepared.model.display().to_string(),
        device: loaded.engine.facts().device.clone(),
        plan: plan_name(options),
        seed: task.sampling.seed,
        items: finished.len(),
        items_asked: prepared.prompts.len(),
        samples: all().count(),
        cancelled: finished.iter().map(|item| item.outcome.cancelled).sum(),
        without_answer: if task.has_answers() { all().filter(|sample| sample.answer.is_none()).count() } else { 0 },
        accuracy: share(chosen.iter().filter(|&&right| right).count(), chosen.len()),
        single: mean(&samples.iter().filter_map(|samples| single(samples)).collect::<Vec<_>>()),
        pass_at: at_k(&samples, pass_at_k),
        maj_at: if task.has_answers() { at_k(&samples, maj_at_k) } else { Vec::new() },
        seconds,
        seconds_loading: loaded.seconds_loading,
        engine: loaded.engine.metrics()?,
    })
}

fn plan_name(options: &RunOptions) -> String {
    let value = clap::ValueEnum::to_possible_value(&options.plan);
    value.map(|value| value.get_name().to_string()).unwrap_or_default()
}

/// A share of items with its Wilson interval.
fn share(right: usize, of: usize) -> Option<Estimate> {
    let (low, high) = stats::wilson(right as u32, of as u32)?;
    Some(Estimate { value: right as f64 / of as f64, low, high })
}

/// A mean over items with its bootstrap interval.
fn mean(values: &[f64]) -> Option<Estimate> {
    let (low, high) = stats::bootstrap(values, 0)?;
    Some(Estimate { value: values.iter().sum::<f64>() / values.len() as f64, low, high })
}

/// Share of an item's samples that are right; `None` without a grader.
fn single(samples: &[Sample]) -> Option<f64> {
    let verdicts: Vec<bool> = samples.iter().filter_map(|sample| sample.correct).collect();
    let right = verdicts.iter().filter(|&&right| right).count();
    (!verdicts.is_empty()).then(|| right as f64 / verdicts.len() as f64)
}

/// `value` at each k, over the items for which it is defined; left out where that is none. Of single samples there is nothing
/// to say that `single` does not.
fn at_k(items: &[&[Sample]], value: fn(&[Sample], u32) -> Option<f64>) -> Vec<AtK> {
    let estimate = |k: usize| {
        let values: Vec<f64> = items.iter().filter_map(|samples| value(samples, k as u32)).collect();
        Some(AtK { k, items: values.len(), estimate: mean(&values)? })
    };
    let all: Vec<AtK> = KS.into_iter().filter_map(estimate).collect();
    if all.len() > 1 { all } else { Vec::new() }
}

fn pass_at_k(samples: &[Sample], k: u32) -> Option<f64> {
    let verdicts = samples.iter().map(|sample| sample.correct).collect::<Option<Vec<bool>>>()?;
    let right = verdicts.iter().filter(|&&right| right).count();
    stats::pass_at_k(verdicts.len() as u32, right as u32, k)
}

fn maj_at_k(samples: &[Sample], k: u32) -> Option<f64> {
    samples.first()?.correct?;
    tally(samples).maj_at_k(|answer| verdict_on(answer, samples) == Some(true), k)
}
