//! How requests end early: at a deadline, with their client, with the server, or before they begin.

use serde_json::{Value, json};

use crate::served::{QUESTION, Served};

/// Tokens of each choice of a request that takes long.
const MANY: usize = 3_000;

/// A request that takes long.
fn long(n: usize) -> Value {
    json!({"prompt": QUESTION, "n": n, "max_tokens": MANY, "ignore_eos": true, "seed": 1})
}

#[test]
fn a_deadline_cuts_an_answer_short() {
    let served = Served::start(&["--max-branches", "2"]);
    let ask = crate::served::joined(&long(32), json!({"timeout": 1.0}));
    let answer = served.post("/v1/completions", &ask);
    // On a machine that is too busy to sample anything within a second, the deadline refuses the request.
    if answer.status == 408 {
        assert_eq!(answer.refused(408).0, "timeout");
    } else {
        let answer = answer.succeeds();
        let choices = answer["choices"].as_array().expect("a list");
        assert_eq!(choices.len(), 32, "those that did not begin are empty");
        assert!(choices.iter().any(|choice| choice["stop_reason"] == "cancelled"), "{answer}");
        assert!(answer["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens < 32 * MANY as u64));
    }
    served.wait_for("offshoot_requests_open", 0.0);
    served.wait_for("offshoot_engine_branches_running", 0.0);
}

#[test]
fn choices_that_a_group_does_not_wait_for_are_aborted() {
    let served = Served::start(&["--max-branches", "2"]);
    let ask = json!({"prompt": QUESTION, "n": 128, "min_finished": 1, "max_tokens": 20, "ignore_eos": true, "seed": 1,
        "return_token_ids": true});
    let answer = served.complete(&ask);
    let choices = answer["choices"].as_array().expect("a list");
    let tokens = |choice: &Value| choice["token_ids"].as_array().expect("a list").len();
    let (cut, finished): (Vec<_>, Vec<_>) = choices.iter().partition(|choice| choice["finish_reason"] == "abort");
    assert!(!cut.is_empty() && !finished.is_empty() && cut.len() + finished.len() == 128);
    assert!(cut.iter().all(|choice| tokens(choice) < 20 && choice["stop_reason"].is_null()), "{answer}");
    assert!(finished.iter().all(|choice| tokens(choice) == 20 && choice["finish_reason"] == "length"), "{answer}");
    served.wait_for("offshoot_engine_branches_running", 0.0);
}

#[test]
fn a_client_that_leaves_frees_what_it_had() {
    let served = Served::start(&["--max-branches", "4"]);
    let mut stream = served.stream(&long(64));
    stream.next_data().expect("a first chunk");
    assert_eq!(served.metric("offshoot_requests_open"), 1.0);
    drop(stream);
    served.wait_for("offshoot_requests_open", 0.0);
    served.wait_for("offshoot_requests_cancelled_total", 1.0);
    served.wait_for("offshoot_engine_branches", 0.0);
    served.wait_for("offshoot_engine_kv_pages_held", 0.0);
    assert!(served.metric("offshoot_engine_tokens_sampled_total") < (64 * MANY) as f64, "it did not sample on");
}

#[test]
fn a_server_that_is_asked_to_stop_ends_what_it_began() {
    let mut served = Served::start(&[]);
    let ask = json!({"prompt": QUESTION, "n": 4, "max_tokens": 1000, "ignore_eos": true, "seed": 1});
    let whole = served.complete(&ask);
    let mut stream = served.stream(&ask);
    let first: Value = serde_json::from_str(&stream.next_data().expect("a first chunk")).expect("JSON");
    let mut watched = served.events();
    watched.next_data().expect("an event");
    served.ask_to_stop();
    let rest = stream.chunks();
    let mut texts = vec![String::new(); 4];
    for choice in std::iter::once(&first).chain(&rest).flat_map(|chunk| chunk["choices"].as_array().expect("a list")) {
        texts[choice["index"].as_u64().expect("a number") as usize] += choice["text"].as_str().expect("a text");
    }
    let expected = whole["choices"].as_array().expect("a list").iter().map(|one| one["text"].as_str());
    assert!(texts.iter().map(|text| Some(text.as_str())).eq(expected), "{texts:?} {whole}");
    // The page's events have no end of their own.
    assert!(std::iter::from_fn(|| watched.next_data()).count() < 1_000_000);
    assert!(served.ended().success());
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let served = Served::start(&["--max-queue", "1", "--max-branches", "1"]);
    let mut stream = served.stream(&long(64));
    stream.next_data().expect("a first chunk");
    // Most of its choices wait, and with them the request.
    let refused = served.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(refused.refused(429).0, "queue_full");
    assert!(refused.header("retry-after").parse::<u64>().is_ok_and(|seconds| (1..=60).contains(&seconds)));
    assert_eq!(served.metric("offshoot_requests_refused_total"), 1.0);
    drop(stream);
    served.wait_for("offshoot_requests_waiting", 0.0);
    served.complete(&json!({"prompt": "a", "max_tokens": 1}));
}
