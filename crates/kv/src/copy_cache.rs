//! Which pages of latents have copies that are kept, and where. A copy belongs to what a page held when it was made:
//! the page's stamp ([`PagePool::stamp`](crate::PagePool::stamp)) says whether that is still there, so nothing needs to
//! be told of pages that are freed. Copies take no page from latents: they lie in a memory of their own, whose least
//! used pages are taken for others.

use std::collections::HashMap;
use std::ops::Range;

use offshoot_core::ids::PageId;

use crate::plan::{AttentionPlan, CopyRoom};
use crate::{CopyStore, Expansion};

/// The kept copies, by number of their page in the memory of copies, and the room of steps for others.
pub struct CopyCache {
    /// Pages of each store.
    pages: [usize; CopyStore::COUNT],
    copies: Vec<Option<PageCopy>>,
    /// Pages without a copy.
    free: Vec<usize>,
    /// The copy of each page that has one.
    of_page: HashMap<PageId, usize>,
    /// The number of plans that were made.
    step: u64,
    /// Slots that were expanded to copies that are kept.
    pub slots_expanded: u64,
    /// Slots that were expanded to copies of one step.
    pub slots_expanded_again: u64,
    /// Copies that were given up for others.
    pub evicted: u64,
}

/// The copy of a page of latents.
struct PageCopy {
    page: PageId,
    /// The page's stamp when the copy was made.
    stamp: u64,
    /// Slots that are copied.
    filled: Range<u32>,
    /// The last plans that read it, and that added slots to it.
    used: u64,
    changed: u64,
}

/// The plans of a step whose pages are those of copies, and what is expanded for it.
#[derive(Clone, Debug)]
pub struct Copied {
    /// The plans of the items that read each [`CopyStore`].
    pub plans: [AttentionPlan; CopyStore::COUNT],
    /// What is expanded to each of them.
    pub expansions: [Vec<Expansion>; CopyStore::COUNT],
}

impl Copied {
    /// These plans, which read no copy.
    pub fn none(plans: [AttentionPlan; CopyStore::COUNT]) -> Self {
        debug_assert!(plans.iter().all(|plan| plan.items.is_empty()));
        Copied { plans, expansions: Default::default() }
    }
}

impl CopyCache {
    /// No copies, in so many pages of each store.
    pub fn new(pages: [usize; CopyStore::COUNT]) -> Self {
        let kept = pages[CopyStore::Kept as usize];
        CopyCache {
            pages,
            copies: (0..kept).map(|_| None).collect(),
            free: (0..kept).rev().collect(),
            of_page: HashMap::new(),
            step: 0,
            slots_expanded: 0,
            slots_expanded_again: 0,
            evicted: 0,
        }
    }

    /// Pages of each store.
    pub fn pages(&self) -> [usize; CopyStore::COUNT] {
        self.pages
    }

    /// Pages that have copies.
    pub fn held(&self) -> usize {
        self.of_page.len()
    }

    /// Whether these slots of a page, whose stamp is this, are copied.
    pub fn holds(&self, page: PageId, slots: &Range<u32>, stamp: u64) -> bool {
        self.copy_of(page, stamp).is_some_and(|copy| copy.filled.start <= slots.start && slots.end <= copy.filled.end)
    }

    fn copy_of(&self, page: PageId, stamp: u64) -> Option<&PageCopy> {
        let copy = self.copies[*self.of_page.get(&page)?].as_ref()?;
        (copy.stamp == stamp).then_some(copy)
    }

