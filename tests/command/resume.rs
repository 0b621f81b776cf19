//! Runs that are killed and gone on with: the built binary on the bundled demo model, on the CPU, where the same task
//! leaves the same files to the byte. Kills are at random places, by a seed.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use offshoot_core::dice::Dice;
use offshoot_text::{AddSpecial, Tokenizer};
use serde_json::{Value, json};

use crate::full::some_or_full;
use crate::runs;
use runs::{assert_equal_results, bytes, offshoot, refuses, repository, run, run_into, succeeds, task_folder};

/// Whole lines of the samples in `out`; 0 where there is no file yet.
fn whole_lines(folder: &Path, out: &str) -> usize {
    let text = fs::read(folder.join(out).join("samples.jsonl")).unwrap_or_default();
    text.iter().filter(|&&byte| byte == b'\n').count()
}

/// Kills the run when it has written as many samples as `dice` says, time and again, until it is left alone; what was
/// on disk must still be there after each kill.
fn kill_until_done(folder: &Path, out: &str, all: usize, dice: &mut Dice, kept_by_item: bool) {
    const KILLS: usize = 6;
    let mut lines = 0;
    for _ in 0..KILLS {
        let resume: &[&str] = if folder.join(out).join("manifest.json").exists() { &["--resume"] } else { &[] };
        let arguments = [&["run", "task.json", "--out", out], resume].concat();
        let mut running =
            offshoot(folder, &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
        // None: it is killed as it starts.
        let more = dice.below(1 + all.saturating_sub(lines).min(1 + all / KILLS));
        while whole_lines(folder, out) < lines + more && running.try_wait().expect("it is ours").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.kill().expect("it is ours");
        running.wait().expect("it was started");
        let now = whole_lines(folder, out);
        assert!(kept_by_item || now >= lines, "{now} samples after a kill, {lines} before");
        lines = now;
    }
    let resume: &[&str] = if folder.join(out).join("manifest.json").exists() { &["--resume"] } else { &[] };
    run_into(folder, out, resume);
}

fn killed_runs_end_like_whole_ones(change: impl Fn(&mut Value), seed: u64, kept_by_item: bool) {
    let folder = task_folder(change);
    run_into(folder.path(), "whole", &["--trees"]);
    let all = whole_lines(folder.path(), "whole");
    let mut dice = Dice::new(seed);
    for round in 0..some_or_full(1, 3) {
        let out = format!("killed-{round}");
        kill_until_done(folder.path(), &out, all, &mut dice, kept_by_item);
        assert_equal_results(folder.path(), "whole", &out);
    }
}

#[test]
fn a_run_is_resumed_without_an_option_that_changes_nothing() {
    let folder = task_folder(|_| {});
    run_into(folder.path(), "out", &["--activations", "bf16"]);
    let manifest: Value = serde_json::from_slice(&bytes(folder.path(), "out", "manifest.json")).expect("it is JSON");
    assert_eq!(manifest.get("weights"), None, "the model's matrices are dense");
    run_into(folder.path(), "out", &["--resume"]);
}

#[test]
fn killed_samples_are_gone_on_with() {
    killed_runs_end_like_whole_ones(|_| {}, 1, false);
}

#[test]
fn killed_votes_are_gone_on_with_where_they_stop_once_decided() {
    let vote = |task: &mut Value| {
        task["method"] = json!({"self_consistency": {"samples": 9, "stop_when_decided": true}});
    };
    killed_runs_end_like_whole_ones(vote, 2, false);
}

#[test]
fn killed_votes_keep_the_bar_of_their_warm_up() {
    let vote = |task: &mut Value| {
        let confidence = json!({"window": 4, "warm_up": 4, "keep": 0.4, "top": 5});
        task["method"] = json!({"self_consistency": {"samples": 12, "confidence": confidence}});
    };
    killed_runs_end_like_whole_ones(vote, 4, false);
    let folder = task_folder(vote);
    run_into(folder.path(), "out", &[]);
    let low = |line: &Value| line["finish"] == "low_confidence";
    let lines = String::from_utf8(bytes(folder.path(), "out", "samples.jsonl")).expect("it is text");
    let samples: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let stopped = samples.iter().filter(|line| low(line)).count();
    assert!(stopped > 0, "the bar ends some");
    assert!(samples.iter().filter(|line| low(line)).all(|line| line["index"].as_u64() >= Some(4)));
    let summary: Value = serde_json::from_slice(&bytes(folder.path(), "out", "summary.json")).expect("it is JSON");
    assert_eq!(summary["low_confidence"]["stopped"], stopped);
    // The votes can be counted again, and not by windows that were not measured.
    succeeds(run(folder.path(), &["rescore", "out", "--out", "again"]));
    let sorted = |out: &str, name: &str| {
        let text = String::from_utf8(bytes(folder.path(), out, name)).expect("it is text");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    for name in ["samples.jsonl", "items.jsonl"] {
        assert_eq!(sorted("out", name), sorted("again", name));
    }
    let other = "method.self_consistency.confidence.window=5";
    refuses(&run(folder.path(), &["rescore", "out", "--out", "other", "--set", other]), &["method", "has measured"]);
}

#[test]
fn killed_searches_start_their_unfinished_items_anew() {
    let search = |task: &mut Value| {
        task["method"] = json!({"tree_of_thought": {
            "steps": 2, "breadth": 2,
            "generate": {"sample": {"thoughts": 2, "max_tokens": 12}},
            "evaluate": {"value": {
                "prompt": "Question: {{question}}\nAnswer:{{path}}\nGood?", "words": {"yes": 1.0, "no": 0.1},
                "samples": 1, "max_tokens": 4
            }},
        }});
    };
    killed_runs_end_like_whole_ones(search, 3, true);
}

#[test]
fn any_prefix_of_the_samples_is_gone_on_with() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(12));
    let folder = folder.path();
    run_into(folder, "whole", &[]);
    let samples = bytes(folder, "whole", "samples.jsonl");
    let mut dice = Dice::new(4);
    let last_line = samples[..samples.len() - 1].iter().rposition(|&byte| byte == b'\n').expect("many lines") + 1;
    let cuts = [0, 1, last_line, samples.len() - 1, samples.len()].into_iter();
    for (round, cut) in cuts.chain((0..4).map(|_| dice.below(samples.len()))).enumerate() {
        let out = format!("cut-{round}");
        fs::create_dir(folder.join(&out)).expect("writable");
        for name in ["manifest.json", "items.jsonl"] {
            fs::write(folder.join(&out).join(name), bytes(folder, "whole", name)).expect("writable");
        }
        fs::write(folder.join(&out).join("samples.jsonl"), &samples[..cut]).expect("writable");
        run_into(folder, &out, &["--resume"]);
        assert_equal_results(folder, "whole", &out);
    }

    let mut broken = samples.clone();
    broken[samples.len() / 2] = 0;
    fs::write(folder.join("whole/samples.jsonl"), broken).expect("writable");
    refuses(&run(folder, &["run", "task.json", "--out", "whole", "--resume"]), &["whole/samples.jsonl", "line "]);
}

