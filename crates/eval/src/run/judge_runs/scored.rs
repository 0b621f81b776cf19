//! Runs whose samples, steps and paths a scripted judge scores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::run::score::{ScoreTextsOptions, score};
use crate::task::AskedJudge;
use offshoot_core::interrupt::Interrupt;
use offshoot_launch::{DeviceChoice, EngineOptions};
use offshoot_verdict::JudgeIdentity;

#[test]
fn results_have_the_verdicts_on_samples() {
    for method in of_samples().into_iter().chain(of_steps()) {
        let task = task(method.clone());
        let run = task.whole("run", ScriptedJudge::new(vowels));
        let samples = task.samples("run");
        assert!(!samples.is_empty());
        for sample in &samples {
            let score = sample["score"].as_f64().unwrap_or_else(|| panic!("{method}: {sample}"));
            assert!((0.0..=1.0).contains(&score), "{method}: {sample}");
            assert!(!sample["verdict"].is_null(), "{method}: {sample}");
            let is_whole = method["best_of_n"].is_object() || method["self_consistency"].is_object();
            assert!(!is_whole || sample.get("step_scores").is_none(), "a judge values whole samples: {sample}");
        }
        for item in task.items("run") {
            let scorer = &item["scorer"];
            assert_eq!((&scorer["scale"], &scorer["unscored"]), (&json!("probability"), &json!(0)), "{method}: {item}");
            assert!(scorer["texts"].as_u64() > Some(0), "{item}");
            if method["best_of_n"].is_object() {
                let own = samples.iter().filter(|one| one["id"] == item["id"]);
                let most = own.clone().filter_map(|one| one["score"].as_f64()).fold(0.0, f64::max);
                let chosen = own.clone().find(|one| one["index"] == item["chosen"]).expect("the best");
                assert_eq!(chosen["score"].as_f64(), Some(most), "{method}");
            }
        }
        let judge = run.summary.judge.as_ref().expect("a judge was asked");
        assert_eq!(judge.identity.name, "scripted");
        assert!(judge.counts.questions > 0 && judge.counts.tokens > judge.counts.questions);
        let page = run.summary.to_string();
        assert!(page.contains("judge       scripted, ") && page.contains(" questions of "), "{page}");
        assert!(run.failure(&[], &task.options("run"), &task.out("run")).is_ok());
    }
}

#[test]
fn scores_are_those_of_the_answers() {
    let by = verdicts().remove(0);
    let task = task(json!({"best_of_n": {"samples": SAMPLES, "by": by}}));
    let judge: Arc<ScriptedJudge> = Arc::new(ScriptedJudge::new(vowels));
    task.judged_by("run", &(judge.clone() as Arc<dyn Ask>), None).expect("a sound task");
    for sample in task.samples("run") {
        let question = format!("Is this right?\n{}\nAnswer:", sample["text"].as_str().expect("a text"));
        let share = share_of_vowels(&question);
        assert!((sample["score"].as_f64().expect("a score") - share).abs() < 1e-12);
        assert!((sample["verdict"][" yes"].as_f64().expect("its probability") - share).abs() < 1e-12);
        assert_eq!(sample["score_tokens"], json!(question.len()), "the scripted judge counts bytes");
        let asked = judge.questions().iter().filter(|one| text(one) == question).count();
        assert!(asked >= 1, "{question}");
    }
}

#[test]
fn a_run_killed_before_the_verdicts_goes_on_as_if_it_had_not_been() {
    for method in of_samples() {
        let task = task(method.clone());
        task.whole("whole", ScriptedJudge::new(vowels));
        let silent = ScriptedJudge::new(vowels).holding();
        let killed = task.judged("killed", silent, Some(3 * SAMPLES)).expect("what is sampled is kept");
        assert!(matches!(killed.ended, Some(Error::Interrupted)), "{:?}", killed.ended);
        let sampled = task.samples("killed");
        assert_eq!(sampled.len(), 3 * SAMPLES, "samples are on disk before they are judged");
        assert!(sampled.iter().all(|sample| sample.get("score").is_none()), "none has been judged");
        task.whole("killed", ScriptedJudge::new(vowels));
        assert!(task.files("killed") == task.files("whole"), "{method}");
    }
}

