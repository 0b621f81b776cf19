//! The loop: requests are submitted when the time of their arrival has come, and the engine makes a turn after another, on
//! whatever device and by whatever clock. All in one thread, so that by a modelled clock the same job gives the same records.

use std::collections::HashMap;
use std::task::Poll;
use std::time::Duration;

use super::job::Request;
use super::record::{JobRecord, RequestRecord, StepRecord};
use super::time::Timekeeper;
use crate::backend::Backend;
use crate::engine::{
    CoinKey, Continuation, Engine, EngineHandle, Event, Extend, ForkKind, Inbox, Metrics, SamplingParams, Stop, Turn,
};
use crate::error::{Error, Result};
use crate::ids::BranchId;

/// Has `engine` do `job`, the requests in the order in which they are submitted, each with its place among those that were asked.
///
/// # Errors
/// A request that the engine refuses, or that cannot be served, is named with its place.
pub(super) fn drive<B: Backend>(
    engine: &mut Engine<B>,
    handle: EngineHandle,
    time: impl Timekeeper,
    job: &[(usize, Request)],
) -> Result<JobRecord> {
    let vocab = handle.facts().vocab;
    let inbox = handle.inbox();
    let (open, requests) = (HashMap::new(), Vec::new());
    Driver { engine, handle, time, vocab, job, open, inbox, requests }.run()
}

struct Driver<'a, B: Backend, T> {
    engine: &'a mut Engine<B>,
    handle: EngineHandle,
    time: T,
    vocab: usize,
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

impl<B: Backend, T: Timekeeper> Driver<'_, B, T> {
    fn run(mut self) -> Result<JobRecord> {
        let (mut steps, mut spans) = (Vec::new(), Vec::new());
        self.submit()?;
        self.time.start();
        loop {
            let (began, before) = (self.time.now(), self.engine.metrics().clone());
            match self.engine.turn()? {
                Turn::Stepped => {
                    let submitted = self.engine.metrics().steps > before.steps;
                    self.time.note_turn(began, submitted, &mut spans);
                    steps.extend(submitted.then(|| self.step(&before)));
                }
                Turn::Idle => match self.job.get(self.requests.len()) {
                    Some((_, next)) => self.time.wait_until(next.arrival),
                    None => break,
                },
                Turn::Abandoned => unreachable!("the driver keeps a handle"),
            }
            self.note_events()?;
            self.submit()?;
        }
        for (step, span) in steps.iter_mut().zip(spans) {
            (step.begin, step.end) = (span.start.as_secs_f64(), span.end.as_secs_f64());
        }
        let mut requests: Vec<_> = self.job.iter().zip(&self.requests).collect();
        requests.sort_by_key(|((place, _), _)| *place);
        let requests = requests.into_iter().map(|((_, request), open)| open.record(request)).collect();
        let (facts, metrics) = (self.handle.facts().clone(), self.engine.metrics().clone());
        Ok(JobRecord {
            steps,
            requests,
            metrics,
            ordered_in: Duration::ZERO,
            pool_pages: facts.pool_pages,
            page_tokens: facts.page_tokens,
            page_bytes: facts.page_bytes,
        })
    }

    /// Submits what has arrived by now.
    fn submit(&mut self) -> Result<()> {
        let now = self.time.now();
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

    /// The step that the last turn submitted, in a time that is not known yet.
    fn step(&self, before: &Metrics) -> StepRecord {
        let (after, held) = (self.engine.metrics(), self.engine.occupancy());
        StepRecord {
            begin: 0.0,
            end: 0.0,
            rows: after.rows - before.rows,
            prompt_rows: after.prompt_tokens_computed - before.prompt_tokens_computed,
            running: held.running,
            waiting: held.waiting,
            pages: held.pages,
            live_tokens: held.tokens,
        }
    }

    fn note_events(&mut self) -> Result<()> {
        let now = self.time.now();
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
