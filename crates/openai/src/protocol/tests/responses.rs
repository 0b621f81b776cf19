//! Requests for responses as the chats that ask the same, and samples as the items of responses.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{AnswerHead, ResponseCall, ResponseWriter, Turn};
use super::streams::{Script, script};
use super::tools::HERMES;
use super::*;
use offshoot_text::reasoning::ReasoningSplitter;

const ID: &str = "resp_abc";

fn call(body: Value) -> Result<ResponseCall, Refusal> {
    ResponseCall::read(&object(body), ID, true)
}

/// The chat's messages behind these turns.
fn chat_messages(body: Value, turns: &[Turn]) -> Value {
    let call = call(body).unwrap_or_else(|refusal| panic!("{}", refusal.message));
    call.chat(turns).body["messages"].clone()
}

/// The request in tokens behind nothing, and its call.
fn asked(body: Value) -> (Arc<ResponseCall>, Arc<ProtocolRequest>) {
    let call = call(body).unwrap_or_else(|refusal| panic!("{}", refusal.message));
    let chat = call.chat([]);
    let limits = ProtocolLimits { templates: true, ..ProtocolLimits::default() };
    let read = |reader: &RequestReader<'_>| reader.encode_along(reader.read(Endpoint::Chat, &chat.body)?, &[]);
    let request = with_reader(&limits, read).unwrap_or_else(|refusal| panic!("{}", refusal.message));
    (Arc::new(call), Arc::new(request))
}

/// Why the request is refused, here or as a chat.
fn refused(body: Value) -> Refusal {
    let call = match call(body.clone()) {
        Ok(call) => call,
        Err(refusal) => return refusal,
    };
    let chat = call.chat([]);
    let special_text = offshoot_text::SpecialText::Refuse;
    let limits = ProtocolLimits { special_text, templates: true, ..ProtocolLimits::default() };
    let read = |reader: &RequestReader<'_>| reader.encode_along(reader.read(Endpoint::Chat, &chat.body)?, &[]);
    match with_reader(&limits, read) {
        Ok(_) => panic!("{body} is not refused"),
        Err(refusal) => chat.names.refusal(refusal),
    }
}

#[test]
fn a_request_is_the_chat_that_asks_the_same() {
    let function = json!({"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": true,
        "description": null});
    let body = json!({
        "model": "tuned", "input": "Hi", "instructions": "Be short.", "max_output_tokens": 7, "temperature": 0.5,
        "top_p": 0.9, "seed": 3, "top_k": 2, "stop": ["END"], "top_logprobs": 2,
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "text": {"format": {"type": "json_schema", "name": "sum", "strict": true, "schema": {"type": "object"}},
            "verbosity": "medium"},
        "reasoning": {"effort": "low", "summary": "auto"}, "tools": [function], "parallel_tool_calls": false,
        "tool_choice": {"type": "function", "name": "add"}, "stream": true, "metadata": {"a": "b"}, "user": "me",
        "truncation": "disabled", "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s",
        "background": false, "extra_body": {"min_p": 0.1},
    });
    let call = call(body).expect("all of it is supported");
    let schema = json!({"name": "sum", "strict": true, "schema": {"type": "object"}});
    let expected = json!({
        "model": "tuned", "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3, "top_k": 2,
        "stop": ["END"], "logprobs": true, "top_logprobs": 2,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "verbosity": "medium", "reasoning_effort": "low",
        "tools": [{"type": "function", "function":
            {"name": "add", "parameters": {"type": "object"}, "strict": true}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}}, "parallel_tool_calls": false, "stream": true,
        "min_p": 0.1, "keep": true, "reasoning": "split", "add_generation_prompt": true,
        "continue_final_message": false,
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
    });
    assert_eq!(Value::Object(call.chat([]).body), expected);
    assert!(call.is_stored && call.shows_logprobs);
    // Nothing is kept where it may not be, or shall not be.
    for (body, can_store) in [(json!({"input": "a", "store": false}), true), (json!({"input": "a"}), false)] {
        let call = ResponseCall::read(&object(body), ID, can_store).expect("it is a request");
        assert!(!call.is_stored && !call.chat([]).body.contains_key("keep"));
    }
}

