//! The tiles of a plan. A row tile is the rows of one item that a thread block computes at a time; an attention tile is
//! a row tile and a range of its KV blocks, so that long items are shared by many thread blocks. `tiling` makes row
//! tiles; `encode` writes tiles.

use std::ops::Range;

use super::layout::{KV_BLOCK_WORDS, word};
use super::split_kv::ListLength;

/// Facts shared by the row tiles of one item.
#[derive(Clone)]
pub struct SplitItem {
    pub kv_blocks: Range<u32>,
    /// How many of them, the last ones, weigh more as only one row reads them (`split_kv`); 0 where that is not
    /// weighed.
    pub own: u32,
    /// Number of row tiles of the item; set in the first of them.
    pub row_tiles: u32,
    pub wide: bool,
    /// Whether it ends with a row that grows.
    pub grows: bool,
}

impl SplitItem {
    /// `None`: each KV block weighs the same.
    fn list(&self) -> Option<ListLength> {
        let own = self.own as usize;
        (own > 0).then(|| ListLength { all: self.kv_blocks.len() - own, own })
    }
}

/// Whole rows of an item, or a part of one row where its head group is larger than a tile, and the KV blocks that at
/// least one of these rows sees.
pub struct RowTile {
    pub item: SplitItem,
    pub rows: Range<u32>,
    /// Packed rows.
    pub first: u32,
    pub packed: u32,
    /// The smallest and the largest position of the rows.
    pub lowest: u32,
    pub highest: u32,
    pub kv_blocks: Range<u32>,
    pub wide: bool,
    pub part: TilePart,
    /// Whether it is the first row tile of its rows; false for the further parts of a row larger than a tile.
    pub begins_rows: bool,
}

/// Which steps of its first tile of the plan a row tile has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TilePart {
    Whole,
    /// The first ones, for all rows that see the same keys there. A rest goes on from each of its states.
    Opening,
    /// The steps behind an opening. Only the first tile of an item can be a rest; its others are whole.
    Rest,
}

/// A row tile and a range of its KV blocks.
pub struct AttentionTile<'a> {
    pub row_tile: &'a RowTile,
    pub kv_blocks: Range<u32>,
    /// Whether it ends with a row that grows.
    pub grows: bool,
}

impl AttentionTile<'_> {
    pub fn is_opening(&self) -> bool {
        self.row_tile.part == TilePart::Opening
    }

    /// Whether its states go on from those of an opening.
    pub fn continues(&self) -> bool {
        self.row_tile.part == TilePart::Rest && self.kv_blocks.start == self.row_tile.kv_blocks.start
    }
}

/// The most KV blocks of a tile.
#[derive(Clone, Copy)]
pub enum SplitLimit {
    /// Whole tiles of the plan: items, which begin at one, are split at its multiples.
    Tiles(usize),
    /// Longer items are split evenly, behind whole steps of so many KV blocks.
    KvBlocks { wide: usize, narrow: usize, step: usize },
}

impl SplitLimit {
    /// The next limit, by which items are split less; `None` if none is split, or if splits are at fixed positions.
    pub fn coarser(self, row_tiles: &[RowTile]) -> Option<Self> {
        let SplitLimit::KvBlocks { wide, narrow, step } = self else { return None };
        let is_divided = |row_tile: &RowTile| self.splits(&row_tile.item) > 1;
        row_tiles.iter().any(is_divided).then(|| SplitLimit::KvBlocks {
            wide: 2 * wide.max(1),
            narrow: 2 * narrow.max(1),
            step,
        })
    }

    /// Number of splits of an item.
    fn splits(self, item: &SplitItem) -> usize {
        let most = match self {
            SplitLimit::Tiles(most) => most,
            SplitLimit::KvBlocks { wide, .. } if item.wide => wide,
            SplitLimit::KvBlocks { narrow, .. } => narrow,
        };
        match item.list() {
            Some(list) => list.splits(most),
            None if item.kv_blocks.len() <= most => 1,
            None => item.kv_blocks.len().div_ceil(most),
        }
    }

    /// The KV block at which split number `split` (from 1) of `splits` ends.
    fn split_end(self, item: &SplitItem, split: usize, splits: usize) -> u32 {
        if split == splits {
            return item.kv_blocks.end;
        }
        let before = match (self, item.list()) {
            (_, Some(list)) => list.split_end(split, splits),
            (SplitLimit::Tiles(most), None) => split * most,
            (SplitLimit::KvBlocks { step, .. }, None) => item.kv_blocks.len().div_ceil(step) * split / splits * step,
        };
        item.kv_blocks.start + word(before)
    }
}

/// Calls `emit` for each row tile of each split that contains a KV block it sees; ordered by item, then KV block, then
/// row.
pub fn for_each_tile<'a>(row_tiles: &'a [RowTile], limit: SplitLimit, mut emit: impl FnMut(AttentionTile<'a>)) {
    let mut rest = row_tiles;
    while let [RowTile { item, .. }, ..] = rest {
        let (of_item, others) = rest.split_at(item.row_tiles as usize);
        rest = others;
        let (splits, mut from) = (limit.splits(item), item.kv_blocks.start);
        for split in 1..=splits {
            let to = limit.split_end(item, split, splits);
            assert!(splits == 1 || from < to, "split {split} of {splits} of {:?} ends at {to}", item.kv_blocks);
            for row_tile in of_item {
                let kv_blocks = row_tile.kv_blocks.start.max(from)..row_tile.kv_blocks.end.min(to);
                if !kv_blocks.is_empty() {
                    emit(AttentionTile { row_tile, kv_blocks, grows: item.grows && split == splits });
                }
            }
            from = to;
        }
    }
}

/// The first steps of the tiles with which some neighbouring items begin.
pub(super) struct Opening {
    pub items: Range<usize>,
    /// The rows of all the items.
    pub rows: Range<u32>,
    /// Number of KV blocks, in whole steps.
    pub kv_blocks: u32,
}

/// Memory for building a plan, reused by the next one.
#[derive(Default)]
pub(super) struct TilingScratch {
    /// Row tiles by item, then row.
    pub row_tiles: Vec<RowTile>,
    /// For each row the difference of its number of tiles to the row before it (wrapping); later the offset of its list
    /// of states, and the end of the last list.
    pub merge: Vec<u32>,
    /// For each row the offset of its next state to write.
    pub next_state: Vec<u32>,
    /// For each row the number of leading states that its window has passed.
    pub unseen: Vec<u32>,
    /// For openings, other wide tiles and narrow ones the number of tiles by KV blocks; later the index of the next
    /// tile of each length.
    pub places: [Vec<u32>; 3],
    /// In the order of items.
    pub openings: Vec<Opening>,
    /// In the order of their KV blocks.
    pub shared: Vec<SharedKvBlock>,
}

/// A KV block of several pages.
pub(super) struct SharedKvBlock {
    /// Offset of its words.
    pub kv_block: usize,
    /// The words of each sub-block, by rising slots.
    pub sub_blocks: Vec<[u32; KV_BLOCK_WORDS]>,
}
