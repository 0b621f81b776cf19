//! Activations rounded to e4m3 before they are multiplied by e4m3. The rounded rows of linear layers, and those at the
//! places of experts, lie in memory of their own, which all products of the kind use in turn. A norm or a gate that
//! only one product reads rounds its results itself (kernels/fp8/rms_norm_fp8.cu, gated_silu_fp8.cu), to the bits of
//! round_rows.cu beside them, and stores nothing else; the product then finds them rounded. So does one that others
//! read too, once its results were rounded for a product, but it stores them as they are besides. Rows that are rounded
//! for a linear layer are copied to the places of experts that read them (gather_rounded.cu).

use std::collections::{HashMap, HashSet};

use crate::compile::elements::{Fp8Scaling, Fp8Tiles};
use crate::compile::unit::Unit;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::{rounding_threads, small};
use crate::driver::memory::Memory;
use crate::driver::tensor_map::{BoxElement, MatrixBoxes, TensorMap};
use crate::memory::buffer::Buffer;
use crate::memory::fp8::stride;
use crate::memory::weights::{Fp8Scales, Matrix, Vector};
use offshoot_backend::Dtype;
use offshoot_backend::quantised::ActivationScale;
use offshoot_core::error::Result;

/// Threads of a block of a norm, as in kernels/reduce.cuh.
const THREADS: u32 = 256;

/// Threads and warps of a block of `gather_rounded`, as there.
const GATHERING_WARPS: usize = 4;

/// The kernels, and the rounded rows of the product in progress.
pub struct RowRounder {
    device: Device,
    kernels: HashMap<(Dtype, Fp8Scaling), RoundingKernels>,
    /// Loaded with the first kernels.
    gather: Option<Function>,
    /// How the rows of each buffer were rounded last, by its address; of scales that follow from the rows.
    wanted: HashMap<u64, (Fp8Scaling, ActivationScale)>,
    /// Addresses of the buffers whose rows were rounded and not stored, as long as nothing else may have filled them.
    unstored: HashSet<u64>,
    linear: RowMemory,
    experts: RowMemory,
}

/// The kernels of one dtype and scaling.
struct RoundingKernels {
    round_rows: Function,
    rms_norm: Function,
    gated_silu: Function,
}

/// Memory for the rounded rows of one product at a time.
#[derive(Default)]
struct RowMemory {
    /// The most rows and inputs that there is room for.
    most: RowsOf,
    /// What it holds, as long as no other op may have changed the buffer.
    held: Option<Held>,
    /// Codes and scales; absent until a product has rows.
    memory: Option<(Memory, Memory)>,
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

impl Held {
    fn of(x: &Buffer, scaling: Fp8Scaling, activations: ActivationScale) -> Self {
        Self { address: x.memory().address(), rows: x.rows, inner: x.width, scaling, activations }
    }
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

impl RowMemory {
    /// Makes room. Returns whether an address has changed; after an error there is no room for any.
    fn reserve(&mut self, device: &Device, to: RowsOf) -> Result<bool> {
        let most = self.most.grown(to);
        let (codes, scales) = most.bytes();
        let fits = |(room, of_scales): &(Memory, Memory)| room.bytes() >= codes && of_scales.bytes() >= scales;
        if codes == 0 || self.memory.as_ref().is_some_and(fits) {
            self.most = most;
            return Ok(false);
        }
        // A smaller step may find room where this one finds none.
        *self = Self::default();
        self.memory = Some((device.alloc(codes)?, device.alloc(scales)?));
        self.most = most;
        Ok(true)
    }

    /// The memory of codes and of scales. Panics if it is too small.
    fn room(&self, rows: usize, inner: usize) -> (&Memory, &Memory) {
        let (codes, scales) = self.memory.as_ref().expect("`resize` of the operand has made room for its rounded rows");
        let (bytes, of_scales) = RowsOf { rows, inner }.bytes();
        assert!(codes.bytes() >= bytes && scales.bytes() >= of_scales, "{rows} rows of {inner} inputs to round");
        (codes, scales)
    }

