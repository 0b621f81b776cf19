//! The replay loop: submits requests at their arrival times and runs the engine's turns, on any device and by any
//! clock. Everything runs in one thread, so that with a simulated clock the same job gives the same records.

use std::task::Poll;
use std::time::Duration;

use super::job::ReplayRequest;
use super::record::{JobRecord, ServedRequest, StepRecord};
use super::time::Timekeeper;
use offshoot_core::error::{Error, Result};
use offshoot_engine::{Engine, EngineHandle, Event, Hear, Metrics, Priority, SamplingParams, Stop, Turn, UniformKey};
use offshoot_launch::{Generator, PromptRequest, Release};

/// Runs `job` on `engine`. Requests are in the order of submission, each with its index in the original job.
///
/// # Errors
///
/// A request that the engine refuses or cannot serve; the message names its number.
pub(super) fn drive(
    engine: &mut Engine,
    handle: EngineHandle,
    time: impl Timekeeper,
    job: &[(usize, ReplayRequest)],
) -> Result<JobRecord> {
    let vocab = handle.facts().vocab;
    let generator = Generator::new(handle.clone(), Hear::Tokens, Release::EachPrompt);
    Driver { engine, handle, time, vocab, job, generator, requests: Vec::new() }.run()
}

struct Driver<'a, T> {
    engine: &'a mut Engine,
    handle: EngineHandle,
    time: T,
    vocab: usize,
    job: &'a [(usize, ReplayRequest)],
    generator: Generator,
    /// State of the requests that have arrived.
    requests: Vec<ActiveRequest>,
}

/// A request in progress.
struct ActiveRequest {
    first: Option<Duration>,
    /// When the last of its samples got its first token.
    begun: Option<Duration>,
    end: Duration,
    drawn: u64,
    /// For each sample, whether it has a token.
    has_drawn: Vec<bool>,
}

impl<T: Timekeeper> Driver<'_, T> {
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
            pages_of_token: facts.page_groups.count(),
            page_tokens: facts.page_tokens,
            page_bytes: facts.page_bytes,
        })
    }

    /// Submits the requests that have arrived.
    fn submit(&mut self) -> Result<()> {
        let now = self.time.now();
        let arrived = &self.job[self.requests.len()..];
        for (place, request) in arrived.iter().take_while(|(_, request)| request.arrival <= now) {
            let prompt = PromptRequest {
                tokens: &request.prompt.tokens(self.vocab),
                n: request.samples,
                prompt_logprobs: None,
                params: &SamplingParams::default(),
                stop: &Stop { ignore_eos: true, ..Stop::max_tokens(request.output) },
                uniforms: UniformKey::root(1, &place.to_string()),
                priority: Priority::default(),
            };
            self.generator.begin(self.requests.len(), &prompt).map_err(|error| named(*place, &error))?;
            let has_drawn = vec![false; request.samples];
            self.requests.push(ActiveRequest { first: None, begun: None, end: now, drawn: 0, has_drawn });
        }
        self.generator.start();
        Ok(())
    }

    /// The record of the step that the last turn submitted; its times are filled in later.
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
        while let Poll::Ready(Some(event)) = self.generator.poll(Duration::ZERO) {
            match event {
                Event::Tokens { id: sample, tokens, .. } => {
                    let open = &mut self.requests[sample.prompt];
                    open.first.get_or_insert(now);
                    if !std::mem::replace(&mut open.has_drawn[sample.sample], true) {
                        open.begun = Some(now);
                    }
                    open.drawn += tokens.len() as u64;
                }
                Event::Finished { id, .. } => self.requests[id.prompt].end = now,
                Event::Failed { id, error } => return Err(named(self.job[id.prompt].0, &error)),
            }
        }
        Ok(())
    }
}

impl ActiveRequest {
    fn record(&self, request: &ReplayRequest) -> ServedRequest {
        ServedRequest {
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

fn named(place: usize, error: &Error) -> Error {
    Error::value(format!("request {}", place + 1), "one that the engine can serve", error.to_string())
}
