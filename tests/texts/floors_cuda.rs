//! The folders of `backend/cuda` use each other only as its module doc draws: each names the folders that it may use,
//! all of which stand below it, so that no folder imports in a circle.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders and top-level files of `crates/cuda/src` from the lowest up, each with those that it may use.
const MAY_USE: [(&str, &[&str]); 19] = [
    ("discovery", &[]),
    ("compile", &["discovery"]),
    ("driver", &["compile", "discovery"]),
    ("memory", &["driver", "compile"]),
    ("ops", &["memory", "driver", "compile"]),
    ("rounding", &["memory", "driver", "compile"]),
    ("gemm", &["rounding", "memory", "driver", "compile"]),
    ("lora", &["memory", "driver", "compile"]),
    ("four_bit", &["memory", "driver", "compile"]),
    ("experts", &["four_bit", "rounding", "memory", "driver", "compile"]),
    ("attention", &["memory", "driver", "compile", "discovery"]),
    ("latents", &["attention", "ops", "memory", "driver", "compile"]),
    ("delta_rule", &["memory", "driver", "compile"]),
    ("sampling", &["memory", "driver", "compile"]),
    ("step", &["attention", "delta_rule", "sampling", "lora", "memory", "driver", "compile"]),
    // Each an `impl` of its own for `Cuda`.
    ("ranks", &["step", "attention", "gemm", "memory", "driver", "compile", "discovery"]),
    ("timing", &["step", "gemm", "driver", "compile"]),
    ("loading", &["delta_rule", "experts", "latents", "gemm", "rounding", "ops", "memory", "driver", "compile"]),
    (
        "backend",
        &[
            "loading",
            "step",
            "attention",
            "delta_rule",
            "experts",
            "latents",
            "lora",
            "gemm",
            "ops",
            "memory",
            "driver",
            "compile",
            "discovery",
        ],
    ),
];

const ROOT: &str = "crates/cuda/src";

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// The folders of cuda that `text`, the file at `inside` cuda, names: by `crate::`, or by `super::` as
/// often as it takes to reach cuda itself. `None` stands for cuda's own items.
fn folders_named(inside: &Path, text: &str) -> Vec<Option<String>> {
    let is_root_of_folder = inside.file_name().is_some_and(|name| name == "mod.rs");
    let depth = inside.components().count() - usize::from(is_root_of_folder);
    let up = "super::".repeat(depth);
    // Comments name what is elsewhere, too.
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut named = Vec::new();
    for root in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(root) {
            // Inside a longer path of `super::` this is no path to cuda.
            if code[..at].ends_with("super::") || code[..at].ends_with("in ") {
                continue;
            }
            named.extend(first_names(&code[at + root.len()..]).into_iter().map(|name| {
                let is_folder = MAY_USE.iter().any(|(folder, _)| *folder == name);
                is_folder.then_some(name)
            }));
        }
    }
    named
}

/// The first name of a path, or of each path in a list in braces.
fn first_names(path: &str) -> Vec<String> {
    let Some(list) = path.strip_prefix('{') else { return word(path).into_iter().collect() };
    let mut names = Vec::new();
    let (mut depth, mut at_start) = (0, true);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_start = true,
            letter if at_start && !letter.is_whitespace() => {
                names.extend(word(&list[at..]));
                at_start = false;
            }
            _ => {}
        }
    }
    names
}

fn word(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_string())
}

#[test]
fn every_folder_uses_only_those_drawn_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(ROOT);
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let (mut uses, mut wrong) = (0, Vec::new());
    let mut used = BTreeSet::new();
    for file in &files {
        let inside = file.strip_prefix(&root).expect("found below it");
        let own = inside.iter().next().expect("a file has a name").to_string_lossy().replace(".rs", "");
        if own == "lib" {
            continue;
        }
        let Some((_, may_use)) = MAY_USE.iter().find(|(folder, _)| *folder == own) else {
            panic!("{ROOT}/{own} is not drawn: add it to tests/texts/floors_cuda.rs and to the doc of {ROOT}/lib.rs");
        };
        let text = fs::read_to_string(file).expect("a source file is text");
        for name in folders_named(inside, &text) {
            uses += 1;
            match name {
                Some(name) if name == own => {}
                Some(name) if may_use.contains(&name.as_str()) => drop(used.insert((own.clone(), name))),
                Some(name) => wrong.push(format!("{}: {name}", inside.display())),
                None if ["backend", "loading", "ranks", "timing"].contains(&own.as_str()) => {}
                None => wrong.push(format!("{}: an item of {ROOT}/lib.rs", inside.display())),
            }
        }
    }
    assert!(uses > 50, "the scan found only {uses} uses: it no longer reads what it should");
    assert!(wrong.is_empty(), "uses that are not drawn:\n{}", wrong.join("\n"));
    let drawn = MAY_USE.iter().flat_map(|(own, may)| may.iter().map(move |used| (own.to_string(), used.to_string())));
    let unused: Vec<_> = drawn.filter(|edge| !used.contains(edge)).collect();
    assert!(unused.is_empty(), "drawn, but not used: {unused:?}");
}

#[test]
fn the_drawing_has_no_circle() {
    for (place, (folder, may_use)) in MAY_USE.iter().enumerate() {
        for used in *may_use {
            let below = MAY_USE[..place].iter().any(|(lower, _)| lower == used);
            assert!(below, "{folder} uses {used}, which is not below it");
        }
    }
}

#[test]
fn a_use_that_is_not_drawn_would_be_seen() {
    let named = |inside: &str, text: &str| folders_named(Path::new(inside), text);
    let some = |names: &[&str]| names.iter().map(|name| Some(name.to_string())).collect::<Vec<_>>();
    assert_eq!(named("driver/device.rs", "use crate::step::Step;"), some(&["step"]));
    assert_eq!(named("driver/device.rs", "use super::args::Args; // super::super::step"), []);
    assert_eq!(named("driver/device.rs", "    super::super::memory::kv::page_bytes(x)"), some(&["memory"]));
    assert_eq!(named("driver/mod.rs", "use super::{gemm, step::{Step, Way}};"), some(&["gemm", "step"]));
    assert_eq!(named("ops.rs", "use super::{Cuda, gemm::Gemm};"), [None, Some("gemm".to_string())]);
}
