//! Tools of chats: what requests say of them, and the calls of their answers, whole and in chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{ChunkWriter, PromptCandidates, response};
use super::streams::{frames, head};
use super::*;
use offshoot_core::error::Error;
use offshoot_form::{Form, FormBegin};
use offshoot_launch::SampleId;

pub(super) const HERMES: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}{{ tools }}[assistant]";

fn tool(name: &str) -> Value {
    let properties = json!({"city": {"type": "string"}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
}

/// Only where a form is refused for good is the part looked for that is wrong, and only one that is so for good.
#[test]
fn a_refusal_of_calls_names_the_part_that_is_wrong() {
    let request = read_chat(HERMES, json!({"tool_choice": "required"})).expect("a chat");
    let form = request.form.expect("a form of calls");
    let refused = Error::value("a grammar", "one that can be compiled", "another one");
    let busy = || Error::busy("a JSON schema", "others are compiled");
    let mut calls = 0;
    let refusal = form.refusal(&busy(), |_| {
        calls += 1;
        Ok(())
    });
    assert_eq!((calls, refusal.param.as_deref(), refusal.status()), (0, Some("tool_choice"), 503));
    // The first part is busy, and the second one wrong.
    let refusal = form.refusal(&refused, |_| {
        calls += 1;
        Err(if calls == 1 { busy() } else { Error::value("a JSON schema", "a type", "strang") })
    });
    assert_eq!((calls, refusal.param.as_deref(), refusal.status()), (2, Some("tools"), 400));
    assert!(refusal.message.starts_with("`tools[1].function.parameters`"), "{}", refusal.message);
    let refusal = form.refusal(&refused, |_| Err(busy()));
    assert_eq!((refusal.param.as_deref(), refusal.status()), (Some("tool_choice"), 400));
}

/// A chat with two tools by this template, and these fields.
fn chat(template: &str, fields: Value) -> Result<ProtocolRequest, Refusal> {
    read_chat(template, fields).and_then(with_form)
}

/// The same as it is read, before its form is made.
fn read_chat(template: &str, fields: Value) -> Result<ProtocolRequest, Refusal> {
    let mut body = json!({"messages": messages("a"), "tools": [tool("look"), tool("wait")], "chat_template": template});
    body.as_object_mut().expect("an object").extend(object(fields));
    let read = |reader: &RequestReader<'_>| reader.encode(reader.read(Endpoint::Chat, &object(body))?);
    with_reader(&ProtocolLimits { streams: true, ..ProtocolLimits::BATCH }, read)
}

#[test]
fn which_calls_an_answer_may_and_must_make() {
    let form = |choice: Value| {
        let request = chat(HERMES, choice).unwrap_or_else(|refusal| panic!("{}", refusal.message));
        let grammar = request.params.form.as_ref().map(|form| match &*form.form {
            Form::Lark(text) => text.clone(),
            other => panic!("{other:?}"),
        });
        (request.calls.is_some(), grammar, request.form.map(|form| form.field()))
    };
    for choice in
        [json!({}), json!({"tool_choice": "auto"}), json!({"tool_choice": "auto", "parallel_tool_calls": true})]
    {
        assert_eq!(form(choice), (true, None, None));
    }
    assert_eq!(form(json!({"tool_choice": "none"})), (false, None, None));
    let (shows, grammar, field) = form(json!({"tool_choice": "required"}));
    let grammar = grammar.expect("a grammar");
    assert!(shows && field == Some("tool_choice") && grammar.contains("call)*"), "{grammar}");
    assert!(grammar.contains("look") && grammar.contains("wait"), "{grammar}");
    let one = form(json!({"tool_choice": "required", "parallel_tool_calls": false})).1.expect("a grammar");
    assert!(!one.contains("call)*") && one.contains("wait"), "{one}");
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "wait"}}});
    let named = form(named).1.expect("a grammar");
    assert!(named.contains("wait") && !named.contains("look") && !named.contains("call)*"), "{named}");
    // Another form holds where no call must be made.
    let format = json!({"type": "json_object"});
    let both = chat(HERMES, json!({"response_format": format, "tool_choice": "auto"})).expect("both");
    let form_of_both = both.params.form.as_ref().map(|form| (*form.form).clone());
    let Some(Form::Lark(grammar)) = &form_of_both else { panic!("{form_of_both:?}") };
    assert!(grammar.contains("look") && grammar.contains("content: ") && both.calls.is_some(), "{grammar}");
    assert_eq!(both.form.map(|form| form.field()), Some("response_format"));
    let alone = chat(HERMES, json!({"response_format": format, "tool_choice": "none"})).expect("alone");
    assert_eq!(alone.params.form.map(|form| (*form.form).clone()), Some(Form::JsonObject));
    // Where nothing tells calls from content, or the form is a grammar of its own, one of the two must go.
    for (template, fields, param) in [
        ("{{ messages }}{{ tools }}[assistant]", json!({"response_format": format}), "response_format"),
        ("{{ tools }}ipython \"parameters\"", json!({"response_format": format}), "response_format"),
        (HERMES, json!({"structured_outputs": {"regex": "a"}}), "structured_outputs.regex"),
    ] {
        let refusal = chat(template, fields).expect_err("they do not go together");
        assert_eq!(refusal.param.as_deref(), Some(param), "{}", refusal.message);
        assert!(refusal.message.contains("`tool_choice`"), "{}", refusal.message);
    }
    assert!(form(json!({"response_format": format, "tool_choice": "required"})).1.is_some());
    // A template of no known family.
    let unknown = "{{ messages }}{{ tools }}[assistant]";
    assert!(chat(unknown, json!({})).expect("auto").calls.is_none());
    assert!(chat(unknown, json!({"tool_choice": "required"})).expect("required").calls.is_some());
    // Calls begin behind the reasoning.
    let thinks = format!("{HERMES}<think>");
    let begin = chat(&thinks, json!({"tool_choice": "required"})).expect("required").params.form.map(|form| form.begin);
    assert_eq!(begin, Some(FormBegin::BehindReasoning { open: None, close: "</think>".to_owned() }));
    let channels = "{{ tools }}<|start|>user<|message|>a<|end|>{# <|channel|> #}<|start|>assistant";
    let begin =
        chat(channels, json!({"tool_choice": "required"})).expect("required").params.form.map(|form| form.begin);
    assert_eq!(begin, Some(FormBegin::AtOnce));
}

