//! Code benchmarks' problem files as their authors ship them, whole and broken: what is read, and what an error says.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use offshoot_core::json::RawJson;
use offshoot_eval::benchmark;
use offshoot_eval::benchmark::{BenchmarkFormat, BenchmarkRecord, Malformed};
use offshoot_judge::problem::{Assembly, Compare, Problem, TestSuite};
use serde_json::{Map, Value, json};

use crate::parquet_files::write_parquet;
use crate::shared;
use shared::shared;

fn read(path: &Path) -> Vec<BenchmarkRecord> {
    let entries = benchmark::read(path, None).unwrap_or_else(|error| panic!("{error}"));
    entries.map(|entry| entry.unwrap_or_else(|error| panic!("{error}"))).collect()
}

fn problem(entry: &BenchmarkRecord) -> Option<&Problem> {
    entry.problem.as_ref().expect("well formed").as_ref()
}

/// What is said of a file with this text: why it cannot be read, or else why its last record is no problem.
fn error(name: &str, text: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    fs::write(&path, text).expect("writable");
    let entries = benchmark::read(&path, None).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let said = entries.map_err(|error| error.to_string()).and_then(|mut entries| {
        let last = entries.pop().expect("there are records");
        last.problem.map_err(|Malformed { why }| format!("{name}: {why}"))
    });
    said.expect_err("the file is broken").replace(&path.display().to_string(), name)
}

fn fields(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

fn raw(value: Value) -> RawJson {
    RawJson::from(&value)
}

fn human_eval() -> Value {
    json!({"task_id": "HumanEval/0", "prompt": "def half(n):\n    \"\"\" Halves. \"\"\"\n", "entry_point": "half",
        "canonical_solution": "    return n / 2\n", "test": "def check(candidate):\n    assert candidate(4) == 2\n"})
}

#[test]
fn human_eval_is_read_from_its_own_file() {
    let Some(path) = shared("data/humaneval/HumanEval.jsonl.gz") else { return };
    let entries = read(&path);
    assert_eq!(entries.len(), 164);
    for entry in &entries {
        let problem = problem(entry).expect("all have tests");
        let TestSuite::Script(script) = &problem.suite else { panic!("{} has another suite", entry.id) };
        let call = format!("\ncheck({})", script.entry.as_deref().expect("HumanEval names its functions"));
        assert!(script.code.ends_with(&call), "{}", entry.id);
        let Assembly::After(prompt) = &problem.assembly else { panic!("{} is not continued", entry.id) };
        // Every prompt of the file ends in a docstring, which is a body.
        assert_eq!(script.helpers.trim_end(), prompt.trim_end(), "{}", entry.id);
        let references = benchmark::references(None, &entry.id, &entry.fields).expect("all have one");
        assert!(references[0].starts_with(prompt.as_str()), "{}", entry.id);
    }
}

#[test]
fn mbpp_is_read_from_its_own_file() {
    let Some(path) = shared("data/mbpp/mbpp.jsonl") else { return };
    let entries = read(&path);
    assert_eq!(entries.len(), 974);
    assert_eq!(entries[10].id, "11");
    let with_setup = entries.iter().find(|entry| entry.fields["test_setup_code"] != json!("")).expect("a few have it");
    let Some(TestSuite::Script(script)) = problem(with_setup).map(|problem| &problem.suite) else { panic!("a script") };
    assert!(script.code.starts_with("assert is_tree_balanced(root) == False\nassert "), "{}", script.code);
    let prompt = benchmark::prompt(None, "11", &entries[10].fields).expect("a prompt");
    assert!(prompt.starts_with("\"\"\"\nWrite a python function to remove first and last occurrence"), "{prompt}");
    assert!(prompt.ends_with("== \"H\"\n\"\"\"\n"), "{prompt}");
}

#[test]
fn apps_is_read_from_its_rows() {
    let Some(path) = shared("data/apps/apps_train_5.jsonl") else { return };
    let entries = read(&path);
    let suites: Vec<_> = entries.iter().map(|entry| &problem(entry).expect("all have tests").suite).collect();
    let [
        TestSuite::Streams(one),
        TestSuite::Streams(_),
        TestSuite::Streams(three),
        TestSuite::Calls(method),
        TestSuite::Calls(function),
    ] = suites[..]
    else {
        panic!("three over streams, two of calls")
    };
    assert_eq!((one.tests[0].output.as_str(), three.tests.len()), ("1\n6\n-1\n", 3));
    assert_eq!(
        (method.function.as_str(), &method.tests[0].arguments),
        ("findKthPositive", &raw(json!([[2, 3, 4, 7, 11], 5])))
    );
    assert_eq!(
        (function.function.as_str(), &function.tests[1].expected),
        ("is_prime", &vec![raw(json!([true])), raw(json!(true))])
    );
    let prompts: Vec<String> =
        entries.iter().map(|entry| benchmark::prompt(None, &entry.id, &entry.fields).expect("a prompt")).collect();
    assert!(
        prompts[0].starts_with("\nQUESTION:\nMikhail walks")
            && prompts[0].ends_with("\nUse Standard Input format\nANSWER:\n")
    );
    assert!(prompts[4].ends_with("\ndef is_prime(n):\n\t\nUse Call-Based format\nANSWER:\n"), "{:?}", prompts[4]);
}

#[test]
fn apps_is_read_from_its_folders() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, tests) in [("0001", "{\"inputs\": [[\"1\", \"2\"]], \"outputs\": [\"3\\n\"]}"), ("0000", "")] {
        let problem = folder.path().join(name);
        fs::create_dir(&problem).expect("writable");
        fs::write(problem.join("question.txt"), "Add.").expect("writable");
        fs::write(problem.join("solutions.json"), "[\"print(3)\"]").expect("writable");
        if !tests.is_empty() {
            fs::write(problem.join("input_output.json"), tests).expect("writable");
        }
    }
    let entries = benchmark::read(folder.path(), Some(BenchmarkFormat::Apps)).expect("the folder is one of APPS");
    let entries: Vec<BenchmarkRecord> = entries.collect::<Result<_, _>>().expect("readable");
    assert_eq!(entries.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["0000", "0001"]);
    assert!(problem(&entries[0]).is_none(), "no tests, as some of APPS");
    let Some(TestSuite::Streams(streams)) = problem(&entries[1]).map(|problem| &problem.suite) else {
        panic!("streams")
    };
    assert_eq!(streams.tests[0].input, "1\n2", "a list of lines");
    assert_eq!(benchmark::references(None, "0001", &entries[1].fields).expect("readable"), ["print(3)"]);
}

