//! The command as a user meets it: what it prints, what it leaves on disk, and how it fails. Runs the built binary on
//! the bundled demo model, on the CPU: GPUs are hidden from it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use offshoot_cpu::Isa;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::full::some_or_full;
use crate::shared::shared;
use crate::signals;
use signals::hear;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn offshoot() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.current_dir(repository()).env_remove("RUST_LOG").env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn output(arguments: &[&str]) -> Output {
    offshoot().args(arguments).output().expect("the binary starts")
}

/// The same in another folder than the repository's.
fn offshoot_in(folder: &Path, arguments: &[&str]) -> Output {
    offshoot().current_dir(folder).args(arguments).output().expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("errors are UTF-8")
}

/// Every line of a JSON lines file, which must be whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the file is there");
    assert!(text.is_empty() || text.ends_with('\n'), "{} ends in mid-line", path.display());
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// A task on the demo model with two short questions; `change` may break it.
fn task_in(folder: &Path, change: impl Fn(&mut Value)) -> PathBuf {
    let mut task = json!({
        "name": "tiny",
        "model": repository().join("tasks/models/demo"),
        "items": {"path": "items.jsonl", "id": "id"},
        "prompt": {
            "shared": {"file": repository().join("tasks/words_fewshot.txt")},
            "item": "Question: {{question}}\nAnswer:"
        },
        "method": {"self_consistency": {"samples": 3}},
        "sampling": {"temperature": 1.2, "max_tokens": 24, "stop": ["\n\n"], "seed": 5},
        "answer": {"regex": "#### (-?[0-9.,]+)", "normalise": "number"},
        "grade": {"exact": {"field": "answer"}}
    });
    change(&mut task);
    let items = [
        json!({"id": "a", "question": "Tom has 12 pens. Tom buys 5 more pens. How many pens does Tom have now?",
               "answer": "17"}),
        json!({"id": "b", "question": "Mia has 9 cups. Mia loses 2 cups. How many cups does Mia have now?",
               "answer": "7"}),
    ];
    let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
    fs::write(folder.join("items.jsonl"), lines).expect("the temporary folder is writable");
    let path = folder.join("task.json");
    fs::write(&path, task.to_string()).expect("the temporary folder is writable");
    path
}

/// (item, index, text) of every sample, sorted.
fn texts(out: &Path) -> Vec<(String, u64, String)> {
    let text = |line: &Value, key: &str| line[key].as_str().expect("a string").to_string();
    let mut texts: Vec<_> = lines(&out.join("samples.jsonl"))
        .iter()
        .map(|line| (text(line, "id"), line["index"].as_u64().expect("a number"), text(line, "text")))
        .collect();
    texts.sort();
    texts
}

fn run_into(task: &Path, out: &Path, more: &[&str]) -> Output {
    let mut arguments = vec!["run", task.to_str().expect("UTF-8"), "--out", out.to_str().expect("UTF-8")];
    arguments.extend(more);
    output(&arguments)
}

#[test]
fn alone_it_says_what_to_try() {
    let said = output(&[]);
    assert!(said.status.success());
    let text = stdout(&said);
    assert!(text.contains("device: cpu"), "{text}");
    assert_eq!(text.matches("\n  offshoot ").count(), 3, "{text}");
}

#[test]
fn a_run_leaves_samples_items_and_a_summary() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (task, out) = (task_in(folder.path(), |_| {}), folder.path().join("out"));
    let ran = run_into(&task, &out, &["--trees"]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(stdout(&ran).contains("accuracy"), "{}", stdout(&ran));

    let samples = lines(&out.join("samples.jsonl"));
    assert_eq!(samples.len(), 6);
    for key in ["id", "index", "text", "tokens", "finish", "logprob", "answer", "correct"] {
        assert!(samples[0].get(key).is_some(), "a sample lacks `{key}`: {}", samples[0]);
    }
    let items = lines(&out.join("items.jsonl"));
    assert_eq!(items.len(), 2);
    for item in &items {
        let votes = item["votes"].as_array().expect("a list");
        let voted: u64 = votes.iter().map(|vote| vote[1].as_u64().expect("a count")).sum();
        let answered =
            samples.iter().filter(|sample| sample["id"] == item["id"] && !sample["answer"].is_null()).count();
        assert_eq!(voted, answered as u64, "{item}");
    }
    let summary: Value =
        serde_json::from_str(&fs::read_to_string(out.join("summary.json")).expect("written")).expect("JSON");
    assert_eq!(summary["samples"], 6);
    let engine = &summary["engine"];
    assert!(engine["prompt_tokens_computed"].as_u64() < engine["prompt_tokens_logical"].as_u64());
    assert!(engine["kv_bytes_read"].as_u64() < engine["kv_bytes_read_flat"].as_u64());
    assert!(out.join("trees/0.json").is_file() && out.join("trees/1.json").is_file());

    let again = run_into(&task, &out, &[]);
    fails(&again, &["out", "--out", "`offshoot run --resume`"]);
    assert_eq!(lines(&out.join("samples.jsonl")).len(), 6);
}

#[test]
fn plans_and_budgets_change_no_sample_and_more_samples_keep_the_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    let drawn = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let ran = run_into(&task, &out, more);
        assert!(ran.status.success(), "{}", stderr(&ran));
        texts(&out)
    };
    let reference = drawn("balanced", &[]);
    for plan in ["flat", "single", "tree"] {
        assert_eq!(drawn(plan, &["--plan", plan]), reference, "--plan {plan}");
    }
    assert_eq!(drawn("narrow", &["--max-branches", "2", "--threads", "1"]), reference);
    assert_eq!(drawn("shared", &["--memory", "0.1", "--swap-memory", "16", "--device", "cpu"]), reference);
    let more = drawn("more", &["--samples", "5"]);
    let first: Vec<_> = more.iter().filter(|(_, index, _)| *index < 3).cloned().collect();
    assert_eq!(first, reference);
    assert_ne!(drawn("seed", &["--seed", "6"]), reference);
}

#[test]
fn without_a_gpu_auto_is_the_cpu_and_says_why() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    let device = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let ran = run_into(&task, &out, more);
        assert!(ran.status.success(), "{}", stderr(&ran));
        let summary = fs::read_to_string(out.join("summary.json")).expect("written");
        let line = stdout(&ran).lines().find(|line| line.starts_with("device ")).map(str::to_owned);
        (line.expect("a line names the device"), serde_json::from_str::<Value>(&summary).expect("JSON"))
    };
    let (line, summary) = device("auto", &["--device", "auto"]);
    assert!(line.contains("cpu") && line.contains("CUDA cannot be used: "), "{line}");
    assert!(summary["not_cuda"].as_str().is_some_and(|why| line.ends_with(why)), "{summary}");
    let (line, summary) = device("cpu", &["--device", "cpu"]);
    assert!(line.contains("cpu") && !line.contains("CUDA"), "{line}");
    assert!(summary.get("not_cuda").is_none(), "{summary}");
    let dry = output(&["run", task.to_str().expect("UTF-8"), "--dry-run"]);
    assert!(stdout(&dry).contains("CUDA cannot be used: "), "{}", stdout(&dry));
}

#[test]
fn a_value_that_an_option_does_not_take_is_one_sentence_with_what_it_takes() {
    let cases: [(&[&str], &str); 15] = [
        (&["run", "--limit", "x"], "--limit: expected a whole number from 1 up, found x"),
        (&["run", "--limit", "-1"], "--limit: expected a whole number from 1 up, found -1"),
        (&["run", "--limit="], "--limit: expected a whole number from 1 up, found nothing"),
        (&["run", "--samples", "99999999999"], "--samples: expected a whole number of 32 bits, found 99999999999"),
        (&["run", "--seed", "-1"], "--seed: expected a whole number from 0 up, found -1"),
        (&["run", "--k", "4,0"], "--k: expected a whole number from 1 up, found 0"),
        (&["run", "--memory", "much"], "--memory: expected a number, found much"),
        (&["run", "--plan", "wide"], "--plan: expected one of flat, "),
        (&["--threads", "0"], "--threads: expected a whole number from 1 to 1024, found 0"),
        (&["--device", "gpu"], "--device: expected auto, cpu, cuda or cuda:N, found gpu"),
        (&["plan", "--policy", "theirs"], "--policy: expected fcfs, batchllm or ours, found theirs"),
        (&["judge", "--language", "cobol"], "--language: expected "),
        (
            &["serve", "--host", "nowhere"],
            "--host: expected an IP address such as 127.0.0.1, or localhost, found nowhere",
        ),
        (&["serve", "--port", "65536"], "--port: expected a port from 0 to 65535, found 65536"),
        (
            &["run", "--limit", "18446744073709551616"],
            "--limit: expected a whole number of 64 bits, found 18446744073709551616",
        ),
    ];
    for (arguments, expected) in cases {
        let ran = output(arguments);
        fails(&ran, &[]);
        assert!(stderr(&ran).starts_with(&format!("offshoot: {expected}")), "{arguments:?}: {}", stderr(&ran));
    }
    fails(&output(&["serve", "--host", "localhost", "--model", "no-model"]), &["no-model: no such folder"]);
    let profile = "--device-profile: expected h200, cpu or a .json file, found a100";
    fails(&output(&["plan", "tasks/words-vote.json", "--device-profile", "a100"]), &[profile]);
    // What clap alone can say, it says.
    let ran = output(&["run", "--limitt", "3"]);
    assert!(ran.status.code() == Some(2) && stderr(&ran).contains("--limit"), "{}", stderr(&ran));
    assert!(output(&["run", "--help"]).status.success());
}

