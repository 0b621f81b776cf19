//! Values of the kernels' defines: names of element types, widths of heads, element types and row layouts of KV pages,
//! the models for which there is a Hopper kernel, the tiles of products of experts and of e4m3, and the strips of the
//! chunked delta rule. `units` lists which file is compiled with which values.

use crate::discovery::probe::DeviceFacts;
use offshoot_backend::{Dtype, HeadLayout, KvDtype, Values};

/// The kernels' name of an element type.
pub fn element_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "f32",
        Dtype::F16 => "f16",
        Dtype::Bf16 => "bf16",
    }
}

/// The widths of heads, in elements, which kernels of attention are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadWidths {
    /// Of a query and of a key.
    pub key: usize,
    /// Of a value, and where it lies.
    pub values: Values,
}

impl HeadWidths {
    /// Values as wide as keys, beside them.
    pub const fn even(dim: usize) -> Self {
        Self { key: dim, values: Values::Beside(dim) }
    }

    pub const fn of(heads: HeadLayout) -> Self {
        Self { key: heads.head_dim, values: heads.values }
    }

    pub const fn value(self) -> usize {
        match self.values {
            Values::Beside(width) | Values::InKeys(width) => width,
        }
    }

    pub const fn are_in_keys(self) -> bool {
        matches!(self.values, Values::InKeys(_))
    }

    /// The width of keys and values, if they are equally wide and lie beside each other.
    pub const fn one(self) -> Option<usize> {
        match self.values {
            Values::Beside(width) if width == self.key => Some(width),
            Values::Beside(_) | Values::InKeys(_) => None,
        }
    }
}

/// The kernels of tree attention for Hopper. They read pages that are swizzled or in panels ([`PageLayout`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopperKernel {
    /// `tree_attention_wgmma`: heads of 64, 80, 96 or 128.
    Wgmma,
    /// `tree_attention_large`: heads of 256 or 512, or of 192 with values of 128.
    Large,
    /// `tree_attention_latent`: latents of 256 or 512, with a rotated part of 64.
    Latent,
}

impl HopperKernel {
    /// The one for a model with weights of `element`, if there is one.
    pub fn of(element: Dtype, widths: HeadWidths) -> Option<Self> {
        match (widths.key, widths.values) {
            _ if element == Dtype::F32 => None,
            (64, Values::Beside(64)) | (80, Values::Beside(80)) | (96, Values::Beside(96)) => Some(HopperKernel::Wgmma),
            (128, Values::Beside(128)) => Some(HopperKernel::Wgmma),
            (256, Values::Beside(256)) | (512, Values::Beside(512)) => Some(HopperKernel::Large),
            (192, Values::Beside(128)) => Some(HopperKernel::Large),
            (320, Values::InKeys(256)) | (576, Values::InKeys(512)) => Some(HopperKernel::Latent),
            _ => None,
        }
    }

    /// Whether its deterministic form is made for tiles of few rows and goes on from openings, as `PREFERS_SHORT` of
    /// kernels/attention/wide_tiles.cuh.
    pub fn has_openings(self, widths: HeadWidths, kv_element: KvElement) -> bool {
        self == HopperKernel::Wgmma && matches!(widths.key, 64 | 128) && kv_element != KvElement::Fp8
    }

    /// The layout of the pages that it reads.
    fn reads(self, widths: HeadWidths) -> PageLayout {
        if widths.one().is_some() { PageLayout::Swizzled } else { PageLayout::Panels }
    }

    /// Whether it reads pages of fp8 with heads of that size.
    fn reads_fp8(self, widths: HeadWidths) -> bool {
        match self {
            HopperKernel::Wgmma => matches!(widths.key, 64 | 128),
            HopperKernel::Large => false,
            HopperKernel::Latent => true,
        }
    }
}

/// Element type of KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// The weights' dtype.
    Plain,
    /// The weights' dtype, rounded to e4m3: for kernels that cannot read e4m3.
    Rounded,
    /// e4m3, a byte each.
    Fp8,
}

