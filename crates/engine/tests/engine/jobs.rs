//! Jobs that arrive over time, played on an engine turn by turn: every branch must end, and nothing be held in the end.

use std::collections::BTreeMap;
use std::fmt;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Continuation, Engine, EngineHandle, Event, EventReceiver, Extend, Finish, ForkKind, Metrics, Priority, RootOptions,
    SamplingParams, Stop, Turn, UniformKey,
};
use offshoot_kv::PromptTree;

/// Tokens of prompts; no sample draws any of them.
pub const PROMPT_TOKENS: [TokenId; 3] = [TokenId(250), TokenId(251), TokenId(252)];

/// Samples of one prompt.
#[derive(Clone)]
pub struct Job {
    /// The turn before which it comes.
    pub arrives: usize,
    pub prompt: Vec<TokenId>,
    pub samples: usize,
    /// Tokens that each draws at most; exactly so many where nothing else ends it.
    pub draws: usize,
    pub is_exact: bool,
    /// How many turns after its arrival the first sample is cancelled.
    pub cancelled: Option<usize>,
    /// Forks of the first sample to finish, which draw on.
    pub again: usize,
    pub priority: Priority,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { arrives, prompt, samples, draws, is_exact, cancelled, again, priority } = self;
        let prompt: String = prompt.iter().map(|token| char::from(b'a' + (token.0 % 10) as u8)).collect();
        write!(f, "{arrives}: {prompt}, {samples} x {draws} ({is_exact}), cancelled {cancelled:?}, again {again}, ")?;
        write!(f, "priority {}", priority.0)
    }
}

impl AsRef<[TokenId]> for Job {
    fn as_ref(&self) -> &[TokenId] {
        &self.prompt
    }
}

impl Job {
    fn stop(&self) -> Stop {
        // Half a dozen of some two hundred tokens.
        let tokens = if self.is_exact { Vec::new() } else { (100..106).map(TokenId).collect() };
        Stop { tokens, ignore_eos: true, ..Stop::max_tokens(self.draws) }
    }

    fn extends(&self, branches: &[BranchId], uniforms: &UniformKey) -> Vec<Extend> {
        let logit_bias = PROMPT_TOKENS.map(|token| (token, -1e4)).to_vec();
        let params = SamplingParams { top_k: Some(200), logit_bias, ..SamplingParams::default() };
        let extend = |(&branch, ordinal): (&BranchId, u64)| {
            let (params, uniforms) = (params.clone(), uniforms.child(ForkKind::Sample, ordinal));
            Extend { branch, continuation: Continuation::Sampled { params, stop: self.stop(), uniforms } }
        };
        branches.iter().zip(0..).map(extend).collect()
    }
}

/// Tokens of the prefix tree of all prompts.
pub fn distinct_tokens(jobs: &[Job]) -> u64 {
    PromptTree::new(jobs).distinct_tokens()
}

/// Pages of the longest path: each level of the prompts from a page of its own on, and one sample.
pub fn longest_path(jobs: &[Job], page_tokens: usize) -> usize {
    let pages =
        |first: usize, end: usize| if first == end { 0 } else { end.div_ceil(page_tokens) - first / page_tokens };
    let tree = PromptTree::new(jobs);
    let mut paths = Vec::new();
    for (ix, node) in tree.nodes().iter().enumerate() {
        let above: usize = node.parent.map_or(0, |parent| paths[parent as usize]);
        paths.push(above + pages(node.first as usize, node.end as usize));
        debug_assert_eq!(paths.len(), ix + 1);
    }
    let own = |job: &Job| pages(job.prompt.len(), job.prompt.len() + job.draws - 1);
    let of_node = |ix: usize| {
        let jobs = tree.sorted()[tree.own(ix)].iter().map(|sorted| &jobs[sorted.prompt as usize]);
        jobs.map(|job| paths[ix] + own(job)).max().unwrap_or(0)
    };
    (0..paths.len()).map(of_node).max().unwrap_or(0)
}

