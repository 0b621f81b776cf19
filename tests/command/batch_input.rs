//! The input of `offshoot batch` as strangers write it: lines that cannot be read, packed files, fields and roles that
//! are OpenAI's or nobody's, and how each refusal is told.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::batch_desk::*;

fn short(id: &str) -> Value {
    completions(id, json!({"prompt": QUESTION, "max_tokens": 2}))
}

#[test]
fn a_line_that_is_not_json_keeps_its_id() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let url = r#""method": "POST", "url": "/v1/completions""#;
    let lines = [
        format!(r#"{{"custom_id": "nan", {url}, "body": {{"prompt": "a", "temperature": NaN}}}}"#),
        format!(r#"{{{url}, "body": {{"prompt": "a", "top_p": -Infinity}}, "custom_id": "behind"}}"#),
        format!(r#"{{{url}, "body": {{"prompt": "\ud800"}}, "custom_id": "half"}}"#),
        format!(r#"{{"custom_id": "cut", {url}, "body": {{"prompt"#),
        r#"[{"custom_id": "list"}]"#.to_string(),
    ];
    let mut text = lines.join("\n").into_bytes();
    text.extend(b"\n{\"custom_id\": \"latin\", \"body\": \"\xe9\"}\n");
    fs::write(folder.path().join("in.jsonl"), text).expect("writable");
    assert_refused(&batch(folder.path(), "in.jsonl", "out.jsonl", &[]), 6, "(\"nan\")");
    let answers = read(&folder.path().join("out.jsonl"));
    let ids: Vec<Option<&str>> = answers.iter().map(|answer| answer["custom_id"].as_str()).collect();
    assert_eq!(ids, [Some("nan"), Some("behind"), Some("half"), Some("cut"), None, Some("latin")]);
    for (number, answer) in (1..).zip(&answers) {
        let error = error(answer);
        assert_eq!((&error["code"], &error["param"]), (&json!("invalid_request"), &Value::Null));
        let message = error["message"].as_str().expect("a text");
        assert!(message.starts_with(&format!("line {number}: column ")) && !message.contains("column 0"), "{error}");
    }
}

#[test]
fn packed_input_is_read_by_name_and_by_its_first_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(format!("{}\n{}\n", short("a"), short("b")).as_bytes()).expect("memory takes it");
    let packed = packed.finish().expect("memory takes it");
    for name in ["in.jsonl.gz", "in.jsonl"] {
        fs::write(folder.path().join(name), &packed).expect("writable");
        let out = format!("{name}.out");
        let ran = batch(folder.path(), name, &out, &[]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(read(&folder.path().join(out)).len(), 2);
    }
    for (name, bytes) in [("cut.jsonl.gz", &packed[..packed.len() - 10]), ("plain.jsonl.gz", b"{}\n")] {
        fs::write(folder.path().join(name), bytes).expect("writable");
        let ran = batch(folder.path(), name, "none.jsonl", &[]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{name}: cannot read: ")) && said.lines().count() == 1, "{said}");
        assert!(!folder.path().join("none.jsonl").exists());
    }
}

#[test]
fn a_long_line_is_refused_by_its_id_and_the_others_are_answered() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let long = completions("long", json!({"prompt": "word ".repeat(300_000)}));
    write(folder.path(), &[short("before"), long, short("after")]);
    assert_refused(&batch(folder.path(), "in.jsonl", "out.jsonl", &["--max-line", "1"]), 1, "(\"long\")");
    let answers = read(&folder.path().join("out.jsonl"));
    let statuses: Vec<&Value> = answers.iter().map(|answer| &answer["response"]["status_code"]).collect();
    assert_eq!(statuses, [200, 400, 200]);
    assert_eq!(answers[1]["custom_id"], "long");
    let error = error(&answers[1]);
    assert_eq!(error["code"], "line_too_long");
    assert!(error["message"].as_str().expect("a text").contains("is longer than 1.00 MiB"), "{error}");
}

#[test]
fn a_file_without_requests_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for text in ["", "\n  \n", "\u{feff}"] {
        fs::write(folder.path().join("in.jsonl"), text).expect("writable");
        let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &[]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains("in.jsonl: holds no requests"), "{said}");
        assert!(!folder.path().join("out.jsonl").exists());
    }
}

#[test]
fn refusals_name_the_field_and_the_end_counts_their_kinds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |id: &str, field: &str, value: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body[field] = value;
        completions(id, body)
    };
    let official = "is an official field that Offshoot does not support";
    let cases = [
        (ask("tools", "tools", json!([{"type": "function"}])), "unsupported_parameter", "tools", official),
        (ask("suffix", "suffix", json!("end")), "unsupported_parameter", "suffix", official),
        (ask("effort", "reasoning_effort", json!("high")), "unsupported_parameter", "reasoning_effort", official),
        (ask("typo", "max_token", json!(1)), "unknown_parameter", "max_token", "is not a field of this request"),
        (ask("hot", "temperature", json!("hot")), "invalid_value", "temperature", "expected a number"),
        (ask("above", "top_p", json!(2)), "invalid_value", "top_p", "up to 1"),
        (ask("model", "model", json!(5)), "invalid_value", "model", "expected a string"),
        (ask("long", "prompt", json!("word ".repeat(20_000))), "context_length_exceeded", "prompt", "context"),
    ];
    let without_effect = ["tools", "response_format", "stream", "safety_identifier", "parallel_tool_calls"]
        .into_iter()
        .zip([json!([]), json!({"type": "text"}), json!(false), json!("x"), json!(true)]);
    let good = without_effect.map(|(field, value)| ask(&format!("good {field}"), field, value));
    let lines: Vec<Value> = cases.iter().map(|(line, ..)| line.clone()).chain(good).collect();
    write(folder.path(), &lines);
    let ran = batch(folder.path(), "in.jsonl", "out.jsonl", &[]);
    let kinds = "(3 invalid_value, 3 unsupported_parameter, 1 context_length_exceeded, 1 unknown_parameter), the first \
                 (\"tools\"): `tools`";
    assert_refused(&ran, 8, kinds);
    let answers = read(&folder.path().join("out.jsonl"));
    for (answer, (line, code, param, said)) in answers.iter().zip(&cases) {
        let error = error(answer);
        assert_eq!((&error["code"], &error["param"]), (&json!(code), &json!(param)), "{line}");
        assert!(error["message"].as_str().expect("a text").contains(said), "{error}");
    }
    for answer in &answers[cases.len()..] {
        assert_eq!(answer["response"]["status_code"], 200, "{answer}");
        assert_eq!(answer["response"]["body"]["model"], "demo", "the folder's name, where the request has none");
    }
}

