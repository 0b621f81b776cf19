//! GGUF files: blocks against what the `gguf` package makes of them, whole models against transformers, quantised
//! models against the same weights in f32.

use std::path::Path;

use crate::gguf_files::{GgufWriter, golden};
use crate::shared::shared;
use offshoot_backend::{
    ActivationDtype, Backend, BlockView, Dtype, MatrixPart, OutputMode, RoundingKind, WeightFormat,
};
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, CpuBuffer, Isa};
use offshoot_gguf::{Gguf, TensorType};
use offshoot_model::{Decoder, ModelFolder, Sequence, check};
use serde_json::json;
use tempfile::TempDir;

const QUANTISED: [TensorType; 13] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2K,
    TensorType::Q3K,
    TensorType::Q4K,
    TensorType::Q5K,
    TensorType::Q6K,
    TensorType::Iq4Nl,
    TensorType::Iq4Xs,
    TensorType::Mxfp4,
];

#[test]
fn blocks_are_what_the_gguf_package_reads() {
    let files = ["blocks.gguf", "more-blocks.gguf"].map(|name| Gguf::open(&golden(name)).unwrap());
    for kind in QUANTISED.into_iter().chain([TensorType::Bf16]) {
        let file = files.iter().find(|file| file.tensor(kind.name()).is_some()).unwrap();
        let (_, tensor) = file.tensor(kind.name()).unwrap();
        assert_eq!((tensor.kind, &tensor.shape[..]), (kind, &[2, 512][..]));
        let bits = |name: &str| file.values(name).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(kind.name()), bits(&format!("{kind}.values")), "{kind}");
    }
}

/// `golden_folder`: of tests/data/goldens.
fn compare(file: &Path, golden_folder: &str) {
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("tests/data/goldens")
        .join(golden_folder)
        .join("golden.json");
    for isa in Isa::available() {
        let mut backend = Cpu::with_isa(isa);
        let mut model = Decoder::load(&mut backend, &ModelFolder::open(file).unwrap()).unwrap();
        let report = check::golden(&mut backend, &mut model, &golden).unwrap();
        assert!(report.passes(), "{isa}: {report}");
    }
}

/// Rows of queries and keys in pairs, factors of wavelengths.
#[test]
fn a_llama_is_what_transformers_computes() {
    compare(&golden("llama3.gguf"), "llama3-gqa-ropescaled");
}

/// Experts in one tensor for each matrix, biases of experts, sinks, windows by layer.
#[test]
fn a_mixture_is_what_transformers_computes() {
    compare(&golden("gpt-oss.gguf"), "gpt-oss-sinks");
}

/// Blocks are multiplied by activations that are rounded to int8, which golden values of unrounded ones allow for; more
/// than that they do not.
#[test]
fn golden_values_allow_for_rounded_activations() {
    // One token attends to itself alone: rounding does not change whom a row attends to.
    let tokens = [TokenId(9)];
    let exact = model(TensorType::Q8_0, TensorType::Q8_0, true);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("golden.json");
    let quantised = folder.path().join("model.gguf");
    std::fs::write(&quantised, model(TensorType::Q8_0, TensorType::Q8_0, false).bytes()).unwrap();
    let last = &logits(&exact, None, &tokens)[..];
    let best = (0..VOCAB).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    let passes = |last: &[f32], dtype: Option<Dtype>| {
        let golden = json!({"prompt": [tokens[0].0], "last_logits": last, "prompt_logprobs": [], "greedy": [best]});
        std::fs::write(&path, golden.to_string()).unwrap();
        let mut opened = ModelFolder::open(&quantised).unwrap();
        opened.dtype = dtype;
        let mut backend = Cpu::open().unwrap();
        let mut model = Decoder::load(&mut backend, &opened).unwrap();
        let report = check::golden(&mut backend, &mut model, &path).unwrap();
        println!("{dtype:?}\n{report}");
        (report.passes(), report.rounding, report.cases[0].tolerance)
    };
    let (holds, rounding, allowed) = passes(last, None);
    assert!(holds && rounding == Some(RoundingKind::Int8));
    let (holds, rounding, narrow) = passes(last, Some(Dtype::F32));
    assert!(holds && rounding.is_none() && narrow < allowed, "{narrow} and {allowed}");
    let mut wrong = last.to_vec();
    wrong[3] += 2.0 * allowed;
    assert!(!passes(&wrong, None).0);
}

/// The models of others, compared with transformers' logits.
#[test]
fn a_published_quantisation_passes_its_golden() {
    let Some(golden) = shared("cases/models/Q8_0.golden.json") else { return };
    for isa in Isa::available() {
        let mut backend = Cpu::with_isa(isa);
        let file = ModelFolder::open(golden.with_file_name("Q8_0.gguf")).unwrap();
        let mut model = Decoder::load(&mut backend, &file).unwrap();
        let report = check::golden(&mut backend, &mut model, &golden).unwrap();
        assert!(report.passes(), "{isa}: {report}");
    }
}

