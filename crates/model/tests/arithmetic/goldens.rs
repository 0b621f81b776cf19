//! Compares models with results of Hugging Face's transformers, on every code path of this processor. A small golden
//! model of each family is in tests/data; larger ones and two small trained models are tested if ../shared exists.

use crate::shared;

use std::path::{Path, PathBuf};

use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check::{self, GoldenReport};
use offshoot_model::{Decoder, ModelFolder};
use shared::shared;
use tempfile::TempDir;

pub fn folders(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn compare(isa: Isa, folder: &Path, golden: &str) -> GoldenReport {
    let mut backend = Cpu::with_isa(isa);
    let folder = ModelFolder::open(folder).unwrap();
    let mut model = Decoder::load(&mut backend, &folder).unwrap();
    let report = check::golden(&mut backend, &mut model, &folder.path.join(golden)).unwrap();
    println!("{isa}, {}\n{report}", folder.path.display());
    report
}

fn compare_shared(style: &str) {
    let Some(root) = shared(&format!("goldens/{style}")) else { return };
    let folders = folders(&root);
    assert_eq!(folders.len(), 6, "six families");
    for isa in Isa::available() {
        for folder in &folders {
            assert!(compare(isa, folder, "golden.json").passes(), "{isa}: {}", folder.display());
        }
    }
}

/// A copy of a golden model of tests/data, with the config.json in this style.
pub fn in_style(golden: &Path, style: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let copy = |from: &str, to: &str| std::fs::copy(golden.join(from), folder.path().join(to)).unwrap();
    copy(&format!("config.{style}.json"), "config.json");
    copy("model.safetensors", "model.safetensors");
    copy("golden.json", "golden.json");
    folder
}

#[test]
fn the_goldens_of_this_repository() {
    let goldens = folders(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens"));
    let mut families = Vec::new();
    for golden in &goldens {
        let styles = ["rope_scaling", "rope_parameters"];
        for style in styles.into_iter().filter(|style| golden.join(format!("config.{style}.json")).exists()) {
            let folder = in_style(golden, style);
            families.push(ModelFolder::open(folder.path()).unwrap().config.family.to_string());
            for isa in Isa::available() {
                let passes = compare(isa, folder.path(), "golden.json").passes();
                assert!(passes, "{isa}: {}, {style}", golden.display());
            }
        }
    }
    families.sort();
    families.dedup();
    let all = "gemma2 gemma3 gemma4 gpt_oss llama ministral3 mistral mixtral olmo2 olmo3 phi phi3 qwen2 qwen3 \
               qwen3_moe sarvam_mla smollm3";
    assert_eq!(families.join(" "), all);
}

#[test]
fn rope_scaling_style() {
    compare_shared("rope_scaling_style");
}

#[test]
fn rope_parameters_style() {
    compare_shared("rope_parameters_style");
}

#[test]
fn families_of_today() {
    let Some(root) = shared("goldens_modern") else { return };
    let families = [
        "gemma2",
        "gemma3",
        "gemma4",
        "gemma4-ple",
        "gpt-oss",
        "mixtral",
        "olmo3",
        "phi3",
        "qwen3-moe",
        "qwen3-next",
        "qwen3_5-dense",
        "qwen3_5-in-vision",
        "qwen3_5-moe",
        "smollm3",
    ];
    for isa in Isa::available() {
        for family in families {
            assert!(compare(isa, &root.join(family), "golden.json").passes(), "{isa}: {family}");
        }
    }
}

/// Configs as transformers writes them, or reads them, that say the same in another way: keys of layers with zeros
/// before them, windows by `layer_types` alone.
#[test]
fn configs_in_other_words() {
    let Some(root) = shared("cases/models") else { return };
    for isa in Isa::available() {
        for name in ["gemma4-12-layers", "smollm3-usefalse"] {
            assert!(compare(isa, &root.join(name), "golden.json").passes(), "{isa}: {name}");
        }
    }
}

#[test]
fn trained_models() {
    let Some(root) = shared("data/models") else { return };
    for isa in Isa::available() {
        for folder in folders(&root) {
            assert!(compare(isa, &folder, "golden_greedy.json").passes(), "{isa}: {}", folder.display());
        }
    }
}