#[test]
fn what_is_not_there_is_refused_by_its_own_name() {
    let rows = [
        (json!({}), "input", "`input`: expected a text or a list of items, found nothing"),
        (json!({"input": 1}), "input", "`input`: expected"),
        (json!({"input": []}), "input", "`input`: expected"),
        (json!({"input": [1]}), "input", "`input[0]`: expected an object"),
        (json!({"input": [{"role": "tool", "content": "a"}]}), "input", "`input[0].role`: expected one of"),
        (json!({"input": [{"role": "user"}]}), "input", "`input[0].content`: expected a text"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input",
            "`input[0].content[0]`: parts are texts here, and \"input_image\" is not supported",
        ),
        (json!({"input": [{"type": "web_search_call"}]}), "input", "`input[0]`: the item type \"web_search_call\""),
        (json!({"input": [{"type": "item_reference", "id": "a"}]}), "input", "`input[0]`: the item type"),
        (json!({"input": [{"type": "function_call", "name": "a"}]}), "input", "`input[0].call_id`: expected a string"),
        (json!({"input": "a", "background": true}), "background", "`background` is an official field"),
        (json!({"input": "a", "conversation": "c"}), "conversation", "`conversation` is an official field"),
        (json!({"input": "a", "prompt": {"id": "p"}}), "prompt", "`prompt` is an official field"),
        (json!({"input": "a", "max_tool_calls": 1}), "max_tool_calls", "`max_tool_calls` is an official field"),
        (json!({"input": "a", "truncation": "auto"}), "truncation", "`truncation` is an official field"),
        (json!({"input": "a", "tools": [{"type": "web_search"}]}), "tools", "`tools[0]`: tools are functions here"),
        (json!({"input": "a", "tools": [{"type": "function"}]}), "tools", "`tools[0]`: expected a function"),
        (json!({"input": "a", "tool_choice": {"type": "web_search"}}), "tool_choice", "`tool_choice`: expected"),
        (json!({"input": "a", "include": ["x"]}), "include", "`include`: expected a list of"),
        (json!({"input": "a", "text": {"format": {"type": "xml"}}}), "text.format", "`text.format`: expected"),
        (json!({"input": "a", "text": {"form": 1}}), "text.form", "`text.form` is not a field"),
        (json!({"input": "a", "reasoning": {"effort": 1}}), "reasoning.effort", "`reasoning.effort`: expected"),
        (json!({"input": "a", "messages": []}), "messages", "`messages` is not a field"),
        (json!({"input": "a", "n": 2}), "n", "`n` is not a field"),
        (json!({"input": "a", "nonsense": 2}), "nonsense", "`nonsense` is not a field"),
        // Found by the chat.
        (json!({"input": "a", "max_output_tokens": 0}), "max_output_tokens", "`max_output_tokens`: expected"),
        (
            json!({"input": "a", "text": {"format": {"type": "json_object"}}, "structured_outputs": {"choice": ["a"]}}),
            "structured_outputs.choice",
            "`structured_outputs.choice` is not supported beside `text.format`",
        ),
        (json!({"input": "a", "text": {"verbosity": "low"}}), "text.verbosity", "`text.verbosity` is an official"),
        (json!({"input": "a", "temperature": -1}), "temperature", "`temperature`: expected"),
        (
            json!({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "<|end_of_text|>"}]}),
            "input",
            "`input[1]`: expected a text without special tokens",
        ),
        (
            json!({"input": "a", "instructions": "<|end_of_text|>"}),
            "instructions",
            "`instructions`: expected a text without special tokens",
        ),
        (json!({"input": "a ".repeat(9000)}), "input", "This model's maximum context length"),
    ];
    for (body, param, message) in rows {
        let refusal = refused(body.clone());
        assert_eq!(refusal.param.as_deref(), Some(param), "{body}: {}", refusal.message);
        assert!(refusal.message.starts_with(message), "{body}: {}", refusal.message);
    }
}

