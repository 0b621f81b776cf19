//! Samples prompts that arrive at any time: manages their branches in the engine and returns one stream of their
//! events.

use std::collections::{HashMap, VecDeque};
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::{Receiver, never};

use super::{GenerateEvent, PromptRequest, SampleId};
use crate::engine::{EngineHandle, Event, EventReceiver, Extend, First, ForkKind, Hear};
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};

/// A wait longer than any job.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 32);

/// Limits on samples waiting in the engine beyond those that run, and on the tokens of their prompts.
const AHEAD: usize = 4096;
const TOKENS_AHEAD: usize = 1 << 24;

/// When finished samples are released in the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Each sample when it ends; its keys and values stay cached until the memory is needed.
    #[default]
    EachSample,
    /// All samples of a prompt when the last of them ends.
    EachPrompt,
    /// All samples when the generator is dropped, and nothing stays cached: for measurements.
    AtEnd,
}

/// A started prompt.
struct PromptInFlight {
    /// One branch per sample or continuation, and one for the prompt's own scores if they are asked for.
    branches: Vec<BranchId>,
    /// Number of samples that have not ended.
    left: usize,
    /// Tokens of the prompt.
    tokens: usize,
}

/// Samples in flight. Dropping the generator cancels the unfinished ones and releases all of them.
pub struct Generator {
    engine: EngineHandle,
    receiver: EventReceiver,
    release: Release,
    /// The samples that have not ended.
    by_branch: HashMap<BranchId, SampleId>,
    in_flight: HashMap<usize, PromptInFlight>,
    /// Extends that have not been submitted to the engine.
    begun: Vec<Extend>,
    /// Failure events of extends that could not be submitted because the engine had stopped.
    not_started: VecDeque<Event>,
    /// Branches of finished samples, kept until the generator is dropped (`Release::AtEnd`).
    kept: Vec<BranchId>,
    prompt_tokens: usize,
}

impl Generator {
    pub fn new(engine: EngineHandle, hear: Hear, release: Release) -> Self {
        let receiver = engine.receiver(hear);
        Generator {
            engine,
            receiver,
            release,
            by_branch: HashMap::new(),
            in_flight: HashMap::new(),
            begun: Vec::new(),
            not_started: VecDeque::new(),
            kept: Vec::new(),
            prompt_tokens: 0,
        }
    }

    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Begins a prompt. `prompt` is the number that its events carry; no other prompt in flight may have it. Prompts
    /// begun before the next event is read start together.
    ///
    /// Fails if the prompt is empty or too long, or parameters are out of range; nothing is started then.
    pub fn begin(&mut self, prompt: usize, request: &PromptRequest<'_>) -> Result<()> {
        self.check(request)?;
        // Its root is made first, so that it is served first and the samples find the prompt computed.
        let scored = self.scored_prompt(request)?;
        let sampled = (0..).zip(self.branches_of(request)?).map(|(sample, branch)| {
            let uniforms = request.uniforms.child(ForkKind::Sample, sample);
            Extend::sampled(branch, request.params, request.stop, uniforms)
        });
        self.enter(prompt, sampled.chain(scored).collect(), request.tokens.len());
        Ok(())
    }

    /// Begins to score each of `continuations` after `context`: the choices of a question, for example. They end as the
    /// samples 0, 1, ... of `prompt`, each with the tokens and log-probabilities of its continuation alone, and `tops`
    /// of the likeliest tokens in each one's place (the first is what greedy sampling would take). The context, and
    /// what continuations have in common, is computed once, also among prompts that begin alike.
    ///
    /// Fails if there are no continuations or the context is empty or too long; nothing is started then. A continuation
    /// that is too long, or has tokens out of range, fails alone.
    pub fn begin_choices(
        &mut self,
        prompt: usize,
        context: &[TokenId],
        continuations: &[&[TokenId]],
        tops: usize,
    ) -> Result<()> {
        if continuations.is_empty() {
            return Err(Error::value("continuations of a context", "at least one", "none"));
        }
        let branches = self.forks_of(context, continuations.len())?;
        let scored = branches.into_iter().zip(continuations);
        let scored = scored.map(|(branch, tokens)| Extend::given(branch, tokens.to_vec(), Some(tops))).collect();
        let longest = continuations.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
        self.enter(prompt, scored, context.len() + longest);
        Ok(())
    }

