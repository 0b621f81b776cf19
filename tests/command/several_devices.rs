//! `--devices` as a user meets it: runs and batches on several engines of one process, each with a share of the cores,
//! leave what one engine leaves.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::batch_desk::{self, QUESTION};
use crate::runs::{assert_equal_results, bytes, refuses, repository, run, run_into, succeeds, task_folder};

/// What a run's summary says, without what tells of the devices and of time.
fn summary(folder: &Path, out: &str) -> Value {
    let mut summary: Value = serde_json::from_slice(&bytes(folder, out, "summary.json")).expect("JSON");
    let object = summary.as_object_mut().expect("an object");
    for of_devices in ["engine", "device", "seconds", "seconds_loading", "prompts"] {
        assert!(object.remove(of_devices).is_some(), "{of_devices} is in the summary");
    }
    summary
}

fn same_on_several(change: impl Fn(&mut Value), more: &[&str]) {
    let folder = task_folder(change);
    let path = folder.path();
    run_into(path, "one", &[&["--device", "cpu"], more].concat());
    for (out, devices) in [("two", "cpu,cpu"), ("three", "cpu,cpu,cpu")] {
        run_into(path, out, &[&["--devices", devices, "--trees"], more].concat());
        assert_equal_results(path, "one", out);
        assert_eq!(summary(path, "one"), summary(path, out));
        let whole: Value = serde_json::from_slice(&bytes(path, out, "summary.json")).expect("JSON");
        let (device, engine) = (whole["device"].as_str().expect("a name"), &whole["engine"]);
        assert!(device.starts_with(&format!("{} replicas: cpu", devices.split(',').count())), "{device}");
        let alone: Value = serde_json::from_slice(&bytes(path, "one", "summary.json")).expect("JSON");
        for counted in ["tokens_sampled", "prompt_tokens_logical"] {
            assert_eq!(engine[counted], alone["engine"][counted], "{counted}");
        }
    }
}

#[test]
fn samples_of_many_items() {
    same_on_several(|_| {}, &[]);
}

#[test]
fn samples_of_few_items_on_few_branches() {
    same_on_several(
        |task| task["method"] = json!({"sample": {"samples": 40}}),
        &["--limit", "1", "--max-branches", "4"],
    );
}

#[test]
fn steps_of_beams_and_trees() {
    let beam = json!({"step_beam": {"samples": 8, "expansions": 4, "delimiter": "\n", "scorer": "mean_logprob"}});
    same_on_several(|task| task["method"] = beam.clone(), &["--limit", "4"]);
    let mcts = json!({"mcts": {"samples": 6, "expansions": 3, "parallel": 1, "scorer": "mean_logprob"}});
    same_on_several(|task| task["method"] = mcts.clone(), &["--limit", "2"]);
}

#[test]
fn thoughts_with_questions_of_their_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = repository().join("tasks/make24-tot.json").display().to_string();
    let into = |out: &str, more: &[&str]| {
        succeeds(run(folder.path(), &[&["run", &task, "--limit", "4", "--out", out], more].concat()));
    };
    into("one", &[]);
    into("two", &["--devices", "cpu,cpu"]);
    assert_equal_results(folder.path(), "one", "two");
}

#[test]
fn a_run_goes_on_with_another_number_of_devices() {
    let folder = task_folder(|_| {});
    let path = folder.path();
    run_into(path, "whole", &[]);
    run_into(path, "parts", &["--limit", "2", "--devices", "cpu,cpu"]);
    run_into(path, "parts", &["--resume", "--devices", "cpu,cpu,cpu"]);
    assert_equal_results(path, "whole", "parts");
}

#[test]
fn answers_of_a_batch() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |at: usize| {
        let prompt = QUESTION.replace('3', &at.to_string());
        let scored = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 2});
        let sampled = json!({"prompt": prompt, "max_tokens": 30, "n": 5, "temperature": 1.1, "logprobs": 1});
        batch_desk::completions(&format!("ask-{at}"), if at.is_multiple_of(3) { scored } else { sampled })
    };
    batch_desk::write(folder.path(), &(1..20).map(ask).collect::<Vec<_>>());
    let answers = |out: &str, more: &[&str]| -> Vec<Value> {
        let ran = batch_desk::batch(folder.path(), "in.jsonl", out, more);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let mut answers = batch_desk::read(&folder.path().join(out));
        for answer in &mut answers {
            let body = answer["response"]["body"].as_object_mut().expect("an answer");
            body.remove("created");
            // What was in the cache depends on where it ran.
            body.remove("usage");
        }
        answers
    };
    let one = answers("one.jsonl", &[]);
    assert_eq!(one.len(), 19);
    assert_eq!(answers("two.jsonl", &["--devices", "cpu,cpu"]), one);
    assert_eq!(answers("three.jsonl", &["--devices", "cpu,cpu,cpu", "--max-branches", "2"]), one);
}

#[test]
fn a_dry_run_has_the_memory_of_each_device() {
    let folder = task_folder(|_| {});
    let page = succeeds(run(folder.path(), &["run", "task.json", "--dry-run", "--devices", "cpu,cpu"]));
    let devices: Vec<&str> = page.lines().filter(|line| line.starts_with("device ")).collect();
    assert_eq!(devices.len(), 2, "{page}");
    assert!(devices.iter().all(|line| line.contains("weights ") && line.contains("kv pool ")), "{page}");
    assert!(page.contains("on each device") && page.contains("on 72 branches"), "{page}");
}

