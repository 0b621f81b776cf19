//! Files of problems and samples as users have them: pipes, rows that are malformed, lines whose other fields only
//! Python's `json` writes. Needs a sandbox and `python3`; skips, and says so, where there is none.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::judging;
use crate::parquet_files::write_parquet;
use judging::can_judge;

const RIGHT: &str = "def f(x):\n    return x + 1";

/// Runs `judge` on standard input that is a pipe with this text.
fn judge(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_offshoot"))
        .arg("judge")
        .args(arguments)
        .env_remove("RUST_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = child.stdin.take().expect("it is piped");
    let text = input.to_string();
    // Whether it is read to its end is the command's affair.
    let writer = std::thread::spawn(move || drop(pipe.write_all(text.as_bytes())));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic");
    output
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mbpp(id: u32) -> Value {
    json!({"task_id": id, "text": "t", "code": RIGHT, "test_list": ["assert f(1) == 2"]})
}

fn sample(id: u32, program: &str) -> Value {
    json!({"task_id": id, "solution": program})
}

fn text(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// A folder to put files into.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("writable");
        self.path(name).display().to_string()
    }
}

fn verdicts(results: &Path) -> Vec<Value> {
    let text = fs::read_to_string(results).expect("results");
    let verdict = |line| serde_json::from_str::<Value>(line).expect("a line is JSON")["verdict"].clone();
    text.lines().map(verdict).collect()
}

#[test]
fn samples_and_problems_come_through_pipes_too() {
    if !can_judge() {
        return;
    }
    let folder = Folder::new();
    let problems = text(&[mbpp(1), mbpp(2)]);
    let of_problems = folder.put("problems.jsonl", &problems);
    let wrong = "def f(x): return x";
    let rows = [sample(1, RIGHT), sample(2, wrong)];
    let by_number = json!({"0": [RIGHT], "1": wrong});
    let forms = [
        format!("\n\n{}", text(&rows)),
        json!(rows).to_string(),
        format!("\u{feff}{:#}", json!(rows)),
        json!([[RIGHT], [wrong]]).to_string(),
        by_number.to_string(),
        format!("{by_number:#}"),
    ];
    for (ix, samples) in forms.iter().enumerate() {
        let of_samples = folder.put(&format!("{ix}.json"), samples);
        let out = folder.path(&format!("{ix}-piped.jsonl"));
        let arguments = ["--problems", &of_problems, "--samples", "/dev/stdin", "--out", out.to_str().expect("UTF-8")];
        stdout(&judge(&arguments, samples));
        stdout(&judge(&["--problems", &of_problems, "--samples", &of_samples], ""));
        let of_file = verdicts(&folder.path(&format!("{ix}.json_results.jsonl")));
        assert_eq!(
            (verdicts(&out), of_file),
            (vec![json!("AC"), json!("WA")], vec![json!("AC"), json!("WA")]),
            "{samples}"
        );
    }
    let of_samples = folder.put("samples.jsonl", &forms[0]);
    stdout(&judge(&["--problems", "/dev/stdin", "--samples", &of_samples], &problems));
    assert_eq!(verdicts(&folder.path("samples.jsonl_results.jsonl")), [json!("AC"), json!("WA")]);
    for arguments in
        [&["--problems", &of_problems, "--samples", "/dev/stdin"][..], &["--problems", "/dev/stdin", "--references"]]
    {
        let said = stderr(&judge(arguments, &problems));
        assert!(
            said.contains("--out: expected a file, because /dev/stdin has no folder for results, found none"),
            "{said}"
        );
    }
}

#[test]
fn fields_of_samples_stay_as_they_are_written() {
    if !can_judge() {
        return;
    }
    let folder = Folder::new();
    let problems = folder.put("problems.jsonl", &text(&[mbpp(1)]));
    let program = json!(RIGHT);
    let fields = [
        "\"task_id\":1",
        &format!("\"solution\":{program}"),
        "\"logprob\":NaN",
        "\"seed\":123456789012345678901234567890",
        "\"weights\":[1e999, -0, 1.10]",
        "\"model\":\"\\ud800\"",
        "\"caf\\u00e9\":{\"b\": 1, \"a\": 2}",
    ];
    // What an earlier scoring said is said anew.
    let line = format!("{{{},\"passed\":5}}\n", fields.join(","));
    let list = format!("[{{{},\n\"verdict\":null}}]", fields.join(",\n"));
    for (name, samples, between) in [("samples.jsonl", line, ","), ("samples.json", list, ", ")] {
        let samples = folder.put(name, &samples);
        stdout(&judge(&["--problems", &problems, "--samples", &samples], ""));
        let results = fs::read_to_string(folder.path(&format!("{name}_results.jsonl"))).expect("results");
        let expected = format!("{{{},\"result\":\"passed\",\"passed\":true,\"verdict\":\"AC\",", fields.join(between));
        assert!(results.starts_with(&expected), "{results}\nshould begin\n{expected}");
        assert_eq!(results.lines().count(), 1);
        let said = stdout(&judge(&["--problems", &problems, "--samples", &samples, "--resume"], ""));
        assert!(said.contains("1 verdict taken over from an earlier scoring"), "{said}");
    }
}

#[test]
fn a_malformed_row_leaves_out_its_problem_and_no_other() {
    if !can_judge() {
        return;
    }
    let folder = Folder::new();
    let mut empty = mbpp(2);
    empty["test_list"] = json!([]);
    let mut number = mbpp(3);
    number["test_list"] = json!([7]);
    let problems = folder.put("problems.jsonl", &text(&[mbpp(1), empty.clone(), number]));
    let rows = [sample(2, RIGHT), sample(1, RIGHT), sample(2, "x"), sample(1, RIGHT), sample(2, RIGHT)];
    let samples = folder.put("samples.jsonl", &text(&rows));
    let why = "`test_list`: expected at least one test, at line 2, found none";
    let arguments = ["--problems", &problems, "--samples", &samples, "--json"];
    for (more, judged) in [(&["--workers", "2"][..], 1), (&["--resume"], 0)] {
        let output = judge(&[&arguments, more].concat(), "");
        let said = stderr(&output);
        assert!(said.contains(&format!("2 of 3 problems cannot be judged, first `2`: {why}")), "{said}");
        let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let third = "`test_list.0`: expected a text, at line 3, found 7";
        assert_eq!(summary["left_out"], json!({"2": why, "3": third}));
        assert_eq!((&summary["pass@1"], &summary["judged"]), (&json!(1.0), &json!(judged)), "{summary}");
        assert_eq!((&summary["samples"], &summary["attempted"]), (&json!(5), &json!(1)), "{summary}");
        let verdicts = verdicts(&folder.path("samples.jsonl_results.jsonl"));
        assert_eq!(verdicts, [Value::Null, json!("AC"), Value::Null, json!("AC"), Value::Null]);
    }
    fs::remove_file(folder.path("samples.jsonl_results.jsonl")).expect("it was written");
    let output = judge(&["--problems", &problems, "--samples", &samples], "");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("5 samples of 2 problems: 1 program judged"), "{said}");
    assert!(said.contains("1 sample with the same program as another of their problem"), "{said}");
    assert!(said.contains(&format!("left out, cannot be judged: 2 problems with 3 samples, first 2: {why}")));

    let output = judge(&["--problems", &problems, "--references"], "");
    assert!(stderr(&output).contains("2 of 3 problems cannot be judged"));
    let references = verdicts(&folder.path("problems.jsonl_references_results.jsonl"));
    assert_eq!(references, [json!("AC"), Value::Null, Value::Null]);

    let none = folder.put("none.jsonl", &text(&[empty]));
    let out = folder.path("none-out.jsonl").display().to_string();
    let said = stderr(&judge(&["--problems", &none, "--samples", &samples, "--out", &out], ""));
    assert!(said.contains("none.jsonl: `test_list`: expected at least one test, at line 1, found none"), "{said}");
    assert!(!folder.path("none-out.jsonl").exists(), "nothing was begun");
}

