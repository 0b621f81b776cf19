//! `offshoot judge` as a user meets it: real candidates in a real sandbox, the files it writes and what it says. Needs
//! a sandbox and `python3`; skips, and says so, where there is none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::compiler;
use crate::judging;
use crate::shared;
use crate::signals;
use compiler::has_compiler;
use judging::can_judge;
use shared::shared;
use signal_hook::consts::SIGINT;
use signals::hear;

fn judge(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.arg("judge").args(arguments).env_remove("RUST_LOG");
    command.output().expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).expect("output is UTF-8")
}

fn stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).expect("errors are UTF-8")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn value(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("the file is there")).expect("JSON")
}

/// A problem over streams: the sum of the numbers of a line. As APPS has it.
fn sums() -> Value {
    let tests = json!({"inputs": ["1 2\n", "10 20 30\n", "5\n"], "outputs": ["3\n", "60\n", "5\n"]});
    json!({"problem_id": 7, "question": "Sum.", "input_output": tests.to_string(), "solutions": "[]", "starter_code": ""})
}

/// A folder with a problem file and a file of samples.
struct Files {
    folder: tempfile::TempDir,
    problems: PathBuf,
    samples: PathBuf,
}

impl Files {
    fn new(problems: &[Value], name: &str, samples: &str) -> Files {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (of_problems, of_samples) = (folder.path().join("problems.jsonl"), folder.path().join(name));
        let text: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
        fs::write(&of_problems, text).expect("writable");
        fs::write(&of_samples, samples).expect("writable");
        Files { folder, problems: of_problems, samples: of_samples }
    }

    /// Samples as lines, each a whole program of problem 7.
    fn of_programs(programs: &[&str]) -> Files {
        let lines = programs.iter().map(|program| format!("{}\n", json!({"task_id": "7", "completion": program})));
        Files::new(&[sums()], "samples.jsonl", &lines.collect::<String>())
    }

    fn judge(&self, more: &[&str]) -> Output {
        let (problems, samples) = (self.problems.display().to_string(), self.samples.display().to_string());
        let mut arguments = vec!["--problems", &problems, "--samples", &samples];
        arguments.extend(more);
        judge(&arguments)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn results(&self) -> Vec<Value> {
        lines(&self.file("samples.jsonl_results.jsonl"))
    }
}

fn texts<'a>(results: &'a [Value], field: &str) -> Vec<&'a str> {
    results.iter().map(|line| line[field].as_str().expect("a text")).collect()
}

const RIGHT: &str = "print(sum(map(int, input().split())))";

#[test]
fn candidates_of_every_kind_get_a_contest_judges_verdict() {
    if !can_judge() {
        return;
    }
    let files = Files::of_programs(&[
        RIGHT,
        "print(sum(map(int, input().split())) % 60)",
        "while True:\n    pass",
        "import time\ntime.sleep(100)",
        "x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096):\n    x[i] = 1\nprint(3)",
        "import sys\nwhile True:\n    sys.stdout.write('x' * (1 << 24))",
        "raise ValueError('no')",
        "print(3",
        "import os\nos._exit(0)",
        "import sys\nsys.stdin.buffer.read()\nprint('Lorem', end='')",
        RIGHT,
    ]);
    let said = stdout(&files.judge(&["--timeout", "1", "--memory", "256"]));
    let results = files.results();
    let expected = ["AC", "WA", "TLE", "TLE", "MLE", "OLE", "RE", "CE", "WA", "WA", "AC"];
    assert_eq!(texts(&results, "verdict"), expected, "{results:#?}");
    let words = texts(&results, "result");
    assert_eq!((words[0], words[2], words[6]), ("passed", "timed out", "failed: test 1: ValueError: no"));
    assert!(words[1].contains("test 2: token 1: expected \"60\", found \"0\""), "{}", words[1]);
    assert!(words[7].contains("SyntaxError"), "{}", words[7]);
    for (line, verdict) in results.iter().zip(expected) {
        assert_eq!(line["passed"], json!(verdict == "AC"));
        assert!(line["wall"].as_f64() >= Some(0.0) && line["cpu"].is_f64() && line["peak"].is_u64(), "{line}");
    }
    assert_eq!(results[1]["tests"], json!(["AC", "WA"]), "it stops at the first failure");
    assert!(said.contains("AC 2   WA 3   TLE 2   MLE 1   OLE 1   RE 1   CE 1"), "{said}");
    assert!(said.contains("11 samples of 1 problem: 10 programs judged"), "{said}");
    assert!(
        said.contains("1 sample with the same program as another of their problem: judged once, each counted"),
        "{said}"
    );
    assert!(said.contains(&format!("pass@1   {:.4}", 2.0 / 11.0)) && said.contains("pass@10"), "{said}");
}

