//! The engine's side of the channel: executes commands between steps, a bounded number at a time so that steps are not
//! delayed, and sleeps while nothing runs.

use std::collections::VecDeque;

use crossbeam_channel::{RecvError, TryRecvError};

use crate::allowed::AllowedSets;
use crate::branch::{Branch, BranchWork, InFlight, KvHold, SamplingState, ScoredForm, ScoringState, WantedScores};
use crate::cache::KvCache;
use crate::commit::append_said;
use crate::confidence::ConfidenceWindow;
use crate::engine::Engine;
use crate::events::EventSender;
use crate::handle::Command;
use crate::path_form::ReadyForm;
use crate::ready::ReadyExtend;
use crate::records::TokenRecords;
use crate::request::{Continuation, Event, FinishReason, SamplingParams, Scoring, Stop};
use crate::said::Said;
use crate::sampler::SamplingRules;
use crate::text::BranchText;
use crate::values::{ValuesState, check_positions};
use offshoot_backend::MOST_TOP;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_core::setting::RETURN_ROUTED_EXPERTS;

/// Result of one turn of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A step was submitted or collected.
    Stepped,
    /// Nothing runs: there is nothing to do before the next command.
    Idle,
    /// The last handle was dropped.
    Abandoned,
}

/// How much more may be taken from the waiting commands before the next step. A command is never split.
#[derive(Clone, Copy, Debug)]
struct Intake {
    /// Branches named by commands, and commands that name none: about a microsecond each.
    branches: usize,
    /// Tokens of prompts and given tokens.
    tokens: usize,
}

impl Intake {
    /// Enough to make, start and release all branches that run at once.
    fn for_step(max_branches: usize) -> Self {
        Intake { branches: max_branches.saturating_mul(4).saturating_add(1024), tokens: 1 << 16 }
    }

    fn take(&mut self, command: &Command) {
        let (branches, tokens) = match command {
            Command::Root { path, .. } => (1, path.len()),
            Command::Fork { children, .. } => (children.len(), 0),
            Command::Start { extends, .. } => (extends.len(), extends.iter().map(|extend| extend.tokens_given()).sum()),
            Command::Continue { extend, said, .. } => (1, extend.tokens_given() + said.tokens.len()),
            Command::Cancel { branches } | Command::Release { branches } | Command::Prune { branches } => {
                (branches.len(), 0)
            }
            Command::SetAdapter { branches, .. } => (branches.len(), 0),
            Command::Borrow { tokens, .. } => (1, tokens.len()),
            Command::Metrics { .. }
            | Command::Pin { .. }
            | Command::CacheMap { .. }
            | Command::Evict { .. }
            | Command::Lend(_)
            | Command::Pause { .. }
            | Command::Resume { .. }
            | Command::UpdateWeights { .. }
            | Command::FailAll { .. }
            | Command::SetLabel { .. }
            | Command::Sleep { .. }
            | Command::Wake { .. }
            | Command::KeepAdapters { .. }
            | Command::StageAdapter { .. }
            | Command::DropAdapter
            | Command::PutAdapter { .. }
            | Command::UnloadAdapter { .. } => (1, 0),
        };
        self.branches = self.branches.saturating_sub(branches.max(1));
        self.tokens = self.tokens.saturating_sub(tokens);
    }

    fn is_used_up(self) -> bool {
        self.branches == 0 || self.tokens == 0
    }
}

/// The error of an extend of a branch that does not exist.
pub(crate) fn unknown_branch(id: BranchId) -> Error {
    let expected = "one that was made by root, or by a fork of a branch at rest, and not released";
    Error::value("branch", expected, id.to_string())
}

/// The error of an extend of a branch that is being extended.
pub(crate) fn busy_branch(id: BranchId) -> Error {
    Error::value("branch", "one that rests", format!("{id}, which is being extended"))
}

/// How tokens behind those of `branch` are sampled. `sets`: the sets of allowed tokens that extends share.
fn rules(
    branch: &Branch,
    mut params: SamplingParams,
    stop: Stop,
    sets: &mut AllowedSets,
    vocab: usize,
) -> SamplingRules {
    let allowed = params.allowed.take().map(|tokens| sets.share(tokens, vocab));
    let counts = params.has_penalties().then(|| branch.tokens.count_tokens());
    SamplingRules { begin: branch.tokens.len(), params, allowed, stop, counts }
}