#[test]
fn items_are_messages() {
    let items = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "user", "content": "Add."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content":
            [{"type": "output_text", "text": "So:", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": ""},
        {"type": "function_call", "call_id": "c3", "name": "add", "arguments": "{\"a", "status": "incomplete"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Done?"}], "encrypted_content": "x"},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]);
    let two = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let called = |id: &str, arguments: &str| {
        let function = json!({"name": "add", "arguments": arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    let expected = json!([
        {"role": "developer", "content": two},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "So:", "reasoning_content": "Hm.",
            "tool_calls": [called("c1", "{\"a\": 1}"), called("c2", "")]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
        {"role": "assistant", "content": "Done.", "reasoning_content": "Done?"},
        {"role": "assistant", "content": "No."},
    ]);
    assert_eq!(chat_messages(json!({ "input": items }), &[]), expected);
}

/// Outputs of calls that nobody made, and calls that nobody answers: in the request's own items or in earlier turns.
#[test]
fn calls_without_outputs_and_outputs_without_calls_are_refused() {
    let called = |id: &str| json!({"type": "function_call", "call_id": id, "name": "add", "arguments": "{}"});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "7"});
    let said = json!({"role": "user", "content": "a"});
    let refusal = |turns: &[Turn], input: Value| {
        let call = call(json!({ "input": input })).unwrap_or_else(|refusal| panic!("{}", refusal.message));
        let mut chat = call.chat(turns);
        chat.body.insert("chat_template".to_owned(), json!("{{ messages }}"));
        let limits = ProtocolLimits { templates: true, ..ProtocolLimits::default() };
        let read = |reader: &RequestReader<'_>| reader.encode_along(reader.read(Endpoint::Chat, &chat.body)?, &[]);
        let refusal = with_reader(&limits, read).err().map(|refusal| chat.names.refusal(refusal))?;
        assert_eq!(refusal.status(), 400);
        Some((refusal.param.unwrap_or_default(), refusal.message))
    };
    let named = |field: &str, message: &str| Some((field.to_owned(), message.to_owned()));
    let open = "expected an answer to the call \"x\" behind it, found none";
    assert_eq!(refusal(&[], json!([said, called("x"), said, output("x")])), None);
    assert_eq!(refusal(&[], json!([said, called("x"), said])), named("input", &format!("`input[1]`: {open}")));
    assert_eq!(refusal(&[], json!([said, called("x")])), named("input", &format!("`input[1]`: {open}")));
    let unmade = "`input[1]`: expected the id of a call before it, found \"x\"";
    assert_eq!(refusal(&[], json!([said, output("x")])), named("input", unmade));
    let turn = |items: Value| [Turn { input: vec![said.clone()], response: json!({ "output": items }) }];
    assert_eq!(refusal(&turn(json!([called("x")])), json!([output("x")])), None);
    let earlier = format!("`previous_response_id`, an item of its conversation: {open}");
    assert_eq!(refusal(&turn(json!([called("x")])), json!([said])), named("previous_response_id", &earlier));
    // One that was cut was not made.
    let mut cut = called("x");
    cut["status"] = "incomplete".into();
    assert_eq!(refusal(&turn(json!([cut])), json!([said])), None);
    assert!(refusal(&turn(json!([cut])), json!([output("x")])).is_some());
}

#[test]
fn a_response_goes_on_from_earlier_turns_under_its_own_instructions() {
    let said = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]});
    let first = call(json!({"input": "One?", "instructions": "Be short."})).expect("it is a request");
    let turn = Turn { input: first.input, response: json!({ "output": [said] }) };
    let body = json!({"input": "Two?", "instructions": "Be long.", "previous_response_id": "resp_1"});
    let expected = json!([
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Two?"},
    ]);
    assert_eq!(chat_messages(body, &[turn]), expected);
}

/// Every item has an id of its own, and a content that is a list, as lists of items show them.
#[test]
fn items_of_the_input_have_ids() {
    let items = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "id": "mine"}]);
    let call = call(json!({ "input": items })).expect("it is a request");
    let expected = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "a"}], "status": "completed", "type": "message",
            "id": "msg_abc_in0"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}], "id": "mine",
            "status": "completed", "type": "message"},
    ]);
    assert_eq!(json!(call.input), expected);
}

