//! Radix tree of segments: which runs of tokens are kept, in which pages, and who shares them. This room holds the
//! arena and the life of a segment (fork, computed, leases); `grow` gives it slots, `path` says what can be asked of
//! one, `admit` matches and splits, `evict` gives memory back, `live` takes the snapshot of a step, `integrity` checks
//! the invariants. It moves integers only: filling the slots with keys and values, in the order of `computed`, is the
//! caller's part.
//!
//! # Life of a segment
//! A *prompt* is registered whole by `admit` and never grows. A *branch* is opened by `fork`, has one writer and grows
//! by `append`; it is sealed when it is forked or when its last lease is released. Only open segments grow, and a
//! segment with children is never open. A segment without tokens has no children: what is forked there hangs from its
//! parent.
//!
//! # Splits
//! Splitting a segment at a position makes a new segment of its *first* part; the second part keeps the id, the
//! children, the leases and the writer. An id therefore names the end of a path, and goes on naming it. Where the split
//! falls inside a page both parts list that page and the pool counts two holders; the writer of the second part goes on
//! in it, since the first part never grows.
//!
//! # Pages
//! Where a segment ends inside a page, the first child that gets slots goes on there: both list the page, as after a
//! split. The slots behind a segment's end belong to one child at a time; the others begin with a page of their own,
//! from slot `first_position % page_tokens` on. So every slot is one segment's, and a page is listed by neighbours on
//! one path only.
//!
//! # Slots ahead of their tokens
//! The last slot of an open segment may be there before its token is known (`pending`): keys and values are computed
//! from what the device sampled, while nobody has read it yet. Such a slot counts as a token of the segment in every
//! way but two: it has no name, so nothing can be matched with it, and the segment can be neither forked nor lose its
//! last lease until the token is told or the slot taken back.
//!
//! # Hollow segments
//! Where every layer of a model has a window, rows far behind it will not read a branch's first tokens again.
//! `free_behind` gives their pages back: a *hollow* segment keeps its tokens and has no page. Nothing is matched with
//! it, nor with what is beneath it, but by who holds a lease on the end of the path. The pages hold all layers; where
//! only some layers have a window nothing can be freed here. Pools by group of layers would carry that further: a
//! segment then lists its pages by group, and is hollow by group.
//!
//! # Leases
//! A lease on a segment keeps its whole path. A released segment stays as a cache that later prompts match, until it is
//! evicted; an id without a lease may be gone, or be reused, after `evict` or `drop_unused`.

mod admit;
mod behind;
mod evict;
mod grow;
mod integrity;
mod live;
mod path;
mod pending;
mod usage;

use std::cell::Cell;
use std::collections::BTreeSet;

use admit::FirstKey;
pub use admit::PathMark;
use evict::IdleKey;
use live::Visits;
pub use usage::{Leased, Usage};

use super::PagePool;
use crate::ids::{PageId, SegmentId, TokenId};

/// Who may add tokens to a segment; see the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Registered by `admit`.
    Prompt,
    /// Made by `fork`; its writer may append.
    Open,
    /// Made by `fork`, or split off such a segment; grows no more.
    Sealed,
}

/// A run of tokens at the absolute positions `first_position ..`, and the pages that hold exactly these.
#[derive(Debug)]
struct Segment {
    parent: Option<SegmentId>,
    /// How many have it as their parent.
    children: u32,
    first_position: u32,
    tokens: Vec<TokenId>,
    /// Whether one more slot follows `tokens`, whose token is still being sampled.
    pending: bool,
    pages: Vec<PageId>,
    /// Its keys and values are gone, and its pages with them.
    hollow: bool,
    /// Leading tokens whose keys and values exist. More than 0 only where the whole path above is computed.
    computed: u32,
    state: State,
    leases: u32,
    /// Its leases, and its children that have users: more than 0 where a lease keeps it.
    users: u32,
    /// Orders siblings.
    born: u64,
    last_used: u64,
    /// The segment's entry in `PrefixTree::idle`, if it may be evicted.
    idle: Option<IdleKey>,
}

impl Segment {
    fn len(&self) -> u32 {
        count(self.tokens.len()) + u32::from(self.pending)
    }

    /// Tokens whose slots it has.
    fn held(&self) -> usize {
        if self.hollow { 0 } else { self.len() as usize }
    }

    fn end(&self) -> u32 {
        self.first_position + self.len()
    }
}

/// Counts of tokens and positions fit `u32`: no context is longer.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a context has fewer than 2^32 tokens")
}

/// What the tree holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    pub segments: usize,
    /// Tokens that have slots, each counted once however many branches share it.
    pub tokens: usize,
    /// Pages, each counted once.
    pub pages: usize,
    pub leases: usize,
}

/// The forest of all segments: one radix tree a distinct first token.
#[derive(Debug)]
pub struct PrefixTree {
    page_tokens: u32,
    arena: Vec<Option<Segment>>,
    vacant: Vec<SegmentId>,
    /// All segments that have a token.
    by_first: BTreeSet<FirstKey>,
    /// Childless segments without a lease, first to be evicted first.
    idle: BTreeSet<IdleKey>,
    /// Counts births and releases.
    clock: u64,
    held: TreeStats,
    leased: Leased,
    /// Hollow segments.
    hollow: usize,
    visits: Visits,
    /// See `compared`.
    compared: Cell<u64>,
}

