//! Requests as they are read: what each field means, which are refused, and what the limits hold back.

use std::num::NonZeroU16;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::request::RequestSeed;
use super::super::{Keep, RefusalKind, StreamOptions, chat_beginning, chat_prompt};
use super::*;
use offshoot_engine::UniformKey;
use offshoot_text::SpecialText;
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
fn records_are_asked_for_by_name() {
    let params = |fields: Value| completion(fields).params;
    let usual = params(json!({"return_kept": null, "return_entropy": false, "logprobs_mode": null}));
    assert_eq!((usual.records, usual.logprobs_mode), (Records::default(), LogprobsMode::RawLogprobs));
    let count = params(json!({"return_kept": "count"})).records;
    assert_eq!(count, Records { drawn: true, ..Records::default() });
    for form in ["ids", "mask"] {
        let records = params(json!({"return_kept": form, "return_entropy": true})).records;
        assert_eq!(records, Records { drawn: true, kept_ids: true, entropy: true, confidence: None });
    }
    // What ends samples is found whether it is shown or not.
    let stopping = completion(json!({"confidence_stop": {"window": 8, "below": 2.5, "top": 5}}));
    assert_eq!(stopping.params.records.confidence.map(NonZeroU16::get), Some(5));
    assert_eq!(stopping.prompts[0].stop.confidence.map(|stop| (stop.window.get(), stop.below)), Some((8, 2.5)));
    let processed = params(json!({"logprobs_mode": "processed_logprobs", "logprobs": 1}));
    assert_eq!(processed.logprobs_mode, LogprobsMode::ProcessedLogprobs);
    // What a server says holds for requests that do not.
    with_reader(&ProtocolLimits::default(), |reader| {
        let reader = RequestReader { logprobs_mode: LogprobsMode::ProcessedLogprobs, ..*reader };
        let mode = |fields: Value| {
            let read = reader.read(Endpoint::Completions, &object(with(fields)));
            read.unwrap_or_else(|refusal| panic!("{}", refusal.message)).params.logprobs_mode
        };
        assert_eq!(mode(json!({})), LogprobsMode::ProcessedLogprobs);
        assert_eq!(mode(json!({"logprobs_mode": "raw_logprobs"})), LogprobsMode::RawLogprobs);
    });
    let refused = [
        (json!({"logprobs_mode": "raw_logits"}), "logprobs_mode"),
        (json!({"return_kept": true}), "return_kept"),
        (json!({"return_entropy": 1}), "return_entropy"),
        (json!({"return_kept": "ids", "choices": ["a"]}), "return_kept"),
        (json!({"return_entropy": true, "choices": ["a"]}), "return_entropy"),
        (json!({"return_confidence": 3, "choices": ["a"]}), "return_confidence"),
    ];
    for (fields, field) in refused {
        assert_eq!(refusal(Endpoint::Completions, with(fields)).param.as_deref(), Some(field));
    }
}

#[test]
fn experts_are_told_where_the_server_keeps_them() {
    let read = |fields: Value| {
        let request = routed_request(Endpoint::Completions, with(fields));
        (request.routes, request.params.routes)
    };
    assert_eq!(read(json!({})), (Some(0), true));
    assert_eq!(read(json!({"return_routed_experts": true, "routed_experts_prompt_start": 7})), (Some(7), true));
    assert_eq!(read(json!({"return_routed_experts": false})), (None, false));
    // Elsewhere who asks for them is told so.
    let usual = completion(json!({"return_routed_experts": false, "routed_experts_prompt_start": 0}));
    assert_eq!((usual.routes, usual.params.routes), (None, false));
    for (field, value) in [("return_routed_experts", json!(true)), ("routed_experts_prompt_start", json!(3))] {
        let refused = refusal(Endpoint::Completions, with(json!({ field: value })));
        assert_eq!(refused.param.as_deref(), Some(field));
    }
}

