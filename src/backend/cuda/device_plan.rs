//! An attention plan as the kernels read it: flat words, built on the host whenever the topology changes and good for as long
//! as every row moves on by a token a step within its page. Here items become tiles: rows are packed (row x head of the
//! group), cut to what a block computes at a time, and long items are divided so that all multiprocessors have work. The
//! kernels' side of the layout is `kernels/attention_plan.cuh`; buffers and launches are `attention`'s.

use std::ops::Range;

use super::division::Work;
use crate::backend::HeadLayout;
use crate::plan::{AttentionPlan, WorkItem};

/// Slots of a page: a piece is what an item holds of one page.
pub const PIECE_TOKENS: u32 = 32;
/// Words of the header, of a tile and of a piece.
pub const HEADER_WORDS: usize = 16;
pub const TILE_WORDS: usize = 8;
pub const PIECE_WORDS: usize = 2;

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
}

/// What the device's blocks compute at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Most packed rows of a narrow tile.
    pub narrow_rows: usize,
    /// Most packed rows of a wide tile; `None` where all tiles are narrow.
    pub wide_rows: Option<usize>,
    pub workers: Workers,
}

/// Who takes the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// So many blocks at a time, of which each takes wide tiles, then narrow ones.
    Alike(usize),
    /// So many of which each takes wide tiles and, beside them, so many of which each takes narrow ones.
    Apart { wide: usize, narrow: usize },
}

impl Tiling {
    /// Whether a tile of so many packed rows is wide.
    fn is_wide(&self, packed: usize) -> bool {
        self.wide_rows.is_some() && packed > self.narrow_rows
    }

    fn most_rows(&self) -> usize {
        self.wide_rows.unwrap_or(self.narrow_rows)
    }
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    words: Vec<u32>,
    partial_slots: usize,
}

impl DevicePlan {
    /// The words of `plan` for `rows_padded` rows, of which those behind the plan's own get an empty merge list. Panics when
    /// the plan's pages are not of [`PIECE_TOKENS`] slots.
    pub fn build(plan: &AttentionPlan, heads: HeadLayout, rows_padded: usize, tiling: &Tiling) -> DevicePlan {
        assert_eq!(plan.page_tokens, PIECE_TOKENS, "pages of a device plan");
        assert!(rows_padded >= plan.row_positions.len(), "{rows_padded} rows do not hold the plan's");
        let mut builder = Builder::new(plan, heads, tiling);
        builder.cut_items();
        builder.give_slots();
        builder.finish(rows_padded)
    }

    /// To be uploaded at an address that is a multiple of 16 bytes.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Partial states that the step writes, each of all query heads of a row.
    pub fn partial_slots(&self) -> usize {
        self.partial_slots
    }
}

/// Slots `from .. to` of a page, which hold the positions `base ..`.
#[derive(Clone, Copy)]
struct Piece {
    page: u32,
    base: u32,
    from: u32,
    to: u32,
}

impl Piece {
    fn words(self) -> [u32; PIECE_WORDS] {
        [self.page, (self.base / PIECE_TOKENS) << 12 | self.from << 6 | self.to]
    }
}

/// Some whole rows (or a part of one, where a group is larger than a tile) and some pieces of one item.
struct Tile {
    item: usize,
    /// Packed.
    rows: Range<usize>,
    pieces: Range<usize>,
    slot: usize,
}

struct Builder<'a> {
    plan: &'a AttentionPlan,
    heads: HeadLayout,
    tiling: &'a Tiling,
    pieces: Vec<Piece>,
    /// By item, then piece, then row.
    tiles: Vec<Tile>,
    /// How many tiles hold each row.
    states: Vec<u32>,
    partial_slots: usize,
}

impl<'a> Builder<'a> {
    fn new(plan: &'a AttentionPlan, heads: HeadLayout, tiling: &'a Tiling) -> Self {
        let states = vec![0; plan.row_positions.len()];
        Self { plan, heads, tiling, pieces: Vec::new(), tiles: Vec::new(), states, partial_slots: 0 }
    }

