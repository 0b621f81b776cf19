//! The drawing of the rooms stays true. `ROOMS` lists every room of `src` from the ground up with the rooms that it
//! uses: a use that is not drawn fails, a drawn edge that no file uses fails, and an edge that does not point to an
//! earlier room fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms that every other room may use without an edge being drawn.
const GROUND: [&str; 17] = [
    "bounded",
    "dice",
    "error",
    "figures",
    "file_kind",
    "ids",
    "mix",
    "json",
    "lines",
    "mapped",
    "gguf",
    "out",
    "hashes",
    "hub",
    "interrupt",
    "bundled",
    "setting",
];

/// A room and what it uses above the ground, from the ground up.
const ROOMS: &[(&str, &[&str])] = &[
    ("kv", &[]),
    ("plan", &["kv"]),
    ("tokenizer", &[]),
    ("backend", &["kv", "plan"]),
    ("backend/cpu", &["backend", "kv", "plan"]),
    ("backend/cuda", &["backend", "kv", "plan"]),
    ("backend/sim", &["backend", "backend/cpu", "backend/cuda", "kv", "plan"]),
    ("model", &["backend", "kv", "plan"]),
    ("engine", &["backend", "kv", "model", "plan", "tokenizer"]),
    ("replicas", &["engine"]),
    ("launch", &["backend", "backend/cpu", "backend/cuda", "engine", "kv", "model", "plan", "replicas", "tokenizer"]),
    ("tree", &["engine"]),
    ("search", &["engine", "tokenizer", "tree"]),
    ("judge", &[]),
    ("eval/source", &[]),
    ("eval/records", &[]),
    ("eval/answer", &["eval/source"]),
    ("eval/benchmark", &["eval/records", "eval/source", "judge"]),
    ("eval/statistics", &["search"]),
    ("eval/task", &["eval/answer", "eval/benchmark", "eval/records", "eval/source", "judge", "search", "tokenizer"]),
    ("eval/journal", &["search"]),
    ("eval/report", &["backend", "engine", "eval/task", "judge", "model", "plan"]),
    ("eval/view", &["engine", "eval/journal", "tree"]),
    (
        "eval/run",
        &[
            "backend",
            "engine",
            "eval/journal",
            "eval/records",
            "eval/report",
            "eval/statistics",
            "eval/task",
            "eval/view",
            "judge",
            "kv",
            "launch",
            "model",
            "plan",
            "search",
            "tokenizer",
            "tree",
        ],
    ),
    (
        "eval/scoring",
        &["eval/benchmark", "eval/records", "eval/source", "eval/statistics", "eval/task", "judge", "tokenizer"],
    ),
    ("openai/protocol", &["engine", "launch", "model", "tokenizer"]),
    ("openai/batch", &["backend", "engine", "kv", "launch", "model", "openai/protocol", "plan", "tokenizer"]),
    ("serve", &["engine", "kv", "launch", "model", "openai/batch", "openai/protocol", "plan", "tokenizer"]),
    ("args", &["backend", "judge", "launch", "model", "plan"]),
    ("inspect", &["backend", "engine", "launch", "model", "tokenizer"]),
    ("replay", &["backend", "backend/sim", "engine", "kv", "launch", "model", "plan"]),
    (
        "estimate",
        &[
            "backend",
            "backend/sim",
            "engine",
            "eval/run",
            "eval/task",
            "kv",
            "launch",
            "model",
            "openai/batch",
            "plan",
            "replay",
            "tokenizer",
        ],
    ),
    ("lab/check", &["backend", "backend/cpu", "backend/cuda", "engine", "inspect", "kv", "launch", "model", "plan"]),
    (
        "lab/bench",
        &[
            "args",
            "backend",
            "backend/cpu",
            "backend/cuda",
            "backend/sim",
            "engine",
            "kv",
            "lab/check",
            "launch",
            "model",
            "plan",
            "replay",
        ],
    ),
    (
        "cli",
        &[
            "args",
            "backend",
            "eval/benchmark",
            "eval/run",
            "eval/scoring",
            "eval/task",
            "eval/view",
            "judge",
            "estimate",
            "inspect",
            "lab/bench",
            "lab/check",
            "launch",
            "model",
            "openai/batch",
            "openai/protocol",
            "plan",
            "replay",
            "serve",
        ],
    ),
];