#[test]
fn more_samples_and_items_keep_those_that_are_there() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(12));
    let folder = folder.path();
    run_into(folder, "few", &["--samples", "2", "--limit", "3"]);
    let before = bytes(folder, "few", "samples.jsonl");
    run_into(folder, "few", &["--samples", "5", "--resume"]);
    run_into(folder, "many", &["--samples", "5"]);
    assert_equal_results(folder, "few", "many");
    let after = String::from_utf8(bytes(folder, "few", "samples.jsonl")).expect("text");
    let before = String::from_utf8(before).expect("text");
    assert!(before.lines().all(|line| after.lines().any(|other| other == line)), "what was there has changed");

    let fewer = run(folder, &["run", "task.json", "--out", "few", "--samples", "4", "--resume"]);
    refuses(&fewer, &["manifest.json", "method.sample.samples", "at least 5", "found 4"]);
}

#[test]
fn prompts_and_levels_are_those_of_all_processes() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(12));
    let folder = folder.path();
    let read = |name: &str| serde_json::from_slice::<Value>(&bytes(folder, "out", name)).expect("JSON");
    let computed = |summary: &Value| summary["engine"]["prompt_tokens_computed"].as_u64().expect("a number");
    run_into(folder, "out", &["--samples", "2", "--limit", "3"]);
    let first = read("summary.json");
    let resume = ["run", "task.json", "--out", "out", "--samples", "5", "--resume"];
    let report = succeeds(run(folder, &resume));
    let both = read("summary.json");
    let levels = both["levels"].as_array().expect("a list");
    let asked: u64 = levels[..2].iter().map(|level| level["tokens_unshared"].as_u64().expect("a number")).sum();
    assert_eq!(both["prompts"], json!({"asked": asked, "computed": computed(&first) + computed(&both)}));
    assert!(report.contains("\nprompts ") && !report.contains("no count"), "{report}");

    let mut manifest = read("manifest.json");
    manifest["processes"][0]["prompts"] = Value::Null;
    manifest["processes"][0]["ended"] = Value::Null;
    fs::write(folder.join("out/manifest.json"), manifest.to_string()).expect("writable");
    let report = succeeds(run(folder, &resume));
    assert!(report.contains(" saved (without a process that left no count)\n"), "{report}");
    assert_eq!(read("summary.json")["prompts"]["computed"], computed(&both));
}