    fn cut_items(&mut self) {
        let items = self.piece_items();
        let mut work = Work::new(self.tiling.workers);
        for (item, pieces) in self.plan.items.iter().zip(&items) {
            for rows in self.row_cuts(item) {
                let seen = self.seen(&rows, pieces).len();
                match self.tiling.is_wide(rows.len()) {
                    true => work.add_wide(self.heads.kv_heads, seen),
                    false => work.add_narrow(self.heads.kv_heads, seen),
                }
            }
        }
        let (most_wide, most_narrow) = (work.most_wide_pieces(), work.most_narrow_pieces());
        for (index, (item, pieces)) in self.plan.items.iter().zip(&items).enumerate() {
            let wide = self.tiling.is_wide(item.rows.len() * self.heads.group());
            let parts = pieces.len().div_ceil(if wide { most_wide } else { most_narrow });
            for part in 0..parts {
                let border = |part: usize| pieces.start + pieces.len() * part / parts;
                let part = border(part)..border(part + 1);
                for rows in self.row_cuts(item) {
                    let seen = self.seen(&rows, &part);
                    if seen.is_empty() {
                        continue;
                    }
                    if rows.start.is_multiple_of(self.heads.group()) {
                        let rows = self.rows(&rows);
                        self.states[rows].iter_mut().for_each(|n| *n += 1);
                    }
                    self.tiles.push(Tile { item: index, rows, pieces: seen, slot: 0 });
                }
            }
        }
    }

    /// Lists the pieces of all items; returns each item's.
    fn piece_items(&mut self) -> Vec<Range<usize>> {
        let mut grows = vec![false; self.plan.spans.len()];
        self.plan.growing.iter().for_each(|&span| grows[span as usize] = true);
        let mut items = Vec::with_capacity(self.plan.items.len());
        for item in &self.plan.items {
            let first = self.pieces.len();
            for span in item.spans.start as usize..item.spans.end as usize {
                let (span, grows) = (&self.plan.spans[span], grows[span]);
                let end = span.first_position + span.tokens;
                let first_page = span.first_position / PIECE_TOKENS;
                let pages = &self.plan.pages[span.pages.start as usize..span.pages.end as usize];
                for (page, base) in pages.iter().zip((first_page..).map(|page| page * PIECE_TOKENS)) {
                    let from = span.first_position.max(base) - base;
                    // The kernel cuts off what its rows have not reached, so that a piece with room may be listed as full.
                    let to = if grows { PIECE_TOKENS } else { end.min(base + PIECE_TOKENS) - base };
                    self.pieces.push(Piece { page: page.0, base, from, to });
                }
            }
            items.push(first..self.pieces.len());
        }
        items
    }

    /// The item's packed rows, cut to tiles of whole rows where a tile holds one.
    fn row_cuts(&self, item: &WorkItem) -> impl Iterator<Item = Range<usize>> + use<> {
        let (group, most) = (self.heads.group(), self.tiling.most_rows());
        let (first, end) = (item.rows.start as usize, item.rows.end as usize);
        let rows = (most / group).max(1);
        (first..end).step_by(rows).flat_map(move |row| {
            let packed = row * group..end.min(row + rows) * group;
            packed.clone().step_by(most).map(move |at| at..packed.end.min(at + most))
        })
    }

    /// The rows that packed rows belong to.
    fn rows(&self, packed: &Range<usize>) -> Range<usize> {
        packed.start / self.heads.group()..(packed.end - 1) / self.heads.group() + 1
    }

    /// The rows of these packed ones that stand at the smallest and at the largest position.
    fn outermost(&self, packed: &Range<usize>) -> (usize, usize) {
        let at = |&row: &usize| self.plan.row_positions[row];
        let rows = self.rows(packed);
        let least = rows.clone().min_by_key(at).expect("a tile has rows");
        (least, rows.max_by_key(at).expect("a tile has rows"))
    }

    /// Those of `pieces` of which some of the packed rows see something.
    fn seen(&self, packed: &Range<usize>, pieces: &Range<usize>) -> Range<usize> {
        let positions = &self.plan.row_positions[self.rows(packed)];
        let (lowest, highest) = positions.iter().fold((u32::MAX, 0), |(low, high), &at| (low.min(at), high.max(at)));
        let list = &self.pieces[pieces.clone()];
        let behind = list.partition_point(|piece| piece.base + piece.from <= highest);
        let before = match self.plan.window {
            Some(window) => list[..behind].partition_point(|piece| piece.base + piece.to + window <= lowest + 1),
            None => 0,
        };
        pieces.start + before..pieces.start + behind
    }

