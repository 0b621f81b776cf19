//! `offshoot tree RUN --attention`: where the attention of a finished run's samples fell, as a user finds it in
//! attention.jsonl, the table and the views. Asking changes no result of the run.

use std::fs;
use std::path::Path;

use offshoot_backend::LevelBounds;
use offshoot_cpu::Cpu;
use offshoot_model::{Attribution, Decoder, ModelFolder};
use offshoot_search::tree::Trace;
use serde_json::{Value, json};

use crate::runs;
use runs::{bytes, refuses, repository, run, run_into, succeeds, task_folder};

/// The lines of a file of a run, in its order.
fn lines(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(folder, out, name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn shares(line: &Value) -> Vec<f64> {
    line["attention"].as_array().expect("a list").iter().map(|share| share.as_f64().expect("a number")).collect()
}

fn assert_shares(line: &Value, levels: usize) {
    let shares = shares(line);
    assert_eq!(shares.len(), levels, "{line}");
    assert!(shares.iter().all(|&share| share >= 0.0) && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{line}");
}

/// What `offshoot tree OUT --attention` prints.
fn attribute(folder: &Path, out: &str, more: &[&str]) -> String {
    succeeds(run(folder, &[&["tree", out, "--attention"], more].concat()))
}

#[test]
fn shares_of_a_finished_run_are_told_and_change_no_result() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "out", &["--trees"]);
    let results = ["samples.jsonl", "items.jsonl", "summary.json", "manifest.json", "trees/0.json"];
    let before = results.map(|name| bytes(folder, "out", name));
    let table = attribute(folder, "out", &[]);
    assert_eq!(results.map(|name| bytes(folder, "out", name)), before);

    let (told, samples) = (lines(folder, "out", "attention.jsonl"), lines(folder, "out", "samples.jsonl"));
    assert_eq!(told.len(), samples.len());
    let (mut means, mut tokens) = ([0.0; 3], 0.0);
    for (told, sample) in told.iter().zip(&samples) {
        for field in ["id", "index", "tokens"] {
            assert_eq!(told[field], sample[field]);
        }
        // Few-shot text, problem, own text.
        assert_shares(told, 3);
        let weight = told["tokens"].as_f64().expect("a number");
        means.iter_mut().zip(shares(told)).for_each(|(mean, share)| *mean += weight * share);
        tokens += weight;
    }
    assert!(table.contains(&format!("{} samples, ", samples.len())), "{table}");
    for (name, mean) in ["prompt level 1", "prompt level 2", "own text"].iter().zip(means) {
        let said = format!(" {name}: {:.1} %\n", 100.0 * mean / tokens);
        assert!(table.contains(&said), "`{said}` is not in: {table}");
    }

    // On the CPU results are exact, and so are the shares of their tokens.
    run_into(folder, "narrow", &["--trees", "--plan", "flat", "--max-branches", "3"]);
    attribute(folder, "narrow", &[]);
    assert!(bytes(folder, "out", "attention.jsonl") == bytes(folder, "narrow", "attention.jsonl"));
}

#[test]
fn a_samples_share_is_the_mean_of_the_rows_that_drew_its_tokens() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "out", &["--trees", "--limit", "1"]);
    attribute(folder, "out", &[]);
    let trace = Trace::read(&folder.join("out/trees/0.json")).expect("the run wrote it");
    let (root, ends) = (&trace.nodes[0], trace.level_ends.as_ref().expect("its levels"));
    let bounds = LevelBounds::behind(&[ends[0] as u32, ends[1] as u32]).expect("they rise");
    assert_eq!(ends.len(), 2);

    let mut cpu = Cpu::open().expect("a path");
    let model = ModelFolder::open(repository().join("tasks/models/demo")).expect("the demo model");
    let mut decoder = Decoder::load(&mut cpu, &model).expect("it loads");
    let longest = trace.nodes.iter().map(|node| root.tokens + node.tokens).max().expect("a root");
    let mut attribution = Attribution::new(&mut cpu, &mut decoder, longest, 64).expect("it fits");
    for told in lines(folder, "out", "attention.jsonl") {
        let node =
            trace.nodes.iter().skip(1).find(|node| Some(node.ordinal) == told["index"].as_u64()).expect("a node");
        let (prompt, own) = (root.token_ids.as_ref().expect("tokens"), node.token_ids.as_ref().expect("tokens"));
        let masses = attribution.along(prompt, bounds, own).expect("it fits");
        for (level, share) in shares(&told).into_iter().enumerate() {
            let mean = masses.iter().map(|mass| f64::from(mass[level])).sum::<f64>() / own.len() as f64;
            assert!((share - mean).abs() < 1e-6, "level {level} of {told}: not {mean}");
        }
    }
}

#[test]
fn samples_whose_tokens_no_tree_records_are_left_out_and_said() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "whole", &["--samples", "4", "--trees"]);
    attribute(folder, "whole", &[]);
    let whole = lines(folder, "whole", "attention.jsonl");
    let later = |line: &&Value| line["index"].as_u64() >= Some(2);

    // Samples that an earlier process drew stand in the tree without their tokens.
    run_into(folder, "out", &["--samples", "2", "--trees"]);
    succeeds(run(folder, &["run", "task.json", "--out", "out", "--samples", "4", "--resume", "--trees"]));
    let table = attribute(folder, "out", &[]);
    assert!(table.contains("12 samples of 24 (no tree records the tokens of the others), "), "{table}");
    assert!(lines(folder, "out", "attention.jsonl").iter().eq(whole.iter().filter(later)));

    // Unless they were attributed before.
    run_into(folder, "early", &["--samples", "2", "--trees"]);
    attribute(folder, "early", &[]);
    succeeds(run(folder, &["run", "task.json", "--out", "early", "--samples", "4", "--resume", "--trees"]));
    attribute(folder, "early", &[]);
    let mut told = lines(folder, "early", "attention.jsonl");
    told.sort_by_key(|line| (line["id"].to_string(), line["index"].as_u64()));
    assert_eq!(told, whole);
}

