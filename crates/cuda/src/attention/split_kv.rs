//! Chooses how finely long items are split over KV, so that all blocks end at about the same time: tries a few limits
//! on a model of how blocks take tiles, and keeps the best. `layout` defines tiles and KV blocks.

use std::collections::VecDeque;

use super::layout::{DECODE_WARPS, NARROW_WARPS, STEP_KV_BLOCKS, Workers};

/// Fixed cost of a tile, in KV blocks: looking it up, loading queries and first keys, writing states and reading them
/// again.
const TILE_COST: usize = 8;
/// Fixed cost of a narrow tile, whose states are an eighth as large: computed by a block, and by a decode warp.
const NARROW_TILE_COST: usize = 2;
const WARP_TILE_COST: usize = 4;
/// Minimum KV blocks per tile: below it, merging more states costs more than is gained.
const LEAST_WIDE_KV_BLOCKS: usize = 6;
const LEAST_NARROW_KV_BLOCKS: usize = 4;
/// Minimum KV blocks per tile of decode warps.
const LEAST_WARP_KV_BLOCKS: usize = 5;
/// KV blocks of a wide tile that a block computes while a team computes one of a narrow tile.
const TEAM_PACE: usize = 2;
/// Minimum KV blocks per tile when there are at most as many tiles as decode warps, and most splits of an item then. A
/// decode warp takes 2 us for a KV block, several times as long as a block for a wide one, so that a tree of few short
/// leaves waits for it.
const LEAST_DECODE_KV_BLOCKS: usize = 2;
const MOST_DECODE_SPLITS: usize = 16;
/// Extra KV blocks that a wide tile may have to leave blocks free for narrow tiles; in one block they delay each other.
const MOST_SPARING_KV_BLOCKS: usize = 2;
/// Fixed cost of a tile of latents in steps, and its least number of steps.
const LATENT_TILE_COST: usize = 2;
const LEAST_LATENT_STEPS: usize = 2;
/// What a KV block that one row of a tile reads alone weighs beside one that all read: no other tile has brought it
/// into the cache. And packed rows whose partial states, written and read again, weigh as much as such a KV block. On
/// an H200, where 0.75 us are one weight (benches/runs/2026-11-30-h200-latent-leaves).
const OWN_WEIGHT: usize = 2;
const STATES_A_WEIGHT: usize = 6;
/// Most tiles that the longest list of a step is tried to be divided into, beside shares of all work.
const MOST_LIST_SPLITS: usize = 8;
/// If blocks compute narrow tiles after wide ones, a narrow item is split when one of its tiles would exceed a block's
/// fair share of all work divided by this.
const NARROW_SPLITS: usize = 2;
/// Other items are split into tiles of a worker's fair share of their work, divided by the first and multiplied by a
/// percentage of the second: tiles slightly longer than the fair share let all fit into one round.
const ROUNDS: [usize; 4] = [1, 2, 3, 4];
const PERCENT: [usize; 4] = [100, 107, 115, 130];

/// The tiles of a step before long ones are split, one for each key head.
pub struct TileWorkload {
    workers: Workers,
    wide: TileLengths,
    narrow: TileLengths,
}

/// Number of tiles by their number of KV blocks, or of steps where tiles consist of these. Tiles without any, whose
/// rows see nothing of an item, are not counted.
#[derive(Default)]
struct TileLengths(Vec<usize>);

/// A number of tiles with the same number of KV blocks.
#[derive(Clone, Copy)]
struct LengthClass {
    kv_blocks: usize,
    tiles: usize,
}

impl TileLengths {
    fn add(&mut self, tiles: usize, kv_blocks: usize) {
        if kv_blocks >= self.0.len() {
            self.0.resize((kv_blocks + 1).next_power_of_two(), 0);
        }
        self.0[kv_blocks] += tiles;
    }

    /// The number of tiles of each length, by rising KV blocks.
    fn classes(&self) -> Vec<LengthClass> {
        let classes = self.0.iter().enumerate().map(|(kv_blocks, &tiles)| LengthClass { kv_blocks, tiles });
        classes.filter(|class| class.kv_blocks > 0 && class.tiles > 0).collect()
    }

    /// KV blocks of the longest tile, if there are tiles.
    fn longest(&self) -> Option<usize> {
        self.0.iter().rposition(|&tiles| tiles > 0).filter(|&kv_blocks| kv_blocks > 0)
    }

    fn count(&self) -> usize {
        self.0.iter().skip(1).sum()
    }

