//! How finely long items are divided into tiles, so that all blocks end at about the same time: a few candidates are tried
//! on a model of how blocks take tiles, and the best counts. What tiles and pieces are is `device_plan`'s business.

use std::collections::BTreeMap;

/// Pieces that a block could compute in the time that a tile costs besides: looking it up, loading queries and first keys,
/// and writing states that are read again.
const TILE_COST: usize = 8;
/// The same of a narrow tile, whose states are an eighth.
const NARROW_TILE_COST: usize = 2;
/// Pieces that a tile keeps at least: below this, merging more states costs more than is gained.
const LEAST_WIDE_PIECES: usize = 6;
const LEAST_NARROW_PIECES: usize = 4;
/// A narrow item is divided when one of its tiles would be more than a block's fair share of all work divided by this.
const NARROW_PARTS: usize = 2;
/// Wide items are divided into tiles of a block's fair share of their work, divided by the first and times a percentage of
/// the second: with tiles a little longer than the fair share, all fit into one round.
const ROUNDS: [usize; 4] = [1, 2, 3, 4];
const PERCENT: [usize; 4] = [100, 107, 115, 130];

/// The tiles of a step before long ones are divided; one for each key head.
pub struct Work {
    blocks: usize,
    /// How many wide tiles have so many pieces.
    wide: BTreeMap<usize, usize>,
    narrow_pieces: usize,
    narrow_tiles: usize,
}

impl Work {
    /// For `blocks` that run at a time.
    pub fn new(blocks: usize) -> Self {
        Self { blocks, wide: BTreeMap::new(), narrow_pieces: 0, narrow_tiles: 0 }
    }

    /// Tiles without pieces, of rows that see nothing of an item, count for nothing.
    pub fn add_wide(&mut self, tiles: usize, pieces: usize) {
        if pieces > 0 {
            *self.wide.entry(pieces).or_default() += tiles;
        }
    }

    pub fn add_narrow(&mut self, tiles: usize, pieces: usize) {
        self.narrow_tiles += if pieces > 0 { tiles } else { 0 };
        self.narrow_pieces += tiles * pieces;
    }

    fn wide_pieces(&self) -> usize {
        self.wide.iter().map(|(pieces, tiles)| pieces * tiles).sum()
    }

    /// The most pieces that a narrow tile should have.
    pub fn most_narrow_pieces(&self) -> usize {
        let all = self.wide_pieces() + self.narrow_pieces;
        all.div_ceil(self.blocks * NARROW_PARTS).max(LEAST_NARROW_PIECES)
    }

    /// The most pieces that a wide tile should have.
    pub fn most_wide_pieces(&self) -> usize {
        let all = self.wide_pieces();
        let shares = ROUNDS.into_iter().flat_map(|rounds| {
            PERCENT.into_iter().map(move |percent| (all * percent).div_ceil(self.blocks * rounds * 100))
        });
        let candidates = shares.map(|most| most.max(LEAST_WIDE_PIECES));
        candidates.min_by_key(|&most| self.time(most)).expect("there are candidates")
    }

    /// When the last block ends, in pieces, if wide tiles have at most `most`. Blocks take wide tiles first, the longest
    /// before all others; narrow ones, which are short, fill what is left.
    fn time(&self, most: usize) -> usize {
        let mut ends = BTreeMap::from([(0, self.blocks)]);
        let mut busy = self.narrow_pieces + self.narrow_tiles * NARROW_TILE_COST;
        let mut divided = BTreeMap::<usize, usize>::new();
        for (&pieces, &tiles) in &self.wide {
            let parts = pieces.div_ceil(most);
            *divided.entry(pieces.div_ceil(parts)).or_default() += tiles * parts;
        }
        for (&pieces, &tiles) in divided.iter().rev() {
            let (cost, mut left) = (pieces + TILE_COST, tiles);
            busy += cost * tiles;
            while left > 0 {
                let (end, blocks) = ends.pop_first().expect("there are blocks");
                let taking = blocks.min(left);
                *ends.entry(end + cost).or_default() += taking;
                if blocks > taking {
                    ends.insert(end, blocks - taking);
                }
                left -= taking;
            }
        }
        let last = ends.last_key_value().map_or(0, |(&end, _)| end);
        last.max(busy.div_ceil(self.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds that equal tiles take.
    fn rounds(tiles: usize, pieces: usize, blocks: usize) -> (usize, usize) {
        let mut work = Work::new(blocks);
        work.add_wide(tiles, pieces);
        let parts = pieces.div_ceil(work.most_wide_pieces());
        ((tiles * parts).div_ceil(blocks), parts)
    }

    #[test]
    fn long_tiles_fill_one_round() {
        // Eight row tiles of eight key heads over 19,947 tokens: 256 of 264 blocks.
        assert_eq!(rounds(64, 624, 264), (1, 4));
        assert_eq!(rounds(8, 624, 264), (1, 33));
        assert_eq!(rounds(1, 3000, 264).0, 1);
    }

    #[test]
    fn short_tiles_are_not_divided() {
        assert_eq!(rounds(5000, 20, 264).1, 1);
        assert_eq!(rounds(3, LEAST_WIDE_PIECES, 264).1, 1);
        assert_eq!(rounds(3, 0, 264).1, 0, "no work at all");
    }

    #[test]
    fn narrow_tiles_are_divided_among_all_blocks() {
        let mut work = Work::new(264);
        work.add_narrow(8, 1000);
        assert!(8 * 1000usize.div_ceil(work.most_narrow_pieces()) >= 264);
        work.add_narrow(264 * 100, 1000);
        assert!(work.most_narrow_pieces() >= 1000);
    }
}