#[test]
fn one_item_is_told_by_sample_and_the_others_stay() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "out", &["--trees", "--samples", "3"]);
    let table = attribute(folder, "out", &["--item", "pens-12"]);
    let told = lines(folder, "out", "attention.jsonl");
    assert!(told.len() == 3 && told.iter().all(|line| line["id"] == "pens-12"), "{told:?}");
    for line in &told {
        let shares: Vec<String> = shares(line).iter().map(|share| format!("{:.1}", 100.0 * share)).collect();
        let said = format!(" sample {}: {} % of {} token", line["index"], shares.join(" + "), line["tokens"]);
        assert!(table.contains(&said), "`{said}` is not in: {table}");
    }
    attribute(folder, "out", &["--item", "0"]);
    let both = lines(folder, "out", "attention.jsonl");
    assert_eq!((both.len(), &both[..3]), (6, &told[..]));
}

#[test]
fn views_show_it_where_the_sample_ends() {
    let folder = task_folder(|_| {});
    let folder = folder.path();
    run_into(folder, "out", &["--trees", "--limit", "1"]);
    let table = attribute(folder, "out", &["--json", "trees.json"]);
    assert!(table.contains("attention") && table.contains("wrote trees.json"), "{table}");
    let trees: Value = serde_json::from_slice(&fs::read(folder.join("trees.json")).expect("written")).expect("JSON");
    let nodes = trees["items"][0]["nodes"].as_array().expect("a list");
    let shown: Vec<&Value> = nodes.iter().filter_map(|node| node["sample"].get("attention")).collect();
    let told = lines(folder, "out", "attention.jsonl");
    assert!(shown.into_iter().eq(told.iter().map(|line| &line["attention"])), "{trees}");
    let outline = succeeds(run(folder, &["tree", "out"]));
    let percent: Vec<String> = shares(&told[0]).iter().map(|share| format!("{:.0}", 100.0 * share)).collect();
    assert!(outline.contains(&format!(", attention {} %]", percent.join(" + "))), "{outline}");
}

#[test]
fn thoughts_of_a_path_count_together() {
    let method = json!({"step_beam": {"samples": 4, "expansions": 2, "delimiter": " ", "scorer": "mean_logprob"}});
    let folder = task_folder(|task| task["method"] = method.clone());
    let folder = folder.path();
    run_into(folder, "out", &["--limit", "2", "--trees"]);
    attribute(folder, "out", &[]);
    let (told, samples) = (lines(folder, "out", "attention.jsonl"), lines(folder, "out", "samples.jsonl"));
    assert!(samples.iter().any(|sample| sample["text"].as_str().is_some_and(|text| text.contains(' '))), "{samples:?}");
    assert_eq!(told.len(), samples.len());
    for (told, sample) in told.iter().zip(&samples) {
        assert_eq!(
            (&told["id"], &told["index"], &told["tokens"]),
            (&sample["id"], &sample["index"], &sample["tokens"])
        );
        assert_shares(told, 3);
    }
}

#[test]
fn what_cannot_be_told_is_one_sentence() {
    let levels: Vec<String> = (0..8).map(|level| format!("Level {level}. ")).chain(["{{question}}".into()]).collect();
    let folder = task_folder(|task| task["prompt"] = json!({"levels": levels}));
    let folder = folder.path();
    run_into(folder, "deep", &["--limit", "1", "--trees", "--samples", "1"]);
    let refused = |out: &str, words: &[&str]| refuses(&run(folder, &["tree", out, "--attention"]), words);
    refused("deep", &["trees/0.json", "level_ends", "at most 7 levels of the prompt", "found 9"]);

    run_into(folder, "bare", &["--limit", "1", "--samples", "1"]);
    refused("bare", &["bare", "trees of its items", "run the task again with --trees", "found none"]);

    let trace = fs::read_to_string(folder.join("deep/trees/0.json")).expect("written");
    let mut trace: Value = serde_json::from_str(&trace).expect("JSON");
    trace.as_object_mut().expect("an object").remove("level_ends");
    fs::write(folder.join("deep/trees/0.json"), trace.to_string()).expect("writable");
    refused("deep", &["trees/0.json", "level_ends", "run the task again with --trees", "found nothing"]);

    let choice = repository().join("tasks/choice.json");
    let choice = choice.to_str().expect("text");
    succeeds(run(folder, &["run", choice, "--out", "chosen", "--limit", "1", "--trees"]));
    refused("chosen", &["a sample with tokens", "found none"]);

    refused("nowhere", &["nowhere", "manifest.json"]);
    refuses(&run(folder, &["tree", "bare", "--device", "cpu"]), &["--device", "computes on no device"]);
    assert!(!["deep", "bare", "chosen"].iter().any(|out| folder.join(out).join("attention.jsonl").exists()));
}
