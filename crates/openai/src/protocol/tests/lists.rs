//! The endpoints beside the requests themselves: models, tokens, files and batches.

use serde_json::{Value, json};

use super::super::files::{self, BatchObject, BatchStatus, FileObject, FilePurpose, FileStatus, NewBatch};
use super::super::{RefusalKind, ServedAdapter, ServedModel, parse_body, tokenizer_info};
use super::*;

/// A request to one of the endpoints for tokens.
#[derive(Clone, Copy)]
enum Ask {
    Tokenize,
    Detokenize,
}

fn answer(ask: Ask, body: Value) -> Result<Value, Refusal> {
    with_reader(&ProtocolLimits::default(), |reader| match ask {
        Ask::Tokenize => reader.tokenize(&object(body)),
        Ask::Detokenize => reader.detokenize(&object(body)),
    })
}

fn ask(ask: Ask, body: Value) -> Value {
    answer(ask, body).unwrap_or_else(|refusal| panic!("{}", refusal.message))
}

fn refused(ask: Ask, body: Value) -> Option<String> {
    answer(ask, body).err()?.param
}

#[test]
fn models_are_listed_with_their_context() {
    let names = ["demo".to_owned(), "other".to_owned()];
    let adapters = [ServedAdapter { name: "tuned".to_owned(), root: "/adapters/7".to_owned() }];
    let served = ServedModel { names: &names, adapters: &adapters, created: 7, context: 4096 };
    let list = ServedModel::list([served]);
    assert_eq!((&list["object"], list["data"].as_array().map(Vec::len)), (&json!("list"), Some(3)));
    assert_eq!(list["data"][1], served.one("other").expect("it is served"));
    let fields = |key: &str| list["data"][1][key].clone();
    assert_eq!(
        [fields("id"), fields("object"), fields("max_model_len")],
        [json!("other"), json!("model"), json!(4096)]
    );
    let refusal = served.one("none").expect_err("it is not");
    assert_eq!(refusal.kind, RefusalKind::NotFound);
    assert_eq!(refusal.message, "`model`: expected demo or other or tuned, found \"none\"");
    // An adapter says what it was read from, and which model it belongs to.
    assert_eq!(list["data"][2], served.one("tuned").expect("it is served"));
    let fields = |at: usize| [&list["data"][at]["root"], &list["data"][at]["parent"]];
    assert_eq!(fields(2), [&json!("/adapters/7"), &json!("demo")]);
    assert_eq!(fields(1), [&json!("demo"), &json!(null)]);
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let text = "Hé, a b";
    let plain = ask(Ask::Tokenize, json!({"prompt": text, "add_special_tokens": false, "model": "demo"}));
    assert_eq!(plain["tokens"], json!(encode(text)));
    assert_eq!((&plain["count"], &plain["max_model_len"]), (&json!(encode(text).len()), &json!(4096)));
    let special = ask(Ask::Tokenize, json!({"prompt": text, "return_token_strs": true}));
    assert_eq!(special["count"], encode(text).len() + 1, "a beginning of text");
    assert_eq!(special["token_strs"][0], "<|begin_of_text|>");
    let back = ask(Ask::Detokenize, json!({"tokens": special["tokens"]}));
    assert_eq!(back["prompt"], format!("<|begin_of_text|>{text}"));
    let chat = ask(Ask::Tokenize, json!({"messages": messages("a")}));
    assert_eq!(chat["tokens"], json!(encode("[user] a\n[assistant]")));
    let begun = json!({"messages": messages("a"), "add_generation_prompt": false});
    assert_eq!(ask(Ask::Tokenize, begun)["tokens"], json!(encode("[user] a\n")));
}

