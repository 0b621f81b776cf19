//! Puts leaves of one row each into tiles of several rows, which the kernel of latents multiplies at once however few
//! of them are filled. Leaves of neighbouring rows below one root share a tile whose KV blocks name the row that reads
//! them. Where they follow an item of exactly their rows, its row tiles may end with them: a row then has one state
//! less. A latent that is infinite or not a number makes the results of all rows of its tile so: rows that have no
//! keys in common have none of these tiles in common. `split_kv` has the model of time that decides.

use std::ops::Range;

use super::builder::PlanBuilder;
use super::layout::{KV_BLOCK_WORDS, READER_SHIFT, Readers, STEP_KV_BLOCKS, Workers, kv_block_at, word};
use super::split_kv::{ListEnd, ListLength, ListLimit, ListWorkload};
use super::tiles::{RowTile, SplitItem, SplitLimit, TilePart};
use super::tiling::{SPARE_KV_BLOCKS, outermost};
use offshoot_core::ids::PageId;
use offshoot_kv::plan::{AttentionPlan, WorkItem};

/// Most KV blocks of an item that are listed again for each of its row tiles. Leaves take little beside longer ones.
const MOST_REPEATED_KV_BLOCKS: usize = 512;

/// Leaves share tiles where that spares at least 1/32 of the modelled time.
const LEAST_GAIN: usize = 32;

/// How leaves of one row each are put into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafTiles {
    /// Most leaves of a tile that has nothing else, at least 1. More than a tile holds count as many as it holds.
    pub leaves: u32,
    /// Whether row tiles of an item end with the leaves of its rows.
    pub joins: bool,
}

impl LeafTiles {
    /// Each leaf has tiles of its own.
    pub const ALONE: LeafTiles = LeafTiles { leaves: 1, joins: false };
}

/// Items, by their indices, whose KV blocks are listed together.
#[derive(Clone, Debug, PartialEq, Eq)]
enum List {
    /// An item whose row tiles all read the list.
    Item(usize),
    /// The list of one tile: the item that all of its rows read, if there is one, then the leaf of each row.
    Leaves { shared: Option<usize>, leaves: Range<usize> },
}

