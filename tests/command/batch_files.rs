//! `offshoot batch` as a user meets it: the built binary on the bundled demo model, on the CPU, with files of requests.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::batch_desk::*;

#[test]
fn responses_are_answered_and_kept_by_resume() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = |id: &str, body: Value| json!({"custom_id": id, "url": "/v1/responses", "body": body});
    let lines = [
        line("a", json!({"input": QUESTION, "max_output_tokens": 5, "seed": 1, "model": "m"})),
        line("b", json!({"input": QUESTION, "max_output_tokens": 5, "previous_response_id": "resp_0"})),
        completions("c", json!({"prompt": QUESTION, "max_tokens": 2})),
    ];
    let answers = answers(folder.path(), &lines);
    let body = &answers[0]["response"]["body"];
    assert_eq!(
        (&body["object"], &body["model"], &body["usage"]["output_tokens"]),
        (&json!("response"), &json!("m"), &json!(5))
    );
    assert_eq!(body["output"][0]["type"], "message");
    assert!(body["id"].as_str().is_some_and(|id| id.starts_with("resp_")) && body["store"] == false, "{body}");
    assert_eq!(answers[1]["response"]["body"]["error"]["param"], "previous_response_id");
    assert_eq!(answers[2]["response"]["body"]["object"], "text_completion");
    let again = batch(folder.path(), "in.jsonl", "out.jsonl", &["--resume"]);
    assert_refused(&again, 1, "previous_response_id");
    assert!(String::from_utf8_lossy(&again.stdout).contains("2 answered (2 of them before)"), "{again:?}");
    assert_eq!(read(&folder.path().join("out.jsonl")), answers);
}

#[test]
fn answers_have_openais_fields_in_the_order_of_the_input() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |id: &str, more: Value| {
        let mut body = json!({"model": "some-name", "prompt": QUESTION, "max_tokens": 12, "temperature": 1.0});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        completions(id, body)
    };
    let answers = answers(
        folder.path(),
        &[
            ask("z", json!({"n": 6, "seed": 3, "user": "somebody", "stop": null, "temperature": 2.5})),
            ask("a", json!({"prompt": ["Question: Tom", "Question: Ann"], "n": 2, "logprobs": 3, "temperature": 0})),
            ask("m", json!({"echo": true, "max_tokens": 4})),
            ask(
                "best",
                json!({"best_of": 4, "n": 2, "ignore_eos": true, "min_tokens": 5, "max_tokens": 5, "top_k": -1}),
            ),
        ],
    );
    let ids: Vec<&str> = answers.iter().map(|answer| answer["custom_id"].as_str().expect("an id")).collect();
    assert_eq!(ids, ["z", "a", "m", "best"]);
    let mut seen = HashSet::new();
    for answer in &answers {
        assert!(answer["error"].is_null(), "{answer}");
        assert!(seen.insert(answer["id"].as_str().expect("an id").to_string()));
        assert_eq!(answer["response"]["status_code"], 200);
        assert!(answer["response"]["request_id"].is_string());
        let body = &answer["response"]["body"];
        assert_eq!((&body["object"], &body["model"]), (&json!("text_completion"), &json!("some-name")));
        let usage = |key: &str| body["usage"][key].as_u64().expect("a count");
        assert_eq!(usage("total_tokens"), usage("prompt_tokens") + usage("completion_tokens"));
        for (index, choice) in body["choices"].as_array().expect("choices").iter().enumerate() {
            assert_eq!(choice["index"], index);
            assert!(["stop", "length"].contains(&choice["finish_reason"].as_str().expect("a reason")));
        }
    }
    let distinct: HashSet<String> = texts(&answers[0]).into_iter().collect();
    assert_eq!(texts(&answers[0]).len(), 6);
    assert!(distinct.len() > 3, "choices have uniforms of their own: {distinct:?}");
    let two = texts(&answers[1]);
    assert_eq!(two.len(), 4, "2 prompts, 2 choices each");
    assert_eq!((&two[0], &two[2]), (&two[1], &two[3]), "greedy choices of one prompt are equal");
    assert!(texts(&answers[2])[0].starts_with(QUESTION));
    assert_eq!(texts(&answers[3]).len(), 2);
    assert_eq!(answers[3]["response"]["body"]["usage"]["completion_tokens"], 20, "every candidate is paid for");
    let cached = |answer: &Value| {
        answer["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    let given = answers[3]["response"]["body"]["usage"]["prompt_tokens"].as_u64().expect("a count");
    let alike: Vec<u64> = [&answers[0], &answers[2], &answers[3]].map(cached).to_vec();
    assert_eq!(
        alike.iter().filter(|&&cached| cached == given).count(),
        2,
        "two of three find the prompt there: {alike:?}"
    );
}

#[test]
fn log_probabilities_are_those_of_the_tokens() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let body = |temperature: f64, logprobs: u32| {
        json!({"prompt": QUESTION, "max_tokens": 10, "min_tokens": 10, "ignore_eos": true, "temperature": temperature,
               "logprobs": logprobs})
    };
    let answers = answers(
        folder.path(),
        &[completions("greedy", body(0.0, 4)), completions("drawn", body(1.5, 4)), completions("bare", body(1.0, 0))],
    );
    for (answer, rivals) in answers.iter().zip([4, 4, 0]) {
        let choice = &answer["response"]["body"]["choices"][0];
        let list = |key: &str| choice["logprobs"][key].as_array().expect("a list").clone();
        let (tokens, logprobs, tops, offsets) =
            (list("tokens"), list("token_logprobs"), list("top_logprobs"), list("text_offset"));
        assert_eq!([tokens.len(), logprobs.len(), tops.len(), offsets.len()], [10; 4]);
        let text: String = tokens.iter().map(|token| token.as_str().expect("a text")).collect();
        assert_eq!(choice["text"], text, "the tokens spell the text");
        for (at, token) in tokens.iter().enumerate() {
            let token = token.as_str().expect("a text");
            let top = tops[at].as_object().expect("an object");
            assert_eq!(top[token], logprobs[at], "the drawn token is among them");
            assert!((rivals.max(1)..=rivals + 1).contains(&top.len()), "{top:?}");
            let sum: f64 = top.values().map(|logprob| logprob.as_f64().expect("a number").exp()).sum();
            assert!(sum <= 1.0 + 1e-4, "probabilities: {sum}");
            let offset = offsets[at].as_u64().expect("a number") as usize;
            let rest: String = text.chars().skip(offset).collect();
            assert!(rest.starts_with(token), "{token:?} does not stand at {offset} of {text:?}");
            if answer["custom_id"] == "greedy" {
                let best = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
                assert_eq!(logprobs[at].as_f64(), Some(best));
            }
        }
    }
}

