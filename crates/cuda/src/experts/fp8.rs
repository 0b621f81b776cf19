//! Experts of e4m3 on Hopper: the inputs of all places are rounded (`rounding`), then multiplied by the matrices of
//! their experts (kernels/fp8/expert_linear_fp8.cu).

use std::collections::HashMap;

use super::biases::stacked;
use super::gate_number;
use super::routes::{Routes, check_count};
use crate::compile::elements::{Fp8ExpertKernel, Fp8ExpertTiles, Fp8Scaling};
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
use offshoot_backend::{Dtype, ExpertInput, ExpertKind, Gate, MemoryPart};
use offshoot_core::error::{Error, Result};

/// The kernels that multiply, and what moves rows of gates and ups when they are loaded.
pub struct Fp8ExpertKernels {
    device: Device,
    kernels: HashMap<Fp8ExpertKernel, Function>,
    alternate_rows: Option<Function>,
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
    /// Whether outputs are gates and ups, of whose codes and scales eight and eight follow in turn.
    gates: bool,
}

/// What an expert's product reads and writes.
struct Product<'a> {
    out: &'a Buffer,
    x: &'a Buffer,
    routes: &'a Routes,
    input: ExpertInput,
    gate: Option<Gate>,
}

impl Fp8ExpertKernels {
    /// Without kernels; `load` takes them.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), kernels: HashMap::new(), alternate_rows: None }
    }

    /// Compiles the kernels of `scaling`, or takes them from the cache.
    pub fn load(&mut self, scaling: Fp8Scaling) -> Result<()> {
        self.device.prepare(&units::experts_fp8(scaling))?;
        for kernel in Fp8ExpertKernel::all(scaling) {
            let function = self.device.function(&units::expert_linear_fp8(kernel), "expert_linear_fp8")?;
            self.kernels.insert(kernel, function);
        }
        self.alternate_rows = Some(self.device.function(&units::alternate_rows(), "alternate_rows")?);
        Ok(())
    }

    /// Copies `matrices` matrices of rows of gates and ups to offset `at` of `to`, eight and eight in turn.
    fn alternate(&self, to: &Memory, at: usize, from: &Memory, (matrices, rows, row_bytes): (usize, usize, usize)) {
        let function = self.alternate_rows.as_ref().expect("loaded with the first scaling");
        let words = row_bytes / size_of::<u32>();
        let args = Args::new().memory_at(to, at).memory(from).u32(small(rows)).u32(small(words));
        let threads = small(words.clamp(32, 256).next_multiple_of(32));
        self.device.launch(function, [small(rows), small(matrices), 1], threads, 0, &args);
    }
}

impl Fp8Experts {
    /// Moves the matrices into one piece of memory, each of which is freed before the next is moved. All are of one
    /// format; an error if their activations are not rounded alike.
    pub fn load(
        kernels: &Fp8ExpertKernels,
        matrices: Vec<Matrix>,
        biases: &[Vector],
        kind: ExpertKind,
    ) -> Result<Self> {
        let device = &kernels.device;
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
        let gates = kind == ExpertKind::Gated && outputs.is_multiple_of(16);
        let experts = Self { codes, scales, scaling, activations, biases, count, outputs, inner, gates };
        for (expert, matrix) in matrices.into_iter().enumerate() {
            experts.put(kernels, expert, &matrix)?;
        }
        device.check()?;
        Ok(experts)
    }

    /// Puts a matrix where that of expert `expert` lies. An error if its activations are not rounded as theirs.
    pub fn put(&self, kernels: &Fp8ExpertKernels, expert: usize, matrix: &Matrix) -> Result<()> {
        let &Self { ref codes, ref scales, scaling, activations, outputs, inner, gates, .. } = self;
        let device = &kernels.device;
        assert_eq!((matrix.outputs, matrix.inner), (outputs, inner), "experts: equal shapes");
        let own = scales_of(matrix)?;
        let is_alike = own.scaling == scaling && own.parts.iter().all(|part| part.activations == activations);
        if !is_alike {
            return Err(rounded_apart());
        }
        let (code_bytes, scale_bytes) = (outputs * stride(inner), own.memory.bytes());
        if gates {
            kernels.alternate(codes, expert * code_bytes, &matrix.memory, (1, outputs, stride(inner)));
            let blocks = scale_bytes / (outputs * size_of::<f32>());
            kernels.alternate(scales, expert * scale_bytes, &own.memory, (blocks, outputs, size_of::<f32>()));
            return Ok(());
        }
        device.copy(codes, expert * code_bytes, &matrix.memory, 0..code_bytes)?;
        device.copy(scales, expert * scale_bytes, &own.memory, 0..scale_bytes)
    }

