//! Products with 4-bit weights on the CPU, instruction by instruction (`emulator`): every result is the product of the
//! numbers that the CPU reads from the same codes, whatever the tile it lies in, for layers and for experts.

use crate::emulator;
use crate::full::some_or_full;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use offshoot_backend::quantised::e4m3_value;
use offshoot_backend::{CodeFormat, Dtype, QuantFormat, QuantRow, QuantSource, QuantView, Rounding, WeightView};
use offshoot_core::dice::Dice;
use offshoot_cuda::compile::four_bit::{ExpertLoad, FourBit, FourBitCodes, FourBitTiles};
use offshoot_cuda::compile::four_bit_layers::{LayerPlan, LayerTiles};
use offshoot_cuda::compile::units;
use offshoot_cuda::memory::four_bit::pack_row;

const AT_ONCE: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
const LATE: Schedule = Schedule { copies: When::Late, products: When::Late, seed: 3, held: None };

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Inputs as boxes of 64, as the emulator reads a tensor map: address, bytes of a row, rows, bytes between rows, bytes
/// of a box's row, rows of a box, bytes of an element, and that boxes are swizzled.
#[repr(C, align(64))]
struct InputMap([u64; 16]);

impl InputMap {
    fn of(inputs: &[u128], rows: usize, inner: usize, box_rows: usize) -> Self {
        let mut all = [0; 16];
        let words = [inputs.as_ptr() as usize, inner * 2, rows, inner * 2, 128, box_rows, 1, 1];
        all[..8].copy_from_slice(&words.map(|word| word as u64));
        Self(all)
    }
}

/// Memory as kernels want it, aligned to 16 bytes.
fn memory(bytes: &[u8]) -> Vec<u128> {
    let mut all = vec![0u128; bytes.len().div_ceil(16)];
    bytemuck::cast_slice_mut::<u128, u8>(&mut all)[..bytes.len()].copy_from_slice(bytes);
    all
}

/// Whose panels a kernel reads, with the numbers that they stand for.
struct Matrices {
    panels: Vec<u128>,
    /// `[matrices * outputs, inner]`
    numbers: Vec<f32>,
}

/// Random codes, scales and zero points. `group`: inputs that share a scale, as a checkpoint has it.
fn matrices(layout: FourBit, group: usize, [count, outputs, inner]: [usize; 3], dice: &mut Dice) -> Matrices {
    let (mut panels, mut numbers) = (vec![0u8; count * layout.bytes(outputs, inner)], Vec::new());
    for matrix in 0..count {
        for output in 0..outputs {
            let groups = inner.div_ceil(group);
            // A scale may be 0, and of one sign or the other; neighbours may be far apart.
            let scale = |dice: &mut Dice| match layout.codes {
                FourBitCodes::Int4 if dice.within(0, 7) == 0 => 0.0,
                FourBitCodes::Int4 => dice.number() * f32::exp2(-(dice.within(1, 9) as f32)),
                // All but NaN, zero and subnormal ones among them.
                FourBitCodes::Fp4 if layout.has_factors() => e4m3_value(dice.within(0, 0x7e) as u8),
                FourBitCodes::Fp4 => f32::exp2(dice.within(0, 6) as f32 - 5.0),
            };
            let codes = (0..inner).map(|_| dice.within(0, 15) as u8).collect();
            let scales = (0..groups).map(|_| scale(dice)).collect();
            // Without zero points, the one of symmetric codes is meant.
            let has_zeros = layout.codes == FourBitCodes::Int4 && group != 64;
            let zeros = if has_zeros { (0..groups).map(|_| dice.within(0, 15) as u8).collect() } else { Vec::new() };
            let factor = if layout.has_factors() { dice.number() * f32::exp2(-9.0) } else { 1.0 };
            let row = QuantRow { codes, scales, zeros, factor };
            let format = if layout.codes == FourBitCodes::Int4 { CodeFormat::Int4 } else { CodeFormat::Fp4 };
            numbers.extend(
                row.codes
                    .iter()
                    .enumerate()
                    .map(|(k, &code)| format.number(code, row.zeros.get(k / group).copied()) * row.scale(k / group)),
            );
            let begin = matrix * layout.bytes(outputs, inner) + output / 64 * layout.group_bytes(inner);
            pack_row(layout, group, &row, output % 64, &mut panels[begin..][..layout.group_bytes(inner)]);
        }
    }
    Matrices { panels: memory(&panels), numbers }
}

