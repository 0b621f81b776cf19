//! A branch as the engine keeps it: all its tokens, its lease on the prefix tree, and what is being done to it. Everything
//! that must survive when its pages are taken away is here; the keys and values are the tree's.

use std::ops::Range;
use std::sync::mpsc::Sender;

use crate::engine::coins::CoinKey;
use crate::engine::request::{Event, Finish, FinishReason, SamplingParams, Stop};
use crate::engine::sampler::TokenCounts;
use crate::engine::text::BranchText;
use crate::error::Error;
use crate::ids::{BranchId, SegmentId, TokenId};

pub(super) struct Branch {
    pub id: BranchId,
    /// The whole path, prompt first. The prefix tree lags behind it: what nothing was drawn after yet has no slots.
    pub tokens: Vec<TokenId>,
    /// Which of them were drawn, here or before a fork; the others were given.
    drawn: Vec<Range<usize>>,
    pub lease: Option<Lease>,
    pub work: Work,
    /// Tokens from the front whose keys and values this branch has seen computed once.
    pub computed_once: usize,
    /// Tokens from the front after which this branch has drawn or scored: what of them was given is counted.
    counted: usize,
}

/// What keeps a branch's path in the prefix tree.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub segment: SegmentId,
    /// The segment is open and this branch its one writer. Otherwise others may end there too, and it must be forked before
    /// tokens are appended.
    pub own: bool,
    /// This branch has run on it, as opposed to a fork that only keeps its parent's path for later.
    pub used: bool,
}

pub(super) enum Work {
    Rest,
    Draw(Box<Drawing>),
    Score(Box<Scoring>),
}

pub(super) struct Drawing {
    pub params: SamplingParams,
    pub stop: Stop,
    pub coins: CoinKey,
    pub events: Sender<Event>,
    /// First position that this extend draws.
    pub begin: usize,
    pub logprobs: Vec<f32>,
    /// As `Finish::top`.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// Of a stop token that was drawn and not kept.
    pub stop_logprob: Option<f32>,
    pub text: BranchText,
    /// Kept only if penalties ask for it.
    pub counts: Option<TokenCounts>,
}

pub(super) struct Scoring {
    pub events: Sender<Event>,
    /// First position that is scored. The tokens are at the branch's end already.
    pub begin: usize,
    pub logprobs: Vec<f32>,
    /// Nothing is pushed to it before the end.
    pub text: BranchText,
}

/// Which of a branch's positions the next steps must compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// Tokens from the front that may be matched against what others computed: none of their logits is wanted, but the last's.
    pub match_upto: usize,
    /// First position whose logits are wanted.
    pub logits_from: usize,
    /// End of the positions to compute.
    pub end: usize,
}

impl Branch {
    pub fn root(id: BranchId, tokens: Vec<TokenId>) -> Self {
        Branch { id, tokens, drawn: Vec::new(), lease: None, work: Work::Rest, computed_once: 0, counted: 0 }
    }

    /// A branch that goes on where this one ends. Its lease, if it is to have one, must be retained by the caller.
    pub fn fork(&self, id: BranchId) -> Self {
        let lease = self.lease.map(|lease| Lease { own: false, used: false, ..lease });
        Branch {
            id,
            tokens: self.tokens.clone(),
            drawn: self.drawn.clone(),
            lease,
            work: Work::Rest,
            computed_once: self.computed_once,
            counted: 0,
        }
    }

    pub fn rests(&self) -> bool {
        matches!(self.work, Work::Rest)
    }

    pub fn need(&self) -> Option<Need> {
        let end = self.tokens.len();
        match &self.work {
            Work::Rest => None,
            Work::Draw(_) => Some(Need { match_upto: end, logits_from: end - 1, end }),
            // Nothing is asked of the last token but its own probability, so it is not computed.
            Work::Score(scoring) => {
                let known = scoring.begin + scoring.logprobs.len();
                Some(Need { match_upto: known, logits_from: known - 1, end: end - 1 })
            }
        }
    }

    /// Appends a drawn token.
    pub fn push_drawn(&mut self, token: TokenId) {
        let at = self.tokens.len();
        self.tokens.push(token);
        match self.drawn.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => self.drawn.push(at..at + 1),
        }
    }

    /// Whether the token at `position` was drawn, not given.
    pub fn is_drawn(&self, position: usize) -> bool {
        let after = self.drawn.partition_point(|range| range.start <= position);
        after > 0 && self.drawn[after - 1].contains(&position)
    }

    /// How many of the tokens up to `position` were given and are asked for by this branch for the first time.
    pub fn count_given(&mut self, position: usize) -> u64 {
        let new = self.counted..(position + 1).max(self.counted);
        self.counted = new.end;
        new.filter(|&position| !self.is_drawn(position)).count() as u64
    }

    /// How often each token occurs, drawn and given.
    pub fn count_tokens(&self) -> TokenCounts {
        let mut counts = TokenCounts::default();
        for (position, &token) in self.tokens.iter().enumerate() {
            counts.add(token, self.is_drawn(position));
        }
        counts
    }

    /// Ends the work with `reason` and tells it.
    pub fn finish(&mut self, reason: FinishReason) {
        if reason == FinishReason::Cancelled {
            self.take_back_unscored();
        }
        let (events, begin, logprobs, top, last, text) = match std::mem::replace(&mut self.work, Work::Rest) {
            Work::Rest => return,
            Work::Draw(drawing) => {
                let Drawing { events, begin, logprobs, top, stop_logprob, text, .. } = *drawing;
                (events, begin, logprobs, top, stop_logprob, text)
            }
            Work::Score(scoring) => {
                let Scoring { events, begin, logprobs, mut text } = *scoring;
                for &token in &self.tokens[begin..] {
                    text.push(token, false);
                }
                (events, begin, logprobs, Vec::new(), None, text)
            }
        };
        let tokens = self.tokens[begin..].to_vec();
        let logprob = logprobs.iter().chain(&last).copied().map(f64::from).sum();
        let finish = Finish { reason, tokens, text: text.finish(), logprob, logprobs, top };
        // Whoever asked may have gone; the branch rests all the same.
        drop(events.send(Event::Finished { branch: self.id, finish }));
    }

    /// Ends the work because it cannot go on.
    pub fn fail(&mut self, error: Error) {
        self.take_back_unscored();
        let events = match std::mem::replace(&mut self.work, Work::Rest) {
            Work::Rest => return,
            Work::Draw(drawing) => drawing.events,
            Work::Score(scoring) => scoring.events,
        };
        drop(events.send(Event::Failed { branch: self.id, error }));
    }

    /// Makes the work independent of pages that were taken away. Drawn tokens are as good as given ones; a score begins
    /// anew, so that it is laid out as if it had never been interrupted.
    pub fn start_over(&mut self) {
        if let Work::Score(scoring) = &mut self.work {
            scoring.logprobs.clear();
        }
    }

    /// Of tokens that were given to be scored, those that were not are no part of the branch.
    fn take_back_unscored(&mut self) {
        if let Work::Score(scoring) = &self.work {
            self.tokens.truncate(scoring.begin + scoring.logprobs.len());
        }
    }
}
