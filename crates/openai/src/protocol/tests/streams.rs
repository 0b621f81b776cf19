//! The chunks of a stream together are the answer written as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{AnswerHead, ChunkWriter, PromptCandidates, Refusal, response, sse};
use super::*;
use offshoot_launch::SampleId;

pub fn head() -> AnswerHead {
    AnswerHead { id: "cmpl-1".to_owned(), created: 7, system_fingerprint: "fp_1".to_owned(), ..AnswerHead::default() }
}

/// The JSON of each frame; the last frame is the end.
pub fn frames(stream: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stream).expect("UTF-8");
    let mut frames: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(frames.pop(), Some("data: [DONE]"));
    let json = |frame: &str| serde_json::from_str(frame.strip_prefix("data: ").expect("one line of data"));
    frames.into_iter().map(|frame| json(frame).expect("a frame is JSON")).collect()
}

/// Appends the lists of `more` to those of `all`, field by field.
fn extend_lists(all: &mut Value, more: &Value) {
    if all.is_null() {
        *all = more.clone();
        return;
    }
    for (key, list) in more.as_object().expect("an object") {
        let Value::Array(list) = list else { continue };
        all[key].as_array_mut().expect("the same field").extend(list.iter().cloned());
    }
}

/// The choices that a client puts together from chunks, and the usage of the last.
fn joined(chunks: &[Value]) -> (Vec<Value>, Value) {
    let mut choices: BTreeMap<u64, Value> = BTreeMap::new();
    let mut usage = Value::Null;
    for chunk in chunks {
        assert_eq!((&chunk["id"], &chunk["created"], &chunk["model"]), (&json!("cmpl-1"), &json!(7), &json!("demo")));
        usage = chunk["usage"].clone();
        for part in chunk["choices"].as_array().expect("a list") {
            let index = part["index"].as_u64().expect("a number");
            let is_first = !choices.contains_key(&index);
            let choice = choices.entry(index).or_insert_with(|| json!({ "index": index, "logprobs": null }));
            assert!(choice.get("finish_reason").is_none(), "nothing comes after the end");
            if let Some(delta) = part.get("delta") {
                assert_eq!(delta.get("role").is_some(), is_first, "the first chunk has the role");
            }
            for (key, value) in part.as_object().expect("an object") {
                match (key.as_str(), value) {
                    ("logprobs" | "kept", Value::Object(_)) => extend_lists(&mut choice[key], value),
                    ("delta", Value::Object(delta)) => {
                        for (key, text) in delta {
                            append(&mut choice["message"][key], text);
                        }
                    }
                    ("text" | "token_ids" | "entropies" | "confidences" | "forced", value) => {
                        append(&mut choice[key], value)
                    }
                    ("index", _) | (_, Value::Null) => {}
                    (_, value) => choice[key] = value.clone(),
                }
            }
        }
    }
    (choices.into_values().collect(), usage)
}

fn append(all: &mut Value, more: &Value) {
    match (all, more) {
        (Value::String(all), Value::String(more)) => all.push_str(more),
        (Value::Array(all), Value::Array(more)) => all.extend(more.iter().cloned()),
        (all, more) => *all = more.clone(),
    }
}

/// The choices of a whole answer, without the fields that a stream leaves out where they say nothing.
fn plain(answer: &Value) -> Vec<Value> {
    let mut choices = answer["choices"].as_array().expect("a list").clone();
    for choice in &mut choices {
        let fields = choice.as_object_mut().expect("an object");
        fields.retain(|key, value| key == "logprobs" || !value.is_null());
        for lists in ["token_ids", "entropies", "confidences", "forced", "kept"] {
            let is_empty =
                |value: &Value| *value == json!([]) || value.get("counts").is_some_and(|list| *list == json!([]));
            if fields.get(lists).is_some_and(is_empty) {
                fields.remove(lists);
            }
        }
        let says_nothing = |logprobs: &Value| {
            logprobs.as_object().is_some_and(|lists| lists.values().all(|list| list.is_null() || *list == json!([])))
        };
        if says_nothing(&fields["logprobs"]) {
            fields["logprobs"] = Value::Null;
        }
        if let Some(Value::Object(message)) = fields.get_mut("message") {
            message.remove("refusal");
            message.retain(|key, text| key == "role" || text != "");
        }
    }
    choices
}

