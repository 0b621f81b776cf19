//! The KV cache: how branches get slots of the prefix tree, give them up, and how a branch's own pages, and its state
//! of recurrent layers, are swapped to host memory and back if that is expected to be faster than recomputation. Which
//! branch to preempt is left to the scheduler; the engine copies the bytes as `transfers` lists.

use std::borrow::Cow;

use crate::branch::{Branch, BranchWork, KvHold, Lease, NeededPositions, Swapped};
use crate::path_adapters::PathAdapters;
use crate::prefix_store::PrefixStore;
use crate::token_path::{SharedBeginning, position};
use crate::weights::Versions;
use offshoot_core::ids::{AdapterVersion, BranchId, PageId, SegmentId, StateId, TokenId, WeightVersion};
use offshoot_core::mix::IdMap;
use offshoot_kv::{
    AdapterChange, CacheSalt, CopyCache, CopyStore, Origin, OutOfPages, PagePool, PathMark, PathStart, PathTokens,
    PrefixTree, StatePlace, TreeStats, Window,
};

pub(super) type Branches = IdMap<BranchId, Branch>;

pub(super) struct KvCache {
    /// The weights in force: those of all that is matched or computed from now on.
    pub weights: WeightVersion,
    pub prefix: PrefixTree,
    pub pages: PagePool,
    /// Copies of latents: no part of what branches hold.
    pub copies: CopyCache,
    /// The branch matched last.
    matched: Option<Matched>,
    /// Pages that pins hold.
    pub pinned_pages: usize,
    /// Pages of the paths on which branches have run, counted for each branch as if none shared them and none were
    /// freed behind windows. See `count_unshared`.
    pub unshared_pages: usize,
    restore_cost: RestoreCost,
    /// Free bytes of host memory.
    swap_room: usize,
    /// Prefixes on disk, if they are kept there.
    pub store: Option<PrefixStore>,
    /// States that other engines wait for.
    pub lent_states: Vec<StatePlace>,
    /// Copies to make before the next step is submitted, in order.
    pub transfers: Vec<Transfer>,
    /// Scores that branches have taken over from the prefix tree.
    pub scores_reused: u64,
    /// Values that branches have taken over from it.
    pub values_reused: u64,
}

/// The shared beginning of a branch that was matched, and its end in the prefix tree: forks of one branch are matched
/// one after the other, and need not compare these tokens again.
struct Matched {
    beginning: SharedBeginning,
    adapters: PathAdapters,
    mark: PathMark,
}

/// The tokens of a branch behind the path at which they are looked for.
pub(super) struct LookedUp<'b> {
    tokens: Cow<'b, [TokenId]>,
    changes: Vec<AdapterChange>,
}

impl<'a> From<&'a LookedUp<'_>> for PathTokens<'a> {
    fn from(LookedUp { tokens, changes }: &'a LookedUp<'_>) -> Self {
        PathTokens { tokens, changes }
    }
}

/// Cost of restoring what a preempted branch had, swap-in against recomputation, in seconds; and its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestoreCost {
    pub page_bytes: usize,
    /// 0 for models without states.
    pub state_bytes: usize,
    /// Copying a byte to host memory and back.
    pub swapped_byte: f64,
    /// Recomputing a token.
    pub computed_row: f64,
}

impl RestoreCost {
    /// Bytes of so many pages and, if the model has states, of one.
    fn swapped_bytes(self, pages: usize) -> usize {
        pages * self.page_bytes + self.state_bytes
    }

    /// Whether swapping so many bytes, of `rows` computed tokens, is cheaper than recomputing these.
    fn swap_pays(self, bytes: usize, rows: u32) -> bool {
        (bytes as f64) * self.swapped_byte < f64::from(rows) * self.computed_row
    }
}

/// A copy of one branch's keys and values, and of its state, between device and host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// Copy these pages and this state to host memory; others may write there afterwards.
    Save { branch: BranchId, pages: Vec<PageId>, state: Option<StateId> },
    /// Copy the saved bytes into these pages, and into this slot if there is one, and free them.
    Restore { branch: BranchId, pages: Vec<PageId>, state: Option<StateId> },
    /// Free the saved bytes.
    Forget { branch: BranchId },
}

