//! From the items of a plan to tiles: rows are packed (row x head of the group), cut to what a block computes at a time, and
//! long items are divided so that all multiprocessors have work. What the words mean is `device_plan`'s.

use std::ops::Range;

use super::device_plan::{
    DevicePlan, Growing, HEADER_WORDS, PIECE_TOKENS, PIECE_WORDS, PlanWord, TILE_FIELDS, TILE_PIECES, TILE_WORDS,
    Tiling, Workers, base_of, first_seen, piece_words, place_word,
};
use super::division::Work;
use crate::backend::HeadLayout;
use crate::plan::{AttentionPlan, KvSpan, WorkItem};

/// How many states the rows of a tile have, as `RowStates` of kernels/attention_plan.cuh.
const SEVERAL: u32 = 0;
const ONE: u32 = 1;
const DIFFERENT: u32 = 2;

/// Marks the first word of a piece of several pages; what is beside it says where the list of its parts begins.
const SHARED_PIECE: u32 = 1 << 31;

/// Places behind the pieces of an item that ends with a row, for pages that the row will turn.
const SPARE_PIECES: usize = 2;

/// Pieces that kernels/attention_wgmma.cuh takes at a time; an item begins with one of its steps.
const STEP_PIECES: usize = 2;

/// An item's pieces, and its rows cut to tiles.
struct Item {
    pieces: Range<u32>,
    cuts: Range<u32>,
    wide: bool,
    grows: bool,
}

/// Whole rows of an item, or a part of one where a group is larger than a tile, and pieces of it of which some of the rows see
/// something.
#[derive(Clone)]
struct Tile {
    rows: Range<u32>,
    /// Packed.
    first: u32,
    packed: u32,
    /// The rows at the smallest and at the largest position. All move on by as much, so that they stay that.
    lowest: u32,
    highest: u32,
    pieces: Range<u32>,
    slot: u32,
    wide: bool,
    /// Whether it is the first of its rows; a row of which a tile holds a part has others beside it.
    begins_rows: bool,
    /// Whether it ends with a row that grows.
    grows: bool,
}

/// What is needed while a plan is cut, and kept for the next one.
#[derive(Default)]
pub(super) struct Scratch {
    items: Vec<Item>,
    /// Tiles of whole items.
    cuts: Vec<Tile>,
    /// By item, then piece, then row.
    tiles: Vec<Tile>,
    /// Of each row, where its list of states starts, and where the last one ends.
    merge: Vec<u32>,
    /// The same of what is listed already.
    listed: Vec<u32>,
    states: Vec<u32>,
    /// Of each row, how many of its first states its window has left behind.
    unseen: Vec<u32>,
    /// Tiles by kind and length, then where the next one of them goes.
    places: Vec<u32>,
    /// In the order of their pieces.
    shared: Vec<SharedPiece>,
}

/// A piece of several pages.
struct SharedPiece {
    /// Where its words are.
    piece: usize,
    /// The words of each part, by rising slots.
    parts: Vec<[u32; PIECE_WORDS]>,
}

struct Cutter<'a> {
    plan: &'a AttentionPlan,
    heads: HeadLayout,
    tiling: &'a Tiling,
    scratch: &'a mut Scratch,
    made: &'a mut DevicePlan,
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
    let mut cutter = Cutter { plan, heads, tiling, scratch, made };
    let work = cutter.cut_items();
    cutter.divide(&work, rows_padded);
    cutter.give_slots();
    cutter.write(rows_padded);
}