impl PlanBuilder<'_> {
    /// The blocks of the kernel, if several leaves may have one of its tiles.
    pub fn may_share_tiles(&self) -> Option<usize> {
        let Workers::LatentBlocks(blocks) = self.tiling.workers else { return None };
        let is_plain = !self.keeps_tiles && !self.output.is_of_member() && self.plan.window.is_none();
        (self.rows_a_tile > 1 && is_plain && self.plan.can_advance()).then_some(blocks)
    }

    /// The most KV blocks of tiles, where leaves have these.
    pub fn limit_of_lists(&self, leaf_tiles: LeafTiles, blocks: usize) -> SplitLimit {
        let ListLimit { weight, .. } = self.work_of(leaf_tiles, blocks).best_limit();
        SplitLimit::KvBlocks { wide: weight, narrow: STEP_KV_BLOCKS, step: STEP_KV_BLOCKS }
    }

    /// The leaves' tiles with which a step ends first, by the model of `split_kv`; the simplest of those that differ
    /// little.
    pub fn fastest_leaf_tiles(&self, blocks: usize) -> LeafTiles {
        let time = |leaf_tiles: LeafTiles| self.work_of(leaf_tiles, blocks).best_limit().time;
        let mut best = (LeafTiles::ALONE, time(LeafTiles::ALONE));
        let mut consider = |leaf_tiles: LeafTiles| {
            let time = time(leaf_tiles);
            if time * LEAST_GAIN < best.1 * (LEAST_GAIN - 1) {
                best = (leaf_tiles, time);
            }
            best.0
        };
        let mut packed = LeafTiles::ALONE;
        for leaves in 2..=self.most_readers() {
            packed = consider(LeafTiles { leaves, joins: false });
        }
        consider(LeafTiles { joins: true, ..packed })
    }

    /// The lists of a step whose leaves have such tiles.
    fn work_of(&self, leaf_tiles: LeafTiles, blocks: usize) -> ListWorkload {
        let (plan, group) = (self.plan, self.group as usize);
        let kv_blocks = |items: &[WorkItem]| items.iter().map(|item| kv_blocks_of(plan, item)).sum::<usize>();
        let mut work = ListWorkload::new(blocks);
        self.for_each_list(leaf_tiles, |list| match list {
            List::Item(item) => {
                let (rows, most) = (plan.items[item].rows.len(), self.rows_a_tile as usize);
                let end = ListEnd { packed: rows.min(most) * group, is_only: false };
                let length = ListLength { all: kv_blocks(&plan.items[item..=item]), own: 0 };
                work.add(rows.div_ceil(most), length, end);
            }
            List::Leaves { shared, leaves } => {
                let all = shared.map_or(0, |shared| kv_blocks(&plan.items[shared..=shared]));
                let leaves = &plan.items[leaves];
                let of_row = &plan.merge.offsets[leaves[0].rows.start as usize..][..2];
                let is_only = of_row[1] - of_row[0] == if shared.is_some() { 2 } else { 1 };
                let length = ListLength { all, own: kv_blocks(leaves) };
                work.add(1, length, ListEnd { packed: leaves.len() * group, is_only });
            }
        });
        work
    }

    /// Lists the KV blocks and row tiles of all items.
    pub fn tile_lists(&mut self, leaf_tiles: LeafTiles) {
        let plan = self.plan;
        let mut most_kv_blocks = plan.growing.len() * SPARE_KV_BLOCKS;
        self.for_each_list(leaf_tiles, |list| {
            let (shared, leaves) = match list {
                List::Item(item) => (Some(item), 0..0),
                List::Leaves { shared, leaves } => (shared, leaves),
            };
            let items = shared.into_iter().chain(leaves);
            most_kv_blocks += items.map(|item| kv_blocks_of(plan, &plan.items[item])).sum::<usize>();
        });
        self.clear_lists(most_kv_blocks);
        // The item that was listed last for rows with leaves, and its KV blocks.
        let mut listed = None;
        let mut lists = Vec::new();
        self.for_each_list(leaf_tiles, |list| lists.push(list));
        for list in lists {
            let first = self.kv_blocks;
            match list {
                List::Item(item) => {
                    let item = &plan.items[item];
                    self.list_item(item);
                    self.tile_rows(&item.rows, first..self.kv_blocks, TilePart::Whole, false);
                }
                List::Leaves { shared, leaves } => {
                    if let Some(shared) = shared {
                        match listed.take().filter(|(item, _)| *item == shared) {
                            Some((_, kv_blocks)) => self.list_again(&kv_blocks),
                            None => self.list_item(&plan.items[shared]),
                        }
                        listed = Some((shared, first..self.kv_blocks));
                    }
                    self.end_with_leaves(first, &plan.items[leaves]);
                }
            }
        }
    }

    /// Calls `emit` for each list, in the order of items.
    fn for_each_list(&self, leaf_tiles: LeafTiles, mut emit: impl FnMut(List)) {
        let plan = self.plan;
        let most = leaf_tiles.leaves.min(self.most_readers());
        let mut next = 0;
        while let Some(item) = plan.items.get(next) {
            if is_leaf(plan, item) {
                let end = next + leaves_from(plan, next);
                for leaves in parts(next..end, most) {
                    emit(List::Leaves { shared: None, leaves });
                }
                next = end;
                continue;
            }
            let leaves = next + 1..next + 1 + item.rows.len();
            let joins = leaf_tiles.joins
                && has_leaves(plan, item, leaves.clone())
                && kv_blocks_of(plan, item) <= MOST_REPEATED_KV_BLOCKS;
            if joins {
                for leaves in parts(leaves.clone(), self.most_readers()) {
                    emit(List::Leaves { shared: Some(next), leaves });
                }
                next = leaves.end;
            } else {
                emit(List::Item(next));
                next += 1;
            }
        }
    }

    /// Most leaves of a tile.
    fn most_readers(&self) -> u32 {
        self.rows_a_tile.min(Readers::MOST)
    }

    /// Lists the KV blocks of an item none of whose spans grows.
    fn list_item(&mut self, item: &WorkItem) {
        for span in &self.plan.spans[item.spans.start as usize..item.spans.end as usize] {
            self.list_kv_blocks(span, false, false);
        }
    }

    /// Lists KV blocks once more.
    fn list_again(&mut self, kv_blocks: &Range<u32>) {
        let words = kv_block_at(kv_blocks.start)..kv_block_at(kv_blocks.end);
        self.output.words.copy_within(words, kv_block_at(self.kv_blocks));
        self.kv_blocks += kv_blocks.end - kv_blocks.start;
    }

    /// Ends the list of KV blocks from `first` on, which all rows of a tile read, with the leaves of these rows.
    /// Blocks for their next pages follow those of all leaves.
    fn end_with_leaves(&mut self, first: u32, leaves: &[WorkItem]) {
        let own_from = self.kv_blocks;
        for (number, leaf) in (0..).zip(leaves) {
            let readers = if leaves.len() == 1 { Readers::All } else { Readers::One(number) };
            let from = kv_block_at(self.kv_blocks);
            for span in leaf.spans.clone() {
                self.list_kv_blocks(&self.plan.spans[span as usize], span + 1 == leaf.spans.end, false);
            }
            for page in self.output.words[from..kv_block_at(self.kv_blocks)].iter_mut().step_by(KV_BLOCK_WORDS) {
                assert_eq!(*page >> READER_SHIFT, 0, "page {page} is among too many to name a reader beside it");
                *page |= readers.bits();
            }
            self.grow_from(readers);
        }
        let kv_blocks = first..self.kv_blocks;
        self.reserve_kv_blocks(leaves.len());
        let rows = leaves.first().map_or(0, |leaf| leaf.rows.start)..leaves.last().map_or(0, |leaf| leaf.rows.end);
        let (lowest, highest) = outermost(&self.plan.row_positions[rows.start as usize..rows.end as usize]);
        let packed = word(rows.len()) * self.group;
        let wide = self.tiling.is_wide(packed as usize);
        let own = kv_blocks.end - own_from;
        self.scratch.row_tiles.push(RowTile {
            item: SplitItem { kv_blocks: kv_blocks.clone(), own, row_tiles: 1, wide, grows: true },
            first: rows.start * self.group,
            rows,
            packed,
            lowest,
            highest,
            kv_blocks,
            wide,
            part: TilePart::Whole,
            begins_rows: true,
        });
    }
}

