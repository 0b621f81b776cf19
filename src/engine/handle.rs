//! The engine's channel client. `EngineHandle` names branches and sends commands without waiting for the step in progress;
//! an `Extension` receives what happens. Neither knows model, backend or type parameters, so a test can answer the channel
//! with a script (`scripted`).

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, Sender, never, select, unbounded};

use crate::engine::metrics::Metrics;
use crate::engine::request::{Continuation, Event, Extend};
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};

/// What does not change while an engine lives.
#[derive(Clone, Debug)]
pub struct EngineFacts {
    /// Tokens that one branch may have.
    pub context: usize,
    pub vocab: usize,
    pub bos: Option<TokenId>,
    pub eos: Vec<TokenId>,
    /// One line for people.
    pub device: String,
    /// What decides the last bits of exact results (see `Backend::arithmetic`).
    pub arithmetic: String,
    /// Whether what a branch draws depends on its own tokens and coins alone, to the last bit: not on other branches, on plans,
    /// or on which steps computed it.
    pub exact: bool,
    pub page_tokens: usize,
    /// Bytes of one page, all layers.
    pub page_bytes: usize,
    pub pool_pages: usize,
}

impl EngineFacts {
    /// Pages that a branch of `given` tokens takes by itself once it has drawn `drawn` more: the last one drawn has no keys and
    /// values.
    pub fn path_pages(&self, given: usize, drawn: usize) -> usize {
        let own = match drawn {
            0 | 1 => 0,
            _ => (given + drawn - 1).div_ceil(self.page_tokens) - given / self.page_tokens,
        };
        given.div_ceil(self.page_tokens) + own
    }
}

/// What travels to the engine's thread. Branches are named by the sender, so nothing waits for a reply but `Metrics`.
pub(crate) enum Command {
    /// `line`: the root in whose place it stands among branches that wait; its own, or one that was made before.
    Root {
        branch: BranchId,
        line: BranchId,
        tokens: Vec<TokenId>,
    },
    Fork {
        at: BranchId,
        children: Vec<BranchId>,
    },
    Start {
        extends: Vec<Extend>,
        events: Sender<Event>,
    },
    Cancel {
        branches: Vec<BranchId>,
    },
    Release {
        branches: Vec<BranchId>,
        keep_cached: bool,
    },
    Metrics {
        reply: Sender<Metrics>,
    },
}

/// Why the engine's thread ended, once it has.
pub(crate) type Epitaph = Arc<OnceLock<String>>;

/// A client of the engine; clones share it. The engine ends when the last handle and the last extension are dropped.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    epitaph: Epitaph,
    facts: Arc<EngineFacts>,
    next_branch: Arc<AtomicU64>,
}

impl EngineHandle {
    pub(crate) fn new(facts: EngineFacts) -> (Self, Receiver<Command>, Epitaph) {
        let (commands, receiver) = unbounded();
        let epitaph = Epitaph::default();
        let handle = EngineHandle {
            commands,
            epitaph: epitaph.clone(),
            facts: Arc::new(facts),
            next_branch: Arc::new(AtomicU64::new(0)),
        };
        (handle, receiver, epitaph)
    }

    pub fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    /// A new branch of these tokens. Nothing is computed before something is drawn or scored after them; what is known of
    /// them by then is shared.
    /// Branches are served in the order in which their roots were made.
    pub fn root(&self, tokens: Vec<TokenId>) -> Result<BranchId> {
        self.check_prompt(&tokens)?;
        let branch = self.name_branch();
        self.send(Command::Root { branch, line: branch, tokens })?;
        Ok(branch)
    }

    /// The same in the place of the root `line`, which need not live any more: what is asked on the way is not to wait for
    /// everything that began later.
    pub fn root_beside(&self, line: BranchId, tokens: Vec<TokenId>) -> Result<BranchId> {
        self.check_prompt(&tokens)?;
        let branch = self.name_branch();
        self.send(Command::Root { branch, line, tokens })?;
        Ok(branch)
    }

