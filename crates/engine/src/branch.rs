//! A branch as the engine keeps it: its tokens, its lease on the prefix tree, and the work in progress. Holds
//! everything that survives preemption; keys and values belong to the prefix tree.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::events::EventSender;
use crate::place::{Priority, QueueKey};
use crate::request::{Event, Finish, FinishReason, SamplingParams, Stop};
use crate::text::BranchText;
use crate::token_counts::TokenCounts;
use crate::token_path::TokenPath;
use crate::uniforms::UniformKey;
use crate::weights::{WeightSpan, note_weights};
use offshoot_backend::{AllowedTokens, SampledToken};
use offshoot_core::error::Error;
use offshoot_core::ids::{BranchId, SegmentId, TokenId, WeightVersion};
use offshoot_kv::TokenScore;

pub(super) struct Branch {
    pub id: BranchId,
    /// The first two parts of its queue key.
    pub priority: Priority,
    pub order: BranchId,
    /// The whole path, prompt first, as far as the host knows it. Tokens after which nothing was sampled yet have no
    /// slots in the prefix tree.
    pub tokens: TokenPath,
    pub hold: KvHold,
    /// Pages of its path if it has run on it, else 0: its share of `KvCache::unshared_pages`.
    pub unshared_pages: u32,
    pub stage: Stage,
    /// Whether it keeps its path while it rests, whoever is short of pages.
    pub is_pin: bool,
    pub work: BranchWork,
    /// Number of extends started, and of times that scores are requested again. Results of an earlier generation are
    /// discarded.
    pub generation: u64,
    /// Leading tokens whose keys and values were computed at least once for this branch.
    pub computed_once: usize,
    /// Leading tokens after which this branch has sampled or scored; the given ones among them are counted in the
    /// metrics.
    counted: usize,
    /// Prompts that were registered when what it shares with them was spared last. See `KvCache::spare`.
    pub spared: u64,
}

/// Where a branch is in the scheduler's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Resting,
    /// It has work and was not admitted yet, or gave way to a more urgent one.
    Waiting,
    Running,
    /// It was admitted, then preempted: it gave its own pages to others.
    Preempted,
}

/// The keys and values that a branch holds. Its tokens and uniforms do not depend on it.
#[derive(Clone, Copy)]
pub(super) enum KvHold {
    /// None: when it runs, its tokens are matched with the prefix tree, and the rest is computed.
    Nothing,
    Path(Lease),
    Swapped(Swapped),
}

/// A preempted branch whose own keys and values, and state, are in host memory.
#[derive(Clone, Copy)]
pub(super) struct Swapped {
    /// The leased segment at whose end its own tokens begin.
    pub before: SegmentId,
    /// Position up to which host memory has its keys and values.
    pub computed: u32,
    /// Position from which it has those of layers with a window.
    pub passed: u32,
    /// Bytes that they fill there.
    pub bytes: usize,
}

/// A branch's claim on its path in the prefix tree.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub segment: SegmentId,
    /// The segment is open and this branch is its only writer. Otherwise others may end there too, and it must be
    /// forked before tokens are appended.
    pub own: bool,
    /// This branch has run on it; false for a fork that only keeps its parent's path.
    pub used: bool,
}

pub(super) enum BranchWork {
    Idle,
    Sample(Box<SamplingState>),
    Score(Box<ScoringState>),
}

pub(super) struct SamplingState {
    pub params: SamplingParams,
    /// The allowed tokens of `params`, whose own list is taken; shared with other extends that allow the same.
    pub allowed: Option<Arc<AllowedTokens>>,
    pub stop: Stop,
    pub uniforms: UniformKey,
    pub events: EventSender,
    /// First position that this extend samples.
    pub begin: usize,
    /// Length of the branch at which the extend ends at the latest.
    pub limit: usize,
    pub in_flight: InFlight,
    pub logprobs: Vec<f32>,
    /// As `Finish::ranks`.
    pub ranks: Vec<Option<NonZeroU32>>,
    /// As `Finish::top`.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// The token that ended it and is not kept.
    pub stop_token: Option<SampledToken>,
    /// As `Finish::weights`.
    pub weights: Vec<WeightSpan>,
    pub text: BranchText,
    /// Kept only if penalties are set.
    pub counts: Option<TokenCounts>,
}

impl SamplingState {
    /// First position whose token may end the text.
    pub fn may_end_at(&self) -> usize {
        self.begin.saturating_add(self.stop.min_tokens)
    }
}

/// Tokens of one branch that were requested and not collected.
#[derive(Clone, Copy, Default)]
pub(super) struct InFlight {
    pub tokens: usize,
    /// Index of the newest one among the requests of the step submitted last.
    pub request: u32,
}

