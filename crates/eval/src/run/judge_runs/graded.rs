//! Runs whose samples a scripted judge grades.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::run::manifest::ScorerFiles;
use crate::run::prepare::PreparedRun;
use offshoot_score::{ScriptedAnswer, ScriptedScore, ScriptedScorer, TextScorer};

/// A share of vowels that some samples have and others have not.
const RIGHT_FROM: f64 = 0.22;

/// A task that a judge grades, by whether the share of vowels in its question is above `right_from`.
pub fn graded(method: Value, right_from: f64) -> TestTask {
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
        step_beam("mean_logprob"),
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
        // Searches by steps do not draw alike.
        assert_eq!(scores.single.is_some(), method.get("step_beam").is_none(), "{method}");
        if let Some(single) = scores.single {
            let mut each = Vec::new();
            for id in ["a", "b", "c"] {
                let own: Vec<bool> =
                    whole.iter().filter(|one| one["id"] == id).map(|one| one["correct"] == true).collect();
                let right = own.iter().filter(|right| **right).count();
                each.extend((!own.is_empty()).then_some(right as f64 / own.len() as f64));
            }
            let mean = each.iter().sum::<f64>() / each.len() as f64;
            assert!((single.value - mean).abs() < 1e-9, "{method}: {} against {mean}", single.value);
        }
        let page = run.summary.to_string();
        assert!(page.contains("ungraded ") && page.contains("the judge is asleep"), "{page}");
        let failure =
            run.failure(&[], &task.options("down"), &task.out("down")).expect_err("it is not done").to_string();
        assert!(failure.contains("without a grade by the judge"), "{failure}");
        task.whole("down", ScriptedJudge::new(vowels));
        assert!(task.files("down") == task.files("whole"), "{method}");
    }
}

/// A search that has ended and lacks grades is not done again: no sample is drawn, none asked about that has its grade.
#[test]
fn searches_by_steps_keep_their_samples_and_grades() {
    let task = graded(step_beam("mean_logprob"), RIGHT_FROM);
    task.whole("whole", ScriptedJudge::new(vowels));
    let half = |question: &Question| match text(question).len() % 2 {
        0 => sleeps(question),
        _ => vowels(question),
    };
    task.whole("down", ScriptedJudge::new(half));
    let lacking = task.samples("down").iter().filter(|sample| sample["judged"].get("error").is_some()).count();
    assert!(lacking > 0);
    let judge: Arc<ScriptedJudge> = Arc::new(ScriptedJudge::new(vowels));
    task.judged_by("down", &(judge.clone() as Arc<dyn Ask>), None).expect("it goes on");
    assert_eq!(judge.questions().len(), lacking, "each of these is asked about once more");
    assert!(task.files("down") == task.files("whole"));
}

/// Each grade is written as it comes, so a process that is killed between two loses none.
#[test]
fn grades_that_a_later_process_got_are_kept_when_it_is_killed() {
    for method in [json!({"sample": {"samples": SAMPLES}}), step_beam("mean_logprob")] {
        let task = graded(method.clone(), RIGHT_FROM);
        task.whole("whole", ScriptedJudge::new(vowels));
        task.whole("down", ScriptedJudge::new(sleeps));
        let all = task.samples("down").len();
        let judge = Arc::new(ScriptedJudge::new(vowels).holding());
        let asked = judge.clone() as Arc<dyn Ask>;
        let killed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while judge.held() == 0 {
                    std::thread::yield_now();
                }
                judge.answer_held(0);
            });
            // The lines of before, and one with a grade.
            task.judged_by("down", &asked, Some(all + 1)).expect("what is graded is kept")
        });
        assert!(matches!(killed.ended, Some(Error::Interrupted)), "{method}: {:?}", killed.ended);
        let graded = task.samples("down").iter().filter(|sample| sample["judged"]["score"].is_f64()).count();
        assert_eq!(graded, 1, "{method}");
        task.whole("down", ScriptedJudge::new(vowels));
        assert!(task.files("down") == task.files("whole"), "{method}");
    }
}