    /// Takes up the branches of a prompt, in the order of its samples. `tokens`: of its prompt.
    fn enter(&mut self, prompt: usize, extends: Vec<Extend>, tokens: usize) {
        let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
        let ids = (0..).map(|sample| SampleId { prompt, sample });
        self.by_branch.extend(branches.iter().copied().zip(ids));
        self.begun.extend(extends);
        let left = branches.len();
        self.prompt_tokens += left * tokens;
        self.in_flight.insert(prompt, PromptInFlight { branches, left, tokens });
    }

    /// Submits the prompts begun so far. Reading an event does so too.
    pub fn start(&mut self) {
        if self.begun.is_empty() {
            return;
        }
        let branches: Vec<BranchId> = self.begun.iter().map(|extend| extend.branch).collect();
        let Err(error) = self.receiver.start(std::mem::take(&mut self.begun)) else { return };
        // Parameters were checked before: the engine has stopped.
        let why = match error {
            Error::EngineStopped { why } => why,
            other => other.to_string(),
        };
        let failed = |branch| Event::Failed { branch, error: Error::EngineStopped { why: why.clone() } };
        self.not_started.extend(branches.into_iter().map(failed));
    }

    fn check(&self, request: &PromptRequest<'_>) -> Result<()> {
        let vocab = self.engine.facts().vocab;
        request.params.check(vocab)?;
        request.stop.check(vocab)?;
        match request.results() {
            0 => Err(Error::value("n, samples of a prompt", "a number from 1 up", "0")),
            _ => Ok(()),
        }
    }

    /// A branch per sample.
    fn branches_of(&self, request: &PromptRequest<'_>) -> Result<Vec<BranchId>> {
        match request.n {
            0 => Ok(Vec::new()),
            n => self.forks_of(request.tokens, n),
        }
    }

    /// `n` branches of the same tokens; a single one is their root.
    fn forks_of(&self, tokens: &[TokenId], n: usize) -> Result<Vec<BranchId>> {
        let root = self.engine.root(tokens.to_vec())?;
        if n == 1 {
            return Ok(vec![root]);
        }
        let branches = self.engine.fork(root, n);
        self.engine.release(&[root]);
        branches
    }

    /// A branch of the prompt's first token that is given the others, if they are to be scored.
    fn scored_prompt(&self, request: &PromptRequest<'_>) -> Result<Option<Extend>> {
        let Some(top) = request.prompt_logprobs else { return Ok(None) };
        let (first, rest) = request.tokens.split_at(request.tokens.len().min(1));
        let branch = self.engine.root(first.to_vec())?;
        Ok(Some(Extend::given(branch, rest.to_vec(), Some(top))))
    }

    /// Waits for the next event; `None` once every sample has ended. If the engine stops, each sample fails.
    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest that dropping it midway is harmless")]
    pub fn next(&mut self) -> Option<GenerateEvent> {
        loop {
            if let Poll::Ready(event) = self.poll(FOREVER) {
                return event;
            }
        }
    }

