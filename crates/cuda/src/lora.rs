//! What low-rank adapters add to linear layers: for each layer a table of slots at a fixed address, which captured
//! graphs read, and the launches of the two products. Kernels: kernels/lora.

use bytemuck::{Pod, Zeroable};

use super::compile::units;
use super::driver::args::Args;
use super::driver::device::Device;
use super::driver::function::Function;
use super::driver::grid::{LANES, small};
use super::driver::memory::Memory;
use super::memory::buffer::Buffer;
use offshoot_backend::{AdapterSlot, Dtype, LoraShape, LoraWeights, MOST_ADAPTERS};
use offshoot_core::error::Result;

/// As in kernels/lora/slots.cuh.
const MOST_PARTS: usize = 4;
pub const NO_ADAPTER: u32 = u32::MAX;
const TILE_ROWS: usize = 8;
const CHUNK_INPUTS: usize = 1024;
const THREADS: u32 = 256;

/// Ranks of a part that a block of lora_shrink computes.
const SHRINK_RANKS: usize = 16;

/// Blocks of each kernel that find room on a device side by side. Up to so many divide the runs of a tile.
const SHRINK_BLOCKS: usize = 256;
const EXPAND_BLOCKS: usize = 512;

/// One slot of a table, as kernels/lora/slots.cuh has it.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct LoraSlotWords {
    pub a: u64,
    pub b: u64,
    pub rank: u32,
    pub unused: u32,
    pub ranks: [u32; MOST_PARTS],
    pub scales: [f32; MOST_PARTS],
}

