//! Turns the items of a plan into KV blocks and row tiles: rows are packed (row x query head of the group) and divided
//! into the tiles that a thread block computes at a time. Long items are then split over KV so that all multiprocessors
//! have work (`tiles`, `split_kv`), and the words are written (`encode`) as `layout` defines them.
//!
//! Most items are leaves of one row each, by the thousand: their path is short, and its memory is reused from plan to
//! plan.

use std::ops::Range;

use super::builder::PlanBuilder;
use super::device_plan::{AppendList, AppendPoint, DevicePlan};
use super::layout::{
    KV_BLOCK_TOKENS, KV_BLOCK_WORDS, NEXT_PLACE, Readers, SHARED_KV_BLOCK, STEP_KV_BLOCKS, Tiling, base_of,
    kv_block_at, make_room, place_word, word,
};
use super::leaf_tiles::LeafTiles;
use super::split_kv::TileWorkload;
use super::tiles::{RowTile, SharedKvBlock, SplitItem, SplitLimit, TilePart};
use offshoot_backend::HeadLayout;
use offshoot_kv::plan::{AttentionPlan, KvSpan};

/// KV blocks reserved after those of an item that ends with a row, for pages that the row will start.
pub(super) const SPARE_KV_BLOCKS: usize = 2;

impl DevicePlan {
    /// The words of `plan` for `rows_padded` rows; padded rows get an empty merge list. Panics if the plan's pages do
    /// not have [`KV_BLOCK_TOKENS`] slots, for each member.
    pub fn build(plan: &AttentionPlan, heads: HeadLayout, rows_padded: usize, tiling: &Tiling) -> DevicePlan {
        let mut output = DevicePlan::default();
        output.rebuild(plan, heads, rows_padded, tiling);
        output
    }

    /// Does what `build` does, reusing the memory of an earlier plan.
    pub fn rebuild(&mut self, plan: &AttentionPlan, heads: HeadLayout, rows_padded: usize, tiling: &Tiling) {
        self.rebuild_with(plan, heads, rows_padded, tiling, None);
    }

    /// Does what `rebuild` does, with these tiles of leaves where leaves may share tiles; `None`: with those that the
    /// model finds fastest.
    pub fn rebuild_with(
        &mut self,
        plan: &AttentionPlan,
        heads: HeadLayout,
        rows_padded: usize,
        tiling: &Tiling,
        leaf_tiles: Option<LeafTiles>,
    ) {
        assert_eq!(plan.page_tokens, self.member.of * KV_BLOCK_TOKENS, "pages of a device plan");
        assert!(plan.tile == 1 || !self.is_of_member(), "where members divide a tile, bits would depend on them");
        assert!(rows_padded >= plan.row_positions.len(), "{rows_padded} rows do not hold the plan's");
        self.undivided = (plan.tile > 1).then_some(plan.tile);
        let mut taken = std::mem::take(&mut self.scratch);
        let group = word(heads.group());
        let rows_a_tile = (word(tiling.most_rows()) / group).max(1);
        let keeps_tiles = plan.tile > 1;
        let (scratch, output) = (&mut taken, &mut *self);
        let mut builder =
            PlanBuilder { plan, heads, tiling, scratch, output, group, rows_a_tile, keeps_tiles, kv_blocks: 0 };
        let shares = builder.may_share_tiles().and_then(|blocks| {
            let leaf_tiles = leaf_tiles.unwrap_or_else(|| builder.fastest_leaf_tiles(blocks));
            (leaf_tiles != LeafTiles::ALONE).then_some((blocks, leaf_tiles))
        });
        let limit = match shares {
            Some((blocks, leaf_tiles)) => {
                builder.tile_lists(leaf_tiles);
                builder.limit_of_lists(leaf_tiles, blocks)
            }
            None => {
                builder.tile_items();
                builder.limit()
            }
        };
        builder.write(limit, rows_padded);
        self.scratch = taken;
    }
}