/// A product. Without `experts`, a layer of `rows` rows.
struct Product<'a> {
    layout: FourBit,
    group: usize,
    dtype: Dtype,
    out: Dtype,
    outputs: usize,
    inner: usize,
    rows: usize,
    /// How many places each expert has; they choose rows in turn.
    experts: Option<&'a [usize]>,
    biased: bool,
    accumulates: bool,
}

/// Which kernel.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    /// A layer on Hopper.
    Layer(LayerPlan),
    Tiles(FourBitTiles),
    Any,
}

impl Product<'_> {
    fn compile(&self, kernel: Kernel) -> Option<Emulated> {
        match kernel {
            Kernel::Layer(plan) => {
                Emulated::compile(&units::layer_4bit(self.layout, self.dtype, plan.tiles), "linear_4bit_wgmma")
            }
            Kernel::Tiles(tiles) => {
                Emulated::compile(&units::linear_4bit(self.layout, self.dtype, tiles), tiles.name())
            }
            Kernel::Any => {
                Emulated::compile(&units::linear_4bit_any(self.layout, self.dtype, self.out), "linear_4bit_any")
            }
        }
    }

    /// Runs the product, compares each result with the sum in f64, and returns them.
    fn hold(&self, compiled: &Emulated, kernel: Kernel, how: Schedule) -> Vec<f32> {
        let &Self { layout, group, dtype, out, outputs, inner, rows, experts, biased, accumulates } = self;
        let mut dice = Dice::new(11);
        let count = experts.map_or(1, <[usize]>::len);
        let weights = matrices(layout, group, [count, outputs, inner], &mut dice);
        let x: Vec<f32> = (0..rows * inner).map(|_| dtype.round(dice.number())).collect();
        let bias: Vec<f32> = (0..count * outputs).map(|_| dice.number() * 3.0).collect();
        // The expert and the row of each place.
        let places: Vec<(usize, usize)> = match experts {
            None => (0..rows).map(|row| (0, row)).collect(),
            Some(counts) => {
                let of = |(expert, &count): (usize, &usize)| (0..count).map(move |i| (expert, (i * 7 + expert) % rows));
                counts.iter().enumerate().flat_map(of).collect()
            }
        };
        let firsts: Vec<u32> =
            (0..=count).map(|expert| places.iter().filter(|place| place.0 < expert).count() as u32).collect();
        let rows_of: Vec<u32> = places.iter().map(|place| place.1 as u32).collect();
        let before: Vec<f32> = (0..places.len() * outputs).map(|_| out.round(dice.number() * 5.0)).collect();
        let mut bytes = out.encode(&before);
        bytes.extend([0xff; 16]);
        let (mut results, given) = (memory(&bytes), memory(&dtype.encode(&x)));

        let (mut out_at, mut x_at, mut weights_at) = (results.as_mut_ptr(), given.as_ptr(), weights.panels.as_ptr());
        let mut bias_at = bias.as_ptr();
        let or_null = |list: &[u32]| if experts.is_some() { list.as_ptr() } else { std::ptr::null() };
        let (mut firsts_at, mut rows_at) = (or_null(&firsts), or_null(&rows_of));
        let flags = [usize::from(experts.is_some()), usize::from(biased)];
        let mut numbers = [count, outputs, inner, places.len(), flags[0], flags[1]].map(|number| number as u32);
        let (mut sums, mut adds) = (u32::from(out == Dtype::F32), u32::from(accumulates));
        let [a, b, c, d, e, f] = &mut numbers;
        let plan = if let Kernel::Layer(plan) = kernel { Some(plan) } else { None };
        let mut map = InputMap::of(&given, places.len(), inner, plan.map_or(8, |plan| plan.tiles.box_rows()));
        let mut splits = plan.map_or(0, |plan| plan.splits as u32);
        let results_of = [at(&mut sums), at(&mut adds)];
        let (args, grid, threads, shared) = match kernel {
            Kernel::Layer(plan) => {
                let given = [at(&mut out_at), at(&mut map), at(&mut weights_at), at(&mut bias_at), at(b), at(c), at(d)];
                let args = [&given[..], &[at(&mut splits), at(f)], &results_of].concat();
                let [blocks, _] = plan.grid(places.len(), outputs, 1);
                (args, blocks as u32, plan.tiles.threads(), plan.tiles.shared(layout))
            }
            _ => {
                let operands = [at(&mut out_at), at(&mut x_at), at(&mut weights_at), at(&mut bias_at)];
                let places = [at(&mut firsts_at), at(&mut rows_at), at(a), at(b), at(c), at(d), at(e), at(f)];
                match kernel {
                    Kernel::Tiles(tiles) => {
                        let args = [&operands[..], &places, &results_of].concat();
                        (args, 2, tiles.threads(), tiles.shared(layout))
                    }
                    // The emulator's grids have one dimension, so `linear_4bit_any` is given 16 outputs.
                    _ => ([&operands[..], &places, &results_of[1..]].concat(), 1, 256, 0),
                }
            }
        };
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { compiled.launch(grid, threads, shared, how, &args) };

        let bytes = bytemuck::cast_slice::<u128, u8>(&results);
        let (bytes, behind) = bytes.split_at(before.len() * out.bytes());
        assert!(behind[..16].iter().all(|&byte| byte == 0xff), "nothing behind the last place");
        let read = WeightView { dtype: out, rows: places.len(), cols: outputs, bytes };
        let found: Vec<f32> = (0..before.len()).map(|i| read.get(i)).collect();
        for (i, &found) in found.iter().enumerate() {
            let ((expert, row), output) = (places[i / outputs], i % outputs);
            let w = &weights.numbers[(expert * outputs + output) * inner..][..inner];
            let products = x[row * inner..][..inner].iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p: f64| (sum + p, size + p.abs()));
            let added = [(biased, bias[expert * outputs + output]), (accumulates, before[i])];
            let added: Vec<f64> = added.iter().filter(|(is, _)| *is).map(|(_, x)| f64::from(*x)).collect();
            let expected = sum + added.iter().sum::<f64>();
            // Each number, product, partial sum and what is added are rounded by 2^-24 of what is summed. Without the
            // zero point, a code may stand for up to 15 steps where the number has one: but then the product is exact.
            // The result is rounded to `out`.
            let size = size + added.iter().map(|x| x.abs()).sum::<f64>();
            let tolerance = size * (inner as f64 + 6.0) * 2f64.powi(-24) + out.rounding() * expected.abs() + 1e-7;
            let error = (f64::from(found) - expected).abs();
            assert!(
                error <= tolerance,
                "{kernel:?}, {layout:?}, place {}, output {output}: {found}, not {expected}",
                i / outputs
            );
        }
        found
    }
}

