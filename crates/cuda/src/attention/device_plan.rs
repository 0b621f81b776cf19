//! An attention plan as the kernels read it: flat words (`layout`), built on the host when the tree changes (`tiling`,
//! `encode`) and valid while every row moves one token a step. While pages have room, no word changes; for a row that
//! starts a new page a few reserved words are filled in place, so addresses and grids stay. `attention` owns buffers
//! and launches.

use std::ops::Range;

use super::layout::{
    KV_BLOCK_TOKENS, KV_BLOCK_WORDS, Readers, TILE_COUNT, TILE_FIELDS, TILE_KV_BLOCKS, TILE_WORDS, first_seen,
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
    pub(super) append_lists: Vec<AppendList>,
    /// Offsets of the tiles that end with each of these lists: `tiles_a_list` each.
    pub(super) last_tiles: Vec<u32>,
    pub(super) tiles_a_list: usize,
    /// Positions per tile of a deterministic plan. A row then has one state per tile, whatever the other rows are, and
    /// a page shared by segments is one KV block, so that the row's bits never change.
    pub(super) undivided: Option<u32>,
    pub(super) scratch: TilingScratch,
}

/// The next KV block of a row that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AppendPoint {
    /// Index into `append_lists`.
    pub list: u32,
    /// The position of its slot 0.
    pub base: u32,
    pub readers: Readers,
}

/// A list of KV blocks that ends with those of rows that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AppendList {
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
            append_lists: Vec::new(),
            last_tiles: Vec::new(),
            tiles_a_list: 0,
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
        if !self.take_room(new_pages) {
            return None;
        }
        let mut changed: Option<Range<usize>> = None;
        let mut touch = |words: Range<usize>| {
            let before = changed.take().unwrap_or(words.clone());
            changed = Some(before.start.min(words.start)..before.end.max(words.end));
        };
        for &NewPage { row, page, .. } in new_pages {
            let AppendPoint { list, base, readers } = &mut self.append_points[row as usize];
            let list = *list as usize;
            let next_kv_block = &mut self.append_lists[list].next_kv_block;
            let at = *next_kv_block as usize;
            let kv_block = kv_block_words(page.0, *readers, *base, 0..KV_BLOCK_TOKENS);
            self.words[at..at + KV_BLOCK_WORDS].copy_from_slice(&kv_block);
            touch(at..at + KV_BLOCK_WORDS);
            *next_kv_block += KV_BLOCK_WORDS as u32;
            *base += self.member.of * KV_BLOCK_TOKENS;
            for &tile in &self.last_tiles[list * self.tiles_a_list..][..self.tiles_a_list] {
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

    /// Takes a reserved KV block for each of the new pages. Returns false, and takes none, if a list has none left or a
    /// page begins a whole tile.
    fn take_room(&mut self, new_pages: &[NewPage]) -> bool {
        let Self { append_points, append_lists, undivided, .. } = self;
        let point = |new_page: &NewPage| append_points[new_page.row as usize];
        for (taken, new_page) in new_pages.iter().enumerate() {
            let AppendPoint { list, base, .. } = point(new_page);
            let room = &mut append_lists[list as usize].room;
            if *room == 0 || undivided.is_some_and(|undivided| base.is_multiple_of(undivided)) {
                new_pages[..taken].iter().for_each(|taken| append_lists[point(taken).list as usize].room += 1);
                return false;
            }
            *room -= 1;
        }
        true
    }
}
