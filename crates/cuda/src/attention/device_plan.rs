//! An attention plan as the kernels read it: flat words, built on the host when the tree changes (`tiling`, `encode`)
//! and valid while every row moves one token a step. While pages have room, no word changes; for a row that starts a
//! new page a few reserved words are filled in place, so addresses and grids stay. `kernels/attention/plan.cuh` defines
//! the kernels' side of the layout; `attention` owns buffers and launches.

use std::ops::Range;

use super::tiling::{self, TilingScratch};
use offshoot_backend::HeadLayout;
use offshoot_kv::plan::{AttentionPlan, Member, NewPage};

/// Slots of a page. A KV block is the part of one page that an item reads.
pub const KV_BLOCK_TOKENS: u32 = 32;
/// Words of the header, of which some are unused so that what follows begins at a cache line, of a tile and of a KV block.
pub const HEADER_WORDS: usize = 32;
pub const TILE_WORDS: usize = 16;
pub const KV_BLOCK_WORDS: usize = 2;
/// Words of a tile before its first KV blocks, and how many KV blocks are inlined there to save a lookup.
pub const TILE_FIELDS: usize = 8;
pub const TILE_KV_BLOCKS: usize = (TILE_WORDS - TILE_FIELDS) / KV_BLOCK_WORDS;

/// Words of the header, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanWord {
    WideTiles,
    NarrowTiles,
    WideAt,
    NarrowAt,
    KvBlocksAt,
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
    OpeningRows,
    OpenedRows,
}

/// The tile sizes of a device's kernels, and the workers that compute tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Most packed rows of a narrow tile.
    pub narrow_rows: usize,
    /// Most packed rows of a wide tile; `None` if all tiles are narrow.
    pub wide_rows: Option<usize>,
    pub workers: Workers,
    /// Most partial slots of a plan: if more would be filled, long items are split less. The plan may still fill more,
    /// because items are never joined.
    pub most_slots: usize,
    /// Openings are made if they spare each worker of wide tiles as many steps (`tiling`); `None`: never. Needs kernels
    /// that have no narrow tiles.
    pub openings_spare: Option<usize>,
}

/// The workers that compute tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// This many resident blocks; each computes wide tiles, then narrow ones.
    Blocks(usize),
    /// This many blocks, which compute wide tiles, while [`DECODE_WARPS`] warps of each compute narrow tiles only. The
    /// other warps help once no wide tile is left.
    BlocksAndDecodeWarps(usize),
    /// This many blocks compute wide tiles; then so many teams of warps of each compute narrow ones.
    BlocksThenTeams { blocks: usize, teams: usize },
}

/// As in kernels/attention/stream.cuh.
pub const DECODE_WARPS: usize = 4;
/// Warps of a block that compute narrow tiles, helpers included: HELPERS of
/// kernels/attention/tree_attention_wgmma.cu.
pub const NARROW_WARPS: usize = DECODE_WARPS + 8;

impl Tiling {
    /// Whether a tile of `rows` packed rows is wide.
    pub(super) fn is_wide(&self, packed: usize) -> bool {
        self.wide_rows.is_some() && packed > self.narrow_rows
    }

    pub(super) fn most_rows(&self) -> usize {
        self.wide_rows.unwrap_or(self.narrow_rows)
    }
}

/// Who has all positions.
pub const WHOLE: Member = Member { number: 0, of: 1, page_tokens: KV_BLOCK_TOKENS };

/// See the module's docs.
pub struct DevicePlan {
    /// Whose KV blocks it has. Positions are those of all, so rows mask and advance as they do alone; but no row's state
    /// is final, so all states are partial ones, and the kernels merge none of them.
    pub(super) member: Member,
    pub(super) words: Vec<u32>,
    pub(super) partial_slots: usize,
    /// One for each row, if all rows grow.
    pub(super) append_points: Vec<AppendPoint>,
    /// Offsets of the tiles that end with each growing row: `tiles_a_row` each.
    pub(super) last_tiles: Vec<u32>,
    pub(super) tiles_a_row: usize,
    /// Positions per tile of a deterministic plan. A row then has one state per tile, whatever the other rows are, and
    /// a page shared by segments is one KV block, so that the row's bits never change.
    undivided: Option<u32>,
    scratch: TilingScratch,
}

/// The KV blocks of an item that ends with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AppendPoint {
    /// Offset of the words of its next KV block.
    pub next_kv_block: u32,
    /// Number of reserved KV blocks left there.
    pub room: u32,
}

impl Default for DevicePlan {
    fn default() -> Self {
        DevicePlan::of_member(WHOLE)
    }
}

impl DevicePlan {
    /// A plan without words for one of several devices, each of which stores [`KV_BLOCK_TOKENS`] slots of a page.
    pub fn of_member(member: Member) -> Self {
        assert_eq!(member.page_tokens, KV_BLOCK_TOKENS, "pages of a device plan");
        Self {
            member,
            words: Vec::new(),
            partial_slots: 0,
            append_points: Vec::new(),
            last_tiles: Vec::new(),
            tiles_a_row: 0,
            undivided: None,
            scratch: TilingScratch::default(),
        }
    }

