//! Input from strangers: files of every kind that the command reads are damaged at random, and the command must still
//! end as it says it does: a documented exit code, a sentence where it fails, no panic, no abort, no hang, no flood of
//! memory. The seeds are small files made here and the bundled tasks' own.
//!
//! `OFFSHOOT_MUTATIONS=N` tries N inputs instead of a few (`.ci/run` tries many); `OFFSHOOT_MUTATION=K` tries input K
//! alone and prints what was changed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::{Value, json};

use crate::judging;
use crate::parquet_files::write_parquet;
use crate::runs::{offshoot, repository, run_into, task_folder};
use crate::skip::skipped;
use crate::strangers::shard_index;
use crate::watched::{CommandEnd, watched};

/// Inputs tried by a plain `cargo test`.
const FEW: u64 = 60;
/// Peak resident memory: the demo model and its pool, and 1 GiB.
const MEMORY_LIMIT: u64 = (1 << 30) + (1 << 28);

/// A command and the file of its folder that is damaged before it runs.
struct Input {
    file: &'static str,
    command: &'static [&'static str],
}

const RUN: &[&str] = &["run", "task.json", "--out", "fresh", "--limit", "2"];
const MODEL: &[&str] = &["run", "task.json", "--model", "model", "--out", "fresh", "--limit", "1"];
const JUDGE_CODE: &[&str] = &["judge", "--problems", "human_eval.jsonl", "--samples", "code.jsonl", "--out", "j"];

const INPUTS: &[Input] = &[
    Input { file: "task.json", command: RUN },
    Input { file: "task.json", command: &["plan", "task.json"] },
    Input { file: "task.json", command: &["run", "task.json", "--dry-run"] },
    Input { file: "items.jsonl", command: RUN },
    Input { file: "items.csv", command: &["run", "task.json", "--set", "items.path=items.csv", "--out", "fresh"] },
    Input {
        file: "items.parquet",
        command: &["run", "task.json", "--set", "items.path=items.parquet", "--out", "fresh", "--limit", "2"],
    },
    Input { file: "votes.parquet", command: &["vote", "votes.parquet", "--set", "answer.regex=(\\d+)"] },
    Input { file: "apps.parquet", command: &["judge", "--problems", "apps.parquet", "--references", "--out", "j"] },
    Input { file: "shared.txt", command: RUN },
    Input { file: "tot.json", command: &["run", "tot.json", "--out", "fresh", "--limit", "1"] },
    Input { file: "model/config.json", command: MODEL },
    Input { file: "model/generation_config.json", command: MODEL },
    Input { file: "model/tokenizer.json", command: MODEL },
    Input { file: "model/tokenizer_config.json", command: MODEL },
    Input { file: "model/special_tokens_map.json", command: MODEL },
    Input { file: "model/model.safetensors", command: MODEL },
    Input { file: "chat/chat_template.jinja", command: &["run", "chat.json", "--out", "fresh", "--limit", "1"] },
    Input { file: "batch.jsonl", command: &["batch", "batch.jsonl", "--model", "demo", "--out", "answers.jsonl"] },
    Input {
        file: "batch.jsonl.gz",
        command: &["batch", "batch.jsonl.gz", "--model", "demo", "--out", "answers.jsonl"],
    },
    Input { file: "chat.json", command: &["run", "chat.json", "--out", "fresh", "--limit", "1"] },
    Input {
        file: "shards/model.safetensors.index.json",
        command: &["run", "task.json", "--model", "shards", "--out", "fresh", "--limit", "1"],
    },
    Input { file: "votes.jsonl", command: &["vote", "votes.jsonl", "--set", "answer.regex=(\\d+)"] },
    Input { file: "out/samples.jsonl", command: &["run", "task.json", "--out", "out", "--resume"] },
    Input { file: "out/items.jsonl", command: &["run", "task.json", "--out", "out", "--resume"] },
    Input { file: "out/manifest.json", command: &["run", "task.json", "--out", "out", "--resume"] },
    Input { file: "out/samples.jsonl", command: &["rescore", "out", "--out", "again"] },
    Input { file: "out/manifest.json", command: &["tree", "out"] },
    Input { file: "human_eval.jsonl", command: JUDGE_CODE },
    Input { file: "code.jsonl", command: JUDGE_CODE },
    Input { file: "mbpp.jsonl", command: &["judge", "--problems", "mbpp.jsonl", "--references", "--out", "j"] },
    Input { file: "plus.jsonl", command: &["judge", "--problems", "plus.jsonl", "--references", "--out", "j"] },
    Input { file: "apps.jsonl", command: &["judge", "--problems", "apps.jsonl", "--references", "--out", "j"] },
    Input { file: "chart.json", command: &["bench", "chart", "chart.json", "--svg", "chart.svg"] },
    Input {
        file: "workloads.json",
        command: &["bench", "workloads", "--file", "workloads.json", "--shape", "small", "--device", "cpu"],
    },
];