pub struct Played {
    /// What every sample of every job came to, those drawn on last.
    pub finishes: Vec<BTreeMap<usize, Finish>>,
    pub metrics: Metrics,
}

struct Growing {
    job: usize,
    /// The number of its first branch among all branches of the job.
    first: usize,
    branches: Vec<BranchId>,
    extension: EventReceiver,
}

/// Turns without any job's end: something starves.
const PATIENCE: usize = 20_000;

/// Plays `jobs`, which stand in the order of their arrival; `watch` sees the engine after each turn.
pub fn play((mut engine, handle): (Engine, EngineHandle), jobs: &[Job], mut watch: impl FnMut(&Engine)) -> Played {
    let mut finishes = vec![BTreeMap::new(); jobs.len()];
    let mut growing: Vec<Growing> = Vec::new();
    let (mut next, mut turn, mut news) = (0, 0, 0);
    loop {
        while let Some(job) = jobs.get(next).filter(|job| job.arrives <= turn) {
            let place = RootOptions { priority: job.priority, ..RootOptions::default() };
            let root = handle.root_with(job.prompt.clone(), place).unwrap();
            let branches = handle.fork(root, job.samples).unwrap();
            let extension = handle.start(job.extends(&branches, &UniformKey::root(1, &next.to_string()))).unwrap();
            handle.release(&[root]);
            growing.push(Growing { job: next, first: 0, branches, extension });
            (next, news) = (next + 1, turn);
        }
        for growing in growing.iter().filter(|growing| growing.first == 0) {
            let job = &jobs[growing.job];
            if job.cancelled.is_some_and(|after| job.arrives + after == turn) {
                growing.extension.cancel(&growing.branches[..1]);
            }
        }
        let more: Vec<Growing> =
            growing.iter_mut().filter_map(|growing| take(growing, jobs, &handle, &mut finishes)).collect();
        let before = growing.len();
        growing.retain(|growing| growing.extension.unfinished() > 0);
        growing.extend(more);
        if growing.len() != before {
            news = turn;
        }
        let idle = engine.turn().unwrap() != Turn::Stepped;
        watch(&engine);
        if idle && growing.is_empty() && next == jobs.len() {
            break;
        }
        turn += 1;
        assert!(turn < news + PATIENCE, "{} jobs do not end", growing.len());
    }
    // What was given back last is obeyed, and the prefix tree checked.
    assert_eq!(engine.turn().unwrap(), Turn::Idle);
    let held = engine.occupancy();
    assert_eq!((held.running, held.waiting, held.pages, held.tokens), (0, 0, 0, 0));
    Played { finishes, metrics: engine.metrics().clone() }
}

/// Takes what is told of a job's branches, and gives back those that finished. The first to finish may be drawn on.
fn take(
    growing: &mut Growing,
    jobs: &[Job],
    handle: &EngineHandle,
    finishes: &mut [BTreeMap<usize, Finish>],
) -> Option<Growing> {
    let mut more = None;
    while let Poll::Ready(Some(event)) = growing.extension.poll(Duration::ZERO) {
        let branch = event.id();
        match event {
            Event::Tokens { .. } => continue,
            Event::Failed { error, .. } => panic!("job {}: {error}", growing.job),
            Event::Finished { finish, .. } => {
                let place = growing.branches.iter().position(|&other| other == branch).unwrap();
                finishes[growing.job].insert(growing.first + place, finish);
            }
        }
        let job = &jobs[growing.job];
        if job.again > 0 && growing.first == 0 && branch == growing.branches[job.samples - 1] {
            let branches = handle.fork(branch, job.again).unwrap();
            let uniforms = UniformKey::root(2, &growing.job.to_string());
            let extension = handle.start(job.extends(&branches, &uniforms)).unwrap();
            more = Some(Growing { job: growing.job, first: job.samples, branches, extension });
        }
        handle.release(&[branch]);
    }
    more
}
