//! Latent attention's ops beside attention itself: the launchers of kernels/ops/prepare_latents.cu and of those that
//! expand latents and merge results. `gemm` has the products by maps.

use crate::attention::MOST_LATENT;
use crate::compile::elements::PageLayout;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::{LANE_BLOCK, LANES, lane_blocks, small};
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use crate::memory::kv::{Kv, PAGE_TOKENS, SlotWords};
use crate::memory::weights::{Matrix, Vector};
use crate::ops::{HeadWords, Rope, Words, neighbours};
use offshoot_backend::{Dtype, LatentHeads, LatentSteps, Values};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::LayerIx;

/// Warps of a block of `prepare_latents`, as there.
const PREPARING_WARPS: usize = 4;

/// Heads of a block of `merge_attended`, as there.
const MERGED_HEADS: usize = 8;

/// Slots whose latents are expanded at a time: enough for the matrix product, and few enough for the memory between.
pub const MOST_EXPANDED: usize = 2048;

/// The maps of a layer's latents.
pub struct LatentMaps {
    pub heads: LatentHeads,
    /// `[heads.map_rows(), heads.rank]`
    pub matrix: Matrix,
    /// The same memory, from the first head's map of values on.
    pub values: Memory,
}

/// Refuses latents that no kernel has room for.
pub fn check(heads: LatentHeads) -> Result<()> {
    let width = heads.latent_width();
    if width <= MOST_LATENT {
        return Ok(());
    }
    let expected = format!("at most {MOST_LATENT} on a GPU; the CPU takes any");
    let found = format!("{width} ({} + {})", heads.rank, heads.rope);
    Err(Error::value("kv_lora_rank + qk_rope_head_dim", expected, found))
}

impl LatentMaps {
    /// Panics if the matrix is not one of these heads.
    pub fn new(heads: LatentHeads, matrix: Matrix) -> Self {
        assert_eq!((matrix.outputs, matrix.inner), (heads.map_rows(), heads.rank), "latent_maps: {heads}");
        let values = matrix.memory.behind(heads.nope * heads.rank * matrix.element().bytes());
        Self { heads, matrix, values }
    }
}

/// The kernels of one element type.
pub struct LatentOps {
    device: Device,
    element: Dtype,
    merge_attended: Function,
}

/// A layer's memory.
#[derive(Clone, Copy)]
pub struct AtLayer<'a> {
    pub kv: &'a Kv,
    pub layer: LayerIx,
}

impl LatentOps {
    pub fn load(device: &Device, element: Dtype) -> Result<Self> {
        device.prepare(&units::latents(element))?;
        let merge_attended = units::typed(&units::MERGE_ATTENDED, element);
        Ok(Self {
            merge_attended: device.function(&merge_attended, "merge_attended")?,
            device: device.clone(),
            element,
        })
    }

