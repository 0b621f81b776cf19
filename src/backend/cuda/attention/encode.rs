//! From pieces and cuts to the words of a plan: where each tile goes, which partial slots it fills, and what the lists of the rows'
//! states name. What the words mean is `device_plan`'s.

use std::ops::Range;

use super::device_plan::{
    DECODE_WARPS, DevicePlan, HEADER_WORDS, NARROW_WARPS, PIECE_TOKENS, PIECE_WORDS, PlanWord, TILE_FIELDS,
    TILE_PIECES, TILE_WORDS, Workers, base_of, first_seen,
};
use super::tiles::{Cut, SplitLimit, Tile, for_each_tile};
use super::tiling::{Cutter, SHARED_PIECE, Scratch, SharedPiece, make_room, piece_at, word};

/// How many states the rows of a tile have, as `RowStates` of kernels/attention/plan.cuh.
const SEVERAL: u32 = 0;
const ONE: u32 = 1;
const DIFFERENT: u32 = 2;

/// How many tiles there are.
struct Count {
    wide: usize,
    all: usize,
    narrow_pieces: Pieces,
}

/// How many pieces some tiles have.
struct Pieces {
    all: usize,
    longest: usize,
}

/// Where the parts of a plan's words begin, in words, and the end of all.
struct Layout {
    shared_at: usize,
    tiles_at: usize,
    merge_at: usize,
    states_at: usize,
    end: usize,
}

