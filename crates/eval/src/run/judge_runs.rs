//! Runs whose samples a scripted judge judges: what is asked, what is written and when, and what a later process makes
//! of it.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::drive::Scorers;
use super::judge::{JudgeRecord, PlannedQuestions};
use super::outcome::RunOutcome;
use super::prepare::PreparedRun;
use super::test_task::{SAMPLES, TestTask, demo_model};
use crate::task::{AskedBy, AskedJudge};
use offshoot_core::error::{Error, Result};
use offshoot_launch::JudgeFolderOptions;
use offshoot_verdict::{Ask, JudgeAnswer, JudgeIdentity, JudgePrompt, Question, ScriptedJudge, WantedAnswer};

/// No run of these tests connects to it: a scripted judge answers.
const SERVER: &str = "http://127.0.0.1:9/v1";

impl TestTask {
    /// One process of a run into the folder `name`, whose questions `judge` answers.
    fn judged(&self, name: &str, judge: ScriptedJudge, killed_at: Option<usize>) -> Result<RunOutcome> {
        self.judged_by(name, &(Arc::new(judge) as Arc<dyn Ask>), killed_at)
    }

    fn judged_by(&self, name: &str, judge: &Arc<dyn Ask>, killed_at: Option<usize>) -> Result<RunOutcome> {
        let record = JudgeRecord::of_server(&**judge);
        self.run_by(name, Scorers { reward: None, judge: Some(judge) }, (None, Some(record)), killed_at)
    }

    /// The whole run of an error: no item failed.
    fn whole(&self, name: &str, judge: ScriptedJudge) -> RunOutcome {
        let run = self.judged(name, judge, None).expect("a sound task");
        assert!(run.ended.is_none() && run.failed.is_empty(), "{:?} {:?}", run.ended, run.failed.first().map(|f| &f.error));
        run
    }
}

fn task(method: Value) -> TestTask {
    TestTask::with(json!({"method": method, "judge": {"url": SERVER, "name": "scripted"}}))
}

/// What a question says.
fn text(question: &Question) -> String {
    match &question.prompt {
        JudgePrompt::Text(text) => text.clone(),
        JudgePrompt::Chat { messages, .. } => messages.iter().filter_map(|turn| turn.last_text()).collect(),
    }
}

fn share_of_vowels(text: &str) -> f64 {
    text.bytes().filter(|byte| b"aeiou".contains(byte)).count() as f64 / text.len().max(1) as f64
}

/// Answers whatever is asked by the vowels of the question: each kind of answer is a sound one.
fn vowels(question: &Question) -> Result<JudgeAnswer> {
    let share = share_of_vowels(&text(question));
    Ok(match &question.answer {
        WantedAnswer::Words(words) => {
            let rest = (1.0 - share) / (words.len() - 1) as f64;
            JudgeAnswer::Words((0..words.len()).map(|at| if at == 0 { share } else { rest }).collect())
        }
        WantedAnswer::Json { schema, .. } => {
            let wanted = |name: &str| schema.pointer(&format!("/properties/{name}")).is_some();
            let pick = 1 + (share * 1000.0) as usize % 2;
            let winner = if pick == 1 { "A" } else { "B" };
            JudgeAnswer::Json(match (wanted("score"), wanted("winner")) {
                (true, _) => json!({"reasoning": "vowels", "score": 10.0 * share}),
                (_, true) => json!({"reasoning": "vowels", "winner": winner}),
                _ => json!({"reasoning": "vowels", "selected": [pick]}),
            })
        }
    })
}

fn sleeps(_: &Question) -> Result<JudgeAnswer> {
    Err(Error::value("the judge", "an answer", "the judge is asleep"))
}

