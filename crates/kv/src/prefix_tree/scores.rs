//! Scores of tokens: the log-probability of a token in its place, kept with the segment that has it. A score belongs to
//! a path, like keys and values, and goes with them: on splits, truncation and removal.
//!
//! # Invariant
//! A score is kept only where the token before it is computed, so its row never has to be computed for others' sake.
//!
//! # Memory
//! Only tokens with slots have scores, each at most one: 24 bytes, and 8 for each of at most [`MOST_KEPT_TOP`]
//! likeliest tokens. So scores are bounded by the pool of pages: 184 bytes beside the keys and values of a token, which
//! are kilobytes.

use std::num::NonZeroU32;
use std::ops::Range;

use super::PrefixTree;
use crate::Reach;
use offshoot_core::ids::{SegmentId, TokenId};

/// Most of the likeliest tokens kept with a score: as many as OpenAI's API reports. A score is kept with fewer than
/// were asked for if those are more.
pub const MOST_KEPT_TOP: usize = 20;

/// What the model says of a token after the tokens before it.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// Natural logarithm of its probability at temperature 1.
    pub logprob: f32,
    /// Its place among all tokens, from 1, as far as it was asked for.
    pub rank: Option<NonZeroU32>,
    /// The likeliest tokens in its place, likeliest first, as far as they were asked for.
    pub top: Box<[(TokenId, f32)]>,
}

impl TokenScore {
    /// At most [`MOST_KEPT_TOP`] of `top` are kept.
    pub fn new(logprob: f32, rank: Option<NonZeroU32>, top: &[(TokenId, f32)]) -> Self {
        TokenScore { logprob, rank, top: top[..top.len().min(MOST_KEPT_TOP)].into() }
    }
}

impl PrefixTree {
    /// Keeps the score of the token at `position` of the path of `segment`, unless one with as many likeliest tokens is
    /// kept. Without effect where no score belongs: for the first token of all, past the last known one, where no group
    /// has a slot, or after a token that is not computed.
    pub fn keep_score(&mut self, segment: SegmentId, position: u32, score: TokenScore) {
        if position == 0 || position >= self.end(segment) || self.computed(segment) < position {
            return;
        }
        let owner = self.owner(segment, position);
        let lacks_slots = self.groups.with(Reach::All) == 0 && position < self.at(owner).passed;
        let owner = self.at_mut(owner);
        let at = (position - owner.first_position) as usize;
        if at >= owner.tokens.len() || lacks_slots {
            return;
        }
        if owner.scores.len() <= at {
            owner.scores.resize(at + 1, None);
        }
        let kept = &mut owner.scores[at];
        if kept.as_ref().is_none_or(|kept| kept.top.len() < score.top.len()) {
            *kept = Some(score);
        }
    }

    /// The score of the token at `position`, which `segment` itself has, if it is kept with at least `tops` likeliest
    /// tokens.
    pub fn score(&self, segment: SegmentId, position: u32, tops: usize) -> Option<&TokenScore> {
        let segment = self.at(segment);
        let kept = segment.scores.get((position - segment.first_position) as usize)?;
        kept.as_ref().filter(|score| score.top.len() >= tops)
    }

    /// The scores of the tokens at `positions` of the path of `segment`, up to the first one that is not kept with at
    /// least `tops` likeliest tokens.
    pub fn scores(&self, segment: SegmentId, positions: Range<u32>, tops: usize) -> impl Iterator<Item = &TokenScore> {
        let each = self.parts(segment, positions).into_iter().flat_map(|(id, part)| part.map(move |at| (id, at)));
        each.map_while(move |(id, at)| self.score(id, at, tops))
    }
}
