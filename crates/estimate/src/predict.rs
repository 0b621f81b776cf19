//! Predicts a job's time: `replay` runs it with the real scheduler on a simulated device, once per policy; the result
//! is reduced to what a page can show.

use std::time::Duration;

use serde::Serialize;

use super::device::DescribedDevice;
use super::job::{PlannedJob, PromptSamples};
use super::sharing::SamplePrompts;
use crate::replay;
use crate::replay::{
    Policy, PromptGroup, ReplayRequest, ReplaySettings, StepRecord, Totals, TracePrompt, prompt_groups,
};
use offshoot_core::error::Result;
use offshoot_kv::{PromptTree, Prompts};

/// Number of time slices of a run.
const PARTS: usize = 240;

/// The prediction for one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    pub policy: &'static str,
    /// Most samples that run at once, if memory suffices.
    pub branches: usize,
    #[serde(flatten)]
    pub totals: Totals,
    /// Mean tokens per step, of prompts and samples.
    pub tokens_per_step: f64,
    /// The run in slices of equal time.
    pub parts: Vec<TimeSlice>,
}

/// Means over the steps that end in a slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeSlice {
    pub prompt_tokens: f64,
    pub drawn_tokens: f64,
}

/// Runs `job` first come, first served with an LRU cache; in the groups of one shared level, as BatchLLM does; and with
/// all levels. `samples`: the tree of the job's samples.
pub fn predict(job: &PlannedJob, samples: &PromptTree, device: &DescribedDevice) -> Result<Vec<Prediction>> {
    let ours = Policy::OURS.capped(device.branches);
    let policies = [
        ("first come", Policy::FCFS.capped(device.branches), requests(job)),
        // The groups' prefixes are the only common ones here, so the policy only has to find the order.
        ("single level", ours, grouped(job, samples)),
        ("all levels", ours, requests(job)),
    ];
    let run = |(name, policy, job): (&'static str, Policy, replay::ReplayJob)| {
        let settings = ReplaySettings { policy, ..device.settings };
        let branches = policy.max_branches(&job);
        let record = replay::replay(&device.machine, &settings, &job)?;
        let totals = record.totals(settings.step_rows);
        let rows: u64 = record.steps.iter().map(|step| step.rows).sum();
        Ok(Prediction {
            policy: name,
            branches,
            totals,
            tokens_per_step: rows as f64 / record.steps.len().max(1) as f64,
            parts: parts(&record.steps, totals.seconds),
        })
    };
    policies.into_iter().map(run).collect()
}

fn requests(job: &PlannedJob) -> replay::ReplayJob {
    let request = |(prompt, ask): (usize, &PromptSamples)| ReplayRequest {
        prompt: TracePrompt::Tokens(job.prompts.tokens(prompt).to_vec()),
        arrival: Duration::ZERO,
        samples: ask.samples as usize,
        output: ask.tokens as usize,
    };
    replay::ReplayJob::new(job.per_prompt.iter().enumerate().map(request).collect())
}

/// Every sample as its own request with synthetic tokens; only samples of one group share a prefix.
fn grouped(job: &PlannedJob, samples: &PromptTree) -> replay::ReplayJob {
    let (groups, count) = prompt_groups(samples);
    let prompts = SamplePrompts::of(job).prompts.into_iter();
    let request = |((prompt, group), own): ((u32, PromptGroup), u64)| {
        let prompt = prompt as usize;
        let (tokens, output) = (job.prompts.tokens(prompt).len(), job.per_prompt[prompt].tokens as usize);
        ReplayRequest { prompt: group.prompt(tokens, own), arrival: Duration::ZERO, samples: 1, output }
    };
    replay::ReplayJob::new(prompts.zip(groups).zip(count..).map(request).collect())
}

fn parts(steps: &[StepRecord], seconds: f64) -> Vec<TimeSlice> {
    let mut parts = vec![(TimeSlice::default(), 0.0); PARTS];
    for step in steps {
        let at = ((step.end / seconds * PARTS as f64) as usize).min(PARTS - 1);
        let (part, count) = &mut parts[at];
        part.prompt_tokens += step.prompt_rows as f64;
        part.drawn_tokens += step.rows.saturating_sub(step.prompt_rows) as f64;
        *count += 1.0;
    }
    // A slice in which no step ends is part of a longer step: it gets the value of the next slice.
    let mut next = TimeSlice::default();
    for (part, count) in parts.iter_mut().rev() {
        if *count > 0.0 {
            next = TimeSlice { prompt_tokens: part.prompt_tokens / *count, drawn_tokens: part.drawn_tokens / *count };
        }
        *part = next;
    }
    parts.into_iter().map(|(part, _)| part).collect()
}
