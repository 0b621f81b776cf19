//! The chunked delta rule for long runs (kernels/delta_rule/chunk.cuh): which heads have its kernels, and the memory that
//! these need. Deterministic steps do without it: where chunks begin depends on how steps divide a sequence.

use super::runs::{RunPlan, SEGMENT_ROWS};
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::{DeltaHeads, Dtype};
use crate::error::Result;

/// Threads of a block, and columns of a strip of a state, as in the kernels.
pub const BLOCK_THREADS: u32 = 128;
pub const STRIP: usize = 32;

const CHUNK: usize = SEGMENT_ROWS as usize;
/// Elements and floats that rows in shared memory have beside their own.
const PADDING: usize = 8;
const LOWER_PADDING: usize = 4;
const ELEMENT_BYTES: usize = 2;

/// The kernels for one element and heads.
pub struct ChunkedKernels {
    heads: DeltaHeads,
    pub products: Function,
    /// With one stage and, where shared memory holds two, with two.
    states: Vec<Function>,
    multiprocessors: usize,
}

impl ChunkedKernels {
    /// `None` where there are no such kernels, or shared memory is too small.
    pub fn load(device: &Device, element: Dtype, heads: DeltaHeads) -> Result<Option<Self>> {
        let optin = device.facts().shared_optin;
        if !takes(element, heads) || optin < states_shared(heads, 1).max(products_shared(heads)) + STATIC_BYTES {
            return Ok(None);
        }
        let [products, one, two] = units::chunked(element, heads.key_dim, heads.value_dim);
        let mut states = vec![device.function(&one, "chunk_states")?];
        if optin >= states_shared(heads, 2) {
            states.push(device.function(&two, "chunk_states")?);
        }
        let products = device.function(&products, "chunk_products")?;
        let multiprocessors = device.facts().multiprocessors as usize;
        Ok(Some(Self { heads, products, states, multiprocessors }))
    }

    /// Bytes of the products of the largest wave of long runs.
    pub fn bytes(&self, plan: &RunPlan) -> usize {
        let most = plan.waves().iter().map(|wave| wave.long_segments).max().unwrap_or(0);
        most * self.heads.value_heads * product_bytes(self.heads)
    }

    /// The kernel for a launch of so many blocks, and its shared memory. Where there is one block for each multiprocessor,
    /// it copies ahead; more blocks compute while others copy.
    pub fn states(&self, blocks: usize) -> (&Function, usize) {
        let stages = if blocks > self.multiprocessors { 1 } else { self.states.len() };
        (&self.states[stages - 1], states_shared(self.heads, stages))
    }
}

/// More than the static shared memory of any of the kernels.
const STATIC_BYTES: usize = 2048;

/// Whether there are kernels for these heads.
pub fn takes(element: Dtype, heads: DeltaHeads) -> bool {
    element != Dtype::F32
        && heads.key_dim.is_multiple_of(64)
        && heads.key_dim <= 128
        && heads.value_dim.is_multiple_of(STRIP)
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
pub fn states_shared(heads: DeltaHeads, stages: usize) -> usize {
    let stage = CHUNK * (3 * (heads.key_dim + PADDING) + CHUNK + PADDING);
    let own = (heads.key_dim + 2 * CHUNK) * (STRIP + PADDING);
    (stages * stage + own) * ELEMENT_BYTES
}
