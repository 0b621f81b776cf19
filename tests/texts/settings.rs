//! Flags are the command line's: what lies below it names options by their fields (`crates/core/src/setting.rs`), so
//! that a Rust or Python user reads no flag.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};
use offshoot::cli::Cli;
use offshoot_core::setting;

/// Crates of the command line, and of the laboratory, whose options are flags alone.
const OWNERS: [&str; 2] = ["args", "lab"];
/// What other programs are given: the Hub's own command, and NVRTC's options.
const OTHERS: [&str; 4] = ["hf download", "--device-as-default-execution-space", "--gpu-architecture", "\"--version\""];

pub fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable")) {
        let path = entry.path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|end| end == "rs") => {
                found.push((path.display().to_string(), fs::read_to_string(&path).expect("UTF-8")));
            }
            false => {}
        }
    }
}

/// Whether a line has a flag in a string's text.
fn names_a_flag(line: &str) -> bool {
    let code = line.trim_start();
    let in_text = |at: usize| line[..at].matches('"').count() % 2 == 1 || !line.contains('"');
    let flags = line.match_indices("--").filter(|(at, _)| {
        let after = line[at + 2..].starts_with(|c: char| c.is_ascii_lowercase());
        let before = line[..*at].chars().next_back();
        after && before.is_none_or(|c| " \"(`,/".contains(c)) && in_text(*at)
    });
    !code.starts_with("//") && flags.count() > 0 && !line.contains("--b\\r")
}

#[test]
fn flags_are_named_by_the_command_line_alone() {
    assert!(names_a_flag("Err(Error::value(\"--limit\", 1))") && names_a_flag("  tries again by --resume \\"));
    assert!(!names_a_flag("/// as `--limit` says") && !names_a_flag("out::line(\"a -- b\")"));
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let mut found = Vec::new();
    for entry in fs::read_dir(&crates).expect("a folder").map(|entry| entry.expect("readable")) {
        let name = entry.file_name();
        if OWNERS.iter().all(|owner| *owner != name) {
            sources(&entry.path().join("src"), &mut found);
        }
    }
    assert!(found.len() > 100, "{} files", found.len());
    let lines = found.iter().flat_map(|(path, text)| text.lines().map(move |line| (path, line)));
    let flags: Vec<String> = lines
        .filter(|(_, line)| names_a_flag(line) && !OTHERS.iter().any(|other| line.contains(other)))
        .map(|(path, line)| format!("{path}: {}", line.trim()))
        .collect();
    assert!(flags.is_empty(), "flags below the command line:\n{}", flags.join("\n"));
}

fn flags_of(command: &Command, found: &mut BTreeSet<String>) {
    found.extend(command.get_arguments().filter_map(|argument| argument.get_long()).map(str::to_string));
    command.get_subcommands().for_each(|inner| flags_of(inner, found));
}

#[test]
fn each_setting_is_a_flag() {
    let mut flags = BTreeSet::new();
    flags_of(&Cli::command(), &mut flags);
    for setting in setting::ALL {
        assert!(flags.contains(&setting.name().replace('_', "-")), "{setting}");
    }
    assert_eq!(setting::KV_MEMORY.to_string(), "`kv_memory`");
}

#[test]
fn python_names_settings_as_llm_does() {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("UTF-8");
    let between = |text: &str, begin: &str, end: &str| {
        let (_, after) = text.split_once(begin).expect(begin);
        after.split_once(end).expect(end).0.to_string()
    };
    let keywords = between(&read("python/src/lib.rs"), "fn keyword(", "\n}");
    let keywords: Vec<(&str, &str)> = keywords
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\",")?.split_once("\" => \""))
        .collect();
    assert!(keywords.len() >= 4, "{keywords:?}");
    let llm = between(&read("python/offshoot/_llm.py"), "\nclass LLM:", "\n    ):");
    let (_, llm) = llm.split_once("def __init__(").expect("its arguments");
    let arguments: BTreeSet<&str> = llm.lines().filter_map(|line| Some(line.trim().split_once(':')?.0)).collect();
    let settings = || setting::ALL.iter().chain([&setting::GPU_MEMORY]).map(|setting| setting.name());
    for &(name, keyword) in &keywords {
        assert!(settings().any(|setting| setting == name), "{name} is no setting");
        assert!(arguments.contains(keyword), "LLM has no argument {keyword}");
        assert!(!arguments.contains(name), "LLM has an argument {name}, not {keyword} alone");
    }
    // What the engine below `LLM` is given has its name from there, or is in the list.
    let engine = between(&read("python/src/engine.rs"), "signature = (", "))]");
    for name in settings().filter(|name| engine.contains(&format!(" {name}="))) {
        let keyword = keywords.iter().find(|(below, _)| *below == name).map_or(name, |&(_, keyword)| keyword);
        assert!(arguments.contains(keyword), "LLM has no argument {keyword}");
    }
}
