//! How `linear_4bit_wgmma` (kernels/four_bit) cuts layers into tiles, and their inputs into splits.

use super::four_bit::{FourBit, FourBitCodes};

/// The tiles of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerTiles {
    /// Rows.
    pub cap: usize,
    /// Warpgroups that multiply, 64 outputs each.
    pub groups: usize,
    /// Blocks that a multiprocessor has at a time.
    pub blocks: usize,
    /// Whether there is one sum, kept in units of the last scale, where scales are not in the operands (`RESCALES` of
    /// kernels/four_bit/sums.cuh). Others have two, so half as many rows, but wait less.
    pub has_one_sum: bool,
}

/// Tiles, and the blocks of a cluster that share the inputs of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    pub tiles: LayerTiles,
    pub splits: usize,
}

impl LayerTiles {
    pub const ALL: [Self; 7] = [
        Self::new(8, 2, 2),
        Self::new(16, 2, 2),
        Self::new(32, 4, 1),
        Self::new(64, 2, 1),
        Self::new(128, 2, 1),
        Self { has_one_sum: true, ..Self::new(128, 3, 1) },
        Self { has_one_sum: true, ..Self::new(256, 2, 1) },
    ];

    /// The tiles of few rows, whose splits all numbers of rows have where results must not depend on it.
    const BATCH_INVARIANT: Self = Self::ALL[3];

    /// How many of `ALL` have two sums: a row's results are the same by each of them.
    const WITH_TWO_SUMS: usize = 5;

    /// Index in `ALL` of the first of the tiles of which one is the fastest for more rows than 64, depending on how
    /// many of them fill the multiprocessors.
    const OF_MANY_ROWS: usize = 3;

    /// Bytes of shared memory that a multiprocessor has for blocks.
    const SHARED: usize = 228 * 1024;

    /// What a block takes beside its ring: 1 KiB for every block, barriers, and up to 1 KiB before the ring is aligned.
    const BESIDE: usize = 3 * 1024;

    const fn new(cap: usize, groups: usize, blocks: usize) -> Self {
        Self { cap, groups, blocks, has_one_sum: false }
    }

    pub const fn threads(self) -> u32 {
        128 * (self.groups + 1) as u32
    }

    pub const fn outputs(self) -> usize {
        64 * self.groups
    }

    /// Tiles of a layer.
    pub const fn count(self, rows: usize, outputs: usize) -> usize {
        rows.div_ceil(self.cap) * outputs.div_ceil(self.outputs())
    }

    /// Rows of a box of inputs.
    pub const fn box_rows(self) -> usize {
        self.cap
    }

    /// Stages of the ring.
    pub const fn stages(self, format: FourBit) -> usize {
        format.stages(Self::SHARED / self.blocks - Self::BESIDE, self.cap, self.groups)
    }

    /// Bytes of dynamic shared memory.
    pub const fn shared(self, format: FourBit) -> usize {
        self.stages(format) * format.stage_bytes(self.cap, self.groups) + 1024
    }
}

impl LayerPlan {
    /// The plan of a layer on `multiprocessors`. `invariant_of`: where a row's results must depend neither on the
    /// number of rows nor on how a matrix is divided among ranks, the outputs of the whole one; splits are then those
    /// of one row of it.
    pub fn of(format: FourBit, shape: [usize; 3], multiprocessors: usize, invariant_of: Option<usize>) -> Self {
        let [rows, outputs, inner] = shape;
        let panels = inner.div_ceil(FourBit::INPUTS);
        if let Some(whole) = invariant_of {
            let all = &LayerTiles::ALL[..LayerTiles::WITH_TWO_SUMS];
            let count = LayerTiles::BATCH_INVARIANT.count(1, whole);
            let tiles = all.iter().find(|tiles| tiles.cap >= rows).or(all.last());
            return Self {
                tiles: *tiles.expect("there are tiles"),
                splits: Self::splits(count, multiprocessors, panels),
            };
        }
        let split = |tiles: LayerTiles| {
            let splits = Self::splits(tiles.count(rows, outputs), multiprocessors * tiles.blocks, panels);
            Self { tiles, splits }
        };
        let few = LayerTiles::ALL[..=LayerTiles::OF_MANY_ROWS].iter().find(|tiles| tiles.cap >= rows);
        if let Some(&tiles) = few {
            return split(tiles);
        }
        let plans = LayerTiles::ALL[LayerTiles::OF_MANY_ROWS..].iter().map(|&tiles| split(tiles));
        let time = |plan: &Self| plan.microseconds(format, shape, multiprocessors);
        plans.min_by(|a, b| time(a).total_cmp(&time(b))).expect("there are tiles for many rows")
    }

    /// What tiles of many rows take: turns of all multiprocessors, the panels of each, and what a tile takes beside
    /// them (H200, benches/runs/2026-11-26-h200-four-bit-2).
    fn microseconds(self, format: FourBit, [rows, outputs, inner]: [usize; 3], multiprocessors: usize) -> f64 {
        let turns = (self.tiles.count(rows, outputs) * self.splits).div_ceil(multiprocessors);
        let panels = inner.div_ceil(FourBit::INPUTS).div_ceil(self.splits);
        let panel = match (self.tiles.cap, self.tiles.groups) {
            (..128, _) => [0.54, 0.68, 0.57],
            (128, 2) => [0.99, 1.23, 0.93],
            (128, _) => [1.41, 1.95, 1.29],
            _ => [1.67, 2.25, 1.61],
        };
        let panel = match format {
            FourBit { codes: FourBitCodes::Int4, group: 64.. } => panel[0],
            FourBit { codes: FourBitCodes::Int4, .. } => panel[1],
            FourBit { codes: FourBitCodes::Fp4, .. } => panel[2],
        };
        turns as f64 * (panels as f64 * panel + if self.splits > 1 { 3.0 } else { 1.0 })
    }

    /// Blocks of the launch, and those of a cluster.
    pub const fn grid(self, rows: usize, outputs: usize, multiprocessors: usize) -> [usize; 2] {
        let (count, at_once) = (self.tiles.count(rows, outputs), multiprocessors * self.tiles.blocks);
        let blocks = if self.splits > 1 || count < at_once { count * self.splits } else { at_once };
        [blocks, self.splits]
    }

    /// As many as give every place of `at_once` something to do. Clusters of more than two blocks find room together
    /// if they need three quarters of the places, and may not if they need more: a cluster's multiprocessors are
    /// neighbours (H200, benches/runs/2026-11-26-h200-four-bit).
    fn splits(tiles: usize, at_once: usize, panels: usize) -> usize {
        let of_many = at_once * 3 / 4 / tiles;
        let splits = match of_many {
            3.. => of_many.min(Self::MOST_SPLITS),
            _ if tiles * 2 <= at_once => 2,
            _ => 1,
        };
        splits.min(panels.div_ceil(Self::LEAST_PANELS))
    }

    const MOST_SPLITS: usize = 6;

    /// Fewest panels of a split: fewer are multiplied in less time than their sums take to be added.
    const LEAST_PANELS: usize = 3;
}