#[test]
fn uniforms_follow_the_requests_own_seed_or_the_jobs_seed_and_the_id() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let body =
        |n: u32, seed: Value| json!({"prompt": QUESTION, "max_tokens": 12, "n": n, "seed": seed, "temperature": 2.5});
    let ask = |id: &str, n: u32, seed: Value| completions(id, body(n, seed));
    let alone = answers(folder.path(), &[ask("q", 3, json!(7)), ask("usual", 3, json!(null))]);
    let among = answers(
        folder.path(),
        &[
            ask("p", 2, json!(7)),
            ask("q", 5, json!(7)),
            ask("usual", 5, json!(null)),
            ask("another", 2, json!(null)),
            completions("r", json!({"prompt": "Question:"})),
        ],
    );
    assert_eq!(texts(&alone[0]), texts(&among[1])[..3], "the first choices stay, whatever else is asked");
    assert_eq!(texts(&among[0]), texts(&among[1])[..2], "with a seed of the request's own, its id does not count");
    assert_eq!(texts(&alone[1]), texts(&among[2])[..3]);
    assert_ne!(texts(&among[2])[..2], texts(&among[3]), "without one, another id gives other samples");
    let seeded = answers(folder.path(), &[ask("q", 3, json!(8))]);
    assert_ne!(texts(&alone[0]), texts(&seeded[0]));
}

