//! Runs by the scores of the bundled reward model: what their files hold, what counts them again without a model, and
//! with what they go on.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::runs;
use runs::{bytes, refuses, repository, run, run_into, succeeds, task_folder};

fn reward() -> String {
    repository().join("tasks/models/reward").display().to_string()
}

fn lines(folder: &Path, out: &str, name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(folder, out, name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn best_of_n() -> Value {
    json!({"best_of_n": {"samples": 6, "by": "reward"}})
}

/// What was sampled.
fn texts(folder: &Path, out: &str) -> Vec<Value> {
    lines(folder, out, "samples.jsonl").iter().map(|line| json!([line["id"], line["text"], line["logprob"]])).collect()
}

/// What was chosen by which scores.
fn choices(folder: &Path, out: &str) -> Vec<Value> {
    let of = |line: &Value| {
        json!([
            line["id"],
            line["prediction"],
            line["chosen"],
            line["correct"],
            line["votes"],
            line["tied"],
            line["scores"]
        ])
    };
    lines(folder, out, "items.jsonl").iter().map(of).collect()
}

#[test]
fn samples_have_the_scores_by_which_they_are_chosen() {
    let folder = task_folder(|task| task["method"] = best_of_n());
    let folder = folder.path();
    run_into(folder, "out", &["--scorer", &reward()]);
    for sample in lines(folder, "out", "samples.jsonl") {
        let score = sample["score"].as_f64().expect("a score");
        assert!((0.0..=1.0).contains(&score) && sample["score_tokens"].as_u64() > Some(0), "{sample}");
    }
    let manifest: Value = serde_json::from_slice(&bytes(folder, "out", "manifest.json")).expect("JSON");
    assert_eq!(manifest["scorer"]["name"], "reward");
    let summary: Value = serde_json::from_slice(&bytes(folder, "out", "summary.json")).expect("JSON");
    assert!(summary["scorer"]["unscored"] == 0 && summary["reward_vote"]["value"].is_f64(), "{summary}");

    // A scorer beside the model changes no sample.
    run_into(folder, "plain", &["--set", r#"method={"sample": {"samples": 6}}"#]);
    assert_eq!(texts(folder, "out"), texts(folder, "plain"));

    // The vote by the same scores needs no model.
    let vote = r#"method={"self_consistency": {"samples": 6, "weigh_by": "reward"}}"#;
    run_into(folder, "voted", &["--scorer", &reward(), "--set", vote]);
    succeeds(run(folder, &["rescore", "out", "--set", vote, "--out", "again"]));
    assert_eq!(choices(folder, "again"), choices(folder, "voted"));

    // Another aggregate is made of the scores of steps, and the way back of the form's own.
    let least = r#"method={"self_consistency": {"samples": 6, "weigh_by": "reward", "aggregate": "min"}}"#;
    run_into(folder, "least", &["--scorer", &reward(), "--set", least]);
    succeeds(run(folder, &["rescore", "again", "--set", least, "--out", "min"]));
    assert_eq!(choices(folder, "min"), choices(folder, "least"));
    assert!(bytes(folder, "min", "samples.jsonl") == bytes(folder, "least", "samples.jsonl"));
    succeeds(run(folder, &["rescore", "min", "--set", r#"method={"self_consistency": {"samples": 6}}"#]));
    let plain = lines(folder, "min", "items.jsonl");
    assert!(plain.iter().all(|item| item.get("scores").is_none() && item.get("scorer").is_none()), "{plain:?}");
    let summary: Value = serde_json::from_slice(&bytes(folder, "min", "summary.json")).expect("JSON");
    assert!(summary.get("scorer").is_none(), "{summary}");
    succeeds(run(folder, &["rescore", "min", "--set", vote]));
    assert_eq!(choices(folder, "min"), choices(folder, "voted"));
    assert!(bytes(folder, "min", "samples.jsonl") == bytes(folder, "voted", "samples.jsonl"));
    let cut = r#"method={"self_consistency": {"samples": 6, "weigh_by": "reward", "delimiter": "\n\n"}}"#;
    refuses(&run(folder, &["rescore", "out", "--set", cut]), &["`method.self_consistency.delimiter`", r#""\n""#]);
}

#[test]
fn samples_of_a_run_are_scored_later_as_if_it_had_had_the_scorer() {
    let folder = task_folder(|task| task["method"] = best_of_n());
    let folder = folder.path();
    let plain = r#"method={"sample": {"samples": 6}}"#;
    run_into(folder, "scored", &["--scorer", &reward()]);
    run_into(folder, "plain", &["--set", plain]);
    let by_scores = ["rescore", "plain", "--set", &format!("method={}", best_of_n())];
    refuses(&run(folder, &by_scores), &["`method.best_of_n`", "offshoot score"]);
    let told = succeeds(run(folder, &["score", "plain", "--scorer", &reward()]));
    assert!(told.contains("scored      36 texts of"), "{told}");
    assert!(bytes(folder, "plain", "samples.jsonl") == bytes(folder, "scored", "samples.jsonl"));

    // It goes on with the samples that have no score.
    let text = String::from_utf8(bytes(folder, "plain", "samples.jsonl")).expect("text");
    let bare = |line: &str| {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        ["score", "step_scores", "score_tokens"]
            .iter()
            .for_each(|key| drop(line.as_object_mut().map(|of| of.remove(*key))));
        line.to_string() + "\n"
    };
    let cut: String =
        text.lines().enumerate().map(|(ix, line)| if ix < 20 { format!("{line}\n") } else { bare(line) }).collect();
    fs::write(folder.join("plain/samples.jsonl"), cut).expect("writable");
    let told = succeeds(run(folder, &["score", "plain", "--scorer", &reward()]));
    assert!(told.contains("scored      16 texts of"), "{told}");
    assert!(bytes(folder, "plain", "samples.jsonl") == bytes(folder, "scored", "samples.jsonl"));

    let told = succeeds(run(folder, &["score", "plain", "--scorer", &reward()]));
    assert!(told.contains("every sample of plain has its score already"), "{told}");

    // A run that asks for no scores goes on as before.
    succeeds(run(folder, &["run", "task.json", "--out", "plain", "--resume", "--set", plain]));
    succeeds(run(folder, &by_scores));
    assert_eq!(choices(folder, "plain"), choices(folder, "scored"));
    for (options, words) in [
        (&["--aggregate", "min"][..], &["--aggregate", "last", "rescore"][..]),
        (&["--delimiter", "."], &["--delimiter", "as for the run's own"]),
        (&["--question", "{{question}}"], &["--question", "scores already"]),
        (&["--task", "task.json"], &["--task", "none for the run in plain"]),
        (&["--scorer-form", "last-token"], &["`scorer`", "custom", "last-token"]),
    ] {
        refuses(&run(folder, &[&["score", "plain", "--scorer", &reward()], options].concat()), words);
    }
    run_into(
        folder,
        "likely",
        &["--set", r#"method={"step_beam": {"samples": 2, "expansions": 2, "scorer": "mean_logprob"}}"#],
    );
    refuses(&run(folder, &["score", "likely", "--scorer", &reward()]), &["samples.jsonl", "the run's own method"]);
}

/// What the samples of a run are asked about later is the scores' alone: the run goes on without it, and until a sample
/// has a score, another question or scorer can be given.
#[test]
fn a_question_that_is_given_later_ends_no_run() {
    let folder = task_folder(|task| task["method"] = json!({"sample": {"samples": 2}}));
    let folder = folder.path();
    run_into(folder, "out", &[]);
    let bare = bytes(folder, "out", "samples.jsonl");
    let score = |question: &str| run(folder, &["score", "out", "--scorer", &reward(), "--question", question]);
    succeeds(score("Sum: {{question}}"));
    let scored = bytes(folder, "out", "samples.jsonl");
    run_into(folder, "out", &["--resume"]);
    assert!(bytes(folder, "out", "samples.jsonl") == scored);
    refuses(&score("{{question}}"), &["--question", "scores already"]);
    // As a command leaves it that was stopped before its first score.
    fs::write(folder.join("out/samples.jsonl"), bare).expect("writable");
    succeeds(score("{{question}}"));
    assert!(bytes(folder, "out", "samples.jsonl") != scored, "they are about another question");
}

#[test]
fn a_search_by_scores_is_named_in_the_task_and_is_the_same_again() {
    let folder = task_folder(|task| {
        task["method"] = json!({"step_beam": {"samples": 4, "expansions": 2, "steps": 6, "scorer": "reward"}});
        task["scorer"] = json!({"model": reward(), "question": "Question: {{question}}\nAnswer:"});
    });
    let folder = folder.path();
    run_into(folder, "one", &[]);
    run_into(folder, "two", &["--scorer", &reward()]);
    for name in ["samples.jsonl", "items.jsonl"] {
        assert!(bytes(folder, "one", name) == bytes(folder, "two", name), "{name} differs");
    }
    assert!(lines(folder, "one", "items.jsonl").iter().all(|item| item["scorer"]["texts"].as_u64() > Some(0)));
}

#[test]
fn a_run_without_its_scorer_is_refused() {
    let folder = task_folder(|task| task["method"] = best_of_n());
    let folder = folder.path();
    refuses(&run(folder, &["run", "task.json"]), &["`scorer`", "--scorer", "`method.best_of_n.by`"]);
    run_into(folder, "out", &["--scorer", &reward(), "--limit", "2"]);
    let mut form: Value =
        serde_json::from_slice(&fs::read(Path::new(&reward()).join("scorer.json")).expect("it has one")).expect("JSON");
    form["aggregate"] = json!("min");
    fs::write(folder.join("other.json"), form.to_string()).expect("writable");
    let resumed = ["run", "task.json", "--out", "out", "--resume", "--scorer", &reward()];
    let other = [&resumed[..], &["--scorer-form", "other.json"]].concat();
    let identity: Value = serde_json::from_slice(&bytes(folder, "out", "manifest.json")).expect("JSON");
    let digest = identity["scorer"]["digest"].as_str().expect("a digest");
    refuses(&run(folder, &other), &["`scorer`", digest, "with which the run in this folder was made"]);
    succeeds(run(folder, &resumed));
    assert_eq!(lines(folder, "out", "items.jsonl").len(), 6);
}

/// The lines of a file of JSON lines.
fn lines_of(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("readable");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn texts_that_are_there_get_the_scores_that_a_run_gives_them() {
    let folder = task_folder(|task| task["method"] = best_of_n());
    let folder = folder.path();
    run_into(folder, "out", &["--scorer", &reward()]);
    let file = "out/samples.jsonl";
    let told = succeeds(run(folder, &["score", file, "--scorer", &reward(), "--task", "task.json", "--as", "again"]));
    assert!(told.contains("scorer      reward, form custom, whose scores are probabilities"), "{told}");
    let scored = lines_of(&folder.join("out/samples.jsonl_scored.jsonl"));
    assert_eq!(scored.len(), 36);
    for line in &scored {
        assert_eq!(
            (&line["again_score"], line["again_scores"].as_array().map(Vec::len).unwrap_or(0) > 0),
            (&line["score"], true)
        );
    }

    // Lists of texts in one line, as search-and-learn writes them, then the vote that the scores weigh.
    let items = lines(folder, "out", "items.jsonl");
    let listed: String = items
        .iter()
        .map(|item| {
            let of_item: Vec<&Value> = scored.iter().filter(|line| line["id"] == item["id"]).collect();
            let texts: Vec<&Value> = of_item.iter().map(|line| &line["text"]).collect();
            let line = json!({"unique_id": item["id"], "problem": item["question"], "completions": texts,
                "answer": item["reference"]});
            format!("{line}\n")
        })
        .collect();
    fs::write(folder.join("listed.jsonl"), listed).expect("writable");
    let question = "Question: {{problem}}\nAnswer:";
    let totals =
        succeeds(run(folder, &["score", "listed.jsonl", "--scorer", &reward(), "--question", question, "--json"]));
    let totals: Value = serde_json::from_str(&totals).expect("one object");
    assert_eq!(
        (&totals["texts"], &totals["unscored"], &totals["scale"]),
        (&json!(36), &json!(0), &json!("probability"))
    );
    assert!(totals["prompts"]["computed"].as_u64() < totals["prompts"]["asked"].as_u64(), "{totals}");
    let listed = lines_of(&folder.join("listed.jsonl_scored.jsonl"));
    for (line, item) in listed.iter().zip(&items) {
        let of_run = scored.iter().filter(|line| line["id"] == item["id"]).map(|line| line["score"].clone());
        assert_eq!(line["score"], Value::Array(of_run.collect()), "{line}");
    }
    let voted = run(folder, &["vote", "listed.jsonl_scored.jsonl", "--scores", "scores", "--by", "best"]);
    succeeds(voted);
    let chosen: Vec<Value> = lines_of(&folder.join("listed.jsonl_scored.jsonl_votes.jsonl"))
        .iter()
        .map(|line| line["chosen"].clone())
        .collect();
    assert_eq!(chosen, items.iter().map(|item| item["chosen"].clone()).collect::<Vec<Value>>());
}

#[test]
fn texts_that_cannot_be_scored_are_counted_and_bad_options_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let long = "word ".repeat(20_000);
    let line = json!({"question": "How many?", "text": ["It is 4.", long]});
    fs::write(folder.join("in.jsonl"), format!("{line}\n")).expect("writable");
    refuses(
        &run(folder, &["score", "in.jsonl", "--scorer", &reward()]),
        &["1 of 2 texts has no score", "first line 1: ", "tokens"],
    );
    let scored = lines_of(&folder.join("in.jsonl_scored.jsonl"));
    assert!(scored[0]["score"][0].is_f64() && scored[0]["score"][1].is_null(), "{}", scored[0]["score"]);
    assert!(scored[0]["score_error"][1].is_string());

    let refused: [(&[&str], &[&str]); 6] = [
        (&[], &["--scorer", "none"]),
        (&["--scorer", &reward(), "--out", "x.csv"], &["--out", ".jsonl", "x.csv"]),
        (&["--scorer", &reward(), "--delimiter", "\\n"], &["--delimiter", "$'"]),
        (&["--scorer", &reward(), "--set", "items.path=x"], &["--set", "--task"]),
        (&["--scorer", &reward(), "--question", "nothing"], &["line 1", "nothing"]),
        (&["--scorer", "."], &["config.json"]),
    ];
    for (options, words) in refused {
        refuses(&run(folder, &[&["score", "in.jsonl"], options].concat()), words);
    }
    refuses(&run(folder, &["score", "no.jsonl", "--scorer", &reward()]), &["no.jsonl"]);
}
