//! SkyRL's side of the protocol, played by a small client: what its `RemoteInferenceClient` (commit a956457) sends, in
//! its order, and what it reads of the answers. Tensors come in bodies, in the place of broadcasts, which need a GPU.

use serde_json::{Value, json};

use crate::served::{Answer, QUESTION, Served, joined};
use crate::trainer::{Tensors, rollout, send, version};

struct SkyRl<'a>(&'a Served);

impl SkyRl<'_> {
    /// What it reads of an answer: it looks for a body only where a length is announced, and parses it as JSON.
    fn read(answer: &Answer) -> Value {
        assert_eq!(answer.header("content-length"), answer.text.len().to_string());
        assert!(answer.header("content-type").starts_with("application/json"), "{answer:?}");
        answer.succeeds()
    }

    /// A verb without a body.
    fn verb(&self, path: &str) -> Value {
        Self::read(&self.0.post_nothing(path))
    }

    /// A method of its workers.
    fn call(&self, method: &str, kwargs: Value) -> Answer {
        self.0.post("/collective_rpc", &json!({"method": method, "kwargs": kwargs}))
    }

    fn called(&self, method: &str, kwargs: Value) {
        assert_eq!(Self::read(&self.call(method, kwargs)), json!({"results": [null]}), "{method}");
    }

    /// The weights of an update, between its start and its end.
    fn send(&self, tensors: &Tensors) {
        self.called("skyrl_start_weight_update", json!({"is_checkpoint_format": true}));
        send(self.0, tensors).succeeds();
        let finished = self.0.post("/collective_rpc", &json!({"method": "skyrl_finish_weight_update"}));
        assert_eq!(Self::read(&finished), json!({"results": [null]}));
    }

    fn tokens(&self, text: &str) -> Value {
        let told = json!({"model": "demo", "prompt": text, "add_special_tokens": true});
        self.0.post("/tokenize", &told).succeeds()["tokens"].clone()
    }

    /// One sample, as its `generate` asks for each of a group.
    fn sample(&self, more: Value) -> Value {
        let params = json!({"min_tokens": 1, "skip_special_tokens": true, "include_stop_str_in_output": true,
            "max_tokens": 24, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 1,
            "stop": null});
        let body = json!({"sampling_params": joined(&params, more), "model": "demo", "token_ids": self.tokens(QUESTION),
            "cache_salt": "0"});
        let choice = Self::read(&self.0.post("/inference/v1/generate", &body))["choices"][0].clone();
        let tokens = choice["token_ids"].as_array().expect("a list");
        let content = choice["logprobs"]["content"].as_array().expect("a list");
        assert!(content.len() == tokens.len() && content.iter().all(|entry| entry["logprob"].is_f64()), "{choice}");
        let told = json!({"model": "demo", "tokens": tokens});
        assert!(self.0.post("/detokenize", &told).succeeds()["prompt"].is_string());
        choice
    }

    fn logprobs(&self) -> Value {
        self.sample(json!({"seed": 5}))["logprobs"].clone()
    }
}

/// Generation goes on over the update: paused as it is, with memory given back meanwhile.
#[test]
fn weights_change_while_requests_stand_still() {
    let served = rollout(&[]);
    let trainer = SkyRl(&served);
    let size = served.get("/get_world_size");
    assert_eq!(SkyRl::read(&size), json!({"world_size": 1}));
    let before = trainer.logprobs();
    let changed = Tensors::demo().scaled(0.5, |name| name.contains("mlp"));
    for (number, tensors, offload) in [(1, &changed, true), (2, &Tensors::demo(), false)] {
        std::thread::scope(|scope| {
            let long = |seed| json!({"max_tokens": 1200, "ignore_eos": true, "seed": seed});
            let trainer = &trainer;
            let group: Vec<_> = (0..2).map(|seed| scope.spawn(move || trainer.sample(long(seed)))).collect();
            served.wait_for("offshoot_engine_branches_running", 2.0);
            trainer.verb("/pause?mode=keep&clear_cache=false");
            trainer.called("skyrl_sleep_for_weight_sync", json!({"offload_kv": offload}));
            assert_eq!(served.get("/is_sleeping").succeeds()["is_sleeping"], true);
            trainer.called("skyrl_wake_for_weight_sync", json!({"tags": ["weights"]}));
            trainer.send(tensors);
            trainer.called("skyrl_wake_for_weight_sync", json!({"tags": ["kv_cache"]}));
            let reset = served.post("/reset_prefix_cache", &json!({"reset_running_requests": true}));
            assert_eq!(SkyRl::read(&reset), json!({"success": true}));
            assert_eq!(served.get("/is_paused").succeeds()["is_paused"], true, "it has not said that it may go on");
            trainer.verb("/resume");
            for choice in group.into_iter().map(|one| one.join().expect("no panic")) {
                assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(1200));
                let spans = choice["weight_versions"].as_array().expect("a list");
                assert_eq!(spans.last().expect("one at least")["version"], number.to_string());
            }
        });
        assert_eq!(version(&served), number.to_string());
        assert_eq!(trainer.logprobs() == before, number == 2, "the second update is of the first weights");
    }
}

