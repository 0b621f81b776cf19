//! The loop: requests are submitted when the device's clock has come to their arrival, and the engine makes a turn after
//! another. All in one thread, so that the same job gives the same records.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::job::{Job, Request};
use super::policy::Policy;
use super::record::{RequestRecord, Simulation, StepRecord};
use crate::backend::Dtype;
use crate::backend::modelled::{Clock, DeviceProfile, Modelled};
use crate::engine::{
    CoinKey, Continuation, Engine, EngineConfig, EngineHandle, Event, Extend, ForkKind, Inbox, Metrics, PoolSize,
    SamplingParams, Stop, Turn,
};
use crate::error::{Error, Result};
use crate::ids::BranchId;
use crate::model::{Decoder, ModelConfig};
use crate::plan::Planner;

/// A model on a device, both by their numbers.
#[derive(Clone, Debug)]
pub struct Machine {
    pub model: ModelConfig,
    pub dtype: Dtype,
    pub profile: Arc<DeviceProfile>,
}

/// How it works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub planner: Planner,
    /// Rows of a step; see `EngineConfig`.
    pub step_rows: usize,
    /// Bytes for keys and values; `None`: nine tenths of what weights and activations leave.
    pub kv_bytes: Option<usize>,
    /// Bytes of host memory for branches that had to yield.
    pub swap_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { policy: Policy::OURS, planner: Planner::default(), step_rows: 2048, kv_bytes: None, swap_bytes: 0 }
    }
}

const KV_SHARE: f64 = 0.9;

/// Runs a job to its end. The model's context is as long as the job wants it.
///
/// # Errors
/// A request that the engine refuses (an empty prompt, a path that does not fit the pool) is named with its place in the job.
pub fn simulate(machine: &Machine, settings: &Settings, job: &Job) -> Result<Simulation> {
    let mut backend = Modelled::new(machine.profile.clone());
    let clock = backend.clock();
    let mut model = machine.model.clone();
    model.context = model.context.max(job.longest() + 1);
    let vocab = model.vocab;
    let decoder = Decoder::random(&mut backend, model, machine.dtype, 1)?;
    let pool = match settings.kv_bytes {
        Some(bytes) => PoolSize::Bytes(bytes),
        None => PoolSize::Share { of_free: KV_SHARE, at_most: usize::MAX },
    };
    let config = EngineConfig {
        max_branches: settings.policy.max_branches(job),
        step_rows: settings.step_rows,
        planner: settings.planner,
        pool,
        swap_bytes: settings.swap_bytes,
        run_ahead: true,
        deterministic: false,
        check_plans: false,
    };
    let (engine, handle) = Engine::build(backend, decoder, None, config)?;
    let submitted = settings.policy.submit(job, vocab);
    let inbox = handle.inbox();
    let (open, requests) = (HashMap::new(), Vec::new());
    Driver { engine, handle, clock, vocab, job: &submitted, open, inbox, requests }.run()
}

struct Driver<'a> {
    engine: Engine<Modelled>,
    handle: EngineHandle,
    clock: Clock,
    vocab: usize,
    /// In the order in which they are submitted, each with its place in the job.
    job: &'a [(usize, Request)],
    /// Branches that grow, each with the index of its request there and whether it has drawn.
    open: HashMap<BranchId, (usize, bool)>,
    inbox: Inbox,
    /// Of those that have arrived.
    requests: Vec<Open>,
}

/// A request under way.
struct Open {
    first: Option<Duration>,
    /// When the newest sample drew its first token.
    begun: Option<Duration>,
    end: Duration,
    drawn: u64,
    /// Samples that have not ended.
    left: usize,
    /// To be released in the end.
    branches: Vec<BranchId>,
}