#[test]
fn devices_that_cannot_be_used_are_refused_before_anything_is_loaded() {
    let folder = task_folder(|task| task["model"] = json!("nowhere"));
    for (devices, words) in [
        ("cuda:0,cuda:0", &["--devices", "each GPU once", "cuda:0,cuda:0"][..]),
        ("cpu,cuda:0", &["--devices", "of one kind"]),
        ("gpu", &["--devices", "cuda:0,cuda:1", "gpu"]),
        ("", &["--devices"]),
    ] {
        refuses(&run(folder.path(), &["run", "task.json", "--devices", devices]), words);
    }
    refuses(
        &run(folder.path(), &["check", "--model", "x", "--devices", "cpu,cpu"]),
        &["--devices", "batch, serve", "cpu,cpu"],
    );
    refuses(&run(folder.path(), &["vote", "x", "--devices", "cpu,cpu"]), &["--devices"]);
    // There are no GPUs: `CUDA_VISIBLE_DEVICES` is empty.
    let folder = task_folder(|_| {});
    for devices in ["all", "cuda:0,cuda:1"] {
        refuses(&run(folder.path(), &["run", "task.json", "--devices", devices]), &[]);
    }
    let said = run(folder.path(), &["run", "task.json", "--devices", "all"]);
    refuses(&said, &["--devices all", "at least one GPU"]);
}

#[test]
fn a_plan_says_where_a_job_is_cut() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompt = |group: u32, at: u32| {
        let tokens: Vec<u32> = (0..300).map(|token| 100 * group + token % 97).chain([at; 20]).collect();
        json!({"tokens": tokens, "samples": 4, "max_tokens": 50})
    };
    let rows: Vec<Value> = (0..4).flat_map(|group| (0..6).map(move |at| prompt(group + 1, at))).collect();
    let rows_text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.path().join("rows.jsonl"), rows_text).expect("writable");
    let config = repository().join("tasks/models/demo/config.json").display().to_string();
    let plan = |rows: &str, more: &[&str]| -> Value {
        let asked = ["plan", rows, "--model", &config, "--json", "--predict", "never"];
        serde_json::from_str(&succeeds(run(folder.path(), &[&asked, more].concat()))).expect("JSON")
    };
    assert!(plan("rows.jsonl", &[]).get("replicas").is_none());
    let two = &plan("rows.jsonl", &["--devices", "cuda:0,cuda:1"])["replicas"];
    assert_eq!((&two["tokens_twice"], &two["tokens_of_one_device"]), (&json!(0), &json!(4 * (300 + 6 * 20))));
    let parts = two["replicas"].as_array().expect("a list");
    assert!(parts.iter().all(|part| part["samples"] == 48 && part["output_tokens"] == 2400), "{two}");

    let one = json!({"tokens": vec![7; 200], "samples": 90, "max_tokens": 40}).to_string();
    fs::write(folder.path().join("one.jsonl"), one).expect("writable");
    let three = &plan("one.jsonl", &["--devices", "cpu,cpu,cpu"])["replicas"];
    assert_eq!(three["tokens_twice"], 400, "the prompt is computed by each");
    let parts = three["replicas"].as_array().expect("a list");
    let samples = |part: &Value| part["samples"].as_u64().expect("a count");
    assert_eq!(parts.iter().map(samples).sum::<u64>(), 90);
    assert!(parts.iter().all(|part| (28..=32).contains(&samples(part))), "{three}");
    let page = succeeds(run(folder.path(), &["plan", "one.jsonl", "--model", &config, "--devices", "cpu,cpu"]));
    assert!(page.contains("200 of them twice") && page.contains("device 2"), "{page}");
}

#[test]
fn a_plan_says_what_is_copied_where_computing_takes_longer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = json!({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128_256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16"
    });
    fs::write(folder.path().join("config.json"), config.to_string()).expect("writable");
    let plan = |header: u32| -> Value {
        let prompt = |at: u32| (0..header).chain((0..500).map(|token| 10_000 + 700 * at + token)).collect::<Vec<u32>>();
        let rows = (0..20).map(|at| json!({"tokens": prompt(at), "samples": 8, "max_tokens": 100}));
        fs::write(folder.path().join("rows.jsonl"), rows.map(|row| format!("{row}\n")).collect::<String>())
            .expect("writable");
        let asked =
            ["plan", "rows.jsonl", "--model", "config.json", "--devices", "cuda:0,cuda:1", "--predict", "never"];
        let page = succeeds(run(folder.path(), &asked));
        assert!(page.contains(" copied: 1.0"), "{page}");
        serde_json::from_str(&succeeds(run(folder.path(), &[&asked[..], &["--json"]].concat()))).expect("JSON")
    };
    // As apps_2level: whole pages of 32 tokens.
    let two = &plan(2410)["replicas"];
    let said = ["tokens_of_one_device", "tokens_computed", "tokens_twice", "tokens_copied"].map(|name| &two[name]);
    assert_eq!(said, [&json!(12_410), &json!(12_420), &json!(10), &json!(2400)]);
    assert_eq!(two["replicas"][1]["copied"], 2400);
    assert_eq!(two["replicas"][1]["prompt_tokens"], 5010);
    // To copy so few takes longer.
    let two = &plan(64)["replicas"];
    assert_eq!((&two["tokens_twice"], &two["tokens_copied"]), (&json!(64), &json!(0)));
}
