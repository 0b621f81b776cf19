//! Products of e4m3 on the CPU, instruction by instruction (`emulator`): rows are rounded as the CPU's definition
//! rounds them, and every result is the product of codes and scales, whatever the tile it lies in.

use crate::emulator;
use crate::full::some_or_full;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use offshoot_backend::quantised::{ActivationScale, QuantRow, e4m3_code, e4m3_value, round_row};
use offshoot_backend::{
    CodeFormat, Dtype, QuantFormat, QuantSource, QuantView, RandomWeight, Rounding, RoundingKind, Uniform, WeightView,
};
use offshoot_core::dice::Dice;
use offshoot_cuda::compile::elements::{Fp8ExpertKernel, Fp8ExpertTiles, Fp8Scaling, Fp8Tiles};
use offshoot_cuda::compile::unit::Unit;
use offshoot_cuda::compile::units;
use offshoot_cuda::driver::grid::rounding_threads;

const AT_ONCE: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
const LATE: Schedule = Schedule { copies: When::Late, products: When::Late, seed: 3, held: None };

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Memory as kernels want it, aligned to 16 bytes.
fn memory(bytes: &[u8]) -> Vec<u128> {
    let mut memory = vec![0u128; bytes.len().div_ceil(16)];
    bytemuck::cast_slice_mut::<u128, u8>(&mut memory)[..bytes.len()].copy_from_slice(bytes);
    memory
}

/// Rows of `inner` codes whose distance is a multiple of 16, filled up with NaN, which no result may contain.
fn rows_of_codes(codes: &[u8], inner: usize) -> Vec<u128> {
    let stride = inner.next_multiple_of(16);
    let mut padded = vec![0x7fu8; codes.len() / inner * stride];
    for (to, from) in padded.chunks_exact_mut(stride).zip(codes.chunks_exact(inner)) {
        to[..inner].copy_from_slice(from);
    }
    memory(&padded)
}

/// A tensor map as the emulator reads it.
#[repr(C, align(64))]
struct Map([u64; 16]);

impl Map {
    /// `rows` rows of `inner` codes, in swizzled boxes of `box_rows` rows of 128.
    fn codes(memory: &[u128], rows: usize, inner: usize, box_rows: usize) -> Self {
        let (address, apart) = (memory.as_ptr() as usize, inner.next_multiple_of(16));
        Self::of([address, inner, rows, apart, 128, box_rows, 1, 1])
    }

    /// `[blocks, apart]` scales, of which `rows` are there, in boxes of `box_rows`.
    fn scales(memory: &[u128], rows: usize, apart: usize, blocks: usize, box_rows: usize) -> Self {
        Self::of([memory.as_ptr() as usize, rows, blocks, apart * 4, box_rows, 1, 4, 0])
    }

    fn of(words: [usize; 8]) -> Self {
        let mut all = [0; 16];
        all[..8].copy_from_slice(&words.map(|word| word as u64));
        Self(all)
    }
}

/// What is rounded, and how.
struct Rounded<'a> {
    dtype: Dtype,
    x: &'a [f32],
    inner: usize,
    scaling: Fp8Scaling,
    rows: Option<&'a [u32]>,
    fixed: bool,
    bound: f32,
}

