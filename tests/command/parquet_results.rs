//! Parquet in and out of the command: runs over Parquet items are those over lines, results come as Parquet too, and
//! both stay the same when a run goes on or is graded again.

use std::fs;
use std::io::Read;
use std::path::Path;

use offshoot_eval::records::parquet_lines;
use serde_json::{Value, json};

use crate::parquet_files::write_parquet;
use crate::runs::{assert_equal_results, bytes, refuses, run, run_into, succeeds, task_folder};

fn lines(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// The records of a Parquet file of results, without nulls; votes and alternatives as the lines have them.
fn table(path: &Path) -> Vec<Value> {
    let mut text = Vec::new();
    parquet_lines(path).expect("Parquet").read_to_end(&mut text).expect("rows");
    lines(&text).into_iter().map(without_nulls).map(as_line).collect()
}

fn without_nulls(mut value: Value) -> Value {
    match &mut value {
        Value::Array(list) => list.iter_mut().for_each(|value| *value = without_nulls(value.take())),
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(|value| *value = without_nulls(value.take()));
        }
        _ => {}
    }
    value
}

fn as_line(mut record: Value) -> Value {
    for vote in record.get_mut("votes").and_then(Value::as_array_mut).into_iter().flatten() {
        *vote = json!([vote["answer"], vote["votes"]]);
    }
    let mut tokens: Vec<&mut Value> = Vec::new();
    for (key, value) in record.as_object_mut().expect("an object") {
        match key.as_str() {
            "logprobs" => tokens.extend(value.as_array_mut().expect("a list")),
            "ending" => tokens.push(value),
            _ => {}
        }
    }
    for token in tokens {
        for top in token["top"].as_array_mut().expect("a list") {
            *top = json!([top["token"], top["logprob"]]);
        }
    }
    record
}

/// The lines of a file without the fields that are null.
fn of_lines(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let mut records = lines(&bytes(folder, out, name));
    for record in &mut records {
        record.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        round(record);
    }
    records
}

/// Log-probabilities of tokens have 32 bits, which the lines write as numbers of 64.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            *value = json!(number.as_f64().expect("it is one") as f32);
        }
        Value::Array(list) => list.iter_mut().for_each(round),
        Value::Object(object) => object.values_mut().for_each(round),
        _ => {}
    }
}

#[track_caller]
fn assert_tables_are_the_lines(folder: &Path, out: &str) {
    for name in ["samples", "items"] {
        let mut found = table(&folder.join(out).join(format!("{name}.parquet")));
        found.iter_mut().for_each(round);
        assert!(!found.is_empty());
        assert_eq!(found, of_lines(folder, out, &format!("{name}.jsonl")), "{name} of {out}");
    }
}

/// A sample of a task that asks for the ids of sets of five tokens, two of them with their log-probabilities, and for
/// entropies: also of the token that ended it.
fn assert_records(sample: &Value) {
    let tokens = sample["logprobs"].as_array().expect("a list");
    assert_eq!(tokens.len() as u64, sample["tokens"].as_u64().expect("a number"));
    assert_eq!(
        sample.get("ending").is_some(),
        ["end_of_text", "stop_token"].contains(&sample["finish"].as_str().unwrap())
    );
    let each = || tokens.iter().chain(sample.get("ending"));
    for token in each() {
        let ids = token["drawn"]["ids"].as_array().expect("a list");
        assert!(ids.len() == 5 && ids.contains(&token["token"]) && token["drawn"]["kept"] == 5, "{token}");
        assert!(token["rank"].as_u64().is_some_and(|rank| (1..=5).contains(&rank)), "{token}");
        assert!(token["drawn"]["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0), "{token}");
        assert!(token["entropy"].as_f64().is_some_and(|entropy| entropy >= 0.0));
    }
    let sum: f64 = each().map(|token| token["logprob"].as_f64().expect("a number")).sum();
    // Numbers of 32 bits.
    assert!((sample["logprob"].as_f64().expect("a number") - sum).abs() < 1e-5 * (1.0 + sum.abs()));
}

#[test]
fn runs_over_parquet_are_those_over_lines_and_results_come_as_parquet() {
    let folder = task_folder(|task| {
        task["method"] = json!({"self_consistency": {"samples": 4}});
        task["sampling"]["logprobs"] = json!(2);
        task["sampling"]["top_k"] = json!(5);
        task["sampling"]["return_kept"] = json!("ids");
        task["sampling"]["return_entropy"] = json!(true);
    });
    let folder = folder.path();
    let items = lines(&fs::read(folder.join("items.jsonl")).expect("readable"));
    write_parquet(&folder.join("hub/main/test-00000-of-00001.parquet"), &items);
    write_parquet(&folder.join("hub/main/train-00000-of-00001.parquet"), &items[..1]);
    run_into(folder, "lines", &[]);
    assert!(!folder.join("lines/samples.parquet").exists());
    for sample in lines(&bytes(folder, "lines", "samples.jsonl")) {
        assert_records(&sample);
    }
    let chosen = ["--set", "items.path=hub", "--set", "items.split=test"];
    run_into(folder, "rows", &[&chosen[..], &["--format", "parquet"]].concat());
    assert_equal_results(folder, "lines", "rows");
    assert_tables_are_the_lines(folder, "rows");
    let ambiguous = run(folder, &["run", "task.json", "--set", "items.path=hub", "--out", "none"]);
    refuses(&ambiguous, &["hub", "test", "train", "items.split"]);

    // A run that has them gets them again, whoever changes its lines.
    run_into(folder, "rows", &[&chosen[..], &["--resume", "--samples", "5"]].concat());
    assert_tables_are_the_lines(folder, "rows");
    let before = bytes(folder, "rows", "samples.parquet");
    succeeds(run(folder, &["rescore", "rows", "--set", "answer.regex=([0-9]+)", "--set", "answer.take=first"]));
    assert_tables_are_the_lines(folder, "rows");
    assert_ne!(bytes(folder, "rows", "samples.parquet"), before);
    assert_eq!(bytes(folder, "rows", "samples.parquet.before"), before);
    succeeds(run(folder, &["rescore", "lines", "--format", "parquet", "--out", "graded"]));
    assert_tables_are_the_lines(folder, "graded");

    // The samples vote again, as lines and as rows.
    let rules = ["--set", "answer.regex=#### (-?[0-9.,]+)", "--out"];
    let vote = |samples: &str, out: &str| succeeds(run(folder, &[&["vote", samples], &rules[..], &[out]].concat()));
    vote("lines/samples.jsonl", "votes.jsonl");
    run_into(folder, "again", &["--format", "parquet"]);
    vote("again/samples.parquet", "rows.jsonl");
    vote("again/samples.parquet", "votes.parquet");
    let votes = |name: &str| lines(&fs::read(folder.join(name)).expect("written"));
    assert_eq!(votes("rows.jsonl"), votes("votes.jsonl"));
    let mut expected = votes("votes.jsonl");
    expected.iter_mut().for_each(|vote| vote.as_object_mut().expect("an object").retain(|_, value| !value.is_null()));
    assert_eq!(table(&folder.join("votes.parquet")), expected);
}