#[test]
fn messages_have_known_roles() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = chat_model(folder.path());
    let ask = |id: &str, last: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}, last]);
        chat(id, json!({"messages": messages, "max_tokens": 1}))
    };
    let roles = ["system", "developer", "user", "assistant", "tool"];
    // Templates see whatever else a message has, and this one shows none of it.
    let good = roles.map(|role| {
        // The id of a call that is not made names a tool's answer only.
        let id = Some("c1").filter(|_| role != "tool");
        ask(role, json!({"role": role, "content": "a", "tool_calls": null, "name": "Mia", "tool_call_id": id}))
    });
    let cases = [
        (ask("robot", json!({"role": "robot", "content": "a"})), "invalid_value", "messages[1].role", "\"robot\""),
        (ask("none", json!({"content": "a"})), "invalid_value", "messages[1].role", "nothing"),
        (ask("number", json!({"role": 5, "content": "a"})), "invalid_value", "messages[1].role", "found 5"),
        (ask("text", json!("a")), "invalid_value", "messages[1]", "an object"),
        (ask("empty", json!({"role": "user"})), "invalid_value", "messages[1].content", "nothing"),
        (
            ask("call", json!({"role": "assistant", "content": "a", "tool_calls": ["f"]})),
            "invalid_value",
            "messages[1].tool_calls[0]",
            "an object with `function`",
        ),
        (
            ask("refusal", json!({"role": "assistant", "content": "a", "refusal": "no"})),
            "unsupported_parameter",
            "messages[1].refusal",
            "official",
        ),
        (ask("typo", json!({"role": "user", "contents": "a"})), "invalid_value", "messages[1].content", "nothing"),
    ];
    write(folder.path(), &good.iter().chain(cases.iter().map(|(line, ..)| line)).cloned().collect::<Vec<_>>());
    assert_refused(&batch_on(&model, folder.path(), "in.jsonl", "out.jsonl", &[]), cases.len(), "(\"robot\")");
    let answers = read(&folder.path().join("out.jsonl"));
    let prompt_tokens = |answer: &Value| answer["response"]["body"]["usage"]["prompt_tokens"].clone();
    for answer in &answers[..roles.len()] {
        assert_eq!(answer["response"]["status_code"], 200, "{answer}");
    }
    assert_eq!(prompt_tokens(&answers[0]), prompt_tokens(&answers[1]), "templates know `developer` as `system`");
    for (answer, (line, code, place, said)) in answers[roles.len()..].iter().zip(&cases) {
        let error = error(answer);
        assert_eq!((&error["code"], &error["param"]), (&json!(code), &json!("messages")), "{line}");
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains(&format!("`{place}`")) && message.contains(said), "{message}");
    }
}
