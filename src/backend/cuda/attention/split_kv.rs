//! How finely long items are divided into tiles, so that all blocks end at about the same time: a few candidates are tried
//! on a model of how blocks take tiles, and the best counts. What tiles and pieces are is `device_plan`'s business.

use std::collections::VecDeque;

use super::device_plan::{DECODE_WARPS, NARROW_WARPS, Workers};

/// Pieces that a block could compute in the time that a tile costs besides: looking it up, loading queries and first keys,
/// and writing states that are read again.
const TILE_COST: usize = 8;
/// The same of a narrow tile, whose states are an eighth: where blocks take it, and where a warp by itself does, which has
/// nothing else to do meanwhile.
const NARROW_TILE_COST: usize = 2;
const WARP_TILE_COST: usize = 4;
/// Pieces that a tile keeps at least: below this, merging more states costs more than is gained.
const LEAST_WIDE_PIECES: usize = 6;
const LEAST_NARROW_PIECES: usize = 4;
/// The same of tiles that warps take by themselves.
const LEAST_WARP_PIECES: usize = 5;
/// The same where each warp that takes nothing else then has one tile at most, and a tile has at most so many parts. Such a warp
/// takes 2 us for a piece, several times as long as a block for a wide one, so that a tree of few short leaves waits for it.
const LEAST_DECODE_PIECES: usize = 2;
const MOST_DECODE_PARTS: usize = 16;
/// Pieces that a wide tile may have more where that spares the blocks that narrow tiles need: in one block, each delays the other.
const MOST_SPARING_PIECES: usize = 2;
/// Where blocks take narrow tiles after wide ones, a narrow item is divided when one of its tiles would be more than a block's
/// fair share of all work divided by this.
const NARROW_PARTS: usize = 2;
/// Other items are divided into tiles of a worker's fair share of their work, divided by the first and times a percentage of
/// the second: with tiles a little longer than the fair share, all fit into one round.
const ROUNDS: [usize; 4] = [1, 2, 3, 4];
const PERCENT: [usize; 4] = [100, 107, 115, 130];

/// The tiles of a step before long ones are divided; one for each key head.
pub struct Work {
    workers: Workers,
    wide: Tiles,
    narrow: Tiles,
}

/// How many tiles have so many pieces, by these. Those without any, of rows that see nothing of an item, count for nothing.
#[derive(Default)]
struct Tiles(Vec<usize>);

/// So many tiles of as many pieces.
#[derive(Clone, Copy)]
struct Class {
    pieces: usize,
    tiles: usize,
}

impl Tiles {
    fn add(&mut self, tiles: usize, pieces: usize) {
        if pieces >= self.0.len() {
            self.0.resize((pieces + 1).next_power_of_two(), 0);
        }
        self.0[pieces] += tiles;
    }

    /// By rising pieces.
    fn classes(&self) -> Vec<Class> {
        let classes = self.0.iter().enumerate().map(|(pieces, &tiles)| Class { pieces, tiles });
        classes.filter(|class| class.pieces > 0 && class.tiles > 0).collect()
    }

    /// Pieces of the longest, where there are any.
    fn longest(&self) -> Option<usize> {
        self.0.iter().rposition(|&tiles| tiles > 0).filter(|&pieces| pieces > 0)
    }

    fn count(&self) -> usize {
        self.0.iter().skip(1).sum()
    }

    /// How many there are when none has more than `most` pieces.
    fn tiles_of(&self, most: usize) -> usize {
        self.0.iter().enumerate().map(|(pieces, tiles)| pieces.div_ceil(most) * tiles).sum()
    }

    fn pieces(&self) -> usize {
        self.0.iter().enumerate().map(|(pieces, tiles)| pieces * tiles).sum()
    }

    /// The most pieces that a tile should have, at least `least`, for `workers` that have to do something else for as long as
    /// `beside` pieces in all, and for whom each tile costs `cost` besides.
    fn most_pieces(&self, workers: usize, least: usize, cost: usize, beside: usize) -> usize {
        let (all, classes, longest) = (self.pieces(), self.classes(), self.longest());
        let share = |rounds: usize, percent: usize| (all * percent).div_ceil(workers * rounds * 100);
        let shares =
            ROUNDS.into_iter().flat_map(|rounds| PERCENT.into_iter().map(move |percent| share(rounds, percent)));
        let candidates = shares.chain(longest).map(|most| most.max(least));
        // Whatever divides nothing takes as long.
        let mut undivided = None;
        let time = |&most: &usize| match longest.is_none_or(|longest| most >= longest) {
            true => *undivided.get_or_insert_with(|| end_of(&classes, most, workers, cost, beside)),
            false => end_of(&classes, most, workers, cost, beside),
        };
        candidates.min_by_key(time).expect("there are candidates")
    }
}

