//! Radix tree of segments: which runs of tokens are stored, in which pages, and who shares them. This file holds the
//! arena and the life cycle of a segment (fork, computed, leases). `grow` adds slots, `path` holds queries, `admit`
//! matches and splits, `evict` frees memory, `live` makes the snapshot of a step, `map` one for people, `integrity`
//! checks the invariants.
//! The tree moves integers only; the caller fills the slots with keys and values, in the order of `computed`.
//!
//! # Life of a segment
//! A *prompt* is registered whole by `admit` and never grows. A *branch* is opened by `fork`, has one writer and grows
//! by `append`; it is sealed when it is forked or its last lease is released. Only open segments grow, and a segment
//! with children is never open. A segment without tokens has no children: a fork of it becomes a child of its parent.
//!
//! # Splits
//! Splitting a segment at a position makes a new segment of its *first* part. The second part keeps the id, the
//! children, the leases and the writer, so an id always names the same end of a path. If the split is inside a page,
//! both parts list that page and the pool counts two holders; the writer of the second part continues in it.
//!
//! # Pages
//! If a segment ends inside a page, the first child that gets slots continues in that page: both list it, as after a
//! split. Other children begin with a page of their own, at slot `first_position % page_tokens`. So every slot belongs
//! to one segment, and only neighbours on one path list the same page.
//!
//! # Pending tokens
//! The last slot of an open segment may be reserved before its token is known (`pending`): the device has sampled the
//! token and computes its key and value, but the host has not read it yet. Such a slot counts as a token of the
//! segment, with two exceptions: nothing can match it, and until the token is known or the slot taken back the segment
//! can neither be forked nor lose its last lease.
//!
//! # Origins
//! What keys and values follow from beside the tokens is the origin of a segment ([`Origin`]): weights, adapter, salt.
//! It is part of the key by which a segment is found, so that what other weights or another adapter have computed, or
//! what belongs to another client, is never matched. A path has the weights and the salt of its root; its adapter may
//! change where a segment ends.
//!
//! # Windows
//! A token has a slot in each page group of the model ([`PageGroups`]). The segments, tokens, matches and leases are
//! the same for all groups; a segment has a list of pages for the groups that hold all positions, and one for those
//! whose layers have a sliding window. Rows far along a branch no longer read its first tokens in the latter:
//! `free_behind` frees these pages up to the position `passed` of a segment. If there are groups of both kinds, the
//! segment keeps its pages in the others.
//!
//! A prompt gets its slots in groups with a window step by step, before they are computed (`lay_ahead`), and those of
//! the other groups at once. So the first need the pages of a window and a step for a prompt of any length, if what is
//! behind the window is freed while it is computed (`free_behind_prompts`).
//!
//! A match ends where what new rows read is still there (`readable_end`): new rows after position `p` read the window
//! before `p`. What follows is computed again in pages of its own, so that a text may be registered twice.
//!
//! # Leases
//! A lease on a segment keeps its whole path. A released segment stays cached for later prompts to match, until it is
//! evicted. After `evict` or `prune`, an id without a lease may be gone or reused.
//!
//! # States
//! A model with recurrent layers computes a row from the state that the rows before have left (`states`). A state has
//! a slot and belongs to one position of one segment. It is a cache: rows whose state is not kept are computed again
//! from the last one before, with the same result. A branch continues its own state in place; a fork reads the state at
//! the end of the sealed segment and gets a slot with its first row, so that forking copies nothing. If slots are
//! short, the state used least recently goes. States go with the tokens before them: on splits, truncation and removal.
//!
//! # Scores
//! A segment keeps the log-probabilities of its tokens once they were computed (`scores`), and what a scorer computes
//! for them (`values`).

mod admit;
mod behind;
mod evict;
mod grow;
mod integrity;
mod live;
mod map;
mod page_lists;
mod pages;
mod path;
mod pending;
mod scores;
mod state_table;
mod states;
mod usage;
mod values;
mod visits;

use std::cell::Cell;
use std::collections::BTreeSet;

