//! Checks the tree's invariants. Visits the whole tree, so it is for tests and idle times, not for every step.

use std::collections::HashSet;

use super::{Leased, PrefixTree, Segment, SegmentState, TreeStats, Usage, count};
use crate::{PagePool, Reach};
use offshoot_core::ids::{PageId, SegmentId};

/// Returns `Err` with the text if the condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!($($what)+));
        }
    };
}

impl PrefixTree {
    /// Checks every invariant of the module's head for the whole tree and the pool of its pages, which must have no
    /// other users. `Err` says what is broken and where.
    pub fn check_integrity(&self, pool: &PagePool) -> Result<(), String> {
        let ids = self.ids();
        for &id in &ids {
            self.check_links(id)?;
            self.check_contents(id)?;
        }
        self.check_first_tokens(&ids)?;
        ensure!(self.arena.len() == ids.len() + self.vacant.len(), "arena: vacant places are not all listed");
        let idle: Vec<_> = ids.iter().filter_map(|&id| self.at(id).idle).collect();
        ensure!(idle.len() == self.idle.len(), "{} segments are idle, {} listed", idle.len(), self.idle.len());
        ensure!(idle.iter().all(|key| self.idle.contains(key)), "an idle segment is listed under another key");
        let lacking = ids.iter().filter(|&&id| self.at(id).lacks_pages()).count();
        ensure!(lacking == self.lacking, "{lacking} segments lack pages, {} counted", self.lacking);
        self.check_states(&ids)?;
        let unlisted = ids.iter().find(|id| self.unread_below(**id).is_some() && !self.prompts_behind.contains(id));
        ensure!(unlisted.is_none(), "{unlisted:?} has pages behind the window and is not listed");
        ensure!(
            self.prompts_behind.iter().all(|id| ids.binary_search(id).is_ok()),
            "a segment that is gone is listed: {:?}",
            self.prompts_behind
        );
        self.check_leased(&ids)?;
        self.check_pages(&ids, pool)
    }

    fn check_links(&self, id: SegmentId) -> Result<(), String> {
        let segment = self.at(id);
        let first = match segment.parent {
            Some(parent) => self.arena[parent.ix()].as_ref().map(Segment::end),
            None => Some(0),
        };
        ensure!(
            first == Some(segment.first_position),
            "segment {id} begins at {}, its parent ends at {first:?}",
            segment.first_position
        );
        let goes_on = segment.parent.is_none_or(|parent| self.at(parent).origin.may_go_on_with(segment.origin));
        ensure!(goes_on, "segment {id} has other weights or another salt than its parent");
        Ok(())
    }

    fn check_contents(&self, id: SegmentId) -> Result<(), String> {
        let segment = self.at(id);
        let (first, end) = (segment.first_position, segment.end());
        let passed = segment.passed;
        ensure!((first..=end).contains(&passed), "segment {id} at {first}..{end} has passed {passed}");
        ensure!(passed <= first + segment.computed, "segment {id} has passed {passed}, which is not computed");
        ensure!(
            passed == end || passed == first || passed.is_multiple_of(self.page_tokens),
            "{id}: {passed} is in a page"
        );
        let laid_upto = segment.laid_upto(Reach::Window);
        ensure!(segment.unlaid == 0 || segment.state == SegmentState::Prompt, "segment {id} lacks slots");
        ensure!(segment.unlaid <= segment.len(), "segment {id} lacks more slots than it has tokens");
        ensure!(first + segment.computed <= laid_upto, "segment {id} is computed where it has no slots");
        ensure!(
            laid_upto == first || laid_upto == end || laid_upto.is_multiple_of(self.page_tokens),
            "segment {id} has slots up to {laid_upto}, inside a page"
        );
        for reach in Reach::BOTH {
            let (pages, held) = (self.pages_below(segment, reach, end), segment.pages[reach].len());
            ensure!(held == pages, "segment {id} at {first}..{end} has {held} pages ({reach:?}), not {pages}");
        }
        ensure!(segment.computed <= segment.len(), "segment {id} is computed past its end");
        let scored = segment.scores.iter().rposition(Option::is_some).map_or(0, |last| count(last + 1));
        ensure!(scored <= count(segment.tokens.len()), "segment {id} has more scores than tokens");
        let without_slot = if self.groups.with(Reach::All) == 0 { passed - first } else { 0 };
        ensure!(
            segment.scores.iter().take(without_slot as usize).all(Option::is_none),
            "segment {id} has scores of tokens without slots"
        );
        let valued = segment.values.iter().rposition(Option::is_some).map_or(0, |last| count(last + 1));
        ensure!(valued <= segment.computed, "segment {id}: a token has values, but is not computed");
        ensure!(valued <= count(segment.tokens.len()), "segment {id} has more values than tokens");
        ensure!(
            segment.values.iter().take(without_slot as usize).all(Option::is_none),
            "segment {id} has values of tokens without slots"
        );
        ensure!(scored <= segment.computed + 1, "segment {id}: a token is scored, but the one before is not computed");
        ensure!(
            scored == 0 || first > 0 || segment.scores[0].is_none(),
            "segment {id}: the first token of all has a score"
        );
        let above = segment.parent.map(|p| self.at(p));
        ensure!(
            scored == 0 || above.is_none_or(|p| p.computed == p.len()),
            "segment {id} has scores, but its parent is not computed"
        );
        ensure!(
            segment.computed == 0 || above.is_none_or(|p| p.computed == p.len()),
            "segment {id} is computed, but its parent is not"
        );
        ensure!(segment.children == 0 || segment.state != SegmentState::Open, "segment {id} is open, but has children");
        ensure!(segment.children == 0 || segment.len() > 0, "segment {id} has children, but no tokens");
        ensure!(segment.leases > 0 || segment.state != SegmentState::Open, "segment {id} is open, but has no lease");
        ensure!(
            !segment.pending || segment.state == SegmentState::Open,
            "segment {id} is sealed, but its last token is unknown"
        );
        let key = self.idle_key(id);
        ensure!(segment.idle == key, "segment {id} should be idle as {key:?}, is {:?}", segment.idle);
        Ok(())
    }

