//! Adapters of a served model: named by requests, loaded, replaced and removed by trainers, and what is refused.

use std::path::Path;

use serde_json::{Value, json};

use crate::lora::TestAdapter;
use crate::served::{QUESTION, Served, joined};
use crate::trainer::{question, rollout};

/// The log-probabilities of the answer to `question` by this model or adapter.
fn logprobs(served: &Served, model: &str) -> Vec<Value> {
    let answer = served.complete(&joined(&question(), json!({ "model": model })));
    assert_eq!(answer["model"], model);
    answer["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone()
}

fn path(folder: &Path) -> &str {
    folder.to_str().expect("temporary folders have names in UTF-8")
}

/// A folder with adapters `1`, `2` and so on.
fn adapters(count: u64) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    for seed in 1..=count {
        TestAdapter::new(seed).write(&root.path().join(seed.to_string()));
    }
    root
}

fn load(name: &str, folder: &Path) -> Value {
    json!({"lora_name": name, "lora_path": folder, "load_inplace": false})
}

/// The names that `/v1/models` lists.
fn names(served: &Served) -> Vec<Value> {
    let list = served.get("/v1/models").succeeds();
    list["data"].as_array().expect("a list").iter().map(|card| card["id"].clone()).collect()
}

#[test]
fn requests_name_the_adapters_that_the_server_was_started_with() {
    let root = adapters(2);
    let [one, two] = ["1", "2"].map(|name| root.path().join(name));
    let served = Served::start(&["--lora", &format!("one={}", path(&one)), "--lora", &format!("two={}", path(&two))]);
    assert_eq!(names(&served), ["demo", "one", "two"]);
    let card = served.get("/v1/models/one").succeeds();
    assert_eq!((&card["parent"], &card["root"]), (&json!("demo"), &json!(one)));
    assert_eq!(served.get("/v1/models").succeeds()["data"][1], card);

    // Each has its own answers, also when all are asked at once.
    let alone: Vec<Vec<Value>> = ["demo", "one", "two"].map(|model| logprobs(&served, model)).into();
    assert!(alone[0] != alone[1] && alone[1] != alone[2] && alone[0] != alone[2]);
    let together: Vec<Vec<Value>> = std::thread::scope(|scope| {
        let ask = |model| {
            let served = &served;
            scope.spawn(move || logprobs(served, model))
        };
        let asked: Vec<_> = ["demo", "one", "two"].map(ask).into_iter().collect();
        asked.into_iter().map(|asked| asked.join().expect("it is answered")).collect()
    });
    assert_eq!(together, alone);

    // Chats and scores, too.
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "logprobs": true, "seed": 1});
    let chat = |model: &str| {
        served.post("/v1/chat/completions", &joined(&chat, json!({ "model": model }))).succeeds()["choices"][0]
            ["logprobs"]
            .clone()
    };
    assert_ne!(chat("demo"), chat("one"));
    let scored = json!({"prompt": QUESTION, "choices": [" Mia has", " 7"]});
    let scored = |model: &str| served.complete(&joined(&scored, json!({ "model": model })))["choices"].clone();
    assert_ne!(scored("one"), scored("two"));

    // A server that was started with one alone agrees to the bit.
    let other = Served::start(&["--lora", &format!("another={}", path(&two))]);
    assert_eq!(logprobs(&other, "another"), alone[2]);
    let refused = other.post("/v1/completions", &json!({"model": "two", "prompt": "a"}));
    let (code, param) = refused.refused(404);
    assert_eq!((&*code, param), ("model_not_found", json!("model")));
}

/// What TRL's asynchronous trainer does: a new name for each version, the oldest removed.
#[test]
fn a_trainer_loads_an_adapter_for_each_version() {
    let root = adapters(3);
    let served = rollout(&["--max-loras", "2", "--max-lora-rank", "8"]);
    let config = served.get("/server_info?config_format=json").succeeds()["vllm_config"].clone();
    assert_eq!(config["lora_config"], json!({"max_loras": 2, "max_lora_rank": 8}));
    let base = logprobs(&served, "demo");
    let mut seen = vec![base.clone()];
    for version in 1..=3u64 {
        let name = format!("trl-policy-v{version}");
        served.post_nothing("/pause?mode=keep").succeeds();
        let answer = served.post("/v1/load_lora_adapter", &load(&name, &root.path().join(version.to_string())));
        assert_eq!(
            (answer.status, &*answer.text),
            (200, &*format!("Success: LoRA adapter '{name}' added successfully."))
        );
        served.post_nothing("/resume").succeeds();
        let found = logprobs(&served, &name);
        assert!(!seen.contains(&found), "version {version} is another adapter");
        seen.push(found);
        if version == 2 {
            let removed = served.post("/v1/unload_lora_adapter", &json!({"lora_name": "trl-policy-v1"}));
            let said = "Success: LoRA adapter 'trl-policy-v1' removed successfully.";
            assert_eq!((removed.status, &*removed.text), (200, said));
        }
    }
    assert_eq!(names(&served), ["demo", "trl-policy-v2", "trl-policy-v3"]);
    assert_eq!(logprobs(&served, "demo"), base);
    assert_eq!(logprobs(&served, "trl-policy-v2"), seen[2]);
    // From tokens to tokens, by name.
    let tokens = json!({"model": "trl-policy-v3", "token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4,
        "ignore_eos": true, "logprobs": 0, "seed": 3}});
    let tuned = served.post("/inference/v1/generate", &tokens).succeeds();
    let plain = served.post("/inference/v1/generate", &joined(&tokens, json!({"model": "demo"}))).succeeds();
    assert_eq!(tuned["model"], "trl-policy-v3");
    assert_ne!(tuned["choices"][0]["logprobs"], plain["choices"][0]["logprobs"]);
}