/// The item that ends with a row's growing span; requires that all rows grow.
fn is_leaf(plan: &AttentionPlan, item: &WorkItem) -> bool {
    item.rows.len() == 1 && plan.growing[item.rows.start as usize].span + 1 == item.spans.end
}

/// Number of leaves from this one on, of adjoining rows below one root.
fn leaves_from(plan: &AttentionPlan, first: usize) -> usize {
    let (items, rows, root) = (&plan.items[first..], plan.items[first].rows.start.., root_in(plan, &plan.items[first]));
    items
        .iter()
        .zip(rows)
        .take_while(|(item, row)| item.rows.start == *row && is_leaf(plan, item) && root_in(plan, item) == root)
        .count()
}

/// The page of the first position, if the item has that; else its root has an item before it. Items are in depth-first
/// order, so that adjoining items without the first position are below the same root.
fn root_in(plan: &AttentionPlan, item: &WorkItem) -> Option<PageId> {
    let first = &plan.spans[item.spans.start as usize];
    (first.first_position == 0).then(|| plan.pages[first.pages.start as usize])
}

/// Whether these items are the leaves of all rows of `item`.
fn has_leaves(plan: &AttentionPlan, item: &WorkItem, leaves: Range<usize>) -> bool {
    let Some(leaves) = plan.items.get(leaves) else { return false };
    leaves.iter().zip(item.rows.clone()).all(|(leaf, row)| leaf.rows.start == row && is_leaf(plan, leaf))
}

/// KV blocks of an item of a plan without a window.
fn kv_blocks_of(plan: &AttentionPlan, item: &WorkItem) -> usize {
    plan.spans[item.spans.start as usize..item.spans.end as usize].iter().map(|span| span.pages.len()).sum()
}

/// Divides items into parts of at most `most`, whose sizes differ by one at most.
fn parts(items: Range<usize>, most: u32) -> impl Iterator<Item = Range<usize>> {
    let count = items.len().div_ceil(most as usize);
    let from = move |part: usize| items.start + items.len() * part / count;
    (0..count).map(move |part| from(part)..from(part + 1))
}