impl KvCache {
    /// `swap_bytes`: capacity of host memory for preempted branches.
    pub fn new(prefix: PrefixTree, pages: usize, swap_bytes: usize, restore_cost: RestoreCost) -> Self {
        KvCache {
            weights: WeightVersion::FIRST,
            prefix,
            pages: PagePool::new(pages),
            copies: CopyCache::new([0; CopyStore::COUNT]),
            matched: None,
            pinned_pages: 0,
            unshared_pages: 0,
            restore_cost,
            swap_room: swap_bytes,
            store: None,
            lent_states: Vec::new(),
            transfers: Vec::new(),
            scores_reused: 0,
            values_reused: 0,
        }
    }

    /// Frees the pages of the running `branch` that its rows will not read again and nobody else holds.
    pub fn free_behind(&mut self, branch: &Branch) {
        let window = self.prefix.groups().window();
        let (Some(window), Some(lease)) = (window, branch.lease().filter(|lease| lease.used)) else { return };
        let end = self.prefix.end(lease.segment);
        let mut next = self.prefix.computed(lease.segment).min(end.saturating_sub(1));
        if let BranchWork::Score(scoring) = &branch.work {
            next = next.min(position(scoring.next() - 1)); // It needs that row if another branch does not score for it.
        }
        if let BranchWork::Values(values) = &branch.work {
            next = next.min(values.missing().next().unwrap_or(u32::MAX)); // Likewise.
        }
        let upto = window.passed(next);
        if upto > 0 {
            self.prefix.free_behind(&mut self.pages, lease.segment, upto);
        }
    }

    /// Number of further tokens until a branch whose row is at `position`, in its own `segment`, must free pages.
    pub fn steps_until_freed(&self, segment: SegmentId, position: u32) -> usize {
        let until = |window: Window| self.prefix.passed(segment) + window.patience();
        self.prefix.groups().window().map_or(usize::MAX, |window| until(window).saturating_sub(position) as usize)
    }

    /// What prompts with this salt are computed with now, without an adapter.
    pub fn origin(&self, salt: Option<CacheSalt>) -> Origin {
        Origin { weights: self.weights, adapter: None, salt }
    }

    /// What the next token of `branch` is sampled or scored under.
    pub fn versions(&self, branch: &Branch) -> Versions {
        Versions { weights: self.weights, adapter: branch.tokens.adapter() }
    }

