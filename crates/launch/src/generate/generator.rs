//! Samples prompts that arrive at any time: manages their branches in the engine and returns one stream of their
//! events.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::{Receiver, never};

use super::{PromptRequest, SampleId};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId};
use offshoot_engine::{
    EngineFacts, EngineHandle, Event, EventReceiver, Extend, FinishReason, First, ForkKind, GroupEnd, Hear, OpenGroup,
    Priority, RootOptions, Stop, wait,
};
use offshoot_form::{FormBegin, SampleForm};
use offshoot_kv::CacheSalt;

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
    branches: BTreeMap<usize, BranchId>,
    /// Number of samples that have not ended.
    left: usize,
    /// Tokens of the prompt.
    tokens: usize,
    /// Whether the branches of finished samples are the caller's.
    keep: bool,
    /// Its samples, as a group that may end before all of them have.
    group: OpenGroup,
    /// The index of the prompt's own scores, which are no sample.
    scores: Option<usize>,
}

/// Continuations of one context that are scored.
#[derive(Clone, Copy, Debug)]
pub struct ChoicesRequest<'a> {
    pub context: &'a [TokenId],
    pub continuations: &'a [Vec<TokenId>],
    /// How many of the likeliest tokens are reported in each token's place.
    pub tops: usize,
    pub priority: Priority,
}

/// Tokens at the end of a prompt that were sampled under the form of its parameters and are not its whole text yet.
#[derive(Clone, Debug, PartialEq)]
pub struct FormBegun {
    /// Where in the sample the form begins.
    pub begin: FormBegin,
    /// How many of the prompt's last tokens are the sample so far.
    pub sampled: usize,
}

/// How a prompt is begun.
#[derive(Clone, Debug, Default)]
pub struct BeginOptions {
    /// The first of its samples, which uses the random numbers of a sample with this index: so a prompt with many
    /// samples can begin in parts, each under a number of its own.
    pub first_sample: usize,
    /// Which events are heard; `None`: the generator's.
    pub hear: Option<Hear>,
    /// Its part of the job, if that is divided among replicas ([`PromptOrder::home`]).
    ///
    /// [`PromptOrder::home`]: crate::PromptOrder::home
    pub home: Option<usize>,
    /// Whether the branches of finished samples are not released, but the caller's ([`Generator::take_branch`]).
    pub keep: bool,
    /// Prompts of other salts share no cached prefix with it.
    pub salt: Option<CacheSalt>,
    /// The adapter that its prompt and samples are computed with; `None`: none.
    pub adapter: Option<AdapterVersion>,
    /// When its group ends before all samples have. The branches of kept stragglers are the caller's
    /// ([`Generator::take_branch`]).
    pub group_end: Option<GroupEnd>,
    /// The form of its parameters, if its samples go on in it; `None`: they begin it.
    pub form_begun: Option<FormBegun>,
}

/// A sample that was cancelled and whose branch was kept.
#[derive(Clone, Copy, Debug)]
pub struct KeptSample {
    /// Its index among the samples of its prompt.
    pub sample: usize,
    pub branch: BranchId,
    /// Tokens that it has sampled.
    pub tokens: usize,
}

/// Samples in flight. Dropping the generator cancels the unfinished ones and releases all of them.
pub struct Generator {
    engine: EngineHandle,
    receiver: EventReceiver,
    release: Release,
    /// The samples that have not ended.
    by_branch: HashMap<BranchId, SampleId>,
    in_flight: HashMap<usize, PromptInFlight>,
    /// Which events are heard of a prompt whose [`BeginOptions`] do not say.
    hear: Hear,
    /// Extends that have not been submitted to the engine, and the events that are heard of them.
    begun: Vec<(Hear, Extend)>,
    /// Failure events of extends that could not be submitted because the engine had stopped.
    not_started: VecDeque<Event>,
    /// Branches of finished samples, kept until the generator is dropped (`Release::AtEnd`).
    kept: Vec<BranchId>,
    /// Branches of finished samples that wait for [`Generator::take_branch`].
    asked_for: HashMap<SampleId, BranchId>,
    prompt_tokens: usize,
}