    fn check_prompt(&self, tokens: &[TokenId]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::value("prompt", "at least one token", "none"));
        }
        if tokens.len() > self.facts.context {
            let (what, tokens, context) = ("the prompt".to_owned(), tokens.len(), self.facts.context);
            return Err(Error::ContextTooLong { what, tokens, context });
        }
        if let Some(token) = tokens.iter().find(|token| token.ix() >= self.facts.vocab) {
            return Err(Error::value("prompt", format!("tokens below {}", self.facts.vocab), token.to_string()));
        }
        Ok(())
    }

    /// `n` new branches that go on where `at` ends now. `at` must rest: a fork of a branch that is being extended fails when
    /// its children are.
    pub fn fork(&self, at: BranchId, n: usize) -> Result<Vec<BranchId>> {
        if n == 0 {
            return Err(Error::value("branches of a fork", "a number from 1 up", "0"));
        }
        let children: Vec<BranchId> = (0..n).map(|_| self.name_branch()).collect();
        self.send(Command::Fork { at, children: children.clone() })?;
        Ok(children)
    }

    /// Begins to extend branches; all of them, and those of other extensions, grow together in one batch.
    pub fn start(&self, extends: Vec<Extend>) -> Result<Extension> {
        self.check_extends(&extends)?;
        let unfinished = extends.iter().map(|extend| extend.branch).collect();
        let (events, receiver) = unbounded();
        self.send(Command::Start { extends, events })?;
        Ok(Extension { handle: self.clone(), events: receiver, unfinished })
    }

    /// A place where branches tell of themselves that are begun at different times.
    pub fn inbox(&self) -> Inbox {
        let (sender, events) = unbounded();
        Inbox { handle: self.clone(), sender, events, unfinished: HashSet::new() }
    }

    fn check_extends(&self, extends: &[Extend]) -> Result<()> {
        for extend in extends {
            if let Continuation::Sampled { params, stop, .. } = &extend.continuation {
                params.check(self.facts.vocab)?;
                stop.check(self.facts.vocab)?;
            }
        }
        Ok(())
    }

    /// Forgets branches; their keys and values stay cached until room is needed. A branch in progress is cancelled first.
    pub fn release(&self, branches: &[BranchId]) {
        self.tell(Command::Release { branches: branches.to_vec(), keep_cached: true });
    }

    /// Forgets branches and gives back at once the pages that no other branch holds.
    pub fn discard(&self, branches: &[BranchId]) {
        self.tell(Command::Release { branches: branches.to_vec(), keep_cached: false });
    }

    /// The counters as they are after the step in progress.
    pub fn metrics(&self) -> Result<Metrics> {
        let (reply, receiver) = unbounded();
        self.send(Command::Metrics { reply })?;
        receiver.recv().map_err(|_| self.stopped())
    }

    fn name_branch(&self) -> BranchId {
        BranchId(self.next_branch.fetch_add(1, Ordering::Relaxed))
    }

    fn send(&self, command: Command) -> Result<()> {
        if self.epitaph.get().is_some() {
            return Err(self.stopped());
        }
        self.commands.send(command).map_err(|_| self.stopped())
    }

    /// For commands that ask for nothing: an engine that has stopped holds nothing to give back.
    fn tell(&self, command: Command) {
        drop(self.commands.send(command));
    }

    /// For a channel found closed. The engine's thread closes its channels before it says why, and always says why.
    fn stopped(&self) -> Error {
        Error::EngineStopped { why: self.epitaph.wait().clone() }
    }
}

/// What came first of the two things that were waited for.
#[derive(Debug)]
pub enum First<E, M> {
    Event(E),
    Message(M),
}

/// Branches being extended. Dropping it cancels those that have not finished.
pub struct Extension {
    handle: EngineHandle,
    events: Receiver<Event>,
    unfinished: Vec<BranchId>,
}

impl Extension {
    /// Waits for the next event; `None` once every branch has finished or failed. If the engine stops, each branch fails.
    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest that dropping it midway is harmless")]
    pub fn next(&mut self) -> Option<Event> {
        let first = *self.unfinished.first()?;
        let event = self.events.recv().unwrap_or_else(|_| self.failed(first));
        Some(self.note(event))
    }

