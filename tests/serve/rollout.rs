//! `offshoot serve --rollout` as trainers drive it: pauses, weight updates in bodies and in folders, sleep, samples
//! from token ids to token ids; and that what fails leaves the old weights in force.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::{QUESTION, Served, joined};
use crate::trainer::{Tensors, logprobs, question, rollout, send, update, version};

/// The paths of the verbs and their methods.
const VERBS: [(&str, &str); 26] = [
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/abort_requests"),
    ("POST", "/inference/v1/abort_requests"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/release_kv_cache_memory"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/init_weight_transfer_engine"),
    ("POST", "/shutdown_weight_transfer_engine"),
    ("POST", "/start_weight_update"),
    ("POST", "/update_weights"),
    ("POST", "/finish_weight_update"),
    ("POST", "/update_weight_version"),
    ("GET", "/weight_info"),
    ("GET", "/get_world_size"),
    ("GET", "/server_info"),
    ("POST", "/collective_rpc"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/load_lora_adapter"),
    ("POST", "/skyrl/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/inference/v1/generate"),
    ("POST", "/skyrl/v1/generate"),
];

fn status(served: &Served, (method, path): (&str, &str)) -> u16 {
    match method {
        "GET" => served.get(path).status,
        _ => served.post_nothing(path).status,
    }
}

#[test]
fn without_the_option_there_are_no_verbs() {
    let served = Served::start(&[]);
    for verb in VERBS {
        assert_eq!(status(&served, verb), 404, "{verb:?}");
    }
}

#[test]
fn the_verbs_need_the_key_of_an_operator() {
    let file = |keys: &str| {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), keys).expect("it is writable");
        file
    };
    let (clients, operators) = (file("client"), file("operator"));
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("UTF-8").to_owned();
    let mut served = rollout(&["--api-keys", &path(&clients), "--rollout-keys", &path(&operators)]);
    let ask = json!({"prompt": "a", "max_tokens": 1});
    for (key, expected, samples) in [("nobody", 401, 401), ("client", 403, 200)] {
        served.set_key(key);
        for verb in VERBS {
            assert_eq!(status(&served, verb), expected, "{verb:?}");
        }
        assert_eq!(served.post("/v1/completions", &ask).status, samples);
    }
    served.set_key("operator");
    served.get("/weight_info").succeeds();
    served.complete(&ask);
}

/// Everything that a step of training does, with the answers between.
#[test]
fn a_trainer_updates_the_weights_in_bodies_and_in_folders() {
    let served = rollout(&[]);
    let (old, new) = (Tensors::demo(), Tensors::demo().scaled(0.5, |name| name.contains("mlp")));
    let first = logprobs(&served);
    assert_eq!(version(&served), "0");

    served.post("/pause?mode=keep", &json!({})).succeeds();
    assert_eq!(update(&served, &new.only(|name| name.contains("mlp"))), "1");
    served.post_nothing("/resume").succeeds();
    let second = logprobs(&served);
    assert_ne!(first, second);
    let answer = served.complete(&question());
    assert_eq!(answer["choices"][0]["weight_versions"], json!([{"version": "1", "start": 0, "end": 24}]));

    // The old ones again, from a folder, by the number of its step.
    let root = tempfile::tempdir().expect("a temporary folder");
    let step = root.path().join("step_7");
    old.write_step(&step);
    served.post_nothing("/pause?mode=keep&clear_cache=false").succeeds();
    let answered = served.post("/update_weights", &json!({"weight_dir": step})).succeeds();
    assert_eq!(answered["status"], "ok");
    served.post_nothing("/resume").succeeds();
    assert_eq!((version(&served), logprobs(&served)), ("7".to_owned(), first.clone()));

    // A server that was started with the new ones agrees to the bit.
    let folder = root.path().join("demo");
    std::fs::create_dir(&folder).expect("a new folder");
    for entry in std::fs::read_dir(crate::served::demo()).expect("it is there") {
        let entry = entry.expect("it can be read");
        if entry.path().is_file() {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("the folder is writable");
        }
    }
    std::fs::write(folder.join("model.safetensors"), new.file()).expect("the folder is writable");
    let fresh = Served::start(&["--model", folder.to_str().expect("UTF-8")]);
    assert_eq!(logprobs(&fresh), second);

    // Named by the trainer.
    served.post("/start_weight_update", &json!({"is_checkpoint_format": true, "scope": "whole"})).succeeds();
    send(&served, &new).succeeds();
    served.post("/finish_weight_update", &json!({"weight_version": "best"})).succeeds();
    assert_eq!((version(&served), logprobs(&served)), ("best".to_owned(), second));
    let named = served.post("/update_weight_version", &json!({"new_version": "9"})).succeeds();
    assert_eq!((named, version(&served)), (json!({"success": true, "new_version": "9"}), "9".to_owned()));
}

