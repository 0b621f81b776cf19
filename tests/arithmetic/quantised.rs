//! Quantised checkpoints against transformers, which dequantises their weights in f32 and rounds no activation.

use crate::shared;

use std::path::{Path, PathBuf};

use offshoot::backend::Dtype;
use offshoot::backend::cpu::{Cpu, Isa};
use offshoot::model::check::{self, GoldenReport};
use offshoot::model::{ActivationChoice, Decoder, ModelFolder, WeightChoice};
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