#[test]
fn a_group_may_end_when_enough_samples_have_finished() {
    let least = |fields| completion(fields).min_finished.map(std::num::NonZeroUsize::get);
    assert_eq!(least(json!({"n": 4, "min_finished": 3})), Some(3));
    assert_eq!([least(json!({"n": 4})), least(json!({"n": 4, "min_finished": null}))], [None, None]);
    let refused = [
        (json!({"n": 4, "min_finished": 0}), "min_finished"),
        (json!({"n": 4, "min_finished": 5}), "min_finished"),
        (json!({"n": 2, "best_of": 4, "min_finished": 2}), "best_of"),
    ];
    for (fields, field) in refused {
        assert_eq!(refusal(Endpoint::Completions, with(fields)).param.as_deref(), Some(field));
    }
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
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (json!({"truncate_prompt_tokens": 4, "choices": [" a"]}), "truncate_prompt_tokens"),
        (json!({"truncate_prompt_tokens": 4, "parent": "x"}), "truncate_prompt_tokens"),
        (json!({"special_tokens_in_text": "keep"}), "special_tokens_in_text"),
        (json!({"bad_words": [" "]}), "bad_words"),
        (json!({"bad_words": "a"}), "bad_words"),
        (json!({"allowed_token_ids": [-1]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [9, 5000]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [1], "min_tokens": 1, "stop_token_ids": [1]}), "allowed_token_ids"),
        (json!({"logit_bias": {"5000": 1}}), "logit_bias"),
        (json!({"reasoning": "split"}), "reasoning"),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
    ];
    for (fields, field) in completions {
        let refusal = refusal(Endpoint::Completions, with(fields.clone()));
        assert_eq!((refusal.param.as_deref(), refusal.status()), (Some(field), 400), "{fields}: {}", refusal.message);
        assert!(refusal.message.contains(field), "{}", refusal.message);
    }
    for field in ["functions", "audio", "modalities"] {
        let mut body = json!({"messages": messages("a")});
        body[field] = json!([{"type": "json_object"}]);
        assert_eq!(refusal(Endpoint::Chat, body).code, "unsupported_parameter", "{field}");
    }
}

/// The text of a chat by a template of its own.
fn by_template(template: &str, mut body: Value) -> Result<String, Refusal> {
    body["chat_template"] = json!(template);
    let read = |reader: &RequestReader<'_>| reader.encode(reader.read(Endpoint::Chat, &object(body))?);
    with_reader(&ProtocolLimits::BATCH, read).map(|request| request.prompts[0].text.clone())
}

/// A template shows all that the messages of an agent's earlier turns have.
#[test]
fn what_messages_have_reaches_the_template() {
    const ALL: &str = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson }}";
    let call =
        |arguments: Value| json!({"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}});
    let calls = |arguments: Value| json!({"role": "assistant", "content": null, "tool_calls": [call(arguments)]});
    let shown = |arguments: &str| {
        format!(
            "{{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{{\"id\": \"c1\", \"type\": \"function\", \
             \"function\": {{\"name\": \"add\", \"arguments\": {arguments}}}}}]}}"
        )
    };
    let thought = |names: [&str; 3]| {
        let named = names.map(|name| format!(", \"{name}\": \"3 + 4\"")).concat();
        format!("{{\"role\": \"assistant\", \"content\": \"7\"{named}}}")
    };
    let cases = [
        (
            json!({"role": "assistant", "content": "7", "reasoning_content": "3 + 4"}),
            thought(["reasoning_content", "thinking", "reasoning"]),
        ),
        (
            json!({"role": "assistant", "content": "7", "reasoning": "3 + 4", "tool_calls": []}),
            thought(["reasoning", "reasoning_content", "thinking"]),
        ),
        (
            json!({"role": "assistant", "content": "7", "thinking": "3 + 4", "reasoning": null}),
            thought(["thinking", "reasoning_content", "reasoning"]),
        ),
        (calls(json!("{\"b\": 4, \"a\": [3]}")), shown("{\"b\": 4, \"a\": [3]}")),
        (calls(json!({"a": 3})), shown("{\"a\": 3}")),
        (calls(json!("")), shown("{}")),
        (calls(Value::Null), shown("{}")),
        (
            json!({"role": "tool", "tool_call_id": "c1", "name": "add", "content": [{"type": "text", "text": "7"}]}),
            r#"{"role": "tool", "content": "7", "tool_call_id": "c1", "name": "add"}"#.to_owned(),
        ),
        (
            json!({"role": "user", "content": "a", "mood": {"x": 1}}),
            r#"{"role": "user", "content": "a", "mood": {"x": 1}}"#.to_owned(),
        ),
    ];
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]);
    for (message, expected) in cases {
        // Between a call and its answer.
        let answer = json!({"role": "tool", "tool_call_id": "c1", "content": "7"});
        let list = json!([calls(Value::Null), message, answer, {"role": "user", "content": "?"}]);
        let text = by_template(ALL, json!({"messages": list, "tools": tools, "tool_choice": "auto"}));
        let text = text.unwrap_or_else(|refusal| panic!("{message}: {}", refusal.message));
        assert_eq!(text.lines().nth(1), Some(&*expected), "{message}");
        let tools = r#"[{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]"#;
        assert!(text.ends_with(tools), "{text}");
    }
    assert!(by_template(ALL, json!({"messages": messages("a")})).expect("no tools").ends_with("null"));
}

