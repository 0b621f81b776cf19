//! Experts of dense weights: their matrices in one piece of memory, as rows or as panels, and the launchers of their
//! grouped products.

use super::biases::{read_bias, stacked};
use super::gate_number;
use super::kernels::ExpertKernels;
use super::routes::{Routes, check_count};
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use crate::memory::weights::{Matrix, Vector};
use offshoot_backend::{Dtype, Elements, ExpertInput, ExpertKind, Gate, MemoryPart};
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
        let weights = device.alloc_of(MemoryPart::Weights, count * bytes)?;
        let biases = stacked(device, &biases, count, outputs)?;
        let experts = Self { weights, biases, count, outputs, inner, element, kind, layout };
        for (expert, matrix) in matrices.into_iter().enumerate() {
            experts.put(device, kernels, expert, &matrix)?;
        }
        device.check()?;
        Ok(experts)
    }

    pub fn element(&self) -> Dtype {
        self.element
    }

    /// Puts a matrix where that of expert `expert` lies.
    pub fn put(&self, device: &Device, kernels: &ExpertKernels, expert: usize, matrix: &Matrix) -> Result<()> {
        let &Self { ref weights, outputs, inner, element, kind, layout, .. } = self;
        assert_eq!((matrix.outputs, matrix.inner), (outputs, inner), "experts: equal shapes");
        assert_eq!(matrix.element(), element, "experts: equal dtypes");
        let bytes = layout.bytes(element, outputs, inner);
        match layout {
            ExpertLayout::Rows => device.copy(weights, expert * bytes, &matrix.memory, 0..bytes)?,
            ExpertLayout::Panels => {
                let args = Args::new().memory_at(weights, expert * bytes).memory(&matrix.memory);
                let args = args.u32(small(outputs)).u32(small(inner)).u32(u32::from(kind == ExpertKind::Gated));
                let grid = [small(inner.div_ceil(PANEL)), small(outputs.div_ceil(PANEL)), 1];
                device.launch(kernels.panels(), grid, 256, 0, &args);
            }
        }
        Ok(())
    }

    /// f32 `[experts, outputs]`
    pub fn biases(&self) -> Option<&Memory> {
        self.biases.as_ref()
    }

    /// The elements of an expert, and its bias.
    pub fn read(&self, device: &Device, expert: usize) -> Result<(Elements, Vec<f32>)> {
        let &Self { outputs, inner, element: dtype, kind, layout, .. } = self;
        let bytes = layout.bytes(dtype, outputs, inner);
        let stored = device.download(&self.weights, expert * bytes..(expert + 1) * bytes)?;
        let bytes = match layout {
            ExpertLayout::Rows => stored,
            ExpertLayout::Panels => rows_of_panels(&stored, outputs, inner, kind),
        };
        let bias = read_bias(device, self.biases.as_ref(), expert, outputs)?;
        Ok((Elements { dtype, rows: outputs, cols: inner, bytes }, bias))
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
        assert_eq!((x.element, routes.multiplied()), (self.element, self.count), "expert_linear: experts and dtype");
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

/// The 16-bit rows `[outputs, inner]` of an expert's panels, as kernels/experts/expert_panels.cu fills these.
fn rows_of_panels(panels: &[u8], outputs: usize, inner: usize, kind: ExpertKind) -> Vec<u8> {
    const SIZE: usize = 2;
    const CHUNK: usize = 8;
    let across = inner.div_ceil(PANEL);
    let mut rows = vec![0; outputs * inner * SIZE];
    for row in 0..outputs {
        let output = match kind {
            ExpertKind::Gated => row / 16 * 8 + row % 8 + row / 8 % 2 * (outputs / 2),
            ExpertKind::Linear => row,
        };
        let to = &mut rows[output * inner * SIZE..][..inner * SIZE];
        // Inputs are whole chunks.
        for (number, to) in to.chunks_exact_mut(CHUNK * SIZE).enumerate() {
            let (panel, chunk) = (row / PANEL * across + number / CHUNK, number % CHUNK);
            let at = (panel * PANEL + row % PANEL) * PANEL + (chunk ^ (row % 8)) * CHUNK;
            to.copy_from_slice(&panels[at * SIZE..][..CHUNK * SIZE]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panels as the kernel fills them, element by element.
    fn panels_of(rows: &[u16], outputs: usize, inner: usize, kind: ExpertKind) -> Vec<u8> {
        let (down, across) = (outputs.div_ceil(PANEL), inner.div_ceil(PANEL));
        let mut panels = vec![0u16; down * across * PANEL * PANEL];
        for (place, element) in panels.iter_mut().enumerate() {
            let (panel, row, at) = (place / (PANEL * PANEL), place / PANEL % PANEL, place % PANEL);
            let output = panel / across * PANEL + row;
            let input = panel % across * PANEL + ((at / 8) ^ (row % 8)) * 8 + at % 8;
            let half = if kind == ExpertKind::Gated { output / 8 % 2 } else { 0 };
            let matrix_row = match kind {
                ExpertKind::Gated => output / 16 * 8 + output % 8 + half * (outputs / 2),
                ExpertKind::Linear => output,
            };
            if output < outputs && input < inner {
                *element = rows[matrix_row * inner + input];
            }
        }
        panels.iter().flat_map(|element| element.to_le_bytes()).collect()
    }

    #[test]
    fn rows_are_read_from_panels_as_they_were_put_there() {
        for (outputs, inner) in [(16, 8), (96, 72), (64, 64), (160, 136)] {
            for kind in [ExpertKind::Gated, ExpertKind::Linear] {
                let rows: Vec<u16> = (0..outputs * inner).map(|i| (i * 7 + 1) as u16).collect();
                let bytes: Vec<u8> = rows.iter().flat_map(|element| element.to_le_bytes()).collect();
                let panels = panels_of(&rows, outputs, inner, kind);
                assert!(rows_of_panels(&panels, outputs, inner, kind) == bytes, "{outputs} x {inner}, {kind:?}");
            }
        }
    }
}