/// Random numbers of one input.
struct Chance(TestRng);

impl Chance {
    fn of(input: u64) -> Chance {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&input.to_le_bytes());
        Chance(TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
    }

    /// A number below `count`, which is not 0.
    fn below(&mut self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    fn of_list<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// Damages a file's bytes; returns what was done.
fn mutate(chance: &mut Chance, bytes: &mut Vec<u8>) -> String {
    let text = std::str::from_utf8(bytes).ok().map(str::to_string);
    match text {
        Some(text) if chance.below(3) > 0 => {
            // Whole files of JSON, or one line of JSON lines.
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let whole = serde_json::from_str::<Value>(&text).is_ok() || lines.is_empty();
            let line = if whole { 0 } else { chance.below(lines.len()) };
            let parsed = serde_json::from_str::<Value>(if whole { &text } else { lines[line] });
            let Ok(mut value) = parsed else { return mutate_bytes(chance, bytes) };
            let (damaged, done) = mutate_value(chance, &mut value);
            let mut all = if whole { String::new() } else { lines[..line].concat() };
            all.push_str(&damaged);
            if !whole {
                all.push('\n');
                all.extend(lines[line + 1..].iter().copied());
            }
            *bytes = all.into_bytes();
            done
        }
        _ => mutate_bytes(chance, bytes),
    }
}

fn mutate_bytes(chance: &mut Chance, bytes: &mut Vec<u8>) -> String {
    if bytes.is_empty() {
        bytes.extend(b"{");
        return "a brace for an empty file".into();
    }
    // The head of a large file is where its structure is.
    let head = if chance.below(2) == 0 { bytes.len().min(4096) } else { bytes.len() };
    let at = chance.below(head);
    let to = bytes.len().min(at + 1 + chance.below(64));
    match chance.below(9) {
        0 => {
            bytes[at] ^= 1 << chance.below(8);
            format!("a bit of byte {at} flipped")
        }
        1 => {
            bytes.truncate(at);
            format!("cut at {at}")
        }
        2 => {
            bytes.drain(at..to);
            format!("{at}..{to} removed")
        }
        3 => {
            let part = bytes[at..to].to_vec();
            bytes.splice(at..at, part.repeat(1 + chance.below(200)));
            format!("{at}..{to} repeated")
        }
        4 => {
            let odd = chance.of_list(&[
                &b"\0"[..],
                b"\xff\xfe",
                b"\xed\xa0\x80",
                b"\r",
                b"\xef\xbb\xbf",
                b"\"",
                b"}",
                b"]",
                b"\n\n",
                b"{{",
                b"%}",
            ]);
            bytes.splice(at..at, odd.iter().copied());
            format!("{odd:?} at {at}")
        }
        5 => {
            let number = chance.of_list(&["-1", "0", "1e999", "NaN", "4294967296", "99999999999999999999", "0.5"]);
            bytes.splice(at..to, number.bytes());
            format!("{number} for {at}..{to}")
        }
        6 => {
            bytes.clear();
            "an empty file".into()
        }
        7 => {
            let lines: Vec<Vec<u8>> = bytes.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
            let (one, other) = (chance.below(lines.len()), chance.below(lines.len()));
            let mut mixed = lines;
            mixed.swap(one, other);
            mixed.push(mixed[one].clone());
            *bytes = mixed.concat();
            format!("lines {one} and {other} exchanged, one repeated")
        }
        _ => {
            let word = chance.of_list(&[TEMPLATE_LOOP, TEMPLATE_DOUBLES, TEMPLATE_WIDTH, "../../../../etc/passwd"]);
            bytes.splice(at..at, word.bytes());
            format!("{word} at {at}")
        }
    }
}

const TEMPLATE_LOOP: &str = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
const TEMPLATE_DOUBLES: &str =
    "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}";
const TEMPLATE_WIDTH: &str = "{{ '%999999999s' | format('x') }}";

/// Changes one value somewhere inside; returns the text and what was done.
fn mutate_value(chance: &mut Chance, value: &mut Value) -> (String, String) {
    let mut paths = Vec::new();
    paths_of(value, String::new(), &mut paths);
    let path = paths[chance.below(paths.len())].clone();
    const MARK: &str = "\u{1}here\u{1}";
    let node = value.pointer_mut(&path).expect("the path was found in it");
    let long = json!("x".repeat(200_000)).to_string();
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let (name, with) = match chance.below(24) {
        0 => ("null", "null"),
        1 => ("true", "true"),
        2 => ("-1", "-1"),
        3 => ("0", "0"),
        4 => ("1e308", "1e308"),
        5 => ("2^31-1", "2147483647"),
        6 => ("2^32", "4294967296"),
        7 => ("2^64-1", "18446744073709551615"),
        8 => ("-2^63", "-9223372036854775808"),
        9 => ("1e-320", "1e-320"),
        10 => ("an empty text", "\"\""),
        11 => ("a long text", long.as_str()),
        12 => ("an empty list", "[]"),
        13 => ("an empty object", "{}"),
        14 => ("a deep list", deep.as_str()),
        15 => ("a zero byte", "\"\\u0000\""),
        16 => ("half a surrogate pair", "\"\\ud800\""),
        17 => ("NaN", "NaN"),
        18 => ("a path upwards", "\"../../../../etc/passwd\""),
        19 => ("a number of 30 digits", "123456789012345678901234567890"),
        20 => ("a long loop", &*Box::leak(json!(TEMPLATE_LOOP).to_string().into_boxed_str())),
        21 => ("doubling", &*Box::leak(json!(TEMPLATE_DOUBLES).to_string().into_boxed_str())),
        22 => {
            // A member less, or one of another name.
            if let Value::Object(members) = node
                && let Some(name) = members.keys().nth(chance.below(members.len().max(1))).cloned()
            {
                let removed = members.shift_remove(&name).expect("its name was found");
                let renamed = chance.below(2) == 0;
                if renamed {
                    members.insert(format!("{name}s"), removed);
                }
                let what = if renamed { "renamed" } else { "removed" };
                return (value.to_string(), format!("{path}: `{name}` {what}"));
            }
            ("a list of one", "[1]")
        }
        _ => {
            let wrapped = json!([node.take(), 1]);
            *node = wrapped;
            return (value.to_string(), format!("{path}: in a list"));
        }
    };
    *node = json!(MARK);
    let text = value.to_string().replacen(&json!(MARK).to_string(), with, 1);
    (text, format!("{path}: {name}"))
}

fn paths_of(value: &Value, here: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, part) in members {
                paths_of(part, format!("{here}/{}", name.replace('~', "~0").replace('/', "~1")), paths);
            }
        }
        // The entries of a vocabulary resemble one another.
        Value::Array(parts) => {
            for (ix, part) in parts.iter().enumerate().take(40) {
                paths_of(part, format!("{here}/{ix}"), paths);
            }
        }
        _ => {}
    }
    paths.push(here);
}