#[test]
fn calls_and_their_answers_belong_together() {
    const ROLES: &str = "{% for m in messages %}{{ m.role }} {{ m.tool_calls }}{% endfor %}";
    let user = || json!({"role": "user", "content": "a"});
    let calls = |ids: &[Option<&str>]| {
        let call = |id: &Option<&str>| json!({"id": id, "type": "function", "function": {"name": "f"}});
        json!({"role": "assistant", "content": null, "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
    };
    let answer = |id: Option<&str>| json!({"role": "tool", "tool_call_id": id, "content": "7"});
    let read = |list: &Value, last_goes_on: bool| {
        let body = json!({"messages": list, "continue_final_message": last_goes_on.then_some(Value::Null)
            .unwrap_or(json!(false))});
        by_template(ROLES, body).map(drop).map_err(|refusal| {
            assert_eq!(
                (refusal.code, refusal.param.as_deref(), refusal.status()),
                ("invalid_value", Some("messages"), 400)
            );
            refusal.message
        })
    };
    let good = [
        json!([user(), calls(&[Some("x"), Some("y")]), answer(Some("y")), answer(Some("x")), user()]),
        // Answers without ids, and calls without.
        json!([user(), calls(&[Some("x"), Some("y")]), answer(Some("y")), answer(None)]),
        json!([user(), calls(&[None]), answer(None), user(), calls(&[None]), user()]),
        // Ids that come again in a later turn.
        json!([calls(&[Some("x")]), answer(Some("x")), calls(&[Some("x")]), answer(Some("x"))]),
        json!([calls(&[Some("x")]), user(), answer(Some("x"))]),
    ];
    for list in good {
        assert_eq!(read(&list, false), Ok(()), "{list}");
    }
    let unmade = "`messages[1].tool_call_id`: expected the id of a call before it, found \"x\"";
    let open = "`messages[1].tool_calls[1]`: expected an answer to the call \"y\" behind it, found none";
    let bad = [
        (json!([user(), answer(Some("x"))]), unmade),
        (json!([calls(&[Some("y")]), answer(Some("x")), answer(Some("y"))]), unmade),
        (json!([user(), calls(&[Some("x"), Some("y")]), answer(Some("x")), user()]), open),
        (json!([user(), calls(&[Some("x"), Some("y")]), answer(Some("x")), answer(Some("x")), user()]), open),
    ];
    for (list, message) in bad {
        assert_eq!(read(&list, true), Err(message.to_owned()), "{list}");
    }
    // The last message may still make its calls.
    let last = json!([user(), calls(&[Some("x"), Some("y")])]);
    assert!(read(&last, false).is_err_and(|message| message.contains("the call \"x\"")));
}

#[test]
fn what_no_template_shows_is_refused_by_name() {
    let calls = |arguments: &str| {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        json!({"role": "assistant", "tool_calls": [call]})
    };
    let cases = [
        (
            json!({"role": "assistant", "content": "7", "function_call": {"name": "f"}}),
            "unsupported_parameter",
            "[1].function_call`",
        ),
        (json!({"role": "assistant", "content": "7", "refusal": "no"}), "unsupported_parameter", "[1].refusal`"),
        (json!({"role": "assistant", "content": "7", "audio": {"id": "a"}}), "unsupported_parameter", "[1].audio`"),
        (calls("{\"a\": "), "invalid_value", "[1].tool_calls[0].function.arguments`"),
        (
            json!({"role": "assistant", "tool_calls": [{"function": {}}]}),
            "invalid_value",
            "[1].tool_calls[0].function`",
        ),
        (json!({"role": "assistant", "tool_calls": {}}), "invalid_value", "[1].tool_calls`"),
        (json!({"role": "assistant", "reasoning": 1, "content": "a"}), "invalid_value", "[1].reasoning`"),
        (json!({"role": "tool"}), "invalid_value", "[1].content`"),
        (json!({"role": "robot", "content": "a"}), "invalid_value", "[1].role`"),
        (json!({"role": "user", "content": [{"type": "image_url"}]}), "invalid_value", "[1].content`"),
    ];
    for (message, code, place) in cases {
        let refusal = refusal(Endpoint::Chat, json!({"messages": [{"role": "user", "content": "a"}, message]}));
        assert_eq!((refusal.code, refusal.param.as_deref()), (code, Some("messages")), "{}", refusal.message);
        assert!(refusal.message.contains(&format!("`messages{place}")), "{}", refusal.message);
    }
    let picture = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]);
    let said = refusal(Endpoint::Chat, json!({"messages": [{"role": "user", "content": picture}]})).message;
    assert!(said.contains("found a part of type \"image_url\": models read text only"), "{said}");
    let tool = json!({"type": "function", "function": {"name": "add"}});
    let with = |fields: Value| {
        let mut body = json!({"messages": messages("a")});
        body.as_object_mut().expect("an object").extend(object(fields));
        refusal(Endpoint::Chat, body)
    };
    for (fields, code, param) in [
        (json!({"tools": [{"type": "web_search"}]}), "invalid_value", "tools"),
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (json!({"functions": [{"name": "add"}]}), "unsupported_parameter", "functions"),
        (json!({"function_call": {"name": "add"}}), "unsupported_parameter", "function_call"),
        (json!({"reasoning_effort": "high"}), "unsupported_parameter", "reasoning_effort"),
        (json!({"chat_template": "x"}), "unsupported_parameter", "chat_template"),
        (
            json!({"chat_template_kwargs": {"chat_template": "x"}}),
            "invalid_value",
            "chat_template_kwargs.chat_template",
        ),
        (json!({"documents": ["a"]}), "invalid_value", "documents"),
    ] {
        let refusal = with(fields);
        assert_eq!((refusal.code, refusal.param.as_deref()), (code, Some(param)), "{}", refusal.message);
    }
    let without = by_template("{{ messages[0].content }}", json!({"messages": messages("a"), "tools": [tool]}));
    let refusal = without.expect_err("a template without tools");
    assert_eq!((refusal.code, refusal.param.as_deref()), ("unsupported_parameter", Some("tools")));
    for forced in [json!("required"), json!({"type": "function", "function": {"name": "add"}})] {
        let refusal = with(json!({"tool_choice": forced}));
        assert!(refusal.message.contains("expected `tools` beside it, found none"), "{}", refusal.message);
    }
}

