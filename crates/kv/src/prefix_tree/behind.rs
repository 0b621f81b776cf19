//! Frees keys and values that sliding windows have passed, and says what can still be read. See *Windows* in the
//! module's head.

use super::{PrefixTree, SegmentState};
use crate::{PagePool, Reach};
use offshoot_core::ids::SegmentId;

impl PrefixTree {
    /// Frees the pages, in groups with a window, of positions below `upto` that only the single lease on `segment`
    /// keeps. `upto` is a multiple of the page size before the end of `segment`. The caller promises that no row of
    /// this branch or of its forks will read these positions. Prompts are kept, because others may begin with them, and
    /// so are segments above other branches, cached ones included. Returns the number of pages freed.
    pub fn free_behind(&mut self, pool: &mut PagePool, segment: SegmentId, upto: u32) -> usize {
        assert!(upto.is_multiple_of(self.page_tokens), "position {upto} is inside a page");
        assert!(
            upto < self.end(segment) && upto <= self.computed(segment),
            "position {upto} of {segment} is not computed"
        );
        let is_unshared = |&id: &SegmentId| {
            let kept = self.at(id);
            kept.users == 1 && kept.state != SegmentState::Prompt && (id == segment || kept.children == 1)
        };
        // The pages of a segment that has passed none of its positions are those of an ancestor that was not freed
        // either.
        let is_passed = |&id: &SegmentId| self.at(id).passed < self.end(id).min(upto);
        let behind: Vec<SegmentId> = self.ancestry(segment).take_while(is_unshared).filter(is_passed).collect();
        behind.into_iter().map(|id| self.pass(pool, id, upto)).sum()
    }

    /// Frees, in the groups with a window, the pages of all leased prompts that no later row of a lease reads. `again`:
    /// leased segments on whose paths rows from a position on will be computed though others have computed them. What
    /// is left of a prompt is the window before its end, and before what is not computed: whoever begins there finds
    /// all it reads. Visits only prompts that have such pages. Returns the number of pages freed.
    pub fn free_behind_prompts(&mut self, pool: &mut PagePool, again: &[(SegmentId, u32)]) -> usize {
        let mut freed = 0;
        for (id, upto) in self.behind_prompts(again) {
            freed += self.pass(pool, id, upto);
            if self.unread_below(id).is_none() {
                self.prompts_behind.remove(&id);
            }
        }
        freed
    }

    /// Whether `free_behind_prompts` would free pages of any prompt.
    pub fn is_behind_prompts(&mut self, again: &[(SegmentId, u32)]) -> bool {
        !self.behind_prompts(again).is_empty()
    }

    /// The prompts of which `free_behind_prompts` frees pages, and up to where.
    fn behind_prompts(&mut self, again: &[(SegmentId, u32)]) -> Vec<(SegmentId, u32)> {
        let Some(window) = self.groups.window().filter(|_| !self.prompts_behind.is_empty()) else { return Vec::new() };
        // For each segment the position after the first of these rows on a path through it.
        self.visits.begin();
        for &(segment, row) in again {
            let is_later = |id: &SegmentId| self.visits.number(*id).is_none_or(|next| next > row + 1);
            self.ancestry(segment).take_while(is_later).for_each(|id| self.visits.note(id, row + 1));
        }
        let mut passed = Vec::new();
        let mut listed = std::mem::take(&mut self.prompts_behind);
        listed.retain(|&id| {
            let Some(unread) = self.unread_below(id) else { return false };
            let upto = self.visits.number(id).map_or(unread, |next| unread.min(window.passed(next)));
            if self.at(id).passed < upto {
                passed.push((id, upto));
            }
            true
        });
        self.prompts_behind = listed;
        passed
    }

    /// The position below which no row after the computed ones reads the leased prompt `id` in groups with a window, if
    /// it has pages there.
    pub(super) fn unread_below(&self, id: SegmentId) -> Option<u32> {
        let segment = self.at(id);
        let window = self.groups.window().filter(|_| segment.state == SegmentState::Prompt && segment.users > 0)?;
        Some(window.passed(segment.first_position + segment.computed)).filter(|&upto| segment.passed < upto)
    }

    /// Lists `id` if it is a leased prompt with pages behind the window: after it was computed further, leased or split
    /// off.
    pub(super) fn note_behind(&mut self, id: SegmentId) {
        if self.unread_below(id).is_some() {
            self.prompts_behind.insert(id);
        }
    }

    /// Frees the pages of the leased segment `id` below `upto` in the groups with a window.
    fn pass(&mut self, pool: &mut PagePool, id: SegmentId, upto: u32) -> usize {
        let (end, held, lacked) = (self.end(id), self.held(id), self.at(id).lacks_pages());
        let upto = upto.min(end);
        debug_assert!(upto <= self.first_position(id) + self.at(id).computed, "only computed positions are freed");
        let before = self.at(id).passed;
        let gone = match upto == end {
            true => self.at(id).pages[Reach::Window].len(),
            false => self.groups.with(Reach::Window) * self.numbers_between(before, upto),
        };
        let has_all = self.groups.with(Reach::All) > 0;
        let emptied = self.at_mut(id);
        emptied.passed = upto;
        if !has_all {
            let without_slot = (upto - emptied.first_position) as usize;
            emptied.scores.iter_mut().take(without_slot).for_each(|score| *score = None);
            emptied.values.iter_mut().take(without_slot).for_each(|values| *values = None);
        }
        let gone: Vec<_> = emptied.pages[Reach::Window].drain(..gone).collect();
        self.lacking += usize::from(!lacked);
        let freed = gone.into_iter().filter(|&page| pool.give_back(page)).count();
        let tokens = held - self.held(id);
        self.held.tokens -= tokens;
        self.held.pages -= freed;
        // A lease keeps what is freed here.
        self.leased.tokens -= tokens;
        self.leased.pages -= freed;
        freed
    }

    /// How far the first `end` positions of the path of `segment` can be continued: the last position up to there
    /// before which the windows of new rows find all that they read, and those of rows from `rows_from` on.
    pub(super) fn readable_end(&self, segment: Option<SegmentId>, end: u32, rows_from: u32) -> u32 {
        let Some(window) = self.groups.window().filter(|_| self.lacking > 0) else { return end };
        let mut readable = end;
        for id in segment.into_iter().flat_map(|segment| self.ancestry(segment)) {
            let segment = self.at(id);
            if segment.first_position >= readable {
                continue;
            }
            let read_from = window.passed(readable.min(rows_from.saturating_add(1)));
            if segment.lacks_pages() && segment.passed.min(readable) > read_from {
                readable = segment.first_position;
            } else if segment.first_position <= read_from {
                break;
            }
        }
        readable
    }

    /// Whether a branch can continue at the end of `segment`.
    pub fn is_readable(&self, segment: SegmentId) -> bool {
        let end = self.end(segment);
        self.readable_end(Some(segment), end, u32::MAX) == end
    }
}