#[test]
fn what_fails_leaves_the_old_weights_in_force() {
    let served = rollout(&[]);
    let before = logprobs(&served);
    let old = Tensors::demo();
    let name = "model.layers.0.mlp.up_proj.weight";
    let only = |tensors: &Tensors| tensors.only(|other| other == name);
    let parts: [(Tensors, &str, &str); 6] = [
        (old.only(|other| other != name), "whole", name),
        (only(&old.with(name, |about, _| about["shape"] = json!([256, 704]))), "changed", "704"),
        (
            only(&old.with(name, |about, bytes| {
                about["dtype"] = json!("I16");
                assert_eq!(bytes.len(), 2 * 256 * 704);
            })),
            "changed",
            "I16",
        ),
        (only(&old.with(name, |_, bytes| bytes[..2].copy_from_slice(&0x7fc0u16.to_le_bytes()))), "changed", "NaN"),
        (old.with("model.layers.99.other", |_, _| ()), "whole", "model.layers.99.other"),
        (old.only(|_| false), "changed", "tensors"),
    ];
    for (tensors, scope, named) in parts {
        served.post("/start_weight_update", &json!({"scope": scope})).succeeds();
        send(&served, &tensors).succeeds();
        let failed = served.post_nothing("/finish_weight_update");
        assert!((400..500).contains(&failed.status), "{failed:?}");
        let message = failed.json()["error"]["message"].as_str().expect("a sentence").to_owned();
        assert!(message.contains(named), "{named}: {message}");
        // It is over.
        assert_eq!(served.post_nothing("/finish_weight_update").refused(409).0, "no_update");
    }
    // One update at a time.
    assert_eq!(send(&served, &old).refused(409).0, "no_update");
    served.post_nothing("/start_weight_update").succeeds();
    assert_eq!(served.post_nothing("/start_weight_update").refused(409).0, "update_open");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let step = folder.path().join("step_1");
    old.write_step(&step);
    let in_folder = json!({"weight_dir": step});
    assert_eq!(served.post("/update_weights", &in_folder).refused(409).0, "update_open");
    let broken = served.post_bytes("/update_weights", "application/octet-stream", b"no tensors");
    assert_eq!(broken.refused(400).0, "invalid_body");
    served.post_nothing("/start_weight_update").succeeds();
    served.post_nothing("/shutdown_weight_transfer_engine").succeeds();
    assert_eq!(served.post_nothing("/finish_weight_update").refused(409).0, "no_update");
    // Folders that are not complete, or of another model.
    std::fs::remove_file(step.join("STABLE")).expect("it is there");
    assert_eq!(served.post("/update_weights", &in_folder).refused(409).0, "incomplete_folder");
    std::fs::write(step.join("STABLE"), "").expect("the folder is writable");
    let config = std::fs::read_to_string(crate::served::demo().join("config.json")).expect("it is there");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["rms_norm_eps"] = json!(0.5);
    std::fs::write(step.join("config.json"), config.to_string()).expect("the folder is writable");
    served.post("/update_weights", &in_folder).refused(400);
    // What this server cannot do.
    let nccl =
        json!({"init_info": {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}});
    assert!(served.post("/init_weight_transfer_engine", &nccl).refused(400).0 == "unsupported_transfer");
    served.post("/init_weight_transfer_engine", &json!({"init_info": {}})).succeeds();
    served.post_nothing("/start_weight_update").succeeds();
    let told = json!({"names": [name], "dtype_names": ["bfloat16"], "shapes": [[704, 256]]});
    assert_eq!(served.post("/update_weights", &json!({"update_info": told})).refused(409).0, "no_session");
    // A refusal ends the update: the tensors that it names may not be missing from what is put in force.
    assert_eq!(served.post_nothing("/finish_weight_update").refused(409).0, "no_update");
    served.post_nothing("/start_weight_update").succeeds();
    let handles = joined(&told, json!({"ipc_handles_pickled": "gAQu"}));
    assert_eq!(served.post("/update_weights", &json!({"update_info": handles})).refused(400).0, "unsupported_transfer");

    assert_eq!((version(&served), logprobs(&served)), ("0".to_owned(), before));
}

