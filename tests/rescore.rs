//! Runs that are graded again without a model: what changes, what stays, and what a rescore that is killed leaves.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

#[path = "common/judging.rs"]
mod judging;
#[path = "common/runs.rs"]
mod runs;
use judging::can_judge;
use runs::{assert_equal_results, bytes, refuses, repository, run, run_into, succeeds, task_folder};

fn summary(folder: &Path, out: &str) -> Value {
    serde_json::from_slice(&bytes(folder, out, "summary.json")).expect("JSON")
}

fn lines(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(folder, out, name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn rescore(folder: &Path, more: &[&str]) -> String {
    succeeds(run(folder, &[&["rescore", "out"], more].concat()))
}

/// A vote of five samples, run into `out`.
fn voted() -> tempfile::TempDir {
    let folder = task_folder(|task| task["method"] = json!({"self_consistency": {"samples": 5}}));
    run_into(folder.path(), "out", &[]);
    folder
}

/// The first number of the text instead of the one after the hashes.
const OTHERWISE: [&str; 4] = ["--set", "answer.regex=([0-9]+)", "--set", "answer.take=first"];

#[test]
fn it_says_the_same_where_nothing_changed_and_else_what_changed() {
    let folder = voted();
    let folder = folder.path();
    let before = summary(folder, "out");
    rescore(folder, &["--out", "same"]);
    assert_equal_results(folder, "out", "same");
    assert_eq!(summary(folder, "same"), before);

    let said = rescore(folder, &[&OTHERWISE[..], &["--k", "1,3,5"]].concat());
    assert!(said.contains("maj@k") && said.contains("3: ") && said.contains("5: "), "{said}");
    let after = summary(folder, "out");
    assert_ne!(after["accuracy"], before["accuracy"]);
    assert_eq!(after["engine"], before["engine"], "what it cost stays");
    assert_eq!(after["samples"], before["samples"]);
    let kept: Value = serde_json::from_slice(&bytes(folder, "out", "summary.json.before")).expect("JSON");
    assert_eq!(kept, before);
    // What graded last is what goes on.
    run_into(folder, "out", &[&["--samples", "7", "--resume"], &OTHERWISE[..]].concat());
    refuses(&run(folder, &["rescore", "nowhere"]), &["nowhere", "manifest.json"]);
}

/// Killed when its new files counted and some of them were in their places: whoever comes next finds all of them there.
#[test]
fn one_that_was_killed_halfway_is_finished_by_the_next_to_read() {
    let folder = voted();
    let folder = folder.path();
    rescore(folder, &[&OTHERWISE[..], &["--out", "new"]].concat());
    let files = ["samples.jsonl", "items.jsonl", "summary.json", "task.json", "manifest.json"];
    let halfway = folder.join("out/new-results");
    fs::create_dir(&halfway).expect("writable");
    for (number, name) in files.iter().enumerate() {
        let at = if number < 2 { folder.join("out") } else { halfway.clone() };
        fs::write(at.join(name), bytes(folder, "new", name)).expect("writable");
    }
    // It would be refused by the old manifest.
    run_into(folder, "out", &[&["--resume"], &OTHERWISE[..]].concat());
    assert_equal_results(folder, "out", "new");
    assert!(!halfway.exists());
}

#[test]
fn candidates_are_judged_again_by_any_number_of_judges() {
    if !can_judge() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let task = repository().join("tasks/functions.json").display().to_string();
    let drawn = ["run", &task, "--out", "out", "--limit", "3", "--samples", "6", "--set", "sampling.max_tokens=8"];
    succeeds(run(folder, &drawn));
    // Of each problem's samples the second is right, the third never ends, the others return nothing.
    let solutions: Vec<Value> = fs::read_to_string(repository().join("tasks/functions.jsonl"))
        .expect("it is bundled")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["canonical_solution"].clone())
        .collect();
    let mut samples = lines(folder, "out", "samples.jsonl");
    assert_eq!(samples.len(), 18);
    for (number, sample) in samples.iter_mut().enumerate() {
        sample["text"] = match number % 6 {
            1 => solutions[number / 6].clone(),
            2 => json!("    while True: pass\n"),
            _ => json!("    return None\n"),
        };
    }
    let texts: String = samples.iter().map(|sample| format!("{sample}\n")).collect();
    fs::write(folder.join("out/samples.jsonl"), texts).expect("writable");

    let quick = ["--set", "grade.judge.timeout=0.5"];
    rescore(folder, &[&quick[..], &["--out", "one", "--judges", "1"]].concat());
    let said = rescore(folder, &[&quick[..], &["--out", "four", "--judges", "4", "--unsafe-no-sandbox"]].concat());
    assert!(said.contains("AC 3, WA 12, TLE 3"), "{said}");
    let judged = |out: &str| -> Vec<(Value, Value, Value, Value)> {
        let of = |line: Value| {
            (line["id"].clone(), line["index"].clone(), line["judged"]["verdict"].clone(), line["correct"].clone())
        };
        lines(folder, out, "samples.jsonl").into_iter().map(of).collect()
    };
    assert_eq!(judged("one"), judged("four"));
    let right: Vec<bool> = judged("one").iter().map(|(.., correct)| *correct == json!(true)).collect();
    assert_eq!(right, (0..18).map(|number| number % 6 == 1).collect::<Vec<_>>());
    let chosen: Vec<Value> = lines(folder, "four", "items.jsonl").iter().map(|item| item["chosen"].clone()).collect();
    assert_eq!(chosen, [1, 1, 1]);
    refuses(&run(folder, &["rescore", "out", "--judges", "0"]), &["--judges"]);
}
