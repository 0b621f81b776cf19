//! The chunked delta rule for long runs (kernels/delta_rule/chunk.cuh): which heads have its kernels, and the memory
//! that these need. Deterministic steps do without it: where chunks begin depends on how steps divide a sequence.

use super::runs::{RunPlan, SEGMENT_ROWS};
use crate::backend::cuda::compile::elements::ChunkWalk;
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::{DeltaHeads, Dtype};
use crate::error::Result;

/// Threads of a block, as in the kernels.
pub const BLOCK_THREADS: u32 = 128;

const CHUNK: usize = SEGMENT_ROWS as usize;
/// Elements and floats that rows in shared memory have beside their own.
const PADDING: usize = 8;
const LOWER_PADDING: usize = 4;
const ELEMENT_BYTES: usize = 2;

/// The kernels for one element and heads.
pub struct ChunkedKernels {
    heads: DeltaHeads,
    pub products: Function,
    /// For few blocks, where shared memory has room for it.
    narrow: Option<WalkKernel>,
    /// For many.
    wide: WalkKernel,
    multiprocessors: usize,
}

/// A kernel that walks along runs.
pub struct WalkKernel {
    pub function: Function,
    pub walk: ChunkWalk,
}

impl ChunkedKernels {
    /// `None` where there are no such kernels, or shared memory is too small.
    pub fn load(device: &Device, element: Dtype, heads: DeltaHeads) -> Result<Option<Self>> {
        let DeltaHeads { key_dim, value_dim, .. } = heads;
        let optin = device.facts().shared_optin;
        let [narrow, wide] = ChunkWalk::of(value_dim);
        let least = states_shared(heads, wide).max(products_shared(heads) + STATIC_BYTES);
        if !takes(element, heads) || optin < least {
            return Ok(None);
        }
        let load = |walk: ChunkWalk| {
            let function = device.function(&units::chunk_states(element, key_dim, value_dim, walk), "chunk_states")?;
            Ok(WalkKernel { function, walk })
        };
        let narrow = if states_shared(heads, narrow) <= optin { Some(load(narrow)?) } else { None };
        let products = device.function(&units::chunk_products(element, key_dim, value_dim), "chunk_products")?;
        let multiprocessors = device.facts().multiprocessors as usize;
        Ok(Some(Self { heads, products, narrow, wide: load(wide)?, multiprocessors }))
    }

    /// Bytes of the products of the largest wave of long runs.
    pub fn bytes(&self, plan: &RunPlan) -> usize {
        let most = plan.waves().iter().map(|wave| wave.long_segments).max().unwrap_or(0);
        most * self.heads.value_heads * product_bytes(self.heads)
    }

    /// The kernel for so many runs, and its blocks.
    pub fn walk(&self, runs: usize) -> (&WalkKernel, usize) {
        let blocks = |walk: ChunkWalk| runs * self.heads.value_heads * self.heads.value_dim / walk.strip;
        let few = self.narrow.as_ref().filter(|narrow| blocks(narrow.walk) <= self.multiprocessors);
        let kernel = few.unwrap_or(&self.wide);
        (kernel, blocks(kernel.walk))
    }
}

/// More than the static shared memory of any of the kernels.
const STATIC_BYTES: usize = 2048;

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
    CHUNK * (heads.key_dim + heads.value_dim + CHUNK) * ELEMENT_BYTES + 3 * CHUNK * size_of::<f32>()
}

/// Dynamic shared memory of `chunk_products`.
pub fn products_shared(heads: DeltaHeads) -> usize {
    let rows = heads.key_dim + heads.key_dim.max(heads.value_dim) + 2 * CHUNK + 4 * PADDING;
    CHUNK * (rows * ELEMENT_BYTES + (CHUNK + LOWER_PADDING) * size_of::<f32>())
}

/// Dynamic shared memory of `chunk_states`.
pub fn states_shared(heads: DeltaHeads, walk: ChunkWalk) -> usize {
    let stage = CHUNK * (3 * (heads.key_dim + PADDING) + CHUNK + PADDING);
    let own = (heads.key_dim + 2 * CHUNK) * (walk.strip + PADDING);
    (walk.stages * stage + own) * ELEMENT_BYTES
}