/// transformers drops null fields from 5.24 on, and gives the reasoning under each name that templates know.
#[test]
fn messages_as_written_have_no_nulls_and_the_reasoning_by_each_name() {
    let template = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}";
    let shown = |messages: Value| {
        let body = object(json!({"messages": messages, "chat_template": template}));
        chat_prompt(&body, tokenizer()).unwrap_or_else(|refusal| panic!("{}", refusal.message))
    };
    let text = shown(json!([
        {"role": "assistant", "content": null, "tool_calls": null, "thinking": "r"},
        {"role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": "c"},
        {"role": "user", "content": "q"},
    ]));
    assert_eq!(
        text,
        "{\"role\": \"assistant\", \"thinking\": \"r\", \"reasoning_content\": \"r\", \"reasoning\": \"r\"}\n\
         {\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": \"b\", \"reasoning_content\": \"c\", \
         \"thinking\": \"c\"}\n{\"role\": \"user\", \"content\": \"q\"}\n"
    );
}

/// Of vLLM: a template that loops over parts gets the list, another one text of a line each.
#[test]
fn parts_roles_and_variables_are_those_that_the_template_knows() {
    let part = |text: &str| json!({"type": "text", "text": text});
    let parts = json!([{"role": "user", "content": [part("a"), part("b"), "c"]}]);
    let loops = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                 {% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(by_template(loops, json!({"messages": parts})).expect("it loops"), "<a><b><c>");
    assert_eq!(chat_text(json!({"messages": parts})), "[user] a\nb\nc\n[assistant]");
    let roles = "{% for m in messages %}{{ m.role }} {% endfor %}{{ reasoning_effort }}{{ documents }}";
    let talk = json!([{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]);
    let said = |template: &str, fields: Value| {
        let mut body = json!({"messages": talk});
        body.as_object_mut().expect("an object").extend(object(fields));
        by_template(template, body).unwrap_or_else(|refusal| panic!("{}", refusal.message))
    };
    assert_eq!(said(roles, json!({"reasoning_effort": "high"})), "system user highNone");
    assert_eq!(said(&format!("{roles}{{# developer #}}"), json!({"documents": []})), "developer user []");
    let ipython = json!({"messages": [{"role": "ipython", "content": "7"}]});
    assert_eq!(by_template("{{ messages[0].role == 'ipython' }}", ipython).expect("it is named"), "True");
}

/// Only the template's own special tokens are tokens; otherwise the tokens are the usual ones.
#[test]
fn special_tokens_in_messages_are_escaped_or_refused() {
    const END: &str = "<|end_of_text|>";
    let template = format!("{{{{ bos_token }}}}{{% for m in messages %}}{{{{ m.content }}}}{END}{{% endfor %}}");
    let tokens = |content: &str, how: &str| {
        let message = json!({"role": "user", "content": content, "name": content});
        let body = json!({"messages": [message], "chat_template": template, "special_tokens_in_text": how});
        let read = |reader: &RequestReader<'_>| reader.encode(reader.read(Endpoint::Chat, &object(body))?);
        with_reader(&ProtocolLimits::BATCH, read).map(|request| {
            let prompt = &request.prompts[0];
            assert_eq!(prompt.text, format!("<|begin_of_text|>{content}{END}"));
            prompt.tokens.clone()
        })
    };
    let ends = |tokens: &[TokenId]| tokens.iter().filter(|token| token.0 == 1).count();
    for content in ["plain", " two  words\n", "caf\u{e9} <|end_of", "", "|>"] {
        let usual = tokens(content, "allow").expect("allowed");
        assert_eq!(tokens(content, "escape"), Ok(usual.clone()), "{content:?}");
        assert_eq!(tokens(content, "refuse"), Ok(usual), "{content:?}");
    }
    for content in [END, "a<|end_of_text|>b", "<|end_<|begin_of_text|>of_text|>", "<|begin_of_text|>\n"] {
        let escaped = tokens(content, "escape").expect("escaped");
        assert_eq!((escaped[0].0, ends(&escaped), escaped.last()), (0, 1, Some(&TokenId(1))), "{content:?}");
        assert_eq!(tokenizer().decode_with_special(&escaped), format!("<|begin_of_text|>{content}{END}"));
        let refused = tokens(content, "refuse").expect_err("refused");
        assert_eq!((refused.code, refused.param.as_deref()), ("invalid_value", Some("messages")));
        assert!(refused.message.starts_with("`messages[0].content`") && refused.message.contains("<|"), "{refused:?}");
    }
    assert_eq!(ends(&tokens("a<|end_of_text|>b", "allow").expect("allowed")), 2);
    assert!(tokens("\u{fdd2}1\u{fdd3}", "escape").is_err(), "the marks are nobody's to write");
    let prompt = json!({"prompt": "a<|end_of_text|>", "special_tokens_in_text": "escape"});
    let escaped = &super::request(Endpoint::Completions, prompt).prompts[0].tokens;
    assert_eq!((escaped[0].0, ends(escaped)), (0, 0), "the beginning is the tokenizer's own");
}

/// Wherever a template shows it: a special token's text, whole or cut in two at any place and spread over texts side by
/// side, stays text or is refused.
#[test]
fn no_field_of_a_chat_makes_special_tokens() {
    const END: &str = "<|end_of_text|>";
    let template = "{{ bos_token }}{% for m in messages %}{{ m.name }}{{ m.content }}{{ m.reasoning_content }}\
        {% for c in m.tool_calls or [] %}{{ c.function.name }}{% for k, v in c.function.arguments | items %}{{ k }}\
        {{ v }}{% endfor %}{% endfor %}{% if m.more %}{{ m | tojson }}{% endif %}{% endfor %}\
        {% for t in tools or [] %}{{ t.function.name }}{{ t.function.description }}{% endfor %}{{ first }}\
        {% if nested %}{{ nested.list | join }}{% endif %}{% for d in documents or [] %}{{ d.title }}{{ d.text }}\
        {% endfor %}{{ reasoning_effort }}<|end_of_text|>";
    let read = |body: Value, how: &str| {
        let mut body = object(body);
        body.entry("messages").or_insert(json!([{"role": "user", "content": "a", "name": "b"}]));
        body.extend(object(json!({"chat_template": template, "special_tokens_in_text": how})));
        with_reader(&ProtocolLimits::BATCH, |reader| reader.encode(reader.read(Endpoint::Chat, &body)?))
    };
    let user = |content: &str| json!({"role": "user", "content": content, "name": ""});
    for cut in 0..END.len() {
        let (a, b) = END.split_at(cut);
        let call = |name: &str, key: &str, value: &str| {
            let function = json!({"name": name, "arguments": {key: value}});
            let calls = json!([{"function": function}]);
            json!({"role": "assistant", "content": "", "name": "", "reasoning_content": "", "tool_calls": calls})
        };
        let tool =
            |name: &str, text: &str| json!({"type": "function", "function": {"name": name, "description": text}});
        let bodies = [
            json!({"messages": [user(a), user(b)]}),
            json!({"messages": [{"role": "user", "name": a, "content": b}]}),
            json!({"messages": [user(&format!(".{a}")), {"role": "user", "name": format!("{b}."), "content": ""}]}),
            json!({"messages": [{"role": "assistant", "name": "", "content": a, "reasoning_content": b}, user("")]}),
            json!({"messages": [call(a, b, ""), user("")]}),
            json!({"messages": [call("", a, b), user("")]}),
            json!({"messages": [{"role": "user", "name": "", "content": "", "more": 1, (format!("{a}{b}")): ""}]}),
            json!({"tools": [tool("c", &format!("{a}{b}"))]}),
            json!({"chat_template_kwargs": {"first": a, "nested": {"list": [b, ""]}}}),
            json!({"chat_template_kwargs": {"nested": {"list": [a, b]}}}),
            json!({"documents": [{"title": a, "text": b}]}),
            json!({"documents": [{"title": "", "text": a}], "reasoning_effort": b}),
            json!({"chat_template_kwargs": {"bos_token": format!("{a}{b}")}}),
        ];
        for body in bodies {
            let escaped = read(body.clone(), "escape").unwrap_or_else(|refusal| panic!("{body}: {refusal:?}"));
            let tokens = &escaped.prompts[0].tokens;
            let ends = tokens.iter().filter(|token| token.0 == 1).count();
            assert_eq!((ends, tokens.last()), (1, Some(&TokenId(1))), "{body}");
            let text = tokenizer().decode_with_special(tokens);
            assert_eq!(text.matches(END).count(), 2, "{body}: {text}");
            let refused = read(body.clone(), "refuse").err().unwrap_or_else(|| panic!("{body} is not refused"));
            assert!(refused.param.is_some() && refused.message.contains(END), "{body}: {refused:?}");
        }
    }
}

/// A template's quotes make a role of any text between them. Roles that make a token only with what the template writes
/// around them are the template's.
#[test]
fn roles_make_no_special_tokens() {
    let template = "{% for m in messages %}{{ '<|' + m.role + '|>' if m.role == 'end_of_text' else m.role }}:\
        {{ m.content }}{{ '<|end_of_text|>' }}{% endfor %}";
    let read = |role: &str, how: &str| {
        let messages = json!([{"role": role, "content": "x"}]);
        let body = object(json!({"messages": messages, "chat_template": template, "special_tokens_in_text": how}));
        with_reader(&ProtocolLimits::BATCH, |reader| reader.encode(reader.read(Endpoint::Chat, &body)?)).map(
            |request| {
                let ends = request.prompts[0].tokens.iter().filter(|token| token.0 == 1).count();
                (request.prompts[0].text.clone(), ends)
            },
        )
    };
    let of = |start: &str, ends: usize| Ok((format!("{start}:x<|end_of_text|>"), ends));
    const END: &str = "<|end_of_text|>";
    assert_eq!(read(END, "allow"), of(END, 2));
    assert_eq!(read(END, "escape"), of(END, 1));
    let refused = read(END, "refuse").expect_err("refused");
    assert_eq!(refused.param.as_deref(), Some("messages"));
    assert!(refused.message.starts_with("`messages[0].role`") && refused.message.contains(END), "{refused:?}");
    for how in ["allow", "escape", "refuse"] {
        assert_eq!(read("user", how), of("user", 1), "{how}");
        assert_eq!(read("end_of_text", how), of(END, 2), "{how}");
    }
    let side_by_side = |how: &str| {
        let messages = json!([{"role": "<|end_of", "content": ""}, {"role": "_text|>", "content": ""}]);
        let template = "{% set known = ['<|end_of', '_text|>'] %}{% for m in messages %}{{ m.role }}{% endfor %}";
        let body = object(json!({"messages": messages, "chat_template": template, "special_tokens_in_text": how}));
        with_reader(&ProtocolLimits::BATCH, |reader| reader.encode(reader.read(Endpoint::Chat, &body)?))
    };
    let escaped = side_by_side("escape").expect("escaped");
    assert!(escaped.prompts[0].text == END && escaped.prompts[0].tokens.iter().all(|token| token.0 != 1));
    assert!(side_by_side("refuse").expect_err("refused").message.contains(END));
}

/// Where special tokens are allowed, no character is a mark: prompts, their tokens and what is continued are what the
/// texts say.
#[test]
fn allowed_texts_stay_as_they_are() {
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if not loop.last %}<|end_of_text|>\
        {% endif %}{% endfor %}";
    let text = "\u{fdd0}1\u{fdd1} <|end_of_text|> \u{fdd2}0\u{fdd3} a\u{fdd1}b\u{fdd0}";
    let prompt_of = |extra: Value| {
        let mut body = object(json!({"chat_template": template, "echo": true}));
        body.extend(object(extra));
        let read = |reader: &RequestReader<'_>| {
            let chat = reader.read(Endpoint::Chat, &body)?;
            let continued = chat.prompts[0].repeated.clone();
            Ok::<_, Refusal>((reader.encode(chat)?.prompts.remove(0), continued))
        };
        with_reader(&ProtocolLimits::BATCH, read).unwrap_or_else(|refusal| panic!("{}", refusal.message))
    };
    let encoded = |whole: &str| tokenizer().encode(whole, AddSpecial::No).expect("bytes have tokens");
    for how in [json!({}), json!({"special_tokens_in_text": "allow"})] {
        let asked = |last: &str| {
            let messages = json!([{"role": "user", "content": text}, {"role": last, "content": text}]);
            let mut body = how.clone();
            body["messages"] = messages;
            prompt_of(body)
        };
        let whole = format!("<|begin_of_text|>{text}<|end_of_text|>{text}");
        let (prompt, continued) = asked("user");
        assert_eq!((&prompt.text, &prompt.tokens, continued), (&whole, &encoded(&whole), None));
        let (prompt, continued) = asked("assistant");
        assert_eq!((&prompt.text, &prompt.tokens, continued.as_deref()), (&whole, &encoded(&whole), Some(text)));
    }
}

