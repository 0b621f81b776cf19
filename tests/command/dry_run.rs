//! What `--dry-run` says of memory is what the engine needs: pages behind sliding windows are freed.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::runs::{refuses, repository, run, run_into, succeeds, task_folder};

/// The demo model with a window in all layers or in some, in the folder's `model`.
fn windowed(folder: &Path, change: impl Fn(&mut Value)) {
    let (from, to) = (repository().join("tasks/models/demo"), folder.join("model"));
    fs::create_dir(&to).expect("writable");
    for file in fs::read_dir(&from).expect("the demo model") {
        let file = file.expect("an entry");
        if file.path().is_file() {
            fs::copy(file.path(), to.join(file.file_name())).expect("writable");
        }
    }
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).expect("JSON");
    change(&mut config);
    fs::write(to.join("config.json"), config.to_string()).expect("writable");
}

/// The line of a dry run's page that begins with `name`.
fn line<'a>(page: &'a str, name: &str) -> &'a str {
    page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("`{name}` is missing: {page}"))
}

#[test]
fn a_long_prompt_takes_few_pages_of_layers_with_a_window() {
    let folder = task_folder(|task| {
        task["model"] = json!("model");
        task["prompt"]["shared"] = json!("Tom has a pen. ".repeat(400));
        task["method"]["sample"]["samples"] = json!(2);
    });
    let path = folder.path();
    windowed(path, |config| {
        config["model_type"] = json!("mistral");
        config["sliding_window"] = json!(64);
    });
    let page = |memory: &str| {
        succeeds(run(
            path,
            &["run", "task.json", "--dry-run", "--device", "cpu", "--kv-memory", memory, "--limit", "2"],
        ))
    };
    // All positions would take more than three times as much: see without sharing.
    let enough = page("6");
    assert!(line(&enough, "kv ").contains("freed behind windows"), "{enough}");
    assert!(!line(&enough, "kv pool").contains("too little"), "{enough}");
    run_into(path, "out", &["--device", "cpu", "--kv-memory", "6", "--limit", "2"]);

    let short = page("1");
    let (_, needed) = line(&short, "kv pool").split_once("which may take ").expect("it is too little");
    let refused =
        run(path, &["run", "task.json", "--out", "short", "--device", "cpu", "--kv-memory", "1", "--limit", "2"]);
    refuses(&refused, &["--kv-memory", &format!("at least {needed} for the prompt of item")]);
}

#[test]
fn the_first_prompt_is_that_of_the_first_item_of_the_file() {
    let folder = task_folder(|_| {});
    let items = fs::read_to_string(folder.path().join("items.jsonl")).expect("written");
    let mut lines: Vec<&str> = items.lines().collect();
    for _ in 0..2 {
        lines.reverse();
        fs::write(folder.path().join("items.jsonl"), lines.join("\n")).expect("writable");
        let first: Value = serde_json::from_str(lines[0]).expect("JSON");
        let page = succeeds(run(folder.path(), &["run", "task.json", "--dry-run", "--device", "cpu"]));
        let (_, prompt) = page.split_once("\nfirst prompt (item `").expect("it is shown");
        assert!(prompt.starts_with(&format!("{}`", first["id"].as_str().expect("a text"))), "{prompt}");
        assert!(prompt.contains(first["question"].as_str().expect("a text")), "{prompt}");
    }
}