impl PrefixTree {
    /// A tree over pages of `page_tokens` slots.
    pub fn new(page_tokens: u32) -> Self {
        assert!(page_tokens > 0, "a page has slots");
        Self {
            page_tokens,
            arena: Vec::new(),
            vacant: Vec::new(),
            by_first: BTreeSet::new(),
            idle: BTreeSet::new(),
            clock: 0,
            held: TreeStats::default(),
            leased: Leased::default(),
            hollow: 0,
            visits: Visits::default(),
            compared: Cell::new(0),
        }
    }

    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    pub fn stats(&self) -> TreeStats {
        self.held
    }

    /// A new open, empty child at the end of `segment`, which is sealed by that. Retained for the caller.
    pub fn fork(&mut self, segment: SegmentId) -> SegmentId {
        let at = self.holder(segment, self.end(segment));
        self.open_child(at)
    }

    /// The same at absolute position `position` of the path of `segment`: the new branch continues after its first
    /// `position` tokens. A segment that holds tokens on both sides is split there, by which its writer is not
    /// disturbed. Panics when the path is shorter than that, or hollow.
    pub fn fork_at(&mut self, pool: &mut PagePool, segment: SegmentId, position: u32) -> SegmentId {
        let end = self.end(segment);
        assert!(position <= end, "segment {segment} ends at {end}, so it cannot be forked at {position}");
        assert!(
            position == end || !self.is_hollow(segment),
            "the path of segment {segment} is hollow before {position}"
        );
        let at = self.holder(segment, position).map(|id| match position < self.end(id) {
            true => self.split(pool, id, position),
            false => id,
        });
        self.open_child(at)
    }

    fn open_child(&mut self, at: Option<SegmentId>) -> SegmentId {
        if let Some(id) = at {
            self.seal(id);
        }
        let child = self.insert(at, State::Open, Vec::new(), Vec::new());
        self.retain(child);
        child
    }

    /// Says that keys and values exist for every position below `upto` of the path of `segment`. Panics when the path
    /// is shorter than that.
    pub fn mark_computed(&mut self, segment: SegmentId, upto: u32) {
        let end = self.end(segment);
        assert!(upto <= end, "segment {segment} ends at {end}, so it cannot be computed up to {upto}");
        let mut at = Some(segment);
        while let Some(id) = at {
            let segment = self.at_mut(id);
            let before = segment.computed;
            segment.computed = before.max(upto.saturating_sub(segment.first_position).min(segment.len()));
            // Where something was computed before, everything above was.
            at = segment.parent.filter(|_| before == 0);
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

    /// One more lease on `segment`, and so on its whole path.
    pub fn retain(&mut self, segment: SegmentId) {
        self.at_mut(segment).leases += 1;
        self.held.leases += 1;
        self.add_user(segment);
        self.review(segment);
    }

    /// Ends one lease. After the last one the segment is sealed and stays as a cache until it is evicted. Panics when
    /// there is no lease.
    pub fn release(&mut self, segment: SegmentId) {
        let now = self.tick();
        let released = self.at_mut(segment);
        released.leases = released.leases.checked_sub(1).expect("a lease is released by who holds it");
        released.last_used = now;
        if released.leases == 0 {
            self.seal(segment);
        }
        self.held.leases -= 1;
        self.remove_user(segment);
        self.review(segment);
    }

    /// Pages that the positions `first .. end` touch.
    fn pages_between(&self, first: u32, end: u32) -> usize {
        if first == end { 0 } else { ((end - 1) / self.page_tokens - first / self.page_tokens + 1) as usize }
    }

    fn seal(&mut self, segment: SegmentId) {
        let sealed = self.at_mut(segment);
        assert!(!sealed.pending, "segment {segment} ends in a token that is not known, so it cannot be sealed");
        if sealed.state == State::Open {
            sealed.state = State::Sealed;
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A new youngest child of `parent` with no lease and nothing computed. `pages` were taken for it, but for the
    /// first one where it goes on in that of `parent`.
    fn insert(
        &mut self,
        parent: Option<SegmentId>,
        state: State,
        tokens: Vec<TokenId>,
        pages: Vec<PageId>,
    ) -> SegmentId {
        let now = self.tick();
        self.held.segments += 1;
        self.held.tokens += tokens.len();
        let id = self.place(Segment {
            parent,
            children: 0,
            first_position: parent.map_or(0, |p| self.end(p)),
            tokens,
            pending: false,
            pages,
            hollow: false,
            computed: 0,
            state,
            leases: 0,
            users: 0,
            born: now,
            last_used: now,
            idle: None,
        });
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

    fn at(&self, id: SegmentId) -> &Segment {
        self.arena[id.ix()].as_ref().expect("a segment is named only while a lease keeps it")
    }

    fn at_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.arena[id.ix()].as_mut().expect("a segment is named only while a lease keeps it")
    }
}
