//! Questions about all engines: their counters, and what their prefix trees hold. Each is answered by a thread, as an
//! engine answers only after its step and the router must not wait.

use std::sync::{Arc, Mutex};
use std::thread::Builder;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::metrics::Sum;
use crate::{Command, LivePlace, Metrics};
use offshoot_kv::MappedSegment;

use super::router::Router;

impl Router {
    /// Sends the sum of all counters. Those of an engine that has ended are as they were after its last turn.
    pub fn metrics(&mut self, reply: Sender<Metrics>) {
        let live: Vec<LivePlace> = self.replicas.iter().map(|replica| replica.engine.live_place()).collect();
        let asked = self.ask_each(|reply| Command::Metrics { reply });
        let sum = move || {
            let mut sum = Metrics::default();
            for (receiver, live) in asked.into_iter().zip(live) {
                sum.add(&receiver.recv().unwrap_or_else(|_| live.read().metrics));
            }
            drop(reply.send(sum));
        };
        answer(sum);
    }

    /// Sends the segments of all prefix trees, those of one engine after those of another, about `most` in all.
    pub fn cache_map(&mut self, most: usize, reply: Sender<Vec<MappedSegment>>) {
        let each = most.div_ceil(self.replicas.iter().filter(|replica| replica.lives()).count().max(1));
        let asked = self.ask_each(|reply| Command::CacheMap { most: each, reply });
        let join =
            move || {
                let mut all: Vec<MappedSegment> = Vec::new();
                for receiver in asked {
                    let before = all.len();
                    let segments = receiver.recv().unwrap_or_default();
                    all.extend(segments.into_iter().map(|segment| MappedSegment {
                        parent: segment.parent.map(|parent| parent + before),
                        ..segment
                    }));
                }
                drop(reply.send(all));
            };
        answer(join);
    }

    /// Has all engines give up what they cache, and what branches hold, if `held`; sends whether any holds pages still.
    pub fn evict(&mut self, held: bool, reply: Sender<bool>) {
        let asked = self.ask_each(|reply| Command::Evict { held, reply });
        let join = move || {
            let held: Vec<bool> = asked.into_iter().map(|receiver| receiver.recv().unwrap_or_default()).collect();
            // The receiver of the reply may be gone.
            let _ = reply.send(held.contains(&true));
        };
        answer(join);
    }

    pub(super) fn ask_each<T>(&mut self, question: impl Fn(Sender<T>) -> Command) -> Vec<Receiver<T>> {
        let replicas = 0..self.replicas.len();
        let ask = |at| {
            let (reply, receiver) = unbounded();
            self.send(at, question(reply));
            receiver
        };
        replicas.map(ask).collect()
    }
}

/// Runs `work` on a thread of its own, or here if none starts: whoever asked gets an answer in any case.
pub(super) fn answer<F: FnOnce() + Send + 'static>(work: F) {
    let shared = Arc::new(Mutex::new(Some(work)));
    let on_thread = shared.clone();
    if Builder::new().name("answer".to_owned()).spawn(move || run_once(&on_thread)).is_err() {
        run_once(&shared);
    }
}

fn run_once<F: FnOnce()>(work: &Mutex<Option<F>>) {
    let taken = work.lock().expect("nothing panics while it holds the work").take();
    if let Some(work) = taken {
        work();
    }
}