impl Rounded<'_> {
    /// Codes, row-major without padding, and scales `[blocks, rows]`, by the kernel.
    fn by_kernel(&self) -> Option<(Vec<u8>, Vec<f32>)> {
        let &Self { dtype, x, inner, scaling, rows: chosen, .. } = self;
        let kernel = Emulated::compile(&units::rounding_fp8(&units::ROUND_ROWS, dtype, scaling), "round_rows")?;
        let rows = chosen.map_or(x.len() / inner, <[u32]>::len);
        let blocks = if scaling == Fp8Scaling::Rows { 1 } else { inner.div_ceil(128) };
        let (stride, mut apart) = (inner.next_multiple_of(16), rows.next_multiple_of(4));
        let (mut codes, given) = (memory(&vec![0; rows * stride]), memory(&dtype.encode(x)));
        let mut scales = vec![0.0f32; blocks * apart];
        let (mut to, mut scales_at, mut from) = (codes.as_mut_ptr(), scales.as_mut_ptr(), given.as_ptr());
        let mut chosen_at = chosen.unwrap_or(&[]).as_ptr();
        let (mut gathers, mut inner_given) = (u32::from(chosen.is_some()), inner as u32);
        let (mut stride_given, mut apart_given) = (stride as u32, apart as u32);
        let (mut fixed, mut bound) = (u32::from(self.fixed), self.bound);
        let args = [
            at(&mut to),
            at(&mut scales_at),
            at(&mut from),
            at(&mut chosen_at),
            at(&mut gathers),
            at(&mut inner_given),
            at(&mut stride_given),
            at(&mut apart_given),
            at(&mut fixed),
            at(&mut bound),
        ];
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { kernel.launch(rows as u32, rounding_threads(inner), 0, AT_ONCE, &args) };
        let codes = bytemuck::cast_slice::<u128, u8>(&codes).chunks_exact(stride).take(rows);
        let codes = codes.flat_map(|row| row[..inner].to_vec()).collect();
        apart = apart.max(1);
        let scales = scales.chunks_exact(apart).flat_map(|block| block[..rows].to_vec()).collect();
        Some((codes, scales))
    }

    /// Compares with the CPU's definition.
    fn hold(&self) -> Option<()> {
        let (codes, scales) = self.by_kernel()?;
        let &Self { dtype, x, inner, scaling, rows: chosen, fixed, bound } = self;
        let rows = codes.len() / inner;
        let group = (scaling == Fp8Scaling::Blocks).then_some(128);
        let to = RoundingKind::Fp8;
        let (rounding, scale) = match fixed {
            true => (Rounding::Static { to }, ActivationScale { fixed: Some(bound), most: None }),
            false => (Rounding::Dynamic { to, group }, ActivationScale { fixed: None, most: Some(bound) }),
        };
        for row in 0..rows {
            let from = chosen.map_or(row, |chosen| chosen[row] as usize);
            let mut expected = x[from * inner..][..inner].to_vec();
            round_row(&mut expected, rounding, scale);
            for (k, expected) in expected.iter().enumerate() {
                let scale = scales[if group.is_some() { k / 128 * rows + row } else { row }];
                let found = e4m3_value(codes[row * inner + k]) * scale;
                assert_eq!(found, *expected, "{dtype}, {scaling:?}, row {row}, input {k}");
            }
        }
        Some(())
    }
}

#[test]
fn rows_are_rounded_as_on_the_cpu() {
    let mut dice = Dice::new(7);
    let shapes = [(Dtype::Bf16, 9, 264), (Dtype::F16, 3, 131), (Dtype::F32, 17, 128), (Dtype::Bf16, 3, 2832)];
    for (dtype, rows, inner) in shapes {
        let mut x: Vec<f32> = (0..rows * inner).map(|_| dtype.round(dice.number() * 50.0)).collect();
        x[..inner].fill(0.0);
        let chosen = [2u32, 0, 2, 1, 1];
        for scaling in Fp8Scaling::ALL {
            for (chosen, fixed, bound) in [
                (None, false, f32::INFINITY),
                (None, false, 20.0),
                (None, true, 0.07),
                (Some(&chosen[..]), false, f32::INFINITY),
            ] {
                let rounded = Rounded { dtype, x: &x, inner, scaling, rows: chosen, fixed, bound };
                if rounded.hold().is_none() {
                    return;
                }
            }
        }
    }
    let mut x = vec![1.0; 64];
    x[40] = f32::NAN;
    for scaling in Fp8Scaling::ALL {
        let rounded =
            Rounded { dtype: Dtype::F32, x: &x, inner: 64, scaling, rows: None, fixed: false, bound: f32::INFINITY };
        let Some((_, scales)) = rounded.by_kernel() else { return };
        assert!(scales[0].is_nan(), "what is no number stays none");
    }
}