/// Edges among the ground's own rooms.
const GROUND_EDGES: &[(&str, &str)] = &[
    ("bundled", "error"),
    ("dice", "ids"),
    ("dice", "mix"),
    ("error", "figures"),
    ("gguf", "error"),
    ("gguf", "figures"),
    ("gguf", "mapped"),
    ("hashes", "error"),
    ("hashes", "gguf"),
    ("json", "figures"),
    ("lines", "error"),
    ("lines", "figures"),
    ("mapped", "error"),
    ("out", "error"),
    ("out", "figures"),
];

/// What stands outside the rooms: the library's list of them, and the program that may use all.
const OUTSIDE: [&str; 2] = ["lib", "main"];

/// One file of `src` as the module path that it has: `src/eval/run/mod.rs` is `eval::run`.
struct Source {
    path: PathBuf,
    module: Vec<String>,
    text: String,
}

fn sources() -> Vec<Source> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("src is readable") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push(path);
            }
        }
    }
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    walk(&src, &mut paths);
    let source = |path: PathBuf| {
        let inside = path.strip_prefix(&src).expect("found under src").with_extension("");
        let mut module: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        module.pop_if(|last| last == "mod");
        let text = fs::read_to_string(&path).expect("a source file is text");
        Source { path, module, text }
    };
    paths.into_iter().map(source).collect()
}

/// The room of a module path; `None` for a name that is no module (`crate::Result`).
fn room(path: &[String]) -> Option<String> {
    let first = path.first()?;
    if !first.starts_with(|c: char| c.is_ascii_lowercase()) {
        return None;
    }
    let inner = path.get(1).map(|second| format!("{first}/{second}"));
    let is_drawn = |room: &String| ROOMS.iter().any(|(name, _)| name == room);
    Some(inner.filter(is_drawn).unwrap_or_else(|| first.clone()))
}

/// `text` without its comments, strings left as they are.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Every module path that `text` names from `crate::`, `offshoot::` or `super::` on, lists in braces spelled out.
/// `module` is where the text stands; `super` in a module inside the file is read as the file's own parent, which is
/// never further up.
fn paths_named(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let code = without_comments(text);
    let mut found = Vec::new();
    for root in ["crate::", "offshoot::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue; // The end of another name, or a later `super::` of one path.
            }
            let mut base: Vec<String> = Vec::new();
            let mut rest = &code[at..];
            if root == "super::" {
                base = module.to_vec();
                while let Some(further) = rest.strip_prefix("super::") {
                    base.pop();
                    rest = further;
                }
            } else {
                rest = &rest[root.len()..];
            }
            spell_out(base, rest, &mut found);
        }
    }
    found
}

