//! Bodies that a hostile client writes by hand, and well-formed ones that are damaged at random.

use serde_json::{Value, json};

/// A body, which must be refused.
pub struct HostileBody {
    pub what: String,
    pub body: Vec<u8>,
}

fn refused(what: &str, body: impl Into<Vec<u8>>) -> HostileBody {
    HostileBody { what: what.to_owned(), body: body.into() }
}

/// A completion with this field; it must be refused.
fn field(name: &str, value: Value) -> HostileBody {
    let mut body = json!({ "prompt": "Question:", "max_tokens": 2 });
    body[name] = value;
    refused(&format!("{name}: {}", body[name].to_string().chars().take(40).collect::<String>()), body.to_string())
}

/// A schema of lists within lists, deeper than any value that is read.
fn deep_schema() -> Value {
    (0..110).fold(json!({"type": "null"}), |items, _| json!({"type": "array", "items": items}))
}

pub fn hostile_bodies() -> Vec<HostileBody> {
    let mut all: Vec<HostileBody> = [
        "",
        " ",
        "{",
        "[",
        "\"",
        "nul",
        "null",
        "7",
        "[]",
        "\"a\"",
        "{}",
        "{\"prompt\"",
        "{\"prompt\":}",
        "{\"prompt\":\"a\"}}",
        "{\"prompt\":\"a\",}",
        "{'prompt':'a'}",
        "\u{feff}",
    ]
    .map(|body| refused(body, body))
    .into();
    all.extend([
        refused("deep lists", "[".repeat(100_000)),
        refused("deep objects", "{\"a\":".repeat(100_000)),
        refused("a deep prompt", format!("{{\"prompt\":{}1{}}}", "[".repeat(5000), "]".repeat(5000))),
        refused("a deep unknown field", format!("{{\"prompt\":\"a\",\"x\":{}{}}}", "[".repeat(99), "]".repeat(99))),
        refused("invalid UTF-8", *b"{\"prompt\":\"\xff\xfe\"}"),
        refused("an overlong NUL", *b"{\"prompt\":\"\xc0\x80\"}"),
        refused("a raw newline", "{\"prompt\":\"a\nb\"}"),
        refused("a number without end", format!("{{\"prompt\":\"a\",\"n\":{}}}", "9".repeat(100_000))),
        refused("an exponent", "{\"prompt\":\"a\",\"temperature\":1e99999}"),
        refused("a long name", format!("{{\"prompt\":\"a\",\"{}\":1}}", "k".repeat(500_000))),
        refused("many unknown fields", many_fields()),
        refused("a long prompt", json!({ "prompt": "word ".repeat(150_000) }).to_string()),
        refused("many prompts", json!({ "prompt": vec!["a"; 100_000], "max_tokens": 1 }).to_string()),
    ]);
    let numbers = [json!(-1), json!(0), json!(0.5), json!("1"), json!([]), json!({}), json!(true), json!(1e300)];
    all.extend(numbers.iter().map(|value| field("n", value.clone())));
    let huge = [json!(65), json!(1_000_000_000), json!(u64::MAX), json!(i64::MIN)];
    all.extend(huge.iter().map(|value| field("n", value.clone())));
    all.extend(huge.iter().map(|value| field("best_of", value.clone())));
    all.extend(
        [json!(-1), json!(1u64 << 40), json!("5"), json!(1.5), json!([1])].map(|value| field("max_tokens", value)),
    );
    all.extend([json!(-0.1), json!("hot"), json!([]), json!(1e300)].map(|value| field("temperature", value)));
    all.extend([json!(-1), json!(1.01), json!("1")].map(|value| field("top_p", value)));
    all.extend([json!(1000), json!(-1), json!("3"), json!(1u64 << 60)].map(|value| field("logprobs", value)));
    all.extend([json!("yes"), json!(1), json!([true])].map(|value| field("stream", value)));
    all.extend([json!(-5), json!({"": ""}), json!([[]]), json!([null])].map(|value| field("stop", value)));
    all.extend(
        [json!({"-1": 1}), json!({"99999": 1}), json!({"a": 1}), json!({"1": "b"}), json!([1])]
            .map(|value| field("logit_bias", value)),
    );
    all.extend(
        [
            json!([]),
            json!([[]]),
            json!([-1]),
            json!([4096]),
            json!([1u64 << 32]),
            json!([u64::MAX]),
            json!([1, "a"]),
            json!([[1], "a"]),
            json!([1.5]),
            json!({}),
            json!(5),
            json!([[[1]]]),
            json!([null]),
        ]
        .map(|value| field("prompt", value)),
    );
    all.extend(
        ["../../etc/passwd", "branch-", "branch-00000000000000000000000000000000", "\0", ""]
            .map(|id| field("parent", json!(id))),
    );
    all.extend([
        field("tools", json!([{"type": "function"}])),
        field("response_format", json!({"type": "xml"})),
        field("response_format", json!({"type": "json_schema", "json_schema": {"name": "a", "schema": deep_schema()}})),
        field("structured_outputs", json!({"regex": "((((a{999}){999}){999}"})),
        field("structured_outputs", json!({"grammar": "start: b"})),
        field("guided_grammar", json!(format!("root ::= {}", "(".repeat(100_000)))),
        field("guided_json", json!({"$ref": "http://127.0.0.1:1/schema.json"})),
        field("guided_choice", json!([])),
        field("model", json!("../../tasks/models/demo")),
        field("model", json!(5)),
        field("timeout", json!(-1)),
        field("priority", json!({})),
        field("stream_options", json!(5)),
        field("seed", json!("a")),
    ]);
    all
}

