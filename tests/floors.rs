//! The drawing of the floors stays true: a file may use only floors below its own (or its own floor's siblings).

use std::fs;
use std::path::{Path, PathBuf};

/// Floor of a top-level module of `src`.
fn floor(module: &str) -> Option<u32> {
    Some(match module {
        "ids" | "error" | "figures" | "out" | "mix" => 0,
        "kv" | "task" | "tokenizer" => 1,
        "plan" => 2,
        "backend" => 3,
        "model" => 4,
        "engine" => 5,
        "tree" => 6,
        "search" | "judge" => 7,
        "run" | "report" | "journal" | "batch" | "view" | "scoring" | "forecast" | "simulate" | "bench" | "check" => 8,
        "cli" | "main" | "stopping" => 9,
        "lib" => return None,
        other => panic!("src/{other} stands on no floor: add it to tests/floors.rs"),
    })
}

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

/// The top-level modules that a line of code names by `crate::NAME` or, in a binary, `offshoot::NAME`.
fn modules_named(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or("");
    let mut names = Vec::new();
    for root in ["crate::", "offshoot::"] {
        for (at, _) in code.match_indices(root) {
            let rest = &code[at + root.len()..];
            let listed: Vec<&str> = match rest.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap_or("").split(',').map(str::trim).collect(),
                None => vec![rest],
            };
            for name in listed {
                let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(name.len());
                if end > 0 {
                    names.push(name[..end].to_string());
                }
            }
        }
    }
    names
}

#[test]
fn no_floor_uses_a_floor_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    let mut uses = 0;
    let mut upward = Vec::new();
    for file in &files {
        let inside = file.strip_prefix(&src).expect("found under src");
        let module = inside.iter().next().expect("a file has a name").to_string_lossy().replace(".rs", "");
        let Some(own) = floor(&module) else { continue };
        let text = fs::read_to_string(file).expect("a source file is text");
        for (number, line) in text.lines().enumerate() {
            for name in modules_named(line) {
                uses += 1;
                if floor(&name).is_some_and(|used| used > own) {
                    upward.push(format!("{}:{}: {}", inside.display(), number + 1, line.trim()));
                }
            }
        }
    }
    assert!(uses > 50, "the scan found only {uses} uses: it no longer reads what it should");
    assert!(upward.is_empty(), "upward uses:\n{}", upward.join("\n"));
}

#[test]
fn an_upward_use_would_be_seen() {
    assert_eq!(modules_named("use crate::{engine::Engine, kv};"), ["engine", "kv"]);
    assert_eq!(modules_named("    crate::search::best_of_n(x) // crate::run"), ["search"]);
    assert!(floor("engine") > floor("kv"));
}
