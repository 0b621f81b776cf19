//! Quantised checkpoints against transformers, which dequantises their weights in f32 and rounds no activation.

use crate::shared;

use std::path::{Path, PathBuf};

use offshoot_backend::Dtype;
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check::{self, GoldenReport};
use offshoot_model::{ActivationChoice, Decoder, MadeFormat, ModelFolder, Sequence, WeightChoice};
use shared::shared;

/// `compute`: the compute dtype; `None`: the checkpoint's.
fn compare(isa: Isa, folder: &Path, compute: Option<Dtype>, choice: WeightChoice) -> GoldenReport {
    let mut backend = Cpu::with_isa(isa);
    let mut folder = ModelFolder::open(folder).unwrap().with(choice).unwrap();
    folder.config.compute = compute;
    let mut model = Decoder::load(&mut backend, &folder).unwrap();
    let report = check::golden(&mut backend, &mut model, &folder.path.join("golden.json")).unwrap();
    println!("{isa}, {}\n{report}", folder.path.display());
    report
}

const EXACT: WeightChoice = WeightChoice { weights: None, activations: ActivationChoice::Bf16 };

fn goldens(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let is_quantised = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("quant-");
    let mut folders: Vec<PathBuf> = entries.filter(is_quantised).collect();
    folders.sort();
    folders
}

/// Written by compressed-tensors itself (tests/data/make_quantised.py).
#[test]
fn forms_of_compressed_tensors_equal_transformers_where_no_activation_is_rounded() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/quantised");
    for form in ["int4-groups", "int4-channels", "int8-channels", "fp8-channels"] {
        for isa in Isa::available() {
            assert!(compare(isa, &root.join(form), None, EXACT).passes(), "{isa}: {form}");
        }
    }
}

#[test]
fn published_forms_equal_transformers_where_no_activation_is_rounded() {
    let Some(root) = shared("goldens_modern") else { return };
    let folders = goldens(&root);
    assert_eq!(folders.len(), 6, "six published forms");
    for isa in Isa::available() {
        for folder in &folders {
            assert!(compare(isa, folder, Some(Dtype::F32), EXACT).passes(), "{isa}: {}", folder.display());
        }
    }
}

/// Within what rounded activations may differ by, and in fact by more than anything else explains.
#[test]
fn published_forms_with_rounded_activations_are_within_what_rounding_explains() {
    let Some(root) = shared("goldens_modern") else { return };
    let rounded: Vec<_> =
        goldens(&root).into_iter().filter(|folder| folder.to_str().unwrap().contains("fp8")).collect();
    assert_eq!(rounded.len(), 3, "forms of FP8");
    for isa in Isa::available() {
        for folder in &rounded {
            let report = compare(isa, folder, Some(Dtype::F32), WeightChoice::default());
            assert!(report.passes(), "{isa}: {}", folder.display());
            assert!(report.cases.iter().all(|case| case.logits > 1e-2), "{isa}: {}", folder.display());
        }
    }
}

