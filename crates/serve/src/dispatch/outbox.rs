//! Where the dispatcher puts a request's results and its HTTP task takes them. Putting never waits: tokens of one
//! sample that were not taken yet are joined, so a slow reader holds up nobody, and what waits is at most the answer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use offshoot_engine::{Finish, SampledToken};
use offshoot_launch::SampleId;
use offshoot_openai::protocol::Refusal;

use crate::leases::UnsentBranch;

/// A part of a job's results; a sample's prompt is numbered within the job.
#[derive(Debug)]
pub enum Delivery {
    /// Tokens were sampled, and this text became final with them.
    Tokens { sample: SampleId, tokens: Vec<SampledToken>, text: String },
    /// The sample has ended; `branch`: as which one it is kept.
    Finished { sample: SampleId, finish: Box<Finish>, branch: Option<UnsentBranch> },
    /// Every sample has ended. Nothing follows. For each prompt: the length in tokens of the beginning that it shares
    /// with earlier prompts in the cache.
    Done(Vec<usize>),
    /// The job has ended without an answer. Nothing follows.
    Refused(Refusal),
}

impl Delivery {
    /// The tokens that have come with it.
    pub fn tokens(&self) -> usize {
        match self {
            Delivery::Tokens { tokens, .. } => tokens.len(),
            Delivery::Finished { .. } | Delivery::Done(_) | Delivery::Refused(_) => 0,
        }
    }
}

#[derive(Default)]
struct Waiting {
    deliveries: Vec<Delivery>,
    /// Where in `deliveries` the tokens of a sample are joined.
    joined: HashMap<SampleId, usize>,
}

#[derive(Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    filled: Notify,
    /// Nothing follows what waits.
    ended: Notify,
}

impl Outbox {
    pub fn put(&self, delivery: Delivery) {
        let mut waiting = self.lock();
        let was_empty = waiting.deliveries.is_empty();
        let is_end = matches!(delivery, Delivery::Done(_) | Delivery::Refused(_));
        waiting.put(delivery);
        drop(waiting);
        if is_end {
            self.ended.notify_one();
        }
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// All that waits, in order; at least one.
    pub async fn take(&self) -> Vec<Delivery> {
        loop {
            let taken = self.take_now();
            if !taken.is_empty() {
                return taken;
            }
            self.filled.notified().await;
        }
    }

    /// Waits until nothing follows what waits.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// All that waits now.
    pub fn take_now(&self) -> Vec<Delivery> {
        let mut waiting = self.lock();
        waiting.joined.clear();
        std::mem::take(&mut waiting.deliveries)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("nothing panics while it holds an outbox")
    }
}

impl Waiting {
    fn put(&mut self, delivery: Delivery) {
        let Delivery::Tokens { sample, tokens, text } = delivery else { return self.deliveries.push(delivery) };
        if let Some(&at) = self.joined.get(&sample)
            && let Delivery::Tokens { tokens: before, text: text_before, .. } = &mut self.deliveries[at]
        {
            before.extend(tokens);
            text_before.push_str(&text);
            return;
        }
        self.joined.insert(sample, self.deliveries.len());
        self.deliveries.push(Delivery::Tokens { sample, tokens, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_core::ids::TokenId;

    fn token(sample: usize, token: u32) -> Delivery {
        let tokens = vec![SampledToken::of(TokenId(token), 0.0)];
        Delivery::Tokens { sample: SampleId { prompt: 0, sample }, tokens, text: token_text(token) }
    }

    fn token_text(token: u32) -> String {
        format!("{token} ")
    }

    #[test]
    fn tokens_that_were_not_taken_are_joined_by_sample_and_keep_their_order() {
        let outbox = Outbox::default();
        for at in 0..1000 {
            outbox.put(token(at as usize % 3, at));
        }
        outbox.put(Delivery::Done(Vec::new()));
        let taken = outbox.take_now();
        assert_eq!(taken.len(), 4, "one delivery for each sample, and the end");
        for (sample, delivery) in taken[..3].iter().enumerate() {
            let Delivery::Tokens { tokens, text, .. } = delivery else { panic!("{delivery:?}") };
            let expected: Vec<u32> = (0..1000).filter(|at| *at as usize % 3 == sample).collect();
            assert_eq!(tokens.iter().map(|sampled| sampled.token.0).collect::<Vec<_>>(), expected);
            assert_eq!(*text, expected.iter().map(|&token| token_text(token)).collect::<String>());
        }
        assert!(matches!(taken[3], Delivery::Done(_)));
        outbox.put(token(1, 7));
        assert_eq!(outbox.take_now().len(), 1, "what was taken is not joined with");
    }
}
