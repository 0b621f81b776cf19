//! The fields by which requests ask for a form, as clients send them.

use serde_json::{Value, json};

use super::*;
use offshoot_form::{Form, FormBegin};

/// A request with these fields beside its prompt, which all paths take.
fn asking(endpoint: Endpoint, fields: &Value) -> Result<ProtocolRequest<TextPrompt>, Refusal> {
    let mut body = match endpoint {
        Endpoint::Completions => json!({"prompt": "ab"}),
        Endpoint::Chat => json!({"messages": messages("ab")}),
    };
    body.as_object_mut().expect("an object").extend(object(fields.clone()));
    read(endpoint, body).and_then(with_form)
}

/// The form that these fields ask for, of chats and completions alike.
fn form(fields: Value) -> Option<(Form, &'static str)> {
    let [completion, chat] = Endpoint::ALL.map(|endpoint| {
        let request = asking(endpoint, &fields).unwrap_or_else(|refusal| panic!("{fields}: {}", refusal.message));
        request.params.form.map(|asked| (Form::clone(&asked.form), request.form.expect("it is read").field()))
    });
    assert_eq!(completion, chat, "{fields}");
    chat
}

#[test]
fn forms_are_read_from_each_field_that_asks_for_one() {
    let schema = json!({"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "required": ["b", "a"]});
    let flat = json!({"type": "object", "x-guidance": {"whitespace_flexible": false}});
    let spaced = |pattern: &str| json!({"type": "array", "x-guidance": {"whitespace_pattern": pattern}});
    let json_schema = |fields: Value| json!({"response_format": {"type": "json_schema", "json_schema": fields}});
    let of_schema = |schema: &Value, field| Some((Form::Json(schema.clone()), field));
    let inner = "response_format.json_schema.schema";
    let cases = [
        (json!({}), None),
        (json!({"response_format": null}), None),
        (json!({"response_format": {"type": "text"}}), None),
        (json!({"response_format": {"type": "json_object"}}), Some((Form::JsonObject, "response_format"))),
        // As llama.cpp and others take it.
        (json!({"response_format": {"type": "json_object", "schema": schema}}), of_schema(&schema, "response_format")),
        // openai-python's `parse`, langchain's, pydantic-ai's and instructor's.
        (json_schema(json!({"name": "Step", "strict": true, "schema": schema})), of_schema(&schema, inner)),
        (json_schema(json!({"name": "Step[int]", "description": "d", "schema": schema})), of_schema(&schema, inner)),
        (json_schema(json!({"name": "s", "strict": null, "schema": true})), of_schema(&json!(true), inner)),
        (json!({"structured_outputs": {}}), None),
        (json!({"structured_outputs": {"json": null, "json_object": false, "_backend": "x"}}), None),
        (json!({"structured_outputs": {"json": schema}}), of_schema(&schema, "structured_outputs.json")),
        (
            json!({"structured_outputs": {"json": schema.to_string(), "disable_any_whitespace": false,
                   "_backend": null, "_backend_was_auto": false}}),
            of_schema(&schema, "structured_outputs.json"),
        ),
        (
            json!({"structured_outputs": {"json_object": true, "disable_any_whitespace": true}}),
            of_schema(&flat, "structured_outputs.json_object"),
        ),
        (
            json!({"structured_outputs": {"json": {"type": "array"}, "whitespace_pattern": " ?"}}),
            of_schema(&spaced(" ?"), "structured_outputs.json"),
        ),
        (
            json!({"structured_outputs": {"json": {"properties": {}}, "disable_additional_properties": true}}),
            of_schema(&json!({"properties": {}, "additionalProperties": false}), "structured_outputs.json"),
        ),
        (
            json!({"structured_outputs": {"regex": "a+", "whitespace_pattern": null}}),
            Some((Form::Regex("a+".to_owned()), "structured_outputs.regex")),
        ),
        (
            json!({"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}}),
            Some((Form::Choice(vec!["yes".to_owned(), "no".to_owned()]), "structured_outputs.choice")),
        ),
        (
            json!({"structured_outputs": {"grammar": "start: \"a\""}}),
            Some((Form::Lark("start: \"a\"".to_owned()), "structured_outputs.grammar")),
        ),
        (
            json!({"guided_grammar": "root ::= \"a\""}),
            Some((Form::Lark("start: R0_ROOT\nR0_ROOT: \"a\"\n".to_owned()), "guided_grammar")),
        ),
        (json!({"guided_json": schema, "guided_decoding_backend": "xgrammar"}), of_schema(&schema, "guided_json")),
        (
            json!({"guided_json": {"type": "object"}, "guided_decoding_backend": "guidance:disable-any-whitespace"}),
            of_schema(&flat, "guided_json"),
        ),
        (
            json!({"guided_json": {"type": "array"}, "guided_whitespace_pattern": "\n"}),
            of_schema(&spaced("\n"), "guided_json"),
        ),
        (json!({"nvext": {"guided_regex": "[ab]"}}), Some((Form::Regex("[ab]".to_owned()), "guided_regex"))),
        (json!({"guided_choice": ["a"]}), Some((Form::Choice(vec!["a".to_owned()]), "guided_choice"))),
        (json!({"regex": "a"}), Some((Form::Regex("a".to_owned()), "regex"))),
        (json!({"json_schema": schema.to_string()}), of_schema(&schema, "json_schema")),
        (
            json!({"ebnf": "root ::= [0-9]"}),
            Some((Form::Lark("start: R0_ROOT\nR0_ROOT: /[0-9]/\n".to_owned()), "ebnf")),
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(form(fields.clone()), expected, "{fields}");
    }
    // The keys of an answer are those of the schema, in its order.
    let (Some((Form::Json(read), _)), order) = (form(json_schema(json!({"schema": schema}))), schema.to_string())
    else {
        panic!("a schema")
    };
    assert_eq!(read.to_string(), order);
}

#[test]
fn fields_that_ask_for_no_form_are_refused_by_name() {
    let json_schema = |fields: Value| json!({"response_format": {"type": "json_schema", "json_schema": fields}});
    let outputs = |fields: Value| json!({ "structured_outputs": fields });
    let (invalid, unknown, unsupported) = ("invalid_value", "unknown_parameter", "unsupported_parameter");
    let cases = [
        (json!({"response_format": "json_object"}), invalid, "response_format"),
        (json!({"response_format": [{"type": "json_object"}]}), invalid, "response_format"),
        (json!({"response_format": {}}), invalid, "response_format.type"),
        (json!({"response_format": {"type": "xml"}}), invalid, "response_format.type"),
        (json!({"response_format": {"type": "text", "x": 1}}), unknown, "response_format.x"),
        (json!({"response_format": {"type": "json_object", "schema": 5}}), invalid, "response_format.schema"),
        (json!({"response_format": {"type": "structural_tag", "format": {}}}), unsupported, "response_format"),
        (json!({"response_format": {"type": "json_schema"}}), invalid, "response_format.json_schema"),
        (json_schema(json!({"name": "a"})), invalid, "response_format.json_schema.schema"),
        (json_schema(json!({"name": "a", "schema": []})), invalid, "response_format.json_schema.schema"),
        (json_schema(json!({"name": "a", "schema": "{"})), invalid, "response_format.json_schema.schema"),
        (json_schema(json!({"name": 5, "schema": {}})), invalid, "response_format.json_schema.name"),
        (json_schema(json!({"schema": {}, "strict": "yes"})), invalid, "response_format.json_schema.strict"),
        (json_schema(json!({"schema": {}, "stric": true})), unknown, "response_format.json_schema.stric"),
        (outputs(json!(5)), invalid, "structured_outputs"),
        (outputs(json!({"json": 5})), invalid, "structured_outputs.json"),
        (outputs(json!({"json_object": 1})), invalid, "structured_outputs.json_object"),
        (outputs(json!({"regex": 5})), invalid, "structured_outputs.regex"),
        (outputs(json!({"choice": []})), invalid, "structured_outputs.choice"),
        (outputs(json!({"choice": ["a", 5]})), invalid, "structured_outputs.choice"),
        (outputs(json!({"grammar": "root ::= ("})), invalid, "structured_outputs.grammar"),
        (outputs(json!({"structural_tag": "{}"})), unsupported, "structured_outputs.structural_tag"),
        (outputs(json!({"disable_any_whitespace": 1})), invalid, "structured_outputs.disable_any_whitespace"),
        (outputs(json!({"whitespace_pattern": 1})), invalid, "structured_outputs.whitespace_pattern"),
        (outputs(json!({"disable_any_whitespace": true})), invalid, "structured_outputs"),
        (outputs(json!({"jsn": {}})), unknown, "structured_outputs.jsn"),
        (outputs(json!({"regex": "a", "json": {}})), unsupported, "structured_outputs.regex"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), unsupported, "guided_choice"),
        (json!({"guided_choice": "a"}), invalid, "guided_choice"),
        (json!({"guided_decoding_backend": 5}), invalid, "guided_decoding_backend"),
        (json!({"ebnf": "root ::= a"}), invalid, "ebnf"),
        (json!({"regex": "a", "ebnf": "root ::= \"a\""}), unsupported, "ebnf"),
        (json!({"response_format": {"type": "json_object"}, "regex": "a"}), unsupported, "regex"),
    ];
    for (fields, code, param) in cases {
        for endpoint in Endpoint::ALL {
            let refusal = asking(endpoint, &fields).err().unwrap_or_else(|| panic!("{fields} is not refused"));
            assert_eq!(
                (refusal.code, refusal.param.as_deref(), refusal.status()),
                (code, Some(param), 400),
                "{fields}: {}",
                refusal.message
            );
            assert!(refusal.message.contains(param), "{}", refusal.message);
        }
    }
    let scored = json!({"choices": ["a"], "structured_outputs": {"regex": "a"}});
    let refusal = asking(Endpoint::Completions, &scored).expect_err("nothing is sampled");
    assert_eq!(refusal.param.as_deref(), Some("structured_outputs.regex"));
}

#[test]
fn in_chats_a_form_begins_where_the_content_does() {
    let format = json!({"type": "json_object"});
    let begin = |request: &ProtocolRequest| {
        let form = request.form.as_ref().expect("a form is asked for");
        (form.begin().clone(), request.reasoning)
    };
    let chat = |fields: Value| {
        let mut body = json!({"messages": messages("a"), "response_format": format});
        body.as_object_mut().expect("an object").extend(object(fields));
        begin(&request(Endpoint::Chat, body))
    };
    let behind =
        |open: Option<&str>| FormBegin::BehindReasoning { open: open.map(str::to_owned), close: "</think>".to_owned() };
    let begun = |text: &str| json!({"messages": [messages("a")[0], {"role": "assistant", "content": text}]});
    // The template of these tests opens the reasoning where it is told so, and knows its mark.
    assert_eq!(chat(json!({})), (behind(Some("<think>")), Reasoning::Split));
    assert_eq!(chat(json!({"reasoning": "keep"})), (behind(Some("<think>")), Reasoning::Keep));
    assert_eq!(chat(json!({"chat_template_kwargs": {"thinks": true}})), (behind(None), Reasoning::Split));
    assert_eq!(chat(begun("<think>so")), (behind(None), Reasoning::Split));
    assert_eq!(chat(begun("{")), (FormBegin::AtOnce, Reasoning::Keep));
    let completion = request(Endpoint::Completions, json!({"prompt": "a <think>", "response_format": format}));
    assert_eq!(begin(&completion), (FormBegin::AtOnce, Reasoning::Keep));
    // Behind a kept branch alone, its text tells.
    let after = |parent: &str| {
        let body = object(json!({"parent": "br", "response_format": format}));
        let parent = encode(parent);
        let read = |reader: &RequestReader<'_>| reader.encode_after(reader.read(Endpoint::Chat, &body)?, &parent);
        begin(&with_reader(&ProtocolLimits::default(), read).unwrap_or_else(|refusal| panic!("{}", refusal.message))).0
    };
    assert_eq!(after("[assistant] <think>so"), behind(None));
    assert_eq!(after("[assistant] so"), FormBegin::AtOnce);
}