#[test]
fn codes_of_random_numbers_are_those_of_the_cpu() {
    // (outputs, inputs), every how many outputs, and the columns of them that are made.
    for (dtype, [outputs, inner], step, columns) in
        [(Dtype::Bf16, [12, 300], 3, 0..300), (Dtype::F32, [3, 131], 1, 0..131), (Dtype::F16, [5, 512], 1, 256..384)]
    {
        for scaling in Fp8Scaling::ALL {
            let numbers = Uniform { stream: 77, centre: 0.0, reach: 0.3 };
            let random = RandomWeight::of(dtype, outputs, inner, numbers);
            let group = (scaling == Fp8Scaling::Blocks).then_some(128);
            let rounding = Rounding::Dynamic { to: RoundingKind::Fp8, group };
            let format = QuantFormat { codes: CodeFormat::Fp8, group, zeros: false, rounding };
            let all = QuantView::of(format, outputs, inner, QuantSource::Random(random));
            let (rows, cols) = (outputs / step, columns.len());
            let view = QuantView { first: step - 1, step, rows, cols, first_col: columns.start, ..all };

            let unit = units::rounding_fp8(&units::RANDOM_CODES, dtype, scaling);
            let Some(kernel) = Emulated::compile(&unit, "random_codes") else { return };
            let (stride, blocks) = (cols.next_multiple_of(16), format.groups(cols));
            let (mut codes, mut scales) = (memory(&vec![9; rows * stride]), vec![0.0f32; blocks * rows]);
            let (mut to, mut scales_at) = (codes.as_mut_ptr(), scales.as_mut_ptr());
            let mut shape = [cols, columns.start, inner, stride, rows].map(|n| n as u32);
            let (mut pitch, mut stream) = ((inner * step) as u64, numbers.from((step - 1) * inner).stream);
            let (mut centre, mut reach) = (numbers.centre, numbers.reach);
            let mut args = vec![at(&mut to), at(&mut scales_at)];
            args.extend(shape.iter_mut().map(at));
            args.extend([at(&mut pitch), at(&mut stream), at(&mut centre), at(&mut reach)]);
            // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
            unsafe { kernel.launch(rows as u32, rounding_threads(inner), 0, AT_ONCE, &args) };

            let mut expected = QuantRow::default();
            let found = bytemuck::cast_slice::<u128, u8>(&codes).chunks_exact(stride);
            for (row, found) in found.take(rows).enumerate() {
                view.read_row(row, &mut expected);
                assert_eq!(found[..cols], expected.codes, "{dtype}, {scaling:?}, row {row}");
                assert!(found[cols..].iter().all(|&code| code == 9), "what is behind a row is left alone");
                let found: Vec<f32> = (0..blocks).map(|block| scales[block * rows + row]).collect();
                assert_eq!(found, expected.scales, "{dtype}, {scaling:?}, row {row}");
            }
        }
    }
}

#[test]
fn rounded_rows_are_gathered_to_the_places_that_have_them() {
    let mut dice = Dice::new(11);
    // Chunks of a row that a warp has at once, fewer, and more.
    for (inner, blocks) in [(2048usize, 1), (48, 1), (2832, 23)] {
        let (rows, list) = (5usize, [4u32, 0, 4, 1, 2, 2, 0]);
        let Some(kernel) = Emulated::compile(&Unit::new(&units::GATHER_ROUNDED), "gather_rounded") else { return };
        let codes: Vec<u8> = (0..rows * inner).map(|_| dice.within(0, 255) as u8).collect();
        let (apart, to_apart) = (rows.next_multiple_of(4), list.len().next_multiple_of(4));
        let scales = dice.numbers(blocks * apart);
        let (given, mut to) = (memory(&codes), memory(&vec![0; list.len() * inner]));
        let mut to_scales = vec![9.0f32; blocks * to_apart];
        let (mut to_at, mut to_scales_at) = (to.as_mut_ptr(), to_scales.as_mut_ptr());
        let (mut codes_at, mut scales_at, mut list_at) = (given.as_ptr(), scales.as_ptr(), list.as_ptr());
        let mut shape = [list.len(), inner, blocks, to_apart, apart].map(|n| n as u32);
        let mut args = vec![at(&mut to_at), at(&mut to_scales_at), at(&mut codes_at), at(&mut scales_at)];
        args.push(at(&mut list_at));
        args.extend(shape.iter_mut().map(at));
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { kernel.launch(list.len().div_ceil(4) as u32, 128, 0, AT_ONCE, &args) };
        let found = &bytemuck::cast_slice::<u128, u8>(&to)[..list.len() * inner];
        for (place, (found, &row)) in found.chunks_exact(inner).zip(&list).enumerate() {
            let row = row as usize;
            assert_eq!(found, &codes[row * inner..][..inner], "{inner} codes of place {place}");
            for block in 0..blocks {
                let scale = to_scales[block * to_apart + place];
                assert_eq!(scale, scales[block * apart + row], "{inner}: scale {block} of place {place}");
            }
        }
        let spared = (0..blocks).flat_map(|block| &to_scales[block * to_apart + list.len()..(block + 1) * to_apart]);
        assert!(spared.into_iter().all(|&scale| scale == 9.0), "{inner}: what is behind the places is left alone");
    }
}

