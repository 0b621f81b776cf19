//! Requests as they are read: what each field means, which are refused, and what the limits hold back.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::request::RequestSeed;
use super::super::{Keep, RefusalKind, StreamOptions, chat_beginning};
use super::*;
use offshoot_engine::UniformKey;
use offshoot_text::reasoning::TextStart;

fn with(fields: Value) -> Value {
    let mut body = json!({"prompt": "ab"});
    body.as_object_mut().expect("an object").extend(object(fields));
    body
}

fn completion(fields: Value) -> ProtocolRequest<TextPrompt> {
    read(Endpoint::Completions, with(fields)).unwrap_or_else(|refusal| panic!("{}", refusal.message))
}

fn refusal(endpoint: Endpoint, body: Value) -> Refusal {
    let shown = body.to_string();
    match read(endpoint, body) {
        Ok(_) => panic!("{shown} is not refused"),
        Err(refusal) => refusal,
    }
}

fn chat_text(fields: Value) -> String {
    request(Endpoint::Chat, fields).prompts[0].text.clone()
}

#[test]
fn fields_of_a_server_are_read() {
    let request = completion(json!({
        "stop": ["END", 7], "stop_token_ids": [9], "priority": -3, "timeout": 1.5, "keep": true, "keep_seconds": 60,
        "parent": "br-1", "return_token_ids": true, "skip_special_tokens": false, "user": "u", "metadata": {"a": "b"},
        "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    }));
    let stop = &request.prompts[0].stop;
    assert_eq!((&stop.strings[..], &stop.tokens[..]), (&["END".to_owned()][..], &[TokenId(7), TokenId(9)][..]));
    assert_eq!((request.priority, request.timeout), (offshoot_engine::Priority(-3), Some(Duration::from_millis(1500))));
    assert_eq!(request.keep, Some(Keep { time_to_live: Some(Duration::from_secs(60)) }));
    assert_eq!(request.parent.as_deref(), Some("br-1"));
    assert!(request.return_token_ids && !request.skips_special);
    assert_eq!(request.stream, Some(StreamOptions { include_usage: true, continuous_usage: true }));
    let usual = completion(json!({}));
    assert!(usual.skips_special && usual.stream.is_none() && usual.keep.is_none() && usual.timeout.is_none());
}

#[test]
fn words_and_tokens_that_are_left_out_are_read_as_tokens() {
    let params = completion(json!({"bad_words": [" pens"], "allowed_token_ids": [9, 7]})).params;
    assert_eq!(params.allowed.as_deref(), Some(&[TokenId(9), TokenId(7)][..]));
    assert!(params.bad_words.contains(&encode("pens")) && params.bad_words.contains(&encode(" pens")));
    let usual = completion(json!({"bad_words": null, "allowed_token_ids": null})).params;
    assert_eq!((usual.allowed, usual.bad_words), (None, Vec::new()));
}

/// its_hub and NeMo-Skills send these.
#[test]
fn fields_of_other_servers_clients_are_taken() {
    let extra = json!({"include_stop_str_in_output": true, "seed": 4, "top_k": null});
    let body = json!({"extra_body": extra, "seed": 3, "spaces_between_special_tokens": false});
    let request = completion(body);
    assert!(request.prompts[0].stop.include_stop);
    assert_eq!(request.seed, RequestSeed::Own(3), "the body's own field holds");
    assert_eq!(completion(json!({"extra_body": {}})).seed, RequestSeed::Callers(5));
    for (fields, field) in [(json!({"extra_body": {"tools": [1]}}), "tools"), (json!({"extra_body": 1}), "extra_body")]
    {
        assert_eq!(refusal(Endpoint::Completions, with(fields)).param.as_deref(), Some(field));
    }
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    let completions = [
        (json!({"stream": true, "best_of": 2}), "best_of"),
        (json!({"stream": true, "prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"choices": [" a"], "stream": true}), "stream"),
        (json!({"choices": [" a"], "n": 2}), "n"),
        (json!({"choices": [" a"], "echo": true}), "echo"),
        (json!({"choices": []}), "choices"),
        (json!({"choices": [" a", ""]}), "choices"),
        (json!({"choices": [" a", 3]}), "choices"),
        (json!({"parent": "x", "echo": true}), "echo"),
        (json!({"parent": "x", "prompt": ["a", "b"]}), "prompt"),
        (json!({"keep_seconds": 3}), "keep_seconds"),
        (json!({"timeout": 0}), "timeout"),
        (json!({"timeout": 1e9}), "timeout"),
        (json!({"priority": 3e9}), "priority"),
        (json!({"priority": 3_000_000_000u64}), "priority"),
        (json!({"priority": -21}), "priority"),
        (json!({"priority": i32::MIN}), "priority"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [-1]}), "stop"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"bad_words": [" "]}), "bad_words"),
        (json!({"bad_words": "a"}), "bad_words"),
        (json!({"allowed_token_ids": [-1]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [9, 5000]}), "allowed_token_ids"),
        (json!({"logit_bias": {"5000": 1}}), "logit_bias"),
        (json!({"reasoning": "split"}), "reasoning"),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
    ];
    for (fields, field) in completions {
        let refusal = refusal(Endpoint::Completions, with(fields.clone()));
        assert_eq!((refusal.param.as_deref(), refusal.status()), (Some(field), 400), "{fields}: {}", refusal.message);
        assert!(refusal.message.contains(field), "{}", refusal.message);
    }
    for field in ["tools", "functions", "audio", "response_format", "modalities"] {
        let mut body = json!({"messages": messages("a")});
        body[field] = json!([{"type": "json_object"}]);
        assert_eq!(refusal(Endpoint::Chat, body).code, "unsupported_parameter", "{field}");
    }
}

/// What a tool's message says beside its text is not dropped in silence.
#[test]
fn fields_of_messages_that_are_not_shown_are_refused_by_name() {
    let call = json!([{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]);
    let cases = [
        ("tool", "tool_call_id", json!("c1")),
        ("tool", "name", json!("add")),
        ("assistant", "tool_calls", call),
        ("assistant", "function_call", json!({"name": "add", "arguments": "{}"})),
        ("assistant", "refusal", json!("no")),
        ("assistant", "audio", json!({"id": "a"})),
    ];
    for (role, field, value) in cases {
        let message = json!({"role": role, "content": "7", field: value});
        let body = json!({"messages": [{"role": "user", "content": "3 + 4?"}, message]});
        let refusal = refusal(Endpoint::Chat, body);
        assert_eq!((refusal.code, refusal.param.as_deref()), ("unsupported_parameter", Some("messages")), "{field}");
        assert!(refusal.message.contains(&format!("messages[1].{field}`")), "{}", refusal.message);
    }
    // Nothing is lost with these.
    let plain = chat_text(json!({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "7"}]}));
    let more = json!([
        {"role": "user", "content": "a", "name": "Mia"},
        {"role": "tool", "content": [{"type": "text", "text": "7"}], "tool_calls": [], "refusal": null},
    ]);
    assert_eq!(chat_text(json!({"messages": more})), plain);
}

/// Also where the template trims what it shows.
#[test]
fn chats_begin_with_the_beginning_of_their_messages() {
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let all = [turn("system", " Be brief. "), turn("user", "3 + 4?"), turn("assistant", "7"), turn("user", "2 + 2?")];
    let chat = chat_text(json!({"messages": all}));
    let mut lengths = Vec::new();
    for upto in 1..=all.len() {
        let messages = json!(all[..upto]);
        let beginning = chat_beginning(&messages, tokenizer()).unwrap_or_else(|refusal| panic!("{}", refusal.message));
        assert!(chat.starts_with(&beginning), "{beginning:?} begins {chat:?}");
        assert_eq!(chat_beginning(&json!({"messages": messages}), tokenizer()), Ok(beginning.clone()));
        lengths.push(beginning.len());
    }
    assert!(lengths.is_sorted() && lengths[3] == chat.len() && lengths[0] > "[system] Be brief.".len(), "{lengths:?}");
    let thinking = json!({"messages": all, "chat_template_kwargs": {"thinks": true}});
    assert_eq!(chat_beginning(&thinking, tokenizer()), Ok(format!("{chat} <think>")));
    for wrong in [json!([]), json!("a"), json!({}), json!([{"role": "user"}])] {
        let refusal = chat_beginning(&wrong, tokenizer()).err().unwrap_or_else(|| panic!("{wrong} is taken"));
        assert_eq!(refusal.param.as_deref(), Some("messages"), "{wrong}: {}", refusal.message);
    }
}

#[test]
fn a_prompt_beyond_the_context_is_refused_in_openais_words() {
    let encoded = |fields: Value| {
        let body = object(with(fields));
        with_reader(&ProtocolLimits::default(), |reader| reader.encode(reader.read(Endpoint::Completions, &body)?))
    };
    let tokens = vec![5; 4090];
    for (fields, tail) in [
        (json!({"prompt": vec![5; 4100]}), "the prompt has 4100"),
        (json!({"prompt": tokens, "choices": [vec![5; 20]]}), "the prompt with its longest continuation has 4110"),
        // Longer than the 64 KiB that are always encoded whole.
        (json!({"prompt": "a b ".repeat(20_000)}), "tokens; the beginning ("),
    ] {
        let refusal = encoded(fields).expect_err("it is longer than the context");
        assert_eq!((refusal.code, refusal.param.as_deref()), ("context_length_exceeded", Some("prompt")));
        assert!(refusal.message.starts_with("This model's maximum context length is 4096 tokens; the "), "{refusal:?}");
        assert!(refusal.message.contains(tail), "{}", refusal.message);
    }
}

#[test]
fn a_model_that_is_not_served_is_not_found() {
    let refusal = refusal(Endpoint::Completions, with(json!({"model": "gpt-4"})));
    assert_eq!((refusal.kind, refusal.code), (RefusalKind::NotFound, "model_not_found"));
    assert_eq!(refusal.message, "`model`: expected demo, found \"gpt-4\"");
    assert_eq!(completion(json!({"model": "demo"})).model, "demo");
}

#[test]
fn limits_hold() {
    let limits = ProtocolLimits {
        n: 4,
        prompts: 2,
        branches: 6,
        prompt_tokens: 8,
        choices: 2,
        top_logprobs: 3,
        stops: 2,
        stop_bytes: 4,
        logit_bias: 1,
        bad_words: 2,
        priority: 0,
        seconds: 10,
        streams: false,
        keeps: false,
    };
    let cases = [
        (json!({"n": 5}), "n"),
        (json!({"best_of": 5}), "best_of"),
        (json!({"prompt": ["a", "b", "c"]}), "prompt"),
        (json!({"prompt": ["a", "b"], "n": 4}), "n"),
        (json!({"prompt": "a b c d e f g h i j"}), "prompt"),
        (json!({"choices": ["a", "b", "c"]}), "choices"),
        (json!({"logprobs": 4}), "logprobs"),
        (json!({"prompt_logprobs": 4}), "prompt_logprobs"),
        (json!({"stop": ["a", "b"], "stop_token_ids": [1]}), "stop"),
        (json!({"stop": "abcde"}), "stop"),
        (json!({"logit_bias": {"1": 1, "2": 1}}), "logit_bias"),
        (json!({"bad_words": ["a", "b", "c"]}), "bad_words"),
        (json!({"bad_words": ["abcde"]}), "bad_words"),
        (json!({"priority": -1}), "priority"),
        (json!({"timeout": 11}), "timeout"),
        (json!({"stream": true}), "stream"),
        (json!({"keep": true}), "keep"),
        (json!({"parent": "a"}), "parent"),
    ];
    for (fields, field) in cases {
        let read = with_reader(&limits, |reader| {
            reader.encode(reader.read(Endpoint::Completions, &object(with(fields.clone())))?)
        });
        let refusal = read.err().unwrap_or_else(|| panic!("{fields} is not refused"));
        assert_eq!(refusal.param.as_deref(), Some(field), "{fields}: {}", refusal.message);
    }
    let good = json!({"n": 2, "prompt": ["a", "b"], "stop": ["abcd", 3], "logit_bias": {"1": 1}, "timeout": 10});
    assert!(with_reader(&limits, |reader| reader.read(Endpoint::Completions, &object(good))).is_ok());
}

#[test]
fn a_seed_of_its_own_makes_the_samples_independent_of_the_id() {
    let (own, callers) = (completion(json!({"seed": 3})), completion(json!({})));
    assert_eq!((own.seed, callers.seed), (RequestSeed::Own(3), RequestSeed::Callers(5)));
    assert_eq!(own.uniforms(0, "a"), UniformKey::root(3, ""));
    assert_eq!(own.uniforms(2, "a"), own.uniforms(2, "b"));
    assert_ne!(own.uniforms(1, "a"), own.uniforms(2, "a"));
    assert_eq!(callers.uniforms(0, "a"), UniformKey::root(5, "a"));
    assert_eq!(callers.uniforms(1, "a"), UniformKey::root(5, "a\n1"));
}

#[test]
fn a_last_message_of_the_assistant_goes_on() {
    let user = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
    let ask = |last: Value, more: Value| {
        let mut body = json!({"messages": [user, last]});
        body.as_object_mut().expect("an object").extend(object(more));
        body
    };
    let begun = json!({"role": "assistant", "content": "It is  "});
    assert_eq!(chat_text(ask(begun.clone(), json!({}))), "[user] ab\n[assistant] It is", "the template trims");
    let prefix = json!({"role": "assistant", "content": "It is", "prefix": true});
    let vllm = json!({"continue_final_message": true, "add_generation_prompt": false});
    for body in [ask(prefix, json!({})), ask(begun.clone(), vllm)] {
        assert_eq!(chat_text(body), "[user] ab\n[assistant] It is");
    }
    let anew = chat_text(ask(begun.clone(), json!({"continue_final_message": false})));
    assert_eq!(anew, "[user] ab\n[assistant] It is\n[assistant]");
    let neither = chat_text(ask(begun.clone(), json!({"add_generation_prompt": false})));
    assert_eq!(neither, "[user] ab\n[assistant] It is\n");
    let both = ask(begun, json!({"continue_final_message": true, "add_generation_prompt": true}));
    assert_eq!(refusal(Endpoint::Chat, both).param.as_deref(), Some("add_generation_prompt"));
    let body = ask(json!({"role": "user", "content": "c"}), json!({"continue_final_message": true}));
    assert_eq!(refusal(Endpoint::Chat, body).param.as_deref(), Some("continue_final_message"));
    let first = json!({"messages": [{"role": "assistant", "content": "a", "prefix": true}, user]});
    assert_eq!(refusal(Endpoint::Chat, first).param.as_deref(), Some("messages"));
    let open = request(Endpoint::Chat, ask(json!({"role": "assistant", "content": "<think>hm"}), json!({})));
    assert_eq!(open.prompts[0].start, TextStart::Reasoning);
}

#[test]
fn a_prompt_follows_a_kept_branch() {
    let after = |endpoint: Endpoint, body: Value, parent: &[TokenId]| {
        with_reader(&ProtocolLimits::default(), |reader| {
            reader.encode_after(reader.read(endpoint, &object(body))?, parent)
        })
        .unwrap_or_else(|refusal| panic!("{}", refusal.message))
        .prompts
        .remove(0)
    };
    let parent = encode("a b");
    let alone = after(Endpoint::Completions, json!({"parent": "br"}), &parent);
    assert_eq!((&alone.tokens, &*alone.text), (&parent, ""));
    let text = after(Endpoint::Completions, json!({"parent": "br", "prompt": " c"}), &parent);
    assert_eq!(text.tokens, [&parent[..], &encode(" c")].concat());
    let scored = after(Endpoint::Completions, json!({"parent": "br", "choices": [" c", [5]]}), &parent);
    assert_eq!(scored.choices[0].tokens, encode(" c"));
    assert_eq!((scored.tokens, &scored.choices[1].tokens[..]), (parent.clone(), &[TokenId(5)][..]));
    let open = after(Endpoint::Chat, json!({"parent": "br", "reasoning": "split"}), &encode("<think>a"));
    assert_eq!(open.start, TextStart::Reasoning);
    let next = after(Endpoint::Chat, json!({"parent": "br", "messages": messages("why?")}), &parent);
    assert_eq!(next.text, "\n[user] why?\n[assistant]", "the turn before ends, and the next begins");
    let without = with_reader(&ProtocolLimits::default(), |reader| {
        reader.encode(reader.read(Endpoint::Completions, &object(json!({"parent": "br"})))?)
    });
    assert_eq!(without.err().and_then(|refusal| refusal.param).as_deref(), Some("parent"));
}

#[test]
fn continuations_follow_the_prompt_token_by_token() {
    let request = request(Endpoint::Completions, json!({"prompt": "Question:", "choices": [" yes", " no"]}));
    let prompt = &request.prompts[0];
    for (choice, text) in prompt.choices.iter().zip([" yes", " no"]) {
        let whole = tokenizer().encode(&format!("Question:{text}"), AddSpecial::Yes).expect("plain text");
        assert_eq!([&prompt.tokens[..], &choice.tokens].concat(), whole, "as the whole text is encoded");
        assert_eq!(choice.text, text);
    }
}
