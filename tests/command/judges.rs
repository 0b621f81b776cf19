//! Runs whose samples a judge judges, by the command: who is asked, what a dry run says of it, and how a run ends whose
//! judge is down.

use std::collections::HashSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};

use crate::judge_server::{JudgeServer, said};
use crate::lora::TestAdapter;
use crate::runs::{assert_equal_results, bytes, offshoot, refuses, repository, run, run_into, succeeds, task_folder};

/// A score in an answer that says nothing else, which a small model can write.
fn points() -> Value {
    let schema = json!({"type": "object", "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["score"], "additionalProperties": false});
    json!({"prompt": "{{question}} {{sample}}\nPoints:", "score": {"high": 9, "schema": schema}, "max_tokens": 32})
}

fn best_of_two(task: &mut Value) {
    task["method"] = json!({"best_of_n": {"samples": 2, "by": points()}});
}

fn lines(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(folder, out, name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// An address at which nobody answers.
fn nowhere() -> String {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    format!("http://127.0.0.1:{port}/v1")
}

#[test]
fn the_model_itself_is_asked_and_a_dry_run_says_so() {
    let folder = task_folder(best_of_two);
    let folder = folder.path();
    let page = succeeds(run(folder, &["run", "task.json", "--dry-run"]));
    assert!(page.contains("questions   12 at most, about samples, to the model itself"), "{page}");
    assert!(page.contains("first question to the judge (`method.best_of_n.by`):\n"), "{page}");
    assert!(page.contains("How many pens does Tom have now? [a sample]\nPoints:"), "{page}");

    let plan = succeeds(run(folder, &["plan", "task.json", "--predict", "never"]));
    assert!(plan.contains("a judge is asked about samples"), "{plan}");

    run_into(folder, "out", &[]);
    let samples = lines(folder, "out", "samples.jsonl");
    let is_judged = |sample: &Value| sample["score"].is_f64() && sample["verdict"]["score"].is_u64();
    assert!(samples.iter().all(is_judged), "{samples:?}");
    let summary: Value = serde_json::from_slice(&bytes(folder, "out", "summary.json")).expect("JSON");
    // Equal texts of an item are asked about once.
    let texts: HashSet<String> = samples.iter().map(|one| json!([one["id"], one["text"]]).to_string()).collect();
    assert_eq!((&summary["judge"]["name"], &summary["judge"]["questions"]), (&json!("demo"), &json!(texts.len())));

    // Its own folder is the model itself.
    let model = repository().join("tasks/models/demo").display().to_string();
    run_into(folder, "itself", &["--judge", &model]);
    assert_equal_results(folder, "out", "itself");
}

#[test]
fn a_run_whose_judge_is_down_keeps_its_samples() {
    let folder = task_folder(|task| {
        best_of_two(task);
        task["judge"] = json!({"url": nowhere(), "name": "large", "retries": 0});
    });
    let folder = folder.path();
    let ran = run(folder, &["run", "task.json", "--out", "out"]);
    refuses(&ran, &["samples.jsonl", " texts without a score by the judge", "127.0.0.1", "--resume asks again"]);
    let samples = lines(folder, "out", "samples.jsonl");
    assert!(samples.len() == 12 && samples.iter().all(|sample| sample["score_error"].is_string()), "{samples:?}");

    let server = JudgeServer::new(|_, _| {
        let choice = json!({"index": 0, "text": "{\"score\": 6}", "finish_reason": "stop"});
        (200, json!({"choices": [choice], "usage": {"prompt_tokens": 7}}))
    });
    let mut again = offshoot(folder, &["run", "task.json", "--out", "out", "--resume", "--judge-url", &server.url]);
    succeeds(again.env("OFFSHOOT_JUDGE_KEY", "secret-of-this-test").output().expect("the binary starts"));
    let samples = lines(folder, "out", "samples.jsonl");
    assert!(samples.len() == 12 && samples.iter().all(|sample| sample["score"] == json!(6.0 / 9.0)), "{samples:?}");
    assert!(server.asked().iter().all(|(head, _)| head.to_lowercase().contains("bearer secret-of-this-test")));
    for file in fs::read_dir(folder.join("out")).expect("written").flatten() {
        let text = String::from_utf8(fs::read(file.path()).expect("a file")).expect("text");
        assert!(!text.contains("secret-of-this-test"), "{}", file.path().display());
    }
    let other = run(folder, &["run", "task.json", "--out", "out", "--resume", "--judge-model", "small"]);
    refuses(&other, &["manifest.json", "judge", "large", "small"]);
}

#[test]
fn samples_are_graded_again_by_a_server() {
    let folder = task_folder(|_| ());
    let folder = folder.path();
    run_into(folder, "out", &["--limit", "2"]);
    let verdict = json!({"prompt": {"chat": {"user": "{{answer}}: {{sample}}"}}, "score": {"high": 1}}).to_string();
    let set = format!("grade={{\"verdict\": {verdict}}}");
    let own = run(folder, &["rescore", "out", "--set", &set, "--out", "again"]);
    refuses(&own, &["judge", "--judge-url", "only a run does"]);
    let server = JudgeServer::new(|path, body| match path {
        "/v1/models" => (200, json!({"data": [{"id": "large"}]})),
        _ => {
            let text = body["messages"][0]["content"].as_str().unwrap_or_default().to_owned();
            let (reference, sample) = text.split_once(": ").unwrap_or_default();
            let score = u8::from(sample.contains(&format!("#### {reference}")));
            said(&format!("{{\"reasoning\": \"so\", \"score\": {score}}}"))
        }
    });
    let again = ["rescore", "out", "--set", &set, "--out", "again", "--judge-url", &server.url];
    succeeds(run(folder, &again));
    let [before, after] = ["out", "again"].map(|out| lines(folder, out, "samples.jsonl"));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before["correct"], after["correct"], "{after}");
        assert_eq!(after["judged"]["verdict"]["reasoning"], "so");
    }
    let manifest: Value = serde_json::from_slice(&bytes(folder, "again", "manifest.json")).expect("JSON");
    assert_eq!(manifest["judge"]["name"], "large");
}

#[test]
fn options_of_a_judge_are_checked() {
    let folder = task_folder(best_of_two);
    let folder = folder.path();
    let both = run(folder, &["run", "task.json", "--judge", "a", "--judge-url", "http://host/v1"]);
    refuses(&both, &["--judge", "--judge-url"]);
    // What a password may stand in is not shown.
    for judge in [&["--judge", "a"][..], &["--dry-run"]] {
        let url = ["run", "task.json", "--judge-url", "https://me:secret@host/v1"];
        let ran = run(folder, &[&url, judge].concat());
        refuses(&ran, &["--judge-url"]);
        let said = [ran.stdout, ran.stderr].concat();
        assert!(!String::from_utf8_lossy(&said).contains("secret"), "{}", String::from_utf8_lossy(&said));
    }
    let name = run(folder, &["run", "task.json", "--judge-model", "large"]);
    refuses(&name, &["--judge-model", "--judge-url", "large"]);
    let key = run(folder, &["run", "task.json", "--judge-url", "http://host/v1", "--judge-key-file", "none"]);
    refuses(&key, &["none"]);
    let unused = run(folder, &["run", "task.json", "--judge-key-file", "task.json"]);
    refuses(&unused, &["--judge-key-file"]);
    let none = run(folder, &["run", "task.json", "--judge", "no-such-folder"]);
    refuses(&none, &["no-such-folder"]);

    let plain = task_folder(|_| ());
    let unused = run(plain.path(), &["run", "task.json", "--out", "out", "--limit", "1", "--judge-url", &nowhere()]);
    assert!(unused.status.success());
    let said = String::from_utf8_lossy(&unused.stderr);
    assert!(said.contains("the judge is not asked"), "{said}");
    // Whatever names one is told of, and a key that nobody is shown is not read.
    let name = ["run", "task.json", "--dry-run", "--judge-model", "large"];
    let judge = ["run", "task.json", "--dry-run", "--set", r#"judge={"url": "http://host/v1"}"#];
    for args in [name, judge] {
        let mut unused = offshoot(plain.path(), &args);
        let ran = unused.env("OFFSHOOT_JUDGE_KEY", "two\nlines").output().expect("the binary starts");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success() && said.contains("the judge is not asked"), "{said}");
    }
}

/// The run's own model is the one that draws its samples: its adapter is part of it, in its own batch and beside it.
#[test]
fn the_adapter_of_a_run_is_part_of_the_model_that_judges() {
    let words = json!({"prompt": "{{question}} {{sample}}\nRight?", "words": {" yes": 1, " no": 0}});
    let vote = json!({"self_consistency": {"samples": 2, "weigh_by": words}});
    let folder = task_folder(|task| task["method"] = json!({"best_of_n": {"samples": 2, "by": words}}));
    let folder = folder.path();
    TestAdapter::new(1).write(&folder.join("tuned"));
    let tuned = ["--lora", "tuned", "--limit", "2"];
    run_into(folder, "own", &tuned);
    run_into(folder, "beside", &[&tuned[..], &["--set", &format!("method={vote}")]].concat());
    let (items, samples) = (lines(folder, "own", "items.jsonl"), lines(folder, "beside", "samples.jsonl"));
    assert_eq!(samples.len(), 4);
    for sample in samples {
        let item = items.iter().find(|item| item["id"] == sample["id"]).expect("its item");
        let in_batch = item["scores"][sample["index"].as_u64().expect("an index") as usize].as_f64().expect("a score");
        let beside = sample["score"].as_f64().expect("a score");
        assert!((in_batch - beside).abs() < 1e-6, "{in_batch} {beside}");
    }
}
