//! Mixtures of experts: the experts' matrices, and the launchers of their grouped products. `routes` holds which rows
//! each expert has; counts and offsets stay on the device, so that a graph can repeat a step whose rows choose
//! differently.

mod kernels;
pub mod routes;

pub use self::kernels::ExpertKernels;

use self::routes::Routes;
use crate::backend::cuda::compile::four_bit::FourBit;
use crate::backend::cuda::driver::args::Args;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::cuda::driver::grid::small;
use crate::backend::cuda::driver::memory::Memory;
use crate::backend::cuda::four_bit::{ExpertPlaces, FourBitKernels, FourBitMatrices};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::weights::{Matrix, Vector};
use crate::backend::{Dtype, ExpertInput, ExpertKind, Gate};
use crate::error::{Error, Result};

/// The most experts of a mixture: as many as a block's table of tiles has, as in kernels/experts/tile.cuh.
pub const MOST_EXPERTS: usize = 1024;

/// Outputs and inputs of a panel, as in kernels/experts/panels.cuh.
const PANEL: usize = 64;

/// The matrices of a mixture's experts in one piece of memory, and their biases.
pub struct Experts {
    weights: Memory,
    /// f32 `[experts, outputs]`
    biases: Option<Memory>,
    count: usize,
    outputs: usize,
    inner: usize,
    kind: ExpertKind,
    layout: ExpertLayout,
}

/// How the matrices lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// `[experts, outputs, inner]` elements of that dtype.
    Rows(Dtype),
    /// Panels of 64 x 64 elements (kernels/experts/panels.cuh), which tensor-core kernels copy; gates and ups in turn, eight
    /// of each.
    Panels(Dtype),
    /// Panels of 4-bit codes (kernels/four_bit/panels.cuh).
    FourBit(FourBit),
}

impl ExpertLayout {
    /// Panels need 16-bit elements, rows of inputs that are whole chunks of 16 bytes, and gates in groups of eight.
    fn of(element: Dtype, outputs: usize, inner: usize, kind: ExpertKind) -> Self {
        let groups = kind == ExpertKind::Linear || outputs.is_multiple_of(16);
        let fits = element != Dtype::F32 && inner.is_multiple_of(8) && groups;
        if fits { ExpertLayout::Panels(element) } else { ExpertLayout::Rows(element) }
    }

    /// Bytes of one expert.
    fn bytes(self, outputs: usize, inner: usize) -> usize {
        match self {
            ExpertLayout::Rows(element) => outputs * inner * element.bytes(),
            ExpertLayout::Panels(element) => {
                outputs.next_multiple_of(PANEL) * inner.next_multiple_of(PANEL) * element.bytes()
            }
            ExpertLayout::FourBit(format) => format.bytes(outputs, inner),
        }
    }
}

impl Experts {
    /// Moves dense matrices into one piece of memory, one after another: each is freed before the next is moved.
    pub fn load(
        device: &Device,
        kernels: &ExpertKernels,
        matrices: Vec<Matrix>,
        biases: Vec<Vector>,
        kind: ExpertKind,
    ) -> Result<Self> {
        check_count(matrices.len())?;
        let (outputs, inner, element) = (matrices[0].outputs, matrices[0].inner, matrices[0].element());
        let layout = ExpertLayout::of(element, outputs, inner, kind);
        let panels = match layout {
            ExpertLayout::Panels(_) => Some(kernels.panels()),
            ExpertLayout::Rows(_) | ExpertLayout::FourBit(_) => None,
        };
        Self::moved(device, panels, matrices, biases, kind, layout)
    }

    /// The same of 4-bit matrices.
    pub fn load_four_bit(
        device: &Device,
        format: FourBit,
        matrices: Vec<Matrix>,
        biases: Vec<Vector>,
        kind: ExpertKind,
    ) -> Result<Self> {
        check_count(matrices.len())?;
        Self::moved(device, None, matrices, biases, kind, ExpertLayout::FourBit(format))
    }

    /// `to_panels`: the kernel that copies a matrix where its layout is another one here.
    fn moved(
        device: &Device,
        to_panels: Option<&Function>,
        matrices: Vec<Matrix>,
        biases: Vec<Vector>,
        kind: ExpertKind,
        layout: ExpertLayout,
    ) -> Result<Self> {
        let (count, outputs, inner) = (matrices.len(), matrices[0].outputs, matrices[0].inner);
        let bytes = layout.bytes(outputs, inner);
        let weights = device.alloc(count * bytes)?;
        for (expert, matrix) in matrices.into_iter().enumerate() {
            assert_eq!((matrix.outputs, matrix.inner), (outputs, inner), "experts: equal shapes");
            match to_panels {
                None => device.copy(&weights, expert * bytes, &matrix.memory, 0..bytes)?,
                Some(to_panels) => {
                    let args = Args::new().memory_at(&weights, expert * bytes).memory(&matrix.memory);
                    let args = args.u32(small(outputs)).u32(small(inner)).u32(u32::from(kind == ExpertKind::Gated));
                    let grid = [small(inner.div_ceil(PANEL)), small(outputs.div_ceil(PANEL)), 1];
                    device.launch(to_panels, grid, 256, 0, &args);
                }
            }
        }
        device.check()?;
        let biases = if biases.is_empty() { None } else { Some(stack(device, &biases, count, outputs)?) };
        Ok(Self { weights, biases, count, outputs, inner, kind, layout })
    }