pub use admit::PathMark;
pub use map::MappedSegment;
use page_lists::PageLists;
pub use scores::{MOST_KEPT_TOP, TokenScore};
use state_table::{Snapshot, StateTable};
pub use states::StatePlace;
pub use usage::Usage;
use visits::Visits;

use super::{Origin, PageGroups, PagePool, Reach};
use offshoot_core::ids::{AdapterVersion, SegmentId, TokenId};

/// The key by which a segment is found: what it continues (`None`: nothing), its origin, its first token, its birth.
type FirstKey = (Option<SegmentId>, Origin, TokenId, u64, SegmentId);

/// The order of eviction: false for segments that are of no use to a match, then by last use.
type IdleKey = (bool, u64, SegmentId);

/// Where a segment is in its life cycle; see the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentState {
    /// Registered by `admit`.
    Prompt,
    /// Made by `fork`; its writer may append.
    Open,
    /// Made by `fork`, or split off such a segment; no longer grows.
    Sealed,
}

/// A run of tokens at the absolute positions `first_position ..`, and the pages of these.
#[derive(Debug)]
struct Segment {
    parent: Option<SegmentId>,
    /// What its tokens' keys and values, states and scores are computed with.
    origin: Origin,
    /// The number of its children.
    children: u32,
    first_position: u32,
    tokens: Vec<TokenId>,
    /// Scores of its first tokens, as far as they are known; shorter than `tokens` if those of the last are not.
    scores: Vec<Option<TokenScore>>,
    /// Values of its first tokens, likewise. Only of scorers.
    values: Vec<Option<Box<[f32]>>>,
    /// Whether one more slot follows `tokens`, for a token that is still being sampled.
    pending: bool,
    pages: PageLists,
    /// First position of which it has pages in groups with a window; between its first position and its end. What is
    /// below was freed.
    passed: u32,
    /// Last tokens of a prompt that have no slots yet in groups with a window: `lay_ahead` has not come to them.
    unlaid: u32,
    /// States after some of its tokens, by position. Only of models with recurrent layers.
    states: Vec<Snapshot>,
    /// Leading tokens with keys and values. More than 0 only if the whole path above is computed.
    computed: u32,
    state: SegmentState,
    leases: u32,
    /// Reference count: its leases, plus its children that have users. More than 0 if a lease keeps it.
    users: u32,
    /// Clock value at its creation; orders siblings.
    born: u64,
    /// Clock value when its last lease was released.
    last_used: u64,
    /// Its entry in `PrefixTree::idle`, if it may be evicted.
    idle: Option<IdleKey>,
}

impl Segment {
    /// Its tokens, a pending one included.
    fn len(&self) -> u32 {
        count(self.tokens.len()) + u32::from(self.pending)
    }

    fn end(&self) -> u32 {
        self.first_position + self.len()
    }
}

/// `n` tokens or positions as a `u32`: no context is longer.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a context has fewer than 2^32 tokens")
}

/// What the tree currently holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    pub segments: usize,
    /// Tokens that have slots in some group; a shared token counts once.
    pub tokens: usize,
    /// Pages of all groups; a shared page counts once.
    pub pages: usize,
    pub leases: usize,
}

/// Pages and tokens kept by leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    pub pages: usize,
    pub tokens: usize,
}

/// All segments: a forest with one radix tree per origin and distinct first token.
#[derive(Debug)]
pub struct PrefixTree {
    page_tokens: u32,
    groups: PageGroups,
    arena: Vec<Option<Segment>>,
    /// Free entries of the arena.
    vacant: Vec<SegmentId>,
    /// Index of the segments that can be matched: those with a token.
    by_first: BTreeSet<FirstKey>,
    /// Childless segments without a lease, in order of eviction.
    idle: BTreeSet<IdleKey>,
    /// Advances with every new segment and every release.
    clock: u64,
    held: TreeStats,
    leased: Leased,
    /// The number of segments of which pages behind the window were freed.
    lacking: usize,
    /// Leased prompts that have pages behind the window, and some that no longer are leased. See `note_behind`.
    prompts_behind: BTreeSet<SegmentId>,
    /// See `registered`.
    registered: u64,
    visits: Visits,
    /// See `compared`.
    compared: Cell<u64>,
    /// See `laying_ahead`.
    ahead: u32,
    /// `None` if all layers have attention.
    states: Option<StateTable>,
}