/// The same of joined chunks.
fn plain_message(choices: Vec<Value>) -> Vec<Value> {
    let plain = |mut choice: Value| {
        if let Some(Value::Object(message)) = choice.get_mut("message") {
            message.retain(|key, text| key == "role" || text != "");
        }
        choice
    };
    choices.into_iter().map(plain).collect()
}

/// A made-up sample: what it says, and why it ends if no stop string ends it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) tokens: Vec<TokenId>,
    pub(super) end: FinishReason,
}

pub(super) fn script() -> impl Strategy<Value = Script> {
    const PIECES: [&str; 13] =
        ["<think>", "</think>", "</thi", "END", "EN", " a", "é", "€", "😀", "\"\\\n", "ä END", "<|end_of_text|>", " "];
    let tokens = proptest::collection::vec((0..PIECES.len(), any::<bool>()), 0..10).prop_map(|pieces| {
        let mut tokens = Vec::new();
        for (piece, is_cut) in pieces {
            tokens.extend(encode(PIECES[piece]));
            if is_cut {
                tokens.pop();
            }
        }
        tokens
    });
    let end = prop_oneof![
        Just(FinishReason::Length),
        Just(FinishReason::EndOfText),
        Just(FinishReason::StopToken(TokenId(9))),
        Just(FinishReason::Cancelled),
        Just(FinishReason::DeadEnd),
        Just(FinishReason::FormLimit),
        Just(FinishReason::OutOfTime),
    ];
    (tokens, end).prop_map(|(tokens, end)| Script { tokens, end })
}

fn body() -> impl Strategy<Value = (Endpoint, Value)> {
    let stop = prop_oneof![Just(json!(null)), Just(json!(["END"])), Just(json!(["END", "</", "€ "]))];
    let flags = proptest::array::uniform9(any::<bool>());
    let kept = prop::sample::select(vec![Value::Null, json!("count"), json!("ids"), json!("mask")]);
    let mode = prop::sample::select(vec![Value::Null, json!("raw_logprobs"), json!("processed_logprobs")]);
    let records = (kept, any::<bool>(), mode);
    let parts = (any::<bool>(), stop, flags, 0..3_usize, records);
    parts.prop_map(|(is_chat, stop, flags, min_tokens, (kept, entropy, mode))| {
        let [logprobs, echo, ids, special, include, split, thinks, has_form, confident] = flags;
        let mut body = json!({
            "n": 2, "stop": stop, "stream": true, "max_tokens": 100, "min_tokens": min_tokens,
            "stream_options": { "include_usage": true }, "return_token_ids": ids, "skip_special_tokens": !special,
            "include_stop_str_in_output": include, "return_kept": kept, "return_entropy": entropy,
            "return_confidence": if confident { json!(2) } else { Value::Null },
            "logprobs_mode": mode, "guided_regex": if has_form { json!("a*") } else { Value::Null },
        });
        match is_chat {
            true => {
                body["messages"] = messages("Hé");
                body["logprobs"] = json!(logprobs);
                body["top_logprobs"] = if logprobs { json!(2) } else { Value::Null };
                body["reasoning"] = json!(if split { "split" } else { "keep" });
                body["chat_template_kwargs"] = json!({ "thinks": thinks });
                (Endpoint::Chat, body)
            }
            false => {
                body["prompt"] = json!(["Hé \"", "b"]);
                body["logprobs"] = if logprobs { json!(2) } else { Value::Null };
                body["echo"] = json!(echo);
                (Endpoint::Completions, body)
            }
        }
    })
}

