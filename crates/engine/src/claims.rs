//! Which given tokens are being scored, by requests in flight or of the step that is being scheduled, and of which a
//! scorer's values are being computed. A branch on the same path leaves them out and takes their scores or values over
//! when they are committed (`scores`, `values`), so that each token of the prefix tree is scored once. Nothing is kept
//! from step to step: if a branch ends or is preempted, others score for themselves.
//!
//! Claims are kept by page: unlike a segment, a token's page and position stay when a segment is split.

use std::ops::Range;

use crate::branch::{Branch, BranchWork};
use crate::token_path::position;
use offshoot_core::ids::{PageId, SegmentId};
use offshoot_core::mix::IdMap;
use offshoot_kv::{MOST_KEPT_TOP, PrefixTree};

/// Rows whose values are being computed, by page and slot in the first page group.
#[derive(Clone, Default)]
pub(super) struct ValueClaims(IdMap<(PageId, u32), ()>);

impl ValueClaims {
    /// Adds the position of the path of `segment`, if it has a slot.
    pub fn add(&mut self, prefix: &PrefixTree, segment: SegmentId, position: u32) {
        self.0.extend(slot(prefix, segment, position).map(|slot| (slot, ())));
    }

    /// Adds the positions of `branch` that are requested and not collected, but for those whose rows were evicted
    /// since.
    pub fn add_in_flight(&mut self, prefix: &PrefixTree, branch: &Branch) {
        if let (BranchWork::Values(values), Some(segment)) = (&branch.work, branch.kept()) {
            let computed = prefix.computed(segment);
            let requested = values.requested().take_while(|&at| at < computed);
            self.0.extend(requested.filter_map(|at| Some((slot(prefix, segment, at)?, ()))));
        }
    }

    /// Whether the values at `position` of the path of `segment` are being computed.
    pub fn have(&self, prefix: &PrefixTree, segment: SegmentId, position: u32) -> bool {
        slot(prefix, segment, position).is_some_and(|slot| self.0.contains_key(&slot))
    }
}

/// Where the position of the path of `segment` is; `None` if it has no slot, or not in every group.
fn slot(prefix: &PrefixTree, segment: SegmentId, position: u32) -> Option<(PageId, u32)> {
    let has_slot = position < prefix.end(segment) && prefix.has_slots(segment, position);
    has_slot.then(|| prefix.slot(segment, position)).map(|slot| (slot.page, slot.slot))
}

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
