//! A linear layer for each head of a row, as one product: cuBLASLt's strided batches, or kernels/ops/linear_heads.cu
//! where the library has no algorithm, and always where a row's result must not depend on how many rows there are.

use super::cublaslt::{GemmOperands, GemmShape, PartsLayout, WeightOrder};
use super::{Gemm, TILE};
use crate::driver::args::Args;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;

/// Where the vectors of heads lie in rows, and their matrices in memory. Distances are in elements.
#[derive(Clone, Copy, Debug)]
pub struct HeadProducts {
    pub heads: usize,
    /// Outputs and inputs of a head's matrix.
    pub outputs: usize,
    pub inner: usize,
    /// The distance from one head to the next in a row of the operand and of the result.
    pub x_apart: usize,
    pub out_apart: usize,
    /// From one head's matrix to the next one's, and how a matrix lies.
    pub weights_apart: usize,
    pub order: WeightOrder,
}

impl Gemm {
    /// `out[r][h] = w[h] x[r][h]`. `w`: the first head's matrix and what follows. An error is kept for the device's
    /// next check.
    pub fn linear_heads(&mut self, out: &Buffer, x: &Buffer, w: &Memory, of: HeadProducts) {
        let HeadProducts { heads, outputs, inner, x_apart, out_apart, weights_apart, order } = of;
        let end = |apart: usize, width: usize| (heads - 1) * apart + width;
        assert!(x.width >= end(x_apart, inner) && out.width >= end(out_apart, outputs), "linear of heads: widths");
        assert_eq!((out.rows, out.element, x.element), (x.rows, self.element, self.element), "linear of heads: shapes");
        assert!(w.bytes() >= end(weights_apart, outputs * inner) * self.element.bytes(), "linear of heads: weights");
        if out.rows == 0 {
            return;
        }
        let (rows, compute) = (out.rows, self.element);
        let weights = self.format;
        let shape =
            GemmShape { rows, outputs, inner, weights, compute, out: compute, accumulate: false, biased: false };
        let layout = PartsLayout {
            parts: heads,
            rows_apart: x.width,
            x_apart,
            weights_apart,
            order,
            outs_apart: out_apart,
            out_rows_apart: out.width,
        };
        let operands = GemmOperands { out: out.memory(), x: x.memory(), w, bias: None, scales: None };
        match self.products.enqueue_heads(shape, layout, operands) {
            Ok(true) => {}
            Ok(false) => self.launch_linear_heads(out, x, w, of),
            Err(error) => self.device.keep(error),
        }
    }

    fn launch_linear_heads(&self, out: &Buffer, x: &Buffer, w: &Memory, of: HeadProducts) {
        let HeadProducts { heads, outputs, inner, x_apart, out_apart, weights_apart, order } = of;
        let (w_output, w_inner) = match order {
            WeightOrder::ByOutput => (inner, 1),
            WeightOrder::ByInput => (1, outputs),
        };
        let args = Args::new().memory(out.memory()).memory(x.memory()).memory(w).u32(small(out.rows));
        let args = args.u32(small(outputs)).u32(small(inner)).u32(small(x.width)).u32(small(x_apart));
        let args = args.u32(small(out.width)).u32(small(out_apart)).u32(small(weights_apart));
        let args = args.u32(small(w_output)).u32(small(w_inner));
        let grid = [small(outputs).div_ceil(TILE) * small(heads), small(out.rows).div_ceil(TILE), 1];
        self.device.launch(&self.linear_heads, grid, TILE * TILE, 0, &args);
    }
}