    /// Number of tiles if none may have more than `most` KV blocks.
    fn tiles_of(&self, most: usize) -> usize {
        self.0.iter().enumerate().map(|(kv_blocks, tiles)| kv_blocks.div_ceil(most) * tiles).sum()
    }

    fn kv_blocks(&self) -> usize {
        self.0.iter().enumerate().map(|(kv_blocks, tiles)| kv_blocks * tiles).sum()
    }

    /// Most KV blocks that a tile should have, at least `least`, for `workers` with other work worth `beside` KV blocks
    /// in all and a fixed cost of `cost` KV blocks per tile.
    fn most_kv_blocks(&self, workers: usize, least: usize, cost: usize, beside: usize) -> usize {
        let (all, classes, longest) = (self.kv_blocks(), self.classes(), self.longest());
        let share = |rounds: usize, percent: usize| (all * percent).div_ceil(workers * rounds * 100);
        let shares =
            ROUNDS.into_iter().flat_map(|rounds| PERCENT.into_iter().map(move |percent| share(rounds, percent)));
        let candidates = shares.chain(longest).map(|most| most.max(least));
        // All limits that split nothing take equally long.
        let mut undivided = None;
        let time = |&most: &usize| match longest.is_none_or(|longest| most >= longest) {
            true => *undivided.get_or_insert_with(|| finish_time(&classes, most, workers, cost, beside)),
            false => finish_time(&classes, most, workers, cost, beside),
        };
        candidates.min_by_key(time).expect("there are candidates")
    }
}

/// Time at which the last worker ends, in KV blocks, if tiles have at most `most`: the longest tiles are taken first,
/// and the other work fills the gaps.
fn finish_time(classes: &[LengthClass], most: usize, workers: usize, cost: usize, beside: usize) -> usize {
    let mut divided: Vec<LengthClass> = Vec::with_capacity(classes.len());
    divided.extend(classes.iter().map(|class| {
        let splits = class.kv_blocks.div_ceil(most);
        LengthClass { kv_blocks: class.kv_blocks.div_ceil(splits), tiles: class.tiles * splits }
    }));
    divided.sort_unstable_by_key(|class| std::cmp::Reverse(class.kv_blocks));
    let mut busy = beside;
    // Workers in rising order of their end: those of the previous class, and those that took a tile of this one.
    let mut free = VecDeque::from([WorkerGroup { free_at: 0, workers }]);
    let mut taken = VecDeque::new();
    for class in divided {
        let (cost, mut left) = (class.kv_blocks + cost, class.tiles);
        busy += cost * class.tiles;
        while left > 0 {
            let first = match (free.front(), taken.front()) {
                (Some(a), Some(b)) if is_free_first(b, a) => &mut taken,
                (Some(_), _) => &mut free,
                (None, _) => &mut taken,
            };
            let WorkerGroup { free_at, workers } = first.front_mut().expect("there are workers");
            let (free_at, taking) = (*free_at, left.min(*workers));
            *workers -= taking;
            if *workers == 0 {
                first.pop_front();
            }
            left -= taking;
            push(&mut taken, WorkerGroup { free_at: free_at + cost, workers: taking });
        }
        free = merged(free, std::mem::take(&mut taken));
    }
    let last = free.back().map_or(0, |group| group.free_at);
    last.max(busy.div_ceil(workers))
}

/// A number of workers that end at the same time.
#[derive(Clone, Copy)]
struct WorkerGroup {
    free_at: usize,
    workers: usize,
}

fn is_free_first(a: &WorkerGroup, b: &WorkerGroup) -> bool {
    a.free_at < b.free_at
}

/// Appends workers that end no earlier than all of `list`.
fn push(list: &mut VecDeque<WorkerGroup>, group: WorkerGroup) {
    match list.back_mut() {
        Some(last) if last.free_at == group.free_at => last.workers += group.workers,
        _ => list.push_back(group),
    }
}

fn merged(mut a: VecDeque<WorkerGroup>, mut b: VecDeque<WorkerGroup>) -> VecDeque<WorkerGroup> {
    let mut all = VecDeque::with_capacity(a.len() + b.len());
    loop {
        let next = match (a.front(), b.front()) {
            (Some(x), Some(y)) if is_free_first(y, x) => b.pop_front(),
            (Some(_), _) => a.pop_front(),
            (None, _) => b.pop_front(),
        };
        match next {
            Some(group) => push(&mut all, group),
            None => return all,
        }
    }
}

impl TileWorkload {
    pub fn new(workers: Workers) -> Self {
        Self { workers, wide: TileLengths::default(), narrow: TileLengths::default() }
    }

