//! One linear layer with quantised weights, on every path of the CPU, against the same codes multiplied in f64 here, by
//! activations that are rounded here.

use offshoot_backend::quantised::ActivationScale;
use offshoot_backend::{
    ActivationDtype, Backend, CodeFormat, Dtype, MatrixPart, OutputMode, QuantFormat, QuantSource, QuantView, Rounding,
    RoundingKind, ScaleSource, WeightView,
};
use offshoot_core::dice::Dice;
use offshoot_cpu::{Cpu, Isa};

/// Outputs, inputs, rows: odd ones, and more than a panel, a block and a strip.
const SHAPES: [[usize; 3]; 4] = [[17, 24, 1], [33, 136, 5], [50, 203, 9], [200, 328, 34]];

/// A layer whose scales belong to blocks of `[outputs, inputs]`.
struct Layer {
    codes: CodeFormat,
    rounding: Rounding,
    fixed: Option<f32>,
    /// Inputs of a block, and its outputs.
    block: Option<[usize; 2]>,
}

/// The 256 numbers of e4m3 by their definition: 4 bits of exponent, 3 of fraction.
fn e4m3(code: u8) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let size = if exponent == 0 { fraction * 2f64.powi(-9) } else { (8.0 + fraction) * 2f64.powi(exponent - 10) };
    if code & 0x80 == 0 { size } else { -size }
}

/// The nearest number of a kind: of two that are equally near the one with an even code.
fn nearest(kind: RoundingKind, x: f64) -> f64 {
    match kind {
        RoundingKind::Int8 => x.round_ties_even().clamp(-127.0, 127.0),
        RoundingKind::Fp8 => {
            let key = |code: &u8| ((e4m3(*code) - x).abs(), *code % 2);
            let codes = (0..=0x7e).chain(0x80..=0xfe);
            e4m3(codes.min_by(|a, b| key(a).partial_cmp(&key(b)).unwrap()).unwrap())
        }
    }
}

/// A row as `rounding` says. Scales and quotients are f32, as every program that publishes such weights has them.
fn rounded(row: &[f32], rounding: Rounding, fixed: Option<f32>) -> Vec<f64> {
    let by = |part: &[f32], kind: RoundingKind, scale: f32| -> Vec<f64> {
        part.iter().map(|&x| nearest(kind, f64::from(x / scale)) * f64::from(scale)).collect()
    };
    match rounding {
        Rounding::Exact => row.iter().map(|&x| f64::from(x)).collect(),
        Rounding::Static { to } => by(row, to, fixed.unwrap()),
        Rounding::Dynamic { to, group } => {
            let most = if to == RoundingKind::Fp8 { 448.0 } else { 127.0 };
            let parts = row.chunks(group.map_or(row.len(), |group| group as usize));
            let scale = |part: &[f32]| part.iter().fold(0.0f32, |most, x| most.max(x.abs())) / most;
            parts.flat_map(|part| by(part, to, scale(part))).collect()
        }
    }
}

impl Layer {
    /// What every path computes, `[isa][rows][outputs]`, and the definition with what it may be off by.
    fn run(&self, [outputs, inputs, rows]: [usize; 3]) -> (Vec<Vec<f32>>, Vec<(f64, f64)>) {
        let mut dice = Dice::new((outputs * 1000 + inputs) as u64);
        let mut code = || match self.codes {
            CodeFormat::Fp8 => (dice.within(0, 0x7e) | dice.within(0, 1) << 7) as u8,
            _ => dice.within(0, 255) as u8,
        };
        let mut codes: Vec<u8> = (0..outputs * inputs).map(|_| code()).collect();
        codes[..8].fill(if self.codes == CodeFormat::Int8 { 0x80 } else { 0xfe });
        let [block_rows, block_cols] = self.block.unwrap_or([1, inputs]);
        let (down, across) = (outputs.div_ceil(block_rows), inputs.div_ceil(block_cols));
        let scales: Vec<f32> = (0..down * across).map(|i| 0.01 * (1.0 + (i * 7 % 11) as f32)).collect();
        let mut x: Vec<f32> = (0..rows * inputs).map(|_| dice.number()).collect();
        // A row's parts are of different sizes, so that scales of rows and of groups differ; the largest has one sign.
        x.iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + (i % inputs / 8 % 5) as f32);
        x[..8.min(inputs)].fill(-6.0);