/// Schemas of tools are looked at where forms are compiled, not where bodies are read; and once for equal calls.
#[test]
fn schemas_of_tools_wait_until_forms_are_compiled() {
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    let bad = json!([{"type": "function", "function": {"name": "f", "parameters": endless}}]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": endless}});
    for fields in [
        json!({"tools": bad, "tool_choice": "required"}),
        json!({"tools": bad, "response_format": {"type": "json_object"}}),
        json!({"tools": [tool("look")], "response_format": format}),
    ] {
        let request = read_chat(HERMES, fields.clone()).unwrap_or_else(|refusal| panic!("{}", refusal.message));
        assert!(request.form.is_some() && request.params.form.is_none());
        assert_eq!(with_form(request).map(drop).expect_err("no finite texts").status(), 400, "{fields}");
    }
    let grammars = CallGrammars::default();
    let form = |fields: Value| {
        let form = read_chat(HERMES, fields).expect("a chat").form.expect("a form");
        form.sample_form(tokenizer(), &grammars, Instant::now() + COMPILE_WAIT).expect("a form of calls").form
    };
    let required = form(json!({"tool_choice": "required"}));
    let one = json!({"tool_choice": "required", "parallel_tool_calls": false});
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "wait"}}});
    let either = json!({"response_format": {"type": "json_object"}});
    let others = [one, named, either].map(form);
    assert!(others.iter().all(|other| *other != required));
    assert!(Arc::ptr_eq(&form(json!({"tool_choice": "required"})), &required), "it is made once");
    // A named tool's call needs no other tool's schema.
    let tools = json!([tool("look"), {"type": "function", "function": {"name": "f", "parameters": endless}}]);
    let look = json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "look"}}});
    assert!(chat(HERMES, look).is_ok());
}