impl Driver<'_> {
    fn run(mut self) -> Result<Simulation> {
        let mut steps = Vec::new();
        loop {
            self.submit()?;
            let before = self.engine.metrics().clone();
            match self.engine.turn()? {
                Turn::Stepped => steps.extend(self.step(&before)),
                Turn::Idle => match self.job.get(self.requests.len()) {
                    Some((_, next)) => self.clock.wait_until(next.arrival),
                    None => break,
                },
                Turn::Abandoned => unreachable!("the driver keeps a handle"),
            }
            self.note_events()?;
        }
        let mut requests: Vec<_> = self.job.iter().zip(&self.requests).collect();
        requests.sort_by_key(|((place, _), _)| *place);
        let requests = requests.into_iter().map(|((_, request), open)| open.record(request)).collect();
        let (facts, metrics) = (self.handle.facts().clone(), self.engine.metrics().clone());
        Ok(Simulation { steps, requests, metrics, page_tokens: facts.page_tokens, page_bytes: facts.page_bytes })
    }

    /// Submits what has arrived by now.
    fn submit(&mut self) -> Result<()> {
        let now = self.clock.now();
        let arrived = &self.job[self.requests.len()..];
        let mut extends = Vec::new();
        for (place, request) in arrived.iter().take_while(|(_, request)| request.arrival <= now) {
            let tokens = request.prompt.tokens(self.vocab);
            let root = self.handle.root(tokens).map_err(|error| named(*place, &error))?;
            let samples = match request.samples {
                1 => vec![root],
                samples => self.handle.fork(root, samples).map_err(|error| named(*place, &error))?,
            };
            for (ordinal, &branch) in (0u64..).zip(&samples) {
                let coins = CoinKey::root(1, &place.to_string()).child(ForkKind::Sample, ordinal);
                extends.push(Extend { branch, continuation: drawn(request.output, coins) });
                self.open.insert(branch, (self.requests.len(), false));
            }
            let left = samples.len();
            let branches = if left == 1 { samples } else { [vec![root], samples].concat() };
            self.requests.push(Open { first: None, begun: None, end: now, drawn: 0, left, branches });
        }
        if extends.is_empty() { Ok(()) } else { self.inbox.start(extends) }
    }

    /// The step that the last turn submitted, if it did.
    fn step(&self, before: &Metrics) -> Option<StepRecord> {
        let after = self.engine.metrics();
        let time = self.clock.last_step().filter(|time| time.number == after.steps && after.steps > before.steps)?;
        let held = self.engine.occupancy();
        Some(StepRecord {
            begin: time.begin.as_secs_f64(),
            end: time.end.as_secs_f64(),
            rows: after.rows - before.rows,
            prompt_rows: after.prompt_tokens_computed - before.prompt_tokens_computed,
            running: held.running,
            waiting: held.waiting,
            pages: held.pages,
            live_tokens: held.tokens,
        })
    }

    fn note_events(&mut self) -> Result<()> {
        let now = self.clock.now();
        while let Poll::Ready(Some(event)) = self.inbox.poll(Duration::ZERO) {
            let (index, has_drawn) = self.open.get_mut(&event.branch()).expect("it was begun, and has not ended");
            let open = &mut self.requests[*index];
            match event {
                Event::Token { .. } => {
                    open.first.get_or_insert(now);
                    if !std::mem::replace(has_drawn, true) {
                        open.begun = Some(now);
                    }
                    open.drawn += 1;
                }
                Event::Finished { branch, .. } => {
                    self.open.remove(&branch);
                    open.left -= 1;
                    open.end = now;
                    if open.left == 0 {
                        self.handle.release(&std::mem::take(&mut open.branches));
                    }
                }
                Event::Failed { error, .. } => return Err(named(self.job[*index].0, &error)),
            }
        }
        Ok(())
    }
}

impl Open {
    fn record(&self, request: &Request) -> RequestRecord {
        RequestRecord {
            arrival: request.arrival.as_secs_f64(),
            first_token: self.first.unwrap_or(self.end).as_secs_f64(),
            all_begun: self.begun.unwrap_or(self.end).as_secs_f64(),
            end: self.end.as_secs_f64(),
            prompt_tokens: request.prompt.len() as u64,
            drawn: self.drawn,
            samples: request.samples,
        }
    }
}

fn drawn(output: usize, coins: CoinKey) -> Continuation {
    let stop = Stop { ignore_eos: true, ..Stop::max_tokens(output) };
    Continuation::Sampled { params: SamplingParams::default(), stop, coins }
}

fn named(place: usize, error: &Error) -> Error {
    Error::value(format!("request {}", place + 1), "one that the engine can serve", error.to_string())
}
