//! Activations rounded to e4m3 before they are multiplied by e4m3 (kernels/fp8/round_rows.cu). The rounded rows lie in memory of
//! their own, which all products use in turn.

use std::collections::HashMap;

use crate::backend::Dtype;
use crate::backend::cuda::compile::elements::{Fp8Scaling, Fp8Tiles};
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::args::Args;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::cuda::driver::grid::small;
use crate::backend::cuda::driver::memory::Memory;
use crate::backend::cuda::driver::tensor_map::{BoxElement, MatrixBoxes, TensorMap};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::fp8::stride;
use crate::backend::quantised::ActivationScale;
use crate::error::Result;

/// Threads of `round_rows`, as in kernels/reduce.cuh.
const THREADS: u32 = 256;

/// The kernels, and the rounded rows of the product in progress.
pub struct RowRounder {
    device: Device,
    kernels: HashMap<(Dtype, Fp8Scaling), Function>,
    /// Absent until a product has rows.
    memory: Option<(Memory, Memory)>,
    /// The most rows and inputs of any linear layer, and of any experts.
    linear: RowsOf,
    experts: RowsOf,
}

/// The most rows that are rounded at a time, and their most inputs.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowsOf {
    pub rows: usize,
    pub inner: usize,
}

impl RowsOf {
    fn grown(self, to: Self) -> Self {
        Self { rows: self.rows.max(to.rows), inner: self.inner.max(to.inner) }
    }

    /// Bytes of the codes, and of scales by blocks.
    fn bytes(self) -> (usize, usize) {
        (self.rows * stride(self.inner), apart(self.rows) * self.inner.div_ceil(Fp8Tiles::PANEL) * size_of::<f32>())
    }
}

/// Scales from a block of inputs to the next: tensor maps take multiples of 16 bytes.
fn apart(rows: usize) -> usize {
    rows.next_multiple_of(4)
}

/// Rounded rows, until the next are rounded.
pub struct RoundedRows<'a> {
    device: &'a Device,
    pub codes: &'a Memory,
    /// f32 `[rows]`, or by blocks `[ceil(inner / 128)]` rows of as many, rounded up to 4.
    pub scales: &'a Memory,
    pub scaling: Fp8Scaling,
    pub rows: usize,
    pub inner: usize,
}

impl RowRounder {
    pub fn new(device: &Device) -> Self {
        let (linear, experts) = (RowsOf::default(), RowsOf::default());
        Self { device: device.clone(), kernels: HashMap::new(), memory: None, linear, experts }
    }

    /// Compiles the kernels of `scaling`, or takes them from the cache.
    pub fn load(&mut self, scaling: Fp8Scaling) -> Result<()> {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let function = self.device.function(&units::round_rows(dtype, scaling), "round_rows")?;
            self.kernels.insert((dtype, scaling), function);
        }
        Ok(())
    }

    /// Makes room for the rows of linear layers, and for the places of experts. Returns whether an address has changed, which
    /// a captured graph does not survive.
    pub fn reserve(&mut self, linear: RowsOf, experts: RowsOf) -> Result<bool> {
        (self.linear, self.experts) = (self.linear.grown(linear), self.experts.grown(experts));
        let ((codes, scales), (of_experts, their_scales)) = (self.linear.bytes(), self.experts.bytes());
        let (codes, scales) = (codes.max(of_experts), scales.max(their_scales));
        let fits = |(room, of_scales): &(Memory, Memory)| room.bytes() >= codes && of_scales.bytes() >= scales;
        if codes == 0 || self.memory.as_ref().is_some_and(fits) {
            return Ok(false);
        }
        self.memory = None;
        self.memory = Some((self.device.alloc(codes)?, self.device.alloc(scales)?));
        Ok(true)
    }

    /// Rounds the rows of `x`, or the rows of it that `chosen` lists, a u32 each. An error is kept for the device's next check.
    /// Panics if `reserve` has not made room for them.
    pub fn round(
        &self,
        x: &Buffer,
        chosen: Option<(&Memory, usize)>,
        scaling: Fp8Scaling,
        activations: ActivationScale,
    ) -> RoundedRows<'_> {
        let (codes, scales) = self.memory.as_ref().expect("`resize` of the operand has made room for its rounded rows");
        let (rows, inner) = (chosen.map_or(x.rows, |(_, count)| count), x.width);
        let (bytes, of_scales) = RowsOf { rows, inner }.bytes();
        assert!(codes.bytes() >= bytes && scales.bytes() >= of_scales, "{rows} rows of {inner} inputs to round");
        let bound = activations.fixed.or(activations.most).unwrap_or(f32::INFINITY);
        let args = Args::new().memory(codes).memory(scales).memory(x.memory());
        let args = args.memory(chosen.map_or(codes, |(list, _)| list)).u32(chosen.is_some().into());
        let args = args.u32(small(inner)).u32(small(stride(inner))).u32(small(apart(rows)));
        let args = args.u32(activations.fixed.is_some().into()).f32(bound);
        self.device.launch(&self.kernels[&(x.element, scaling)], [small(rows), 1, 1], THREADS, 0, &args);
        RoundedRows { device: &self.device, codes, scales, scaling, rows, inner }
    }
}

impl RoundedRows<'_> {
    /// For boxes of `columns` rows.
    pub fn code_map(&self, columns: usize) -> Result<TensorMap> {
        codes(self.device, self.codes, self.rows, self.inner, columns)
    }

    /// The scales by blocks in boxes of `columns`; otherwise a map of the codes, which the kernel does not use.
    pub fn scale_map(&self, columns: usize) -> Result<TensorMap> {
        if self.scaling == Fp8Scaling::Rows {
            return self.code_map(columns);
        }
        let boxes = MatrixBoxes {
            element: BoxElement::F32,
            rows: self.inner.div_ceil(Fp8Tiles::PANEL),
            width: self.rows,
            apart: apart(self.rows) * size_of::<f32>(),
            box_rows: 1,
            box_width: columns,
        };
        TensorMap::new(self.device, self.scales, 0, boxes)
    }
}

/// `rows` rows of `inner` codes as panels of `box_rows` rows.
pub fn codes(device: &Device, memory: &Memory, rows: usize, inner: usize, box_rows: usize) -> Result<TensorMap> {
    let boxes = MatrixBoxes {
        element: BoxElement::SwizzledBytes,
        rows,
        width: inner,
        apart: stride(inner),
        box_rows,
        box_width: Fp8Tiles::PANEL,
    };
    TensorMap::new(device, memory, 0, boxes)
}
