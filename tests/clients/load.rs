//! `offshoot bench serve` against a server: what it counts is what it asked for.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::served::Served;

fn bench(server: &Served, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.args(["bench", "serve", "--json", "--url", &server.url()]).args(arguments).env_remove("RUST_LOG");
    command.output().expect("the binary starts")
}

fn figures(ran: &Output) -> Value {
    serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&ran.stderr)))
}

const SMALL: &[&str] = &["--requests", "12", "--prompt-tokens", "40", "--shared-tokens", "32", "--max-tokens", "6"];

#[test]
fn closed_loops_count_what_they_asked_for() {
    let server = Served::start(&["--threads", "2"]);
    for (more, choices, is_stream) in
        [(&["--choices", "3"][..], 3, true), (&[], 1, true), (&["--no-stream", "--choices", "2"], 2, false)]
    {
        let ran = bench(&server, &[SMALL, &["--concurrency", "4"], more].concat());
        let seen = figures(&ran);
        assert_eq!((&seen["answered"], &seen["requests"]), (&json!(12), &json!(12)), "{seen}");
        assert_eq!(seen["completion_tokens"], 12 * 6 * choices, "{seen}");
        assert_eq!(seen["prompt_tokens"], 12 * 40, "{seen}");
        assert_eq!(seen["first_token_s"].is_object(), is_stream, "{seen}");
        assert!(seen["most_running"].as_u64().is_some_and(|most| (1..=4).contains(&most)), "{seen}");
    }
}

#[test]
fn open_loops_send_a_batch_file_at_its_rate() {
    let server = Served::start(&["--threads", "2"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("requests.jsonl");
    let line = |n: usize| {
        let chat = json!({"messages": [{"role": "user", "content": format!("{n} and 2?")}], "max_tokens": 5,
            "ignore_eos": true});
        let text = json!({"prompt": "Question:", "max_tokens": 5, "ignore_eos": true});
        let (url, body) = if n < 5 { ("/v1/chat/completions", chat) } else { ("/v1/completions", text) };
        json!({"custom_id": format!("r{n}"), "method": "POST", "url": url, "body": body}).to_string() + "\n"
    };
    std::fs::write(&path, (0..10).map(line).collect::<String>()).expect("the folder is writable");
    let seen = figures(&bench(&server, &["--rate", "40", path.to_str().expect("text")]));
    assert_eq!((&seen["answered"], &seen["completion_tokens"]), (&json!(10), &json!(50)), "{seen}");
}

#[test]
fn refusals_are_counted_and_named() {
    let server = Served::start(&["--threads", "2"]);
    let ran = bench(&server, &["--requests", "3", "--prompt-tokens", "5000", "--shared-tokens", "0"]);
    assert_eq!(ran.status.code(), Some(2));
    let seen = figures(&ran);
    assert_eq!(seen["errors"], json!({"HTTP 400: context_length_exceeded": 3}), "{seen}");
}
