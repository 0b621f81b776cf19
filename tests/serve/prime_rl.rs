//! prime-rl's side of the protocol, played by a small client: what its orchestrator (commit 559b447) and the client
//! that samples for it (verifiers 0.4.0, renderers 0.1.12) send, in their order, and what they read of the answers.

use std::path::Path;

use serde_json::{Value, json};

use crate::served::{QUESTION, Served, joined};
use crate::trainer::{Tensors, rollout, version};

struct PrimeRl<'a> {
    served: &'a Served,
    /// The tokens of a prompt.
    prompt: Value,
}

impl<'a> PrimeRl<'a> {
    /// Waits for the server, as for a pool of them.
    fn ready(served: &'a Served) -> Self {
        assert_eq!(served.get("/health").status, 200);
        let models = served.get("/v1/models").succeeds();
        let card = models["data"].as_array().expect("a list").iter().find(|card| card["id"] == "demo");
        // A prompt that is longer is not sent.
        assert_eq!(card.expect("the model is there")["max_model_len"], 4096);
        let prompt = served.post("/tokenize", &json!({"prompt": QUESTION})).succeeds()["tokens"].clone();
        PrimeRl { served, prompt }
    }

    /// Samples once, as `TrainClient` does, with further parameters of sampling. Answers that it would refuse fail.
    fn sample(&self, salt: &str, more: Value) -> Value {
        let params = json!({"temperature": 1.0, "top_p": 1.0, "max_tokens": 24, "top_k": -1, "min_p": 0.0,
            "return_token_ids": true, "stop_token_ids": [1], "logprobs": 1, "skip_special_tokens": false});
        let body = json!({"model": "demo", "token_ids": self.prompt, "cache_salt": salt,
            "sampling_params": joined(&params, more)});
        let answer = self.served.post("/inference/v1/generate", &body).succeeds();
        assert!(answer["request_id"].is_string() && answer["usage"]["completion_tokens"].is_u64(), "{answer}");
        let choice = answer["choices"][0].clone();
        let tokens = choice["token_ids"].as_array().expect("a list");
        let content = choice["logprobs"]["content"].as_array().expect("a list");
        assert_eq!(tokens.len(), content.len());
        for (token, entry) in tokens.iter().zip(content) {
            assert_eq!(entry["token"], format!("token_id:{token}"));
            let logprob = entry["logprob"].as_f64().expect("a number");
            assert!(logprob.is_finite() && logprob > -9999.0, "{entry}");
        }
        choice
    }

    /// Puts a step's weights in force; the status where that failed. The server goes on in either case.
    fn update_weights(&self, folder: Option<&Path>) -> Result<(), u16> {
        let sent = |path: &str| self.served.post_nothing(path).succeeds();
        assert_eq!(sent("/pause?mode=keep&clear_cache=false")["status"], "paused");
        if let Some(folder) = folder {
            std::fs::write(folder.join("NCCL_READY"), "").expect("the folder is writable");
        }
        let updated = self.served.post("/update_weights", &json!({"weight_dir": folder})).status;
        assert_eq!(sent("/resume")["status"], "resumed");
        if updated == 200 { Ok(()) } else { Err(updated) }
    }