/// Each kind of verdict, as it stands at `by` of `best_of_n`.
fn verdicts() -> Vec<Value> {
    let about = "Is this right?\n{{sample}}\nAnswer:";
    let chat = json!({"chat": {"system": "You judge.", "user": "{{thoughts}} of {{pens}}"}});
    let rubric = json!([{"criterion": "Is it short?", "points": 3}, {"criterion": "Is it true?", "points": 1}]);
    vec![
        json!({"prompt": about, "words": {" yes": 1, " no": 0}}),
        json!({"prompt": chat, "score": {"high": 10}, "max_tokens": 64}),
        json!({"prompt": "{{criterion}} ({{points}}) {{sample}}", "rubric": rubric, "words": {" yes": 1, " no": 0}}),
        json!({"prompt": "{{criterion}} {{sample}}", "rubric": rubric, "score": {"low": 0, "high": 10}}),
        json!({"prompt": "A: {{first}}\nB: {{second}}", "pairs": {"words": [" A", " B"]}}),
        json!({"prompt": "A: {{first}}\nB: {{second}}", "pairs": {"winner": {}, "both_orders": false, "opponents": 2}}),
        json!({"prompt": "{% for one in samples %}{{loop.index}}: {{one}}\n{% endfor %}{{take}} of {{count}}",
            "groups": {"size": 3, "rotations": 2}}),
    ]
}

/// Methods whose whole samples a judge scores.
fn of_samples() -> Vec<Value> {
    let best = verdicts().into_iter().map(|by| json!({"best_of_n": {"samples": SAMPLES, "by": by}}));
    let votes = verdicts().into_iter().map(|by| json!({"self_consistency": {"samples": SAMPLES, "weigh_by": by}}));
    best.chain(votes).collect()
}

/// Methods in which a judge scores steps or paths.
fn of_steps() -> Vec<Value> {
    let (samples, delimiter, scorer) = (SAMPLES, " ", verdicts().remove(1));
    let words = verdicts().remove(0);
    let tot = json!({"steps": 2, "breadth": 2, "evaluate": {"judge": words}, "answer": {},
        "generate": {"sample": {"thoughts": 2, "max_tokens": 4}}});
    let search = |scorer: &Value| json!({"samples": samples, "delimiter": delimiter, "steps": 3, "scorer": scorer});
    let beam = |scorer: &Value| {
        let mut settings = search(scorer);
        settings["expansions"] = json!(2);
        settings
    };
    vec![
        json!({"step_beam": beam(&scorer)}),
        json!({"dvts": beam(&words)}),
        json!({"mcts": search(&scorer)}),
        json!({"particle_filtering": search(&words)}),
        json!({ "tree_of_thought": tot }),
    ]
}

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
    for method in of_samples() {
        let task = task(method.clone());
        task.whole("whole", ScriptedJudge::new(vowels));
        let run = task.whole("down", ScriptedJudge::new(sleeps));
        let samples = task.samples("down");
        assert_eq!(samples.len(), 3 * SAMPLES, "nothing that was sampled is lost");
        let has_none = |sample: &Value| sample.get("score").is_none() && sample.get("score_error").is_some();
        let lacking = samples.iter().filter(|sample| has_none(sample)).count();
        // A sample that nothing is compared with is not asked about.
        assert!(lacking > 0, "{method}: {samples:?}");
        let page = run.summary.to_string();
        assert!(page.contains("not scored, first: ") && page.contains("the judge is asleep"), "{page}");
        let failure = run.failure(&[], &task.options("down"), &task.out("down")).expect_err("it is not done").to_string();
        for part in ["samples.jsonl", "without a score by the judge", "the judge is asleep", "asks again"] {
            assert!(failure.contains(part), "{failure}");
        }
        task.whole("down", ScriptedJudge::new(vowels));
        assert!(task.files("down") == task.files("whole"), "{method}");
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
    // Where it answers, and how often it is asked again, is free.
    task.change(|settings| settings["judge"] = json!({"url": "http://127.0.0.1:10/v1", "retries": 0, "requests": 2}));
    task.whole("run", judge("small", Some("12ab")));
    task.change(|settings| settings["judge"]["request"] = json!({"reasoning_effort": "low"}));
    let error = task.judged("run", judge("small", Some("12ab")), None).err().expect("asked otherwise").to_string();
    assert!(error.contains("task.judge") && error.contains("reasoning_effort"), "{error}");
}

/// A share of vowels that some samples have and others have not.
const RIGHT_FROM: f64 = 0.22;