impl Generator {
    pub fn new(engine: EngineHandle, hear: Hear, release: Release) -> Self {
        let receiver = engine.receiver(hear);
        Generator {
            engine,
            receiver,
            release,
            hear,
            by_branch: HashMap::new(),
            in_flight: HashMap::new(),
            begun: Vec::new(),
            not_started: VecDeque::new(),
            kept: Vec::new(),
            asked_for: HashMap::new(),
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
        self.begin_with(prompt, request, BeginOptions::default())
    }

    /// Does what `begin` does, with options.
    pub fn begin_with(&mut self, prompt: usize, request: &PromptRequest<'_>, options: BeginOptions) -> Result<()> {
        self.check(request)?;
        // Its root is made first, so that it is served first and the samples find the prompt computed.
        let scored = self.scored_prompt(request, &options)?;
        let first = options.first_sample as u64;
        let sampled = (first..).zip(self.branches_of(request, &options)?).map(|(sample, branch)| {
            let uniforms = request.uniforms.child(ForkKind::Sample, sample);
            Extend::sampled(branch, request.params, request.stop, uniforms)
        });
        let scores = scored.is_some().then_some(request.n);
        self.enter(prompt, (0..).zip(sampled.chain(scored)).collect(), request.tokens.len(), scores, options);
        Ok(())
    }

    /// Continues kept samples of `request` to their ends, under their indices; what they have counts against its
    /// limits. While the model's weights are the same, they become what they would have been without the pause. Each
    /// finish has what is added.
    ///
    /// Fails if parameters are out of range; nothing is started then.
    pub fn resume(
        &mut self,
        prompt: usize,
        kept: &[KeptSample],
        request: &PromptRequest<'_>,
        options: BeginOptions,
    ) -> Result<()> {
        self.check(request)?;
        let extend = |kept: &KeptSample| {
            let uniforms = request.uniforms.child(ForkKind::Sample, (options.first_sample + kept.sample) as u64);
            let stop = Stop {
                max_tokens: request.stop.max_tokens.saturating_sub(kept.tokens).max(1),
                min_tokens: request.stop.min_tokens.saturating_sub(kept.tokens),
                ..request.stop.clone()
            };
            (kept.sample, Extend::sampled(kept.branch, request.params, &stop, uniforms))
        };
        self.enter(prompt, kept.iter().map(extend).collect(), request.tokens.len(), None, options);
        Ok(())
    }

    /// Begins to score each of the continuations after their context: the choices of a question, for example. They end
    /// as the samples 0, 1, ... of `prompt`, each with the tokens and log-probabilities of its continuation alone, and
    /// `tops` of the likeliest tokens in each one's place (the first is what greedy sampling would take). The context,
    /// and what continuations have in common, is computed once, also among prompts that begin alike.
    ///
    /// Fails if there are no continuations or the context is empty or too long; nothing is started then. A continuation
    /// that is too long, or has tokens out of range, fails alone.
    pub fn begin_choices(&mut self, prompt: usize, request: &ChoicesRequest<'_>, options: BeginOptions) -> Result<()> {
        let ChoicesRequest { context, continuations, tops, priority } = *request;
        if continuations.is_empty() {
            return Err(Error::value("continuations of a context", "at least one", "none"));
        }
        let BeginOptions { salt, adapter, .. } = options;
        let place = RootOptions { priority, salt, adapter, ..RootOptions::default() };
        let root = self.engine.root_with(context.to_vec(), place)?;
        let branches = self.forks_of(root, continuations.len())?;
        let scored = branches.into_iter().zip(continuations);
        let scored = scored.map(|(branch, tokens)| Extend::given(branch, tokens.to_vec(), Some(tops)));
        let longest = continuations.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
        self.enter(prompt, (0..).zip(scored).collect(), context.len() + longest, None, options);
        Ok(())
    }

    /// Takes up the branches of a prompt by the indices of its samples. `tokens`: of its prompt; `scores`: the index of
    /// its own scores.
    fn enter(
        &mut self,
        prompt: usize,
        extends: Vec<(usize, Extend)>,
        tokens: usize,
        scores: Option<usize>,
        options: BeginOptions,
    ) {
        let (keep, group) = (options.keep, OpenGroup::new(options.group_end));
        let branches: BTreeMap<usize, BranchId> =
            extends.iter().map(|(sample, extend)| (*sample, extend.branch)).collect();
        self.by_branch.extend(branches.iter().map(|(&sample, &branch)| (branch, SampleId { prompt, sample })));
        let hear = options.hear.unwrap_or(self.hear);
        self.begun.extend(extends.into_iter().map(|(_, extend)| (hear, extend)));
        let left = branches.len();
        self.prompt_tokens += left * tokens;
        self.in_flight.insert(prompt, PromptInFlight { branches, left, tokens, keep, group, scores });
    }

    /// Submits the prompts begun so far. Reading an event does so too.
    pub fn start(&mut self) {
        let begun = std::mem::take(&mut self.begun);
        let (streamed, others): (Vec<_>, Vec<_>) = begun.into_iter().partition(|(hear, _)| *hear == Hear::Tokens);
        for (hear, begun) in [(Hear::Tokens, streamed), (Hear::Finishes, others)] {
            if !begun.is_empty() {
                self.submit(begun.into_iter().map(|(_, extend)| extend).collect(), hear);
            }
        }
    }

    fn submit(&mut self, extends: Vec<Extend>, hear: Hear) {
        let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
        let Err(error) = self.receiver.start_hearing(extends, hear) else { return };
        // Parameters were checked before: the engine has stopped.
        let why = match error {
            Error::EngineStopped { why } => why,
            other => other.to_string(),
        };
        let failed = |branch| Event::Failed { id: branch, error: Error::EngineStopped { why: why.clone() } };
        self.not_started.extend(branches.into_iter().map(failed));
    }

    fn check(&self, request: &PromptRequest<'_>) -> Result<()> {
        let EngineFacts { vocab, eos, .. } = self.engine.facts();
        request.params.check(*vocab)?;
        request.stop.check_beside(request.params, *vocab, eos)?;
        match request.results() {
            0 => Err(Error::value("n, samples of a prompt", "a number from 1 up", "0")),
            _ => Ok(()),
        }
    }

    /// A branch per sample.
    fn branches_of(&self, request: &PromptRequest<'_>, options: &BeginOptions) -> Result<Vec<BranchId>> {
        match request.n {
            0 => Ok(Vec::new()),
            n => {
                let (tokens, place) = (request.tokens.to_vec(), request.place(options));
                let root = match (&options.form_begun, &request.params.form) {
                    (Some(FormBegun { begin, sampled }), Some(form)) => {
                        let form = SampleForm { begin: begin.clone(), ..form.clone() };
                        self.engine.root_in_form(tokens, place, &form, *sampled)?
                    }
                    _ => self.engine.root_with(tokens, place)?,
                };
                self.forks_of(root, n)
            }
        }
    }

    /// `n` branches of a root; a single one is the root itself.
    fn forks_of(&self, root: BranchId, n: usize) -> Result<Vec<BranchId>> {
        if n == 1 {
            return Ok(vec![root]);
        }
        let branches = self.engine.fork(root, n);
        self.engine.release(&[root]);
        branches
    }

    /// A branch of the prompt's first token that is given the others, if they are to be scored.
    fn scored_prompt(&self, request: &PromptRequest<'_>, options: &BeginOptions) -> Result<Option<Extend>> {
        let Some(top) = request.prompt_logprobs else { return Ok(None) };
        let (first, rest) = request.tokens.split_at(request.tokens.len().min(1));
        let branch = self.engine.root_with(first.to_vec(), request.place(options))?;
        Ok(Some(Extend::given(branch, rest.to_vec(), Some(top))))
    }

    /// Waits for the next event; `None` once every sample has ended. If the engine stops, each sample fails.
    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest that dropping it midway is harmless")]
    pub fn next(&mut self) -> Option<Event<SampleId>> {
        wait(|patience| self.poll(patience))
    }

    /// Like `next`, but waits at most `patience`; `Poll::Pending` if nothing happened.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<Event<SampleId>>> {
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
    ) -> Poll<First<Option<Event<SampleId>>, M>> {
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
    fn take(&mut self, event: Event) -> Option<Event<SampleId>> {
        let branch = event.id();
        let sample = *self.by_branch.get(&branch)?;
        match &event {
            Event::Tokens { .. } => {}
            Event::Finished { finish, .. } => self.end(branch, sample, Some(&finish.reason)),
            Event::Failed { .. } => self.end(branch, sample, None),
        }
        Some(event.with_id(sample))
    }

    /// Forgets a sample that has ended; `finished`: how, if it did not fail.
    fn end(&mut self, branch: BranchId, sample: SampleId, finished: Option<&FinishReason>) {
        self.by_branch.remove(&branch);
        let prompt = self.in_flight.get_mut(&sample.prompt).expect("a prompt is in flight while a sample of it is");
        prompt.left -= 1;
        // The prompt's own scores are no sample.
        let finished = finished.filter(|_| prompt.scores != Some(sample.sample));
        let keep = prompt.keep || finished.is_some_and(|reason| prompt.group.keeps(reason));
        if finished.is_some_and(|reason| prompt.group.ends_with(reason)) {
            let others = prompt.branches.iter().filter(|&(&index, _)| prompt.scores != Some(index));
            let others: Vec<BranchId> =
                others.map(|(_, &branch)| branch).filter(|branch| self.by_branch.contains_key(branch)).collect();
            self.receiver.cancel(&others);
        }
        self.prompt_tokens -= prompt.tokens;
        let whole = if prompt.left == 0 { self.in_flight.remove(&sample.prompt) } else { None };
        match (self.release, whole) {
            _ if keep => drop(self.asked_for.insert(sample, branch)),
            (Release::EachSample, _) => self.engine.release(&[branch]),
            (Release::EachPrompt, Some(prompt)) => {
                self.engine.release(&prompt.branches.into_values().collect::<Vec<_>>())
            }
            (Release::AtEnd, Some(prompt)) => self.kept.extend(prompt.branches.into_values()),
            (Release::EachPrompt | Release::AtEnd, None) => {}
        }
    }

    /// Cancels these samples before the engine's next step; each finishes as cancelled and keeps its tokens, unless it
    /// has already ended.
    pub fn cancel(&self, samples: &[SampleId]) {
        let branch = |sample: &SampleId| self.in_flight.get(&sample.prompt)?.branches.get(&sample.sample).copied();
        self.receiver.cancel(&samples.iter().filter_map(branch).collect::<Vec<_>>());
    }

    /// Cancels all samples of a prompt.
    pub fn cancel_prompt(&self, prompt: usize) {
        if let Some(prompt) = self.in_flight.get(&prompt) {
            self.receiver.cancel(&prompt.branches.values().copied().collect::<Vec<_>>());
        }
    }

    /// The branch of a finished sample whose prompt was begun with `keep`, once: the caller releases it.
    pub fn take_branch(&mut self, sample: SampleId) -> Option<BranchId> {
        self.asked_for.remove(&sample)
    }

    /// Drops a prompt in flight at once, but for the branches that were taken; no further events of it are returned.
    pub fn prune(&mut self, prompt: usize) {
        let Some(mut dropped) = self.in_flight.remove(&prompt) else { return };
        dropped.branches.retain(|&sample, branch| {
            let is_unfinished = self.by_branch.remove(branch).is_some();
            self.prompt_tokens -= if is_unfinished { dropped.tokens } else { 0 };
            let was_kept = self.asked_for.remove(&SampleId { prompt, sample }).is_some();
            is_unfinished || !dropped.keep || was_kept
        });
        self.engine.prune(&dropped.branches.into_values().collect::<Vec<_>>());
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
        left.extend(self.asked_for.values());
        left.extend(self.in_flight.values().flat_map(|prompt| prompt.branches.values()));
        if !left.is_empty() {
            self.engine.prune(&left);
        }
    }
}
