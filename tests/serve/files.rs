//! Files and batches: what is kept, what is refused, and how batches end.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::{Answer, QUESTION, Served};

const FORM: &str = "multipart/form-data; boundary=b";

fn field(name: &str, text: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
}

fn file(text: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{text}\r\n")
}

fn upload(served: &Served, fields: &[String]) -> Answer {
    served.post_text("/v1/files", FORM, &format!("{}--b--\r\n", fields.concat()))
}

/// Uploads these requests; the file's id.
fn uploaded(served: &Served, lines: &[Value]) -> Value {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let file = upload(served, &[field("purpose", "batch"), file(&text)]).succeeds();
    assert_eq!(file["bytes"], text.len());
    file["id"].clone()
}

/// A line of a batch with this request.
pub fn line(id: &str, body: Value) -> Value {
    let body = crate::served::joined(&json!({"prompt": QUESTION, "max_tokens": 2}), body);
    json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body})
}

/// The batch once it has ended.
fn ended(served: &Served, id: &Value) -> Value {
    let path = format!("/v1/batches/{}", id.as_str().expect("an id"));
    let begun = Instant::now();
    loop {
        let batch = served.get(&path).succeeds();
        if ["completed", "failed", "cancelled", "expired"].iter().any(|end| batch["status"] == *end) {
            return batch;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{batch}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The lines of a file of answers.
pub fn answers(served: &Served, file: &Value) -> Vec<Value> {
    let text = served.get(&format!("/v1/files/{}/content", file.as_str().expect("an id"))).text;
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The batch of these requests, once it has ended.
pub fn begun_and_ended(served: &Served, lines: &[Value]) -> Value {
    let batch = begin(served, &uploaded(served, lines)).succeeds();
    ended(served, &batch["id"])
}

fn begin(served: &Served, file: &Value) -> Answer {
    let ask = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
    served.post("/v1/batches", &ask)
}

fn served_with(data: &Path, options: &[&str]) -> Served {
    let data = data.to_str().expect("temporary folders have names in UTF-8");
    Served::start(&[&["--data", data], options].concat())
}

#[test]
fn a_form_is_bounded_in_each_part() {
    let served = Served::start(&["--max-data", "1"]);
    let purpose = field("purpose", "batch");
    let too_large = |name: &str| ("request_too_large".to_owned(), json!(name));
    let long = "a".repeat(100 << 10);
    assert_eq!(upload(&served, &[field("note", &long), purpose.clone(), file("{}")]).refused(413), too_large("note"));
    assert_eq!(upload(&served, &[field("purpose", &long), file("{}")]).refused(413), too_large("purpose"));
    // Each is short enough, all together are not.
    let many = vec![field("note", &long[..60 << 10]); 5];
    assert_eq!(upload(&served, &many).refused(400).0, "invalid_request");
    assert_eq!(upload(&served, &[purpose.clone(), purpose.clone()]).refused(400).1, "purpose");
    assert_eq!(upload(&served, std::slice::from_ref(&purpose)).refused(400).1, "file");
    // Of the second, little is left when it is refused: a client that still writes may not see the answer.
    let half = "a".repeat(530 << 10);
    let first = upload(&served, &[purpose.clone(), file(&half), field("note", "short")]).succeeds();
    assert_eq!(upload(&served, &[purpose.clone(), file(&half)]).refused(413), too_large("file"));
    let path = format!("/v1/files/{}", first["id"].as_str().expect("an id"));
    assert_eq!(served.get(&format!("{path}/content")).text, half);
    served.delete(&path).succeeds();
    upload(&served, &[purpose, file(&half)]).succeeds();
}

#[test]
fn what_is_no_form_or_id_or_query_is_refused_in_openais_form() {
    let served = Served::start(&[]);
    assert_eq!(served.post("/v1/files", &json!({})).refused(415).0, "unsupported_media_type");
    assert_eq!(served.post_text("/v1/files", "multipart/form-data", "").refused(400).0, "unsupported_media_type");
    for kind in ["files", "batches"] {
        for limit in ["abc", "-1", "1.5", ""] {
            let refused = served.get(&format!("/v1/{kind}?limit={limit}")).refused(400);
            assert_eq!(refused, ("invalid_value".to_owned(), json!("limit")), "{limit}");
        }
        assert_eq!(served.get(&format!("/v1/{kind}?limit=1&limit=2")).refused(400).0, "invalid_request");
        assert_eq!(served.get(&format!("/v1/{kind}/%ff")).refused(404).0, "not_found");
        assert_eq!(served.get(&format!("/v1/{kind}?limit=1000")).succeeds()["data"], json!([]));
    }
    served.delete("/v1/files/%ff").refused(404);
    served.get("/v1/files/%ff/content").refused(404);
    served.post("/v1/batches/%ff/cancel", &json!({})).refused(404);
}

#[test]
fn lines_of_a_batch_are_held_to_the_servers_limits() {
    let served = Served::start(&["--name", "demo"]);
    let lines = [
        line("plain", json!({})),
        line("named", json!({"model": "demo", "priority": -5})),
        line("other", json!({"model": "gpt"})),
        line("many", json!({"n": 20_000})),
    ];
    let batch = begin(&served, &uploaded(&served, &lines)).succeeds();
    let batch = ended(&served, &batch["id"]);
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 4, "completed": 2, "failed": 2}));
    let done = answers(&served, &batch["output_file_id"]);
    let ids: Vec<&Value> = done.iter().map(|answer| &answer["custom_id"]).collect();
    assert_eq!(ids, ["plain", "named"]);
    let refused = answers(&served, &batch["error_file_id"]);
    let codes: Vec<&Value> = refused.iter().map(|answer| &answer["response"]["body"]["error"]["code"]).collect();
    assert_eq!(codes, ["model_not_found", "invalid_value"]);
    // A cancellation after the end changes nothing.
    let path = format!("/v1/batches/{}/cancel", batch["id"].as_str().expect("an id"));
    assert_eq!(served.post(&path, &json!({})).succeeds(), batch);
}

/// A batch of responses has those of the server, but keeps none of them.
#[test]
fn a_batch_of_responses_has_the_answers_of_the_server() {
    let served = Served::start(&[]);
    let ask = |fields: Value| {
        crate::served::joined(&json!({"input": QUESTION, "max_output_tokens": 9, "temperature": 0}), fields)
    };
    let format = json!({"type": "json_schema", "name": "n", "schema": {"enum": [4, 7]}});
    let formed = ask(json!({"text": {"format": format}, "store": true}));
    let line = |id: &str, body: Value| json!({"custom_id": id, "method": "POST", "url": "/v1/responses", "body": body});
    let bad_form = json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "objekt"}}}});
    let lines = [
        line("plain", ask(json!({}))),
        line("formed", formed.clone()),
        line("next", ask(json!({"previous_response_id": "resp_1"}))),
        line("bad", ask(bad_form)),
        self::line("completion", json!({})),
    ];
    let file = uploaded(&served, &lines);
    let begun = json!({"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"});
    let batch = served.post("/v1/batches", &begun).succeeds();
    assert_eq!(batch["endpoint"], "/v1/responses");
    let batch = ended(&served, &batch["id"]);
    assert_eq!(batch["request_counts"], json!({"total": 5, "completed": 2, "failed": 3}), "{batch}");
    let output = |response: &Value| response["output"][0]["content"][0]["text"].clone();
    let answers_of = |file: &Value| {
        let answers = answers(&served, file).into_iter();
        answers
            .map(|answer| (answer["custom_id"].as_str().expect("an id").to_owned(), answer["response"]["body"].clone()))
    };
    for (id, response) in answers_of(&batch["output_file_id"]) {
        let body = if id == "plain" { ask(json!({})) } else { formed.clone() };
        let alone = served.post("/v1/responses", &body).succeeds();
        assert_eq!(
            (output(&response), &response["usage"]["output_tokens"]),
            (output(&alone), &alone["usage"]["output_tokens"])
        );
        assert_eq!((&response["object"], &response["status"]), (&json!("response"), &alone["status"]), "{id}");
        assert_eq!(response["store"], false);
        let path = format!("/v1/responses/{}", response["id"].as_str().expect("an id"));
        assert_eq!(served.get(&path).refused(404).0, "not_found");
    }
    let refused: Vec<(String, Value)> =
        answers_of(&batch["error_file_id"]).map(|(id, body)| (id, body["error"]["param"].clone())).collect();
    let expected = [("next", "previous_response_id"), ("bad", "text.format.schema"), ("completion", "url")];
    assert_eq!(refused, expected.map(|(id, param)| (id.to_owned(), json!(param))));
}

