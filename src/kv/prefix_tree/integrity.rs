//! The tree's invariants, executable. Walks everything: for tests and idle moments, not for steps.

use std::collections::HashSet;

use super::{Leased, PrefixTree, Segment, State, TreeStats, Usage};
use crate::ids::{PageId, SegmentId};
use crate::kv::PagePool;

/// `Err` with the text when the condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!($($what)+));
        }
    };
}

impl PrefixTree {
    /// Checks every invariant of the module's head against the whole tree and the pool that its pages came from (which must
    /// serve no one else). `Err` says what is broken and where.
    pub fn check_integrity(&self, pool: &PagePool) -> Result<(), String> {
        let ids: Vec<_> =
            (0..self.arena.len()).map(SegmentId::new).filter(|id| self.arena[id.ix()].is_some()).collect();
        for &id in &ids {
            self.check_links(id)?;
            self.check_contents(id)?;
        }
        for parent in ids.iter().map(|&id| Some(id)).chain([None]) {
            self.check_first_tokens(parent)?;
        }
        ensure!(self.arena.len() == ids.len() + self.vacant.len(), "arena: vacant places are not all listed");
        let idle: Vec<_> = ids.iter().filter_map(|&id| self.at(id).idle).collect();
        ensure!(idle.len() == self.idle.len(), "{} segments are idle, {} listed", idle.len(), self.idle.len());
        ensure!(idle.iter().all(|key| self.idle.contains(key)), "an idle segment is listed under another key");
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
        let listed = self.siblings(segment.parent).iter().filter(|&&s| s == id).count();
        ensure!(listed == 1, "segment {id} is listed {listed} times by its parent");
        for &child in &segment.children {
            let parent = self.arena[child.ix()].as_ref().and_then(|c| c.parent);
            ensure!(parent == Some(id), "segment {child} is listed by {id}, but names {parent:?} as its parent");
        }
        Ok(())
    }

    fn check_contents(&self, id: SegmentId) -> Result<(), String> {
        let segment = self.at(id);
        let (first, end) = (segment.first_position, segment.end());
        let pages = self.pages_between(first, end);
        ensure!(
            segment.pages.len() == pages,
            "segment {id} at {first}..{end} has {} pages, not {pages}",
            segment.pages.len()
        );
        ensure!(segment.computed <= segment.len(), "segment {id} is computed past its end");
        let above = segment.parent.map(|p| self.at(p));
        ensure!(
            segment.computed == 0 || above.is_none_or(|p| p.computed == p.len()),
            "segment {id} is computed, but its parent is not"
        );
        ensure!(segment.children.is_empty() || segment.state != State::Open, "segment {id} is open, but has children");
        ensure!(segment.children.is_empty() || segment.len() > 0, "segment {id} has children, but no tokens");
        ensure!(segment.leases > 0 || segment.state != State::Open, "segment {id} is open, but has no lease");
        ensure!(
            !segment.drawing || segment.state == State::Open,
            "segment {id} is sealed, but its last token is unknown"
        );
        let is_idle = segment.leases == 0 && segment.children.is_empty();
        let key = is_idle.then_some((segment.computed > 0, segment.last_used, id));
        ensure!(segment.idle == key, "segment {id} should be idle as {key:?}, is {:?}", segment.idle);
        Ok(())
    }

    /// What leases keep, by a walk along the path of each.
    fn check_leased(&self, ids: &[SegmentId]) -> Result<(), String> {
        let mut usage = Usage::default();
        for &id in ids {
            let segment = self.at(id);
            let children = segment.children.iter().filter(|child| self.at(**child).users > 0).count();
            let users = segment.leases as usize + children;
            ensure!(segment.users as usize == users, "segment {id} has {users} users, not {}", segment.users);
            if segment.leases > 0 {
                self.add_path(&mut usage, id);
            }
        }
        let leased = Leased { pages: usage.pages(), tokens: usage.tokens() };
        ensure!(self.leased == leased, "counters say {:?} is leased, it is {leased:?}", self.leased);
        Ok(())
    }

    /// Prompts beneath one parent differ in their first token. Branches are exempt: forks may sample alike.
    fn check_first_tokens(&self, parent: Option<SegmentId>) -> Result<(), String> {
        let mut seen = HashSet::new();
        for &id in self.siblings(parent) {
            let segment = self.at(id);
            if segment.state == State::Prompt
                && let Some(&token) = segment.tokens.first()
            {
                ensure!(seen.insert(token), "two prompts beneath {parent:?} begin with token {token}");
            }
        }
        Ok(())
    }

    /// Holders in the pool equal listings in the tree; only neighbours on a path list the same page; the counters hold.
    fn check_pages(&self, ids: &[SegmentId], pool: &PagePool) -> Result<(), String> {
        let mut listings = vec![0u32; pool.capacity()];
        for &id in ids {
            let segment = self.at(id);
            segment.pages.iter().for_each(|page| listings[page.ix()] += 1);
            let own: HashSet<_> = segment.pages.iter().collect();
            ensure!(own.len() == segment.pages.len(), "segment {id} lists a page twice");
        }
        for page in (0..pool.capacity()).map(PageId::new) {
            let (listed, held) = (listings[page.ix()], pool.holders(page));
            ensure!(listed == held, "page {page} is listed by {listed} segments, held by {held}");
        }
        for &id in ids {
            self.check_sharing(id, &mut listings);
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
            tokens: ids.iter().map(|&id| self.at(id).len() as usize).sum(),
            pages,
            leases: ids.iter().map(|&id| self.at(id).leases as usize).sum(),
        };
        ensure!(self.held == held, "counters say {:?}, the tree holds {held:?}", self.held);
        Ok(())
    }

    /// Takes off `listings` the page that `id` shares with its parent, if their boundary lies within it.
    fn check_sharing(&self, id: SegmentId, listings: &mut [u32]) {
        let segment = self.at(id);
        let above = segment.parent.and_then(|p| self.at(p).pages.last());
        if let (Some(first), Some(last)) = (segment.pages.first(), above)
            && first == last
            && !segment.first_position.is_multiple_of(self.page_tokens)
        {
            listings[first.ix()] -= 1;
        }
    }
}
