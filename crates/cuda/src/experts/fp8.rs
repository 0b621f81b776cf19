//! Experts of e4m3 on Hopper: the inputs of all places are rounded (`rounding`), then multiplied by the matrices of
//! their experts (kernels/fp8/expert_linear_fp8.cu and expert_linear_fp8_pairs.cu).

use std::collections::HashMap;

use super::biases::stacked;
use super::routes::{Routes, check_count};
use crate::compile::elements::{Fp8Scaling, Fp8Tiles};
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use crate::memory::fp8::stride;
use crate::memory::weights::{Fp8Part, Fp8Scales, Matrix, Vector};
use crate::rounding::{self, RowRounder};
use offshoot_backend::quantised::ActivationScale;
use offshoot_backend::{Dtype, ExpertInput, MemoryPart};
use offshoot_core::error::{Error, Result};

/// The kernels by dtype of their results.
pub struct Fp8ExpertKernels {
    device: Device,
    kernels: HashMap<(Dtype, Fp8Tiles, Fp8Scaling), Function>,
}

/// The matrices of a mixture's experts in one piece of memory, one after another.
pub struct Fp8Experts {
    /// `[experts, outputs]` rows of codes.
    codes: Memory,
    /// f32 `[experts, outputs]`, or by blocks `[experts, ceil(inner / 128), outputs]`.
    scales: Memory,
    scaling: Fp8Scaling,
    activations: ActivationScale,
    /// f32 `[experts, outputs]`
    biases: Option<Memory>,
    count: usize,
    outputs: usize,
    inner: usize,
}

impl Fp8ExpertKernels {
    /// Without kernels; `load` takes them.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), kernels: HashMap::new() }
    }

    /// Compiles the kernels of `scaling`, or takes them from the cache.
    pub fn load(&mut self, scaling: Fp8Scaling) -> Result<()> {
        self.device.prepare(&units::experts_fp8(scaling))?;
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for tiles in Fp8Tiles::OF_EXPERTS {
                let (unit, name) = units::expert_linear_fp8(dtype, tiles, scaling);
                self.kernels.insert((dtype, tiles, scaling), self.device.function(&unit, name)?);
            }
        }
        Ok(())
    }
}

impl Fp8Experts {
    /// Moves the matrices into one piece of memory, each of which is freed before the next is moved. All are of one
    /// format; an error if their activations are not rounded alike.
    pub fn load(device: &Device, matrices: Vec<Matrix>, biases: &[Vector]) -> Result<Self> {
        let count = matrices.len();
        check_count(count)?;
        let (outputs, inner) = (matrices[0].outputs, matrices[0].inner);
        let Fp8Scales { scaling, parts, memory, .. } = scales_of(&matrices[0])?;
        let (scaling, parts) = (*scaling, parts.clone());
        let (code_bytes, scale_bytes) = (outputs * stride(inner), memory.bytes());
        let [Fp8Part { activations, .. }] = parts[..] else { return Err(rounded_apart()) };
        let codes = device.alloc_of(MemoryPart::Weights, count * code_bytes)?;
        let scales = device.alloc_of(MemoryPart::Weights, count * scale_bytes)?;
        let biases = stacked(device, biases, count, outputs)?;
        let experts = Self { codes, scales, scaling, activations, biases, count, outputs, inner };
        for (expert, matrix) in matrices.into_iter().enumerate() {
            experts.put(device, expert, &matrix)?;
        }
        device.check()?;
        Ok(experts)
    }

    /// Puts a matrix where that of expert `expert` lies. An error if its activations are not rounded as theirs.
    pub fn put(&self, device: &Device, expert: usize, matrix: &Matrix) -> Result<()> {
        let &Self { ref codes, ref scales, scaling, activations, outputs, inner, .. } = self;
        assert_eq!((matrix.outputs, matrix.inner), (outputs, inner), "experts: equal shapes");
        let own = scales_of(matrix)?;
        let is_alike = own.scaling == scaling && own.parts.iter().all(|part| part.activations == activations);
        if !is_alike {
            return Err(rounded_apart());
        }
        let (code_bytes, scale_bytes) = (outputs * stride(inner), own.memory.bytes());
        device.copy(codes, expert * code_bytes, &matrix.memory, 0..code_bytes)?;
        device.copy(scales, expert * scale_bytes, &own.memory, 0..scale_bytes)
    }

    /// f32 `[experts, outputs]`
    pub fn biases(&self) -> Option<&Memory> {
        self.biases.as_ref()
    }

    /// `out[place] = w[expert] x[i] (+ bias[expert])`; see `Backend::expert_linear`. An error is kept for the device's
    /// next check. Panics if `rounder` has no room for all places.
    pub fn linear(
        &self,
        (kernels, rounder): (&Fp8ExpertKernels, &mut RowRounder),
        out: &Buffer,
        x: &Buffer,
        routes: &Routes,
        input: ExpertInput,
    ) {
        let inputs = if input == ExpertInput::Rows { routes.rows() } else { routes.places() };
        assert_eq!((out.rows, x.rows, x.width), (routes.places(), inputs, self.inner), "expert_linear: shapes");
        assert_eq!((out.width, routes.multiplied()), (self.outputs, self.count), "expert_linear: outputs and experts");
        if out.rows == 0 {
            return;
        }
        if let Err(error) = self.launch(kernels, rounder, out, x, routes, input) {
            kernels.device.keep(error);
        }
    }

    fn launch(
        &self,
        kernels: &Fp8ExpertKernels,
        rounder: &mut RowRounder,
        out: &Buffer,
        x: &Buffer,
        routes: &Routes,
        input: ExpertInput,
    ) -> Result<()> {
        let &Self { scaling, count, outputs, inner, .. } = self;
        let device = &kernels.device;
        let chosen = (input == ExpertInput::Rows).then(|| (routes.rows_of_places(), routes.places()));
        let rounded = rounder.round_places(x, chosen, scaling, self.activations);
        let tiles = Fp8Tiles::of_experts(routes.rows(), routes.places().div_ceil(count));
        let codes = rounding::codes(device, &self.codes, count * outputs, inner, tiles.box_outputs())?;
        let args = Args::new().memory(out.memory()).tensor_map(&codes).memory(&self.scales);
        let args = args.tensor_map(&rounded.code_map(tiles.box_rows())?).memory(rounded.scales);
        let args = args.tensor_map(&rounded.scale_map(tiles)?);
        let args = args.memory(self.biases.as_ref().unwrap_or(&self.scales)).memory(routes.firsts());
        let args = args.u32(small(count)).u32(small(outputs)).u32(small(inner)).u32(self.biases.is_some().into());
        let kernel = &kernels.kernels[&(out.element, tiles, scaling)];
        // Whole pairs.
        let blocks = device.facts().multiprocessors / 2 * 2;
        device.launch(kernel, [blocks, 1, 1], tiles.threads(), tiles.shared(), &args);
        Ok(())
    }
}

fn scales_of(matrix: &Matrix) -> Result<&Fp8Scales> {
    matrix.fp8.as_ref().ok_or_else(rounded_apart)
}

fn rounded_apart() -> Error {
    let expected = "one format and one bound of activations for all experts of a layer, on a GPU";
    Error::value("the experts' matrices", expected, "several".to_owned())
}