/// The choices of completions and of chats are treated alike, whatever the form of the prompt.
#[test]
fn special_tokens_in_choices_are_escaped_or_refused() {
    let limits = ProtocolLimits::default();
    let prompts = [
        (Endpoint::Completions, json!({"prompt": "a"})),
        (Endpoint::Completions, json!({"prompt": "a<|end_of"})),
        (Endpoint::Completions, json!({"prompt": [5, 6]})),
        (Endpoint::Chat, json!({"messages": messages("a")})),
    ];
    for (endpoint, body) in prompts {
        let read = |how: &str| {
            let mut body = object(body.clone());
            let choices = json!(["x<|end_of_text|>", "_text|>", [1]]);
            body.extend(object(json!({"choices": choices, "special_tokens_in_text": how})));
            with_reader(&limits, |reader| reader.encode(reader.read(endpoint, &body)?))
        };
        let scored = |how: &str| {
            let request = read(how).unwrap_or_else(|refusal| panic!("{body}: {}", refusal.message));
            let choices = request.prompts[0].choices.iter();
            choices.map(|choice| choice.tokens.contains(&TokenId(1))).collect::<Vec<_>>()
        };
        assert_eq!(scored("escape"), [false, false, true], "{body}: token ids are tokens");
        assert!(scored("allow")[0], "{body}");
        let refused = read("refuse").err().unwrap_or_else(|| panic!("{body} is not refused"));
        assert_eq!(refused.param.as_deref(), Some("choices"));
        assert!(refused.message.starts_with("`choices[0]`"), "{}", refused.message);
    }
}

