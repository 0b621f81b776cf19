//! Problems and samples whose JSON says what only Python's `json` holds: whole numbers beyond 64 bits, NaN and
//! infinities, halves of surrogate pairs. Right programs are accepted and those that lose what serde_json would lose
//! are not; a reference that fails ends its own problem alone. Needs a sandbox and `python3`; skips, and says so, where
//! there is none.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::judging::can_judge;

fn judge(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.arg("judge").args(arguments).env_remove("RUST_LOG");
    command.output().expect("the binary starts")
}

/// A folder with `problems.jsonl` and `samples.jsonl`.
struct Files(tempfile::TempDir);

impl Files {
    fn new(problems: &[String], samples: &[String]) -> Files {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, lines) in [("problems.jsonl", problems), ("samples.jsonl", samples)] {
            fs::write(folder.path().join(name), lines.join("\n") + "\n").expect("writable");
        }
        Files(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn judge(&self, more: &[&str]) -> Output {
        let [problems, samples] = ["problems.jsonl", "samples.jsonl"].map(|name| self.path(name).display().to_string());
        judge(&[&["--problems", &problems, "--samples", &samples], more].concat())
    }

    /// The results' lines, each with verdict and result.
    fn results(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("samples.jsonl_results.jsonl")).expect("results");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// (argument, result, right body, wrong body), the first two as they stand in the file.
const CASES: &[(&str, &str, &str, &str)] = &[
    ("18446744073709551616", "18446744073709551617", "x + 1", "float(x) + 1"),
    ("1180591620717411303425", "1180591620717411303425", "x", "int(float(x))"),
    (
        "{\"a\": [1000000000000000000000000000001, [0.1]]}",
        "[1000000000000000000000000000001, [0.1]]",
        "x['a']",
        "[int(float(x['a'][0])), [0.1]]",
    ),
    (
        "[[-340282366920938463463374607431768211457]]",
        "{\"a\": {\"b\": [-340282366920938463463374607431768211457]}}",
        "{'a': {'b': x[0]}}",
        "{'a': {'b': [x[0][0] + 1]}}",
    ),
    (
        "10000000000000000000000000",
        "[10000000000000000000000001, \"int\"]",
        "[x + 1, type(x).__name__]",
        "[x + 1.0, 'int']",
    ),
    ("1e25", "[1e25, \"float\"]", "[x, type(x).__name__]", "[x, 'int']"),
    ("0.1000000000000000055511151231257827", "true", "x == 0.1", "x != 0.1"),
    ("1e400", "[true, \"inf\"]", "[x > 10 ** 400, str(x)]", "[x is None, str(x)]"),
    ("-0", "\"0\"", "str(x)", "str(float(x))"),
    ("[NaN, 1, -Infinity]", "[NaN, -Infinity, Infinity]", "[x[0], min(x[1:]), -x[2]]", "[None, min(x[1:]), -x[2]]"),
    ("[NaN, 1]", "[1, NaN]", "[sum(v == v for v in x), x[0]]", "[1, 0.0]"),
    (
        "\"a\\ud800b\"",
        "[\"\\ud800\", 3, \"\\ud83d\\ude00\"]",
        "[x[1], len(x), '\\U0001f600']",
        "['\\ufffd', 3, '\\U0001f600']",
    ),
];

fn samples_of(id: &str, bodies: [&str; 2]) -> [String; 2] {
    bodies.map(|body| json!({"task_id": id, "solution": format!("def f(x): return {body}\n")}).to_string())
}

/// Judges each case's right and wrong program by the problem that `problem` makes of its place, argument and result.
fn judge_cases(problem: impl Fn(usize, &str, &str) -> String) {
    if !can_judge() {
        return;
    }
    let problems: Vec<String> =
        CASES.iter().enumerate().map(|(ix, (argument, result, ..))| problem(ix, argument, result)).collect();
    let samples: Vec<String> = CASES
        .iter()
        .enumerate()
        .flat_map(|(ix, (_, _, right, wrong))| samples_of(&ix.to_string(), [right, wrong]))
        .collect();
    let files = Files::new(&problems, &samples);
    succeeds(&files.judge(&[]));
    for (pair, case) in files.results().chunks(2).zip(CASES) {
        let verdicts: Vec<_> = pair.iter().map(|line| line["verdict"].as_str().expect("judged")).collect();
        assert_eq!(verdicts, ["AC", "WA"], "{case:?}: {pair:#?}");
    }
}

/// An object as it stands, and as a text of JSON, which is how the Hub has it.
#[test]
fn calls_of_apps_are_what_the_file_says() {
    for as_text in [false, true] {
        judge_cases(|ix, argument, result| {
            let tests = format!("{{\"inputs\": [[{argument}]], \"outputs\": [{result}], \"fn_name\": \"f\"}}");
            let tests = if as_text { Value::String(tests).to_string() } else { tests };
            format!("{{\"problem_id\": {ix}, \"question\": \"\", \"input_output\": {tests}, \"starter_code\": \"\"}}")
        });
    }
}

/// Python's own parser refuses more than 4,300 digits where nobody allows them.
#[test]
fn whole_numbers_have_any_length() {
    if !can_judge() {
        return;
    }
    let zeros = "0".repeat(5000);
    let problem = format!(
        "{{\"problem_id\": 0, \"question\": \"\", \"input_output\": {{\"inputs\": [[1{zeros}0]], \
         \"outputs\": [1{zeros}1], \"fn_name\": \"f\"}}}}"
    );
    let files = Files::new(&[problem], &samples_of("0", ["x + 1", "x"]));
    succeeds(&files.judge(&[]));
    let verdicts: Vec<_> = files.results().iter().map(|line| line["verdict"].clone()).collect();
    assert_eq!(verdicts, [json!("AC"), json!("WA")]);
}

#[test]
fn calls_of_live_code_bench_are_what_the_file_says() {
    judge_cases(|ix, argument, result| {
        let tests = json!([{"input": argument, "output": result, "testtype": "functional"}]).to_string();
        let metadata = json!({"func_name": "f"}).to_string();
        json!({"question_id": ix.to_string(), "question_content": "", "public_test_cases": tests,
            "private_test_cases": "[]", "metadata": metadata})
        .to_string()
    });
}

fn eval_plus(id: usize, reference: &str, base: &str, plus: &str) -> String {
    format!(
        "{{\"task_id\": \"HumanEval/{id}\", \"prompt\": \"def f(x):\\n\", \"entry_point\": \"f\", \"test\": \"\", \
         \"canonical_solution\": {}, \"base_input\": {base}, \"plus_input\": {plus}, \"atol\": 0}}",
        json!(format!("    return {reference}\n"))
    )
}

#[test]
fn inputs_of_eval_plus_are_what_the_file_says() {
    if !can_judge() {
        return;
    }
    let cases = [
        ("x + 1", "[[1]]", "[[18446744073709551616], [1180591620717411303425]]", "int(float(x)) + 1"),
        (
            "repr(x)",
            "[[1]]",
            "[[10000000000000000000000000], [-36893488147419103232]]",
            "repr(x if x == 1 else float(x))",
        ),
        ("[v == v for v in x]", "[[[1.5]]]", "[[[NaN, 1.5]], [[Infinity, -Infinity]]]", "[True for v in x]"),
        ("[ord(c) for c in x]", "[[\"a\"]]", "[[\"a\\udc00\"]]", "[min(ord(c), 55000) for c in x]"),
        (
            "repr(x)",
            "[[0.1]]",
            "[[[1e400, -0, {\"a\": 1000000000000000000000000000000}]]]",
            "repr(x).replace(' 0,', ' -0.0,')",
        ),
    ];
    let problems: Vec<String> =
        cases.iter().enumerate().map(|(ix, (right, base, plus, _))| eval_plus(ix, right, base, plus)).collect();
    let samples: Vec<String> = cases
        .iter()
        .enumerate()
        .flat_map(|(ix, (right, _, _, wrong))| samples_of(&format!("HumanEval/{ix}"), [right, wrong]))
        .collect();
    let files = Files::new(&problems, &samples);
    succeeds(&files.judge(&["--all-tests"]));
    for (pair, case) in files.results().chunks(2).zip(cases) {
        let verdicts: Vec<_> = pair.iter().map(|line| line["verdict"].as_str().expect("judged")).collect();
        assert_eq!(verdicts, ["AC", "WA"], "{case:?}: {pair:#?}");
        assert_eq!(pair[1]["tests"][0], json!("AC"), "the base tests tell nothing: {case:?}");
    }
    // As EvalPlus itself writes them, for Python to read.
    let own = fs::read_to_string(files.path("samples_eval_results.json")).expect("EvalPlus's own file");
    assert!(own.contains("\"plus_fail_tests\": [[1180591620717411303425]]"), "{own}");
    assert!(own.contains("\"plus_fail_tests\": [[[NaN, 1.5]]]"), "{own}");
    let file = fs::File::open(files.path("samples_eval_results.json")).expect("just read");
    let read = Command::new("python3").args(["-c", "import json, sys; json.load(sys.stdin)"]).stdin(file).status();
    assert!(read.expect("python3 was there before").success());
}

#[test]
fn samples_are_read_as_python_writes_them() {
    if !can_judge() {
        return;
    }
    let problem = eval_plus(0, "x", "[[1]]", "[[2]]");
    let sample = concat!(
        r#"{"task_id": "HumanEval/0", "solution": "def f(x): return x # \ud800", "#,
        r#""logprob": NaN, "scores": [-Infinity, 1]}"#
    );
    let files = Files::new(std::slice::from_ref(&problem), &[sample.to_string()]);
    succeeds(&files.judge(&[]));
    let results = || fs::read_to_string(files.path("samples.jsonl_results.jsonl")).expect("results");
    assert!(results().contains(sample.trim_end_matches('}')));
    assert!(results().contains(r#""verdict":"AC""#), "{}", results());
    let own = fs::read_to_string(files.path("samples_eval_results.json")).expect("EvalPlus's own file");
    assert!(own.contains("return x # \u{fffd}"), "what was judged: {own}");
    succeeds(&files.judge(&["--resume"]));
    assert_eq!(results().lines().count(), 1);

    let generations = r#"[["def f(x): return x # \ud800", "def f(x): return NaN"]]"#;
    let files = Files::new(&[problem], &[generations.to_string()]);
    succeeds(&files.judge(&[]));
    let verdicts: Vec<_> = files.results().iter().map(|line| line["verdict"].clone()).collect();
    assert_eq!(verdicts, [json!("AC"), json!("RE")]);
}

#[test]
fn a_reference_that_fails_leaves_its_problem_out_and_no_other() {
    if !can_judge() {
        return;
    }
    let problems = [
        eval_plus(0, "x", "[[1]]", "[[2]]"),
        eval_plus(1, "1 / x", "[[1]]", "[[2], [0], [3]]"),
        eval_plus(2, "x or [None for _ in iter(int, 1) if _]", "[[1], [0]]", "[]"),
        eval_plus(3, "x +", "[[1]]", "[[2]]"),
    ];
    let mut samples: Vec<String> = Vec::new();
    for id in [1, 0, 2, 3, 1, 0] {
        samples.push(
            json!({"task_id": format!("HumanEval/{id}"),
                "solution": format!("def f(x): return x # {}", samples.len())})
            .to_string(),
        );
    }
    let files = Files::new(&problems, &samples);
    let expected = [
        Some("not judged: its reference fails on `plus_input.1`, [0]: ZeroDivisionError: division by zero"),
        None,
        Some("not judged: its reference fails on `base_input.1`, [0]: it takes too long"),
        Some("not judged: its reference cannot be run: SyntaxError: "),
        Some("not judged: its reference fails on `plus_input.1`, [0]: ZeroDivisionError: division by zero"),
        None,
    ];
    for (more, judged) in [(&["--timeout", "0.1", "--json"][..], 2), (&["--timeout", "0.1", "--json", "--resume"], 0)] {
        let output = files.judge(more);
        assert_eq!(output.status.code(), Some(2), "not all is well");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("3 of 4 problems cannot be judged, first `HumanEval/1`: its reference fails"), "{said}");
        let results = files.results();
        assert_eq!(results.len(), samples.len());
        for (line, expected) in results.iter().zip(expected) {
            match expected {
                None => assert_eq!(line["passed"], json!(true), "{line}"),
                Some(why) => {
                    assert!(line["result"].as_str().is_some_and(|result| result.starts_with(why)), "{line}");
                    assert_eq!((&line["verdict"], &line["passed"]), (&Value::Null, &Value::Null), "{line}");
                }
            }
        }
        let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&summary["pass@1"], &summary["attempted"]), (&json!(1.0), &json!(1)), "{summary}");
        assert_eq!(summary["judged"], json!(judged), "{summary}");
        let left_out: Vec<_> = summary["left_out"].as_object().expect("by problem").keys().collect();
        assert_eq!(left_out, ["HumanEval/1", "HumanEval/2", "HumanEval/3"]);
        assert_eq!(summary["without_samples"], json!([]));
        let own = fs::read_to_string(files.path("samples_eval_results.json")).expect("EvalPlus's own file");
        let own: Value = serde_json::from_str(&own).expect("JSON");
        assert_eq!(own["eval"].as_object().expect("by problem").keys().collect::<Vec<_>>(), ["HumanEval/0"]);
    }
    fs::remove_file(files.path("samples.jsonl_results.jsonl")).expect("it was written");
    let said = files.judge(&["--timeout", "0.1"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("6 samples of 4 problems: 2 programs judged"), "{said}");
    assert!(said.contains("left out, cannot be judged: 3 problems with 4 samples, first HumanEval/1"), "{said}");
}
