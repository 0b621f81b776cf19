//! What the tests of `offshoot batch` stand on: the built binary on the bundled demo model, on the CPU, with files of
//! requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

pub fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tasks/models/demo")
}

pub fn batch(folder: &Path, input: &str, out: &str, more: &[&str]) -> Output {
    batch_on(&demo(), folder, input, out, more)
}

pub fn batch_on(model: &Path, folder: &Path, input: &str, out: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_offshoot"))
        .current_dir(folder)
        .env_remove("RUST_LOG")
        .env("CUDA_VISIBLE_DEVICES", "")
        .args(["batch", input, "--out", out, "--model"])
        .arg(model)
        .args(more)
        .output()
        .expect("the binary starts")
}

pub fn completions(id: &str, body: Value) -> Value {
    json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body})
}

pub const QUESTION: &str = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:";

/// The answers to `lines`, in the order of the file.
pub fn answers(folder: &Path, lines: &[Value]) -> Vec<Value> {
    write(folder, lines);
    let out = folder.join("out.jsonl");
    drop(fs::remove_file(&out));
    let ran = batch(folder, "in.jsonl", "out.jsonl", &[]);
    let answers = read(&out);
    match answers.iter().filter(|answer| answer["response"]["status_code"] != 200).count() {
        0 => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr)),
        refused => assert_refused(&ran, refused, ""),
    }
    answers
}

/// So many requests were refused, which the exit code tells and standard error, with why the first was.
pub fn assert_refused(ran: &Output, requests: usize, why: &str) {
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("{requests} refused (")) && said.contains(why), "{said}");
}

pub fn write(folder: &Path, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("in.jsonl"), text).expect("the temporary folder is writable");
}

pub fn read(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

pub fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["response"]["body"]["choices"].as_array().expect("choices");
    choices.iter().map(|choice| choice["text"].as_str().expect("a text").to_string()).collect()
}

/// The error in the response to a request that was refused, which has OpenAI's form.
pub fn error(answer: &Value) -> &Value {
    assert!(answer["error"].is_null(), "{answer}");
    assert_eq!(answer["response"]["status_code"], 400, "{answer}");
    assert!(answer["response"]["request_id"].is_string() && answer["id"].is_string(), "{answer}");
    let error = &answer["response"]["body"]["error"];
    assert_eq!(error["type"], "invalid_request_error", "{answer}");
    error
}

pub fn chat(id: &str, body: Value) -> Value {
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
}

/// The demo model with a chat template, in `folder`.
pub fn chat_model(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    fs::create_dir(&model).expect("writable");
    for file in fs::read_dir(demo()).expect("the demo model is there").map(|file| file.expect("an entry").path()) {
        if file.is_file() {
            fs::copy(&file, model.join(file.file_name().expect("a file has a name"))).expect("copied");
        }
    }
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}Answer:";
    fs::write(model.join("chat_template.jinja"), template).expect("writable");
    model
}
