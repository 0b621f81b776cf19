//! The CPU's ops on every code path, for every dtype and unusual shapes, compared with f64; and batch invariance: a row
//! alone has the same bits as among others.

use half::{bf16, f16};
use offshoot::backend::cpu::{Cpu, CpuBuffer, CpuStep, Isa};
use offshoot::backend::{
    Backend, Dtype, Gate, HeadKind, HeadLayout, MatrixPart, RopeTable, RowToken, StepBatch, WeightView,
};
use offshoot::ids::TokenId;
use offshoot::lab::check::dice::Dice;

/// Random numbers in [-1, 1).
pub struct Numbers(Dice);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(Dice::new(seed))
    }

    pub fn vec(&mut self, len: usize) -> Vec<f32> {
        self.0.numbers(len)
    }

    pub fn buffer(&mut self, rows: usize, width: usize) -> CpuBuffer {
        CpuBuffer { rows, width, data: self.vec(rows * width) }
    }
}

pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// The relative error of one f32 rounding.
pub const UNIT: f64 = Dtype::F32.rounding();

/// Weights `[rows, cols]` as in a file, preceded by one byte so that they are unaligned.
pub struct Weights {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Weights {
    pub fn random(numbers: &mut Numbers, dtype: Dtype, rows: usize, cols: usize) -> Self {
        let mut bytes = vec![0xff];
        for _ in 0..rows * cols {
            let x = numbers.0.number();
            match dtype {
                Dtype::F32 => bytes.extend(x.to_le_bytes()),
                Dtype::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                Dtype::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
            }
        }
        Self { dtype, rows, cols, bytes }
    }

    fn view(&self) -> WeightView<'_> {
        WeightView { dtype: self.dtype, rows: self.rows, cols: self.cols, bytes: &self.bytes[1..] }
    }

    pub fn part(&self) -> MatrixPart<'_> {
        MatrixPart::Dense(self.view())
    }

    fn get(&self, row: usize, col: usize) -> f64 {
        f64::from(self.view().get(row * self.cols + col))
    }
}

/// Compares `out = w x (+ bias) (+ before)` with f64.
pub fn check_linear(
    isa: Isa,
    what: &str,
    out: &CpuBuffer,
    x: &CpuBuffer,
    w: &Weights,
    bias: Option<&[f32]>,
    before: Option<&CpuBuffer>,
) {
    let operand = isa.linear_operand(w.dtype);
    for r in 0..x.rows {
        for n in 0..w.rows {
            let mut exact = bias.map_or(0.0, |bias| f64::from(bias[n]));
            exact += before.map_or(0.0, |before| f64::from(before.row(r)[n]));
            let mut magnitude = exact.abs() + 1.0;
            for (k, &x) in x.row(r).iter().enumerate() {
                let x = operand.round(x);
                exact += f64::from(x) * w.get(n, k);
                magnitude += (f64::from(x) * w.get(n, k)).abs();
            }
            // K products and sums, each rounded once or twice, then bias and residual. Each rounding is at most UNIT
            // times the running sum, which does not exceed the magnitude noticeably.
            let tolerance = (2 * x.width + 3) as f64 * UNIT * magnitude;
            let found = f64::from(out.row(r)[n]);
            assert!(
                (found - exact).abs() <= tolerance,
                "{what}: row {r}, output {n}: {found} for {exact} (+- {tolerance})"
            );
        }
    }
}

fn linear_shape(isa: Isa, dtype: Dtype, rows: usize, outputs: usize, inputs: usize) {
    let what = format!("{isa}, {dtype:?}, {rows} x {inputs} -> {outputs}");
    let mut numbers = Numbers::new((rows * 1_000_003 + outputs * 1009 + inputs) as u64);
    let mut cpu = Cpu::with_isa(isa);
    let w = Weights::random(&mut numbers, dtype, outputs, inputs);
    let packed = cpu.matrix(&[w.part()]).unwrap();
    let x = numbers.buffer(rows, inputs);
    let bias = numbers.vec(outputs);
    let before = numbers.buffer(rows, outputs);

    let mut plain = CpuBuffer::new(rows, outputs);
    cpu.linear(&mut plain, &x, &packed, None);
    check_linear(isa, &what, &plain, &x, &w, None, None);
    let mut added = before.clone();
    cpu.linear_add(&mut added, &x, &packed, Some(&bias));
    check_linear(isa, &what, &added, &x, &w, Some(&bias), Some(&before));
    for r in 0..rows {
        let alone = CpuBuffer { rows: 1, width: inputs, data: x.row(r).to_vec() };
        let mut out = CpuBuffer::new(1, outputs);
        cpu.linear(&mut out, &alone, &packed, None);
        assert_eq!(bits(out.row(0)), bits(plain.row(r)), "{what}: row {r} alone");
        out.data.copy_from_slice(before.row(r));
        cpu.linear_add(&mut out, &alone, &packed, Some(&bias));
        assert_eq!(bits(out.row(0)), bits(added.row(r)), "{what}: row {r} alone, added");
    }
}

