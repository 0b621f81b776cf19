//! Linear layers of e4m3 on the CPU, instruction by instruction (`emulator`): rows are rounded as the CPU's definition
//! rounds them, and every result is the product of codes and scales, whatever the tile it lies in.

use crate::emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use offshoot::backend::cuda::compile::elements::Fp8Tiles;
use offshoot::backend::cuda::compile::units;
use offshoot::backend::quantised::{ActivationScale, e4m3_code, e4m3_value, round_row};
use offshoot::backend::{Dtype, Rounding, RoundingKind};
use offshoot::lab::check::dice::Dice;

const AT_ONCE: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0 };
const LATE: Schedule = Schedule { copies: When::Late, products: When::Late, seed: 3 };

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Byte of input `k` in row `row` of panels whose rows are in groups of `rows`: `[groups][panels]` for weights (64 rows),
/// `[panels][groups]` for activations (8 rows).
fn place(row: usize, k: usize, groups: usize, panels: usize, rows: usize) -> usize {
    let (group, panel) = (row / rows, k / 128);
    let block = if rows == 64 { group * panels + panel } else { panel * groups + group };
    block * rows * 128 + row % rows * 128 + ((k % 128 / 16) ^ (row % 8)) * 16 + k % 16
}

/// Memory as kernels want it, aligned to 16 bytes.
fn memory(bytes: usize) -> Vec<u128> {
    vec![0; bytes.div_ceil(16)]
}

/// `x` `[rows, inner]` rounded by the kernel: codes in panels, and scales.
fn rounded(dtype: Dtype, x: &[f32], inner: usize, most: f32) -> Option<(Vec<u128>, Vec<f32>)> {
    let kernel = Emulated::compile(&units::round_rows(dtype), "round_rows")?;
    let rows = x.len() / inner;
    let (atoms, panels) = (rows.div_ceil(8), inner.div_ceil(128));
    let (mut codes, mut scales) = (memory(panels * atoms * 1024), vec![0.0f32; rows]);
    let mut given = memory(x.len() * dtype.bytes());
    bytemuck::cast_slice_mut::<u128, u8>(&mut given)[..x.len() * dtype.bytes()].copy_from_slice(&dtype.encode(x));
    let (mut to, mut scales_at, mut from) = (codes.as_mut_ptr(), scales.as_mut_ptr(), given.as_ptr());
    let (mut inner, mut most) = (inner as u32, most);
    let args = [at(&mut to), at(&mut scales_at), at(&mut from), at(&mut inner), at(&mut most)];
    // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
    unsafe { kernel.launch(rows as u32, 256, 0, AT_ONCE, &args) };
    Some((codes, scales))
}

#[test]
fn rows_are_rounded_as_on_the_cpu() {
    let mut dice = Dice::new(7);
    for (dtype, rows, inner) in [(Dtype::Bf16, 9, 264), (Dtype::F16, 3, 131), (Dtype::F32, 17, 128)] {
        let mut x: Vec<f32> = (0..rows * inner).map(|_| dtype.round(dice.number() * 50.0)).collect();
        x[..inner].fill(0.0);
        for most in [f32::INFINITY, 20.0] {
            let Some((codes, scales)) = rounded(dtype, &x, inner, most) else { return };
            let codes: &[u8] = bytemuck::cast_slice(&codes);
            for (row, numbers) in x.chunks_exact(inner).enumerate() {
                let mut expected = numbers.to_vec();
                let to = RoundingKind::Fp8;
                let bound = ActivationScale { fixed: None, most: Some(most) };
                round_row(&mut expected, Rounding::Dynamic { to, group: None }, bound);
                for (k, expected) in expected.iter().enumerate() {
                    let code = codes[place(row, k, rows.div_ceil(8), inner.div_ceil(128), 8)];
                    assert_eq!(e4m3_value(code) * scales[row], *expected, "{dtype}, row {row}, input {k}");
                }
                for k in inner..inner.next_multiple_of(128) {
                    let code = codes[place(row, k, rows.div_ceil(8), inner.div_ceil(128), 8)];
                    assert_eq!(code & 0x7f, 0, "{dtype}: panels are filled up with zeros");
                }
            }
        }
    }
    let mut x = vec![1.0; 64];
    x[40] = f32::NAN;
    let Some((_, scales)) = rounded(Dtype::F32, &x, 64, f32::INFINITY) else { return };
    assert!(scales[0].is_nan(), "what is no number stays none");
}

struct Layer {
    out: Dtype,
    outputs: usize,
    inner: usize,
    rows: usize,
    biased: bool,
    accumulates: bool,
}