#[test]
fn choices_that_cannot_be_are_refused_by_name() {
    for (fields, param) in [
        (json!({"tool_choice": "any"}), "tool_choice"),
        (json!({"tool_choice": 1}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "leave"}}}), "tool_choice"),
        (json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}), "tool_choice"),
        (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
        (json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}), "tools"),
        (json!({"tools": [tool("look"), tool("look")]}), "tools"),
        (json!({"tools": [tool("get weather")]}), "tools"),
        (json!({"tools": [tool("wetter:heute")]}), "tools"),
        (json!({"tools": [tool("")]}), "tools"),
        (json!({"tools": [tool(&"a".repeat(65))]}), "tools"),
    ] {
        let refusal = chat(HERMES, fields.clone()).err().unwrap_or_else(|| panic!("{fields}"));
        assert_eq!(refusal.param.as_deref(), Some(param), "{}", refusal.message);
    }
    assert!(chat(HERMES, json!({"tools": [tool("mcp-files.read_2"), tool(&"a".repeat(64))]})).is_ok());
    let refusal = chat(HERMES, json!({"tools": [tool("look"), tool("a b")]})).expect_err("no name");
    assert!(refusal.message.contains("`tools[1].function.name`"), "{}", refusal.message);
    // A parameter that the family's form cannot name matters where a call must be made.
    let coder = HERMES.replace("<tool_call>", "<tool_call><function=");
    let parameters = json!({"type": "object", "properties": {"a>b": {"type": "string"}}});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    assert!(chat(&coder, json!({"tools": tools})).is_ok());
    assert!(chat(HERMES, json!({"tools": tools, "tool_choice": "required"})).is_ok());
    let refusal = chat(&coder, json!({"tools": tools, "tool_choice": "required"})).expect_err("no such key");
    assert!(refusal.message.contains("`tools[0].function.parameters`"), "{}", refusal.message);
    // What its texts without quotes cannot hold, and what JSON could not hold either.
    for (schema, found) in [
        (json!({"type": "string", "pattern": "\\bword"}), "bword"),
        (json!({"type": "string", "minLength": 3, "maxLength": 2}), "minLength"),
        (json!({"type": "string", "not": {"const": "a"}}), "not"),
    ] {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        let tools = json!([tool("look"), {"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        let refusal = chat(&coder, json!({"tools": tools, "tool_choice": "required"})).expect_err("not held");
        assert_eq!(refusal.param.as_deref(), Some("tools"));
        assert!(refusal.message.contains("`tools[1].function.parameters`"), "{}", refusal.message);
        assert!(refusal.message.contains(found), "{}", refusal.message);
    }
    // No arguments have the schema, which matters where a call must be made.
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    let tools = json!([tool("look"), {"type": "function", "function": {"name": "f", "parameters": endless}}]);
    assert!(chat(HERMES, json!({"tools": tools})).is_ok());
    let refusal = chat(HERMES, json!({"tools": tools, "tool_choice": "required"})).expect_err("no finite arguments");
    assert!(refusal.message.contains("`tools[1].function.parameters`"), "{}", refusal.message);
    // Arguments are an object.
    for kind in [json!("string"), json!("strin"), json!(["array", "null"])] {
        let tools =
            json!([tool("look"), {"type": "function", "function": {"name": "f", "parameters": {"type": kind}}}]);
        let refusal = chat(HERMES, json!({"tools": tools, "tool_choice": "required"})).expect_err("no objects");
        assert_eq!(refusal.param.as_deref(), Some("tools"));
        assert!(refusal.message.contains("`tools[1].function.parameters`"), "{}", refusal.message);
    }
    // A schema that cannot be compiled is found by its tool.
    let required = chat(HERMES, json!({"tool_choice": "required"})).expect("required");
    let fields = required.form.expect("a form").part_fields();
    assert_eq!(fields, ["tools[0].function.parameters", "tools[1].function.parameters"]);
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "wait"}}});
    let named = chat(HERMES, named).expect("named").form.expect("a form").part_fields();
    assert_eq!(named, ["tools[1].function.parameters"]);
    let named = chat(HERMES, json!({"tool_choice": {"type": "function", "function": {"name": "leave"}}}));
    assert!(named.is_err_and(|refusal| refusal.message.contains("`look`, `wait`")));
}

/// What ends the turns of other texts may stand in a form that ends by itself.
#[test]
fn texts_in_a_form_do_not_end_at_the_stop_strings_of_chats() {
    let stops = |fields: Value| chat(HERMES, fields).expect("a chat").prompts[0].stop.strings.clone();
    assert!(!tokenizer().chat_stops().is_empty());
    assert_eq!(stops(json!({})), tokenizer().chat_stops());
    assert_eq!(stops(json!({"tool_choice": "required"})), Vec::<String>::new());
    for form in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"choice": ["a\n\nb"]}, "tools": null}),
        json!({"guided_regex": "a\n+", "tools": null}),
        json!({"guided_grammar": "start: /a\\n+/", "tools": null}),
    ] {
        assert_eq!(stops(form.clone()), Vec::<String>::new(), "{form}");
    }
    assert_eq!(stops(json!({"tool_choice": "required", "stop": "x"})), ["x"]);
}