/// The folder from which each input's own is copied.
fn seeds() -> tempfile::TempDir {
    let folder = task_folder(|task| {
        task["method"]["sample"]["samples"] = json!(2);
        task["sampling"]["max_tokens"] = json!(12);
        task["prompt"]["shared"] = json!({"file": "shared.txt"});
        task["model"] = json!("demo");
    });
    let at = |name: &str| folder.path().join(name);
    let demo = repository().join("tasks/models/demo");
    std::os::unix::fs::symlink(&demo, at("demo")).expect("a link");
    fs::copy(repository().join("tasks/words_fewshot.txt"), at("shared.txt")).expect("copied");
    fs::write(at("items.csv"), "id,question,answer\n1,\"Tom has 3 pens.\",3\n2,\"Tom, \"\"he\"\" has 4.\",4\n")
        .expect("written");
    run_into(folder.path(), "out", &["--trees", "--limit", "3"]);

    let mut tot: Value =
        serde_json::from_str(&without_comments(&repository().join("tasks/make24-tot.json"))).expect("JSON");
    tot["model"] = json!("demo");
    for name in ["make24.csv", "make24_chain.txt", "make24_propose.txt", "make24_value.txt"] {
        fs::copy(repository().join("tasks").join(name), at(name)).expect("copied");
    }
    fs::write(at("tot.json"), tot.to_string()).expect("written");

    let mut chat: Value = serde_json::from_slice(&fs::read(at("task.json")).expect("it was written")).expect("JSON");
    chat["model"] = json!("chat");
    chat["prompt"] = json!({"messages": [{"role": "user", "content": "{{question}}"}]});
    fs::write(at("chat.json"), chat.to_string()).expect("written");
    for (name, changed) in [("model", "tokenizer"), ("chat", "chat_template")] {
        fs::create_dir(at(name)).expect("made");
        for entry in fs::read_dir(&demo).expect("the demo model is there").map(|entry| entry.expect("readable")) {
            if entry.path().is_file() && (changed == "tokenizer" || entry.file_name() != "chat_template.jinja") {
                std::os::unix::fs::symlink(entry.path(), at(name).join(entry.file_name())).expect("a link");
            }
        }
    }
    fs::create_dir(at("shards")).expect("made");
    for entry in fs::read_dir(&demo).expect("the demo model is there").map(|entry| entry.expect("readable")) {
        let shard = entry.file_name() == "model.safetensors";
        let name = if shard { "one.safetensors".into() } else { entry.file_name() };
        if entry.path().is_file() {
            std::os::unix::fs::symlink(entry.path(), at("shards").join(name)).expect("a link");
        }
    }
    fs::write(at("shards/model.safetensors.index.json"), shard_index(&demo, "one.safetensors")).expect("written");
    let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    fs::write(at("chat/chat_template.jinja"), template).expect("written");

    let request = |id: u32, body: Value| json!({"custom_id": format!("r{id}"), "method": "POST", "url": "/v1/completions", "body": body});
    let body = |prompt: &str| json!({"model": "demo", "prompt": prompt, "max_tokens": 8, "n": 2, "temperature": 0.7, "stop": ["\n"], "logprobs": 2, "seed": 3, "logit_bias": {"5": 1.5}});
    lines(&at("batch.jsonl"), &[request(1, body("Tom has")), request(2, body("Tom sees")), request(3, body("Two"))]);

    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&fs::read(at("batch.jsonl")).expect("it was written")).expect("written to memory");
    fs::write(at("batch.jsonl.gz"), packed.finish().expect("written to memory")).expect("written");
    let sample = |id: u32, answer: u32| json!({"id": id, "question": "2 + 3?", "text": format!("It is {answer}."), "answer": "5"});
    let votes = [sample(1, 5), sample(1, 4), sample(1, 5), sample(2, 3)];
    lines(&at("votes.jsonl"), &votes);
    write_parquet(&at("votes.parquet"), &votes);
    let items = fs::read_to_string(at("items.jsonl")).expect("it was written");
    let mut items: Vec<Value> = items.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    items.iter_mut().for_each(|item| item["steps"] = json!([{"a": [1, 2], "b": "x"}, {"a": [], "b": null}]));
    write_parquet(&at("items.parquet"), &items);

    let add = "def add(a, b):\n    return a + b\n";
    let function = |name: &str| json!({"task_id": format!("HumanEval/{name}"), "prompt": "def add(a, b):\n", "entry_point": "add", "canonical_solution": "    return a + b\n", "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"});
    lines(&at("human_eval.jsonl"), &[function("0"), function("1")]);
    lines(
        &at("code.jsonl"),
        &[
            json!({"task_id": "HumanEval/0", "completion": "    return a + b\n"}),
            json!({"task_id": "HumanEval/1", "completion": "    return a\n"}),
        ],
    );
    lines(
        &at("mbpp.jsonl"),
        &[
            json!({"task_id": 2, "text": "Add.", "code": add, "test_list": ["assert add(1, 2) == 3"], "test_setup_code": "", "challenge_test_list": []}),
        ],
    );
    lines(
        &at("plus.jsonl"),
        &[
            json!({"task_id": "HumanEval/0", "prompt": "def add(a, b):\n", "entry_point": "add", "canonical_solution": "    return a + b\n", "base_input": [[1, 2], [3, 4]], "plus_input": [[1e3, 2]], "atol": 0, "contract": ""}),
        ],
    );
    let tests = json!({"inputs": ["1 2\n"], "outputs": ["3\n"]}).to_string();
    let solutions = json!(["print(sum(map(int, input().split())))"]).to_string();
    let apps =
        json!({"problem_id": 7, "question": "Sum.", "input_output": tests, "solutions": solutions, "starter_code": ""});
    lines(&at("apps.jsonl"), std::slice::from_ref(&apps));
    write_parquet(&at("apps.parquet"), &[apps]);

    let chart = fs::read_dir(repository().join("docs/pictures")).expect("pictures are there");
    let chart = chart
        .map(|entry| entry.expect("readable").path())
        .find(|path| path.extension().is_some_and(|end| end == "json"));
    fs::copy(chart.expect("a chart's data is there"), at("chart.json")).expect("copied");
    let shape = json!({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "rope_theta": 10000.0});
    fs::write(at("workloads.json"), json!({"shapes": {"small": shape}, "workloads": {"two": {"levels": [[32, 1], [8, 2]], "samples": 2, "generate": 4}}}).to_string()).expect("written");
    folder
}

