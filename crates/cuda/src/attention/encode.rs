//! Encodes KV blocks and row tiles as the words of a plan: the order of tiles, their partial slots, and each row's list
//! of states. `layout` defines the words.

use std::ops::Range;

use super::builder::PlanBuilder;
use super::device_plan::DevicePlan;
use super::layout::{
    DECODE_WARPS, HEADER_WORDS, KV_BLOCK_TOKENS, KV_BLOCK_WORDS, NARROW_WARPS, PlanWord, SHARED_KV_BLOCK, TILE_FIELDS,
    TILE_KV_BLOCKS, TILE_WORDS, Workers, base_of, first_seen, kv_block_at, make_room, word,
};
use super::tiles::{AttentionTile, RowTile, SharedKvBlock, SplitLimit, TilingScratch, for_each_tile};

/// Number of states of a tile's rows, as `RowStates` of kernels/attention/plan.cuh.
const SEVERAL: u32 = 0;
const ONE: u32 = 1;
const DIFFERENT: u32 = 2;

/// Bits beside it, as there: the tile is an opening; the tile goes on from an opening.
const OPENS: u32 = 4;
const CONTINUES: u32 = 8;

/// Number of tiles, by kind.
struct TileCounts {
    wide: usize,
    all: usize,
    /// KV blocks of the longest wide tile that is no opening.
    longest_wide: usize,
    narrow_kv_blocks: KvBlockCounts,
}

/// Numbers of KV blocks of tiles.
struct KvBlockCounts {
    all: usize,
    longest: usize,
}

/// Offsets of the parts of a plan's words, and the end, in words.
struct PlanLayout {
    shared_at: usize,
    tiles_at: usize,
    merge_at: usize,
    states_at: usize,
    end: usize,
}