impl KvElement {
    /// On such a device, in a model with weights of `dtype`.
    pub fn of(kv: KvDtype, facts: &DeviceFacts, dtype: Dtype, widths: HeadWidths) -> Self {
        match kv {
            KvDtype::Model => KvElement::Plain,
            KvDtype::Fp8 if Self::is_fp8_read(facts.major, dtype, widths) => KvElement::Fp8,
            KvDtype::Fp8 => KvElement::Rounded,
        }
    }

    /// Whether kernels of devices of compute capability `major` read fp8 in a model with weights of `dtype`: latents
    /// everywhere, other heads as the kernel for Hopper does.
    pub fn is_fp8_read(major: u32, dtype: Dtype, widths: HeadWidths) -> bool {
        let on_hopper = || HopperKernel::of(dtype, widths).is_some_and(|kernel| kernel.reads_fp8(widths));
        widths.are_in_keys() || major == 9 && on_hopper()
    }

    pub fn element_bytes(self, dtype: Dtype) -> usize {
        match self {
            KvElement::Plain | KvElement::Rounded => dtype.bytes(),
            KvElement::Fp8 => 1,
        }
    }
}

/// Row layout of a page (kernels/kv_page.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageLayout {
    /// Elements in order.
    Plain,
    /// The 16-byte chunks of each 128 bytes permuted by the slot, and rows of more than 256 bytes in panels of 128, as
    /// the kernels for Hopper need them in shared memory.
    Swizzled,
    /// As `Swizzled`, but rows of any width lie in panels of 64 elements: where keys and values are not equally wide.
    Panels,
}

impl PageLayout {
    /// On devices of compute capability `major`, in a model with weights of `dtype`.
    pub fn of(major: u32, dtype: Dtype, widths: HeadWidths) -> Self {
        match HopperKernel::of(dtype, widths) {
            Some(kernel) if major == 9 => kernel.reads(widths),
            _ => PageLayout::Plain,
        }
    }

    /// The kernels' name of the layout.
    pub fn name(self) -> &'static str {
        match self {
            PageLayout::Plain => "PLAIN",
            PageLayout::Swizzled => "SWIZZLED",
            PageLayout::Panels => "IN_PANELS",
        }
    }
}

/// How a kernel cuts the products of experts into tiles, and what its launch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertTiles {
    pub kernel: ExpertKernel,
    /// The most places of a tile.
    pub cap: usize,
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Blocks per multiprocessor.
    pub blocks: u32,
}

/// What the scales of e4m3 codes, of weights and of rounded activations, belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Scaling {
    /// An output, a row.
    Rows,
    /// Each 128 inputs of an output, of a row.
    Blocks,
}

impl Fp8Scaling {
    pub const ALL: [Self; 2] = [Self::Rows, Self::Blocks];

    /// The kernels' define.
    pub fn blocks(self) -> u8 {
        u8::from(self == Fp8Scaling::Blocks)
    }
}

/// How products of e4m3 are cut into tiles (kernels/fp8/tile.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp8Tiles {
    /// Warpgroups that multiply, of 64 outputs each.
    pub groups: usize,
    /// Rows.
    pub columns: usize,
}

impl Fp8Tiles {
    /// All tiles, by falling time of a panel.
    pub const ALL: [Self; 6] = [
        Self { groups: 2, columns: 128 },
        Self { groups: 1, columns: 128 },
        Self { groups: 2, columns: 64 },
        Self { groups: 1, columns: 64 },
        Self { groups: 2, columns: 16 },
        Self { groups: 2, columns: 8 },
    ];

    /// Inputs of a panel.
    pub const PANEL: usize = 128;

    /// Scales of a stage's rows that are copied by blocks: up to three before the first, which is aligned.
    pub const fn scales(self) -> usize {
        self.columns + 4
    }

    const fn scale_bytes(self) -> usize {
        (self.scales() * 4).next_multiple_of(128)
    }

    /// Bytes of dynamic shared memory that a block may have; the rest is for barriers and the table of experts.
    const MOST_SHARED: usize = 217 * 1024;

    pub const fn outputs(self) -> usize {
        64 * self.groups
    }

    /// Bytes of the codes of a stage.
    pub const fn stage_bytes(self) -> usize {
        (self.outputs() + self.columns) * Self::PANEL
    }

