//! Cargo compiles a crate once for each set of features that is asked for. `crates/features` asks, wherever one crate's
//! tests are compiled, for what the whole workspace asks, so that all share one build.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::skip::skipped;

/// What `cargo tree` lists of these packages, in this format, each once. `Err`: what cargo says where it fails.
fn crates(format: &str, of: &[&str]) -> Result<BTreeSet<String>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = Command::new(cargo);
    tree.args(["tree", "--locked", "--offline", "--prefix", "none", "--format", format]).args(of);
    let tree = tree.current_dir(env!("CARGO_MANIFEST_DIR")).output().map_err(|error| format!("cargo: {error}"))?;
    if !tree.status.success() {
        return Err(String::from_utf8_lossy(&tree.stderr).into_owned());
    }
    let listed = String::from_utf8(tree.stdout).expect("names and versions");
    let lines = listed.lines().map(|line| line.trim_end_matches(" (*)").replace(" (proc-macro)", ""));
    Ok(lines.filter(|line| !line.is_empty()).collect())
}

/// The third crates of a tree, each with its features: `log v0.4.35|alloc,std`.
fn third_crates(of: &[&str]) -> BTreeSet<String> {
    let mut listed = crates("{p}|{f}", of).unwrap_or_else(|why| panic!("{why}"));
    listed.retain(|line| !line.contains("offshoot"));
    listed
}

fn name(listed: &str) -> &str {
    listed.split('|').next().expect("a name")
}

#[test]
fn tests_of_one_crate_and_of_all_share_one_build() {
    let all = third_crates(&["--workspace"]);
    let compiled = third_crates(&["--edges", "normal,build"]);
    let compiled: BTreeSet<&str> = compiled.iter().map(|line| name(line)).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let mut missing = BTreeSet::new();
    for room in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").file_name()) {
        let package = format!("offshoot-{}", room.to_str().expect("a crate's name"));
        if package == "offshoot-features" {
            continue;
        }
        let own = third_crates(&["--package", &package]);
        // What tests alone use is small.
        let others = own.iter().filter(|line| compiled.contains(name(line)) && !all.contains(*line));
        missing.extend(others.map(|line| {
            let expected: Vec<&str> =
                all.iter().map(|line| &**line).filter(|other| name(other) == name(line)).collect();
            format!("{package}: expected {}, found {line}", expected.join(" or "))
        }));
    }
    let missing: Vec<String> = missing.into_iter().collect();
    assert!(missing.is_empty(), "features that crates/features/Cargo.toml lacks:\n{}", missing.join("\n"));
}

#[test]
fn a_user_of_trees_alone_compiles_few_crates() {
    /// There were 128 on 2026-11-29, 20 of them for the grammars of forms.
    const MOST: usize = 135;
    let compiled = ["--no-default-features", "--package", "offshoot", "--edges", "normal,build"];
    match crates("{p}", &compiled) {
        Ok(listed) => assert!(listed.len() <= MOST, "{} crates, not {MOST} at most: {listed:?}", listed.len()),
        Err(why) => skipped(format_args!("cargo lists no crates here: {}", why.trim())),
    }
}