#[test]
fn another_model_task_or_file_is_refused_by_name() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(4));
    let folder = folder.path();
    run_into(folder, "out", &["--samples", "1"]);
    let again = |more: &[&str]| {
        run(folder, &[&["run", "task.json", "--out", "out", "--samples", "1", "--resume"], more].concat())
    };
    refuses(&again(&["--set", "sampling.temperature=0.5"]), &["manifest.json", "sampling.temperature", "1.2", "0.5"]);
    refuses(&again(&["--seed", "6"]), &["sampling.seed", "expected 5", "found 6"]);
    refuses(&again(&["--kv-dtype", "fp8"]), &["manifest.json", "kv_dtype", "--kv-dtype model", "--kv-dtype fp8"]);
    // A run of a model with states, as far as its manifest goes.
    let manifest = folder.join("out/manifest.json");
    let text = fs::read_to_string(&manifest).expect("it was written");
    assert!(!text.contains("state_dtype"), "the demo has no states: {text}");
    let rounded = text.replacen("\"kv_dtype\"", "\"state_dtype\": \"bf16\", \"kv_dtype\"", 1);
    fs::write(&manifest, rounded).expect("writable");
    refuses(&again(&[]), &["manifest.json", "state_dtype", "--state-dtype bf16", "--state-dtype f32"]);
    fs::write(&manifest, text).expect("writable");
    refuses(&again(&["--weights", "int8"]), &["manifest.json", "weights", "weights as stored", "--weights int8"]);
    let unrounded = again(&["--weights", "int8", "--activations", "bf16"]);
    refuses(&unrounded, &["manifest.json", "weights", "--weights int8", "--activations bf16"]);
    refuses(&again(&["--set", "grade.exact.normalise=text"]), &["grade.exact.normalise", "rescore"]);

    let other = folder.join("other-model");
    fs::create_dir(&other).expect("writable");
    for entry in fs::read_dir(repository().join("tasks/models/demo")).expect("the demo model is there") {
        let path = entry.expect("readable").path();
        if path.is_file() {
            fs::copy(&path, other.join(path.file_name().expect("a file"))).expect("writable");
        }
    }
    let same = again(&["--model", "other-model"]);
    assert!(same.status.success(), "the same model elsewhere: {}", String::from_utf8_lossy(&same.stderr));
    let mut config = fs::read_to_string(other.join("config.json")).expect("readable");
    config.push('\n');
    fs::write(other.join("config.json"), config).expect("writable");
    refuses(&again(&["--model", "other-model"]), &["manifest.json", "`model`", "other-model"]);

    let items = fs::read_to_string(folder.join("items.jsonl")).expect("readable");
    fs::write(folder.join("items.jsonl"), items.replace("Tom", "Tim")).expect("writable");
    refuses(&again(&[]), &["manifest.json", "files.items.jsonl", "the file unchanged (BLAKE3 ", "it changed (BLAKE3 "]);
}