/// A norm or a gate that rounds its results, and stores them if it keeps them: the stored rows, codes and scales.
fn fused(
    scaling: Fp8Scaling,
    gate: bool,
    keeps: bool,
    x: &[f32],
    rows: usize,
    width: usize,
) -> Option<(Vec<f32>, Vec<u8>, Vec<f32>)> {
    let dtype = Dtype::Bf16;
    let (source, name) = match gate {
        true => (&units::GATED_SILU_FP8, "gated_silu_fp8"),
        false => (&units::RMS_NORM_FP8, "rms_norm_fp8"),
    };
    let kernel = Emulated::compile(&units::rounding_fp8(source, dtype, scaling), name)?;
    let (stride, mut apart) = (width.next_multiple_of(16) as u32, rows.next_multiple_of(4) as u32);
    let blocks = if scaling == Fp8Scaling::Rows { 1 } else { width.div_ceil(128) };
    let x_given = memory(&if gate { dtype.encode(x) } else { Dtype::F32.encode(x) });
    let weight = memory(bytemuck::cast_slice(&vec![0.5f32; width]));
    let mut stored = memory(&vec![0; rows * width * dtype.bytes()]);
    let mut codes = memory(&vec![0; rows * stride as usize]);
    let mut scales = vec![0.0f32; blocks * apart as usize];
    let (mut out, mut to, mut scales_at) = (stored.as_mut_ptr(), codes.as_mut_ptr(), scales.as_mut_ptr());
    let (mut x_at, mut weight_at) = (x_given.as_ptr(), weight.as_ptr());
    let (mut width_given, mut eps, mut stride_given) = (width as u32, 1e-6f32, stride);
    let (mut keeps, mut fixed, mut bound) = (u32::from(keeps), 0u32, f32::INFINITY);
    let mut args = vec![at(&mut out), at(&mut to), at(&mut scales_at), at(&mut x_at)];
    if !gate {
        args.push(at(&mut weight_at));
    }
    args.push(at(&mut width_given));
    if !gate {
        args.push(at(&mut eps));
    }
    args.extend([at(&mut keeps), at(&mut stride_given), at(&mut apart), at(&mut fixed), at(&mut bound)]);
    // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
    unsafe { kernel.launch(rows as u32, if gate { rounding_threads(width) } else { 256 }, width * 4, AT_ONCE, &args) };
    let bytes = &bytemuck::cast_slice::<u128, u8>(&stored)[..rows * width * dtype.bytes()];
    let read = WeightView { dtype, rows, cols: width, bytes };
    let codes = bytemuck::cast_slice::<u128, u8>(&codes).chunks_exact(stride as usize).take(rows);
    let codes = codes.flat_map(|row| row[..width].to_vec()).collect();
    let scales = scales.chunks_exact(apart as usize).flat_map(|block| block[..rows].to_vec()).collect();
    Some(((0..rows * width).map(|i| read.get(i)).collect(), codes, scales))
}

