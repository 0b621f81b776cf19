//! What plans and kernels agree on: the words of a device plan, of which `kernels/attention/plan.cuh` defines the
//! kernels' side, and the tiles and workers that a plan is made for. `device_plan` has the words of one plan.

use std::ops::Range;

/// Slots of a page. A KV block is the part of one page that an item reads.
pub const KV_BLOCK_TOKENS: u32 = 32;
/// Words of the header, of which some are unused so that what follows begins at a cache line, of a tile and of a KV
/// block.
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
    WideHeads,
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
    /// KV blocks of a key head that the second-level cache holds: wide tiles are taken in groups of as many key heads
    /// as fit, so that all of them that read the same keys find them there. `None`: the key heads of a tile come one
    /// after another, all of them.
    pub cached_kv_blocks: Option<usize>,
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
    /// This many blocks of the kernel of latents, which has wide tiles alone. They are split behind whole steps of
    /// `STEP_KV_BLOCKS`.
    LatentBlocks(usize),
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

/// Marks the first word of a KV block of several pages; its other bits are the offset of the list of its sub-blocks.
pub(super) const SHARED_KV_BLOCK: u32 = 1 << 31;

/// KV blocks per step of kernels/attention/ring.cuh; an item begins with a step of its own.
pub(super) const STEP_KV_BLOCKS: usize = 2;

/// The word of a tile that counts its KV blocks.
pub(super) const TILE_COUNT: usize = 3;

/// The bits of the first word of a KV block that name its readers, above those of the page.
pub const READER_SHIFT: u32 = 27;
pub const READER_BITS: u32 = 4;

/// The rows of a tile that read one of its KV blocks. Only plans that are not deterministic tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    All,
    /// The row of this number in the tile, from 0, alone.
    One(u32),
}

impl Readers {
    /// Most rows of a tile whose KV blocks may have one reader.
    pub const MOST: u32 = (1 << READER_BITS) - 1;

    /// The bits of these readers in the first word of a KV block.
    pub fn bits(self) -> u32 {
        match self {
            Readers::All => 0,
            Readers::One(row) => {
                assert!(row < Self::MOST, "row {row} of a tile of at most {} readers", Self::MOST);
                (row + 1) << READER_SHIFT
            }
        }
    }
}

/// The words of a KV block: `slots` of a page, which hold the positions `base ..`.
pub(super) fn kv_block_words(page: u32, readers: Readers, base: u32, slots: Range<u32>) -> [u32; KV_BLOCK_WORDS] {
    assert!(page < 1 << READER_SHIFT, "page {page} is among too many to name readers beside it");
    [page | readers.bits(), place_word(base, slots)]
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

/// Grows `words` to at least `len`. Old contents are not cleared: every word is written afterwards.
pub(super) fn make_room(words: &mut Vec<u32>, len: usize) {
    if words.len() < len {
        words.resize(len, 0);
    }
}

/// Offset of the words of a KV block.
pub(super) fn kv_block_at(kv_block: u32) -> usize {
    HEADER_WORDS + kv_block as usize * KV_BLOCK_WORDS
}

pub(super) fn word(number: usize) -> u32 {
    u32::try_from(number).expect("a step has fewer than 2^32 packed rows, KV blocks and states")
}