impl Layer {
    /// Runs the layer, compares each result with the sum in f64, and returns them.
    fn hold(&self, tiles: Fp8Tiles, how: Schedule) -> Option<Vec<f32>> {
        let &Self { out, outputs, inner, rows, biased, accumulates } = self;
        let kernel = Emulated::compile(&units::linear_fp8(out, tiles), "linear_fp8")?;
        let mut dice = Dice::new(11);
        let mut numbers = |len: usize, size: f32| -> Vec<f32> { (0..len).map(|_| dice.number() * size).collect() };
        let w: Vec<u8> = numbers(outputs * inner, 400.0).into_iter().map(e4m3_code).collect();
        let x: Vec<u8> = numbers(rows * inner, 400.0).into_iter().map(e4m3_code).collect();
        let padded = outputs.next_multiple_of(64);
        let (w_scales, bias) = (numbers(padded, 0.01), numbers(padded, 3.0));
        let (x_scales, before) = (numbers(rows, 0.01), numbers(rows * outputs, 5.0));
        let (panels, groups, atoms) = (inner.div_ceil(128), padded / 64, rows.div_ceil(8));
        let (mut w_given, mut x_given) = (memory(panels * padded * 128), memory(panels * atoms * 1024));
        for (i, &code) in w.iter().enumerate() {
            bytemuck::cast_slice_mut::<u128, u8>(&mut w_given)[place(i / inner, i % inner, groups, panels, 64)] = code;
        }
        for (i, &code) in x.iter().enumerate() {
            bytemuck::cast_slice_mut::<u128, u8>(&mut x_given)[place(i / inner, i % inner, atoms, panels, 8)] = code;
        }
        let before: Vec<f32> = before.into_iter().map(|x| out.round(x)).collect();
        let mut results = memory(before.len() * out.bytes());
        bytemuck::cast_slice_mut::<u128, u8>(&mut results)[..before.len() * out.bytes()]
            .copy_from_slice(&out.encode(&before));
        let (mut out_at, mut w_at, mut w_scales_at) = (results.as_mut_ptr(), w_given.as_ptr(), w_scales.as_ptr());
        let (mut x_at, mut x_scales_at, mut bias_at) = (x_given.as_ptr(), x_scales.as_ptr(), bias.as_ptr());
        let mut numbers = [rows, outputs, inner, usize::from(biased), usize::from(accumulates)].map(|n| n as u32);
        let [a, b, c, d, e] = &mut numbers;
        let args = [
            at(&mut out_at),
            at(&mut w_at),
            at(&mut w_scales_at),
            at(&mut x_at),
            at(&mut x_scales_at),
            at(&mut bias_at),
            at(a),
            at(b),
            at(c),
            at(d),
            at(e),
        ];
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { kernel.launch(2, tiles.threads(), tiles.shared(), how, &args) };

        let bytes = &bytemuck::cast_slice::<u128, u8>(&results)[..before.len() * out.bytes()];
        let read = offshoot::backend::WeightView { dtype: out, rows, cols: outputs, bytes };
        let found: Vec<f32> = (0..rows * outputs).map(|i| read.get(i)).collect();
        for (i, &found) in found.iter().enumerate() {
            let (row, output) = (i / outputs, i % outputs);
            let scale = f64::from(x_scales[row]) * f64::from(w_scales[output]);
            let products = (0..inner).map(|k| {
                f64::from(e4m3_value(w[output * inner + k])) * f64::from(e4m3_value(x[row * inner + k])) * scale
            });
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p: f64| (sum + p, size + p.abs()));
            let added = [(biased, bias[output]), (accumulates, before[i])];
            let added: Vec<f64> = added.iter().filter(|(is, _)| *is).map(|(_, x)| f64::from(*x)).collect();
            let expected = sum + added.iter().sum::<f64>();
            // Each product, each partial sum and what is added are rounded by 2^-24 of what is summed, the result to `out`.
            let size = size + added.iter().map(|x| x.abs()).sum::<f64>();
            let unit = match out {
                Dtype::F32 => 2f64.powi(-24),
                Dtype::F16 => 2f64.powi(-11),
                Dtype::Bf16 => 2f64.powi(-8),
            };
            let tolerance = size * (inner as f64 + 6.0) * 2f64.powi(-24) + unit * expected.abs() + 2f64.powi(-24);
            let error = (f64::from(found) - expected).abs();
            assert!(error <= tolerance, "{tiles:?}, row {row}, output {output}: {found}, not {expected}");
        }
        Some(found)
    }
}

#[test]
fn products_are_those_of_codes_and_scales_in_tiles_of_all_sizes() {
    let layer = |out, outputs, inner, rows| Layer { out, outputs, inner, rows, biased: false, accumulates: false };
    let layers = [
        layer(Dtype::Bf16, 200, 256, 5),
        Layer { biased: true, ..layer(Dtype::F16, 131, 130, 17) },
        Layer { accumulates: true, ..layer(Dtype::F32, 64, 640, 9) },
        Layer { biased: true, accumulates: true, ..layer(Dtype::F32, 132, 100, 70) },
    ];
    for layer in &layers {
        let mut first: Option<Vec<f32>> = None;
        for tiles in Fp8Tiles::ALL {
            for how in [AT_ONCE, LATE] {
                let Some(found) = layer.hold(tiles, how) else { return };
                let first = first.get_or_insert_with(|| found.clone());
                assert_eq!(found, *first, "{tiles:?}: the size of tiles changes no bit");
            }
        }
    }
}

#[test]
fn tiles_follow_the_size_of_a_product() {
    let of = |rows, outputs, inner| Fp8Tiles::of(rows, outputs, inner, 132);
    assert_eq!(of(1, 6144, 4096), Fp8Tiles { groups: 2, columns: 8 });
    assert_eq!(of(64, 4096, 14_336), Fp8Tiles { groups: 1, columns: 64 });
    assert_eq!(of(4096, 28_672, 4096), Fp8Tiles { groups: 2, columns: 128 });
    for tiles in Fp8Tiles::ALL {
        assert!(tiles.stages() >= 4 && tiles.shared() <= 226 * 1024, "{tiles:?}");
    }
}
