//! The CUDA backend's products, weights and KV pages against plain loops, on a machine with a GPU; without one, each
//! test says so and passes. The ops of `Backend` are checked by `offshoot-lab check --device cuda` as well; what only
//! these tests see is how bytes travel.

use std::time::Duration;

use offshoot_backend::{Dtype, HeadLayout, KvShape, MatrixPart, RandomWeight, Uniform, WeightFormat, WeightView};
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_cuda::attention::device_plan::WHOLE;
use offshoot_cuda::compile::elements::KvElement;
use offshoot_cuda::driver::device::Device;
use offshoot_cuda::gemm::Gemm;
use offshoot_cuda::gemm::chooser::AlgorithmPolicy;
use offshoot_cuda::memory::buffer::Buffer;
use offshoot_cuda::memory::kv::{self, Kv, SlotWords, slot_word};
use offshoot_cuda::memory::staging::Staging;
use offshoot_cuda::memory::weights::{Matrix, Vector, WeightLoader};
use offshoot_cuda::ops::Ops;
use offshoot_kv::KvSlot;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

fn device() -> Option<Device> {
    Device::open(0).map_err(|error| crate::skip::skipped(format_args!("{error}"))).ok()
}

/// Numbers within 1 of zero.
fn numbers(stream: u64) -> Uniform {
    Uniform { stream, centre: 0.0, reach: 1.0 }
}

/// `count` of them as they would lie in a file.
fn bytes_of(numbers: Uniform, dtype: Dtype, count: usize) -> Vec<u8> {
    let round = |x: f32| match dtype {
        Dtype::F32 => x.to_le_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
    };
    (0..count).flat_map(|i| round(numbers.at(i))).collect()
}

fn view(dtype: Dtype, rows: usize, cols: usize, bytes: &[u8]) -> WeightView<'_> {
    WeightView { dtype, rows, cols, bytes }
}

fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let view = view(dtype, 1, bytes.len() / dtype.bytes(), bytes);
    (0..view.cols).map(|i| view.get(i)).collect()
}

fn buffer(device: &Device, rows: usize, width: usize, element: Dtype, bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(width, element);
    buffer.resize(device, rows).unwrap();
    device.upload(buffer.memory(), 0, bytes).unwrap();
    buffer
}

/// Largest relative error that rounding to `dtype` makes.
fn rounding(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => 2f32.powi(-24),
        Dtype::F16 => 2f32.powi(-11),
        Dtype::Bf16 => 2f32.powi(-8),
    }
}

struct Product {
    rows: usize,
    outputs: usize,
    inner: usize,
    element: Dtype,
    out: Dtype,
    accumulate: bool,
    bias: Option<Dtype>,
}

fn assert_product(device: &Device, gemm: &mut Gemm, product: &Product) {
    let Product { rows, outputs, inner, element, out, accumulate, bias } = *product;
    let what = format!("[{rows}, {inner}] x [{outputs}, {inner}] {element:?} -> {out:?}, {accumulate}, bias {bias:?}");
    let x = bytes_of(numbers(1), element, rows * inner);
    let w = bytes_of(numbers(2), element, outputs * inner);
    let before = bytes_of(numbers(3), out, rows * outputs);
    let bias_bytes = bias.map(|dtype| (dtype, bytes_of(numbers(4), dtype, outputs)));
    let mut loader = WeightLoader::new(device).unwrap();
    let matrix = loader.matrix(&[MatrixPart::Dense(view(element, outputs, inner, &w))], None).unwrap();
    let vector: Option<Vector> =
        bias_bytes.as_ref().map(|(dtype, bytes)| loader.vector(&[view(*dtype, 1, outputs, bytes)], None).unwrap());
    let x_buffer = buffer(device, rows, inner, element, &x);
    let out_buffer = buffer(device, rows, outputs, out, &before);
    gemm.linear(&out_buffer, &x_buffer, &matrix, vector.as_ref(), accumulate);
    device.check().unwrap();
    let got = out_buffer.read(device, rows).unwrap();
    let (x, w, before) = (widen(element, &x), widen(element, &w), widen(out, &before));
    let bias = bias_bytes.map(|(dtype, bytes)| widen(dtype, &bytes));
    for (i, &got) in got.iter().enumerate() {
        let (r, n) = (i / outputs, i % outputs);
        let terms = (0..inner).map(|k| f64::from(x[r * inner + k]) * f64::from(w[n * inner + k]));
        let added = if accumulate { f64::from(before[i]) } else { 0.0 };
        let added = added + bias.as_ref().map_or(0.0, |bias| f64::from(bias[n]));
        let exact = terms.clone().sum::<f64>() + added;
        // Sums in f32, each of `inner` terms and two more rounded at the size of the terms' absolute sum (which bounds
        // every partial sum); the result rounded at most twice.
        let size = terms.map(f64::abs).sum::<f64>() + 2.0;
        let bound = size * f64::from(rounding(Dtype::F32)) * (inner + 2) as f64;
        let bound = bound + 2.0 * f64::from(rounding(out)) * (exact.abs() + 1.0);
        assert!((f64::from(got) - exact).abs() <= bound, "{what}: out[{r}][{n}] is {got}, not {exact} within {bound}");
    }
}

