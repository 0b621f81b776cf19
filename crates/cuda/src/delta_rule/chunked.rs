//! The chunked delta rule for long runs (kernels/delta_rule/chunk.cuh): which heads have its kernels, and the memory
//! that these need. Deterministic steps do without it: where chunks begin depends on how steps divide a sequence.

use super::runs::{LONG_ROWS, RunPlan, SEGMENT_ROWS};
use crate::compile::elements::ChunkWalk;
use crate::compile::units;
use crate::driver::device::Device;
use crate::driver::function::Function;
use offshoot_backend::{DeltaHeads, Dtype, LayerState, StateDtype, StateKind};
use offshoot_core::error::Result;

/// Threads of a block of `chunk_products`.
pub const PRODUCTS_THREADS: u32 = 128;

const CHUNK: usize = SEGMENT_ROWS as usize;
/// Elements that rows in shared memory have beside their own.
const PADDING: usize = 8;
const ELEMENT_BYTES: usize = 2;

/// The kernels for one element and heads.
pub struct ChunkedKernels {
    heads: DeltaHeads,
    pub products: Function,
    /// The widest last; at least the one that takes least shared memory.
    walks: Vec<WalkKernel>,
    multiprocessors: usize,
}

/// A kernel that walks along runs.
pub struct WalkKernel {
    pub function: Function,
    pub walk: ChunkWalk,
}

impl ChunkedKernels {
    /// `None` where there are no such kernels, or shared memory is too small.
    pub fn load(device: &Device, element: Dtype, state: StateDtype, heads: DeltaHeads) -> Result<Option<Self>> {
        let DeltaHeads { key_dim, value_dim, .. } = heads;
        let room = device.facts().shared_optin.saturating_sub(STATIC_BYTES);
        if !takes(element, heads) || products_shared(heads) > room {
            return Ok(None);
        }
        let load = |walk: ChunkWalk| {
            let unit = units::chunk_states(element, state, key_dim, value_dim, walk);
            let function = device.function(&unit, "chunk_states")?;
            Ok(WalkKernel { function, walk })
        };
        let fitting = ChunkWalk::of(value_dim).into_iter().filter(|&walk| states_shared(heads, walk) <= room);
        let walks: Vec<WalkKernel> = fitting.map(load).collect::<Result<_>>()?;
        if walks.is_empty() {
            return Ok(None);
        }
        let products = device.function(&units::chunk_products(element, key_dim, value_dim), "chunk_products")?;
        let multiprocessors = device.facts().multiprocessors as usize;
        Ok(Some(Self { heads, products, walks, multiprocessors }))
    }

    /// Bytes of the products of the largest wave of long runs.
    pub fn bytes(&self, plan: &RunPlan) -> usize {
        let most = plan.waves().iter().map(|wave| wave.long_segments).max().unwrap_or(0);
        most * self.heads.value_heads * product_bytes(self.heads)
    }

    /// The kernel for so many runs, and its blocks.
    pub fn walk(&self, runs: usize) -> (&WalkKernel, usize) {
        let walks: Vec<ChunkWalk> = self.walks.iter().map(|kernel| kernel.walk).collect();
        let kernel = &self.walks[walk_for(&walks, self.heads, runs, self.multiprocessors)];
        (kernel, blocks(self.heads, kernel.walk, runs))
    }
}

fn blocks(heads: DeltaHeads, walk: ChunkWalk, runs: usize) -> usize {
    runs * heads.value_heads * heads.value_dim / walk.strip
}

/// Which of `walks`, of which one at least is there, takes so many runs: the widest one that leaves few multiprocessors
/// idle, else the one with the most blocks that are computed at once.
fn walk_for(walks: &[ChunkWalk], heads: DeltaHeads, runs: usize, multiprocessors: usize) -> usize {
    let fills = |walk: &ChunkWalk| blocks(heads, *walk, runs) * IDLE_PART >= multiprocessors * (IDLE_PART - 1);
    walks.iter().rposition(fills).unwrap_or(0)
}