/// A model of this repository in f32 with its weights made smaller: what each path computes is compared with the clear
/// loops on the same codes.
fn made(format: MadeFormat, activations: ActivationChoice) {
    let choice = WeightChoice { weights: Some(format), activations };
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens");
    for name in ["qwen3-qknorm", "qwen3-moe", "gpt-oss-sinks"] {
        let folder = tempfile::TempDir::new().unwrap();
        for (from, to) in [("config.rope_parameters.json", "config.json"), ("model.safetensors", "model.safetensors")] {
            std::fs::copy(root.join(name).join(from), folder.path().join(to)).unwrap();
        }
        let logits = |isa: Isa, rows: usize| {
            let mut backend = Cpu::with_isa(isa);
            let opened = ModelFolder::open(folder.path()).unwrap().with(choice).unwrap();
            let mut model = Decoder::load(&mut backend, &opened).unwrap();
            let tokens: Vec<TokenId> = (0..40).map(|i| TokenId::new(3 + i * 7 % 90)).collect();
            let mut sequence = Sequence::new(&mut backend, &mut model, tokens.len()).unwrap();
            let mut logits = Vec::new();
            for chunk in tokens.chunks(rows) {
                logits.extend(sequence.extend(chunk, 0..chunk.len() as u32).unwrap());
            }
            logits
        };
        let clear = logits(Isa::Portable, 40);
        let scale = clear.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for isa in Isa::available() {
            let one_by_one = logits(isa, 1);
            for rows in [7, 13, 40] {
                assert!(logits(isa, rows) == one_by_one, "{isa}, {name}: {format} in steps of {rows} rows");
            }
            // Sums of f32 in another order, as for goldens: 1e-3 at logits up to 20. Where activations are rounded,
            // such a difference can move one to the next code: by half a step, 2^-4 of e4m3 or 1/127 of int8.
            let step = match (format, activations) {
                (_, ActivationChoice::Bf16) | (MadeFormat::Int4, _) => 1.0 / 20_000.0,
                (MadeFormat::Int8, _) => 1.0 / 127.0,
                (MadeFormat::Fp8, _) => 1.0 / 16.0,
            };
            let tolerance = scale.max(1.0) * step;
            let error = one_by_one.iter().zip(&clear).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            println!("{isa}, {name}, {format}: {error:.2e} of at most {tolerance:.2e}");
            assert!(error <= tolerance, "{isa}, {name}, {format}: {error} beyond {tolerance}");
        }
    }
}

#[test]
fn weights_made_at_load_give_the_same_on_every_path_and_in_steps_of_any_size() {
    for format in [MadeFormat::Fp8, MadeFormat::Int8, MadeFormat::Int4] {
        for activations in [ActivationChoice::Format, ActivationChoice::Bf16] {
            made(format, activations);
        }
    }
}

#[test]
fn published_forms_are_the_same_in_steps_of_any_size() {
    let Some(root) = shared("goldens_modern") else { return };
    for folder in goldens(&root) {
        for isa in Isa::available() {
            let logits = |rows: usize| {
                let mut backend = Cpu::with_isa(isa);
                let opened = ModelFolder::open(&folder).unwrap();
                let mut model = Decoder::load(&mut backend, &opened).unwrap();
                let tokens: Vec<TokenId> = (0..30).map(|i| TokenId::new(3 + i * 7 % 300)).collect();
                let mut sequence = Sequence::new(&mut backend, &mut model, tokens.len()).unwrap();
                let chunks = tokens.chunks(rows);
                chunks.flat_map(|chunk| sequence.extend(chunk, 0..chunk.len() as u32).unwrap()).collect::<Vec<f32>>()
            };
            assert!(logits(1) == logits(11), "{isa}: {}", folder.display());
        }
    }
}

/// With activations rounded as the checkpoints say.
///
/// A rounded activation is off by at most half a step: 2^-4 of itself for e4m3, with a deviation of 0.58 of that
/// (uniform within a step, and most numbers lie above the middle of their power of two, so less). Four linear inputs a
/// layer, added up like a random walk, make `2^-4 * 0.58 * sqrt(4 * layers)` of the largest logit; the head is not
/// rounded.
#[test]
fn rounded_activations_stay_within_what_their_rounding_allows() {
    let Some(root) = shared("goldens_modern") else { return };
    for name in ["quant-fp8-block", "quant-fp8-channel", "quant-fp8-tensor"] {
        let text = std::fs::read_to_string(root.join(name).join("golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
        let logits = golden["last_logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().abs());
        let scale = logits.fold(0.0, f64::max);
        let bound = scale * 0.58 / 16.0 * f64::sqrt(4.0 * 2.0);
        for isa in Isa::available() {
            let report = compare(isa, &root.join(name), Some(Dtype::F32), WeightChoice::default());
            let error = f64::from(report.cases[0].logits);
            assert!(error > 1e-4, "{isa}: {name}: activations are rounded, yet logits differ by {error}");
            assert!(error <= bound, "{isa}: {name}: {error} beyond {bound}");
        }
    }
}