#[test]
fn more_samples_are_compared_with_all() {
    let pairs = verdicts().remove(4);
    let task = task(json!({"best_of_n": {"samples": 2, "by": pairs}}));
    task.whole("run", ScriptedJudge::new(vowels));
    task.change(|settings| settings["method"]["best_of_n"]["samples"] = json!(SAMPLES));
    task.whole("run", ScriptedJudge::new(vowels));
    task.whole("whole", ScriptedJudge::new(vowels));
    assert!(task.files("run") == task.files("whole"), "the scores of two among four are not those of two alone");
}

#[test]
fn what_a_judge_cannot_say_is_named_and_asked_again() {
    for method in of_samples().into_iter().chain(of_steps()) {
        let task = task(method.clone());
        task.whole("whole", ScriptedJudge::new(vowels));
        let run = task.whole("down", ScriptedJudge::new(sleeps));
        let samples = task.samples("down");
        let is_search = method["best_of_n"].is_null() && method["self_consistency"].is_null();
        assert!(samples.len() == 3 * SAMPLES || is_search, "nothing that was sampled is lost");
        let has_none = |sample: &Value| sample.get("score").is_none() && sample.get("score_error").is_some();
        let lacking = samples.iter().filter(|sample| has_none(sample)).count();
        // A sample that nothing is compared with is not asked about.
        assert!(lacking > 0, "{method}: {samples:?}");
        let page = run.summary.to_string();
        assert!(page.contains("not scored, first: ") && page.contains("the judge is asleep"), "{page}");
        let failure =
            run.failure(&[], &task.options("down"), &task.out("down")).expect_err("it is not done").to_string();
        for part in ["samples.jsonl", "without a score by the judge", "the judge is asleep", "asks again"] {
            assert!(failure.contains(part), "{failure}");
        }
        task.whole("down", ScriptedJudge::new(vowels));
        assert!(task.files("down") == task.files("whole"), "{method}");
    }
}

/// A run has the scores of one model: those that a judge owes are not a scorer's.
#[test]
fn a_scorer_scores_no_samples_of_a_judge() {
    let own = TestTask::with(json!({"method": {"best_of_n": {"samples": SAMPLES, "by": verdicts().remove(0)}}}));
    own.run_whole("run", AskedJudge::default(), None).expect("its own batch");
    let down = task(json!({"best_of_n": {"samples": SAMPLES, "by": verdicts().remove(1)}}));
    down.whole("run", ScriptedJudge::new(sleeps));
    for task in [own, down] {
        let before = task.files("run");
        let options = ScoreTextsOptions {
            samples: task.out("run"),
            scorer: Some(task.out("reward")),
            form: None,
            question: None,
            task: None,
            set: Vec::new(),
            id: None,
            text: None,
            delimiter: None,
            aggregate: None,
            out: None,
            name: None,
            json: false,
            engine: EngineOptions { devices: DeviceChoice::Cpu.into(), ..EngineOptions::default() },
        };
        let refused = score(&options, &Interrupt::default()).expect_err("a judge scores them").to_string();
        for part in ["`method`", "one that asks no judge", "offshoot rescore", "best_of_n"] {
            assert!(refused.contains(part), "{refused}");
        }
        assert!(task.files("run") == before);
    }
}

