//! Activations rounded to e4m3 before they are multiplied by e4m3. The rounded rows lie in memory of their own, which
//! all products use in turn. A norm or a gate that only one product reads rounds its results itself
//! (kernels/fp8/rms_norm_fp8.cu, gated_silu_fp8.cu), to the bits of round_rows.cu beside them, and stores nothing else;
//! the product then finds them rounded. So does one that others read too, once its results were rounded for a product,
//! but it stores them as they are besides.

use std::collections::{HashMap, HashSet};

use crate::compile::elements::{Fp8Scaling, Fp8Tiles};
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use crate::driver::tensor_map::{BoxElement, MatrixBoxes, TensorMap};
use crate::memory::buffer::Buffer;
use crate::memory::fp8::stride;
use crate::memory::weights::{Fp8Scales, Matrix, Vector};
use offshoot_backend::Dtype;
use offshoot_backend::quantised::ActivationScale;
use offshoot_core::error::Result;

/// Threads of `round_rows`, as in kernels/reduce.cuh.
const THREADS: u32 = 256;

/// The kernels, and the rounded rows of the product in progress.
pub struct RowRounder {
    device: Device,
    kernels: HashMap<(Dtype, Fp8Scaling), RoundingKernels>,
    /// How the rows of each buffer were rounded last, by its address; of scales that follow from the rows.
    wanted: HashMap<u64, (Fp8Scaling, ActivationScale)>,
    /// What the memory holds, as long as no other op may have changed the buffer.
    held: Option<Held>,
    /// Addresses of the buffers whose rows were rounded and not stored, as long as nothing else may have filled them.
    unstored: HashSet<u64>,
    /// Absent until a product has rows.
    memory: Option<(Memory, Memory)>,
    /// The most rows and inputs of any linear layer, and of any experts.
    linear: RowsOf,
    experts: RowsOf,
}

/// The kernels of one dtype and scaling.
struct RoundingKernels {
    round_rows: Function,
    rms_norm: Function,
    gated_silu: Function,
}