    /// Bytes in which results pass to memory: rows of 68 f32 for each warpgroup.
    const fn staged_bytes(self) -> usize {
        let rows = if self.columns < 64 { self.columns } else { 64 };
        self.groups * rows * 68 * 4
    }

    /// Stages of the ring: as many as fit beside the results, and no more than hide the latency of memory. The ring is
    /// aligned to 1024.
    pub const fn stages(self) -> usize {
        let fit = (Self::MOST_SHARED - 1024 - self.staged_bytes()) / (self.stage_bytes() + self.scale_bytes());
        if fit < 10 { fit } else { 10 }
    }

    /// Bytes of dynamic shared memory.
    pub const fn shared(self) -> usize {
        self.stages() * (self.stage_bytes() + self.scale_bytes()) + self.staged_bytes() + 1024
    }

    pub const fn threads(self) -> u32 {
        128 * (self.groups as u32 + 1)
    }

    /// About how long a product takes on `blocks` multiprocessors, in nanoseconds. A panel takes a multiprocessor 150
    /// ns and its bytes at 92 GB/s (H100, benches/runs/2026-11-25-h100-fp8-probe).
    fn time(self, rows: usize, outputs: usize, inner: usize, blocks: usize) -> f64 {
        let tiles = rows.div_ceil(self.columns) * outputs.div_ceil(self.outputs());
        let panels = tiles.div_ceil(blocks) * inner.div_ceil(Self::PANEL);
        panels as f64 * (150.0 + self.stage_bytes() as f64 / 92.0)
    }

    /// The fastest for a product on `blocks` multiprocessors.
    pub fn of(rows: usize, outputs: usize, inner: usize, blocks: usize) -> Self {
        let time = |tiles: &Self| tiles.time(rows, outputs, inner, blocks);
        let fastest = Self::ALL.into_iter().min_by(|a, b| time(a).total_cmp(&time(b)));
        fastest.expect("there are some")
    }
}

/// How products of experts of e4m3 are cut into tiles: pairs of blocks share the inputs of one
/// (kernels/experts/pairs.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp8ExpertTiles {
    /// The most places.
    pub cap: usize,
}

/// What such a kernel makes of the sums of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp8ExpertKernel {
    pub tiles: Fp8ExpertTiles,
    /// The dtype of 16-bit results, f16 or bf16. Each of the two kernels can store f32 results, too.
    pub element: Dtype,
    pub scaling: Fp8Scaling,
    /// Whether its results are gates and ups in turn, of which it stores what they make.
    pub gates: bool,
}

impl Fp8ExpertTiles {
    /// All tiles, the smallest first.
    pub const ALL: [Self; 2] = [Self { cap: 64 }, Self { cap: 192 }];

    /// Warpgroups that multiply.
    pub const GROUPS: usize = 2;
    /// Outputs of a box of weights: those of a warpgroup.
    pub const BOX_OUTPUTS: usize = 64;
    /// Places of a box of inputs.
    pub const BOX_PLACES: usize = 16;
    pub const THREADS: u32 = 128 * (Self::GROUPS as u32 + 1);

    /// For experts of `places` places in the mean, none of which has more than `rows`: the smallest that hold all
    /// places of an expert, or twice the mean, since routers are uneven; else the largest.
    pub fn of(rows: usize, places: usize) -> Self {
        let fits = |tiles: &Self| tiles.cap >= rows.min(2 * places);
        Self::ALL.into_iter().find(fits).unwrap_or(Self::ALL[Self::ALL.len() - 1])
    }
}

impl Fp8ExpertKernel {
    /// The kernel for results of `out`.
    pub fn of(out: Dtype, tiles: Fp8ExpertTiles, scaling: Fp8Scaling, gates: bool) -> Self {
        let element = if out == Dtype::F16 { Dtype::F16 } else { Dtype::Bf16 };
        Self { tiles, element, scaling, gates }
    }

    /// All kernels of a scaling.
    pub fn all(scaling: Fp8Scaling) -> impl Iterator<Item = Self> {
        let gates = move |tiles, element| [false, true].map(|gates| Self { tiles, element, scaling, gates });
        let elements = move |tiles| [Dtype::F16, Dtype::Bf16].into_iter().flat_map(move |of| gates(tiles, of));
        Fp8ExpertTiles::ALL.into_iter().flat_map(elements)
    }

