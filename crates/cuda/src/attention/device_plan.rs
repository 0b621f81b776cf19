//! An attention plan as the kernels read it: flat words (`layout`), built on the host when the tree changes (`tiling`,
//! `encode`) and valid while every row moves one token a step. While pages have room, no word changes; for a row that
//! starts a new page a few reserved words are filled in place, so addresses and grids stay. `attention` owns buffers
//! and launches.

use std::ops::Range;

use super::layout::{
    KV_BLOCK_TOKENS, KV_BLOCK_WORDS, TILE_COUNT, TILE_FIELDS, TILE_KV_BLOCKS, TILE_WORDS, base_of, first_seen,
    kv_block_words,
};
use super::tiles::TilingScratch;
use offshoot_kv::plan::{AttentionPlan, Member, NewPage};

/// Who has all positions.
pub const WHOLE: Member = Member { number: 0, of: 1, page_tokens: KV_BLOCK_TOKENS };

/// See the module's docs.
pub struct DevicePlan {
    /// Whose KV blocks it has. Positions are those of all, so rows mask and advance as they do alone; but no row's
    /// state is final, so all states are partial ones, and the kernels merge none of them.
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
    pub(super) undivided: Option<u32>,
    pub(super) scratch: TilingScratch,
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