/// Solutions of a search by steps are graded all at once, not one after another.
#[test]
fn solutions_are_graded_together() {
    let tot = json!({"tree_of_thought": {"steps": 2, "breadth": 2, "evaluate": "reward", "answer": {},
        "generate": {"sample": {"thoughts": 2, "max_tokens": 4}}}});
    let scorer = ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::whole(0.5));
    for method in [step_beam("mean_logprob"), tot] {
        let task = graded(method.clone(), RIGHT_FROM);
        task.change(|settings| settings["items"] = json!([{"id": "a", "pens": 3}]));
        let judge = Arc::new(ScriptedJudge::new(vowels).holding());
        let asked = judge.clone() as Arc<dyn Ask>;
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while judge.held() < 2 {
                    std::thread::yield_now();
                }
                while !is_done.load(Ordering::Relaxed) {
                    match judge.held() {
                        0 => std::thread::yield_now(),
                        _ => judge.answer_held(0),
                    }
                }
            });
            let by = Scorers { reward: Some(&scorer), judge: Some(&asked) };
            let record = Some(JudgeRecord::of_server(&*asked));
            task.run_by("run", by, (None, record), None).expect("a sound task");
            is_done.store(true, Ordering::Relaxed);
        });
        let samples = task.samples("run");
        assert!(samples.len() > 1 && samples.iter().all(|sample| sample["correct"].is_boolean()), "{samples:?}");
    }
}

fn step_beam(scorer: &str) -> Value {
    json!({"step_beam": {"samples": SAMPLES, "expansions": 2, "scorer": scorer, "delimiter": " ", "steps": 2}})
}

/// A text that the scorer cannot score, which may be too long for it, is not the judge's: the run succeeds as it does
/// where nothing is graded.
#[test]
fn what_a_scorer_cannot_score_is_not_said_of_the_judge() {
    let task = graded(json!({"best_of_n": {"samples": SAMPLES, "by": "reward"}}), RIGHT_FROM);
    let scorer = ScriptedScorer::new(|answer: &ScriptedAnswer<'_>| match answer.node.0 % 2 {
        0 => ScriptedScore::failing("it is too long"),
        _ => ScriptedScore::whole(0.5),
    });
    let judge = Arc::new(ScriptedJudge::new(vowels)) as Arc<dyn Ask>;
    let files = ScorerFiles::new(Path::new("reward"), scorer.identity().clone()).expect("a folder");
    let record = Some(JudgeRecord::of_server(&*judge));
    let by = Scorers { reward: Some(&scorer), judge: Some(&judge) };
    let run = task.run_by("run", by, (Some(files), record), None).expect("a sound task");
    assert!(run.summary.scores.scorer.as_ref().is_some_and(|scorer| scorer.unscored > 0));
    run.failure(&[], &task.options("run"), &task.out("run")).expect("its judge has graded all");
}

#[test]
fn samples_are_on_disk_before_they_are_graded() {
    for method in [json!({"self_consistency": {"samples": SAMPLES}}), json!({"sample": {"samples": SAMPLES}})] {
        let task = graded(method.clone(), RIGHT_FROM);
        task.whole("whole", ScriptedJudge::new(vowels));
        let silent = ScriptedJudge::new(vowels).holding();
        let killed = task.judged("killed", silent, Some(3 * SAMPLES)).expect("what is sampled is kept");
        assert!(matches!(killed.ended, Some(Error::Interrupted)), "{:?}", killed.ended);
        let sampled = task.samples("killed");
        assert_eq!(sampled.len(), 3 * SAMPLES);
        assert!(sampled.iter().all(|sample| sample.get("judged").is_none() && sample["correct"].is_null()));
        task.whole("killed", ScriptedJudge::new(vowels));
        assert!(task.files("killed") == task.files("whole"), "{method}");
    }
}