    /// KV blocks behind which items may be split.
    pub fn step(&self) -> usize {
        if matches!(self.workers, Workers::LatentBlocks(_)) { STEP_KV_BLOCKS } else { 1 }
    }

    pub fn add_wide(&mut self, tiles: usize, kv_blocks: usize) {
        self.wide.add(tiles, kv_blocks.div_ceil(self.step()));
    }

    pub fn add_narrow(&mut self, tiles: usize, kv_blocks: usize) {
        self.narrow.add(tiles, kv_blocks.div_ceil(self.step()));
    }

    /// Most KV blocks that a narrow tile should have.
    pub fn most_narrow_kv_blocks(&self) -> usize {
        match self.workers {
            Workers::Blocks(blocks) => {
                let all = self.wide.kv_blocks() + self.narrow.kv_blocks();
                all.div_ceil(blocks * NARROW_SPLITS).max(LEAST_NARROW_KV_BLOCKS)
            }
            Workers::BlocksAndDecodeWarps(blocks) => {
                let longest = self.narrow.longest().unwrap_or(0);
                let fits = |&most: &usize| {
                    self.narrow.tiles_of(most) <= DECODE_WARPS * blocks && longest <= MOST_DECODE_SPLITS * most
                };
                (LEAST_DECODE_KV_BLOCKS..LEAST_WARP_KV_BLOCKS).find(fits).unwrap_or_else(|| {
                    self.narrow.most_kv_blocks(NARROW_WARPS * blocks, LEAST_WARP_KV_BLOCKS, WARP_TILE_COST, 0)
                })
            }
            Workers::BlocksThenTeams { blocks, teams } => {
                // A block that computes a wide tile keeps all of its teams from narrow ones, at twice their pace.
                let beside = (self.wide.kv_blocks() + self.wide.count() * TILE_COST) * teams / TEAM_PACE;
                self.narrow.most_kv_blocks(teams * blocks, LEAST_WARP_KV_BLOCKS, WARP_TILE_COST, beside)
            }
            // There are none.
            Workers::LatentBlocks(_) => STEP_KV_BLOCKS,
        }
    }

    /// Most KV blocks that a wide tile should have if a narrow one has at most `most_narrow`.
    pub fn most_wide_kv_blocks(&self, most_narrow: usize) -> usize {
        let most = |blocks, beside| self.wide.most_kv_blocks(blocks, LEAST_WIDE_KV_BLOCKS, TILE_COST, beside);
        match self.workers {
            Workers::Blocks(blocks) => most(blocks, self.narrow.kv_blocks() + self.narrow.count() * NARROW_TILE_COST),
            Workers::BlocksThenTeams { blocks, teams } => {
                let beside = self.narrow.kv_blocks() + self.narrow.tiles_of(most_narrow.max(1)) * WARP_TILE_COST;
                most(blocks, beside * TEAM_PACE / teams)
            }
            Workers::LatentBlocks(blocks) => {
                STEP_KV_BLOCKS * self.wide.most_kv_blocks(blocks, LEAST_LATENT_STEPS, LATENT_TILE_COST, 0)
            }
            Workers::BlocksAndDecodeWarps(blocks) => {
                let by_all = most(blocks, 0);
                let others = blocks.saturating_sub(self.narrow.tiles_of(most_narrow).div_ceil(DECODE_WARPS));
                let spares = |most: &usize| {
                    (by_all..=by_all + MOST_SPARING_KV_BLOCKS).contains(most) && self.wide.tiles_of(*most) <= others
                };
                let sparing = (others > 0).then(|| most(others, 0));
                sparing.filter(spares).unwrap_or(by_all)
            }
        }
    }
}

/// The lists of KV blocks of a step of latents, before long ones are divided among tiles.
pub(super) struct ListWorkload {
    blocks: usize,
    lists: Vec<(ListEnd, TileLengths)>,
}

/// What is written where a list's tiles end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListEnd {
    /// Packed rows of a tile.
    pub packed: usize,
    /// Whether its rows have no other list: their results are written unless the list is divided.
    pub is_only: bool,
}

/// The largest weight that a tile should have, and when the last block ends then.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListLimit {
    pub weight: usize,
    pub time: usize,
}

/// The KV blocks of a list of a kernel that takes them by steps: those that all rows of its tile read and, behind them,
/// those that one row reads alone. Tiles divide it behind whole steps, as evenly by weight as these allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListLength {
    pub all: usize,
    pub own: usize,
}

