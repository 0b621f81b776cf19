//! Forms that are refused: soon, and with a message that says what is wrong.

use std::sync::Arc;

use offshoot_form::{Form, FormCompiler};
use offshoot_text::Tokenizer;
use serde_json::{Value, json};

use crate::compiler;
use crate::mutate::{Dice, mutated};

#[test]
fn bad_forms_are_refused_by_name() {
    let compiler = compiler();
    let refused = |form: Form, words: &[&str]| {
        let shown = format!("{form:?}");
        let error = compiler.compile(&Arc::new(form)).map(|_| ()).expect_err(&shown).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{shown}: {error}");
        assert!(error.lines().count() == 1 && error.len() < 2000, "{error}");
    };
    let json = |schema: Value| Form::Json(schema);
    refused(json(json!({"type": "string", "minLength": 5, "maxLength": 2})), &["JSON schema", "nsatisfiable"]);
    refused(json(json!({"allOf": [{"type": "string"}, {"type": "number"}]})), &["JSON schema"]);
    refused(json(json!({"$ref": "https://example.com/schema.json"})), &["JSON schema", "example.com", "`$defs`"]);
    refused(json(json!({"properties": {"a/b": {"anyOf": [{}, {"type": "strin"}]}}})), &["`#/properties/a~1b/anyOf/1`"]);
    refused(json(json!({"items": {"not": {"type": "null"}}})), &["`#/items`", "not"]);
    let both = json!({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "null"}]},
        "b": {"oneOf": [{"minimum": 1}, {"maximum": 9}]}}});
    refused(json(both), &["`#/properties/b`", "`\"x-guidance\": {\"coerce_one_of\": true}`"]);
    let far = json!({"properties": {"n": {"type": "integer", "minimum": 1e30}}});
    refused(json(far), &["`#/properties/n`", "bounds of integers of at most 18 digits"]);
    refused(json(json!({"x-guidance": {"item_separator": ";"}})), &["item_separator", "\";\""]);
    refused(json(json!({"x-guidance": {"whitespace_pattern": "x+"}})), &["whitespace_pattern", "\"x+\""]);
    refused(json(json!({"$ref": "#/$defs/nowhere"})), &["JSON schema", "nowhere"]);
    refused(json(json!({"type": "array", "uniqueItems": true})), &["JSON schema", "uniqueItems"]);
    refused(json(json!({"type": "string", "pattern": "(?=a)b"})), &["JSON schema"]);
    let endless = json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
    refused(json(endless), &["JSON schema", "without end"]);
    refused(json(json!({"type": "thing"})), &["JSON schema", "thing"]);
    refused(json(json!({"type": "object", "x-guidance": {"indent": 3}})), &["JSON schema", "indent"]);
    refused(json(json!({"type": "object", "x-guidance": 3})), &["JSON schema", "x-guidance"]);
    refused(Form::Regex("(".to_string()), &["regular expression"]);
    refused(Form::Regex(r"(?!a)b".to_string()), &["regular expression"]);
    refused(Form::Regex("a&&b[^\\s\\S]".to_string()), &["regular expression"]);
    refused(Form::Lark("start: nowhere".to_string()), &["Lark grammar", "nowhere"]);
    refused(Form::Lark(String::new()), &["Lark grammar", "start"]);
    refused(Form::Lark("start: \"a".to_string()), &["Lark grammar"]);
    refused(Form::Lark("start: <|no_such_token|>".to_string()), &["Lark grammar"]);
    refused(Form::Choice(Vec::new()), &["choice", "none"]);
}

#[test]
fn forms_that_the_tokenizer_cannot_spell_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "cd": 2, "ab": 3}, "merges": ["a b"]});
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let file = json!({"version": "1.0", "model": model, "decoder": decoder, "added_tokens": []});
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).expect("a file");
    let tokenizer = Arc::new(Tokenizer::load(folder.path()).expect("a tokenizer"));
    let compiler = FormCompiler::new(tokenizer, Vec::new(), 4);
    let compile = |form: Form| compiler.compile(&Arc::new(form)).map_err(|error| error.to_string());
    let texts = |texts: &[&str]| Form::Choice(texts.iter().map(|text| text.to_string()).collect());
    assert!(compile(texts(&["abba", "acdb", ""])).is_ok());
    let error = compile(texts(&["ab", "abc"])).unwrap_err();
    assert_eq!(error, "choice: expected texts that the model's tokens spell, found \"abc\"");
    assert!(compile(Form::Regex("a+(b|x)".to_string())).is_ok());
    for form in [Form::Regex("x+".to_string()), Form::JsonObject] {
        let error = compile(form).unwrap_err();
        assert!(error.ends_with("none of the model's tokens begins one"), "{error}");
    }
}

/// A refusal is remembered, and a form that is refused does not spoil the others.
#[test]
fn what_is_refused_stays_refused() {
    let compiler = compiler();
    let bad = Arc::new(Form::Regex("(".to_string()));
    let message = || compiler.compile(&bad).map(|_| ()).unwrap_err().to_string();
    assert_eq!(message(), message());
    assert!(compiler.compile(&Arc::new(Form::JsonObject)).is_ok());
}

/// Schemas that are tried. (`examples/measure.rs` tries thousands, in a release build, and measures them.)
const MUTATED: usize = 250;

/// Schemas as strangers change them: each is compiled or refused with a message.
#[test]
fn mutated_schemas_are_compiled_or_refused() {
    let compiler = compiler();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut compiled, mut refused) = (0, 0);
    for _ in 0..MUTATED {
        match compiler.compile(&Arc::new(Form::Json(mutated(&mut dice)))) {
            Ok(_) => compiled += 1,
            Err(error) => {
                assert!(error.to_string().starts_with("JSON schema: expected "), "{error}");
                refused += 1;
            }
        }
    }
    assert!(compiled >= 25 && refused >= 25, "{compiled} compiled, {refused} refused");
}
