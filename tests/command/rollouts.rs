//! Runs whose samples are rollouts: a packed trie for each item, with the grades of the task as rewards; and groups
//! that end when enough samples have finished.

use std::path::Path;

use offshoot::search::RolloutTrie;
use serde_json::{Value, json};

use crate::runs::{assert_equal_results, bytes, run_into, task_folder};

fn lines(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(folder, out, name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn rollouts_of_each_item_are_written_with_the_grades_as_rewards() {
    for method in [
        json!({"tree_po": {"samples": 6, "segment": 8, "tokens": 150}}),
        json!({"entropy_branching": {"paths": 2, "forks": 2}}),
    ] {
        let folder = task_folder(|task| task["method"] = method.clone());
        for out in ["runs/one", "runs/two"] {
            run_into(folder.path(), out, &["--limit", "3"]);
        }
        assert_equal_results(folder.path(), "runs/one", "runs/two");
        let samples = lines(folder.path(), "runs/one", "samples.jsonl");
        for item in 0..3u64 {
            let name = format!("rollouts/{item}.safetensors");
            assert!(bytes(folder.path(), "runs/one", &name) == bytes(folder.path(), "runs/two", &name));
            let trie = RolloutTrie::read(&folder.path().join("runs/one").join(name)).expect("a trie");
            let id = format!("pens-{}", 11 + item);
            let own: Vec<&Value> = samples.iter().filter(|sample| sample["id"] == id).collect();
            assert_eq!(trie.leaves().len(), own.len());
            for leaf in trie.leaves() {
                let sample = own.iter().find(|sample| sample["index"] == leaf.sample).expect("it is among the samples");
                assert_eq!(leaf.reward, Some(if sample["correct"] == true { 1.0 } else { 0.0 }));
                assert_eq!(leaf.group, item);
            }
            assert!(trie.tokens().len() < trie.unpacked_tokens() / 3);
        }
    }
}

#[test]
fn an_item_names_its_stragglers() {
    let folder = task_folder(|task| task["method"] = json!({"sample": {"samples": 6, "min_finished": 2}}));
    run_into(folder.path(), "runs/one", &[]);
    let samples = lines(folder.path(), "runs/one", "samples.jsonl");
    for item in lines(folder.path(), "runs/one", "items.jsonl") {
        let stragglers = item["stragglers"].as_array().cloned().unwrap_or_default();
        let finished = samples.iter().filter(|sample| sample["id"] == item["id"]).count();
        assert!(finished >= 2 && finished + stragglers.len() == 6, "{item}");
        assert_eq!(item["cancelled"], stragglers.len());
        let taken = |of: &&Value| samples.iter().any(|s| s["id"] == item["id"] && s["index"] == of["index"]);
        assert_eq!(stragglers.iter().filter(taken).count(), 0, "a straggler is no sample");
    }
}