/// What counts is what files hold: where they lie may change between the parts of a run.
#[test]
fn a_run_goes_on_where_its_files_were_moved() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(4));
    let (old, new) = (folder.path().join("old"), folder.path().join("new/deeper"));
    fs::create_dir_all(old.join("parts")).expect("writable");
    fs::rename(folder.path().join("task.json"), old.join("task.json")).expect("writable");
    fs::rename(folder.path().join("items.jsonl"), old.join("parts/items.jsonl")).expect("writable");
    let items =
        |folder: &Path| format!("items={{\"path\": {:?}, \"matched\": \"part\"}}", folder.join("parts/*.jsonl"));
    let again = |at: &Path, more: &[&str]| {
        run(
            at,
            &[&["run", "task.json", "--out", "out", "--samples", "1", "--resume", "--set", &items(at)], more].concat(),
        )
    };
    succeeds(again(&old, &["--limit", "1"]));
    fs::create_dir_all(new.parent().expect("it is below one")).expect("writable");
    fs::rename(&old, &new).expect("writable");
    succeeds(again(&new, &["--limit", "2"]));
    assert_eq!(whole_lines(&new, "out"), 2);
    // What the results were made from is found from them, also where nothing names it.
    fs::rename(&new, &old).expect("writable");
    let fixed = format!("items.path={:?}", old.join("parts/*.jsonl"));
    succeeds(run(folder.path(), &["rescore", "old/out", "--set", &fixed]));

    let path = old.join("parts/items.jsonl");
    let text = fs::read_to_string(&path).expect("readable");
    fs::write(&path, text.replace("Tom", "Tim")).expect("writable");
    refuses(&again(&old, &["--limit", "2"]), &["manifest.json", "items.jsonl"]);
    fs::write(&path, text).expect("writable");
    fs::rename(&path, old.join("parts/others.jsonl")).expect("writable");
    refuses(&again(&old, &["--limit", "2"]), &["manifest.json"]);
}

/// Files that no string of the task names: those of a pattern, and the examples that each item has in a file of its
/// own.
#[test]
fn files_behind_patterns_and_templates_are_compared_too() {
    let folder = task_folder(|task| {
        task["items"] = json!({"path": "parts/*.jsonl", "matched": "part"});
        task["prompt"] = json!({"levels": [
            {"shots": {"path": "shots/{{part}}.jsonl", "template": "Question: {{question}}\nAnswer: {{answer}}\n\n"}},
            "Question: {{question}}\nAnswer:"
        ]});
        task["sampling"]["max_tokens"] = json!(4);
    });
    let folder = folder.path();
    let question =
        |n: u32| format!("{}\n", json!({"question": format!("What is {n} + 5?"), "answer": (n + 5).to_string()}));
    for (kind, n, parts) in [("parts", 3, &["a", "b"][..]), ("shots", 1, &["a", "b", "c"])] {
        fs::create_dir(folder.join(kind)).expect("writable");
        for part in parts {
            fs::write(folder.join(kind).join(part).with_extension("jsonl"), question(n)).expect("writable");
        }
    }
    run_into(folder, "out", &["--samples", "1", "--limit", "1"]);
    // More items bring more files of examples.
    run_into(folder, "out", &["--samples", "1", "--resume"]);
    assert_eq!(whole_lines(folder, "out"), 2);
    let again = || run(folder, &["run", "task.json", "--out", "out", "--samples", "1", "--resume"]);
    let changed = |name: &str, text: Option<&str>, field: &str| {
        let path = folder.join(name);
        let before = fs::read(&path).ok();
        match text {
            Some(text) => fs::write(&path, text).expect("writable"),
            None => fs::remove_file(&path).expect("writable"),
        }
        refuses(&again(), &["manifest.json", field, name]);
        match before {
            Some(before) => fs::write(&path, before).expect("writable"),
            None => fs::remove_file(&path).expect("writable"),
        }
    };
    changed("parts/b.jsonl", Some(&question(4)), "files.parts/b.jsonl");
    changed("parts/a.jsonl", None, "files.parts/a.jsonl");
    changed("parts/c.jsonl", Some(&question(4)), "files.parts/c.jsonl");
    changed("shots/b.jsonl", Some(&question(2)), "prompt_files.shots/b.jsonl");
    succeeds(again());
}