#[test]
fn programs_in_cpp_are_compiled_once_and_run_on_all_tests() {
    if !can_judge() || !has_compiler() {
        return;
    }
    let head = "#include <iostream>\nint main() {\n    long sum = 0, x;\n";
    let right = format!(
        "Here it is:\n```cpp\n{head}    while (std::cin >> x) sum += x;\n    std::cout << sum << '\\n';\n}}\n```\n"
    );
    let wrong = format!("{head}    std::cin >> sum >> x;\n    std::cout << sum + x;\n}}\n");
    let crash = format!("{head}    return *(volatile int *)8;\n}}\n");
    let files = Files::of_programs(&[&right, &wrong, &crash, "int main() { return 0 }"]);
    stdout(&files.judge(&["--language", "cpp", "--all-tests"]));
    let results = files.results();
    assert_eq!(texts(&results, "verdict"), ["AC", "WA", "RE", "CE"], "{results:#?}");
    assert_eq!(results[0]["tests"], json!(["AC", "AC", "AC"]));
    assert_eq!(results[1]["tests"][0], json!("AC"));
    assert_eq!(results[1]["tests"].as_array().map(Vec::len), Some(3), "all tests were asked for");
    assert!(texts(&results, "result")[3].contains("main.cpp:1:"), "{results:#?}");
}

#[test]
fn a_language_can_be_commands() {
    if !can_judge() {
        return;
    }
    let files =
        Files::of_programs(&["read line; set -- $line; s=0; for x in $line; do s=$((s + x)); done; echo $s", "exit 3"]);
    let commands = r#"{"file": "main.sh", "compile": ["sh", "-n", "main.sh"], "run": ["sh", "main.sh"]}"#;
    stdout(&files.judge(&["--language", commands]));
    assert_eq!(texts(&files.results(), "verdict"), ["AC", "RE"], "{:#?}", files.results());
}