    /// `Backend::prepare_latents`
    pub fn prepare(
        &self,
        (queries, latents, absorbed): (&Buffer, Option<&Buffer>, Option<&Buffer>),
        steps: &LatentSteps<'_, Vector, Rope>,
        kv: &Kv,
        words: HeadWords<'_>,
    ) {
        let LatentSteps { heads, norm, eps, ropes, layer } = *steps;
        assert_eq!(kv.heads(layer), heads.absorbed(), "prepare_latents: pages of these latents");
        let [query_width, latent_width] = [heads.query_width(), heads.latent_width()];
        // Elements of a row of queries, and those of a row of latents that lie before these.
        let (query_row, before) = match latents {
            Some(_) => (query_width, 0),
            None => (query_width + latent_width, query_width),
        };
        let latents = latents.unwrap_or(queries);
        let widths = [query_row, before + latent_width, heads.rank];
        assert_eq!([queries.width, latents.width, norm.len], widths, "prepare_latents: widths for {heads}");
        assert_eq!(queries.rows, latents.rows, "prepare_latents: rows");
        self.assert_operands(&[queries, latents]);
        if let Some(absorbed) = absorbed {
            let shape = (absorbed.rows, absorbed.width);
            assert_eq!(shape, (queries.rows, heads.absorbed().q_width()), "prepare_latents: absorbed of {heads}");
            self.assert_operands(&[absorbed]);
        }
        assert_eq!(kv.shape().dtype, self.element, "prepare_latents: dtype of the pages");
        if queries.rows == 0 {
            return;
        }
        let most = |rope: &Rope| if rope.keys { heads.rope } else { heads.nope + heads.rope };
        let is_part = |rope: &Rope| rope.rotary.is_multiple_of(2) && rope.rotary <= most(rope);
        assert!(ropes.into_iter().flatten().all(is_part), "prepare_latents: rotated part of {heads}");
        // A warp takes one part of a row: its latent, or some of its heads, as many as the warp's lanes rotate at once,
        // LANES pairs of elements each.
        let pairs = ropes.into_iter().flatten().map(|rope| rope.rotary / 2).max().unwrap_or(0);
        let heads_a_part = (32 * LANES as usize / pairs.max(1)).clamp(1, heads.heads);
        let passes = pairs == 0 && absorbed.is_none();
        let parts = 1 + if passes { 0 } else { heads.heads.div_ceil(heads_a_part) };
        let args = Args::new().memory(queries.memory()).memory_or_null(absorbed.map(Buffer::memory));
        let before = before * self.element.bytes();
        let args = args.memory_at(latents.memory(), before).memory(&norm.memory).f32(eps);
        let args = ropes.into_iter().fold(args, |args, rope| {
            // No table, as one that rotates nothing.
            let rope = rope.filter(|rope| rope.rotary > 0);
            let args = args.memory_or_null(rope.map(|rope| &rope.cosines)).memory_or_null(rope.map(|rope| &rope.sines));
            let turns = rope.map_or(0, |rope| neighbours(rope.pairs) | u32::from(rope.keys) << 1);
            args.u32(small(rope.map_or(0, |rope| rope.rotary))).u32(turns)
        });
        let SlotWords { words: slots, member } = words.slots;
        let args = args.memory_at(words.positions.0, words.positions.1);
        let args = args.memory_at(kv.memory(), kv.layer_at(layer)).memory_at(slots.0, slots.1);
        let args = args.u32(small(queries.rows)).u32(small(heads.heads)).u32(small(heads.nope + heads.rope));
        let args = args.u32(small(heads.rank)).u32(small(heads.rope)).u32(small(parts)).u32(small(heads_a_part));
        let args = args.u32(small(queries.width)).u32(small(latents.width)).u32(member.number).u32(member.of);
        let blocks = small((queries.rows * parts).div_ceil(PREPARING_WARPS));
        let shared = PREPARING_WARPS * (latent_width * self.element.bytes()).next_multiple_of(16);
        self.device.launch(kv.prepare_latents(layer), [blocks, 1, 1], PREPARING_WARPS as u32 * 32, shared, &args);
    }

    /// The latents of the slots of expansions, 32 rows of `out` for each. `expansions`: the first one's words.
    pub fn gather(&self, out: &Buffer, from: AtLayer<'_>, expansions: Words<'_>) {
        let heads = from.kv.heads(from.layer);
        assert_eq!(heads.values, Values::InKeys(out.width), "expand_latents: values of {heads}");
        self.assert_operands(&[out]);
        let args = Args::new().memory(out.memory()).memory_at(from.kv.memory(), from.kv.layer_at(from.layer));
        let args = args.memory_at(expansions.0, expansions.1).u32(small(out.width)).u32(small(heads.head_dim));
        let args = args.u32(in_panels(from));
        self.device.launch(from.kv.gather_latents(from.layer), [small(out.rows), 1, 1], LANE_BLOCK, 0, &args);
    }

