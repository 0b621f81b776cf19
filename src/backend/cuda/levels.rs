//! Attention attribution on the GPU (`AttentionLevels`): the launchers of its two kernels and what they read. Made for one step
//! and enqueued op by op: no graph holds any of it, and whoever attributes nothing loads nothing.

use super::Cuda;
use super::args::Args;
use super::buffer::Buffer;
use super::device::Device;
use super::function::Function;
use super::kv::{Kept, Kv, PageLayout};
use super::level_words::level_words;
use super::memory::Memory;
use super::ops::small;
use super::units;
use crate::backend::{Attended, AttentionLevels, Dtype, HeadLayout, KvShape, LevelRow, MOST_LEVELS};
use crate::error::Result;
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// Query heads of a block, and its threads, as in kernels/level_lse.cu.
const HEADS: usize = 8;
const THREADS: u32 = 256;

/// Rows whose attention is attributed, as kernels/level_lse.cu reads them.
pub struct LevelRows {
    heads: HeadLayout,
    kept: Kept,
    lse: Function,
    /// How many they are.
    count: usize,
    /// Their numbers in the step, and where each level of theirs but the first begins.
    rows: Memory,
    bounds: Memory,
    /// Of each plan of the step, its words and the positions of all rows of the step.
    plans: Vec<(Memory, Memory)>,
}

impl LevelRows {
    fn new(device: &Device, kv: &Kv, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<Self> {
        let (KvShape { heads, dtype, .. }, kept) = (*kv.shape(), kv.kept());
        let layout = PageLayout::of(device.facts().major, dtype, heads.head_dim);
        let numbers: Vec<u32> = rows.iter().map(|row| row.row).collect();
        let bounds: Vec<u32> = rows.iter().flat_map(|row| row.bounds.words()).collect();
        let plan =
            |plan: &AttentionPlan| Ok((uploaded(device, &level_words(plan))?, uploaded(device, &plan.row_positions)?));
        Ok(Self {
            heads,
            kept,
            lse: device.function(&units::level_lse(dtype, kept, layout, heads.head_dim), "level_lse")?,
            count: rows.len(),
            rows: uploaded(device, &numbers)?,
            bounds: uploaded(device, &bounds)?,
            plans: plans.iter().map(plan).collect::<Result<_>>()?,
        })
    }
}

fn uploaded(device: &Device, words: &[u32]) -> Result<Memory> {
    let memory = device.alloc(size_of_val(words))?;
    device.upload(&memory, 0, bytemuck::cast_slice(words))?;
    Ok(memory)
}

impl AttentionLevels for Cuda {
    type LevelRows = LevelRows;

    fn level_rows(&mut self, kv: &Kv, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<LevelRows> {
        LevelRows::new(&self.device, kv, plans, rows)
    }

    fn level_lse(&mut self, out: &mut Buffer, read: &Attended<'_, Self>, rows: &LevelRows) {
        let Attended { layer, qkv, kv, plan, scale } = *read;
        let HeadLayout { q_heads, kv_heads, .. } = rows.heads;
        assert_eq!(kv.kept(), rows.kept, "level_lse: pages and rows are of one kind");
        assert_eq!(
            (out.rows, out.width, out.element),
            (rows.count, q_heads * MOST_LEVELS, Dtype::F32),
            "level_lse: output"
        );
        assert_eq!(qkv.width, rows.heads.qkv_width(), "level_lse: shape of the queries");
        let (words, positions) = &rows.plans[plan];
        let group = rows.heads.group();
        let args = Args::new().memory(out.memory()).memory(qkv.memory()).memory_at(kv.memory(), kv.layer_at(layer));
        let args = args.memory(words).memory(positions).memory(&rows.rows).memory(&rows.bounds);
        let args = args.u32(small(group)).u32(small(kv_heads)).f32(scale * std::f32::consts::LOG2_E);
        let blocks = small(rows.count * kv_heads * group.div_ceil(HEADS));
        self.device.launch(&rows.lse, [blocks, 1, 1], THREADS, 0, &args);
    }

    fn add_level_mass(&mut self, mass: &mut Buffer, lse: &Buffer, layer: LayerIx, layers: usize) {
        assert_eq!(
            (mass.rows, mass.width, mass.element),
            (lse.rows, MOST_LEVELS, Dtype::F32),
            "add_level_mass: output"
        );
        let function = match self.device.function(&units::level_mass(), "level_mass") {
            Ok(function) => function,
            Err(error) => return self.device.keep(error),
        };
        let heads = lse.width / MOST_LEVELS;
        let share = 1.0 / (heads * layers) as f32;
        let args = Args::new().memory(mass.memory()).memory(lse.memory());
        let args = args.u32(small(heads)).f32(share).u32(u32::from(layer.ix() == 0));
        self.device.launch(&function, [small(lse.rows), 1, 1], 32, 0, &args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_have_the_same_numbers() {
        let kernel = include_str!("../../../kernels/level_lse.cu");
        let words = include_str!("../../../kernels/level_words.cuh");
        assert!(kernel.contains(&format!("HEADS = {HEADS};")));
        assert!(kernel.contains(&format!("WARPS = {};", THREADS / 32)));
        assert!(words.contains(&format!("MOST_LEVELS = {MOST_LEVELS};")));
    }
}