impl Cutter<'_> {
    /// Lists pieces and cuts of all items.
    fn cut_items(&mut self) -> Work {
        let DevicePlan { words, growing, .. } = &mut *self.made;
        words.clear();
        words.resize(HEADER_WORDS, 0);
        growing.clear();
        self.scratch.items.clear();
        self.scratch.cuts.clear();
        self.scratch.shared.clear();

        let plan = self.plan;
        let all_grow = plan.can_advance();
        let mut work = Work::new(self.tiling.workers);
        // Spans that grow are listed as they stand.
        let mut next_growing = plan.growing.iter().map(|growing| growing.span).peekable();
        for item in &plan.items {
            let first_piece = self.piece_count();
            let mut grows = false;
            for span in item.spans.clone() {
                grows = next_growing.next_if_eq(&span).is_some();
                let may_share = span > item.spans.start && self.keeps_tiles();
                self.list_pieces(&plan.spans[span as usize], grows, may_share);
            }
            let pieces = first_piece..self.piece_count();
            let first_cut = self.scratch.cuts.len();
            self.cut_rows(item, &pieces);
            for cut in &self.scratch.cuts[first_cut..] {
                match cut.wide {
                    true => work.add_wide(self.heads.kv_heads, cut.pieces.len()),
                    false => work.add_narrow(self.heads.kv_heads, cut.pieces.len()),
                }
            }
            let wide = self.tiling.is_wide(item.rows.len() * self.heads.group());
            let cuts = word(first_cut)..word(self.scratch.cuts.len());
            self.scratch.items.push(Item { pieces, cuts, wide, grows: grows && all_grow });
            if grows && all_grow {
                let words = &mut self.made.words;
                self.made.growing.push(Growing { next_piece: word(words.len()), room: word(SPARE_PIECES) });
                words.resize(words.len() + SPARE_PIECES * PIECE_WORDS, 0);
            }
        }
        work
    }

    fn piece_count(&self) -> u32 {
        word((self.made.words.len() - HEADER_WORDS) / PIECE_WORDS)
    }

    /// `may_share`: whether its first page joins the piece before it, where that has slots of the same positions.
    fn list_pieces(&mut self, span: &KvSpan, grows: bool, may_share: bool) {
        let (first, end) = (span.first_position, span.first_position + span.tokens);
        let pages = &self.plan.pages[span.pages.start as usize..span.pages.end as usize];
        let words = &mut self.made.words;
        let at = words.len();
        words.resize(at + pages.len() * PIECE_WORDS, 0);
        let first_base = first / PIECE_TOKENS * PIECE_TOKENS;
        let mut base = first_base;
        for (words, page) in words[at..].chunks_exact_mut(PIECE_WORDS).zip(pages) {
            words.copy_from_slice(&piece_words(page.0, base, 0..PIECE_TOKENS));
            base += PIECE_TOKENS;
        }
        // The kernel cuts off what its rows have not reached, so that a piece with room may be listed as full.
        if !grows {
            let (last_base, place) = (base - PIECE_TOKENS, words.len() - 1);
            words[place] = place_word(last_base, 0..end - last_base);
        }
        let to = words[at + 1] & 63;
        words[at + 1] = place_word(first_base, first - first_base..to);
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
        words.drain(at..at + PIECE_WORDS);
    }

    /// Whether each tile of the plan (`AttentionPlan::tile`) makes one state of a row, neither divided nor added to others.
    fn keeps_tiles(&self) -> bool {
        self.plan.tile > 1
    }

    /// Cuts the item's packed rows, to whole rows where a tile holds one.
    fn cut_rows(&mut self, item: &WorkItem, pieces: &Range<u32>) {
        let (group, most) = (word(self.heads.group()), word(self.tiling.most_rows()));
        let rows_a_tile = if group < most { most / group } else { 1 };
        let mut row = item.rows.start;
        while row < item.rows.end {
            let rows = row..item.rows.end.min(row + rows_a_tile);
            row = rows.end;
            let (lowest, highest) = self.outermost(&rows);
            let pieces = self.seen(lowest, highest, pieces);
            let (mut first, end) = (rows.start * group, rows.end * group);
            while first < end {
                let packed = most.min(end - first);
                self.scratch.cuts.push(Tile {
                    rows: rows.clone(),
                    first,
                    packed,
                    lowest,
                    highest,
                    pieces: pieces.clone(),
                    slot: 0,
                    wide: self.tiling.is_wide(packed as usize),
                    begins_rows: first == rows.start * group,
                    grows: false,
                });
                first += packed;
            }
        }
    }

    /// Those of `rows` that stand at the smallest and at the largest position.
    fn outermost(&self, rows: &Range<u32>) -> (u32, u32) {
        let (mut lowest, mut highest) = ((u32::MAX, rows.start), (0, rows.start));
        for (row, &at) in rows.clone().zip(&self.plan.row_positions[rows.start as usize..rows.end as usize]) {
            if at < lowest.0 {
                lowest = (at, row);
            }
            if at >= highest.0 {
                highest = (at, row);
            }
        }
        (lowest.1, highest.1)
    }

    /// Those of `pieces` of which rows between these two see something.
    fn seen(&self, lowest: u32, highest: u32, pieces: &Range<u32>) -> Range<u32> {
        let words = &self.made.words[HEADER_WORDS + pieces.start as usize * PIECE_WORDS..];
        let (list, _) = words[..pieces.len() * PIECE_WORDS].as_chunks::<PIECE_WORDS>();
        let [lowest, highest] = [lowest, highest].map(|row| self.plan.row_positions[row as usize]);
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
        let before = if self.keeps_tiles() { before - before % STEP_PIECES } else { before };
        pieces.start + word(before)..pieces.start + word(behind)
    }

    /// Makes the tiles: each cut of each part of an item. Counts how many hold each row.
    fn divide(&mut self, work: &Work, rows_padded: usize) {
        // Pieces of a tile of the plan. Items begin where one does.
        let undivided = self.keeps_tiles().then_some((self.plan.tile / PIECE_TOKENS) as usize);
        let Scratch { items, cuts, tiles, merge, .. } = &mut *self.scratch;
        let (most_wide, most_narrow) = (work.most_wide_pieces(), work.most_narrow_pieces());
        tiles.clear();
        merge.clear();
        merge.resize(rows_padded + 1, 0);
        let mut add = |tile: Tile| {
            if tile.begins_rows {
                merge[tile.rows.start as usize..tile.rows.end as usize].iter_mut().for_each(|n| *n += 1);
            }
            tiles.push(tile);
        };
        for item in items {
            let cuts = &cuts[item.cuts.start as usize..item.cuts.end as usize];
            let pieces = item.pieces.len();
            let most = match undivided {
                Some(undivided) => undivided,
                None if item.wide => most_wide,
                None => most_narrow,
            };
            if pieces <= most {
                for cut in cuts.iter().filter(|cut| !cut.pieces.is_empty()) {
                    add(Tile { grows: item.grows, ..cut.clone() });
                }
                continue;
            }
            let parts = pieces.div_ceil(most);
            let border = |part: usize| {
                item.pieces.start
                    + word(if undivided.is_some() { pieces.min(part * most) } else { pieces * part / parts })
            };
            for part in 0..parts {
                let (from, to) = (border(part), border(part + 1));
                for cut in cuts {
                    let pieces = cut.pieces.start.max(from)..cut.pieces.end.min(to);
                    if !pieces.is_empty() {
                        add(Tile { pieces, grows: item.grows && part + 1 == parts, ..cut.clone() });
                    }
                }
            }
        }
    }

    /// A partial slot for each row of each tile that holds a row with other states beside this one, and the slots that the
    /// rows' lists name, in the order of positions. Of a row with one state, which has no slot, the list holds a word that
    /// nobody reads. Where tiles are whole, what the row sees comes first: an empty state adds nothing, but only behind the
    /// others it also moves none of them.
    fn give_slots(&mut self) {
        let window = self.plan.window.filter(|_| self.keeps_tiles());
        let Scratch { tiles, merge, listed, states, unseen, .. } = &mut *self.scratch;
        unseen.clear();
        unseen.resize(self.plan.row_positions.len(), 0);
        let mut end = 0;
        for count in merge.iter_mut() {
            end += std::mem::replace(count, end);
        }
        listed.clone_from(merge);
        states.clear();
        states.resize(end as usize, 0);
        let mut given = 0;
        for tile in tiles {
            let rows = tile.rows.start as usize..tile.rows.end as usize;
            let alone = merge[rows.start..=rows.end].windows(2).all(|list| list[1] - list[0] == 1);
            if !tile.begins_rows {
                // Tiles that share a row stand one after the other.
                tile.slot = if alone { 0 } else { given - 1 };
                continue;
            }
            if !alone {
                tile.slot = given;
                given += word(rows.len());
            }
            if let Some(window) = window {
                let last = HEADER_WORDS + (tile.pieces.end as usize - 1) * PIECE_WORDS + 1;
                let end = base_of(self.made.words[last]) + PIECE_TOKENS;
                for (unseen, &at) in unseen[rows.clone()].iter_mut().zip(&self.plan.row_positions[rows.clone()]) {
                    *unseen += u32::from(end <= first_seen(at, window));
                }
            }
            for (slot, next) in (tile.slot..).zip(&mut listed[rows]) {
                states[*next as usize] = slot;
                *next += 1;
            }
        }
        for (list, &unseen) in merge.windows(2).zip(&*unseen) {
            states[list[0] as usize..list[1] as usize].rotate_left(unseen as usize);
        }
        self.made.partial_slots = given as usize;
    }

    fn write(&mut self, rows_padded: usize) {
        let words = &mut self.made.words;
        for SharedPiece { piece, parts } in &self.scratch.shared {
            words[*piece] = SHARED_PIECE | word(words.len());
            words.push(word(parts.len()));
            words.extend(parts.iter().flatten());
        }
        words.resize(words.len().next_multiple_of(4), 0);
        let tiles_at = words.len();
        let wide = self.write_tiles();
        let (words, tiles) = (&mut self.made.words, self.scratch.tiles.len());
        let merge_at = words.len();
        words.extend_from_slice(&self.scratch.merge);
        let states_at = words.len();
        words.extend_from_slice(&self.scratch.states);
        debug_assert_eq!(states_at - merge_at, rows_padded + 1);
        for (at, value) in [
            (PlanWord::WideTiles, wide),
            (PlanWord::NarrowTiles, tiles - wide),
            (PlanWord::WideAt, tiles_at),
            (PlanWord::NarrowAt, tiles_at + wide * TILE_WORDS),
            (PlanWord::PiecesAt, HEADER_WORDS),
            (PlanWord::MergeAt, merge_at),
            (PlanWord::StatesAt, states_at),
            (PlanWord::PartialSlots, self.made.partial_slots),
            (PlanWord::Rows, self.plan.row_positions.len()),
            (PlanWord::FirstPosition, self.plan.row_positions.first().map_or(0, |&at| at as usize)),
            (PlanWord::NarrowHeads, narrow_heads(self.heads.kv_heads, tiles - wide, self.tiling.workers)),
        ] {
            words[at as usize] = word(value);
        }
        words[PlanWord::Window as usize] = self.plan.window.unwrap_or(u32::MAX);
    }

    /// Wide tiles, then narrow ones, the longest of each first, and where the last ones of growing rows are. Returns how many
    /// are wide.
    fn write_tiles(&mut self) -> usize {
        let Scratch { tiles, places, merge, .. } = &mut *self.scratch;
        let positions = &self.plan.row_positions;
        let DevicePlan { words, last_tiles, tiles_a_row, growing, .. } = &mut *self.made;
        let most = tiles.iter().map(|tile| tile.pieces.len()).max().unwrap_or(0);
        let rank = |tile: &Tile| if tile.wide { most } else { 2 * most } - tile.pieces.len();
        places.clear();
        places.resize(2 * most + 1, 0);
        tiles.iter().for_each(|tile| places[rank(tile)] += 1);
        let mut end = 0;
        for count in places.iter_mut() {
            end += std::mem::replace(count, end);
        }
        let wide = places[most] as usize;

        let tiles_at = words.len();
        words.resize(tiles_at + tiles.len() * TILE_WORDS, 0);
        last_tiles.clear();
        for tile in &*tiles {
            let place = &mut places[rank(tile)];
            let at = tiles_at + *place as usize * TILE_WORDS;
            *place += 1;
            let Tile { first, packed, ref pieces, slot, lowest, highest, .. } = *tile;
            let [lowest, highest] = [lowest, highest].map(|row| positions[row as usize]);
            let states = states_of(&merge[tile.rows.start as usize..=tile.rows.end as usize]);
            let fields = [first, packed, pieces.start, pieces.end - pieces.start, slot, lowest, highest, states];
            words[at..at + TILE_FIELDS].copy_from_slice(&fields);
            let first_piece = HEADER_WORDS + pieces.start as usize * PIECE_WORDS;
            let first_pieces = first_piece..first_piece + pieces.len().min(TILE_PIECES) * PIECE_WORDS;
            words.copy_within(first_pieces, at + TILE_FIELDS);
            if tile.grows {
                last_tiles.push(word(at));
            }
        }
        *tiles_a_row = last_tiles.len() / growing.len().max(1);
        wide
    }
}

/// Of rows whose lists of states begin and end there.
fn states_of(lists: &[u32]) -> u32 {
    let mut counts = lists.windows(2).map(|list| list[1] - list[0] == 1);
    match (counts.clone().any(|one| one), counts.all(|one| one)) {
        (_, true) => ONE,
        (true, false) => DIFFERENT,
        (false, false) => SEVERAL,
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
