//! A request with a seed has one answer: again, streamed, among others, and in a batch.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::served::{QUESTION, Served, demo, joined};

/// What a choice consists of, however it was sent.
#[derive(Debug, Default, PartialEq)]
struct Choice {
    text: String,
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    offsets: Vec<Value>,
    finish_reason: Option<String>,
}

impl Choice {
    fn add(&mut self, part: &Value) {
        self.text += part["text"].as_str().expect("a text");
        let list = |key: &str| part["logprobs"][key].as_array().cloned().unwrap_or_default();
        self.tokens.extend(list("tokens"));
        self.logprobs.extend(list("token_logprobs"));
        self.offsets.extend(list("text_offset"));
        if let Some(reason) = part["finish_reason"].as_str() {
            assert_eq!(self.finish_reason.replace(reason.to_owned()), None, "a choice ends once");
        }
    }
}

/// The choices in answers or chunks.
fn choices(parts: &[Value]) -> BTreeMap<u64, Choice> {
    let mut choices = BTreeMap::<u64, Choice>::new();
    for part in parts.iter().flat_map(|part| part["choices"].as_array().expect("a list")) {
        choices.entry(part["index"].as_u64().expect("a number")).or_default().add(part);
    }
    choices
}

fn question() -> Value {
    json!({"prompt": QUESTION, "n": 3, "seed": 11, "temperature": 2.0, "max_tokens": 40, "logprobs": 1,
        "stop": ["\n\n"]})
}

#[test]
fn a_seed_gives_the_same_answer_streamed_or_not() {
    let served = Served::start(&[]);
    let first = choices(&[served.complete(&question())]);
    assert_eq!(first.len(), 3);
    assert!(first.values().all(|choice| choice.finish_reason.is_some() && !choice.logprobs.is_empty()), "{first:?}");
    assert!(first[&0] != first[&1] || first[&1] != first[&2], "samples of one prompt have random numbers of their own");
    let again = served.complete(&question());
    assert_eq!(choices(std::slice::from_ref(&again)), first);
    let options = json!({"stream_options": {"include_usage": true}});
    let chunks = served.stream(&joined(&question(), options)).chunks();
    assert_eq!(choices(&chunks), first);
    let usage = &chunks.last().expect("there are chunks")["usage"];
    assert_eq!(usage, &again["usage"]);
    assert_ne!(choices(&[served.complete(&joined(&question(), json!({"seed": 12})))]), first);
}

#[test]
fn a_request_has_the_same_answer_alone_and_among_others() {
    let served = Served::start(&[]);
    let alone = choices(&[served.complete(&question())]);
    let other = |number: usize| {
        let prompt =
            format!("Question: Tom has {number} pens. Tom buys 5 more pens. How many pens does Tom have now?\n");
        json!({"prompt": prompt, "n": 1 + number % 4, "max_tokens": 60, "ignore_eos": true})
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..50)
            .map(|number| {
                let (served, body) = (&served, other(number));
                scope.spawn(move || match number % 2 {
                    0 => drop(served.complete(&body)),
                    _ => drop(served.stream(&body).chunks()),
                })
            })
            .collect();
        let mut compared = 0;
        while others.iter().any(|other| !other.is_finished()) {
            compared += 1;
            assert_eq!(choices(&[served.complete(&question())]), alone);
            assert_eq!(choices(&served.stream(&question()).chunks()), alone);
        }
        assert!(compared > 0, "the others ended before they could disturb");
    });
}

/// The bytes of an answer's choices.
fn choice_bytes(answer: &str) -> &str {
    let begin = answer.find("\"choices\":").expect("an answer has choices");
    let end = answer.rfind(",\"usage\":").expect("an answer has usage");
    &answer[begin..end]
}

#[test]
fn choices_are_those_of_a_batch_byte_for_byte() {
    let served = Served::start(&[]);
    let bodies = [
        question(),
        json!({"prompt": [QUESTION, "Question: Tom"], "n": 2, "best_of": 3, "seed": 5, "max_tokens": 9, "logprobs": 0}),
        json!({"prompt": QUESTION, "seed": 6, "max_tokens": 5, "echo": true, "logprobs": 2, "return_token_ids": true}),
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = |(id, body): (usize, &Value)| {
        format!("{}\n", json!({"custom_id": id.to_string(), "method": "POST", "url": "/v1/completions", "body": body}))
    };
    fs::write(folder.path().join("in.jsonl"), bodies.iter().enumerate().map(line).collect::<String>())
        .expect("writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.current_dir(folder.path()).args(["batch", "in.jsonl", "--out", "out.jsonl", "--device", "cpu", "--model"]);
    let ran = command.arg(demo()).output().expect("the binary starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let out = fs::read_to_string(folder.path().join("out.jsonl")).expect("the batch wrote it");
    let mut batch: BTreeMap<String, &str> = BTreeMap::new();
    for line in out.lines() {
        let answer: Value = serde_json::from_str(line).expect("a line is JSON");
        batch.insert(answer["custom_id"].as_str().expect("an id").to_owned(), choice_bytes(line));
    }
    for (id, body) in bodies.iter().enumerate() {
        assert_eq!(choice_bytes(&served.post("/v1/completions", body).text), batch[&id.to_string()]);
    }
}

#[test]
fn several_devices_answer_as_one() {
    let (one, several) = (Served::start(&[]), Served::start(&["--devices", "cpu,cpu,cpu"]));
    let ask = |at: u64| joined(&question(), json!({"seed": at, "prompt": format!("{QUESTION} {at}")}));
    let alone: Vec<_> = (0..8).map(|at| choices(&[one.complete(&ask(at))])).collect();
    let streamed: Vec<_> = std::thread::scope(|scope| {
        let several = &several;
        let threads: Vec<_> =
            (0..8).map(|at| scope.spawn(move || choices(&several.stream(&ask(at)).chunks()))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    assert_eq!(streamed, alone);
    let sampled = "offshoot_engine_tokens_sampled_total";
    several.wait_for(sampled, one.metric(sampled));
    assert!(several.metric("offshoot_engine_kv_pages") > 0.0);
}