/// A bundled task's text without its lines of comments.
fn without_comments(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("the task is there");
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect()
}

fn lines(path: &Path, values: &[Value]) {
    fs::write(path, values.iter().map(|value| format!("{value}\n")).collect::<String>()).expect("written");
}

/// Copies a folder; links stay links, made absolute.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("listed").map(|entry| entry.expect("readable")) {
        let (kind, to) = (entry.file_type().expect("known"), to.join(entry.file_name()));
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).expect("a link"), to).expect("a link");
        } else if kind.is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// What is wrong with the way in which a command ended, if anything.
fn complaint(end: &CommandEnd) -> Option<String> {
    let code = end.status.code();
    let said = end.errors.trim();
    if said.contains("panicked at") || said.contains("internal error") {
        return Some("a panic".into());
    }
    if end.peak_bytes > MEMORY_LIMIT {
        return Some(format!("{} MiB of memory", end.peak_bytes >> 20));
    }
    match code {
        None => Some(format!("{}", end.status)),
        // Work that is merely long must hear that it is to stop.
        Some(143) if end.stopped => None,
        Some(0) => None,
        Some(2) if said.is_empty() => Some("exit code 2 without a word".into()),
        Some(2) if said.len() > 4_000 => Some(format!("{} bytes of words", said.len())),
        Some(2) => None,
        Some(code) => Some(format!("exit code {code}")),
    }
}

