//! Experts of 4-bit weights: their panels (kernels/four_bit/panels.cuh) in one piece of memory.

use super::biases::stacked;
use super::routes::{Routes, check_count};
use crate::compile::four_bit::FourBit;
use crate::driver::device::Device;
use crate::driver::memory::Memory;
use crate::four_bit::{ExpertPlaces, FourBitKernels, FourBitMatrices};
use crate::memory::buffer::Buffer;
use crate::memory::weights::{Matrix, Vector};
use offshoot_backend::{ExpertInput, MemoryPart};
use offshoot_core::error::Result;

/// The matrices of a mixture's experts, and their biases.
pub struct FourBitExperts {
    weights: Memory,
    /// f32 `[experts, outputs]`
    biases: Option<Memory>,
    count: usize,
    outputs: usize,
    inner: usize,
    format: FourBit,
}

impl FourBitExperts {
    /// Moves the matrices into one piece of memory, one after another: each is freed before the next is moved.
    pub fn load(device: &Device, format: FourBit, matrices: Vec<Matrix>, biases: &[Vector]) -> Result<Self> {
        let count = matrices.len();
        check_count(count)?;
        let (outputs, inner) = (matrices[0].outputs, matrices[0].inner);
        let bytes = format.bytes(outputs, inner);
        let weights = device.alloc_of(MemoryPart::Weights, count * bytes)?;
        let biases = stacked(device, biases, count, outputs)?;
        let experts = Self { weights, biases, count, outputs, inner, format };
        for (expert, matrix) in matrices.into_iter().enumerate() {
            experts.put(device, expert, &matrix)?;
        }
        device.check()?;
        Ok(experts)
    }

    /// Puts a matrix where that of expert `expert` lies.
    pub fn put(&self, device: &Device, expert: usize, matrix: &Matrix) -> Result<()> {
        let &Self { ref weights, outputs, inner, format, .. } = self;
        let bytes = format.bytes(outputs, inner);
        assert_eq!((matrix.outputs, matrix.inner), (outputs, inner), "experts: equal shapes");
        device.copy(weights, expert * bytes, &matrix.memory, 0..bytes)
    }

    /// f32 `[experts, outputs]`
    pub fn biases(&self) -> Option<&Memory> {
        self.biases.as_ref()
    }

    /// `out[place] = w[expert] x[i] (+ bias[expert])`; see `Backend::expert_linear`.
    pub fn linear(&self, kernels: &FourBitKernels, out: &Buffer, x: &Buffer, routes: &Routes, input: ExpertInput) {
        let &Self { ref weights, ref biases, count, outputs, inner, format } = self;
        let inputs = if input == ExpertInput::Rows { routes.rows() } else { routes.places() };
        assert_eq!((out.rows, x.rows, x.width), (routes.places(), inputs, inner), "expert_linear: shapes");
        assert_eq!((out.width, routes.multiplied()), (outputs, count), "expert_linear: outputs and experts");
        if out.rows == 0 {
            return;
        }
        let matrices = FourBitMatrices { memory: weights, format, outputs, inner, bias: biases.as_ref() };
        let places = ExpertPlaces {
            firsts: routes.firsts(),
            rows: routes.rows_of_places(),
            experts: count,
            most: routes.rows(),
            gathers: input == ExpertInput::Rows,
        };
        kernels.multiply_experts(out, x, &matrices, &places);
    }
}