#[test]
fn norms_and_gates_round_the_rows_that_they_store() {
    let mut dice = Dice::new(5);
    for (scaling, gate, rows, width) in [
        (Fp8Scaling::Rows, false, 3, 264),
        (Fp8Scaling::Blocks, false, 2, 131),
        (Fp8Scaling::Rows, true, 2, 131),
        (Fp8Scaling::Blocks, true, 3, 264),
        // Longer than what threads hold, which is made again.
        (Fp8Scaling::Rows, false, 1, 9000),
        (Fp8Scaling::Rows, true, 1, 17_000),
    ] {
        let x: Vec<f32> =
            (0..rows * width * (1 + usize::from(gate))).map(|_| Dtype::Bf16.round(dice.number() * 3.0)).collect();
        let Some((stored, codes, scales)) = fused(scaling, gate, true, &x, rows, width) else { return };
        let unstored = fused(scaling, gate, false, &x, rows, width);
        assert_eq!(unstored, Some((vec![0.0; rows * width], codes.clone(), scales.clone())), "rounded, not stored");
        for (row, stored) in stored.chunks_exact(width).enumerate() {
            for (i, &found) in stored.iter().enumerate() {
                let expected = match gate {
                    true => {
                        let (g, u) = (x[row * 2 * width + i], x[row * 2 * width + width + i]);
                        g / (1.0 + (-g).exp()) * u
                    }
                    false => {
                        let x = &x[row * width..][..width];
                        let mean = x.iter().map(|x| x * x).sum::<f32>() / width as f32;
                        x[i] / (mean + 1e-6).sqrt() * 0.5
                    }
                };
                // One rounding to bf16, and sums and powers in f32.
                assert!(
                    (found - expected).abs() <= expected.abs() * 0.005 + 1e-6,
                    "row {row}, {i}: {found}, {expected}"
                );
            }
            let mut rounded = stored.to_vec();
            let group = (scaling == Fp8Scaling::Blocks).then_some(128);
            round_row(&mut rounded, Rounding::Dynamic { to: RoundingKind::Fp8, group }, ActivationScale::default());
            for (k, expected) in rounded.into_iter().enumerate() {
                let scale = scales[if group.is_some() { k / 128 * rows + row } else { row }];
                assert_eq!(e4m3_value(codes[row * width + k]) * scale, expected, "{scaling:?}, row {row}, {k}");
            }
        }
    }
}

/// The kernel of a product, by how it is cut into tiles.
#[derive(Clone, Copy, Debug)]
enum Tiles {
    Layer(Fp8Tiles),
    Experts(Fp8ExpertTiles),
}

/// The row of gates, and behind them as many ups, that row `row` of eight and eight in turn holds.
fn alternate_row(row: usize, rows: usize) -> usize {
    row / 16 * 8 + row % 8 + row / 8 % 2 * (rows / 2)
}

/// Products of one matrix, or of those of experts.
#[derive(Clone)]
struct Layer {
    out: Dtype,
    outputs: usize,
    inner: usize,
    rows: usize,
    scaling: Fp8Scaling,
    biased: bool,
    accumulates: bool,
    /// Whether experts' outputs are gates and ups, which are stored as what they make.
    gates: bool,
    /// The outputs that are computed; others keep what was there.
    range: std::ops::Range<usize>,
    /// The first place of each expert, and the number of places; empty: one matrix.
    firsts: Vec<u32>,
}

impl Layer {
    fn of(out: Dtype, outputs: usize, inner: usize, rows: usize) -> Self {
        let (scaling, range) = (Fp8Scaling::Rows, 0..outputs);
        Self {
            out,
            outputs,
            inner,
            rows,
            scaling,
            biased: false,
            accumulates: false,
            gates: false,
            range,
            firsts: Vec::new(),
        }
    }

    fn experts(&self) -> usize {
        self.firsts.len().saturating_sub(1).max(1)
    }

    /// The expert of a row.
    fn expert_of(&self, row: usize) -> usize {
        self.firsts.iter().skip(1).filter(|&&first| first as usize <= row).count()
    }