impl PrefixTree {
    /// A tree over pages of `page_tokens` slots in one group, which holds all positions.
    pub fn new(page_tokens: u32) -> Self {
        Self::with_groups(page_tokens, PageGroups::ONE)
    }

    /// A tree over pages of `page_tokens` slots. Panics if the window frees parts of pages.
    pub fn with_groups(page_tokens: u32, groups: PageGroups) -> Self {
        assert!(page_tokens > 0, "a page has slots");
        let frees_pages = groups.window().is_none_or(|window| window.unit.is_multiple_of(page_tokens));
        assert!(frees_pages, "pages of {page_tokens} slots are freed as a whole, not as {groups:?} says");
        Self {
            page_tokens,
            groups,
            arena: Vec::new(),
            vacant: Vec::new(),
            by_first: BTreeSet::new(),
            idle: BTreeSet::new(),
            clock: 0,
            held: TreeStats::default(),
            leased: Leased::default(),
            lacking: 0,
            prompts_behind: BTreeSet::new(),
            registered: 0,
            visits: Visits::default(),
            compared: Cell::new(0),
            ahead: u32::MAX,
            states: None,
        }
    }

    /// Prompts get slots in groups with a window for at most so many tokens before they are computed: the rows of a
    /// step.
    pub fn laying_ahead(mut self, tokens: u32) -> Self {
        self.ahead = tokens;
        self
    }

    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    pub fn groups(&self) -> PageGroups {
        self.groups
    }

    pub fn stats(&self) -> TreeStats {
        self.held
    }

    /// Opens an empty child at the end of `segment`, with a lease for the caller. Seals `segment`.
    pub fn fork(&mut self, segment: SegmentId) -> SegmentId {
        self.fork_with(segment, self.at(segment).origin.adapter)
    }

    /// Opens an empty child as `fork` does, whose tokens are computed with `adapter`.
    pub fn fork_with(&mut self, segment: SegmentId, adapter: Option<AdapterVersion>) -> SegmentId {
        let at = self.holder(segment, self.end(segment));
        self.open_child(at, self.at(segment).origin.with_adapter(adapter))
    }

    /// Opens an empty child after the first `position` tokens of the path of `segment`, with a lease for the caller.
    /// Splits a segment with tokens on both sides of `position`; its writer is not affected. Panics if the path is
    /// shorter, or if the window before `position` was freed.
    pub fn fork_at(&mut self, pool: &mut PagePool, segment: SegmentId, position: u32) -> SegmentId {
        let end = self.end(segment);
        assert!(position <= end, "segment {segment} ends at {end}, so it cannot be forked at {position}");
        let holder = self.holder(segment, position);
        assert!(
            position == end || self.readable_end(holder, position, u32::MAX) == position,
            "the window before position {position} of segment {segment} was freed"
        );
        let at = holder.map(|id| match position < self.end(id) {
            true => self.split(pool, id, position),
            false => id,
        });
        self.open_child(at, self.at(segment).origin)
    }

    fn open_child(&mut self, at: Option<SegmentId>, origin: Origin) -> SegmentId {
        if let Some(id) = at {
            self.seal(id);
        }
        let child = self.insert(at, origin, SegmentState::Open, Vec::new(), PageLists::default());
        self.retain(child);
        child
    }

    /// What the tokens of `segment` are computed with.
    pub fn origin(&self, segment: SegmentId) -> Origin {
        self.at(segment).origin
    }

    /// Records that keys and values exist for all positions below `upto` of the path of `segment`. Panics if the path
    /// is shorter.
    pub fn mark_computed(&mut self, segment: SegmentId, upto: u32) {
        let end = self.end(segment);
        assert!(upto <= end, "segment {segment} ends at {end}, so it cannot be computed up to {upto}");
        let mut at = Some(segment);
        while let Some(id) = at {
            let segment = self.at_mut(id);
            let before = segment.computed;
            segment.computed = before.max(upto.saturating_sub(segment.first_position).min(segment.len()));
            debug_assert!(segment.computed + segment.unlaid <= segment.len(), "{id} is computed where it has no slots");
            // If part of a segment was computed before, so was everything above it.
            at = segment.parent.filter(|_| before == 0);
            self.note_behind(id);
            self.review(id);
        }
    }