    /// A path with which the first `upto` tokens of `branch` are known to begin, and the tokens after it.
    pub fn look_up<'b>(&self, branch: &'b Branch, upto: usize) -> (PathStart, LookedUp<'b>) {
        let adapters = branch.tokens.adapters();
        let of_sibling = || {
            let Matched { beginning, adapters: others, mark } = self.matched.as_ref()?;
            let path = self.prefix.marked(*mark).filter(|_| branch.tokens.begins_with(beginning))?;
            Some((path, others.first_difference(adapters).unwrap_or(usize::MAX)))
        };
        let origin = self.origin(branch.tokens.salt());
        let path = branch.kept().map(|path| (path, usize::MAX)).or_else(of_sibling);
        let path = path.and_then(|(path, alike)| self.prefix.within(path, position(upto.min(alike))));
        let path = path.filter(|&path| self.prefix.origin(path).may_go_on_with(origin));
        let end = path.map_or(0, |path| self.prefix.end(path)) as usize;
        debug_assert!(
            path.is_none_or(|path| self.prefix.token_at(path, position(end - 1)) == branch.tokens[end - 1]),
            "the path of {path:?} is no beginning of branch {}",
            branch.id
        );
        let adapter = adapters.at(end);
        let start = match path {
            Some(path) if self.prefix.origin(path).adapter == adapter => PathStart::Behind(path),
            Some(path) => PathStart::Adapted(path, adapter),
            None => PathStart::Root(origin.with_adapter(adapter)),
        };
        (start, LookedUp { tokens: branch.tokens.slice(end..upto), changes: adapters.within(end..upto) })
    }

    /// Records that `branch` was matched with the path of `segment`.
    fn note_matched(&mut self, branch: &Branch, segment: SegmentId) {
        if let Some(shared) = self.prefix.within(segment, position(branch.tokens.shared_len())) {
            let (beginning, adapters) = (branch.tokens.beginning(), branch.tokens.adapters().clone());
            self.matched = Some(Matched { beginning, adapters, mark: self.prefix.mark(shared) });
        }
    }

    /// Reserves slots for the positions that `branch` needs next. A branch that starts or resumes is matched with the
    /// prefix tree: siblings that were given the same tokens share them, and a dropped branch finds what is still
    /// cached. A swapped branch gets its own tokens back. A running branch continues in a segment of its own. Slots
    /// reserved before a failure stay reserved.
    pub fn reserve(&mut self, branch: &mut Branch, need: NeededPositions) -> Result<(), OutOfPages> {
        let reserved = self.reserve_path(branch, need).and_then(|()| {
            let Lease { segment, .. } = branch.lease().expect("its path was reserved just now");
            self.prefix.lay_ahead(&mut self.pages, segment)
        });
        self.count_unshared(branch);
        reserved
    }

    /// Reserves what `reserve` does, without the slots of prompts in groups with a window.
    fn reserve_path(&mut self, branch: &mut Branch, need: NeededPositions) -> Result<(), OutOfPages> {
        let lease = match branch.hold {
            KvHold::Path(lease) if lease.used => lease,
            KvHold::Swapped(swapped) => self.swap_in(branch, swapped)?,
            KvHold::Nothing | KvHold::Path(_) => {
                let (path, rest) = self.look_up(branch, need.match_upto);
                let segment = self.prefix.admit_behind(&mut self.pages, path, &rest, position(need.logits_from))?;
                self.note_matched(branch, segment);
                self.release(branch);
                Lease { segment, own: false, used: true }
            }
        };
        branch.hold = KvHold::Path(lease);
        let end = self.prefix.end(lease.segment) as usize;
        if end >= need.end {
            return Ok(());
        }
        let adapter = branch.tokens.adapters().at(end);
        let segment = if lease.own { lease.segment } else { self.prefix.fork_with(lease.segment, adapter) };
        if !lease.own {
            self.prefix.release(lease.segment);
        }
        branch.hold = KvHold::Path(Lease { segment, own: true, used: true });
        let known = need.end.min(branch.tokens.len());
        self.prefix.append(&mut self.pages, segment, &branch.tokens.slice(end..known))?;
        match known < need.end {
            true => self.prefix.append_pending(&mut self.pages, segment),
            false => Ok(()),
        }
    }

    /// Leases the longest cached prefix of its given tokens for a branch that does not run. A branch that has run on
    /// its lease, or was swapped, keeps what it has.
    pub fn hold_prefix(&mut self, branch: &mut Branch) {
        let keeps_more = match branch.hold {
            KvHold::Nothing => false,
            KvHold::Path(lease) => lease.used,
            KvHold::Swapped(_) => true,
        };
        if keeps_more {
            return;
        }
        let (path, rest) = self.look_up(branch, branch.given());
        if let Some(segment) = self.prefix.retain_known(&mut self.pages, path, &rest) {
            self.note_matched(branch, segment);
            self.release(branch);
            branch.hold = KvHold::Path(Lease { segment, own: false, used: false });
        }
    }

    /// Has what follows the tokens of `branch`, which rests, sampled under `adapter`. It keeps the part of its path
    /// that is computed as before.
    pub fn set_adapter(&mut self, branch: &mut Branch, adapter: Option<AdapterVersion>) {
        if branch.tokens.adapter() == adapter {
            return;
        }
        branch.tokens.set_adapter(adapter);
        // Its last token is computed again.
        let alike = branch.tokens.len() - 1;
        branch.computed_once = branch.computed_once.min(alike);
        let (path, rest) = self.look_up(branch, alike);
        let segment = self.prefix.retain_known(&mut self.pages, path, &rest);
        self.release(branch);
        branch.hold =
            segment.map_or(KvHold::Nothing, |segment| KvHold::Path(Lease { segment, own: false, used: false }));
        if let Some(store) = &mut self.store {
            store.forget_branch(branch.id);
        }
    }

    /// Gives up what is held of branches whose tokens are computed with another adapter from now on.
    pub fn forget_some<'b>(&mut self, branches: impl IntoIterator<Item = &'b mut Branch>) {
        for branch in branches {
            self.release(branch);
            if let Some(store) = &mut self.store {
                store.forget_branch(branch.id);
            }
        }
        self.release_read();
        if let Some(store) = &mut self.store {
            store.forget_marks();
        }
        self.matched = None;
    }

    /// Tells the prefix tree the token of a slot that was assigned before its token was known; takes the slot back
    /// where the extend of the branch `ends` without it.
    pub fn settle(&mut self, branch: &mut Branch, ends: bool) {
        let Some(lease) = branch.lease().filter(|lease| self.prefix.is_pending(lease.segment)) else { return };
        let position = self.prefix.end(lease.segment) as usize - 1;
        match branch.tokens.get(position) {
            Some(&token) => self.prefix.settle(lease.segment, token),
            None if ends => self.prefix.take_back(&mut self.pages, lease.segment),
            // A forced token before it was recorded.
            None => return,
        }
        self.count_unshared(branch);
    }

    /// Counts the pages of a branch's path anew. Called after each change of its hold and of its own segment's end, so
    /// that nobody needs to visit all branches.
    pub fn count_unshared(&mut self, branch: &mut Branch) {
        let pages = self.pages_of_path(branch);
        self.unshared_pages = self.unshared_pages + pages as usize - branch.unshared_pages as usize;
        branch.unshared_pages = pages;
    }

    fn pages_of_path(&self, branch: &Branch) -> u32 {
        let used = branch.lease().filter(|lease| lease.used);
        used.map_or(0, |lease| self.prefix.path_pages(lease.segment))
    }

    /// Recounts `unshared_pages`.
    pub fn check_unshared<'b>(&self, branches: impl IntoIterator<Item = &'b Branch>) -> Result<(), String> {
        let pages: usize = branches.into_iter().map(|branch| self.pages_of_path(branch) as usize).sum();
        match pages == self.unshared_pages {
            true => Ok(()),
            false => {
                Err(format!("branches have {pages} pages, shared ones counted for each, not {}", self.unshared_pages))
            }
        }
    }

    /// Ends a branch's hold; its keys and values stay cached on the device. Returns the segment that it leased.
    pub fn release(&mut self, branch: &mut Branch) -> Option<SegmentId> {
        let segment = match std::mem::replace(&mut branch.hold, KvHold::Nothing) {
            KvHold::Nothing => return None,
            KvHold::Path(lease) => {
                self.prefix.take_back(&mut self.pages, lease.segment);
                lease.segment
            }
            KvHold::Swapped(swapped) => {
                self.swap_room += swapped.bytes;
                self.transfers.push(Transfer::Forget { branch: branch.id });
                swapped.before
            }
        };
        self.count_unshared(branch);
        self.prefix.release(segment);
        Some(segment)
    }

    /// Ends a branch's hold and frees the pages that nobody else holds.
    pub fn prune(&mut self, branch: &mut Branch) {
        if let Some(segment) = self.release(branch) {
            self.prefix.prune(&mut self.pages, segment);
        }
    }

    /// Moves the pages of a branch's own tokens, and the state after them, to host memory, if that pays and there is
    /// room. False otherwise, and if that state is not kept: then its tokens would be computed again all the same.
    pub fn swap_out(&mut self, branch: &mut Branch) -> bool {
        let Some(Lease { segment, own: true, .. }) = branch.lease() else { return false };
        let (first, computed) = (self.prefix.first_position(segment), self.prefix.computed(segment));
        let (pages, passed) = (self.prefix.pages_upto(segment, computed), self.prefix.passed(segment));
        let state = self.prefix.state_at(segment, computed);
        let bytes = self.restore_cost.swapped_bytes(pages.len());
        let pays = self.restore_cost.swap_pays(bytes, computed.saturating_sub(first))
            && self.prefix.has_states() == state.is_some();
        let Some(before) = self.prefix.parent(segment).filter(|_| pays && bytes <= self.swap_room) else {
            return false;
        };
        self.prefix.retain(before);
        self.prune(branch);
        self.swap_room -= bytes;
        branch.hold = KvHold::Swapped(Swapped { before, computed, passed, bytes });
        self.transfers.push(Transfer::Save { branch: branch.id, pages, state });
        true
    }

    /// The copy of the swapped `branch` to host memory failed: drops the branch, and swaps no other from now on.
    pub fn not_saved(&mut self, branch: &mut Branch) {
        self.release(branch);
        self.swap_room = 0;
    }

    /// Restores a swapped branch, all of its pages or nothing. Its state finds no slot where all are needed: its tokens
    /// are then computed again, from the last state before them.
    fn swap_in(&mut self, branch: &Branch, swapped: Swapped) -> Result<Lease, OutOfPages> {
        let Swapped { before, computed, passed, bytes } = swapped;
        let first = self.prefix.end(before) as usize;
        let segment = self.prefix.fork_with(before, branch.tokens.adapters().at(first));
        let tokens = branch.tokens.slice(first..computed as usize);
        // In the first saved page only this branch's slots are valid.
        if let Err(short) = self.prefix.append_apart(&mut self.pages, segment, &tokens, passed) {
            self.prefix.release(segment);
            self.prefix.prune(&mut self.pages, segment);
            return Err(short);
        }
        self.prefix.release(before);
        self.prefix.mark_computed(segment, computed);
        self.swap_room += bytes;
        let pages = self.prefix.pages_upto(segment, computed);
        let state = self.prefix.keep_spare_state(StatePlace { segment, position: computed });
        self.transfers.push(Transfer::Restore { branch: branch.id, pages, state });
        Ok(Lease { segment, own: true, used: true })
    }

    /// Whether ending the hold of `branch` could free a page, once nothing else is cached.
    pub fn keeps_pages(&self, branch: &Branch) -> bool {
        branch.kept().is_some_and(|segment| !self.prefix.has_children(segment))
    }

    /// Evicts pages without a lease until `pages` are free. False if there are too few.
    pub fn evict_for(&mut self, pages: usize) -> bool {
        let short = pages.saturating_sub(self.pages.free());
        self.prefix.evict(&mut self.pages, short) >= short
    }

    /// What `take` gives, after pages without a lease are evicted for it if it is short of them; `None` if there are
    /// too few.
    pub fn evicting<T>(&mut self, take: impl Fn(&mut Self) -> Result<T, OutOfPages>) -> Option<T> {
        match take(self) {
            Err(short) if self.evict_for(short.needed) => take(self).ok(),
            taken => taken.ok(),
        }
    }

    /// If `branch` is scored: the segment at the end of its path, and the first row whose logits or values it needs,
    /// which it computes even if others have computed its keys and values.
    pub fn first_row_again(&self, branch: &Branch) -> Option<(SegmentId, u32)> {
        match &branch.work {
            BranchWork::Score(scoring) => Some((branch.lease()?.segment, position(scoring.next() - 1))),
            BranchWork::Values(values) => Some((branch.lease()?.segment, values.missing().next()?)),
            BranchWork::Idle | BranchWork::Sample(_) => None,
        }
    }

    /// Splits the path that the waiting `branch` shares with prompts where it parts from them: a segment that ends
    /// there keeps the window before its end when pages are freed. Looks it up only if prompts were registered since.
    pub fn spare(&mut self, branch: &mut Branch) {
        let registered = self.prefix.registered();
        if std::mem::replace(&mut branch.spared, registered) == registered {
            return;
        }
        let (path, rest) = self.look_up(branch, branch.given());
        if let Some(known) = self.prefix.retain_known(&mut self.pages, path, &rest) {
            self.prefix.release(known);
        }
    }

    /// Evicts all pages without a lease.
    pub fn evict_all(&mut self) {
        self.prefix.evict(&mut self.pages, usize::MAX);
    }

    /// Gives up all keys and values, states and scores: those of branches, too, which are computed again when they run.
    pub fn forget_all<'b>(&mut self, branches: impl IntoIterator<Item = &'b mut Branch>) {
        self.forget_some(branches);
        self.copies.forget_all();
        self.lent_states.clear();
        self.evict_all();
        debug_assert_eq!(self.prefix.stats(), TreeStats::default(), "somebody still holds what was computed before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 8;

    /// Four tokens that others may share and six of its own, on pages of four: all computed.
    fn run(cache: &mut KvCache, branch: &mut Branch) {
        let need = NeededPositions { match_upto: 4, logits_from: 3, end: 10 };
        cache.reserve(branch, need).expect("there are pages enough");
        cache.prefix.mark_computed(branch.lease().expect("it runs").segment, 10);
    }

    /// Pages of one byte, each of which costs a hundredth of a row.
    const COST: RestoreCost = RestoreCost { page_bytes: 1, state_bytes: 0, swapped_byte: 0.01, computed_row: 1.0 };

    #[test]
    fn a_branch_that_cannot_be_saved_is_dropped_and_swapping_ends() {
        let mut cache = KvCache::new(PrefixTree::new(4), PAGES, 100, COST);
        let mut branch = Branch::root(BranchId(1), (0..10).map(TokenId).collect());
        run(&mut cache, &mut branch);
        assert!(cache.swap_out(&mut branch));
        cache.not_saved(&mut branch);
        assert!(matches!(branch.hold, KvHold::Nothing));
        assert_eq!(cache.transfers.last(), Some(&Transfer::Forget { branch: branch.id }));

        run(&mut cache, &mut branch);
        assert!(!cache.swap_out(&mut branch), "host memory is full");
        cache.release(&mut branch);
        cache.evict_all();
        assert_eq!(cache.pages.free(), PAGES, "nothing keeps a page");
    }

    #[test]
    fn a_state_is_swapped_with_its_pages_and_finds_a_slot_that_nobody_needs() {
        let cost = RestoreCost { state_bytes: 10, ..COST };
        let swapping = |states: usize, swap_bytes: usize| {
            let mut cache = KvCache::new(PrefixTree::new(4).keeping_states(states), PAGES, swap_bytes, cost);
            let mut branch = Branch::root(BranchId(1), (0..10).map(TokenId).collect());
            run(&mut cache, &mut branch);
            let segment = branch.lease().expect("it runs").segment;
            let place = StatePlace { segment, position: 10 };
            (cache, branch, place)
        };
        // Its six own tokens are on two pages.
        let (mut cache, mut branch, _) = swapping(2, 12);
        assert!(!cache.swap_out(&mut branch), "without a state they would be computed again");
        let (mut cache, mut branch, place) = swapping(2, 11);
        cache.prefix.keep_state(place).expect("a slot is free");
        assert!(!cache.swap_out(&mut branch), "the state needs room, too");
        for others in 0..3 {
            let (mut cache, mut branch, place) = swapping(2, 12);
            let slot = cache.prefix.keep_state(place);
            assert!(cache.swap_out(&mut branch));
            assert_eq!(cache.prefix.states_kept(), 0);
            let Some(Transfer::Save { state, .. }) = cache.transfers.pop() else { panic!("it is saved") };
            assert_eq!(state, slot);
            // Two other states, which a branch needs or nobody does.
            let mut other = Branch::root(BranchId(2), (20..24).map(TokenId).collect());
            cache
                .reserve(&mut other, NeededPositions { match_upto: 4, logits_from: 3, end: 4 })
                .expect("there is room");
            let segment = other.lease().expect("it runs").segment;
            cache.prefix.mark_computed(segment, 4);
            for position in 1..=others {
                cache.prefix.keep_state(StatePlace { segment, position }).expect("slots are free");
            }
            let need = NeededPositions { match_upto: 10, logits_from: 10, end: 11 };
            let back = |cache: &mut KvCache, branch: &mut Branch| {
                cache.reserve(branch, need).expect("pages are free");
                let Some(Transfer::Restore { state, .. }) = cache.transfers.pop() else { panic!("it is restored") };
                cache.prefix.check_integrity(&cache.pages).unwrap();
                state
            };
            if others == 2 {
                cache.release(&mut other);
            }
            assert!(back(&mut cache, &mut branch).is_some(), "{others} others");
            let segment = branch.lease().expect("it runs").segment;
            assert_eq!(cache.prefix.resume_from(segment, 10), 10);
            assert_eq!(cache.swap_room, 12);
        }
    }

    #[test]
    fn branches_below_a_long_prompt_are_admitted_without_comparing_it_again() {
        const PROMPT: usize = 100_000;
        const BRANCHES: u64 = 4096;
        let pages = PROMPT.div_ceil(16) + 2 * BRANCHES as usize;
        let mut cache = KvCache::new(PrefixTree::new(16), pages, 0, COST);
        let mut root = Branch::root(BranchId(0), (0..100_000).map(TokenId).collect());
        let need = NeededPositions { match_upto: PROMPT, logits_from: PROMPT - 1, end: PROMPT };
        // The prompt is not registered yet, so that the forks have nothing to hold.
        let mut forks: Vec<Branch> = (1..=BRANCHES).map(|id| root.fork(BranchId(id))).collect();
        for fork in &mut forks {
            // The three lookups of an admission: its prefix hold, its cost, its slots.
            cache.hold_prefix(fork);
            let (path, rest) = cache.look_up(fork, PROMPT);
            cache.prefix.known(path, &rest);
            cache.reserve(fork, need).expect("there are pages enough");
        }
        let compared = cache.prefix.compared();
        assert!(compared <= 2 * PROMPT as u64, "{compared} comparisons for {BRANCHES} branches of {PROMPT} tokens");
        // An evicted match is not taken for a cached one.
        forks.iter_mut().for_each(|fork| _ = cache.release(fork));
        cache.evict_all();
        cache.reserve(&mut forks[0], need).expect("there are pages enough");
        assert_eq!(cache.prefix.stats().tokens, PROMPT);
        cache.prefix.check_integrity(&cache.pages).unwrap();
    }
}