    /// Runs the layer, compares each result with the sum in f64, and returns them.
    fn hold(&self, tiles: Tiles, how: Schedule) -> Option<Vec<f32>> {
        let &Self { out, outputs, inner, rows, scaling, biased, accumulates, gates, .. } = self;
        let blocks = if scaling == Fp8Scaling::Rows { 1 } else { inner.div_ceil(128) };
        let (all, apart) = (self.experts() * outputs, rows.next_multiple_of(4));
        let width = if gates { outputs / 2 } else { outputs };
        let mut dice = Dice::new(11);
        let mut numbers = |len: usize, size: f32| -> Vec<f32> { (0..len).map(|_| dice.number() * size).collect() };
        let w: Vec<u8> = numbers(all * inner, 400.0).into_iter().map(e4m3_code).collect();
        let x: Vec<u8> = numbers(rows * inner, 400.0).into_iter().map(e4m3_code).collect();
        let (w_scales, bias) = (numbers(blocks * all, 0.01), numbers(all, 3.0));
        let (x_scales, before) = (numbers(blocks * apart, 0.01), numbers(rows * width, 5.0));
        let before: Vec<f32> = before.into_iter().map(|x| out.round(x)).collect();
        // The rows of so many matrices in the order in which they lie in memory.
        let stored = |matrices: usize| {
            let row_of = move |row: usize| if gates { alternate_row(row, outputs) } else { row };
            (0..matrices * outputs).map(move |row| row / outputs * outputs + row_of(row % outputs))
        };
        let codes: Vec<u8> = stored(self.experts()).flat_map(|row| w[row * inner..][..inner].iter().copied()).collect();
        let scales: Vec<f32> = stored(self.experts() * blocks).map(|row| w_scales[row]).collect();
        let (w_given, x_given) = (rows_of_codes(&codes, inner), rows_of_codes(&x, inner));
        let [w_scales_given, bias_given, x_scales_given] =
            [&scales, &bias, &x_scales].map(|numbers| memory(bytemuck::cast_slice(numbers)));
        let mut results = memory(&out.encode(&before));
        let (box_outputs, box_rows) = match tiles {
            Tiles::Layer(tiles) => (tiles.outputs(), tiles.columns),
            Tiles::Experts(_) => (Fp8ExpertTiles::BOX_OUTPUTS, Fp8ExpertTiles::BOX_PLACES),
        };
        let mut w_map = Map::codes(&w_given, all, inner, box_outputs);
        let mut x_map = Map::codes(&x_given, rows, inner, box_rows);
        let (mut out_at, mut w_scales_at) = (results.as_mut_ptr(), w_scales_given.as_ptr());
        let (mut x_scales_at, mut bias_at) = (x_scales_given.as_ptr(), bias_given.as_ptr());
        let mut args =
            vec![at(&mut out_at), at(&mut w_map), at(&mut w_scales_at), at(&mut x_map), at(&mut x_scales_at)];
        let numbers_of = |numbers: &[usize]| -> Vec<u32> { numbers.iter().map(|&n| n as u32).collect() };
        match tiles {
            Tiles::Layer(tiles) => {
                let kernel = Emulated::compile(&units::linear_fp8(out, tiles, scaling), "linear_fp8")?;
                let mut x_scale_map = Map::scales(&x_scales_given, rows, apart, blocks, tiles.scales());
                args.extend([at(&mut x_scale_map), at(&mut bias_at)]);
                let (first, end) = (self.range.start, self.range.end);
                let flags = [usize::from(biased), usize::from(accumulates)];
                let mut numbers = numbers_of(&[rows, outputs, inner, first, end, flags[0], flags[1]]);
                args.extend(numbers.iter_mut().map(at));
                // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
                unsafe { kernel.launch(2, tiles.threads(), tiles.shared(), how, &args) };
            }
            Tiles::Experts(tiles) => {
                let of = Fp8ExpertKernel::of(out, tiles, scaling, gates);
                let kernel = Emulated::compile(&units::expert_linear_fp8(of), "expert_linear_fp8")?;
                let mut firsts_at = self.firsts.as_ptr();
                args.extend([at(&mut bias_at), at(&mut firsts_at)]);
                let flags = [usize::from(biased), usize::from(out == Dtype::F32), 0];
                let mut numbers = numbers_of(&[self.experts(), outputs, inner, apart, flags[0], flags[1], flags[2]]);
                args.extend(numbers.iter_mut().map(at));
                // SAFETY: as above.
                unsafe { kernel.launch(4, Fp8ExpertTiles::THREADS, of.shared(), how, &args) };
            }
        }

        let bytes = &bytemuck::cast_slice::<u128, u8>(&results)[..before.len() * out.bytes()];
        let read = WeightView { dtype: out, rows, cols: width, bytes };
        let found: Vec<f32> = (0..rows * width).map(|i| read.get(i)).collect();
        let unit = match out {
            Dtype::F32 => 2f64.powi(-24),
            Dtype::F16 => 2f64.powi(-11),
            Dtype::Bf16 => 2f64.powi(-8),
        };
        // The sum of an output, and how far from it the kernel's may lie.
        let sum_of = |row: usize, output: usize, before: f32| {
            let w_row = self.expert_of(row) * outputs + output;
            let products = (0..inner).map(|k| {
                let block = if scaling == Fp8Scaling::Rows { 0 } else { k / 128 };
                let w_scale = w_scales[(self.expert_of(row) * blocks + block) * outputs + output];
                let scale = f64::from(x_scales[block * apart + row]) * f64::from(w_scale);
                f64::from(e4m3_value(w[w_row * inner + k])) * f64::from(e4m3_value(x[row * inner + k])) * scale
            });
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p: f64| (sum + p, size + p.abs()));
            let added = [(biased, bias[w_row]), (accumulates, before)];
            let added: Vec<f64> = added.iter().filter(|(is, _)| *is).map(|(_, x)| f64::from(*x)).collect();
            // Each product, each partial sum and what is added are rounded by 2^-24 of what is summed.
            let size = size + added.iter().map(|x| x.abs()).sum::<f64>();
            let error = size * (inner as f64 + 6.0) * 2f64.powi(-24) + 2f64.powi(-24);
            (sum + added.iter().sum::<f64>(), error)
        };
        for (i, &found) in found.iter().enumerate() {
            let (row, output) = (i / width, i % width);
            if !self.range.contains(&output) {
                assert_eq!(found, before[i], "{tiles:?}, row {row}, output {output} is not asked for");
                continue;
            }
            let (mut expected, mut tolerance) = sum_of(row, output, before[i]);
            if gates {
                let ((gate, of_gate), (up, of_up)) = ((expected, tolerance), sum_of(row, width + output, 0.0));
                let silu = gate / (1.0 + (-gate).exp());
                expected = silu * up;
                // The slope of silu is below 1.1; fast exponentials and divisions are exact to 2^-16.
                tolerance = 1.1 * of_gate * (up.abs() + of_up) + silu.abs() * of_up + expected.abs() * 2f64.powi(-16);
            }
            let error = (f64::from(found) - expected).abs();
            let tolerance = tolerance + unit * expected.abs();
            assert!(error <= tolerance, "{tiles:?}, row {row}, output {output}: {found}, not {expected}");
        }
        Some(found)
    }

    /// In tiles of all sizes, each result the same.
    fn hold_in(&self, all: impl Iterator<Item = Tiles>) -> Option<()> {
        let mut first: Option<Vec<f32>> = None;
        for tiles in all {
            for how in [AT_ONCE, LATE] {
                let found = self.hold(tiles, how)?;
                let first = first.get_or_insert_with(|| found.clone());
                assert_eq!(found, *first, "{tiles:?}: the size of tiles changes no bit");
            }
        }
        Some(())
    }
}

