//! A name stands for one thing in a crate: no two of its types have the same one, tests' own aside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::settings::sources;

/// Types that stand in for each other: of one of which a build has one, or which each path of the CPU has of its own.
const ALTERNATIVES: [(&str, &[&str]); 2] =
    [("cpu", &["ByteDot", "Kernel", "Numbers"]), ("judge", &["Running", "Sandbox", "WorkFolder"])];

/// The name of the type that a line defines.
fn type_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let public = line.strip_prefix("pub").map(|rest| match rest.strip_prefix('(') {
        Some(within) => within.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let (kind, rest) = public.unwrap_or(line).trim_start().split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric()).next()?;
    let is_type = ["struct", "enum", "trait", "union"].contains(&kind);
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

#[test]
fn no_two_types_of_a_crate_have_one_name() {
    assert_eq!(type_name("pub(super) struct Leaf<'a> {"), Some("Leaf"));
    assert_eq!(type_name("    trait Walk: Sized {"), Some("Walk"));
    assert_eq!(["/// enum Kind", "impl Kind {", "pub fn kind() {"].map(type_name), [None; 3]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).expect("a folder").map(|entry| entry.expect("readable").path());
    let mut twice = Vec::new();
    for folder in crates.chain([root.to_path_buf(), root.join("python")]) {
        let mut files = Vec::new();
        sources(&folder.join("src"), &mut files);
        let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (path, text) in &files {
            let of_tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
            for name in text[..of_tests].lines().filter_map(type_name) {
                places.entry(name).or_default().push(path);
            }
        }
        let of_crate = ALTERNATIVES.iter().find(|(name, _)| folder.ends_with(Path::new("crates").join(name)));
        let known = of_crate.map_or(&[][..], |(_, names)| names);
        places.retain(|name, paths| paths.len() > 1 && !known.contains(name));
        twice.extend(places.into_iter().map(|(name, paths)| format!("{name}: {}", paths.join(", "))));
    }
    assert!(twice.is_empty(), "names of two types in one crate:\n{}", twice.join("\n"));
}
