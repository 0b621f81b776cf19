//! Prompts in flight: one loop that keeps so many of them with the engine that it never runs dry, takes what they draw and, once
//! a request has all of its own, writes its answer. In which order prompts are begun is `run::Order`'s, how many of them grow at
//! once the engine's, by the memory of their keys and values.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::engine::{
    CoinKey, Continuation, EngineFacts, EngineHandle, Event, Extend, Finish, FinishReason, ForkKind, Inbox,
    SamplingParams,
};
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};
use crate::launch::{Draws, Order, in_bytes};
use crate::openai::protocol::{Candidates, Prompt, Refusal};
use crate::out::Progress;
use crate::tokenizer::Tokenizer;

use super::answer::Answer;
use super::input::Line;
use super::origin::Origin;
use super::output::Output;
use super::request::LineRequest;

/// How long an interrupt may wait while nothing happens.
const PATIENCE: Duration = Duration::from_millis(100);

/// Branches that wait for the engine beside as many as it grows at once, at most, and tokens of their prompts.
const AHEAD: usize = 4096;
const TOKENS_AHEAD: usize = 1 << 24;

pub struct Work<'a> {
    pub lines: &'a [Line],
    pub origin: &'a Origin,
    pub engine: EngineHandle,
    /// Branches that grow at once.
    pub branches: usize,
    pub tokenizer: &'a Tokenizer,
    /// Seconds since 1970 at which the job began.
    pub created: u64,
    pub progress: &'a Progress,
}

/// What came of the requests.
pub struct Worked {
    pub output: Output,
    /// The interrupt or error that ended the job early.
    pub ended: Option<Error>,
    /// Tokens drawn.
    pub tokens: usize,
}

impl Work<'_> {
    pub fn answer_all(&self, requests: &[LineRequest], output: Output, interrupted: &AtomicBool) -> Worked {
        let places =
            |(request, of): (usize, &LineRequest)| (0..of.prompts.len()).map(move |prompt| Place { request, prompt });
        let places: Vec<Place> = requests.iter().enumerate().flat_map(places).collect();
        let prompts: Vec<&[TokenId]> = places.iter().map(|place| place.of(requests).1.tokens.as_slice()).collect();
        let order = Order::new(&prompts, places.iter().map(|place| place.draws(requests)).collect());
        let mut answering = Answering {
            work: self,
            requests,
            places,
            order,
            before: &[],
            inbox: self.engine.inbox(),
            growing: HashMap::new(),
            by_branch: HashMap::new(),
            tokens_in_flight: 0,
            parts: requests.iter().map(|request| request.prompts.iter().map(|_| None).collect()).collect(),
            output,
            tokens: 0,
        };
        let ended = answering.run(interrupted).err();
        Worked { output: answering.output, ended, tokens: answering.tokens }
    }
}

/// A prompt of a request.
#[derive(Clone, Copy)]
struct Place {
    request: usize,
    prompt: usize,
}

impl Place {
    fn of<'a>(&self, requests: &'a [LineRequest]) -> (&'a LineRequest, &'a Prompt) {
        let request = &requests[self.request];
        (request, &request.prompts[self.prompt])
    }

    fn draws(&self, requests: &[LineRequest]) -> Draws {
        let (request, prompt) = self.of(requests);
        let most = request.best_of as u64 * prompt.stop.max_tokens as u64;
        Draws { most, is_exact: prompt.stop.is_exact() }
    }
}

/// What a request has so far, a prompt each.
type Parts = Vec<Option<Result<Candidates, Refusal>>>;

/// A prompt that the engine has.
struct Growing {
    branches: Vec<BranchId>,
    /// By ordinal.
    drawn: Vec<Option<Finish>>,
    left: usize,
    /// Tokens that it has in common with a prompt that was begun before.
    shared: usize,
}

struct Answering<'a> {
    work: &'a Work<'a>,
    requests: &'a [LineRequest],
    places: Vec<Place>,
    order: Order,
    /// The prompt that was begun last.
    before: &'a [TokenId],
    inbox: Inbox,
    /// By the index of their place.
    growing: HashMap<usize, Growing>,
    /// Place and ordinal of each branch that grows.
    by_branch: HashMap<BranchId, (usize, usize)>,
    /// Tokens of the prompts of all these branches, each in full.
    tokens_in_flight: usize,
    parts: Vec<Parts>,
    output: Output,
    tokens: usize,
}

