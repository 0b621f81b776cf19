//! Answers that call tools, as a server's clients ask for them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::served::{Served, joined};

fn tool(name: &str) -> Value {
    let properties = json!({"who": {"enum": ["Mia", "Tom"]}, "pens": {"type": "integer", "minimum": 0, "maximum": 99}});
    let parameters =
        json!({"type": "object", "properties": properties, "required": ["who", "pens"], "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn chat(fields: Value) -> Value {
    let chat = json!({
        "messages": [{"role": "user", "content": "Mia has 3 pens. How many pens?"}],
        "tools": [tool("count"), tool("give")], "n": 4, "seed": 3, "temperature": 1.2, "max_tokens": 300,
    });
    joined(&chat, fields)
}

fn choices(answer: &Value) -> &Vec<Value> {
    answer["choices"].as_array().expect("a list")
}

/// The names and arguments of a choice's calls.
fn calls(message: &Value) -> Vec<(String, String)> {
    let call = |call: &Value| {
        let function = &call["function"];
        let text = |key: &str| function[key].as_str().expect("a text").to_owned();
        (text("name"), text("arguments"))
    };
    message["tool_calls"].as_array().map_or_else(Vec::new, |calls| calls.iter().map(call).collect())
}

fn check(name: &str, arguments: &str) {
    assert!(["count", "give"].contains(&name), "{name}");
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    assert!(arguments["who"] == "Mia" || arguments["who"] == "Tom", "{arguments}");
    assert!(arguments["pens"].as_u64().is_some_and(|pens| pens < 100), "{arguments}");
}

#[test]
fn required_calls_are_of_the_tools_and_their_schemas() {
    let served = Served::start(&[]);
    let post = |fields: Value| served.post("/v1/chat/completions", &chat(fields)).succeeds();
    let one = json!({"tool_choice": "required", "parallel_tool_calls": false});
    let whole = post(one.clone());
    for choice in choices(&whole) {
        let calls = calls(&choice["message"]);
        assert_eq!((calls.len(), &choice["finish_reason"]), (1, &json!("tool_calls")), "{choice}");
        assert_eq!(choice["message"]["content"], Value::Null, "{choice}");
        check(&calls[0].0, &calls[0].1);
    }
    // The same as a stream.
    let mut streamed: BTreeMap<u64, (String, String)> = BTreeMap::new();
    let stream = served.post("/v1/chat/completions", &chat(joined(&one, json!({"stream": true}))));
    for data in stream.text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]") {
        let chunk: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        for choice in choices(&chunk) {
            for part in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let call = streamed.entry(choice["index"].as_u64().expect("an index")).or_default();
                call.0 += part["function"]["name"].as_str().unwrap_or_default();
                call.1 += part["function"]["arguments"].as_str().unwrap_or_default();
            }
        }
    }
    let expected: Vec<_> = choices(&whole).iter().flat_map(|choice| calls(&choice["message"])).collect();
    assert_eq!(streamed.into_values().collect::<Vec<_>>(), expected);
    // A named tool, several calls, and none.
    let named = post(json!({"tool_choice": {"type": "function", "function": {"name": "give"}}}));
    for choice in choices(&named) {
        assert_eq!(calls(&choice["message"]).iter().map(|call| &*call.0).collect::<Vec<_>>(), ["give"], "{choice}");
    }
    for choice in choices(&post(json!({"tool_choice": "required"}))) {
        let calls = calls(&choice["message"]);
        assert!(!calls.is_empty(), "{choice}");
        // The last one may be cut by the limit of tokens.
        let whole = calls.len() - usize::from(choice["finish_reason"] == "length");
        calls[..whole].iter().for_each(|(name, arguments)| check(name, arguments));
    }
    for choice in choices(&post(json!({"tool_choice": "none", "max_tokens": 8}))) {
        assert_eq!((choice["message"].get("tool_calls"), choice["message"]["content"].is_string()), (None, true));
    }
    // A schema that no arguments have.
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}},
        "required": ["a"]});
    let tools = json!([{"type": "function", "function": {"name": "never", "parameters": parameters}}]);
    let refused = served.post("/v1/chat/completions", &chat(json!({"tools": tools, "tool_choice": "required"})));
    assert_eq!(refused.refused(400), ("invalid_value".to_owned(), json!("tools")));
}
