//! Extends branches and receives their events: a few branches started together, or thousands started at different
//! times.

use std::collections::{BTreeSet, HashMap};
use std::task::Poll;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select};

use crate::events::{EventReader, Hear};
use crate::handle::{Command, EngineHandle};
use crate::request::{Event, Extend, Finish};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;

/// Which of two awaited things came first.
#[derive(Debug)]
pub enum First<E, M> {
    Event(E),
    Message(M),
}

/// Waits with `poll` until it is ready.
pub fn wait<T>(mut poll: impl FnMut(Duration) -> Poll<T>) -> T {
    /// Longer than any job takes.
    const FOREVER: Duration = Duration::from_secs(1 << 32);
    loop {
        if let Poll::Ready(ready) = poll(FOREVER) {
            return ready;
        }
    }
}

/// Branches being extended. Dropping it cancels those that have not finished.
pub struct EventReceiver {
    handle: EngineHandle,
    hear: Hear,
    events: EventReader,
    unfinished: BTreeSet<BranchId>,
}

impl EngineHandle {
    /// Where branches are begun, at any time, and heard of.
    pub fn receiver(&self, hear: Hear) -> EventReceiver {
        EventReceiver::new(self.clone(), hear)
    }

    /// Begins to extend branches, and hears their tokens.
    pub fn start(&self, extends: Vec<Extend>) -> Result<EventReceiver> {
        let mut receiver = self.receiver(Hear::Tokens);
        receiver.start(extends)?;
        Ok(receiver)
    }

    /// Extends branches and waits until all have finished: what each of them came to, in their order, or the first
    /// failure.
    pub fn finish(&self, extends: Vec<Extend>) -> Result<Vec<Finish>> {
        let places: HashMap<BranchId, usize> =
            extends.iter().zip(0..).map(|(extend, at)| (extend.branch, at)).collect();
        let mut finished: Vec<Option<Finish>> = extends.iter().map(|_| None).collect();
        let mut receiver = self.receiver(Hear::Finishes);
        receiver.start(extends)?;
        while let Some(event) = receiver.next() {
            match event {
                Event::Tokens { .. } => {}
                Event::Finished { id: branch, finish } => finished[places[&branch]] = Some(finish),
                Event::Failed { error, .. } => return Err(error),
            }
        }
        Ok(finished.into_iter().map(|finish| finish.expect("every branch ends, and none failed")).collect())
    }
}

impl EventReceiver {
    pub(super) fn new(handle: EngineHandle, hear: Hear) -> Self {
        EventReceiver { handle, hear, events: EventReader::new(), unfinished: BTreeSet::new() }
    }

    /// Starts to extend branches, whose events arrive here. They run in one batch with those of other receivers.
    pub fn start(&mut self, extends: Vec<Extend>) -> Result<()> {
        self.start_hearing(extends, self.hear)
    }

    /// Starts to extend branches; `hear` says which of their events arrive here. Their forms are compiled here.
    pub fn start_hearing(&mut self, extends: Vec<Extend>, hear: Hear) -> Result<()> {
        let branches: BTreeSet<BranchId> = extends.iter().map(|extend| extend.branch).collect();
        if branches.len() < extends.len() {
            return Err(Error::value("branches to extend", "each of them once", "one of them twice"));
        }
        let extends = self.handle.make_ready(extends)?;
        self.handle.send(Command::Start { extends, events: self.events.sender(hear) })?;
        self.unfinished.extend(branches);
        Ok(())
    }

    /// Waits for the next event; `None` once every branch has finished or failed. If the engine stops, each branch
    /// fails.
    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest that dropping it midway is harmless")]
    pub fn next(&mut self) -> Option<Event> {
        wait(|patience| self.poll(patience))
    }

    /// `next` with a timeout; `Poll::Pending` after it. A long prompt may be computed for minutes without an event.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<Event>> {
        self.poll_beside(&never::<()>(), patience).map(|first| match first {
            First::Event(event) => event,
            First::Message(()) => unreachable!("nobody sends on a channel that never delivers"),
        })
    }

    /// `poll` that also returns a message from `others`; if both are there, the message. Once every branch has finished
    /// or failed, it does not wait. A closed channel counts as silent.
    pub fn poll_beside<M>(&mut self, others: &Receiver<M>, patience: Duration) -> Poll<First<Option<Event>, M>> {
        if let Ok(message) = others.try_recv() {
            return Poll::Ready(First::Message(message));
        }
        let (silent, mut others, mut deadline) = (never(), others, None);
        loop {
            if self.unfinished.is_empty() {
                return Poll::Ready(First::Event(None));
            }
            // The engine sent all its events before it stopped.
            let has_stopped = self.events.is_disconnected();
            if let Some(event) = self.events.next() {
                return Poll::Ready(First::Event(Some(self.note(event))));
            }
            if has_stopped {
                let event = self.failed();
                return Poll::Ready(First::Event(event.map(|event| self.note(event))));
            }
            if self.events.is_disconnected() {
                continue; // The read may have taken the message that says so.
            }
            if patience.is_zero() {
                return Poll::Pending;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
            select! {
                recv(others) -> message => match message {
                    Ok(message) => return Poll::Ready(First::Message(message)),
                    Err(_) => others = &silent,
                },
                recv(self.events.woken()) -> _ => {}
                default(deadline.saturating_duration_since(Instant::now())) => return Poll::Pending,
            }
        }
    }

    /// The failure of the first unfinished branch, once the engine has stopped.
    fn failed(&self) -> Option<Event> {
        self.unfinished.first().map(|&branch| Event::Failed { id: branch, error: self.handle.stopped() })
    }

    fn note(&mut self, event: Event) -> Event {
        if event.is_end() {
            self.unfinished.remove(&event.id());
        }
        event
    }

    /// Branches that have neither finished nor failed, by the events read so far.
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Number of queued events.
    pub fn queued(&self) -> usize {
        self.events.queued()
    }

    /// Stops branches that were started here; each ends with `FinishReason::Cancelled` unless it has finished already.
    /// Takes effect before the engine's next step.
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

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.cancel_all();
    }
}