        let number = |o: usize, k: usize| {
            let code = codes[o * inputs + k];
            let number = if self.codes == CodeFormat::Fp8 { e4m3(code) } else { f64::from(code.cast_signed()) };
            number * f64::from(scales[o / block_rows * across + k / block_cols])
        };
        let expected = x.chunks_exact(inputs).flat_map(|row| {
            let row = rounded(row, self.rounding, self.fixed);
            let sums = (0..outputs).map(move |o| {
                let products = row.iter().enumerate().map(|(k, x)| x * number(o, k));
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                // Of each product and each partial sum, a rounding of 2^-24; at most, not probably.
                (sum, size * (inputs as f64 + 4.0) * 2f64.powi(-24))
            });
            sums.collect::<Vec<_>>()
        });
        let expected = expected.collect();

        let format = QuantFormat {
            codes: self.codes,
            group: self.block.map(|[_, cols]| cols as u32),
            zeros: false,
            rounding: self.rounding,
        };
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let view = WeightView { dtype: Dtype::F32, rows: down, cols: across, bytes: &bytes };
        let scales = ScaleSource { scales: view, block_rows, block_cols };
        let source = QuantSource::Bytes { codes: &codes, scales };
        let activations = ActivationScale { fixed: self.fixed, most: None };
        let view = QuantView { activations, ..QuantView::of(format, outputs, inputs, source) };
        let found = Isa::available().into_iter().map(|isa| {
            let mut backend = Cpu::with_isa(isa);
            let w = backend.matrix(&[MatrixPart::Quantised(view)]).unwrap();
            let mut input = backend.buffer(inputs, ActivationDtype::Operands(Dtype::F32)).unwrap();
            backend.resize(&mut input, rows).unwrap();
            backend.write(&mut input, rows, &x).unwrap();
            let mut out = backend.buffer(outputs, ActivationDtype::Sums).unwrap();
            backend.resize(&mut out, rows).unwrap();
            backend.linear(&mut out, &input, &w, None, OutputMode::Replace);
            backend.read(&out, rows).unwrap()
        });
        (found.collect(), expected)
    }
}

#[test]
fn products_by_codes_are_those_of_their_numbers() {
    use RoundingKind::{Fp8, Int8};
    let dynamic = |to, group| Rounding::Dynamic { to, group };
    let blocks = Some([16, 64]);
    let layer = |codes, rounding, fixed, block| Layer { codes, rounding, fixed, block };
    let layers = [
        layer(CodeFormat::Int8, Rounding::Exact, None, None),
        layer(CodeFormat::Int8, dynamic(Int8, None), None, None),
        layer(CodeFormat::Int8, Rounding::Static { to: Int8 }, Some(0.04), None),
        layer(CodeFormat::Int8, dynamic(Int8, Some(64)), None, None),
        layer(CodeFormat::Fp8, Rounding::Exact, None, blocks),
        layer(CodeFormat::Fp8, dynamic(Fp8, Some(64)), None, blocks),
        layer(CodeFormat::Fp8, dynamic(Fp8, None), None, None),
        layer(CodeFormat::Fp8, Rounding::Static { to: Fp8 }, Some(0.01), None),
    ];
    for layer in &layers {
        for shape in SHAPES {
            let what = format!("{} {:?} {shape:?}", layer.codes, layer.rounding);
            let (found, expected) = layer.run(shape);
            for (isa, found) in Isa::available().into_iter().zip(&found) {
                for (at, (found, (expected, tolerance))) in found.iter().zip(&expected).enumerate() {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error <= *tolerance, "{isa}: {what}, place {at}: {found}, not {expected}");
                }
            }
            // Integers are summed exactly, also -128 times -127.
            if layer.codes == CodeFormat::Int8 && matches!(layer.rounding, Rounding::Dynamic { group: None, .. }) {
                assert!(found.iter().all(|other| *other == found[0]), "{what}: all paths give the same bits");
            }
        }
    }
}
