//! `run --attention-levels`: where the attention of samples fell, as a user finds it in samples, summary and report. Asking for
//! it changes nothing else.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

#[path = "common/runs.rs"]
mod runs;
use runs::{assert_equal_results, refuses, run, run_into, succeeds, task_folder};

/// The samples of a run, in the order of the file.
fn samples(folder: &Path, out: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(out).join("samples.jsonl")).expect("the run wrote it");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn summary(folder: &Path, out: &str) -> Value {
    let text = fs::read_to_string(folder.join(out).join("summary.json")).expect("the run wrote it");
    serde_json::from_str(&text).expect("JSON")
}

fn parts(list: &Value) -> Vec<f64> {
    list.as_array().expect("a list").iter().map(|part| part.as_f64().expect("a number")).collect()
}

/// Takes the attention out of a sample.
fn take(sample: &mut Value) -> Option<Vec<f64>> {
    sample.as_object_mut().expect("an object").remove("attention").map(|list| parts(&list))
}

#[test]
fn samples_say_where_their_attention_fell_and_are_the_same() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "silent", &[]);
    let report = succeeds(run(folder, &["run", "task.json", "--out", "told", "--attention-levels"]));
    let (silent, mut told) = (samples(folder, "silent"), samples(folder, "told"));
    let (mut means, mut tokens) = ([0.0; 3], 0.0);
    for sample in &mut told {
        let parts = take(sample).expect("every sample drew something");
        assert_eq!(parts.len(), 3, "few-shot text, problem, own text");
        assert!(parts.iter().all(|&part| part > 0.0) && (parts.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{parts:?}");
        let weight = sample["tokens"].as_f64().expect("a number");
        means.iter_mut().zip(&parts).for_each(|(mean, part)| *mean += weight * part);
        tokens += weight;
    }
    assert!(silent.iter().all(|sample| sample.get("attention").is_none()));
    assert_eq!(told, silent);

    let levels = summary(folder, "told")["levels"].clone();
    assert_eq!(levels.as_array().map(Vec::len), Some(3));
    for (ix, mean) in means.into_iter().map(|mean| mean / tokens).enumerate() {
        let told = levels[ix]["attention"].as_f64().expect("a number");
        assert!((told - mean).abs() < 1e-6, "{told}, not {mean}");
        let said = format!(", {:.1} % of attention\n", 100.0 * mean);
        assert!(report.contains(&said), "`{said}` is not in: {report}");
    }
    let silent = summary(folder, "silent");
    assert!(silent["levels"].as_array().expect("a list").iter().all(|level| level.get("attention").is_none()));

    // On the CPU results are exact.
    run_into(folder, "narrow", &["--attention-levels", "--plan", "flat", "--max-branches", "3"]);
    assert_equal_results(folder, "told", "narrow");
}

#[test]
fn samples_of_a_run_that_did_not_ask_are_kept_as_they_are() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "out", &["--samples", "2"]);
    let resumed = ["run", "task.json", "--out", "out", "--samples", "4", "--resume", "--attention-levels"];
    let report = succeeds(run(folder, &resumed));
    assert!(report.contains(" attention of 12 of 24 samples\n"), "{report}");
    assert!(report.contains(" more for attention by levels\n"), "{report}");
    assert_eq!(summary(folder, "out")["attention"], json!({"samples": 12, "of": 24}));
    run_into(folder, "whole", &["--samples", "4", "--attention-levels"]);
    for (sample, whole) in samples(folder, "out").iter().zip(samples(folder, "whole")) {
        assert_eq!(sample["text"], whole["text"]);
        match sample["index"].as_u64() < Some(2) {
            true => assert_eq!(sample.get("attention"), None),
            false => assert_eq!(sample["attention"], whole["attention"]),
        }
    }
    let sum: f64 = (0..3).map(|ix| summary(folder, "out")["levels"][ix]["attention"].as_f64().expect("a number")).sum();
    assert!((sum - 1.0).abs() < 1e-4, "of the samples that say it: {sum}");
}

#[test]
fn a_run_that_is_finished_says_that_it_is_too_late() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "out", &["--samples", "2"]);
    let again = |more: &[&str]| {
        let arguments = ["run", "task.json", "--out", "out", "--resume", "--attention-levels", "--samples"];
        let ran = run(folder, &[&arguments[..], more].concat());
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        (succeeds(ran), said.contains("nothing is left to compute --attention-levels for"))
    };
    let (report, is_late) = again(&["2"]);
    assert!(is_late && !report.contains("of attention"), "{report}");
    assert!(report.contains(" prompt level 1: "), "what is shared is said of samples that are there: {report}");
    let (report, is_late) = again(&["3"]);
    assert!(!is_late && report.contains(" attention of 6 of 18 samples\n"), "{report}");
    let (report, is_late) = again(&["3"]);
    assert!(is_late && report.contains(" attention of 6 of 18 samples\n"), "{report}");
    run_into(folder, "told", &["--samples", "2", "--attention-levels"]);
    let told = run(folder, &["run", "task.json", "--out", "told", "--samples", "2", "--resume", "--attention-levels"]);
    assert!(told.stderr.is_empty(), "{}", String::from_utf8_lossy(&told.stderr));
    assert!(!succeeds(told).contains("attention of"));
}

#[test]
fn thoughts_of_a_path_count_together() {
    let method = json!({"step_beam": {"samples": 4, "expansions": 2, "delimiter": " ", "scorer": "mean_logprob"}});
    let folder = task_folder(|task| task["method"] = method.clone());
    let folder = folder.path();
    run_into(folder, "out", &["--limit", "2", "--attention-levels"]);
    let mut samples = samples(folder, "out");
    assert!(samples.iter().any(|sample| sample["text"].as_str().is_some_and(|text| text.contains(' '))), "{samples:?}");
    for sample in &mut samples {
        let parts = take(sample).expect("every sample drew something");
        assert!(parts.len() == 3 && (parts.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{parts:?}");
    }
}

#[test]
fn what_cannot_be_told_is_one_sentence() {
    let levels: Vec<String> = (0..8).map(|level| format!("Level {level}. ")).chain(["{{question}}".into()]).collect();
    let folder = task_folder(|task| task["prompt"] = json!({"levels": levels}));
    let refused = run(folder.path(), &["run", "task.json", "--out", "out", "--attention-levels"]);
    refuses(
        &refused,
        &["task.json", "prompt", "at most 7 levels, the shared one included, with --attention-levels", "found 9"],
    );
    assert!(!folder.path().join("out").exists());
    run_into(folder.path(), "out", &["--limit", "1"]);
    refuses(&run(folder.path(), &["run", "--attention-levels"]), &["--attention-levels", "task file"]);
    let choice = concat!(env!("CARGO_MANIFEST_DIR"), "/tasks/choice.json");
    let refused = run(folder.path(), &["run", choice, "--out", "chosen", "--attention-levels"]);
    refuses(&refused, &["choice.json", "method", "draws tokens", "choose"]);
}
