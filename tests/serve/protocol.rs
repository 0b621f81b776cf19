//! What each path answers, and what it refuses.

use std::io::{Read, Write};
use std::net::TcpStream;

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
    let counts = ["total", "refused_total", "answered_total", "cancelled_total"];
    let counts = counts.map(|name| served.metric(&format!("offshoot_requests_{name}")));
    assert!(counts[0] > 30.0 && counts == [counts[0], counts[0], 0.0, 0.0], "all were refused: {counts:?}");
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

/// Sends bytes as they are. Returns the status, the head in small letters and the body of what comes until the end.
fn exchanged(served: &Served, bytes: &[u8]) -> (u16, String, String) {
    let mut stream = TcpStream::connect(served.address.trim_start_matches("http://")).expect("it listens");
    // It may be refused before all of it is written.
    drop(stream.write_all(bytes));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the answer comes before the end");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("a head and a body: {answer:?}"));
    let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn heads_that_cannot_be_read_are_refused_in_openais_form() {
    let served = Served::start(&[]);
    let long = "a".repeat(300_000);
    let whole = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
    for (bytes, status, code) in [
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400, "invalid_request"),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), 400, "invalid_request"),
        (format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"), 431, "request_head_too_large"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "X: a\r\n".repeat(200)), 431, "request_head_too_large"),
    ] {
        let (found, head, body) = exchanged(&served, bytes.as_bytes());
        let shown: String = bytes.chars().take(40).collect();
        assert_eq!(found, status, "{shown}: {head}");
        assert!(head.contains("content-type: application/json") && head.contains("x-request-id: req_"), "{head}");
        let body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{shown}: {error}: {body:?}"));
        assert_eq!(body["error"]["code"], code, "{shown}");
        // Behind an answer on the same connection, too.
        let (found, _, rest) = exchanged(&served, format!("{whole}{bytes}").as_bytes());
        assert_eq!(found, 200, "{shown}");
        assert!(rest.starts_with("{\"status\":\"ok\"}") && rest.contains(code), "{shown}: {rest}");
    }
    let refused = served.get("/metrics").text;
    assert!(refused.contains("offshoot_responses_total{class=\"4xx\"} 8"), "{refused}");
}

#[test]
fn every_response_has_the_id_of_its_request() {
    let served = served_with_keys(&["one"]);
    for path in ["/health", "/v1/models", "/nothing", "/"] {
        let ids = [0; 2].map(|_| served.get(path).header("x-request-id").to_owned());
        assert!(ids.iter().all(|id| id.starts_with("req_")) && ids[0] != ids[1], "{path}: {ids:?}");
        let own = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-Id: mine-7\r\n\r\n");
        let (_, head, _) = exchanged(&served, own.as_bytes());
        assert!(head.contains("x-request-id: mine-7"), "{path}: {head}");
    }
}

#[test]
fn pages_of_allowed_origins_may_read_answers() {
    let keys = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(keys.path(), "one").expect("it is writable");
    let keys = ["--api-keys", keys.path().to_str().expect("temporary files have names in UTF-8")];
    let one = ["--allow-origin", "https://example.org", "--allow-origin", "http://localhost:3000"];
    let ask = |served: &Served, method: &str, origin: &str| {
        let asked = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, x-own";
        let text = format!(
            "{method} /v1/completions HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\n{asked}\r\nConnection: close\r\n\r\n"
        );
        let (status, head, _) = exchanged(served, text.as_bytes());
        (status, head)
    };
    let served = Served::start(&[&keys[..], &one].concat());
    for origin in ["https://example.org", "http://localhost:3000"] {
        // A preflight has no key; what it asks leave for needs one.
        let (status, head) = ask(&served, "OPTIONS", origin);
        assert_eq!(status, 204, "{head}");
        for line in [
            &*format!("access-control-allow-origin: {origin}"),
            "access-control-allow-headers: authorization, x-own",
            "access-control-allow-methods: get, post, delete",
            "vary: origin",
        ] {
            assert!(head.contains(line), "{line}: {head}");
        }
        let (status, head) = ask(&served, "POST", origin);
        assert_eq!(status, 401, "{head}");
        assert!(head.contains(&format!("access-control-allow-origin: {origin}")), "{head}");
    }
    for origin in ["https://example.com", "https://example.org.evil.com", "null"] {
        let (status, head) = ask(&served, "OPTIONS", origin);
        assert!(status == 405 && !head.contains("access-control"), "{origin}: {head}");
    }
    let served = Served::start(&[&keys[..], &["--allow-origin", "*"]].concat());
    let (status, head) = ask(&served, "OPTIONS", "https://anywhere.org");
    assert!(status == 204 && head.contains("access-control-allow-origin: *"), "{head}");
    let served = Served::start(&[]);
    let (status, head) = ask(&served, "OPTIONS", "https://example.org");
    assert!(status == 405 && !head.contains("access-control"), "nobody is allowed unless it is said: {head}");
}