/// When the last worker ends, in pieces, if tiles have at most `most`: the longest are taken before all others, and what is
/// beside fills what is left.
fn end_of(classes: &[Class], most: usize, workers: usize, cost: usize, beside: usize) -> usize {
    let mut divided: Vec<Class> = Vec::with_capacity(classes.len());
    divided.extend(classes.iter().map(|class| {
        let parts = class.pieces.div_ceil(most);
        Class { pieces: class.pieces.div_ceil(parts), tiles: class.tiles * parts }
    }));
    divided.sort_unstable_by_key(|class| std::cmp::Reverse(class.pieces));
    let mut busy = beside;
    // Workers by when they end, rising: those of the class before, and those that took one of this.
    let mut free = VecDeque::from([Ending { at: 0, workers }]);
    let mut taken = VecDeque::new();
    for class in divided {
        let (cost, mut left) = (class.pieces + cost, class.tiles);
        busy += cost * class.tiles;
        while left > 0 {
            let first = match (free.front(), taken.front()) {
                (Some(a), Some(b)) if ends_first(b, a) => &mut taken,
                (Some(_), _) => &mut free,
                (None, _) => &mut taken,
            };
            let Ending { at, workers } = first.front_mut().expect("there are workers");
            let (at, taking) = (*at, left.min(*workers));
            *workers -= taking;
            if *workers == 0 {
                first.pop_front();
            }
            left -= taking;
            push(&mut taken, Ending { at: at + cost, workers: taking });
        }
        free = merged(free, std::mem::take(&mut taken));
    }
    let last = free.back().map_or(0, |ending| ending.at);
    last.max(busy.div_ceil(workers))
}

/// So many workers that end at the same time.
#[derive(Clone, Copy)]
struct Ending {
    at: usize,
    workers: usize,
}

fn ends_first(a: &Ending, b: &Ending) -> bool {
    a.at < b.at
}

/// Appends workers that end no earlier than all of `list`.
fn push(list: &mut VecDeque<Ending>, ending: Ending) {
    match list.back_mut() {
        Some(last) if last.at == ending.at => last.workers += ending.workers,
        _ => list.push_back(ending),
    }
}

fn merged(mut a: VecDeque<Ending>, mut b: VecDeque<Ending>) -> VecDeque<Ending> {
    let mut all = VecDeque::with_capacity(a.len() + b.len());
    loop {
        let next = match (a.front(), b.front()) {
            (Some(x), Some(y)) if ends_first(y, x) => b.pop_front(),
            (Some(_), _) => a.pop_front(),
            (None, _) => b.pop_front(),
        };
        match next {
            Some(ending) => push(&mut all, ending),
            None => return all,
        }
    }
}

impl Work {
    pub fn new(workers: Workers) -> Self {
        Self { workers, wide: Tiles::default(), narrow: Tiles::default() }
    }

    pub fn add_wide(&mut self, tiles: usize, pieces: usize) {
        self.wide.add(tiles, pieces);
    }

    pub fn add_narrow(&mut self, tiles: usize, pieces: usize) {
        self.narrow.add(tiles, pieces);
    }

    /// The most pieces that a narrow tile should have.
    pub fn most_narrow_pieces(&self) -> usize {
        match self.workers {
            Workers::Alike(blocks) => {
                let all = self.wide.pieces() + self.narrow.pieces();
                all.div_ceil(blocks * NARROW_PARTS).max(LEAST_NARROW_PIECES)
            }
            Workers::Apart(blocks) => {
                let longest = self.narrow.longest().unwrap_or(0);
                let fits = |&most: &usize| {
                    self.narrow.tiles_of(most) <= DECODE_WARPS * blocks && longest <= MOST_DECODE_PARTS * most
                };
                (LEAST_DECODE_PIECES..LEAST_WARP_PIECES).find(fits).unwrap_or_else(|| {
                    self.narrow.most_pieces(NARROW_WARPS * blocks, LEAST_WARP_PIECES, WARP_TILE_COST, 0)
                })
            }
        }
    }

