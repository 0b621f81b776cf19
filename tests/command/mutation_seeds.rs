//! Small files of every kind that the command reads: made here, and the bundled tasks' own. Which of them are damaged
//! is up to the tests.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::parquet_files::write_parquet;
use crate::runs::{repository, run_into, task_folder};
use crate::strangers::shard_index;

/// The folder from which each input's own is copied.
pub fn seeds() -> tempfile::TempDir {
    let folder = task_folder(|task| {
        task["method"]["sample"]["samples"] = json!(2);
        task["sampling"]["max_tokens"] = json!(12);
        task["prompt"]["shared"] = json!({"file": "shared.txt"});
        task["model"] = json!("demo");
    });
    let at = |name: &str| folder.path().join(name);
    let demo = repository().join("tasks/models/demo");
    std::os::unix::fs::symlink(&demo, at("demo")).expect("a link");
    fs::copy(repository().join("tasks/words_fewshot.txt"), at("shared.txt")).expect("copied");
    fs::write(at("items.csv"), "id,question,answer\n1,\"Tom has 3 pens.\",3\n2,\"Tom, \"\"he\"\" has 4.\",4\n")
        .expect("written");
    run_into(folder.path(), "out", &["--trees", "--limit", "3"]);

    let mut tot: Value =
        serde_json::from_str(&without_comments(&repository().join("tasks/make24-tot.json"))).expect("JSON");
    tot["model"] = json!("demo");
    for name in ["make24.csv", "make24_chain.txt", "make24_propose.txt", "make24_value.txt"] {
        fs::copy(repository().join("tasks").join(name), at(name)).expect("copied");
    }
    fs::write(at("tot.json"), tot.to_string()).expect("written");

    let mut chat: Value = serde_json::from_slice(&fs::read(at("task.json")).expect("it was written")).expect("JSON");
    chat["model"] = json!("chat");
    chat["prompt"] = json!({"chat": {"messages": [{"role": "user", "content": "{{question}}"}]}});
    fs::write(at("chat.json"), chat.to_string()).expect("written");
    for (name, changed) in [("model", "tokenizer"), ("chat", "chat_template")] {
        fs::create_dir(at(name)).expect("made");
        for entry in fs::read_dir(&demo).expect("the demo model is there").map(|entry| entry.expect("readable")) {
            if entry.path().is_file() && (changed == "tokenizer" || entry.file_name() != "chat_template.jinja") {
                std::os::unix::fs::symlink(entry.path(), at(name).join(entry.file_name())).expect("a link");
            }
        }
    }
    fs::create_dir(at("shards")).expect("made");
    for entry in fs::read_dir(&demo).expect("the demo model is there").map(|entry| entry.expect("readable")) {
        let shard = entry.file_name() == "model.safetensors";
        let name = if shard { "one.safetensors".into() } else { entry.file_name() };
        if entry.path().is_file() {
            std::os::unix::fs::symlink(entry.path(), at("shards").join(name)).expect("a link");
        }
    }
    fs::write(at("shards/model.safetensors.index.json"), shard_index(&demo, "one.safetensors")).expect("written");
    let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}assistant: {% endif %}";
    fs::write(at("chat/chat_template.jinja"), template).expect("written");

    let request = |id: u32, body: Value| {
        json!({"custom_id": format!("r{id}"), "method": "POST", "url": "/v1/completions",
               "body": body})
    };
    let body = |prompt: &str| {
        json!({"model": "demo", "prompt": prompt, "max_tokens": 8, "n": 2, "temperature": 0.7, "stop": ["\n"],
               "logprobs": 2, "seed": 3, "logit_bias": {"5": 1.5}})
    };
    lines(&at("batch.jsonl"), &[request(1, body("Tom has")), request(2, body("Tom sees")), request(3, body("Two"))]);

    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&fs::read(at("batch.jsonl")).expect("it was written")).expect("written to memory");
    fs::write(at("batch.jsonl.gz"), packed.finish().expect("written to memory")).expect("written");
    let sample = |id: u32, answer: u32| {
        json!({"id": id, "question": "2 + 3?", "text": format!("It is {answer}."),
               "answer": "5"})
    };
    let votes = [sample(1, 5), sample(1, 4), sample(1, 5), sample(2, 3)];
    lines(&at("votes.jsonl"), &votes);
    write_parquet(&at("votes.parquet"), &votes);
    let items = fs::read_to_string(at("items.jsonl")).expect("it was written");
    let mut items: Vec<Value> = items.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    items.iter_mut().for_each(|item| item["steps"] = json!([{"a": [1, 2], "b": "x"}, {"a": [], "b": null}]));
    write_parquet(&at("items.parquet"), &items);

    let add = "def add(a, b):\n    return a + b\n";
    let function = |name: &str| {
        json!({"task_id": format!("HumanEval/{name}"), "prompt": "def add(a, b):\n", "entry_point": "add",
               "canonical_solution": "    return a + b\n",
               "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"})
    };
    lines(&at("human_eval.jsonl"), &[function("0"), function("1")]);
    lines(
        &at("code.jsonl"),
        &[
            json!({"task_id": "HumanEval/0", "completion": "    return a + b\n"}),
            json!({"task_id": "HumanEval/1", "completion": "    return a\n"}),
        ],
    );
    lines(
        &at("mbpp.jsonl"),
        &[json!({"task_id": 2, "text": "Add.", "code": add, "test_list": ["assert add(1, 2) == 3"],
                 "test_setup_code": "", "challenge_test_list": []})],
    );
    lines(
        &at("plus.jsonl"),
        &[json!({"task_id": "HumanEval/0", "prompt": "def add(a, b):\n", "entry_point": "add",
                 "canonical_solution": "    return a + b\n", "base_input": [[1, 2], [3, 4]],
                 "plus_input": [[1e3, 2]], "atol": 0, "contract": ""})],
    );
    let tests = json!({"inputs": ["1 2\n"], "outputs": ["3\n"]}).to_string();
    let solutions = json!(["print(sum(map(int, input().split())))"]).to_string();
    let apps =
        json!({"problem_id": 7, "question": "Sum.", "input_output": tests, "solutions": solutions, "starter_code": ""});
    lines(&at("apps.jsonl"), std::slice::from_ref(&apps));
    write_parquet(&at("apps.parquet"), &[apps]);

    // A model that is read in a moment.
    let golden = repository().join("tests/data/goldens/llama2-mha");
    for (name, weights) in [("small", "model.safetensors"), ("small-shards", "one.safetensors")] {
        fs::create_dir(at(name)).expect("made");
        fs::copy(golden.join("config.rope_parameters.json"), at(name).join("config.json")).expect("copied");
        fs::copy(golden.join("model.safetensors"), at(name).join(weights)).expect("copied");
    }
    fs::write(at("small-shards/model.safetensors.index.json"), shard_index(&golden, "one.safetensors"))
        .expect("written");
    for name in ["llama3.gguf", "sentencepiece.gguf"] {
        fs::copy(repository().join("tests/data/gguf").join(name), at(name)).expect("copied");
    }
    folder
}

/// A bundled task's text without its lines of comments.
fn without_comments(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("the task is there");
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect()
}

fn lines(path: &Path, values: &[Value]) {
    fs::write(path, values.iter().map(|value| format!("{value}\n")).collect::<String>()).expect("written");
}

/// Copies a folder; links stay links, made absolute.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("listed").map(|entry| entry.expect("readable")) {
        let (kind, to) = (entry.file_type().expect("known"), to.join(entry.file_name()));
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).expect("a link"), to).expect("a link");
        } else if kind.is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}