impl Engine {
    /// Works until the last handle is dropped.
    pub(super) fn run(&mut self) -> Result<()> {
        loop {
            match self.turn()? {
                Turn::Stepped => {}
                Turn::Idle => match self.commands.recv() {
                    Ok(command) => self.execute(command)?,
                    Err(RecvError) => return self.save_rest(),
                },
                Turn::Abandoned => return Ok(()),
            }
        }
    }

    /// Executes waiting commands in order, then makes a step. While branches run, `Intake` bounds the commands.
    /// A step may be in flight meanwhile: pages that a command frees are reused only by steps submitted later, and
    /// results for work that a command ended are recognised by their generation.
    pub fn turn(&mut self) -> Result<Turn> {
        let mut intake = Intake::for_step(self.config.max_branches);
        while !(self.has_work() && intake.is_used_up()) {
            match self.commands.try_recv() {
                Ok(command) => {
                    intake.take(&command);
                    self.execute(command)?;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.save_rest()?;
                    return Ok(Turn::Abandoned);
                }
            }
        }
        if !self.has_work() {
            self.note_drained();
            self.transfer()?;
            self.serve_lends(true);
            if self.save_while_idle()? {
                return Ok(Turn::Stepped);
            }
            self.check_integrity()?;
            self.publish();
            // A shortage may have been another program's.
            self.most_run_rows = usize::MAX;
            return Ok(Turn::Idle);
        }
        // Before more is submitted: a copy waits for the steps that are.
        self.serve_lends(false);
        self.step()?;
        self.note_drained();
        self.publish();
        Ok(Turn::Stepped)
    }

    fn has_work(&self) -> bool {
        let is_idle = self.scheduler.is_idle() && self.submitted.is_empty();
        !is_idle && self.status.lock().makes_steps()
    }

    fn check_integrity(&self) -> Result<()> {
        if !self.config.check_plans {
            return Ok(());
        }
        let checked = self.cache.prefix.check_integrity(&self.cache.pages);
        let checked = checked.and_then(|()| self.cache.check_unshared(self.branches.values()));
        checked.and_then(|()| self.scheduler.check(&self.branches)).map_err(Error::Internal)
    }