fn layer(layout: FourBit, outputs: usize, inner: usize, rows: usize) -> Product<'static> {
    let group = layout.group;
    let (dtype, out) = (Dtype::Bf16, Dtype::Bf16);
    let (experts, biased, accumulates) = (None, false, false);
    Product { layout, group, dtype, out, outputs, inner, rows, experts, biased, accumulates }
}

fn tiles() -> impl Iterator<Item = FourBitTiles> {
    [8, 9].into_iter().flat_map(FourBitTiles::of).copied()
}

/// Every kernel that multiplies a layer with tensor cores, with splits of an equal and of a different number of panels.
fn of_layers() -> impl Iterator<Item = Kernel> {
    let mma = FourBitTiles::of(8).iter().copied().map(Kernel::Tiles);
    let plans =
        LayerTiles::ALL.into_iter().zip([3, 2, 1, 1, 2, 2, 1]).map(|(tiles, splits)| LayerPlan { tiles, splits });
    mma.chain(plans.map(Kernel::Layer))
}

/// Those of deterministic steps, for so many rows of a layer of 72 outputs.
fn batch_invariant(rows: usize) -> [Kernel; 2] {
    let plan = LayerPlan::of(FourBit::ALL[2], [rows, 72, 512], 132, Some(72));
    [Kernel::Tiles(FourBitTiles::of_layer()), Kernel::Layer(plan)]
}

/// All kernels with three formats; with the others, those of deterministic steps.
#[test]
fn layers_are_products_with_the_numbers_of_the_codes() {
    for layout in FourBit::ALL {
        let is_thorough = FourBit::ALL[2..].contains(&layout);
        let products = [
            Product { biased: true, ..layer(layout, 136, 384, 5) },
            Product { out: Dtype::F32, biased: true, accumulates: true, ..layer(layout, 64, 640, 70) },
        ];
        // Of e2m1 every third, or all.
        let every = if layout.codes == FourBitCodes::Fp4 { some_or_full(3, 1) } else { 1 };
        let kernels = if is_thorough { of_layers().step_by(every).collect() } else { batch_invariant(70).to_vec() };
        for kernel in kernels {
            let Some(compiled) = products[0].compile(kernel) else { return };
            for product in &products {
                let found = product.hold(&compiled, kernel, AT_ONCE);
                assert_eq!(product.hold(&compiled, kernel, LATE), found, "{kernel:?}: late copies change no bit");
            }
        }
    }
}

