//! Matching what is registered, and the split that makes a match end where a segment ends.

use super::{PrefixTree, Segment, State, count};
use crate::ids::{SegmentId, TokenId};
use crate::kv::PagePool;
use crate::kv::page_pool::OutOfPages;

/// How a segment is found: its parent, its first token, and when it was born.
pub(super) type FirstKey = (Option<SegmentId>, TokenId, u64, SegmentId);

/// The longest registered beginning of a prompt.
#[derive(Clone, Copy, Default)]
pub(super) struct Match {
    /// The segment in which it ends; `None` when not even the first token is known.
    pub segment: Option<SegmentId>,
    /// Tokens of that segment that belong to it.
    within: usize,
    /// Tokens of the prompt that belong to it.
    pub tokens: usize,
}

/// The end of a path that nobody may retain. See `PrefixTree::mark`.
#[derive(Clone, Copy, Debug)]
pub struct PathMark {
    segment: SegmentId,
    born: u64,
    end: u32,
}

impl PrefixTree {
    /// Registers a whole prompt and retains the segment in which it ends for the caller. The known beginning is
    /// matched, whether it is computed already, being computed or waiting; only the rest is new and needs pages. The
    /// segment is sealed: fork it to sample.
    ///
    /// Every registered token can be matched, those of sampled branches too. A branch that is still being written is
    /// split at the end of what is shared, so that its writer goes on in the second part (which may be empty).
    pub fn admit(&mut self, pool: &mut PagePool, tokens: &[TokenId]) -> Result<SegmentId, OutOfPages> {
        self.admit_behind(pool, None, tokens)
    }

    /// The same for the path of `path` and then the tokens `rest`. `path`, if there is one, is retained or `within`:
    /// nothing above its end is looked at, however many siblings it has.
    pub fn admit_behind(
        &mut self,
        pool: &mut PagePool,
        path: Option<SegmentId>,
        rest: &[TokenId],
    ) -> Result<SegmentId, OutOfPages> {
        let known = self.find(path, rest);
        let end = path.map_or(0, |path| self.end(path)) + count(rest.len());
        let rest = &rest[rest.len() - (end as usize - known.tokens)..];
        let whole = known.segment.filter(|&id| !rest.is_empty() && known.within == self.at(id).len() as usize);
        let open = whole.and_then(|id| self.open_page(pool, id));
        let missing = self.pages_between(count(known.tokens), end);
        let taken = pool.take_exactly(missing - usize::from(open.is_some()))?;
        open.into_iter().for_each(|page| pool.share(page));
        let pages = open.into_iter().chain(taken).collect();
        let mut end = known.segment.map(|id| self.end_at(pool, id, known.within));
        if !rest.is_empty() || end.is_none() {
            end = Some(self.insert(end, State::Prompt, rest.to_vec(), pages));
        }
        let end = end.expect("a prompt ends in what is known or in what was inserted");
        self.retain(end);
        Ok(end)
    }

    /// Retains for the caller what is registered of the path of `path` and then `rest`, and returns the sealed segment
    /// in which it ends; `None` where not even the first token is. Needs no page. `path` as in `admit_behind`.
    pub fn retain_known(
        &mut self,
        pool: &mut PagePool,
        path: Option<SegmentId>,
        rest: &[TokenId],
    ) -> Option<SegmentId> {
        let known = self.find(path, rest);
        let end = self.end_at(pool, known.segment?, known.within);
        self.retain(end);
        Some(end)
    }

    /// How many leading tokens of a path are registered, and how many of these are computed. `path` and `rest` as in
    /// `admit_behind`.
    pub fn known(&self, path: Option<SegmentId>, rest: &[TokenId]) -> (u32, u32) {
        let known = self.find(path, rest);
        let matched = count(known.tokens);
        (matched, known.segment.map_or(0, |id| self.computed(id).min(matched)))
    }

    pub(super) fn find(&self, path: Option<SegmentId>, rest: &[TokenId]) -> Match {
        let begin = path.map_or(0, |path| self.end(path)) as usize;
        let within = |last| Match { segment: Some(last), within: self.at(last).len() as usize, tokens: begin };
        let mut found = path.and_then(|path| self.holder(path, self.end(path))).map(within).unwrap_or_default();
        // All tokens found: no child shares more, however many there are.
        while found.tokens - begin < rest.len()
            && let Some((child, common)) = self.best_child(found.segment, &rest[found.tokens - begin..])
        {
            found = Match { segment: Some(child), within: common, tokens: found.tokens + common };
            if common < self.at(child).len() as usize {
                break;
            }
        }
        found
    }