fn head() -> AnswerHead {
    AnswerHead { id: ID.to_owned(), created: 7, ..AnswerHead::default() }
}

/// The response to a sample as a whole.
fn whole(asked: &(Arc<ResponseCall>, Arc<ProtocolRequest>), finish: &Finish) -> Value {
    let mut writer = ResponseWriter::of_whole(asked.0.clone(), asked.1.clone(), head(), tokenizer().clone());
    let mut out = Vec::new();
    writer.finished(finish, &mut out);
    let response = writer.end(2, 9, &mut out);
    assert!(out.is_empty(), "no events are written");
    response
}

/// The events of a sample: the writer hears of so many tokens at a time.
fn streamed(asked: &(Arc<ResponseCall>, Arc<ProtocolRequest>), script: &Script, together: &[usize]) -> Vec<Value> {
    let mut writer = ResponseWriter::of_stream(asked.0.clone(), asked.1.clone(), head(), tokenizer().clone());
    let mut out = Vec::new();
    writer.begin(&mut out);
    let (events, finish) = events(&asked.1, 0, &script.tokens, script.end.clone());
    let mut events = &events[..];
    for &count in together.iter().cycle() {
        let (now, later) = events.split_at(count.min(events.len()));
        let (tokens, texts): (Vec<SampledToken>, Vec<String>) = now.iter().cloned().unzip();
        writer.tokens(tokens, &texts.concat(), &mut out);
        events = later;
        if events.is_empty() {
            break;
        }
    }
    writer.finished(&finish, &mut out);
    writer.end(2, 9, &mut out);
    let text = String::from_utf8(out).expect("UTF-8");
    text.split_terminator("\n\n")
        .map(|frame| {
            let (name, data) = frame.split_once('\n').expect("two lines");
            let event: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(name, format!("event: {}", event["type"].as_str().expect("a text")));
            event
        })
        .collect()
}

/// The items that a client puts together from events. Checks their order.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let mut logprobs = json!([]);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let kind = event["type"].as_str().expect("a text");
        if kind == "response.output_item.added" {
            assert_eq!(event["output_index"], items.len());
            assert!(items.last().is_none_or(|item| item["status"] == "closed"), "one item at a time");
            items.push(event["item"].clone());
            logprobs = json!([]);
            continue;
        }
        let Some(item) = items.last_mut().filter(|_| event.get("output_index").is_some()) else { continue };
        assert_eq!(event.get("item_id").unwrap_or(&event["item"]["id"]), &item["id"]);
        match kind {
            "response.function_call_arguments.delta" => {
                let text = item["arguments"].as_str().expect("a text").to_owned();
                item["arguments"] = (text + event["delta"].as_str().expect("a text")).into();
            }
            "response.function_call_arguments.done" => {
                assert_eq!((&event["arguments"], &event["name"]), (&item["arguments"], &item["name"]));
            }
            "response.content_part.added" => item["content"] = json!([event["part"]]),
            "response.reasoning_text.delta" | "response.output_text.delta" => {
                let text = item["content"][0]["text"].as_str().expect("a text").to_owned();
                item["content"][0]["text"] = (text + event["delta"].as_str().expect("a text")).into();
                let more = event.get("logprobs").and_then(Value::as_array).cloned().unwrap_or_default();
                logprobs.as_array_mut().expect("a list").extend(more);
            }
            "response.reasoning_text.done" | "response.output_text.done" => {
                assert_eq!(event["text"], item["content"][0]["text"]);
                assert_eq!(event.get("logprobs").unwrap_or(&json!([])), &logprobs);
            }
            "response.content_part.done" => assert_eq!(event["part"]["text"], item["content"][0]["text"]),
            "response.output_item.done" => {
                assert_eq!(event["item"]["content"][0]["text"], item["content"][0]["text"]);
                assert_eq!(event["item"].get("arguments"), item.get("arguments"));
                item["status"] = "closed".into();
            }
            other => panic!("{other}"),
        }
    }
    items
}

