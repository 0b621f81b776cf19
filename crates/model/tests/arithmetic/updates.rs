//! Weights that change in a loaded model: after an update the results are those of a model that was loaded anew, bit for
//! bit, whatever was loaded before; a refused update changes nothing.

use crate::shared::shared;
use crate::skip::skipped;

use std::path::{Path, PathBuf};

use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_model::{
    Decoder, ModelFolder, ModelWeights, Sequence, TensorFolder, TensorSource, TensorsInMemory, UpdateScope,
};
use tempfile::TempDir;

/// The bits of all logits of a short text.
fn logits(cpu: &mut Cpu, model: &mut Decoder<Cpu>) -> Vec<u32> {
    let vocab = model.config().vocab;
    let tokens: Vec<TokenId> = (0..9).map(|i| TokenId::new((i * 7 + 3) % vocab)).collect();
    let mut sequence = Sequence::new(cpu, model, tokens.len()).unwrap();
    sequence.extend(&tokens, 0..9).unwrap().into_iter().map(f32::to_bits).collect()
}

fn update(cpu: &mut Cpu, model: &mut Decoder<Cpu>, source: &dyn TensorSource, scope: UpdateScope) {
    let form = model.weight_form();
    model.update(cpu, &form.check(source, scope).unwrap()).unwrap();
}

/// The tensors of a source that `chosen` names, as memory.
fn in_memory<'a>(source: &'a dyn TensorSource, chosen: impl Fn(&str) -> bool) -> TensorsInMemory<'a> {
    let mut tensors = TensorsInMemory::default();
    for name in source.names().into_iter().filter(|name| chosen(name)) {
        let tensor = source.tensor(name).unwrap();
        tensors.add(name, tensor.dtype, tensor.shape.to_vec(), tensor.bytes).unwrap();
    }
    tensors
}

/// The golden models of this repository and, where it is there, of ../shared, which this version reads.
fn goldens() -> (Vec<PathBuf>, Vec<TempDir>) {
    let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens");
    let styles = ["rope_parameters", "rope_scaling"];
    let in_style = |golden: &PathBuf| {
        let style = styles.into_iter().find(|style| golden.join(format!("config.{style}.json")).exists());
        super::goldens::in_style(golden, style.expect("a golden has a config"))
    };
    let kept: Vec<TempDir> = super::goldens::folders(&own).iter().map(in_style).collect();
    let mut folders: Vec<PathBuf> = kept.iter().map(|folder| folder.path().to_path_buf()).collect();
    for root in ["goldens/rope_parameters_style", "goldens/rope_scaling_style", "goldens_modern", "goldens_2026"] {
        folders.extend(shared(root).iter().flat_map(|root| super::goldens::folders(root)));
    }
    (folders, kept)
}

#[test]
fn an_update_of_random_weights_gives_the_bits_of_a_fresh_load_in_every_family() {
    let (folders, _kept) = goldens();
    let mut tried = 0;
    for path in &folders {
        let Ok(folder) = ModelFolder::open(path) else { continue };
        let weights = ModelWeights::open(&folder).unwrap();
        let mut cpu = Cpu::open().unwrap();
        let mut fresh = Decoder::of(&mut cpu, &weights).unwrap();
        let expected = logits(&mut cpu, &mut fresh);
        let mut model = Decoder::random(&mut cpu, weights.config().clone(), weights.dtype(), 7).unwrap();
        assert_ne!(logits(&mut cpu, &mut model), expected, "{}", path.display());
        let source = TensorFolder::open(path).unwrap();
        update(&mut cpu, &mut model, &source, UpdateScope::Whole);
        assert!(logits(&mut cpu, &mut model) == expected, "{}", path.display());
        // Once more over the same weights, and from memory.
        update(&mut cpu, &mut model, &in_memory(&source, |_| true), UpdateScope::Whole);
        assert!(logits(&mut cpu, &mut model) == expected, "{}", path.display());
        tried += 1;
    }
    println!("{tried} golden models");
    if tried < 30 {
        skipped("golden models of ../shared");
    }
}

#[test]
fn tensors_that_come_one_by_one_give_the_bits_of_a_fresh_load() {
    let (folders, _kept) = goldens();
    for path in &folders {
        let Ok(folder) = ModelFolder::open(path) else { continue };
        let weights = ModelWeights::open(&folder).unwrap();
        let (config, dtype) = (weights.config().clone(), weights.dtype());
        if config.quantisation.is_some() {
            continue;
        }
        let mut cpu = Cpu::open().unwrap();
        let mut fresh = Decoder::of(&mut cpu, &weights).unwrap();
        let expected = logits(&mut cpu, &mut fresh);
        let mut model = Decoder::random(&mut cpu, config, dtype, 7).unwrap();
        let source = TensorFolder::open(path).unwrap();
        let mut names = source.names();
        names.sort_unstable_by_key(|name| name.bytes().rev().collect::<Vec<_>>());
        for name in names {
            if name.ends_with("lm_head.weight") && model.config().tied_embeddings {
                continue;
            }
            let one = in_memory(&source, |other| other == name);
            let form = model.weight_form();
            match form.check(&one, UpdateScope::Changed) {
                Ok(checked) => model.update(&mut cpu, &checked).unwrap(),
                // Of another part of a wrapper.
                Err(error) => assert!(error.to_string().contains("others alone"), "{}: {error}", path.display()),
            }
        }
        assert!(logits(&mut cpu, &mut model) == expected, "{}", path.display());
    }
}