#[test]
fn a_line_that_cannot_be_answered_says_why_and_ends_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cases = [
        ("{\"custom_id\": \"cut\"".to_string(), "invalid_request", "line 1: column"),
        ("[1, 2]".to_string(), "invalid_request", "line 2"),
        (json!({"method": "POST", "url": "/v1/completions", "body": {}}).to_string(), "invalid_request", "custom_id"),
        (completions("no-prompt", json!({})).to_string(), "invalid_value", "prompt"),
        (json!({"custom_id": 5, "body": {}}).to_string(), "invalid_request", "found 5"),
        (json!({"custom_id": [5], "body": {}}).to_string(), "invalid_request", "found a list"),
        (json!({"custom_id": "url", "url": "/v1/embeddings", "body": {}}).to_string(), "invalid_url", "/v1/embeddings"),
        (json!({"custom_id": "body", "url": "/v1/completions", "body": 3}).to_string(), "invalid_request", "body"),
        (completions("typo", json!({"prompt": "a", "max_token": 3})).to_string(), "unknown_parameter", "max_token"),
        (completions("stream", json!({"prompt": "a", "stream": true})).to_string(), "unsupported_parameter", "stream"),
        (completions("type", json!({"prompt": "a", "temperature": "hot"})).to_string(), "invalid_value", "temperature"),
        (completions("range", json!({"prompt": "a", "top_p": 1.5})).to_string(), "invalid_value", "top_p"),
        (completions("few", json!({"prompt": "a", "n": 3, "best_of": 2})).to_string(), "invalid_value", "best_of"),
        (completions("ids", json!({"prompt": [[1, 999999]]})).to_string(), "invalid_value", "999999"),
        (completions("mixed", json!({"prompt": ["a", 1]})).to_string(), "invalid_value", "prompt"),
        (
            completions("long", json!({"prompt": "word ".repeat(20_000)})).to_string(),
            "context_length_exceeded",
            "context",
        ),
        (completions("typo", json!({"prompt": "a"})).to_string(), "duplicate_custom_id", "typo"),
        (
            completions("second", json!({"prompt": "a"})).to_string().replacen('{', r#"{"custom_id": "first", "#, 1),
            "invalid_request",
            "`custom_id`: expected once, found twice",
        ),
    ];
    let good = completions("good", json!({"prompt": QUESTION, "max_tokens": 3})).to_string();
    let mut text: String = cases.iter().map(|(line, ..)| format!("{line}\n")).collect();
    text += &format!("\n  \n{good}\n");
    fs::write(folder.path().join("in.jsonl"), text).expect("writable");
    let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &[]);
    assert_refused(&ran, cases.len(), "line 1: ");
    let answers = read(&folder.path().join("out.jsonl"));
    assert_eq!(answers.len(), cases.len() + 1);
    for (answer, (line, code, said)) in answers.iter().zip(&cases) {
        let error = error(answer);
        assert_eq!(error["code"], *code, "{line}: {answer}");
        assert!(error["message"].as_str().expect("a text").contains(said), "{answer}");
    }
    assert!(answers[1]["custom_id"].is_null());
    assert_eq!(answers[cases.len()]["response"]["status_code"], 200);
    assert!(String::from_utf8_lossy(&ran.stdout).contains("1 answered"), "{}", String::from_utf8_lossy(&ran.stdout));
}

#[test]
fn a_job_that_was_cut_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lines: Vec<Value> = (0..6)
        .map(|i| completions(&format!("q{i}"), json!({"prompt": QUESTION, "n": 2, "max_tokens": 8, "seed": i})))
        .chain([completions("bad", json!({"prompt": 4}))])
        .collect();
    let whole = answers(folder.path(), &lines);
    let out = folder.path().join("out.jsonl");
    let again = batch(folder.path(), "in.jsonl", "out.jsonl", &[]);
    assert_eq!(again.status.code(), Some(2), "it does not write over answers");
    assert!(String::from_utf8_lossy(&again.stderr).contains("--resume"));

    let held = fs::OpenOptions::new().append(true).open(&out).expect("it is there");
    held.lock().expect("nobody else has it");
    let beside = batch(folder.path(), "in.jsonl", "out.jsonl", &["--resume"]);
    assert_eq!(beside.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&beside.stderr).contains("another process is writing to it"));
    drop(held);

    let text = fs::read_to_string(&out).expect("written");
    let mut kept: Vec<&str> = text.lines().collect();
    let bad = kept.pop().expect("the refusal stands last");
    kept.swap(0, 2);
    let half = &kept[4][..kept[4].len() / 2];
    fs::write(&out, format!("{bad}\n{}\n{half}", kept[..4].join("\n"))).expect("writable");
    let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &["--resume"]);
    assert_refused(&ran, 1, "`prompt`");
    assert!(
        String::from_utf8_lossy(&ran.stdout).contains("4 of them before"),
        "{}",
        String::from_utf8_lossy(&ran.stdout)
    );
    let resumed = read(&out);
    assert_eq!(resumed.len(), 7, "each line is answered once");
    for (a, b) in whole.iter().zip(&resumed) {
        assert_eq!(a["custom_id"], b["custom_id"]);
        assert_eq!(a["response"]["body"]["choices"], b["response"]["body"]["choices"]);
    }
    assert!(!folder.path().join("out.jsonl.partial").exists());
}

