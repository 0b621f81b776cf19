//! Grammars of answers that must call tools, as `offshoot_text` writes them: each family's own calls fit, and every
//! walk over allowed tokens ends in calls that the family's reader finds, with arguments that the tools take.

use std::path::Path;
use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_form::{CompiledForm, Form, FormBegin, FormCompiler, FormState, Forms};
use offshoot_text::reasoning::TextStart;
use offshoot_text::tools::{
    AnswerSplitter, CallDemand, CallReader, CallSyntax, ReasoningText, Tool, ToolCall, ToolSet, joined_calls,
};
use offshoot_text::{AddSpecial, Tokenizer};
use serde_json::json;
use tempfile::TempDir;

/// What templates of the families have, and the same call as each writes it.
const FAMILIES: [(&str, &str); 12] = [
    (
        "<tool_call> {\"name\"",
        "<tool_call>\n{\"name\": \"look\", \"arguments\": \
         {\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}}\n</tool_call>",
    ),
    (
        "<tool_call><function=",
        "<tool_call>\n<function=look>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
         <parameter=unit>\nc\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "<tool_call><arg_key>",
        "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n\
         <arg_value>2</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>c</arg_value>\n</tool_call>",
    ),
    (
        "ipython \"parameters\"",
        "{\"name\": \"look\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}}",
    ),
    (
        "[TOOL_CALLS]",
        "[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}}]",
    ),
    ("[TOOL_CALLS] [ARGS]", "[TOOL_CALLS]look[ARGS]{\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}"),
    ("<|tool_call>", "<|tool_call>call:look{city:<|\"|>Oslo<|\"|>,days:2,unit:<|\"|>c<|\"|>}<tool_call|>"),
    (
        "<|tool_call|> <|/tool_call|>",
        "<|tool_call|>{\"name\": \"look\", \"arguments\": \
         {\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}}<|/tool_call|>",
    ),
    (
        "<|channel|><|message|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.look \
         <|constrain|>json<|message|>{\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}",
    ),
    (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}\
         <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "<｜tool▁call▁begin｜> ```json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n\
         {\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "<|tool_call_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>\
         {\"city\": \"Oslo\", \"days\": 2, \"unit\": \"c\"}<|tool_call_end|><|tool_calls_section_end|>",
    ),
];

/// Marks that are tokens of most families' vocabularies.
const MARKS: [&str; 31] = [
    "<tool_call>",
    "</tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|start|>",
    "<|end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|python_tag|>",
    "[CALL_ID]",
    "<|call|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

/// The bundled model's tokenizer; if `has_marks`, with the marks as special tokens.
pub fn tokenizer(folder: &Path, has_marks: bool) -> Arc<Tokenizer> {
    let demo = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
        std::fs::copy(demo.join(name), folder.join(name)).expect("the bundled model has a tokenizer");
    }
    if has_marks {
        let ids = MARKS.iter().zip(1024..).map(|(mark, id)| ((*mark).to_owned(), json!(id)));
        let added = serde_json::Value::Object(ids.collect());
        std::fs::write(folder.join("added_tokens.json"), added.to_string()).expect("the folder is writable");
    }
    Arc::new(Tokenizer::load(folder).expect("the files are a tokenizer"))
}

fn tools() -> Arc<ToolSet> {
    let properties = json!({
        "city": {"type": "string", "maxLength": 40},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["c", "f"]},
    });
    let parameters = json!({
        "type": "object", "properties": properties, "required": ["city", "days"], "additionalProperties": false,
    });
    let look = Tool { name: "look".to_owned(), parameters: Some(parameters) };
    Arc::new(ToolSet { tools: vec![look, Tool { name: "wait".to_owned(), parameters: None }] })
}

fn calls(form: &'static CallSyntax, text: &str) -> Vec<ToolCall> {
    let reader = CallReader::new(form, tools());
    let mut splitter = AnswerSplitter::new(TextStart::Answer, ReasoningText::Split, Some(reader));
    joined_calls(&splitter.push_last(text))
}

