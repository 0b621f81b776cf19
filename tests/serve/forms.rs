//! Answers that keep a form, as a server's clients ask for them.

use serde_json::{Value, json};

use crate::files::{answers, begun_and_ended, line};
use crate::protocol::served_with_keys;
use crate::served::{Answer, QUESTION, Served, joined};

/// A schema whose JSON is short, and what its values must be.
fn schema() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["pens", "who", "is_right"], "properties": {
        "pens": {"type": "integer", "minimum": 0, "maximum": 99}, "who": {"enum": ["Mia", "Tom"]},
        "is_right": {"type": "boolean"}}})
}

fn check(text: &Value) {
    let text = text.as_str().expect("a text");
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    let object = value.as_object().expect("an object");
    assert_eq!(object.keys().collect::<Vec<_>>(), ["pens", "who", "is_right"], "{text:?}");
    assert!(value["pens"].as_u64().is_some_and(|pens| pens < 100), "{text:?}");
    assert!(value["who"] == "Mia" || value["who"] == "Tom", "{text:?}");
    assert!(value["is_right"].is_boolean(), "{text:?}");
}

/// The fields of a request for samples of any kind.
fn asks() -> Value {
    json!({"n": 8, "seed": 3, "temperature": 1.2, "max_tokens": 200, "return_token_ids": true})
}

fn choices(answer: &Value) -> &Vec<Value> {
    answer["choices"].as_array().expect("a list")
}

fn format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "pens", "strict": true, "schema": schema()}})
}

#[test]
fn answers_have_the_schema_that_is_asked_for() {
    let served = Served::start(&["--rollout"]);
    let asks = joined(&asks(), json!({"response_format": format()}));
    let completion = joined(&asks, json!({"prompt": QUESTION}));
    let whole = served.complete(&completion);
    for choice in choices(&whole) {
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        check(&choice["text"]);
        let (ids, forced) = (&choice["token_ids"], choice["forced"].as_array().expect("a list"));
        assert_eq!(ids.as_array().map(Vec::len), Some(forced.len()));
        assert!(forced.contains(&json!(true)) && forced.contains(&json!(false)), "some are sampled: {forced:?}");
    }
    // The same as a stream.
    let chunks = served.stream(&completion).chunks();
    for choice in choices(&whole) {
        let parts = chunks.iter().flat_map(choices).filter(|part| part["index"] == choice["index"]);
        let text: String = parts.clone().filter_map(|part| part["text"].as_str()).collect();
        let forced: Vec<&Value> = parts.filter_map(|part| part["forced"].as_array()).flatten().collect();
        assert_eq!(text, choice["text"].as_str().expect("a text"));
        assert_eq!(forced, choice["forced"].as_array().expect("a list").iter().collect::<Vec<_>>());
    }
    // Of chats, whose template here has a text that ends turns.
    let chat = joined(&asks, json!({"messages": [{"role": "user", "content": "Mia has 3 pens. How many pens?"}]}));
    let chat = served.post("/v1/chat/completions", &chat).succeeds();
    choices(&chat).iter().for_each(|choice| check(&choice["message"]["content"]));
    // Of token ids, for trainers.
    let sampled = joined(&asks, json!({"structured_outputs": {"json": schema()}, "response_format": null}));
    let ids = served.post("/inference/v1/generate", &json!({"token_ids": [5, 6], "sampling_params": sampled}));
    for choice in choices(&ids.succeeds()) {
        let text = served.post("/detokenize", &json!({"tokens": choice["token_ids"]})).succeeds()["prompt"].clone();
        let text = text.as_str().expect("a text").trim_end_matches("<|end_of_text|>");
        check(&json!(text));
    }
    // Of batches, in which one request has no form and one has a bad one.
    let lines = [
        line("good", joined(&asks, json!({"prompt": QUESTION}))),
        line("plain", json!({})),
        line("bad", json!({"guided_regex": "("})),
    ];
    let batch = begun_and_ended(&served, &lines);
    assert_eq!(batch["request_counts"], json!({"total": 3, "completed": 2, "failed": 1}), "{batch}");
    let good = answers(&served, &batch["output_file_id"]);
    let good = good.iter().find(|answer| answer["custom_id"] == "good").expect("it is answered");
    choices(&good["response"]["body"]).iter().for_each(|choice| check(&choice["text"]));
    let bad = answers(&served, &batch["error_file_id"]);
    let error = &bad[0]["response"]["body"]["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("invalid_value"), &json!("guided_regex")), "{bad:?}");
}

#[test]
fn texts_have_the_pattern_choice_or_grammar_that_is_asked_for() {
    let served = Served::start(&[]);
    let texts = |fields: Value| {
        let body = joined(&joined(&asks(), json!({"prompt": QUESTION})), fields);
        let answer = served.complete(&body);
        let text = |choice: &Value| {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            choice["text"].as_str().expect("a text").to_owned()
        };
        choices(&answer).iter().map(text).collect::<Vec<String>>()
    };
    for text in texts(json!({"guided_regex": "[0-9]{2}(px|em)"})) {
        let (digits, unit) = text.split_at(2);
        assert!(digits.bytes().all(|byte| byte.is_ascii_digit()) && ["px", "em"].contains(&unit), "{text:?}");
    }
    for text in texts(json!({"structured_outputs": {"choice": ["yes", "no", "not at all"]}})) {
        assert!(["yes", "no", "not at all"].contains(&&*text), "{text:?}");
    }
    for text in texts(json!({"guided_grammar": "start: \"(\" start \")\" | /[ab]/"})) {
        let depth = text.bytes().take_while(|byte| *byte == b'(').count();
        assert_eq!(text.len(), 2 * depth + 1, "{text:?}");
        assert!(text.ends_with(&")".repeat(depth)), "{text:?}");
    }
    for text in texts(json!({"structured_outputs": {"grammar": "root ::= \"<\" [x-z]{1,4} \">\""}})) {
        let inner = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).expect("both marks");
        assert!((1..=4).contains(&inner.len()) && inner.bytes().all(|byte| (b'x'..=b'z').contains(&byte)), "{text:?}");
    }
    // Nothing ends an object but the brace, which this model seldom writes.
    let brace = served.post("/tokenize", &json!({"prompt": "}", "add_special_tokens": false})).succeeds();
    let bias = json!({ brace["tokens"][0].to_string(): 100 });
    for text in texts(json!({"response_format": {"type": "json_object"}, "logit_bias": bias})) {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
        assert!(value.is_object());
    }
}