#[test]
fn the_ends_of_prompts_are_kept() {
    let kept = |fields: Value| request(Endpoint::Completions, with(fields)).prompts.remove(0);
    let text = "one two three four five six seven";
    let whole = tokenizer().encode(text, AddSpecial::Yes).expect("plain text");
    let last = kept(json!({"prompt": text, "truncate_prompt_tokens": 4}));
    assert_eq!(last.tokens, [&whole[..1], &whole[whole.len() - 3..]].concat(), "the beginning of text stays");
    assert_eq!(last.text, tokenizer().decode(&last.tokens));
    assert_eq!(kept(json!({"prompt": text, "truncate_prompt_tokens": 4000})).tokens, whole);
    assert_eq!(kept(json!({"prompt": [5, 6, 7], "truncate_prompt_tokens": 2})).tokens, [TokenId(6), TokenId(7)]);
    let long = kept(json!({"prompt": "a b ".repeat(20_000), "truncate_prompt_tokens": -1, "max_tokens": 96}));
    assert_eq!((long.tokens.len(), long.stop.max_tokens, long.tokens[0]), (4000, 96, TokenId(0)));
    let usual = kept(json!({"prompt": "a b ".repeat(20_000), "truncate_prompt_tokens": -1}));
    assert_eq!((usual.tokens.len(), usual.stop.max_tokens), (4080, 16), "room for the usual number of tokens");
    let chat = json!({"messages": messages(text), "truncate_prompt_tokens": 3, "add_special_tokens": true});
    let chat = request(Endpoint::Chat, chat).prompts.remove(0);
    assert_eq!((chat.tokens.len(), chat.tokens[0]), (3, TokenId(0)));
}

