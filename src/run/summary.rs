//! From finished items to the numbers people report: accuracy, pass@k and maj@k with intervals, beside the engine's counters.

use crate::error::Result;
use crate::report::{AtK, Estimate, Interval, Summary};
use crate::search::{Sample, tally, verdict_on};
use crate::task::{BestBy, Method, Scoring, stats};

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
    let cancelled = finished.iter().map(|item| item.outcome.cancelled).sum();
    // Where a vote was stopped once it was decided, the samples that it has lean to the winner.
    let unbiased = if cancelled == 0 && task.method.draws_alike() { samples.as_slice() } else { &[] };
    Ok(Summary {
        task: task.name.clone(),
        method: task.method.described(),
        model: prepared.model.display().to_string(),
        device: loaded.engine.facts().device.clone(),
        not_cuda: loaded.not_cuda.as_ref().map(ToString::to_string),
        plan: options.plan.unwrap_or_default(),
        seed: task.sampling.seed,
        items: finished.len(),
        items_asked: prepared.prompts.len(),
        samples: all().count(),
        unfinished_samples: 0,
        failed: 0,
        cancelled,
        without_answer: if task.has_answers() { all().filter(|sample| sample.answer.is_none()).count() } else { 0 },
        accuracy: share(chosen.iter().filter(|&&right| right).count(), chosen.len()),
        chosen_by_grader: matches!(task.method, Method::BestOfN { by: BestBy::Grade, .. })
            || task.method.scoring() == Some(&Scoring::Grade),
        single: mean(unbiased, 1, single),
        pass_at: at_k(unbiased, pass_at_k),
        maj_at: if task.has_answers() { at_k(unbiased, maj_at_k) } else { Vec::new() },
        seconds,
        seconds_loading: loaded.seconds_loading,
        engine: loaded.engine.metrics()?,
    })
}

/// A share of items with its Wilson interval.
fn share(right: usize, of: usize) -> Option<Estimate> {
    let (low, high) = stats::wilson(right as u32, of as u32)?;
    Some(Estimate { value: right as f64 / of as f64, interval: Some(Interval { low, high }) })
}

/// The mean of `value` over the items for which it is defined. Where each of them is one verdict (it has `drawn` samples, all
/// of which count) the interval is Wilson's; else it is by bootstrap, which has nothing to say of values that are all equal.
fn mean(items: &[&[Sample]], drawn: usize, value: impl Fn(&[Sample]) -> Option<f64>) -> Option<Estimate> {
    let defined: Vec<(usize, f64)> = items.iter().filter_map(|item| Some((item.len(), value(item)?))).collect();
    let values: Vec<f64> = defined.iter().map(|&(_, value)| value).collect();
    // A tied vote is a half, not a verdict; maj@k comes out of logarithms, so a whole one is so but for roundings.
    let verdict = |&(samples, value): &(usize, f64)| samples == drawn && (value - value.round()).abs() < 1e-9;
    if !values.is_empty() && defined.iter().all(verdict) {
        return share(values.iter().filter(|&&value| value > 0.5).count(), values.len());
    }
    let (low, high) = stats::bootstrap(&values, 0)?;
    let differ = values.iter().any(|value| *value != values[0]);
    let value = values.iter().sum::<f64>() / values.len() as f64;
    Some(Estimate { value, interval: differ.then_some(Interval { low, high }) })
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
        let at = |samples: &[Sample]| value(samples, k as u32);
        let covered = items.iter().filter(|samples| at(samples).is_some()).count();
        Some(AtK { k, items: covered, estimate: mean(items, k, at)? })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FinishReason;

    fn samples(verdicts: &[bool]) -> Vec<Sample> {
        let sample = |(index, &right): (usize, &bool)| Sample {
            index: index as u64,
            text: String::new(),
            tokens: 1,
            finish: FinishReason::EndOfText,
            logprob: -1.0,
            logprobs: None,
            answer: Some(right.to_string()),
            correct: Some(right),
            judged: None,
        };
        verdicts.iter().enumerate().map(sample).collect()
    }

    #[test]
    fn an_interval_never_collapses() {
        let (right, mixed) = (samples(&[true, true]), samples(&[true, false]));
        let certain = mean(&[&right, &right], 1, single).expect("two items");
        assert_eq!((certain.value, certain.interval), (1.0, None), "equal values say nothing of how sure they are");
        let spread = mean(&[&right, &mixed], 1, single).expect("two items");
        let interval = spread.interval.expect("the values differ");
        assert!(interval.low < spread.value && spread.value < interval.high, "{spread:?}");

        let alone = samples(&[true]);
        let one_each = mean(&[&alone, &alone, &alone], 1, single).expect("three items");
        assert_eq!(Some(one_each), share(3, 3), "one verdict an item: Wilson");
    }

    #[test]
    fn at_k_counts_the_items_that_it_covers() {
        let (two, four) = (samples(&[true, false]), samples(&[true, true, false, false]));
        let covered: Vec<_> = at_k(&[&two, &four], pass_at_k).iter().map(|at| (at.k, at.items)).collect();
        assert_eq!(covered, [(1, 2), (2, 2), (4, 1)]);
    }
}