    /// The most pieces that a wide tile should have where a narrow one has at most `most_narrow`.
    pub fn most_wide_pieces(&self, most_narrow: usize) -> usize {
        let most = |blocks, beside| self.wide.most_pieces(blocks, LEAST_WIDE_PIECES, TILE_COST, beside);
        match self.workers {
            Workers::Alike(blocks) => most(blocks, self.narrow.pieces() + self.narrow.count() * NARROW_TILE_COST),
            Workers::Apart(blocks) => {
                let by_all = most(blocks, 0);
                let others = blocks.saturating_sub(self.narrow.tiles_of(most_narrow).div_ceil(DECODE_WARPS));
                let spares = |most: &usize| {
                    (by_all..=by_all + MOST_SPARING_PIECES).contains(most) && self.wide.tiles_of(*most) <= others
                };
                let sparing = (others > 0).then(|| most(others, 0));
                sparing.filter(spares).unwrap_or(by_all)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds that equal tiles take.
    fn rounds(tiles: usize, pieces: usize, blocks: usize) -> (usize, usize) {
        let mut work = Work::new(Workers::Alike(blocks));
        work.add_wide(tiles, pieces);
        let parts = pieces.div_ceil(work.most_wide_pieces(0));
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
        let mut work = Work::new(Workers::Alike(264));
        work.add_narrow(8, 1000);
        assert!(8 * 1000usize.div_ceil(work.most_narrow_pieces()) >= 264);
        work.add_narrow(264 * 100, 1000);
        assert!(work.most_narrow_pieces() >= 1000);
    }

    fn apart(wide: (usize, usize), narrow: (usize, usize)) -> Work {
        let mut work = Work::new(Workers::Apart(132));
        work.add_wide(wide.0, wide.1);
        work.add_narrow(narrow.0, narrow.1);
        work
    }

    #[test]
    fn lone_workers_get_a_tile_each_where_there_are_enough_for_all_parts() {
        let parts =
            |tiles: usize, pieces: usize| pieces.div_ceil(apart((1000, 1000), (tiles, pieces)).most_narrow_pieces());
        assert_eq!(parts(1024, 8), 1, "two halves would only come one after the other");
        assert_eq!(parts(64, 8), 4);
        assert_eq!(parts(132, 8), 4, "all 528");
        assert_eq!(parts(133, 8), 3, "the least that one take each is enough for");
        assert_eq!(parts(256, 8), 2, "fewer pieces would be more than one take each");
        assert!((1200..=1584).contains(&(8 * parts(8, 1000))), "nearly all have one");
        assert!(parts(1, 64) <= MOST_DECODE_PARTS, "a row's states are merged by one warp");
    }

    #[test]
    fn wide_tiles_spare_the_blocks_of_narrow_ones_where_that_costs_little() {
        let most_wide = |wide, narrow| {
            let work = apart(wide, narrow);
            work.most_wide_pieces(work.most_narrow_pieces())
        };
        // Four row tiles over 4,096 tokens, and a leaf of two pieces below each of 64 rows: 16 blocks for these.
        assert!(4 * 128usize.div_ceil(most_wide((4, 128), (64, 2))) <= 132 - 16);
        // 256 leaves: 64 blocks for these, with tiles of 8 pieces instead of 6.
        let [alone, beside] = [0, 256].map(|leaves| most_wide((4, 128), (leaves, 2)));
        assert!(alone < beside && beside <= alone + MOST_SPARING_PIECES, "{alone} {beside}");
        assert!(4 * 128usize.div_ceil(beside) <= 132 - 64);
        // Half of the blocks would take twice as long; wide tiles in several rounds, or more of them than blocks, spare none.
        for wide in [(4, 512), (64, 624), (40, 20), (128, 64)] {
            assert_eq!(most_wide(wide, (256, 2)), most_wide(wide, (0, 2)), "{wide:?}");
            assert_eq!(most_wide(wide, (500, 2)), most_wide(wide, (0, 2)), "{wide:?}");
        }
        assert_eq!(most_wide((64, 624), (64, 2)), most_wide((64, 624), (0, 2)));
    }
}