#[test]
fn what_a_command_would_have_to_ignore_it_refuses() {
    let commands = [&["tree", "runs"][..], &["rescore", "runs"], &["judge", "--doctor"], &["new", "task"], &["models"]];
    for command in commands {
        for option in [["--device", "cuda"], ["--threads", "2"]] {
            let said = ["expected no such option of `offshoot ", command[0], option[0], option[1]];
            fails(&output(&[command, &option[..]].concat()), &said);
        }
    }
    let help = |command: &str| String::from_utf8(output(&[command, "--help"]).stdout).expect("help is text");
    // `tree` computes with --attention.
    for command in commands.into_iter().map(|command| command[0]).filter(|&command| command != "tree") {
        assert!(!help(command).contains("--device <") && !help(command).contains("--threads"), "{command}");
    }
    assert!(!help("plan").contains("--device <") && help("plan").contains("--threads"));
    assert!(!help("plan").contains("--device and "), "{}", help("plan"));
    for command in ["run", "tree"] {
        assert!(help(command).contains("--device <") && help(command).contains("--threads"), "{command}");
    }
}

#[test]
fn what_the_laboratory_does_is_said_to_be_there() {
    let demo = "tasks/models/demo";
    let cases: [&[&str]; 8] = [
        &["check"],
        &["check", "--device", "cpu"],
        &["check", "--quick"],
        &["check", "--model", demo, "--goldens", "tests"],
        &["check", "--paths"],
        &["bench"],
        &["bench", "decode", "--device", "cpu"],
        &["sim"],
    ];
    for arguments in cases {
        let parts = ["`offshoot-lab check`", "`offshoot-lab bench`", "`cargo build --release -p offshoot-lab`"];
        fails(&output(arguments), &parts);
    }
    fails(&output(&["check"]), &["check: expected --model", "found no --model"]);
    // Other mistakes are clap's to explain.
    for arguments in [&["chekc"][..], &["check", "--model", demo, "--modle", demo], &["run", "--quick"]] {
        let said = stderr(&output(arguments));
        assert!(said.starts_with("error: ") && !said.contains("offshoot-lab"), "{said}");
    }
}

#[test]
fn the_path_of_arithmetic_is_the_environment_s_where_the_processor_has_it() {
    for isa in Isa::available() {
        let welcome = offshoot().args(["--device", "cpu"]).env("OFFSHOOT_CPU", isa.name()).output().unwrap();
        assert!(stdout(&welcome).contains(&format!("device: cpu, {isa}, ")), "{}", stdout(&welcome));
    }
    let fastest = offshoot().args(["--device", "cpu"]).env("OFFSHOOT_CPU", "").output().unwrap();
    assert!(stdout(&fastest).contains(&format!("device: cpu, {}, ", Isa::fastest())), "{}", stdout(&fastest));
    let folder = tempfile::tempdir().unwrap();
    let task = task_in(folder.path(), |_| {});
    let run = ["run", task.to_str().unwrap(), "--out", "out", "--device", "cpu"];
    let refused = offshoot().current_dir(folder.path()).args(run).env("OFFSHOOT_CPU", "avx9").output().unwrap();
    let paths: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    fails(&refused, &["OFFSHOOT_CPU", "avx9", &paths.join(", ")]);
}

#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_one_sentence() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (task, out) = (task_in(folder.path(), |_| {}), folder.path().join("out"));
    fails(&run_into(&task, &out, &["--device", "cuda"]), &["cuda:0 cannot be used: ", "driver"]);
    assert!(!out.exists());
    let commands: [&[&str]; 3] = [
        &["--device", "cuda:0"],
        &["run", "--dry-run", "--device", "cuda"],
        &["check", "--device", "cuda", "--model", "tasks/models/demo"],
    ];
    for command in commands {
        fails(&output(command), &["cuda:0 cannot be used: "]);
    }
    for wrong in ["cuda:x", "cuda:", "gpu"] {
        let refused = output(&["run", "--device", wrong]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(wrong) && stderr(&refused).contains("cuda:N"), "{}", stderr(&refused));
    }
}

#[test]
fn a_dry_run_shows_the_first_prompt_and_samples_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |task| task["prompt"]["shared"] = json!("Answer briefly.\n\n"));
    let out = folder.path().join("out");
    let said = run_into(&task, &out, &["--dry-run"]);
    assert!(said.status.success(), "{}", stderr(&said));
    let text = stdout(&said);
    for part in ["Answer briefly.\n\nQuestion: ", "levels", "kv at once", "distinct", "device", "branches"] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
    assert!(!out.exists());
}

/// One sample of each item and nothing in common: sharing saves nothing, and costs nothing.
#[test]
fn a_dry_run_never_counts_more_memory_with_sharing_than_without() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |task| {
        task["prompt"] = json!("{{id}} {{question}}");
        task["method"] = json!({"sample": {"samples": 1}});
    });
    let said = run_into(&task, &folder.path().join("out"), &["--dry-run"]);
    assert!(said.status.success(), "{}", stderr(&said));
    let text = stdout(&said);
    let line = text.lines().find_map(|line| line.strip_prefix("kv at once")).unwrap_or_else(|| panic!("{text}"));
    let (with, without) = line.trim().split_once(" at most; without sharing ").unwrap_or_else(|| panic!("{line}"));
    assert_eq!(with, without);
}

#[test]
fn a_new_task_runs_as_it_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut new = offshoot();
    let wrote = new.current_dir(folder.path()).args(["new", "mine"]).output().expect("the binary starts");
    assert!(wrote.status.success(), "{}", stderr(&wrote));
    let model = repository().join("tasks/models/demo");
    let task = folder.path().join("mine.json");
    let model = model.to_str().expect("UTF-8");
    let dry = output(&["run", task.to_str().expect("UTF-8"), "--model", model, "--dry-run"]);
    assert!(dry.status.success(), "{}", stderr(&dry));
    let mut again = offshoot();
    let refused = again.current_dir(folder.path()).args(["new", "mine"]).output().expect("the binary starts");
    assert_eq!(refused.status.code(), Some(2), "a task is never written over");
}

#[test]
fn check_prints_facts() {
    let said = output(&["check", "--model", "tasks/models/demo"]);
    assert!(said.status.success(), "{}", stderr(&said));
    for part in ["llama", "parameters", "the same bits"] {
        assert!(stdout(&said).contains(part), "`{part}` is missing: {}", stdout(&said));
    }
}

