//! Calls in the syntaxes that families publish, in whole texts and in texts cut anywhere.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::syntax::SYNTAXES;
use super::*;

/// An answer: its reasoning, its content, and its calls, each with its name and arguments.
type Answer = (String, String, Vec<(String, String)>);

fn syntax(name: &str) -> &'static CallSyntax {
    if name == "any" {
        return &ANY;
    }
    SYNTAXES.iter().find(|syntax| syntax.name() == name).expect("a syntax of this name")
}

fn weather() -> Arc<ToolSet> {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}}, "zip": {"type": ["string", "integer"]},
        "at": {"$ref": "#/$defs/place"}, "unit": {"allOf": [{"$ref": "#/$defs/unit"}], "default": "c"},
        "next": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]}, "level": {"const": 3},
        "loop": {"$ref": "#/$defs/loop"},
    });
    let definitions = json!({
        "place": {"type": "object", "properties": {"z": {"type": "integer"}}},
        "unit": {"type": "string", "enum": ["c", "1"]},
        "loop": {"$ref": "#/$defs/loop"},
    });
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"], "$defs": definitions});
    let tool = |name: &str, parameters: Option<Value>| Tool { name: name.to_owned(), parameters };
    Arc::new(ToolSet { tools: vec![tool("get_weather", Some(parameters)), tool("get_time", None)] })
}

/// The answer of a text that comes in these pieces.
fn split(syntax: &'static CallSyntax, start: TextStart, reasoning: ReasoningText, pieces: &[&str]) -> Answer {
    let mut splitter = AnswerSplitter::new(start, reasoning, Some(CallReader::new(syntax, weather())));
    let mut parts = Vec::new();
    for piece in pieces {
        parts.extend(splitter.push(piece));
    }
    parts.extend(splitter.push_last(""));
    let mut answer = Answer::default();
    let mut is_open = false;
    for part in &parts {
        match part {
            AnswerPart::Reasoning(text) => answer.0 += text,
            AnswerPart::Content(text) => answer.1 += text,
            AnswerPart::CallBegins { .. } => is_open = true,
            AnswerPart::Arguments(_) => assert!(is_open, "arguments of no call: {pieces:?}"),
            AnswerPart::CallEnds { .. } => assert!(std::mem::take(&mut is_open), "an end of no call: {pieces:?}"),
        }
    }
    assert!(!is_open, "a call without an end: {pieces:?}");
    answer.2 = joined_calls(&parts).into_iter().map(|call| (call.name, call.arguments)).collect();
    answer
}

fn whole(syntax: &'static CallSyntax, text: &str) -> Answer {
    split(syntax, TextStart::Answer, ReasoningText::Split, &[text])
}

/// Checks that an answer of content and calls is read from `text`, wherever it is cut in two or into signs.
fn check(name: &str, text: &str, content: &str, calls: &[(&str, &str)]) {
    let owned = |(name, arguments): &(&str, &str)| ((*name).to_owned(), (*arguments).to_owned());
    let expected: Answer = (String::new(), content.to_owned(), calls.iter().map(owned).collect());
    assert_eq!(whole(syntax(name), text), expected, "{name}: {text:?}");
    for (cut, _) in text.char_indices() {
        let pieces = [&text[..cut], &text[cut..]];
        let found = split(syntax(name), TextStart::Answer, ReasoningText::Keep, &pieces);
        assert_eq!(found, expected, "{name}: {text:?} cut at {cut}");
    }
    let signs: Vec<String> = text.chars().map(String::from).collect();
    let signs: Vec<&str> = signs.iter().map(|sign| &**sign).collect();
    assert_eq!(split(syntax(name), TextStart::Answer, ReasoningText::Split, &signs), expected, "{name}: {text:?}");
}