/// What was answered is kept, and the next batch has room once files are deleted.
#[test]
fn a_batch_whose_answers_have_no_room_fails_with_those_it_has() {
    let served = Served::start(&["--max-data", "1"]);
    let mut lines: Vec<Value> = (0..40).map(|n| line(&format!("r{n}"), json!({}))).collect();
    // Beside the file 3,000 bytes are left: less than 40 answers, more than one.
    let text = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n").len()).sum::<usize>();
    let padding = (1 << 20) - 3_000 - text(&lines);
    lines[39]["body"]["user"] = json!("a".repeat(padding - "\"user\":\"\",".len()));
    let file = uploaded(&served, &lines);
    let batch = begin(&served, &file).succeeds();
    let batch = ended(&served, &batch["id"]);
    assert_eq!(batch["status"], "failed", "{batch}");
    let message = batch["errors"]["data"][0]["message"].as_str().expect("a message");
    assert!(message.contains("--max-data"), "{message}");
    let done = answers(&served, &batch["output_file_id"]);
    assert!((1..40).contains(&done.len()), "{} of 40 are kept", done.len());
    assert!(done.iter().all(|answer| answer["response"]["status_code"] == 200));
    for id in [&file, &batch["output_file_id"]] {
        served.delete(&format!("/v1/files/{}", id.as_str().expect("an id"))).succeeds();
    }
    let batch = begin(&served, &uploaded(&served, &lines[..39])).succeeds();
    assert_eq!(ended(&served, &batch["id"])["request_counts"]["completed"], 39);
}

