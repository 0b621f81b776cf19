//! Matrices of e4m3 are made on the device: row-major codes, their scales, and how the activations of each output are
//! rounded. Which formats are held so is decided here; `gemm` and `experts` multiply them.

use std::sync::Arc;

use rayon::prelude::*;

use super::weights::{Fp8Part, Fp8Scales, Matrix, WeightLoader, over};
use crate::compile::elements::{Fp8Scaling, Fp8Tiles};
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::grid::{rounding_threads, small};
use crate::driver::memory::Memory;
use offshoot_backend::quantised::row_of_stack;
use offshoot_backend::{
    CodeFormat, Dtype, MemoryPart, QuantFormat, QuantRow, QuantSource, QuantView, Rounding, RoundingKind, Uniform,
    WeightFormat,
};
use offshoot_core::error::Result;

impl Fp8Scaling {
    /// The scaling of a format that GPUs of compute capability `major` multiply as it is: e4m3, activations rounded to
    /// e4m3, by rows or by 128 inputs of a row, or by a scale that comes with the weights.
    pub fn of(format: WeightFormat, major: u32) -> Option<Self> {
        let WeightFormat::Quantised(QuantFormat { codes: CodeFormat::Fp8, group, zeros: false, rounding }) = format
        else {
            return None;
        };
        let scaling = match (group, rounding) {
            (None, Rounding::Dynamic { to: RoundingKind::Fp8, group: None }) => Fp8Scaling::Rows,
            (None, Rounding::Static { to: RoundingKind::Fp8 }) => Fp8Scaling::Rows,
            (Some(128), Rounding::Dynamic { to: RoundingKind::Fp8, group: Some(128) }) => Fp8Scaling::Blocks,
            (Some(128), Rounding::Static { to: RoundingKind::Fp8 }) => Fp8Scaling::Blocks,
            _ => return None,
        };
        (major == 9).then_some(scaling)
    }

    /// The scaling of experts, whose places are rounded together: by scales that follow from them.
    pub fn of_experts(format: WeightFormat, major: u32) -> Option<Self> {
        match format {
            WeightFormat::Quantised(QuantFormat { rounding: Rounding::Static { .. }, .. }) => None,
            _ => Self::of(format, major),
        }
    }
}

/// Bytes from a row of codes to the next: tensor maps and cuBLASLt take multiples of 16.
pub fn stride(inner: usize) -> usize {
    inner.next_multiple_of(16)
}

/// Bytes of codes that are read before they are uploaded.
const MOST_READ: usize = 32 << 20;

