//! Items from Parquet: data sets as the Hugging Face Hub stores them give the items that the same records give as JSON
//! lines, and what is ambiguous or no Parquet is refused in a sentence.

use std::fs;
use std::path::Path;

use offshoot_eval::task::{Item, Overrides, Task};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::parquet_files::write_parquet;
use crate::shared;
use shared::shared;

fn items_of(folder: &Path, items: Value) -> Result<Vec<Item>, String> {
    let task = json!({"items": items, "prompt": "Q:", "method": {"sample": {"samples": 1}}});
    fs::write(folder.join("t.json"), task.to_string()).expect("writable");
    let one_sentence = |error: offshoot_core::error::Error| {
        let said = error.to_string();
        assert!(error.exit_code() == 2 && !said.contains('\n'), "{said}");
        said
    };
    let task = Task::load(&folder.join("t.json"), &Overrides::default()).map_err(one_sentence)?;
    task.items(None).map_err(one_sentence)
}

#[track_caller]
fn assert_alike(one: &[Item], other: &[Item]) {
    let of = |items: &[Item]| items.iter().map(|item| (item.id.clone(), item.fields.clone())).collect::<Vec<_>>();
    assert!(!one.is_empty());
    assert_eq!(of(one), of(other));
}

fn lines(path: &Path, records: &[Value]) {
    fs::write(path, records.iter().map(|record| format!("{record}\n")).collect::<String>()).expect("writable");
}

fn gsm8k(count: u32) -> Vec<Value> {
    let record =
        |n| json!({"question": format!("Tom has {n} pens — \"how many\"?"), "answer": format!("{n}\n#### {n}")});
    (0..count).map(record).collect()
}

#[test]
fn gsm8k_as_the_hub_stores_it_is_what_its_lines_are() {
    let folder = TempDir::new().expect("a temporary folder");
    let of_file = shared("data/gsm8k/test.jsonl").map(|path| {
        let text = fs::read_to_string(path).expect("readable");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>()
    });
    let test = of_file.unwrap_or_else(|| gsm8k(300));
    let train = gsm8k(5);
    let (first, second) = test.split_at(test.len() / 2);
    lines(&folder.path().join("test.jsonl"), &test);
    let hub = folder.path().join("gsm8k");
    write_parquet(&hub.join("main/test-00000-of-00002.parquet"), first);
    write_parquet(&hub.join("main/test-00001-of-00002.parquet"), second);
    write_parquet(&hub.join("main/train-00000-of-00001.parquet"), &train);
    write_parquet(&hub.join("socratic/test-00000-of-00001.parquet"), &train);
    fs::write(hub.join("README.md"), "# GSM8K").expect("writable");

    let expected = items_of(folder.path(), json!({"path": "test.jsonl"})).expect("lines");
    for items in [
        json!({"path": "gsm8k", "subset": "main", "split": "test"}),
        json!({"path": "gsm8k/main", "split": "test"}),
        json!({"path": "gsm8k/main/test-*.parquet"}),
        json!("gsm8k/main/test-*.parquet"),
    ] {
        assert_alike(&items_of(folder.path(), items).expect("Parquet"), &expected);
    }
    let half = items_of(folder.path(), json!("gsm8k/main/test-00000-of-00002.parquet")).expect("one file");
    assert_eq!(half.len(), first.len());
    let limited = json!({"path": "gsm8k/main", "split": "test", "skip": 2, "limit": 3});
    assert_alike(&items_of(folder.path(), limited).expect("Parquet"), &expected[2..5]);

    for (items, words) in [
        (json!({"path": "gsm8k", "split": "test"}), &["main", "socratic", "items.subset"][..]),
        (json!("gsm8k/main"), &["test", "train", "items.split"]),
        (json!({"path": "gsm8k/main", "split": "validation"}), &["validation", "test", "train"]),
        (json!({"path": "test.jsonl", "split": "test"}), &["items.split", "Parquet"]),
        (json!({"path": "gsm8k/main/test-00000-of-00002.parquet", "split": "test"}), &["`test`"]),
        (json!({"path": "gsm8k/main/dev-*.parquet"}), &["no file has such a name"]),
        (json!({"path": "gsm8k/main", "split": "test", "id": "name"}), &["`name`", "row 1", "question"]),
    ] {
        let said = items_of(folder.path(), items.clone()).expect_err("refused");
        assert!(words.iter().all(|word| said.contains(word)), "{items}: {said}");
    }
    fs::remove_file(hub.join("main/test-00001-of-00002.parquet")).expect("it is there");
    let said = items_of(folder.path(), json!({"path": "gsm8k/main", "split": "test"})).expect_err("half of it");
    assert!(said.contains("expected the 2 files"), "{said}");
}

#[test]
fn math_as_the_hub_stores_it_is_what_its_lines_are() {
    let folder = TempDir::new().expect("a temporary folder");
    let record = |n: u32| {
        json!({"problem": format!("Let $x = \\frac{{1}}{{{n}}}$."), "solution": format!("$\\boxed{{{n}}}$"),
            "answer": n.to_string(), "subject": "Algebra", "level": n % 5,
            "unique_id": format!("test/algebra/{n}.json")})
    };
    let records: Vec<Value> = (1..40).map(record).collect();
    lines(&folder.path().join("test.jsonl"), &records);
    write_parquet(&folder.path().join("MATH-500/data/test-00000-of-00001.parquet"), &records);
    let of = |path: &str| items_of(folder.path(), json!({"path": path, "id": "unique_id"})).expect("items");
    assert_alike(&of("MATH-500"), &of("test.jsonl"));
}

#[test]
fn what_is_no_parquet_names_its_file() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = |n: u32| folder.path().join(format!("set/test-0000{n}-of-00002.parquet"));
    write_parquet(&path(0), &gsm8k(3));
    write_parquet(&path(1), &gsm8k(200));
    let whole = fs::read(path(1)).expect("readable");
    fs::write(path(1), &whole[..whole.len() - 9]).expect("writable");
    let said = items_of(folder.path(), json!("set")).expect_err("the second file is cut");
    assert!(said.contains("test-00001-of-00002.parquet: not Parquet"), "{said}");
}