    /// A log-probability for each of these tokens, 0 for the first.
    fn score(&self, tokens: &[Value]) -> Vec<f64> {
        let params = json!({"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 1});
        let body = json!({"model": "demo", "token_ids": tokens, "sampling_params": params});
        let answer = self.served.post("/inference/v1/generate", &body).succeeds();
        let first = |entry: &Value| {
            // Of an object its first entry, which must be that of the prompt's own token.
            let text = entry.to_string();
            let entry = entry.as_object().and_then(|entry| entry.iter().next());
            let (_, first) = entry.unwrap_or_else(|| panic!("{text}"));
            first["logprob"].as_f64().expect("a number")
        };
        let entries = answer["prompt_logprobs"].as_array().expect("a list");
        entries.iter().map(|entry| if entry.is_null() { 0.0 } else { first(entry) }).collect()
    }
}

/// Steps of training, the first of which changes the weights while a group is sampled.
#[test]
fn steps_of_training_go_by_folders() {
    let served = rollout(&["--return-sampling-mask", "--logprobs-mode", "processed_logprobs"]);
    let trainer = PrimeRl::ready(&served);
    let before = trainer.sample("0", json!({"seed": 5}));
    let root = tempfile::tempdir().expect("a temporary folder");
    let step = |number: usize| root.path().join(format!("step_{number}"));
    Tensors::demo().scaled(0.5, |name| name.contains("mlp")).write_step(&step(7));
    Tensors::demo().write_step(&step(9));

    std::thread::scope(|scope| {
        let long = |seed| json!({"max_tokens": 1200, "ignore_eos": true, "stop_token_ids": [], "seed": seed});
        let trainer = &trainer;
        let group: Vec<_> = (0..4).map(|seed| scope.spawn(move || trainer.sample("0", long(seed)))).collect();
        served.wait_for("offshoot_engine_branches_running", 4.0);
        trainer.update_weights(Some(&step(7))).expect("it is complete");
        for choice in group.into_iter().map(|one| one.join().expect("no panic")) {
            assert_eq!(
                (&choice["finish_reason"], choice["token_ids"].as_array().map(Vec::len)),
                (&json!("length"), Some(1200))
            );
            let spans = choice["weight_versions"].as_array().expect("a list");
            assert_eq!(spans.last().expect("one at least")["version"], "7");
        }
    });
    assert_eq!(version(&served), "7");
    assert_ne!(trainer.sample("7", json!({"seed": 5})), before);
    // Steps may be skipped.
    trainer.update_weights(Some(&step(9))).expect("it is complete");
    let again = trainer.sample("9", json!({"seed": 5}));
    assert_eq!((&again["token_ids"], &again["logprobs"]), (&before["token_ids"], &before["logprobs"]));

    // The sets that tokens were drawn from, without which it does not train where sampling cuts.
    let cut = trainer.sample("9", json!({"top_p": 0.9, "top_k": 20, "seed": 6}));
    let masks = cut["sampling_mask"].as_array().expect("a list");
    assert_eq!(Some(masks.len()), cut["token_ids"].as_array().map(Vec::len));
    assert!(masks.iter().all(|mask| mask.as_array().is_some_and(|ids| (1..=20).contains(&ids.len()))), "{cut}");

    // Nothing is cut at temperature 1: samples and scores agree.
    let prompt = trainer.prompt.as_array().expect("a list").clone();
    let tokens: Vec<Value> = prompt.iter().chain(again["token_ids"].as_array().expect("a list")).cloned().collect();
    let scores = trainer.score(&tokens);
    assert_eq!((scores.len(), scores[0]), (tokens.len(), 0.0));
    let content = again["logprobs"]["content"].as_array().expect("a list");
    for (score, entry) in scores[prompt.len()..].iter().zip(content) {
        assert!((score - entry["logprob"].as_f64().expect("a number")).abs() < 1e-4, "{score} and {entry}");
    }
}

/// It sends again what gets a status from 500 up, ten times; nothing of this would go better then.
#[test]
fn what_fails_is_not_to_be_sent_again() {
    let served = rollout(&[]);
    let trainer = PrimeRl::ready(&served);
    let before = trainer.sample("0", json!({"seed": 5}));
    let root = tempfile::tempdir().expect("a temporary folder");
    let step = root.path().join("step_3");
    Tensors::demo().only(|name| !name.contains("mlp")).write_step(&step);
    assert_eq!(trainer.update_weights(Some(&step)), Err(400), "tensors are missing");
    std::fs::remove_file(step.join("STABLE")).expect("it is there");
    assert_eq!(trainer.update_weights(Some(&step)), Err(409), "it is not complete");
    assert_eq!(trainer.update_weights(None), Err(400));
    assert_eq!((version(&served), trainer.sample("0", json!({"seed": 5}))), ("0".to_owned(), before));
    // It takes this for a server without NCCL, and goes on by folders.
    let broadcaster = json!({"host": "127.0.0.1", "port": 1, "rank_offset": 0, "inference_world_size": 1,
        "timeout": 5, "quantize_in_weight_transfer": false});
    assert_eq!(served.post("/init_broadcaster", &broadcaster).status, 404);
}