#[test]
fn the_update_of_a_trainer_that_dies_is_dropped() {
    let served = rollout(&["--update-timeout", "0.5"]);
    let before = logprobs(&served);
    let tensors = Tensors::demo().scaled(0.5, |_| true);
    // On a busy machine the time is over before the tensors have come, which is no other refusal.
    let begun = Instant::now();
    loop {
        served.post_nothing("/start_weight_update");
        let sent = send(&served, &tensors);
        if sent.status == 200 {
            break;
        }
        assert!(["no_update", "timeout"].contains(&sent.refused(sent.status).0.as_str()), "{sent:?}");
        assert!(begun.elapsed() < Duration::from_secs(120), "the tensors never come in time");
    }
    // It says no more. Another one comes.
    let begun = Instant::now();
    while served.post_nothing("/start_weight_update").status == 409 {
        assert!(begun.elapsed() < Duration::from_secs(120), "it is never dropped");
        std::thread::sleep(Duration::from_millis(20));
    }
    let code = served.post_nothing("/finish_weight_update").json()["error"]["code"].clone();
    assert!(code == "no_tensors" || code == "no_update", "nothing of the first one is left: {code}");
    assert_eq!((version(&served), logprobs(&served)), ("0".to_owned(), before));
}

/// A request that takes long.
fn long() -> Value {
    json!({"prompt": QUESTION, "n": 2, "max_tokens": 3000, "ignore_eos": true, "seed": 1, "logprobs": 0,
        "return_token_ids": true})
}

#[test]
fn requests_in_progress_end_or_come_to_their_end_or_stand_still() {
    let served = rollout(&[]);
    let ask = json!({"prompt": QUESTION, "max_tokens": 4, "seed": 1});
    // Abort: they end with what they have, and no others are taken.
    std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&long()));
        served.wait_for("offshoot_engine_branches_running", 2.0);
        assert_eq!(served.post_nothing("/pause").succeeds(), json!({"status": "paused"}));
        let aborted = open.join().expect("no panic");
        for choice in aborted["choices"].as_array().expect("a list") {
            assert_eq!(choice["finish_reason"], "abort");
            let logprobs = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
            assert_eq!(choice["token_ids"].as_array().expect("a list").len(), logprobs.len());
        }
    });
    assert_eq!(served.get("/is_paused").succeeds(), json!({"is_paused": true}));
    assert_eq!(served.post("/v1/completions", &ask).refused(503).0, "paused");
    served.post_nothing("/resume").succeeds();
    let answer = served.complete(&ask);
    assert_eq!(served.get("/is_paused").succeeds(), json!({"is_paused": false}));
    // The counts of a step are told behind its ends.
    served.wait_for("offshoot_engine_branches_running", 0.0);
    // Wait: they come to their end.
    let whole = json!({"prompt": QUESTION, "max_tokens": 200, "ignore_eos": true, "seed": 1});
    std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&whole));
        served.wait_for("offshoot_engine_branches_running", 1.0);
        served.post_nothing("/pause?mode=wait").succeeds();
        assert!(open.is_finished() || served.metric("offshoot_requests_open") == 0.0);
        assert_eq!(open.join().expect("no panic")["usage"]["completion_tokens"], 200);
    });
    served.post_nothing("/resume").succeeds();
    served.wait_for("offshoot_engine_branches_running", 0.0);
    // Keep: they stand still and go on, and so do those that come meanwhile.
    served.post_nothing("/pause?mode=keep").succeeds();
    std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&ask));
        served.wait_for("offshoot_requests_open", 1.0);
        assert_eq!(served.metric("offshoot_engine_branches_running"), 0.0);
        served.post_nothing("/resume").succeeds();
        assert_eq!(open.join().expect("no panic")["choices"], answer["choices"]);
    });
    // By name.
    let named = joined(&long(), json!({"request_id": "mine"}));
    std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&named));
        served.wait_for("offshoot_engine_branches_running", 2.0);
        let abort = |ids: Value| served.post("/abort_requests", &json!({"request_ids": ids})).succeeds();
        assert_eq!(abort(json!(["other"]))["aborted"], 0);
        assert_eq!(abort(json!(["mine"])), json!({"status": "aborted", "aborted": 1}));
        assert_eq!(open.join().expect("no panic")["choices"][0]["finish_reason"], "abort");
    });
    served.post("/inference/v1/abort_requests", &json!({})).refused(400);
}