/// In one place with the trainer, which takes all of the memory while it trains, and never says `/resume`.
#[test]
fn memory_is_lent_to_a_trainer_in_the_same_place() {
    let served = rollout(&[]);
    let trainer = SkyRl(&served);
    let before = trainer.logprobs();
    for number in 1..3 {
        trainer.verb("/sleep?level=2");
        trainer.verb("/wake_up?tags=weights");
        trainer.send(&Tensors::demo());
        let reset = served.post("/reset_prefix_cache", &json!({"reset_running_requests": true}));
        assert_eq!(SkyRl::read(&reset)["success"], true);
        trainer.verb("/wake_up?tags=kv_cache");
        assert_eq!((version(&served), trainer.logprobs()), (number.to_string(), before.clone()));
    }
}

/// It asks for experts at a path of its own, whose answers have nothing else that is different.
#[test]
fn its_own_path_samples_as_the_other_does() {
    let served = rollout(&[]);
    let body = json!({"sampling_params": {"max_tokens": 9, "seed": 3, "logprobs": 1}, "model": "demo",
        "token_ids": SkyRl(&served).tokens(QUESTION), "request_id": "mine"});
    let [own, other] = ["/skyrl/v1/generate", "/inference/v1/generate"].map(|path| {
        let mut answer = SkyRl::read(&served.post(path, &body));
        answer["created"] = Value::Null;
        answer
    });
    assert_eq!(own, other);
    assert!(served.metric("offshoot_requests_answered_total") >= 2.0);
}

/// Its worker's methods are taken for what they do, and no others.
#[test]
fn methods_by_name_are_its_own() {
    let served = rollout(&[]);
    let trainer = SkyRl(&served);
    assert_eq!(trainer.call("sleep", json!({})).refused(400).1, json!("method"));
    assert_eq!(trainer.call("skyrl_sleep_for_weight_sync", json!({})).refused(409).0, "not_paused");
    trainer.called("skyrl_start_weight_update", json!({"is_checkpoint_format": true}));
    let told = json!({"update_info": {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2]], "packed": true}});
    assert_eq!(trainer.call("update_weights_nccl", told).refused(409).0, "no_session");
    // It is over with that, and nothing of it is put in force.
    assert_eq!(trainer.call("skyrl_finish_weight_update", json!({})).refused(409).0, "no_update");
    assert_eq!(version(&served), "0");
}

/// A trainer broadcasts while its call is under way: one that can't be read may have been for the update that is open.
#[test]
fn a_call_that_cannot_be_read_ends_the_update() {
    let served = rollout(&[]);
    let skyrl = SkyRl(&served);
    let begin = || skyrl.called("skyrl_start_weight_update", json!({"is_checkpoint_format": true}));
    let ended = |why: &str| {
        let finished = served.post_nothing("/finish_weight_update");
        assert_eq!(finished.refused(409).0, "no_update", "{why}");
    };
    for (why, body) in [("broken off", &br#"{"method": "update_weights_nc"#[..]), ("no method", b"{}"), ("none", b"")] {
        begin();
        assert_eq!(served.post_bytes("/collective_rpc", "application/json", body).status, 400, "{why}");
        ended(why);
    }
    begin();
    assert_eq!(skyrl.call("update_weights_nccl", json!({"other": 1})).status, 400);
    ended("wrong arguments");
    // Other methods receive nothing.
    begin();
    assert_eq!(skyrl.call("skyrl_start_weight_update", json!({"is_checkpoint_format": false})).status, 400);
    assert_eq!(served.post_nothing("/finish_weight_update").refused(400).0, "no_tensors", "it is still open");
}
