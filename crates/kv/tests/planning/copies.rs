//! Which pages have copies: a copy is never read after what it was made of is gone, whatever becomes of branches.

use std::collections::HashMap;

use crate::forms::latent_hints;

use offshoot_core::dice::Dice;
use offshoot_core::ids::{PageId, SegmentId, TokenId};
use offshoot_kv::plan::{LatentForm, LatentFormChoice, Planner};
use offshoot_kv::{CopyCache, CopyStore, Forest, PagePool, PrefixTree, StepRow};

const PAGE: u32 = 16;

/// A tree, the copies of its pages, and what memory would hold of both: by page and slot.
struct Branches {
    tree: PrefixTree,
    pool: PagePool,
    cache: CopyCache,
    stored: HashMap<(PageId, u32), TokenId>,
    copied: HashMap<(PageId, u32), TokenId>,
    /// Items that read copies, and slots that were expanded.
    items: usize,
    expanded: usize,
}

impl Branches {
    fn new(pages: usize, copies: usize) -> Self {
        let (tree, pool) = (PrefixTree::new(PAGE), PagePool::new(pages));
        let cache = CopyCache::new([copies, 1]);
        Branches { tree, pool, cache, stored: HashMap::new(), copied: HashMap::new(), items: 0, expanded: 0 }
    }

    /// A child of `above` with these tokens.
    fn child(&mut self, above: SegmentId, tokens: &[TokenId]) -> SegmentId {
        let child = self.tree.fork(above);
        self.append(child, tokens);
        child
    }

    fn append(&mut self, segment: SegmentId, tokens: &[TokenId]) {
        self.tree.append(&mut self.pool, segment, tokens).expect("the pool is large enough");
    }

    fn prune(&mut self, segment: SegmentId) {
        self.tree.release(segment);
        self.tree.prune(&mut self.pool, segment);
    }

    /// A step of the newest row of each leaf, in which all that may read copies does. Checks that each slot that is
    /// read holds the token of its position. Returns the slots that were expanded.
    fn step(&mut self, leaves: &[SegmentId]) -> usize {
        let newest = |&leaf: &SegmentId| StepRow { segment: leaf, position: self.tree.end(leaf) - 1 };
        let mut rows: Vec<StepRow> = leaves.iter().map(newest).collect();
        rows.iter().for_each(|row| self.tree.mark_computed(row.segment, row.position));
        self.tree.depth_first(&mut rows);
        let forest = self.tree.forest(&rows);
        self.store(&forest);
        let stamp = |page: PageId| self.pool.stamp(page);
        let choice = LatentFormChoice::All(LatentForm::Kept);
        let plans =
            self.cache.with_room(stamp, |room| Planner::Tree.plan_forms(&forest, &latent_hints(1), choice, room));
        let before = plans.copied[CopyStore::Kept as usize].clone();
        let copied = self.cache.assign(plans.copied, stamp);
        let [kept, _] = copied.plans;
        let mut expanded = 0;
        for expansion in &copied.expansions[CopyStore::Kept as usize] {
            for slot in expansion.slots.clone() {
                let token = self.stored.get(&(expansion.from, slot)).expect("only what is computed is expanded");
                self.copied.insert((expansion.to, slot), *token);
                expanded += 1;
            }
        }
        assert_eq!((&before.items, &before.spans), (&kept.items, &kept.spans));
        for item in &kept.items {
            let context = self.tree.context(rows[item.rows.start as usize].segment);
            for span in &kept.spans[item.spans.start as usize..item.spans.end as usize] {
                for position in span.first_position..span.first_position + span.tokens {
                    let page = span.pages.start + position / PAGE - span.first_position / PAGE;
                    let slot = (kept.pages[page as usize], position % PAGE);
                    assert_eq!(self.copied.get(&slot), Some(&context[position as usize]), "position {position}");
                }
            }
        }
        rows.iter().for_each(|row| self.tree.mark_computed(row.segment, row.position + 1));
        self.items += kept.items.len();
        self.expanded += expanded;
        expanded
    }

    /// Notes what the pages of a forest hold.
    fn store(&mut self, forest: &Forest) {
        for segment in &forest.segments {
            let held = &forest.pages[segment.pages.start as usize..segment.pages.end as usize];
            for position in segment.held_from..segment.end() {
                let page = held[(position / PAGE - segment.held_from / PAGE) as usize];
                self.stored.insert((page, position % PAGE), self.tree.token_at(segment.id, position));
            }
        }
    }
}

fn text(dice: &mut Dice, shortest: u32, longest: u32) -> Vec<TokenId> {
    let length = dice.within(shortest, longest) as usize;
    dice.text(length, 5000)
}

#[test]
fn a_sibling_that_continues_in_the_page_of_a_pruned_one_has_no_copy_of_it() {
    let mut dice = Dice::new(1);
    let mut branches = Branches::new(100, 20);
    let trunk = branches.tree.admit(&mut branches.pool, &text(&mut dice, 20, 20)).unwrap();
    // A shared child that ends in the trunk's last page, with two leaves beneath it.
    let mut with_leaves = |branches: &mut Branches| {
        let shared = branches.child(trunk, &text(&mut dice, 10, 10));
        let leaves = [(); 2].map(|()| branches.child(shared, &text(&mut dice, 3, 3)));
        branches.tree.release(shared);
        let pages = branches.tree.pages_upto(shared, 30);
        (leaves, pages, branches.step(&leaves))
    };
    let (leaves, pages, expanded) = with_leaves(&mut branches);
    assert_eq!(expanded, 30);
    assert_eq!(branches.step(&leaves), 0, "what is copied stays");
    leaves.iter().for_each(|&leaf| branches.prune(leaf));
    let (_, again, expanded) = with_leaves(&mut branches);
    assert_eq!(again, pages, "the sibling continues in the same page, which was never free");
    assert_eq!(expanded, 14, "the slots of that page");
}

#[test]
fn no_copy_outlives_what_it_was_made_of() {
    let (mut items, mut evicted) = (0, 0);
    for seed in 0..20 {
        let mut dice = Dice::new(seed);
        let mut branches = Branches::new(4000, dice.pick(&[3, 12, 400]));
        let trunk = branches.tree.admit(&mut branches.pool, &text(&mut dice, 1, 90)).unwrap();
        let mut leaves = vec![branches.child(trunk, &text(&mut dice, 1, 9))];
        for _ in 0..120 {
            let at = dice.below(leaves.len());
            match dice.within(0, 5) {
                0 if leaves.len() > 1 => {
                    let leaf = leaves.swap_remove(at);
                    branches.prune(leaf);
                }
                // A leaf becomes a shared segment.
                1 => {
                    let above = leaves.swap_remove(at);
                    let count = dice.within(2, 4);
                    leaves.extend((0..count).map(|_| branches.child(above, &text(&mut dice, 1, 9))));
                    branches.tree.release(above);
                }
                // One that parts from it inside of what is computed.
                2 => {
                    let position = dice.within(1, branches.tree.end(leaves[at]) - 1);
                    let part = branches.tree.fork_at(&mut branches.pool, leaves[at], position);
                    branches.append(part, &text(&mut dice, 1, 9));
                    leaves.push(part);
                }
                3 => _ = branches.tree.evict(&mut branches.pool, 3),
                _ => branches.append(leaves[at], &text(&mut dice, 1, 9)),
            }
            branches.tree.check_integrity(&branches.pool).unwrap();
            branches.step(&leaves);
        }
        items += branches.items;
        evicted += branches.cache.evicted;
    }
    assert!(items > 500 && evicted > 20, "{items} items read copies, {evicted} copies were given up");
}
