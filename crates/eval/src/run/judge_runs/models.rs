//! Runs whose judge is the run's own model, another one, or a server.

#[path = "../../../../../tests/common/judge_server.rs"]
mod judge_server;

use std::fs;
use std::net::TcpListener;

use serde_json::{Value, json};

use super::*;
use crate::run::drive::Scorers;
use crate::run::rescore::{RescoreOptions, rescore};
use crate::run::tables::ResultFormat;
use crate::run::test_task::demo_model;
use crate::task::{AskedBy, AskedJudge, AskedKey};
use judge_server::{JudgeServer, said};
use offshoot_launch::JudgeFolderOptions;
use offshoot_verdict::{JudgeIdentity, JudgeKey};

/// The model's own answers are the same numbers, whether the run reads them in its own batch or a judge does.
#[test]
fn the_model_itself_judges() {
    let by = verdicts().remove(0);
    let own = TestTask::with(json!({"method": {"best_of_n": {"samples": SAMPLES, "by": by}}}));
    let run = own.run_whole("run", AskedJudge::default(), None).expect("a sound task");
    assert!(run.failed.is_empty() && run.summary.judge.is_none(), "it is read in the run's own batch");
    let votes = TestTask::with(json!({"method": {"self_consistency": {"samples": SAMPLES, "weigh_by": by}}}));
    let run = votes.run_whole("run", AskedJudge::default(), None).expect("a sound task");
    assert!(run.failed.is_empty());
    let judge = run.summary.judge.expect("a judge was asked");
    assert_eq!((judge.identity.name.as_str(), judge.counts.questions), ("demo", 3 * SAMPLES));
    let (samples, items) = (votes.samples("run"), own.items("run"));
    for sample in &samples {
        let item = items.iter().find(|item| item["id"] == sample["id"]).expect("its item");
        let at = sample["index"].as_u64().expect("an index") as usize;
        let [one, other] = [&item["scores"][at], &sample["score"]].map(|score| score.as_f64().expect("a score"));
        assert!((one - other).abs() < 1e-6, "{one} {other}");
        let yes = sample["verdict"][" yes"].as_f64().expect("its probability");
        assert!((yes - other).abs() < 1e-12);
    }
    votes.run_whole("again", AskedJudge::default(), None).expect("a sound task");
    assert!(votes.files("again") == votes.files("run"));
}

