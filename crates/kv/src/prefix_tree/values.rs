//! Values of tokens: what a scorer computes for the row of a token, kept with the segment that has it. Values belong to
//! a path, like keys and values of attention, and go with them: on splits, truncation and removal.
//!
//! # Invariant
//! The values of a token are kept only where the token itself is computed, unlike its score, which follows from the
//! tokens before it (`scores`).
//!
//! # Memory
//! Only tokens with slots have values: 16 bytes for each token up to the last one of its segment that has some, and 4
//! for each number. So values are bounded by the pool of pages.

use super::PrefixTree;
use crate::Reach;
use offshoot_core::ids::SegmentId;

impl PrefixTree {
    /// Keeps the values of the token at `position` of the path of `segment`, unless some are kept. Without effect where
    /// no values belong: past the last known token, where no group has a slot, or for a token that is not computed.
    pub fn keep_values(&mut self, segment: SegmentId, position: u32, values: &[f32]) {
        if position >= self.end(segment) || position >= self.computed(segment) {
            return;
        }
        let owner = self.owner(segment, position);
        let lacks_slots = self.groups.with(Reach::All) == 0 && position < self.at(owner).passed;
        let owner = self.at_mut(owner);
        let at = (position - owner.first_position) as usize;
        if at >= owner.tokens.len() || lacks_slots {
            return;
        }
        if owner.values.len() <= at {
            owner.values.resize(at + 1, None);
        }
        owner.values[at].get_or_insert_with(|| values.into());
    }

    /// Those of `positions`, which rise, whose tokens have values on the path of `segment`, with these. Positions past
    /// its end have none.
    pub fn kept_values(
        &self,
        segment: SegmentId,
        positions: impl IntoIterator<Item = u32>,
    ) -> impl Iterator<Item = (u32, &[f32])> {
        let mut positions = positions.into_iter().peekable();
        let first = positions.peek().copied().unwrap_or(u32::MAX);
        let parts = self.parts(segment, first..u32::MAX);
        parts.into_iter().flat_map(move |(id, part)| {
            let segment = self.at(id);
            let mut found = Vec::new();
            while let Some(position) = positions.next_if(|&position| position < part.end) {
                let kept = segment.values.get((position - segment.first_position) as usize);
                found.extend(kept.and_then(Option::as_deref).map(|values| (position, values)));
            }
            found
        })
    }
}