/// The emulated bf16 dot products give the bits of the instructions in linear layers.
#[test]
fn the_emulation_has_the_bits_of_bf16_dot_products() {
    if !Isa::available().contains(&Isa::Avx512Bf16) {
        crate::skip::skipped("this processor has no bf16 dot products");
        return;
    }
    for (rows, outputs, inputs) in [(1, 1, 1), (3, 47, 31), (14, 33, 577), (45, 16, 64)] {
        let mut numbers = Numbers::new((rows + inputs) as u64);
        let w = Weights::random(&mut numbers, Dtype::Bf16, outputs, inputs);
        let x = numbers.buffer(rows, inputs);
        let [emulated, hardware] = [Isa::Bf16Twin, Isa::Avx512Bf16].map(|isa| {
            let mut cpu = Cpu::with_isa(isa);
            let packed = cpu.matrix(&[MatrixPart::Dense(w.view())]).unwrap();
            let mut out = CpuBuffer::new(rows, outputs);
            cpu.linear(&mut out, &x, &packed, None);
            out
        });
        assert_eq!(bits(&emulated.data), bits(&hardware.data), "{rows} x {inputs} -> {outputs}");
    }
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn linear_layers_of_every_number_of_rows() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            for rows in 1..=45 {
                linear_shape(isa, dtype, rows, 47 + rows % 19, 31 + rows % 13);
            }
        }
    }
}

#[test]
fn linear_layers_of_unusual_shapes() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            for (rows, outputs, inputs) in [
                (1, 1, 1),
                (3, 15, 2),
                (2, 16, 3),
                (5, 17, 191),
                (1, 300, 193),
                (15, 33, 385),
                (29, 65, 577),
                (4, 260, 1025),
            ] {
                linear_shape(isa, dtype, rows, outputs, inputs);
            }
        }
    }
}

#[test]
fn rows_that_do_not_fit_the_cache_take_several_passes() {
    // 300 rows of 2,000 inputs are more than one pass takes.
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Portable) {
        for dtype in DTYPES {
            let mut numbers = Numbers::new(5);
            let mut cpu = Cpu::with_isa(isa);
            let w = Weights::random(&mut numbers, dtype, 40, 2000);
            let packed = cpu.matrix(&[w.part()]).unwrap();
            let x = numbers.buffer(300, 2000);
            let mut out = CpuBuffer::new(300, 40);
            cpu.linear(&mut out, &x, &packed, None);
            check_linear(isa, &format!("{isa}, {dtype:?}"), &out, &x, &w, None, None);
        }
    }
}

#[test]
fn nan_and_infinite_inputs_affect_their_own_row_only() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            let mut numbers = Numbers::new(6);
            let mut cpu = Cpu::with_isa(isa);
            let packed = cpu.matrix(&[Weights::random(&mut numbers, dtype, 20, 33).part()]).unwrap();
            let mut x = numbers.buffer(3, 33);
            x.data[33] = f32::NAN;
            x.data[2 * 33 + 32] = f32::INFINITY;
            let mut out = CpuBuffer::new(3, 20);
            cpu.linear(&mut out, &x, &packed, None);
            assert!(out.row(0).iter().all(|y| y.is_finite()), "{isa}, {dtype:?}");
            assert!(out.row(1).iter().all(|y| y.is_nan()), "{isa}, {dtype:?}");
            assert!(out.row(2).iter().all(|y| !y.is_finite()), "{isa}, {dtype:?}");
        }
    }
}

