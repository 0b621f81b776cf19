//! A branch as the engine keeps it: all its tokens, its lease on the prefix tree, and what is being done to it.
//! Everything that must survive when its pages are taken away is here; the keys and values are the tree's.

use crate::engine::events::EventSender;
use crate::engine::request::{Event, Finish, FinishReason, SamplingParams, Stop};
use crate::engine::sampler::TokenCounts;
use crate::engine::text::BranchText;
use crate::engine::token_path::TokenPath;
use crate::engine::uniforms::UniformKey;
use crate::error::Error;
use crate::ids::{BranchId, SegmentId, TokenId};

pub(super) struct Branch {
    pub id: BranchId,
    /// First part of its queue key: the root that it descends from, or the root that this one shares its priority with.
    pub priority: BranchId,
    /// The whole path, prompt first, as far as it is known. The prefix tree lags behind it: what nothing was sampled
    /// after yet has no slots.
    pub tokens: TokenPath,
    pub hold: KvHold,
    pub stage: Stage,
    pub work: BranchWork,
    /// RunCounts what was begun: extends, and scores that began anew. What was asked in another generation is nobody's
    /// answer.
    pub generation: u64,
    /// Tokens from the front whose keys and values this branch has seen computed once.
    pub computed_once: usize,
    /// Tokens from the front after which this branch has sampled or scored: what of them was given is counted.
    counted: usize,
}

/// Where a branch is in the scheduler's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Resting,
    /// It has work and was not admitted yet.
    Waiting,
    Running,
    /// It was admitted, then preempted: it gave its own pages to others.
    Preempted,
}

/// What a branch holds of its path's keys and values. Its tokens and its uniforms do not depend on it.
#[derive(Clone, Copy)]
pub(super) enum KvHold {
    /// Nothing, or nothing any more: when it runs, it is matched with what is there, and what is missing is computed.
    Nothing,
    Path(Lease),
    Swapped(Swapped),
}

/// A branch that had to give up its own pages, and whose keys and values are in host memory.
#[derive(Clone, Copy)]
pub(super) struct Swapped {
    /// Ends where its own tokens began; leased.
    pub before: SegmentId,
    /// Position up to which host memory has its keys and values.
    pub computed: u32,
    /// Pages that they filled.
    pub pages: usize,
}

/// What keeps a branch's path in the prefix tree.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub segment: SegmentId,
    /// The segment is open and this branch its one writer. Otherwise others may end there too, and it must be forked
    /// before tokens are appended.
    pub own: bool,
    /// This branch has run on it, as opposed to a fork that only keeps its parent's path for later.
    pub used: bool,
}

pub(super) enum BranchWork {
    Idle,
    Sample(Box<SamplingState>),
    Score(Box<ScoringState>),
}

pub(super) struct SamplingState {
    pub params: SamplingParams,
    pub stop: Stop,
    pub uniforms: UniformKey,
    pub events: EventSender,
    /// First position that this extend samples.
    pub begin: usize,
    /// Length of the branch with which the extend ends at the latest.
    pub limit: usize,
    pub in_flight: InFlight,
    pub logprobs: Vec<f32>,
    /// As `Finish::top`.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// Of a stop token that was sampled and not kept.
    pub stop_logprob: Option<f32>,
    pub text: BranchText,
    /// Kept only if penalties ask for it.
    pub counts: Option<TokenCounts>,
}

impl SamplingState {
    /// The first position whose token may end the text.
    pub fn may_end_at(&self) -> usize {
        self.begin.saturating_add(self.stop.min_tokens)
    }
}

/// Tokens of one branch that were submitted and not collected.
#[derive(Clone, Copy, Default)]
pub(super) struct InFlight {
    pub tokens: usize,
    /// The newest one's place among the requests of its step, which is the step submitted last.
    pub request: u32,
}

pub(super) struct ScoringState {
    pub events: EventSender,
    /// First position that is scored. The tokens are at the branch's end already.
    pub begin: usize,
    /// How many of them were asked for; `logprobs` follows.
    pub requested: usize,
    pub logprobs: Vec<f32>,
    /// Nothing is pushed to it before the end.
    pub text: BranchText,
}

/// Which of a branch's positions the next steps must compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeededPositions {
    /// Tokens from the front that may be matched against what others computed: none of their logits is wanted, but the
    /// last's. At most the known ones.
    pub match_upto: usize,
    /// First position whose logits are wanted.
    pub logits_from: usize,
    /// ExitGuard of the positions to compute.
    pub end: usize,
}

impl Branch {
    /// `priority`: see the field.
    pub fn root(id: BranchId, priority: BranchId, tokens: Vec<TokenId>) -> Self {
        Branch::at_rest(id, priority, TokenPath::new(tokens))
    }

    fn at_rest(id: BranchId, priority: BranchId, tokens: TokenPath) -> Self {
        Branch {
            id,
            priority,
            tokens,
            hold: KvHold::Nothing,
            stage: Stage::Resting,
            work: BranchWork::Idle,
            generation: 0,
            computed_once: 0,
            counted: 0,
        }
    }

    /// A branch that goes on where this one ends. Its lease, if it is to have one, must be retained by the caller.
    pub fn fork(&mut self, id: BranchId) -> Self {
        let hold = self.lease().map(|lease| KvHold::Path(Lease { own: false, used: false, ..lease }));
        Branch {
            hold: hold.unwrap_or(KvHold::Nothing),
            computed_once: self.computed_once,
            ..Branch::at_rest(id, self.priority, self.tokens.fork())
        }
    }