    /// f32 `[experts, outputs]`
    pub fn biases(&self) -> Option<&Memory> {
        self.biases.as_ref()
    }

    /// Whether the product gates its results itself: `gated`, not `linear`, can be called.
    pub fn gates(&self) -> bool {
        self.gates
    }

    /// `out[place] = w[expert] x[i] (+ bias[expert])`; see `Backend::expert_linear`. Not where `gates`. An error is
    /// kept for the device's next check. Panics if `rounder` has no room for all places.
    pub fn linear(
        &self,
        kernels: (&Fp8ExpertKernels, &mut RowRounder),
        out: &Buffer,
        x: &Buffer,
        routes: &Routes,
        input: ExpertInput,
    ) {
        assert_eq!(out.width, self.outputs, "expert_linear: width of the output");
        assert!(!self.gates, "expert_linear: experts for it");
        self.multiply(kernels, &Product { out, x, routes, input, gate: None });
    }

    /// `out[place] = gate(g, u)` with g and u the halves of `linear`'s result for the place's row. Errors and panics as
    /// there.
    pub fn gated(
        &self,
        kernels: (&Fp8ExpertKernels, &mut RowRounder),
        out: &Buffer,
        x: &Buffer,
        routes: &Routes,
        gate: Gate,
    ) {
        assert_eq!(2 * out.width, self.outputs, "expert_gated: width of the output");
        assert!(self.gates, "expert_gated: experts for it");
        self.multiply(kernels, &Product { out, x, routes, input: ExpertInput::Rows, gate: Some(gate) });
    }

    fn multiply(&self, (kernels, rounder): (&Fp8ExpertKernels, &mut RowRounder), product: &Product<'_>) {
        let &Product { out, x, routes, input, .. } = product;
        let inputs = if input == ExpertInput::Rows { routes.rows() } else { routes.places() };
        assert_eq!((out.rows, x.rows, x.width), (routes.places(), inputs, self.inner), "expert_linear: shapes");
        assert_eq!(routes.multiplied(), self.count, "expert_linear: experts");
        if out.rows == 0 {
            return;
        }
        if let Err(error) = self.launch(kernels, rounder, product) {
            kernels.device.keep(error);
        }
    }

    fn launch(&self, kernels: &Fp8ExpertKernels, rounder: &mut RowRounder, product: &Product<'_>) -> Result<()> {
        let &Self { scaling, count, outputs, inner, .. } = self;
        let &Product { out, x, routes, input, gate } = product;
        let device = &kernels.device;
        let chosen = (input == ExpertInput::Rows).then(|| (routes.rows_of_places(), routes.places()));
        let rounded = rounder.round_places(x, chosen, scaling, self.activations);
        let tiles = Fp8ExpertTiles::of(routes.rows(), routes.places().div_ceil(count));
        let codes = rounding::codes(device, &self.codes, count * outputs, inner, Fp8ExpertTiles::BOX_OUTPUTS)?;
        let args = Args::new().memory(out.memory()).tensor_map(&codes).memory(&self.scales);
        let args = args.tensor_map(&rounded.code_map(Fp8ExpertTiles::BOX_PLACES)?).memory(rounded.scales);
        let args = args.memory(self.biases.as_ref().unwrap_or(&self.scales)).memory(routes.firsts());
        let args = args.u32(small(count)).u32(small(outputs)).u32(small(inner)).u32(small(rounded.apart()));
        let args = args.u32(self.biases.is_some().into());
        let args = args.u32((out.element == Dtype::F32).into()).u32(gate_number(gate));
        let kernel = Fp8ExpertKernel::of(out.element, tiles, scaling, gate.is_some());
        // Whole pairs.
        let blocks = device.facts().multiprocessors / 2 * 2;
        let function = &kernels.kernels[&kernel];
        device.launch(function, [blocks, 1, 1], Fp8ExpertTiles::THREADS, kernel.shared(), &args);
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