#[test]
fn stacked_parts_multiply_and_embed_like_single_matrices() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            let mut numbers = Numbers::new(7);
            let mut cpu = Cpu::with_isa(isa);
            let parts = [5, 16, 30].map(|rows| Weights::random(&mut numbers, dtype, rows, 21));
            let views: Vec<MatrixPart<'_>> = parts.iter().map(Weights::part).collect();
            let stacked = cpu.matrix(&views).unwrap();
            let x = numbers.buffer(4, 21);
            let mut together = CpuBuffer::new(4, 51);
            cpu.linear(&mut together, &x, &stacked, None);
            let mut from = 0;
            for part in &parts {
                let mut alone = CpuBuffer::new(4, part.rows);
                let packed = cpu.matrix(&[part.part()]).unwrap();
                cpu.linear(&mut alone, &x, &packed, None);
                for r in 0..4 {
                    assert_eq!(bits(&together.row(r)[from..][..part.rows]), bits(alone.row(r)), "{isa}, {dtype:?}");
                }
                from += part.rows;
            }

            let tokens: Vec<TokenId> = [50, 0, 4, 5, 20, 21, 0].map(TokenId::new).to_vec();
            let mut out = CpuBuffer::new(tokens.len(), 21);
            cpu.embed(&mut out, &stacked, &step(&tokens, &[]));
            let rows: Vec<(usize, usize)> =
                parts.iter().enumerate().flat_map(|(p, w)| (0..w.rows).map(move |r| (p, r))).collect();
            for (r, token) in tokens.iter().enumerate() {
                let (part, row) = rows[token.ix()];
                for k in 0..21 {
                    assert_eq!(f64::from(out.row(r)[k]), parts[part].get(row, k), "{isa}, {dtype:?}, token {token}");
                }
            }
        }
    }
}

/// Compares every element of `found` with `exact(row, i)`, which returns the value and its tolerance.
fn check(what: &str, found: &CpuBuffer, exact: impl Fn(usize, usize) -> (f64, f64)) {
    for r in 0..found.rows {
        for (i, &y) in found.row(r).iter().enumerate() {
            let (value, tolerance) = exact(r, i);
            assert!((f64::from(y) - value).abs() <= tolerance, "{what}: row {r}, element {i}: {y} for {value}");
        }
    }
}

/// Rows and widths: tiny, odd, and large enough for several threads.
const SHAPES: [(usize, usize); 4] = [(1, 1), (3, 37), (2, 768), (70, 600)];

/// Relative error of the root of a mean of `n` squares: one rounding per addition in a lane (n / 16), and a few more.
fn mean_roundings(n: usize) -> f64 {
    (n / 16 + 12) as f64 * UNIT
}

#[test]
fn norms() {
    for isa in Isa::available() {
        for (rows, width) in SHAPES {
            let mut cpu = Cpu::with_isa(isa);
            let mut numbers = Numbers::new(width as u64);
            let x = numbers.buffer(rows, width);
            let (weight, bias) = (numbers.vec(width), numbers.vec(width));
            let mut out = CpuBuffer::new(rows, width);
            let exact: Vec<Vec<f64>> = (0..rows).map(|r| x.row(r).iter().map(|&x| f64::from(x)).collect()).collect();
            let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;

            cpu.rms_norm(&mut out, &x, &weight, 1e-5);
            check(&format!("{isa} rms_norm"), &out, |r, i| {
                let squares: Vec<f64> = exact[r].iter().map(|x| x * x).collect();
                let y = exact[r][i] / (mean(&squares) + f64::from(1e-5f32)).sqrt() * f64::from(weight[i]);
                (y, y.abs() * mean_roundings(width))
            });

            let before = numbers.buffer(rows, width);
            let mut added = before.clone();
            cpu.rms_norm_add(&mut added, &x, &weight, 1e-5);
            check(&format!("{isa} rms_norm_add"), &added, |r, i| {
                let squares: Vec<f64> = exact[r].iter().map(|x| x * x).collect();
                let y = exact[r][i] / (mean(&squares) + f64::from(1e-5f32)).sqrt() * f64::from(weight[i]);
                let sum = y + f64::from(before.row(r)[i]);
                (sum, y.abs() * mean_roundings(width) + sum.abs() * UNIT)
            });

            cpu.layer_norm(&mut out, &x, &weight, &bias, 1e-5);
            check(&format!("{isa} layer_norm"), &out, |r, i| {
                let centre = mean(&exact[r]);
                let squares: Vec<f64> = exact[r].iter().map(|x| (x - centre) * (x - centre)).collect();
                let scale = 1.0 / (mean(&squares) + f64::from(1e-5f32)).sqrt();
                let y = (exact[r][i] - centre) * scale * f64::from(weight[i]);
                // The error of the mean, at most that of a sum of numbers up to 1, is multiplied by `scale`.
                let tolerance = (y.abs() + scale * 2.0) * mean_roundings(width) + 2.0 * UNIT;
                (y + f64::from(bias[i]), tolerance)
            });
        }
    }
}