impl Cutter<'_> {
    /// Writes what is not written yet: all but the pieces.
    pub(super) fn write(&mut self, mut limit: SplitLimit, rows_padded: usize) {
        let (Count { wide, all: tiles, narrow_pieces }, layout) = loop {
            let count = self.count(limit, rows_padded);
            let layout = self.lay_out(count.all);
            // No more slots than states: only where these are too many need slots be counted.
            let fits =
                layout.end - layout.states_at <= self.tiling.most_slots || self.slots(limit) <= self.tiling.most_slots;
            match limit.coarser(&self.scratch.cuts).filter(|_| !fits) {
                Some(coarser) => limit = coarser,
                None => break (count, layout),
            }
        };
        make_room(&mut self.made.words, layout.end);
        self.made.words.truncate(layout.end);
        self.write_shared(&layout);
        self.write_tiles(limit, &layout);
        let words = &mut self.made.words;
        words[layout.merge_at..layout.states_at].copy_from_slice(&self.scratch.merge);
        words[..HEADER_WORDS].fill(0);
        for (at, value) in [
            (PlanWord::WideTiles, wide),
            (PlanWord::NarrowTiles, tiles - wide),
            (PlanWord::WideAt, layout.tiles_at),
            (PlanWord::NarrowAt, layout.tiles_at + wide * TILE_WORDS),
            (PlanWord::PiecesAt, HEADER_WORDS),
            (PlanWord::MergeAt, layout.merge_at),
            (PlanWord::StatesAt, layout.states_at),
            (PlanWord::PartialSlots, self.made.partial_slots),
            (PlanWord::Rows, self.plan.row_positions.len()),
            (PlanWord::FirstPosition, self.plan.row_positions.first().map_or(0, |&at| at as usize)),
            (
                PlanWord::NarrowHeads,
                narrow_heads(self.heads.kv_heads, [wide, tiles - wide], &narrow_pieces, self.tiling.workers),
            ),
        ] {
            words[at as usize] = word(value);
        }
        words[PlanWord::Window as usize] = self.plan.window.unwrap_or(u32::MAX);
    }

    /// Counts how many tiles hold each row, and how many have so many pieces; from the latter, where they go: wide tiles, then
    /// narrow ones, the longest of each first.
    fn count(&mut self, limit: SplitLimit, rows_padded: usize) -> Count {
        let Scratch { cuts, merge, places, .. } = &mut *self.scratch;
        merge.clear();
        merge.resize(rows_padded + 1, 0);
        let longest = cuts.iter().map(|cut| cut.pieces.len()).max().unwrap_or(0);
        for places in &mut *places {
            places.clear();
            places.resize(longest + 1, 0);
        }
        let [wide, narrow] = places;
        let (steps, wide_counts, narrow_counts) = (&mut merge[..], &mut wide[..], &mut narrow[..]);
        for_each_tile(cuts, limit, |Tile { cut: Cut { rows, begins_rows, wide, .. }, pieces, .. }| {
            if *begins_rows {
                steps[rows.start as usize] = steps[rows.start as usize].wrapping_add(1);
                steps[rows.end as usize] = steps[rows.end as usize].wrapping_sub(1);
            }
            let counts = if *wide { &mut *wide_counts } else { &mut *narrow_counts };
            counts[pieces.len()] += 1;
        });
        let lengths = narrow_counts.iter().enumerate();
        let narrow_pieces = Pieces {
            all: lengths.map(|(length, &count)| length * count as usize).sum(),
            longest: narrow_counts.iter().rposition(|&count| count > 0).unwrap_or(0),
        };
        let mut end = 0;
        let mut rank = |places: &mut Vec<u32>| {
            for count in places.iter_mut().rev() {
                end += std::mem::replace(count, end);
            }
            end as usize
        };
        Count { wide: rank(wide), all: rank(narrow), narrow_pieces }
    }

    /// From how many tiles hold each row to where its list is.
    fn lay_out(&mut self, tiles: usize) -> Layout {
        let Scratch { merge, listed, shared, .. } = &mut *self.scratch;
        let (mut states, mut held) = (0, 0u32);
        for step in merge.iter_mut() {
            held = held.wrapping_add(*step);
            *step = states;
            states += held;
        }
        listed.clone_from(merge);
        let shared_at = piece_at(self.pieces);
        let shared_words: usize = shared.iter().map(|piece| 1 + piece.parts.len() * PIECE_WORDS).sum();
        let tiles_at = (shared_at + shared_words).next_multiple_of(4);
        let merge_at = tiles_at + tiles * TILE_WORDS;
        let states_at = merge_at + merge.len();
        Layout { shared_at, tiles_at, merge_at, states_at, end: states_at + states as usize }
    }

    /// Partial slots that the tiles fill, once it is known where the rows' lists are.
    fn slots(&self, limit: SplitLimit) -> usize {
        let Scratch { cuts, merge, .. } = &*self.scratch;
        let mut slots = 0;
        for_each_tile(cuts, limit, |Tile { cut: Cut { rows, begins_rows, .. }, .. }| {
            if *begins_rows && states_of(&merge[rows.start as usize..=rows.end as usize]) != ONE {
                slots += (rows.end - rows.start) as usize;
            }
        });
        slots
    }

    /// The lists of parts of pieces that segments share.
    fn write_shared(&mut self, layout: &Layout) {
        let words = &mut self.made.words;
        let mut at = layout.shared_at;
        for SharedPiece { piece, parts } in &self.scratch.shared {
            words[*piece] = SHARED_PIECE | word(at);
            words[at] = word(parts.len());
            let list = &mut words[at + 1..][..parts.len() * PIECE_WORDS];
            list.copy_from_slice(parts.as_flattened());
            at += 1 + list.len();
        }
        words[at..layout.tiles_at].fill(0);
    }

    /// Writes tiles and the rows' lists of states, and notes where the last tiles of growing rows are.
    ///
    /// A partial slot is given to each row of each tile that holds a row with other states beside this one, and the rows' lists
    /// name them in the order of positions. Of a row with one state, which has no slot, the list holds a word that nobody reads.
    fn write_tiles(&mut self, limit: SplitLimit, layout: &Layout) {
        let Scratch { cuts, merge, listed, places: [wide, narrow], .. } = &mut *self.scratch;
        let (merge, listed, wide, narrow) = (&merge[..], &mut listed[..], &mut wide[..], &mut narrow[..]);
        let DevicePlan { words, last_tiles, tiles_a_row, growing, partial_slots, .. } = &mut *self.made;
        let (pieces, words) = words.split_at_mut(layout.tiles_at);
        let (tile_words, words) = words.split_at_mut(layout.merge_at - layout.tiles_at);
        let (tile_words, _) = tile_words.as_chunks_mut::<TILE_WORDS>();
        let states = &mut words[layout.states_at - layout.merge_at..];
        last_tiles.clear();
        let mut given = 0;
        for_each_tile(cuts, limit, |Tile { cut, pieces: Range { start, end }, grows }| {
            let rows = cut.rows.start as usize..cut.rows.end as usize;
            let how_many = states_of(&merge[rows.start..rows.end + 1]);
            let slot = match (how_many, cut.begins_rows) {
                (ONE, _) => 0,
                (_, true) => given,
                // Tiles that share a row stand one after the other.
                (_, false) => given - 1,
            };
            if cut.begins_rows {
                for (number, next) in (0u32..).zip(&mut listed[rows]) {
                    states[*next as usize] = slot + number;
                    *next += 1;
                }
                given += if how_many == ONE { 0 } else { cut.rows.end - cut.rows.start };
            }
            let place = if cut.wide { &mut wide[(end - start) as usize] } else { &mut narrow[(end - start) as usize] };
            let words = &mut tile_words[*place as usize];
            if grows {
                last_tiles.push(word(layout.tiles_at) + *place * TILE_WORDS as u32);
            }
            *place += 1;
            let fields = [cut.first, cut.packed, start, end - start, slot, cut.lowest, cut.highest, how_many];
            words[..TILE_FIELDS].copy_from_slice(&fields);
            let pieces = &pieces[piece_at(start)..piece_at(end)];
            let mut first_pieces = [0; TILE_PIECES * PIECE_WORDS];
            match pieces.first_chunk() {
                Some(first) => first_pieces = *first,
                None => first_pieces[..pieces.len()].copy_from_slice(pieces),
            }
            words[TILE_FIELDS..].copy_from_slice(&first_pieces);
        });
        *partial_slots = given as usize;
        *tiles_a_row = last_tiles.len() / growing.len().max(1);
        if let Some(window) = self.plan.window.filter(|_| self.keeps_tiles) {
            self.see_first(window, limit, layout);
        }
    }

    /// Where tiles are whole, what a row sees comes first in its list: an empty state adds nothing, but only behind the others it
    /// also moves none of them.
    fn see_first(&mut self, window: u32, limit: SplitLimit, layout: &Layout) {
        let positions = &self.plan.row_positions;
        let words = &mut self.made.words;
        let Scratch { cuts, merge, unseen, .. } = &mut *self.scratch;
        unseen.clear();
        unseen.resize(positions.len(), 0);
        for_each_tile(cuts, limit, |Tile { cut: Cut { rows, begins_rows, .. }, pieces, .. }| {
            let rows = rows.start as usize..rows.end as usize;
            let end = base_of(words[piece_at(pieces.end) - 1]) + PIECE_TOKENS;
            for (unseen, &at) in unseen[rows.clone()].iter_mut().zip(&positions[rows]) {
                *unseen += u32::from(*begins_rows && end <= first_seen(at, window));
            }
        });
        let states = &mut words[layout.states_at..];
        for (list, &unseen) in merge.windows(2).zip(&*unseen) {
            states[list[0] as usize..list[1] as usize].rotate_left(unseen as usize);
        }
    }
}

