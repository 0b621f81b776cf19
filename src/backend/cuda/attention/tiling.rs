//! From the items of a plan to cuts: pages become pieces, and rows are packed (row x head of the group) and cut to what a block
//! computes at a time. Long items are then divided so that all multiprocessors have work (`tiles`), and the words are written
//! (`encode`); what they mean is `device_plan`'s.
//!
//! Most items are those of leaves, one row each, by the thousand: what is done for them is straight, and into memory that is kept
//! from plan to plan.

use std::ops::Range;

use super::device_plan::{
    DevicePlan, Growing, HEADER_WORDS, NEXT_PLACE, PIECE_TOKENS, PIECE_WORDS, Tiling, base_of, place_word,
};
use super::split_kv::Work;
use super::tiles::{Cut, Item, SplitLimit};
use crate::backend::HeadLayout;
use crate::plan::{AttentionPlan, KvSpan};

/// Marks the first word of a piece of several pages; what is beside it says where the list of its parts begins.
pub(super) const SHARED_PIECE: u32 = 1 << 31;

/// Places behind the pieces of an item that ends with a row, for pages that the row will turn.
const SPARE_PIECES: usize = 2;

/// Pieces that kernels/attention/ring.cuh takes at a time; an item begins with one of its steps.
const STEP_PIECES: usize = 2;

/// What is needed while a plan is cut, and kept for the next one.
#[derive(Default)]
pub(super) struct Scratch {
    /// By item, then row.
    pub cuts: Vec<Cut>,
    /// Of each row, by how many more tiles than the row before it is held, which may be fewer and then wraps; then where its
    /// list of states starts, and where the last one ends.
    pub merge: Vec<u32>,
    /// The same of what is listed already.
    pub listed: Vec<u32>,
    /// Of each row, how many of its first states its window has left behind.
    pub unseen: Vec<u32>,
    /// Of wide and of narrow tiles how many have so many pieces, then where the next one of them goes.
    pub places: [Vec<u32>; 2],
    /// In the order of their pieces.
    pub shared: Vec<SharedPiece>,
}

/// A piece of several pages.
pub(super) struct SharedPiece {
    /// Where its words are.
    pub piece: usize,
    /// The words of each part, by rising slots.
    pub parts: Vec<[u32; PIECE_WORDS]>,
}

pub(super) struct Cutter<'a> {
    pub plan: &'a AttentionPlan,
    pub heads: HeadLayout,
    pub tiling: &'a Tiling,
    pub scratch: &'a mut Scratch,
    pub made: &'a mut DevicePlan,
    /// Packed rows of a row, and whole rows that a tile holds at most: one, or a part of it, where a group fills a tile.
    pub group: u32,
    pub rows_a_tile: u32,
    /// Whether each tile of the plan (`AttentionPlan::tile`) makes one state of a row, neither divided nor added to others.
    pub keeps_tiles: bool,
    /// Pieces that are listed.
    pub pieces: u32,
}

/// See `DevicePlan::rebuild`.
pub(super) fn cut(
    made: &mut DevicePlan,
    scratch: &mut Scratch,
    plan: &AttentionPlan,
    heads: HeadLayout,
    rows_padded: usize,
    tiling: &Tiling,
) {
    let group = word(heads.group());
    let rows_a_tile = (word(tiling.most_rows()) / group).max(1);
    let keeps_tiles = plan.tile > 1;
    let mut cutter = Cutter { plan, heads, tiling, scratch, made, group, rows_a_tile, keeps_tiles, pieces: 0 };
    let work = cutter.cut_items();
    let limit = match keeps_tiles {
        true => SplitLimit::Tiles((plan.tile / PIECE_TOKENS) as usize),
        false => {
            let narrow = work.most_narrow_pieces();
            SplitLimit::Pieces { wide: work.most_wide_pieces(narrow), narrow }
        }
    };
    cutter.write(limit, rows_padded);
}