/// What prime-rl and SkyRL do: one name, whose adapter is replaced.
#[test]
fn an_adapter_is_replaced_under_its_name() {
    let root = adapters(2);
    let served = rollout(&["--max-loras", "1"]);
    let [one, two] = ["1", "2"].map(|name| root.path().join(name));
    let place = |path: &str, folder: &Path| {
        let loaded = served.post(path, &json!({"lora_name": "policy", "lora_path": folder})).succeeds();
        assert_eq!((&loaded["status"], &loaded["lora_name"]), (&json!("ok"), &json!("policy")));
        logprobs(&served, "policy")
    };
    let first = place("/load_lora_adapter", &one);
    let second = place("/load_lora_adapter", &two);
    assert_ne!(first, second);
    assert_eq!(place("/skyrl/v1/load_lora_adapter", &one), first);
    // vLLM's own path replaces only what it is told to.
    let refused = served.post("/v1/load_lora_adapter", &load("policy", &two));
    assert_eq!(refused.refused(400), ("invalid_value".to_owned(), json!("lora_name")));
    assert_eq!(logprobs(&served, "policy"), first);
    let told = joined(&load("policy", &two), json!({"load_inplace": true}));
    assert_eq!(served.post("/v1/load_lora_adapter", &told).status, 200);
    assert_eq!(logprobs(&served, "policy"), second);
    // Other versions of the weights leave it loaded.
    served.post("/update_weight_version", &json!({"new_version": "7"})).succeeds();
    assert_eq!(logprobs(&served, "policy"), second);
}

#[test]
fn what_does_not_fit_is_refused_and_what_is_loaded_stays() {
    let root = adapters(2);
    let served = rollout(&["--max-loras", "1", "--max-lora-rank", "4"]);
    let [one, two] = ["1", "2"].map(|name| root.path().join(name));
    assert_eq!(served.post("/v1/load_lora_adapter", &load("one", &one)).status, 200);
    let before = logprobs(&served, "one");
    let written = |name: &str, adapter: TestAdapter| {
        let folder = root.path().join(name);
        adapter.write(&folder);
        folder
    };
    let wide = written("wide", TestAdapter { width: 512, ..TestAdapter::new(3) });
    let large = written("large", TestAdapter { rank: 8, ..TestAdapter::new(3) });
    let half = written("half", TestAdapter::new(3));
    std::fs::remove_file(half.join("adapter_model.safetensors")).expect("it was written");
    let in_place = |folder: &Path| joined(&load("one", folder), json!({"load_inplace": true}));
    for (body, status, words) in [
        (in_place(&wide), 400, "q_proj.lora_A.weight"),
        (in_place(&large), 400, "8"),
        (in_place(&half), 404, "adapter_model.safetensors"),
        (in_place(&root.path().join("none")), 404, "adapter_config.json"),
        (load("two", &two), 400, "1"),
        (load("demo", &one), 400, "the model"),
        (load("one", &two), 400, "load_inplace"),
        (json!({"lora_name": "", "lora_path": one}), 400, "lora_name"),
        (json!({"lora_name": "x"}), 400, "lora_path"),
        (joined(&load("x", &one), json!({"is_3d_lora_weight": true})), 400, "is_3d_lora_weight"),
    ] {
        let answer = served.post("/v1/load_lora_adapter", &body);
        assert!(answer.status == status && answer.text.contains(words), "{body}: {} {}", answer.status, answer.text);
    }
    assert_eq!((logprobs(&served, "one"), names(&served).len()), (before, 2));
    let unknown = served.post("/v1/unload_lora_adapter", &json!({"lora_name": "two"}));
    assert_eq!(unknown.refused(404), ("not_found".to_owned(), json!("lora_name")));
    served.post("/v1/unload_lora_adapter", &json!({"lora_name": "one", "lora_int_id": null}));
    served.post("/v1/completions", &json!({"model": "one", "prompt": "a"})).refused(404);

    let without = rollout(&[]);
    let refused = without.post("/v1/load_lora_adapter", &load("one", &one));
    assert!(refused.status == 400 && refused.text.contains("--max-loras"), "{}", refused.text);
}

/// A kept branch goes on with the adapter that it was sampled with.
#[test]
fn a_kept_branch_has_its_adapter() {
    let root = adapters(1);
    let served = Served::start(&["--lora", &format!("one={}", path(&root.path().join("1")))]);
    let kept = json!({"model": "one", "prompt": QUESTION, "max_tokens": 4, "ignore_eos": true, "keep": true, "seed": 2,
        "return_token_ids": true});
    let kept = served.complete(&kept);
    let choice = &kept["choices"][0];
    let more = json!({"model": "one", "max_tokens": 4, "temperature": 0, "ignore_eos": true, "logprobs": 0});
    let ask = |parts: Value| served.complete(&joined(&more, parts))["choices"][0]["logprobs"]["token_logprobs"].clone();
    let list = |key: &str| choice[key].as_array().expect("a list").clone();
    let tokens: Vec<Value> = list("prompt_token_ids").into_iter().chain(list("token_ids")).collect();
    assert_eq!(ask(json!({"parent": choice["branch"]})), ask(json!({"prompt": tokens})));
    let other = served.post("/v1/completions", &json!({"model": "demo", "parent": choice["branch"], "max_tokens": 1}));
    assert_eq!(other.refused(400), ("invalid_value".to_owned(), json!("model")));
}