#[test]
fn f16_has_the_same_numbers() {
    let [mma, wgmma] = batch_invariant(17);
    for (layout, kernel) in [(0, mma), (3, wgmma), (4, mma), (4, wgmma)].map(|(i, kernel)| (FourBit::ALL[i], kernel)) {
        let product = Product { dtype: Dtype::F16, out: Dtype::F16, ..layer(layout, 65, 160, 17) };
        let Some(compiled) = product.compile(kernel) else { return };
        product.hold(&compiled, kernel, AT_ONCE);
    }
}

#[test]
fn a_row_is_the_same_beside_any_number_of_rows() {
    let layout = FourBit::ALL[2];
    let of = |rows| Product { out: Dtype::F32, ..layer(layout, 72, 512, rows) };
    for which in 0..2 {
        let found = |rows: usize| {
            let kernel = batch_invariant(rows)[which];
            let compiled = of(rows).compile(kernel)?;
            Some(of(rows).hold(&compiled, kernel, AT_ONCE))
        };
        let Some(alone) = found(1) else { return };
        for rows in [9, 30, 130] {
            // Inputs are the same numbers from the first row on.
            assert_eq!(found(rows).expect("compiled before")[..72], alone, "{rows} rows");
        }
    }
}

#[test]
fn experts_multiply_their_places() {
    let counts = [0, 1, 70, 0, 9, 20];
    for (layout, tiles) in [FourBit::ALL[3], FourBit::ALL[4]].into_iter().flat_map(|of| tiles().map(move |t| (of, t))) {
        let of = |outputs, inner, biased, out| Product {
            experts: Some(&counts),
            biased,
            out,
            ..layer(layout, outputs, inner, 33)
        };
        let kernel = Kernel::Tiles(tiles);
        let Some(compiled) = of(136, 160, true, Dtype::Bf16).compile(kernel) else { return };
        of(136, 160, true, Dtype::Bf16).hold(&compiled, kernel, LATE);
        of(64, 256, false, Dtype::F32).hold(&compiled, kernel, AT_ONCE);
    }
}

/// Sums in units of the last scale, with splits and without; those without are the same for all sizes of tiles.
#[test]
fn experts_whose_scales_are_not_in_their_operands_are_multiplied_too() {
    let counts = [0, 1, 70, 0, 9, 20];
    for (layout, dtype) in [(FourBit::ALL[0], Dtype::Bf16), (FourBit::ALL[3], Dtype::F16)] {
        let product = Product { experts: Some(&counts), dtype, out: Dtype::F32, ..layer(layout, 72, 416, 33) };
        let mut alone = None;
        for &tiles in FourBitTiles::of(9) {
            let kernel = Kernel::Tiles(tiles);
            let Some(compiled) = product.compile(kernel) else { return };
            let found = product.hold(&compiled, kernel, LATE);
            if tiles.splits == 1 {
                assert_eq!(*alone.get_or_insert_with(|| found.clone()), found, "{tiles:?}, {layout:?}");
            }
        }
    }
}

#[test]
fn inputs_in_f32_and_odd_widths_are_multiplied_too() {
    for layout in FourBit::ALL {
        let whole = Product { dtype: Dtype::F32, out: Dtype::F32, accumulates: true, ..layer(layout, 16, 256, 19) };
        // One group of all inputs, of which there are no whole chunks.
        let odd = Product { group: 131, biased: true, ..layer(layout, 13, 131, 3) };
        let is_odd_taken = layout.group == 128;
        for product in [Some(&whole), is_odd_taken.then_some(&odd)].into_iter().flatten() {
            let Some(compiled) = product.compile(Kernel::Any) else { return };
            product.hold(&compiled, Kernel::Any, AT_ONCE);
        }
    }
}

#[test]
fn formats_with_other_groups_or_rounded_activations_are_not_taken() {
    let int4 = |group| QuantFormat { codes: CodeFormat::Int4, group, zeros: true, rounding: Rounding::Exact };
    let taken = |group| FourBit::of(int4(group)).map(|format| format.group);
    assert_eq!([Some(32), Some(64), Some(128), Some(256), None].map(taken), [32, 64, 128, 128, 128].map(Some));
    assert_eq!([Some(8), Some(96), Some(160)].map(taken), [None; 3]);
    let rounding = Rounding::Dynamic { to: offshoot_backend::RoundingKind::Int8, group: None };
    assert_eq!(FourBit::of(QuantFormat { rounding, ..int4(Some(32)) }), None);
    assert_eq!(FourBit::of(QuantFormat { codes: CodeFormat::Int8, ..int4(None) }), None);
    let mxfp4 = QuantFormat { codes: CodeFormat::Fp4, zeros: false, ..int4(Some(32)) };
    assert_eq!(FourBit::of(mxfp4).map(|format| format.panel_bytes()), Some(4096 + 256));
    let nvfp4 = FourBit::of(QuantFormat { group: Some(16), ..mxfp4 }).expect("a format that is taken");
    assert_eq!((nvfp4.panel_bytes(), nvfp4.group_bytes(130)), (4096 + 512, 2 * (4096 + 512) + 256));
    assert_eq!(FourBit::of(int4(Some(16))), None);
}

