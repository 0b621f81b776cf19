//! How `linear_4bit_wgmma` (kernels/four_bit) cuts layers into tiles, and their inputs into splits.

use super::four_bit::FourBit;

/// The tiles of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerTiles {
    /// Rows.
    pub cap: usize,
    /// Warpgroups that multiply, 64 outputs each.
    pub groups: usize,
    /// Blocks that a multiprocessor has at a time.
    pub blocks: usize,
}

/// Tiles, and the blocks of a cluster that share the inputs of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    pub tiles: LayerTiles,
    pub splits: usize,
}

impl LayerTiles {
    pub const ALL: [Self; 5] =
        [Self::new(8, 2, 2), Self::new(16, 2, 2), Self::new(32, 4, 1), Self::new(64, 2, 1), Self::new(128, 2, 1)];

    /// Those of few rows, whose splits all numbers of rows have where results must not depend on it.
    const BATCH_INVARIANT: Self = Self::ALL[3];

    /// Bytes of shared memory that a multiprocessor has for blocks.
    const SHARED: usize = 228 * 1024;

    /// What a block takes beside its ring: 1 KiB for every block, barriers, and up to 1 KiB before the ring is aligned.
    const BESIDE: usize = 3 * 1024;

    /// More stages hide no more latency.
    const MOST_STAGES: usize = 24;

    const fn new(cap: usize, groups: usize, blocks: usize) -> Self {
        Self { cap, groups, blocks }
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

    /// Bytes of a stage: inputs, and panels of codes.
    const fn stage_bytes(self, format: FourBit) -> usize {
        (self.cap * 256 + self.groups * format.panel_bytes()).next_multiple_of(1024)
    }

    /// Stages of the ring.
    pub const fn stages(self, format: FourBit) -> usize {
        let fit = (Self::SHARED / self.blocks - Self::BESIDE) / self.stage_bytes(format);
        if fit < Self::MOST_STAGES { fit } else { Self::MOST_STAGES }
    }

    /// Bytes of dynamic shared memory.
    pub const fn shared(self, format: FourBit) -> usize {
        self.stages(format) * self.stage_bytes(format) + 1024
    }
}

impl LayerPlan {
    /// The plan of a layer on `multiprocessors`. The splits of batch-invariant layers do not depend on `rows`.
    pub fn of([rows, outputs, inner]: [usize; 3], multiprocessors: usize, batch_invariant: bool) -> Self {
        let tiles = Self::tiles(rows, outputs, multiprocessors);
        let count = match batch_invariant {
            true => LayerTiles::BATCH_INVARIANT.count(1, outputs),
            false => tiles.count(rows, outputs),
        };
        let at_once = multiprocessors * if batch_invariant { 1 } else { tiles.blocks };
        Self { tiles, splits: Self::splits(count, at_once, inner.div_ceil(FourBit::INPUTS)) }
    }

    /// Blocks of the launch, and those of a cluster.
    pub const fn grid(self, rows: usize, outputs: usize, multiprocessors: usize) -> [usize; 2] {
        let (count, at_once) = (self.tiles.count(rows, outputs), multiprocessors * self.tiles.blocks);
        let blocks = if self.splits > 1 || count < at_once { count * self.splits } else { at_once };
        [blocks, self.splits]
    }

    /// The smallest that hold all rows, or the largest. Of up to 128 rows, two smaller tiles are faster where all of
    /// them have a multiprocessor (H200, benches/runs/2026-11-26-h200-four-bit).
    fn tiles(rows: usize, outputs: usize, multiprocessors: usize) -> LayerTiles {
        let [.., half, most] = LayerTiles::ALL;
        if rows > half.cap && rows <= most.cap && half.count(rows, outputs) <= multiprocessors {
            return half;
        }
        LayerTiles::ALL.into_iter().find(|tiles| tiles.cap >= rows).unwrap_or(most)
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

    /// Of a split: fewer are multiplied in less time than their sums take to be added.
    const LEAST_PANELS: usize = 3;
}
