//! `/v1/responses` with the bundled model: whole and as events, kept and gone on from.

use serde_json::{Value, json};

use crate::protocol::served_with_keys;
use crate::served::{Served, joined};

const FIRST: &str = "Mia has 3 pens and buys 4 more. How many pens does Mia have now?";
const SECOND: &str = "Tom has 5 cups and gives 2 away. How many cups does Tom have now?";

fn ask(served: &Served, fields: Value) -> Value {
    let body = joined(&json!({"temperature": 0}), fields);
    served.post("/v1/responses", &body).succeeds()
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

/// The events of a response.
fn events(served: &Served, fields: Value) -> Vec<Value> {
    let body = joined(&json!({"temperature": 0, "stream": true}), fields);
    let answer = served.post("/v1/responses", &body);
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"));
    answer
        .text
        .lines()
        .filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).expect("JSON")))
        .collect()
}

#[test]
fn a_response_answers_as_a_chat_does() {
    let served = Served::start(&[]);
    let chat = json!({"messages": [{"role": "user", "content": FIRST}], "temperature": 0, "logprobs": true});
    let chat = served.post("/v1/chat/completions", &chat).succeeds();
    let include = json!(["message.output_text.logprobs"]);
    let response = ask(&served, json!({"input": FIRST, "include": include, "metadata": {"a": "b"}}));
    assert_eq!(text(&response), chat["choices"][0]["message"]["content"]);
    assert_eq!((&response["status"], &response["object"]), (&json!("completed"), &json!("response")));
    assert_eq!(response["metadata"], json!({"a": "b"}));
    let usage = |answer: &Value, name: &str| answer["usage"][name].as_u64().expect("a number");
    assert_eq!(usage(&response, "output_tokens"), usage(&chat, "completion_tokens"));
    assert_eq!(usage(&response, "input_tokens"), usage(&chat, "prompt_tokens"));
    // Those of the stop string are not of the text.
    let names = |list: &Value| -> Vec<Value> {
        list.as_array().expect("a list").iter().map(|token| token["token"].clone()).collect()
    };
    let (own, all) = (&response["output"][0]["content"][0]["logprobs"], &chat["choices"][0]["logprobs"]["content"]);
    assert!(names(all).starts_with(&names(own)) && !names(own).is_empty());
    assert_eq!(names(own).iter().filter_map(Value::as_str).collect::<String>(), text(&response));

    let events = events(&served, json!({"input": FIRST}));
    let last = events.last().expect("an end");
    assert_eq!((&last["type"], text(&last["response"])), (&json!("response.completed"), text(&response)));
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(deltas.filter_map(|event| event["delta"].as_str()).collect::<String>(), text(&response));

    let cut = ask(&served, json!({"input": FIRST, "max_output_tokens": 3}));
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"], &cut["usage"]["output_tokens"]),
        (&json!("incomplete"), &json!("max_output_tokens"), &json!(3))
    );
    let counted = served.post("/v1/responses/input_tokens", &json!({"input": FIRST})).succeeds();
    assert_eq!(counted["input_tokens"], response["usage"]["input_tokens"]);
    assert_eq!(served.metric("offshoot_requests_answered_total"), 4.0);
}

/// A long answer is written beside the connections, and says the same: in one piece, as events, and when it is asked
/// for again.
#[test]
fn a_long_response_is_the_same_wherever_it_is_written() {
    let served = Served::start(&[]);
    let include = json!(["message.output_text.logprobs"]);
    let asks = json!({"input": FIRST, "include": include, "top_logprobs": 20, "max_output_tokens": 400,
        "ignore_eos": true, "seed": 2});
    let whole = ask(&served, asks.clone());
    let logprobs = |part: &Value| part["logprobs"].as_array().map_or(0, Vec::len);
    let all = logprobs(&whole["output"][0]["content"][0]);
    assert!(all > 200, "{all}");
    let events = events(&served, asks);
    let last = &events.last().expect("an end")["response"];
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], index, "{}", event["type"]);
    }
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).cloned().collect::<Vec<Value>>();
    let deltas: usize = of("response.output_text.delta").iter().map(logprobs).sum();
    let (texts, parts, items) =
        (of("response.output_text.done"), of("response.content_part.done"), of("response.output_item.done"));
    assert_eq!((deltas, texts.len(), parts.len(), items.len()), (all, 1, 1, 1));
    assert_eq!(texts[0]["logprobs"], parts[0]["part"]["logprobs"]);
    assert_eq!(items[0]["item"]["content"], json!([parts[0]["part"]]));
    assert_eq!(last["output"], json!([items[0]["item"]]));
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    let path = format!("/v1/responses/{}", last["id"].as_str().expect("an id"));
    assert_eq!(served.get(&path).succeeds(), *last);
    let items = served.get(&format!("{path}/input_items")).succeeds();
    assert_eq!(items["data"][0]["content"][0]["text"], FIRST);
}

