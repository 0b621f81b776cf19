//! Kept branches: continued, released, and nobody else's.

use serde_json::{Value, json};

use crate::protocol::served_with_keys;
use crate::served::{QUESTION, Served};

fn id_of(answer: &Value, choice: usize) -> String {
    answer["choices"][choice]["branch"].as_str().expect("a kept choice has a branch").to_owned()
}

/// What follows a branch is what follows its text.
#[test]
fn a_kept_choice_is_continued_and_released() {
    let served = Served::start(&[]);
    let first = json!({"prompt": QUESTION, "n": 2, "seed": 3, "max_tokens": 6, "ignore_eos": true, "keep": true,
        "return_token_ids": true});
    let first = served.complete(&first);
    let (branch, other) = (id_of(&first, 0), id_of(&first, 1));
    assert_ne!(branch, other);
    let more = json!({"max_tokens": 8, "temperature": 0, "ignore_eos": true, "logprobs": 0});
    let ask = |parts: Value| served.complete(&crate::served::joined(&more, parts));
    let next = ask(json!({"parent": branch, "keep": true}));
    let list = |key: &str| first["choices"][0][key].as_array().expect("a list").clone();
    let tokens: Vec<Value> = list("prompt_token_ids").into_iter().chain(list("token_ids")).collect();
    let resent = ask(json!({"prompt": tokens}));
    for key in ["text", "logprobs", "finish_reason"] {
        let offsets_differ = key == "logprobs";
        let of = |answer: &Value| match offsets_differ {
            true => answer["choices"][0][key]["token_logprobs"].clone(),
            false => answer["choices"][0][key].clone(),
        };
        assert_eq!(of(&next), of(&resent), "{key}");
    }
    assert_eq!(next["usage"]["prompt_tokens"], tokens.len());
    assert_eq!(served.get(&format!("/v1/branches/{branch}")).succeeds()["tokens"], tokens.len());
    assert_eq!(served.metric("offshoot_branches_kept"), 3.0);

    assert_eq!(served.delete(&format!("/v1/branches/{branch}")).succeeds()["deleted"], true);
    let gone = served.post("/v1/completions", &json!({"parent": branch, "max_tokens": 1}));
    assert_eq!(gone.refused(404).0, "not_found");
    assert_eq!(served.delete(&format!("/v1/branches/{branch}")).refused(404).0, "not_found");
    ask(json!({"parent": id_of(&next, 0)}));
    for id in [other, id_of(&next, 0)] {
        served.delete(&format!("/v1/branches/{id}")).succeeds();
    }
    assert_eq!(served.metric("offshoot_branches_kept"), 0.0);
    served.wait_for("offshoot_engine_kv_pages_held", 0.0);
}

/// A scored continuation that is kept goes on as its text does.
#[test]
fn a_kept_continuation_is_continued() {
    let served = Served::start(&[]);
    let scored = json!({"prompt": QUESTION, "choices": [" Mia has", " 7"], "keep": true});
    let scored = served.complete(&scored);
    assert_eq!(served.metric("offshoot_branches_kept"), 2.0);
    let more = json!({"max_tokens": 8, "temperature": 0, "ignore_eos": true});
    for (at, text) in [" Mia has", " 7"].iter().enumerate() {
        let next = served.complete(&crate::served::joined(&more, json!({"parent": id_of(&scored, at)})));
        let whole = json!({"prompt": format!("{QUESTION}{text}")});
        let whole = served.complete(&crate::served::joined(&more, whole));
        assert_eq!(next["choices"][0]["text"], whole["choices"][0]["text"], "{text}");
        assert_eq!(next["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
        served.delete(&format!("/v1/branches/{}", id_of(&scored, at))).succeeds();
    }
    served.wait_for("offshoot_engine_kv_pages_held", 0.0);
}

#[test]
fn a_branch_that_is_not_used_expires() {
    let served = Served::start(&[]);
    let kept = json!({"prompt": QUESTION, "n": 4, "max_tokens": 3, "keep": true, "keep_seconds": 0.2});
    let branch = id_of(&served.complete(&kept), 0);
    served.wait_for("offshoot_branches_kept", 0.0);
    assert_eq!(served.get(&format!("/v1/branches/{branch}")).refused(404).0, "not_found");
    served.wait_for("offshoot_engine_kv_pages_held", 0.0);
}

#[test]
fn a_branch_is_nobody_elses() {
    let mut served = served_with_keys(&["mine", "yours"]);
    served.set_key("mine");
    let branch = id_of(&served.complete(&json!({"prompt": QUESTION, "max_tokens": 3, "keep": true})), 0);
    let path = format!("/v1/branches/{branch}");
    let ask = json!({"parent": branch, "max_tokens": 2});
    served.set_key("yours");
    for answer in [served.post("/v1/completions", &ask), served.get(&path), served.delete(&path)] {
        assert_eq!(answer.refused(404).0, "not_found");
    }
    served.set_key("mine");
    served.complete(&ask);
    served.delete(&path).succeeds();
}

#[test]
fn no_more_branches_are_kept_than_allowed() {
    let served = Served::start(&["--max-kept", "2"]);
    let keep = |n: usize| json!({"prompt": QUESTION, "n": n, "max_tokens": 2, "keep": true});
    // It could never pass, so nobody is told to come again.
    let refused = served.post("/v1/completions", &keep(3));
    assert_eq!(refused.refused(400), ("invalid_value".to_owned(), json!("n")));
    assert_eq!(refused.header("retry-after"), "");
    let kept = served.complete(&keep(2));
    let refused = served.post("/v1/completions", &keep(1));
    assert_eq!(refused.refused(429).0, "rate_limit_exceeded");
    assert!(refused.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds >= 1));
    served.delete(&format!("/v1/branches/{}", id_of(&kept, 1))).succeeds();
    served.complete(&keep(1));
}