/// Whether the form allows these tokens, and the text's end behind them.
fn accepts(forms: &mut Forms, form: &Arc<CompiledForm>, tokens: &[TokenId]) -> Result<bool, usize> {
    let mut state = FormState::begin(form.clone(), &FormBegin::AtOnce);
    for (at, &token) in tokens.iter().enumerate() {
        let mask = forms.masks(&mut [&mut state]).remove(0).expect("a mask");
        if !mask.allowed.as_ref().is_none_or(|allowed| allowed.contains(token)) {
            return Err(at);
        }
        state.push(token);
    }
    Ok(forms.masks(&mut [&mut state]).remove(0).expect("a mask").may_end)
}

#[test]
fn each_family_s_calls_fit_its_grammar() {
    for has_marks in [false, true] {
        let folder = TempDir::new().expect("a temporary folder");
        let tokenizer = tokenizer(folder.path(), has_marks);
        let compiler =
            FormCompiler::new(tokenizer.clone(), tokenizer.eos().into_iter().collect(), tokenizer.vocab_size());
        let mut forms = Forms::new(1);
        for (template, text) in FAMILIES {
            let family = CallSyntax::of(template).unwrap_or_else(|| panic!("{template}: no family"));
            let grammar = |demand: CallDemand| {
                let text = family.grammar(&tools(), &demand, &tokenizer, false).expect("a grammar");
                let compiled = compiler.compile(&Arc::new(Form::Lark(text.clone())));
                compiled.unwrap_or_else(|error| panic!("{}: {error}\n{text}", family.name()))
            };
            let tokens = |text: &str| tokenizer.encode(text, AddSpecial::No).expect("the vocabulary has all bytes");
            let named = |name: &str| grammar(CallDemand::Named(name.to_owned()));
            for form in [grammar(CallDemand::Some), grammar(CallDemand::One), named("look")] {
                let found = accepts(&mut forms, &form, &tokens(text));
                let at = |at: usize| tokenizer.decode_with_special(&tokens(text)[..at]);
                assert_eq!(found.map_err(at), Ok(true), "{} {has_marks}: {text}", family.name());
            }
            // Other tools, other values and plain texts do not fit.
            assert!(accepts(&mut forms, &named("wait"), &tokens(text)).is_err(), "{}", family.name());
            let form = grammar(CallDemand::Some);
            for wrong in [text.replace("look", "lick"), text.replace('2', "x"), "Well.".to_owned(), String::new()] {
                assert_ne!(accepts(&mut forms, &form, &tokens(&wrong)), Ok(true), "{}: {wrong}", family.name());
            }
            let found = calls(family, text);
            assert_eq!(found.len(), 1, "{}: {text}", family.name());
            assert_eq!(found[0].value(), Some(json!({"city": "Oslo", "days": 2, "unit": "c"})), "{}", family.name());
        }
    }
}

#[test]
fn names_of_parameters_are_read_as_they_are() {
    let folder = TempDir::new().expect("a temporary folder");
    let tokenizer = tokenizer(folder.path(), true);
    let compiler = FormCompiler::new(tokenizer.clone(), tokenizer.eos().into_iter().collect(), tokenizer.vocab_size());
    let properties = json!({"xml:lang": {"enum": ["no"]}, "a}b": {"enum": ["c"]}, "größe_1": {"enum": ["d"]}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["xml:lang", "a}b", "größe_1"]});
    let look = Tool { name: "look".to_owned(), parameters: Some(parameters) };
    let tools = Arc::new(ToolSet { tools: vec![look] });
    let gemma = CallSyntax::of("<|tool_call>").expect("a family");
    let grammar = gemma.grammar(&tools, &CallDemand::One, &tokenizer, false).expect("a grammar");
    let form = compiler.compile(&Arc::new(Form::Lark(grammar))).expect("it compiles");
    // The form has one text, which every token is forced to.
    let mut state = FormState::begin(form, &FormBegin::AtOnce);
    let mut forms = Forms::new(1);
    loop {
        let mask = forms.masks(&mut [&mut state]).remove(0).expect("a mask");
        if mask.may_end {
            break;
        }
        let allowed = mask.allowed.as_ref().expect("not all tokens");
        let next = (0..allowed.vocab()).map(TokenId::new).find(|token| allowed.contains(*token));
        state.push(next.expect("a text goes on or ends"));
    }
    let text = tokenizer.decode_with_special(state.tokens());
    let mut splitter =
        AnswerSplitter::new(TextStart::Answer, ReasoningText::Split, Some(CallReader::new(gemma, tools)));
    let found = joined_calls(&splitter.push_last(&text));
    assert_eq!(found.len(), 1, "{text}");
    assert_eq!(found[0].value(), Some(json!({"a}b": "c", "größe_1": "d", "xml:lang": "no"})), "{text}");
}