    fn rows<'a>(&'a self, device: &'a Device, rows: usize, inner: usize, scaling: Fp8Scaling) -> RoundedRows<'a> {
        let (codes, scales) = self.room(rows, inner);
        RoundedRows { device, codes, scales, scaling, rows, inner }
    }
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
        Self {
            device: device.clone(),
            kernels: HashMap::new(),
            gather: None,
            wanted: HashMap::new(),
            unstored: HashSet::new(),
            linear: RowMemory::default(),
            experts: RowMemory::default(),
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
        self.gather = Some(self.device.function(&Unit::new(&units::GATHER_ROUNDED), "gather_rounded")?);
        Ok(())
    }

    /// Makes room for the rows of linear layers, and for the places of experts. Returns whether an address has changed,
    /// which a captured graph does not survive. After an error there is no room for any, until it is asked for again.
    pub fn reserve(&mut self, linear: RowsOf, experts: RowsOf) -> Result<bool> {
        let moved = self.linear.reserve(&self.device, linear);
        let both = moved.and_then(|moved| Ok(self.experts.reserve(&self.device, experts)? || moved));
        if both.is_err() {
            (self.linear, self.experts) = (RowMemory::default(), RowMemory::default());
        }
        both
    }

    /// Forgets what is rounded: any buffer may change.
    pub fn forget(&mut self) {
        (self.linear.held, self.experts.held) = (None, None);
        self.unstored.clear();
    }

    /// Forgets what is rounded before an op that changes `out`, of all buffers whose rows may be rounded. Rows that
    /// were not stored stay known as such.
    pub fn forget_before(&mut self, out: &Buffer) {
        (self.linear.held, self.experts.held) = (None, None);
        if out.rows > 0 {
            self.unstored.remove(&out.memory().address());
        }
    }

    /// Forgets the rounded rows if they are those of `out`.
    pub fn forget_rows_of(&mut self, out: &Buffer) {
        if out.rows > 0 {
            let address = out.memory().address();
            for memory in [&mut self.linear, &mut self.experts] {
                memory.held = memory.held.filter(|held| held.address != address);
            }
            self.unstored.remove(&address);
        }
    }

    /// Rounds the rows of `x` for a linear layer, if they are not rounded yet. An error is kept for the device's next
    /// check. Panics if `reserve` has not made room for them.
    pub fn round(&mut self, x: &Buffer, scaling: Fp8Scaling, activations: ActivationScale) -> RoundedRows<'_> {
        let held = Held::of(x, scaling, activations);
        if self.linear.held != Some(held) {
            self.launch_round(&self.linear, x, held, None);
            self.linear.held = Some(held);
            self.note_wanted(held);
        }
        self.linear.rows(&self.device, x.rows, x.width, scaling)
    }

    /// Rounds `x` at the places of experts: its rows, or those of them that `chosen` lists, a u32 each. What is rounded
    /// for a linear layer already is copied. Errors and panics: as `round`.
    pub fn round_places(
        &mut self,
        x: &Buffer,
        chosen: Option<(&Memory, usize)>,
        scaling: Fp8Scaling,
        activations: ActivationScale,
    ) -> RoundedRows<'_> {
        let held = Held::of(x, scaling, activations);
        let is_in_linear = self.linear.held == Some(held);
        match chosen {
            Some(chosen) => {
                if is_in_linear {
                    self.launch_gather(held, chosen);
                } else {
                    self.launch_round(&self.experts, x, held, Some(chosen));
                }
                self.experts.held = None;
            }
            None if is_in_linear => return self.linear.rows(&self.device, x.rows, x.width, scaling),
            None => {
                if self.experts.held != Some(held) {
                    self.launch_round(&self.experts, x, held, None);
                    self.experts.held = Some(held);
                    self.note_wanted(held);
                }
            }
        }
        self.experts.rows(&self.device, chosen.map_or(x.rows, |(_, count)| count), x.width, scaling)
    }

    fn note_wanted(&mut self, held: Held) {
        if held.activations.fixed.is_none() {
            self.wanted.insert(held.address, (held.scaling, held.activations));
        }
    }