#[test]
fn results_stand_in_the_order_of_the_samples_and_a_stopped_scoring_goes_on() {
    if !can_judge() {
        return;
    }
    let programs: Vec<String> = (0..12)
        .map(|n| format!("import time\ntime.sleep({})\n{RIGHT}\n# {n}", if n == 0 { 0.4 } else { 0.0 }))
        .collect();
    let files = Files::of_programs(&programs.iter().map(String::as_str).collect::<Vec<_>>());
    let ran = files.judge(&["--workers", "4", "--resume"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("_results.jsonl: nothing to continue; starting from the beginning"), "{said}");
    stdout(&ran);
    let whole = files.results();
    assert_eq!(texts(&whole, "completion"), programs.iter().map(String::as_str).collect::<Vec<_>>());

    let said = stderr(&files.judge(&[]));
    assert!(said.contains("already contains results: continue them by --resume"), "{said}");
    let path = files.file("samples.jsonl_results.jsonl");
    let text = fs::read_to_string(&path).expect("readable");
    let cut = text.match_indices('\n').nth(6).expect("there are 12 lines").0 + 20;
    fs::write(&path, &text[..cut]).expect("writable");
    let said = stdout(&files.judge(&["--resume"]));
    assert!(said.contains("12 samples of 1 problem: 5 programs judged"), "{said}");
    assert!(said.contains("7 verdicts taken over from an earlier scoring"), "{said}");
    let again = files.results();
    assert_eq!(again[..7], whole[..7], "what was there stays");
    assert_eq!(texts(&again, "completion"), texts(&whole, "completion"));

    fs::write(&path, text.replacen("sleep(0.4)", "sleep(0.5)", 1)).expect("writable");
    let said = stderr(&files.judge(&["--resume"]));
    assert!(said.contains("line 1: the result of a different sample than in the samples' file"), "{said}");
}

#[test]
fn an_interrupt_keeps_what_is_done() {
    if !can_judge() {
        return;
    }
    hear(SIGINT);
    let programs: Vec<String> = (0..40).map(|n| format!("import time\ntime.sleep(0.2)\n{RIGHT}\n# {n}")).collect();
    let files = Files::of_programs(&programs.iter().map(String::as_str).collect::<Vec<_>>());
    let mut child = Command::new(env!("CARGO_BIN_EXE_offshoot"))
        .args(["judge", "--workers", "2", "--problems"])
        .args([&files.problems, Path::new("--samples"), &files.samples])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary starts");
    let path = files.file("samples.jsonl_results.jsonl");
    let started = Instant::now();
    while fs::read_to_string(&path).map_or(0, |text| text.lines().count()) < 3 {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing is judged");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill is there").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let kept = files.results();
    assert!((3..40).contains(&kept.len()), "{}", kept.len());
    stdout(&files.judge(&["--resume"]));
    assert_eq!(texts(&files.results(), "verdict"), vec!["AC"; 40]);
    assert_eq!(files.results()[..kept.len()], kept[..]);
}

#[test]
fn problems_without_samples_are_named() {
    if !can_judge() {
        return;
    }
    let mut other = sums();
    other["problem_id"] = json!(8);
    let mut untested = sums();
    untested["problem_id"] = json!(9);
    untested["input_output"] = json!("");
    let sample = |id: u32, program: &str| format!("{}\n", json!({"task_id": id, "completion": program}));
    let samples = sample(7, RIGHT) + &sample(7, "print(3)") + &sample(9, RIGHT);
    let files = Files::new(&[sums(), other, untested], "samples.jsonl", &samples);
    let said = stdout(&files.judge(&["--k", "1,2,5"]));
    assert!(said.contains("pass@k is over 1 of 2 problems; without samples: 8\n"), "{said}");
    assert!(said.contains("not counted, without tests: 1 problem and 1 sample of theirs"), "{said}");
    assert!(said.contains("pass@1   0.5000") && said.contains("pass@2   1.0000"), "{said}");
    assert!(said.contains("no pass@5: it needs 5 samples of each problem; 7 has 2"), "{said}");

    fs::remove_file(files.file("samples.jsonl_results.jsonl")).expect("it was written");
    let said = stderr(&files.judge(&["--all-attempted"]));
    assert!(
        said.contains("expected samples of every problem (--all-attempted), found none of 1 problems, 8 among them"),
        "{said}"
    );
}

#[test]
fn each_harness_gets_its_own_file() {
    if !can_judge() {
        return;
    }
    let row = json!({"question_title": "Sum", "question_content": "Sum.", "platform": "atcoder", "question_id": "abc_1",
        "contest_id": "abc", "contest_date": "2023-05-07T00:00:00", "starter_code": "", "difficulty": "easy", "metadata": "{}",
        "public_test_cases": json!([{"input": "1 2", "output": "3", "testtype": "stdin"}]).to_string(),
        "private_test_cases": "[]"});
    let outputs = json!([{"question_id": "abc_1", "code_list": [RIGHT, "print(4)"]}]).to_string();
    let files = Files::new(&[row], "out.json", &outputs);
    stdout(&files.judge(&[]));
    let all = value(&files.file("out_codegeneration_output_eval_all.json"));
    let fields = |name: &str| all[0][name].clone();
    assert_eq!(
        (fields("graded_list"), fields("pass@1"), fields("question_id")),
        (json!([true, false]), json!(0.5), json!("abc_1"))
    );
    assert_eq!((fields("contest_date"), fields("difficulty")), (json!("2023-05-07T00:00:00"), json!("easy")));
    assert_eq!(fields("code_list"), json!([RIGHT, "print(4)"]));
    let metadata: Value = serde_json::from_str(fields("metadata")[1].as_str().expect("a text")).expect("of JSON");
    assert_eq!(metadata["error_code"], json!(-2));

    let mut second = sums();
    second["problem_id"] = json!(8);
    let codes = json!({"1": [RIGHT, "print(3)", "print(", "1/0"], "0": RIGHT}).to_string();
    let files = Files::new(&[sums(), second.clone()], "all_codes.json", &codes);
    stdout(&files.judge(&["--all-tests"]));
    let expected =
        json!({"0": [[true, true, true]], "1": [[true, true, true], [true, false, false], [-2, -2, -2], [-1, -1, -1]]});
    assert_eq!(value(&files.file("all_results.json")), expected);

    let generations = json!([[RIGHT, "print(3)"], ["print(3)", "print(4)"]]).to_string();
    let files = Files::new(&[sums(), second], "generations.json", &generations);
    stdout(&files.judge(&[]));
    let results = value(&files.file("evaluation_results.json"));
    assert_eq!(results["apps"]["pass@1"], json!(0.25));
    assert!(results["config"].is_object());
    let lines = lines(&files.file("generations.json_results.jsonl"));
    assert_eq!((lines[2]["task_id"].as_str(), lines[2]["index"].as_u64()), (Some("8"), Some(0)));
}

#[test]
fn samples_that_are_not_samples_are_named_by_file_and_line() {
    if !can_judge() {
        return;
    }
    let right = json!({"task_id": 7, "completion": RIGHT});
    for (line, expected) in [
        (
            json!({"task_id": 6, "completion": ""}),
            "`task_id`: expected one of the 1 problems (as 7), at line 3, found \"6\"",
        ),
        (json!({"task_id": 7, "completion": 5}), "`completion`: expected a text, at line 3, found 5"),
        (json!({"task_id": 7}), "`completion`: expected a text, at line 3, found nothing (the field is missing)"),
        (json!({"name": 7}), "line 3: expected the fields of a sample: `task_id` with `completion`"),
        (json!([7]), "line 3: not a JSON object"),
    ] {
        let files = Files::new(&[sums()], "samples.jsonl", &format!("\u{feff}{right}\n\n{line}\n"));
        let said = stderr(&files.judge(&[]));
        assert!(said.contains(expected) && said.contains("samples.jsonl"), "{said}");
        assert_eq!(files.results().len(), 1, "what stands before it was judged and kept");
    }
    let files = Files::new(&[sums()], "samples.jsonl", "\n");
    assert!(stderr(&files.judge(&[])).contains("expected samples of problems that have tests, found none"));
    let files = Files::of_programs(&[RIGHT]);
    let said = stderr(&files.judge(&["--format", "gsm8k"]));
    assert!(said.contains("expected one of evalplus, humaneval, mbpp, apps, livecodebench, found gsm8k"), "{said}");
}

#[test]
fn solutions_that_apps_gives_are_right_over_streams() {
    let Some(path) = shared("data/apps/apps_train_5.jsonl") else { return };
    if !can_judge() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rows = lines(&path);
    let problems = folder.path().join("streams.jsonl");
    let of_streams: String = rows[..3].iter().map(|row| format!("{row}\n")).collect();
    fs::write(&problems, of_streams).expect("writable");
    stdout(&judge(&["--problems", &problems.display().to_string(), "--references"]));
    let results = lines(&folder.path().join("streams.jsonl_references_results.jsonl"));
    let given: usize = rows[..3].iter().map(|row| row["solutions"].as_array().expect("a list").len()).sum();
    assert_eq!(results.len(), given);
    // Three of the third problem return from the program itself, which APPS allows: it runs programs as functions'
    // bodies.
    let rest: Vec<_> = results
        .iter()
        .filter(|line| line["result"] != json!("failed: test 1: SyntaxError: 'return' outside function"))
        .collect();
    assert_eq!(rest.len(), given - 3);
    let wrong: Vec<_> = rest.iter().filter(|line| line["passed"] != json!(true)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_doctor_says_what_is_in_force() {
    let doctor = judge(&["--doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("in force") && said.contains("python"), "{said}");
    match doctor.status.code() {
        Some(0) => assert!(said.contains("candidates can be judged here"), "{said}"),
        Some(2) => assert!(!doctor.stderr.is_empty(), "why not is said"),
        code => panic!("exit code {code:?}"),
    }
}