#[test]
fn mutated_inputs_end_with_a_sentence() {
    let judging = judging::can_judge();
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let alone = number("OFFSHOOT_MUTATION");
    let (first, count) = match alone {
        Some(one) => (one, 1),
        None => (0, number("OFFSHOOT_MUTATIONS").unwrap_or(FEW)),
    };
    let seeds = seeds();
    let (next, complaints) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= first + count {
                return;
            }
            let mut chance = Chance::of(number);
            let input = &INPUTS[chance.below(INPUTS.len())];
            if input.command[0] == "judge" && !judging {
                continue;
            }
            let own = tempfile::tempdir().expect("a temporary folder");
            copy_folder(seeds.path(), own.path());
            let file = own.path().join(input.file);
            let mut bytes = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", input.file));
            let mut done = vec![mutate(&mut chance, &mut bytes)];
            if chance.below(4) == 0 {
                done.push(mutate(&mut chance, &mut bytes));
            }
            fs::remove_file(&file).expect("it is in a folder of its own");
            fs::write(&file, &bytes).expect("written");
            let mut command = offshoot(own.path(), input.command);
            if input.command[0] != "judge" && input.command[0] != "tree" && input.command[0] != "rescore" {
                command.args(["--threads", "1"]);
            }
            let end = watched(command);
            if alone.is_some() {
                println!("{}\n{done:?}\n{}\n{}", input.file, end.status, end.errors);
            }
            if let Some(what) = complaint(&end) {
                let short = |text: &str| text.chars().take(300).collect::<String>();
                let tail = short(end.errors.trim().lines().last().unwrap_or_default());
                let done: Vec<String> = done.iter().map(|done| short(done)).collect();
                let line = format!("{number}: {} ({done:?}), {:?}: {what}: {tail}", input.file, input.command);
                complaints.lock().expect("no thread panics with it").push(line);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let complaints = complaints.into_inner().expect("no thread panics with it");
    assert!(complaints.is_empty(), "{} of {count} inputs:\n{}", complaints.len(), complaints.join("\n"));
    if !judging {
        skipped("files of the judge are not mutated here");
    }
}