#[test]
fn without_a_folder_the_latest_run_that_fits_goes_on() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(4));
    let folder = folder.path();
    for seed in ["5", "6", "7"] {
        let ran = run(folder, &["run", "task.json", "--samples", "1", "--seed", seed]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    let ran = run(folder, &["run", "task.json", "--samples", "2", "--seed", "6", "--resume"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(whole_lines(folder, "runs/pens-2"), 12);
    assert_eq!(whole_lines(folder, "runs/pens-3"), 6);
}

#[test]
fn where_there_is_nothing_to_go_on_with_a_run_starts_afresh_and_says_so() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(4));
    let folder = folder.path();
    for (more, out) in [(&["--out", "new"][..], "new"), (&[], "runs/pens")] {
        let ran = run(folder, &[&["run", "task.json", "--samples", "1", "--resume"], more].concat());
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(said.contains(&format!("{out}: nothing to continue; starting from the beginning")), "{said}");
        succeeds(ran);
        assert_eq!(whole_lines(folder, out), 6);
    }
    // Results without a manifest are nobody's to write over.
    fs::remove_file(folder.join("new/manifest.json")).expect("it was written");
    refuses(&run(folder, &["run", "task.json", "--resume", "--out", "new"]), &["new", "results of a run already"]);
}

/// Items of which one has a long text beside its question.
fn with_a_long_one(folder: &Path) {
    let items = fs::read_to_string(folder.join("items.jsonl")).expect("readable");
    let short = items.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let with_notes = |mut item: Value| {
        item["notes"] = json!("");
        format!("{item}\n")
    };
    let long = json!({"id": "long", "question": "How many?", "notes": "Tom has 12 pens. ".repeat(70), "answer": "1"});
    let items: String = short.map(with_notes).chain([format!("{long}\n")]).collect();
    fs::write(folder.join("items.jsonl"), items).expect("writable");
}

/// The least memory for keys and values, in MiB, with which the short items can be run.
fn least_memory(folder: &Path) -> String {
    let runs = |mib: &String| {
        let out = format!("room-{mib}");
        run(folder, &["run", "task.json", "--limit", "6", "--out", &out, "--kv-memory", mib]).status.success()
    };
    (1..64).map(|mib| mib.to_string()).find(runs).expect("a few short prompts fit")
}

#[test]
fn a_job_whose_longest_prompt_cannot_be_held_is_refused_at_once() {
    let folder = task_folder(|task| {
        task["sampling"]["max_tokens"] = json!(4);
        task["prompt"] = json!("{{question}}{{notes}}");
    });
    let folder = folder.path();
    with_a_long_one(folder);
    let least = least_memory(folder);
    let ran = run(folder, &["run", "task.json", "--out", "out", "--kv-memory", &least]);
    refuses(&ran, &["--kv-memory", "expected at least", "`long`", &format!("found {least}.00 MiB")]);
    assert!(!folder.join("out").exists(), "nothing was begun");
}

/// The prompts that are longest as text are looked at before the start. One that has fewer bytes, and yet more tokens,
/// fails alone, and nothing of it is drawn.
#[test]
fn a_prompt_that_turns_out_too_long_is_an_error_of_its_item() {
    let folder = task_folder(|task| {
        task["sampling"]["max_tokens"] = json!(2);
        task["method"] = json!({"sample": {"samples": 1}});
        task["prompt"] = json!("{{text}}");
    });
    let folder = folder.path();
    let item = |id: &str, text: String| format!("{}\n", json!({"id": id, "text": text, "answer": "1"}));
    let (plain, faces) = ("Tom has 12 pens. ".repeat(470), "\u{1f642}\u{1f914}".repeat(750));
    let write = |plains: usize| {
        let mut items: String = (0..plains).map(|n| item(&format!("plain-{n}"), format!("{plain}{n}"))).collect();
        items.push_str(&item("faces", faces.clone()));
        fs::write(folder.join("items.jsonl"), items).expect("writable");
    };
    write(2);
    let ran = run(folder, &["run", "task.json", "--out", "few"]);
    refuses(&ran, &["the prompt of item `faces`", "the model's context is 4096", "--skip-too-long"]);
    assert!(!folder.join("few").exists(), "nothing was begun");
    write(40);
    let ran = run(folder, &["run", "task.json", "--out", "many"]);
    refuses(
        &ran,
        &[
            "1 of 41 items failed",
            "the prompt of item `faces`",
            "the model's context is 4096",
            "--resume",
            "--skip-too-long",
        ],
    );
    assert_eq!(whole_lines(folder, "many"), 40);
}

#[test]
fn a_failed_item_is_recorded_and_tried_again() {
    let by = json!({"prompt": "{{question}}{{notes}}{{thoughts}} Right?", "words": {" yes": 1.0, " no": 0.0}});
    let folder = task_folder(|task| {
        task["sampling"]["max_tokens"] = json!(4);
        task["method"] = json!({"best_of_n": {"samples": 2, "by": by}});
        task["prompt"] = json!("{{question}}");
    });
    let folder = folder.path();
    with_a_long_one(folder);
    // No room for what is asked about the long one, though for all prompts.
    let least = least_memory(folder);
    let ran = run(folder, &["run", "task.json", "--out", "out", "--kv-memory", &least]);
    refuses(&ran, &["1 of 7 items failed", "`long`", "--kv-memory", "--resume"]);
    let items = String::from_utf8(bytes(folder, "out", "items.jsonl")).expect("text");
    let failed: Vec<Value> = items
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter(|line| line["error"].is_string())
        .collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["id"], "long");
    run_into(folder, "out", &["--resume"]);
    run_into(folder, "whole", &[]);
    assert_equal_results(folder, "out", "whole");
}

