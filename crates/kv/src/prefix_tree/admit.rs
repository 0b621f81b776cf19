//! Registers prompts: matches the longest known prefix and splits segments so that a match ends where a segment ends.

use super::page_lists::PageLists;
use super::{FirstKey, PrefixTree, Segment, SegmentState, count};
use crate::page_pool::OutOfPages;
use crate::{AdapterChange, Origin, PagePool, PathStart, PathTokens, Reach, Window};
use offshoot_core::ids::{AdapterVersion, SegmentId, TokenId};

/// The longest registered prefix of a prompt.
#[derive(Clone, Copy, Default)]
pub(super) struct Match {
    /// The segment in which it ends; `None` if it is empty.
    pub segment: Option<SegmentId>,
    /// Its tokens in that segment.
    within: usize,
    /// Its tokens in total.
    pub tokens: usize,
}

/// Tokens to be registered behind a match, as segments of one origin each.
struct NewTokens {
    tokens: Vec<TokenId>,
    /// Of the first of them.
    origin: Origin,
    /// Where the adapter changes behind the first token, by rising place.
    changes: Vec<AdapterChange>,
}

/// Identifies the end of a path without a lease. See `PrefixTree::mark`.
#[derive(Clone, Copy, Debug)]
pub struct PathMark {
    segment: SegmentId,
    born: u64,
    end: u32,
}

impl PrefixTree {
    /// Registers a whole prompt of the first origin and returns the segment in which it ends, with a lease for the
    /// caller. The longest registered prefix is matched, whether it is computed or not; only the rest needs pages. The
    /// segment is sealed: fork it to sample.
    ///
    /// Every registered token can be matched, including those of sampled branches. A branch that is still written is
    /// split at the end of the match; its writer continues in the second part, which may be empty.
    pub fn admit(&mut self, pool: &mut PagePool, tokens: &[TokenId]) -> Result<SegmentId, OutOfPages> {
        self.admit_behind(pool, PathStart::FIRST, tokens, u32::MAX)
    }

