//! An attention plan as the kernels read it: flat words, built on the host whenever the topology changes (`tiling`, `encode`)
//! and good for as long as every row moves on by a token a step. While pages have room nothing changes; a row that turns a page
//! has places reserved for it, so that a few words change where they lie, and addresses and grids stay. The kernels' side of the
//! layout is `kernels/attention/plan.cuh`; buffers and launches are `attention`'s.

use std::ops::Range;

use super::tiling::{self, Scratch};
use crate::backend::HeadLayout;
use crate::plan::{AttentionPlan, NewPage};

/// Slots of a page: a piece is what an item holds of one page.
pub const PIECE_TOKENS: u32 = 32;
/// Words of the header, of a tile and of a piece.
pub const HEADER_WORDS: usize = 16;
pub const TILE_WORDS: usize = 16;
pub const PIECE_WORDS: usize = 2;
/// Words of a tile before its first pieces, and how many of those stand there: who reads a tile need not look for them.
pub const TILE_FIELDS: usize = 8;
pub const TILE_PIECES: usize = (TILE_WORDS - TILE_FIELDS) / PIECE_WORDS;

/// Words of the header, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanWord {
    WideTiles,
    NarrowTiles,
    WideAt,
    NarrowAt,
    PiecesAt,
    MergeAt,
    StatesAt,
    PartialSlots,
    Window,
    WideTicket,
    NarrowTicket,
    EndedBlocks,
    LeftBlocks,
    Rows,
    NarrowHeads,
    FirstPosition,
}

/// What the device's blocks compute at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Most packed rows of a narrow tile.
    pub narrow_rows: usize,
    /// Most packed rows of a wide tile; `None` where all tiles are narrow.
    pub wide_rows: Option<usize>,
    pub workers: Workers,
    /// Partial slots that a plan may fill: where it would fill more, long items are divided less. What that leaves may still be more:
    /// items themselves are never joined.
    pub most_slots: usize,
}

/// Who takes the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// So many blocks at a time, of which each takes wide tiles, then narrow ones.
    Alike(usize),
    /// So many blocks, of which each takes wide tiles. Beside them, [`DECODE_WARPS`] warps of each take narrow ones and nothing
    /// else; the others help, where nothing wide is left.
    Apart(usize),
}

/// As in kernels/attention/stream.cuh.
pub const DECODE_WARPS: usize = 4;
/// Of a block, with those that help: the HELPERS of kernels/attention/tree_attention_wgmma.cu.
pub const NARROW_WARPS: usize = DECODE_WARPS + 8;

impl Tiling {
    /// Whether a tile of so many packed rows is wide.
    pub(super) fn is_wide(&self, packed: usize) -> bool {
        self.wide_rows.is_some() && packed > self.narrow_rows
    }

    pub(super) fn most_rows(&self) -> usize {
        self.wide_rows.unwrap_or(self.narrow_rows)
    }
}

/// See the module's head.
#[derive(Default)]
pub struct DevicePlan {
    pub(super) words: Vec<u32>,
    pub(super) partial_slots: usize,
    /// Of each row, if all grow.
    pub(super) growing: Vec<Growing>,
    /// Where the tiles are that end with each growing row: `tiles_a_row` each.
    pub(super) last_tiles: Vec<u32>,
    pub(super) tiles_a_row: usize,
    /// Of a plan whose tiles are not divided: their positions. A row then has one state a tile, whatever the others are, and
    /// pages that segments share make one piece, so that the deterministic kernels give it the same bits.
    undivided: Option<u32>,
    scratch: Scratch,
}

/// The pieces of an item that ends with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growing {
    /// Where the words of its next piece go.
    pub next_piece: u32,
    /// Places for pieces that are left there.
    pub room: u32,
}

impl DevicePlan {
    /// The words of `plan` for `rows_padded` rows, of which those behind the plan's own get an empty merge list. Panics when
    /// the plan's pages are not of [`PIECE_TOKENS`] slots.
    pub fn build(plan: &AttentionPlan, heads: HeadLayout, rows_padded: usize, tiling: &Tiling) -> DevicePlan {
        let mut made = DevicePlan::default();
        made.rebuild(plan, heads, rows_padded, tiling);
        made
    }

