//! What is made of a plan's items on the way to its words: cuts, which are rows of an item that a block computes at a time, and
//! tiles, which are cuts or parts of them, so that long items have enough for all. Who makes cuts is `tiling`; who writes tiles
//! is `encode`.

use std::ops::Range;

use super::tiling::word;

/// What the cuts of an item have in common.
#[derive(Clone)]
pub struct Item {
    pub pieces: Range<u32>,
    /// How many cuts it has, where they begin.
    pub cuts: u32,
    pub wide: bool,
    /// Whether it ends with a row that grows.
    pub grows: bool,
}

/// Whole rows of an item, or a part of one where a group is larger than a tile, and all pieces of it of which some of the rows
/// see something.
pub struct Cut {
    pub item: Item,
    pub rows: Range<u32>,
    /// Packed.
    pub first: u32,
    pub packed: u32,
    /// The smallest and the largest position of the rows.
    pub lowest: u32,
    pub highest: u32,
    pub pieces: Range<u32>,
    pub wide: bool,
    /// Whether it is the first of its rows; a row of which a cut holds a part has others beside it.
    pub begins_rows: bool,
}

/// A cut, or a part of its pieces.
pub struct Tile<'a> {
    pub cut: &'a Cut,
    pub pieces: Range<u32>,
    /// Whether it ends with a row that grows.
    pub grows: bool,
}

/// Pieces that a tile has at most.
#[derive(Clone, Copy)]
pub enum SplitLimit {
    /// As in a tile of the plan: items, which begin where one does, break at its multiples.
    Tiles(usize),
    /// Items of more are divided evenly.
    Pieces { wide: usize, narrow: usize },
}

impl SplitLimit {
    /// The next limit by which items are divided less; `None` where none is divided, or they break where rows need them to.
    pub fn coarser(self, cuts: &[Cut]) -> Option<Self> {
        let SplitLimit::Pieces { wide, narrow } = self else { return None };
        let is_divided = |cut: &Cut| self.parts(&cut.item) > 1;
        cuts.iter().any(is_divided).then(|| SplitLimit::Pieces { wide: 2 * wide.max(1), narrow: 2 * narrow.max(1) })
    }

    /// How many parts an item has, of which each is divided from the next at a border.
    fn parts(self, item: &Item) -> usize {
        let most = match self {
            SplitLimit::Tiles(most) => most,
            SplitLimit::Pieces { wide, .. } if item.wide => wide,
            SplitLimit::Pieces { narrow, .. } => narrow,
        };
        if item.pieces.len() <= most { 1 } else { item.pieces.len().div_ceil(most) }
    }

    /// Where the first `part` of so many parts end.
    fn border(self, item: &Item, part: usize, parts: usize) -> u32 {
        if part == parts {
            return item.pieces.end;
        }
        let pieces = item.pieces.len();
        let before = match self {
            SplitLimit::Tiles(most) => part * most,
            SplitLimit::Pieces { .. } => pieces * part / parts,
        };
        item.pieces.start + word(before)
    }
}

/// Tells of each cut of each part of an item in which it sees something, by item, then piece, then row.
pub fn for_each_tile<'a>(cuts: &'a [Cut], limit: SplitLimit, mut tell: impl FnMut(Tile<'a>)) {
    let mut rest = cuts;
    while let [Cut { item, .. }, ..] = rest {
        let (of_item, others) = rest.split_at(item.cuts as usize);
        rest = others;
        let (parts, mut from) = (limit.parts(item), item.pieces.start);
        for part in 1..=parts {
            let to = limit.border(item, part, parts);
            for cut in of_item {
                let pieces = cut.pieces.start.max(from)..cut.pieces.end.min(to);
                if !pieces.is_empty() {
                    tell(Tile { cut, pieces, grows: item.grows && part == parts });
                }
            }
            from = to;
        }
    }
}