/// The kernels keep the exponents of e2m1's scales alone.
#[test]
fn scales_made_for_e2m1_are_powers_of_two_that_use_its_range() {
    let mut dice = Dice::new(2);
    let numbers: Vec<f32> = (0..4 * 64).map(|i| if i < 64 { 0.0 } else { dice.number() * 0.03 }).collect();
    let bytes = Dtype::F32.encode(&numbers);
    let dense = WeightView { dtype: Dtype::F32, rows: 4, cols: 64, bytes: &bytes };
    let format = QuantFormat { codes: CodeFormat::Fp4, group: Some(32), zeros: false, rounding: Rounding::Exact };
    let view = QuantView::of(format, 4, 64, QuantSource::Dense(dense));
    let mut row = QuantRow::default();
    for from in 0..4 {
        view.read_row(from, &mut row);
        for (group, &scale) in row.scales.iter().enumerate() {
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "{scale}");
            let largest = row.codes[group * 32..][..32].iter().map(|code| code & 7).max().unwrap();
            // 3, 4 or 6, or nothing but zeros.
            assert!(if from == 0 { largest == 0 } else { largest >= 5 }, "row {from}: {largest}");
        }
    }
}

#[test]
fn tiles_fit_and_follow_the_size_of_a_layer() {
    for format in FourBit::ALL {
        for tiles in FourBitTiles::of(9) {
            assert!(tiles.stages(format) >= 4 && tiles.shared(format) <= 217 * 1024, "{tiles:?}: {format:?}");
        }
        for tiles in LayerTiles::ALL {
            let shared = tiles.shared(format);
            assert!(tiles.stages(format) >= 3, "{tiles:?}: {format:?}");
            assert!((shared + 2048) * tiles.blocks <= 228 * 1024, "{tiles:?}: {format:?} takes {shared} bytes");
        }
    }
    let of = |shape| LayerPlan::of(FourBit::ALL[2], shape, 132, None);
    assert_eq!(of([1, 4096, 4096]).tiles.cap, 8);
    assert_eq!(of([64, 4096, 14_336]).tiles.cap, 64);
    assert_eq!(of([4096, 28_672, 4096]).tiles.cap, 256);
    // 28,672 outputs by 129 rows are 224 tiles of 256 rows, two turns; 4096 by 256 are too few to fill one with them.
    assert_eq!([[129, 28_672, 4096], [256, 4096, 4096]].map(|shape| of(shape).tiles.cap), [256, 64]);
    // Narrow layers are split, until all multiprocessors have something to do.
    assert_eq!([1, 64, 4096].map(|rows| of([rows, 4096, 4096]).splits), [6, 3, 1]);
    assert_eq!(of([1, 28_672, 4096]).splits, 1);
    assert_eq!(of([1, 64, 256]).splits, 1, "no split has less than a panel");
    let of_experts = |places, is_deterministic| {
        let load = ExpertLoad { experts: 32, places, most: places / 4, outputs: 2880 };
        let tiles = FourBitTiles::of_experts(9, load, 132, is_deterministic);
        (tiles.cap, tiles.splits)
    };
    assert_eq!([4, 256, 1024, 4096].map(|places| of_experts(places, false)), [(32, 2), (32, 1), (64, 1), (128, 1)]);
    assert!([4, 256, 1024, 4096].into_iter().all(|places| of_experts(places, true).1 == 1));
}

#[test]
fn splits_of_deterministic_layers_do_not_depend_on_rows_or_ranks() {
    for [outputs, inner] in [[4096, 4096], [6144, 4096], [28_672, 4096], [4096, 14_336], [72, 512]] {
        let of =
            |rows, ranks| LayerPlan::of(FourBit::ALL[2], [rows, outputs / ranks, inner], 132, Some(outputs)).splits;
        let same = |rows| [1, 2, 4, 8].into_iter().all(|ranks| of(rows, ranks) == of(1, 1));
        assert!([1, 8, 33, 64, 256, 4096].into_iter().all(same), "{outputs} x {inner}");
    }
}