/// Schemas that parameters name elsewhere, and alternatives, hold as those that stand there.
#[test]
fn references_and_alternatives_hold() {
    let properties = json!({
        "a": {"$ref": "#/$defs/q"},
        "b": {"allOf": [{"$ref": "#/$defs/place"}]},
        "c": {"anyOf": [{"enum": [1, 2]}, {"type": "null"}]},
    });
    let place = json!({
        "type": "object", "properties": {"z": {"const": 5}, "in": {"$ref": "#/$defs/place"}}, "required": ["z"],
        "additionalProperties": false,
    });
    let parameters = json!({
        "type": "object", "properties": properties, "required": ["a", "b", "c"],
        "$defs": {"q": {"type": "string", "enum": ["q1", "q2"]}, "place": place},
    });
    let tool = Tool { name: "look".to_owned(), parameters: Some(parameters) };
    let tools = Arc::new(ToolSet { tools: vec![tool] });
    let folder = TempDir::new().expect("a temporary folder");
    let tokenizer = tokenizer(folder.path(), true);
    let compiler = FormCompiler::new(tokenizer.clone(), tokenizer.eos().into_iter().collect(), tokenizer.vocab_size());
    let mut forms = Forms::new(1);
    let coder = |[a, b, c]: [&str; 3]| {
        let line = |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
        format!(
            "<tool_call>\n<function=look>\n{}{}{}</function>\n</tool_call>",
            line("a", a),
            line("b", b),
            line("c", c)
        )
    };
    let gemma = |[a, b, c]: [&str; 3]| format!("<|tool_call>call:look{{a:{a},b:{b},c:{c}}}<tool_call|>");
    let (good, wrong) = (r#"{"z": 5, "in": {"z": 5}}"#, r#"{"z": 6}"#);
    let (quoted, other) = ("<|\"|>q1<|\"|>", "<|\"|>q3<|\"|>");
    let cases: [(&str, String, Vec<String>); 2] = [
        (
            "<tool_call><function=",
            coder(["q1", good, "2"]),
            vec![
                coder(["\"q1\"", good, "2"]),
                coder(["q3", good, "2"]),
                coder(["q1", wrong, "2"]),
                coder(["q1", good, "7"]),
            ],
        ),
        (
            "<|tool_call>",
            gemma([quoted, "{in:{z:5},z:5}", "2"]),
            vec![
                gemma([other, "{z:5}", "2"]),
                gemma([quoted, "{z:6}", "2"]),
                gemma([quoted, "{in:{z:4},z:5}", "2"]),
                gemma([quoted, "{z:5}", "7"]),
            ],
        ),
    ];
    for (template, text, others) in cases {
        let family = CallSyntax::of(template).expect("a family");
        let grammar = family.grammar(&tools, &CallDemand::One, &tokenizer, false).expect("a grammar");
        let form = compiler.compile(&Arc::new(Form::Lark(grammar.clone())));
        let form = form.unwrap_or_else(|error| panic!("{error}\n{grammar}"));
        let tokens = |text: &str| tokenizer.encode(text, AddSpecial::No).expect("the vocabulary has all bytes");
        assert_eq!(accepts(&mut forms, &form, &tokens(&text)), Ok(true), "{text}\n{grammar}");
        for other in others {
            assert_ne!(accepts(&mut forms, &form, &tokens(&other)), Ok(true), "{other}\n{grammar}");
        }
        let reader = CallReader::new(family, tools.clone());
        let mut splitter = AnswerSplitter::new(TextStart::Answer, ReasoningText::Split, Some(reader));
        let found = joined_calls(&splitter.push_last(&text));
        let expected = json!({"a": "q1", "b": {"z": 5, "in": {"z": 5}}, "c": 2});
        assert_eq!(found[0].value(), Some(expected), "{text}");
    }
}

/// Beside content of a form, an answer calls a tool or is that content.
#[test]
fn calls_stand_beside_content() {
    let folder = TempDir::new().expect("a temporary folder");
    let tokenizer = tokenizer(folder.path(), true);
    let compiler = FormCompiler::new(tokenizer.clone(), tokenizer.eos().into_iter().collect(), tokenizer.vocab_size());
    let mut forms = Forms::new(1);
    let schema = json!({"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]});
    let content = Form::Json(schema).in_rule().expect("a schema").expect("JSON has a rule");
    for (template, call) in FAMILIES {
        let family = CallSyntax::of(template).expect("a family");
        if !family.has_marks() {
            continue;
        }
        let grammar =
            family.grammar_beside(&tools(), &CallDemand::Some, &tokenizer, false, &content).expect("a grammar");
        let form = compiler.compile(&Arc::new(Form::Lark(grammar.clone())));
        let form = form.unwrap_or_else(|error| panic!("{error}\n{grammar}"));
        let tokens = |text: &str| tokenizer.encode(text, AddSpecial::No).expect("the vocabulary has all bytes");
        let header = if template.contains("channel") { "<|channel|>final<|message|>" } else { "" };
        let answer = format!("{header}{{\"x\": true}}");
        for (text, fits) in [(call, true), (&*answer, true), ("Well.", false), ("{\"x\": 1}", false)] {
            let found = accepts(&mut forms, &form, &tokens(text)) == Ok(true);
            assert_eq!(found, fits, "{}: {text}\n{grammar}", family.name());
        }
        assert!(calls(family, &answer).is_empty());
    }
}

/// Texts without quotes have all that their schema says of strings, and no mark that ends them.
#[test]
fn texts_without_quotes_have_their_schema() {
    let cases = [
        (json!({"type": "string", "pattern": "^[A-Z]{2}/\\d$"}), vec!["AB/1"], vec!["AB/12", "ab/1", "xAB/1"]),
        (json!({"type": "string", "pattern": "b"}), vec!["abc", "b", "a\nb"], vec!["", "ac"]),
        (json!({"minLength": 2, "maxLength": 3}), vec!["ab", "a\nc", "äöü"], vec!["", "a", "abcd"]),
        (json!({"type": "string", "format": "date"}), vec!["2024-02-29"], vec!["2023-02-29", "today"]),
        (json!({"type": "string", "format": "ipv4"}), vec!["127.0.0.1"], vec!["127.0.0", "a"]),
        (json!({"enum": ["a", "a\nb", ""]}), vec!["a", "a\nb", ""], vec!["b", "a\n"]),
        (json!({"allOf": [{"type": "string", "pattern": "^a"}, {"maxLength": 2}]}), vec!["ab"], vec!["b", "abc"]),
        (
            json!({"anyOf": [{"type": "string", "format": "uuid"}, {"type": "string", "const": "none"}]}),
            vec!["none", "123e4567-e89b-12d3-a456-426614174000"],
            vec!["some"],
        ),
        (json!({"type": "string"}), vec!["", "\"a\"", "<b>"], vec!["a</parameter>b", "a</arg_value>b", "a<|\"|>b"]),
    ];
    let families = ["<tool_call><function=", "<tool_call><arg_key>", "<|tool_call>"];
    for has_marks in [false, true] {
        let folder = TempDir::new().expect("a temporary folder");
        let tokenizer = tokenizer(folder.path(), has_marks);
        let ends = tokenizer.eos().into_iter().collect();
        let compiler = FormCompiler::new(tokenizer.clone(), ends, tokenizer.vocab_size());
        let mut forms = Forms::new(1);
        // Sign by sign: a mark within the value is no special token.
        let encode = |text: &str| tokenizer.encode(text, AddSpecial::No).expect("the vocabulary has all bytes");
        let spelled = |text: &str| text.chars().flat_map(|c| encode(c.encode_utf8(&mut [0; 4]))).collect::<Vec<_>>();
        for (template, (schema, good, bad)) in
            families.iter().flat_map(|family| cases.iter().map(move |case| (family, case)))
        {
            let family = CallSyntax::of(template).expect("a family");
            let (before, after, own_mark) = match family.name() {
                "qwen3_coder" => (
                    "<tool_call>\n<function=f>\n<parameter=x>\n",
                    "\n</parameter>\n</function>\n</tool_call>",
                    "</parameter>",
                ),
                "glm" => {
                    ("<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>", "</arg_value>")
                }
                _ => ("<|tool_call>call:f{x:<|\"|>", "<|\"|>}<tool_call|>", "<|\"|>"),
            };
            let parameters = json!({"type": "object", "properties": {"x": schema}, "required": ["x"]});
            let parameters = Form::schema_in_rules(parameters).expect("a schema");
            let tools = Arc::new(ToolSet { tools: vec![Tool { name: "f".to_owned(), parameters: Some(parameters) }] });
            let grammar = family.grammar(&tools, &CallDemand::One, &tokenizer, false).expect("a grammar");
            let form = compiler.compile(&Arc::new(Form::Lark(grammar.clone())));
            let form = form.unwrap_or_else(|error| panic!("{error}\n{grammar}"));
            // Marks of other families end nothing here.
            let is_own = |text: &&&str| !text.contains('<') || text.contains(own_mark);
            let texts = good.iter().map(|text| (text, true)).chain(bad.iter().filter(is_own).map(|text| (text, false)));
            for (text, fits) in texts {
                let tokens = [encode(before), spelled(text), encode(after)].concat();
                let found = accepts(&mut forms, &form, &tokens) == Ok(true);
                assert_eq!(found, fits, "{} {has_marks}: {text:?} of {schema}\n{grammar}", family.name());
                if fits {
                    let reader = CallReader::new(family, tools.clone());
                    let mut splitter = AnswerSplitter::new(TextStart::Answer, ReasoningText::Split, Some(reader));
                    let calls = joined_calls(&splitter.push_last(&format!("{before}{text}{after}")));
                    assert_eq!(calls[0].value(), Some(json!({"x": text})), "{}", family.name());
                }
            }
        }
    }
}

#[test]
fn what_a_syntax_cannot_hold_is_refused_by_name() {
    let folder = TempDir::new().expect("a temporary folder");
    let tokenizer = tokenizer(folder.path(), false);
    let found = |template: &str, schema: serde_json::Value| {
        let parameters = json!({"type": "object", "properties": {"x": schema}});
        let wait = Tool { name: "wait".to_owned(), parameters: None };
        let tools = ToolSet { tools: vec![wait, Tool { name: "f".to_owned(), parameters: Some(parameters) }] };
        let family = CallSyntax::of(template).expect("a family");
        family.grammar(&tools, &CallDemand::Some, &tokenizer, false).map(drop).map_err(|refused| {
            assert_eq!(refused.tool, "f");
            refused.found
        })
    };
    let (coder, gemma) = ("<tool_call><function=", "<|tool_call>");
    for (family, schema, expected) in [
        (coder, json!({"type": "string", "not": {"const": "a"}}), "`not` of `x`"),
        (coder, json!({"type": "string", "pattern": "\\ba"}), "the `pattern` \"\\\\ba\" of `x`"),
        (coder, json!({"oneOf": [{"minLength": 1}, {"maxLength": 2}]}), "`oneOf` of `x`"),
        (
            coder,
            json!({"enum": ["a</parameter>"]}),
            "the text \"a</parameter>\", which has \"</parameter>\" in it of `x`",
        ),
        (gemma, json!({"type": "object", "patternProperties": {"a": {}}}), "`patternProperties` of `x`"),
        (gemma, json!({"type": "array", "uniqueItems": true}), "`uniqueItems` of `x`"),
        (gemma, json!({"const": {"": 1}}), "\"\" of `x`"),
        (gemma, json!({"type": "object", "minProperties": 1}), "`minProperties` of `x`"),
    ] {
        assert_eq!(found(family, schema.clone()), Err(expected.to_owned()), "{schema}");
    }
    assert_eq!(found(gemma, json!({"type": "array", "uniqueItems": false, "maxItems": 2})), Ok(()));
    assert_eq!(found(coder, json!({"type": "object", "not": {"const": 1}})), Ok(()), "JSON refuses it itself");
}