/// Blocks of random codes, whose numbers are mostly below 1.
fn blocks(kind: TensorType, rows: usize, cols: usize, seed: u64) -> Vec<u8> {
    let bytes = rows * kind.row_bytes(cols);
    let mut dice = Dice::new(seed);
    let mut bytes: Vec<u8> = (0..bytes).map(|_| dice.next() as u8).collect();
    let put = |block: &mut [u8], at: usize, value: f32| {
        block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
    };
    for (i, block) in bytes.chunks_exact_mut(kind.block_bytes()).enumerate() {
        let scale = 0.5 + (i % 7) as f32 / 7.0;
        match kind {
            TensorType::Q4_0 | TensorType::Q5_0 => put(block, 0, scale / 16.0),
            TensorType::Q8_0 => put(block, 0, scale / 128.0),
            TensorType::Q4_1 | TensorType::Q5_1 => {
                put(block, 0, scale / 16.0);
                put(block, 2, -scale / 2.0);
            }
            TensorType::Q4K | TensorType::Q5K => {
                put(block, 0, scale / 500.0);
                put(block, 2, scale / 50.0);
            }
            TensorType::Q2K => {
                put(block, 80, scale / 24.0);
                put(block, 82, scale / 16.0);
            }
            TensorType::Q3K => put(block, 108, scale / 100.0),
            TensorType::Q6K => put(block, 208, scale / 2000.0),
            TensorType::Iq4Nl => put(block, 0, scale / 128.0),
            TensorType::Iq4Xs => put(block, 0, scale / 2000.0),
            TensorType::Mxfp4 => block[0] = 124 + (i % 3) as u8,
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => unreachable!("not quantised"),
        }
    }
    bytes
}

fn activations(rows: usize, cols: usize) -> Vec<f32> {
    Dice::new(77).numbers(rows * cols)
}

fn product(backend: &mut Cpu, x: &[f32], cols: usize, view: BlockView<'_>) -> Vec<f32> {
    let matrix = backend.matrix(&[MatrixPart::Blocks(view)]).unwrap();
    let rows = x.len() / cols;
    let x = CpuBuffer { rows, width: cols, data: x.to_vec() };
    let mut out = backend.buffer(view.rows, ActivationDtype::Sums).unwrap();
    backend.resize(&mut out, rows).unwrap();
    backend.linear(&mut out, &x, &matrix, None, OutputMode::Replace);
    out.data
}

/// Each product against one of the decoded numbers in f64, rounded or not, on every code path; all paths compute the
/// same bits, and a row's do not depend on the others.
#[test]
fn products_of_blocks() {
    const ROWS: usize = 13;
    const OUTPUTS: usize = 40;
    const COLS: usize = 512;
    let x = activations(ROWS, COLS);
    for (kind, exact) in QUANTISED.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let bytes = blocks(kind, OUTPUTS, COLS, kind.number().into());
        let view = BlockView { kind, rows: OUTPUTS, cols: COLS, bytes: &bytes, exact };
        let mut weights = vec![0.0; OUTPUTS * COLS];
        kind.decode(&bytes, &mut weights);
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let mut backend = Cpu::with_isa(isa);
            let found = product(&mut backend, &x, COLS, view);
            for (r, found) in found.chunks_exact(OUTPUTS).enumerate() {
                for (o, found) in found.iter().enumerate() {
                    let (w, x) = (&weights[o * COLS..][..COLS], &x[r * COLS..][..COLS]);
                    let sum: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    // Unrounded: a chain of as many products as inputs. Rounded: one of two sums for each 16 inputs at
                    // most. Each term's own factors were rounded up to four times. A term is no larger than a weight
                    // and its smallest value, which is at most 2 here, times an activation.
                    let steps = if exact { COLS + 4 } else { COLS / 16 * 2 + 4 };
                    let magnitude: f64 = w.iter().zip(x).map(|(w, x)| f64::from((w.abs() + 4.0) * x.abs())).sum();
                    let mut tolerance = steps as f64 * Dtype::F32.rounding() * magnitude;
                    if !exact {
                        // Each activation is off by half a step: the largest of its 32 neighbours, at most 1, by 127.
                        tolerance += w.iter().map(|w| f64::from(w.abs())).sum::<f64>() * 0.5 / 127.0;
                    }
                    assert!((f64::from(*found) - sum).abs() <= tolerance, "{kind} {isa} {exact}: {found} for {sum}");
                }
                let alone = product(&mut backend, &x[r * COLS..][..COLS], COLS, view);
                assert_eq!(alone, *found, "{kind} {isa}: row {r} alone");
            }
            assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{kind}: {isa} and the first path");
        }
    }
}

