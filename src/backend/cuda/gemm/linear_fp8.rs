//! Linear layers with e4m3 weights on Hopper: activations are rounded row by row (kernels/fp8/round_rows.cu), then multiplied
//! (kernels/fp8/linear_fp8.cu). The rounded rows lie in memory of their own, which all products use in turn.

use std::collections::HashMap;

use crate::backend::cuda::compile::elements::Fp8Tiles;
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::args::Args;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::cuda::driver::grid::small;
use crate::backend::cuda::driver::memory::Memory;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::weights::{Matrix, Vector};
use crate::backend::{Dtype, WeightFormat};
use crate::error::Result;

/// Threads of `round_rows`, as in kernels/reduce.cuh.
const ROUND_THREADS: u32 = 256;

/// The kernels, and the rounded activations of the product in progress.
pub struct LinearFp8 {
    device: Device,
    round_rows: HashMap<Dtype, Function>,
    linear_fp8: HashMap<(Dtype, Fp8Tiles), Function>,
    /// Panels (kernels/fp8/panels.cuh), and a scale for each row; absent until a product has rows.
    rounded: Option<RoundedRows>,
    /// What there is room for.
    rows: usize,
    width: usize,
}

struct RoundedRows {
    codes: Memory,
    scales: Memory,
}

impl LinearFp8 {
    /// Whether a device of compute capability `major` multiplies matrices of this format here: e4m3 with a scale for each
    /// output, by activations that are rounded to e4m3 row by row.
    pub fn takes(format: WeightFormat, major: u32) -> bool {
        major == 9 && matches!(format, WeightFormat::Quantised(format) if format.is_fp8_by_rows())
    }

    /// Compiles the kernels, or takes them from the cache.
    pub fn load(device: &Device) -> Result<Self> {
        device.prepare(&units::fp8())?;
        let (mut round_rows, mut linear_fp8) = (HashMap::new(), HashMap::new());
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            round_rows.insert(dtype, device.function(&units::round_rows(dtype), "round_rows")?);
            for tiles in Fp8Tiles::ALL {
                linear_fp8.insert((dtype, tiles), device.function(&units::linear_fp8(dtype, tiles), "linear_fp8")?);
            }
        }
        Ok(Self { device: device.clone(), round_rows, linear_fp8, rounded: None, rows: 0, width: 0 })
    }

    /// Makes room for as many rows, and for matrices of as many inputs, as any call named. Returns whether an address has
    /// changed, which a captured graph does not survive.
    pub fn reserve(&mut self, rows: usize, width: usize) -> Result<bool> {
        if rows <= self.rows && width <= self.width {
            return Ok(false);
        }
        (self.rows, self.width) = (self.rows.max(rows), self.width.max(width));
        let codes = self.rows.next_multiple_of(8) * self.width.next_multiple_of(Fp8Tiles::PANEL);
        self.rounded = None;
        if codes == 0 {
            return Ok(false);
        }
        let scales = self.rows * size_of::<f32>();
        self.rounded = Some(RoundedRows { codes: self.device.alloc(codes)?, scales: self.device.alloc(scales)? });
        Ok(true)
    }

    /// `out[r] = w x[r] (+ bias)`, plus the old `out[r]` if `accumulates`. An error is kept for the device's next check.
    /// Panics if `reserve` has not made room for `x`.
    pub fn linear(&self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, accumulates: bool) {
        assert_eq!((out.rows, out.width, x.width), (x.rows, w.outputs, w.inner), "linear: shapes");
        assert!(bias.is_none_or(|bias| bias.len == w.outputs), "linear: length of the bias");
        if out.rows == 0 {
            return;
        }
        let rounded = self.rounded.as_ref().expect("`resize` of the operand has made room for its rounded rows");
        let scales = w.scales.as_ref().expect("a matrix of codes comes with its scales");
        let (rows, outputs, inner) = (out.rows, w.outputs, w.inner);
        assert!(rounded.codes.bytes() >= rows.next_multiple_of(8) * inner.next_multiple_of(Fp8Tiles::PANEL));

        let args = Args::new().memory(&rounded.codes).memory(&rounded.scales).memory(x.memory());
        let args = args.u32(small(inner)).f32(scales.most);
        self.device.launch(&self.round_rows[&x.element], [small(rows), 1, 1], ROUND_THREADS, 0, &args);

        let blocks = self.device.facts().multiprocessors;
        let tiles = Fp8Tiles::of(rows, outputs, inner, blocks as usize);
        let bias_memory = bias.map_or(&*scales.memory, |bias| &bias.memory);
        let args = Args::new().memory(out.memory()).memory(&w.memory).memory(&scales.memory);
        let args = args.memory(&rounded.codes).memory(&rounded.scales).memory(bias_memory);
        let args = args.u32(small(rows)).u32(small(outputs)).u32(small(inner));
        let args = args.u32(bias.is_some().into()).u32(accumulates.into());
        let all = rows.div_ceil(tiles.columns) * outputs.div_ceil(tiles.outputs());
        let grid = [small(all).min(blocks), 1, 1];
        self.device.launch(&self.linear_fp8[&(out.element, tiles)], grid, tiles.threads(), tiles.shared(), &args);
    }
}
