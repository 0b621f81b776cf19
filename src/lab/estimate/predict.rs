//! A job run by the real scheduler on a device that keeps time and computes nothing, once for each policy: `replay` does it,
//! here it is asked and what it says is brought down to what a page can show.

use std::time::Duration;

use serde::Serialize;

use super::device::Device;
use super::job::{Ask, Job};
use super::sharing::Samples;
use crate::error::Result;
use crate::kv::{PromptTree, Prompts};
use crate::lab::replay;
use crate::lab::replay::{Policy, Prompt, Request, Run, Settings, StepRecord, Totals};

/// Parts of a run's time for which a mean is kept.
const PARTS: usize = 240;

/// What a job comes to by one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    pub policy: &'static str,
    /// Samples that may grow at once, where memory suffices.
    pub branches: usize,
    #[serde(flatten)]
    pub totals: Totals,
    /// Mean tokens of a step, prompts' and drawn ones.
    pub tokens_per_step: f64,
    /// The run in parts of equal time.
    pub parts: Vec<Part>,
}

/// Means over the steps that end in one part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Part {
    pub prompt_tokens: f64,
    pub drawn_tokens: f64,
}

/// Runs `job` first come, first served with what was used last kept; in the groups of one shared level, as BatchLLM would; and
/// by all levels. `samples` is the tree of its samples.
pub fn predict(job: &Job, samples: &PromptTree, device: &Device) -> Result<Vec<Prediction>> {
    let ours = Policy::OURS.capped(device.branches());
    let policies = [
        ("first come", Policy::FCFS.capped(device.branches()), requests(job)),
        // What the groups share is all that is alike in them, so that their order is all that the policy has to find.
        ("single level", ours, grouped(job, samples)),
        ("all levels", ours, requests(job)),
    ];
    let run = |(name, policy, job): (&'static str, Policy, replay::Job)| {
        let settings = Settings { policy, ..device.settings };
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

fn requests(job: &Job) -> replay::Job {
    let request = |(prompt, ask): (usize, &Ask)| Request {
        prompt: Prompt::Tokens(job.prompts.tokens(prompt).to_vec()),
        arrival: Duration::ZERO,
        samples: ask.samples as usize,
        output: ask.tokens as usize,
    };
    replay::Job::new(job.asks.iter().enumerate().map(request).collect())
}

/// Every sample as a request of its own, with other tokens: alike are only what samples of one group share, one beginning each.
fn grouped(job: &Job, samples: &PromptTree) -> replay::Job {
    let prompts = Samples::of(job).prompts;
    let groups = samples.single_level_nodes();
    let mut shared: Vec<Option<Run>> = vec![None; prompts.len()];
    for (&node, text) in groups.iter().zip(0u64..) {
        let node = &samples.nodes()[node as usize];
        for sorted in &samples.sorted()[node.prompts.start as usize..node.prompts.end as usize] {
            shared[sorted.prompt as usize] = Some(Run { text, tokens: node.end as usize });
        }
    }
    let request = |((&prompt, shared), text): ((&u32, Option<Run>), u64)| {
        let kept = shared.map_or(0, |run| run.tokens);
        let own = Run { text, tokens: job.prompts.tokens(prompt as usize).len() - kept };
        let runs = shared.into_iter().chain([own]).filter(|run| run.tokens > 0).collect();
        let output = job.asks[prompt as usize].tokens as usize;
        Request { prompt: Prompt::Runs(runs), arrival: Duration::ZERO, samples: 1, output }
    };
    let texts = groups.len() as u64..;
    replay::Job::new(prompts.iter().zip(shared).zip(texts).map(request).collect())
}

fn parts(steps: &[StepRecord], seconds: f64) -> Vec<Part> {
    let mut parts = vec![(Part::default(), 0.0); PARTS];
    for step in steps {
        let at = ((step.end / seconds * PARTS as f64) as usize).min(PARTS - 1);
        let (part, count) = &mut parts[at];
        part.prompt_tokens += step.prompt_rows as f64;
        part.drawn_tokens += step.rows.saturating_sub(step.prompt_rows) as f64;
        *count += 1.0;
    }
    // A part in which no step ends is within one that lasts: what the next one has.
    let mut next = Part::default();
    for (part, count) in parts.iter_mut().rev() {
        if *count > 0.0 {
            next = Part { prompt_tokens: part.prompt_tokens / *count, drawn_tokens: part.drawn_tokens / *count };
        }
        *part = next;
    }
    parts.into_iter().map(|(part, _)| part).collect()
}