/// Streams the samples: the writer hears of one after another as `turns` says, each time of up to three tokens.
fn stream(request: &Arc<ProtocolRequest>, scripts: &[Script], turns: &[(usize, usize)]) -> Vec<u8> {
    let mut writer = ChunkWriter::new(request.clone(), &head(), tokenizer().clone());
    let mut out = Vec::new();
    let mut samples: Vec<_> = (0..request.prompts.len() * request.n)
        .map(|index| {
            let Script { tokens, end } = &scripts[index];
            let (events, finish) = events(request, index / request.n, tokens, end.clone());
            (index, events.into_iter(), finish)
        })
        .collect();
    let mut unscored: Vec<usize> = (0..request.prompts.len()).filter(|&at| scores(request, at).is_some()).collect();
    writer.set_cached(3);
    for &(whose, count) in turns.iter().cycle() {
        if samples.is_empty() {
            break;
        }
        if count == 0
            && let Some(prompt) = unscored.pop()
        {
            let finish = scores(request, prompt).expect("it has scores");
            writer.finished(SampleId { prompt, sample: request.n }, finish, None, &mut out);
        }
        let at = whose % samples.len();
        let (index, events, _) = &mut samples[at];
        let sample = SampleId { prompt: *index / request.n, sample: *index % request.n };
        let joined: Vec<_> = events.by_ref().take(count).collect();
        // The events before the end may never come.
        if joined.is_empty() && (events.len() == 0 || count == 0) {
            let (index, _, finish) = samples.remove(at);
            let branch = (index == 0).then(|| "br-1".to_owned());
            writer.finished(sample, finish, branch, &mut out);
            continue;
        }
        let text: String = joined.iter().map(|(_, text)| text.as_str()).collect();
        writer.tokens(sample, joined.into_iter().map(|(sampled, _)| sampled).collect(), &text, &mut out);
    }
    for prompt in unscored {
        let finish = scores(request, prompt).expect("it has scores");
        writer.finished(SampleId { prompt, sample: request.n }, finish, None, &mut out);
    }
    writer.end(&mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn chunks_together_are_the_whole_answer(
        (endpoint, body) in body(),
        scripts in proptest::collection::vec(script(), 4),
        turns in proptest::collection::vec((0..4_usize, 0..4_usize), 1..40),
        routed in any::<bool>(),
    ) {
        let read = if routed { routed_request } else { request };
        let request = Arc::new(read(endpoint, body));
        let streamed = stream(&request, &scripts, &turns);
        let of_prompt = |prompt: usize| {
            let sample = |index: usize| {
                let Script { tokens, end } = &scripts[prompt * request.n + index];
                events(&request, prompt, tokens, end.clone()).1
            };
            let kept = if prompt == 0 { vec![Some("br-1".to_owned())] } else { Vec::new() };
            let drawn = (0..request.n).map(sample).collect();
            let cached = if prompt == 0 { 3 } else { 0 };
            PromptCandidates { drawn, kept, scored: scores(&request, prompt), choices: Vec::new(), cached }
        };
        let candidates: Vec<PromptCandidates> = (0..request.prompts.len()).map(of_prompt).collect();
        let whole = serde_json::to_value(response(&request, &candidates, &head(), tokenizer())).expect("JSON");
        let chunks = frames(&streamed);
        let (choices, usage) = joined(&chunks);
        prop_assert_eq!(plain_message(choices), plain(&whole));
        prop_assert_eq!(usage, whole["usage"].clone());
        prop_assert!(chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("a list"))
            .all(|choice| choice.get("stop_reason").is_some()), "null before the end");
        if endpoint == Endpoint::Chat && request.return_token_ids {
            let firsts = chunks.iter().filter(|chunk| chunk.get("prompt_token_ids").is_some());
            prop_assert!(firsts.clone().all(|chunk| chunk["prompt_token_ids"] == whole["prompt_token_ids"]));
            prop_assert_eq!(firsts.count(), request.n);
        }
    }
}

#[test]
fn a_stream_of_an_echoed_prompt_alone_ends_with_length() {
    let body = json!({"prompt": "ab", "echo": true, "max_tokens": 0, "logprobs": 1, "stream": true});
    let request = Arc::new(request(Endpoint::Completions, body));
    let (choices, _) = joined(&frames(&stream(&request, &[Script { tokens: vec![], end: FinishReason::Length }], &[])));
    assert_eq!((&choices[0]["text"], &choices[0]["finish_reason"]), (&json!("ab"), &json!("length")));
    assert_eq!(choices[0]["logprobs"]["token_logprobs"][0], Value::Null);
}

#[test]
fn continuous_usage_counts_the_tokens_so_far() {
    let options = json!({"continuous_usage_stats": true});
    let body = json!({"prompt": "ab", "stream": true, "stream_options": options});
    let request = Arc::new(request(Endpoint::Completions, body));
    let script = Script { tokens: encode(" a b c"), end: FinishReason::Length };
    let chunks = frames(&stream(&request, &[script], &[(0, 1)]));
    let counts: Vec<u64> = chunks.iter().filter_map(|chunk| chunk["usage"]["completion_tokens"].as_u64()).collect();
    assert_eq!(counts, [1, 2, 3, 3]);
}

#[test]
fn a_failing_stream_ends_with_its_error() {
    let mut out = Vec::new();
    sse::fail(&Refusal::shutting_down(), &mut out);
    let frames = frames(&out);
    assert_eq!(frames[0]["error"]["code"], "shutting_down");
}