/// A request that is in progress while the weights change goes on under the new ones; its record says from where.
#[test]
fn a_request_over_an_update_says_from_which_token_on() {
    let served = rollout(&[]);
    let new = Tensors::demo().scaled(0.5, |name| name.contains("mlp"));
    let ask = json!({"prompt": QUESTION, "max_tokens": 1500, "ignore_eos": true, "seed": 1, "logprobs": 0,
        "return_token_ids": true});
    let answer = std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&ask));
        while served.metric("offshoot_engine_tokens_sampled_total") < 20.0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        served.post_nothing("/pause?mode=keep").succeeds();
        update(&served, &new);
        served.post_nothing("/resume").succeeds();
        open.join().expect("no panic")
    });
    let choice = &answer["choices"][0];
    let spans = choice["weight_versions"].as_array().expect("the weights changed meanwhile");
    let [first, second] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&first["version"], &first["start"], &second["version"]), (&json!("0"), &json!(0), &json!("1")));
    assert_eq!((&first["end"], &second["end"]), (&second["start"], &json!(1500)));
    // Its later tokens are those that the new weights give to the text before them.
    let from = second["start"].as_u64().expect("a number") as usize;
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let (prompt, tokens) = (list(&choice["prompt_token_ids"]), list(&choice["token_ids"]));
    let whole: Vec<Value> = prompt.iter().chain(&tokens).cloned().collect();
    let scored = served.complete(&json!({"prompt": whole, "max_tokens": 0, "echo": true, "logprobs": 0}));
    let scored = list(&scored["choices"][0]["logprobs"]["token_logprobs"]);
    let recorded = list(&choice["logprobs"]["token_logprobs"]);
    assert_eq!(scored[prompt.len() + from..], recorded[from..]);
    assert_ne!(scored[prompt.len()..prompt.len() + from], recorded[..from]);
}

#[test]
fn memory_is_given_back_and_taken_again() {
    let served = rollout(&[]);
    let before = logprobs(&served);
    for (level, wakes) in [("1", vec!["/wake_up"]), ("1", vec!["/wake_up?tags=weights", "/wake_up?tags=kv_cache"])] {
        let slept = served.post_nothing(&format!("/sleep?level={level}")).succeeds();
        assert_eq!(slept, json!({"status": "sleeping", "level": 1}));
        assert_eq!(served.get("/is_sleeping").succeeds()["is_sleeping"], true);
        served.post("/v1/completions", &question()).refused(503);
        assert_eq!(served.post_nothing("/resume").status, 400);
        let woken: Vec<Value> = wakes.into_iter().map(|wake| served.post_nothing(wake).succeeds()).collect();
        assert!(woken.last().is_some_and(|last| last["status"] == "awake"), "{woken:?}");
        assert_eq!(served.get("/is_sleeping").succeeds()["is_sleeping"], false);
        assert_eq!(logprobs(&served), before);
    }
    // Level 2: the weights come by an update.
    served.post_nothing("/sleep?level=2").succeeds();
    served.post_nothing("/wake_up?tags=weights").succeeds();
    served.post("/start_weight_update", &json!({"scope": "whole"})).succeeds();
    send(&served, &Tensors::demo()).succeeds();
    served.post_nothing("/finish_weight_update").succeeds();
    served.post_nothing("/wake_up?tags=kv_cache").succeeds();
    assert_eq!((version(&served), logprobs(&served)), ("1".to_owned(), before));
    served.post_nothing("/sleep?level=3").refused(400);
    served.post_nothing("/wake_up?tags=other").refused(400);
    assert_eq!(served.post_nothing("/release_kv_cache_memory").refused(409).0, "not_paused");
}