/// What was said is not computed again, and the answer is that to the whole conversation.
#[test]
fn a_conversation_goes_on_from_its_response() {
    let served = Served::start(&[]);
    let computed = || served.metric("offshoot_engine_prompt_tokens_computed_total");
    for streams in [false, true] {
        let first = match streams {
            false => ask(&served, json!({"input": FIRST})),
            true => events(&served, json!({"input": FIRST})).pop().expect("an end")["response"].clone(),
        };
        let before = computed();
        let next = ask(&served, json!({"input": SECOND, "previous_response_id": first["id"]}));
        let new = computed() - before;
        let tokens = |response: &Value, field: &str| response["usage"][field].as_f64().expect("a number");
        let own = tokens(&next, "input_tokens") - tokens(&first, "input_tokens") - tokens(&first, "output_tokens");
        assert!(own > 0.0 && new <= own + 1.0, "{new} were computed of {own} that are new");
        let cached = next["usage"]["input_tokens_details"]["cached_tokens"].as_f64().expect("a number");
        assert!(cached >= tokens(&next, "input_tokens") - own - 1.0, "{cached}");
        let resent = json!([
            {"role": "user", "content": FIRST},
            {"role": "assistant", "content": text(&first)},
            {"role": "user", "content": SECOND},
        ]);
        let resent = ask(&served, json!({ "input": resent, "store": false }));
        assert_eq!((text(&next), tokens(&next, "input_tokens")), (text(&resent), tokens(&resent, "input_tokens")));
        let third = ask(&served, json!({"input": FIRST, "previous_response_id": next["id"]}));
        assert_eq!(third["previous_response_id"], next["id"]);

        let path = format!("/v1/responses/{}", third["id"].as_str().expect("a text"));
        assert_eq!(served.get(&path).succeeds(), third);
        let page = |query: &str| served.get(&format!("{path}/input_items?{query}")).succeeds();
        let all = page("order=asc&limit=100");
        let said: Vec<&str> = all["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|item| item["content"][0]["text"].as_str().expect("a text"))
            .collect();
        assert_eq!(said, [FIRST, text(&first), SECOND, text(&next), FIRST]);
        let latest = page("limit=2");
        assert_eq!(
            (latest["data"][0]["id"].clone(), &latest["has_more"]),
            (all["data"][4]["id"].clone(), &json!(true))
        );
        let after = page(&format!("limit=2&after={}", latest["last_id"].as_str().expect("a text")));
        assert_eq!(after["data"][0], all["data"][2]);
    }
}

#[test]
fn a_response_that_is_gone_is_not_found() {
    let mut served = served_with_keys(&["mine", "yours"]);
    served.set_key("mine");
    let ask_after = |served: &Served, id: &Value| {
        served.post("/v1/responses", &json!({"input": SECOND, "previous_response_id": id, "max_output_tokens": 2}))
    };
    let gone = |served: &Served, id: &Value| {
        let expected = ("previous_response_not_found".to_owned(), json!("previous_response_id"));
        assert_eq!(ask_after(served, id).refused(404), expected);
        let path = format!("/v1/responses/{}", id.as_str().expect("a text"));
        for answer in [served.get(&path), served.delete(&path), served.get(&format!("{path}/input_items"))] {
            assert_eq!(answer.refused(404).0, "not_found");
        }
    };
    let short = json!({"input": FIRST, "max_output_tokens": 4});
    let unstored = ask(&served, joined(&short, json!({"store": false})));
    assert_eq!((&unstored["store"], served.metric("offshoot_branches_kept")), (&json!(false), 0.0));
    gone(&served, &unstored["id"]);

    let stored = ask(&served, short.clone());
    assert_eq!(served.metric("offshoot_responses_kept"), 1.0);
    assert!(served.metric("offshoot_responses_kept_bytes") > 100.0);
    served.set_key("yours");
    gone(&served, &stored["id"]);
    served.set_key("mine");
    ask_after(&served, &stored["id"]).succeeds();
    let path = format!("/v1/responses/{}", stored["id"].as_str().expect("a text"));
    let deleted = json!({"id": stored["id"], "object": "response", "deleted": true});
    assert_eq!(served.delete(&path).succeeds(), deleted);
    gone(&served, &stored["id"]);

    let brief = ask(&served, joined(&short, json!({"keep_seconds": 0.2})));
    served.wait_for("offshoot_responses_kept", 1.0);
    gone(&served, &brief["id"]);
}

/// A client that keeps as many branches as it may loses its oldest response, not the new one.
#[test]
fn new_responses_take_the_place_of_old_ones() {
    let served = Served::start(&["--max-kept", "2"]);
    let short = json!({"input": FIRST, "max_output_tokens": 2});
    let ids: Vec<Value> = (0..3).map(|_| ask(&served, short.clone())["id"].clone()).collect();
    let path = |id: &Value| format!("/v1/responses/{}", id.as_str().expect("a text"));
    assert_eq!(served.get(&path(&ids[0])).refused(404).0, "not_found");
    // Used now: the other one is older.
    served.get(&path(&ids[1])).succeeds();
    ask(&served, short.clone());
    served.get(&path(&ids[1])).succeeds();
    assert_eq!(served.get(&path(&ids[2])).refused(404).0, "not_found");
    assert_eq!(served.metric("offshoot_responses_kept"), 2.0);

    let none = Served::start(&["--max-kept", "0"]);
    assert_eq!(ask(&none, short)["store"], false);
}

#[test]
fn a_bad_request_is_refused_in_openais_form() {
    let served = Served::start(&[]);
    let refused = |body: Value| served.post("/v1/responses", &body).refused(400);
    assert_eq!(refused(json!({})), ("invalid_value".to_owned(), json!("input")));
    assert_eq!(refused(json!({"input": "a", "background": true})).1, "background");
    assert_eq!(refused(json!({"input": "a", "messages": []})), ("unknown_parameter".to_owned(), json!("messages")));
    assert_eq!(refused(json!({"input": "a ".repeat(9000)})), ("context_length_exceeded".to_owned(), json!("input")));
    served.get("/v1/responses").refused(405);
    served.post("/v1/responses", &json!({"input": "a", "model": "other"})).refused(404);
}

#[test]
fn responses_keep_forms_and_make_calls() {
    let served = Served::start(&[]);
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["pens"], "properties":
        {"pens": {"type": "integer", "minimum": 0, "maximum": 99}}});
    let format = json!({"type": "json_schema", "name": "pens", "strict": true, "schema": schema});
    let asks = json!({"input": FIRST, "seed": 1, "max_output_tokens": 200, "text": {"format": format}});
    let whole = ask(&served, asks.clone());
    assert_eq!((&whole["status"], &whole["text"]["format"]), (&json!("completed"), &format));
    let value: Value = serde_json::from_str(text(&whole)).expect("JSON");
    assert!(value["pens"].as_u64().is_some_and(|pens| pens < 100), "{value}");
    let streamed = events(&served, asks).pop().expect("an end");
    assert_eq!(text(&streamed["response"]), text(&whole));
    let bad = json!({"input": "a", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 1}}}});
    let (_, field) = served.post("/v1/responses", &bad).refused(400);
    assert!(field.as_str().is_some_and(|field| field.starts_with("text.format")), "{field}");

    let pens = json!({"type": "integer", "minimum": 0, "maximum": 99});
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["pens"], "properties":
        {"pens": pens}});
    let tools = json!([{"type": "function", "name": "count", "parameters": parameters}]);
    let asks = json!({"input": FIRST, "seed": 1, "max_output_tokens": 400, "tools": tools, "tool_choice": "required",
        "parallel_tool_calls": false});
    let called = ask(&served, asks.clone());
    let [call] = &called["output"].as_array().expect("a list")[..] else { panic!("{called}") };
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&json!("function_call"), &json!("count"), &json!("completed"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
    assert!(arguments["pens"].is_u64(), "{arguments}");
    let streamed = events(&served, asks);
    let deltas = streamed.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
    let deltas: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, call["arguments"].as_str().expect("a text"));
    let output = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "7"}]);
    let next = json!({"input": output, "previous_response_id": called["id"], "tools": tools,
        "max_output_tokens": 5});
    let next = ask(&served, next);
    assert!(next["usage"]["input_tokens_details"]["cached_tokens"].as_u64().is_some_and(|cached| cached > 0), "{next}");
}