#[test]
fn products_are_those_of_codes_and_scales_in_tiles_of_all_sizes() {
    let layers = [
        Layer::of(Dtype::Bf16, 200, 256, 5),
        Layer { biased: true, ..Layer::of(Dtype::F16, 131, 130, 17) },
        Layer { accumulates: true, range: 7..50, ..Layer::of(Dtype::F32, 64, 640, 9) },
        Layer { biased: true, accumulates: true, ..Layer::of(Dtype::F32, 132, 100, 70) },
    ];
    for (number, layer) in layers.iter().enumerate() {
        // All tiles write one dtype, the smallest the others too.
        let of_others = some_or_full(&Fp8Tiles::ALL[3..5], &Fp8Tiles::ALL[..]);
        let all = if number == 0 { &Fp8Tiles::ALL } else { of_others };
        if layer.hold_in(all.iter().map(|&tiles| Tiles::Layer(tiles))).is_none() {
            return;
        }
    }
}

#[test]
fn products_of_blocks_are_those_of_codes_and_scales_in_tiles_of_all_sizes() {
    let blocks = |layer| Layer { scaling: Fp8Scaling::Blocks, ..layer };
    let layers = [
        blocks(Layer { biased: true, ..Layer::of(Dtype::Bf16, 200, 260, 5) }),
        blocks(Layer { accumulates: true, range: 32..131, ..Layer::of(Dtype::F32, 131, 512, 70) }),
    ];
    for layer in &layers {
        if layer.hold_in(Fp8Tiles::ALL.into_iter().map(Tiles::Layer)).is_none() {
            return;
        }
    }
}

