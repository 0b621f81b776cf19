//! Runs whose samples are drawn with an adapter: by the option, by the task file, and what is refused.

use serde_json::{Value, json};

use crate::lora::TestAdapter;
use crate::runs::{assert_equal_results, bytes, refuses, run, run_into, succeeds, task_folder};

#[test]
fn a_run_draws_with_the_adapter_of_its_task() {
    let folder = task_folder(|_| {});
    let path = folder.path();
    TestAdapter::new(1).write(&path.join("one"));
    TestAdapter { rank: 24, ..TestAdapter::new(2) }.write(&path.join("two"));
    let limit = ["--limit", "3"];
    run_into(path, "plain", &limit);
    run_into(path, "one-run", &[&limit[..], &["--lora", "one"]].concat());
    assert!(bytes(path, "plain", "samples.jsonl") != bytes(path, "one-run", "samples.jsonl"));
    // By the task file, too; another adapter draws others.
    let mut task: Value =
        serde_json::from_slice(&std::fs::read(path.join("task.json")).expect("a file")).expect("JSON");
    task["adapter"] = json!("one");
    std::fs::write(path.join("task.json"), task.to_string()).expect("writable");
    run_into(path, "task-run", &limit);
    assert_equal_results(path, "one-run", "task-run");
    run_into(path, "two-run", &[&limit[..], &["--lora", "two"]].concat());
    assert!(bytes(path, "two-run", "samples.jsonl") != bytes(path, "one-run", "samples.jsonl"));

    let manifest: Value = serde_json::from_slice(&bytes(path, "two-run", "manifest.json")).expect("JSON");
    assert!(manifest["adapter"]["folder"].as_str().is_some_and(|folder| folder.ends_with("/two")), "{manifest}");
    let page = succeeds(run(path, &["run", "task.json", "--dry-run", "--device", "cpu", "--limit", "2"]));
    assert!(page.contains("of rank 4"), "{page}");
    // A run goes on with the adapter that it was begun with.
    run_into(path, "one-run", &["--resume", "--limit", "4"]);
    let other = run(path, &["run", "task.json", "--out", "one-run", "--resume", "--lora", "two"]);
    refuses(&other, &["`adapter`", "two"]);
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_before_the_run() {
    let folder = task_folder(|_| {});
    let path = folder.path();
    TestAdapter { width: 512, ..TestAdapter::new(1) }.write(&path.join("wide"));
    let refused = |adapter: &str, words: &[&str]| {
        refuses(&run(path, &["run", "task.json", "--out", "out", "--lora", adapter]), words);
        assert!(!path.join("out").exists());
    };
    refused("wide", &["q_proj.lora_A.weight", "[4, 256]", "[4, 512]"]);
    refused("none", &["adapter_config.json"]);
}