    /// Its lease on the whole path.
    pub fn lease(&self) -> Option<Lease> {
        match self.hold {
            KvHold::Path(lease) => Some(lease),
            KvHold::Nothing | KvHold::Swapped(_) => None,
        }
    }

    /// Where that part of its path ends that it keeps in the prefix tree, if it keeps any.
    pub fn kept(&self) -> Option<SegmentId> {
        match self.hold {
            KvHold::Nothing => None,
            KvHold::Path(lease) => Some(lease.segment),
            KvHold::Swapped(swapped) => Some(swapped.before),
        }
    }

    pub fn rests(&self) -> bool {
        matches!(self.work, BranchWork::Idle)
    }

    /// Tokens from the front that it had before its work began: what it was given, as opposed to what it samples or
    /// scores.
    pub fn given(&self) -> usize {
        match &self.work {
            BranchWork::Idle => self.tokens.len(),
            BranchWork::Sample(sampling) => sampling.begin,
            BranchWork::Score(scoring) => scoring.begin,
        }
    }

    /// `None` where nothing is left to compute: it rests, or will once what was asked is answered.
    pub fn need(&self) -> Option<NeededPositions> {
        let known = self.tokens.len();
        match &self.work {
            BranchWork::Idle => None,
            BranchWork::Sample(sampling) => {
                let end = known + sampling.in_flight.tokens;
                (end < sampling.limit).then(|| NeededPositions { match_upto: known, logits_from: end - 1, end })
            }
            // Nothing is asked of the last token but its own probability, so it is not computed.
            BranchWork::Score(scoring) => {
                let requested = scoring.begin + scoring.requested;
                (requested < known).then(|| NeededPositions {
                    match_upto: requested,
                    logits_from: requested - 1,
                    end: known - 1,
                })
            }
        }
    }

    /// Begins to sample or to score.
    pub fn begin(&mut self, work: BranchWork) {
        self.generation += 1;
        self.work = work;
    }

    /// Notes that its next sample or probability was submitted as request number `request` of a step, with the row at
    /// `position`.
    pub fn note_requested(&mut self, position: usize, request: u32) {
        self.computed_once = self.computed_once.max(position + 1);
        match &mut self.work {
            BranchWork::Idle => {}
            BranchWork::Sample(sampling) => {
                sampling.in_flight = InFlight { tokens: sampling.in_flight.tokens + 1, request }
            }
            BranchWork::Score(scoring) => scoring.requested += 1,
        }
    }

    /// Samples that were submitted and not collected.
    pub fn in_flight(&self) -> usize {
        match &self.work {
            BranchWork::Sample(sampling) => sampling.in_flight.tokens,
            BranchWork::Idle | BranchWork::Score(_) => 0,
        }
    }

    /// Whether the token at `position` was given, not sampled. What is not known yet is being sampled.
    pub fn is_given(&self, position: usize) -> bool {
        position < self.tokens.len() && !self.tokens.is_sampled(position)
    }

    /// How many of the tokens up to `position` were given and are asked for by this branch for the first time.
    pub fn count_given(&mut self, position: usize) -> u64 {
        let new = self.counted..(position + 1).max(self.counted);
        self.counted = new.end;
        self.tokens.given_in(new) as u64
    }

    /// Ends the work with `reason` and tells it.
    pub fn finish(&mut self, reason: FinishReason) {
        if reason == FinishReason::Cancelled {
            self.take_back_unscored();
        }
        let (events, begin, logprobs, top, last, text) = match std::mem::replace(&mut self.work, BranchWork::Idle) {
            BranchWork::Idle => return,
            BranchWork::Sample(sampling) => {
                let SamplingState { events, begin, logprobs, top, stop_logprob, text, .. } = *sampling;
                (events, begin, logprobs, top, stop_logprob, text)
            }
            BranchWork::Score(scoring) => {
                let ScoringState { events, begin, logprobs, mut text, .. } = *scoring;
                for &token in &*self.tokens.slice(begin..self.tokens.len()) {
                    text.push(token, false);
                }
                (events, begin, logprobs, Vec::new(), None, text)
            }
        };
        let tokens = self.tokens.slice(begin..self.tokens.len()).into_owned();
        let logprob = logprobs.iter().chain(&last).copied().map(f64::from).sum();
        let finish = Finish { reason, tokens, text: text.finish(), logprob, logprobs, top };
        events.send(Event::Finished { branch: self.id, finish });
    }

    /// Ends the work because it cannot go on.
    pub fn fail(&mut self, error: Error) {
        self.take_back_unscored();
        let events = match std::mem::replace(&mut self.work, BranchWork::Idle) {
            BranchWork::Idle => return,
            BranchWork::Sample(sampling) => sampling.events,
            BranchWork::Score(scoring) => scoring.events,
        };
        events.send(Event::Failed { branch: self.id, error });
    }

    /// Makes the work independent of pages that were taken away. Sampled tokens are as good as given ones; a score
    /// begins anew, so that it is laid out as if it had never been interrupted.
    pub fn start_over(&mut self) {
        if let BranchWork::Score(scoring) = &mut self.work {
            scoring.logprobs.clear();
            scoring.requested = 0;
            self.generation += 1;
        }
    }

    /// Of tokens that were given to be scored, those that were not are no part of the branch.
    fn take_back_unscored(&mut self) {
        if let BranchWork::Score(scoring) = &self.work {
            self.tokens.take_back(scoring.begin + scoring.logprobs.len());
        }
    }
}