    /// Position up to which keys and values exist for the whole path of `segment`.
    pub fn computed(&self, segment: SegmentId) -> u32 {
        self.ancestry(segment)
            .map(|id| self.at(id))
            .find(|s| s.computed > 0)
            .map_or(0, |s| s.first_position + s.computed)
    }

    /// Adds a lease on `segment`, and so on its whole path.
    pub fn retain(&mut self, segment: SegmentId) {
        self.at_mut(segment).leases += 1;
        self.held.leases += 1;
        self.add_user(segment);
        self.review(segment);
    }

    /// Ends one lease. After the last one the segment is sealed and stays cached until it is evicted. Panics if there
    /// is no lease.
    pub fn release(&mut self, segment: SegmentId) {
        let now = self.tick();
        let released = self.at_mut(segment);
        released.leases = released.leases.checked_sub(1).expect("a lease is released only by its holder");
        released.last_used = now;
        if released.leases == 0 {
            self.seal(segment);
        }
        self.held.leases -= 1;
        self.remove_user(segment);
        self.review(segment);
    }

    /// Tokens of `segment` that have slots in some group.
    fn held(&self, segment: SegmentId) -> usize {
        let segment = self.at(segment);
        let slots = match self.groups.with(Reach::All) {
            0 => segment.passed..segment.laid_upto(Reach::Window),
            _ => segment.first_position..segment.end(),
        };
        slots.len()
    }

    fn seal(&mut self, segment: SegmentId) {
        let sealed = self.at_mut(segment);
        assert!(!sealed.pending, "segment {segment} ends in a pending token, so it cannot be sealed");
        if sealed.state == SegmentState::Open {
            sealed.state = SegmentState::Sealed;
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Adds a youngest child to `parent`, which has the same weights and salt, with no lease and nothing computed.
    /// `pages`: those of the groups that hold all positions; the caller has taken them, or shared the first ones if the
    /// child continues in the last pages of `parent`.
    fn insert(
        &mut self,
        parent: Option<SegmentId>,
        origin: Origin,
        state: SegmentState,
        tokens: Vec<TokenId>,
        pages: PageLists,
    ) -> SegmentId {
        let now = self.tick();
        let first_position = parent.map_or(0, |p| self.end(p));
        let unlaid = if self.groups.with(Reach::Window) > 0 { count(tokens.len()) } else { 0 };
        self.held.segments += 1;
        let id = self.place(Segment {
            parent,
            origin,
            children: 0,
            first_position,
            tokens,
            scores: Vec::new(),
            values: Vec::new(),
            pending: false,
            pages,
            passed: first_position,
            unlaid,
            states: Vec::new(),
            computed: 0,
            state,
            leases: 0,
            users: 0,
            born: now,
            last_used: now,
            idle: None,
        });
        self.held.tokens += self.held(id);
        self.held.pages += self.own_pages(id);
        self.by_first.extend(self.first_key(id));
        if let Some(parent) = parent {
            self.at_mut(parent).children += 1;
            self.review(parent);
        }
        self.review(id);
        id
    }

    /// Puts `segment` in the arena.
    fn place(&mut self, segment: Segment) -> SegmentId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.arena.push(None);
            self.visits.grow();
            SegmentId::new(self.arena.len() - 1)
        });
        self.arena[id.ix()] = Some(segment);
        id
    }

    /// All segments, by rising id.
    fn ids(&self) -> Vec<SegmentId> {
        (0..self.arena.len()).map(SegmentId::new).filter(|id| self.arena[id.ix()].is_some()).collect()
    }

    fn at(&self, id: SegmentId) -> &Segment {
        self.arena[id.ix()].as_ref().expect("a segment is named only while a lease keeps it")
    }

    fn at_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.arena[id.ix()].as_mut().expect("a segment is named only while a lease keeps it")
    }
}