impl ListLength {
    fn kv_blocks(self) -> usize {
        self.all + self.own
    }

    fn steps(self) -> usize {
        self.kv_blocks().div_ceil(STEP_KV_BLOCKS)
    }

    /// What its first steps weigh. The last step may lack a KV block, but takes no less time.
    fn weight_of(self, steps: usize) -> usize {
        let kv_blocks = steps * STEP_KV_BLOCKS;
        let own = if self.own == 0 { 0 } else { kv_blocks.saturating_sub(self.all) };
        kv_blocks - own + own * OWN_WEIGHT
    }

    pub fn weight(self) -> usize {
        self.weight_of(self.steps())
    }

    /// The number of its tiles if each is to weigh at most `most`, which no step exceeds.
    pub fn splits(self, most: usize) -> usize {
        assert!(most >= STEP_KV_BLOCKS * OWN_WEIGHT, "tiles of a weight of {most} do not hold all steps");
        self.weight().div_ceil(most).max(1)
    }

    /// The KV blocks before the end of tile number `split` (from 1) of `splits`: the steps that weigh as much as so
    /// many of equal parts, or more by less than a step, but such that each tile has one.
    pub fn split_end(self, split: usize, splits: usize) -> usize {
        let weight = (self.weight() * split).div_ceil(splits);
        let kv_blocks = match weight.checked_sub(self.all) {
            Some(own) if self.own > 0 => self.all + own.div_ceil(OWN_WEIGHT),
            _ => weight,
        };
        let steps = kv_blocks.div_ceil(STEP_KV_BLOCKS).max(split).min(self.steps() + split - splits);
        (steps * STEP_KV_BLOCKS).min(self.kv_blocks())
    }
}

impl ListEnd {
    /// What states weigh at the end of a tile.
    fn weight(self, is_divided: bool) -> usize {
        if self.is_only && !is_divided { 0 } else { self.packed.div_ceil(STATES_A_WEIGHT) }
    }
}

impl ListWorkload {
    pub fn new(blocks: usize) -> Self {
        Self { blocks, lists: Vec::new() }
    }

    /// Adds lists of this length.
    pub fn add(&mut self, lists: usize, length: ListLength, end: ListEnd) {
        let at = self.lists.iter().position(|(known, _)| *known == end).unwrap_or_else(|| {
            self.lists.push((end, TileLengths::default()));
            self.lists.len() - 1
        });
        self.lists[at].1.add(lists, length.weight());
    }

    pub fn best_limit(&self) -> ListLimit {
        let lengths = || self.lists.iter().map(|(_, lengths)| lengths);
        let all: usize = lengths().map(TileLengths::kv_blocks).sum();
        let longest = lengths().filter_map(TileLengths::longest).max().unwrap_or(0);
        let rounds = ROUNDS.into_iter().flat_map(|rounds| PERCENT.map(|percent| (rounds, percent)));
        let shares = rounds.map(|(rounds, percent)| (all * percent).div_ceil(self.blocks * rounds * 100));
        let parts = (1..=MOST_LIST_SPLITS).map(|splits| longest.div_ceil(splits));
        let least = LEAST_LATENT_STEPS * STEP_KV_BLOCKS;
        let limits = parts.chain(shares).map(|weight| weight.max(least).next_multiple_of(STEP_KV_BLOCKS));
        // All limits that divide nothing take equally long.
        let mut undivided = None;
        let limits = limits.map(|weight| {
            let time = match weight >= longest {
                true => *undivided.get_or_insert_with(|| self.finish_time(weight)),
                false => self.finish_time(weight),
            };
            ListLimit { weight, time }
        });
        limits.min_by_key(|limit| limit.time).expect("there are limits")
    }

