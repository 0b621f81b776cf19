//! A job run by the real scheduler on a device that keeps time and computes nothing, once for each policy. The policies differ in
//! the order in which prompts are submitted, in the limit of branches, and in what they may share: tokens that a policy would
//! not share are marked, so that no two are equal.

use std::collections::HashMap;
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;

use super::device::Device;
use super::job::Job;
use super::sharing::Samples;
use super::source::Model;
use crate::engine::{
    CoinKey, Continuation, EngineHandle, Event, Extend, Extension, ForkKind, SamplingParams, Stop, Turn,
};
use crate::error::Result;
use crate::ids::{BranchId, TokenId};
use crate::kv::{PromptTree, Prompts};

/// Requests at once where batches are counted in requests: vLLM's default.
const REQUESTS_AT_ONCE: usize = 256;
/// Parts of a run's time for which a mean is kept.
const PARTS: usize = 240;
/// Prompts whose events are waited for together.
const TOGETHER: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// First come, first served, 256 requests at once; what is cached is shared until it has to make room.
    FirstCome,
    /// Groups that share one beginning, as BatchLLM forms and orders them; batched by memory.
    SingleLevel,
    /// Every level shared, depth-first by decode-to-prompt ratio; batched by memory.
    AllLevels,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::FirstCome, Policy::SingleLevel, Policy::AllLevels];

    pub fn described(self) -> &'static str {
        match self {
            Policy::FirstCome => "first come, LRU",
            Policy::SingleLevel => "single level",
            Policy::AllLevels => "all levels",
        }
    }
}

/// What a job comes to by one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    pub policy: Policy,
    pub seconds: f64,
    /// Until no prompt waits any more: without the cool-down in which the last ones run out.
    pub seconds_filled: f64,
    pub steps: u64,
    pub prompt_tokens_computed: u64,
    pub tokens_sampled: u64,
    pub kv_bytes_peak: u64,
    pub preemptions: u64,
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

/// A prompt as it is handed to the engine.
struct Submission {
    tokens: Vec<TokenId>,
    samples: u32,
    draw: u32,
}

/// Runs `job` by `policy`.
pub fn predict(policy: Policy, job: &Job, tree: &PromptTree, model: &Model, device: &Device) -> Result<Prediction> {
    let samples = usize::try_from(job.samples()).unwrap_or(usize::MAX);
    let branches = match policy {
        Policy::FirstCome => REQUESTS_AT_ONCE.min(device.branches()),
        Policy::SingleLevel | Policy::AllLevels => device.branches(),
    };
    let (mut engine, handle, clock) = device.engine(model, branches.min(samples))?;
    let mut running = Running::start(&handle, submissions(policy, job, tree, model.config.vocab))?;
    let mut steps: Vec<Step> = Vec::new();
    let (mut seconds_filled, mut before) = (0.0, engine.metrics().clone());
    while engine.turn()? == Turn::Stepped {
        let metrics = engine.metrics();
        if let Some(time) = clock.last_step().filter(|_| metrics.steps > before.steps) {
            let prompt = metrics.prompt_tokens_computed - before.prompt_tokens_computed;
            let rows = metrics.rows - before.rows;
            let end = time.end.as_secs_f64();
            steps.push(Step { end, prompt: prompt as f64, drawn: rows.saturating_sub(prompt) as f64 });
            if engine.occupancy().waiting > 0 {
                seconds_filled = end;
            }
            before = metrics.clone();
        }
        running.collect(&handle)?;
    }
    let metrics = engine.metrics();
    let seconds = clock.now().as_secs_f64();
    Ok(Prediction {
        policy,
        seconds,
        seconds_filled,
        steps: metrics.steps,
        prompt_tokens_computed: metrics.prompt_tokens_computed,
        tokens_sampled: metrics.tokens_sampled,
        kv_bytes_peak: metrics.kv_bytes_peak,
        preemptions: metrics.preemptions,
        tokens_per_step: metrics.rows as f64 / metrics.steps.max(1) as f64,
        parts: parts(&steps, seconds),
    })
}

struct Step {
    end: f64,
    prompt: f64,
    drawn: f64,
}

fn parts(steps: &[Step], seconds: f64) -> Vec<Part> {
    let mut parts = vec![(Part::default(), 0.0); PARTS];
    for step in steps {
        let at = ((step.end / seconds * PARTS as f64) as usize).min(PARTS - 1);
        let (part, count) = &mut parts[at];
        part.prompt_tokens += step.prompt;
        part.drawn_tokens += step.drawn;
        *count += 1.0;
    }
    let mut last = Part::default();
    for (part, count) in &mut parts {
        if *count > 0.0 {
            last = Part { prompt_tokens: part.prompt_tokens / *count, drawn_tokens: part.drawn_tokens / *count };
        }
        // A part in which no step ends belongs to one that lasts.
        *part = last;
    }
    parts.into_iter().map(|(part, _)| part).collect()
}

/// Prompts under way.
struct Running {
    extensions: Vec<Extension>,
    /// For each sample its prompt's branch.
    root_of: HashMap<BranchId, BranchId>,
    /// Samples that each prompt's branch still has.
    left: HashMap<BranchId, u32>,
}

