//! Runs of tasks whose samples have a form: every method keeps it, answers stand in its fields, and a run is resumed
//! only with the form that it was begun with.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::runs::{bytes, refuses, run, run_into, succeeds, task_folder};

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 30}, "unit": {"enum": ["pen", "pens"]}},
    "required": ["answer", "unit"],
    "additionalProperties": false,
    "x-guidance": {"whitespace_flexible": false}
}"#;

/// The task, its schema in a file, with this method.
fn formed(method: Value) -> tempfile::TempDir {
    let folder = task_folder(|task| {
        task["method"] = method.clone();
        task["sampling"] = json!({"form": {"json": "schema.json"}, "temperature": 1.1, "max_tokens": 80, "seed": 3});
        task["answer"] = json!({"json": "/answer", "normalise": "number"});
    });
    fs::write(folder.path().join("schema.json"), SCHEMA).expect("writable");
    folder
}

/// The samples of a run, by their lines.
fn samples(folder: &Path, out: &str) -> Vec<Value> {
    let lines = String::from_utf8(bytes(folder, out, "samples.jsonl")).expect("text");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_method_keeps_the_form() {
    let methods = [
        json!({"sample": {"samples": 4}}),
        json!({"self_consistency": {"samples": 8, "stop_when_decided": true}}),
        json!({"best_of_n": {"samples": 4, "by": "mean_logprob"}}),
        json!({"step_beam": {"samples": 4, "expansions": 2, "delimiter": ",", "scorer": "mean_logprob"}}),
        json!({"dvts": {"samples": 4, "expansions": 2, "delimiter": ",", "scorer": "mean_logprob"}}),
        json!({"mcts": {"samples": 4, "expansions": 2, "delimiter": ",", "scorer": "agreement"}}),
        json!({"tree_po": {"samples": 4, "segment": 3, "branches": 2, "tokens": 400}}),
        json!({"entropy_branching": {"paths": 2, "forks": 2, "branches": 1}}),
    ];
    for method in methods {
        let folder = formed(method.clone());
        run_into(folder.path(), "out", &["--device", "cpu", "--limit", "2"]);
        let samples = samples(folder.path(), "out");
        assert!(!samples.is_empty(), "{method}");
        for sample in samples {
            let text = sample["text"].as_str().expect("a text");
            assert_eq!(sample["finish"], "end_of_text", "{method}: {sample}");
            let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{method}: {text}: {error}"));
            let answer = value["answer"].as_u64().expect("a whole number");
            assert!(answer <= 30 && value["unit"].as_str().is_some_and(|unit| unit.starts_with("pen")), "{value}");
            assert_eq!(sample["answer"], json!(answer.to_string()), "{method}");
        }
    }
}

#[test]
fn a_dry_run_and_a_plan_show_the_form_and_refuse_what_is_none() {
    let folder = formed(json!({"sample": {"samples": 2}}));
    let dry = |set: &[&str]| run(folder.path(), &[&["run", "task.json", "--dry-run", "--device", "cpu"], set].concat());
    let page = succeeds(dry(&[]));
    assert!(page.contains("\nform        JSON by the schema in schema.json\n"), "{page}");
    let plan = succeeds(run(folder.path(), &["plan", "task.json"]));
    assert!(plan.contains("samples have a form (JSON by the schema in schema.json)"), "{plan}");
    for (form, key) in [
        (r#"{"regex":"("}"#, "sampling.form.regex"),
        (r#"{"json":{"type":"nothing"}}"#, "sampling.form.json"),
        (r#"{"grammar":"start: none"}"#, "sampling.form.grammar"),
    ] {
        refuses(&dry(&["--set", &format!("sampling.form={form}")]), &["task.json", key, "one that can be compiled"]);
    }
}

#[test]
fn a_run_is_resumed_only_with_its_form() {
    let folder = formed(json!({"sample": {"samples": 2}}));
    let path = folder.path();
    run_into(path, "out", &["--device", "cpu", "--limit", "1"]);
    let resumed = |set: &[&str]| run(path, &[&["run", "task.json", "--out", "out", "--resume"], set].concat());
    let other = resumed(&["--device", "cpu", "--set", "sampling.form=\"json_object\""]);
    refuses(&other, &["task.sampling.form", "json_object"]);
    let whole = formed(json!({"sample": {"samples": 2}}));
    run_into(whole.path(), "out", &["--device", "cpu"]);
    succeeds(resumed(&["--device", "cpu"]));
    assert_eq!(samples(path, "out").len(), samples(whole.path(), "out").len());
    fs::write(path.join("schema.json"), SCHEMA.replace("30", "20")).expect("writable");
    refuses(&resumed(&["--device", "cpu"]), &["files.schema.json", "changed"]);
}

#[test]
fn texts_of_elsewhere_vote_by_a_field() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = |text: &str| format!("{}\n", json!({"id": 1, "text": text, "gold": 12}));
    let texts = [
        r#"{"answer": 12}"#,
        "So:\n```json\n{\"answer\": 12.0}\n```",
        r#"<think>{"answer": 7}</think>{"answer": 7}"#,
        "12",
        "<tool_call>\n{\"name\": \"say\", \"arguments\": {\"answer\": 12}}\n</tool_call>",
    ];
    fs::write(folder.path().join("s.jsonl"), texts.map(line).concat()).expect("writable");
    let vote = |answer: &str| {
        let set = ["vote", "s.jsonl", "--set", answer, "--set", "grade.number.field=gold", "--out", "v.json"];
        let ran = run(folder.path(), &set);
        assert!(!String::from_utf8_lossy(&ran.stderr).contains("whole texts vote"));
        succeeds(ran);
        let votes: Value =
            serde_json::from_slice(&fs::read(folder.path().join("v.json")).expect("written")).expect("JSON");
        votes[0].clone()
    };
    let voted = vote("answer={\"json\": \"/answer\"}");
    assert_eq!((&voted["prediction"], &voted["correct"]), (&json!("12"), &json!(true)));
    assert_eq!(voted["votes"], json!([["12", 2], ["7", 1]]));
    let called = vote("answer={\"tool_call\": true, \"json\": \"/arguments/answer\"}");
    assert_eq!((&called["prediction"], &called["votes"]), (&json!("12"), &json!([["12", 1]])));
}
