//! Runs that are graded again without a model: what changes, what stays, and what a rescore that is killed leaves.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::judging;
use crate::runs;
use judging::can_judge;
use runs::{assert_equal_results, bytes, offshoot, refuses, repository, run, run_into, succeeds, task_folder};

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

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// It must succeed and say `words` on the side.
fn warns(output: Output, words: &[&str]) {
    let said = said(&output);
    succeeds(output);
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

fn write_lines(path: &Path, lines: &[Value]) {
    fs::write(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("writable");
}

/// The lines of the run `out` without their places, by id.
fn without_places(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let mut lines = lines(folder, out, name);
    if name == "items.jsonl" {
        lines.iter_mut().for_each(|line| drop(line.as_object_mut().expect("an object").remove("index")));
    }
    lines.sort_by_key(|line| (line["id"].to_string(), line["index"].as_u64()));
    lines
}

#[test]
fn items_are_told_by_their_ids_wherever_they_stand() {
    let folder = voted();
    let folder = folder.path();
    let before: Vec<_> = ["items.jsonl", "samples.jsonl"].map(|name| without_places(folder, "out", name)).into();
    let quiet = run(folder, &["rescore", "out", "--out", "same"]);
    assert_eq!(said(&quiet), "", "nothing has changed");

    let mut items = lines(folder, ".", "items.jsonl");
    items.reverse();
    items.insert(1, json!({"id": "new", "question": "1 + 1?", "answer": "2"}));
    write_lines(&folder.join("items.jsonl"), &items);
    warns(run(folder, &["rescore", "out"]), &["warning", "items.jsonl has changed since the run"]);
    let after: Vec<_> = ["items.jsonl", "samples.jsonl"].map(|name| without_places(folder, "out", name)).into();
    assert!(before == after, "an item got the results of another");
    let places: Vec<_> = lines(folder, "out", "items.jsonl").iter().map(|line| line["index"].as_u64()).collect();
    assert_eq!(places, [0, 2, 3, 4, 5, 6].map(Some));
    let ids: Vec<_> = lines(folder, "out", "items.jsonl").iter().map(|line| line["id"].clone()).collect();
    assert_eq!(ids[0], json!("pens-16"));

    write_lines(&folder.join("items.jsonl"), &items[1..]);
    refuses(&run(folder, &["rescore", "out"]), &["samples.jsonl", "pens-16"]);
}

#[test]
fn a_method_that_would_need_the_model_is_refused() {
    let folder = voted();
    let folder = folder.path();
    let scorer = r#"{"prompt": "{{question}} {{thoughts}}?", "words": {"y": 1, "n": 0}}"#;
    for method in [
        r#"{"step_beam": {"samples": 4, "scorer": "mean_logprob"}}"#.to_string(),
        r#"{"mcts": {"samples": 4, "scorer": "agreement"}}"#.to_string(),
        r#"{"choose": {"choices": ["a", "b"]}}"#.to_string(),
        format!("{{\"best_of_n\": {{\"samples\": 5, \"by\": {scorer}}}}}"),
        r#"{"self_consistency": {"samples": 5, "stop_when_decided": true}}"#.to_string(),
    ] {
        let set = format!("method={method}");
        refuses(&run(folder, &["rescore", "out", "--set", &set, "--out", "never"]), &["`method`", "the run's own"]);
        assert!(!folder.join("never").exists());
    }
    for (name, method) in [
        ("best_of_n with 5 samples", r#"{"best_of_n": {"samples": 5, "by": "mean_logprob"}}"#),
        ("best_of_n with 5 samples", r#"{"best_of_n": {"samples": 5, "by": "grade"}}"#),
        ("sample with 5 samples", r#"{"sample": {"samples": 5}}"#),
        ("self_consistency with 5 samples", r#"{"self_consistency": {"samples": 5}}"#),
    ] {
        rescore(folder, &["--set", &format!("method={method}")]);
        assert_eq!(summary(folder, "out")["method"], name);
        run_into(folder, "out", &["--set", &format!("method={method}"), "--resume"]);
    }
}

#[test]
fn the_runs_own_number_of_samples_stays() {
    let folder = voted();
    let folder = folder.path();
    let mut other: Value = serde_json::from_slice(&bytes(folder, ".", "task.json")).expect("JSON");
    other["method"] = json!({"best_of_n": {"samples": 2, "by": "logprob"}});
    fs::write(folder.join("other.json"), other.to_string()).expect("writable");
    let set = "method.self_consistency.samples=40";
    for (more, method) in [(["--set", set], "self_consistency"), (["--task", "other.json"], "best_of_n")] {
        warns(run(folder, &["rescore", "out", more[0], more[1]]), &["the run 5: the run's number is used"]);
        let manifest: Value = serde_json::from_slice(&bytes(folder, "out", "manifest.json")).expect("JSON");
        assert_eq!(manifest["task"]["method"][method]["samples"], json!(5), "{manifest}");
        assert_eq!(summary(folder, "out")["method"], format!("{method} with 5 samples"));
    }
    for set in ["sampling.temperature=0.1", "prompt.item=x", "sampling={}"] {
        refuses(&run(folder, &["rescore", "out", "--set", set]), &["--set", set, "because the samples do not change"]);
    }
}

#[test]
fn what_is_not_graded_is_said() {
    let folder = voted();
    let folder = folder.path();
    let mut items = lines(folder, "out", "items.jsonl");
    items[2] = json!({"id": items[2]["id"], "index": 2, "error": "out of pages"});
    items.remove(4);
    write_lines(&folder.join("out/items.jsonl"), &items);
    let said = ["1 item failed in the run, first `pens-13`", "1 item not finished"];
    warns(run(folder, &["rescore", "out"]), &said);
    assert_eq!((&summary(folder, "out")["items"], &summary(folder, "out")["failed"]), (&json!(4), &json!(1)));
    assert_eq!(lines(folder, "out", "items.jsonl")[2]["error"], "out of pages");

    for name in ["items.jsonl", "samples.jsonl"] {
        let kept = bytes(folder, "out", name);
        fs::remove_file(folder.join("out").join(name)).expect("writable");
        refuses(&run(folder, &["rescore", "out"]), &[&format!("out/{name}"), "missing"]);
        assert!(!folder.join("out").join(name).exists(), "nothing is made in its place");
        fs::write(folder.join("out").join(name), kept).expect("writable");
    }
}

#[test]
fn votes_that_old_answers_decided_are_said_to_be_so() {
    let stopping = json!({"self_consistency": {"samples": 9, "stop_when_decided": true}});
    let folder = task_folder(|task| {
        task["method"] = stopping.clone();
        task["sampling"]["temperature"] = json!(0);
    });
    let folder = folder.path();
    run_into(folder, "out", &[]);
    assert!(summary(folder, "out")["cancelled"].as_u64() > Some(0), "equal samples decide a vote early");
    assert_eq!(said(&run(folder, &["rescore", "out", "--out", "same"])), "");
    let never = ["rescore", "out", "--out", "new", "--set", "answer.regex=(no answer at all)"];
    warns(run(folder, &never), &["stopped", "run's own answers", "6 of these are not decided"]);
    let all = r#"method={"self_consistency": {"samples": 9}}"#;
    refuses(&run(folder, &["rescore", "out", "--set", all]), &["`method`", "were spared"]);
}

/// A task of three functions with references, of which the second is `second`.
fn write_functions(folder: &Path, second: &str) {
    let problem = |(number, body): (usize, &str)| {
        json!({"task_id": format!("HumanEval/{number}"), "prompt": "def f(x):\n", "entry_point": "f", "test": "",
            "atol": 0, "canonical_solution": format!("    return {body}\n"), "base_input": [[1]], "plus_input": [[0]]})
    };
    let problems: Vec<Value> = ["x", second, "x"].into_iter().enumerate().map(problem).collect();
    write_lines(&folder.join("functions.jsonl"), &problems);
}

#[test]
fn a_reference_that_fails_leaves_out_its_item_and_no_folder() {
    if !can_judge() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    write_functions(folder, "x");
    let task = json!({
        "name": "functions", "model": repository().join("tasks/models/demo"),
        "items": {"path": "functions.jsonl", "id": "task_id"}, "prompt": "{{prompt}}",
        "method": {"sample": {"samples": 3}}, "sampling": {"max_tokens": 6, "seed": 1},
        "grade": {"judge": {"format": "evalplus", "extract": "completion"}}
    });
    fs::write(folder.join("task.json"), task.to_string()).expect("writable");
    run_into(folder, "out", &[]);
    let judged = |out: &str| -> Vec<(Value, Value)> {
        let of = |line: Value| (line["id"].clone(), line["judged"]["verdict"].clone());
        lines(folder, out, "samples.jsonl").into_iter().map(of).collect()
    };
    let before = judged("out");
    assert!(before.iter().all(|(_, verdict)| verdict.is_string()), "{before:?}");

    write_functions(folder, "1 / x");
    let temporary = folder.join("temporary");
    fs::create_dir(&temporary).expect("writable");
    let mut command = offshoot(folder, &["rescore", "out", "--judges", "4"]);
    let ran = command.env("TMPDIR", &temporary).output().expect("the binary starts");
    refuses(&ran, &["items.jsonl", "1 item could not be graded, first `HumanEval/1`", "ZeroDivisionError"]);
    assert_eq!(fs::read_dir(&temporary).expect("readable").count(), 0, "a folder is left");
    let left_out = |line: &(Value, Value)| line.0 == json!("HumanEval/1");
    for (one, other) in before.iter().zip(judged("out")) {
        assert_eq!(other.1, if left_out(one) { Value::Null } else { one.1.clone() });
    }
    assert_eq!((&summary(folder, "out")["items"], &summary(folder, "out")["failed"]), (&json!(2), &json!(1)));
    assert!(lines(folder, "out", "items.jsonl")[1]["error"].as_str().is_some_and(|why| why.contains("ZeroDivision")));

    write_functions(folder, "x");
    rescore(folder, &[]);
    assert_eq!(judged("out"), before, "its samples are all there");
    assert_eq!(summary(folder, "out")["items"], json!(3));
    assert_eq!(lines(folder, "out", "items.jsonl")[1].get("error"), None);
}

/// What a model says is one program, whoever judges it: as a run's line, a completion or a solution.
#[test]
fn judge_and_rescore_find_the_same_program() {
    if !can_judge() {
        return;
    }
    let right = "def half(x):\n    return x / 2\n";
    let draft = "```python\ndef half(x):\n    # A draft that is longer than the answer.\n    return 0\n```\n";
    let fenced = format!("```python\n{right}```\n");
    let texts = [
        (format!("<think>{draft}</think>{fenced}"), "AC"),
        (format!("{draft}</think>\n{fenced}"), "AC"),
        (format!("<thinking>{draft}</thinking>\n\n{right}"), "AC"),
        (format!("{draft}Better:\n{fenced}As an example:\n```python\nprint(half(1), half(2), half(3))\n```\n"), "AC"),
        (format!("~~~python\n{right}~~~"), "AC"),
        (format!("``````\n{right}``````"), "AC"),
        ("1. So\n   ```python\n   def half(x):\n       return x / 2\n   ```\n".to_string(), "AC"),
        (format!("Here's the function:\n\n{right}\nIt halves the number."), "AC"),
        ("<think>a</think>\n```\n    return x / 2\n```".to_string(), "AC"),
        (fenced.replace('\n', "\r\n"), "AC"),
        (format!("{fenced}So the answer is:\n{draft}"), "WA"),
        (format!("<think>{fenced}"), "WA"),
        // Its prompt opened the fence.
        ("    return x / 2\n```\n".to_string(), "AC"),
        ("    return x / 2\n~~\n".to_string(), "CE"),
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let problem = json!({"task_id": "HumanEval/2", "prompt": "def half(x):\n    \"\"\"Half of it.\"\"\"\n",
        "entry_point": "half", "test": "def check(f):\n    assert f(3) == 1.5\n"});
    write_lines(&folder.join("problems.jsonl"), &[problem]);
    let task = json!({
        "name": "halves", "model": repository().join("tasks/models/demo"),
        "items": {"path": "problems.jsonl", "id": "task_id"}, "prompt": "{{prompt}}",
        "method": {"sample": {"samples": texts.len()}}, "sampling": {"max_tokens": 1, "seed": 1},
        "grade": {"judge": {}}
    });
    fs::write(folder.join("task.json"), task.to_string()).expect("writable");
    run_into(folder, "out", &[]);
    let mut samples = lines(folder, "out", "samples.jsonl");
    samples.iter_mut().zip(&texts).for_each(|(line, (text, _))| line["text"] = json!(text));
    write_lines(&folder.join("out/samples.jsonl"), &samples);
    rescore(folder, &[]);
    let expected: Vec<Value> = texts.iter().map(|(_, verdict)| json!(verdict)).collect();
    let verdicts: Vec<Value> =
        lines(folder, "out", "samples.jsonl").iter().map(|line| line["judged"]["verdict"].clone()).collect();
    assert_eq!(verdicts, expected, "rescore");

    let of_field = |field: &str| -> Vec<Value> {
        texts.iter().map(|(text, _)| json!({"task_id": "HumanEval/2", (field): text})).collect()
    };
    write_lines(&folder.join("text.jsonl"), &samples);
    write_lines(&folder.join("completion.jsonl"), &of_field("completion"));
    write_lines(&folder.join("solution.jsonl"), &of_field("solution"));
    for field in ["text", "completion", "solution"] {
        let file = format!("{field}.jsonl");
        succeeds(run(folder, &["judge", "--problems", "problems.jsonl", "--samples", &file]));
        let results = lines(folder, ".", &format!("{file}_results.jsonl"));
        let verdicts: Vec<Value> = results.iter().map(|line| line["verdict"].clone()).collect();
        assert_eq!(verdicts, expected, "{field}");
    }
}
