//! Products with 4-bit weights (kernels/four_bit): linear layers, and those of experts. Activations are not rounded.
//! `compile::four_bit` says which formats there are and how products are cut into tiles, `compile::four_bit_layers` the
//! same for layers on Hopper; `memory::four_bit` packs matrices.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::compile::four_bit::{ExpertLoad, FourBit, FourBitTiles};
use crate::compile::four_bit_layers::{LayerPlan, LayerTiles};
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::{any_grid, small};
use crate::driver::memory::Memory;
use crate::driver::tensor_map::{BoxElement, MatrixBoxes, TensorMap};
use crate::memory::buffer::Buffer;
use crate::memory::weights::{Matrix, Vector};
use offshoot_backend::{Dtype, WeightFormat};
use offshoot_core::error::Result;

/// The kernels of the formats that were asked for.
pub struct FourBitKernels {
    device: Device,
    formats: HashMap<FourBit, FormatKernels>,
    /// Whether a row's results must not depend on the number of rows.
    batch_invariant: bool,
    /// The outputs of the whole matrix, by outputs and inner of a share.
    wholes: HashMap<(usize, usize), usize>,
}

/// The kernels of one format.
struct FormatKernels {
    /// Kernels of tiles, by dtype of the inputs.
    tiles: HashMap<(Dtype, FourBitTiles), Function>,
    /// Kernels of layers on Hopper, by dtype of the inputs.
    layers: HashMap<(Dtype, LayerTiles), Function>,
    /// Kernels for any shape, by dtypes of inputs and results.
    any: HashMap<(Dtype, Dtype), Function>,
}

/// One matrix, or those of all experts, and f32 biases of all outputs.
pub struct FourBitMatrices<'a> {
    pub memory: &'a Memory,
    pub format: FourBit,
    pub outputs: usize,
    pub inner: usize,
    pub bias: Option<&'a Memory>,
}

/// The places of experts: `experts::routes`.
pub struct ExpertPlaces<'a> {
    pub firsts: &'a Memory,
    pub rows: &'a Memory,
    pub experts: usize,
    /// The most places that an expert may have.
    pub most: usize,
    /// Whether inputs are rows, not places.
    pub gathers: bool,
}

/// What of a launch is the same for all kernels.
struct Launch<'a> {
    out: &'a Buffer,
    x: &'a Buffer,
    matrices: &'a FourBitMatrices<'a>,
    /// `None`: a layer, whose places are its rows.
    experts: Option<&'a ExpertPlaces<'a>>,
    accumulates: bool,
}