/// The template tells whether a form begins at once, behind reasoning that it has opened, or behind what the model
/// opens.
#[test]
fn in_chats_a_form_begins_behind_the_reasoning() {
    let served = Served::start(&["--trust-request-chat-template"]);
    let ask = |end: &str, max_tokens: usize| {
        let template = format!("Question: {{{{ messages[0].content }}}}\nAnswer:{end}");
        let messages = json!([{"role": "user", "content": "Mia has 3 pens."}]);
        let body = json!({"messages": messages, "chat_template": template, "response_format": format()});
        let body = joined(&joined(&asks(), body), json!({ "max_tokens": max_tokens }));
        choices(&served.post("/v1/chat/completions", &body).succeeds()).clone()
    };
    // It is open, and this model does not close it. No token ends the text meanwhile.
    for choice in ask(" <think>\n", 40) {
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!("")));
        assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(40), "{choice}");
        assert!(choice["message"]["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{choice}");
    }
    for choice in ask(" <think>\n\n</think>\n", 200) {
        assert_eq!((&choice["finish_reason"], &choice["message"]["reasoning_content"]), (&json!("stop"), &Value::Null));
        check(&choice["message"]["content"]);
    }
    // Left to the model, which knows no marks.
    for choice in ask("{# </think> #}", 200) {
        match choice["message"]["reasoning_content"].as_str() {
            Some("") => check(&choice["message"]["content"]),
            reasoning => assert!(reasoning.is_some() && choice["finish_reason"] == "length", "{choice}"),
        }
    }
}