    /// The same in the memory of an earlier plan.
    pub fn rebuild(&mut self, plan: &AttentionPlan, heads: HeadLayout, rows_padded: usize, tiling: &Tiling) {
        assert_eq!(plan.page_tokens, PIECE_TOKENS, "pages of a device plan");
        assert!(rows_padded >= plan.row_positions.len(), "{rows_padded} rows do not hold the plan's");
        self.undivided = (plan.tile > 1).then_some(plan.tile);
        let mut scratch = std::mem::take(&mut self.scratch);
        tiling::cut(self, &mut scratch, plan, heads, rows_padded, tiling);
        self.scratch = scratch;
    }

    /// To be uploaded at an address that is a multiple of 16 bytes.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Partial states that the step writes, each of all query heads of a row.
    pub fn partial_slots(&self) -> usize {
        self.partial_slots
    }

    /// Whether the rows of `plan`, the plan that these words were made for and that has moved on, see other tiles than before:
    /// whole ones are listed by what a row sees, so that words must be made anew.
    pub fn leaves_tiles(&self, plan: &AttentionPlan) -> bool {
        let (Some(tile), Some(window)) = (self.undivided, plan.window) else { return false };
        let leaves = |&at: &u32| at >= window && first_seen(at, window).is_multiple_of(tile);
        plan.row_positions.iter().any(leaves)
    }

    /// Follows `AttentionPlan::advance` by `new_pages`, and says which of the words have changed. `None`, and nothing is changed,
    /// where a row has no place left for a piece, or begins a tile that is not divided: words must be made anew then.
    pub fn advance(&mut self, new_pages: &[NewPage]) -> Option<Range<usize>> {
        let stuck = |new_page: &NewPage| {
            let Growing { next_piece, room } = self.growing[new_page.row as usize];
            let base = base_of(self.words[next_piece as usize - 1]) + PIECE_TOKENS;
            room == 0 || self.undivided.is_some_and(|undivided| base.is_multiple_of(undivided))
        };
        if new_pages.iter().any(stuck) {
            return None;
        }
        let mut changed: Option<Range<usize>> = None;
        let mut touch = |words: Range<usize>| {
            let before = changed.take().unwrap_or(words.clone());
            changed = Some(before.start.min(words.start)..before.end.max(words.end));
        };
        for &NewPage { row, page } in new_pages {
            let row = row as usize;
            let Growing { next_piece, room } = &mut self.growing[row];
            let at = *next_piece as usize;
            let base = base_of(self.words[at - 1]) + PIECE_TOKENS;
            let piece = piece_words(page.0, base, 0..PIECE_TOKENS);
            self.words[at..at + PIECE_WORDS].copy_from_slice(&piece);
            touch(at..at + PIECE_WORDS);
            *next_piece += PIECE_WORDS as u32;
            *room -= 1;
            for &tile in &self.last_tiles[row * self.tiles_a_row..][..self.tiles_a_row] {
                let words = tile as usize..tile as usize + TILE_WORDS;
                let tile = &mut self.words[words.clone()];
                let pieces = tile[TILE_COUNT] as usize;
                if pieces < TILE_PIECES {
                    tile[TILE_FIELDS + pieces * PIECE_WORDS..][..PIECE_WORDS].copy_from_slice(&piece);
                }
                tile[TILE_COUNT] += 1;
                touch(words);
            }
        }
        Some(changed.unwrap_or(0..0))
    }
}

/// The word of a tile that counts its pieces.
const TILE_COUNT: usize = 3;

/// Slots `slots` of a page, which hold the positions `base ..`.
fn piece_words(page: u32, base: u32, slots: Range<u32>) -> [u32; PIECE_WORDS] {
    [page, place_word(base, slots)]
}

/// The second word of a piece.
pub(super) fn place_word(base: u32, slots: Range<u32>) -> u32 {
    (base / PIECE_TOKENS) << 12 | slots.start << 6 | slots.end
}

/// By how much the second word of a piece is more than that of the one before it, of the same slots.
pub(super) const NEXT_PLACE: u32 = 1 << 12;

/// The first position that a row at `at` sees.
pub(super) fn first_seen(at: u32, window: u32) -> u32 {
    (at + 1).saturating_sub(window)
}

/// The position of slot 0, of the second word of a piece.
pub(super) fn base_of(piece: u32) -> u32 {
    (piece >> 12) * PIECE_TOKENS
}