    pub fn layout(&self) -> ExpertLayout {
        self.layout
    }

    /// `out[place] = w[expert] x[i] (+ bias[expert])`; see `Backend::expert_linear`. Not where `gates`.
    pub fn linear(&self, kernels: &ExpertKernels, out: &Buffer, x: &Buffer, routes: &Routes, input: ExpertInput) {
        assert_eq!(out.width, self.outputs, "expert_linear: width of the output");
        assert!(!self.gates(), "expert_linear: experts for it");
        self.launch(kernels, out, x, routes, input, None);
    }

    /// Whether the product gates its results itself: `gated`, not `linear`, can be called.
    pub fn gates(&self) -> bool {
        matches!(self.layout, ExpertLayout::Panels(_)) && self.kind == ExpertKind::Gated
    }

    /// `out[place] = gate(g, u)` with g and u the halves of `linear`'s result for the place's row.
    pub fn gated(&self, kernels: &ExpertKernels, out: &Buffer, x: &Buffer, routes: &Routes, gate: Gate) {
        assert_eq!((2 * out.width, out.element), (self.outputs, x.element), "expert_gated: shape of the output");
        assert!(self.gates(), "expert_gated: experts for it");
        self.launch(kernels, out, x, routes, ExpertInput::Rows, Some(gate));
    }

    /// `linear` with 4-bit matrices.
    pub fn linear_four_bit(
        &self,
        kernels: &FourBitKernels,
        out: &Buffer,
        x: &Buffer,
        routes: &Routes,
        input: ExpertInput,
    ) {
        let ExpertLayout::FourBit(format) = self.layout else { panic!("expert_linear: 4-bit experts for it") };
        assert_eq!(out.width, self.outputs, "expert_linear: width of the output");
        self.check(out, x, routes, input);
        let (memory, outputs, inner) = (&self.weights, self.outputs, self.inner);
        let matrices = FourBitMatrices { memory, format, outputs, inner, bias: self.biases.as_ref() };
        let places = ExpertPlaces {
            firsts: routes.firsts(),
            rows: routes.rows_of_places(),
            experts: self.count,
            most: routes.rows(),
            gathers: input == ExpertInput::Rows,
        };
        kernels.multiply_experts(out, x, &matrices, &places);
    }

    fn check(&self, out: &Buffer, x: &Buffer, routes: &Routes, input: ExpertInput) {
        let inputs = if input == ExpertInput::Rows { routes.rows() } else { routes.places() };
        assert_eq!((out.rows, x.rows, x.width), (routes.places(), inputs, self.inner), "expert_linear: shapes");
        assert_eq!(routes.experts(), self.count, "expert_linear: number of experts");
        assert!([x.element, Dtype::F32].contains(&out.element), "expert_linear: dtype of the output");
    }

    fn launch(
        &self,
        kernels: &ExpertKernels,
        out: &Buffer,
        x: &Buffer,
        routes: &Routes,
        input: ExpertInput,
        gate: Option<Gate>,
    ) {
        self.check(out, x, routes, input);
        if out.rows == 0 {
            return;
        }
        let args = Args::new().memory(out.memory()).memory(x.memory()).memory(&self.weights);
        let args = args.memory(self.biases.as_ref().unwrap_or(&self.weights));
        let args = args.memory(routes.firsts()).memory(routes.rows_of_places());
        let args = args.u32(small(self.count)).u32(small(self.outputs)).u32(small(self.inner));
        let args = args.u32(u32::from(input == ExpertInput::Rows)).u32(u32::from(self.biases.is_some()));
        match self.layout {
            ExpertLayout::FourBit(_) => panic!("expert_linear: dense experts for it"),
            ExpertLayout::Rows(element) => {
                assert_eq!(x.element, element, "expert_linear: dtype");
                kernels.launch_any(args, out.element, self.outputs, routes);
            }
            ExpertLayout::Panels(element) => {
                assert_eq!(x.element, element, "expert_linear: dtype");
                let sums = u32::from(out.element == Dtype::F32);
                kernels.launch(args.u32(sums).u32(gate_number(gate)), gate.is_some(), routes);
            }
        }
    }
}

/// As in kernels/experts/store.cuh.
fn gate_number(gate: Option<Gate>) -> u32 {
    match gate {
        None | Some(Gate::Silu) => 0,
        Some(Gate::Gelu) => 1,
        Some(Gate::Clamped) => 2,
    }
}

/// One bias of `outputs` elements for each expert, in one piece of memory.
fn stack(device: &Device, biases: &[Vector], count: usize, outputs: usize) -> Result<Memory> {
    assert_eq!(biases.len(), count, "experts: a bias for each");
    let bytes = outputs * size_of::<f32>();
    let all = device.alloc(count * bytes)?;
    for (expert, bias) in biases.iter().enumerate() {
        assert_eq!(bias.len, outputs, "experts: length of a bias");
        device.copy(&all, expert * bytes, &bias.memory, 0..bytes)?;
    }
    Ok(all)
}

/// An error if there are more experts than the kernels' tables hold.
fn check_count(experts: usize) -> Result<()> {
    match experts {
        1..=MOST_EXPERTS => Ok(()),
        _ => Err(Error::value("the number of experts", format!("1 to {MOST_EXPERTS} on a GPU"), experts.to_string())),
    }
}
