//! The golden models of every family, both rope styles, under every instruction set of this processor; and the two small
//! models trained by others.

use std::path::{Path, PathBuf};

use offshoot::backend::cpu::{Cpu, Isa};
use offshoot::model::check::{self, GoldenReport};
use offshoot::model::{Decoder, ModelFolder};

/// Data that is not part of the repository; `None` (with a line that says so) where it is absent.
fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("OFFSHOOT_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let path = root.join(path);
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: ../shared is not here");
    None
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn hold(isa: Isa, folder: &Path, golden: &str) -> GoldenReport {
    let mut backend = Cpu::with_isa(isa);
    let folder = ModelFolder::open(folder).unwrap();
    let mut model = Decoder::load(&mut backend, &folder).unwrap();
    let report = check::golden(&mut backend, &mut model, &folder.path.join(golden)).unwrap();
    println!("{isa}, {}\n{report}", folder.path.display());
    report
}

fn hold_all(style: &str) {
    let Some(root) = shared(&format!("goldens/{style}")) else { return };
    let folders = folders(&root);
    assert_eq!(folders.len(), 6, "six families");
    for isa in Isa::available() {
        for folder in &folders {
            assert!(hold(isa, folder, "golden.json").passes(), "{isa}: {}", folder.display());
        }
    }
}

#[test]
fn rope_scaling_style() {
    hold_all("rope_scaling_style");
}

#[test]
fn rope_parameters_style() {
    hold_all("rope_parameters_style");
}

#[test]
fn models_of_others() {
    let Some(root) = shared("data/models") else { return };
    for isa in Isa::available() {
        for folder in folders(&root) {
            assert!(hold(isa, &folder, "golden_greedy.json").passes(), "{isa}: {}", folder.display());
        }
    }
}