    /// Bytes of a stage: codes, and by blocks the scales of outputs and places, and 16 between each four of them.
    fn stage_bytes(self) -> usize {
        let (outputs, places) = (Fp8ExpertTiles::GROUPS * Fp8ExpertTiles::BOX_OUTPUTS, self.tiles.cap);
        let codes = (outputs + places) * Fp8Tiles::PANEL;
        match self.scaling {
            Fp8Scaling::Rows => codes,
            Fp8Scaling::Blocks => codes + (outputs + places + 16) * 4,
        }
    }

    /// Bytes in which results pass to memory: for each warpgroup two times 32 places of 16-bit results.
    fn staged_bytes(self) -> usize {
        let results = Fp8ExpertTiles::BOX_OUTPUTS / if self.gates { 2 } else { 1 };
        Fp8ExpertTiles::GROUPS * 2 * 32 * results * 2
    }

    /// Stages of the ring: as many as fit, and no more than hide the latency of memory.
    pub fn stages(self) -> usize {
        ((Fp8Tiles::MOST_SHARED - 1024 - self.staged_bytes()) / self.stage_bytes()).min(10)
    }

    /// Bytes of dynamic shared memory. The ring is aligned to 1024.
    pub fn shared(self) -> usize {
        self.stages() * self.stage_bytes() + self.staged_bytes() + 1024
    }
}

/// A kernel that multiplies panels of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertKernel {
    /// `expert_linear_wgmma`, of Hopper.
    Wgmma,
    /// `expert_linear`, of any tensor cores.
    Mma,
}

impl ExpertTiles {
    /// The tiles of GPUs of compute capability `major`, rising.
    pub const fn of(major: u32) -> &'static [ExpertTiles] {
        if major == 9 { &Self::WGMMA } else { &Self::MMA }
    }

    /// Groups of 64 weights that a tile multiplies: more of them read inputs less often, but leave fewer tiles.
    const WGMMA: [Self; 2] = [Self::wgmma(64, 2, 9, 0), Self::wgmma(192, 3, 4, 2)];

    /// `groups` groups of 64 weights and `cap` inputs in each of `stages` stages, rows of 128 bytes; the ring is
    /// aligned to 1024. A warpgroup for each group, with `buffers` buffers of 64 results of 32 inputs, and one that
    /// copies.
    const fn wgmma(cap: usize, groups: usize, stages: usize, buffers: usize) -> Self {
        let shared = stages * (groups * 64 + cap) * 128 + groups * buffers * 32 * 128 + 1024;
        Self { kernel: ExpertKernel::Wgmma, cap, threads: 128 * (groups as u32 + 1), shared, blocks: 1 }
    }

    /// Three stages of 64 weights and 64 inputs, aligned to 128 bytes.
    const MMA: [Self; 1] =
        [Self { kernel: ExpertKernel::Mma, cap: 64, threads: 128, shared: 3 * (64 + 64) * 128 + 128, blocks: 2 }];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self.kernel {
            ExpertKernel::Wgmma => "expert_linear_wgmma",
            ExpertKernel::Mma => "expert_linear",
        }
    }
}

/// How the chunked delta rule walks along runs (kernels/delta_rule/chunk_states.cu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkWalk {
    /// Columns of a state that a block has.
    pub strip: usize,
    /// 2: a chunk's operands are copied while the one before is computed.
    pub stages: usize,
}

impl ChunkWalk {
    /// For values of that width, the widest strips last. Few runs need narrow ones, to use all multiprocessors; many
    /// read operands less often if strips are wide.
    pub fn of(value_dim: usize) -> Vec<Self> {
        let wide = if value_dim.is_multiple_of(64) { 64 } else { 32 };
        let whole = (value_dim == 128).then_some(Self { strip: 128, stages: 2 });
        [Self { strip: 32, stages: 2 }, Self { strip: wide, stages: 1 }].into_iter().chain(whole).collect()
    }

    /// Threads of a block: 128 for each 64 columns.
    pub fn threads(self) -> u32 {
        128 * self.strip.div_ceil(64) as u32
    }
}