#[test]
fn a_comparison_that_failed_is_asked_again() {
    // In both orders, and by rotations: a text has answers without the failed one.
    for by in [4, 6].map(|at| verdicts().remove(at)) {
        let task = task(json!({"best_of_n": {"samples": SAMPLES, "by": by}}));
        task.whole("whole", ScriptedJudge::new(vowels));
        let asked = AtomicUsize::new(0);
        let fails_once = move |question: &Question| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => sleeps(question),
            _ => vowels(question),
        };
        let run = task.whole("lacking", ScriptedJudge::new(fails_once));
        let failure = run.failure(&[], &task.options("lacking"), &task.out("lacking")).expect_err("it is not done");
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("the judge is asleep"), "{failure}");
        assert!(task.samples("lacking").iter().any(|sample| sample.get("score_error").is_some()));
        let again = task.whole("lacking", ScriptedJudge::new(vowels));
        again.failure(&[], &task.options("lacking"), &task.out("lacking")).expect("it is done");
        assert!(task.files("lacking") == task.files("whole"), "{by}");
    }
}

#[test]
fn nonsense_is_named() {
    let score = verdicts().remove(1);
    let answers = [
        (json!({"reasoning": "", "score": 11}), "from 0 to 10"),
        (json!({"reasoning": ""}), "/score"),
        (json!("ten"), "/score"),
    ];
    for (answer, named) in answers {
        let task = task(json!({"best_of_n": {"samples": 1, "by": score}}));
        let nonsense = move |_: &Question| Ok(JudgeAnswer::Json(answer.clone()));
        let run = task.whole("run", ScriptedJudge::new(nonsense));
        let scorer = run.summary.scores.scorer.expect("a judge was asked");
        assert_eq!(scorer.unscored, 3);
        assert!(scorer.first_error.as_ref().is_some_and(|why| why.contains(named)), "{:?}", scorer.first_error);
        assert!(task.items("run").iter().all(|item| item["chosen"].is_null() && item["samples"] == json!(1)));
    }
}

#[test]
fn an_error_of_the_judge_ends_an_item_if_the_task_says_so() {
    for keys in [
        json!({"method": {"best_of_n": {"samples": 2, "by": verdicts().remove(0)}}}),
        json!({"method": {"sample": {"samples": 2}}, "grade": {"verdict": verdicts().remove(0)}}),
    ] {
        let task = TestTask::with(keys);
        task.change(|settings| settings["judge"] = json!({"url": SERVER, "name": "scripted", "on_error": "fail"}));
        let run = task.judged("run", ScriptedJudge::new(sleeps), None).expect("items fail, not the run");
        assert_eq!((run.failed.len(), run.finished.len()), (3, 0));
        assert!(run.failed[0].error.to_string().contains("the judge is asleep"));
        let again = task.judged("run", ScriptedJudge::new(vowels), None).expect("it goes on");
        assert_eq!((again.failed.len(), again.finished.len()), (0, 3));
    }
}

#[test]
fn a_run_goes_on_with_its_own_judge_only() {
    let judge = |name: &str, digest: Option<&str>| {
        let identity = JudgeIdentity { name: name.to_owned(), digest: digest.map(str::to_owned) };
        ScriptedJudge::new(vowels).identified(identity)
    };
    let task = task(json!({"best_of_n": {"samples": 1, "by": verdicts().remove(0)}}));
    task.whole("run", judge("small", Some("12ab")));
    let error = task.judged("run", judge("large", None), None).err().expect("another judge").to_string();
    for part in ["judge", "small", "12ab", "large"] {
        assert!(error.contains(part), "{error}");
    }
    task.whole("run", judge("copy", Some("12ab")));
    let error = task.judged("run", judge("copy", Some("34cd")), None).err().expect("other weights").to_string();
    assert!(error.contains("34cd"), "{error}");
    // Where it answers, and how often it is asked again, is free.
    task.change(|settings| settings["judge"] = json!({"url": "http://127.0.0.1:10/v1", "retries": 0, "requests": 2}));
    task.whole("run", judge("small", Some("12ab")));
    task.change(|settings| settings["judge"]["request"] = json!({"reasoning_effort": "low"}));
    let error = task.judged("run", judge("small", Some("12ab")), None).err().expect("asked otherwise").to_string();
    assert!(error.contains("task.judge") && error.contains("reasoning_effort"), "{error}");
}