impl PlanBuilder<'_> {
    /// The most KV blocks of tiles, unless each is a tile of the plan.
    fn limit(&self) -> SplitLimit {
        if self.keeps_tiles {
            return SplitLimit::Tiles((self.plan.tile / KV_BLOCK_TOKENS) as usize);
        }
        let mut work = TileWorkload::new(self.tiling.workers);
        for RowTile { wide, kv_blocks, .. } in &self.scratch.row_tiles {
            match wide {
                true => work.add_wide(self.heads.kv_heads, kv_blocks.len()),
                false => work.add_narrow(self.heads.kv_heads, kv_blocks.len()),
            }
        }
        let narrow = work.most_narrow_kv_blocks();
        SplitLimit::KvBlocks { wide: work.most_wide_kv_blocks(narrow), narrow, step: work.step() }
    }

    /// Removes what an earlier plan has listed, and makes room for so many KV blocks.
    pub(super) fn clear_lists(&mut self, most_kv_blocks: usize) {
        make_room(&mut self.output.words, kv_block_at(word(most_kv_blocks)));
        self.output.append_points.clear();
        self.output.append_lists.clear();
        self.scratch.row_tiles.clear();
        self.scratch.shared.clear();
    }

    /// Lists the KV blocks and row tiles of all items.
    fn tile_items(&mut self) {
        let plan = self.plan;
        let pages: usize = plan.spans.iter().map(|span| span.pages.len()).sum();
        self.clear_lists(pages + plan.growing.len() * SPARE_KV_BLOCKS);
        let all_grow = plan.can_advance();
        // A growing row whose whole item is visible and whose group fits in a tile.
        let sees_all = plan.window.is_none() && self.group as usize <= self.tiling.most_rows();
        self.find_openings();
        let openings = std::mem::take(&mut self.scratch.openings);
        let mut next_openings = openings.as_slice();
        // Growing spans are listed as they are.
        let mut growing = plan.growing.as_slice();
        for (index, item) in plan.items.iter().enumerate() {
            let first_kv_block = self.kv_blocks;
            let mut grows = false;
            for span in item.spans.clone() {
                grows = growing.first().is_some_and(|next| next.span == span);
                growing = &growing[usize::from(grows)..];
                let may_share = span > item.spans.start && self.keeps_tiles;
                self.list_kv_blocks(&plan.spans[span as usize], grows, may_share);
            }
            grows &= all_grow;
            let kv_blocks = first_kv_block..self.kv_blocks;
            if next_openings.first().is_some_and(|opening| opening.items.end <= index) {
                next_openings = &next_openings[1..];
            }
            let opening = next_openings.first().filter(|opening| opening.items.contains(&index));
            if let Some(opening) = opening.filter(|opening| opening.items.start == index) {
                // It reads them from the list of the first item.
                let kv_blocks = first_kv_block..first_kv_block + opening.kv_blocks;
                self.tile_rows(&opening.rows, kv_blocks, TilePart::Opening, false);
            }
            let opened = opening.map(|opening| opening.kv_blocks);
            match grows && sees_all && item.rows.len() == 1 {
                true => self.tile_lone_row(item.rows.start, kv_blocks, opened),
                false => {
                    let part = if opened.is_some() { TilePart::Rest } else { TilePart::Whole };
                    let first = self.tile_rows(&item.rows, kv_blocks, part, grows);
                    for row_tile in &mut self.scratch.row_tiles[first..] {
                        row_tile.kv_blocks.start += opened.unwrap_or(0);
                    }
                }
            }
            if grows {
                self.grow_from(Readers::All);
                self.reserve_kv_blocks(1);
            }
        }
        self.scratch.openings = openings;
    }

    /// Notes where the row continues whose KV blocks were listed last, and for whom it does.
    pub(super) fn grow_from(&mut self, readers: Readers) {
        let base =
            base_of(self.output.words[kv_block_at(self.kv_blocks) - 1]) + self.output.member.of * KV_BLOCK_TOKENS;
        let list = word(self.output.append_lists.len());
        self.output.append_points.push(AppendPoint { list, base, readers });
    }

    /// Reserves KV blocks behind those of a list that ends with so many rows that grow.
    pub(super) fn reserve_kv_blocks(&mut self, rows: usize) {
        let (spare, room) = (kv_block_at(self.kv_blocks), rows * SPARE_KV_BLOCKS);
        self.output.append_lists.push(AppendList { next_kv_block: word(spare), room: word(room) });
        self.kv_blocks += word(room);
        self.output.words[spare..kv_block_at(self.kv_blocks)].fill(0);
    }

    /// Lists of each page the part that is the member's, if it has positions of the span. Of a span that grows all
    /// pages are listed, since new ones follow the last.
    ///
    /// `may_share`: whether its first page joins the previous KV block, if that has slots of the same positions.
    pub(super) fn list_kv_blocks(&mut self, span: &KvSpan, grows: bool, may_share: bool) {
        let (member, page_tokens) = (self.output.member, self.plan.page_tokens);
        let (first, end) = (span.first_position, span.first_position + span.tokens);
        let mut pages = &self.plan.pages[span.pages.start as usize..span.pages.end as usize];
        let mut first_base = first - first % page_tokens + member.number * KV_BLOCK_TOKENS;
        if !grows {
            if let [_, rest @ ..] = pages
                && first_base + KV_BLOCK_TOKENS <= first
            {
                (pages, first_base) = (rest, first_base + page_tokens);
            }
            if let [rest @ .., _] = pages
                && end <= first_base + word(rest.len()) * page_tokens
            {
                pages = rest;
            }
        }
        let at = kv_block_at(self.kv_blocks);
        self.kv_blocks += word(pages.len());
        let (kv_blocks, _) = self.output.words[at..kv_block_at(self.kv_blocks)].as_chunks_mut::<KV_BLOCK_WORDS>();
        let mut place = place_word(first_base, 0..KV_BLOCK_TOKENS);
        for (kv_block, page) in kv_blocks.iter_mut().zip(pages) {
            *kv_block = [page.0, place];
            place += member.of * NEXT_PLACE;
        }
        // The kernel masks positions that its rows have not reached, so a partly filled KV block is listed as full.
        if !grows && let Some([_, place]) = kv_blocks.last_mut() {
            let last_base = base_of(*place);
            *place = place_word(last_base, 0..KV_BLOCK_TOKENS.min(end - last_base));
        }
        let from = first.saturating_sub(first_base).min(KV_BLOCK_TOKENS);
        if let Some([_, place]) = kv_blocks.first_mut() {
            *place = place_word(first_base, from..*place & 63);
        }
        if may_share && from > 0 {
            self.share_kv_block(at);
        }
    }

    /// Joins the KV block whose words are at `at` with the one before it, which has the other slots of the same
    /// positions.
    fn share_kv_block(&mut self, at: usize) {
        let words = &mut self.output.words;
        let sub_block: [u32; KV_BLOCK_WORDS] = [words[at], words[at + 1]];
        let before = at - KV_BLOCK_WORDS;
        let sub_blocks = match words[before] & SHARED_KV_BLOCK {
            0 => {
                let first = [words[before], words[before + 1]];
                self.scratch.shared.push(SharedKvBlock { kv_block: before, sub_blocks: vec![first] });
                self.scratch.shared.len() - 1
            }
            _ => self.scratch.shared.len() - 1,
        };
        self.scratch.shared[sub_blocks].sub_blocks.push(sub_block);
        words[before] |= SHARED_KV_BLOCK;
        words[before + 1] = place_word(base_of(sub_block[1]), words[before + 1] >> 6 & 63..sub_block[1] & 63);
        words.copy_within(at + KV_BLOCK_WORDS..kv_block_at(self.kv_blocks), at);
        self.kv_blocks -= 1;
    }

    /// The row tile of the usual leaf's item, whose only row sees all of it: a fast path that makes the same tile as
    /// `tile_rows`. `opened`: the number of KV blocks of its opening, if it has one.
    fn tile_lone_row(&mut self, row: u32, kv_blocks: Range<u32>, opened: Option<u32>) {
        let (packed, at) = (self.group, self.plan.row_positions[row as usize]);
        let wide = self.tiling.is_wide(packed as usize);
        self.scratch.row_tiles.push(RowTile {
            item: SplitItem { kv_blocks: kv_blocks.clone(), own: 0, row_tiles: 1, wide, grows: true },
            rows: row..row + 1,
            first: row * packed,
            packed,
            lowest: at,
            highest: at,
            kv_blocks: kv_blocks.start + opened.unwrap_or(0)..kv_blocks.end,
            wide,
            part: if opened.is_some() { TilePart::Rest } else { TilePart::Whole },
            begins_rows: true,
        });
    }

    /// Divides an item's packed rows into tiles, of whole rows if a tile can hold one. Returns the first row tile.
    pub(super) fn tile_rows(&mut self, rows: &Range<u32>, kv_blocks: Range<u32>, part: TilePart, grows: bool) -> usize {
        let most = word(self.tiling.most_rows());
        let packed = rows.len() * self.group as usize;
        let first_row_tile = self.scratch.row_tiles.len();
        let item = SplitItem { kv_blocks, own: 0, row_tiles: 0, wide: self.tiling.is_wide(packed), grows };
        let mut row = rows.start;
        while row < rows.end {
            let rows = row..rows.end.min(row + self.rows_a_tile);
            row = rows.end;
            let (lowest, highest) = outermost(&self.plan.row_positions[rows.start as usize..rows.end as usize]);
            let kv_blocks = self.seen(lowest, highest, &item);
            let (mut first, end) = (rows.start * self.group, rows.end * self.group);
            let mut begins_rows = true;
            while first < end {
                let packed = most.min(end - first);
                let wide = self.tiling.is_wide(packed as usize);
                let (item, rows, kv_blocks) = (item.clone(), rows.clone(), kv_blocks.clone());
                self.scratch.row_tiles.push(RowTile {
                    item,
                    rows,
                    first,
                    packed,
                    lowest,
                    highest,
                    kv_blocks,
                    wide,
                    part,
                    begins_rows,
                });
                first += packed;
                begins_rows = false;
            }
        }
        let row_tiles = &mut self.scratch.row_tiles[first_row_tile..];
        let count = word(row_tiles.len());
        if let Some(first) = row_tiles.first_mut() {
            first.item.row_tiles = count;
        }
        first_row_tile
    }

    /// The range of an item's KV blocks that rows between these two positions see. The last one of an item that grows
    /// is always among them, since its tiles grow with it; a member's may lie before what its row sees, or behind it.
    fn seen(&self, lowest: u32, highest: u32, item: &SplitItem) -> Range<u32> {
        let kv_blocks = &item.kv_blocks;
        let words = &self.output.words[kv_block_at(kv_blocks.start)..kv_block_at(kv_blocks.end)];
        let (list, _) = words.as_chunks::<KV_BLOCK_WORDS>();
        let reached = |&[_, kv_block]: &[u32; KV_BLOCK_WORDS]| base_of(kv_block) + (kv_block >> 6 & 63) <= highest;
        let behind = match list.last() {
            Some(last) if item.grows || reached(last) => list.len(),
            _ => list.partition_point(reached),
        };
        let passed =
            |&[_, kv_block]: &[u32; KV_BLOCK_WORDS], window| base_of(kv_block) + (kv_block & 63) + window <= lowest + 1;
        let before = match self.plan.window {
            Some(window) => list[..behind].partition_point(|kv_block| passed(kv_block, window)),
            None => 0,
        };
        let before = if item.grows { before.min(list.len() - 1) } else { before };
        // If tiles are whole, the kernel's steps begin at the same positions for all rows.
        let before = if self.keeps_tiles { before - before % STEP_KV_BLOCKS } else { before };
        kv_blocks.start + word(before)..kv_blocks.start + word(behind)
    }
}

/// The smallest and the largest of some positions.
pub(super) fn outermost(positions: &[u32]) -> (u32, u32) {
    if let &[only] = positions {
        return (only, only);
    }
    positions.iter().fold((u32::MAX, 0), |(lowest, highest), &at| (lowest.min(at), highest.max(at)))
}