impl PlanBuilder<'_> {
    /// Writes all parts but the KV blocks, which are written already.
    pub(super) fn write(&mut self, mut limit: SplitLimit, rows_padded: usize) {
        let (TileCounts { wide, all: tiles, longest_wide, narrow_kv_blocks }, layout) = loop {
            let count = self.count(limit, rows_padded);
            let layout = self.lay_out(count.all);
            // There are at most as many slots as states: slots are counted only if states are too many.
            let fits =
                layout.end - layout.states_at <= self.tiling.most_slots || self.slots(limit) <= self.tiling.most_slots;
            match limit.coarser(&self.scratch.row_tiles).filter(|_| !fits) {
                Some(coarser) => limit = coarser,
                None => break (count, layout),
            }
        };
        make_room(&mut self.output.words, layout.end);
        self.output.words.truncate(layout.end);
        self.write_shared(&layout);
        let opening_rows = self.write_tiles(limit, &layout);
        // None of a member's rows are merged by the attention kernels.
        let merged_rows = if self.output.is_of_member() { 0 } else { self.plan.row_positions.len() };
        let words = &mut self.output.words;
        words[layout.merge_at..layout.states_at].copy_from_slice(&self.scratch.merge);
        words[..HEADER_WORDS].fill(0);
        for (at, value) in [
            (PlanWord::WideTiles, wide),
            (PlanWord::NarrowTiles, tiles - wide),
            (PlanWord::WideAt, layout.tiles_at),
            (PlanWord::NarrowAt, layout.tiles_at + wide * TILE_WORDS),
            (PlanWord::KvBlocksAt, HEADER_WORDS),
            (PlanWord::MergeAt, layout.merge_at),
            (PlanWord::StatesAt, layout.states_at),
            (PlanWord::PartialSlots, self.output.partial_slots),
            (PlanWord::Rows, merged_rows),
            (PlanWord::OpeningRows, opening_rows as usize),
            (PlanWord::WideHeads, wide_heads(self.heads.kv_heads, longest_wide, self.tiling.cached_kv_blocks)),
            (PlanWord::FirstPosition, self.plan.row_positions.first().map_or(0, |&at| at as usize)),
            (
                PlanWord::NarrowHeads,
                narrow_heads(self.heads.kv_heads, [wide, tiles - wide], &narrow_kv_blocks, self.tiling.workers),
            ),
        ] {
            words[at as usize] = word(value);
        }
        words[PlanWord::Window as usize] = self.plan.window.unwrap_or(u32::MAX);
    }

    /// Counts the tiles of each row, and the tiles by number of KV blocks, which gives their order: openings, since
    /// others wait for them, other wide tiles, then narrow ones, each the longest first.
    fn count(&mut self, limit: SplitLimit, rows_padded: usize) -> TileCounts {
        let TilingScratch { row_tiles, merge, places, .. } = &mut *self.scratch;
        merge.clear();
        merge.resize(rows_padded + 1, 0);
        let longest = row_tiles.iter().map(|row_tile| row_tile.kv_blocks.len()).max().unwrap_or(0);
        for places in &mut *places {
            places.clear();
            places.resize(longest + 1, 0);
        }
        let [openings, wide, narrow] = places;
        let (steps, opening_counts) = (&mut merge[..], &mut openings[..]);
        let (wide_counts, narrow_counts) = (&mut wide[..], &mut narrow[..]);
        for_each_tile(row_tiles, limit, |tile| {
            let AttentionTile { row_tile: RowTile { rows, begins_rows, wide, .. }, kv_blocks, .. } = &tile;
            let counts = match (tile.is_opening(), wide) {
                (true, _) => &mut *opening_counts,
                (false, true) => &mut *wide_counts,
                (false, false) => &mut *narrow_counts,
            };
            counts[kv_blocks.len()] += 1;
            if *begins_rows && !tile.is_opening() {
                steps[rows.start as usize] = steps[rows.start as usize].wrapping_add(1);
                steps[rows.end as usize] = steps[rows.end as usize].wrapping_sub(1);
            }
        });
        let lengths = narrow_counts.iter().enumerate();
        let narrow_kv_blocks = KvBlockCounts {
            all: lengths.map(|(length, &count)| length * count as usize).sum(),
            longest: narrow_counts.iter().rposition(|&count| count > 0).unwrap_or(0),
        };
        let longest_wide = wide_counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let mut end = 0;
        let mut rank = |places: &mut Vec<u32>| {
            for count in places.iter_mut().rev() {
                end += std::mem::replace(count, end);
            }
            end as usize
        };
        rank(openings);
        TileCounts { wide: rank(wide), all: rank(narrow), longest_wide, narrow_kv_blocks }
    }

    /// Turns the number of tiles of each row into the offset of its list.
    fn lay_out(&mut self, tiles: usize) -> PlanLayout {
        let TilingScratch { merge, next_state, shared, .. } = &mut *self.scratch;
        let (mut states, mut held) = (0, 0u32);
        for step in merge.iter_mut() {
            held = held.wrapping_add(*step);
            *step = states;
            states += held;
        }
        next_state.clone_from(merge);
        let shared_at = kv_block_at(self.kv_blocks);
        let shared_words: usize = shared.iter().map(|kv_block| 1 + kv_block.sub_blocks.len() * KV_BLOCK_WORDS).sum();
        let tiles_at = (shared_at + shared_words).next_multiple_of(4);
        let merge_at = tiles_at + tiles * TILE_WORDS;
        let states_at = merge_at + merge.len();
        PlanLayout { shared_at, tiles_at, merge_at, states_at, end: states_at + states as usize }
    }

    /// Number of partial slots that the tiles fill; needs the offsets of the rows' lists.
    fn slots(&self, limit: SplitLimit) -> usize {
        let TilingScratch { row_tiles, merge, .. } = &*self.scratch;
        let is_merged = !self.output.is_of_member();
        let mut slots = 0;
        for_each_tile(row_tiles, limit, |tile| {
            let RowTile { rows, begins_rows, .. } = tile.row_tile;
            let how_many = || states_of(&merge[rows.start as usize..=rows.end as usize], is_merged);
            if *begins_rows && (tile.is_opening() || !tile.continues() && how_many() != ONE) {
                slots += (rows.end - rows.start) as usize;
            }
        });
        slots
    }

    /// The lists of sub-blocks of KV blocks that segments share.
    fn write_shared(&mut self, layout: &PlanLayout) {
        let words = &mut self.output.words;
        let mut at = layout.shared_at;
        for SharedKvBlock { kv_block, sub_blocks } in &self.scratch.shared {
            words[*kv_block] = SHARED_KV_BLOCK | word(at);
            words[at] = word(sub_blocks.len());
            let list = &mut words[at + 1..][..sub_blocks.len() * KV_BLOCK_WORDS];
            list.copy_from_slice(sub_blocks.as_flattened());
            at += 1 + list.len();
        }
        words[at..layout.tiles_at].fill(0);
    }

    /// Writes tiles and the rows' lists of states, and records the last tiles of growing rows.
    ///
    /// If any row of a tile has further states, each row of the tile gets a partial slot, and the rows' lists name them
    /// in the order of positions. A row with one state has no slot, unless another kernel merges the states; its list
    /// holds a word that is never read. A tile that goes on from an opening has the slots of the opening.
    ///
    /// Returns the packed rows of all openings.
    fn write_tiles(&mut self, limit: SplitLimit, layout: &PlanLayout) -> u32 {
        let TilingScratch { row_tiles, merge, next_state, places: [openings, wide, narrow], .. } = &mut *self.scratch;
        let is_merged = !self.output.is_of_member();
        let (merge, next_state, openings) = (&merge[..], &mut next_state[..], &mut openings[..]);
        let (wide, narrow) = (&mut wide[..], &mut narrow[..]);
        let DevicePlan { words, last_tiles, tiles_a_list, append_lists, partial_slots, .. } = &mut *self.output;
        let (kv_blocks, words) = words.split_at_mut(layout.tiles_at);
        let (tile_words, words) = words.split_at_mut(layout.merge_at - layout.tiles_at);
        let (tile_words, _) = tile_words.as_chunks_mut::<TILE_WORDS>();
        let states = &mut words[layout.states_at - layout.merge_at..];
        last_tiles.clear();
        let (mut given, mut opening_rows) = (0, 0);
        // The slot of the latest opening's first row, less that row. The opening's items come next, with no other
        // opening between.
        let mut opened_slots = 0u32;
        for_each_tile(row_tiles, limit, |tile| {
            let (opens, continues) = (tile.is_opening(), tile.continues());
            let AttentionTile { row_tile, kv_blocks: Range { start, end }, grows } = tile;
            let rows = row_tile.rows.start as usize..row_tile.rows.end as usize;
            let how_many = if opens { SEVERAL } else { states_of(&merge[rows.start..rows.end + 1], is_merged) };
            let slot = match (how_many, row_tile.begins_rows) {
                _ if continues => opened_slots.wrapping_add(row_tile.rows.start),
                (ONE, _) => 0,
                (_, true) => given,
                // Tiles that share a row are consecutive.
                (_, false) => given - 1,
            };
            if row_tile.begins_rows {
                if !opens {
                    for (number, next) in (0u32..).zip(&mut next_state[rows]) {
                        states[*next as usize] = slot + number;
                        *next += 1;
                    }
                }
                given += if continues || how_many == ONE { 0 } else { row_tile.rows.end - row_tile.rows.start };
            }
            if opens {
                opening_rows += row_tile.packed;
                opened_slots = slot.wrapping_sub(row_tile.rows.start);
            }
            let places = match (opens, row_tile.wide) {
                (true, _) => &mut *openings,
                (false, true) => &mut *wide,
                (false, false) => &mut *narrow,
            };
            let place = &mut places[(end - start) as usize];
            let words = &mut tile_words[*place as usize];
            if grows {
                last_tiles.push(word(layout.tiles_at) + *place * TILE_WORDS as u32);
            }
            *place += 1;
            let fields = [
                row_tile.first,
                row_tile.packed,
                start,
                end - start,
                slot,
                row_tile.lowest,
                row_tile.highest,
                how_many | if opens { OPENS } else { 0 } | if continues { CONTINUES } else { 0 },
            ];
            words[..TILE_FIELDS].copy_from_slice(&fields);
            let kv_blocks = &kv_blocks[kv_block_at(start)..kv_block_at(end)];
            let mut first_kv_blocks = [0; TILE_KV_BLOCKS * KV_BLOCK_WORDS];
            match kv_blocks.first_chunk() {
                Some(first) => first_kv_blocks = *first,
                None => first_kv_blocks[..kv_blocks.len()].copy_from_slice(kv_blocks),
            }
            words[TILE_FIELDS..].copy_from_slice(&first_kv_blocks);
        });
        *partial_slots = given as usize;
        *tiles_a_list = last_tiles.len() / append_lists.len().max(1);
        if let Some(window) = self.plan.window.filter(|_| self.keeps_tiles) {
            self.see_first(window, limit, layout);
        }
        opening_rows
    }

    /// If tiles are whole, moves the states that a row sees to the front of its list: an empty state adds nothing, and
    /// at the end it does not change the order of the others.
    fn see_first(&mut self, window: u32, limit: SplitLimit, layout: &PlanLayout) {
        let positions = &self.plan.row_positions;
        let words = &mut self.output.words;
        let TilingScratch { row_tiles, merge, unseen, .. } = &mut *self.scratch;
        unseen.clear();
        unseen.resize(positions.len(), 0);
        for_each_tile(
            row_tiles,
            limit,
            |AttentionTile { row_tile: RowTile { rows, begins_rows, .. }, kv_blocks, .. }| {
                let rows = rows.start as usize..rows.end as usize;
                let end = base_of(words[kv_block_at(kv_blocks.end) - 1]) + KV_BLOCK_TOKENS;
                for (unseen, &at) in unseen[rows.clone()].iter_mut().zip(&positions[rows]) {
                    *unseen += u32::from(*begins_rows && end <= first_seen(at, window));
                }
            },
        );
        let states = &mut words[layout.states_at..];
        for (list, &unseen) in merge.windows(2).zip(&*unseen) {
            states[list[0] as usize..list[1] as usize].rotate_left(unseen as usize);
        }
    }
}