impl WeightLoader {
    /// Stacks matrices of one format, of which `scaling` is. `old`: the matrix in whose memory it is put.
    pub fn fp8_matrix(&mut self, views: &[QuantView<'_>], scaling: Fp8Scaling, old: Option<&Matrix>) -> Result<Matrix> {
        let QuantView { format, cols: inner, .. } = *views.first().expect("a matrix has at least one part");
        let outputs: usize = views.iter().map(|view| view.rows).sum();
        let (stride, groups) = (stride(inner), format.groups(inner));
        let memory = over(&self.device, old, outputs * stride)?;
        let before = old.and_then(|old| old.fp8.as_ref());
        if let Some(drawn) = drawn(views) {
            let bytes = outputs * groups * size_of::<f32>();
            let scales = self.device.alloc_over(MemoryPart::Weights, before.map(|fp8| &fp8.memory), bytes)?;
            self.draw_codes(&memory, &scales, &drawn, scaling)?;
            let fp8 = Fp8Scales { scaling, memory: scales, compact: None, parts: parts(views) };
            let format = WeightFormat::Quantised(format);
            return Ok(Matrix { memory: Arc::new(memory), outputs, inner, format, fp8: Some(fp8) });
        }
        let together = (MOST_READ / stride.max(1)).clamp(1, outputs.max(1));
        let mut read = vec![0u8; together * stride];
        let mut by_output = vec![0.0f32; outputs * groups];
        for first in (0..outputs).step_by(together) {
            let count = together.min(outputs - first);
            let scales = &mut by_output[first * groups..][..count * groups];
            let rows = read.par_chunks_exact_mut(stride).zip(scales.par_chunks_exact_mut(groups));
            rows.enumerate().for_each_init(QuantRow::default, |row, (output, (codes, scales))| {
                let (view, from) = row_of_stack(views, first + output);
                view.read_row(from, row);
                codes[..inner].copy_from_slice(&row.codes);
                scales.copy_from_slice(&row.scales);
            });
            self.staging.upload(&memory, first * stride, &read[..count * stride])?;
        }
        let scales: Vec<f32> = (0..groups)
            .flat_map(|group| (0..outputs).map(move |output| output * groups + group))
            .map(|at| by_output[at])
            .collect();
        let compact = (scaling == Fp8Scaling::Blocks).then(|| compact(&by_output, groups)).flatten();
        let upload = |old: Option<&Memory>, scales: &[f32]| {
            let memory = self.device.alloc_over(MemoryPart::Weights, old, size_of_val(scales))?;
            self.device.upload(&memory, 0, bytemuck::cast_slice(scales))?;
            Ok(memory)
        };
        let old_compact = before.and_then(|fp8| fp8.compact.as_ref());
        let compact = compact.map(|scales| upload(old_compact, &scales)).transpose()?;
        let memory_of_scales = upload(before.map(|fp8| &fp8.memory), &scales)?;
        let fp8 = Fp8Scales { scaling, memory: memory_of_scales, compact, parts: parts(views) };
        self.device.check()?;
        let format = WeightFormat::Quantised(format);
        Ok(Matrix { memory: Arc::new(memory), outputs, inner, format, fp8: Some(fp8) })
    }

    /// Makes the codes and scales of stacked random matrices on the device, bitwise equal to those of `read_row`.
    fn draw_codes(&mut self, to: &Memory, scales: &Memory, drawn: &[DrawnCodes], scaling: Fp8Scaling) -> Result<()> {
        let outputs: usize = drawn.iter().map(|drawn| drawn.rows).sum();
        let mut row = 0;
        for &DrawnCodes { dtype, rows, cols, first_col, inner, pitch, numbers } in drawn {
            let unit = units::rounding_fp8(&units::RANDOM_CODES, dtype, scaling);
            let random_codes = self.device.function(&unit, "random_codes")?;
            let stride = stride(cols);
            let args = Args::new().memory_at(to, row * stride).memory_at(scales, row * size_of::<f32>());
            let args = args.u32(small(cols)).u32(small(first_col)).u32(small(inner)).u32(small(stride));
            let args = args.u32(small(outputs)).u64(pitch as u64);
            let args = args.u64(numbers.stream).f32(numbers.centre).f32(numbers.reach);
            self.device.launch(&random_codes, [small(rows), 1, 1], rounding_threads(inner), 0, &args);
            row += rows;
        }
        self.device.check()
    }
}

/// Rows of random numbers, `pitch` from one to the next: codes of `cols` inputs from `first_col` on, of `inner`.
struct DrawnCodes {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    first_col: usize,
    inner: usize,
    pitch: usize,
    numbers: Uniform,
}

/// What to draw, if all of these are random numbers.
fn drawn(views: &[QuantView<'_>]) -> Option<Vec<DrawnCodes>> {
    let of = |view: &QuantView<'_>| {
        let QuantSource::Random(random) = view.source else { return None };
        assert!(view.order.is_none(), "random numbers have no order of inputs");
        Some(DrawnCodes {
            dtype: random.dtype,
            rows: view.rows,
            cols: view.cols,
            first_col: view.first_col,
            inner: view.source_cols,
            pitch: random.pitch * view.step,
            numbers: random.numbers.from(view.first * random.pitch),
        })
    };
    views.iter().map(of).collect()
}

/// Neighbours that are rounded alike are one part.
fn parts(views: &[QuantView<'_>]) -> Vec<Fp8Part> {
    let mut parts: Vec<Fp8Part> = Vec::new();
    let mut end = 0;
    for view in views {
        end += view.rows;
        match parts.last_mut() {
            Some(last) if last.activations == view.activations => last.end = end,
            _ => parts.push(Fp8Part { end, activations: view.activations }),
        }
    }
    parts
}

/// `[outputs, groups]` scales as one row for each 128 outputs, if all of these have the same; rows are rounded up to 4.
fn compact(scales: &[f32], groups: usize) -> Option<Vec<f32>> {
    let blocks = scales.chunks(Fp8Tiles::PANEL * groups.max(1));
    let mut compact = Vec::new();
    for block in blocks {
        let first = &block[..groups];
        if block.chunks_exact(groups).any(|row| row != first) {
            return None;
        }
        compact.extend_from_slice(first);
        compact.resize(compact.len().next_multiple_of(4), 1.0);
    }
    Some(compact)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(group: Option<u32>, rounding: Rounding) -> WeightFormat {
        WeightFormat::Quantised(QuantFormat { codes: CodeFormat::Fp8, group, zeros: false, rounding })
    }

    #[test]
    fn formats_of_hopper_are_those_that_its_kernels_scale() {
        let to = RoundingKind::Fp8;
        let by = |group| Rounding::Dynamic { to, group };
        assert_eq!(Fp8Scaling::of(format(None, by(None)), 9), Some(Fp8Scaling::Rows));
        assert_eq!(Fp8Scaling::of(format(None, Rounding::Static { to }), 9), Some(Fp8Scaling::Rows));
        assert_eq!(Fp8Scaling::of(format(Some(128), by(Some(128))), 9), Some(Fp8Scaling::Blocks));
        assert_eq!(Fp8Scaling::of(format(Some(128), by(None)), 9), None);
        assert_eq!(Fp8Scaling::of(format(Some(64), by(Some(64))), 9), None);
        assert_eq!(Fp8Scaling::of(format(None, Rounding::Exact), 9), None);
        assert_eq!(Fp8Scaling::of(format(None, by(None)), 8), None);
        assert_eq!(Fp8Scaling::of_experts(format(None, Rounding::Static { to }), 9), None);
        assert_eq!(Fp8Scaling::of_experts(format(Some(128), by(Some(128))), 9), Some(Fp8Scaling::Blocks));
    }

    #[test]
    fn scales_of_whole_blocks_are_written_once() {
        let rows = |rows: &[[f32; 2]]| rows.concat();
        let all: Vec<[f32; 2]> = (0..200).map(|output| if output < 128 { [1.0, 2.0] } else { [3.0, 4.0] }).collect();
        assert_eq!(compact(&rows(&all), 2), Some(vec![1.0, 2.0, 1.0, 1.0, 3.0, 4.0, 1.0, 1.0]));
        let mut other = all;
        other[5] = [1.0, 2.5];
        assert_eq!(compact(&rows(&other), 2), None);
    }
}
