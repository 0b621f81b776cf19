//! What a step with levels has beside others: the kernels of `level_lse` and `add_level_mass`, and where these read rows,
//! levels and plans. Made when room for such a step is asked for or the first one comes, so that whoever never asks for levels has
//! none of it.

use super::At;
use super::level_words::level_words;
use crate::backend::cuda::compile::elements::{KvElement, PageLayout};
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::args::Args;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::cuda::driver::grid::small;
use crate::backend::cuda::driver::memory::Memory;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::staged::{Staged, StagingSlot};
use crate::backend::{Dtype, HeadLayout, LevelBorders, MOST_LEVELS};
use crate::error::Result;
use crate::plan::AttentionPlan;

/// Query heads of a block, and its threads, as in kernels/attention/level_lse.cu.
const HEADS: usize = 8;
const THREADS: u32 = 256;
/// Of the borders of one row.
const BORDERS_BYTES: usize = 4 * (MOST_LEVELS - 1);
/// Bytes that every list begins with.
const SMALLEST: usize = 4096;

pub struct Levels {
    heads: HeadLayout,
    lse: Function,
    mass: Function,
    borders: Staged,
    /// One for each plan of the step.
    plans: Vec<Staged>,
}

/// What one launch of `level_lse` reads and writes; shapes as in `Backend::level_lse`.
pub struct Operands<'a> {
    pub out: &'a Buffer,
    pub qkv: &'a Buffer,
    /// Where the layer's pages begin.
    pub kv: At<'a>,
    pub positions: &'a Memory,
    pub wanted: &'a Memory,
}

impl Levels {
    pub fn load(device: &Device, heads: HeadLayout, element: Dtype, kept: KvElement) -> Result<Self> {
        let layout = PageLayout::of(device.facts().major, element, heads.head_dim);
        Ok(Self {
            heads,
            lse: device.function(&units::level_lse(element, kept, layout, heads.head_dim), "level_lse")?,
            mass: device.function(&units::level_mass(), "level_mass")?,
            borders: Staged::new(device, SMALLEST)?,
            plans: Vec::new(),
        })
    }

    /// Makes room for the levels of so many wanted rows; lists of plans have no bound.
    pub fn reserve(&mut self, device: &Device, asks: usize) -> Result<()> {
        self.borders.reserve(device, asks.saturating_mul(BORDERS_BYTES)).map(drop)
    }

    /// Enqueues the levels of the wanted rows, padded to `asks`. Says whether an address changed.
    pub fn fill_borders(
        &mut self,
        device: &Device,
        slot: StagingSlot,
        borders: &[LevelBorders],
        asks: usize,
    ) -> Result<bool> {
        let padding = std::iter::repeat_n(LevelBorders::none(), asks - borders.len());
        let words: Vec<u32> = borders.iter().copied().chain(padding).flat_map(|borders| borders.words()).collect();
        self.borders.fill(device, slot, bytemuck::cast_slice(&words))
    }

    /// Enqueues the step's plans, for so many wanted rows without padding. Says whether an address changed.
    pub fn fill_plans<'a>(
        &mut self,
        device: &Device,
        slot: StagingSlot,
        plans: impl Iterator<Item = &'a AttentionPlan>,
        asks: usize,
    ) -> Result<bool> {
        let mut moves = false;
        for (number, plan) in plans.enumerate() {
            if number == self.plans.len() {
                self.plans.push(Staged::new(device, SMALLEST)?);
                moves = true;
            }
            moves |= self.plans[number].fill(device, slot, bytemuck::cast_slice(&level_words(plan, asks)))?;
        }
        Ok(moves)
    }

    /// By plan number `plan` of the step.
    pub fn lse(&self, device: &Device, operands: &Operands<'_>, plan: usize, scale: f32) {
        let Operands { out, qkv, kv, positions, wanted } = *operands;
        let HeadLayout { q_heads, kv_heads, .. } = self.heads;
        assert_eq!((out.width, out.element), (q_heads * MOST_LEVELS, Dtype::F32), "level_lse: shape of the output");
        assert_eq!(qkv.width, self.heads.qkv_width(), "level_lse: shape of the queries");
        let group = self.heads.group();
        let args = Args::new().memory(out.memory()).memory(qkv.memory()).memory_at(kv.0, kv.1);
        let args = args.memory(self.plans[plan].memory()).memory(positions).memory(wanted);
        let args = args.memory(self.borders.memory()).u32(small(group)).u32(small(kv_heads));
        let args = args.f32(scale * std::f32::consts::LOG2_E);
        let blocks = small(out.rows * kv_heads * group.div_ceil(HEADS));
        device.launch(&self.lse, [blocks, 1, 1], THREADS, 0, &args);
    }

    /// `masses` begins with those of all wanted rows, padded ones too.
    pub fn add_mass(&self, device: &Device, masses: &Memory, lse: &Buffer, is_first: bool, layers: usize) {
        let share = 1.0 / (self.heads.q_heads * layers) as f32;
        let args = Args::new().memory(masses).memory(lse.memory());
        let args = args.u32(small(self.heads.q_heads)).f32(share).u32(u32::from(is_first));
        device.launch(&self.mass, [small(lse.rows), 1, 1], 32, 0, &args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_have_the_same_numbers() {
        let kernel = include_str!("../../../../kernels/attention/level_lse.cu");
        let words = include_str!("../../../../kernels/attention/level_words.cuh");
        assert!(kernel.contains(&format!("HEADS = {HEADS};")));
        assert!(kernel.contains(&format!("WARPS = {};", THREADS / 32)));
        assert!(words.contains(&format!("MOST_LEVELS = {MOST_LEVELS};")));
    }
}