/// At most 1/`IDLE_PART` of the multiprocessors is left idle by wide strips.
const IDLE_PART: usize = 8;

/// More than the static shared memory of any of the kernels.
const STATIC_BYTES: usize = 3072;

/// Whether there are kernels for these heads.
pub fn takes(element: Dtype, heads: DeltaHeads) -> bool {
    element != Dtype::F32
        && heads.key_dim.is_multiple_of(64)
        && heads.key_dim <= 128
        && heads.value_dim.is_multiple_of(32)
        && heads.value_dim <= 128
}

/// Bytes of the products of one chunk and value head.
pub fn product_bytes(heads: DeltaHeads) -> usize {
    let factors = 3 * CHUNK + heads.value_dim / 8 + 4;
    CHUNK * (heads.key_dim + heads.value_dim + CHUNK) * ELEMENT_BYTES + factors * size_of::<f32>()
}

/// The most bytes of the products of a step of so many rows: where runs are as short as long ones are, a chunk each.
pub fn most_bytes(element: Dtype, layer: LayerState, rows: usize) -> usize {
    let StateKind::Delta(heads) = layer.kind else { return 0 };
    let chunks = if takes(element, heads) { rows / LONG_ROWS } else { 0 };
    chunks.saturating_mul(heads.value_heads * product_bytes(heads))
}

/// Dynamic shared memory of `chunk_products`: keys, then queries or results, then L or values, then the inverse, of
/// which L and the inverse have two parts.
pub fn products_shared(heads: DeltaHeads) -> usize {
    let (keys, values, chunk) = (heads.key_dim + PADDING, heads.value_dim + PADDING, CHUNK + PADDING);
    CHUNK * (keys + keys.max(chunk) + values.max(2 * chunk) + 2 * chunk) * ELEMENT_BYTES
}

/// Blocks of `chunk_products`: one takes the value heads that share a key head.
pub fn products_blocks(heads: DeltaHeads, segments: usize) -> usize {
    segments * heads.key_heads
}

/// Dynamic shared memory of `chunk_states`.
pub fn states_shared(heads: DeltaHeads, walk: ChunkWalk) -> usize {
    let stage = CHUNK * (3 * (heads.key_dim + PADDING) + CHUNK + PADDING);
    let own = (heads.key_dim + 2 * CHUNK) * (walk.strip + PADDING);
    (walk.stages * stage + own) * ELEMENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_kv::StateRun;

    #[test]
    fn few_runs_have_narrow_strips_and_many_wide_ones() {
        let heads = DeltaHeads { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };
        let walks = ChunkWalk::of(heads.value_dim);
        let strip = |runs: usize| walks[walk_for(&walks, heads, runs, 132)].strip;
        // 32 blocks of all columns a run.
        assert_eq!([1, 2, 3, 4, 8, 200].map(strip), [32, 64, 64, 128, 128, 128]);
        assert_eq!(walk_for(&walks[1..2], heads, 1, 132), 0, "where only one fits");
    }

    #[test]
    fn a_step_has_no_more_chunks_than_announced() {
        let heads = DeltaHeads { key_heads: 1, value_heads: 2, key_dim: 64, value_dim: 32 };
        let layer = LayerState::delta(heads, 4);
        let most = |rows: u32| most_bytes(Dtype::Bf16, layer, rows as usize);
        for rows in [31, 32, 64, 65, 129, 300] {
            for length in [31, 32, 33, 64, 65, 300] {
                let run = |first: u32| StateRun {
                    rows: first..(first + length).min(rows),
                    from: None,
                    is_in: false,
                    to: None,
                };
                let runs: Vec<_> = (0..rows).step_by(length as usize).map(run).collect();
                let plan = RunPlan::new(&runs, rows as usize);
                let chunks: usize = plan.waves().iter().map(|wave| wave.long_segments).sum();
                assert!(chunks * heads.value_heads * product_bytes(heads) <= most(rows), "{rows} rows in {length}s");
            }
        }
        assert_eq!(most_bytes(Dtype::F32, layer, 64), 0, "f32 has no chunks");
    }
}