/// A task that a judge grades, by whether the share of vowels in its question is above `right_from`.
fn graded(method: Value, right_from: f64) -> TestTask {
    let prompt = "Of {{pens}}: {{sample}} ({{sample_answer}})";
    let verdict = json!({"prompt": prompt, "score": {"high": 10}, "right_from": right_from});
    TestTask::with(json!({
        "method": method, "grade": {"verdict": verdict}, "judge": {"url": SERVER, "name": "scripted"},
    }))
}

#[test]
fn a_judge_grades_samples() {
    let task = graded(json!({"self_consistency": {"samples": SAMPLES}}), RIGHT_FROM);
    let run = task.whole("run", ScriptedJudge::new(vowels));
    let mut verdicts = Vec::new();
    for sample in task.samples("run") {
        let pens = ["a", "b", "c"].iter().position(|id| sample["id"] == *id).expect("an item") + 3;
        let [text, answer] = ["text", "answer"].map(|key| sample[key].as_str().unwrap_or_default());
        let share = share_of_vowels(&format!("Of {pens}: {text} ({answer})"));
        assert!((sample["judged"]["score"].as_f64().expect("a score") - share).abs() < 1e-12, "{sample}");
        assert_eq!(sample["judged"]["verdict"]["reasoning"], "vowels");
        assert_eq!(sample["correct"], json!(share >= RIGHT_FROM), "{sample}");
        verdicts.push(share >= RIGHT_FROM);
    }
    assert!(verdicts.contains(&true) && verdicts.contains(&false), "both occur: {:?}", task.samples("run"));
    assert!(run.summary.scores.accuracy.is_some() && run.summary.scores.single.is_some());
    assert_eq!(run.summary.scores.ungraded, 0);
}

/// What has no grade is in no number; `--resume` asks for it again.
#[test]
fn what_a_judge_cannot_grade_counts_nowhere() {
    for method in [
        json!({"self_consistency": {"samples": SAMPLES}}),
        json!({"best_of_n": {"samples": SAMPLES, "by": "grade"}}),
        json!({"sample": {"samples": SAMPLES}}),
        json!({"step_beam": {"samples": SAMPLES, "expansions": 2, "scorer": "mean_logprob", "delimiter": " ", "steps": 2}}),
    ] {
        let task = graded(method.clone(), RIGHT_FROM);
        task.whole("whole", ScriptedJudge::new(vowels));
        let half = |question: &Question| match text(question).len() % 2 {
            0 => sleeps(question),
            _ => vowels(question),
        };
        let run = task.whole("down", ScriptedJudge::new(half));
        let samples = task.samples("down");
        let (whole, lacking): (Vec<&Value>, Vec<&Value>) =
            samples.iter().partition(|sample| sample["judged"].get("error").is_none());
        assert!(!whole.is_empty() && !lacking.is_empty(), "{method}");
        for sample in &lacking {
            let why = sample["judged"]["error"].as_str().expect("why");
            assert!(sample["correct"].is_null() && why.contains("the judge is asleep"), "{sample}");
        }
        let scores = &run.summary.scores;
        assert_eq!(scores.ungraded, lacking.len());
        if let Some(single) = scores.single {
            let mut each = Vec::new();
            for id in ["a", "b", "c"] {
                let own: Vec<bool> = whole.iter().filter(|one| one["id"] == id).map(|one| one["correct"] == true).collect();
                let right = own.iter().filter(|right| **right).count();
                each.extend((!own.is_empty()).then_some(right as f64 / own.len() as f64));
            }
            let mean = each.iter().sum::<f64>() / each.len() as f64;
            assert!((single.value - mean).abs() < 1e-9, "{method}: {} against {mean}", single.value);
        }
        let page = run.summary.to_string();
        assert!(page.contains("ungraded ") && page.contains("the judge is asleep"), "{page}");
        let failure = run.failure(&[], &task.options("down"), &task.out("down")).expect_err("it is not done").to_string();
        assert!(failure.contains("without a grade by the judge"), "{failure}");
        task.whole("down", ScriptedJudge::new(vowels));
        assert!(task.files("down") == task.files("whole"), "{method}");
    }
}