#[test]
fn workers_are_bounded_and_ks_are_said_once_in_their_order() {
    let said = stderr(&judge(&["--problems", "p", "--samples", "s", "--workers", "100000"], ""));
    assert!(said.contains("--workers: expected a whole number from 1 to 1024, found 100000"), "{said}");
    if !can_judge() {
        return;
    }
    let folder = Folder::new();
    let problems = folder.put("problems.jsonl", &text(&[mbpp(1)]));
    let samples = folder.put("samples.jsonl", &text(&[sample(1, RIGHT), sample(1, RIGHT), sample(1, RIGHT)]));
    let said =
        stdout(&judge(&["--problems", &problems, "--samples", &samples, "--k", "3,1,3", "--workers", "1024"], ""));
    let ks: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("pass@")?.split_whitespace().next()).collect();
    assert_eq!(ks, ["1", "3"], "{said}");
}

#[test]
fn samples_and_problems_may_be_parquet() {
    if !can_judge() {
        return;
    }
    let folder = Folder::new();
    write_parquet(&folder.path("problems.parquet"), &[mbpp(1), mbpp(2)]);
    write_parquet(&folder.path("samples.parquet"), &[sample(1, RIGHT), sample(2, "def f(x): return x")]);
    let [problems, samples] = ["problems", "samples"].map(|name| folder.path(name).with_extension("parquet"));
    let [problems, samples] = [&problems, &samples].map(|path| path.to_str().expect("UTF-8"));
    stdout(&judge(&["--problems", problems, "--samples", samples], ""));
    assert_eq!(verdicts(&folder.path("samples.parquet_results.jsonl")), [json!("AC"), json!("WA")]);
    stdout(&judge(&["--problems", problems, "--references", "--out", folder.path("r").to_str().expect("UTF-8")], ""));
    assert_eq!(verdicts(&folder.path("r")), [json!("AC"), json!("AC")]);
}