impl Running {
    fn start(handle: &EngineHandle, submissions: Vec<Submission>) -> Result<Self> {
        let mut running = Self { extensions: Vec::new(), root_of: HashMap::new(), left: HashMap::new() };
        let mut extends = Vec::new();
        for (number, Submission { tokens, samples, draw }) in submissions.into_iter().enumerate() {
            let coins = CoinKey::root(0, &number.to_string());
            let root = handle.root(tokens)?;
            running.left.insert(root, samples);
            for (ordinal, branch) in (0u64..).zip(handle.fork(root, samples as usize)?) {
                running.root_of.insert(branch, root);
                let stop = Stop { ignore_eos: true, ..Stop::max_tokens(draw as usize) };
                let (params, coins) = (SamplingParams::default(), coins.child(ForkKind::Sample, ordinal));
                extends.push(Extend { branch, continuation: Continuation::Sampled { params, stop, coins } });
            }
            if (number + 1) % TOGETHER == 0 {
                running.extensions.push(handle.start(std::mem::take(&mut extends))?);
            }
        }
        running.extensions.push(handle.start(extends)?);
        Ok(running)
    }

    /// Lets go of samples that have ended, and of prompts whose samples have.
    fn collect(&mut self, handle: &EngineHandle) -> Result<()> {
        for extension in &mut self.extensions {
            while let Poll::Ready(Some(event)) = extension.poll(Duration::ZERO) {
                let branch = match event {
                    Event::Token { .. } => continue,
                    Event::Finished { branch, .. } => branch,
                    Event::Failed { error, .. } => return Err(error),
                };
                handle.release(&[branch]);
                let root = self.root_of[&branch];
                let left = self.left.get_mut(&root).expect("each sample has a prompt");
                *left -= 1;
                if *left == 0 {
                    handle.release(&[root]);
                }
            }
        }
        self.extensions.retain(|extension| !extension.unfinished().is_empty());
        Ok(())
    }
}

/// A job's prompts as `policy` hands them over.
fn submissions(policy: Policy, job: &Job, tree: &PromptTree, vocab: usize) -> Vec<Submission> {
    let whole = |prompt: u32| {
        let ask = job.asks[prompt as usize];
        let tokens = job.prompts.tokens(prompt as usize).to_vec();
        Submission { tokens, samples: ask.samples, draw: ask.tokens }
    };
    match policy {
        Policy::FirstCome => (0u32..).take(job.asks.len()).map(whole).collect(),
        Policy::AllLevels => tree.order_by(&job.draws()).into_iter().map(whole).collect(),
        Policy::SingleLevel => single_level(job, vocab),
    }
}

/// Samples that share the first `shared` tokens, and nothing else.
struct Group {
    shared: usize,
    samples: Vec<u32>,
}

/// The groups of BatchLLM, those with more to decode for their prompt tokens first; nothing is shared between groups, and within
/// one nothing but its beginning.
fn single_level(job: &Job, vocab: usize) -> Vec<Submission> {
    let samples = Samples::of(job);
    let tree = PromptTree::new(&samples);
    let mut grouped = vec![false; samples.count()];
    let mut groups: Vec<Group> = Vec::new();
    for node in tree.single_level_nodes() {
        let node = &tree.nodes()[node as usize];
        let members = &tree.sorted()[node.prompts.start as usize..node.prompts.end as usize];
        let mut members: Vec<u32> = members.iter().map(|sorted| sorted.prompt).collect();
        members.sort_unstable();
        members.iter().for_each(|&sample| grouped[sample as usize] = true);
        groups.push(Group { shared: node.end as usize, samples: members });
    }
    let alone = grouped.iter().zip(0u32..).filter(|(grouped, _)| !**grouped);
    groups.extend(alone.map(|(_, sample)| Group { shared: 0, samples: vec![sample] }));
    let ratio = |group: &Group| {
        let length = |&sample: &u32| samples.tokens(sample as usize).len() - group.shared;
        let drawn = |&sample: &u32| f64::from(job.asks[samples.prompts[sample as usize] as usize].tokens);
        let own: usize = group.samples.iter().map(length).sum();
        group.samples.iter().map(drawn).sum::<f64>() / (group.shared + own) as f64
    };
    groups.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    let mut submissions = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        for (ordinal, &sample) in group.samples.iter().enumerate() {
            let mut tokens = samples.tokens(sample as usize).to_vec();
            let (shared, own) = tokens.split_at_mut(group.shared);
            mark(shared, number, vocab);
            // What is alone begins with its own tokens.
            mark(own, if group.shared == 0 { number } else { ordinal }, vocab);
            let draw = job.asks[samples.prompts[sample as usize] as usize].tokens;
            submissions.push(Submission { tokens, samples: 1, draw });
        }
    }
    submissions
}

/// Makes a run of tokens begin as no other of its kind does.
fn mark(run: &mut [TokenId], number: usize, vocab: usize) {
    let digits = [number % vocab, number / vocab % vocab];
    for (token, digit) in run.iter_mut().zip(digits) {
        *token = TokenId::new(digit);
    }
}