/// A copy of the demo model with a head of its own, and the place in its file of the embedding of each token.
fn untied_model(folder: &Path) -> (std::path::PathBuf, impl Fn(usize) -> std::ops::Range<usize>) {
    let (demo, model) = (repository().join("tasks/models/demo"), folder.join("model"));
    fs::create_dir(&model).expect("writable");
    for file in fs::read_dir(&demo).expect("readable") {
        let path = file.expect("readable").path();
        if path.is_file() {
            fs::copy(&path, model.join(path.file_name().expect("a file"))).expect("writable");
        }
    }
    let config = fs::read_to_string(demo.join("config.json")).expect("readable");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["tie_word_embeddings"] = json!(false);
    fs::write(model.join("config.json"), config.to_string()).expect("writable");
    // Eight bytes with the header's length, the header, the tensors.
    let old = fs::read(model.join("model.safetensors")).expect("readable");
    let (length, rest) = old.split_first_chunk::<8>().expect("a header");
    let (header, tensors) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).expect("JSON");
    let mut head = header["model.embed_tokens.weight"].clone();
    let offset = |head: &Value, ix: usize| head["data_offsets"][ix].as_u64().expect("an offset") as usize;
    let embeddings = offset(&head, 0)..offset(&head, 1);
    let tokens = head["shape"][0].as_u64().expect("a number") as usize;
    head["data_offsets"] = json!([tensors.len(), tensors.len() + embeddings.len()]);
    header["lm_head.weight"] = head;
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    let new = [&length[..], header.as_bytes(), tensors, &tensors[embeddings.clone()]].concat();
    fs::write(model.join("model.safetensors"), new).expect("writable");
    let (begin, row) = (8 + header.len() + embeddings.start, embeddings.len() / tokens);
    (model, move |token| begin + token * row..begin + (token + 1) * row)
}

