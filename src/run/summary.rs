//! From finished items to the numbers people report: accuracy, pass@k and maj@k with intervals, beside the engine's counters.

use crate::error::Result;
use crate::report::{AtK, Estimate, Summary};
use crate::search::Sample;
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
