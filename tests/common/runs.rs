//! Runs of the built binary on the bundled demo model, on the CPU, in a folder of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

pub fn repository() -> PathBuf {
    PathBuf::from(offshoot_fixtures::REPOSITORY)
}

pub fn offshoot(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.current_dir(folder).env_remove("RUST_LOG").env("CUDA_VISIBLE_DEVICES", "").args(arguments);
    command
}

pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    offshoot(folder, arguments).output().expect("the binary starts")
}

/// It must succeed; what it printed.
pub fn succeeds(ran: Output) -> String {
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}

/// Runs the task of `folder` into `out`; it must succeed.
pub fn run_into(folder: &Path, out: &str, more: &[&str]) {
    succeeds(run(folder, &[&["run", "task.json", "--out", out], more].concat()));
}

/// It must fail with exit code 2 and say all of `words`.
pub fn refuses(ran: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

/// A folder with a task of six questions on the demo model; `change` may set parts of it.
pub fn task_folder(change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut task = json!({
        "name": "pens",
        "model": repository().join("tasks/models/demo"),
        "items": {"path": "items.jsonl", "id": "id"},
        "prompt": {
            "shared": {"file": repository().join("tasks/words_fewshot.txt")},
            "item": "Question: {{question}}\nAnswer:"
        },
        "method": {"sample": {"samples": 6}},
        "sampling": {"temperature": 1.2, "max_tokens": 40, "stop": ["\n\n"], "seed": 5},
        "answer": {"regex": "#### (-?[0-9.,]+)", "normalise": "number"},
        "grade": {"exact": {"field": "answer"}}
    });
    change(&mut task);
    let item = |n: u32| {
        let question = format!("Tom has {n} pens. Tom buys 5 more pens. How many pens does Tom have now?");
        format!("{}\n", json!({"id": format!("pens-{n}"), "question": question, "answer": (n + 5).to_string()}))
    };
    fs::write(folder.path().join("items.jsonl"), (11..17).map(item).collect::<String>()).expect("writable");
    fs::write(folder.path().join("task.json"), task.to_string()).expect("writable");
    folder
}

pub fn bytes(folder: &Path, out: &str, name: &str) -> Vec<u8> {
    fs::read(folder.join(out).join(name)).expect("the run wrote it")
}

pub fn assert_equal_results(folder: &Path, one: &str, other: &str) {
    for name in ["samples.jsonl", "items.jsonl"] {
        assert!(bytes(folder, one, name) == bytes(folder, other, name), "{name} of {one} and {other} differ");
    }
}