proptest! {
    #[test]
    fn events_together_are_the_whole_response(
        script in script(),
        together in proptest::collection::vec(1..4_usize, 1..5),
        thinks in any::<bool>(),
        logprobs in any::<bool>(),
        stops in any::<bool>(),
    ) {
        let include = if logprobs { json!(["message.output_text.logprobs"]) } else { json!([]) };
        let stop = if stops { json!(["END"]) } else { Value::Null };
        let body = json!({
            "input": "Hé", "stop": stop, "stream": true, "include": include, "top_logprobs": 1,
            "chat_template_kwargs": { "thinks": thinks },
        });
        let asked = asked(body);
        let (_, finish) = events(&asked.1, 0, &script.tokens, script.end.clone());
        let whole = whole(&asked, &finish);
        let events = streamed(&asked, &script, &together);
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        prop_assert_eq!(&kinds[..2], &["response.created", "response.in_progress"]);
        let last = events.last().expect("an end");
        prop_assert_eq!(&last["response"], &whole);
        prop_assert_eq!(&last["type"], &json!(format!("response.{}", whole["status"].as_str().expect("a text"))));
        let texts = |items: &[Value]| -> Vec<(Value, Value)> {
            items.iter().map(|item| (item["type"].clone(), item["content"][0]["text"].clone())).collect()
        };
        let output = whole["output"].as_array().expect("a list");
        prop_assert_eq!(texts(&joined(&events)), texts(output));
        prop_assert!(!output.is_empty());
        // The items are the text, but for its marks and for parts of white space alone.
        let split = ReasoningSplitter::new(asked.1.prompts[0].start.clone()).push_last(&finish.text);
        let expected = [("reasoning", split.reasoning), ("message", split.content)];
        let expected: Vec<(Value, Value)> = expected
            .into_iter()
            .filter(|(_, text)| !text.trim().is_empty())
            .map(|(kind, text)| (kind.into(), text.into()))
            .collect();
        if !expected.is_empty() {
            prop_assert_eq!(texts(output), expected);
        }
        // Each log-probability is of a token of the message, in order.
        if let Some(message) = output.iter().find(|item| item["type"] == "message").filter(|_| logprobs) {
            let list = message["content"][0]["logprobs"].as_array().expect("a list");
            let bytes: Vec<u8> = list
                .iter()
                .flat_map(|token| token["bytes"].as_array().expect("bytes").iter())
                .map(|byte| byte.as_u64().expect("a byte") as u8)
                .collect();
            let text = message["content"][0]["text"].as_str().expect("a text");
            if !text.contains('\u{fffd}') && !stops {
                let shown = String::from_utf8_lossy(&bytes).replace("<|end_of_text|>", "");
                prop_assert!(text.ends_with(&shown) || shown.contains('\u{fffd}'), "{text:?} {shown:?}");
            }
        }
    }
}