impl FourBitKernels {
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), formats: HashMap::new(), batch_invariant: false, wholes: HashMap::new() }
    }

    /// Compiles the kernels of `format`, or takes them from the cache.
    pub fn load(&mut self, format: FourBit) -> Result<()> {
        let Entry::Vacant(entry) = self.formats.entry(format) else { return Ok(()) };
        let (device, major) = (&self.device, self.device.facts().major);
        device.prepare(&units::four_bit(format, major))?;
        let (mut tiles, mut layers, mut any) = (HashMap::new(), HashMap::new(), HashMap::new());
        for element in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for out in [element, Dtype::F32] {
                let unit = units::linear_4bit_any(format, element, out);
                any.insert((element, out), device.function(&unit, "linear_4bit_any")?);
            }
            for &of in FourBitTiles::of(major).iter().filter(|_| element != Dtype::F32) {
                let unit = units::linear_4bit(format, element, of);
                tiles.insert((element, of), device.function(&unit, of.name())?);
            }
            for of in LayerTiles::ALL.into_iter().filter(|_| major == 9 && element != Dtype::F32) {
                let unit = units::layer_4bit(format, element, of);
                layers.insert((element, of), device.function(&unit, "linear_4bit_wgmma")?);
            }
        }
        entry.insert(FormatKernels { tiles, layers, any });
        Ok(())
    }

    /// Remembers that this matrix has only some of the `outputs` of the whole one, to which batch-invariant products
    /// keep. Shares of one shape have one whole, or the largest counts for all.
    pub fn remember_whole(&mut self, w: &Matrix, outputs: usize) {
        let whole = self.wholes.entry((w.outputs, w.inner)).or_insert(outputs);
        *whole = outputs.max(*whole);
    }

    pub fn set_batch_invariant(&mut self) {
        self.batch_invariant = true;
    }

    /// `out[r] = w x[r] (+ bias)`, plus the old `out[r]` if `accumulates`. An error is kept for the device's next
    /// check.
    pub fn linear(&self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, accumulates: bool) {
        let WeightFormat::Quantised(format) = w.format else { panic!("linear: 4-bit weights for it") };
        let format = FourBit::of(format).expect("the format was loaded");
        assert_eq!((out.rows, out.width, x.width), (x.rows, w.outputs, w.inner), "linear: shapes");
        assert!(bias.is_none_or(|bias| bias.len == w.outputs), "linear: length of the bias");
        assert!(!accumulates || out.element == Dtype::F32, "linear, adding: sums are f32");
        let bias = bias.map(|bias| &bias.memory);
        let matrices = FourBitMatrices { memory: &w.memory, format, outputs: w.outputs, inner: w.inner, bias };
        let launch = Launch { out, x, matrices: &matrices, experts: None, accumulates };
        if self.device.facts().major == 9 && copies_chunks(x, w.inner) {
            if let Err(error) = self.launch_layer(&launch) {
                self.device.keep(error);
            }
            return;
        }
        self.launch(&launch, FourBitTiles::of_layer());
    }

    /// A layer on Hopper.
    fn launch_layer(&self, launch: &Launch<'_>) -> Result<()> {
        let &Launch { out, x, matrices, accumulates, .. } = launch;
        let &FourBitMatrices { memory, format, outputs, inner, bias } = matrices;
        if out.rows == 0 {
            return Ok(());
        }
        let multiprocessors = self.device.facts().multiprocessors as usize;
        let whole = self.wholes.get(&(outputs, inner)).copied().unwrap_or(outputs);
        let invariant_of = self.batch_invariant.then_some(whole);
        let plan = LayerPlan::of(format, [out.rows, outputs, inner], multiprocessors, invariant_of);
        let (tiles, width) = (plan.tiles, inner * 2);
        let (element, box_rows) = (BoxElement::SwizzledBytes, tiles.box_rows());
        let boxes = MatrixBoxes { element, rows: x.rows, width, apart: width, box_rows, box_width: 128 };
        let inputs = TensorMap::new(&self.device, x.memory(), 0, boxes)?;
        let args = Args::new().memory(out.memory()).tensor_map(&inputs).memory(memory).memory_or_null(bias);
        let args = args.u32(small(outputs)).u32(small(inner)).u32(small(out.rows)).u32(small(plan.splits));
        let args = args.u32(bias.is_some().into()).u32((out.element == Dtype::F32).into()).u32(accumulates.into());
        let kernels = self.formats.get(&format).expect("loaded with the first matrix of its format");
        let grid = plan.grid(out.rows, outputs, multiprocessors).map(small);
        let function = &kernels.layers[&(x.element, tiles)];
        self.device.launch_early(function, grid, tiles.threads(), tiles.shared(format), &args);
        Ok(())
    }

    /// `out[place] = w[expert] x[i] (+ bias[expert])`; see `Backend::expert_linear`. An error is kept for the device's
    /// next check.
    pub fn multiply_experts(
        &self,
        out: &Buffer,
        x: &Buffer,
        matrices: &FourBitMatrices<'_>,
        places: &ExpertPlaces<'_>,
    ) {
        let &ExpertPlaces { experts, most, .. } = places;
        let load = ExpertLoad { experts, places: out.rows, most, outputs: matrices.outputs };
        let facts = self.device.facts();
        let tiles = FourBitTiles::of_experts(facts.major, load, facts.multiprocessors as usize, self.batch_invariant);
        self.launch(&Launch { out, x, matrices, experts: Some(places), accumulates: false }, tiles);
    }

    fn launch(&self, launch: &Launch<'_>, tiles: FourBitTiles) {
        let &Launch { out, x, matrices, experts, accumulates } = launch;
        let &FourBitMatrices { memory, format, outputs, inner, bias } = matrices;
        if out.rows == 0 {
            return;
        }
        let kernels = self.formats.get(&format).expect("loaded with the first matrix of its format");
        let args = Args::new().memory(out.memory()).memory(x.memory()).memory(memory).memory_or_null(bias);
        let args = args.memory_or_null(experts.map(|places| places.firsts));
        let args = args.memory_or_null(experts.map(|places| places.rows));
        let count = experts.map_or(1, |places| places.experts);
        let args = args.u32(small(count)).u32(small(outputs)).u32(small(inner)).u32(small(out.rows));
        let args = args.u32(experts.is_some_and(|places| places.gathers).into()).u32(bias.is_some().into());
        if copies_chunks(x, inner) {
            let args = args.u32((out.element == Dtype::F32).into()).u32(accumulates.into());
            let most = small(tiles.count(out.rows, outputs) + count * outputs.div_ceil(tiles.outputs()));
            let blocks = (self.device.facts().multiprocessors * tiles.blocks()).min(most);
            let function = &kernels.tiles[&(x.element, tiles)];
            self.device.launch(function, [blocks, 1, 1], tiles.threads(), tiles.shared(format), &args);
        } else {
            let (grid, threads) = any_grid(outputs, out.rows, count);
            let function = &kernels.any[&(x.element, out.element)];
            self.device.launch(function, grid, threads, 0, &args.u32(accumulates.into()));
        }
    }
}

/// Tensor-core kernels multiply 16-bit inputs, and copy whole chunks of 16 bytes.
fn copies_chunks(x: &Buffer, inner: usize) -> bool {
    x.element != Dtype::F32 && inner.is_multiple_of(8)
}