/// Reads one path, or a list of paths in braces, behind `base`.
fn spell_out(base: Vec<String>, rest: &str, found: &mut Vec<Vec<String>>) {
    let rest = rest.trim_start();
    if let Some(list) = rest.strip_prefix('{') {
        let (mut depth, mut begin) = (0, 0);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    spell_out(base, &list[begin..at], found);
                    return;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    spell_out(base.clone(), &list[begin..at], found);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    if end == 0 {
        return;
    }
    let mut path = base;
    path.push(rest[..end].to_string());
    match rest[end..].strip_prefix("::") {
        Some(further) if !further.starts_with('<') && !further.starts_with('*') => spell_out(path, further, found),
        _ => found.push(path),
    }
}

/// Every edge between rooms, with a file that draws it.
fn edges() -> Vec<(String, String, String)> {
    let mut edges = Vec::new();
    for Source { path, module, text } in sources() {
        let own = room(&module).expect("a module's name begins with a small letter");
        if OUTSIDE.contains(&own.as_str()) {
            continue;
        }
        for named in paths_named(&text, &module) {
            if let Some(used) = room(&named).filter(|used| *used != own && !is_the_house(used)) {
                edges.push((own.clone(), used, path.display().to_string()));
            }
        }
    }
    edges
}

/// Folders that hold rooms and nothing else.
fn is_the_house(name: &str) -> bool {
    ["eval", "lab", "openai"].contains(&name)
}

fn is_drawn(own: &str, used: &str) -> bool {
    if GROUND.contains(&own) {
        return GROUND_EDGES.contains(&(own, used));
    }
    GROUND.contains(&used) || ROOMS.iter().any(|(name, uses)| *name == own && uses.contains(&used))
}

#[test]
fn every_use_is_drawn() {
    let edges = edges();
    assert!(edges.len() > 500, "the scan found only {} uses: it no longer reads what it should", edges.len());
    let missing: BTreeSet<String> = edges
        .iter()
        .filter(|(own, used, _)| !is_drawn(own, used))
        .map(|(own, used, file)| format!("{own} uses {used} ({file})"))
        .collect();
    assert!(
        missing.is_empty(),
        "uses that ROOMS does not draw:\n{}",
        missing.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn every_drawn_edge_is_used() {
    let used: BTreeSet<(String, String)> = edges().into_iter().map(|(own, used, _)| (own, used)).collect();
    let drawn = ROOMS.iter().flat_map(|(own, uses)| uses.iter().map(move |to| (*own, *to)));
    let idle: Vec<String> = drawn
        .chain(GROUND_EDGES.iter().copied())
        .filter(|(own, to)| !used.contains(&(own.to_string(), to.to_string())))
        .map(|(own, to)| format!("{own} -> {to}"))
        .collect();
    assert!(idle.is_empty(), "edges that no file uses: {}", idle.join(", "));
}

#[test]
fn edges_point_downward() {
    for (at, (own, uses)) in ROOMS.iter().enumerate() {
        for to in *uses {
            let below = ROOMS[..at].iter().any(|(name, _)| name == to);
            let is_the_ops_definition = *to == "backend" && own.starts_with("backend/");
            assert!(below || is_the_ops_definition, "{own} uses {to}, which is not below it");
        }
    }
}

#[test]
fn every_room_of_the_source_is_listed() {
    let rooms: BTreeSet<String> = sources().iter().filter_map(|source| room(&source.module)).collect();
    let listed =
        |name: &str| GROUND.contains(&name) || OUTSIDE.contains(&name) || ROOMS.iter().any(|(room, _)| *room == name);
    let unknown: Vec<&String> = rooms.iter().filter(|name| !listed(name) && !is_the_house(name)).collect();
    assert!(unknown.is_empty(), "rooms that stand in no table: {unknown:?}");
}

#[test]
fn paths_are_read_in_every_form() {
    let at = |module: &str| module.split("::").map(str::to_string).collect::<Vec<_>>();
    let named = |text: &str, module: &str| -> Vec<String> {
        paths_named(text, &at(module)).iter().map(|path| path.join("::")).collect()
    };
    assert_eq!(named("use crate::{engine::Engine, kv};", "tree"), ["engine::Engine", "kv"]);
    assert_eq!(
        named("use crate::eval::{\n    run::{self, worker},\n    task,\n};", "cli"),
        ["eval::run::self", "eval::run::worker", "eval::task"]
    );
    assert_eq!(named("    crate::search::best_of_n(x) // crate::run", "tree"), ["search::best_of_n"]);
    assert_eq!(named("use super::super::task::Item;", "eval::run::worker"), ["eval::task::Item"]);
    assert_eq!(room(&at("eval::run::worker")), Some("eval/run".to_string()));
    assert_eq!(room(&at("backend::cpu::isa")), Some("backend/cpu".to_string()));
    assert_eq!(room(&at("backend::step")), Some("backend".to_string()));
    assert_eq!(room(&at("Result")), None);
}