#[test]
fn answers_of_another_job_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |id: &str, more: Value| {
        let mut body = json!({"prompt": QUESTION, "max_tokens": 4});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        completions(id, body)
    };
    let lines = [ask("own", json!({"seed": 1})), ask("usual", json!({}))];
    answers(folder.path(), &lines);
    let before = fs::read(folder.path().join("out.jsonl")).expect("written");
    let refused = |field: &str, args: &[&str]| {
        let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &[&["--resume"], args].concat());
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains(field), "{said}");
        assert_eq!(fs::read(folder.path().join("out.jsonl")).expect("still there"), before, "nothing is written");
    };
    refused("line 1: response.body.system_fingerprint", &["--kv-dtype", "fp8"]);
    refused("line 1: response.body.system_fingerprint", &["--weights", "int8"]);
    // A request with a seed of its own does not ask for another one.
    refused("line 2: response.request_id", &["--seed", "7"]);
    write(folder.path(), &[ask("own", json!({"seed": 1, "top_p": 0.5})), lines[1].clone()]);
    refused("line 1: response.request_id", &[]);
    write(folder.path(), &lines[1..]);
    refused("line 1: custom_id", &[]);
    let unread = json!({"custom_id": "own", "method": "POST", "url": "/v1/embeddings", "body": {}});
    write(folder.path(), &[unread, lines[1].clone()]);
    refused("expected the id of a request that is not refused, found own (line 1: `url`", &[]);
    fs::write(folder.path().join("in.jsonl"), format!("{{\"custom_id\": \"own\"\n{}\n", lines[1])).expect("writable");
    refused("expected the id of a request that is not refused, found own (line 1: column ", &[]);
    write(folder.path(), &[lines[1].clone(), lines[0].clone(), ask("new", json!({}))]);
    let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &["--resume"]);
    assert!(String::from_utf8_lossy(&ran.stdout).contains("2 of them before"), "in another order they stay");
}

/// Each request has its own form, or none; with a seed its samples do not depend on those beside it.
#[test]
fn answers_have_the_form_that_their_request_asks_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |more: Value| {
        let mut body = json!({"prompt": QUESTION, "max_tokens": 100, "n": 3, "seed": 8, "temperature": 1.2});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let schema = json!({"type": "object", "properties": {"pens": {"type": "integer", "minimum": 1, "maximum": 50}},
        "required": ["pens"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "pens", "schema": schema}});
    let of_schema = completions("schema", ask(json!({ "response_format": format })));
    let others = [
        completions("pattern", ask(json!({"guided_regex": "(yes|no){2}"}))),
        completions("plain", ask(json!({}))),
        chat("chat", json!({"messages": [{"role": "user", "content": "How many?"}], "guided_choice": ["3", "7"]})),
        completions("bad", ask(json!({"structured_outputs": {"json": {"$ref": "#/nowhere"}}}))),
    ];
    write(folder.path(), &[&[of_schema.clone()][..], &others].concat());
    let ran = batch_on(&chat_model(folder.path()), folder.path(), "in.jsonl", "out.jsonl", &[]);
    assert_refused(&ran, 1, "(1 invalid_value), the first (\"bad\"): `structured_outputs.json`");
    let all = read(&folder.path().join("out.jsonl"));
    for text in texts(&all[0]) {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
        assert!(value["pens"].as_u64().is_some_and(|pens| (1..=50).contains(&pens)), "{text:?}");
        assert_eq!(value.as_object().map(serde_json::Map::len), Some(1), "{text:?}");
    }
    for text in texts(&all[1]) {
        assert!(["yesyes", "yesno", "noyes", "nono"].contains(&&*text), "{text:?}");
    }
    let said = &all[3]["response"]["body"]["choices"][0]["message"]["content"];
    assert!(*said == "3" || *said == "7", "{said}");
    assert_eq!(error(&all[4])["param"], "structured_outputs.json");
    // Alone it has the same texts.
    let alone = tempfile::tempdir().expect("a temporary folder");
    assert_eq!(texts(&answers(alone.path(), &[of_schema])[0]), texts(&all[0]));
}