/// Places of experts: none, many, and in the last one.
fn firsts() -> Vec<u32> {
    vec![0, 3, 3, 73, 74]
}

#[test]
fn products_of_experts_are_those_of_their_places() {
    let all = || Fp8ExpertTiles::ALL.into_iter().map(Tiles::Experts);
    // In CI all tiles have one layer of each scaling, each time of another dtype, and the smallest tile has the other
    // layer too: how a tile writes a dtype does not depend on its scales.
    let of_other = some_or_full(&Fp8ExpertTiles::ALL[..1], &Fp8ExpertTiles::ALL);
    for scaling in Fp8Scaling::ALL {
        let biased = Layer { biased: true, firsts: firsts(), scaling, ..Layer::of(Dtype::Bf16, 136, 144, 74) };
        let long = Layer { firsts: firsts(), scaling, ..Layer::of(Dtype::F32, 67, 384, 74) };
        let (by_all, other) = match scaling {
            Fp8Scaling::Rows => (long, biased),
            Fp8Scaling::Blocks => (biased, long),
        };
        let of_other = of_other.iter().map(|&tiles| Tiles::Experts(tiles));
        if by_all.hold_in(all()).and_then(|()| other.hold_in(of_other)).is_none() {
            return;
        }
    }
}

#[test]
fn gates_of_experts_are_those_of_their_sums() {
    let few = some_or_full(&Fp8ExpertTiles::ALL[..1], &Fp8ExpertTiles::ALL);
    for (scaling, out, outputs) in [
        (Fp8Scaling::Rows, Dtype::Bf16, 336),
        (Fp8Scaling::Blocks, Dtype::F16, 272),
        (Fp8Scaling::Blocks, Dtype::F32, 272),
    ] {
        let layer = Layer { biased: true, gates: true, firsts: firsts(), ..Layer::of(out, outputs, 144, 74) };
        let layer = Layer { scaling, range: 0..outputs / 2, ..layer };
        if layer.hold_in(few.iter().map(|&tiles| Tiles::Experts(tiles))).is_none() {
            return;
        }
    }
}

#[test]
fn rows_of_gates_and_ups_alternate() {
    let (matrices, rows, words) = (2, 48, 3);
    let from: Vec<u32> = (0..(matrices * rows * words) as u32).collect();
    let mut to = vec![0u32; from.len()];
    let Some(kernel) = Emulated::compile(&units::alternate_rows(), "alternate_rows") else { return };
    let (mut to_at, mut from_at) = (to.as_mut_ptr(), from.as_ptr());
    let (mut rows_of_each, mut words_of_row) = (rows as u32, words as u32);
    let args = [at(&mut to_at), at(&mut from_at), at(&mut rows_of_each), at(&mut words_of_row)];
    // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
    unsafe { kernel.launch_grid([rows as u32, matrices as u32], 32, AT_ONCE, &args) };
    for (i, &found) in to.iter().enumerate() {
        let (row, word) = (i / words, i % words);
        let source = row / rows * rows + alternate_row(row % rows, rows);
        assert_eq!(found as usize, source * words + word, "row {row}");
    }
}

#[test]
fn tiles_follow_the_size_of_a_product() {
    let of = |rows, outputs, inner| Fp8Tiles::of(rows, outputs, inner, 132);
    assert_eq!(of(1, 28_672, 4096), Fp8Tiles { groups: 2, columns: 8 });
    assert_eq!(of(64, 4096, 14_336), Fp8Tiles { groups: 1, columns: 64 });
    assert_eq!(of(4096, 28_672, 4096), Fp8Tiles { groups: 2, columns: 128 });
    assert_eq!(Fp8ExpertTiles::of(9, 1).cap, 64);
    assert_eq!(Fp8ExpertTiles::of(256, 24).cap, 64);
    assert_eq!(Fp8ExpertTiles::of(4096, 384).cap, 192);
    for tiles in Fp8Tiles::ALL {
        assert!(tiles.stages() >= 4 && tiles.shared() <= 217 * 1024, "{tiles:?}");
    }
    for kernel in Fp8Scaling::ALL.into_iter().flat_map(Fp8ExpertKernel::all) {
        assert!(kernel.stages() >= 4 && kernel.shared() <= 217 * 1024, "{kernel:?}");
    }
}