#[test]
fn wrong_texts_and_tokens_are_refused_by_name() {
    assert_eq!(refused(Ask::Tokenize, json!({})).as_deref(), Some("prompt"));
    assert_eq!(refused(Ask::Tokenize, json!({"prompt": ["a"]})).as_deref(), Some("prompt"));
    assert_eq!(refused(Ask::Tokenize, json!({"prompt": "a", "typo": 1})).as_deref(), Some("typo"));
    let long = "word ".repeat(50_000);
    assert_eq!(refused(Ask::Tokenize, json!({ "prompt": long })).as_deref(), Some("prompt"));
    for tokens in [json!({}), json!({"tokens": "a"}), json!({"tokens": [5000]}), json!({"tokens": [-1]})] {
        assert_eq!(refused(Ask::Detokenize, tokens).as_deref(), Some("tokens"));
    }
    for bytes in [&b"[1]"[..], b"{\"a\"", b"", b"{\"a\": \"\xff\"}"] {
        assert_eq!(parse_body(bytes).expect_err("no JSON object").code, "invalid_json");
    }
    for (bytes, said) in [
        (&b"{\"a\": [1,"[..], "found JSON that ends too early, at byte 9 (EOF while parsing"),
        (b"{\"a\":\n", "found JSON that ends too early, at byte 6 (EOF"),
        (b" \n", "found nothing"),
        (b"{\"a\": 1,\n \"b\" 2}", "expected `:`, at line 2, column 6"),
        (b"{\"a\": \"b\n\"}", "string, at the end of line 1"),
    ] {
        let refusal = parse_body(bytes).expect_err("no JSON object");
        assert!(refusal.message.contains(said), "{}", refusal.message);
    }
}

#[test]
fn the_tokenizer_tells_its_special_tokens_and_its_template() {
    let info = tokenizer_info(tokenizer(), 4096);
    assert_eq!((&info["bos_token"], &info["eos_token"]), (&json!("<|begin_of_text|>"), &json!("<|end_of_text|>")));
    assert_eq!((&info["chat_template"], info.get("pad_token")), (&json!(TEMPLATE), Some(&Value::Null)));
}

#[test]
fn a_batch_has_openais_fields_and_times() {
    let asked = json!({
        "input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "metadata": {"a": "b"},
    });
    let new = NewBatch::read(&object(asked)).expect("a sound request");
    let mut batch = BatchObject::new("batch_1".to_owned(), new, 100);
    assert_eq!(batch.expires_at, Some(100 + 86_400));
    batch.enter(BatchStatus::InProgress, 101);
    batch.enter(BatchStatus::Cancelling, 102);
    assert!(!batch.status.is_end());
    batch.enter(BatchStatus::Cancelled, 103);
    assert!(batch.status.is_end());
    let shown = serde_json::to_value(&batch).expect("JSON");
    assert_eq!((&shown["object"], &shown["status"]), (&json!("batch"), &json!("cancelled")));
    let times = ["in_progress_at", "cancelling_at", "cancelled_at"].map(|key| shown[key].as_u64());
    assert_eq!(times, [Some(101), Some(102), Some(103)]);
    assert!(shown["completed_at"].is_null());
    assert_eq!(serde_json::from_value::<BatchObject>(shown).expect("what was written"), batch);
    for (field, value) in [
        ("endpoint", json!("/v1/embeddings")),
        ("completion_window", json!("1h")),
        ("metadata", json!({"a": 1})),
        ("input_file_id", Value::Null),
    ] {
        let mut asked = json!({"input_file_id": "file-1", "endpoint": "/v1/completions"});
        asked[field] = value;
        let refusal = NewBatch::read(&object(asked)).expect_err("it is refused");
        assert_eq!(refusal.param.as_deref(), Some(field));
    }
}

#[test]
fn a_page_of_files_tells_where_it_begins_and_ends() {
    let file = |id: &str| FileObject {
        id: id.to_owned(),
        object: files::FileTag::File,
        bytes: 3,
        created_at: 7,
        expires_at: None,
        filename: "in.jsonl".to_owned(),
        purpose: FilePurpose::of_upload("batch").expect("the one purpose"),
        status: FileStatus::Processed,
    };
    let page = files::list(&[file("file-1"), file("file-2")], |file| &file.id, true);
    assert_eq!((&page["first_id"], &page["last_id"]), (&json!("file-1"), &json!("file-2")));
    assert_eq!((&page["data"][0]["object"], &page["data"][0]["purpose"]), (&json!("file"), &json!("batch")));
    assert!(FilePurpose::of_upload("fine-tune").is_err());
    assert!(files::list(&[] as &[FileObject], |file| &file.id, false)["first_id"].is_null());
}