    fn launch_round(&self, to: &RowMemory, x: &Buffer, held: Held, chosen: Option<(&Memory, usize)>) {
        assert!(!self.unstored.contains(&held.address), "rows that were rounded for another product only");
        let rows = chosen.map_or(x.rows, |(_, count)| count);
        let (codes, scales) = to.room(rows, x.width);
        let args = Args::new().memory(codes).memory(scales).memory(x.memory());
        let args = args.memory(chosen.map_or(codes, |(list, _)| list)).u32(chosen.is_some().into());
        let args = rounded_by(args.u32(small(x.width)), held, rows);
        let kernel = &self.kernels[&(x.element, held.scaling)].round_rows;
        self.device.launch(kernel, [small(rows), 1, 1], rounding_threads(x.width), 0, &args);
    }

    fn launch_gather(&self, held: Held, (list, places): (&Memory, usize)) {
        let gather = self.gather.as_ref().expect("loaded with the kernel that has rounded the rows");
        let ((codes, scales), (to, to_scales)) =
            (self.linear.room(held.rows, held.inner), self.experts.room(places, held.inner));
        let blocks = match held.scaling {
            Fp8Scaling::Rows => 1,
            Fp8Scaling::Blocks => held.inner.div_ceil(Fp8Tiles::PANEL),
        };
        let args = Args::new().memory(to).memory(to_scales).memory(codes).memory(scales).memory(list);
        let args = args.u32(small(places)).u32(small(stride(held.inner))).u32(small(blocks));
        let args = args.u32(small(apart(places))).u32(small(apart(held.rows)));
        let grid = [small(places.div_ceil(GATHERING_WARPS)), 1, 1];
        self.device.launch(gather, grid, 32 * GATHERING_WARPS as u32, 0, &args);
    }

    /// `Backend::rms_norm` for a product with `next`; or one that also rounds its results, if a product rounded those
    /// of `out` before. Returns whether it does; if so the shapes are as `Ops::rms_norm` asserts them.
    pub fn rms_norm(&mut self, out: &Buffer, x: &Buffer, weight: &Vector, eps: f32, next: Option<&Matrix>) -> bool {
        let args = |args: Args| args.memory(x.memory()).memory(&weight.memory).u32(small(x.width)).f32(eps);
        let fits = (out.rows, out.width, weight.len) == (x.rows, x.width, x.width) && x.element == Dtype::F32;
        fits && self.fused(out, next, (THREADS, x.row_bytes()), |kernels| &kernels.rms_norm, args)
    }

    /// `Backend::gated` with silu, and rounds its rows for `next`. Returns whether it did.
    pub fn gated_silu(&mut self, out: &Buffer, x: &Buffer, next: Option<&Matrix>) -> bool {
        let args = |args: Args| args.memory(x.memory()).u32(small(out.width));
        let fits = (x.rows, x.width) == (out.rows, 2 * out.width) && x.element == out.element;
        fits && self.fused(out, next, (rounding_threads(out.width), 0), |kernels| &kernels.gated_silu, args)
    }

    fn fused(
        &mut self,
        out: &Buffer,
        next: Option<&Matrix>,
        (threads, shared): (u32, usize),
        kernel: impl Fn(&RoundingKernels) -> &Function,
        args: impl Fn(Args) -> Args,
    ) -> bool {
        let (rows, inner) = (out.rows, out.width);
        let address = out.memory().address();
        self.unstored.remove(&address);
        if rows == 0 || rows > self.linear.most.rows || inner > self.linear.most.inner {
            return false;
        }
        let only = next.and_then(|next| next.fp8.as_ref()).and_then(Fp8Scales::rounding_of_all);
        let wanted = if next.is_some() { only } else { self.wanted.get(&address).copied() };
        let Some((scaling, activations)) = wanted else { return false };
        let Some(kernels) = self.kernels.get(&(out.element, scaling)) else { return false };
        let (codes, scales) = self.linear.room(rows, inner);
        let held = Held::of(out, scaling, activations);
        let args = args(Args::new().memory(out.memory()).memory(codes).memory(scales)).u32(next.is_none().into());
        self.device.launch(kernel(kernels), [small(rows), 1, 1], threads, shared, &rounded_by(args, held, rows));
        self.linear.held = Some(held);
        if next.is_some() {
            self.unstored.insert(address);
        }
        true
    }
}

/// The last arguments of all kernels that round.
fn rounded_by(args: Args, held: Held, rows: usize) -> Args {
    let Held { inner, activations: ActivationScale { fixed, most }, .. } = held;
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