#[test]
fn products_of_every_shape_equal_plain_sums() {
    let Some(device) = device() else { return };
    for element in DTYPES {
        let mut gemm = Gemm::load(&device, WeightFormat::Dense(element)).unwrap();
        // Regular; one row; the tiny models' odd widths; nothing even.
        for (rows, outputs, inner) in [(64, 256, 512), (1, 128, 64), (5, 105, 172), (3, 7, 1), (33, 43, 57)] {
            for (out, accumulate) in [(element, false), (Dtype::F32, false), (Dtype::F32, true)] {
                for bias in [None, Some(element), Some(Dtype::F32), Some(Dtype::Bf16)] {
                    assert_product(
                        &device,
                        &mut gemm,
                        &Product { rows, outputs, inner, element, out, accumulate, bias },
                    );
                }
            }
        }
    }
}

#[test]
fn the_fastest_products_equal_plain_sums() {
    let Some(device) = device() else { return };
    for element in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let mut gemm = Gemm::load(&device, WeightFormat::Dense(element)).unwrap();
        gemm.choose(AlgorithmPolicy::FastestAnew { at_most: Duration::from_secs(20) });
        // Weights large enough to be measured; few blocks and long sums, where split sums are tried.
        for (rows, outputs, inner) in [(8, 256, 4096), (40, 128, 8192), (1, 1000, 1048)] {
            for (out, accumulate) in [(element, false), (Dtype::F32, false), (Dtype::F32, true)] {
                for bias in [None, Some(element)] {
                    let product = Product { rows, outputs, inner, element, out, accumulate, bias };
                    assert_product(&device, &mut gemm, &product);
                    // Now by what was chosen, without measuring.
                    assert_product(&device, &mut gemm, &product);
                }
            }
        }
    }
}

#[test]
fn a_product_is_the_same_from_run_to_run() {
    let Some(device) = device() else { return };
    let run = || {
        let mut gemm = Gemm::load(&device, WeightFormat::Dense(Dtype::Bf16)).unwrap();
        let mut loader = WeightLoader::new(&device).unwrap();
        let w = RandomWeight::of(Dtype::Bf16, 1024, 4096, numbers(5));
        let w = loader.matrix(&[MatrixPart::Random(w)], None).unwrap();
        let x = buffer(&device, 32, 4096, Dtype::Bf16, &bytes_of(numbers(6), Dtype::Bf16, 32 * 4096));
        let out = buffer(&device, 32, 1024, Dtype::F32, &bytes_of(numbers(7), Dtype::F32, 32 * 1024));
        gemm.linear(&out, &x, &w, None, true);
        out.read(&device, 32).unwrap()
    };
    assert!(run() == run());
}

#[test]
fn matrices_are_stacked_byte_by_byte() {
    let Some(device) = device() else { return };
    // 40 MiB: more than two halves of the staging memory, with a remainder.
    let large = bytes_of(numbers(8), Dtype::Bf16, 5120 * 4096 + 4096);
    let small = bytes_of(numbers(9), Dtype::Bf16, 3 * 4096);
    let views = [view(Dtype::Bf16, 5121, 4096, &large), view(Dtype::Bf16, 3, 4096, &small)];
    let parts = views.map(MatrixPart::Dense);
    let Matrix { memory, outputs, inner, .. } = WeightLoader::new(&device).unwrap().matrix(&parts, None).unwrap();
    assert_eq!((outputs, inner), (5124, 4096));
    assert!(device.download(&memory, 0..memory.bytes()).unwrap() == [large, small].concat());
}