    /// `next` that waits no longer than `patience`; `Poll::Pending` if nothing happened until then. A long prompt may be computed
    /// for minutes without an event.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<Event>> {
        self.poll_beside(&never::<()>(), patience).map(|first| match first {
            First::Event(event) => event,
            First::Message(()) => unreachable!("nobody sends on a channel that never delivers"),
        })
    }

    /// `poll` that is woken by a message on `others` too; of two that are there, the message comes first. Once every branch has
    /// finished or failed, it waits for nothing. A channel that is closed is as one that stays silent.
    pub fn poll_beside<M>(&mut self, others: &Receiver<M>, patience: Duration) -> Poll<First<Option<Event>, M>> {
        if let Ok(message) = others.try_recv() {
            return Poll::Ready(First::Message(message));
        }
        let Some(&first) = self.unfinished.first() else { return Poll::Ready(First::Event(None)) };
        let event = select! {
            recv(others) -> message => match message {
                Ok(message) => return Poll::Ready(First::Message(message)),
                Err(RecvError) => self.events.recv_timeout(patience),
            },
            recv(self.events) -> event => event.map_err(RecvTimeoutError::from),
            default(patience) => Err(RecvTimeoutError::Timeout),
        };
        match event {
            Ok(event) => Poll::Ready(First::Event(Some(self.note(event)))),
            Err(RecvTimeoutError::Timeout) => Poll::Pending,
            Err(RecvTimeoutError::Disconnected) => {
                let failed = self.failed(first);
                Poll::Ready(First::Event(Some(self.note(failed))))
            }
        }
    }

    fn failed(&self, branch: BranchId) -> Event {
        Event::Failed { branch, error: self.handle.stopped() }
    }

    fn note(&mut self, event: Event) -> Event {
        if !matches!(event, Event::Token { .. })
            && let Some(at) = self.unfinished.iter().position(|&branch| branch == event.branch())
        {
            self.unfinished.remove(at);
        }
        event
    }

    /// Branches that have neither finished nor failed, as far as `next` has told.
    pub fn unfinished(&self) -> &[BranchId] {
        &self.unfinished
    }

    /// Stops branches of this extension; each ends with `FinishReason::Cancelled` unless it has finished already. Takes effect before
    /// the engine's next step.
    pub fn cancel(&self, branches: &[BranchId]) {
        let branches = branches.iter().copied().filter(|branch| self.unfinished.contains(branch)).collect();
        self.handle.tell(Command::Cancel { branches });
    }

    pub fn cancel_all(&self) {
        if !self.unfinished.is_empty() {
            self.handle.tell(Command::Cancel { branches: self.unfinished.clone() });
        }
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

/// Branches being extended that were begun at different times: for one who keeps thousands of them in flight. Dropping it cancels
/// those that have not finished.
pub struct Inbox {
    handle: EngineHandle,
    sender: Sender<Event>,
    events: Receiver<Event>,
    unfinished: HashSet<BranchId>,
}

impl Inbox {
    /// `EngineHandle::start`, with the events here.
    pub fn start(&mut self, extends: Vec<Extend>) -> Result<()> {
        self.handle.check_extends(&extends)?;
        let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
        self.handle.send(Command::Start { extends, events: self.sender.clone() })?;
        self.unfinished.extend(branches);
        Ok(())
    }

    /// The next event, waited for no longer than `patience`; `Poll::Ready(None)` while every branch has finished or failed. If the
    /// engine stops, each branch fails.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<Event>> {
        let Some(&any) = self.unfinished.iter().next() else { return Poll::Ready(None) };
        let event = self.events.recv_timeout(patience).ok().or_else(|| {
            // Whatever it had to tell was told before it stopped.
            let stopped = self.handle.epitaph.get().is_some();
            stopped.then(|| self.events.try_recv().unwrap_or_else(|_| self.failed(any)))
        });
        event.map_or(Poll::Pending, |event| {
            if !matches!(event, Event::Token { .. }) {
                self.unfinished.remove(&event.branch());
            }
            Poll::Ready(Some(event))
        })
    }

    fn failed(&self, branch: BranchId) -> Event {
        Event::Failed { branch, error: self.handle.stopped() }
    }

    /// Branches that have neither finished nor failed, as far as `poll` has told.
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if !self.unfinished.is_empty() {
            self.handle.tell(Command::Cancel { branches: self.unfinished.iter().copied().collect() });
        }
    }
}

/// Runs the body of an engine's thread and records why it ended. The caller keeps what holds the channels' other ends alive
/// until then, so that whoever sees them close finds the reason.
pub(crate) fn live(epitaph: &Epitaph, body: impl FnOnce() -> Result<()>) {
    let why = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => "all its handles were dropped".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&what| what.to_owned()))
            .unwrap_or_else(|| "a panic without words".to_owned()),
    };
    epitaph.get_or_init(|| why);
}
