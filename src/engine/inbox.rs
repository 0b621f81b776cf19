//! The end of the engine's channel at which whoever keeps thousands of branches in flight hears of them all.

use std::collections::HashSet;
use std::task::Poll;
use std::time::Duration;

use crate::engine::events::{self, Listener, Teller};
use crate::engine::handle::{Command, EngineHandle};
use crate::engine::request::{Event, Extend};
use crate::error::Result;
use crate::ids::BranchId;

/// Branches being extended that were begun at different times: for one who keeps thousands of them in flight. Dropping it cancels
/// those that have not finished.
pub struct Inbox {
    handle: EngineHandle,
    teller: Teller,
    events: Listener,
    unfinished: HashSet<BranchId>,
}

impl Inbox {
    pub(super) fn new(handle: EngineHandle) -> Self {
        let (teller, events) = events::channel();
        Inbox { handle, teller, events, unfinished: HashSet::new() }
    }

    /// `EngineHandle::start`, with the events here.
    pub fn start(&mut self, extends: Vec<Extend>) -> Result<()> {
        self.handle.check_extends(&extends)?;
        let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
        self.handle.send(Command::Start { extends, events: self.teller.clone() })?;
        self.unfinished.extend(branches);
        Ok(())
    }

    /// The next event, waited for no longer than `patience`; `Poll::Ready(None)` while every branch has finished or failed. If the
    /// engine stops, each branch fails.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<Event>> {
        let Some(&any) = self.unfinished.iter().next() else { return Poll::Ready(None) };
        let Some(event) = self.events.received().or_else(|| self.receive(patience, any)) else { return Poll::Pending };
        if !matches!(event, Event::Token { .. }) {
            self.unfinished.remove(&event.branch());
        }
        Poll::Ready(Some(event))
    }

    /// If the engine stops, `any` branch fails.
    fn receive(&mut self, patience: Duration, any: BranchId) -> Option<Event> {
        let messages = self.events.messages();
        // With no patience it would still spin for a while.
        let message = if patience.is_zero() { messages.try_recv().ok() } else { messages.recv_timeout(patience).ok() };
        if message.is_none() && !self.handle.has_stopped() {
            return None;
        }
        // Whatever it had to tell was told before it stopped.
        match message.or_else(|| messages.try_recv().ok()) {
            Some(message) => Some(self.events.open(message)),
            None => Some(self.failed(any)),
        }
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
