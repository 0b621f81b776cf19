//! `--prefix-store`: a second run reads what the first computed, and writes the same samples.

use serde_json::Value;

use crate::runs::{bytes, repository, run, succeeds};

#[test]
fn a_second_run_reads_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    let task = repository().join("tasks/facts.json").display().to_string();
    let ask = |out: &str, more: &[&str]| -> Value {
        let arguments = [&["--device", "cpu", "run", &task, "--limit", "12", "--json", "--out", out], more].concat();
        serde_json::from_str(&succeeds(run(folder.path(), &arguments))).expect("a summary")
    };
    let plain = ask("plain", &[]);
    let first = ask("first", &["--prefix-store", "store"]);
    let second = ask("second", &["--prefix-store", "store"]);
    for out in ["first", "second"] {
        assert!(bytes(folder.path(), out, "samples.jsonl") == bytes(folder.path(), "plain", "samples.jsonl"), "{out}");
    }
    let count = |summary: &Value, field: &str| summary["prompts"][field].as_u64().unwrap_or(0);
    assert_eq!(count(&first, "computed"), count(&plain, "computed"));
    assert_eq!(count(&first, "stored"), 0);
    // A chunk of 512 tokens, less its first ones, which the document shares with another.
    assert!(count(&second, "stored") > 500, "{}", second["prompts"]);
    assert_eq!(count(&second, "computed") + count(&second, "stored"), count(&plain, "computed"));
    let page =
        succeeds(run(folder.path(), &["--device", "cpu", "run", &task, "--limit", "12", "--prefix-store", "store"]));
    assert!(page.contains("read from the prefix store"), "{page}");
}
