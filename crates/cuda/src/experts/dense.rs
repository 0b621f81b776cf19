//! Experts of dense weights: their matrices in one piece of memory, as rows or as panels, and the launchers of their
//! grouped products.

use super::biases::stacked;
use super::kernels::ExpertKernels;
use super::routes::{Routes, check_count};
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use crate::memory::weights::{Matrix, Vector};
use offshoot_backend::{Dtype, ExpertInput, ExpertKind, Gate};
use offshoot_core::error::Result;

/// Outputs and inputs of a panel, as in kernels/experts/panels.cuh.
const PANEL: usize = 64;

/// The matrices of a mixture's experts in one piece of memory, and their biases.
pub struct DenseExperts {
    weights: Memory,
    /// f32 `[experts, outputs]`
    biases: Option<Memory>,
    count: usize,
    outputs: usize,
    inner: usize,
    element: Dtype,
    kind: ExpertKind,
    layout: ExpertLayout,
}

/// How the matrices lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// `[experts, outputs, inner]`
    Rows,
    /// Panels of 64 x 64 elements (kernels/experts/panels.cuh), which tensor-core kernels copy; gates and ups in turn,
    /// eight of each.
    Panels,
}

impl ExpertLayout {
    /// Panels need 16-bit elements, rows of inputs that are whole chunks of 16 bytes, and gates in groups of eight.
    fn of(element: Dtype, outputs: usize, inner: usize, kind: ExpertKind) -> Self {
        let groups = kind == ExpertKind::Linear || outputs.is_multiple_of(16);
        let fits = element != Dtype::F32 && inner.is_multiple_of(8) && groups;
        if fits { ExpertLayout::Panels } else { ExpertLayout::Rows }
    }

    /// Bytes of one expert.
    fn bytes(self, element: Dtype, outputs: usize, inner: usize) -> usize {
        let elements = match self {
            ExpertLayout::Rows => outputs * inner,
            ExpertLayout::Panels => outputs.next_multiple_of(PANEL) * inner.next_multiple_of(PANEL),
        };
        elements * element.bytes()
    }
}

impl DenseExperts {
    /// Moves the matrices into one piece of memory, one after another: each is freed before the next is moved.
    pub fn load(
        device: &Device,
        kernels: &ExpertKernels,
        matrices: Vec<Matrix>,
        biases: Vec<Vector>,
        kind: ExpertKind,
    ) -> Result<Self> {
        let count = matrices.len();
        check_count(count)?;
        let (outputs, inner, element) = (matrices[0].outputs, matrices[0].inner, matrices[0].element());
        let layout = ExpertLayout::of(element, outputs, inner, kind);
        let bytes = layout.bytes(element, outputs, inner);
        let weights = device.alloc(count * bytes)?;
        for (expert, matrix) in matrices.into_iter().enumerate() {
            assert_eq!((matrix.outputs, matrix.inner), (outputs, inner), "experts: equal shapes");
            match layout {
                ExpertLayout::Rows => device.copy(&weights, expert * bytes, &matrix.memory, 0..bytes)?,
                ExpertLayout::Panels => {
                    let args = Args::new().memory_at(&weights, expert * bytes).memory(&matrix.memory);
                    let args = args.u32(small(outputs)).u32(small(inner)).u32(u32::from(kind == ExpertKind::Gated));
                    let grid = [small(inner.div_ceil(PANEL)), small(outputs.div_ceil(PANEL)), 1];
                    device.launch(kernels.panels(), grid, 256, 0, &args);
                }
            }
        }
        device.check()?;
        let biases = stacked(device, &biases, count, outputs)?;
        Ok(Self { weights, biases, count, outputs, inner, element, kind, layout })
    }

    pub fn element(&self) -> Dtype {
        self.element
    }

    /// `out[place] = w[expert] x[i] (+ bias[expert])`; see `Backend::expert_linear`. Not where `gates`.
    pub fn linear(&self, kernels: &ExpertKernels, out: &Buffer, x: &Buffer, routes: &Routes, input: ExpertInput) {
        assert_eq!(out.width, self.outputs, "expert_linear: width of the output");
        assert!(!self.gates(), "expert_linear: experts for it");
        self.launch(kernels, out, x, routes, input, None);
    }

    /// Whether the product gates its results itself: `gated`, not `linear`, can be called.
    pub fn gates(&self) -> bool {
        self.layout == ExpertLayout::Panels && self.kind == ExpertKind::Gated
    }

    /// `out[place] = gate(g, u)` with g and u the halves of `linear`'s result for the place's row.
    pub fn gated(&self, kernels: &ExpertKernels, out: &Buffer, x: &Buffer, routes: &Routes, gate: Gate) {
        assert_eq!((2 * out.width, out.element), (self.outputs, self.element), "expert_gated: shape of the output");
        assert!(self.gates(), "expert_gated: experts for it");
        self.launch(kernels, out, x, routes, ExpertInput::Rows, Some(gate));
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
        let inputs = if input == ExpertInput::Rows { routes.rows() } else { routes.places() };
        assert_eq!((out.rows, x.rows, x.width), (routes.places(), inputs, self.inner), "expert_linear: shapes");
        assert_eq!((x.element, routes.experts()), (self.element, self.count), "expert_linear: experts and dtype");
        assert!([self.element, Dtype::F32].contains(&out.element), "expert_linear: dtype of the output");
        if out.rows == 0 {
            return;
        }
        let args = Args::new().memory(out.memory()).memory(x.memory()).memory(&self.weights);
        let args = args.memory(self.biases.as_ref().unwrap_or(&self.weights));
        let args = args.memory(routes.firsts()).memory(routes.rows_of_places());
        let args = args.u32(small(self.count)).u32(small(self.outputs)).u32(small(self.inner));
        let args = args.u32(u32::from(input == ExpertInput::Rows)).u32(u32::from(self.biases.is_some()));
        match self.layout {
            ExpertLayout::Rows => kernels.launch_any(args, out.element, self.outputs, routes),
            ExpertLayout::Panels => {
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