/// Tests as LiveCodeBench packs them: a pickled text of JSON, zipped, in base64. Made with Python 3.11:
/// `base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests))))`.
const PACKED: &str = "eJxrYJlqxwABPVbR1UqZeQWlJUpWCkqmMXlmSjoKSvmlJVARQ8OYPJBISWpxSUllQSpIrLgkJTNPqTZ2ih4At4MUtA==";

#[test]
fn live_code_bench_packs_its_private_tests() {
    let row = |private: &str, metadata: &str, testtype: &str| {
        fields(json!({"question_title": "t", "question_content": "Do.", "platform": "leetcode", "question_id": "2730",
            "contest_id": "c", "contest_date": "2023-05-07T00:00:00", "starter_code": "", "difficulty": "easy",
            "public_test_cases": json!([{"input": "3\n[1, 2]", "output": "true", "testtype": testtype}]).to_string(),
            "private_test_cases": private, "metadata": metadata}))
    };
    let plain = json!([{"input": "4\n[]", "output": "[1.0]", "testtype": "functional"}]).to_string();
    let problem =
        benchmark::problem(None, "2730", &row(&plain, "{\"func_name\": \"f\"}", "functional")).expect("readable");
    let TestSuite::Calls(calls) = problem.suite else { panic!("calls") };
    assert_eq!((calls.function.as_str(), calls.tests.len()), ("f", 2));
    assert_eq!(calls.tests[0].arguments.as_str(), "[3, [1, 2]]");
    assert_eq!(calls.tests[1].expected, [raw(json!([1.0]))]);

    let problem = benchmark::problem(None, "2730", &row(PACKED, "{}", "stdin")).expect("readable");
    let TestSuite::Streams(streams) = problem.suite else { panic!("streams") };
    assert_eq!((streams.tests[1].input.as_str(), streams.tests[1].output.as_str()), ("5\n6", "11\n"));
    assert_eq!(streams.compare, Compare::Floats { tolerance: 0.0 });

    for (private, metadata, testtype, expected) in [
        ("%", "{}", "stdin", "item 2730: `private_test_cases`: expected JSON, or base64 of zlib"),
        ("eA==", "{}", "stdin", "item 2730: `private_test_cases`: expected JSON, or base64 of zlib"),
        (
            "",
            "{}",
            "functional",
            "item 2730: `metadata.func_name`: expected the name of the function to call, found nothing",
        ),
        ("", "{}", "other", "item 2730: `public_test_cases.0.testtype`: expected stdin or functional, found other"),
        (&plain, "{}", "stdin", "item 2730: `public_test_cases`: expected tests of one type"),
    ] {
        let error =
            benchmark::problem(None, "2730", &row(private, metadata, testtype)).expect_err("broken").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn eval_plus_is_told_from_human_eval() {
    let mut row = fields(human_eval());
    row.extend(fields(json!({"base_input": [[4]], "plus_input": [[1], [0.5]], "atol": 1e-6, "contract": ""})));
    let problem = benchmark::problem(None, "HumanEval/0", &row).expect("readable");
    let TestSuite::Reference(reference) = problem.suite else { panic!("a reference") };
    assert_eq!((reference.base.len(), reference.plus.len(), reference.atol), (1, 2, 1e-6));
    assert!(reference.program.ends_with("    return n / 2\n") && reference.entry == "half");
    row.insert("plus_input".to_string(), json!([[1], 2]));
    let error = benchmark::problem(None, "HumanEval/0", &row).expect_err("broken").to_string();
    assert_eq!(error, "item HumanEval/0: `plus_input.1`: expected a list, found 2");
}

/// Texts in `read` are those of the file; each stands in a list of argument lists.
#[test]
fn test_data_stays_as_it_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let inputs = r#"[[18446744073709551616], [-0], [NaN, -Infinity], [1e400], [{"\ud800": "\u00e9"}]]"#;
    let record = human_eval().to_string().replace('}', &format!(", \"base_input\": {inputs}, \"plus_input\": [[1]]}}"));
    for (name, text) in [("x.jsonl", record.clone()), ("x.json", format!("[{record}]"))] {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("writable");
        let [entry] = &read(&path)[..] else { panic!("one record") };
        let Some(TestSuite::Reference(reference)) = problem(entry).map(|problem| &problem.suite) else {
            panic!("a reference")
        };
        let read: Vec<&str> = reference.base.iter().map(RawJson::as_str).collect();
        let written = ["[18446744073709551616]", "[-0]", "[NaN, -Infinity]", "[1e400]", r#"[{"\ud800": "\u00e9"}]"#];
        assert_eq!(read, written, "{name}");
        assert_eq!(entry.fields["plus_input"], json!([[1]]), "what a value holds is one");
    }
}

#[test]
fn a_format_that_the_fields_are_not_of_is_refused_in_a_sentence() {
    let mbpp = json!({"task_id": 2, "text": "t", "code": "", "test_list": ["assert 1"]});
    let mut plus = fields(human_eval());
    plus.insert("base_input".to_string(), json!([[4]]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.jsonl");
    let first = |format, record: &Value| {
        fs::write(&path, format!("\n{record}\n")).expect("writable");
        benchmark::read(&path, Some(format)).expect("the file opens").next().expect("a record")
    };
    for (format, record, expected) in [
        (
            BenchmarkFormat::Mbpp,
            human_eval(),
            "`test_list`: expected a field of mbpp, at line 2, found nothing (the field is missing; the record looks \
             like one of humaneval)",
        ),
        (
            BenchmarkFormat::HumanEval,
            mbpp.clone(),
            "`test`: expected a field of humaneval, at line 2, found nothing (the field is missing; the record looks \
             like one of mbpp)",
        ),
        (
            BenchmarkFormat::EvalPlus,
            human_eval(),
            "`base_input`: expected a field of evalplus, at line 2, found nothing (the field is missing; the record \
             looks like one of humaneval)",
        ),
        (
            BenchmarkFormat::LiveCodeBench,
            mbpp.clone(),
            "`public_test_cases`: expected a field of livecodebench, at line 2, found nothing (the field is missing; \
             the record looks like one of mbpp)",
        ),
    ] {
        let error = first(format, &record).expect_err("of another format").to_string();
        assert_eq!(error, format!("{}: {expected}", path.display()));
    }
    let human_eval_of_plus = first(BenchmarkFormat::HumanEval, &Value::Object(plus)).expect("it has both's fields");
    assert!(matches!(problem(&human_eval_of_plus).expect("tested").suite, TestSuite::Script(_)));
    let error =
        benchmark::problem(Some(BenchmarkFormat::Mbpp), "a", &fields(human_eval())).expect_err("the same in a task");
    assert!(error.to_string().starts_with("item a: `test_list`: expected a field of mbpp"), "{error}");
}

#[test]
fn blank_lines_a_byte_order_mark_and_gzip_are_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = format!("\u{feff}\n  \r\n{}\r\n\n{}", human_eval(), human_eval().to_string().replace("/0", "/1"));
    let plain = folder.path().join("problems.jsonl");
    fs::write(&plain, &text).expect("writable");
    let zipped = folder.path().join("problems.jsonl.gz");
    let mut encoder =
        flate2::write::GzEncoder::new(fs::File::create(&zipped).expect("writable"), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.try_finish()).expect("writable");
    for path in [plain, zipped] {
        assert_eq!(
            read(&path).iter().map(|entry| entry.id.clone()).collect::<Vec<_>>(),
            ["HumanEval/0", "HumanEval/1"]
        );
    }
    let list = folder.path().join("problems.json");
    fs::write(&list, json!([human_eval()]).to_string()).expect("writable");
    assert_eq!(read(&list).len(), 1);
}

#[test]
fn errors_name_file_line_field_expected_and_found() {
    let with = |name: &str, value: Value| {
        let mut row = fields(human_eval());
        row.insert(name.to_string(), value);
        format!("{}\n\n{}\n", human_eval(), Value::Object(row))
    };
    let mut without = fields(human_eval());
    without.remove("prompt");
    for (text, expected) in [
        (with("prompt", json!(5)), "x.jsonl: `prompt`: expected a text, at line 3, found 5"),
        (
            with("task_id", json!(["a"])),
            "x.jsonl: `task_id`: expected an id, a text or a number, at line 3, found a list of 1",
        ),
        (
            Value::Object(without).to_string(),
            "x.jsonl: `prompt`: expected a text, at line 1, found nothing (the field is missing)",
        ),
        (
            "{\"a\": 1}".to_string(),
            "x.jsonl, line 1: expected the fields of a benchmark: base_input and entry_point (evalplus)",
        ),
        (format!("{}\n[1]\n", human_eval()), "x.jsonl: line 2: not a JSON object"),
        ("{\"task_id\": 1".to_string(), "x.jsonl: line 1, column 13: not JSON: EOF while parsing an object"),
        (
            json!({"task_id": 2, "text": "t", "code": "", "test_list": ["assert 1", 2]}).to_string(),
            "x.jsonl: `test_list.1`: expected a text, at line 1, found 2",
        ),
        (
            json!({"task_id": 2, "text": "t", "code": "", "test_list": []}).to_string(),
            "x.jsonl: `test_list`: expected at least one test, at line 1, found none",
        ),
        (
            json!({"problem_id": 1, "question": "", "input_output": "{\"inputs\": [\"1\"], \"outputs\": []}"})
                .to_string(),
            "x.jsonl: `input_output.outputs`: expected as many entries as `input_output.inputs` has: 1, at line 1, \
             found 0",
        ),
        (
            json!({"problem_id": 1, "question": "", "input_output": "{\"inputs\""}).to_string(),
            "x.jsonl: `input_output`: expected JSON in a string, at line 1, found a string that is not JSON",
        ),
    ] {
        let error = error("x.jsonl", &text);
        assert!(error.starts_with(expected), "{error}\nshould begin\n{expected}");
    }
}

#[test]
fn problems_come_from_parquet_as_from_lines() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let live_code = |id: u32, private: &str| {
        json!({"question_title": "t", "question_content": "Do.", "platform": "atcoder",
            "question_id": format!("abc{id}"),
            "contest_id": "c", "contest_date": "2023-05-07T00:00:00", "starter_code": "", "difficulty": "easy",
            "public_test_cases": json!([{"input": "3\n", "output": "4\n", "testtype": "stdin"}]).to_string(),
            "private_test_cases": private, "metadata": "{}"})
    };
    let mbpp = |id: u32| {
        json!({"task_id": id, "text": "Add.", "code": "def f(x):\n    return x + 1", "test_setup_code": "",
            "test_list": ["assert f(1) == 2", "assert f(2) == 3"], "challenge_test_list": ["assert f(0) == 1"]})
    };
    for (name, records) in [
        ("code_generation", vec![live_code(1, PACKED), live_code(2, "[]")]),
        ("mbpp", vec![mbpp(1), mbpp(2)]),
        ("humaneval", vec![human_eval()]),
    ] {
        let lines = folder.path().join(format!("{name}.jsonl"));
        fs::write(&lines, records.iter().map(|record| format!("{record}\n")).collect::<String>()).expect("writable");
        let hub = folder.path().join(name);
        write_parquet(&hub.join("data/test-00000-of-00001.parquet"), &records);
        let of = |path: &Path| {
            let entries = read(path).into_iter();
            let shown = |entry: BenchmarkRecord| {
                // Columns may stand in another order.
                let fields: BTreeMap<String, Value> = entry.fields.into_iter().collect();
                format!("{} {:?} {fields:?}", entry.id, entry.problem)
            };
            entries.map(shown).collect::<Vec<_>>()
        };
        assert_eq!(of(&hub), of(&lines), "{name}");
        assert_eq!(of(&hub.join("data/test-*.parquet")), of(&lines), "{name}");
    }
}