#[test]
fn models_are_listed_and_a_folder_runs_or_not() {
    let listed = output(&["models"]);
    let table = stdout(&listed);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
    assert!(widths.len() > 20 && widths.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    let llama = table.lines().find(|line| line.starts_with("| llama ")).expect("the family is listed");
    assert!(llama.contains("llama2-mha"), "{llama}");
    assert!(table.contains("| latent attention, experts ") && table.contains("CPU, some on H200 (2026-"), "{table}");

    let demo = output(&["models", "tasks/models/demo"]);
    let said = stdout(&demo);
    assert!(demo.status.success() && said.contains("family      llama") && said.contains("runs        in "), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().expect("a path of letters");
    let write = |config: &str| std::fs::write(folder.path().join("config.json"), config).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 128
    });
    write(&config.to_string());
    let without_weights = output(&["models", path]);
    assert!(stdout(&without_weights).contains("its weights are"), "{}", stdout(&without_weights));
    write(r#"{"model_type": "nobody"}"#);
    fails(&output(&["models", path]), &["config.json", "model_type", "nobody"]);
}

#[test]
fn check_compares_the_scores_of_reward_models() {
    let Some(root) = shared("goldens_modern") else { return };
    for (name, said_of_it) in [
        (
            "reward-qwen2-math-prm",
            ["2 values: score.0 to 64 with bias, relu, score.2 with bias", "the softmax of values"],
        ),
        ("reward-qwen3-classifier", ["1 value: score", "values as they are"]),
        ("reward-skywork-prm", ["1 value: v_head.summary with bias", "sigmoids of values"]),
    ] {
        let [model, golden] = [root.join(name), root.join(name).join("golden_scores.json")];
        let [model, golden] = [&model, &golden].map(|path| path.to_str().expect("UTF-8"));
        let said = output(&["check", "--model", model, "--golden", golden]);
        assert!(said.status.success(), "{}", stderr(&said));
        for part in ["the same bits", "ok    4 positions"].into_iter().chain(said_of_it) {
            assert!(stdout(&said).contains(part), "`{part}` is missing: {}", stdout(&said));
        }
        fails(&output(&["check", "--model", model, "--forks", "1"]), &["--forks", "scores texts"]);
        fails(&output(&["run", "tasks/words-vote.json", "--model", model]), &["architectures", "predicts tokens"]);
    }
}

#[test]
fn check_compares_the_bundled_reward_model_with_the_values_of_its_training() {
    let folder = "tasks/models/reward";
    let said = output(&["check", "--model", folder, "--golden", &format!("{folder}/golden_scores.json")]);
    assert!(said.status.success(), "{}", stderr(&said));
    for part in ["1 value: score", "ok    4 positions", "values as they are"] {
        assert!(stdout(&said).contains(part), "`{part}` is missing: {}", stdout(&said));
    }
}

/// trl saves a model that it gives a value head with the class of the generator that it was.
#[test]
fn check_reads_golden_scores_of_a_model_with_a_generator_s_class() {
    let Some(root) = shared("goldens_modern/reward-skywork-prm") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in ["model.safetensors", "golden_scores.json"] {
        std::fs::copy(root.join(file), folder.path().join(file)).expect("a file that can be copied");
    }
    let config = std::fs::read_to_string(root.join("config.json")).expect("a text file");
    let config = config.replace("Qwen2ForPrmModel", "Qwen2ForCausalLM");
    std::fs::write(folder.path().join("config.json"), config).expect("a folder that can be written");
    let [model, golden] = [folder.path().to_owned(), folder.path().join("golden_scores.json")];
    let [model, golden] = [&model, &golden].map(|path| path.to_str().expect("UTF-8"));
    let said = output(&["check", "--model", model, "--golden", golden]);
    assert!(said.status.success() && stdout(&said).contains("ok    4 positions"), "{}", stderr(&said));
}

#[test]
fn check_says_what_rounded_keys_and_values_do() {
    let said = output(&["check", "--model", "tasks/models/demo", "--kv-dtype", "fp8"]);
    assert!(said.status.success(), "{}", stderr(&said));
    let said = stdout(&said);
    let line = said.lines().find(|line| line.starts_with("fp8 kv ")).unwrap_or_else(|| panic!("{said}"));
    let numbers: Vec<f64> = line.split([' ', ',', ';']).filter_map(|word| word.parse().ok()).collect();
    let [tokens, mean, largest, turned] = numbers[..] else { panic!("{line}") };
    assert!(0.0 < mean && mean < largest && largest < 2.0 && mean < 0.1, "{line}");
    assert!(tokens == 256.0 && turned < tokens / 4.0, "{line}");
}

#[test]
fn check_forks_a_text_at_every_offset() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let short = replace("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 125");
    let short = changed_model(folder.path(), "config.json", short);
    let (model, tokens) = some_or_full((short.as_str(), 96), ("tasks/models/demo", 300));
    let said = output(&["check", "--device", "cpu", "--model", model, "--forks", "1"]);
    assert!(said.status.success(), "{}", stderr(&said));
    let said = stdout(&said);
    let line = said.lines().find(|line| line.starts_with("forks ")).unwrap_or_else(|| panic!("{said}"));
    let numbers: Vec<u64> = line.split([' ', ',', ';']).filter_map(|word| word.parse().ok()).collect();
    let [different, all, forks, preempted, swapped, recomputed] = numbers[..] else { panic!("{line}") };
    assert!(different == 0 && all >= 5 * forks && forks == 5 * tokens, "{line}");
    assert!(swapped > 0 && swapped <= preempted && recomputed > 0, "{line}");
}

#[test]
fn serve_says_how_a_model_is_given_to_it() {
    for (options, parts) in [
        (&["serve", "some/folder"][..], ["--model DIR", "--scorer DIR", "some/folder"]),
        (&["serve", "--model", "some/folder", "--scorer-form", "last-token"], ["--scorer DIR", "--model", "alone"]),
        (&["serve", "--model", "some/folder", "--scorer-name", "a"], ["--scorer DIR", "--model", "alone"]),
    ] {
        let refused = output(options);
        let said = stderr(&refused);
        assert!(!refused.status.success() && parts.iter().all(|part| said.contains(part)), "{options:?}: {said}");
    }
}

#[test]
fn a_model_to_compare_with_that_is_not_there_is_refused_like_any_other() {
    let demo = "tasks/models/demo";
    let said = |arguments: &[&str]| {
        let said = output(arguments);
        assert_eq!(said.status.code(), Some(2));
        stderr(&said).lines().last().unwrap_or_default().to_owned()
    };
    let against = ["check", "--model", demo, "--against", "no/model", "--text", "tasks/words_fewshot.txt"];
    assert_eq!(said(&against), said(&["check", "--model", "no/model"]));
}

#[test]
fn check_says_what_smaller_weights_cost() {
    let demo = "tasks/models/demo";
    let against = ["check", "--model", demo, "--against", demo, "--text", "tasks/words_fewshot.txt"];
    let said = |more: &[&str]| {
        let said = output(&[&against, more].concat());
        assert!(said.status.success(), "{}", stderr(&said));
        stdout(&said)
    };
    let figures = |said: &str, name: &str| -> Vec<f64> {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {said}"));
        line.split([' ', ',', ';', '(', ')']).filter_map(|word| word.parse().ok()).collect()
    };
    let same = said(&[]);
    let [own, there, more] = figures(&same, "perplexity")[..] else { panic!("{same}") };
    assert!(own == there && more == 0.0 && own > 1.0, "{same}");
    assert_eq!(figures(&same, "log-probs")[..2], [0.0, 0.0], "{same}");
    let int4 = said(&["--weights", "int4"]);
    let [own, dense, _] = figures(&int4, "perplexity")[..] else { panic!("{int4}") };
    assert!(dense == there && own > dense && own < 2.0 * dense, "{int4}");
    let [mean, largest, _] = figures(&int4, "log-probs")[..] else { panic!("{int4}") };
    assert!(0.0 < mean && mean < largest && mean < 1.0, "{int4}");
    let [agreed, tokens] = figures(&int4, "greedy")[..] else { panic!("{int4}") };
    assert!(tokens > 100.0 && agreed > 0.5 * tokens && agreed < tokens, "{int4}");
    let layers: Vec<&str> = int4.lines().filter(|line| line.starts_with("most apart")).collect();
    assert_eq!(layers.len(), 8, "one matrix of each layer: {int4}");
    // A step of int4 is an eighth of a group's largest number, of which an error is at most half.
    for line in layers {
        let share = line.rsplit_once("by ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
        assert!(share.is_some_and(|share| 1.0 < share && share < 20.0), "{line}");
    }
    for (command, missing) in [
        (&["check", "--model", demo, "--against", demo][..], "--text"),
        (&["check", "--weights", "int8"], "--model"),
        (&["check", "--text", "README.md", "--model", demo], "--against"),
    ] {
        let refused = output(command);
        assert!(refused.status.code() == Some(2) && stderr(&refused).contains(missing), "{}", stderr(&refused));
    }
}

#[test]
fn check_needs_no_tokenizer_but_a_whole_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = changed_model(folder.path(), "tokenizer.json", |bytes| bytes[..bytes.len() / 2].to_vec());
    fails(&output(&["check", "--model", &model]), &["tokenizer.json"]);
    fs::remove_file(Path::new(&model).join("tokenizer.json")).expect("removed");
    let said = output(&["check", "--model", &model]);
    assert!(said.status.success() && stdout(&said).contains("none: "), "{}", stderr(&said));
}