/// A text that the limit of tokens cut goes on behind its branch under an equal form, in however many requests.
#[test]
fn a_text_that_is_cut_goes_on_in_its_form_behind_its_branch() {
    let served = Served::start(&[]);
    let id_of = |choice: &Value| choice["branch"].as_str().expect("it is kept").to_owned();
    let asks = json!({"structured_outputs": {"json": schema()}, "seed": 3, "temperature": 1.2, "keep": true});
    let ask = |fields: Value| choices(&served.complete(&joined(&asks, fields)))[0].clone();
    let begun = joined(&asks, json!({"prompt": QUESTION, "n": 3, "max_tokens": 5}));
    for first in choices(&served.complete(&begun)) {
        assert_eq!(first["finish_reason"], "length", "{first}");
        let (mut last, mut text) = (first.clone(), String::new());
        loop {
            text += last["text"].as_str().expect("a text");
            if last["finish_reason"] != "length" {
                break;
            }
            last = ask(json!({"parent": id_of(&last), "max_tokens": 7}));
        }
        check(&json!(text));
        // It is complete: the same form begins anew, as it does behind a text, and as another form does.
        check(&ask(json!({"parent": id_of(&last), "max_tokens": 200}))["text"]);
        check(&ask(json!({"parent": id_of(first), "prompt": " ", "max_tokens": 200}))["text"]);
        let other = json!({"parent": id_of(first), "structured_outputs": {"choice": ["yes"]}, "max_tokens": 9});
        assert_eq!(ask(other)["text"], "yes");
        // Children of one branch, and those of a branch that was kept again, go on in it, too.
        let kept = served.complete(&json!({"parent": id_of(first), "max_tokens": 0, "keep": true}));
        for parent in [id_of(first), id_of(&choices(&kept)[0])] {
            let more = joined(&asks, json!({"parent": parent, "n": 4, "max_tokens": 200}));
            for choice in choices(&served.complete(&more)) {
                let [begin, rest] = [first, choice].map(|choice| choice["text"].as_str().expect("a text"));
                check(&json!(format!("{begin}{rest}")));
            }
        }
    }
    // A chat's answer as well.
    let chat = |fields: Value| {
        let body = joined(&json!({"response_format": format(), "seed": 3, "keep": true}), fields);
        choices(&served.post("/v1/chat/completions", &body).succeeds())[0].clone()
    };
    let first = chat(json!({"messages": [{"role": "user", "content": "How many pens?"}], "max_tokens": 5}));
    let rest = chat(json!({"parent": id_of(&first), "max_tokens": 200}));
    let [begin, rest] = [&first, &rest].map(|choice| choice["message"]["content"].as_str().expect("a text"));
    check(&json!(format!("{begin}{rest}")));
}

/// The form asks for a `b` behind the `a`, and no other token than `a` is allowed. `finish_reason` is one of OpenAI's
/// words, as clients read no other; `stop_reason` says what it was.
#[test]
fn a_form_that_cannot_go_on_ends_the_sample_and_says_so() {
    let served = Served::start(&[]);
    let a = served.post("/tokenize", &json!({"prompt": "a", "add_special_tokens": false})).succeeds()["tokens"].clone();
    let body = json!({"prompt": QUESTION, "guided_regex": "ab", "allowed_token_ids": a, "max_tokens": 9});
    let answer = served.complete(&body);
    let choice = &answer["choices"][0];
    assert_eq!((end(choice), &choice["text"]), (("length", "dead_end"), &json!("a")), "{choice}");
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let last = served.stream(&body).chunks();
    assert_eq!(end(&last.last().expect("a chunk")["choices"][0]), ("length", "dead_end"));
    let body = json!({"input": QUESTION, "structured_outputs": {"regex": "ab"}, "allowed_token_ids": a});
    let response = served.post("/v1/responses", &body).succeeds();
    assert_eq!((&response["status"], &response["error"]), (&json!("incomplete"), &Value::Null), "{response}");
    let why = json!({"reason": "max_output_tokens", "stop_reason": "dead_end"});
    assert_eq!((&response["incomplete_details"], &response["output"][0]["content"][0]["text"]), (&why, &json!("a")));
}

/// Why a choice ended, in both words.
fn end(choice: &Value) -> (&str, &str) {
    (choice["finish_reason"].as_str().expect("a word"), choice["stop_reason"].as_str().unwrap_or_default())
}

/// Behind "abc" the grammar has more items than a place may have: the choices end there, and others' do not.
#[test]
fn a_form_that_takes_too_much_work_ends_its_own_choices() {
    let costly = offshoot_fixtures::costly_grammar();
    let grammar = costly.replace("start: ", "start: \"yes\" | ");
    let served = Served::start(&[]);
    let body = json!({"prompt": QUESTION, "guided_grammar": grammar, "max_tokens": 9, "n": 128, "seed": 3,
        "temperature": 2.0});
    let answer = served.complete(&body);
    let choices = answer["choices"].as_array().expect("choices");
    let ends: Vec<_> = choices.iter().map(|choice| (choice["text"].as_str().expect("a text"), end(choice))).collect();
    let (cut, whole) = (("abc", ("length", "form_limit")), ("yes", ("stop", "")));
    assert!(ends.iter().all(|end| [cut, whole].contains(end)), "{ends:?}");
    assert!(ends.contains(&cut) && ends.contains(&whole), "{ends:?}");
    let last = served.stream(&joined(&body, json!({"guided_grammar": costly, "n": 1})));
    assert_eq!(end(&last.chunks().last().expect("a chunk")["choices"][0]), ("length", "form_limit"));
    assert!(served.metric("offshoot_engine_masks_failed_total") > 0.0);
}

