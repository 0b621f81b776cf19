//! Task files whose samples have a form, and whose answers stand in fields of JSON.

use serde_json::{Value, json};

use offshoot_eval::task::{Overrides, Task, help};
use offshoot_form::Form;

use crate::task_files::{Desk, refused, sample_task, with};

fn formed(form: Value) -> Value {
    with("sampling", json!({"form": form}))
}

fn form_of(task: &Task) -> Form {
    Form::clone(task.form.as_ref().expect("it has one"))
}

#[test]
fn a_form_is_one_of_five_kinds() {
    let schema = json!({"type": "object", "properties": {"answer": {"type": ["integer", "null"], "enum": [1, null]}}});
    let kinds = [
        (json!("json_object"), Form::JsonObject, "a JSON object"),
        (json!({"json": schema}), Form::Json(schema.clone()), "JSON by a schema of 85 B"),
        (json!({"regex": "[0-9]+"}), Form::Regex("[0-9]+".into()), "the pattern `[0-9]+`"),
        (json!({"grammar": "start: /a+/"}), Form::Lark("start: /a+/".into()), "a grammar of 11 B"),
        (json!({"choice": ["yes", "no"]}), Form::Choice(vec!["yes".into(), "no".into()]), "one of 2 texts"),
    ];
    for (said, form, described) in kinds {
        let task = Desk::new().load(&formed(said)).expect("a task");
        assert_eq!(form_of(&task), form, "nulls of a schema stay");
        assert_eq!(task.sampling.form.as_ref().expect("it has one").described(), described);
    }
    let gbnf = Desk::new().load(&formed(json!({"grammar": "root ::= \"a\" | \"b\""}))).expect("a task");
    assert_eq!(form_of(&gbnf), Form::of_grammar("root ::= \"a\" | \"b\"").expect("a grammar"));
    assert_eq!(Desk::new().load(&sample_task()).expect("a task").form, None);
    assert_eq!(Desk::new().load(&formed(Value::Null)).expect("a task").form, None);
}

#[test]
fn a_schema_may_be_a_file_beside_the_task() {
    let desk = Desk::new();
    desk.put("person.json", "\u{feff}{\"type\": \"object\"}\r\n");
    let task = desk.load(&formed(json!({"json": "person.json"}))).expect("a task");
    assert_eq!(form_of(&task), Form::Json(json!({"type": "object"})));
    let shown = task.sampling.form.as_ref().expect("it has one").described();
    assert_eq!(shown, "JSON by the schema in person.json");

    let set = |set: &[&str]| Overrides { set: set.iter().map(|set| set.to_string()).collect(), ..Overrides::default() };
    let task =
        desk.load_with(&sample_task(), &set(&["sampling.form.json=person.json"])).expect("found beside the task");
    assert_eq!(form_of(&task), Form::Json(json!({"type": "object"})));
    let error = desk.load_with(&sample_task(), &set(&["sampling.form.json=none.json"])).expect_err("no such file");
    assert!(error.contains("sampling.form.json") && error.contains("none.json"), "{error}");

    desk.put("broken.json", "{\"type\": ");
    let error = desk.load(&formed(json!({"json": "broken.json"}))).expect_err("no JSON");
    assert!(error.contains("broken.json") && error.contains("not a JSON Schema"), "{error}");
    let error = desk.load(&formed(json!({"json": "missing.json"}))).expect_err("no file");
    assert!(error.contains("missing.json"), "{error}");
}

#[test]
fn what_is_no_form_is_named() {
    let kinds = "`json_object`, or exactly one of `json`, `regex`, `grammar`, `choice` with its value";
    refused(&formed(json!("json")), &["`sampling.form`", kinds, "\"json\""]);
    refused(&formed(json!({"regex": "a", "grammar": "b"})), &["`sampling.form`", kinds, "2 of them"]);
    refused(&formed(json!({"gbnf": "a"})), &["`sampling.form.gbnf`", "`grammar`"]);
    refused(&formed(json!({"grammar": "root ::= ("})), &["`sampling.form.grammar`"]);
    refused(
        &formed(json!({"json": "none.json"})),
        &["`sampling.form.json`", "the path of a file", "none.json: cannot open"],
    );
    refused(&formed(json!({"regex": 7})), &["`sampling.form.regex`", "a string", "7"]);
    refused(&formed(json!({"json": 7})), &["`sampling.form.json`", "a JSON Schema, or a path", "7"]);
    refused(&formed(json!({"choice": []})), &["`sampling.form.choice`", "a list of texts, at least one"]);
    refused(&formed(json!({"choice": "yes"})), &["`sampling.form.choice`", "a list of texts, at least one"]);
    let page = help::text();
    for key in ["sampling.form:", "sampling.form.json:", "sampling.form.choice:", "answer.json:", "answer.tool_call:"] {
        assert!(page.contains(&format!("\n{key} ")), "{key} is not in the help");
    }
}

fn voting(answer: Value, grade: Value, gold: Value) -> Task {
    let mut task = with("answer", answer);
    task["items"] = json!([{"q": "1+1?", "gold": gold}]);
    task["grade"] = grade;
    Desk::new().load(&task).expect("a task")
}

