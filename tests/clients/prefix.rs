//! `--prefix` with the messages of a chat.

use std::fs;

use serde_json::json;

use crate::served::Served;

#[test]
fn a_chat_that_is_pinned_is_not_computed_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("examples.json");
    let examples: Vec<_> = (0..8)
        .flat_map(|n| {
            let answer = format!("Then Mia has {n} + 4 = {} pens.", n + 4);
            let question = format!("Mia has {n} pens and buys 4 more. How many pens does Mia have now?");
            [json!({"role": "user", "content": question}), json!({"role": "assistant", "content": answer})]
        })
        .collect();
    fs::write(&path, json!(examples).to_string()).expect("the folder is writable");
    let served = Served::start(&["--prefix", path.to_str().expect("temporary folders have names in UTF-8")]);
    let metric = |name: &str| served.metric(&format!("offshoot_engine_{name}"));
    assert!(metric("kv_pages_pinned") > 0.0);
    let before = metric("prompt_tokens_computed_total");
    let last = json!({"role": "user", "content": "Ben has 2 cups and buys 5 more. How many cups does Ben have now?"});
    let messages: Vec<_> = examples.iter().chain([&last]).collect();
    let asked = served.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1}));
    assert_eq!(asked.status, 200, "{asked:?}");
    let tokens = asked.json()["usage"]["prompt_tokens"].as_f64().expect("a number");
    let computed = metric("prompt_tokens_computed_total") - before;
    assert!(computed > 0.0 && computed < tokens / 4.0, "{computed} of {tokens} tokens were computed");
}