    fn execute(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Root { place, mut path, home: _ } => {
                self.adapters.resolve(&mut path);
                self.branches.insert(place.branch, Branch::at_rest(place, path));
            }
            Command::Fork { at, children } => self.fork(at, &children),
            Command::Start { extends, events } => {
                extends.into_iter().for_each(|extend| self.extend(extend, Said::default(), &events));
            }
            Command::Continue { extend, said, events } => self.extend(extend, said, &events),
            Command::Cancel { branches } => self.cancel(&branches),
            Command::Release { branches } => self.release(&branches),
            Command::Prune { branches } => self.prune(&branches),
            Command::Metrics { reply } => {
                self.collect_all()?;
                self.count_memory();
                drop(reply.send(self.metrics.clone()));
            }
            Command::Pin { branch } => {
                if let Some(branch) = self.branches.get_mut(&branch) {
                    branch.is_pin = true;
                }
            }
            Command::CacheMap { most, reply } => drop(reply.send(self.cache_map(most))),
            Command::Evict { held, reply } => {
                if held {
                    self.collect_all()?;
                    self.forget_computed();
                }
                self.cache.evict_all();
                // The counts are published before the reply, so that whoever reads it finds them.
                self.publish();
                // The receiver of the reply may be gone.
                let _ = reply.send(self.cache.prefix.leased().pages > 0);
            }
            Command::Lend(lend) => self.lend(lend),
            Command::Borrow { reply, .. } if self.status.lock().asleep.any() => drop(reply.send(false)),
            Command::Borrow { tokens, part, reply } => drop(reply.send(self.borrow_part(&tokens, part)?)),
            Command::Pause { pause, reply } => self.pause(pause, reply)?,
            Command::Resume { reply } => {
                let resumed = self.resume();
                drop(reply.send(resumed));
            }
            Command::UpdateWeights { update, stands, reply } => {
                self.collect_all()?;
                let updated = self.update_weights(&update, stands);
                self.publish();
                drop(reply.send(updated));
            }
            Command::FailAll { why } => self.fail_all(&why),
            Command::SetLabel { label, reply } => {
                let _ = reply.send(self.status.set_label(label)); // Who asked may be gone.
            }
            Command::Sleep { sleep, reply } => {
                self.collect_all()?;
                let slept = self.sleep(sleep);
                self.publish();
                drop(reply.send(slept));
            }
            Command::Wake { parts, reply } => {
                let woken = self.wake(parts);
                drop(reply.send(woken));
            }
            Command::SetAdapter { branches, adapter } => self.set_adapter(&branches, adapter),
            Command::KeepAdapters { versions } => self.keep_adapters(versions),
            Command::StageAdapter { new, reply } => {
                let staged = self.stage_adapter(&new);
                drop(reply.send(staged));
            }
            Command::DropAdapter => self.drop_staged_adapter(),
            Command::PutAdapter { reply } => {
                self.collect_all()?;
                let put = self.put_adapter();
                self.publish();
                drop(reply.send(put));
            }
            Command::UnloadAdapter { name, reply } => {
                let unloaded = self.unload_adapter(&name);
                drop(reply.send(unloaded));
            }
        }
        Ok(())
    }

    /// Ignores a fork of a branch that is being extended: its tokens would depend on when the command arrived.
    fn fork(&mut self, at: BranchId, children: &[BranchId]) {
        let Some(parent) = self.branches.get_mut(&at).filter(|parent| parent.rests()) else { return };
        // Parent and children may be given the same tokens next, which are then shared.
        if let KvHold::Path(lease) = &mut parent.hold {
            (lease.own, lease.used) = (false, false);
        }
        self.cache.count_unshared(parent);
        let forks: Vec<Branch> = children.iter().map(|&child| parent.fork(child)).collect();
        for fork in forks {
            if let Some(lease) = fork.lease() {
                self.cache.prefix.retain(lease.segment);
            }
            self.scheduler.note_rest(&fork);
            self.branches.insert(fork.id, fork);
        }
    }

    fn extend(&mut self, extend: ReadyExtend, said: Said, events: &EventSender) {
        let id = extend.branch;
        if let Err(error) = self.try_extend(extend, said, events) {
            events.send(Event::Failed { id, error });
        }
    }

    /// Begins to extend a branch, behind what was `said` of the extend already: nothing of given tokens.
    fn try_extend(&mut self, extend: ReadyExtend, said: Said, events: &EventSender) -> Result<()> {
        let ReadyExtend { branch: id, continuation, form } = extend;
        let branch = self.branches.get_mut(&id).ok_or_else(|| unknown_branch(id))?;
        if !branch.rests() {
            return Err(busy_branch(id));
        }
        self.adapters.check(&branch.tokens)?;
        // What is started during a pause waits for memory and weights with it.
        let status = self.status.lock();
        if !status.is_paused() && !self.stands {
            status.check_ready("an engine to sample or score with")?;
        }
        drop(status);
        match continuation {
            Continuation::Sampled { params, stop, uniforms } => {
                if self.tokenizer.is_none() && !stop.strings.is_empty() {
                    let stops = &stop.strings;
                    return Err(Error::value("stop strings", "none, for there is no tokenizer", format!("{stops:?}")));
                }
                if params.routes && !self.facts.keeps_routes {
                    let expected = "false: no experts of tokens are kept";
                    return Err(Error::value("routes", format!("{expected} ({RETURN_ROUTED_EXPERTS})"), "true"));
                }
                let text = BranchText::new(self.tokenizer.as_deref(), &branch.tokens, &stop)?;
                branch.tokens.set_form(form.as_ref());
                let begin = branch.tokens.len();
                let sampling = SamplingState {
                    limit: begin.saturating_add(stop.max_tokens).min(self.facts.context),
                    confidence: stop.confidence.map(ConfidenceWindow::new),
                    rules: rules(branch, params, stop, &mut self.allowed, self.facts.vocab),
                    in_flight: InFlight::default(),
                    records: TokenRecords::default(),
                    masks: VecDeque::new(),
                    stop_token: None,
                    routes: None,
                    weights: Vec::new(),
                    adapters: Vec::new(),
                    text,
                    uniforms,
                    events: events.clone(),
                };
                branch.begin(BranchWork::Sample(Box::new(sampling)));
                let is_full = begin >= self.facts.context;
                match is_full.then_some(FinishReason::ContextFull).or_else(|| append_said(branch, said, &self.facts)) {
                    Some(reason) => self.end_said(id, reason),
                    None => self.begin_work(id),
                }
                Ok(())
            }
            Continuation::Given { tokens, scoring } => self.given(id, tokens, scoring, form, events),
        }
    }

    /// Ends an extend with the tokens that another engine has sampled for it.
    fn end_said(&mut self, id: BranchId, reason: FinishReason) {
        let stops = matches!(reason, FinishReason::StopToken(_));
        let ends_form = reason.ends_form(&self.facts.eos) || (stops && self.stops_behind_form(id));
        let branch = self.branches.get_mut(&id).expect("the extend has begun");
        if ends_form {
            branch.tokens.end_form();
        }
        branch.finish(reason);
    }

    fn given(
        &mut self,
        id: BranchId,
        tokens: Vec<TokenId>,
        scoring: Option<Scoring>,
        form: Option<ReadyForm>,
        events: &EventSender,
    ) -> Result<()> {
        let branch = self.branches.get_mut(&id).expect("the caller found it");
        let (begin, context) = (branch.tokens.len(), self.facts.context);
        if begin + tokens.len() > context {
            let what = "a branch with the tokens given to it".to_owned();
            return Err(Error::ContextTooLong { what, tokens: begin + tokens.len(), context });
        }
        if let Some(token) = tokens.iter().find(|token| token.ix() >= self.facts.vocab) {
            return Err(Error::value("given tokens", format!("tokens below {}", self.facts.vocab), token.to_string()));
        }
        if let Some(Scoring::Model { top }) = &scoring
            && *top > MOST_TOP
        {
            return Err(Error::value("logprobs of given tokens", format!("at most {MOST_TOP}"), top.to_string()));
        }
        let text = BranchText::new(self.tokenizer.as_deref(), &branch.tokens, &Stop::default())?;
        if let Some(Scoring::Values { at }) = scoring {
            check_positions(&at, begin + tokens.len())?;
            branch.tokens.give(&tokens);
            self.begin_values(id, ValuesState::new(events.clone(), begin, at, text));
            return Ok(());
        }
        let is_scored = scoring.is_some() && !tokens.is_empty();
        let scores = match scoring {
            None | Some(Scoring::Values { .. }) => WantedScores::Model { tops: 0 },
            Some(Scoring::Model { top }) => WantedScores::Model { tops: top.min(self.facts.vocab) },
            Some(Scoring::AsSampled { params, stop }) => {
                let rules = rules(branch, *params, *stop, &mut self.allowed, self.facts.vocab);
                let form = form.map(|ready| branch.tokens.state_under(&ready));
                let form = form.map(|state| ScoredForm { masks: VecDeque::new(), state });
                WantedScores::AsSampled { rules: Box::new(rules), form }
            }
        };
        branch.tokens.give(&tokens);
        let scoring = ScoringState::new(events.clone(), begin, scores, text);
        branch.begin(BranchWork::Score(Box::new(scoring)));
        if !is_scored {
            branch.finish(FinishReason::Given);
        } else if self.cache.take_over_all(branch) {
            self.metrics.prompt_tokens_logical += branch.count_given(branch.tokens.len() - 2);
            self.metrics.scores_reused = self.cache.scores_reused;
            branch.finish(FinishReason::Given);
        } else {
            self.begin_work(id);
        }
        Ok(())
    }

    fn cancel(&mut self, ids: &[BranchId]) {
        self.cut(ids, FinishReason::Cancelled);
    }

    /// Ends extends in progress with what they have.
    pub(super) fn cut(&mut self, ids: &[BranchId], reason: FinishReason) {
        let mut ended = Vec::new();
        for &id in ids {
            if let Some(branch) = self.branches.get_mut(&id) {
                branch.take_back_forced();
            }
            let routes = self.note_routes(id);
            if let Some(branch) = self.branches.get_mut(&id).filter(|branch| !branch.rests()) {
                self.cache.keep_sampled(branch);
                self.scheduler.note_end(branch, true);
                match routes {
                    Ok(()) => branch.finish(reason.clone()),
                    Err(error) => branch.fail(error),
                }
                ended.push(id);
            }
        }
        self.retire(ended);
    }

    fn release(&mut self, ids: &[BranchId]) {
        self.forget(ids, |cache, branch| _ = cache.release(branch));
    }

    fn prune(&mut self, ids: &[BranchId]) {
        self.forget(ids, |cache, branch| cache.prune(branch));
    }

    /// Cancels branches and removes them; `end_hold` ends what each of them holds of the cache.
    fn forget(&mut self, ids: &[BranchId], end_hold: impl Fn(&mut KvCache, &mut Branch)) {
        self.cancel(ids);
        let mut had_adapters = false;
        for id in ids {
            let Some(mut branch) = self.branches.remove(id) else { continue };
            self.scheduler.forget(*id);
            end_hold(&mut self.cache, &mut branch);
            had_adapters |= branch.tokens.adapters().first().is_some();
        }
        if had_adapters {
            self.free_unused_adapters();
        }
    }
}