/// A step of these tokens at these positions.
fn step(tokens: &[TokenId], positions: &[u32]) -> CpuStep {
    let tokens = tokens.iter().copied().map(RowToken::Known).collect();
    let mut step = CpuStep::default();
    step.load(StepBatch { tokens, positions: positions.to_vec(), ..StepBatch::default() }, None);
    step
}

const HEADS: HeadLayout = HeadLayout { q_heads: 4, kv_heads: 2, head_dim: 24 };

#[test]
fn head_norms_leave_other_heads_alone() {
    for isa in Isa::available() {
        let mut cpu = Cpu::with_isa(isa);
        let mut numbers = Numbers::new(8);
        let before = numbers.buffer(3, HEADS.qkv_width());
        let weight = numbers.vec(HEADS.head_dim);
        for (kind, heads) in [(HeadKind::Query, 0..4), (HeadKind::Key, 4..6)] {
            let mut qkv = before.clone();
            cpu.head_norm(&mut qkv, HEADS, kind, &weight, 1e-6);
            check(&format!("{isa} head_norm"), &qkv, |r, i| {
                let (head, at) = (i / 24, i % 24);
                let x = f64::from(before.row(r)[i]);
                if !heads.contains(&head) {
                    return (x, 0.0);
                }
                let squares = before.row(r)[head * 24..][..24].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
                let y = x / (squares / 24.0 + f64::from(1e-6f32)).sqrt() * f64::from(weight[at]);
                (y, y.abs() * mean_roundings(24))
            });
        }
    }
}

#[test]
fn rope_rotates_the_first_elements_of_queries_and_keys() {
    for isa in Isa::available() {
        for (rotary, keys) in [(24, true), (10, true), (24, false)] {
            let mut cpu = Cpu::with_isa(isa);
            let mut numbers = Numbers::new(9);
            let (positions, half) = ([3u32, 0, 7, 7], rotary / 2);
            let table = RopeTable { rotary, keys, cos: numbers.vec(8 * half), sin: numbers.vec(8 * half) };
            let before = numbers.buffer(4, HEADS.qkv_width());
            let mut qkv = before.clone();
            cpu.rope(&mut qkv, HEADS, &table, &step(&[], &positions));
            check(&format!("{isa} rope"), &qkv, |r, i| {
                let (head, at) = (i / 24, i % 24);
                let x = |i: usize| f64::from(before.row(r)[head * 24 + i]);
                let heads = if keys { HEADS.q_heads + HEADS.kv_heads } else { HEADS.q_heads };
                if head >= heads || at >= rotary {
                    return (x(at), 0.0);
                }
                let angle = positions[r] as usize * half + at % half;
                let (cos, sin) = (f64::from(table.cos[angle]), f64::from(table.sin[angle]));
                let y = if at < half { x(at) * cos - x(at + half) * sin } else { x(at) * cos + x(at - half) * sin };
                (y, 4.0 * UNIT)
            });
        }
    }
}

/// The tanh form of gelu and the tolerance of a fast path.
fn gelu(x: f64) -> (f64, f64) {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    // The error of 1 + tanh: a rounding of numbers up to 2, and the inner sum's roundings times the slope of tanh.
    let slope = 1.0 / inner.min(300.0).cosh().powi(2);
    (0.5 * x * (1.0 + inner.tanh()), 0.5 * x.abs() * UNIT * (8.0 + 16.0 * inner.abs().min(1e6) * slope))
}