/// Whose rows are rounded, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    address: u64,
    rows: usize,
    inner: usize,
    scaling: Fp8Scaling,
    activations: ActivationScale,
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
        let (kernels, wanted) = (HashMap::new(), HashMap::new());
        Self {
            device: device.clone(),
            kernels,
            wanted,
            held: None,
            unstored: HashSet::new(),
            memory: None,
            linear,
            experts,
        }
    }

    /// Compiles the kernels of `scaling`, or takes them from the cache.
    pub fn load(&mut self, scaling: Fp8Scaling) -> Result<()> {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let unit = |source| units::rounding_fp8(source, dtype, scaling);
            let kernels = RoundingKernels {
                round_rows: self.device.function(&unit(&units::ROUND_ROWS), "round_rows")?,
                rms_norm: self.device.function(&unit(&units::RMS_NORM_FP8), "rms_norm_fp8")?,
                gated_silu: self.device.function(&unit(&units::GATED_SILU_FP8), "gated_silu_fp8")?,
            };
            self.kernels.insert((dtype, scaling), kernels);
        }
        Ok(())
    }

    /// Makes room for the rows of linear layers, and for the places of experts. Returns whether an address has changed,
    /// which a captured graph does not survive. After an error there is no room for any, until it is asked for again.
    pub fn reserve(&mut self, linear: RowsOf, experts: RowsOf) -> Result<bool> {
        let (linear, experts) = (self.linear.grown(linear), self.experts.grown(experts));
        let ((codes, scales), (of_experts, their_scales)) = (linear.bytes(), experts.bytes());
        let (codes, scales) = (codes.max(of_experts), scales.max(their_scales));
        let fits = |(room, of_scales): &(Memory, Memory)| room.bytes() >= codes && of_scales.bytes() >= scales;
        if codes == 0 || self.memory.as_ref().is_some_and(fits) {
            (self.linear, self.experts) = (linear, experts);
            return Ok(false);
        }
        self.held = None;
        self.memory = None;
        // A smaller step may find room where this one finds none.
        (self.linear, self.experts) = (RowsOf::default(), RowsOf::default());
        self.memory = Some((self.device.alloc(codes)?, self.device.alloc(scales)?));
        (self.linear, self.experts) = (linear, experts);
        Ok(true)
    }

    /// Forgets what is rounded: any buffer may change.
    pub fn forget(&mut self) {
        self.held = None;
        self.unstored.clear();
    }

    /// Forgets what is rounded before an op that changes `out`, of all buffers whose rows may be rounded. Rows that
    /// were not stored stay known as such.
    pub fn forget_before(&mut self, out: &Buffer) {
        self.held = None;
        if out.rows > 0 {
            self.unstored.remove(&out.memory().address());
        }
    }

    /// Forgets the rounded rows if they are those of `out`.
    pub fn forget_rows_of(&mut self, out: &Buffer) {
        if out.rows > 0 {
            let address = out.memory().address();
            self.held = self.held.filter(|held| held.address != address);
            self.unstored.remove(&address);
        }
    }

    /// Rounds the rows of `x`, or the rows of it that `chosen` lists, a u32 each, if they are not rounded yet. An error
    /// is kept for the device's next check. Panics if `reserve` has not made room for them.
    pub fn round(
        &mut self,
        x: &Buffer,
        chosen: Option<(&Memory, usize)>,
        scaling: Fp8Scaling,
        activations: ActivationScale,
    ) -> RoundedRows<'_> {
        let (rows, inner) = (chosen.map_or(x.rows, |(_, count)| count), x.width);
        let address = x.memory().address();
        let held = Held { address, rows, inner, scaling, activations };
        if chosen.is_some() || self.held != Some(held) {
            assert!(!self.unstored.contains(&address), "rows that were rounded for another product only");
            let (codes, scales) = self.room(rows, inner);
            let args = Args::new().memory(codes).memory(scales).memory(x.memory());
            let args =
                args.memory(chosen.map_or(codes, |(list, _)| list)).u32(chosen.is_some().into()).u32(small(inner));
            let kernel = &self.kernels[&(x.element, scaling)].round_rows;
            self.device.launch(kernel, [small(rows), 1, 1], THREADS, 0, &rounded_by(args, held));
            self.held = chosen.is_none().then_some(held);
            if chosen.is_none() && activations.fixed.is_none() {
                self.wanted.insert(address, (scaling, activations));
            }
        }
        let (codes, scales) = self.room(rows, inner);
        RoundedRows { device: &self.device, codes, scales, scaling, rows, inner }
    }

    /// `Backend::rms_norm` for a product with `next`; or one that also rounds its results, if a product rounded those
    /// of `out` before. Returns whether it does; if so the shapes are as `Ops::rms_norm` asserts them.
    pub fn rms_norm(&mut self, out: &Buffer, x: &Buffer, weight: &Vector, eps: f32, next: Option<&Matrix>) -> bool {
        let args = |args: Args| args.memory(x.memory()).memory(&weight.memory).u32(small(x.width)).f32(eps);
        let fits = (out.rows, out.width, weight.len) == (x.rows, x.width, x.width) && x.element == Dtype::F32;
        fits && self.fused(out, next, x.row_bytes(), |kernels| &kernels.rms_norm, args)
    }

    /// `Backend::gated` with silu, and rounds its rows for `next`. Returns whether it did.
    pub fn gated_silu(&mut self, out: &Buffer, x: &Buffer, next: Option<&Matrix>) -> bool {
        let args = |args: Args| args.memory(x.memory()).u32(small(out.width));
        let fits = (x.rows, x.width) == (out.rows, 2 * out.width) && x.element == out.element;
        fits && self.fused(out, next, 0, |kernels| &kernels.gated_silu, args)
    }

    fn fused(
        &mut self,
        out: &Buffer,
        next: Option<&Matrix>,
        shared: usize,
        kernel: impl Fn(&RoundingKernels) -> &Function,
        args: impl Fn(Args) -> Args,
    ) -> bool {
        let (rows, inner) = (out.rows, out.width);
        let address = out.memory().address();
        self.unstored.remove(&address);
        if rows == 0 || rows > self.linear.rows || inner > self.linear.inner {
            return false;
        }
        let only = next.and_then(|next| next.fp8.as_ref()).and_then(Fp8Scales::rounding_of_all);
        let wanted = if next.is_some() { only } else { self.wanted.get(&address).copied() };
        let Some((scaling, activations)) = wanted else { return false };
        let Some(kernels) = self.kernels.get(&(out.element, scaling)) else { return false };
        let (codes, scales) = self.room(rows, inner);
        let held = Held { address, rows, inner, scaling, activations };
        let args = args(Args::new().memory(out.memory()).memory(codes).memory(scales)).u32(next.is_none().into());
        self.device.launch(kernel(kernels), [small(rows), 1, 1], THREADS, shared, &rounded_by(args, held));
        self.held = Some(held);
        if next.is_some() {
            self.unstored.insert(address);
        }
        true
    }

    /// The memory of codes and of scales. Panics if it is too small.
    fn room(&self, rows: usize, inner: usize) -> (&Memory, &Memory) {
        let (codes, scales) = self.memory.as_ref().expect("`resize` of the operand has made room for its rounded rows");
        let (bytes, of_scales) = RowsOf { rows, inner }.bytes();
        assert!(codes.bytes() >= bytes && scales.bytes() >= of_scales, "{rows} rows of {inner} inputs to round");
        (codes, scales)
    }
}

/// The last arguments of all kernels that round.
fn rounded_by(args: Args, held: Held) -> Args {
    let Held { rows, inner, activations: ActivationScale { fixed, most }, .. } = held;
    let args = args.u32(small(stride(inner))).u32(small(apart(rows)));
    args.u32(fixed.is_some().into()).f32(fixed.or(most).unwrap_or(f32::INFINITY))
}

impl RoundedRows<'_> {
    /// Scales from a block of inputs to the next.
    pub fn apart(&self) -> usize {
        apart(self.rows)
    }

    /// For boxes of `columns` rows.
    pub fn code_map(&self, columns: usize) -> Result<TensorMap> {
        codes(self.device, self.codes, self.rows, self.inner, columns)
    }

    /// The scales by blocks in boxes of those of a tile; otherwise a map of the codes, which the kernel does not use.
    pub fn scale_map(&self, tiles: Fp8Tiles) -> Result<TensorMap> {
        if self.scaling == Fp8Scaling::Rows {
            return self.code_map(tiles.columns);
        }
        let boxes = MatrixBoxes {
            element: BoxElement::F32,
            rows: self.inner.div_ceil(Fp8Tiles::PANEL),
            width: self.rows,
            apart: apart(self.rows) * size_of::<f32>(),
            box_rows: 1,
            box_width: tiles.scales(),
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
