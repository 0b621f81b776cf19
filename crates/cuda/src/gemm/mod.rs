//! Linear layers: cuBLASLt for every shape it has an algorithm for, kernels/ops/linear_any.cu for the rest. `products`
//! keeps descriptors and algorithms by shape, so that a steady step only enqueues. `linear_fp8` multiplies matrices of
//! e4m3.

pub mod algorithm;
mod autotune;
mod batch_invariant;
mod candidates;
pub mod chooser;
pub mod cublaslt;
pub mod heads;
pub mod linear_fp8;
mod products;
mod ranking;
pub mod shared;
pub mod tune_cache;

use self::chooser::AlgorithmPolicy;
use self::cublaslt::{GemmOperands, GemmShape, PartsLayout, WeightOrder};
use self::products::LibraryProducts;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::{LANE_BLOCK, lane_blocks, small};
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use crate::memory::weights::{Matrix, Vector};
use offshoot_backend::{Dtype, WeightFormat};
use offshoot_core::error::Result;

/// Rows and columns of the outputs of a block of `linear_any`, as in the kernel.
const TILE: u32 = 16;

/// The products of weights in one format.
pub struct Gemm {
    device: Device,
    format: WeightFormat,
    element: Dtype,
    pub(crate) products: LibraryProducts,
    add_bias: ByOut,
    linear_any: ByOut,
    linear_any_accumulating: Function,
    linear_heads: Function,
}

/// The kernels for results in the compute dtype and in f32.
struct ByOut {
    operands: Function,
    sums: Function,
}

impl ByOut {
    fn of(&self, out: Dtype) -> &Function {
        if out == Dtype::F32 { &self.sums } else { &self.operands }
    }
}

impl Gemm {
    /// Uses the library's first choices until `choose` is called.
    pub fn load(device: &Device, weights: WeightFormat) -> Result<Self> {
        let element = weights.dense().expect("products of dense matrices");
        device.prepare(&units::gemm(element))?;
        let add_bias = |out| device.function(&units::add_bias(out), "add_bias");
        let linear_any = |out, accumulate| device.function(&units::linear_any(element, out, accumulate), "linear_any");
        Ok(Self {
            device: device.clone(),
            format: weights,
            element,
            products: LibraryProducts::open(device)?,
            add_bias: ByOut { operands: add_bias(element)?, sums: add_bias(Dtype::F32)? },
            linear_any: ByOut { operands: linear_any(element, false)?, sums: linear_any(Dtype::F32, false)? },
            linear_any_accumulating: linear_any(Dtype::F32, true)?,
            linear_heads: device.function(&units::linear_heads(element), "linear_heads")?,
        })
    }

    /// Sets how algorithms are chosen, also for known products.
    pub fn choose(&mut self, choosing: AlgorithmPolicy) {
        self.products.choose(choosing);
    }

    /// `outs[i][r] = w[i] x[r][i * inner ..]`: each with the bits of `linear`. Whether the library computes all by one
    /// call; if not, nothing is enqueued. `outs` and `w` have one shape. An error is kept for the device's next check.
    pub fn linear_of_parts(&mut self, outs: &[&Buffer], x: &Buffer, w: &[Matrix]) -> bool {
        let Matrix { outputs, inner, format: weights, .. } = w[0];
        let Buffer { rows, element: out, .. } = *outs[0];
        assert!(outs.len() == w.len() && x.width == inner * w.len() && rows == x.rows, "linear of parts: shapes");
        if rows == 0 {
            return true;
        }
        let w: Vec<&Memory> = w.iter().map(|w| &*w.memory).collect();
        let outs: Vec<&Memory> = outs.iter().map(|out| out.memory()).collect();
        let apart = (elements_apart(&w, weights.bytes(1, 1)), elements_apart(&outs, out.bytes()));
        let (Some(weights_apart), Some(outs_apart)) = apart else { return false };
        let layout = PartsLayout {
            parts: w.len(),
            rows_apart: x.width,
            x_apart: inner,
            weights_apart,
            order: WeightOrder::ByOutput,
            outs_apart,
            out_rows_apart: outputs,
        };
        let (accumulate, biased) = (false, false);
        let shape = GemmShape { rows, outputs, inner, weights, compute: x.element, out, accumulate, biased };
        self.products.enqueue_parts(shape, layout, (outs[0], x.memory()), &w).unwrap_or_else(|error| {
            self.device.keep(error);
            true
        })
    }

    /// `out[r] = w x[r] (+ bias)`, plus the old `out[r]`, which is f32, where it accumulates. An error is kept for the
    /// device's next check.
    pub fn linear(&mut self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, accumulate: bool) {
        assert_eq!((out.rows, out.width, x.width), (x.rows, w.outputs, w.inner), "linear: shapes");
        assert_eq!(x.element, w.element(), "linear: dtype of the operand and format of the weights");
        assert!(bias.is_none_or(|bias| bias.len == w.outputs), "linear: length of the bias");
        assert!(!accumulate || out.element == Dtype::F32, "linear, adding: sums are f32");
        if out.rows == 0 {
            return;
        }
        if let Err(error) = self.enqueue(out, x, w, bias, accumulate) {
            self.device.keep(error);
        }
    }

    /// The library adds the bias before rounding. If it cannot, or the bias has another dtype, a kernel of our own adds
    /// it afterwards, and a result that is not f32 is rounded twice.
    fn enqueue(&mut self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, accumulate: bool) -> Result<()> {
        let Matrix { outputs, inner, format: weights, .. } = *w;
        let (rows, compute, result) = (out.rows, x.element, out.element);
        let shape = GemmShape { rows, outputs, inner, weights, compute, out: result, accumulate, biased: false };
        let operands = GemmOperands { out: out.memory(), x: x.memory(), w: &w.memory, bias: None, scales: None };
        if let Some(bias) = bias.and_then(|bias| bias.as_dtype(out.element)) {
            let biased = GemmShape { biased: true, ..shape };
            if self.products.enqueue(biased, GemmOperands { bias: Some(bias), ..operands })? {
                return Ok(());
            }
        }
        if !self.products.enqueue(shape, operands)? {
            self.launch_linear_any(&shape, &operands);
        }
        if let Some(bias) = bias {
            self.launch_add_bias(out, bias);
        }
        Ok(())
    }

    fn launch_linear_any(&self, shape: &GemmShape, operands: &GemmOperands<'_>) {
        let kernel = if shape.accumulate { &self.linear_any_accumulating } else { self.linear_any.of(shape.out) };
        let (rows, outputs) = (small(shape.rows), small(shape.outputs));
        let args = Args::new().memory(operands.out).memory(operands.x).memory(operands.w);
        let args = args.u32(rows).u32(outputs).u32(small(shape.inner));
        self.device.launch(kernel, [outputs.div_ceil(TILE), rows.div_ceil(TILE), 1], TILE * TILE, 0, &args);
    }

    fn launch_add_bias(&self, out: &Buffer, bias: &Vector) {
        let width = small(out.width);
        let args = Args::new().memory(out.memory()).memory(&bias.memory).u32(width);
        let grid = [small(out.rows), lane_blocks(width), 1];
        self.device.launch(self.add_bias.of(out.element), grid, LANE_BLOCK, 0, &args);
    }
}

/// Elements from each of several memories to the next one, if it is the same behind all.
fn elements_apart(memories: &[&Memory], element: usize) -> Option<usize> {
    let apart = |pair: &[&Memory]| pair[1].address().checked_sub(pair[0].address());
    let first = memories.windows(2).next().and_then(apart)?;
    memories.windows(2).all(|pair| apart(pair) == Some(first)).then_some(first as usize / element)
}