/// A score in an answer that says nothing else, which a small model can write.
fn bare_score(max_tokens: u32) -> Value {
    let schema = json!({"type": "object", "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["score"], "additionalProperties": false});
    json!({"prompt": "{{sample}}\nPoints:", "score": {"high": 9, "schema": schema}, "max_tokens": max_tokens})
}

#[test]
fn the_model_itself_writes_its_scores() {
    let task = |max_tokens: u32| {
        let (by, verdict) = (bare_score(max_tokens), bare_score(32));
        TestTask::with(json!({"method": {"best_of_n": {"samples": SAMPLES, "by": by}}, "grade": {"verdict": verdict}}))
    };
    let sound = task(32);
    let run = sound.run_whole("whole", AskedJudge::default(), None).expect("a sound task");
    assert!(run.ended.is_none() && run.failed.is_empty());
    for sample in sound.samples("whole") {
        let points = sample["verdict"]["score"].as_u64().expect("the points");
        assert_eq!(sample["score"].as_f64(), Some(points as f64 / 9.0));
        assert_eq!(sample["judged"]["verdict"], sample["verdict"], "method and grader ask the same");
        assert_eq!(sample["correct"], json!(points >= 5));
    }
    let killed = sound.run_whole("killed", AskedJudge::default(), Some(5)).expect("what is sampled is kept");
    assert!(killed.ended.is_none() || matches!(killed.ended, Some(Error::Interrupted)));
    sound.run_whole("killed", AskedJudge::default(), None).expect("it goes on");
    assert!(sound.files("killed") == sound.files("whole"));

    let short = task(1);
    let run = short.run_whole("run", AskedJudge::default(), None).expect("a sound task");
    let scorer = run.summary.scores.scorer.expect("a judge was asked");
    assert!(scorer.unscored > 0 && scorer.first_error.is_some_and(|why| why.contains("max_tokens")), "it is cut");
}

/// A copy of the model's folder is another model: it stands beside the model, and says the same.
#[test]
fn a_model_beside_the_model_judges() {
    let by = verdicts().remove(0);
    let votes = TestTask::with(json!({"method": {"self_consistency": {"samples": SAMPLES, "weigh_by": by}}}));
    votes.run_whole("own", AskedJudge::default(), None).expect("a sound task");
    let (own, copy) = (demo_model(), votes.out("copy"));
    fs::create_dir(&copy).expect("the folder is writable");
    let files = fs::read_dir(&own).expect("the demo model").flatten().filter(|entry| entry.path().is_file());
    for file in files {
        fs::copy(file.path(), copy.join(file.file_name())).expect("the folder is writable");
    }
    let asked = || AskedJudge { by: Some(AskedBy::Folder(JudgeFolderOptions::new(&copy))), ..AskedJudge::default() };
    let run = votes.run_whole("beside", asked(), None).expect("a sound task");
    let judge = run.summary.judge.expect("a judge was asked");
    assert_eq!((judge.identity.name.as_str(), judge.identity.digest.is_some()), ("copy", true));
    assert!(votes.files("beside") == votes.files("own"));
    let error = votes.run_whole("beside", AskedJudge::default(), None).err().expect("the model itself").to_string();
    assert!(error.contains("copy") && error.contains("the run's own model"), "{error}");
    let itself = AskedBy::Folder(JudgeFolderOptions::new(own));
    let run = votes.run_whole("own", AskedJudge { by: Some(itself), ..AskedJudge::default() }, None);
    assert!(run.is_ok(), "its own folder is the model itself");
}

/// That server as the judge.
fn by(server: &JudgeServer) -> AskedJudge {
    AskedJudge { by: Some(AskedBy::Url(server.url.clone())), ..AskedJudge::default() }
}

#[test]
fn a_server_scores_and_grades() {
    let server = JudgeServer::new(|path, body| match path {
        "/v1/models" => (200, json!({"data": [{"id": "large"}]})),
        "/v1/chat/completions" => {
            let text = body["messages"][1]["content"].as_str().unwrap_or_default();
            said(&format!("```json\n{{\"reasoning\": \"vowels\", \"score\": {}}}\n```", 10.0 * share_of_vowels(text)))
        }
        "/v1/completions" => {
            let likely = json!({" yes": 0.75_f64.ln(), " no": 0.25_f64.ln()});
            let logprobs = json!({"tokens": [" yes"], "token_logprobs": [0.75_f64.ln()], "top_logprobs": [likely]});
            let choice = json!({"index": 0, "text": " yes", "logprobs": logprobs, "finish_reason": "length"});
            (200, json!({"choices": [choice], "usage": {"prompt_tokens": 7}}))
        }
        _ => (404, json!({"error": {"message": "no such place"}})),
    });
    let task = TestTask::with(json!({
        "method": {"best_of_n": {"samples": 2, "by": verdicts().remove(1)}},
        "grade": {"verdict": verdicts().remove(0)},
    }));
    let key = JudgeKey::new("secret-of-this-test").expect("a key");
    let run =
        task.run_whole("run", AskedJudge { key: AskedKey::Given(key), ..by(&server) }, None).expect("a sound task");
    assert!(run.ended.is_none() && run.failed.is_empty());
    for sample in task.samples("run") {
        let pens = ["a", "b", "c"].iter().position(|id| sample["id"] == *id).expect("an item") + 3;
        let share = share_of_vowels(&format!("{} of {pens}", sample["text"].as_str().expect("a text")));
        assert!((sample["score"].as_f64().expect("a score") - share).abs() < 1e-9, "{sample}");
        assert_eq!((&sample["score_tokens"], &sample["correct"]), (&json!(11), &json!(true)), "{sample}");
        assert!((sample["judged"]["score"].as_f64().expect("a score") - 0.75).abs() < 1e-9, "{sample}");
    }
    let judge = run.summary.judge.expect("a judge was asked");
    assert_eq!(judge.identity, JudgeIdentity { name: "large".to_owned(), digest: None });
    let asked = server.asked();
    assert!(
        asked.iter().all(|(head, _)| head.to_ascii_lowercase().contains("authorization: bearer secret-of-this-test"))
    );
    assert!(asked.iter().skip(1).all(|(_, body)| body["model"] == "large"));
    for file in fs::read_dir(task.out("run")).expect("written").flatten().filter(|entry| entry.path().is_file()) {
        let text = fs::read_to_string(file.path()).expect("text");
        assert!(!text.contains("secret-of-this-test"), "{}", file.path().display());
    }
}

/// What is asked of a judge is asked once: another threshold needs none.
#[test]
fn grades_by_the_same_question_are_kept() {
    let task = super::graded::graded(json!({"sample": {"samples": SAMPLES}}), 0.22);
    // Nobody listens at the task's address.
    task.change(|settings| settings["judge"]["retries"] = json!(0));
    task.whole("run", ScriptedJudge::new(vowels));
    let before = task.files("run");
    let rescored = |set: &str| {
        let options = RescoreOptions {
            run: task.out("run"),
            task: None,
            set: vec![set.to_owned()],
            k: None,
            out: None,
            format: ResultFormat::Jsonl,
            judges: None,
            judge: task.options("run").judge,
            asked_judge: AskedJudge::default(),
        };
        rescore(&options)
    };
    rescored("grade.verdict.right_from=0.3").expect("nothing is asked");
    let scores: Vec<f64> =
        task.samples("run").iter().map(|sample| sample["judged"]["score"].as_f64().expect("a score")).collect();
    for (sample, score) in task.samples("run").iter().zip(&scores) {
        assert_eq!(sample["correct"], json!(*score >= 0.3), "{sample}");
    }
    rescored("grade.verdict.right_from=0.22").expect("nothing is asked");
    assert!(task.files("run") == before);
    let error = rescored("grade.verdict.prompt={{sample}} alone").expect_err("it is asked").to_string();
    assert!(error.contains("no file of the run is changed"), "{error}");
    assert!(task.files("run") == before);
}

/// Grades that are there stay where a judge gives none.
#[test]
fn a_judge_that_grades_nothing_leaves_the_run_as_it_was() {
    let server = JudgeServer::new(|path, _| match path {
        "/v1/models" => (200, json!({"data": [{"id": "large"}]})),
        _ => (400, json!({"error": {"message": "not today"}})),
    });
    let verdict = json!({"prompt": "{{sample}}", "score": {"high": 10}});
    let task = TestTask::with(json!({"method": {"sample": {"samples": 2}}, "grade": {"verdict": verdict},
        "judge": {"url": SERVER, "name": "scripted"}}));
    task.whole("run", ScriptedJudge::new(vowels));
    let before = task.files("run");
    let options = RescoreOptions {
        run: task.out("run"),
        task: None,
        set: Vec::new(),
        k: None,
        out: None,
        format: ResultFormat::Jsonl,
        judges: None,
        judge: task.options("run").judge,
        asked_judge: by(&server),
    };
    let error = rescore(&options).expect_err("nothing is graded").to_string();
    assert!(error.contains("not today") && error.contains("no file of the run is changed"), "{error}");
    assert!(task.files("run") == before);
}

/// Graded by a server and then by a pattern again, a run goes on without a judge.
#[test]
fn a_run_that_is_graded_by_a_judge_and_then_by_none_goes_on() {
    let server = JudgeServer::new(|path, _| match path {
        "/v1/models" => (200, json!({"data": [{"id": "large"}]})),
        _ => said("{\"reasoning\": \"so\", \"score\": 1}"),
    });
    let task = TestTask::with(json!({"method": {"sample": {"samples": 2}}, "grade": {"exact": {"field": "pens"}}}));
    task.change(|settings| {
        settings["items"] = json!([{"id": "a", "pens": "3"}, {"id": "b", "pens": "4"}, {"id": "c", "pens": "5"}]);
    });
    let by_none = Scorers { reward: None, judge: None };
    task.run_by("run", by_none, (None, None), None).expect("a sound task");
    let rescored = |set: Value, asked_judge: AskedJudge| {
        let options = RescoreOptions {
            run: task.out("run"),
            task: None,
            set: vec![format!("grade={set}")],
            k: None,
            out: None,
            format: ResultFormat::Jsonl,
            judges: None,
            judge: task.options("run").judge,
            asked_judge,
        };
        rescore(&options).expect("it is graded");
        let read = |name: &str| -> Value {
            serde_json::from_str(&fs::read_to_string(task.out("run").join(name)).expect("written")).expect("JSON")
        };
        (read("summary.json"), read("manifest.json"))
    };
    let before = fs::read_to_string(task.path()).expect("written");
    fs::write(task.out("run/summary.json"), json!({"judge": {"name": "another"}}).to_string()).expect("writable");
    let verdict = json!({"prompt": {"chat": {"user": "{{pens}}: {{sample}}"}}, "score": {"high": 1}});
    let (summary, manifest) = rescored(json!({ "verdict": verdict }), by(&server));
    assert_eq!((&summary["judge"]["name"], &manifest["judge"]["name"]), (&json!("large"), &json!("large")));
    assert_eq!(summary["judge"]["questions"], json!(server.asked().len() - 1), "all but the one about its models");
    let (summary, manifest) = rescored(json!({"exact": {"field": "pens"}}), AskedJudge::default());
    assert_eq!((summary.get("judge"), manifest.get("judge")), (None, None));
    fs::write(task.path(), before).expect("writable");
    task.run_by("run", by_none, (None, None), None).expect("it goes on, and asks no judge");
}

#[test]
fn a_server_that_is_down_costs_no_sample() {
    // A port on which nobody listens.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let task = TestTask::with(json!({
        "method": {"self_consistency": {"samples": 2, "weigh_by": verdicts().remove(4)}},
        "judge": {"url": format!("http://127.0.0.1:{port}/v1"), "name": "large", "retries": 0},
    }));
    let run = task.run_whole("run", AskedJudge::default(), None).expect("the run goes on");
    assert!(run.ended.is_none() && run.failed.is_empty());
    let samples = task.samples("run");
    assert_eq!(samples.len(), 6);
    assert!(samples.iter().any(|sample| sample.get("score_error").is_some()), "{samples:?}");
    let failure = run.failure(&[], &task.options("run"), &task.out("run")).expect_err("it is not done");
    assert_eq!(failure.exit_code(), 2);
    assert!(failure.to_string().contains(&format!("127.0.0.1:{port}")), "{failure}");

    let words = JudgeServer::new(|_, _| {
        let choice = json!({"index": 0, "text": " A", "logprobs": null, "finish_reason": "length"});
        (200, json!({"choices": [choice], "usage": {"prompt_tokens": 7}}))
    });
    let run = task.run_whole("run", by(&words), None).expect("it goes on where another server answers");
    let scorer = run.summary.scores.scorer.expect("a judge was asked");
    assert_eq!(scorer.unscored, 0, "{:?}", scorer.first_error);
    for sample in task.samples("run") {
        assert_eq!(sample["score"], json!(0.5), "a judge that always names the first one prefers none: {sample}");
    }
}
