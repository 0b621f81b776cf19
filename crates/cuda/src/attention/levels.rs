//! Attention attribution on the GPU (`AttentionLevels`): the launchers of its two kernels and their inputs. Made for
//! one step and enqueued op by op, outside graphs; its kernels are loaded on first use.

use super::ScoreFactors;
use super::level_words::level_words;
use crate::compile::elements::{HeadWidths, KvElement, PageLayout};
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use crate::memory::kv::Kv;
use crate::memory::weights::Vector;
use offshoot_backend::{Dtype, HeadLayout, LevelRow, MOST_LEVELS, Scoring};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use offshoot_kv::plan::AttentionPlan;

/// Threads per block, as in kernels/attention/level_lse.cu.
const THREADS: u32 = 256;

/// Query heads per block, as there.
fn heads_a_block(head_dim: usize) -> usize {
    if head_dim > 256 { 4 } else { 8 }
}

/// Rows whose attention is attributed, in the layout of kernels/attention/level_lse.cu.
pub struct LevelRows {
    /// For each layout of heads and pages, the kernel.
    kernels: Vec<(HeadLayout, KvElement, Function)>,
    /// Number of rows.
    count: usize,
    /// Row numbers in the step, and the first position of each level but the first.
    rows: Memory,
    bounds: Memory,
    /// For each plan of the step, its words and the positions of all rows.
    plans: Vec<(Memory, Memory)>,
}

impl LevelRows {
    pub fn new(device: &Device, kv: &Kv, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<Self> {
        let dtype = kv.shape().dtype;
        let mut kernels: Vec<(HeadLayout, KvElement, Function)> = Vec::new();
        for layer in (0..kv.shape().layers()).map(LayerIx::new) {
            let (heads, kv_element) = (kv.heads(layer), kv.kv_element(layer));
            if kernels.iter().all(|(known, ..)| *known != heads) {
                let layout = PageLayout::of(device.facts().major, dtype, HeadWidths::of(heads));
                let unit = units::level_lse(dtype, kv_element, layout, HeadWidths::of(heads));
                kernels.push((heads, kv_element, device.function(&unit, "level_lse")?));
            }
        }
        let numbers: Vec<u32> = rows.iter().map(|row| row.row).collect();
        let bounds: Vec<u32> = rows.iter().flat_map(|row| row.bounds.words()).collect();
        let plan =
            |plan: &AttentionPlan| Ok((device.uploaded(&level_words(plan))?, device.uploaded(&plan.row_positions)?));
        Ok(Self {
            kernels,
            count: rows.len(),
            rows: device.uploaded(&numbers)?,
            bounds: device.uploaded(&bounds)?,
            plans: plans.iter().map(plan).collect::<Result<_>>()?,
        })
    }
}

impl LevelRows {
    /// See `AttentionLevels::level_lse`; `kv` and `layer` are those of the plan with number `plan`.
    pub fn lse(
        &self,
        device: &Device,
        out: &Buffer,
        qkv: &Buffer,
        (kv, layer): (&Kv, LayerIx),
        plan: usize,
        scoring: Scoring<'_, Vector>,
    ) {
        let heads = kv.heads(layer);
        let HeadLayout { q_heads, kv_heads, head_dim, .. } = heads;
        let kernel = self.kernels.iter().find(|(known, ..)| *known == heads);
        let (_, kv_element, lse) = kernel.expect("level_lse: pages and rows are of one kind");
        assert_eq!(kv.kv_element(layer), *kv_element, "level_lse: pages and rows are of one kind");
        let shape = (out.rows, out.width, out.element);
        assert_eq!(shape, (self.count, q_heads * MOST_LEVELS, Dtype::F32), "level_lse: output");
        assert!(qkv.width >= heads.q_width(), "level_lse: shape of the queries");
        let (words, positions) = &self.plans[plan];
        let (group, factors) = (heads.group(), ScoreFactors::of(&scoring));
        let args = Args::new().memory(out.memory()).memory(qkv.memory()).memory_at(kv.memory(), kv.layer_at(layer));
        let args = args.memory(words).memory(positions).memory(&self.rows).memory(&self.bounds);
        let args = args.u32(small(group)).u32(small(kv_heads)).u32(small(qkv.width));
        let args = args.f32(factors.scale).f32(factors.cap_rate);
        let blocks = small(self.count * kv_heads * group.div_ceil(heads_a_block(head_dim)));
        device.launch(lse, [blocks, 1, 1], THREADS, 0, &args);
    }
}

/// See `AttentionLevels::add_level_mass`. An error is kept for the next call that returns one.
pub fn add_mass(device: &Device, mass: &Buffer, lse: &Buffer, is_first: bool, layers: usize) {
    assert_eq!((mass.rows, mass.width, mass.element), (lse.rows, MOST_LEVELS, Dtype::F32), "add_level_mass: output");
    let function = match device.function(&units::level_mass(), "level_mass") {
        Ok(function) => function,
        Err(error) => return device.keep(error),
    };
    let heads = lse.width / MOST_LEVELS;
    let share = 1.0 / (heads * layers) as f32;
    let args = Args::new().memory(mass.memory()).memory(lse.memory());
    let args = args.u32(small(heads)).f32(share).u32(u32::from(is_first));
    device.launch(&function, [small(lse.rows), 1, 1], 32, 0, &args);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_have_the_same_numbers() {
        let kernel = include_str!("../../../../kernels/attention/level_lse.cu");
        let words = include_str!("../../../../kernels/attention/level_words.cuh");
        let [wide, usual] = [512, 256].map(heads_a_block);
        assert!(kernel.contains(&format!("HEADS = KEY_DIM > 256 ? {wide} : {usual};")));
        assert!(kernel.contains(&format!("WARPS = {};", THREADS / 32)));
        assert!(words.contains(&format!("MOST_LEVELS = {MOST_LEVELS};")));
    }
}