impl Cutter<'_> {
    /// Lists pieces and cuts of all items.
    fn cut_items(&mut self) -> Work {
        let plan = self.plan;
        let pages: usize = plan.spans.iter().map(|span| span.pages.len()).sum();
        let most_pieces = pages + plan.growing.len() * SPARE_PIECES;
        make_room(&mut self.made.words, piece_at(word(most_pieces)));
        self.made.growing.clear();
        self.scratch.cuts.clear();
        self.scratch.shared.clear();

        let all_grow = plan.can_advance();
        // A row that grows, where nothing hides a part of what it reads, and its group fits in a tile.
        let sees_all = plan.window.is_none() && self.group as usize <= self.tiling.most_rows();
        let mut work = Work::new(self.tiling.workers);
        // Spans that grow are listed as they stand.
        let mut growing = plan.growing.as_slice();
        for item in &plan.items {
            let first_piece = self.pieces;
            let mut grows = false;
            for span in item.spans.clone() {
                grows = growing.first().is_some_and(|next| next.span == span);
                growing = &growing[usize::from(grows)..];
                let may_share = span > item.spans.start && self.keeps_tiles;
                self.list_pieces(&plan.spans[span as usize], grows, may_share);
            }
            grows &= all_grow;
            let pieces = first_piece..self.pieces;
            match grows && sees_all && item.rows.len() == 1 {
                true => self.cut_lone_row(item.rows.start, pieces, &mut work),
                false => self.cut_rows(&item.rows, pieces, grows, &mut work),
            }
            if grows {
                let spare = piece_at(self.pieces);
                self.made.growing.push(Growing { next_piece: word(spare), room: SPARE_PIECES as u32 });
                self.pieces += SPARE_PIECES as u32;
                self.made.words[spare..][..SPARE_PIECES * PIECE_WORDS].fill(0);
            }
        }
        work
    }

    /// `may_share`: whether its first page joins the piece before it, where that has slots of the same positions.
    fn list_pieces(&mut self, span: &KvSpan, grows: bool, may_share: bool) {
        let (first, end) = (span.first_position, span.first_position + span.tokens);
        let pages = &self.plan.pages[span.pages.start as usize..span.pages.end as usize];
        let at = piece_at(self.pieces);
        self.pieces += span.pages.end - span.pages.start;
        let (pieces, _) = self.made.words[at..piece_at(self.pieces)].as_chunks_mut::<PIECE_WORDS>();
        let first_base = first - first % PIECE_TOKENS;
        let mut place = place_word(first_base, 0..PIECE_TOKENS);
        for (piece, page) in pieces.iter_mut().zip(pages) {
            *piece = [page.0, place];
            place += NEXT_PLACE;
        }
        // The kernel cuts off what its rows have not reached, so that a piece with room may be listed as full.
        if !grows && let Some([_, place]) = pieces.last_mut() {
            let last_base = base_of(*place);
            *place = place_word(last_base, 0..end - last_base);
        }
        if let Some([_, place]) = pieces.first_mut() {
            *place = place_word(first_base, first - first_base..*place & 63);
        }
        if may_share && first > first_base {
            self.share_piece(at);
        }
    }

    /// Makes one piece of the one whose words are at `at` and of the one before it, of which it is the other slots.
    fn share_piece(&mut self, at: usize) {
        let words = &mut self.made.words;
        let part: [u32; PIECE_WORDS] = [words[at], words[at + 1]];
        let before = at - PIECE_WORDS;
        let parts = match words[before] & SHARED_PIECE {
            0 => {
                let first = [words[before], words[before + 1]];
                self.scratch.shared.push(SharedPiece { piece: before, parts: vec![first] });
                self.scratch.shared.len() - 1
            }
            _ => self.scratch.shared.len() - 1,
        };
        self.scratch.shared[parts].parts.push(part);
        words[before] |= SHARED_PIECE;
        words[before + 1] = place_word(base_of(part[1]), words[before + 1] >> 6 & 63..part[1] & 63);
        words.copy_within(at + PIECE_WORDS..piece_at(self.pieces), at);
        self.pieces -= 1;
    }

    /// The cut of the usual leaf's item, whose only row stands behind all of it: what `cut_rows` would make of it, without a look
    /// at the pieces.
    fn cut_lone_row(&mut self, row: u32, pieces: Range<u32>, work: &mut Work) {
        let (packed, at) = (self.group, self.plan.row_positions[row as usize]);
        let wide = self.tiling.is_wide(packed as usize);
        self.count_work(wide, &pieces, work);
        self.scratch.cuts.push(Cut {
            item: Item { pieces: pieces.clone(), cuts: 1, wide, grows: true },
            rows: row..row + 1,
            first: row * packed,
            packed,
            lowest: at,
            highest: at,
            pieces,
            wide,
            begins_rows: true,
        });
    }

    fn count_work(&self, wide: bool, pieces: &Range<u32>, work: &mut Work) {
        match wide {
            true => work.add_wide(self.heads.kv_heads, pieces.len()),
            false => work.add_narrow(self.heads.kv_heads, pieces.len()),
        }
    }

    /// Cuts an item's packed rows, to whole rows where a tile holds one.
    fn cut_rows(&mut self, rows: &Range<u32>, pieces: Range<u32>, grows: bool, work: &mut Work) {
        let most = word(self.tiling.most_rows());
        let packed = rows.len() * self.group as usize;
        let first_cut = self.scratch.cuts.len();
        let item = Item { pieces, cuts: 0, wide: self.tiling.is_wide(packed), grows };
        let mut row = rows.start;
        while row < rows.end {
            let rows = row..rows.end.min(row + self.rows_a_tile);
            row = rows.end;
            let (lowest, highest) = outermost(&self.plan.row_positions[rows.start as usize..rows.end as usize]);
            let pieces = self.seen(lowest, highest, &item.pieces);
            let (mut first, end) = (rows.start * self.group, rows.end * self.group);
            let mut begins_rows = true;
            while first < end {
                let packed = most.min(end - first);
                let wide = self.tiling.is_wide(packed as usize);
                self.count_work(wide, &pieces, work);
                let (item, rows, pieces) = (item.clone(), rows.clone(), pieces.clone());
                self.scratch.cuts.push(Cut { item, rows, first, packed, lowest, highest, pieces, wide, begins_rows });
                first += packed;
                begins_rows = false;
            }
        }
        let cuts = &mut self.scratch.cuts[first_cut..];
        let count = word(cuts.len());
        if let Some(first) = cuts.first_mut() {
            first.item.cuts = count;
        }
    }

    /// Those of `pieces` of which rows between these two positions see something.
    fn seen(&self, lowest: u32, highest: u32, pieces: &Range<u32>) -> Range<u32> {
        let words = &self.made.words[piece_at(pieces.start)..piece_at(pieces.end)];
        let (list, _) = words.as_chunks::<PIECE_WORDS>();
        let reached = |&[_, piece]: &[u32; PIECE_WORDS]| base_of(piece) + (piece >> 6 & 63) <= highest;
        let behind = match list.last() {
            Some(last) if reached(last) => list.len(),
            _ => list.partition_point(reached),
        };
        let passed = |&[_, piece]: &[u32; PIECE_WORDS], window| base_of(piece) + (piece & 63) + window <= lowest + 1;
        let before = match self.plan.window {
            Some(window) => list[..behind].partition_point(|piece| passed(piece, window)),
            None => 0,
        };
        // Where tiles are whole, the kernel's steps begin at the same positions for all rows.
        let before = if self.keeps_tiles { before - before % STEP_PIECES } else { before };
        pieces.start + word(before)..pieces.start + word(behind)
    }
}

/// The smallest and the largest of some positions.
fn outermost(positions: &[u32]) -> (u32, u32) {
    if let &[only] = positions {
        return (only, only);
    }
    positions.iter().fold((u32::MAX, 0), |(lowest, highest), &at| (lowest.min(at), highest.max(at)))
}

/// Makes `words` no shorter than `len`. Every word is written afterwards: what an earlier plan has left need not be cleared.
pub(super) fn make_room(words: &mut Vec<u32>, len: usize) {
    if words.len() < len {
        words.resize(len, 0);
    }
}

/// Where the words of a piece are.
pub(super) fn piece_at(piece: u32) -> usize {
    HEADER_WORDS + piece as usize * PIECE_WORDS
}

pub(super) fn word(number: usize) -> u32 {
    u32::try_from(number).expect("a step has fewer than 2^32 packed rows, pieces and states")
}
