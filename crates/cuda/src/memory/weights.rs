//! Weights on the device: matrices in the format and row-major order of their file, and vectors as f32. Their
//! bytes go from the memory map through page-locked halves to the device, or are generated from a seed where they will
//! be used. `fp8` makes matrices of e4m3.

use std::sync::Arc;

use super::staging::Staging;
use crate::compile::elements::Fp8Scaling;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::memory::Memory;
use offshoot_backend::quantised::ActivationScale;
use offshoot_backend::{Dtype, MatrixPart, RandomWeight, StackShape, Uniform, WeightFormat, WeightView};
use offshoot_core::error::Result;

/// `[outputs, inner]` elements, row-major.
pub struct Matrix {
    pub memory: Arc<Memory>,
    pub outputs: usize,
    pub inner: usize,
    pub format: WeightFormat,
    /// The scales of a matrix of e4m3, whose rows of codes are a multiple of 16 bytes apart.
    pub fp8: Option<Fp8Scales>,
}

/// What a matrix of e4m3 codes has beside them.
pub struct Fp8Scales {
    pub scaling: Fp8Scaling,
    /// f32 `[outputs]`, or by blocks `[ceil(inner / 128), outputs]`.
    pub memory: Memory,
    /// Scales by blocks, where all of each 128 outputs have the same: f32 `[ceil(outputs / 128)]` rows of `ceil(inner /
    /// 128)`, rounded up to 4. So cuBLASLt reads them.
    pub compact: Option<Memory>,
    /// In the order of the outputs.
    pub parts: Vec<Fp8Part>,
}

impl Fp8Scales {
    /// How activations are rounded, if they are rounded alike for all outputs.
    pub fn rounding_of_all(&self) -> Option<(Fp8Scaling, ActivationScale)> {
        let first = self.parts.first()?;
        let alike = self.parts.iter().all(|part| part.activations == first.activations);
        alike.then_some((self.scaling, first.activations))
    }
}

/// Neighbouring outputs whose activations are rounded alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp8Part {
    /// The output behind the last.
    pub end: usize,
    pub activations: ActivationScale,
}

/// f32 elements, and beside them those of the file where it has fewer bytes: the library adds a bias in the dtype of
/// its result.
pub struct Vector {
    pub memory: Memory,
    pub len: usize,
    as_given: Option<(Dtype, Memory)>,
}

/// Uploads weights through page-locked memory, which later serves swapped pages.
pub struct WeightLoader {
    pub(super) device: Device,
    pub(super) staging: Staging,
}

impl Matrix {
    /// The dtype of its elements.
    pub fn element(&self) -> Dtype {
        self.format.dense().expect("the device multiplies dense matrices")
    }
}

impl Vector {
    /// The elements in `dtype`, if they are stored in it.
    pub fn as_dtype(&self, dtype: Dtype) -> Option<&Memory> {
        match &self.as_given {
            _ if dtype == Dtype::F32 => Some(&self.memory),
            Some((given, memory)) if *given == dtype => Some(memory),
            _ => None,
        }
    }
}

impl WeightLoader {
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { device: device.clone(), staging: Staging::new(device)? })
    }

    /// For other large copies.
    pub fn staging(&mut self) -> &mut Staging {
        &mut self.staging
    }

    /// Stacks `parts` (each `[out_i, in]`, equal `in` and dtype) into one matrix. Random parts are generated on the
    /// device, each from its own numbers.
    pub fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Matrix> {
        let StackShape { rows, cols, bytes, dense } = StackShape::of(parts);
        let format = WeightFormat::Dense(dense.expect("the device multiplies dense parts of one dtype"));
        let memory = self.device.alloc(bytes)?;
        let mut at = 0;
        for part in parts {
            match part {
                MatrixPart::Dense(view) => self.staging.upload(&memory, at, view.bytes)?,
                MatrixPart::Random(random) => self.draw(&memory, at, random)?,
                MatrixPart::Quantised(_) | MatrixPart::Blocks(_) => unreachable!("a quantised part is not dense"),
            }
            at += format.bytes(part.rows(), cols);
        }
        self.device.check()?;
        Ok(Matrix { memory: Arc::new(memory), outputs: rows, inner: cols, format, fp8: None })
    }

    /// Concatenates `parts`.
    pub fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Vector> {
        let elements: Vec<f32> =
            parts.iter().flat_map(|part| (0..part.rows * part.cols).map(|i| part.get(i))).collect();
        let memory = self.device.uploaded(&elements)?;
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

    /// Enqueues the numbers of `random` from byte `at` on; an error is kept for the device's next check.
    fn draw(&self, memory: &Memory, at: usize, random: &RandomWeight) -> Result<()> {
        let RandomWeight { dtype, rows, cols, numbers: Uniform { stream, centre, reach } } = *random;
        let random_weights = self.device.function(&units::typed(&units::RANDOM_WEIGHTS, dtype), "random_weights")?;
        // As many blocks of 256 threads as are resident at once.
        let blocks = self.device.facts().multiprocessors * 8;
        let args = Args::new().memory_at(memory, at).u64((rows * cols) as u64).u64(stream).f32(centre).f32(reach);
        self.device.launch(&random_weights, [blocks, 1, 1], 256, 0, &args);
        Ok(())
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
