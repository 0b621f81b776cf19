//! How events travel from the engine's thread to who asked for them: several at a time, for a step tells thousands of them and a
//! message may have to wake its reader. Each reader gets them in the order in which they were told. What they mean is
//! `request`'s.

use std::vec;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::engine::request::Event;

/// Events in one message at most.
const MOST: usize = 64;

/// The engine's end. Whoever listens may have gone, and branches go on all the same: so nothing here fails.
#[derive(Clone)]
pub(crate) struct Teller(Sender<Vec<Event>>);

/// The end of who asked.
pub(crate) struct Listener {
    /// Messages of at least one event.
    messages: Receiver<Vec<Event>>,
    /// What is left of the last one.
    message: vec::IntoIter<Event>,
}

pub(crate) fn channel() -> (Teller, Listener) {
    let (sender, messages) = unbounded();
    (Teller(sender), Listener { messages, message: Vec::new().into_iter() })
}

impl Teller {
    /// Tells one event at once.
    pub fn tell(&self, event: Event) {
        drop(self.0.send(vec![event]));
    }
}

impl Listener {
    pub fn messages(&self) -> &Receiver<Vec<Event>> {
        &self.messages
    }

    /// The next event of a message that was received before.
    pub fn received(&mut self) -> Option<Event> {
        self.message.next()
    }

    /// The first event of `message`; the others are `received` after it.
    pub fn open(&mut self, message: Vec<Event>) -> Event {
        self.message = message.into_iter();
        self.message.next().expect("a message holds an event")
    }
}

/// The events that one step tells. Those not sent yet are all for one reader; `flush` sends them.
#[derive(Default)]
pub(super) struct Telling {
    to: Option<Teller>,
    message: Vec<Event>,
}

impl Telling {
    pub fn tell(&mut self, to: &Teller, event: Event) {
        let is_other = |begun: &Teller| !begun.0.same_channel(&to.0);
        if self.message.len() == MOST || self.to.as_ref().is_some_and(is_other) {
            self.flush();
        }
        self.to.get_or_insert_with(|| to.clone());
        self.message.push(event);
    }

    pub fn flush(&mut self) {
        if let Some(to) = self.to.take() {
            drop(to.0.send(std::mem::take(&mut self.message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BranchId, TokenId};

    fn token(branch: u64, token: usize) -> Event {
        let (branch, token) = (BranchId(branch), TokenId::new(token));
        Event::Token { branch, token, logprob: 0.0, top: Vec::new(), text: String::new() }
    }

    #[test]
    fn each_reader_gets_its_events_in_order() {
        let (tellers, mut listeners): (Vec<_>, Vec<_>) = (0..3).map(|_| channel()).unzip();
        let mut telling = Telling::default();
        // Reader 0 has a long run, then all three take turns.
        let to = |told: usize| if told < 3 * MOST { 0 } else { told % 3 };
        for told in 0..5 * MOST {
            telling.tell(&tellers[to(told)], token(to(told) as u64, told));
        }
        telling.flush();
        tellers[1].tell(token(1, 5 * MOST));
        drop(tellers);
        for (reader, listener) in listeners.iter_mut().enumerate() {
            let mut heard = Vec::new();
            while let Some(event) =
                listener.received().or_else(|| listener.messages().try_recv().ok().map(|m| listener.open(m)))
            {
                let Event::Token { branch, token, .. } = event else { panic!("only tokens were told") };
                assert_eq!(branch.ix(), reader);
                heard.push(token.ix());
            }
            let mut told: Vec<usize> = (0..5 * MOST).filter(|&told| to(told) == reader).collect();
            told.extend((reader == 1).then_some(5 * MOST));
            assert_eq!(heard, told);
        }
    }
}
