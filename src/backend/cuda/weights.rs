//! Weights on the device: matrices in the dtype of their file, row-major as they lie there, and vectors as f32. Their bytes go
//! from the memory map through page-locked halves to the device, or are drawn from a seed where they will be used.

use super::args::Args;
use super::device::Device;
use super::memory::Memory;
use super::staging::Staging;
use super::units;
use crate::backend::{Dtype, WeightView};
use crate::error::Result;

/// `[outputs, inner]` elements, row-major.
pub struct Matrix {
    pub memory: Memory,
    pub outputs: usize,
    pub inner: usize,
    pub dtype: Dtype,
}

/// f32 elements, and beside them those of the file where it has fewer bytes: the library adds a bias in the dtype of its
/// result.
pub struct Vector {
    pub memory: Memory,
    pub len: usize,
    as_given: Option<(Dtype, Memory)>,
}

/// Rows drawn from a seed: element `i` of a part is `centre + reach * u(i)`, `u` uniform in [-1, 1), as `RandomWeights` draws
/// it.
#[derive(Clone, Copy, Debug)]
pub struct RandomPart {
    pub rows: usize,
    pub stream: u64,
    pub centre: f32,
    pub reach: f32,
}

/// Brings weights to the device. Holds page-locked memory: made for a load, dropped after it.
pub struct Loader {
    device: Device,
    staging: Staging,
}

impl Vector {
    /// The elements as `dtype`, if they are here in it.
    pub fn as_dtype(&self, dtype: Dtype) -> Option<&Memory> {
        match &self.as_given {
            _ if dtype == Dtype::F32 => Some(&self.memory),
            Some((given, memory)) if *given == dtype => Some(memory),
            _ => None,
        }
    }
}

impl Loader {
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { device: device.clone(), staging: Staging::new(device)? })
    }

    /// Stacks `parts` (each `[out_i, in]`, equal `in` and dtype) into one matrix.
    pub fn matrix(&mut self, parts: &[WeightView<'_>]) -> Result<Matrix> {
        let (dtype, inner) = (parts[0].dtype, parts[0].cols);
        assert!(
            parts.iter().all(|part| (part.dtype, part.cols) == (dtype, inner)),
            "matrix: parts of one shape and dtype"
        );
        let memory = self.device.alloc(parts.iter().map(|part| part.bytes.len()).sum())?;
        self.stack(&memory, parts)?;
        Ok(Matrix { memory, outputs: parts.iter().map(|part| part.rows).sum(), inner, dtype })
    }

    /// Concatenates `parts`.
    pub fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Vector> {
        let elements: Vec<f32> =
            parts.iter().flat_map(|part| (0..part.rows * part.cols).map(|i| part.get(i))).collect();
        let memory = self.device.alloc(size_of_val(elements.as_slice()))?;
        self.device.upload(&memory, 0, bytemuck::cast_slice(&elements))?;
        let dtype = parts[0].dtype;
        let as_given = if dtype != Dtype::F32 && parts.iter().all(|part| part.dtype == dtype) {
            let given = self.device.alloc(elements.len() * dtype.bytes())?;
            self.stack(&given, parts)?;
            Some((dtype, given))
        } else {
            None
        };
        Ok(Vector { memory, len: elements.len(), as_given })
    }

    /// A matrix drawn on the device, each part from its own stream.
    pub fn random_matrix(&self, parts: &[RandomPart], inner: usize, dtype: Dtype) -> Result<Matrix> {
        let random_weights = self.device.function(&units::typed(&units::RANDOM_WEIGHTS, dtype), "random_weights")?;
        let outputs = parts.iter().map(|part| part.rows).sum();
        let memory = self.device.alloc(outputs * inner * dtype.bytes())?;
        let blocks = self.device.facts().multiprocessors * 8;
        let mut at = 0;
        for part in parts {
            let elements = part.rows * inner;
            let args = Args::new()
                .memory_at(&memory, at)
                .u64(elements as u64)
                .u64(part.stream)
                .f32(part.centre)
                .f32(part.reach);
            self.device.launch(&random_weights, [blocks, 1, 1], 256, 0, &args);
            at += elements * dtype.bytes();
        }
        self.device.check()?;
        Ok(Matrix { memory, outputs, inner, dtype })
    }

    fn stack(&mut self, memory: &Memory, parts: &[WeightView<'_>]) -> Result<()> {
        let mut at = 0;
        for part in parts {
            self.staging.upload(memory, at, part.bytes)?;
            at += part.bytes.len();
        }
        Ok(())
    }
}
