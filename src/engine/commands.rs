//! The engine's side of the channel: it obeys commands between steps and sleeps while nothing grows.

use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use crate::backend::Backend;
use crate::engine::Engine;
use crate::engine::branch::{Branch, Drawing, Scoring, Work};
use crate::engine::handle::Command;
use crate::engine::request::{Continuation, Event, Extend, FinishReason};
use crate::engine::text::BranchText;
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};

impl<B: Backend> Engine<B> {
    /// Serves until the last handle is gone.
    pub(super) fn run(&mut self, commands: &Receiver<Command>) -> Result<()> {
        loop {
            let command = match self.scheduler.is_idle() {
                true => {
                    self.check_integrity()?;
                    commands.recv().map_err(|_| TryRecvError::Disconnected)
                }
                false => commands.try_recv(),
            };
            match command {
                Ok(command) => self.obey(command),
                // On a thread of the pool: from outside, each parallel loop of the step would put two threads to sleep and
                // wake them again, 60 microseconds in all.
                Err(TryRecvError::Empty) => rayon::scope(|_| self.step())?,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }

    fn check_integrity(&self) -> Result<()> {
        match self.config.check_plans {
            true => self.cache.prefix.check_integrity(&self.cache.pages).map_err(Error::Internal),
            false => Ok(()),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Root { branch, tokens } => drop(self.branches.insert(branch, Branch::root(branch, tokens))),
            Command::Fork { at, children } => self.fork(at, &children),
            Command::Start { extends, events } => extends.into_iter().for_each(|extend| self.extend(extend, &events)),
            Command::Cancel { branches } => branches.into_iter().for_each(|branch| self.cancel(branch)),
            Command::Release { branches, keep_cached } => {
                branches.into_iter().for_each(|branch| self.release(branch, keep_cached));
            }
            Command::Metrics { reply } => {
                self.count_memory();
                drop(reply.send(self.metrics.clone()));
            }
        }
    }

    /// A branch that grows cannot be forked: what the fork would hold would depend on when the command came.
    fn fork(&mut self, at: BranchId, children: &[BranchId]) {
        let Some(parent) = self.branches.get_mut(&at).filter(|parent| parent.rests()) else { return };
        // Parent and children may all be given the same tokens next, which are then to be shared.
        if let Some(lease) = &mut parent.lease {
            (lease.own, lease.used) = (false, false);
        }
        let forks: Vec<Branch> = children.iter().map(|&child| parent.fork(child)).collect();
        for fork in forks {
            if let Some(lease) = fork.lease {
                self.cache.prefix.retain(lease.segment);
            }
            self.branches.insert(fork.id, fork);
        }
    }

    fn extend(&mut self, extend: Extend, events: &Sender<Event>) {
        let Extend { branch: id, continuation } = extend;
        if let Err(error) = self.try_extend(id, continuation, events) {
            drop(events.send(Event::Failed { branch: id, error }));
        }
    }

    fn try_extend(&mut self, id: BranchId, continuation: Continuation, events: &Sender<Event>) -> Result<()> {
        let Some(branch) = self.branches.get(&id) else {
            let expected = "one that was made by root, or by a fork of a branch at rest, and not released";
            return Err(Error::value("branch", expected, id.to_string()));
        };
        if !branch.rests() {
            return Err(Error::value("branch", "one that rests", format!("{id}, which is being extended")));
        }
        match continuation {
            Continuation::Sampled { params, stop, coins } => {
                let stops = stop.strings.clone();
                if self.tokenizer.is_none() && !stops.is_empty() {
                    return Err(Error::value("stop strings", "none, for there is no tokenizer", format!("{stops:?}")));
                }
                let text = BranchText::new(self.tokenizer.as_deref(), &branch.tokens, stops, stop.include_stop)?;
                let drawing = |branch: &Branch| Drawing {
                    begin: branch.tokens.len(),
                    logprobs: Vec::new(),
                    top: Vec::new(),
                    stop_logprob: None,
                    text,
                    counts: params.has_penalties().then(|| branch.count_tokens()),
                    coins,
                    events: events.clone(),
                    params,
                    stop,
                };
                self.draw(id, drawing)
            }
            Continuation::Given { tokens, logprobs } => self.given(id, tokens, logprobs, events),
        }
    }

    fn draw(&mut self, id: BranchId, drawing: impl FnOnce(&Branch) -> Drawing) -> Result<()> {
        let context = self.facts.context;
        let branch = self.branches.get_mut(&id).expect("the caller found it");
        branch.work = Work::Draw(Box::new(drawing(branch)));
        if branch.tokens.len() >= context {
            branch.finish(FinishReason::ContextFull);
            return Ok(());
        }
        self.scheduler.add(id);
        Ok(())
    }

    fn given(&mut self, id: BranchId, tokens: Vec<TokenId>, logprobs: bool, events: &Sender<Event>) -> Result<()> {
        let branch = self.branches.get_mut(&id).expect("the caller found it");
        let (begin, context) = (branch.tokens.len(), self.facts.context);
        if begin + tokens.len() > context {
            let what = "a branch with the tokens given to it".to_owned();
            return Err(Error::ContextTooLong { what, tokens: begin + tokens.len(), context });
        }
        if let Some(token) = tokens.iter().find(|token| token.ix() >= self.facts.vocab) {
            return Err(Error::value("given tokens", format!("tokens below {}", self.facts.vocab), token.to_string()));
        }
        let text = BranchText::new(self.tokenizer.as_deref(), &branch.tokens, Vec::new(), false)?;
        branch.tokens.extend(&tokens);
        let scoring = Scoring { events: events.clone(), begin, logprobs: Vec::new(), text };
        branch.work = Work::Score(Box::new(scoring));
        match logprobs && !tokens.is_empty() {
            true => self.scheduler.add(id),
            false => branch.finish(FinishReason::Given),
        }
        Ok(())
    }

    fn cancel(&mut self, id: BranchId) {
        let Some(branch) = self.branches.get_mut(&id).filter(|branch| !branch.rests()) else { return };
        branch.finish(FinishReason::Cancelled);
        if branch.lease.is_some_and(|lease| self.cache.prefix.end(lease.segment) as usize > branch.tokens.len()) {
            self.cache.give_up(branch); // It holds given tokens that were not scored and that the branch does not keep.
        }
        self.scheduler.remove(id);
    }

    fn release(&mut self, id: BranchId, keep_cached: bool) {
        self.cancel(id);
        let Some(mut branch) = self.branches.remove(&id) else { return };
        match keep_cached {
            true => drop(self.cache.give_up(&mut branch)),
            false => self.cache.drop_now(&mut branch),
        }
    }
}
