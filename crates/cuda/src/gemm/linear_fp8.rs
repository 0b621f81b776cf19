//! Linear layers with e4m3 weights on Hopper: activations are rounded (`rounding`), then multiplied
//! by cuBLASLt, and by our kernel (kernels/fp8/linear_fp8.cu) what it takes not. Deterministic steps use the kernel
//! alone, in which a row's result does not depend on the number of rows.

use std::collections::HashMap;

use super::chooser::AlgorithmPolicy;
use super::cublaslt::{GemmOperands, GemmScales, GemmShape, Library};
use super::products::LibraryProducts;
use crate::compile::elements::{Fp8Scaling, Fp8Tiles};
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::memory::buffer::Buffer;
use crate::memory::weights::{Fp8Scales, Matrix, Vector};
use crate::rounding::{self, RoundedRows, RowRounder};
use offshoot_backend::Dtype;
use offshoot_core::error::Result;

/// The library multiplies matrices whose rows of inputs and of results are multiples of so many elements.
const LIBRARY_MULTIPLE: usize = 16;

/// The kernels, and the library.
pub struct LinearFp8 {
    device: Device,
    kernels: HashMap<(Dtype, Fp8Tiles, Fp8Scaling), Function>,
    pub(crate) products: LibraryProducts,
    /// Whether all numbers of rows are multiplied by the kernel.
    kernel_only: bool,
}

/// The outputs of a product that are computed together.
struct Range {
    first: usize,
    end: usize,
}

impl LinearFp8 {
    /// Without kernels; `load` takes them.
    pub fn new(device: &Device) -> Result<Self> {
        let products = LibraryProducts::open(device)?;
        Ok(Self { device: device.clone(), kernels: HashMap::new(), products, kernel_only: !Library::scales_e4m3() })
    }

    /// Compiles the kernels of `scaling`, or takes them from the cache.
    pub fn load(&mut self, scaling: Fp8Scaling) -> Result<()> {
        self.device.prepare(&units::fp8(scaling))?;
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for tiles in Fp8Tiles::ALL {
                let function = self.device.function(&units::linear_fp8(dtype, tiles, scaling), "linear_fp8")?;
                self.kernels.insert((dtype, tiles, scaling), function);
            }
        }
        Ok(())
    }

    /// Sets how algorithms of the library are chosen.
    pub fn choose(&mut self, choosing: AlgorithmPolicy) {
        self.kernel_only = !Library::scales_e4m3() || choosing == AlgorithmPolicy::BatchInvariant;
        self.products.choose(choosing);
    }

    /// `out[r] = w x[r] (+ bias)`, plus the old `out[r]` if `accumulates`. An error is kept for the device's next
    /// check. Panics if `rounder` has no room for the rows of `x`.
    pub fn linear(
        &mut self,
        rounder: &mut RowRounder,
        out: &Buffer,
        x: &Buffer,
        w: &Matrix,
        bias: Option<&Vector>,
        accumulates: bool,
    ) {
        assert_eq!((out.rows, out.width, x.width), (x.rows, w.outputs, w.inner), "linear: shapes");
        assert!(bias.is_none_or(|bias| bias.len == w.outputs), "linear: length of the bias");
        if out.rows == 0 {
            return;
        }
        if let Err(error) = self.enqueue(rounder, out, x, w, bias, accumulates) {
            self.device.keep(error);
        }
    }

    fn enqueue(
        &mut self,
        rounder: &mut RowRounder,
        out: &Buffer,
        x: &Buffer,
        w: &Matrix,
        bias: Option<&Vector>,
        accumulates: bool,
    ) -> Result<()> {
        let scales = w.fp8.as_ref().expect("a matrix of e4m3 comes with its scales");
        let mut first = 0;
        for part in &scales.parts {
            let rounded = rounder.round(x, scales.scaling, part.activations);
            let range = Range { first, end: part.end };
            let is_whole = range.end - range.first == w.outputs;
            if !(is_whole && self.by_library(out, &rounded, (w, scales), bias, accumulates)?) {
                self.launch(out, &rounded, (w, scales), bias, accumulates, range)?;
            }
            first = part.end;
        }
        Ok(())
    }

    /// Whether the library multiplies it, and has.
    fn by_library(
        &mut self,
        out: &Buffer,
        x: &RoundedRows<'_>,
        (w, scales): (&Matrix, &Fp8Scales),
        bias: Option<&Vector>,
        accumulate: bool,
    ) -> Result<bool> {
        let Matrix { outputs, inner, format: weights, .. } = *w;
        let fits = outputs.is_multiple_of(LIBRARY_MULTIPLE) && inner.is_multiple_of(LIBRARY_MULTIPLE);
        if self.kernel_only || !fits {
            return Ok(false);
        }
        let of_weights = match scales.scaling {
            Fp8Scaling::Rows => Some(&scales.memory),
            // The library has the scales of a block's rows without a gap.
            Fp8Scaling::Blocks => scales.compact.as_ref().filter(|_| x.rows.is_multiple_of(4)),
        };
        let Some(of_weights) = of_weights else { return Ok(false) };
        let added = bias.map(|bias| bias.as_dtype(out.element));
        if added.is_some_and(|given| given.is_none()) {
            return Ok(false);
        }
        let added = added.flatten();
        let (rows, result, biased) = (x.rows, out.element, added.is_some());
        let shape = GemmShape { rows, outputs, inner, weights, compute: result, out: result, accumulate, biased };
        let scales = Some(GemmScales { w: of_weights, x: x.scales });
        self.products.enqueue(shape, GemmOperands { out: out.memory(), x: x.codes, w: &w.memory, bias: added, scales })
    }

    fn launch(
        &self,
        out: &Buffer,
        x: &RoundedRows<'_>,
        (w, scales): (&Matrix, &Fp8Scales),
        bias: Option<&Vector>,
        accumulates: bool,
        Range { first, end }: Range,
    ) -> Result<()> {
        let (rows, outputs, inner) = (x.rows, w.outputs, w.inner);
        let blocks = self.device.facts().multiprocessors;
        let tiles = Fp8Tiles::of(rows, end - first, inner, blocks as usize);
        let codes = rounding::codes(&self.device, &w.memory, outputs, inner, tiles.outputs())?;
        let args = Args::new().memory(out.memory()).tensor_map(&codes).memory(&scales.memory);
        let args = args.tensor_map(&x.code_map(tiles.columns)?).memory(x.scales);
        let args = args.tensor_map(&x.scale_map(tiles)?);
        let args = args.memory(bias.map_or(&scales.memory, |bias| &bias.memory));
        let args = args.u32(small(rows)).u32(small(outputs)).u32(small(inner)).u32(small(first)).u32(small(end));
        let args = args.u32(bias.is_some().into()).u32(accumulates.into());
        let all = rows.div_ceil(tiles.columns) * (end - first).div_ceil(tiles.outputs());
        let kernel = &self.kernels[&(out.element, tiles, scales.scaling)];
        self.device.launch(kernel, [small(all).min(blocks), 1, 1], tiles.threads(), tiles.shared(), &args);
        Ok(())
    }
}