#[test]
fn the_prefix_cache_is_given_up() {
    let served = rollout(&[]);
    let before = logprobs(&served);
    let computed = || {
        let before = served.metric("offshoot_engine_prompt_tokens_computed_total");
        let logprobs = logprobs(&served);
        (served.metric("offshoot_engine_prompt_tokens_computed_total") - before, logprobs)
    };
    let (cached, _) = computed();
    // The branch of a request is released a moment after its answer.
    let reset = |told: Value| {
        while served.post("/reset_prefix_cache", &told).succeeds() != json!({"success": true}) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    for told in [json!({}), json!({"reset_running_requests": true})] {
        reset(told);
        let (anew, logprobs) = computed();
        assert!(anew > cached, "{anew} tokens of the prompt are computed, {cached} while it was cached");
        assert_eq!(logprobs, before);
    }
}

#[test]
fn token_ids_come_in_and_go_out() {
    let served = rollout(&[]);
    let tokens = served.post("/tokenize", &json!({"prompt": QUESTION})).succeeds()["tokens"].clone();
    let params = json!({"n": 2, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 5, "max_tokens": 9,
        "ignore_eos": true, "logprobs": 1, "skip_special_tokens": false, "output_kind": 2, "stop_token_ids": []});
    let body = json!({"token_ids": tokens, "sampling_params": params, "model": "demo", "cache_salt": "3",
        "priority": 0, "request_id": "trl-1"});
    let answer = served.post("/inference/v1/generate", &body).succeeds();
    assert_eq!((&answer["output_mode"], &answer["request_id"]), (&json!("tokens"), &json!("trl-1")));
    let prompt = tokens.as_array().expect("a list").len();
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": 18, "total_tokens": prompt + 18});
    assert_eq!(answer["usage"], usage);
    // As a completion answers.
    let same = json!({"prompt": tokens, "n": 2, "seed": 5, "max_tokens": 9, "ignore_eos": true, "logprobs": 1,
        "return_token_ids": true});
    let completion = served.complete(&same);
    for index in 0..2 {
        let (choice, other) = (&answer["choices"][index], &completion["choices"][index]);
        assert_eq!((&choice["token_ids"], &choice["finish_reason"]), (&other["token_ids"], &json!("length")));
        let content = choice["logprobs"]["content"].as_array().expect("a list");
        assert_eq!(content.len(), 9);
        for (at, entry) in content.iter().enumerate() {
            let id = &choice["token_ids"][at];
            assert_eq!((&entry["token"], &entry["token_id"]), (&json!(format!("token_id:{id}")), id));
            assert_eq!(entry["logprob"], other["logprobs"]["token_logprobs"][at]);
            let rank = entry["rank"].as_u64().expect("a rank");
            let top = entry["top_logprobs"].as_array().expect("a list");
            assert!(
                top.iter().any(|rival| rival["token_id"] == *id && rival["rank"].as_u64() == Some(rank)),
                "{entry}"
            );
        }
        assert_eq!(choice["weight_versions"], json!([{"version": "0", "start": 0, "end": 9}]));
    }
    // Scores of the prompt; a whole context where nothing limits it.
    let scores = json!({"token_ids": tokens, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 1}});
    let scores = served.post("/inference/v1/generate", &scores).succeeds();
    let scored = scores["prompt_logprobs"].as_array().expect("a list");
    assert!(scored.len() == prompt && scored[0].is_null());
    for (entry, token) in scored.iter().zip(tokens.as_array().expect("a list")).skip(1) {
        let (first, _) = entry.as_object().expect("an object").iter().next().expect("one at least");
        assert_eq!(*first, token.to_string(), "its own comes first");
    }
    let stopped = json!({"token_ids": tokens, "sampling_params": {"seed": 1}});
    let stopped = served.post("/inference/v1/generate", &stopped).succeeds();
    assert!(stopped["choices"][0]["token_ids"].as_array().is_some_and(|tokens| tokens.len() > 16), "{stopped}");
    for (wrong, field) in [
        (json!({"sampling_params": {}}), "token_ids"),
        (json!({"token_ids": [], "sampling_params": {}}), "token_ids"),
        (json!({"token_ids": [1_000_000], "sampling_params": {}}), "token_ids"),
        (json!({"token_ids": [1]}), "sampling_params"),
        (json!({"token_ids": [1], "sampling_params": {"other": 1}}), "other"),
        (json!({"token_ids": [1], "sampling_params": {"seed": 1}, "seed": 1}), "seed"),
        (json!({"token_ids": [1], "sampling_params": {}, "stream": true}), "stream"),
        (json!({"token_ids": [1], "sampling_params": {}, "features": {"a": 1}}), "features"),
    ] {
        assert_eq!(served.post("/inference/v1/generate", &wrong).refused(400).1, json!(field), "{wrong}");
    }
}

