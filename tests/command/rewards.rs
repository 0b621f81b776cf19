//! Runs by the scores of the bundled reward model: what their files hold, what counts them again without a model, and
//! with what they go on.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::runs;
use runs::{bytes, refuses, repository, run, run_into, succeeds, task_folder};

fn reward() -> String {
    repository().join("tasks/models/reward").display().to_string()
}

fn lines(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(folder, out, name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn best_of_n() -> Value {
    json!({"best_of_n": {"samples": 6, "by": "reward"}})
}

/// What was sampled.
fn texts(folder: &Path, out: &str) -> Vec<Value> {
    lines(folder, out, "samples.jsonl").iter().map(|line| json!([line["id"], line["text"], line["logprob"]])).collect()
}

/// What was chosen by which scores.
fn choices(folder: &Path, out: &str) -> Vec<Value> {
    let of = |line: &Value| {
        json!([
            line["id"],
            line["prediction"],
            line["chosen"],
            line["correct"],
            line["votes"],
            line["tied"],
            line["scores"]
        ])
    };
    lines(folder, out, "items.jsonl").iter().map(of).collect()
}

#[test]
fn samples_have_the_scores_by_which_they_are_chosen() {
    let folder = task_folder(|task| task["method"] = best_of_n());
    let folder = folder.path();
    run_into(folder, "out", &["--scorer", &reward()]);
    for sample in lines(folder, "out", "samples.jsonl") {
        let score = sample["score"].as_f64().expect("a score");
        assert!((0.0..=1.0).contains(&score) && sample["score_tokens"].as_u64() > Some(0), "{sample}");
    }
    let manifest: Value = serde_json::from_slice(&bytes(folder, "out", "manifest.json")).expect("JSON");
    assert_eq!(manifest["scorer"]["name"], "reward");
    let summary: Value = serde_json::from_slice(&bytes(folder, "out", "summary.json")).expect("JSON");
    assert!(summary["scorer"]["unscored"] == 0 && summary["reward_vote"]["value"].is_f64(), "{summary}");

    // A scorer beside the model changes no sample.
    run_into(folder, "plain", &["--set", r#"method={"sample": {"samples": 6}}"#]);
    assert_eq!(texts(folder, "out"), texts(folder, "plain"));

    // The vote by the same scores needs no model.
    let vote = r#"method={"self_consistency": {"samples": 6, "weigh_by": "reward"}}"#;
    run_into(folder, "voted", &["--scorer", &reward(), "--set", vote]);
    succeeds(run(folder, &["rescore", "out", "--set", vote, "--out", "again"]));
    assert_eq!(choices(folder, "again"), choices(folder, "voted"));
    let other = r#"method={"self_consistency": {"samples": 6, "weigh_by": "reward", "aggregate": "min"}}"#;
    refuses(&run(folder, &["rescore", "out", "--set", other]), &["`method`", "the run's own"]);
}

#[test]
fn a_search_by_scores_is_named_in_the_task_and_is_the_same_again() {
    let folder = task_folder(|task| {
        task["method"] = json!({"step_beam": {"samples": 4, "expansions": 2, "steps": 6, "scorer": "reward"}});
        task["scorer"] = json!({"model": reward(), "question": "Question: {{question}}\nAnswer:"});
    });
    let folder = folder.path();
    run_into(folder, "one", &[]);
    run_into(folder, "two", &["--scorer", &reward()]);
    for name in ["samples.jsonl", "items.jsonl"] {
        assert!(bytes(folder, "one", name) == bytes(folder, "two", name), "{name} differs");
    }
    assert!(lines(folder, "one", "items.jsonl").iter().all(|item| item["scorer"]["texts"].as_u64() > Some(0)));
}

#[test]
fn a_run_without_its_scorer_is_refused() {
    let folder = task_folder(|task| task["method"] = best_of_n());
    let folder = folder.path();
    refuses(&run(folder, &["run", "task.json"]), &["`scorer`", "--scorer", "`method.best_of_n.by`"]);
    run_into(folder, "out", &["--scorer", &reward(), "--limit", "2"]);
    let mut form: Value =
        serde_json::from_slice(&fs::read(Path::new(&reward()).join("scorer.json")).expect("it has one")).expect("JSON");
    form["aggregate"] = json!("min");
    fs::write(folder.join("other.json"), form.to_string()).expect("writable");
    let resumed = ["run", "task.json", "--out", "out", "--resume", "--scorer", &reward()];
    let other = [&resumed[..], &["--scorer-form", "other.json"]].concat();
    let identity: Value = serde_json::from_slice(&bytes(folder, "out", "manifest.json")).expect("JSON");
    let digest = identity["scorer"]["digest"].as_str().expect("a digest");
    refuses(&run(folder, &other), &["`scorer`", digest, "with which the run in this folder was made"]);
    succeeds(run(folder, &resumed));
    assert_eq!(lines(folder, "out", "items.jsonl").len(), 6);
}
