//! Runs whose samples the model itself is asked about: what is found wrong with the question before anything is
//! sampled, and by what the best of k samples is told.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::runs;
use runs::{assert_equal_results, bytes, refuses, run, run_into, succeeds, task_folder};

fn question(prompt: Value) -> Value {
    json!({"prompt": prompt, "words": {" yes": 1.0, " no": 0.0}})
}

/// Every method that can ask, with the question `about`, by the path of its prompt.
fn methods(about: &Value) -> Vec<(&'static str, Value)> {
    vec![
        ("method.best_of_n.by.prompt", json!({"best_of_n": {"samples": 4, "by": about}})),
        ("method.step_beam.scorer.prompt", json!({"step_beam": {"samples": 4, "scorer": about}})),
        ("method.dvts.scorer.prompt", json!({"dvts": {"samples": 4, "scorer": about}})),
        ("method.mcts.scorer.prompt", json!({"mcts": {"samples": 4, "scorer": about}})),
    ]
}

/// A dry run loads no model and samples nothing.
#[test]
fn what_is_wrong_with_a_question_is_found_before_anything_is_sampled() {
    let wrong = [
        (json!("{{question}} Right?"), vec!["{{sample}}"]),
        (json!("{{subject}}: {{thoughts}} Right?"), vec!["`subject`", "pens-11"]),
        (json!({"chat": {"turns": "{{thoughts}} Right?"}}), vec!["chat", "turns"]),
        (json!(format!("{}{{{{thoughts}}}} Right?", "pens ".repeat(6000))), vec!["the scorer's prompt", "4096"]),
    ];
    for (prompt, words) in wrong {
        for (at, method) in methods(&question(prompt)) {
            let folder = task_folder(|task| task["method"] = method.clone());
            let ran = run(folder.path(), &["run", "task.json", "--dry-run"]);
            refuses(&ran, &words);
            if words[0] == "{{sample}}" {
                refuses(&ran, &[at]);
            }
        }
    }
    // The bundled model has a chat template.
    let right = [json!("{{question}} {{thoughts}} Right?"), json!({"chat": {"user": "{{thoughts}} Right?"}})];
    for (_, method) in right.into_iter().flat_map(|prompt| methods(&question(prompt))) {
        let folder = task_folder(|task| task["method"] = method.clone());
        succeeds(run(folder.path(), &["run", "task.json", "--dry-run"]));
    }
}

fn lines(folder: &Path, name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(folder, "out", name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// The share of right ones among the better of every two samples of an item, and the mean over the items.
fn best_of_two(folder: &Path, score: impl Fn(&Value, usize, &Value) -> f64) -> f64 {
    let (items, samples) = (lines(folder, "items.jsonl"), lines(folder, "samples.jsonl"));
    let of_item = |item: &Value| {
        let own: Vec<&Value> = samples.iter().filter(|sample| sample["id"] == item["id"]).collect();
        let (mut pairs, mut right) = (0, 0);
        for one in 0..own.len() {
            for other in one + 1..own.len() {
                let best = if score(item, other, own[other]) > score(item, one, own[one]) { other } else { one };
                pairs += 1;
                right += u32::from(own[best]["correct"] == json!(true));
            }
        }
        f64::from(right) / f64::from(pairs)
    };
    items.iter().map(of_item).sum::<f64>() / items.len() as f64
}

fn best_at(folder: &Path, k: u64) -> Option<f64> {
    let summary: Value = serde_json::from_slice(&bytes(folder, "out", "summary.json")).expect("JSON");
    summary["best_at"].as_array()?.iter().find(|at| at["k"] == k)?["value"].as_f64()
}

#[test]
fn the_best_of_k_is_by_the_scorer_also_when_it_is_read_back() {
    let about = question(json!("{{question}}\nAnswer:{{thoughts}}\nRight?"));
    // The answer is the first number of the text, so that many samples are right.
    let folder = task_folder(|task| {
        task["method"] = json!({"best_of_n": {"samples": 8, "by": about}});
        task["answer"] = json!({"regex": "([0-9]+)", "take": "last", "normalise": "number"});
    });
    let folder = folder.path();
    run_into(folder, "out", &[]);
    let by_scorer = best_of_two(folder, |item, ix, _| item["scores"][ix].as_f64().expect("a score each"));
    let by_logprob = best_of_two(folder, |_, _, sample| {
        sample["logprob"].as_f64().expect("a number") / sample["tokens"].as_f64().expect("a number")
    });
    assert!((by_scorer - by_logprob).abs() > 1e-6, "these samples cannot tell the two apart: {by_scorer}");
    let holds = |when: &str| {
        let found = best_at(folder, 2).expect("a row");
        assert!((found - by_scorer).abs() < 1e-9, "{when}: {found}, not {by_scorer}");
    };
    holds("run");
    run_into(folder, "out", &["--resume"]);
    holds("resumed");
    succeeds(run(folder, &["rescore", "out", "--out", "again"]));
    assert_equal_results(folder, "out", "again");
    succeeds(run(folder, &["rescore", "out"]));
    holds("rescored");

    let unscored = |mut line: Value| {
        line.as_object_mut().expect("an object").remove("scores");
        format!("{line}\n")
    };
    let text: String = lines(folder, "items.jsonl").into_iter().map(unscored).collect();
    fs::write(folder.join("out/items.jsonl"), text).expect("writable");
    let said = succeeds(run(folder, &["rescore", "out"]));
    assert!(!said.contains("best@k") && said.contains("pass@k"), "{said}");
    assert_eq!(best_at(folder, 2), None, "by what the samples would be ranked is not known");
}
