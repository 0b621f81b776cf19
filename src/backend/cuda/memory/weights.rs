//! Weights on the device: matrices in the format and row-major order of their file, and vectors as f32. Their
//! bytes go from the memory map through page-locked halves to the device, or are generated from a seed where they will be
//! used.

use std::sync::Arc;

use rayon::prelude::*;

use super::staging::Staging;
use crate::backend::cuda::compile::elements::Fp8Tiles;
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::args::Args;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::memory::Memory;
use crate::backend::{
    Dtype, MatrixPart, QuantRow, QuantView, RandomWeight, StackShape, Uniform, WeightFormat, WeightView,
};
use crate::error::Result;

/// `[outputs, inner]` elements, row-major.
pub struct Matrix {
    pub memory: Arc<Memory>,
    pub outputs: usize,
    pub inner: usize,
    pub format: WeightFormat,
    /// Those of a quantised matrix, whose `memory` has panels (kernels/fp8/panels.cuh).
    pub scales: Option<RowScales>,
}

/// The scales of a matrix of codes, and of its activations.
pub struct RowScales {
    /// f32 `[outputs]`
    pub memory: Arc<Memory>,
    /// The largest activation that a row's scale is taken from.
    pub most: f32,
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
    device: Device,
    staging: Staging,
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

/// Outputs of a panel, as in kernels/fp8/panels.cuh.
const GROUP_OUTPUTS: usize = 64;
/// Bytes of panels that are packed before they are uploaded.
const MOST_PACKED: usize = 32 << 20;

/// The part that has row `row` of all parts, and which of its rows that is.
fn part_of<'a, 'b>(views: &'b [QuantView<'a>], mut row: usize) -> (&'b QuantView<'a>, usize) {
    for view in views {
        if row < view.rows {
            return (view, row);
        }
        row -= view.rows;
    }
    panic!("row {row} is behind the last part")
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
        Ok(Matrix { memory: Arc::new(memory), outputs: rows, inner: cols, format, scales: None })
    }

    /// Stacks matrices of one format, e4m3 with a scale for each output, into panels.
    pub fn fp8_matrix(&mut self, views: &[QuantView<'_>]) -> Result<Matrix> {
        let QuantView { format, cols, activations, .. } = *views.first().expect("a matrix has at least one part");
        let outputs: usize = views.iter().map(|view| view.rows).sum();
        let (groups, panels) = (outputs.div_ceil(GROUP_OUTPUTS), cols.div_ceil(Fp8Tiles::PANEL));
        let group_bytes = panels * GROUP_OUTPUTS * Fp8Tiles::PANEL;
        let memory = self.device.alloc(groups * group_bytes)?;
        let mut scales = vec![0.0f32; outputs];
        let together = (MOST_PACKED / group_bytes.max(1)).max(1);
        let mut packed = vec![0u8; together.min(groups) * group_bytes];
        for first in (0..groups).step_by(together) {
            let end = groups.min(first + together);
            let packed = &mut packed[..(end - first) * group_bytes];
            packed.fill(0);
            let scales = &mut scales[first * GROUP_OUTPUTS..outputs.min(end * GROUP_OUTPUTS)];
            let groups = packed.par_chunks_exact_mut(group_bytes).zip(scales.par_chunks_mut(GROUP_OUTPUTS));
            groups.enumerate().for_each_init(QuantRow::default, |row, (group, (packed, scales))| {
                for (within, scale) in scales.iter_mut().enumerate() {
                    let (view, from) = part_of(views, (first + group) * GROUP_OUTPUTS + within);
                    view.read_row(from, row);
                    *scale = row.scales[0];
                    for (chunk, codes) in row.codes.chunks(16).enumerate() {
                        let (panel, chunk) = (chunk / 8, chunk % 8);
                        let at = (panel * GROUP_OUTPUTS + within) * Fp8Tiles::PANEL + (chunk ^ (within % 8)) * 16;
                        packed[at..at + codes.len()].copy_from_slice(codes);
                    }
                }
            });
            self.staging.upload(&memory, first * group_bytes, packed)?;
        }
        let scale_memory = self.device.alloc(size_of_val(scales.as_slice()))?;
        self.device.upload(&scale_memory, 0, bytemuck::cast_slice(&scales))?;
        self.device.check()?;
        let most = activations.most.unwrap_or(f32::INFINITY);
        let scales = Some(RowScales { memory: Arc::new(scale_memory), most });
        let format = WeightFormat::Quantised(format);
        Ok(Matrix { memory: Arc::new(memory), outputs, inner: cols, format, scales })
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