#[test]
fn a_model_is_called_by_its_folder_too() {
    let served = rollout(&[]);
    let folder = crate::served::demo();
    let ask = |model: &str| served.post("/v1/completions", &json!({"model": model, "prompt": "a", "max_tokens": 1}));
    for name in ["demo", folder.to_str().expect("UTF-8")] {
        assert_eq!(ask(name).succeeds()["model"], name);
    }
    ask("other").refused(404);
    assert_eq!(served.get("/v1/models").succeeds()["data"].as_array().map(Vec::len), Some(1));
    let usual = Served::start(&[]);
    let ask = json!({"model": folder, "prompt": "a", "max_tokens": 1});
    usual.post("/v1/completions", &ask).refused(404);
}

#[test]
fn trainers_read_what_the_server_is() {
    let served = rollout(&[]);
    assert_eq!(served.get("/get_world_size").succeeds(), json!({"world_size": 1}));
    let info = served.get("/server_info?config_format=json").succeeds();
    let config = &info["vllm_config"];
    assert!(config["weight_transfer_config"].is_object() && config["lora_config"].is_null());
    assert_eq!(config["model_config"]["max_model_len"], 4096);
    assert_eq!(config["parallel_config"]["data_parallel_size"], 1);
    assert!(served.get("/server_info").succeeds()["vllm_config"].is_string());
    // Distillation asks for many alternatives.
    let many = json!({"prompt": QUESTION, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 100});
    let scored = served.complete(&many)["choices"][0]["prompt_logprobs"].clone();
    assert!(scored[5].as_object().is_some_and(|entry| entry.len() >= 100), "{scored}");
}

/// A group comes as single requests of one prompt. Its prompt is computed once, also by those that come while it is.
#[test]
fn requests_of_one_prompt_share_its_computation_while_it_runs() {
    let served = rollout(&["--kv-memory", "256"]);
    let computed = || served.metric("offshoot_engine_prompt_tokens_computed_total");
    let prompt = QUESTION.repeat(20);
    let tokens = served.post("/tokenize", &json!({"prompt": prompt})).succeeds()["count"].as_f64().expect("a number");
    let before = computed();
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (served, prompt) = (&served, &prompt);
            scope.spawn(move || {
                served.complete(&json!({"prompt": prompt, "max_tokens": 8, "ignore_eos": true, "seed": seed}));
            });
        }
    });
    assert_eq!(computed() - before, tokens);
}