    /// Registers the tokens of the path of `start` followed by `rest` as `admit` does. The caller has a lease on that
    /// path, or it comes from `within`. The search begins at its end. If rows from `rows_from` on will be computed
    /// though others have computed them, the match ends before what their windows lack. Either all that is missing is
    /// registered, or nothing.
    pub fn admit_behind<'a>(
        &mut self,
        pool: &mut PagePool,
        start: PathStart,
        rest: impl Into<PathTokens<'a>>,
        rows_from: u32,
    ) -> Result<SegmentId, OutOfPages> {
        let rest = rest.into();
        let begin = start.segment().map_or(0, |path| self.end(path));
        let known = self.find(start, rest);
        let known = self.up_to(known, self.readable_end(known.segment, count(known.tokens), rows_from));
        let end = begin + count(rest.tokens.len());
        let NewTokens { tokens: rest, origin, changes } = self.unmatched(start, rest, known.tokens);
        let whole = known.segment.filter(|&id| known.within == self.at(id).len() as usize);
        let first = count(known.tokens);
        let (pages, _) = match rest.is_empty() {
            true => (PageLists::default(), 0),
            false => self.lay_out(pool, whole, [first..end, first..first])?,
        };
        let mut end = known.segment.map(|id| self.end_at(pool, id, known.within));
        if !rest.is_empty() || end.is_none() {
            self.registered += 1;
            let new = self.insert(end, origin, SegmentState::Prompt, rest, pages);
            for change in changes {
                self.split(pool, new, first + count(change.at));
                self.set_adapter(new, change.adapter);
            }
            end = Some(new);
        }
        let end = end.expect("a prompt ends in a matched or an inserted segment");
        self.retain(end);
        Ok(end)
    }

    /// The tokens of the path of `start` followed by `rest` behind the first `matched` ones.
    fn unmatched(&self, start: PathStart, rest: PathTokens<'_>, matched: usize) -> NewTokens {
        let begin = start.segment().map_or(0, |path| self.end(path)) as usize;
        let (at_start, rest_from) = (self.origin_of(start), matched.saturating_sub(begin));
        let origin_at = |at: usize| rest.run(at).1.map_or(at_start, |adapter| at_start.with_adapter(adapter));
        let later = rest.changes.iter().filter(|change| change.at > rest_from);
        // Counted from the first unmatched token.
        let later = later.map(|change| AdapterChange { at: change.at + begin - matched, ..*change });
        let tokens = &rest.tokens[rest_from..];
        let Some(path) = start.segment().filter(|_| matched < begin) else {
            return NewTokens { tokens: tokens.to_vec(), origin: origin_at(rest_from), changes: later.collect() };
        };
        let again = self.parts(path, count(matched)..count(begin));
        let changes = again.iter().skip(1).map(|(id, part)| (part.start as usize, self.at(*id).origin.adapter));
        let changes = changes.chain([(begin, at_start.adapter)]);
        let changes = changes.map(|(at, adapter)| AdapterChange { at: at - matched, adapter }).chain(later);
        let first = again.first().map_or(at_start, |(id, _)| self.at(*id).origin);
        NewTokens {
            tokens: [&self.context(path)[matched..], tokens].concat(),
            origin: first,
            changes: distinct(first.adapter, changes),
        }
    }

    /// The number of prompts registered so far that were not known as a whole.
    pub fn registered(&self) -> u64 {
        self.registered
    }

    /// Returns the sealed segment at the end of the longest registered prefix of `path` and `rest` (see
    /// `admit_behind`), with a lease for the caller; `None` if that prefix is empty. Needs no pages.
    pub fn retain_known<'a>(
        &mut self,
        pool: &mut PagePool,
        path: PathStart,
        rest: impl Into<PathTokens<'a>>,
    ) -> Option<SegmentId> {
        let known = self.find(path, rest.into());
        let end = self.end_at(pool, known.segment?, known.within);
        self.retain(end);
        Some(end)
    }

    /// How many leading tokens of `path` and `rest` (see `admit_behind`) are registered, and how many of these are
    /// computed.
    pub fn known<'a>(&self, path: PathStart, rest: impl Into<PathTokens<'a>>) -> (u32, u32) {
        let known = self.find(path, rest.into());
        let matched = count(known.tokens);
        (matched, known.segment.map_or(0, |id| self.computed(id).min(matched)))
    }

    /// The segment in which the longest registered prefix of `path` and `rest` (see `admit_behind`) ends, and its
    /// length; `None` if it is empty. The segment may go on after it.
    pub fn known_path<'a>(&self, path: PathStart, rest: impl Into<PathTokens<'a>>) -> Option<(SegmentId, u32)> {
        let known = self.find(path, rest.into());
        known.segment.map(|segment| (segment, count(known.tokens)))
    }

    fn origin_of(&self, start: PathStart) -> Origin {
        match start {
            PathStart::Root(origin) => origin,
            PathStart::Behind(segment) => self.at(segment).origin,
            PathStart::Adapted(segment, adapter) => self.at(segment).origin.with_adapter(adapter),
        }
    }

    pub(super) fn find(&self, start: PathStart, rest: PathTokens<'_>) -> Match {
        let (path, at_start) = (start.segment(), self.origin_of(start));
        let begin = path.map_or(0, |path| self.end(path)) as usize;
        let within = |last| Match { segment: Some(last), within: self.at(last).len() as usize, tokens: begin };
        let mut found = path.and_then(|path| self.holder(path, self.end(path))).map(within).unwrap_or_default();
        while found.tokens - begin < rest.tokens.len() {
            let at = found.tokens - begin;
            // A segment of another adapter begins where one ends.
            let (end, adapter) = rest.run(at);
            let origin = adapter.map_or(at_start, |adapter| at_start.with_adapter(adapter));
            let Some((child, common)) = self.best_child(found.segment, origin, &rest.tokens[at..end]) else { break };
            found = Match { segment: Some(child), within: common, tokens: found.tokens + common };
            if common < self.at(child).len() as usize {
                break;
            }
        }
        self.up_to(found, self.readable_end(found.segment, count(found.tokens), u32::MAX))
    }

    /// The first `end` tokens of a match, of which these are all or the path of some segment.
    fn up_to(&self, found: Match, end: u32) -> Match {
        match found.segment {
            Some(segment) if (end as usize) < found.tokens => {
                let segment = self.holder(segment, end);
                let within = segment.map_or(0, |id| self.at(id).len() as usize);
                Match { segment, within, tokens: end as usize }
            }
            _ => found,
        }
    }

    /// The last segment on the path of `path` (which has a lease) that ends at or before `position` and has tokens,
    /// none of them pending, and that a branch can continue.
    pub fn within(&self, path: SegmentId, position: u32) -> Option<SegmentId> {
        let found = self.ancestry(path).find(|&id| {
            let segment = self.at(id);
            segment.len() > 0 && !segment.pending && segment.end() <= position
        })?;
        let readable = self.readable_end(Some(found), self.end(found), u32::MAX);
        self.holder(found, readable)
    }

    /// A mark by which the path of `segment` can be found again after its lease has ended, if it still exists. The
    /// segment has no pending token.
    pub fn mark(&self, segment: SegmentId) -> PathMark {
        PathMark { segment, born: self.at(segment).born, end: self.end(segment) }
    }

    /// The marked segment, if its path still exists unchanged and a branch can continue it.
    pub fn marked(&self, mark: PathMark) -> Option<SegmentId> {
        let segment = self.arena[mark.segment.ix()].as_ref()?;
        let is_there = segment.born == mark.born && segment.end() == mark.end && !segment.pending;
        (is_there && self.is_readable(mark.segment)).then_some(mark.segment)
    }

    /// The child of `parent` (`None`: the root) of this origin that shares most leading tokens with `rest` (at least
    /// one) and how many; on ties the oldest. Several children can match, because forks of one segment may have sampled
    /// the same tokens. A child that a branch cannot continue after these tokens counts as if it shared none.
    fn best_child(&self, parent: Option<SegmentId>, origin: Origin, rest: &[TokenId]) -> Option<(SegmentId, usize)> {
        let first = *rest.first()?;
        let key = |born: u64, id: SegmentId| (parent, origin, first, born, id);
        let same_first = key(0, SegmentId(0))..=key(u64::MAX, SegmentId(u32::MAX));
        let mut best: Option<(SegmentId, (usize, usize))> = None;
        for &(.., child) in self.by_first.range(same_first) {
            let segment = self.at(child);
            let shared = segment.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
            self.compared.set(self.compared.get() + shared as u64 + 1);
            let end = segment.first_position + count(shared);
            let is_read = |window: Window| segment.passed.min(end) > window.passed(end);
            let lacks = segment.lacks_pages() && self.groups.window().is_some_and(is_read);
            let worth = (if lacks { 0 } else { shared }, shared);
            if best.is_none_or(|(_, most)| worth > most) {
                best = Some((child, worth));
            }
        }
        best.map(|(child, (_, shared))| (child, shared))
    }

    /// The number of token comparisons so far. For tests that bound the work of matching.
    pub fn compared(&self) -> u64 {
        self.compared.get()
    }

    /// The key by which `id` is found; `None` if it has no token.
    pub(super) fn first_key(&self, id: SegmentId) -> Option<FirstKey> {
        let segment = self.at(id);
        segment.tokens.first().map(|&first| (segment.parent, segment.origin, first, segment.born, id))
    }

    /// Appends `tokens` to `id`, whose slots are reserved already.
    pub(super) fn push_tokens(&mut self, id: SegmentId, tokens: &[TokenId]) {
        let segment = self.at_mut(id);
        let is_first = segment.tokens.is_empty();
        segment.tokens.extend_from_slice(tokens);
        if is_first {
            self.by_first.extend(self.first_key(id));
        }
    }

    /// Has the tokens of `id`, which nobody has computed, computed with this adapter.
    fn set_adapter(&mut self, id: SegmentId, adapter: Option<AdapterVersion>) {
        if let Some(key) = self.first_key(id) {
            self.by_first.remove(&key);
        }
        let segment = self.at_mut(id);
        segment.origin = segment.origin.with_adapter(adapter);
        self.by_first.extend(self.first_key(id));
    }

    /// A sealed segment that ends after the first `within` tokens of `id`; splits `id` if necessary.
    fn end_at(&mut self, pool: &mut PagePool, id: SegmentId, within: usize) -> SegmentId {
        let segment = self.at(id);
        if within == segment.len() as usize && segment.state != SegmentState::Open {
            return id;
        }
        let position = segment.first_position + count(within);
        self.split(pool, id, position)
    }

    /// Splits `id` at `position`, which is after its first token and at most its end. Returns the new segment of the
    /// first part; `id` keeps the second.
    pub(super) fn split(&mut self, pool: &mut PagePool, id: SegmentId, position: u32) -> SegmentId {
        let in_mid_page = !position.is_multiple_of(self.page_tokens);
        if let Some(key) = self.first_key(id) {
            self.by_first.remove(&key);
        }
        let (groups, page_tokens) = (self.groups, self.page_tokens);
        let numbers_between = |first: u32, end: u32| crate::page_counts::numbers_between(page_tokens, first, end);
        let lower = self.at_mut(id);
        debug_assert!(lower.first_position < position && position <= lower.end());

        let laid_upto = lower.laid_upto(Reach::Window);
        let keep = position - lower.first_position;
        let tokens = lower.tokens.split_off(keep as usize);
        let tokens = std::mem::replace(&mut lower.tokens, tokens);
        let scores = lower.scores.split_off(lower.scores.len().min(keep as usize));
        let scores = std::mem::replace(&mut lower.scores, scores);
        let values = lower.values.split_off(lower.values.len().min(keep as usize));
        let values = std::mem::replace(&mut lower.values, values);
        let both_have_tokens = lower.len() > 0;
        let (passed, lacked) = (lower.passed, lower.lacks_pages());
        lower.passed = passed.max(position);
        let mut pages = PageLists::default();
        for reach in Reach::BOTH {
            let (from, laid_upto) = match reach {
                Reach::All => (lower.first_position, u32::MAX),
                Reach::Window => (passed, laid_upto),
            };
            let (groups, of_upper) = (groups.with(reach), numbers_between(from, position.min(laid_upto)));
            let upper = &mut pages[reach];
            let lower = &mut lower.pages[reach];
            let below = lower.split_off(groups * of_upper);
            *upper = std::mem::replace(lower, below);
            if in_mid_page && both_have_tokens && of_upper > 0 && position < laid_upto {
                let shared = &upper[upper.len() - groups..];
                shared.iter().for_each(|&page| pool.share(page));
                lower.splice(0..0, shared.iter().copied());
            }
        }

        let above = lower.states.partition_point(|kept| kept.position <= position);
        let states = lower.states.split_off(above);
        let states = std::mem::replace(&mut lower.states, states);
        let computed = lower.computed.min(keep);
        lower.computed -= computed;
        let unlaid = lower.unlaid.saturating_sub(lower.len());
        lower.unlaid -= unlaid;
        let upper = Segment {
            parent: lower.parent,
            origin: lower.origin,
            children: 1,
            first_position: lower.first_position,
            tokens,
            scores,
            values,
            pending: false,
            pages,
            passed: passed.min(position),
            unlaid,
            states,
            computed,
            state: if lower.state == SegmentState::Prompt { SegmentState::Prompt } else { SegmentState::Sealed },
            leases: 0,
            users: u32::from(lower.users > 0),
            born: lower.born,
            last_used: lower.last_used,
            idle: None,
        };
        lower.first_position = position;
        let upper = self.place(upper);
        self.at_mut(id).parent = Some(upper);
        self.own_states(upper);
        let keys = [upper, id].map(|part| self.first_key(part));
        self.by_first.extend(keys.into_iter().flatten());
        self.held.segments += 1;
        self.lacking += [upper, id].into_iter().filter(|&part| self.at(part).lacks_pages()).count();
        self.lacking -= usize::from(lacked);
        self.note_behind(upper);
        self.review(id);
        upper
    }
}

/// The changes that are some, where `before` is the adapter of the first token.
fn distinct(mut before: Option<AdapterVersion>, changes: impl Iterator<Item = AdapterChange>) -> Vec<AdapterChange> {
    changes.filter(|change| std::mem::replace(&mut before, change.adapter) != change.adapter).collect()
}