impl Answering<'_> {
    fn run(&mut self, interrupted: &AtomicBool) -> Result<()> {
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            self.begin_more()?;
            match self.inbox.poll(PATIENCE) {
                Poll::Ready(Some(event)) => self.take(event)?,
                Poll::Ready(None) => return Ok(()),
                Poll::Pending => {}
            }
        }
    }

    /// Has the engine begin prompts until enough wait there.
    fn begin_more(&mut self) -> Result<()> {
        loop {
            let waiting = self.by_branch.len().saturating_sub(self.work.branches);
            if waiting > AHEAD || (waiting > 0 && self.tokens_in_flight > TOKENS_AHEAD) {
                return Ok(());
            }
            let Some(place) = self.order.next_prompt() else { return Ok(()) };
            if let Err(error) = self.begin(place) {
                self.end(place, Err(own_matter(error, self.work.engine.facts())?))?;
            }
        }
    }

    /// The candidates of one prompt: forks of it, each with coins of its own.
    fn begin(&mut self, at: usize) -> Result<()> {
        let place = self.places[at];
        let (request, prompt) = place.of(self.requests);
        // The first prompt's coins are those of the request alone, so that a list of one prompt is that prompt.
        let coins = match place.prompt {
            0 => CoinKey::root(request.seed, &request.custom_id),
            later => CoinKey::root(request.seed, &format!("{}\n{later}", request.custom_id)),
        };
        let engine = &self.work.engine;
        let root = engine.root(prompt.tokens.clone())?;
        let branches = engine.fork(root, request.best_of)?;
        engine.release(&[root]);
        let extend = |(&branch, ordinal): (&BranchId, u64)| {
            let (params, stop): (SamplingParams, _) = (request.params.clone(), prompt.stop.clone());
            let coins = coins.child(ForkKind::Sample, ordinal);
            Extend { branch, continuation: Continuation::Sampled { params, stop, coins } }
        };
        if let Err(error) = self.inbox.start(branches.iter().zip(0..).map(extend).collect()) {
            engine.release(&branches);
            return Err(error);
        }
        let shared = self.before.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count();
        self.before = &prompt.tokens;
        self.tokens_in_flight += branches.len() * prompt.tokens.len();
        self.by_branch.extend(branches.iter().zip(0..).map(|(&branch, ordinal)| (branch, (at, ordinal))));
        let (drawn, left) = (branches.iter().map(|_| None).collect(), branches.len());
        self.growing.insert(at, Growing { branches, drawn, left, shared });
        Ok(())
    }

    /// What has become of a branch. Of one that was given up with its prompt, nobody wants to know.
    fn take(&mut self, event: Event) -> Result<()> {
        if matches!(event, Event::Token { .. }) {
            return Ok(());
        }
        let Some((at, ordinal)) = self.by_branch.remove(&event.branch()) else { return Ok(()) };
        let (_, prompt) = self.places[at].of(self.requests);
        self.tokens_in_flight -= prompt.tokens.len();
        match event {
            Event::Token { .. } => {}
            Event::Finished { branch, finish } => {
                self.work.engine.release(&[branch]);
                self.tokens += finish.tokens.len();
                self.work.progress.sample_done(finish.tokens.len());
                if !prompt.stop.is_exact() && finish.reason != FinishReason::Cancelled {
                    self.order.note(finish.tokens.len(), prompt.stop.max_tokens);
                }
                let growing = self.growing.get_mut(&at).expect("its branches are known only as long as it is");
                growing.drawn[ordinal] = Some(finish);
                growing.left -= 1;
                if growing.left == 0
                    && let Some(Growing { drawn, shared, .. }) = self.growing.remove(&at)
                {
                    self.end(at, Ok(Candidates { drawn: drawn.into_iter().flatten().collect(), shared }))?;
                }
            }
            Event::Failed { error, .. } => {
                let refusal = own_matter(error, self.work.engine.facts())?;
                let given_up = self.growing.remove(&at).expect("its branches are known only as long as it is");
                for branch in &given_up.branches {
                    if self.by_branch.remove(branch).is_some() {
                        self.tokens_in_flight -= prompt.tokens.len();
                    }
                }
                self.work.engine.discard(&given_up.branches);
                self.end(at, Err(refusal))?;
            }
        }
        Ok(())
    }

    /// One prompt has its candidates, or is refused; the last one of a request writes the answer.
    fn end(&mut self, at: usize, part: Result<Candidates, Refusal>) -> Result<()> {
        let place = self.places[at];
        let request = &self.requests[place.request];
        let parts = &mut self.parts[place.request];
        parts[place.prompt] = Some(part);
        if parts.iter().any(Option::is_none) {
            return Ok(());
        }
        let all: Result<Vec<Candidates>, Refusal> = std::mem::take(parts).into_iter().flatten().collect();
        let answer = match all {
            Ok(all) => {
                let call = self.work.lines[request.line].call.as_ref().expect("a request is read from a call");
                Answer::of(call, request, &all, self.work.origin, self.work.tokenizer, self.work.created)
            }
            Err(refusal) => Answer::refused(&self.work.lines[request.line], &refusal),
        };
        self.output.write(request.line, &answer)?;
        self.work.progress.item_done();
        Ok(())
    }
}

/// What one request asks too much is its own matter; any other error is the job's.
fn own_matter(error: Error, facts: &EngineFacts) -> Result<Refusal> {
    match error {
        Error::ContextTooLong { .. } | Error::OutOfPages { .. } | Error::Value { .. } => {
            let Refusal { code, .. } = Refusal::of(&error);
            Ok(Refusal { code, message: in_bytes(error, facts).to_string() })
        }
        error => Err(error),
    }
}