#[test]
fn weights_drawn_on_the_device_are_those_of_the_host() {
    let Some(device) = device() else { return };
    let around = |stream, centre, reach| Uniform { stream, centre, reach };
    let parts = [(300, around(u64::MAX - 5, 0.0, 0.03)), (7, around(12_345, 1.0, 0.1))];
    for dtype in DTYPES {
        let whole = parts.map(|(rows, numbers)| RandomWeight::of(dtype, rows, 129, numbers));
        // Whole tensors, and columns of them, which ranks have.
        for columns in [0..129, 3..131, 64..65].map(|range| range.start..range.end.min(129)) {
            let random = whole.map(|random| random.columns(columns.clone()));
            let drawn = WeightLoader::new(&device).unwrap().matrix(&random.map(MatrixPart::Random), None).unwrap();
            let expected: Vec<u8> = random.iter().flat_map(RandomWeight::generate).collect();
            let found = device.download(&drawn.memory, 0..drawn.memory.bytes()).unwrap();
            assert!(found == expected, "{dtype:?}, columns {columns:?}");
        }
    }
}

#[test]
fn pages_come_back_wherever_they_are_restored() {
    let Some(device) = device() else { return };
    let heads = HeadLayout::new(4, 2, 160);
    // 3.75 MiB a page in 96 layers: 12 pages pass in two lots.
    let shape = KvShape::uniform(96, heads, Dtype::F16, 24);
    let mut staging = Staging::new(&device).unwrap();
    let kv = Kv::new(&device, &shape, &|_| KvElement::Plain).unwrap();
    let ops = Ops::load(&device, Dtype::F16).unwrap();
    let rows = 12 * kv::PAGE_TOKENS as usize;
    let from: Vec<PageId> = (0..12).map(|i| PageId(23 - i)).collect();
    let slots: Vec<u32> = from
        .iter()
        .flat_map(|&page| (0..kv::PAGE_TOKENS).map(move |slot| slot_word(KvSlot { page, slot }, 1)))
        .collect();
    let words = device.alloc(4 * rows).unwrap();
    device.upload(&words, 0, bytemuck::cast_slice(&slots)).unwrap();
    let qkv_bytes = |layer: usize| bytes_of(numbers(layer as u64 * 1000), Dtype::F16, rows * heads.qkv_width());
    for layer in [0, 1, 95] {
        let qkv = buffer(&device, rows, heads.qkv_width(), Dtype::F16, &qkv_bytes(layer));
        let slots = SlotWords { words: (&words, 0), member: WHOLE };
        ops.kv_append(&kv, LayerIx::new(layer), &qkv, slots);
        device.check().unwrap();
    }
    let saved = kv.save(&from, &mut staging).unwrap();
    device.zero(kv.memory()).unwrap();
    let to: Vec<PageId> = (0..12).map(|i| PageId(2 * i)).collect();
    kv.restore(&saved, &to, &mut staging).unwrap();
    let (head, run) = (heads.head_dim * 2, heads.head_dim * 2 * kv::PAGE_TOKENS as usize);
    for layer in [0, 1, 95] {
        let qkv = qkv_bytes(layer);
        let at = kv.layer_at(LayerIx::new(layer));
        let stored = device
            .download(
                kv.memory(),
                at..at + 24 * kv::layer_page_bytes(kv.heads(LayerIx(0)), shape.dtype, KvElement::Plain),
            )
            .unwrap();
        for r in 0..rows {
            let (page, slot) = (to[r / 32].ix(), r % 32);
            for (i, part) in (0..4).map(|i| (i, [0, 2, 1, 3][i])) {
                // Heads lie as key 0, key 1, value 0, value 1 in a row, as key 0, value 0, key 1, value 1 in a page.
                let expected = &qkv[(r * heads.qkv_width() + (4 + i) * heads.head_dim) * 2..][..head];
                assert!(stored[(page * 4 + part) * run + slot * head..][..head] == *expected, "layer {layer}, row {r}");
            }
        }
    }
}