#[test]
fn what_is_no_form_is_refused_by_its_field() {
    let served = Served::start(&[]);
    let format = |schema: Value| {
        let named = json!({"name": "s", "schema": schema});
        json!({"response_format": {"type": "json_schema", "json_schema": named}})
    };
    let inner = "response_format.json_schema.schema";
    for (fields, field) in [
        (format(json!({"type": "objekt"})), inner),
        (format(json!({"type": "integer", "minimum": 3, "maximum": 2})), inner),
        (format(json!({"$ref": "https://example.org/schema.json"})), inner),
        (format(json!({"type": "string", "pattern": "("})), inner),
        (json!({"structured_outputs": {"regex": "a**{9}["}}), "structured_outputs.regex"),
        (json!({"structured_outputs": {"grammar": "start: a"}}), "structured_outputs.grammar"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_json": {"type": "array", "whatever": 1, "contains": {"type": "null"}}}), "guided_json"),
    ] {
        let bodies = [
            ("/v1/completions", json!({"prompt": "a", "max_tokens": 3})),
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3})),
        ];
        for (path, body) in bodies {
            for body in [body.clone(), joined(&body, json!({"stream": true}))] {
                let refused = served.post(path, &joined(&body, fields.clone()));
                assert_eq!(refused.refused(400), ("invalid_value".to_owned(), json!(field)), "{fields}");
                assert!(refused.text.contains(field), "{}", refused.text);
            }
        }
    }
    // The schema of a tool is named also where the refusal is remembered.
    let bad = json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "strang"}}}});
    let good = json!({"name": "g", "parameters": {"type": "object", "properties": {"a": {"const": 1}}}});
    let tools: Vec<Value> = [good, bad].into_iter().map(|of| json!({"type": "function", "function": of})).collect();
    let call = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": "required"});
    let refused = [(); 3].map(|()| served.post("/v1/chat/completions", &call));
    for answer in &refused {
        assert_eq!(answer.refused(400).1, "tools", "{}", answer.text);
        assert!(answer.text.contains("tools[1].function.parameters"), "{}", answer.text);
        assert_eq!(answer.text, refused[0].text);
    }
    // The server answers other requests.
    served.complete(&json!({"prompt": "a", "max_tokens": 1}));
}

/// While one client's forms take long to be compiled, another one's requests succeed: those without a form, those whose
/// form is known, and those with a new form.
#[test]
fn slow_forms_hold_up_no_others() {
    const SLOW: usize = 12;
    let served = served_with_keys(&["slow", "other"]);
    // Each is another one, and large.
    let slow = |number: usize| {
        let names: Vec<String> = (0..600).map(|at| format!("f{number}_{at}")).collect();
        let properties: serde_json::Map<String, Value> = names
            .iter()
            .map(|name| {
                (name.clone(), json!({"type": "string", "pattern": format!("^({name}|[a-z]{{2,40}}){{1,9}}$")}))
            })
            .collect();
        json!({"prompt": "a", "max_tokens": 1, "guided_json": {"type": "object", "properties": properties}})
    };
    let ask = |key: &str, fields: Value| {
        let body = joined(&json!({"prompt": "a", "max_tokens": 1}), fields);
        served.post_as(key, "/v1/completions", &body)
    };
    let known = || json!({"guided_regex": "[0-9]+"});
    ask("other", known()).succeeds();
    // The schemas of tools are looked at only where they are not known.
    let function = json!({"name": "add", "parameters": {"type": "object", "properties": {"a": {"const": 1}}}});
    let call = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tool_choice": "required",
        "tools": [{"type": "function", "function": function}]});
    let known_call = || served.post_as("other", "/v1/chat/completions", &call).succeeds();
    known_call();
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..SLOW)
            .map(|number| {
                let (served, body) = (&served, slow(number));
                // One that took too long on a busy machine is compiled meanwhile, for the next time.
                let ask = move || served.post_as("slow", "/v1/completions", &body);
                scope.spawn(move || std::iter::repeat_with(ask).find(|answer| answer.status != 503))
            })
            .collect();
        // In which order permits go to clients, the server's own tests say.
        let mut rounds = 0;
        while slow.iter().any(|slow| !slow.is_finished()) {
            let new = json!({"guided_json": {"type": "object", "properties": {format!("a{rounds}"): {"const": 1}}}});
            for fields in [json!({}), known(), new] {
                ask("other", fields).succeeds();
            }
            known_call();
            rounds += 1;
        }
        for answer in slow {
            let answer: Answer = answer.join().expect("the server answers").expect("it is asked until then");
            assert!([200, 400].contains(&answer.status), "{}", answer.text);
        }
    });
}