/// A vote is decided by answers, a group by how many have finished: samples are on disk meanwhile.
#[test]
fn samples_of_a_run_that_may_stop_early_are_on_disk_before_they_are_graded() {
    let decided = json!({"self_consistency": {"samples": SAMPLES, "stop_when_decided": true}});
    let group = json!({"sample": {"samples": SAMPLES, "min_finished": 3}});
    for (method, follows) in [(decided, true), (group, false)] {
        let task = graded(method.clone(), RIGHT_FROM);
        task.whole("whole", ScriptedJudge::new(vowels));
        let killed = task.judged("killed", ScriptedJudge::new(vowels).holding(), Some(6)).expect("samples are kept");
        assert!(matches!(killed.ended, Some(Error::Interrupted)), "{:?}", killed.ended);
        let sampled = task.samples("killed");
        assert!(sampled.len() >= 6 && sampled.iter().all(|sample| sample.get("judged").is_none()), "{method}");
        task.whole("killed", ScriptedJudge::new(vowels));
        assert!(!follows || task.files("killed") == task.files("whole"), "{method}");
    }
}

/// Where a sample that passes ends the others, whether one passes follows from the samples; which of them count, from
/// the order in which grades come.
#[test]
fn a_run_that_stops_early_is_killed_and_goes_on() {
    let method = json!({"best_of_n": {"samples": SAMPLES, "by": "grade", "stop_when_passed": true}});
    let task = graded(method, RIGHT_FROM);
    let whole = task.whole("whole", ScriptedJudge::new(vowels));
    let some = |question: &Question| match text(question).len() % 2 {
        0 => sleeps(question),
        _ => vowels(question),
    };
    task.judged("killed", ScriptedJudge::new(some), Some(SAMPLES)).expect("what is graded is kept");
    let resumed = task.whole("killed", ScriptedJudge::new(vowels));
    let passed = |run: &RunOutcome| {
        let mut passed: Vec<_> = run.finished.iter().map(|item| (item.index, item.outcome.correct)).collect();
        passed.sort_unstable();
        passed
    };
    assert_eq!(passed(&resumed), passed(&whole));
    assert!(passed(&whole).iter().any(|(_, correct)| *correct == Some(true)), "one passes: {:?}", passed(&whole));
    for item in &resumed.finished {
        let samples = &item.outcome.samples;
        assert!(samples.iter().all(|sample| sample.correct.is_some()), "what could not be graded is asked about again");
        assert_eq!(samples.iter().any(|sample| sample.correct == Some(true)), item.outcome.correct == Some(true));
    }
}

/// Steps are scored by a question about steps, in batches that are counted: never by the grade of whole samples.
#[test]
fn a_judges_grades_score_no_steps() {
    for method in ["step_beam", "mcts", "particle_filtering"] {
        let task = graded(json!({ method: {"samples": SAMPLES, "delimiter": " ", "scorer": "grade"} }), 0.5);
        let error = PreparedRun::new(&task.path(), &task.options("run")).err().expect("no such scorer").to_string();
        assert!(error.contains(&format!("method.{method}.scorer")) && error.contains("grade.verdict"), "{error}");
    }
}

#[test]
fn a_question_about_answers_needs_a_rule_for_them() {
    let task = graded(json!({"sample": {"samples": 1}}), 0.5);
    task.change(|settings| drop(settings.as_object_mut().expect("an object").remove("answer")));
    let error = PreparedRun::new(&task.path(), &task.options("run")).err().expect("no rule").to_string();
    assert!(error.contains("`answer`") && error.contains("sample_answer"), "{error}");
}

#[test]
fn a_sample_that_passes_stops_the_others() {
    let method = json!({"best_of_n": {"samples": 64, "by": "grade", "stop_when_passed": true}});
    let task = graded(method, 0.0);
    let run = task.whole("run", ScriptedJudge::new(vowels));
    assert!(run.finished.iter().all(|item| item.outcome.correct == Some(true)));
    assert!(run.summary.scores.cancelled > 0, "one passes at once");
}