#[test]
fn a_response_has_reasoning_and_a_message_with_their_tokens() {
    let body = json!({
        "input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 50,
        "metadata": {"a": "b"}, "temperature": 0.7, "chat_template_kwargs": { "thinks": true },
    });
    let asked = asked(body);
    let (thought, said) = (" a b", " c d");
    let tokens = [encode(thought), encode("</think>"), encode(said)];
    let (_, finish) = events(&asked.1, 0, &tokens.concat(), FinishReason::EndOfText);
    let response = whole(&asked, &finish);
    let output = &response["output"];
    assert_eq!(
        output[0],
        json!({"id": "rs_abc_0", "type": "reasoning", "summary": [], "encrypted_content": null, "status": "completed",
            "content": [{"type": "reasoning_text", "text": thought}]})
    );
    let message = &output[1];
    assert_eq!(
        (&message["id"], &message["role"], &message["status"], &message["content"][0]["text"]),
        (&json!("msg_abc_1"), &json!("assistant"), &json!("completed"), &json!(said))
    );
    let logprobs = message["content"][0]["logprobs"].as_array().expect("a list");
    let names: Vec<&str> = logprobs.iter().filter_map(|token| token["token"].as_str()).collect();
    assert_eq!(names.concat(), said);
    assert_eq!(logprobs[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    let sampled = tokens.concat().len() + 1;
    let prompt = asked.1.prompts[0].tokens.len();
    let usage = json!({
        "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": sampled, "output_tokens_details": {"reasoning_tokens": tokens[0].len()},
        "total_tokens": prompt + sampled,
    });
    assert_eq!(response["usage"], usage);
    let expected = json!({
        "id": ID, "object": "response", "created_at": 7, "completed_at": 9, "status": "completed", "error": null,
        "incomplete_details": null, "model": "demo", "temperature": 0.7, "top_p": 1.0, "metadata": {"a": "b"},
        "max_output_tokens": 50, "parallel_tool_calls": true, "tools": [], "tool_choice": "auto", "store": true,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null}, "top_logprobs": 2, "instructions": null,
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&response[field], value, "{field}");
    }
}

#[test]
fn a_response_says_why_it_is_not_complete() {
    let asked = asked(json!({"input": "Hi"}));
    let limit = json!({"reason": "max_output_tokens"});
    let because = |word: &str| json!({"reason": "max_output_tokens", "stop_reason": word});
    let rows = [
        (FinishReason::EndOfText, "completed", "completed", json!(null), false),
        (FinishReason::StopToken(TokenId(9)), "completed", "completed", json!(null), false),
        (FinishReason::Length, "incomplete", "incomplete", limit.clone(), false),
        (FinishReason::ContextFull, "incomplete", "incomplete", limit.clone(), false),
        (FinishReason::OutOfTime, "incomplete", "incomplete", because("cancelled"), false),
        (FinishReason::DeadEnd, "incomplete", "incomplete", because("dead_end"), false),
        (FinishReason::FormLimit, "incomplete", "incomplete", because("form_limit"), false),
        (FinishReason::Aborted, "failed", "incomplete", json!(null), true),
    ];
    for (reason, status, of_item, details, fails) in rows {
        let (_, finish) = events(&asked.1, 0, &encode(" a"), reason.clone());
        let response = whole(&asked, &finish);
        assert_eq!((&response["status"], &response["output"][0]["status"]), (&json!(status), &json!(of_item)));
        assert_eq!((&response["incomplete_details"], response["error"].is_object()), (&details, fails), "{reason:?}");
        assert_eq!(response.get("completed_at").is_some(), status == "completed");
    }
}

/// A prompt's tokens behind a branch: its own as far as the text agrees.
#[test]
fn a_prompt_begins_with_the_tokens_that_were_kept() {
    let template = "{% for m in messages %}{{ bos_token if loop.first }}[{{ m.role }}]{{ m.content }}{{ eos_token }}\
        {% endfor %}[assistant]";
    let limits = ProtocolLimits { templates: true, ..ProtocolLimits::default() };
    for special in ["allow", "escape"] {
        let turn = |messages: Value, kept: &[TokenId]| {
            let body = json!({ "messages": messages, "chat_template": template, "special_tokens_in_text": special });
            let read = |reader: &RequestReader<'_>| {
                reader.encode_along(reader.read(Endpoint::Chat, &object(body.clone()))?, kept)
            };
            let request = with_reader(&limits, read).unwrap_or_else(|refusal| panic!("{}", refusal.message));
            request.prompts[0].tokens.clone()
        };
        let user = json!({"role": "user", "content": "a <|end_of_text|> b"});
        let said = |text: &str| json!([user, {"role": "assistant", "content": text}, {"role": "user", "content": "c"}]);
        let first = turn(json!([user]), &[]);
        // Spelt by other tokens than the tokenizer's.
        let spelt: Vec<TokenId> = ["Q", "u", "e", "stion"].iter().flat_map(|text| encode(text)).collect();
        assert_ne!(spelt, encode("Question"), "the tokenizer joins them");
        let kept = [first.clone(), spelt].concat();
        let next = turn(said("Question"), &kept);
        assert!(next.starts_with(&kept), "{special}");
        let text = |tokens: &[TokenId]| tokenizer().decode_with_special(tokens);
        assert_eq!(text(&next), text(&turn(said("Question"), &[])), "{special}");
        // The template shows the answer in another way: all is as if nothing had been kept.
        assert_eq!(turn(said("Quest"), &kept), turn(said("Quest"), &[]), "{special}");
        assert_eq!(turn(said("Question"), &encode("nothing")), turn(said("Question"), &[]), "{special}");
    }
}