    /// Calls `plan` with the room for copies. `stamp`: that of a page of latents.
    pub fn with_room<T>(&self, stamp: impl Fn(PageId) -> u64, plan: impl FnOnce(&CopyRoom<'_>) -> T) -> T {
        let holds = |page: PageId, slots: Range<u32>| self.holds(page, &slots, stamp(page));
        plan(&CopyRoom { pages: self.pages, holds: &holds })
    }

    /// Gives what `plans` read from copies its pages of these, and says what is to be expanded for the step. `plans`
    /// were made with this room. If the step is not computed, [`CopyCache::undo`] follows.
    pub fn assign(&mut self, plans: [AttentionPlan; CopyStore::COUNT], stamp: impl Fn(PageId) -> u64) -> Copied {
        self.step += 1;
        let [mut kept, mut again] = plans;
        let expansions = [self.keep(&mut kept, stamp), lay_again(&mut again)];
        let of_step = &expansions[CopyStore::Again as usize];
        self.slots_expanded_again += of_step.iter().map(|expansion| expansion.slots.len() as u64).sum::<u64>();
        debug_assert!(again.pages.iter().all(|page| page.ix() < self.pages[CopyStore::Again as usize]));
        Copied { plans: [kept, again], expansions }
    }

    fn keep(&mut self, plan: &mut AttentionPlan, stamp: impl Fn(PageId) -> u64) -> Vec<Expansion> {
        let needed = slots_of_pages(plan);
        // What this plan reads is not given up for another page of it.
        for (page, _) in &needed {
            if let Some(&at) = self.of_page.get(page)
                && let Some(copy) = &mut self.copies[at]
            {
                copy.used = self.step;
            }
        }
        let mut least_used: Option<Vec<usize>> = None;
        let mut expansions = Vec::new();
        for (page, slots) in needed {
            let at = match self.of_page.get(&page) {
                Some(&at) => at,
                None => self.free.pop().unwrap_or_else(|| {
                    let unused = least_used.get_or_insert_with(|| self.unused(&stamp));
                    let at = unused.pop().expect("a plan reads no more pages of copies than there are");
                    let old = self.copies[at].take().expect("only pages of copies are taken from them");
                    self.of_page.remove(&old.page);
                    self.evicted += 1;
                    at
                }),
            };
            self.of_page.insert(page, at);
            let stamp = stamp(page);
            let copy = self.copies[at].take().filter(|copy| copy.stamp == stamp);
            let mut copy =
                copy.unwrap_or(PageCopy { page, stamp, filled: slots.start..slots.start, used: 0, changed: 0 });
            // Slots between what is copied and what is needed lie on the same path, and are computed.
            let whole = copy.filled.start.min(slots.start)..copy.filled.end.max(slots.end);
            for slots in [whole.start..copy.filled.start, copy.filled.end..whole.end] {
                if !slots.is_empty() {
                    self.slots_expanded += slots.len() as u64;
                    copy.changed = self.step;
                    expansions.push(Expansion { from: page, to: PageId::new(at), slots });
                }
            }
            (copy.filled, copy.used) = (whole, self.step);
            self.copies[at] = Some(copy);
        }
        plan.pages.iter_mut().for_each(|page| *page = PageId::new(self.of_page[page]));
        expansions
    }

    /// The pages of copies that this step does not read: those last that are worth least.
    fn unused(&self, stamp: &impl Fn(PageId) -> u64) -> Vec<usize> {
        let worth = |at: usize| {
            let copy = self.copies[at].as_ref()?;
            Some((copy.stamp == stamp(copy.page), copy.used))
        };
        let mut unused: Vec<usize> = (0..self.copies.len())
            .filter(|&at| self.copies[at].as_ref().is_some_and(|copy| copy.used < self.step))
            .collect();
        unused.sort_by_key(|&at| std::cmp::Reverse(worth(at)));
        unused
    }

    /// Forgets what the last step was to copy: it was not computed, or only in part.
    pub fn undo(&mut self) {
        let step = self.step;
        self.forget_where(|copy| copy.changed == step);
    }

    /// Forgets all copies: what they were made of, or with, is gone.
    pub fn forget_all(&mut self) {
        self.forget_where(|_| true);
    }

    fn forget_where(&mut self, is_gone: impl Fn(&PageCopy) -> bool) {
        for (at, place) in self.copies.iter_mut().enumerate() {
            if let Some(copy) = place.take_if(|copy| is_gone(copy)) {
                self.of_page.remove(&copy.page);
                self.free.push(at);
            }
        }
    }
}

/// Gives the pages of a plan numbers of their own, in order. Returns what is expanded to them.
fn lay_again(plan: &mut AttentionPlan) -> Vec<Expansion> {
    let needed = slots_of_pages(plan);
    let numbers: HashMap<PageId, usize> =
        needed.iter().enumerate().map(|(number, &(page, _))| (page, number)).collect();
    plan.pages.iter_mut().for_each(|page| *page = PageId::new(numbers[page]));
    let expansion = |(to, (from, slots))| Expansion { from, to: PageId::new(to), slots };
    needed.into_iter().enumerate().map(expansion).collect()
}

/// The pages of a plan, each once, with all slots that its items read and those between.
fn slots_of_pages(plan: &AttentionPlan) -> Vec<(PageId, Range<u32>)> {
    let mut places: HashMap<PageId, usize> = HashMap::new();
    let mut pages: Vec<(PageId, Range<u32>)> = Vec::new();
    for (page, slots) in plan.spans.iter().flat_map(|span| plan.slots_of(span)) {
        let at = *places.entry(page).or_insert(pages.len());
        match pages.get_mut(at) {
            Some((_, held)) => *held = held.start.min(slots.start)..held.end.max(slots.end),
            None => pages.push((page, slots)),
        }
    }
    pages
}