/// Copies the demo model's folder and changes one file of it.
fn changed_model(folder: &Path, file: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> String {
    let model = folder.join("model");
    fs::create_dir_all(&model).expect("writable");
    for name in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        fs::copy(repository().join("tasks/models/demo").join(name), model.join(name)).expect("copied");
    }
    let bytes = fs::read(model.join(file)).expect("readable");
    fs::write(model.join(file), change(bytes)).expect("writable");
    model.to_str().expect("UTF-8").to_string()
}

fn replace(text: &'static str, by: &'static str) -> impl Fn(Vec<u8>) -> Vec<u8> {
    move |bytes| {
        let whole = String::from_utf8(bytes).expect("a text file");
        assert!(whole.contains(text), "`{text}` is not in the file");
        whole.replace(text, by).into_bytes()
    }
}

/// A failure of the user's: exit code 2, one sentence that names all of `parts`, and no results.
fn fails(output: &Output, parts: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "more than one line: {said}");
    assert!(said.starts_with("offshoot: "), "{said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is missing: {said}");
    }
}

#[test]
fn a_wrong_task_file_is_one_sentence() {
    type Change = fn(&mut Value);
    let cases: [(Change, &[&str]); 9] = [
        (|task| task["sampling"]["temprature"] = json!(1), &["task.json", "sampling.temprature", "temperature"]),
        (|task| drop(task.as_object_mut().expect("an object").remove("items")), &["task.json", "items", "missing"]),
        (|task| task["method"]["self_consistency"]["samples"] = json!(0), &["task.json", "samples", "0"]),
        (
            |task| task["method"] = json!({"forest_of_thought": {}}),
            &["task.json", "tree_of_thought", "self_consistency"],
        ),
        (
            |task| task["prompt"]["item"] = json!("{{problem}}"),
            &["task.json", "prompt.item", "problem", "`a`", "question"],
        ),
        (|task| task["answer"]["regex"] = json!("(unclosed"), &["task.json", "answer.regex", "unclosed"]),
        (|task| task["grade"]["exact"]["field"] = json!("solution"), &["items.jsonl", "solution", "`a`", "question"]),
        (|task| task["items"] = json!({"path": "nowhere.jsonl"}), &["nowhere.jsonl"]),
        (|task| task["prompt"]["shared"] = json!("word ".repeat(6000)), &["item `", "4096"]),
    ];
    for (change, parts) in cases {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (task, out) = (task_in(folder.path(), change), folder.path().join("out"));
        fails(&run_into(&task, &out, &[]), parts);
        assert!(!out.exists(), "a task that cannot run leaves nothing");
    }
}

#[test]
fn a_wrong_option_is_one_sentence() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    let out = folder.path().join("out");
    fails(&run_into(&task, &out, &["--samples", "0"]), &["samples", "0"]);
    fails(&run_into(&task, &out, &["--set", "sampling.top_q=1"]), &["top_q", "command line", "top_p"]);
    fails(&run_into(&task, &out, &["--model", "no/such/model"]), &["no/such/model"]);
    fails(&run_into(&task, &out, &["--max-branches", "0"]), &["--max-branches", "0"]);
    fails(&run_into(&task, &out, &["--kv-memory", "0"]), &["--kv-memory", "0"]);
    for share in ["0", "1.5", "-0.5", "nan"] {
        let option = format!("--memory={share}");
        fails(&run_into(&task, &out, &[&option]), &["--memory", "at most 1", &share.replace("nan", "NaN")]);
    }
    fails(&run_into(&task, &out, &["--limit", "0"]), &["--limit", "0"]);
    fails(&run_into(&task, &out, &["--samples", "400000000"]), &["task.json", "self_consistency.samples", "1,000,000"]);
    fails(&run_into(&task, &out, &["--threads", "1000000"]), &["--threads", "1024"]);
    let set = |what: &str| run_into(&task, &out, &["--set", what]);
    fails(&set("sampling.stop_token_ids=[99999]"), &["task.json", "sampling.stop_token_ids", "99999"]);
    fails(&set("sampling.temperature=1e39"), &["task.json", "sampling.temperature"]);
    assert!(!out.exists(), "what cannot run leaves nothing");
    for name in ["../../evil", ""] {
        let named = offshoot_in(folder.path(), &["run", "task.json", "--set", &format!("name=\"{name}\"")]);
        fails(&named, &["task.json", "name", name]);
    }
    assert!(!folder.path().join("runs").exists());
    fails(&output(&["run", "no-such-task.json"]), &["no-such-task.json"]);
    let request = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Tom"}}"#;
    for (name, text) in [("one.jsonl", format!("\n{request}\n")), ("two.jsonl", format!("{request}\n{request}\n"))] {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("writable");
        fails(&run_into(&path, &out, &[]), &[name, "holds requests for `offshoot batch`, not a task"]);
    }
    fails(&output(&["run", "--trees"]), &["--trees", "task file"]);
    fails(&output(&["run", "--plan", "flat"]), &["--plan", "task file"]);

    let file = folder.path().join("file");
    fs::write(&file, "in the way").expect("writable");
    fails(&run_into(&task, &file.join("out"), &[]), &["file"]);
}

#[test]
fn too_little_memory_is_said_in_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let long = |task: &mut Value| task["prompt"]["shared"] = json!("Tom has 12 pens. ".repeat(500));
    let task = task_in(folder.path(), long);
    let ran = run_into(&task, &folder.path().join("out"), &["--kv-memory", "1"]);
    fails(&ran, &["--kv-memory", "--memory", "MiB", "found 1.00 MiB"]);
    assert_eq!(stdout(&ran), "", "it is refused before anything is sampled");
}

#[test]
fn a_token_beyond_the_models_vocabulary_is_found_before_anything_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = changed_model(folder.path(), "tokenizer_config.json", |bytes| {
        let mut config: Value = serde_json::from_slice(&bytes).expect("JSON");
        config["added_tokens_decoder"]["1024"] = json!({"content": "Question:", "special": false});
        config.to_string().into_bytes()
    });
    let (task, out) = (task_in(folder.path(), |_| {}), folder.path().join("out"));
    let ran = run_into(&task, &out, &["--model", &model]);
    fails(&ran, &["model", "tokenizer", "vocabulary", "item `"]);
    assert!(!out.exists());
}

/// Standard output that is full is an error; one that nobody reads any more is none.
#[cfg(target_os = "linux")]
#[test]
fn printing_can_fail() {
    let into = |stdout: Stdio, arguments: &[&str]| {
        let command = offshoot().args(arguments).stdout(stdout).stderr(Stdio::piped()).spawn();
        command.expect("the binary starts").wait_with_output().expect("it ends")
    };
    let commands: [&[&str]; 3] = [&[], &["check", "--model", "tasks/models/demo"], &["run", "--dry-run"]];
    for arguments in commands {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has one");
        fails(&into(full.into(), arguments), &["standard output", "write"]);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let gone = into(writer.into(), arguments);
        assert_eq!((gone.status.code(), stderr(&gone).as_str()), (Some(0), ""), "{arguments:?}");
    }
}

/// A disk that fills up, as a limit on the size of a file: the error is the first one, the page is printed all the
/// same.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_and_what_fitted_is_summed_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |task| task["method"]["self_consistency"]["samples"] = json!(200));
    let out = folder.path().join("out");
    let ran = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 12; exec \"$0\" run \"$1\" --out \"$2\""])
        .args([env!("CARGO_BIN_EXE_offshoot").as_ref(), task.as_os_str(), out.as_os_str()])
        .output()
        .expect("sh is there");
    fails(&ran, &["samples.jsonl", "write a line"]);
    assert!(stdout(&ran).contains("stopped early"), "{}", stdout(&ran));
    assert!(!lines(&out.join("samples.jsonl")).is_empty());
    for entry in fs::read_dir(&out).expect("readable") {
        let name = entry.expect("an entry").file_name();
        assert!(!name.to_string_lossy().ends_with(".partial"), "{name:?}");
    }
}

