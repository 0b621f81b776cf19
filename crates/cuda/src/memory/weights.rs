//! Weights on the device: matrices in the format and row-major order of their file, and vectors as f32. Their bytes go
//! from the memory map through page-locked halves to the device, are copied from where they lie on a device, or are
//! generated from a seed where they will be used. `fp8` makes matrices of e4m3.

use std::sync::Arc;

use super::staging::Staging;
use crate::compile::elements::Fp8Scaling;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use offshoot_backend::quantised::ActivationScale;
use offshoot_backend::{Dtype, MatrixPart, MemoryPart, RandomWeight, StackShape, Uniform, WeightFormat, WeightView};
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
    /// Whether both have the same memory and rounding of activations, so that what was captured with one reads the
    /// other.
    pub fn is_over(&self, old: &Self) -> bool {
        let of = |fp8: &Fp8Scales| (fp8.memory.address(), fp8.compact.as_ref().map(Memory::address), fp8.parts.clone());
        self.memory.address() == old.memory.address()
            && self.format == old.format
            && self.fp8.as_ref().map(of) == old.fp8.as_ref().map(of)
    }

    /// The dtype of its elements.
    pub fn element(&self) -> Dtype {
        self.format.dense().expect("the device multiplies dense matrices")
    }
}

impl Vector {
    /// Whether both have the same memory, so that what was captured with one reads the other.
    pub fn is_over(&self, old: &Self) -> bool {
        let given = |vector: &Self| vector.as_given.as_ref().map(|(dtype, memory)| (*dtype, memory.address()));
        self.memory.address() == old.memory.address() && given(self) == given(old)
    }

    /// The elements in `dtype`, if they are stored in it.
    pub fn as_dtype(&self, dtype: Dtype) -> Option<&Memory> {
        match &self.as_given {
            _ if dtype == Dtype::F32 => Some(&self.memory),
            Some((given, memory)) if *given == dtype => Some(memory),
            _ => None,
        }
    }
}

/// The memory of a matrix: that of `old`, where it is as large.
pub fn over(device: &Device, old: Option<&Matrix>, bytes: usize) -> Result<Memory> {
    device.alloc_over(MemoryPart::Weights, old.map(|old| &*old.memory), bytes)
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
    /// device, each from its own numbers. `old`: the matrix in whose memory it is put, where it is as large.
    pub fn matrix(&mut self, parts: &[MatrixPart<'_>], old: Option<&Matrix>) -> Result<Matrix> {
        let StackShape { rows, cols, bytes, dense } = StackShape::of(parts);
        let format = WeightFormat::Dense(dense.expect("the device multiplies dense parts of one dtype"));
        let memory = over(&self.device, old, bytes)?;
        let mut at = 0;
        for part in parts {
            match part {
                MatrixPart::Dense(view) => self.staging.upload(&memory, at, view.bytes)?,
                MatrixPart::Device(view) => {
                    self.device.copy_from_address(&memory, at, view.bytes.address(), view.bytes.len())?;
                }
                MatrixPart::Random(random) => self.draw(&memory, at, random)?,
                MatrixPart::Quantised(_) | MatrixPart::Blocks(_) => unreachable!("a quantised part is not dense"),
            }
            at += format.bytes(part.rows(), cols);
        }
        self.device.check()?;
        if parts.iter().any(|part| matches!(part, MatrixPart::Device(_))) {
            // What they lie in may be given back.
            self.device.synchronise()?;
        }
        Ok(Matrix { memory: Arc::new(memory), outputs: rows, inner: cols, format, fp8: None })
    }

    /// Concatenates `parts`. `old`: the vector in whose memory it is put, and in whose dtypes.
    pub fn vector(&mut self, parts: &[WeightView<'_>], old: Option<&Vector>) -> Result<Vector> {
        let elements: Vec<f32> =
            parts.iter().flat_map(|part| (0..part.rows * part.cols).map(|i| part.get(i))).collect();
        let bytes = elements.len() * size_of::<f32>();
        let memory = self.device.alloc_over(MemoryPart::Weights, old.map(|old| &old.memory), bytes)?;
        self.device.upload(&memory, 0, bytemuck::cast_slice(&elements))?;
        let dtype = match old {
            Some(old) => old.as_given.as_ref().map(|(dtype, _)| *dtype),
            None => Some(parts[0].dtype).filter(|dtype| parts.iter().all(|part| part.dtype == *dtype)),
        };
        let as_given = match dtype.filter(|dtype| *dtype != Dtype::F32) {
            None => None,
            Some(dtype) => {
                let given = old.and_then(|old| old.as_given.as_ref()).map(|(_, memory)| memory);
                let given = self.device.alloc_over(MemoryPart::Weights, given, elements.len() * dtype.bytes())?;
                if parts.iter().all(|part| part.dtype == dtype) {
                    self.stack(&given, parts)?;
                } else {
                    self.staging.upload(&given, 0, &dtype.encode(&elements))?;
                }
                Some((dtype, given))
            }
        };
        Ok(Vector { memory, len: elements.len(), as_given })
    }

    /// Enqueues the numbers of `random` from byte `at` on; an error is kept for the device's next check.
    fn draw(&self, memory: &Memory, at: usize, random: &RandomWeight) -> Result<()> {
        let RandomWeight { dtype, pitch, numbers: Uniform { stream, centre, reach }, .. } = *random;
        // Rows that follow each other are one.
        let (rows, cols) = if pitch == random.cols { (1, random.rows * pitch) } else { (random.rows, random.cols) };
        let random_weights = self.device.function(&units::typed(&units::RANDOM_WEIGHTS, dtype), "random_weights")?;
        // At most as many blocks of 256 threads as are resident at once.
        let blocks = self.device.facts().multiprocessors * 8;
        let across = u32::try_from(cols.div_ceil(256)).map_or(blocks, |across| across.clamp(1, blocks));
        let args = Args::new().memory_at(memory, at).u32(small(rows)).u64(cols as u64).u64(pitch as u64);
        let args = args.u64(stream).f32(centre).f32(reach);
        self.device.launch(&random_weights, [across, small(rows).clamp(1, blocks / across), 1], 256, 0, &args);
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