impl LoraSlotWords {
    /// Those of an adapter's parts. `a`, `b`: addresses of what [`packed`] gives; `rank`: as it has it.
    pub fn new(parts: &[Option<LoraWeights<'_>>], rank: usize, a: u64, b: u64) -> Self {
        assert!(parts.len() <= MOST_PARTS, "{} modules in one layer", parts.len());
        let mut words = Self { a, b, rank: small(rank), ..Self::default() };
        for (part, weights) in parts.iter().enumerate().filter_map(|(part, weights)| Some((part, (*weights)?))) {
            (words.ranks[part], words.scales[part]) = (small(weights.rank()), weights.scale);
        }
        words
    }
}

/// The rank of an adapter's parts as it lies in memory, with zeros behind each part's own.
pub fn padded_rank(shape: &LoraShape, parts: &[Option<LoraWeights<'_>>]) -> usize {
    shape.rank(parts).next_multiple_of(LANES as usize)
}

/// A and B of all parts as kernels read them, in the layer's dtype.
pub fn packed(shape: &LoraShape, parts: &[Option<LoraWeights<'_>>], rank: usize) -> [Vec<u8>; 2] {
    [shape.stacked_a(parts, rank), shape.stacked_b(parts, rank)].map(|numbers| shape.dtype.encode(&numbers))
}

/// The part that each output belongs to.
pub fn parts_of_outputs(shape: &LoraShape) -> Vec<u8> {
    let part = |part: usize| u8::try_from(part).expect("a layer is stacked of few modules");
    shape.pieces.iter().flat_map(|piece| vec![part(piece.part); piece.rows.len()]).collect()
}

/// f32 sums of a row between the two products: those of each chunk of the inputs.
pub fn sums_of_row(inputs: usize, parts: usize, most_rank: usize) -> usize {
    chunks(inputs) * parts * most_rank
}

/// Chunks of the inputs, whose sums lora_shrink keeps apart.
pub fn chunks(inputs: usize) -> usize {
    inputs.div_ceil(CHUNK_INPUTS)
}

/// The grid of one of the kernels.
#[derive(Clone, Copy, Debug)]
pub struct LoraGrid {
    pub blocks: usize,
    /// Blocks that divide the runs of a tile of rows. No result depends on it.
    pub groups: usize,
}

impl LoraGrid {
    pub fn of_shrink(rows: usize, inputs: usize, parts: usize, most_rank: usize) -> Self {
        Self::of(rows, chunks(inputs) * parts * most_rank.div_ceil(SHRINK_RANKS), SHRINK_BLOCKS)
    }

    pub fn of_expand(rows: usize, outputs: usize) -> Self {
        Self::of(rows, outputs.div_ceil(THREADS as usize), EXPAND_BLOCKS)
    }

    /// `of_tile`: blocks of a tile, if each takes all runs of its rows; `together`: blocks that find room.
    fn of(rows: usize, of_tile: usize, together: usize) -> Self {
        let blocks = rows.div_ceil(TILE_ROWS) * of_tile;
        let groups = (together / blocks.max(1)).clamp(1, TILE_ROWS.min(rows.max(1)));
        Self { blocks: blocks * groups, groups }
    }
}

/// The kernels of layers of one dtype.
pub struct LoraKernels {
    shrink: Function,
    /// Into operands, and into sums.
    expand: [Function; 2],
}

/// What the loaded adapters add to one layer.
pub struct Lora {
    shape: LoraShape,
    outputs: usize,
    /// `None`: there is one part.
    part_of: Option<Memory>,
    /// [`LoraSlotWords`], one for each slot.
    slots: Memory,
    terms: Vec<Option<LoraTerm>>,
    /// The largest rank that a slot has had; no slot's is larger.
    most_rank: usize,
}

/// What one adapter adds to one layer.
pub struct LoraTerm {
    words: LoraSlotWords,
    /// A and B, to which the words point.
    _weights: [Memory; 2],
}

/// The rows of a step and their adapters, on the device.
pub struct AdapterWords<'a> {
    pub adapters: &'a Memory,
    /// `None`: buffers have all rows.
    pub logit_rows: Option<&'a Memory>,
}

impl LoraKernels {
    pub fn load(device: &Device, element: Dtype) -> Result<Self> {
        device.prepare(&units::lora(element))?;
        let expand = |out| device.function(&units::lora_expand(element, out), "lora_expand");
        Ok(Self {
            shrink: device.function(&units::typed(&units::LORA_SHRINK, element), "lora_shrink")?,
            expand: [expand(element)?, expand(Dtype::F32)?],
        })
    }
}

impl Lora {
    pub fn new(device: &Device, shape: &LoraShape) -> Result<Self> {
        let part_of = (shape.parts > 1).then(|| device.uploaded(&parts_of_outputs(shape))).transpose()?;
        Ok(Self {
            outputs: shape.outputs(),
            part_of,
            slots: device.zeroed(MOST_ADAPTERS * size_of::<LoraSlotWords>())?,
            terms: (0..MOST_ADAPTERS).map(|_| None).collect(),
            most_rank: 0,
            shape: shape.clone(),
        })
    }

    pub fn element(&self) -> Dtype {
        self.shape.dtype
    }

    pub fn term(&self, device: &Device, parts: &[Option<LoraWeights<'_>>]) -> Result<LoraTerm> {
        let rank = padded_rank(&self.shape, parts);
        let [a, b] = packed(&self.shape, parts, rank);
        let weights = [device.uploaded(&a)?, device.uploaded(&b)?];
        let words = LoraSlotWords::new(parts, rank, weights[0].address(), weights[1].address());
        Ok(LoraTerm { words, _weights: weights })
    }

    /// Bytes of a row's sums between the products, if a slot gets `term`.
    pub fn row_bytes_with(&self, term: &LoraTerm) -> usize {
        let most_rank = self.most_rank.max(term.words.rank as usize);
        sums_of_row(self.shape.inputs, self.shape.parts, most_rank) * size_of::<f32>()
    }

    /// Enqueues the change of a slot. What was there is freed when the device has ended what reads it. Returns whether
    /// captured launches no longer serve: their grids follow from the largest rank.
    pub fn set(&mut self, device: &Device, slot: AdapterSlot, term: Option<LoraTerm>) -> bool {
        let words = term.as_ref().map_or_else(LoraSlotWords::default, |term| term.words);
        let uploaded = device.upload(&self.slots, slot.ix() * size_of::<LoraSlotWords>(), bytemuck::bytes_of(&words));
        if let Err(error) = uploaded {
            device.keep(error);
        }
        self.terms[slot.ix()] = term;
        let before = self.most_rank;
        self.most_rank = before.max(words.rank as usize);
        self.most_rank > before
    }

    /// See `Backend::add_lora`. `h`: room for the sums of all rows.
    pub fn add(
        &self,
        device: &Device,
        kernels: &LoraKernels,
        h: Option<&Memory>,
        out: &Buffer,
        x: &Buffer,
        rows: &AdapterWords<'_>,
    ) {
        let LoraShape { dtype, inputs, parts, .. } = self.shape;
        assert_eq!((out.rows, out.width, x.width), (x.rows, self.outputs, inputs), "add_lora: shapes");
        assert_eq!(x.element, dtype, "add_lora: the layer's input");
        if out.rows == 0 || self.most_rank == 0 {
            return;
        }
        let h = h.expect("reserved with the rows of the buffers and the ranks of the slots");
        let of_row = sums_of_row(inputs, parts, self.most_rank);
        assert!(h.bytes() >= out.rows * of_row * size_of::<f32>(), "add_lora: room for the sums of all rows");
        let LoraGrid { blocks, groups } = LoraGrid::of_shrink(out.rows, inputs, parts, self.most_rank);
        let args = Args::new().memory(h).memory(x.memory()).memory(&self.slots).memory(rows.adapters);
        let args = args.memory_or_null(rows.logit_rows).u32(small(out.rows));
        let args = args.u32(small(inputs)).u32(small(parts)).u32(small(self.most_rank)).u32(small(groups));
        device.launch_early(&kernels.shrink, [small(blocks), 1], THREADS, 0, &args);
        let LoraGrid { blocks, groups } = LoraGrid::of_expand(out.rows, self.outputs);
        let args = Args::new().memory(out.memory()).memory(h).memory(&self.slots).memory(rows.adapters);
        let args = args.memory_or_null(rows.logit_rows).memory_or_null(self.part_of.as_ref());
        let args = args.u32(small(out.rows)).u32(small(self.outputs)).u32(small(parts)).u32(small(self.most_rank));
        let args = args.u32(small(chunks(inputs))).u32(small(groups));
        let expand = &kernels.expand[usize::from(out.element == Dtype::F32)];
        assert!(out.element == Dtype::F32 || out.element == dtype, "add_lora: the layer's output");
        device.launch_early(expand, [small(blocks), 1], THREADS, 0, &args);
    }
}
