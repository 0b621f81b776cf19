//! A scorer or a judge beside the model: what `run --dry-run` and `plan` say of the memory of both, and what they
//! refuse.

use serde_json::{Value, json};

use crate::folders::{demo, generator, scorer};
use crate::runs::{refuses, run, succeeds, task_folder};

/// A task whose method asks for a scorer.
fn scored_task() -> tempfile::TempDir {
    task_folder(|task| {
        task["model"] = json!(demo());
        task["method"] = json!({"best_of_n": {"samples": 2, "by": "reward"}});
    })
}

#[test]
fn the_memory_of_both_models_is_said_before_they_load() {
    let folder = scored_task();
    let scorer = scorer();
    let beside = scorer.path().display().to_string();
    fn with<'a>(command: &[&'a str], beside: &'a str) -> Vec<&'a str> {
        [command, &["--scorer", beside]].concat()
    }
    let with = |command| with(command, &beside);
    let page = succeeds(run(
        folder.path(),
        &with(&["run", "task.json", "--dry-run", "--device", "cpu", "--limit", "2", "--kv-memory", "8"]),
    ));
    assert!(page.contains("\nscorer ") && page.contains("both models "), "{page}");
    let plan = with(&["plan", "task.json", "--limit", "2", "--device-profile", "h200", "--json"]);
    let said: Value = serde_json::from_str(&succeeds(run(folder.path(), &plan))).expect("JSON");
    let of =
        |model: &str| ["weight_bytes", "step_bytes", "pool_bytes"].map(|part| said["scorer"][model][part].as_u64());
    let parts: Option<u64> = of("memory").into_iter().chain(of("generator")).sum();
    assert!(
        parts.is_some_and(|parts| parts > 0 && parts <= said["scorer"]["device_bytes"].as_u64().unwrap()),
        "{said}"
    );
    assert!(said["scorer"]["tokens"].as_u64() > said["job"]["distinct_prompt_tokens"].as_u64(), "{said}");
    assert_eq!(said["scorer"]["form"], "custom");
    let text = succeeds(run(folder.path(), &with(&["plan", "task.json", "--limit", "2", "--device-profile", "h200"])));
    for part in ["\nscorer ", "the model: ", "the scorer: ", "both: ", "tokens to score"] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
}

#[test]
fn scorers_that_cannot_stand_there_are_refused_by_option() {
    let folder = scored_task();
    let (scorer, generator) = (scorer(), generator());
    let (beside, other) = (scorer.path().display().to_string(), generator.path().display().to_string());
    let dry = |more: &[&str], words: &[&str]| {
        let command = [&["run", "task.json", "--dry-run", "--device", "cpu", "--limit", "2"], more].concat();
        refuses(&run(folder.path(), &command), words);
    };
    dry(&["--scorer", &other], &["LlamaForCausalLM", "last-token"]);
    dry(&["--scorer", &beside, "--scorer-memory", "1.5"], &["--scorer-memory"]);
    dry(&["--scorer", &beside, "--scorer-form", "no-form"], &["--scorer-form", "step-tag"]);
    dry(&["--model", &beside], &["LlamaForSequenceClassification", "--scorer"]);
    // Too little memory for the samples is said of the model's part.
    let little = ["run", "task.json", "--device", "cpu", "--limit", "2", "--scorer", &beside, "--kv-memory", "1"];
    let longer = ["--max-tokens", "400", "--out", "little"];
    refuses(
        &run(folder.path(), &[&little[..], &longer].concat()),
        &["the model: memory for keys and values", "--kv-memory", "--scorer-memory"],
    );
    dry(&["--scorer", &beside, "--kv-memory", "20", "--scorer-memory", "0.0001"], &["the scorer: ", "--scorer-memory"]);
    let several = ["run", "task.json", "--dry-run", "--devices", "cpu,cpu", "--limit", "2", "--scorer", &beside];
    refuses(&run(folder.path(), &several), &["--devices", "one device"]);
    let plan = ["plan", "task.json", "--devices", "cpu,cpu", "--scorer", &beside];
    refuses(&run(folder.path(), &plan), &["--devices", "one device"]);
}

#[test]
fn plan_says_the_memory_of_a_judge_and_refuses_what_cannot_stand_there() {
    let asks = json!({"prompt": "{{question}} {{sample}} Right?", "words": {" yes": 1, " no": 0}});
    let folder = task_folder(|task| {
        task["model"] = json!(demo());
        task["method"] = json!({"self_consistency": {"samples": 2, "weigh_by": asks.clone()}});
    });
    let (judge, scorer, demo) = (generator(), scorer(), demo());
    let [judge, scorer, demo] = [judge.path(), scorer.path(), &demo].map(|path| path.display().to_string());
    let base = ["plan", "task.json", "--limit", "2", "--device-profile", "h200"];
    let plan = |more: &[&str]| run(folder.path(), &[&base, more].concat());
    let text = succeeds(plan(&["--judge", &judge]));
    for part in ["\njudge ", "the model: ", "the judge: ", "both: ", "its answers, are not counted"] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
    let json = |more: &[&str]| -> Value {
        serde_json::from_str(&succeeds(plan(&[&["--json", "--judge", &judge], more].concat()))).expect("JSON")
    };
    let (whole, tenth) = (json(&[]), json(&["--judge-memory", "0.1"]));
    assert!(whole["judge"]["tokens"].as_u64() > whole["job"]["distinct_prompt_tokens"].as_u64(), "{whole}");
    assert!(whole["scorer"].is_null() && whole["judge"]["form"].is_null(), "{whole}");
    let pool = |said: &Value| said["judge"]["memory"]["pool_bytes"].as_u64().expect("a number");
    assert!(pool(&tenth) > 0 && pool(&tenth) <= pool(&whole), "{tenth}");
    // The model's own folder is no second model.
    let own = succeeds(plan(&["--judge", &demo]));
    assert!(!own.contains("\njudge ") && own.contains("a judge is asked about samples"), "{own}");
    let unasked = run(scored_task().path(), &[&base[..], &["--judge", &judge, "--scorer", &scorer]].concat());
    let unasked = succeeds(unasked);
    assert!(unasked.contains("neither the method nor `grade` asks a judge") && unasked.contains(&judge), "{unasked}");
    refuses(&plan(&["--judge", &scorer]), &["LlamaForSequenceClassification", "predicts tokens"]);
    // A method by reward, graded by a judge.
    let both = task_folder(|task| {
        task["model"] = json!(&demo);
        task["method"] = json!({"best_of_n": {"samples": 2, "by": "reward"}});
        task["grade"] = json!({"verdict": asks.clone()});
    });
    let three = run(both.path(), &[&base[..], &["--judge", &judge, "--scorer", &scorer]].concat());
    refuses(&three, &["--judge", "one model beside the model", &scorer]);
    refuses(&plan(&["--judge", &judge, "--devices", "cpu,cpu"]), &["--devices", "one device", "the judge"]);
    refuses(&plan(&["--judge", &judge, "--judge-memory", "1"]), &["--judge-memory", "below 1"]);
}