/// The machine may die as often as it likes before the first answer; only a request that is in progress each time, at
/// last alone, is given up.
#[test]
fn a_batch_survives_ends_of_the_server_that_are_not_its_own() {
    let data = tempfile::tempdir().expect("a temporary folder");
    let served = served_with(data.path(), &[]);
    let batch = begin(&served, &uploaded(&served, &[line("a", json!({})), line("b", json!({}))])).succeeds();
    let batch = ended(&served, &batch["id"]);
    assert_eq!(batch["status"], "completed", "{batch}");
    drop(served);
    let id = batch["id"].as_str().expect("an id");
    let path = data.path().join(format!("batches/{id}.json"));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).expect("it is there")).expect("JSON");
    record["object"]["status"] = json!("in_progress");
    for (attempt, ends, completed) in [("", 9, 2), ("read\n", 40, 2), ("read\n0\n", 6, 2), ("read\n0\n", 7, 1)] {
        std::fs::write(&path, record.to_string()).expect("it is writable");
        let attempts = format!("attempt\n{attempt}\n").repeat(ends);
        std::fs::write(data.path().join(format!("batches/{id}.attempts")), attempts).expect("it is writable");
        let served = served_with(data.path(), &[]);
        let batch = ended(&served, &batch["id"]);
        assert_eq!((&batch["status"], &batch["errors"]), (&json!("completed"), &Value::Null), "{batch}");
        assert_eq!(batch["request_counts"], json!({"total": 2, "completed": completed, "failed": 2 - completed}));
        assert_eq!(answers(&served, &batch["output_file_id"])[completed - 1]["custom_id"], "b");
        assert_eq!(batch["error_file_id"].is_null(), completed == 2, "{batch}");
    }
}