#[test]
fn answers_are_fields_of_json() {
    let task =
        voting(json!({"json": "/answer", "normalise": "number"}), json!({"number": {"field": "gold"}}), json!(18));
    let item = &task.items(None).expect("one item")[0];
    let texts = [
        (r#"{"why": "2 of 9", "answer": 18.0}"#, Some("18"), true),
        ("<think>{\"answer\": 1}</think>So:\n```json\n{\"answer\": \"18\"}\n```", Some("18"), true),
        (r#"{"answer": 17}"#, Some("17"), false),
        (r#"{"answer": null}"#, None, false),
        ("18", None, false),
    ];
    for (text, answer, right) in texts {
        let found = task.answer(text);
        assert_eq!(found.as_ref().map(|found| found.value.as_str()), answer, "{text}");
        assert_eq!(task.grade(item, text, found.as_ref()), Some(right), "{text}");
    }
}

#[test]
fn a_reference_may_be_json_too() {
    let grade = json!({"exact": {"field": "gold", "json": "", "normalise": "none"}});
    let gold = json!({"to": "Oslo", "legs": [1, 2]});
    for gold in [gold.clone(), json!(gold.to_string())] {
        let task = voting(json!({"json": "/trip", "normalise": "none"}), grade.clone(), gold);
        let item = &task.items(None).expect("one item")[0];
        let found = task.answer(r#"{"trip": {"legs": [1.0, 2], "to": "Oslo"}}"#);
        assert_eq!(found.as_ref().map(|found| found.value.as_str()), Some(r#"{"legs":[1,2],"to":"Oslo"}"#));
        assert_eq!(task.grade(item, "", found.as_ref()), Some(true));
        assert_eq!(task.grade(item, "", task.answer(r#"{"trip": {"to": "Oslo"}}"#).as_ref()), Some(false));
    }
}

#[test]
fn answers_are_calls_of_tools() {
    let call = |city: &str| {
        let call = json!({"name": "weather", "arguments": {"city": city, "days": 2}});
        format!("Let me see.\n<tool_call>\n{call}\n</tool_call>")
    };
    let gold = json!({"name": "weather", "arguments": {"days": 2.0, "city": "Oslo"}});
    let task = voting(json!({"tool_call": true}), json!({"exact": {"field": "gold", "json": ""}}), gold);
    let item = &task.items(None).expect("one item")[0];
    for (text, right) in [(call("Oslo"), true), (call("Rome"), false), ("It rains.".to_owned(), false)] {
        let found = task.answer(&text);
        assert_eq!(found.is_some(), text.contains("tool_call"), "{text}");
        assert_eq!(task.grade(item, &text, found.as_ref()), Some(right), "{text}");
    }
    let city = json!({"tool_call": true, "json": "/arguments/city"});
    let task = voting(city.clone(), json!({"exact": {"field": "gold"}}), json!("Oslo"));
    assert_eq!(task.answer(&call("Oslo")).map(|found| found.value), Some("Oslo".to_owned()));
    let lower = json!({"tool_call": true, "json": "/arguments/city", "normalise": "text"});
    let task = voting(lower, json!({"exact": {"field": "gold"}}), json!("oslo"));
    assert_eq!(task.answer(&call("Oslo")).map(|found| found.value), Some("oslo".to_owned()));
}

/// Answers in JSON are compared as JSON, unless `normalise` says otherwise: by case, and numbers by their value.
#[test]
fn values_of_json_are_compared_as_json() {
    let exact = json!({"exact": {"field": "gold"}});
    let cases = [
        (json!("Oslo"), r#"{"answer": "Oslo"}"#, true),
        (json!("oslo"), r#"{"answer": "Oslo"}"#, false),
        (json!(18.0), r#"{"answer": 18}"#, true),
        (json!(18), r#"{"answer": 18.00}"#, true),
        (json!(1.5), r#"{"answer": 15e-1}"#, true),
        (json!(18), r#"{"answer": 17}"#, false),
        (json!(true), r#"{"answer": true}"#, true),
    ];
    for (gold, text, right) in cases {
        let task = voting(json!({"json": "/answer"}), exact.clone(), gold.clone());
        let item = &task.items(None).expect("one item")[0];
        assert_eq!(task.grade(item, text, task.answer(text).as_ref()), Some(right), "{gold} {text}");
    }
    let task = voting(json!({"json": ""}), exact, json!("a"));
    let value = |text: &str| task.answer(text).map(|found| found.value);
    assert_eq!(value(r#"{"Code": "US", "n": 1.0}"#), value(r#"{"n":1,"Code":"US"}"#));
    assert_ne!(value(r#"{"Code": "US"}"#), value(r#"{"Code": "us"}"#));
    assert_ne!(value(r#"{"Code": "US"}"#), value(r#"{"code": "US"}"#));
}

#[test]
fn a_pointer_is_checked_and_stands_alone() {
    refused(&with("answer", json!({"json": "answer"})), &["`answer.json`", "a JSON pointer, such as", "\"answer\""]);
    refused(&with("answer", json!({"json": "/a", "regex": "(.)"})), &["`answer.json`", "no pointer beside"]);
    refused(&with("answer", json!({"json": "/a", "boxed": true})), &["`answer.json`", "no pointer beside"]);
    let calls = with("answer", json!({"tool_call": true, "regex": "(.)"}));
    refused(&calls, &["`answer.tool_call`", "false beside `boxed` or `regex`"]);
    refused(&with("grade", json!({"exact": {"field": "a", "json": "a"}})), &["`grade.exact.json`", "a JSON pointer"]);
}