pub(super) struct ScoringState {
    pub events: EventSender,
    /// First position that is scored. The tokens are at the branch's end already.
    pub begin: usize,
    /// Number of tokens that are collected, requested, or scored by requests of others; `logprobs` holds those
    /// collected.
    pub requested: usize,
    /// How many of the likeliest tokens are reported in each token's place.
    pub tops: usize,
    pub logprobs: Vec<f32>,
    /// As `Finish::ranks`.
    pub ranks: Vec<Option<NonZeroU32>>,
    /// As `Finish::top`.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// As `Finish::weights`.
    pub weights: Vec<WeightSpan>,
    /// Empty until the end.
    pub text: BranchText,
}

impl ScoringState {
    /// Nothing is scored of the tokens from `begin` on.
    pub fn new(events: EventSender, begin: usize, tops: usize, text: BranchText) -> Self {
        ScoringState {
            events,
            begin,
            requested: 0,
            tops,
            logprobs: Vec::new(),
            ranks: Vec::new(),
            top: Vec::new(),
            weights: Vec::new(),
            text,
        }
    }

    /// The first position whose score is not collected.
    pub fn next(&self) -> usize {
        self.begin + self.logprobs.len()
    }

    /// Adds the score of the token at `next`, which has enough likeliest tokens and follows from `weights`.
    pub fn push(&mut self, score: &TokenScore, weights: WeightVersion) {
        self.add(score.logprob, score.rank, score.top[..self.tops].to_vec(), weights);
    }

    pub fn add(&mut self, logprob: f32, rank: Option<NonZeroU32>, top: Vec<(TokenId, f32)>, weights: WeightVersion) {
        note_weights(&mut self.weights, weights, self.logprobs.len());
        self.logprobs.push(logprob);
        self.ranks.push(rank);
        self.requested = self.requested.max(self.logprobs.len());
        if self.tops > 0 {
            self.top.push(top);
        }
    }
}

/// The positions of a branch that the next steps must compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeededPositions {
    /// Leading tokens that may be matched with the prefix tree, as only the last one's logits are needed. At most the
    /// known ones.
    pub match_upto: usize,
    /// First position whose logits are needed. Of a scoring branch, others may compute those of some later positions.
    pub logits_from: usize,
    /// End of the positions to compute.
    pub end: usize,
}

impl Branch {
    /// A root that comes after all roots made before.
    #[cfg(test)]
    pub fn root(id: BranchId, tokens: Vec<TokenId>) -> Self {
        Branch::at_rest(QueueKey { priority: Priority::default(), order: id, branch: id }, TokenPath::new(tokens))
    }

    /// A branch without work. `place`: where it queues once it gets some.
    pub fn at_rest(place: QueueKey, tokens: TokenPath) -> Self {
        Branch {
            id: place.branch,
            priority: place.priority,
            order: place.order,
            tokens,
            hold: KvHold::Nothing,
            unshared_pages: 0,
            stage: Stage::Resting,
            is_pin: false,
            work: BranchWork::Idle,
            generation: 0,
            computed_once: 0,
            counted: 0,
            spared: 0,
        }
    }

    /// Its place in the queue.
    pub fn key(&self) -> QueueKey {
        QueueKey { priority: self.priority, order: self.order, branch: self.id }
    }

    /// A branch that continues where this one ends. The caller must retain its lease, if it has one.
    pub fn fork(&mut self, id: BranchId) -> Self {
        let hold = self.lease().map(|lease| KvHold::Path(Lease { own: false, used: false, ..lease }));
        Branch {
            hold: hold.unwrap_or(KvHold::Nothing),
            computed_once: self.computed_once,
            ..Branch::at_rest(QueueKey { branch: id, ..self.key() }, self.tokens.fork())
        }
    }

    /// Its lease on the whole path.
    pub fn lease(&self) -> Option<Lease> {
        match self.hold {
            KvHold::Path(lease) => Some(lease),
            KvHold::Nothing | KvHold::Swapped(_) => None,
        }
    }

    /// Last segment of the part of its path that it keeps in the prefix tree, if any.
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

    /// Number of leading tokens that are computed as they were given: those before its work began, and those that are
    /// scored, without the last one.
    pub fn given(&self) -> usize {
        match &self.work {
            BranchWork::Idle => self.tokens.len(),
            BranchWork::Sample(sampling) => sampling.begin,
            BranchWork::Score(_) => self.tokens.len() - 1,
        }
    }

