//! The channel that carries events from the engine's thread to a reader. It is bounded by merging, not by blocking:
//! while a reader lags, the tokens that one branch sampled under one version of weights and of its adapter are joined
//! into one event, so the queue holds at most `MOST_QUEUED` events, plus one end per branch, and one token event per
//! branch and versions. The engine never waits, and no end is lost. `request` defines the events.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::request::Event;
use offshoot_core::ids::BranchId;

/// Which events of a branch its reader receives. Ends are always sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hear {
    /// Only how each branch ends, with all its tokens: the reader is not woken before.
    #[default]
    Finishes,
    /// The finish of each branch, and its tokens as they are sampled.
    Tokens,
}

/// Queued events from which on the tokens of one branch are joined.
const MOST_QUEUED: usize = 4096;

/// Most events that the engine holds back before it sends them.
const BATCH: usize = 64;

/// Events that wait for their reader.
#[derive(Default)]
struct EventQueue {
    events: VecDeque<Event>,
    /// Where in `events` the tokens of a branch are joined; empty while the reader keeps up.
    joined: HashMap<BranchId, usize>,
    /// The reader is gone: events are dropped.
    is_closed: bool,
}

impl EventQueue {
    fn push(&mut self, event: Event) {
        let Event::Tokens { id: branch, .. } = event else {
            // Tokens that the branch samples after this end must not be joined with earlier ones.
            self.joined.remove(&event.id());
            return self.events.push_back(event);
        };
        if self.events.len() < MOST_QUEUED {
            return self.events.push_back(event);
        }
        let joined = match self.joined.get(&branch) {
            Some(&at) => self.events[at].join(event),
            None => Some(event),
        };
        if let Some(event) = joined {
            self.joined.insert(branch, self.events.len());
            self.events.push_back(event);
        }
    }
}

/// State shared by both ends.
struct Channel {
    queue: Mutex<EventQueue>,
    /// Holds at most one message: the queue is no longer empty, or the last sender is gone.
    wake: Sender<()>,
}

impl Channel {
    fn queue(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().expect("nothing panics while it holds the queue")
    }

    fn push(&self, events: impl IntoIterator<Item = Event>) {
        let mut queue = self.queue();
        if queue.is_closed {
            return;
        }
        let was_empty = queue.events.is_empty();
        events.into_iter().for_each(|event| queue.push(event));
        drop(queue);
        if was_empty {
            self.wake_reader();
        }
    }

    fn wake_reader(&self) {
        // A message that is there already wakes the reader.
        let _ = self.wake.try_send(());
    }
}

/// The senders of one channel together: the reader is woken when the last of them goes.
struct Senders(Arc<Channel>);

impl Drop for Senders {
    fn drop(&mut self) {
        self.0.wake_reader();
    }
}

/// The engine's end, for some of the reader's branches. Sending never fails: branches go on if the reader is gone.
#[derive(Clone)]
pub(crate) struct EventSender {
    senders: Arc<Senders>,
    hear: Hear,
}

impl EventSender {
    /// Sends one event at once.
    pub fn send(&self, event: Event) {
        self.senders.0.push([event]);
    }

    pub fn hears_tokens(&self) -> bool {
        self.hear == Hear::Tokens
    }

    /// The events that its reader receives.
    pub fn hear(&self) -> Hear {
        self.hear
    }

    fn is_same_channel(&self, other: &EventSender) -> bool {
        Arc::ptr_eq(&self.senders.0, &other.senders.0)
    }
}

/// The reader's end. `receiver` handles the loss of all senders.
pub(crate) struct EventReader {
    channel: Arc<Channel>,
    senders: Weak<Senders>,
    woken: Receiver<()>,
    /// Taken from the queue and not yet returned.
    taken: VecDeque<Event>,
}

impl EventReader {
    pub fn new() -> Self {
        let (wake, woken) = bounded(1);
        let channel = Arc::new(Channel { queue: Mutex::default(), wake });
        EventReader { channel, senders: Weak::new(), woken, taken: VecDeque::new() }
    }

    /// A sender of the events named by `hear`.
    pub fn sender(&mut self, hear: Hear) -> EventSender {
        let senders = self.senders.upgrade().unwrap_or_else(|| {
            let senders = Arc::new(Senders(self.channel.clone()));
            self.senders = Arc::downgrade(&senders);
            senders
        });
        EventSender { senders, hear }
    }

    /// The next event, if one is queued.
    pub fn next(&mut self) -> Option<Event> {
        if self.taken.is_empty() {
            // Taken before the queue is read, so that a message about later events stays.
            let _ = self.woken.try_recv();
            let mut queue = self.channel.queue();
            std::mem::swap(&mut queue.events, &mut self.taken);
            queue.joined.clear();
        }
        self.taken.pop_front()
    }

    /// Delivers when there may be events, or no sender is left.
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Whether all senders are gone. Events sent before can still be read.
    pub fn is_disconnected(&self) -> bool {
        self.senders.strong_count() == 0
    }

    /// Number of queued events.
    pub fn queued(&self) -> usize {
        self.taken.len() + self.channel.queue().events.len()
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        let mut queue = self.channel.queue();
        queue.is_closed = true;
        queue.events = VecDeque::new();
    }
}