    /// Like `next`, but waits at most `patience`; `Poll::Pending` if nothing happened.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<GenerateEvent>> {
        self.poll_beside(&never::<()>(), patience).map(|first| match first {
            First::Event(event) => event,
            First::Message(()) => unreachable!("a `never` channel delivers no message"),
        })
    }

    /// Like `poll`, but a message on `others` (a new prompt, for example) wakes it too. Once every sample has ended, it
    /// does not wait.
    pub fn poll_beside<M>(
        &mut self,
        others: &Receiver<M>,
        patience: Duration,
    ) -> Poll<First<Option<GenerateEvent>, M>> {
        self.start();
        loop {
            if let Some(event) = self.not_started.pop_front().and_then(|event| self.take(event)) {
                return Poll::Ready(First::Event(Some(event)));
            }
            let event = match self.receiver.poll_beside(others, patience) {
                Poll::Ready(First::Event(Some(event))) => event,
                Poll::Ready(First::Event(None)) => return Poll::Ready(First::Event(None)),
                Poll::Ready(First::Message(message)) => return Poll::Ready(First::Message(message)),
                Poll::Pending => return Poll::Pending,
            };
            if let Some(event) = self.take(event) {
                return Poll::Ready(First::Event(Some(event)));
            }
        }
    }

    /// Translates an event of a branch to an event of its sample; `None` if the sample was discarded.
    fn take(&mut self, event: Event) -> Option<GenerateEvent> {
        let branch = event.branch();
        let sample = *self.by_branch.get(&branch)?;
        if event.is_end() {
            self.end(branch, sample);
        }
        Some(match event {
            Event::Tokens { tokens, text, .. } => GenerateEvent::Tokens { sample, tokens, text },
            Event::Finished { finish, .. } => GenerateEvent::Finished { sample, finish },
            Event::Failed { error, .. } => GenerateEvent::Failed { sample, error },
        })
    }

    fn end(&mut self, branch: BranchId, sample: SampleId) {
        self.by_branch.remove(&branch);
        let prompt = self.in_flight.get_mut(&sample.prompt).expect("a prompt is in flight while a sample of it is");
        prompt.left -= 1;
        self.prompt_tokens -= prompt.tokens;
        let whole = if prompt.left == 0 { self.in_flight.remove(&sample.prompt) } else { None };
        match (self.release, whole) {
            (Release::EachSample, _) => self.engine.release(&[branch]),
            (Release::EachPrompt, Some(prompt)) => self.engine.release(&prompt.branches),
            (Release::AtEnd, Some(prompt)) => self.kept.extend(prompt.branches),
            (Release::EachPrompt | Release::AtEnd, None) => {}
        }
    }

    /// Cancels these samples before the engine's next step; each finishes as cancelled and keeps its tokens, unless it
    /// has already ended.
    pub fn cancel(&self, samples: &[SampleId]) {
        let branch = |sample: &SampleId| self.in_flight.get(&sample.prompt)?.branches.get(sample.sample).copied();
        self.receiver.cancel(&samples.iter().filter_map(branch).collect::<Vec<_>>());
    }

    /// Cancels all samples of a prompt.
    pub fn cancel_prompt(&self, prompt: usize) {
        if let Some(prompt) = self.in_flight.get(&prompt) {
            self.receiver.cancel(&prompt.branches);
        }
    }

    /// Drops a prompt in flight at once; no further events of it are returned.
    pub fn discard(&mut self, prompt: usize) {
        let Some(prompt) = self.in_flight.remove(&prompt) else { return };
        for branch in &prompt.branches {
            if self.by_branch.remove(branch).is_some() {
                self.prompt_tokens -= prompt.tokens;
            }
        }
        self.engine.discard(&prompt.branches);
    }

    /// Whether this prompt has started and has samples that have not ended.
    pub fn is_in_flight(&self, prompt: usize) -> bool {
        self.in_flight.contains_key(&prompt)
    }

    /// Number of samples that have not ended.
    pub fn samples(&self) -> usize {
        self.by_branch.len()
    }

    /// Whether enough samples wait in the engine, so that no more prompts need to begin yet.
    pub fn has_enough(&self) -> bool {
        let waiting = self.samples().saturating_sub(self.engine.facts().max_branches);
        waiting > AHEAD || (waiting > 0 && self.prompt_tokens > TOKENS_AHEAD)
    }

    /// Prompt tokens of the samples that have not ended, counted in full for each sample.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Events waiting to be read; bounded even if they are never read.
    pub fn queued(&self) -> usize {
        self.receiver.queued()
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let mut left = std::mem::take(&mut self.kept);
        left.extend(self.in_flight.values().flat_map(|prompt| &prompt.branches));
        if !left.is_empty() {
            self.engine.discard(&left);
        }
    }
}