#[test]
fn requests_are_counted_by_how_they_end() {
    let served = Served::start(&[]);
    let ask = json!({"prompt": "a", "max_tokens": 1});
    served.complete(&ask);
    assert!(
        std::iter::from_fn({
            let mut stream = served.stream(&ask);
            move || stream.next_data()
        })
        .count()
            > 0
    );
    served.post("/v1/completions", &json!({"prompt": "a", "max_tokens": "x"})).refused(400);
    served.post("/v1/chat/completions", &json!({"messages": 1})).refused(400);
    served.get("/v1/completions").refused(405);
    served.get("/v1/nothing").refused(404);
    let mut long = served.stream(&json!({"prompt": "a", "max_tokens": 4000, "ignore_eos": true}));
    long.next_data().expect("a first chunk");
    let counts = || {
        let names = ["total", "answered_total", "refused_total", "cancelled_total"];
        names.map(|name| served.metric(&format!("offshoot_requests_{name}")))
    };
    assert_eq!(counts(), [5.0, 2.0, 2.0, 0.0], "one of them is open");
    drop(long);
    served.wait_for("offshoot_requests_cancelled_total", 1.0);
    assert_eq!(counts(), [5.0, 2.0, 2.0, 1.0]);
}

/// A prompt is computed again for another salt, and for none.
#[test]
fn prompts_of_other_salts_share_nothing() {
    let served = Served::start(&[]);
    let computed = || served.metric("offshoot_engine_prompt_tokens_computed_total");
    let ask = |salt: Option<&str>| {
        let before = computed();
        let body = json!({"prompt": QUESTION, "cache_salt": salt, "max_tokens": 4, "ignore_eos": true, "seed": 1});
        let answer = served.complete(&body);
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_f64().expect("a number");
        (answer["choices"][0]["text"].clone(), computed() - before, cached)
    };
    let (text, whole, _) = ask(None);
    assert!(whole > 20.0);
    for salt in [Some("mine"), Some("yours")] {
        assert_eq!(ask(salt), (text.clone(), whole, 0.0), "{salt:?} for the first time");
    }
    for salt in [None, Some("mine"), Some("yours")] {
        let (same, again, cached) = ask(salt);
        assert!(same == text && again <= 1.0 && cached >= whole, "{salt:?} again: {again} computed, {cached} cached");
    }
    let refused = served.post("/v1/completions", &json!({"prompt": "a", "cache_salt": ""})).refused(400);
    assert_eq!(refused, ("invalid_value".to_owned(), json!("cache_salt")));
    // What follows a kept branch has its salt.
    let kept = json!({"prompt": QUESTION, "cache_salt": "mine", "max_tokens": 4, "ignore_eos": true, "keep": true});
    let branch = served.complete(&kept)["choices"][0]["branch"].clone();
    let before = computed();
    served.complete(&json!({"parent": branch, "max_tokens": 1}));
    assert!(computed() - before < whole, "it goes on where the branch ended");
    let other = served.post("/v1/completions", &json!({"parent": branch, "cache_salt": "yours", "max_tokens": 1}));
    assert_eq!(other.refused(400), ("invalid_value".to_owned(), json!("cache_salt")));
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

/// Tokens of a choice in its `token_ids` and in its log-probabilities, and the last id.
fn counted(choice: &Value) -> (usize, usize, Value) {
    let ids = choice["token_ids"].as_array().cloned().unwrap_or_default();
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().map_or(0, Vec::len);
    (ids.len(), logprobs, ids.last().cloned().unwrap_or_default())
}

/// Whatever ends a choice: the demo model's own end of text, a stop token, a stop string, one of special tokens.
#[test]
fn ids_logprobs_usage_and_metrics_count_the_same_tokens() {
    let served = Served::start(&[]);
    // Its end of text as the thirteenth token.
    let ends = json!({"logit_bias": {"1": 100}, "min_tokens": 12});
    let ask = json!({"prompt": QUESTION, "temperature": 0, "seed": 2, "max_tokens": 200, "logprobs": 0,
        "return_token_ids": true});
    let end = served.complete(&crate::served::joined(&ask, ends.clone()));
    let choice = &end["choices"][0];
    let (ids, _, eos) = counted(choice);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(null)));
    assert_eq!((ids, &eos), (13, &json!(1)));
    let own: Vec<Value> = choice["token_ids"].as_array().expect("a list").clone();
    let stop = own[own.len() / 2].clone();
    let shown = served.post("/detokenize", &json!({"tokens": [eos]})).succeeds()["prompt"].clone();
    let rows = [
        (ends, json!(null), Some(eos.clone())),
        (json!({"stop_token_ids": [stop]}), stop.clone(), Some(stop.clone())),
        (json!({"stop_token_ids": [stop], "include_stop_str_in_output": true}), stop.clone(), Some(stop.clone())),
        (json!({"stop": ["pens"]}), json!("pens"), None),
        (json!({"stop": ["pens"], "include_stop_str_in_output": true}), json!("pens"), None),
        (json!({"stop": ["pens"], "echo": true}), json!("pens"), None),
        (json!({"n": 3, "best_of": 5, "temperature": 1.5}), json!(null), None),
        (
            json!({"ignore_eos": true, "skip_special_tokens": false, "stop": [shown], "logit_bias": {"1": 100}}),
            shown.clone(),
            Some(eos),
        ),
    ];
    for (fields, stop_reason, last) in rows {
        let ask = crate::served::joined(&ask, fields.clone());
        let before = served.metric("offshoot_sampled_tokens_total");
        let answer = served.complete(&ask);
        let echoed = if fields.get("echo").is_some() { answer["usage"]["prompt_tokens"].as_u64().unwrap() } else { 0 };
        let (mut all, choices) = (0, answer["choices"].as_array().expect("a list"));
        for choice in choices {
            let (ids, logprobs, found) = counted(choice);
            assert_eq!(ids + echoed as usize, logprobs, "{fields}");
            if let Some(last) = &last {
                assert_eq!(&found, last, "{fields}");
            }
            all += ids;
        }
        if choices.len() == 1 {
            assert_eq!(choices[0]["stop_reason"], stop_reason, "{fields}");
        }
        let sampled = answer["usage"]["completion_tokens"].as_u64().expect("a number");
        let best = fields.get("best_of").is_some();
        assert!(sampled == all as u64 || (best && sampled > all as u64), "{sampled} of {all}: {fields}");
        assert_eq!(served.metric("offshoot_sampled_tokens_total") - before, sampled as f64, "{fields}");
        if best {
            continue; // Refused beside `stream`.
        }
        let mut streamed = (0, 0);
        let chunks = served.stream(&crate::served::joined(&ask, json!({"stream_options": {"include_usage": true}})));
        let chunks = chunks.chunks();
        for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("a list")) {
            let (ids, logprobs, _) = counted(choice);
            streamed = (streamed.0 + ids, streamed.1 + logprobs);
            assert!(choice.get("stop_reason").is_some());
        }
        assert_eq!(streamed, (all, all + echoed as usize), "{fields}");
        assert_eq!(chunks.last().expect("there are chunks")["usage"]["completion_tokens"], sampled, "{fields}");
    }
}

/// A branch goes on where the text ended: without the token that ended it, with those of a stop string.
#[test]
fn a_kept_branch_has_the_tokens_that_the_docs_say() {
    let served = Served::start(&[]);
    let keep = |fields: Value| {
        let ask =
            json!({"prompt": QUESTION, "temperature": 0, "max_tokens": 200, "return_token_ids": true, "keep": true});
        let answer = served.complete(&crate::served::joined(&ask, fields));
        let (ids, ..) = counted(&answer["choices"][0]);
        let branch = answer["choices"][0]["branch"].as_str().expect("it is kept").to_owned();
        let held = served.get(&format!("/v1/branches/{branch}")).succeeds()["tokens"].as_u64().expect("a number");
        let prompt = answer["usage"]["prompt_tokens"].as_u64().expect("a number");
        (held - prompt, ids as u64)
    };
    let ends = json!({"logit_bias": {"1": 100}, "min_tokens": 12});
    assert_eq!(keep(ends.clone()), (12, 13));
    let (held, ids) = keep(json!({"stop": ["pens"]}));
    assert_eq!(held, ids);
    assert_eq!(keep(crate::served::joined(&ends, json!({"include_stop_str_in_output": true}))), (13, 13));
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
