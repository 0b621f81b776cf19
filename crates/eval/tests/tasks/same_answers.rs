//! Pairs of answers from elsewhere: how many of them a mathematical task grades as their authors want.

use std::path::Path;

use offshoot_eval::task::{Overrides, Task};
use serde_json::{Value, json};

use crate::shared::shared;

/// Grades the pairs of a file, whose lines have `gold`, `text` and `want` (1, 0, or null where opinions differ). At
/// least nine of ten must be as wanted, and none wrongly right.
#[track_caller]
fn nine_of_ten(path: &Path) {
    let text = std::fs::read_to_string(path).expect("a file that exists is read");
    let pairs: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let task = json!({
        "items": pairs.iter().map(|pair| json!({"gold": pair["gold"]})).collect::<Vec<_>>(),
        "prompt": "",
        "method": {"sample": {"samples": 1}},
        "answer": {"boxed": true, "normalise": "latex"},
        "grade": {"exact": {"field": "gold"}},
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("t.json");
    std::fs::write(&file, task.to_string()).expect("a task file");
    let task = Task::load(&file, &Overrides::default()).expect("a task");
    let items = task.items(None).expect("its items");
    let mut other = Vec::new();
    for (item, pair) in items.iter().zip(&pairs) {
        let text = pair["text"].as_str().expect("a text");
        let is_right = task.grade(item, text, task.answer(text).as_ref()).expect("a graded task");
        match pair["want"].as_i64() {
            Some(0) => assert!(!is_right, "{pair}"),
            Some(_) if !is_right => other.push(pair),
            _ => {}
        }
    }
    let wanted = pairs.iter().filter(|pair| !pair["want"].is_null()).count();
    println!("{}: {} of {wanted} as wanted", path.display(), wanted - other.len());
    assert!(other.len() * 10 <= wanted, "{} of {wanted} are not as wanted: {other:#?}", other.len());
}

#[test]
fn answers_that_say_the_same_are_right() {
    for file in ["pairs_half.jsonl", "own_half.jsonl"] {
        if let Some(path) = shared(&format!("cases/answers/{file}")) {
            nine_of_ten(&path);
        }
    }
}