#[test]
fn a_run_killed_while_a_judge_grades_goes_on_as_if_it_had_not_been() {
    let task = graded(json!({"self_consistency": {"samples": SAMPLES}}), RIGHT_FROM);
    task.whole("whole", ScriptedJudge::new(vowels));
    let some = |question: &Question| match text(question).len() % 2 {
        0 => sleeps(question),
        _ => vowels(question),
    };
    let killed = task.judged("killed", ScriptedJudge::new(some), Some(SAMPLES)).expect("what is graded is kept");
    assert!(killed.ended.is_none() || matches!(killed.ended, Some(Error::Interrupted)));
    task.whole("killed", ScriptedJudge::new(vowels));
    assert!(task.files("killed") == task.files("whole"));
}

#[test]
fn a_sample_that_passes_stops_the_others() {
    let method = json!({"best_of_n": {"samples": 64, "by": "grade", "stop_when_passed": true}});
    let task = graded(method, 0.0);
    let run = task.whole("run", ScriptedJudge::new(vowels));
    assert!(run.finished.iter().all(|item| item.outcome.correct == Some(true)));
    assert!(run.summary.scores.cancelled > 0, "one passes at once");
}

fn planned(task: &TestTask) -> (PreparedRun, PlannedQuestions) {
    let prepared = PreparedRun::new(&task.path(), &task.options("run")).expect("a sound task");
    let planned = PlannedQuestions::of(&prepared, &prepared.items.iter().collect::<Vec<_>>());
    let planned = planned.expect("sound questions").expect("there are questions");
    (prepared, planned)
}

#[test]
fn a_plan_counts_questions_and_shows_the_first() {
    let most = |by: Value| planned(&task(json!({"best_of_n": {"samples": SAMPLES, "by": by}}))).1.most;
    // Three items of four samples: six pairs, twice; four that meet two each, once; a group of four in two of two.
    let counts: Vec<Option<usize>> = verdicts().into_iter().map(most).collect();
    assert_eq!(counts, [12, 12, 24, 24, 36, 12, 12].map(Some));
    let task = graded(json!({"best_of_n": {"samples": SAMPLES, "by": verdicts().remove(0)}}), 0.5);
    let (prepared, PlannedQuestions { most, first: (key, text) }) = planned(&task);
    assert_eq!((most, key.as_str()), (Some(24), "method.best_of_n.by"));
    assert_eq!(text, "Is this right?\n[a sample]\nAnswer:");
    let judge = prepared.judge.expect("there are questions").described();
    assert!(judge.contains("scripted") && judge.contains(SERVER), "{judge}");
}

#[test]
fn the_command_line_names_another_judge() {
    let task = task(json!({"best_of_n": {"samples": 1, "by": verdicts().remove(0)}}));
    let described = |asked: AskedJudge| {
        let options = super::RunOptions { judge_model: asked, ..task.options("run") };
        let prepared = PreparedRun::new(&task.path(), &options)?;
        Ok::<String, Error>(prepared.judge.expect("there are questions").described())
    };
    let url = |url: &str| Some(AskedBy::Url(url.to_owned()));
    let asked = AskedJudge { by: url("https://host/v1"), name: None, key: None };
    assert_eq!(described(asked).expect("a server"), "scripted at https://host/v1");
    let asked = AskedJudge { by: None, name: Some("other".to_owned()), key: None };
    assert_eq!(described(asked).expect("a server"), format!("other at {SERVER}"));
    task.change(|settings| drop(settings.as_object_mut().expect("an object").remove("judge")));
    assert_eq!(described(AskedJudge::default()).expect("its own"), "the model itself");
    let asked = AskedJudge { by: url("https://host/v1"), name: None, key: None };
    assert_eq!(described(asked).expect("a server"), "the only model at https://host/v1");
    let error = described(AskedJudge { by: None, name: Some("other".to_owned()), key: None }).expect_err("no server");
    assert!(error.to_string().contains("judge_model"), "{error}");
}

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