    /// Stores what the maps make of the gathered latents, `mapped`, in the pages of copies. An error is kept for the
    /// device's next check.
    pub fn store(
        &self,
        copies: AtLayer<'_>,
        mapped: &Buffer,
        from: AtLayer<'_>,
        heads: LatentHeads,
        expansions: Words<'_>,
    ) {
        assert_eq!(copies.kv.heads(copies.layer), heads.expanded(), "expand_latents: pages of copies of {heads}");
        assert_eq!(from.kv.heads(from.layer), heads.absorbed(), "expand_latents: pages of latents of {heads}");
        assert_eq!((mapped.width, mapped.element), (heads.map_rows(), self.element), "expand_latents: shapes");
        let args = Args::new().memory_at(copies.kv.memory(), copies.kv.layer_at(copies.layer)).memory(mapped.memory());
        let args = args.memory_at(from.kv.memory(), from.kv.layer_at(from.layer));
        let args = args.memory_at(expansions.0, expansions.1).u32(small(heads.latent_width())).u32(in_panels(from));
        let args = args.u32(small(heads.heads)).u32(small(heads.nope)).u32(small(heads.rope)).u32(small(heads.value));
        let grid = [small(mapped.rows), lane_blocks(small(heads.expanded().stored_width())), 1];
        match copies.kv.store_expanded(copies.layer, from.kv.kv_element(from.layer)) {
            Ok(kernel) => self.device.launch(kernel, grid, LANE_BLOCK, 0, &args),
            Err(error) => self.device.keep(error),
        }
    }

    /// `Backend::merge_attended`
    pub fn merge(&self, out: &Buffer, lse: &Buffer, other: &Buffer, other_lse: &Buffer) {
        assert_eq!((out.rows, out.width), (other.rows, other.width), "merge_attended: results");
        assert_eq!((lse.rows, lse.width), (other_lse.rows, other_lse.width), "merge_attended: log-sum-exps");
        assert!(lse.rows == out.rows && out.width.is_multiple_of(lse.width), "merge_attended: shapes");
        assert!([lse, other_lse].iter().all(|lse| lse.element == Dtype::F32), "merge_attended: f32 log-sum-exps");
        self.assert_operands(&[out, other]);
        if out.rows == 0 {
            return;
        }
        let args = Args::new().memory(out.memory()).memory(lse.memory()).memory(other.memory());
        let args = args.memory(other_lse.memory()).u32(small(lse.width)).u32(small(out.width / lse.width));
        let grid = [small(out.rows), small(lse.width.div_ceil(MERGED_HEADS)), 1];
        self.device.launch(&self.merge_attended, grid, LANE_BLOCK, 0, &args);
    }

    fn assert_operands(&self, buffers: &[&Buffer]) {
        let are = buffers.iter().all(|buffer| buffer.element == self.element);
        assert!(are, "queries, latents and results have the dtype of the maps");
    }
}

/// Whether latents lie in panels, as kernels are told.
fn in_panels(from: AtLayer<'_>) -> u32 {
    u32::from(from.kv.layout(from.layer) == PageLayout::Panels)
}

/// Rows in which latents are expanded, where so many expansions are asked for.
pub fn expanded_rows(expansions: usize) -> usize {
    expansions.saturating_mul(PAGE_TOKENS as usize).min(MOST_EXPANDED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latents_that_no_kernel_takes_are_named() {
        let heads = |rank, rope| LatentHeads { heads: 4, rank, nope: 64, rope, value: 128 };
        assert!(check(heads(512, 64)).is_ok() && check(heads(448, 128)).is_ok());
        for (rank, rope, found) in [(512, 128, "640 (512 + 128)"), (448, 192, "640 (448 + 192)")] {
            let error = check(heads(rank, rope)).unwrap_err().to_string();
            for said in ["kv_lora_rank + qk_rope_head_dim", "at most 576 on a GPU", "the CPU takes any", found] {
                assert!(error.contains(said), "`{said}` is not in: {error}");
            }
        }
    }
}