/// `run` of a task into a folder, where the shell lets a process map so many KiB.
#[cfg(target_os = "linux")]
fn run_mapping_at_most(kibibytes: u32, task: &Path, out: &Path) -> Output {
    Command::new("sh")
        .args(["-c", &format!("ulimit -v {kibibytes}; exec \"$0\" run \"$1\" --device cpu --out \"$2\"")])
        .args([env!("CARGO_BIN_EXE_offshoot").as_ref(), task.as_os_str(), out.as_os_str()])
        .output()
        .expect("sh is there")
}

/// A limit that the shell set is named by whatever it ends, and before it ends anything.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_the_address_space_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    for kibibytes in [200_000, 1 << 20] {
        let ran = run_mapping_at_most(kibibytes, &task, &folder.path().join(kibibytes.to_string()));
        assert!(stderr(&ran).contains("ulimit -v"), "{kibibytes} KiB: {}", stderr(&ran));
    }
}

/// However little a command may map: it says so before it begins, or where an allocation or a thread is refused. With
/// less than the program itself takes the kernel does not start it.
#[cfg(target_os = "linux")]
#[test]
fn a_command_that_may_map_too_little_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    let mut refused_at_once = 0;
    for kibibytes in (12_000..160_000).step_by(6_000) {
        let ran = run_mapping_at_most(kibibytes, &task, &folder.path().join(kibibytes.to_string()));
        let said = stderr(&ran);
        // The loader of shared libraries, if it has too little, calls the command by its path.
        let not_started = !said.lines().any(|line| line.starts_with("offshoot: ") || line.starts_with("warning: "));
        assert!(ran.status.success() || not_started || said.contains("`ulimit -v`"), "{kibibytes} KiB: {said}");
        assert!(!not_started || refused_at_once == 0 || ran.status.success(), "{kibibytes} KiB: {said}");
        refused_at_once += u32::from(said.contains("to begin), found "));
    }
    assert!(refused_at_once > 0);
}

#[test]
fn a_verbose_run_says_each_step() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ran = run_into(&task_in(folder.path(), |_| {}), &folder.path().join("out"), &["-v"]);
    assert!(ran.status.success());
    for part in ["prepared 2 prompts", "loaded ", "item `a`", "item `b`"] {
        assert!(stderr(&ran).contains(part), "`{part}` is missing: {}", stderr(&ran));
    }
}

#[test]
fn equal_runs_leave_equal_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |task| task["method"]["self_consistency"]["samples"] = json!(20));
    let files = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let ran = run_into(&task, &out, more);
        assert!(ran.status.success(), "{}", stderr(&ran));
        ["samples.jsonl", "items.jsonl"].map(|file| fs::read_to_string(out.join(file)).expect("written"))
    };
    assert_eq!(files("one", &[]), files("two", &["--max-branches", "3", "--plan", "flat"]));
}

#[test]
fn what_a_summary_cannot_know_it_leaves_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ran = |name: &str, method: Value| {
        let task = task_in(folder.path(), |task| {
            task["method"] = method.clone();
            task["answer"] = json!({"regex": "([a-zA-Z])", "take": "first", "normalise": "text"});
            // The first letter of the name.
            task["grade"] = json!({"exact": {"field": "question", "regex": "([A-Z])"}});
            // Lengths as far apart as the places of a digit.
            task["sampling"] =
                json!({"temperature": 1.2, "max_tokens": 600, "stop": ["9"], "ignore_eos": true, "seed": 5});
        });
        let ran = run_into(&task, &folder.path().join(name), &[]);
        assert!(ran.status.success(), "{}", stderr(&ran));
        stdout(&ran)
    };
    // Nearly every sample begins with the name in the question, so that little more than half of them decide a vote.
    let early = ran("early", json!({"self_consistency": {"samples": 40, "stop_when_decided": true}}));
    assert!(early.contains(" more not sampled: the vote was decided"), "{early}");
    assert!(early.contains(" % of all\n"), "a vote draws nothing in vain: {early}");
    assert!(early.contains("biases") && !early.contains("\npass@k"), "{early}");
    let best = ran("best", json!({"best_of_n": {"samples": 2, "by": "grade"}}));
    assert!(best.contains("chosen by the grader: an upper bound"), "{best}");
    let passed = ran("passed", json!({"best_of_n": {"samples": 40, "by": "grade", "stop_when_passed": true}}));
    assert!(passed.contains(" more stopped or not judged: one had passed"), "{passed}");
}

#[test]
fn each_k_that_was_asked_for_is_in_a_row_or_said_to_be_left_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ran = |name: &str, method: Value, k: &str| {
        let out = folder.path().join(name);
        let ran = run_into(&task_in(folder.path(), |task| task["method"] = method.clone()), &out, &["--k", k]);
        assert!(ran.status.success(), "{}", stderr(&ran));
        let summary = fs::read_to_string(out.join("summary.json")).expect("written");
        let summary: Value = serde_json::from_str(&summary).expect("JSON");
        (stdout(&ran), summary["k_left_out"]["k"].clone())
    };
    let (said, left) = ran("few", json!({"self_consistency": {"samples": 3}}), "1,3,4,64");
    assert!(said.contains("left out    k = 4, 64: no item has more than 3 samples"), "{said}");
    assert!(said.contains("3: ") && left == json!([4, 64]), "{said}");
    let (said, left) = ran("all", json!({"self_consistency": {"samples": 3}}), "1,2");
    assert!(!said.contains("left out") && left.is_null(), "{said}");
    let early = json!({"self_consistency": {"samples": 3, "stop_when_decided": true}});
    let (said, left) = ran("early", early, "1,2");
    assert!(said.contains("left out    k = 1, 2: samples may be cancelled"), "{said}");
    assert_eq!(left, json!([1, 2]));
}

#[test]
fn a_broken_model_is_one_sentence() {
    let change = |file: &'static str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, parts: &[&str]| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let model = changed_model(folder.path(), file, change);
        let task = task_in(folder.path(), |_| {});
        fails(&run_into(&task, &folder.path().join("out"), &["--model", &model]), parts);
    };
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() / 2);
        bytes
    };
    let demo = repository().join("tasks/models/demo");
    let whole = fs::metadata(demo.join("model.safetensors")).expect("there").len();
    change("model.safetensors", &cut, &["model.safetensors", &whole.to_string(), &(whole / 2).to_string()]);
    change("config.json", &replace("\"llama\"", "\"gigamodel\""), &["config.json", "gigamodel", "llama"]);
    let config: Value = serde_json::from_slice(&fs::read(demo.join("config.json")).expect("there")).expect("JSON");
    let width = config["intermediate_size"].as_u64().expect("a number");
    let (width, wider) = (width.to_string(), (width + 1).to_string());
    let widen = |bytes: Vec<u8>| {
        let mut config: Value = serde_json::from_slice(&bytes).expect("JSON");
        config["intermediate_size"] = json!(width.parse::<u64>().expect("a number") + 1);
        config.to_string().into_bytes()
    };
    change("config.json", &widen, &["model.safetensors", &width, &wider]);
    change("config.json", &cut, &["config.json", "JSON"]);
    change("tokenizer.json", &cut, &["tokenizer.json"]);
    change("tokenizer.json", &replace("\"7\":", "\"seven\":"), &["model", "no token for '7'"]);
}

/// Weights that are no numbers: the run stops at the first logits, and says what it met.
#[test]
fn weights_that_are_no_numbers_are_one_sentence() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The last bytes of the file belong to its last tensor: bf16 NaN is 0x7fc0.
    let poison = |mut bytes: Vec<u8>| {
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&[0xc0, 0x7f, 0xc0, 0x7f]);
        bytes
    };
    let model = changed_model(folder.path(), "model.safetensors", poison);
    let task = task_in(folder.path(), |_| {});
    let ran = run_into(&task, &folder.path().join("out"), &["--model", &model]);
    fails(&ran, &["logits", "NaN", "finite"]);
    let checked = output(&["check", "--model", &model]);
    assert_eq!(checked.status.code(), Some(2), "{}", stdout(&checked));
    assert!(stdout(&checked).contains("not finite"), "{}", stdout(&checked));
}

/// Ctrl-C, and a request to end: what is finished stays, in whole lines; the exit code says which it was.
#[test]
fn an_interrupt_keeps_what_is_finished() {
    for (signal, number) in [("INT", SIGINT), ("TERM", SIGTERM)] {
        hear(number);
        stopped_by(signal, 128 + number);
    }
}