#[test]
fn chats_are_answered_by_models_with_a_template() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = chat_model(folder.path());
    let parts = json!([{"type": "text", "text": "What is 2"}, {"type": "text", "text": "and 3?"}]);
    let lines = [
        chat(
            "parts",
            json!({"model": "demo", "messages": [{"role": "user", "content": parts}], "max_completion_tokens": 6,
                   "logprobs": true, "top_logprobs": 2, "temperature": 0, "response_format": {"type": "text"}}),
        ),
        chat(
            "text",
            json!({"messages": [{"role": "user", "content": "What is 2\nand 3?"}], "max_tokens": 6, "temperature": 0,
                   "n": 2}),
        ),
        chat(
            "tools",
            json!({"messages": [{"role": "user", "content": "a"}],
                   "tools": [{"type": "function", "function": {"name": "f"}}]}),
        ),
        chat("image", json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("in.jsonl"), text).expect("writable");
    let ran = batch_on(&model, folder.path(), "in.jsonl", "out.jsonl", &[]);
    assert_refused(&ran, 2, "`tools`");
    let answers = read(&folder.path().join("out.jsonl"));
    let (parts, text) = (&answers[0]["response"]["body"], &answers[1]["response"]["body"]);
    assert_eq!(parts["object"], "chat.completion");
    let content = |body: &Value, choice: usize| body["choices"][choice]["message"]["content"].clone();
    assert_eq!(content(parts, 0), content(text, 0), "parts are one text, a line each");
    assert_eq!(content(text, 0), content(text, 1));
    let logprobs = parts["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert!(!logprobs.is_empty());
    let mut bytes = Vec::new();
    for token in logprobs {
        assert_eq!(token["top_logprobs"].as_array().expect("a list").len(), 2);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"], "greedy takes the likeliest");
        bytes
            .extend(token["bytes"].as_array().expect("a list").iter().map(|byte| byte.as_u64().expect("a byte") as u8));
    }
    assert_eq!(content(parts, 0), String::from_utf8(bytes).expect("whole characters"));
    assert_eq!(error(&answers[2])["code"], "unsupported_parameter");
    assert_eq!(error(&answers[3])["code"], "invalid_value");

    // Without a limit it goes on as long as the memory lasts, which is less than the context.
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": true});
    fs::write(folder.path().join("open.jsonl"), format!("{}\n", chat("open", body))).expect("writable");
    let ran = batch_on(&model, folder.path(), "open.jsonl", "opened.jsonl", &["--kv-memory", "1"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let open = &read(&folder.path().join("opened.jsonl"))[0]["response"]["body"];
    assert_eq!(open["choices"][0]["finish_reason"], "length", "{open}");
    let tokens = open["usage"]["total_tokens"].as_u64().expect("a count");
    assert_eq!(tokens % 16, 1, "all slots of the pages are full, and the last token has none");

    fs::remove_file(model.join("chat_template.jinja")).expect("it was written");
    let own = fs::read(model.join("tokenizer_config.json")).expect("it was copied");
    let own: Value = serde_json::from_slice(&own).expect("JSON");
    let without = own.as_object().expect("an object").iter().filter(|(key, _)| *key != "chat_template");
    let without: serde_json::Map<String, Value> = without.map(|(key, value)| (key.clone(), value.clone())).collect();
    fs::write(model.join("tokenizer_config.json"), json!(without).to_string()).expect("writable");
    let plain = batch_on(&model, folder.path(), "in.jsonl", "plain.jsonl", &[]);
    assert_refused(&plain, 4, "chat template");
    let refused = read(&folder.path().join("plain.jsonl"));
    assert!(error(&refused[0])["message"].as_str().expect("a text").contains("chat template"), "{}", refused[0]);
}

/// A line asks for more keys and values than there is memory for: it is refused before anything is drawn, the others
/// are answered.
#[test]
fn a_line_that_cannot_be_held_is_refused_and_the_others_are_answered() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let body =
        |prompt: String, max_tokens: u32| json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true});
    let lines = [
        completions("long prompt", body(QUESTION.repeat(40), 4)),
        completions("fits", body(QUESTION.to_string(), 4)),
        completions("long answer", body(QUESTION.to_string(), 3000)),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("in.jsonl"), text).expect("the temporary folder is writable");
    let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &["--kv-memory", "1"]);
    assert_refused(&ran, 2, "(\"long prompt\")");
    let answers = read(&folder.path().join("out.jsonl"));
    for refused in [&answers[0], &answers[2]] {
        assert_eq!(error(refused)["code"], "out_of_memory", "{refused}");
        let message = error(refused)["message"].as_str().expect("a sentence");
        assert!(message.contains("expected at least") && message.contains("found 1.00 MiB"), "{message}");
    }
    assert_eq!(answers[1]["response"]["body"]["usage"]["completion_tokens"], 4);
}

#[test]
fn a_task_file_is_pointed_to_its_own_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tasks/words-vote.json")).expect("there");
    let one_line = json!({"items": [{"q": "1"}], "prompt": "{{q}}", "method": {"sample": {"samples": 1}}}).to_string();
    for text in [task, one_line] {
        fs::write(folder.path().join("in.jsonl"), text).expect("writable");
        let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &[]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains("in.jsonl: holds a task for `offshoot run`, not requests"), "{said}");
        assert!(!folder.path().join("out.jsonl").exists());
    }
}