const PARIS: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
const OSLO: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

/// The whole answer whose choices have these texts.
fn whole(request: &ProtocolRequest, texts: &[&str], reason: &FinishReason) -> Value {
    let drawn = texts.iter().map(|text| events(request, 0, &encode(text), reason.clone()).1).collect();
    let candidates = [PromptCandidates { drawn, ..PromptCandidates::default() }];
    serde_json::to_value(response(request, &candidates, &head(), tokenizer())).expect("it is JSON")
}

#[test]
fn answers_show_calls() {
    let request = chat(HERMES, json!({"n": 3})).expect("a chat");
    let both = format!("I look.\n{PARIS}\n{OSLO}");
    let answer = whole(&request, &[&both, PARIS, "It is warm."], &FinishReason::EndOfText);
    let choice = |index: usize| &answer["choices"][index];
    let message = |index: usize| &choice(index)["message"];
    assert_eq!(message(0)["content"], "I look.");
    let calls = message(0)["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["type"], "function");
    assert_eq!(calls[0]["function"], json!({"name": "look", "arguments": "{\"city\": \"Paris\"}"}));
    assert_eq!(calls[1]["function"]["arguments"], "{\"city\": \"Oslo\"}");
    assert_eq!((&message(1)["content"], message(1).get("content").is_some()), (&Value::Null, true));
    assert_eq!((&message(2)["content"], message(2).get("tool_calls")), (&json!("It is warm."), None));
    let reasons: Vec<&Value> = (0..3).map(|index| &choice(index)["finish_reason"]).collect();
    assert_eq!(reasons, ["tool_calls", "tool_calls", "stop"]);
    // Each call has its own id, which is the same whenever the answer is written.
    let ids = |answer: &Value| -> Vec<String> {
        let calls = answer["choices"].as_array().expect("choices").iter();
        let calls = calls.filter_map(|choice| choice["message"]["tool_calls"].as_array()).flatten();
        calls.map(|call| call["id"].as_str().expect("an id").to_owned()).collect()
    };
    let mut all = ids(&answer);
    assert!(all.iter().all(|id| id.starts_with("call_") && id.len() == 29), "{all:?}");
    assert_eq!(all, ids(&whole(&request, &[&both, PARIS, "It is warm."], &FinishReason::EndOfText)));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3);
    // A text that was cut, one call at most, and no calls at all.
    let cut = whole(&request, &[&PARIS[..50], PARIS, ""], &FinishReason::Length);
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\":");
    // A stop string cuts a call, or stands behind it.
    for (text, reason) in [(&PARIS[..50], "stop"), (&PARIS[..PARIS.len() - 12], "tool_calls")] {
        for ended in [FinishReason::StopString("x".to_owned()), FinishReason::StopToken(TokenId(7))] {
            let answer = whole(&request, &[text, "", ""], &ended);
            assert_eq!(answer["choices"][0]["finish_reason"], reason, "{text}");
            assert!(answer["choices"][0]["message"]["tool_calls"].is_array());
        }
    }
    let single = chat(HERMES, json!({"parallel_tool_calls": false})).expect("a chat");
    let answer = whole(&single, &[&both], &FinishReason::EndOfText);
    assert_eq!(answer["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
    let none = chat(HERMES, json!({"tool_choice": "none"})).expect("a chat");
    let answer = whole(&none, &[PARIS], &FinishReason::EndOfText);
    assert_eq!(answer["choices"][0]["message"]["content"], PARIS);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // Families whose templates demand short ids get them.
    let mistral = chat("{{ tools }}[TOOL_CALLS]", json!({})).expect("a chat");
    let text = "[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {}}]";
    let answer = whole(&mistral, &[text], &FinishReason::EndOfText);
    assert_eq!(ids(&answer).iter().map(String::len).collect::<Vec<_>>(), [9]);
}

/// The message that a client puts together from a choice's chunks, and why it ended.
fn joined(chunks: &[Value]) -> (Value, Value) {
    let (mut message, mut calls, mut reason) = (json!({}), BTreeMap::<u64, Value>::new(), Value::Null);
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let delta = choice["delta"].as_object().expect("a delta");
        assert!(!delta.is_empty() || !choice["finish_reason"].is_null(), "a chunk says something: {chunk}");
        for (key, value) in delta {
            match (key.as_str(), value) {
                ("tool_calls", Value::Array(parts)) => {
                    for part in parts {
                        let index = part["index"].as_u64().expect("an index");
                        let is_first = !calls.contains_key(&index);
                        assert_eq!(part.get("id").is_some(), is_first, "the first piece of a call has its id: {part}");
                        assert_eq!(part["function"].get("name").is_some(), is_first, "{part}");
                        let call = calls.entry(index).or_insert_with(|| part.clone());
                        if !is_first {
                            let more = part["function"]["arguments"].as_str().expect("a text");
                            let all = call["function"]["arguments"].as_str().expect("a text").to_owned() + more;
                            call["function"]["arguments"] = all.into();
                        }
                    }
                }
                (_, Value::String(text)) if message.get(key).is_some() => {
                    let all = message[key].as_str().expect("a text").to_owned() + text;
                    message[key] = all.into();
                }
                (_, value) => message[key] = value.clone(),
            }
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    let calls: Vec<Value> = calls
        .into_values()
        .map(|mut call| {
            call.as_object_mut().expect("an object").shift_remove("index");
            call
        })
        .collect();
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
        message.as_object_mut().expect("an object").entry("content").or_insert(Value::Null);
    }
    (message, reason)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The chunks of an answer with calls are the answer, however many tokens each chunk has.
    #[test]
    fn a_stream_has_the_calls_of_the_whole_answer(
        pieces in prop::collection::vec(prop::sample::select(vec![
            PARIS, OSLO, "\n", "So.", "<tool_call>", "{\"name\"", "<think>", "</think>", " ",
        ]), 0..6),
        steps in prop::collection::vec(1..9_usize, 1..4),
        splits in any::<bool>(),
    ) {
        let reasoning = if splits { "split" } else { "keep" };
        let request = Arc::new(chat(HERMES, json!({"stream": true, "reasoning": reasoning})).expect("a chat"));
        let text = pieces.concat();
        let (events, finish) = events(&request, 0, &encode(&text), FinishReason::EndOfText);
        let mut writer = ChunkWriter::new(request.clone(), &head(), tokenizer().clone());
        let mut out = Vec::new();
        let id = SampleId { prompt: 0, sample: 0 };
        let mut rest = &events[..];
        for &step in steps.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(step.min(rest.len()));
            let text: String = now.iter().map(|(_, text)| &**text).collect();
            writer.tokens(id, now.iter().map(|(token, _)| token.clone()).collect(), &text, &mut out);
            rest = later;
        }
        writer.finished(id, finish, None, &mut out);
        writer.end(&mut out);
        let (message, reason) = joined(&frames(&out));
        let answer = whole(&request, &[&text], &FinishReason::EndOfText);
        let mut expected = answer["choices"][0]["message"].clone();
        let fields = expected.as_object_mut().expect("an object");
        fields.shift_remove("refusal");
        if fields.get("reasoning_content") == Some(&json!("")) {
            fields.shift_remove("reasoning_content");
        }
        prop_assert_eq!(&message, &expected, "{}", text);
        prop_assert_eq!(&reason, &answer["choices"][0]["finish_reason"]);
    }
}

/// Arguments of earlier calls as a template takes them: as values, or as the texts that clients send.
#[test]
fn earlier_calls_reach_each_template_as_it_takes_them() {
    let function = json!({"name": "look", "arguments": "{\"a\": [1,2]}"});
    let call = json!({"id": "call_0123456789", "type": "function", "function": function});
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0123456789", "content": "7"},
    ]);
    let shown = |calls: &str| {
        let template = format!(
            "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{calls}{{% endfor %}}{{% endfor %}}\
             {{{{ tools }}}}"
        );
        let request =
            chat(&template, json!({"messages": messages})).unwrap_or_else(|refusal| panic!("{}", refusal.message));
        let text = request.prompts[0].text.clone();
        text[..text.find("[{").unwrap_or(text.len())].to_owned()
    };
    assert_eq!(shown("{{ c.function.arguments | tojson }}"), "{\"a\": [1, 2]}");
    assert_eq!(shown("{{ '<' + c.function.arguments + '>' }}"), "<{\"a\": [1,2]}>");
    assert_eq!(shown("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"), "a=[1, 2]");
    let mistral = "{% if c.id | length != 9 %}{{ raise_exception('short ids') }}{% endif %}{{ c.id }}";
    assert_eq!(shown(mistral), "123456789");
}