    /// Time at which the last block ends if tiles weigh at most `most`: the longest tiles come first, and each block
    /// has one of every round, in turns from both ends (kernels/attention/wide_tiles.cuh).
    fn finish_time(&self, most: usize) -> usize {
        let mut tiles = Vec::new();
        for (end, lengths) in &self.lists {
            tiles.extend(lengths.classes().into_iter().map(|LengthClass { kv_blocks: weight, tiles }| {
                let splits = weight.div_ceil(most);
                let part = if splits == 1 { weight } else { weight.div_ceil(splits).next_multiple_of(STEP_KV_BLOCKS) };
                (part, end.weight(splits > 1), tiles * splits)
            }));
        }
        tiles.sort_unstable_by_key(|&(weight, ..)| std::cmp::Reverse(weight));
        // Even rounds are dealt from the first block on, odd ones from the last. `rises[0]` and `rises[1]` have these:
        // element `place` says by how much the block with this number, counted from where its rounds begin, exceeds the
        // block before it. `of_all` sums the rounds that give all blocks the same.
        let (blocks, mut rises, mut of_all) = (self.blocks, [vec![0; self.blocks + 1], vec![0; self.blocks + 1]], 0);
        let mut number = 0;
        for (weight, end, mut left) in tiles {
            let weight = (weight + end) as isize;
            while left > 0 {
                let (round, place) = (number / blocks, number % blocks);
                let mut taken = left.min(blocks - place);
                if taken == blocks {
                    taken = left / blocks * blocks;
                    of_all += weight * (left / blocks) as isize;
                } else {
                    rises[round % 2][place] += weight;
                    rises[round % 2][place + taken] -= weight;
                }
                (number, left) = (number + taken, left - taken);
            }
        }
        let [forth, back] = rises.map(|rises| {
            let sum = |held: &mut isize, rise| {
                *held += rise;
                Some(*held)
            };
            rises[..blocks].iter().scan(0, sum).collect::<Vec<isize>>()
        });
        let ends = forth.iter().zip(back.iter().rev()).map(|(forth, back)| of_all + forth + back);
        ends.max().map_or(0, |end| end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of rounds that equal tiles take.
    fn rounds(tiles: usize, kv_blocks: usize, blocks: usize) -> (usize, usize) {
        let mut work = TileWorkload::new(Workers::Blocks(blocks));
        work.add_wide(tiles, kv_blocks);
        let splits = kv_blocks.div_ceil(work.most_wide_kv_blocks(0));
        ((tiles * splits).div_ceil(blocks), splits)
    }

    #[test]
    fn long_tiles_fill_one_round() {
        // Eight row tiles of eight key heads over 19,947 tokens: 256 of 264 blocks.
        assert_eq!(rounds(64, 624, 264), (1, 4));
        assert_eq!(rounds(8, 624, 264), (1, 33));
        assert_eq!(rounds(1, 3000, 264).0, 1);
    }

    #[test]
    fn latents_are_split_where_it_was_fastest() {
        // Steps of the longest tile of a prefix below which rows have leaves of two steps, by row tiles, tokens and
        // leaves: measured on an H200 with 2 to 32 splits.
        let longest = |row_tiles, tokens: usize, leaves| {
            let (mut work, kv_blocks) = (TileWorkload::new(Workers::LatentBlocks(132)), tokens / 32);
            work.add_wide(row_tiles, kv_blocks);
            work.add_wide(leaves, 2 * STEP_KV_BLOCKS);
            let steps = kv_blocks / STEP_KV_BLOCKS;
            steps.div_ceil(kv_blocks.div_ceil(work.most_wide_kv_blocks(0)))
        };
        assert_eq!(longest(16, 2048, 64), 6);
        assert_eq!(longest(22, 2048, 64), 8);
        assert_eq!(longest(64, 2048, 256), 16);
        assert_eq!(longest(4, 8192, 16), 5);
    }

    #[test]
    fn lists_are_as_long_as_was_fastest() {
        let time = |lists: usize, [all, own]: [usize; 2], packed: usize| {
            let mut work = ListWorkload::new(132);
            work.add(lists, ListLength { all, own }, ListEnd { packed, is_only: true });
            work.best_limit()
        };
        // Leaves of 3, 4 and 8 KV blocks, alone, by twos and by fours.
        let [alone, twos, fours] = [1, 2, 4].map(|leaves| time(2560 / leaves, [0, 3 * leaves], 16 * leaves).time);
        assert!(twos < alone && twos <= fours, "{alone} {twos} {fours}");
        for kv_blocks in [4, 8] {
            let by = |leaves: usize| time(1024 / leaves, [0, kv_blocks * leaves], 16 * leaves).time;
            assert!(by(1) <= by(2) && by(1) <= by(4), "{kv_blocks}");
        }
        // Row tiles of 2,048 tokens that end with leaves of 128 of 16 and of 20 heads.
        let splits = |lists, leaves: usize, packed| {
            let length = ListLength { all: 64, own: 4 * leaves };
            length.splits(time(lists, [length.all, length.own], packed).weight)
        };
        assert_eq!([splits(64, 4, 64), splits(86, 3, 60), splits(256, 4, 64)], [2, 3, 1]);
    }

    #[test]
    fn lists_are_divided_into_tiles_of_whole_steps_and_about_one_weight() {
        for (all, own) in (0..40).flat_map(|all| (0..40).map(move |own| (all, own))).skip(1) {
            let length = ListLength { all, own };
            for most in (4..=length.weight() + 2).step_by(2) {
                let splits = length.splits(most);
                let mut from = 0;
                for split in 1..=splits {
                    let end = length.split_end(split, splits);
                    assert!(end > from, "{length:?}, at most {most}: tile {split} of {splits} is empty");
                    assert!(end.is_multiple_of(STEP_KV_BLOCKS) || split == splits, "{length:?}, at most {most}");
                    let weight = |end: usize| length.weight_of(end.div_ceil(STEP_KV_BLOCKS));
                    let part = length.weight().div_ceil(splits) + STEP_KV_BLOCKS * OWN_WEIGHT;
                    assert!(weight(end) - weight(from) < part, "{length:?}, at most {most}: tile {split} of {splits}");
                    from = end;
                }
                assert_eq!(from, all + own, "{length:?}, at most {most}");
            }
        }
    }

    #[test]
    fn short_tiles_are_not_divided() {
        assert_eq!(rounds(5000, 20, 264).1, 1);
        assert_eq!(rounds(3, LEAST_WIDE_KV_BLOCKS, 264).1, 1);
        assert_eq!(rounds(3, 0, 264).1, 0, "no work at all");
    }

    #[test]
    fn narrow_tiles_are_divided_among_all_blocks() {
        let mut work = TileWorkload::new(Workers::Blocks(264));
        work.add_narrow(8, 1000);
        assert!(8 * 1000usize.div_ceil(work.most_narrow_kv_blocks()) >= 264);
        work.add_narrow(264 * 100, 1000);
        assert!(work.most_narrow_kv_blocks() >= 1000);
    }

    fn with_decode_warps(wide: (usize, usize), narrow: (usize, usize)) -> TileWorkload {
        let mut work = TileWorkload::new(Workers::BlocksAndDecodeWarps(132));
        work.add_wide(wide.0, wide.1);
        work.add_narrow(narrow.0, narrow.1);
        work
    }

    #[test]
    fn lone_workers_get_a_tile_each_where_there_are_enough_for_all_parts() {
        let splits = |tiles: usize, kv_blocks: usize| {
            kv_blocks.div_ceil(with_decode_warps((1000, 1000), (tiles, kv_blocks)).most_narrow_kv_blocks())
        };
        assert_eq!(splits(1024, 8), 1, "two halves would run one after the other");
        assert_eq!(splits(64, 8), 4);
        assert_eq!(splits(132, 8), 4, "all 528");
        assert_eq!(splits(133, 8), 3, "the fewest splits that need one round");
        assert_eq!(splits(256, 8), 2, "shorter tiles would need a second round");
        assert!((1200..=1584).contains(&(8 * splits(8, 1000))), "nearly all have one");
        assert!(splits(1, 64) <= MOST_DECODE_SPLITS, "a row's states are merged by one warp");
    }

    #[test]
    fn wide_tiles_spare_the_blocks_of_narrow_ones_where_that_costs_little() {
        let most_wide = |wide, narrow| {
            let work = with_decode_warps(wide, narrow);
            work.most_wide_kv_blocks(work.most_narrow_kv_blocks())
        };
        // Four row tiles over 4,096 tokens, and a leaf of two KV blocks below each of 64 rows: 16 blocks for these.
        assert!(4 * 128usize.div_ceil(most_wide((4, 128), (64, 2))) <= 132 - 16);
        // 256 leaves: 64 blocks for these, with tiles of 8 KV blocks instead of 6.
        let [alone, beside] = [0, 256].map(|leaves| most_wide((4, 128), (leaves, 2)));
        assert!(alone < beside && beside <= alone + MOST_SPARING_KV_BLOCKS, "{alone} {beside}");
        assert!(4 * 128usize.div_ceil(beside) <= 132 - 64);
        // Half of the blocks would take twice as long; wide tiles in several rounds, or more of them than blocks, spare
        // none.
        for wide in [(4, 512), (64, 624), (40, 20), (128, 64)] {
            assert_eq!(most_wide(wide, (256, 2)), most_wide(wide, (0, 2)), "{wide:?}");
            assert_eq!(most_wide(wide, (500, 2)), most_wide(wide, (0, 2)), "{wide:?}");
        }
        assert_eq!(most_wide((64, 624), (64, 2)), most_wide((64, 624), (0, 2)));
    }
}