/// As `nohup` starts it, and a shell that has it in the background: the signal that is ignored from the start on stops
/// nothing.
#[test]
fn a_signal_that_was_ignored_before_stays_ignored() {
    for signal in ["HUP", "INT"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let task = task_in(folder.path(), |task| {
            task["method"]["self_consistency"]["samples"] = json!(4000);
            task["sampling"]["max_tokens"] = json!(200);
        });
        let out = folder.path().join("out");
        let mut child = Command::new("sh")
            .args(["-c", &format!("trap '' {signal}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_offshoot"), "run"])
            .args([&task, Path::new("--out"), &out])
            .current_dir(repository())
            .env("CUDA_VISIBLE_DEVICES", "")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh is there");
        let samples = out.join("samples.jsonl");
        let id = child.id();
        let mut drawn_past = |bytes: u64| {
            while fs::metadata(&samples).map_or(0, |file| file.len()) <= bytes {
                assert!(child.try_wait().expect("a child").is_none(), "it ended before more was drawn");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            fs::metadata(&samples).expect("it is there").len()
        };
        let before = drawn_past(0);
        send(signal, id);
        drawn_past(before + 8192);
        send("TERM", id);
        let ended = child.wait_with_output().expect("it ends");
        assert_eq!(ended.status.code(), Some(143), "{}", stderr(&ended));
        assert_eq!(stderr(&ended).matches("stopping:").count(), 1, "{}", stderr(&ended));
    }
}

fn send(signal: &str, id: u32) {
    let sent = Command::new("kill").args(["-s", signal, &id.to_string()]).status().expect("kill is there");
    assert!(sent.success());
}

/// While prompts are prepared there is nothing to keep: the request ends the run at once, and nothing is written.
#[test]
fn an_interrupt_is_heard_while_a_run_is_prepared() {
    for (signal, number) in [("INT", SIGINT), ("TERM", SIGTERM)] {
        hear(number);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let task = task_in(folder.path(), |task| task["items"] = json!({"path": "pipe.jsonl", "id": "id"}));
        let pipe = folder.path().join("pipe.jsonl");
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there").success());
        let out = folder.path().join("out");
        let child = offshoot()
            .args(["run", task.to_str().expect("UTF-8"), "--out", out.to_str().expect("UTF-8")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        // It opens the pipe while it prepares, and waits there for items that never come.
        let mut writer = fs::OpenOptions::new().write(true).open(&pipe).expect("the run reads it");
        writer.write_all(b"{\"id\": 1, \"question\": \"?\", \"answer\": 1}\n").expect("the run reads it");
        send(signal, child.id());
        let ended = child.wait_with_output().expect("it ends");
        assert_eq!(ended.status.code(), Some(128 + number), "{}", stderr(&ended));
        assert!(stderr(&ended).contains("stopped while preparing"), "{}", stderr(&ended));
        assert!(!out.exists());
    }
}

fn stopped_by(signal: &str, code: i32) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |task| {
        task["method"]["self_consistency"]["samples"] = json!(4000);
        task["sampling"]["max_tokens"] = json!(200);
    });
    let out = folder.path().join("out");
    let mut child = offshoot()
        .args(["run", task.to_str().expect("UTF-8"), "--out", out.to_str().expect("UTF-8")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let samples = out.join("samples.jsonl");
    while fs::metadata(&samples).map_or(0, |file| file.len()) == 0 {
        assert!(child.try_wait().expect("a child").is_none(), "8,000 samples were drawn before one was seen");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    send(signal, child.id());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(code), "{}", stderr(&ended));
    let kept = lines(&samples).len();
    assert!((1..8000).contains(&kept), "{kept} samples kept");
    assert!(out.join("summary.json").is_file());
    assert!(stdout(&ended).contains("stopped early"), "{}", stdout(&ended));
}

#[test]
fn where_nothing_was_drawn_nothing_is_said_to_be_saved() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ran = run_into(Path::new("tasks/choice.json"), &folder.path().join("out"), &["--limit", "1"]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let said = stdout(&ran);
    assert!(said.contains(" samples: no tokens\n") && !said.contains(" 0 of 0 "), "{said}");
}

#[test]
fn a_summary_as_json_is_all_of_standard_output() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (task, out) = (task_in(folder.path(), |_| {}), folder.path().join("out"));
    let options = ["--json", "-n", "2", "--temperature", "0.5", "--top-p", "0.9", "--max-tokens", "5"];
    let ran = run_into(&task, &out, &options);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let mut said: Value = serde_json::from_str(&stdout(&ran)).expect("one JSON object");
    assert_eq!(said["results"].take(), json!(out));
    let written: Value = serde_json::from_slice(&fs::read(out.join("summary.json")).expect("written")).expect("JSON");
    assert_eq!((&said["samples"], &said["items"], &said["accuracy"]), (&json!(4), &json!(2), &written["accuracy"]));
    let task: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).expect("written")).expect("JSON");
    let sampling = &task["task"]["sampling"];
    let set = ["temperature", "top_p", "max_tokens"].map(|key| sampling[key].clone());
    assert_eq!(set, [json!(0.5), json!(0.9), json!(5)]);
    assert!(lines(&out.join("samples.jsonl")).iter().all(|sample| sample["tokens"].as_u64() <= Some(5)));
}

#[test]
fn items_hold_their_question_and_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |name: &str, change: fn(&mut Value)| {
        let out = folder.path().join(name);
        let ran = run_into(&task_in(folder.path(), change), &out, &[]);
        assert!(ran.status.success(), "{}", stderr(&ran));
        (lines(&out.join("items.jsonl")), lines(&out.join("samples.jsonl")))
    };
    let (items, _) = run("vote", |_| {});
    assert!(items[0]["question"].as_str().expect("a text").starts_with("Tom has 12 pens."), "{}", items[0]);
    assert_eq!(items[0]["answer"], items[0]["prediction"]);
    assert!(items[0]["samples_correct"].is_u64(), "{}", items[0]);
    let (items, samples) = run("one", |task| {
        task["method"] = json!({"sample": {"samples": 1}});
        task.as_object_mut().expect("an object").retain(|key, _| !["answer", "grade"].contains(&key.as_str()));
    });
    assert_eq!(items[0]["answer"], samples[0]["text"], "without rules the text is the answer");
    assert_eq!((&items[0]["correct"], &items[0]["samples_correct"]), (&Value::Null, &Value::Null), "nothing grades");
}

#[test]
fn what_is_too_long_is_left_out_by_name_where_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    let out = folder.path().join("out");
    let (short, advice) = (["--context", "100"], ["the prompt of item `", "; --context is 100 ", "--skip-too-long"]);
    fails(&run_into(&task, &out, &short), &advice);
    fails(&run_into(&task, &out, &[&short[..], &["--dry-run"]].concat()), &advice);
    let dry = run_into(&task, &out, &["--context", "2000", "--dry-run"]);
    assert!(stdout(&dry).contains("demo, 2,000 context"), "{}", stdout(&dry));
    let long = json!({"id": "long", "question": "word ".repeat(6000), "answer": "1"});
    let items = folder.path().join("items.jsonl");
    fs::write(&items, format!("{}{long}\n", fs::read_to_string(&items).expect("written"))).expect("writable");
    fails(&run_into(&task, &out, &[]), &["item `long`", "the model's context is 4096", "--skip-too-long"]);
    let plan = output(&["plan", task.to_str().expect("UTF-8")]);
    fails(&plan, &["item `long`", "4096", "a run with --skip-too-long leaves such items out"]);
    assert!(!out.exists());
    let ran = run_into(&task, &out, &["--skip-too-long"]);
    fails(&ran, &["1 of 3 items are left out", "item `long`", "4096"]);
    assert!(!stderr(&ran).contains("tries again"), "{}", stderr(&ran));
    assert!(stdout(&ran).contains("items       2 of 3 (1 skipped, too long)"), "{}", stdout(&ran));
    assert_eq!(lines(&out.join("samples.jsonl")).len(), 6);
    let records = lines(&out.join("items.jsonl"));
    let skipped = records.iter().find(|item| item["id"] == "long").expect("it has a record");
    assert_eq!((&skipped["skipped"], &skipped["question"]), (&json!(true), &long["question"]));
    let summary: Value =
        serde_json::from_slice(&fs::read(out.join("summary.json")).expect("written")).expect("a summary");
    assert_eq!((&summary["failed"], &summary["skipped"]), (&json!(0), &json!(1)));
    let resumed = run_into(&task, &out, &["--skip-too-long", "--resume"]);
    fails(&resumed, &["1 of 3 items are left out"]);
    assert_eq!(lines(&out.join("items.jsonl")), records);
    let dry = run_into(&task, &folder.path().join("dry"), &["--skip-too-long", "--dry-run"]);
    assert!(dry.status.success() && stdout(&dry).contains("left out    the prompt of item `long`"), "{}", stdout(&dry));
    fails(
        &run_into(&task, &folder.path().join("all"), &["--skip-too-long", "--set", "items.skip=2"]),
        &["`long`", "4096"],
    );
}