    /// `None` if nothing can be computed before its requests are collected: it rests then, or must know its last token.
    pub fn need(&self) -> Option<NeededPositions> {
        let known = self.tokens.len();
        match &self.work {
            BranchWork::Idle => None,
            BranchWork::Sample(sampling) if sampling.in_flight.tokens > 0 && sampling.params.looks_back() => None,
            BranchWork::Sample(sampling) => {
                let end = known + sampling.in_flight.tokens;
                (end < sampling.limit).then(|| NeededPositions { match_upto: known, logits_from: end - 1, end })
            }
            // The last token is not computed: only its own probability is needed.
            BranchWork::Score(scoring) => {
                let requested = scoring.begin + scoring.requested;
                (requested < known).then(|| NeededPositions {
                    match_upto: known - 1,
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

    /// Records that its next sample or probability was submitted as request number `request` of a step, in the row at
    /// `position`.
    pub fn note_requested(&mut self, position: usize, request: u32) {
        self.computed_once = self.computed_once.max(position + 1);
        match &mut self.work {
            BranchWork::Idle => {}
            BranchWork::Sample(sampling) => {
                sampling.in_flight = InFlight { tokens: sampling.in_flight.tokens + 1, request }
            }
            // Those before it are collected or in flight, too, its own or of others.
            BranchWork::Score(scoring) => scoring.requested = position + 2 - scoring.begin,
        }
    }

    /// Samples and scores that were submitted and not collected; of scores also those that others compute for it before
    /// its own last one.
    pub fn in_flight(&self) -> usize {
        match &self.work {
            BranchWork::Sample(sampling) => sampling.in_flight.tokens,
            BranchWork::Score(scoring) => scoring.requested - scoring.logprobs.len(),
            BranchWork::Idle => 0,
        }
    }

    /// Whether the token at `position` was given, not sampled. A token that is not known yet is being sampled.
    pub fn is_given(&self, position: usize) -> bool {
        position < self.tokens.len() && !self.tokens.is_sampled(position)
    }

    /// Number of given tokens up to `position` that this branch needs for the first time.
    pub fn count_given(&mut self, position: usize) -> u64 {
        let new = self.counted..(position + 1).max(self.counted);
        self.counted = new.end;
        self.tokens.given_in(new) as u64
    }

    /// Ends the work with `reason` and sends the event.
    pub fn finish(&mut self, reason: FinishReason) {
        if reason.is_cut() {
            self.take_back_unscored();
        }
        let ended = std::mem::replace(&mut self.work, BranchWork::Idle);
        let (events, begin, text, recorded) = match ended {
            BranchWork::Idle => return,
            BranchWork::Sample(sampling) => {
                let SamplingState { events, begin, logprobs, ranks, top, stop_token, weights, text, .. } = *sampling;
                (events, begin, text, Finish { logprobs, ranks, top, stop_token, weights, ..Finish::empty(reason) })
            }
            BranchWork::Score(scoring) => {
                let ScoringState { events, begin, logprobs, ranks, top, weights, mut text, .. } = *scoring;
                for &token in &*self.tokens.slice(begin..self.tokens.len()) {
                    text.push(token, false);
                }
                (events, begin, text, Finish { logprobs, ranks, top, weights, ..Finish::empty(reason) })
            }
        };
        let tokens = self.tokens.slice(begin..self.tokens.len()).into_owned();
        let last = recorded.stop_token.as_ref().map(|stop| stop.logprob);
        let logprob = recorded.logprobs.iter().copied().chain(last).map(f64::from).sum();
        let finish = Finish { tokens, text: text.finish(), logprob, ..recorded };
        events.send(Event::Finished { id: self.id, finish });
    }

    /// Ends the work with an error and sends the event.
    pub fn fail(&mut self, error: Error) {
        if self.is_pin {
            log::warn!("the prefix of branch {} is not pinned: {error}", self.id);
        } else {
            self.take_back_unscored();
        }
        let events = match std::mem::replace(&mut self.work, BranchWork::Idle) {
            BranchWork::Idle => return,
            BranchWork::Sample(sampling) => sampling.events,
            BranchWork::Score(scoring) => scoring.events,
        };
        events.send(Event::Failed { id: self.id, error });
    }

    /// Requests all scores again that are not collected, as one that another branch was to compute did not come.
    pub fn request_again(&mut self) {
        if let BranchWork::Score(scoring) = &mut self.work {
            scoring.requested = scoring.logprobs.len();
            self.generation += 1;
        }
    }

    /// Removes given tokens that were not scored yet from the branch.
    fn take_back_unscored(&mut self) {
        if let BranchWork::Score(scoring) = &self.work {
            self.tokens.take_back(scoring.begin + scoring.logprobs.len());
        }
    }
}