pub fn hostile_chats() -> Vec<HostileBody> {
    let messages = [
        json!(null),
        json!([]),
        json!("hello"),
        json!([5]),
        json!([{}]),
        json!([{"role": "user"}]),
        json!([{"role": "king", "content": "a"}]),
        json!([{"role": "user", "content": 5}]),
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]),
        json!([{"role": "user", "content": [[]]}]),
        json!([{"role": ["user"], "content": "a"}]),
    ];
    let bodies = messages.into_iter().map(|messages| json!({ "messages": messages, "max_tokens": 2 }).to_string());
    bodies.map(|body| refused(&body, body.clone())).collect()
}

fn many_fields() -> String {
    let fields: Vec<String> = (0..20_000).map(|n| format!("\"x{n}\":{n}")).collect();
    format!("{{\"prompt\":\"a\",{}}}", fields.join(","))
}

/// Well-formed requests, which are damaged: path and body. Their work is small.
pub fn seeds() -> Vec<(&'static str, String)> {
    let chat = json!([{"role": "system", "content": "You count."}, {"role": "user", "content": [{"type": "text",
        "text": "3 and 4?"}]}]);
    let bodies = [
        ("/v1/completions", json!({"prompt": "Question: 1", "max_tokens": 3, "n": 2, "seed": 5, "temperature": 0.7})),
        ("/v1/completions", json!({"prompt": [[5, 6, 7], [8]], "max_tokens": 2, "logprobs": 2, "echo": true})),
        ("/v1/completions", json!({"prompt": ["a", "\u{1f980}"], "max_tokens": 2, "stop": ["\n", "x"], "top_p": 0.9})),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 4, "stream": true, "stream_options":
            {"include_usage": true}, "logit_bias": {"5": -100}, "min_tokens": 1}),
        ),
        ("/v1/completions", json!({"prompt": "a", "choices": ["b", " c"]})),
        ("/v1/chat/completions", json!({"messages": chat, "max_tokens": 3, "logprobs": true, "top_logprobs": 2})),
        ("/v1/chat/completions", json!({"messages": chat, "max_tokens": 3, "stream": true, "reasoning": "split"})),
        ("/tokenize", json!({"prompt": "Question: \u{e4}", "add_special_tokens": false})),
        ("/detokenize", json!({"tokens": [5, 6, 7]})),
    ];
    bodies.into_iter().map(|(path, body)| (path, body.to_string())).collect()
}
