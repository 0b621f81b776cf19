//! Models with latent attention, as users of the command meet them: what a run and a plan say of copies, and of
//! tensors whose dtype changes.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::latent::latent_model;
use crate::runs::{run, succeeds, task_folder};

/// The tensors of a model's one file: their entries in the header, and all bytes behind it.
fn read_tensors(model: &Path) -> (serde_json::Map<String, Value>, Vec<u8>) {
    let bytes = fs::read(model.join("model.safetensors")).expect("the model has its weights");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header = serde_json::from_slice(&bytes[8..8 + length]).expect("a header is JSON");
    (header, bytes[8 + length..].to_vec())
}

/// Stores those tensors of a model in bf16 that `is_rounded` names.
fn round(model: &Path, is_rounded: impl Fn(&str) -> bool) {
    let (mut header, old) = read_tensors(model);
    let mut data = Vec::new();
    for (name, entry) in &mut header {
        let offsets = entry["data_offsets"].as_array().expect("two offsets");
        let [begin, end] = [0, 1].map(|i| offsets[i].as_u64().expect("a number") as usize);
        let first = data.len();
        match is_rounded(name) {
            true => data.extend(old[begin..end].as_chunks::<4>().0.iter().flat_map(|[_, _, low, high]| [*low, *high])),
            false => data.extend(&old[begin..end]),
        }
        let dtype = if is_rounded(name) { "BF16" } else { "F32" };
        *entry = json!({"dtype": dtype, "shape": entry["shape"], "data_offsets": [first, data.len()]});
    }
    let header = serde_json::to_vec(&header).expect("a header is JSON");
    let length = (header.len() as u64).to_le_bytes();
    fs::write(model.join("model.safetensors"), [&length[..], &header, &data].concat()).expect("writable");
}

#[test]
fn a_runs_summary_says_what_copies_took() {
    let model = latent_model();
    let folder = task_folder(|task| {
        task["model"] = json!(model.path());
        task["sampling"] = json!({"max_tokens": 4, "seed": 5});
        task["method"]["sample"]["samples"] = json!(8);
    });
    let summary = |out: &str, memory: &str| {
        let options = ["--device", "cpu", "--latent-copies", memory, "--limit", "2"];
        succeeds(run(folder.path(), &[&["run", "task.json", "--out", out], &options[..]].concat()))
    };
    let page = summary("copied", "16");
    let line = page.lines().find(|line| line.starts_with("copies ")).unwrap_or_else(|| panic!("no copies: {page}"));
    let tokens = |metric: &str| {
        let page: Value =
            serde_json::from_slice(&fs::read(folder.path().join("copied/summary.json")).unwrap()).unwrap();
        page["engine"][metric].as_u64().expect("a number")
    };
    let expected = [("latent_tokens_expanded", "expanded and kept"), ("latent_tokens_expanded_again", "for one step")];
    let said = expected.map(|(metric, words)| (tokens(metric) > 0) == line.contains(words));
    assert!(said == [true; 2] && tokens(expected[0].0) + tokens(expected[1].0) > 0, "{line}");
    let page = summary("absorbed", "0");
    assert!(!page.contains("\ncopies "), "{page}");
}

#[test]
fn tensors_that_become_another_dtype_are_counted_in_one_line() {
    let model = latent_model();
    round(model.path(), |name| name.ends_with("kv_b_proj.weight"));
    let ran = run(model.path(), &["check", "--model", ".", "--device", "cpu"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("kv_b_proj")).collect();
    let [line] = lines[..] else { panic!("expected one line of the maps of both layers: {said}") };
    for words in ["2 tensors of bf16", "`model.layers.0.self_attn.kv_b_proj.weight` is the first", "become f32 on"] {
        assert!(line.contains(words), "`{words}` is not in: {line}");
    }
}

#[test]
fn a_plan_has_the_dtype_of_the_files() {
    let model = latent_model();
    fs::write(model.path().join("rows.jsonl"), "{\"tokens\": [1, 2, 3, 4], \"max_tokens\": 8}\n").expect("writable");
    let sizes = |of: &str, more: &[&str]| {
        let options = ["plan", "rows.jsonl", "--model", of, "--json", "--device-profile", "cpu"];
        let plan: Value = serde_json::from_str(&succeeds(run(model.path(), &[&options[..], more].concat()))).unwrap();
        (plan["model"]["dtype"].as_str().expect("a name").to_owned(), plan["model"]["kv_bytes_per_token"].as_u64())
    };
    let of_files = sizes(".", &[]);
    assert_eq!((of_files.0.as_str(), sizes("config.json", &[])), ("f32", of_files.clone()));
    // config.json goes on saying float32.
    round(model.path(), |_| true);
    let half = of_files.1.map(|bytes| bytes / 2);
    assert_eq!(sizes(".", &[]), ("bf16".to_owned(), half));
    assert_eq!([sizes(".", &["--dtype", "f32"]), sizes("config.json", &[])], [of_files.clone(), of_files.clone()]);
    // Without its weights the folder says what config.json says.
    fs::remove_file(model.path().join("model.safetensors")).expect("it is there");
    assert_eq!(sizes(".", &[]), of_files);
}