/// Of rows whose lists of states begin and end there.
fn states_of(lists: &[u32]) -> u32 {
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

/// Key heads that a worker takes of a narrow tile one after another: as many as leave enough to take for all. Of short tiles that
/// are all about as long, as many as let the workers that take nothing else do with one take each, while the others are busy with
/// wide tiles: nothing is drawn then.
fn narrow_heads(kv_heads: usize, [wide_tiles, tiles]: [usize; 2], pieces: &Pieces, workers: Workers) -> usize {
    /// Takes by each worker, at which the last ones to end are late by little.
    const TAKES: usize = 8;
    /// Pieces of one take, of which reading them is not what bounds; times the pieces of the mean tile that the longest may have; and
    /// the share of workers with a wide tile that makes the others busy. Chosen by what was measured on an H200
    /// (benches/attention/NOTES.md, fifth round).
    const SHORT: usize = 16;
    const ALIKE: (usize, usize) = (5, 4);
    const BUSY: (usize, usize) = (3, 4);
    let mut heads = (1..=kv_heads).filter(|heads| kv_heads.is_multiple_of(*heads));
    if let Workers::Apart(blocks) = workers {
        let busy = BUSY.1 * wide_tiles * kv_heads >= BUSY.0 * blocks;
        let alike = ALIKE.1 * tiles * pieces.longest <= ALIKE.0 * pieces.all;
        let once = heads.clone().find(|heads| tiles * (kv_heads / heads) <= DECODE_WARPS * blocks);
        if let Some(heads) = once.filter(|heads| busy && alike && heads * pieces.longest <= SHORT) {
            return heads;
        }
    }
    let workers = match workers {
        Workers::Alike(blocks) => blocks,
        Workers::Apart(blocks) => NARROW_WARPS * blocks,
    };
    heads.rfind(|heads| tiles * (kv_heads / heads) >= TAKES * workers).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: Workers = Workers::Apart(132);

    #[test]
    fn short_tiles_of_one_length_are_taken_once_by_those_that_take_nothing_else() {
        let beside = |wide, kv_heads, tiles, longest| {
            narrow_heads(kv_heads, [wide, tiles], &Pieces { all: tiles * longest, longest }, WORKERS)
        };
        let heads = |kv_heads, tiles, longest| beside(16, kv_heads, tiles, longest);
        assert_eq!(heads(8, 512, 1), 8);
        assert_eq!(heads(8, 256, 4), 4);
        // They are few enough as they are; one take would be long; there are too many for one take each.
        assert_eq!(heads(8, 64, 1), 1);
        assert_eq!(heads(32, 32, 16), 1);
        assert_eq!(heads(8, 1024, 1), 1);
        // The others have nothing to do.
        assert_eq!(beside(2, 8, 256, 4), 1);
    }

    #[test]
    fn the_kernel_has_as_many_warps_for_narrow_tiles() {
        let stream = include_str!("../../../../kernels/attention/stream.cuh");
        let ring = include_str!("../../../../kernels/attention/ring.cuh");
        let kernel = include_str!("../../../../kernels/attention/tree_attention_wgmma.cu");
        assert!(stream.contains(&format!("DECODE_WARPS = {DECODE_WARPS};")));
        assert!(ring.contains("GROUP_THREADS = 128;") && kernel.contains("HELPERS = 2 * GROUP_THREADS / 32,"));
        assert_eq!(NARROW_WARPS - DECODE_WARPS, 2 * 128 / 32);
    }

    #[test]
    fn tiles_of_different_lengths_are_not_taken_together() {
        assert_eq!(narrow_heads(8, [16, 256], &Pieces { all: 512, longest: 4 }, WORKERS), 1);
    }

    #[test]
    fn many_heads_are_taken_together_where_enough_is_left_for_all() {
        let pieces = Pieces { all: 16_000, longest: 4 };
        assert_eq!(narrow_heads(8, [0, 4_000], &pieces, WORKERS), 2);
        assert_eq!(narrow_heads(8, [0, 4_000], &pieces, Workers::Alike(264)), 8);
    }
}