    /// A partial slot for each row of each tile that holds a row with other states beside this one.
    fn give_slots(&mut self) {
        let group = self.heads.group();
        let mut last: Option<(usize, usize, usize)> = None;
        for index in 0..self.tiles.len() {
            let rows = self.rows(&self.tiles[index].rows);
            if self.states[rows.clone()].iter().all(|&states| states == 1) {
                continue;
            }
            let tile = &mut self.tiles[index];
            let key = (tile.item, tile.pieces.start, rows.start);
            // Tiles that share a row stand one after the other.
            if last == Some(key) {
                debug_assert!(!tile.rows.start.is_multiple_of(group));
                tile.slot = self.partial_slots - 1;
                continue;
            }
            last = Some(key);
            tile.slot = self.partial_slots;
            self.partial_slots += rows.len();
        }
    }

    fn finish(mut self, rows_padded: usize) -> DevicePlan {
        let (merge, states) = self.merge_lists(rows_padded);
        self.tiles.sort_by_key(|tile| std::cmp::Reverse(tile.pieces.len()));
        let tiling = self.tiling;
        let (wide, narrow): (Vec<Tile>, Vec<Tile>) =
            std::mem::take(&mut self.tiles).into_iter().partition(|tile| tiling.is_wide(tile.rows.len()));

        let mut words = vec![0; HEADER_WORDS];
        let set = |words: &mut Vec<u32>, at: PlanWord, value: u32| words[at as usize] = value;
        set(&mut words, PlanWord::PartialSlots, word(self.partial_slots));
        set(&mut words, PlanWord::Window, self.plan.window.unwrap_or(u32::MAX));
        set(&mut words, PlanWord::Rows, word(self.plan.row_positions.len()));
        let narrow_heads = narrow_heads(self.heads.kv_heads, narrow.len(), tiling.workers);
        set(&mut words, PlanWord::NarrowHeads, word(narrow_heads));
        for (tiles, count, at) in
            [(&wide, PlanWord::WideTiles, PlanWord::WideAt), (&narrow, PlanWord::NarrowTiles, PlanWord::NarrowAt)]
        {
            let here = word(words.len());
            set(&mut words, count, word(tiles.len()));
            set(&mut words, at, here);
            for tile in tiles {
                let rows = self.outermost(&tile.rows);
                words.extend(tile.words(rows));
            }
        }
        let here = word(words.len());
        set(&mut words, PlanWord::PiecesAt, here);
        words.extend(self.pieces.iter().flat_map(|piece| piece.words()));
        for (at, list) in [(PlanWord::MergeAt, merge), (PlanWord::StatesAt, states)] {
            let here = word(words.len());
            set(&mut words, at, here);
            words.extend(list);
        }
        DevicePlan { words, partial_slots: self.partial_slots }
    }

    /// Where each row's list starts (and the last one ends), and the slots that the lists name, in the order of positions. Of a
    /// row with one state, which has no slot, the list holds a word that nobody reads.
    fn merge_lists(&self, rows_padded: usize) -> (Vec<u32>, Vec<u32>) {
        let mut merge = Vec::with_capacity(rows_padded + 1);
        let mut end = 0;
        merge.push(0);
        for row in 0..rows_padded {
            end += self.states.get(row).copied().unwrap_or(0);
            merge.push(end);
        }
        let mut next = merge.clone();
        let mut slots = vec![0; end as usize];
        for tile in &self.tiles {
            if !tile.rows.start.is_multiple_of(self.heads.group()) {
                continue;
            }
            for (n, row) in self.rows(&tile.rows).enumerate() {
                slots[next[row] as usize] = word(tile.slot + n);
                next[row] += 1;
            }
        }
        (merge, slots)
    }
}

impl Tile {
    /// `outermost`: the rows at the smallest and the largest position. All move on by as much, so that they stay that.
    fn words(&self, outermost: (usize, usize)) -> [u32; TILE_WORDS] {
        let Tile { rows, pieces, slot, .. } = self;
        let (lowest, highest) = outermost;
        [rows.start, rows.len(), pieces.start, pieces.len(), *slot, lowest, highest, 0].map(word)
    }
}

/// Key heads that a worker takes of a narrow tile one after another: as many as leave enough to take for all.
fn narrow_heads(kv_heads: usize, tiles: usize, workers: Workers) -> usize {
    /// Takes by each worker, at which the last ones to end are late by little.
    const TAKES: usize = 8;
    let (Workers::Alike(workers) | Workers::Apart { narrow: workers, .. }) = workers;
    let enough = |heads: &usize| kv_heads.is_multiple_of(*heads) && tiles * (kv_heads / heads) >= TAKES * workers;
    (1..=kv_heads).rev().find(enough).unwrap_or(1)
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("a step has fewer than 2^32 packed rows, pieces and states")
}