#[test]
fn penalties_stand_within_what_other_programs_take() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    for (key, value) in [("presence_penalty", "99"), ("frequency_penalty", "-2.5")] {
        let ran = run_into(&task, &folder.path().join("out"), &["--set", &format!("sampling.{key}={value}")]);
        fails(&ran, &[&format!("`sampling.{key}`"), "a number from -2 to 2", value]);
    }
}

#[test]
fn one_prompt_for_all_items_is_noted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let same = task_in(folder.path(), |task| task["prompt"]["item"] = json!("Question: {question}\nAnswer:"));
    let ran = run_into(&same, &folder.path().join("same"), &["--dry-run"]);
    assert!(stderr(&ran).contains("note: all 2 items have the same prompt"), "{}", stderr(&ran));
    let other = task_in(folder.path(), |_| {});
    let ran = run_into(&other, &folder.path().join("other"), &["--dry-run"]);
    assert!(!stderr(&ran).contains("the same prompt"), "{}", stderr(&ran));
}

/// A prompt that the model's tokenizer cannot write ends its own item alone.
#[test]
fn one_bad_prompt_is_one_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = changed_model(folder.path(), "tokenizer.json", replace("\"7\":", "\"seven\":"));
    let task = task_in(folder.path(), |task| {
        task["prompt"] = json!("Question: {{question}}\nAnswer:");
        task["method"] = json!({"sample": {"samples": 2}});
    });
    let items = folder.path().join("items.jsonl");
    // The bad one comes first, and is the one that is checked first.
    let bad = json!({"id": "bad", "question": "Tom has 7 pens. How many pens does Tom have?", "answer": "7"});
    fs::write(&items, format!("{bad}\n{}", fs::read_to_string(&items).expect("written"))).expect("writable");
    let out = folder.path().join("out");
    let ran = run_into(&task, &out, &["--model", &model]);
    fails(&ran, &["1 of 3 items failed, first `bad`", "no token for '7'"]);
    assert!(stdout(&ran).contains("items       2 of 3"), "{}", stdout(&ran));
    let dry = run_into(&task, &folder.path().join("dry"), &["--model", &model, "--dry-run"]);
    let said = stdout(&dry);
    let left_out = said.lines().find(|line| line.starts_with("left out")).expect("it is named");
    assert!(dry.status.success() && left_out.contains("`bad`") && left_out.contains("'7'"), "{said}");
    fs::write(&items, format!("{bad}\n")).expect("writable");
    let none = folder.path().join("none");
    fails(&run_into(&task, &none, &["--model", &model]), &["item `bad`", "no token for '7'"]);
    assert!(!none.exists(), "no item can be sampled");
}

#[test]
fn samples_made_elsewhere_vote() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let samples = [
        json!({"task_id": "a", "completion": "#### 17", "solution": 17}),
        json!({"task_id": "b", "completion": ["#### 8", "so #### 7.0", "#### 7"], "solution": "7"}),
        json!({"task_id": "a", "completion": "#### 17.0", "solution": 17}),
        json!({"task_id": "a", "completion": "none", "solution": 17}),
    ];
    let text: String = samples.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("made.jsonl"), text).expect("writable");
    let rules = ["--set", "answer.regex=#### (-?[0-9.,]+)", "--set", "answer.normalise=number"];
    let grade = ["--set", "grade.exact.field=solution"];
    let voted = offshoot_in(folder.path(), &[&["vote", "made.jsonl"], &rules[..], &grade].concat());
    assert!(voted.status.success(), "{}", stderr(&voted));
    assert!(stdout(&voted).contains("accuracy    100.0 %") && stdout(&voted).contains("maj@k"), "{}", stdout(&voted));
    let votes = lines(&folder.path().join("made.jsonl_votes.jsonl"));
    assert_eq!(votes[0]["votes"], json!([["17", 2]]));
    assert_eq!([&votes[0]["samples_correct"], &votes[1]["samples_correct"]], [&json!(2), &json!(2)]);
    let again = offshoot_in(folder.path(), &["vote", "made.jsonl"]);
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(lines(&folder.path().join("made.jsonl_votes.jsonl.before")), votes, "what was there is kept");
    let ungraded = lines(&folder.path().join("made.jsonl_votes.jsonl"));
    assert_eq!((&ungraded[0]["correct"], &ungraded[0]["samples_correct"]), (&Value::Null, &Value::Null));
    assert_eq!(
        (&votes[1]["prediction"], &votes[1]["reference"], &votes[1]["samples"]),
        (&json!("7"), &json!("7"), &json!(3))
    );
    // By a task file: its items have the references.
    let task = task_in(folder.path(), |_| {});
    let task = task.to_str().expect("UTF-8");
    let voted = offshoot_in(folder.path(), &["vote", "made.jsonl", "--task", task, "--json", "--out", "v.jsonl"]);
    let said: Value = serde_json::from_str(&stdout(&voted)).unwrap_or_else(|_| panic!("{}", stderr(&voted)));
    assert_eq!((&said["samples"], &said["accuracy"]["value"]), (&json!(6), &json!(1.0)));
    assert_eq!(said.get("samples_tokens"), Some(&Value::Null), "texts alone do not tell it: {said}");
    assert_eq!(lines(&folder.path().join("v.jsonl")).len(), 2);
    fails(
        &offshoot_in(folder.path(), &["vote", "made.jsonl", "--text", "words"]),
        &["made.jsonl", "line 1", "`words`", "--text"],
    );
    fails(&offshoot_in(folder.path(), &["vote", "made.jsonl", "--set", "sampling.seed=1"]), &["--set", "`answer`"]);
}

#[test]
fn scores_made_elsewhere_choose_among_the_first_samples() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let boxed = |answers: &[&str]| answers.iter().map(|answer| format!("so \\boxed{{{answer}}}")).collect::<Vec<_>>();
    let one = boxed(&["4", "5", r"\frac{10}{2}", "4"]);
    let items = [
        json!({"unique_id": "a", "problem": "2 + 3", "answer": "5", "completions": one, "pred": one[0],
            "scores": [[0.5, 0.75], [0.25, 0.5], [0.5], [0.125]]}),
        json!({"unique_id": "b", "problem": "1 + 1", "answer": "2", "completions": boxed(&["2", "3", "3", "3"]),
            "scores": [[0.75], [0.25], [0.25], [0.0]]}),
    ];
    let text: String = items.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("made.jsonl"), text).expect("writable");
    let rules = ["--set", "answer.boxed=true", "--set", "answer.normalise=latex", "--set", "grade.exact.field=answer"];
    let vote = |more: &[&str]| {
        offshoot_in(
            folder.path(),
            &[&["vote", "made.jsonl", "--scores", "scores", "--out", "v.jsonl"], &rules[..], more].concat(),
        )
    };
    let said = vote(&["--json"]);
    let said: Value = serde_json::from_str(&stdout(&said)).unwrap_or_else(|_| panic!("{}", stderr(&said)));
    let of_k = |k: usize| said["first"].as_array().expect("a list").iter().find(|row| row["k"] == k).expect("a row");
    // Among two the first is the best of `a`, and wrong; both of `b` have it.
    assert_eq!(of_k(2), &json!({"k": 2, "items": 2, "best": 0.5, "weighted": 0.5, "majority": 0.5}));
    // Of all four of `a`, 0.5 + 0.5 for 5 is more than 0.75 + 0.125 for 4; the majority of `b` is wrong.
    assert_eq!(of_k(4), &json!({"k": 4, "items": 2, "best": 0.5, "weighted": 1.0, "majority": 0.0}));
    assert_eq!(said["accuracy"]["value"], json!(1.0), "the weighted vote of all");
    let votes = lines(&folder.path().join("v.jsonl"));
    assert_eq!(
        (&votes[0]["prediction"], &votes[0]["chosen"], &votes[0]["votes"][0][1]),
        (&json!("5"), &json!(1), &json!(2))
    );
    assert_eq!(votes[1]["first"][2], json!({"k": 4, "best": "2", "weighted": "2", "majority": "3"}));
    // The smallest step's score, and the best sample.
    let best = vote(&["--by", "best", "--aggregate", "min", "--k", "4"]);
    assert!(stdout(&best).contains("first 4     best 50.0 %   weighted 100.0 %   majority 0.0 %"), "{}", stdout(&best));
    assert_eq!(lines(&folder.path().join("v.jsonl"))[0]["chosen"], json!(0), "0.5 comes first");

    // Of logits a vote weighs the sigmoids; products of them say nothing.
    let logits = vote(&["--scale", "logit"]);
    assert!(logits.status.success(), "{}", stderr(&logits));
    fails(&vote(&["--scale", "logit", "--aggregate", "product"]), &["--aggregate", "logits", "product"]);
    fails(
        &offshoot_in(folder.path(), &["vote", "made.jsonl", "--scores", "rewards"]),
        &["line 1", "`rewards`", "--scores"],
    );
    let alone = offshoot_in(folder.path(), &["vote", "made.jsonl", "--by", "best"]);
    assert!(alone.status.code() == Some(2) && stderr(&alone).contains("--scores"), "{}", stderr(&alone));
    let few = json!({"id": "a", "completions": ["x", "y"], "scores": [0.5]});
    fs::write(folder.path().join("few.jsonl"), format!("{few}\n")).expect("writable");
    fails(
        &offshoot_in(folder.path(), &["vote", "few.jsonl", "--scores", "scores"]),
        &["`scores`", "2 scores", "line 1", "1"],
    );
}

