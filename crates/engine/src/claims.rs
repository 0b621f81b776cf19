//! Which given tokens are being scored: by requests in flight, or of the step that is being scheduled. A branch on the
//! same path leaves them out and takes their scores over when they are committed (`scores`), so that each token of the
//! prefix tree is scored once. Nothing is kept from step to step: if a branch ends or is preempted, others score for
//! themselves.
//!
//! Claims are kept by page: unlike a segment, a token's page and position stay when a segment is split.

use std::ops::Range;

use crate::branch::{Branch, BranchWork};
use crate::token_path::position;
use offshoot_core::ids::{PageId, SegmentId};
use offshoot_core::mix::IdMap;
use offshoot_kv::{MOST_KEPT_TOP, PrefixTree};

#[derive(Clone, Default)]
pub(super) struct ScoreClaims(IdMap<PageId, Vec<Claim>>);

/// Positions within one page whose tokens are scored with so many likeliest tokens.
#[derive(Clone)]
struct Claim {
    positions: Range<u32>,
    tops: usize,
}

impl Claim {
    fn covers(&self, positions: &Range<u32>, tops: usize) -> bool {
        self.tops >= tops && self.positions.start <= positions.start && positions.end <= self.positions.end
    }
}

impl ScoreClaims {
    /// Adds `positions` of the path of `segment`.
    pub fn add(&mut self, prefix: &PrefixTree, segment: SegmentId, positions: Range<u32>, tops: usize) {
        for (_, page, positions) in prefix.page_parts(segment, positions) {
            let claims = self.0.entry(page).or_default();
            if !claims.iter().any(|claim| claim.covers(&positions, tops)) {
                claims.push(Claim { positions, tops });
            }
        }
    }

    /// Adds the tokens of `branch` that are requested and not collected, but for those whose rows were evicted since.
    pub fn add_in_flight(&mut self, prefix: &PrefixTree, branch: &Branch) {
        if let (BranchWork::Score(scoring), Some(segment)) = (&branch.work, branch.kept()) {
            let Some(tops) = scoring.shared_tops() else { return };
            let requested = position(scoring.begin + scoring.requested).min(prefix.computed(segment) + 1);
            self.add(prefix, segment, position(scoring.next())..requested, tops);
        }
    }

    /// The positions at `tokens` of the path of `segment` whose scores with `tops` likeliest tokens are neither kept
    /// nor claimed, rising; at most `most` of them.
    pub fn unscored(
        &self,
        prefix: &PrefixTree,
        segment: SegmentId,
        tokens: Range<u32>,
        tops: usize,
        most: usize,
    ) -> Vec<u32> {
        let mut unscored = Vec::new();
        for (id, page, part) in prefix.page_parts(segment, tokens) {
            let is_claimed = |positions: Range<u32>| self.covers(page, &positions, tops);
            if !is_claimed(part.clone()) {
                let open = part.filter(|&at| !is_claimed(at..at + 1) && prefix.score(id, at, tops).is_none());
                unscored.extend(open.take(most - unscored.len()));
            }
            if unscored.len() == most {
                break;
            }
        }
        unscored
    }

    /// Whether one claim covers all of `positions`, which are in `page`. What is not kept cannot be taken over.
    fn covers(&self, page: PageId, positions: &Range<u32>, tops: usize) -> bool {
        let claims = self.0.get(&page).filter(|_| tops <= MOST_KEPT_TOP);
        claims.is_some_and(|claims| claims.iter().any(|claim| claim.covers(positions, tops)))
    }
}