#[test]
fn a_sample_that_fails_costs_that_sample_alone_and_is_tried_again() {
    // Hot enough for words that no prompt has.
    let folder = task_folder(|task| task["sampling"]["temperature"] = json!(2.5));
    let folder = folder.path();
    let (model, embedding) = untied_model(folder);
    let task = fs::read_to_string(folder.join("task.json")).expect("readable");
    let mut task: Value = serde_json::from_str(&task).expect("JSON");
    task["model"] = json!(model);
    fs::write(folder.join("task.json"), task.to_string()).expect("writable");
    run_into(folder, "whole", &[]);
    let lines = |out: &str, name: &str| -> Vec<Value> {
        let text = String::from_utf8(bytes(folder, out, name)).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let whole = lines("whole", "samples.jsonl");

    // A token that few samples draw and no prompt holds has no embedding: whatever is drawn after it is no number.
    let tokenizer = Tokenizer::load(&model).expect("the demo's");
    let tokens = |text: &str| -> Vec<usize> {
        tokenizer.encode(text, AddSpecial::No).expect("any text").iter().map(|token| token.ix()).collect()
    };
    let shots = fs::read_to_string(repository().join("tasks/words_fewshot.txt")).expect("readable");
    let questions = fs::read_to_string(folder.join("items.jsonl")).expect("readable");
    let given: HashSet<usize> = tokens(&format!("{shots}{questions}Question: Answer:")).into_iter().collect();
    let mut drawn: BTreeMap<usize, usize> = BTreeMap::new();
    for sample in &whole {
        // Its last token is followed by nothing.
        let text = tokens(sample["text"].as_str().expect("text"));
        let inner: HashSet<usize> = text.iter().rev().skip(5).copied().collect();
        inner.difference(&given).for_each(|&token| *drawn.entry(token).or_default() += 1);
    }
    let mut rare: Vec<usize> = drawn.keys().copied().collect();
    rare.sort_by_key(|token| drawn[token]);
    let file = model.join("model.safetensors");
    let healthy = fs::read(&file).expect("readable");
    // A text may have been drawn in other tokens than those that it is encoded in.
    let mut runs = rare.into_iter().map(|token| {
        let mut broken = healthy.clone();
        broken[embedding(token)].chunks_exact_mut(2).for_each(|bf16| bf16.copy_from_slice(&0x7fc0_u16.to_le_bytes()));
        fs::write(&file, broken).expect("writable");
        let ran = run(folder, &["run", "task.json", "--out", "out"]);
        if ran.status.success() {
            fs::remove_dir_all(folder.join("out")).expect("the run wrote it");
        }
        ran
    });
    let ran = runs.find(|ran| !ran.status.success()).expect("one of them was drawn");
    refuses(&ran, &["failed", "the model's logits", "--resume"]);

    let samples = lines("out", "samples.jsonl");
    let failed: Vec<&Value> = samples.iter().filter(|sample| sample["finish"] == json!("failed")).collect();
    assert!(!failed.is_empty() && failed.len() < samples.len(), "{} of {} failed", failed.len(), samples.len());
    assert_eq!(samples.len(), whole.len(), "each sample has its line");
    for (sample, before) in samples.iter().zip(&whole) {
        match sample.get("error") {
            Some(error) => assert!(error.as_str().expect("text").contains("the model's logits"), "{error}"),
            None => assert_eq!(sample, before, "what did not fail is as it was"),
        }
    }
    let items = lines("out", "items.jsonl");
    let branches = |item: &Value| item["failed"]["branches"].as_u64().unwrap_or(0) as usize;
    assert_eq!(items.iter().map(branches).sum::<usize>(), failed.len());
    for item in &items {
        assert_eq!(item["samples"].as_u64().expect("a number") as usize + branches(item), 6, "{item}");
        assert_eq!(item["cancelled"], json!(0), "{item}");
    }
    let summary: Value = serde_json::from_slice(&bytes(folder, "out", "summary.json")).expect("JSON");
    assert_eq!((&summary["failed"], &summary["failed_branches"]), (&json!(0), &json!(failed.len())));

    // The same run on the model as it should be, which the manifest of the other run names.
    fs::write(&file, healthy).expect("writable");
    fs::copy(folder.join("whole/manifest.json"), folder.join("out/manifest.json")).expect("writable");
    run_into(folder, "out", &["--resume"]);
    assert_equal_results(folder, "out", "whole");
}