/// A run writes a sample when it is sampled, and again once it is scored.
#[test]
fn a_vote_counts_a_scored_sample_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = |index: u64, text: &str| json!({"id": "a", "index": index, "text": text});
    let with = |mut line: Value, field: &str, value: Value| {
        line[field] = value;
        line
    };
    let made = [
        line(0, "4"),
        line(1, "5"),
        with(line(1, "5"), "score", json!(2.0)),
        with(line(0, "4"), "score_error", json!("it is too long")),
        // Not scored yet; and a sample of the same index that is another one.
        line(2, "4"),
        with(line(2, "5"), "score", json!(3.0)),
    ];
    let text: String = made.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("made.jsonl"), text).expect("writable");
    let vote = |more: &[&str]| {
        let voted = offshoot_in(folder.path(), &[&["vote", "made.jsonl", "--out", "v.jsonl"], more].concat());
        assert!(voted.status.success(), "{}", stderr(&voted));
        lines(&folder.path().join("v.jsonl")).remove(0)
    };
    let equal = vote(&[]);
    assert_eq!((&equal["samples"], &equal["votes"]), (&json!(4), &json!([["4", 2], ["5", 2]])));
    let scored = vote(&["--scores", "score", "--scale", "logit", "--k", "1,2"]);
    assert_eq!((&scored["prediction"], &scored["chosen"]), (&json!("5"), &json!(1)));
    assert_eq!(scored["first"][0], json!({"k": 1, "best": null, "weighted": null, "majority": "4"}));
}

#[test]
fn votes_are_written_as_the_files_name_says() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tied =
        |id: u32| format!("{}\n{}\n", json!({"id": id, "text": "A", "gold": "B"}), json!({"id": id, "text": "B"}));
    fs::write(folder.path().join("tie.jsonl"), (0..3).map(tied).collect::<String>()).expect("writable");
    let vote = |more: &[&str]| offshoot_in(folder.path(), &[&["vote", "tie.jsonl"], more].concat());
    let graded = ["--set", "grade.exact.field=gold", "--out", "v.csv"];
    let voted = vote(&graded);
    assert!(voted.status.success(), "{}", stderr(&voted));
    assert!(stderr(&voted).contains("whole texts vote") && stderr(&voted).contains("--set answer.regex"));
    let said = stdout(&voted);
    assert!(said.contains("accuracy    50.0 %") && said.contains("2: 50.0 %"), "one rule for ties: {said}");
    assert!(said.contains("tied        3 items"), "{said}");
    let csv = fs::read_to_string(folder.path().join("v.csv")).expect("written");
    let header = "id,question,reference,prediction,correct,chosen,tied,votes,samples,samples_correct";
    assert_eq!(csv.lines().next(), Some(header));
    assert!(csv.lines().nth(1).is_some_and(|row| row.contains(",b,a,false,0,\"[0,1]\",")), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 3);

    let ruled = vote(&["--set", "answer.regex=(.)", "--out", "v.json"]);
    assert!(!stderr(&ruled).contains("whole texts vote"), "{}", stderr(&ruled));
    let list: Value = serde_json::from_slice(&fs::read(folder.path().join("v.json")).expect("written")).expect("JSON");
    assert_eq!((list.as_array().map(Vec::len), &list[2]["tied"]), (Some(3), &json!([0, 1])));
    fails(&vote(&["--out", "v.csv.gz"]), &["--out", "without .gz", "v.csv.gz"]);
    for name in ["v.xlsx", "votes"] {
        fails(&vote(&["--out", name]), &["--out", ".jsonl, .json, .csv, .tsv or .parquet", name]);
        assert!(!folder.path().join(name).exists());
    }
    let voted = vote(&["--out", "v.tsv"]);
    assert!(voted.status.success(), "{}", stderr(&voted));
    let rows = fs::read_to_string(folder.path().join("v.tsv")).expect("written");
    assert_eq!(rows.lines().next(), Some(header.replace(',', "\t").as_str()));
    assert_eq!(rows.lines().count(), 1 + 3);
}

#[test]
fn a_vote_that_stopped_early_says_how_to_see_what_it_leaves_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stopping = json!({"self_consistency": {"samples": 3, "stop_when_decided": true}});
    let task = task_in(folder.path(), |task| {
        task["method"] = stopping.clone();
        task["sampling"]["temperature"] = json!(0);
    });
    let all = "method.self_consistency.stop_when_decided=false";
    let said = |name: &str, more: &[&str]| stdout(&run_into(&task, &folder.path().join(name), more));
    let stopped = said("stopped", &[]);
    assert!(stopped.contains("left out, like pass@k and maj@k") && stopped.contains(all), "{stopped}");
    assert!(said("all", &["--set", all]).contains("maj@k"));
    let new = offshoot_in(folder.path(), &["new", "mine"]);
    assert!(new.status.success(), "{}", stderr(&new));
    assert!(fs::read_to_string(folder.path().join("mine.json")).expect("written").contains(all));
}

#[test]
fn a_name_on_the_hub_says_how_to_have_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = task_in(folder.path(), |_| {});
    let how = "`hf download Qwen/Qwen2.5-Coder-1.5B --local-dir Qwen2.5-Coder-1.5B`";
    let out = folder.path().join("out");
    fails(&run_into(&task, &out, &["--model", "Qwen/Qwen2.5-Coder-1.5B"]), &[how]);
    fails(&run_into(&task, &out, &["--set", "model=Qwen/Qwen2.5-Coder-1.5B"]), &[how]);
    fails(&output(&["check", "--model", "Qwen/Qwen2.5-Coder-1.5B"]), &[how]);
}

#[test]
fn help_explains_commands_and_the_keys_of_a_task() {
    let help = |topic: &[&str]| stdout(&output(&[&["help"], topic].concat()));
    assert!(help(&[]).contains("Usage: offshoot"), "{}", help(&[]));
    assert!(help(&["run"]).contains("--temperature") && help(&["plan"]).contains("--json"));
    assert!(help(&["task"]).contains("sampling.temperature: "));
    let schema: Value = serde_json::from_str(&help(&["task", "--schema"])).expect("JSON");
    assert_eq!(schema["type"], "object");
    fails(&output(&["help", "tusk"]), &["help", "task, or one of run", "tusk"]);
    fails(&output(&["help", "task", "foo"]), &["help: expected nothing after `task`, found foo"]);
    fails(&output(&["help", "run", "foo"]), &["help: expected nothing after `run`, found foo"]);
    for columns in ["80", "110"] {
        let page = stdout(&offshoot().arg("help").env("COLUMNS", columns).output().expect("the binary starts"));
        let (_, environment) = page.split_once("OFFSHOOT_CPU  ").expect("it is explained");
        let below = environment.trim_end().lines().skip(1);
        assert!(below.clone().count() > 1, "{page}");
        assert!(below.into_iter().all(|line| line.starts_with(&" ".repeat(16))), "broken in a line: {page}");
    }
}
