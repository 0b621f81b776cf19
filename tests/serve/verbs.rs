//! What the verbs take and answer, where trainers depend on it: bodies that must be there, fields that are of no
//! effect, and what options and fields of them change.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::{QUESTION, Served, joined};
use crate::trainer::{Tensors, rollout, send, version};

/// Asks for samples that end when somebody ends them.
fn endless() -> Value {
    json!({"prompt": QUESTION, "n": 2, "max_tokens": 3000, "ignore_eos": true, "seed": 1})
}

/// Waits until so many tokens were sampled since the start.
fn wait_for_tokens(served: &Served, tokens: f64) {
    let begun = Instant::now();
    while served.metric("offshoot_engine_tokens_sampled_total") < tokens {
        assert!(begun.elapsed() < Duration::from_secs(300), "no tokens come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that forgets the body of `/abort_requests` does not end everybody's requests.
#[test]
fn a_verb_that_needs_a_body_is_refused_without_one() {
    let served = rollout(&[]);
    std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&endless()));
        served.wait_for("offshoot_engine_branches_running", 2.0);
        for path in [
            "/abort_requests",
            "/inference/v1/abort_requests",
            "/init_weight_transfer_engine",
            "/update_weights",
            "/update_weight_version",
            "/collective_rpc",
        ] {
            let refused = served.post_nothing(path);
            assert!(refused.status == 400 && refused.text.contains("found no body"), "{path}: {refused:?}");
        }
        assert_eq!(served.metric("offshoot_engine_branches_running"), 2.0);
        assert_eq!(served.post("/init_weight_transfer_engine", &json!({})).refused(400).1, json!("init_info"));
        assert_eq!(served.post("/abort_requests", &json!({})).succeeds()["aborted"], 1);
        let choices = open.join().expect("no panic")["choices"].clone();
        assert_eq!([&choices[0]["finish_reason"], &choices[1]["finish_reason"]], ["abort", "abort"]);
    });
}

#[test]
fn fields_beside_those_of_a_weight_update_are_of_no_effect() {
    let served = rollout(&[]);
    let begun = json!({"is_checkpoint_format": true, "timeout": 3, "scope": "whole"});
    served.post("/start_weight_update", &begun).succeeds();
    send(&served, &Tensors::demo()).succeeds();
    served.post("/finish_weight_update", &json!({"weight_version": "a", "other": [1]})).succeeds();
    assert_eq!(version(&served), "a");
    // Those that change what is done are checked.
    for (path, body, field) in [
        ("/start_weight_update", json!({"is_checkpoint_format": false}), "is_checkpoint_format"),
        ("/start_weight_update", json!({"scope": "some"}), "scope"),
        ("/finish_weight_update", json!({"weight_version": 3}), "weight_version"),
        ("/update_weights", json!({"weight_dir": null}), "weight_dir"),
        ("/update_weights", json!({"weight_dir": 3}), "weight_dir"),
        ("/update_weights", json!({"weight_dir": "/", "update_info": {}}), "weight_dir"),
        ("/update_weights", json!({}), "update_info"),
    ] {
        assert_eq!(served.post(path, &body).refused(400).1, json!(field), "{path} {body}");
    }
}

/// What runs gives its keys and values up and computes them again: it says the same as if nothing had been asked.
#[test]
fn a_reset_of_the_cache_takes_what_running_requests_hold() {
    let served = rollout(&[]);
    let ask = json!({"prompt": QUESTION, "max_tokens": 1500, "ignore_eos": true, "seed": 1, "logprobs": 0});
    let expected = served.complete(&ask)["choices"].clone();
    for told in ["?reset_running_requests=true", ""] {
        let sampled = served.metric("offshoot_engine_tokens_sampled_total");
        std::thread::scope(|scope| {
            let open = scope.spawn(|| served.complete(&ask));
            served.wait_for("offshoot_engine_branches_running", 1.0);
            wait_for_tokens(&served, sampled + 20.0);
            let reset = match told {
                "" => served.post("/reset_prefix_cache", &json!({"reset_running_requests": true})),
                query => served.post_nothing(&format!("/reset_prefix_cache{query}")),
            };
            assert_eq!(reset.succeeds(), json!({"success": true}));
            assert_eq!(open.join().expect("no panic")["choices"], expected);
        });
    }
    // Without it they keep what they hold.
    std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&endless()));
        served.wait_for("offshoot_engine_branches_running", 2.0);
        assert_eq!(served.post_nothing("/reset_prefix_cache").succeeds(), json!({"success": false}));
        served.post("/abort_requests", &json!({})).succeeds();
        open.join().expect("no panic");
    });
}

#[test]
fn sampling_masks_come_by_an_option_of_the_server() {
    let params = json!({"seed": 5, "max_tokens": 12, "top_k": 20, "top_p": 0.95, "ignore_eos": true, "n": 2});
    let choices = |served: &Served, more: Value| {
        let tokens = served.post("/tokenize", &json!({"prompt": QUESTION})).succeeds()["tokens"].clone();
        let body = json!({"token_ids": tokens, "sampling_params": joined(&params, more)});
        served.post("/inference/v1/generate", &body).succeeds()["choices"].clone()
    };
    let (plain, masking) = (rollout(&[]), rollout(&["--return-sampling-mask"]));
    let asked = choices(&plain, json!({"return_kept": "ids"}));
    let masked = choices(&masking, json!({}));
    for index in 0..2 {
        let (asked, masked) = (&asked[index], &masked[index]);
        let masks = masked["sampling_mask"].as_array().expect("a list");
        assert_eq!(masks.len(), 12);
        for (mask, token) in masks.iter().zip(masked["token_ids"].as_array().expect("a list")) {
            let mask = mask.as_array().expect("a list");
            assert!((1..=20).contains(&mask.len()) && mask.contains(token), "{token} of {mask:?}");
        }
        assert_eq!(masked["sampling_mask"], asked["kept"]["ids"], "they are the sets that a request may ask for");
        assert!(masked.get("kept").is_none(), "{masked}");
    }
    assert!(choices(&plain, json!({}))[0]["sampling_mask"].is_null());
}