/// The token events of one step. Those not sent yet are all for one reader; `flush` sends them.
#[derive(Default)]
pub(crate) struct EventBatcher {
    to: Option<EventSender>,
    events: Vec<Event>,
}

impl EventBatcher {
    pub fn send(&mut self, to: &EventSender, event: Event) {
        if self.events.len() == BATCH || self.to.as_ref().is_some_and(|begun| !begun.is_same_channel(to)) {
            self.flush();
        }
        self.to.get_or_insert_with(|| to.clone());
        self.events.push(event);
    }

    pub fn flush(&mut self) {
        if let Some(to) = self.to.take() {
            to.senders.0.push(self.events.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Finish, FinishReason};
    use offshoot_backend::SampledToken;
    use offshoot_core::ids::{TokenId, WeightVersion};

    fn token(branch: u64, token: usize) -> Event {
        let sampled = SampledToken::of(TokenId::new(token), 0.0);
        Event::Tokens {
            id: BranchId(branch),
            tokens: vec![sampled],
            text: format!("{token};"),
            weights: WeightVersion::FIRST,
            adapter: None,
        }
    }

    fn end(branch: u64) -> Event {
        Event::Finished { id: BranchId(branch), finish: Finish::empty(FinishReason::Length) }
    }

    /// Tokens by branch, and how often each branch ended, until nothing is left.
    fn read(reader: &mut EventReader) -> (HashMap<BranchId, Vec<usize>>, HashMap<BranchId, usize>) {
        let (mut tokens, mut ends) = (HashMap::<_, Vec<usize>>::new(), HashMap::new());
        while let Some(event) = reader.next() {
            match event {
                Event::Tokens { id: branch, tokens: run, text, .. } => {
                    let run: Vec<usize> = run.iter().map(|sampled| sampled.token.ix()).collect();
                    assert_eq!(text, run.iter().map(|token| format!("{token};")).collect::<String>());
                    assert!(!ends.contains_key(&branch), "a token after the end");
                    tokens.entry(branch).or_default().extend(run);
                }
                other => *ends.entry(other.id()).or_default() += 1,
            }
        }
        (tokens, ends)
    }

    #[test]
    fn each_reader_gets_its_events_in_order() {
        let mut readers: Vec<EventReader> = (0..3).map(|_| EventReader::new()).collect();
        let senders: Vec<EventSender> = readers.iter_mut().map(|reader| reader.sender(Hear::Tokens)).collect();
        let mut batcher = EventBatcher::default();
        // Reader 0 has a long run, then all three take turns.
        let to = |sent: usize| if sent < 3 * BATCH { 0 } else { sent % 3 };
        for sent in 0..5 * BATCH {
            batcher.send(&senders[to(sent)], token(to(sent) as u64, sent));
        }
        batcher.flush();
        senders[1].send(token(1, 5 * BATCH));
        assert!(!readers[0].is_disconnected());
        drop(senders);
        for (number, reader) in readers.iter_mut().enumerate() {
            let mut sent: Vec<usize> = (0..5 * BATCH).filter(|&sent| to(sent) == number).collect();
            sent.extend((number == 1).then_some(5 * BATCH));
            assert_eq!(read(reader).0, HashMap::from([(BranchId(number as u64), sent)]));
            assert!(reader.is_disconnected());
        }
    }

    #[test]
    fn while_a_reader_lags_tokens_are_joined_and_nothing_is_lost() {
        let (branches, tokens) = (100, 1000);
        let mut reader = EventReader::new();
        let sender = reader.sender(Hear::Tokens);
        let mut batcher = EventBatcher::default();
        for at in 0..tokens {
            (0..branches).for_each(|branch| batcher.send(&sender, token(branch, at)));
        }
        batcher.flush();
        (0..branches).for_each(|branch| sender.send(end(branch)));
        let most = MOST_QUEUED + 2 * branches as usize;
        assert!(reader.queued() <= most, "{} events wait, at most {most} may", reader.queued());
        let (heard, ends) = read(&mut reader);
        for branch in (0..branches).map(BranchId) {
            assert_eq!(heard[&branch], (0..tokens).collect::<Vec<_>>());
            assert_eq!(ends[&branch], 1);
        }
    }

    #[test]
    fn a_branch_that_goes_on_after_its_end_is_not_told_before_it() {
        let mut reader = EventReader::new();
        let sender = reader.sender(Hear::Tokens);
        (0..MOST_QUEUED).for_each(|_| sender.send(end(7)));
        for event in [token(1, 0), token(1, 1), end(1), token(1, 2), token(1, 3)] {
            sender.send(event);
        }
        let told: Vec<Event> = std::iter::from_fn(|| reader.next()).skip(MOST_QUEUED).collect();
        let lengths = |event: &Event| match event {
            Event::Tokens { tokens, .. } => tokens.iter().map(|sampled| sampled.token.ix()).collect(),
            _ => Vec::new(),
        };
        assert_eq!(told.iter().map(lengths).collect::<Vec<_>>(), [vec![0, 1], vec![], vec![2, 3]]);
    }

    #[test]
    fn nothing_is_kept_for_a_reader_that_is_gone() {
        let mut reader = EventReader::new();
        let (sender, channel) = (reader.sender(Hear::Tokens), reader.channel.clone());
        sender.send(token(1, 0));
        drop(reader);
        sender.send(end(1));
        assert!(channel.queue().events.is_empty());
    }
}