const HIDDEN: usize = 256;
const VOCAB: usize = 32;
/// Matrices of a layer and their shapes.
const MATRICES: [(&str, [usize; 2]); 7] = [
    ("attn_q", [64, HIDDEN]),
    ("attn_k", [32, HIDDEN]),
    ("attn_v", [32, HIDDEN]),
    ("attn_output", [HIDDEN, 64]),
    ("ffn_gate", [HIDDEN, HIDDEN]),
    ("ffn_up", [HIDDEN, HIDDEN]),
    ("ffn_down", [HIDDEN, HIDDEN]),
];

/// A llama of one layer with matrices of `kind`, values of `mixed` (a mixture of types within one stack, as K-quants
/// have) and an output layer that is the embedding table; or the same numbers in f32.
fn model(kind: TensorType, mixed: TensorType, decoded: bool) -> GgufWriter {
    let mut writer = GgufWriter::default()
        .text("general.architecture", "llama")
        .count("llama.block_count", 1)
        .count("llama.context_length", 128)
        .count("llama.embedding_length", HIDDEN as u32)
        .count("llama.feed_forward_length", HIDDEN as u32)
        .count("llama.attention.head_count", 4)
        .count("llama.attention.head_count_kv", 2)
        .count("llama.attention.key_length", 16)
        .count("llama.attention.value_length", 16)
        .number("llama.rope.freq_base", 10_000.0)
        .number("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let mut matrix = |name: &str, [rows, cols]: [usize; 2], seed: u64| {
        let kind = match name {
            "blk.0.attn_v.weight" => mixed,
            _ if cols % kind.block_elements() != 0 => TensorType::Q8_0,
            _ => kind,
        };
        let bytes = blocks(kind, rows, cols, seed);
        let mut values = vec![0.0; rows * cols];
        kind.decode(&bytes, &mut values);
        let own = std::mem::take(&mut writer);
        writer = match decoded {
            true => own.f32(name, &[rows, cols], &values),
            false => own.tensor(name, &[rows, cols], kind, bytes),
        };
    };
    matrix("token_embd.weight", [VOCAB, HIDDEN], 1);
    for (seed, (name, shape)) in MATRICES.into_iter().enumerate() {
        matrix(&format!("blk.0.{name}.weight"), shape, 2 + seed as u64);
    }
    for name in ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        writer = writer.f32(name, &[HIDDEN], &[1.0; HIDDEN]);
    }
    writer
}

fn logits(file: &GgufWriter, dtype: Option<Dtype>, tokens: &[TokenId]) -> Vec<f32> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let mut folder = ModelFolder::open(&path).unwrap();
    folder.dtype = dtype;
    let mut backend = Cpu::open().unwrap();
    let mut model = Decoder::load(&mut backend, &folder).unwrap();
    let mut sequence = Sequence::new(&mut backend, &mut model, tokens.len()).unwrap();
    sequence.extend(tokens, 0..tokens.len() as u32).unwrap()
}

/// Quantised models that round no activation, against the same numbers in f32; and rounded, not far from them.
#[test]
fn quantised_models_are_their_numbers() {
    let tokens: Vec<TokenId> = (0..20).map(|i| TokenId::new(i * 7 % VOCAB)).collect();
    for (kind, mixed) in QUANTISED.into_iter().zip(QUANTISED.into_iter().rev()) {
        let expected = logits(&model(kind, mixed, true), None, &tokens);
        let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let furthest = |found: &[f32]| {
            assert_eq!(found.len(), expected.len());
            found.iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()))
        };
        let exact = furthest(&logits(&model(kind, mixed, false), Some(Dtype::F32), &tokens));
        assert!(exact <= 1e-3 * largest.max(1.0), "{kind} and {mixed}: {exact} of {largest}");
        // A rounding of int8 is 1/254 of a block's largest number at most: a few percent of the logits behind two
        // layers. Where it changes whom a row attends to, single logits may move further.
        let rounded = logits(&model(kind, mixed, false), None, &tokens);
        let root = |squares: f32| (squares / expected.len() as f32).sqrt();
        let mean = root(rounded.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum());
        let size = root(expected.iter().map(|x| x.powi(2)).sum());
        let most = furthest(&rounded);
        println!("{kind} and {mixed}: {mean} of {size}, at most {most} of {largest}");
        assert!(mean > 0.0 && mean <= 0.1 * size, "{kind} and {mixed}: {mean} of {size}");
        assert!(most <= 0.25 * largest, "{kind} and {mixed}: {most} of {largest}");
    }
}

#[test]
fn a_model_is_as_large_as_its_blocks() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, model(TensorType::Q4K, TensorType::Q6K, false).bytes()).unwrap();
    let folder = ModelFolder::open(&path).unwrap();
    let facts = check::facts(&folder).unwrap();
    assert_eq!(folder.config.weight_bytes(facts.dtype), facts.stored.bytes);
    assert_eq!(facts.stored.dtypes["Q6_K"], 1);
    let embed = folder.config.formats["model.embed_tokens.weight"];
    assert_eq!((embed, embed.to_string()), (WeightFormat::Blocks(TensorType::Q4K), "Q4_K".to_owned()));
}