    /// Whether states are merged with those of other devices.
    pub(super) fn is_of_member(&self) -> bool {
        self.member.of > 1
    }

    /// The words of `plan` for `rows_padded` rows; padded rows get an empty merge list. Panics if the plan's pages do
    /// not have [`KV_BLOCK_TOKENS`] slots, for each member.
    pub fn build(plan: &AttentionPlan, heads: HeadLayout, rows_padded: usize, tiling: &Tiling) -> DevicePlan {
        let mut output = DevicePlan::default();
        output.rebuild(plan, heads, rows_padded, tiling);
        output
    }

    /// The same, reusing the memory of an earlier plan.
    pub fn rebuild(&mut self, plan: &AttentionPlan, heads: HeadLayout, rows_padded: usize, tiling: &Tiling) {
        assert_eq!(plan.page_tokens, self.member.of * KV_BLOCK_TOKENS, "pages of a device plan");
        assert!(plan.tile == 1 || !self.is_of_member(), "where members divide a tile, bits would depend on them");
        assert!(rows_padded >= plan.row_positions.len(), "{rows_padded} rows do not hold the plan's");
        self.undivided = (plan.tile > 1).then_some(plan.tile);
        let mut scratch = std::mem::take(&mut self.scratch);
        tiling::build(self, &mut scratch, plan, heads, rows_padded, tiling);
        self.scratch = scratch;
    }

    /// The words; their device address must be a multiple of 16 bytes.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Number of partial states that the step writes, each of all query heads of a row.
    pub fn partial_slots(&self) -> usize {
        self.partial_slots
    }

    /// Whether rows of `plan`, the advanced plan of these words, now see other tiles. If tiles are whole, the words
    /// must then be rebuilt.
    pub fn leaves_tiles(&self, plan: &AttentionPlan) -> bool {
        let (Some(tile), Some(window)) = (self.undivided, plan.window) else { return false };
        let leaves = |&at: &u32| at >= window && first_seen(at, window).is_multiple_of(tile);
        plan.row_positions.iter().any(leaves)
    }

    /// Follows `AttentionPlan::advance` by `new_pages`, all of the plan's group, and returns the words that changed.
    /// `None`, with nothing changed, if a row has no reserved KV block left or begins a whole tile: the words must then
    /// be rebuilt.
    pub fn advance(&mut self, new_pages: &[NewPage]) -> Option<Range<usize>> {
        let stuck = |new_page: &NewPage| {
            let AppendPoint { next_kv_block, room } = self.append_points[new_page.row as usize];
            let base = base_of(self.words[next_kv_block as usize - 1]) + self.member.of * KV_BLOCK_TOKENS;
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
        for &NewPage { row, page, .. } in new_pages {
            let row = row as usize;
            let AppendPoint { next_kv_block, room } = &mut self.append_points[row];
            let at = *next_kv_block as usize;
            let base = base_of(self.words[at - 1]) + self.member.of * KV_BLOCK_TOKENS;
            let kv_block = kv_block_words(page.0, base, 0..KV_BLOCK_TOKENS);
            self.words[at..at + KV_BLOCK_WORDS].copy_from_slice(&kv_block);
            touch(at..at + KV_BLOCK_WORDS);
            *next_kv_block += KV_BLOCK_WORDS as u32;
            *room -= 1;
            for &tile in &self.last_tiles[row * self.tiles_a_row..][..self.tiles_a_row] {
                let words = tile as usize..tile as usize + TILE_WORDS;
                let tile = &mut self.words[words.clone()];
                let kv_blocks = tile[TILE_COUNT] as usize;
                if kv_blocks < TILE_KV_BLOCKS {
                    tile[TILE_FIELDS + kv_blocks * KV_BLOCK_WORDS..][..KV_BLOCK_WORDS].copy_from_slice(&kv_block);
                }
                tile[TILE_COUNT] += 1;
                touch(words);
            }
        }
        Some(changed.unwrap_or(0..0))
    }
}

/// The word of a tile that counts its KV blocks.
const TILE_COUNT: usize = 3;

/// The words of a KV block: `slots` of a page, which hold the positions `base ..`.
fn kv_block_words(page: u32, base: u32, slots: Range<u32>) -> [u32; KV_BLOCK_WORDS] {
    [page, place_word(base, slots)]
}

/// The second word of a KV block.
pub(super) fn place_word(base: u32, slots: Range<u32>) -> u32 {
    (base / KV_BLOCK_TOKENS) << 12 | slots.start << 6 | slots.end
}

/// Difference between the second words of two consecutive KV blocks with the same slots.
pub(super) const NEXT_PLACE: u32 = 1 << 12;

/// The first position that a row at `at` sees.
pub(super) fn first_seen(at: u32, window: u32) -> u32 {
    (at + 1).saturating_sub(window)
}

/// The position of slot 0, from the second word of a KV block.
pub(super) fn base_of(kv_block: u32) -> u32 {
    (kv_block >> 12) * KV_BLOCK_TOKENS
}