/// A function as a response has it.
fn function(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!({"type": "function", "name": name, "parameters": parameters, "strict": null})
}

#[test]
fn calls_are_items_and_go_back_as_they_were() {
    let tools = json!([function("look"), function("wait")]);
    let asked = asked(json!({"input": "Hi", "tools": tools, "chat_template": HERMES}));
    let call = |name: &str, city: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>")
    };
    let text = format!("I look.\n{}\n{}", call("look", "Ulm"), call("wait", "Rom"));
    let script = Script { tokens: encode(&text), end: FinishReason::EndOfText };
    let (_, finish) = events(&asked.1, 0, &script.tokens, script.end.clone());
    let whole = whole(&asked, &finish);
    let output = whole["output"].as_array().expect("a list");
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call"], "{whole}");
    assert_eq!(output[0]["content"][0]["text"].as_str().map(str::trim), Some("I look."));
    let arguments =
        |item: &Value| -> Value { serde_json::from_str(item["arguments"].as_str().expect("a text")).expect("JSON") };
    assert_eq!((&output[1]["name"], arguments(&output[1])), (&json!("look"), json!({"city": "Ulm"})));
    assert_eq!((&output[2]["name"], arguments(&output[2])), (&json!("wait"), json!({"city": "Rom"})));
    assert_ne!(output[1]["call_id"], output[2]["call_id"]);
    assert!(output.iter().all(|item| item["status"] == "completed"));
    for together in 1..5 {
        let events = streamed(&asked, &script, &[together]);
        assert_eq!(events.last().expect("an end")["response"], whole);
        let joined = joined(&events);
        for (joined, item) in joined.iter().zip(output) {
            let fields = ["type", "id", "name", "call_id", "arguments"];
            assert!(fields.iter().all(|field| joined.get(*field) == item.get(*field)), "{joined} {item}");
        }
        assert_eq!(joined.len(), output.len());
    }
    // The calls and their outputs are messages of the next chat.
    let turn = Turn { input: asked.0.input.clone(), response: whole.clone() };
    let outputs: Vec<Value> = output[1..]
        .iter()
        .map(|item| json!({"type": "function_call_output", "call_id": item["call_id"], "output": "sun"}))
        .collect();
    let messages = chat_messages(json!({"input": outputs, "previous_response_id": "resp_1"}), &[turn]);
    let roles: Vec<&Value> = messages.as_array().expect("a list").iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
    assert_eq!(messages[1]["tool_calls"][1]["function"]["name"], "wait");
    assert_eq!(messages[1]["tool_calls"][1]["id"], messages[3]["tool_call_id"]);
}

#[test]
fn a_call_that_must_be_made_is_named_as_the_request_has_it() {
    let body = |choice: Value| {
        json!({
            "input": "a", "tools": [function("look")], "tool_choice": choice, "chat_template": HERMES,
        })
    };
    let named = refused(body(json!({"type": "function", "name": "fly"})));
    assert_eq!(named.param.as_deref(), Some("tool_choice"));
    assert!(
        named.message.starts_with("`tool_choice.name`: expected the name of one of the tools"),
        "{}",
        named.message
    );
    let none = refused(json!({"input": "a", "tool_choice": "required"}));
    assert_eq!(none.param.as_deref(), Some("tool_choice"));
    // The usual values ask for nothing where there are no tools.
    asked(json!({"input": "a", "tool_choice": "auto", "parallel_tool_calls": true}));
}
