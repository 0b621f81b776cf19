//! Launches of tree attention: which kernel computes which element type and head width, its tiles and shared memory, and the
//! arguments of `tree_attention` and `merge_states`. Plans become words in `device_plan`; who owns the buffers is the
//! backend's business.

use super::args::Args;
use super::device::Device;
use super::device_plan::Tiling;
use super::function::Function;
use super::memory::Memory;
use super::probe::DeviceFacts;
use super::units;
use crate::backend::{Dtype, HeadLayout};
use crate::error::Result;

/// Threads of a block of either attention kernel, and of `merge_states`.
const THREADS: u32 = 128;
const MERGE_THREADS: u32 = 256;
/// Warps of a block of `merge_states`: one a row and head, or several.
const MERGE_WARPS: usize = MERGE_THREADS as usize / 32;
/// Warps of `merge_states` that a multiprocessor runs at a time.
const MOST_MERGE_WARPS: usize = 32;
/// Blocks that run on a multiprocessor at a time.
const BLOCKS: usize = 2;
/// Packed rows of a narrow tile.
const NARROW_ROWS: usize = 16;
/// The widest head of either kernel.
pub const MOST_HEAD_DIM: usize = 256;

/// A place in device memory, in bytes from its start.
pub type At<'a> = (&'a Memory, usize);

/// What one launch reads and writes; shapes as in `Backend::tree_attention`.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    pub out: &'a Memory,
    pub qkv: &'a Memory,
    /// Keys and values of the layer: `[page][kv head][k, v][32 slots][head_dim]`.
    pub kv: At<'a>,
    /// `DevicePlan::words`, at a multiple of 16 bytes.
    pub plan: At<'a>,
    /// u32 `[rows_padded]`: absolute positions, which may have moved on since the plan was made.
    pub positions: At<'a>,
    /// [`scratch_bytes`] for the plan's partial slots.
    pub partials: &'a Memory,
}

/// The compiled kernels for one element type and head layout.
pub struct AttentionKernels {
    heads: HeadLayout,
    attention: Function,
    merge: Function,
    tiling: Tiling,
    shared_bytes: usize,
}

impl AttentionKernels {
    /// `element` is that of queries, keys, values and results. Panics on heads wider than 256, which no model has.
    pub fn load(device: &Device, element: Dtype, heads: HeadLayout) -> Result<Self> {
        let head_dim = heads.head_dim;
        assert!(head_dim <= MOST_HEAD_DIM, "heads of {head_dim} elements");
        let [attention, merge] = units::attention(element, head_dim);
        let facts = device.facts();
        let narrow =
            Tiling { narrow_rows: NARROW_ROWS, wide_rows: None, blocks: BLOCKS * facts.multiprocessors as usize };
        let (name, tiling, shared_bytes) = match attention.source == &units::TREE_ATTENTION {
            true => {
                let wide = Tiling { wide_rows: Some(widest(head_dim)), ..narrow };
                ("tree_attention", wide, shared_bytes(facts, head_dim))
            }
            false => ("tree_attention_any", narrow, shared_bytes_any(head_dim)),
        };
        Ok(Self {
            heads,
            attention: device.function(&attention, name)?,
            merge: device.function(&merge, "merge_states")?,
            tiling,
            shared_bytes,
        })
    }

    /// Warps that merge the states of a row and head: more than one as long as the device has room for all.
    fn merge_split(&self, rows_padded: usize) -> usize {
        let room = self.tiling.blocks / BLOCKS * MOST_MERGE_WARPS;
        let fits = |split: &usize| rows_padded * self.heads.q_heads * split <= room;
        [MERGE_WARPS, MERGE_WARPS / 2, MERGE_WARPS / 4].into_iter().find(fits).unwrap_or(1)
    }

    /// How plans for these kernels are cut.
    pub fn tiling(&self) -> &Tiling {
        &self.tiling
    }

    /// Tree attention by the plan at `plan`, for as many rows as it was padded to. The grid depends on `rows_padded` alone, so
    /// that a captured graph serves every plan of so many rows.
    pub fn tree_attention(&self, device: &Device, operands: &Operands<'_>, scale: f32, rows_padded: usize) {
        let Operands { out, qkv, kv, plan, positions, partials } = *operands;
        let (group, kv_heads) = (argument(self.heads.group()), argument(self.heads.kv_heads));
        let args = Args::new().memory(out).memory(qkv).memory_at(kv.0, kv.1).memory_at(plan.0, plan.1);
        let args = args.memory_at(positions.0, positions.1).memory(partials);
        let args = args.u32(group).u32(kv_heads).f32(scale * std::f32::consts::LOG2_E);
        device.launch(&self.attention, [argument(self.tiling.blocks), 1, 1], THREADS, self.shared_bytes, &args);

        let split = self.merge_split(rows_padded);
        let args = Args::new().memory(out).memory_at(plan.0, plan.1).memory(partials);
        let args = args.u32(argument(self.heads.q_heads)).u32(argument(split));
        let grid = [argument(rows_padded), argument((self.heads.q_heads * split).div_ceil(MERGE_WARPS)), 1];
        device.launch(&self.merge, grid, MERGE_THREADS, 0, &args);
    }
}

/// Bytes of `partial_slots` partial states of a row: f32 `o`, `m` and `l` of all query heads.
pub fn scratch_bytes(partial_slots: usize, heads: HeadLayout) -> usize {
    partial_slots * heads.q_heads * (heads.head_dim + 2) * size_of::<f32>()
}

/// Packed rows of the widest tile, as `WIDEST` of kernels/attention_tile.cuh.
fn widest(head_dim: usize) -> usize {
    if head_dim <= 128 { 128 } else { 64 }
}

/// Dynamic shared memory of a block, as `SHARED_BYTES` of kernels/attention_tile.cuh.
fn shared_bytes(facts: &DeviceFacts, head_dim: usize) -> usize {
    let kilobytes = match (facts.major, facts.minor) {
        (8, 0 | 7) => 163,
        (8 | 12.., _) => 99,
        _ => 227,
    };
    let kilobytes = if kilobytes == 99 && head_dim > 96 { kilobytes - 6 } else { kilobytes / 2 - 6 };
    kilobytes * 1024
}

/// The same of tree_attention_any.cu: keys and values of a piece, padded by an element a row, and the queries of a tile.
fn shared_bytes_any(head_dim: usize) -> usize {
    (2 * 32 * (head_dim + 1) + NARROW_ROWS * head_dim) * size_of::<f32>()
}

fn argument(number: usize) -> u32 {
    u32::try_from(number).expect("heads, rows and blocks are far fewer than 2^32")
}