    /// The last segment of the path of `path`, which is retained, that has tokens, all of them known, and ends at
    /// `position` at the latest. What ends before the path itself does is cut back to what is not beneath a hollow
    /// segment.
    pub fn within(&self, path: SegmentId, position: u32) -> Option<SegmentId> {
        let found = self.ancestry(path).find(|&id| {
            let segment = self.at(id);
            segment.len() > 0 && !segment.pending && segment.end() <= position
        })?;
        if self.end(found) == self.end(path) { Some(found) } else { self.whole_beginning(found) }
    }

    /// What tells whether the path of `segment`, whose tokens are all known, is still there when it is no longer
    /// retained.
    pub fn mark(&self, segment: SegmentId) -> PathMark {
        PathMark { segment, born: self.at(segment).born, end: self.end(segment) }
    }

    /// The segment that was marked, if its path is there as it was then.
    pub fn marked(&self, mark: PathMark) -> Option<SegmentId> {
        let segment = self.arena[mark.segment.ix()].as_ref()?;
        let is_there = segment.born == mark.born && segment.end() == mark.end && !segment.pending;
        (is_there && !self.is_hollow(mark.segment)).then_some(mark.segment)
    }

    /// The child of `parent` that shares most leading tokens with `rest` (at least one), and how many; of equals the
    /// oldest. Forks of one segment may have sampled the same tokens, so several children can match; prompts differ in
    /// the first token.
    fn best_child(&self, parent: Option<SegmentId>, rest: &[TokenId]) -> Option<(SegmentId, usize)> {
        let first = *rest.first()?;
        let alike = (parent, first, 0, SegmentId(0))..=(parent, first, u64::MAX, SegmentId(u32::MAX));
        let mut best = None;
        for &(.., child) in self.by_first.range(alike) {
            let shared = self.at(child).tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
            self.compared.set(self.compared.get() + shared as u64 + 1);
            if shared > best.map_or(0, |(_, most)| most) {
                best = Some((child, shared));
            }
        }
        best
    }

    /// Tokens of prompts that were compared with registered ones since the tree was made: for tests, which bound the
    /// work by it.
    pub fn compared(&self) -> u64 {
        self.compared.get()
    }

    /// By which `id` is found; `None` while it has no token, and where it is hollow.
    pub(super) fn first_key(&self, id: SegmentId) -> Option<FirstKey> {
        let segment = self.at(id);
        segment.tokens.first().filter(|_| !segment.hollow).map(|&first| (segment.parent, first, segment.born, id))
    }

    /// The next tokens of `id`, whose slots are there, are `tokens`.
    pub(super) fn name(&mut self, id: SegmentId, tokens: &[TokenId]) {
        let named = self.at_mut(id);
        let is_first = named.tokens.is_empty();
        named.tokens.extend_from_slice(tokens);
        if is_first {
            self.by_first.extend(self.first_key(id));
        }
    }

    /// A sealed segment that ends after `within` tokens of `id`.
    fn end_at(&mut self, pool: &mut PagePool, id: SegmentId, within: usize) -> SegmentId {
        let segment = self.at(id);
        if within == segment.len() as usize && segment.state != State::Open {
            return id;
        }
        let position = segment.first_position + count(within);
        self.split(pool, id, position)
    }

    /// Divides `id` at `position`, behind its first token and at most at its end, and returns the new segment of the
    /// first part; `id` goes on naming the second.
    pub(super) fn split(&mut self, pool: &mut PagePool, id: SegmentId, position: u32) -> SegmentId {
        let last_page = self.pages_between(self.at(id).first_position, position);
        let in_mid_page = !position.is_multiple_of(self.page_tokens);
        if let Some(key) = self.first_key(id) {
            self.by_first.remove(&key);
        }
        let lower = self.at_mut(id);
        debug_assert!(lower.first_position < position && position <= lower.end());

        let keep = position - lower.first_position;
        let tokens = lower.tokens.split_off(keep as usize);
        let tokens = std::mem::replace(&mut lower.tokens, tokens);
        let both = (in_mid_page && lower.len() > 0).then(|| lower.pages[last_page - 1]);
        let pages = lower.pages.split_off(last_page);
        let pages = std::mem::replace(&mut lower.pages, pages);
        if let Some(page) = both {
            lower.pages.insert(0, page);
            pool.share(page);
        }

        let computed = lower.computed.min(keep);
        lower.computed -= computed;
        let upper = Segment {
            parent: lower.parent,
            children: 1,
            first_position: lower.first_position,
            tokens,
            pending: false,
            pages,
            hollow: false,
            computed,
            state: if lower.state == State::Prompt { State::Prompt } else { State::Sealed },
            leases: 0,
            users: u32::from(lower.users > 0),
            born: lower.born,
            last_used: lower.last_used,
            idle: None,
        };
        lower.first_position = position;
        let upper = self.place(upper);
        self.at_mut(id).parent = Some(upper);
        let keys = [upper, id].map(|part| self.first_key(part));
        self.by_first.extend(keys.into_iter().flatten());
        self.held.segments += 1;
        self.review(id);
        upper
    }
}