#[test]
fn sums_are_added_scaled_capped_and_rounded() {
    for isa in Isa::available() {
        for (rows, width) in SHAPES {
            let mut cpu = Cpu::with_isa(isa);
            let mut numbers = Numbers::new(width as u64 + 1);
            let (before, x) = (numbers.buffer(rows, width), numbers.buffer(rows, width));
            let at = |buffer: &CpuBuffer, r: usize, i: usize| f64::from(buffer.row(r)[i]);

            let mut sum = before.clone();
            cpu.add(&mut sum, &x);
            check(&format!("{isa} add"), &sum, |r, i| {
                let y = at(&before, r, i) + at(&x, r, i);
                (y, y.abs() * UNIT)
            });

            let mut scaled = x.clone();
            cpu.scale(&mut scaled, 0.7);
            check(&format!("{isa} scale"), &scaled, |r, i| {
                let y = at(&x, r, i) * f64::from(0.7f32);
                (y, y.abs() * UNIT)
            });

            for cap in [0.3f32, 30.0] {
                let mut capped = x.clone();
                cpu.softcap(&mut capped, cap);
                check(&format!("{isa} softcap"), &capped, |r, i| {
                    let y = f64::from(cap) * (at(&x, r, i) / f64::from(cap)).tanh();
                    // tanh from an exponential is off by some units of 1, whatever its size.
                    (y, f64::from(cap) * 4.0 * UNIT + y.abs() * 4.0 * UNIT)
                });
            }

            let mut copy = CpuBuffer::new(rows, width);
            cpu.round(&mut copy, &x);
            assert_eq!(bits(&copy.data), bits(&x.data), "{isa} round: this backend stores every buffer in f32");
        }
    }
}

#[test]
fn activations() {
    for isa in Isa::available() {
        for (rows, width) in SHAPES {
            let mut cpu = Cpu::with_isa(isa);
            let mut numbers = Numbers::new(10);
            let mut x = numbers.buffer(rows, 2 * width);
            x.data.iter_mut().for_each(|x| *x *= 12.0);
            let edges = [0.0, -0.0, -100.0, 100.0, -1e30, 1e30, -88.5, -87.0];
            x.data.iter_mut().zip(edges).for_each(|(x, edge)| *x = edge);

            let mut out = CpuBuffer::new(rows, width);
            cpu.gated(&mut out, &x, Gate::Silu);
            check(&format!("{isa} gated_silu"), &out, |r, i| {
                let (gate, up) = (f64::from(x.row(r)[i]), f64::from(x.row(r)[width + i]));
                let y = gate / (1.0 + (-gate).exp()) * up;
                // 1.5 units for the exponential and one rounding for each of the four operations. The exponential is
                // clamped at e^88, which leaves an error below |gate * up| e^-87.9 for very negative gates.
                (y, y.abs() * 8.0 * UNIT + (gate * up).abs() * (-87.9f64).exp())
            });

            cpu.gated(&mut out, &x, Gate::Clamped);
            check(&format!("{isa} gated_clamped"), &out, |r, i| {
                let (gate, up) = (f64::from(x.row(r)[i]), f64::from(x.row(r)[width + i]));
                let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
                let inner = f64::from(Gate::SLOPE) * gate;
                let y = gate / (1.0 + (-inner).exp()) * (up + 1.0);
                // As for silu; a rounding of the exponent's argument, which is as large as itself, and of `up + 1`, which
                // may be near zero.
                let tolerance = y.abs() * (8.0 + inner.abs().min(90.0)) * UNIT + gate.abs() * UNIT;
                (y, tolerance + (gate * (up + 1.0)).abs() * (-87.9f64).exp())
            });

            cpu.gated(&mut out, &x, Gate::Gelu);
            check(&format!("{isa} gated_gelu"), &out, |r, i| {
                let (value, tolerance) = gelu(f64::from(x.row(r)[i]));
                let up = f64::from(x.row(r)[width + i]);
                (value * up, (tolerance + value.abs() * UNIT) * up.abs())
            });

            let mut times =
                CpuBuffer { rows, width, data: (0..rows).flat_map(|r| x.row(r)[..width].to_vec()).collect() };
            let wide = numbers.buffer(rows, width + 3);
            cpu.gelu_times(&mut times, &wide, 3);
            check(&format!("{isa} gelu_times"), &times, |r, i| {
                let (value, tolerance) = gelu(f64::from(x.row(r)[i]));
                let by = f64::from(wide.row(r)[3 + i]);
                (value * by, (tolerance + value.abs() * UNIT) * by.abs())
            });

            let mut y = x.clone();
            cpu.gelu(&mut y);
            check(&format!("{isa} gelu"), &y, |r, i| gelu(f64::from(x.row(r)[i])));
        }
    }
}