    /// Recounts each segment's children and users and what leases keep.
    fn check_leased(&self, ids: &[SegmentId]) -> Result<(), String> {
        let mut families = vec![(0, 0); self.arena.len()];
        for &id in ids {
            let Some(parent) = self.at(id).parent else { continue };
            let (children, users) = &mut families[parent.ix()];
            *children += 1;
            *users += u32::from(self.at(id).users > 0);
        }
        let mut usage = Usage::default();
        for &id in ids {
            let segment = self.at(id);
            let (children, users) = families[id.ix()];
            ensure!(segment.children == children, "segment {id} has {children} children, not {}", segment.children);
            let users = segment.leases + users;
            ensure!(segment.users == users, "segment {id} has {users} users, not {}", segment.users);
            if segment.leases > 0 {
                self.add_path(&mut usage, id);
            }
        }
        let leased = Leased { pages: usage.pages(), tokens: usage.tokens() };
        ensure!(self.leased == leased, "counters say {:?} is leased, it is {leased:?}", self.leased);
        Ok(())
    }

    /// All segments can be found by their first tokens. Prompts of one origin beneath one parent that have all their
    /// pages differ in their first tokens; branches need not, since forks may sample the same tokens.
    fn check_first_tokens(&self, ids: &[SegmentId]) -> Result<(), String> {
        let mut seen = HashSet::new();
        let mut keys = 0;
        for &id in ids {
            let Some(key) = self.first_key(id) else { continue };
            keys += 1;
            ensure!(self.by_first.contains(&key), "segment {id} is not found as {key:?}");
            let (parent, origin, token, ..) = key;
            let is_prompt = self.at(id).state == SegmentState::Prompt && self.lacking == 0;
            ensure!(
                !is_prompt || seen.insert((parent, origin, token)),
                "two prompts of {origin:?} beneath {parent:?} begin with {token}"
            );
        }
        ensure!(self.by_first.len() == keys, "{} segments can be found, {keys} have tokens", self.by_first.len());
        Ok(())
    }

    /// The pool's holders equal the tree's listings; only neighbours on a path list the same page; the counters are
    /// right.
    fn check_pages(&self, ids: &[SegmentId], pool: &PagePool) -> Result<(), String> {
        let mut listings = vec![0u32; pool.capacity()];
        for &id in ids {
            let segment = self.at(id);
            segment.pages.iter().for_each(|page| listings[page.ix()] += 1);
            let own: HashSet<PageId> = segment.pages.iter().collect();
            ensure!(own.len() == segment.pages.len(), "segment {id} lists a page twice");
        }
        for page in (0..pool.capacity()).map(PageId::new) {
            let (listed, held) = (listings[page.ix()], pool.holders(page));
            ensure!(listed == held, "page {page} is listed by {listed} segments, held by {held}");
        }
        for reach in Reach::BOTH {
            let mut gone_on = HashSet::new();
            for &id in ids.iter().filter(|&&id| self.begins_in_parents_pages(id, reach)) {
                let Segment { parent, first_position, ref pages, .. } = *self.at(id);
                ensure!(gone_on.insert(parent), "two children of {parent:?} go on in its last page");
                ensure!(!first_position.is_multiple_of(self.page_tokens), "segment {id} begins in a page that is full");
                pages[reach][..self.groups.with(reach)].iter().for_each(|page| listings[page.ix()] -= 1);
            }
        }
        ensure!(listings.iter().all(|&left| left <= 1), "a page is shared by segments that are not neighbours");
        let pages = listings.iter().filter(|&&left| left == 1).count();
        ensure!(
            pool.free() + pages == pool.capacity(),
            "{} free and {pages} held pages of {}",
            pool.free(),
            pool.capacity()
        );
        let held = TreeStats {
            segments: ids.len(),
            tokens: ids.iter().map(|&id| self.held(id)).sum(),
            pages,
            leases: ids.iter().map(|&id| self.at(id).leases as usize).sum(),
        };
        ensure!(self.held == held, "counters say {:?}, the tree holds {held:?}", self.held);
        Ok(())
    }
}