/// The `RowStates` of rows whose lists begin and end there; `is_merged`: whether the kernels merge them.
fn states_of(lists: &[u32], is_merged: bool) -> u32 {
    if !is_merged {
        return SEVERAL;
    }
    if let &[start, end] = lists {
        return if end - start == 1 { ONE } else { SEVERAL };
    }
    let (mut any, mut all) = (false, true);
    for list in lists.windows(2) {
        let one = list[1] - list[0] == 1;
        any |= one;
        all &= one;
    }
    match (any, all) {
        (_, true) => ONE,
        (true, false) => DIFFERENT,
        (false, false) => SEVERAL,
    }
}

/// Key heads whose wide tiles are taken before those of others: as many as the cache holds, if each has tiles of so
/// many KV blocks.
fn wide_heads(kv_heads: usize, kv_blocks: usize, cached: Option<usize>) -> usize {
    cached.map_or(kv_heads, |cached| (cached / kv_blocks.max(1)).clamp(1, kv_heads))
}

/// Key heads of a narrow tile that a worker computes one after another: as many as leave enough work units for all
/// workers. For short tiles of similar length, as many as give each decode warp one unit while the other warps compute
/// wide tiles; units are then static.
fn narrow_heads(
    kv_heads: usize,
    [wide_tiles, tiles]: [usize; 2],
    kv_blocks: &KvBlockCounts,
    workers: Workers,
) -> usize {
    /// Units per worker at which the imbalance at the end is small.
    const TAKES: usize = 8;
    /// Most KV blocks of a static unit; the longest tile over the mean, in KV blocks; and the share of blocks with a
    /// wide tile from which helpers count as busy. Measured on an H200 (benches/attention/NOTES.md, fifth round).
    const SHORT: usize = 16;
    const ALIKE: (usize, usize) = (5, 4);
    const BUSY: (usize, usize) = (3, 4);
    let mut heads = (1..=kv_heads).filter(|heads| kv_heads.is_multiple_of(*heads));
    if let Workers::BlocksAndDecodeWarps(blocks) = workers {
        let busy = BUSY.1 * wide_tiles * kv_heads >= BUSY.0 * blocks;
        let alike = ALIKE.1 * tiles * kv_blocks.longest <= ALIKE.0 * kv_blocks.all;
        let once = heads.clone().find(|heads| tiles * (kv_heads / heads) <= DECODE_WARPS * blocks);
        if let Some(heads) = once.filter(|heads| busy && alike && heads * kv_blocks.longest <= SHORT) {
            return heads;
        }
    }
    let workers = match workers {
        Workers::Blocks(blocks) | Workers::LatentBlocks(blocks) => blocks,
        Workers::BlocksAndDecodeWarps(blocks) => NARROW_WARPS * blocks,
        Workers::BlocksThenTeams { blocks, teams } => blocks * teams,
    };
    heads.rfind(|heads| tiles * (kv_heads / heads) >= TAKES * workers).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::layout::{READER_BITS, READER_SHIFT};
    use crate::compile::elements::{HeadWidths, HopperKernel, KvElement};

    const WORKERS: Workers = Workers::BlocksAndDecodeWarps(132);

    #[test]
    fn short_tiles_of_one_length_are_taken_once_by_those_that_take_nothing_else() {
        let beside = |wide, kv_heads, tiles, longest| {
            narrow_heads(kv_heads, [wide, tiles], &KvBlockCounts { all: tiles * longest, longest }, WORKERS)
        };
        let heads = |kv_heads, tiles, longest| beside(16, kv_heads, tiles, longest);
        assert_eq!(heads(8, 512, 1), 8);
        assert_eq!(heads(8, 256, 4), 4);
        // Few enough as they are; a unit would be long; too many for one unit each.
        assert_eq!(heads(8, 64, 1), 1);
        assert_eq!(heads(32, 32, 16), 1);
        assert_eq!(heads(8, 1024, 1), 1);
        // The other warps are idle.
        assert_eq!(beside(2, 8, 256, 4), 1);
    }

    #[test]
    fn the_kernels_read_openings_as_they_are_written() {
        let plan = include_str!("../../../../kernels/attention/plan.cuh");
        assert!(plan.contains(&format!("constexpr unsigned OPENS = {OPENS}, CONTINUES = {CONTINUES};")));
        assert!(plan.contains(&format!("HEADER_WORDS = {HEADER_WORDS} ")));
        let readers = format!("constexpr unsigned READER_SHIFT = {READER_SHIFT}, READER_BITS = {READER_BITS};");
        assert!(plan.contains(&readers));
        // As `HopperKernel::has_openings`.
        let tiles = include_str!("../../../../kernels/attention/wide_tiles.cuh");
        assert!(tiles.contains("PREFERS_SHORT = DETERMINISTIC && !FP8 && (KEY_DIM == 64 || KEY_DIM == 128);"));
        let has = |dim, kv| HopperKernel::Wgmma.has_openings(HeadWidths::even(dim), kv);
        assert!(has(64, KvElement::Plain) && has(128, KvElement::Rounded));
        assert!(!has(80, KvElement::Plain) && !has(64, KvElement::Fp8));
    }

    #[test]
    fn the_kernel_has_as_many_warps_for_narrow_tiles() {
        let stream = include_str!("../../../../kernels/attention/stream.cuh");
        let ring = include_str!("../../../../kernels/attention/wide_tiles.cuh");
        let kernel = include_str!("../../../../kernels/attention/tree_attention_wgmma.cu");
        assert!(stream.contains(&format!("DECODE_WARPS = PARTS == 1 ? {DECODE_WARPS} : 0;")));
        assert!(ring.contains("GROUP_THREADS = 128;") && kernel.contains("HELPERS = 2 * GROUP_THREADS / 32,"));
        assert_eq!(NARROW_WARPS - DECODE_WARPS, 2 * 128 / 32);
    }

    #[test]
    fn tiles_of_different_lengths_are_not_taken_together() {
        assert_eq!(narrow_heads(8, [16, 256], &KvBlockCounts { all: 512, longest: 4 }, WORKERS), 1);
    }

    #[test]
    fn wide_tiles_come_by_as_many_heads_as_the_cache_holds() {
        assert_eq!(wide_heads(128, 64, None), 128);
        assert_eq!(wide_heads(128, 64, Some(1200)), 18);
        assert_eq!(wide_heads(8, 64, Some(1200)), 8);
        assert_eq!(wide_heads(128, 4096, Some(1200)), 1);
        assert_eq!(wide_heads(128, 0, Some(1200)), 128, "no wide tile");
    }

    #[test]
    fn many_heads_are_taken_together_where_enough_is_left_for_all() {
        let kv_blocks = KvBlockCounts { all: 16_000, longest: 4 };
        assert_eq!(narrow_heads(8, [0, 4_000], &kv_blocks, WORKERS), 2);
        assert_eq!(narrow_heads(8, [0, 4_000], &kv_blocks, Workers::Blocks(264)), 8);
    }
}
