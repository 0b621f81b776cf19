//! The end of the engine's channel at which whoever began a few branches together hears of them.

use std::collections::BTreeSet;
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, never, select};

use crate::engine::events::Listener;
use crate::engine::handle::{Command, EngineHandle};
use crate::engine::request::Event;
use crate::ids::BranchId;

/// What came first of the two things that were waited for.
#[derive(Debug)]
pub enum First<E, M> {
    Event(E),
    Message(M),
}

/// Branches being extended. Dropping it cancels those that have not finished.
pub struct Extension {
    handle: EngineHandle,
    events: Listener,
    unfinished: BTreeSet<BranchId>,
}

impl Extension {
    pub(super) fn new(handle: EngineHandle, events: Listener, unfinished: BTreeSet<BranchId>) -> Self {
        Extension { handle, events, unfinished }
    }

    /// Waits for the next event; `None` once every branch has finished or failed. If the engine stops, each branch fails.
    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest that dropping it midway is harmless")]
    pub fn next(&mut self) -> Option<Event> {
        let first = *self.unfinished.first()?;
        let event = match self.events.received() {
            Some(event) => event,
            None => match self.events.messages().recv() {
                Ok(message) => self.events.open(message),
                Err(RecvError) => self.failed(first),
            },
        };
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
        if let Some(event) = self.events.received() {
            return Poll::Ready(First::Event(Some(self.note(event))));
        }
        let events = self.events.messages();
        let told = select! {
            recv(others) -> message => match message {
                Ok(message) => return Poll::Ready(First::Message(message)),
                Err(RecvError) => events.recv_timeout(patience),
            },
            recv(events) -> told => told.map_err(RecvTimeoutError::from),
            default(patience) => Err(RecvTimeoutError::Timeout),
        };
        let event = match told {
            Ok(told) => self.events.open(told),
            Err(RecvTimeoutError::Timeout) => return Poll::Pending,
            Err(RecvTimeoutError::Disconnected) => self.failed(first),
        };
        Poll::Ready(First::Event(Some(self.note(event))))
    }

    fn failed(&self, branch: BranchId) -> Event {
        Event::Failed { branch, error: self.handle.stopped() }
    }

    fn note(&mut self, event: Event) -> Event {
        if !matches!(event, Event::Token { .. }) {
            self.unfinished.remove(&event.branch());
        }
        event
    }

    /// Branches that have neither finished nor failed, as far as `next` has told.
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Stops branches of this extension; each ends with `FinishReason::Cancelled` unless it has finished already. Takes effect before
    /// the engine's next step.
    pub fn cancel(&self, branches: &[BranchId]) {
        let branches = branches.iter().copied().filter(|branch| self.unfinished.contains(branch)).collect();
        self.handle.tell(Command::Cancel { branches });
    }

    pub fn cancel_all(&self) {
        if !self.unfinished.is_empty() {
            self.handle.tell(Command::Cancel { branches: self.unfinished.iter().copied().collect() });
        }
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.cancel_all();
    }
}