#[test]
fn chats_take_the_fields_of_vllm() {
    let begun = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}]);
    let prompt = |fields: Value| {
        let mut body = json!({"messages": begun});
        body.as_object_mut().expect("an object").extend(object(fields));
        request(Endpoint::Chat, body).prompts.remove(0)
    };
    assert_eq!(prompt(json!({"echo": true})).repeated.as_deref(), Some("It is"));
    assert_eq!(prompt(json!({})).repeated, None);
    assert_eq!(prompt(json!({"echo": true, "continue_final_message": false})).repeated, None);
    let (with, without) = (prompt(json!({"add_special_tokens": true})), prompt(json!({})));
    assert_eq!(with.tokens, [&[TokenId(0)], &without.tokens[..]].concat());
    for endpoint in Endpoint::ALL {
        let body = json!({"prompt": "a", "max_tokens": 0});
        let body = if endpoint == Endpoint::Chat { json!({"messages": begun, "max_tokens": 0}) } else { body };
        let alone = request(endpoint, body);
        assert_eq!((alone.best_of, alone.scored_top(), alone.results(0)), (0, Some(0), 1), "the prompt is computed");
    }
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
    assert_eq!(refusal.message, "`model`: expected demo or tuned, found \"gpt-4\"");
    let named = |model: Value| {
        let request = completion(json!({ "model": model }));
        (request.model, request.adapter)
    };
    assert_eq!(named(json!("demo")), ("demo".to_owned(), None));
    assert_eq!(named(json!(null)), ("demo".to_owned(), None));
    assert_eq!(named(json!("tuned")), ("tuned".to_owned(), Some(AdapterVersion(7))));
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
        templates: false,
        special_text: SpecialText::Refuse,
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
        (json!({"prompt": "<|end_of_text|>"}), "prompt"),
        (json!({"special_tokens_in_text": "allow"}), "special_tokens_in_text"),
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
    assert_eq!(chat_text(ask(begun.clone(), json!({}))), "[user] a\nb\n[assistant] It is", "the template trims");
    let prefix = json!({"role": "assistant", "content": "It is", "prefix": true});
    let vllm = json!({"continue_final_message": true, "add_generation_prompt": false});
    for body in [ask(prefix, json!({})), ask(begun.clone(), vllm)] {
        assert_eq!(chat_text(body), "[user] a\nb\n[assistant] It is");
    }
    let anew = chat_text(ask(begun.clone(), json!({"continue_final_message": false})));
    assert_eq!(anew, "[user] a\nb\n[assistant] It is\n[assistant]");
    let neither = chat_text(ask(begun.clone(), json!({"add_generation_prompt": false})));
    assert_eq!(neither, "[user] a\nb\n[assistant] It is\n");
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