const PARIS: (&str, &str) = ("get_weather", r#"{"city": "Paris"}"#);
const ROME: (&str, &str) = ("get_weather", r#"{"city": "Rome", "days": 2}"#);

#[test]
fn calls_in_each_family_s_syntax() {
    let object = |key: &str, (name, arguments): (&str, &str)| format!(r#"{{"name": "{name}", "{key}": {arguments}}}"#);
    let (paris, rome) = (object("arguments", PARIS), object("arguments", ROME));
    let hermes = format!("<tool_call>\n{paris}\n</tool_call>\n<tool_call>\n{rome}\n</tool_call>");
    check("hermes", &hermes, "", &[PARIS, ROME]);
    check("hermes", &format!("I look.\n{hermes}\n"), "I look.", &[PARIS, ROME]);
    check("hermes", &format!("{hermes}\nSo."), "So.", &[PARIS, ROME]);

    let coder = "Let me see.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\
                 <parameter=days>\n2\n</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n<parameter=tags>\n\
                 [\"a\", \"b\"]\n</parameter>\n<parameter=zip>\n75001\n</parameter>\n</function>\n</tool_call>";
    let typed = r#"{"city": "Paris", "days": 2, "hourly": true, "tags": ["a","b"], "zip": 75001}"#;
    check("qwen3_coder", coder, "Let me see.", &[("get_weather", typed)]);
    let bare = "<function=get_time>\n</function>";
    check("qwen3_coder", bare, "", &[("get_time", "{}")]);
    let seed = "<seed:tool_call>\n<function=get_weather>\n<parameter=city>12</parameter>\n</function>\n\
                </seed:tool_call>";
    check("seed_oss", seed, "", &[("get_weather", r#"{"city": "12"}"#)]);

    let glm = "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n\
               <arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>";
    check("glm", &format!("{glm}\n<tool_call>get_time\n</tool_call>"), "", &[ROME, ("get_time", "{}")]);
    check("glm", &glm.replace('\n', ""), "", &[ROME]);

    let separated = "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Rome\
                     </arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n\
                     <tool_call>get_time<tool_sep>\n</tool_call>\n</tool_calls>";
    check("hunyuan_v3", separated, "", &[ROME, ("get_time", "{}")]);
    check("hunyuan_v3", &format!("Well.\n{}", separated.replace('\n', "")), "Well.", &[ROME, ("get_time", "{}")]);
    let mut open_source = separated.to_owned();
    for mark in ["tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value"] {
        open_source = open_source.replace(&format!("{mark}>"), &format!("{mark}:opensource>"));
    }
    check("hunyuan_v3_open_source", &open_source, "", &[ROME, ("get_time", "{}")]);
    check("hunyuan_list", &format!("<tool_calls>[{paris}, {rome}]</tool_calls>"), "", &[PARIS, ROME]);
    check("nemotron", &format!("Well.\n\n<TOOLCALL>[{paris}, {rome}]</TOOLCALL>"), "Well.", &[PARIS, ROME]);

    let invoke = "<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n\
                  <parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>";
    let minimax = format!("Well.\n<minimax:tool_call>\n{invoke}\n</minimax:tool_call>");
    check("minimax_m2", &minimax, "Well.", &[ROME, ("get_time", "{}")]);
    check("minimax_m2", invoke, "", &[ROME, ("get_time", "{}")]);

    let python = "<|tool_call_start|>[get_weather(city='Rome', days=2), get_time()]<|tool_call_end|>";
    let compact = r#"{"city":"Rome","days":2}"#;
    check("lfm2", python, "", &[("get_weather", compact), ("get_time", "{}")]);
    check("lfm2", &format!("Well.\n{python}\nSo."), "Well.\nSo.", &[("get_weather", compact), ("get_time", "{}")]);
    let values = r#"<|tool_call_start|>[get_weather(city='l'Aquila, "b"', tags=["a", 'b\'c',], hourly=False,
                 at={"z": null, "y": [true, -1.5]}, zip=None)]<|tool_call_end|>"#;
    let converted = r#"{"city":"l'Aquila, \"b\"","tags":["a","b'c"],"hourly":false,"at":{"z":null,"y":[true,-1.5]},"#;
    check("lfm2", values, "", &[("get_weather", &format!("{converted}\"zip\":null}}"))]);
    check("lfm2", &format!("<|tool_call_start|>[{paris}]<|tool_call_end|>"), "", &[PARIS]);

    let action = |number: usize, (name, arguments): (&str, &str)| {
        format!(r#"{{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}}"#)
    };
    let cohere = format!("<|START_ACTION|>[\n    {},\n    {}\n]<|END_ACTION|>", action(0, PARIS), action(1, ROME));
    check("cohere", &cohere, "", &[PARIS, ROME]);

    let parameters = object("parameters", PARIS);
    check("llama3", &parameters, "", &[PARIS]);
    check("llama3", &format!("<|python_tag|>{parameters}; {}", object("parameters", ROME)), "", &[PARIS, ROME]);
    let typed = format!(r#"{{"type": "function", "name": "get_weather", "parameters": {}}}"#, PARIS.1);
    check("llama3", &typed, "", &[PARIS]);
    let nested = format!(r#"{{"type": "function", "function": {paris}}}"#);
    check("llama3", &nested, "", &[PARIS]);

    let list = format!(r#"[TOOL_CALLS] [{{"name": "get_weather", "arguments": {}, "id": "abc"}}, {rome}]"#, PARIS.1);
    check("mistral", &list, "", &[PARIS, ROME]);
    let named = format!("[TOOL_CALLS]get_weather[ARGS]{}[TOOL_CALLS]get_weather[CALL_ID]9[ARGS]{}", PARIS.1, ROME.1);
    check("mistral_args", &format!("Well.{named}"), "Well.", &[PARIS, ROME]);
    check("mistral", &format!("[TOOL_CALLS]get_weather{}", PARIS.1), "", &[PARIS]);

    let gemma = "<|tool_call>call:get_weather{city:<|\"|>Pa{r}is, <b><|\"|>,days:2,\
                 tags:[<|\"|>a<|\"|>,{k:null}],hourly:false}<tool_call|><|tool_call>call:get_time{}<tool_call|>";
    let converted = r#"{"city":"Pa{r}is, <b>","days":2,"tags":["a",{"k":null}],"hourly":false}"#;
    check("gemma4", gemma, "", &[("get_weather", converted), ("get_time", "{}")]);

    check("phi4", &format!("<|tool_call|>{paris}<|/tool_call|>"), "", &[PARIS]);
    check("tool_call_list", &format!("<|tool_call|>[{paris}, {rome}]"), "", &[PARIS, ROME]);
    check("phi4_functools", &format!("functools[{paris}]"), "", &[PARIS]);

    let fenced = |(name, arguments): (&str, &str)| {
        format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>")
    };
    let v3 = format!("<｜tool▁calls▁begin｜>{}\n{}<｜tool▁calls▁end｜>", fenced(PARIS), fenced(ROME));
    check("deepseek_v3", &v3, "", &[PARIS, ROME]);
    let plain = |(name, arguments): (&str, &str)| {
        format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
    };
    let v31 = format!("Hm.<｜tool▁calls▁begin｜>{}{}<｜tool▁calls▁end｜>", plain(PARIS), plain(ROME));
    check("deepseek_v31", &v31, "Hm.", &[PARIS, ROME]);
    let kimi = format!(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{}\
         <|tool_call_end|><|tool_calls_section_end|>",
        PARIS.1
    );
    check("kimi_k2", &kimi, "", &[PARIS]);
    // A reader that does not know the family finds them, too.
    for text in [&hermes, &list, &v31, &named] {
        let calls = calls_of(text);
        assert_eq!(calls.iter().map(|call| &*call.arguments).collect::<Vec<_>>(), [PARIS.1, ROME.1], "{text:?}");
    }
    assert_eq!(calls_of(gemma).len() + calls_of(coder).len() + calls_of(glm).len() + calls_of(&parameters).len(), 5);
}

/// Parameters are of the kind that their schema names elsewhere, as pydantic writes nested models and enumerations.
#[test]
fn references_tell_the_kinds_of_parameters() {
    let parameter = |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    for (name, value, expected) in [
        ("at", "{\"z\": 1}", json!({"z": 1})),
        ("next", "{\"z\": 2}", json!({"z": 2})),
        ("next", "null", Value::Null),
        ("unit", "1", json!("1")),
        ("level", "3", json!(3)),
        ("loop", "3", json!("3")),
    ] {
        let text = format!("<function=get_weather>\n{}</function>", parameter(name, value));
        let calls = whole(syntax("qwen3_coder"), &text).2;
        let arguments: Value = serde_json::from_str(&calls[0].1).expect("arguments between tags become JSON");
        assert_eq!(arguments, json!({name: expected}), "{text}");
    }
}

/// Strings of JSON may have the tag that ends a value; text that is no JSON ends at its first tag.
#[test]
fn values_end_where_their_json_does() {
    let call = |arguments: &str| format!("<function=get_weather>\n{arguments}</function>");
    let tags = |value: &str| format!("<parameter=tags>\n{value}\n</parameter>\n");
    let days = "<parameter=days>\n2\n</parameter>\n";
    let tricky = r#"["a</parameter>\"", "\n</parameter>\n</function>"]"#;
    for (value, expected) in [
        (tricky, r#"["a</parameter>\"","\n</parameter>\n</function>"]"#),
        ("[\"a", r#""[\"a""#),
        ("[\"a\", b]", r#""[\"a\", b]""#),
        ("say \"a", r#""say \"a""#),
    ] {
        let expected = format!("{{\"tags\": {expected}, \"days\": 2}}");
        check("qwen3_coder", &call(&format!("{}{days}", tags(value))), "", &[("get_weather", &expected)]);
    }
    let far = "<parameter=days>\n1e999\n</parameter>\n";
    check("qwen3_coder", &call(far), "", &[("get_weather", "{\"days\": 1e999}")]);
    // Without a line of its own, a value has all its line breaks.
    let glm = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>\nRome\n</arg_value>\n</tool_call>";
    check("glm", glm, "", &[("get_weather", "{\"city\": \"\\nRome\\n\"}")]);
}

#[test]
fn arguments_are_objects_whatever_the_model_makes_of_them() {
    let text = |fields: &str| format!("<tool_call>{{{fields}}}</tool_call>");
    let named = "\"name\": \"get_time\"";
    check("hermes", &text(named), "", &[("get_time", "{}")]);
    check("hermes", &text(&format!("{named}, \"arguments\": null")), "", &[("get_time", "{}")]);
    check("hermes", &text(&format!(r#"{named}, "arguments": "{{\"a\": 1}}""#)), "", &[("get_time", r#"{"a": 1}"#)]);
    check("hermes", &text(&format!(r#""arguments": {{"a": 1}}, {named}"#)), "", &[("get_time", r#"{"a": 1}"#)]);
    let brackets = r#"{"a": "}]</tool_call>\"", "b": [{}]}"#;
    check("hermes", &text(&format!("{named}, \"arguments\": {brackets}")), "", &[("get_time", brackets)]);
    // A brace of the object is missing.
    let unclosed = format!("<tool_call>{{{named}, \"arguments\": {{\"a\": 1}}</tool_call>\nSo.");
    check("hermes", &unclosed, "So.", &[("get_time", r#"{"a": 1}"#)]);
    // The text ends within them.
    check("hermes", &format!("<tool_call>{{{named}, \"arguments\": {{\"a\": [1"), "", &[("get_time", r#"{"a": [1"#)]);
    let cut = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2";
    check("qwen3_coder", cut, "", &[("get_weather", r#"{"city": "Paris""#)]);
}

#[test]
fn what_only_looks_like_a_call_is_content() {
    for (name, text) in [
        ("hermes", "Write <tool_call> around it."),
        ("hermes", "<tool_call> {\"nome\": \"get_time\"} </tool_call>"),
        ("hermes", "<tool_call>{\"name\": 7}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"get_ti"),
        ("hermes", " a <tool_ca"),
        ("hermes", "{\"name\": \"get_time\", \"arguments\": {}}"),
        ("llama3", "{\"name\": \"Ada\", \"parameters\": {}}"),
        ("llama3", "{\"name\": \"get_time\"}"),
        ("llama3", "{\"answer\": 4, \"name\": \"get_time\", \"parameters\": {}}"),
        ("llama3", "So: {\"name\": \"get_time\", \"parameters\": {}}"),
        ("llama3", " {1, 2} is a set.\n"),
        ("mistral", "[TOOL_CALLS] is a mark"),
        ("mistral", "[TOOL_CALLS][]"),
        ("glm", "<tool_call>get the weather</tool_call>"),
        ("gemma4", "<|tool_call>call:get_weather{city:<|\"|>Par"),
        ("gemma4", "<|tool_call>call:get_weather{city}<tool_call|>"),
        ("phi4_functools", "from functools import cache, functools[0]"),
        ("qwen3_coder", "<function=a b>"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜>nothing"),
        ("lfm2", "<|tool_call_start|>[f(1)]"),
        ("lfm2", "<|tool_call_start|>[f(a=b"),
        ("lfm2", "<|tool_call_start|>[f(a=b)]"),
        ("hermes", "\n\n \u{3000}"),
        ("hermes", ""),
    ] {
        check(name, text, text, &[]);
    }
    // The call behind it is one.
    let text = "<tool_call>no</tool_call> <tool_call>{\"name\": \"get_time\"}</tool_call>";
    check("hermes", text, "<tool_call>no</tool_call>", &[("get_time", "{}")]);
}

#[test]
fn what_stands_in_the_reasoning_is_no_call() {
    let call = "<tool_call>{\"name\": \"get_time\"}</tool_call>";
    let text = format!("<think>I write {call}.</think>\n\n{call}");
    let calls = vec![("get_time".to_owned(), "{}".to_owned())];
    for cut in 0..text.len() {
        let pieces = [&text[..cut], &text[cut..]];
        let parts = split(syntax("hermes"), TextStart::Answer, ReasoningText::Split, &pieces);
        assert_eq!(parts, (format!("I write {call}."), String::new(), calls.clone()), "{cut}");
        let kept = split(syntax("hermes"), TextStart::Answer, ReasoningText::Keep, &pieces);
        assert_eq!(kept, (String::new(), format!("<think>I write {call}.</think>"), calls.clone()), "{cut}");
        let opened = text.trim_start_matches("<think>");
        let cut = cut.min(opened.len());
        let pieces = [&opened[..cut], &opened[cut..]];
        let parts = split(syntax("hermes"), TextStart::Reasoning, ReasoningText::Split, &pieces);
        assert_eq!(parts, (format!("I write {call}."), String::new(), calls.clone()), "{cut}");
    }
    assert_eq!(calls_of(&text).len(), 1);
    assert_eq!(calls_of(text.trim_start_matches("<think>")).len(), 1);
}

#[test]
fn calls_in_channels() {
    let analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let calls = [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}",
        " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}<|call|>",
    ];
    for call in calls {
        for text in [format!("{analysis}{call}"), call.to_owned()] {
            let thought = if text.starts_with('<') && text.contains("Hm.") { "Hm." } else { "" };
            let expected = (thought.to_owned(), String::new(), vec![(PARIS.0.to_owned(), PARIS.1.to_owned())]);
            for cut in 0..=text.len() {
                let pieces = [&text[..cut], &text[cut..]];
                let found = split(syntax("harmony"), TextStart::Answer, ReasoningText::Split, &pieces);
                assert_eq!(found, expected, "{text:?} cut at {cut}");
            }
            assert_eq!(calls_of(&text).len(), 1);
        }
    }
    // A mark within a string of the arguments ends nothing.
    let quoted = "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"<|end|>\\\"<|call|>\"}<|call|>";
    let expected = vec![("get_weather".to_owned(), r#"{"city": "<|end|>\"<|call|>"}"#.to_owned())];
    for cut in 0..=quoted.len() {
        let pieces = [&quoted[..cut], &quoted[cut..]];
        let found = split(syntax("harmony"), TextStart::Answer, ReasoningText::Split, &pieces);
        assert_eq!(found.2, expected, "cut at {cut}");
    }
    let both = format!("{}<|call|><|start|>assistant<|channel|>final<|message|>Done.", calls[0]);
    let (_, content, calls) = whole(syntax("harmony"), &both);
    assert_eq!((&*content, calls.len()), ("Done.", 1));
}

#[test]
fn templates_tell_their_family() {
    for (template, name) in [
        ("<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>", "hermes"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>", "qwen3_coder"),
        ("Environment: ipython {\"name\": function name, \"parameters\": dictionary", "llama3"),
        ("{{- \"[TOOL_CALLS] [\" }}", "mistral"),
        ("{{- '[TOOL_CALLS]' + name + '[ARGS]' }}", "mistral_args"),
        ("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma4"),
        ("<|start|>assistant<|channel|>commentary json<|message|>", "harmony"),
        ("<|tool_call|>{\"name\"<|/tool_call|>", "phi4"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", "glm"),
        ("<tool_calls>\n<tool_call>{function-name}<tool_sep>\n<arg_key>{arg-key-1}</arg_key>", "hunyuan_v3"),
        (
            "{%- set HYTK = ':opensource' %}\n{%- set toolsep_token = '<tool_sep{}>'.format(HYTK) %}",
            "hunyuan_v3_open_source",
        ),
        ("<tool_calls>[{\"name\": ", "hunyuan_list"),
        (
            "{{- \"<|tool_call_start|>[\" + (tool_calls_ns.tool_calls | join(\", \")) + \"]<|tool_call_end|>\" -}}",
            "lfm2",
        ),
        ("\"List of tools: <|tool_list_start|>[\"", "lfm2_tool_list"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}\n<invoke name=\"tool-name-1\">", "minimax_m2"),
        ("'If you decide to call any tool(s): <TOOLCALL>[{{\"name\": ", "nemotron"),
        ("<|START_THINKING|>{{message.reasoning_content}}<|END_THINKING|><|START_ACTION|>[", "cohere"),
        ("<｜tool▁call▁begin｜>' + '<｜tool▁sep｜>' + '\\n' + '```json'", "deepseek_v3"),
        ("<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'", "deepseek_v31"),
    ] {
        assert_eq!(CallSyntax::of(template).map(CallSyntax::name), Some(name), "{template}");
    }
    assert_eq!(CallSyntax::of("{{ messages }}"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 2000 }))]

    /// Whatever a text of marks, names and pieces of JSON is, cutting it changes nothing.
    #[test]
    fn cuts_change_nothing(
        syntax_at in 0..SYNTAXES.len() + 1,
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "<function=", "get_time", "get_weather", ">", "</function>", "<parameter=",
            "city", "</parameter>", "{\"name\": \"get_time\", \"arguments\": ", "{\"name\": \"f\"", "{", "}", "\"",
            ": ",
            ", ", "[", "]", "\\", " ", "\n", "x", "7", "[TOOL_CALLS]", "[ARGS]", "<|tool_call>", "call:",
            "<tool_call|>",
            "<|\"|>", "<|python_tag|>", "; ", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "functools",
            "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "```json\n", "<｜tool▁call▁end｜>",
            "<tool_calls>", "</tool_calls>", "<tool_sep>", "<minimax:tool_call>", "<invoke name=\"", "\">", "</invoke>",
            "<|tool_call_start|>", "<|tool_call_end|>", "get_time(", "a=", "'", "True", ")",
            "<parameter name=\"", "<|START_ACTION|>", "<|END_ACTION|>", "\"tool_name\": \"f\"", "<TOOLCALL>",
            "</TOOLCALL>", "function", "<|tool_call|>", "<|/tool_call|>", "<think>", "</think>", "<|channel|>",
            "commentary", "to=functions.", "<|message|>", "<|end|>", "<|start|>", "\"parameters\": {\"a\": 1}",
        ]), 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        keeps in any::<bool>(),
        is_open in any::<bool>(),
    ) {
        let syntax = SYNTAXES.get(syntax_at).unwrap_or(&ANY);
        let text = pieces.concat();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        places.retain(|&at| text.is_char_boundary(at));
        places.sort_unstable();
        let mut cut_pieces = Vec::new();
        let mut from = 0;
        for at in places.into_iter().chain([text.len()]) {
            cut_pieces.push(&text[from..at]);
            from = at;
        }
        let start = || if is_open { TextStart::Reasoning } else { TextStart::Answer };
        let reasoning = if keeps { ReasoningText::Keep } else { ReasoningText::Split };
        let whole = split(syntax, start(), reasoning, &[&text]);
        prop_assert_eq!(split(syntax, start(), reasoning, &cut_pieces), whole.clone());
        let has_channels = syntax.has_channels && (text.contains("<|channel|>") || text.contains("to=functions."));
        if whole.2.is_empty() && (keeps || !text.contains("think>")) && !is_open && !has_channels
            && !text.contains("<|channel|>")
        {
            prop_assert_eq!(whole.1, text);
        }
    }
}
