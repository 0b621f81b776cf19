//! What each path answers, and what it refuses.

use serde_json::{Value, json};

use crate::served::{QUESTION, Served};

#[test]
fn models_health_and_version_are_told() {
    let served = Served::start(&["--name", "small", "--name", "demo"]);
    let models = served.get("/v1/models").succeeds();
    let names: Vec<&Value> = models["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["small", "demo"]);
    assert_eq!(served.get("/v1/models/demo").succeeds()["max_model_len"], 4096);
    assert_eq!(served.get("/health").succeeds()["status"], "ok");
    assert_eq!(served.get("/version").succeeds()["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(served.complete(&json!({"model": "demo", "prompt": QUESTION, "max_tokens": 1}))["model"], "demo");
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let served = Served::start(&["--max-body", "1"]);
    let completion = |body: Value| served.post("/v1/completions", &body);
    for (body, code, field) in [
        (json!({"prompt": "a", "max_tokens": "x"}), "invalid_value", "max_tokens"),
        (json!({"prompt": "a", "tools": [{}]}), "unsupported_parameter", "tools"),
        (json!({"prompt": "a", "maxtokens": 3}), "unknown_parameter", "maxtokens"),
        (json!({"prompt": "a", "n": 1_000_000}), "invalid_value", "n"),
        (json!({"max_tokens": 3}), "invalid_value", "prompt"),
        (json!({"prompt": "a", "stream": true, "n": 1, "best_of": 2}), "unsupported_parameter", "best_of"),
        (json!({"prompt": "a", "keep": true, "n": 1, "best_of": 2}), "unsupported_parameter", "best_of"),
        (json!({"prompt": "a", "keep": true, "n": 2, "max_tokens": 0}), "unsupported_parameter", "n"),
        (
            json!({"prompt": "a", "stream_options": {"usage": true}, "stream": true}),
            "unknown_parameter",
            "stream_options.usage",
        ),
        (json!({"prompt": "a", "logit_bias": {"5": 1e39}}), "invalid_value", "logit_bias"),
        (json!({"prompt": "a", "logit_bias": {"05": 1}}), "invalid_value", "logit_bias"),
        // 90 tokens or more in each of 5,000 choices, with 20 alternatives.
        (
            json!({"prompt": QUESTION.repeat(4), "echo": true, "logprobs": 20, "n": 5000, "max_tokens": 0}),
            "invalid_value",
            "echo",
        ),
    ] {
        assert_eq!(completion(body).refused(400), (code.to_owned(), json!(field)));
    }
    assert_eq!(completion(json!({"prompt": "a", "model": "gpt"})).refused(404).0, "model_not_found");
    assert_eq!(served.post_text("/v1/completions", "application/json", "{\"prompt\":").refused(400).0, "invalid_json");
    assert_eq!(served.post_text("/v1/completions", "text/plain", "{}").refused(415).0, "unsupported_media_type");
    for _ in 0..20 {
        // The body is taken, though it is refused: else its sender might see a closed connection.
        assert_eq!(completion(json!({"prompt": "a".repeat(4 << 20)})).refused(413).0, "request_too_large");
    }
    assert_eq!(served.get("/v1/nothing").refused(404).0, "not_found");
    for path in ["/v1/models/%ff", "/v1/branches/%ff"] {
        assert_eq!(served.get(path).refused(404).0, "not_found", "{path}");
    }
    assert_eq!(completion(json!({"prompt": "a", "timeout": 1e-9})).refused(408).0, "timeout");
    let unused = served.get("/v1/completions");
    assert_eq!((unused.refused(405).0.as_str(), unused.header("allow")), ("method_not_allowed", "POST"));
    assert_eq!(served.metric("offshoot_requests_total"), 0.0, "none of them was a request that could be answered");
}

#[test]
fn only_known_keys_are_answered() {
    let mut served = served_with_keys(&["one"]);
    let ask = json!({"prompt": "a", "max_tokens": 1});
    for path in ["/v1/models", "/v1/branches/x", "/tokenizer_info"] {
        assert_eq!(served.get(path).refused(401).0, "invalid_api_key", "{path}");
    }
    assert_eq!(served.post("/v1/completions", &ask).refused(401).0, "invalid_api_key");
    served.get("/health").succeeds();
    served.set_key("on");
    assert_eq!(served.post("/v1/completions", &ask).refused(401).0, "invalid_api_key");
    served.set_key("one");
    served.complete(&ask);
}

/// A server with these API keys.
pub fn served_with_keys(keys: &[&str]) -> Served {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), keys.join("\n")).expect("it is writable");
    Served::start(&["--api-keys", file.path().to_str().expect("temporary files have names in UTF-8")])
}

/// The prompt counts once, however many choices it has; all of it is cached the second time.
#[test]
fn usage_counts_the_prompt_once() {
    let served = Served::start(&[]);
    let ask = json!({"prompt": QUESTION, "n": 5, "max_tokens": 4, "ignore_eos": true, "seed": 1});
    let usage = |n: u64, prompts: u64, cached: u64| {
        json!({
            "prompt_tokens": prompts,
            "completion_tokens": 4 * n,
            "total_tokens": prompts + 4 * n,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    };
    let tokens = served.post("/tokenize", &json!({"prompt": QUESTION})).succeeds()["count"].as_u64().expect("a count");
    assert_eq!(served.complete(&ask)["usage"], usage(5, tokens, 0));
    assert_eq!(served.complete(&ask)["usage"], usage(5, tokens, tokens));
    let two = json!({"prompt": [QUESTION, QUESTION], "n": 2, "max_tokens": 4, "ignore_eos": true, "seed": 1});
    let answer = served.complete(&two);
    assert_eq!(answer["usage"], usage(4, 2 * tokens, 2 * tokens));
    let indices: Vec<&Value> = answer["choices"].as_array().expect("a list").iter().map(|one| &one["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
}

fn sum(logprobs: &[Value]) -> f64 {
    logprobs.iter().filter_map(Value::as_f64).sum()
}

/// `echo` scores a text; `choices` scores the same texts as continuations of their prompt.
#[test]
fn continuations_score_as_their_whole_texts_do() {
    let served = Served::start(&[]);
    let continuations = [" Mia has 3 + 4 = 7 pens.", " 7", " The cat sat.\n"];
    let scored = served.complete(&json!({"prompt": QUESTION, "choices": continuations, "logprobs": 2}));
    let given = served.post("/tokenize", &json!({"prompt": QUESTION})).succeeds()["count"].as_u64().expect("a count");
    let mut found = Vec::new();
    for (index, continuation) in continuations.iter().enumerate() {
        let choice = &scored["choices"][index];
        let own = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
        let whole =
            json!({"prompt": format!("{QUESTION}{continuation}"), "echo": true, "logprobs": 0, "max_tokens": 0});
        let whole = served.complete(&whole);
        let all = whole["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list");
        assert_eq!(whole["choices"][0]["text"], format!("{QUESTION}{continuation}"));
        assert_eq!(&all[given as usize..], own, "{continuation}");
        assert_eq!((&choice["text"], &choice["index"]), (&json!(continuation), &json!(index)));
        let score = choice["score"]["logprob"].as_f64().expect("a number");
        // Sums of a few dozen f64 in the same order; the values are of f32 and written in full.
        assert!((score - sum(own)).abs() <= 1e-9 * score.abs(), "{score} is the sum of {own:?}");
        found.push(score);
    }
    assert!(found[0] > found[2], "what the model was trained on is likelier: {found:?}");
}

#[test]
fn the_engine_is_measured() {
    let served = Served::start(&[]);
    let ask = json!({"prompt": QUESTION.repeat(4), "n": 8, "max_tokens": 6, "ignore_eos": true, "keep": true});
    served.complete(&ask);
    served.wait_for("offshoot_engine_branches_running", 0.0);
    let metric = |name: &str| served.metric(&format!("offshoot_engine_{name}"));
    let (logical, computed) = (metric("prompt_tokens_logical_total"), metric("prompt_tokens_computed_total"));
    assert!(logical == 8.0 * computed && computed > 0.0, "one of eight: {computed} of {logical}");
    assert_eq!(metric("tokens_sampled_total"), 48.0);
    assert!(metric("kv_read_flat_bytes_total") > metric("kv_read_bytes_total"));
    let pages = ["held", "cached", "free"].map(|kind| metric(&format!("kv_pages_{kind}")));
    assert_eq!(pages.iter().sum::<f64>(), metric("kv_pages"));
    assert!(pages[0] > 0.0, "kept branches hold pages");
    assert_eq!(metric("kv_held_bytes"), pages[0] * metric("kv_page_bytes"));
    assert_eq!(served.metric("offshoot_branches_kept"), 8.0);
}

/// Chats of the bundled model work at once: its template asks in the form that it knows, and its turns end.
#[test]
fn chats_with_the_bundled_model() {
    let served = Served::start(&["--trust-request-chat-template", "--special-tokens-in-text", "escape"]);
    let asked = json!({"role": "user", "content": "Mia has 3 pens and buys 4 more. How many pens does Mia have now?"});
    let chat = |messages: &Value, more: Value| {
        let mut body = json!({"messages": messages, "temperature": 0});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        served.post("/v1/chat/completions", &body)
    };
    let answer = chat(&json!([asked]), json!({})).succeeds();
    let choice = &answer["choices"][0];
    let content = choice["message"]["content"].as_str().expect("a text");
    assert!(content.ends_with("#### 7"), "{content}");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!("\n\n")));
    // The answer goes on where it was begun, and stands whole before a client that wants it so.
    let (begun, rest) = content.split_at(content.find("7 pens").expect("the sum"));
    let going = json!([asked, {"role": "assistant", "content": begun.trim()}]);
    for (echo, expected) in [(false, format!(" {rest}")), (true, content.trim().to_owned())] {
        let answer = chat(&going, json!({"echo": echo})).succeeds();
        assert_eq!(answer["choices"][0]["message"]["content"], expected, "echo: {echo}");
        let streamed = chat(&going, json!({"echo": echo, "stream": true})).text;
        let pieces =
            streamed.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let joined: String =
            pieces.filter_map(|piece| Some(piece["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect();
        assert_eq!(joined, expected, "echo: {echo}, streamed");
    }
    let own = json!({"chat_template": "Question: {{ messages[0].content }}\nAnswer:", "add_special_tokens": true});
    assert_eq!(chat(&json!([asked]), own).succeeds()["choices"][0]["message"]["content"], content);
    let alone = json!({"max_tokens": 0});
    let alone = chat(&json!([asked]), alone).succeeds();
    assert_eq!(
        (&alone["usage"]["completion_tokens"], &alone["choices"][0]["message"]["content"]),
        (&json!(0), &json!(""))
    );
    let ends = json!([{"role": "user", "content": "a<|end_of_text|>"}]);
    let tokens = served.post("/tokenize", &json!({"messages": ends})).succeeds();
    assert!(!tokens["tokens"].as_array().expect("a list").contains(&json!(1)), "{tokens}");
    let (code, field) = chat(&ends, json!({"special_tokens_in_text": "refuse"})).refused(400);
    assert_eq!((&*code, field), ("invalid_value", json!("messages")));
    let (code, field) = chat(&ends, json!({"special_tokens_in_text": "allow"})).refused(400);
    assert_eq!((&*code, field), ("invalid_value", json!("special_tokens_in_text")));
    let plain = Served::start(&[]);
    let own = json!({"messages": [asked], "chat_template": "x"});
    let (code, field) = plain.post("/v1/chat/completions", &own).refused(400);
    assert_eq!((&*code, field), ("unsupported_parameter", json!("chat_template")));
    let cold = plain.complete(&json!({"prompt": QUESTION, "max_tokens": 0}));
    assert_eq!((&cold["choices"][0]["text"], &cold["choices"][0]["finish_reason"]), (&json!(""), &json!("length")));
    let computed = plain.metric("offshoot_engine_prompt_tokens_computed_total");
    assert!(computed >= cold["usage"]["prompt_tokens"].as_f64().expect("a number") - 1.0, "{computed} were computed");
}
