//! Runs whose solutions a scripted scorer scores: what is written and when, and what a later process makes of it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::drive::Scorers;
use super::manifest::ScorerFiles;
use super::outcome::RunOutcome;
use super::test_task::{SAMPLES, TestTask, lines};
use crate::task::{Overrides, Task};
use offshoot_core::error::{Error, Result};
use offshoot_score::{Scale, ScorerIdentity, ScriptedAnswer, ScriptedScore, ScriptedScorer, TextScorer};

impl TestTask {
    /// One process of a run into the folder `name`. `killed_at`: it is interrupted when so many samples are written.
    fn run(&self, name: &str, scorer: &ScriptedScorer, killed_at: Option<usize>) -> Result<RunOutcome> {
        let files = ScorerFiles::new(Path::new("reward"), scorer.identity().clone())?;
        self.run_by(name, Scorers { reward: Some(scorer), judge: None }, (Some(files), None), killed_at)
    }
}

/// Each step is worth its share of vowels.
fn vowels(answer: &ScriptedAnswer<'_>) -> ScriptedScore {
    let share =
        |step: &String| step.bytes().filter(|byte| b"aeiou".contains(byte)).count() as f64 / step.len().max(1) as f64;
    ScriptedScore::steps(answer.steps.iter().map(share))
}

fn by_reward() -> Vec<Value> {
    vec![
        json!({"best_of_n": {"samples": SAMPLES, "by": "reward", "aggregate": "mean", "delimiter": " "}}),
        json!({"self_consistency": {"samples": SAMPLES, "weigh_by": "reward"}}),
    ]
}

fn by_steps() -> Vec<Value> {
    let (samples, delimiter) = (SAMPLES, " ");
    let tot = json!({"steps": 2, "breadth": 2, "evaluate": "reward", "answer": {},
        "generate": {"sample": {"thoughts": 2, "max_tokens": 4}}});
    vec![
        json!({"step_beam": {"samples": samples, "expansions": 2, "delimiter": delimiter, "steps": 3,
            "scorer": "reward"}}),
        json!({"dvts": {"samples": samples, "expansions": 2, "delimiter": delimiter, "steps": 3, "scorer": "reward",
            "lookahead": 1}}),
        json!({"mcts": {"samples": samples, "delimiter": delimiter, "steps": 3, "scorer": "reward", "value": "leaf"}}),
        json!({"particle_filtering": {"samples": samples, "delimiter": delimiter, "steps": 3, "scorer": "reward"}}),
        json!({ "tree_of_thought": tot }),
    ]
}

#[test]
fn results_have_the_scores_of_samples() {
    for method in by_reward().into_iter().chain(by_steps()) {
        let task = TestTask::new(method.clone());
        let run = task.run("run", &ScriptedScorer::new(vowels), None).expect("a sound task");
        assert!(run.ended.is_none() && run.failed.is_empty(), "{method}: {:?}", run.ended);
        let samples = lines(&task.out("run").join("samples.jsonl"));
        assert!(!samples.is_empty());
        for sample in &samples {
            assert!(sample["score"].is_f64() && sample["step_scores"].is_array(), "{method}: {sample}");
        }
        let items = lines(&task.out("run").join("items.jsonl"));
        assert_eq!(items.len(), 3);
        for item in &items {
            let scorer = &item["scorer"];
            assert_eq!((&scorer["scale"], &scorer["unscored"]), (&json!("probability"), &json!(0)), "{item}");
            assert!(scorer["texts"].as_u64() > Some(0) && scorer["tokens"].as_u64() > Some(0), "{item}");
            let chosen = samples.iter().find(|one| one["id"] == item["id"] && one["index"] == item["chosen"]);
            if method["best_of_n"].is_object() {
                let own = samples.iter().filter(|one| one["id"] == item["id"]).map(|one| one["score"].as_f64());
                assert_eq!(
                    chosen.expect("the best")["score"].as_f64(),
                    own.max_by(|a, b| a.partial_cmp(b).expect("numbers")).flatten()
                );
            }
        }
        let totals = run.summary.scores.scorer.expect("a scorer was asked");
        assert!(totals.unscored == 0 && totals.texts > 0 && totals.tokens > totals.texts);
    }
}

#[test]
fn a_run_killed_between_sampling_and_scoring_goes_on_as_if_it_had_not_been() {
    for method in by_reward() {
        let task = TestTask::new(method.clone());
        task.run("whole", &ScriptedScorer::new(vowels), None).expect("a sound task");
        let silent = ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::whole(0.5).never());
        let killed = task.run("killed", &silent, Some(3 * SAMPLES)).expect("what is sampled is kept");
        assert!(matches!(killed.ended, Some(Error::Interrupted)), "{:?}", killed.ended);
        let sampled = lines(&task.out("killed").join("samples.jsonl"));
        assert_eq!(sampled.len(), 3 * SAMPLES);
        assert!(sampled.iter().all(|sample| sample.get("score").is_none()), "none has been scored");
        assert!(lines(&task.out("killed").join("items.jsonl")).is_empty());
        let again = task.run("killed", &ScriptedScorer::new(vowels), None).expect("it goes on");
        assert!(again.ended.is_none());
        assert!(task.files("killed") == task.files("whole"), "{method}");
    }
}

#[test]
fn a_run_killed_while_it_writes_scores_goes_on_as_if_it_had_not_been() {
    let task = TestTask::new(by_reward().remove(0));
    task.run("whole", &ScriptedScorer::new(vowels), None).expect("a sound task");
    task.run("cut", &ScriptedScorer::new(vowels), None).expect("a sound task");
    let [samples, _] = task.files("cut");
    // The first item's samples were written again with two of its scores; nothing else was scored.
    let mut text = String::new();
    for line in samples.lines() {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        let keys = line.as_object_mut().expect("an object");
        keys.remove("score");
        keys.remove("step_scores");
        text += &format!("{line}\n");
    }
    text += &samples.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    fs::write(task.out("cut/samples.jsonl"), text).expect("writable");
    fs::write(task.out("cut/items.jsonl"), "").expect("writable");
    let scorer = ScriptedScorer::new(vowels);
    task.run("cut", &scorer, None).expect("it goes on");
    assert!(task.files("cut") == task.files("whole"));
    let scored = scorer.events();
    let started =
        scored.iter().filter(|event| matches!(event, offshoot_score::scripted::ScriptedEvent::Started { .. }));
    assert!(started.count() <= 3 * SAMPLES - 2, "what has a score keeps it");
}

#[test]
fn what_could_not_be_scored_is_named_and_tried_again() {
    let down = |answer: &ScriptedAnswer<'_>| match answer.node.0 % 2 {
        0 => ScriptedScore::failing("the scorer is asleep"),
        _ => vowels(answer),
    };
    for method in by_reward() {
        let task = TestTask::new(method);
        task.run("whole", &ScriptedScorer::new(vowels), None).expect("a sound task");
        let run = task.run("down", &ScriptedScorer::new(down), None).expect("the run goes on");
        assert!(run.ended.is_none() && run.failed.is_empty());
        let samples = lines(&task.out("down").join("samples.jsonl"));
        let failed = |sample: &&Value| {
            sample["score_error"].as_str().is_some_and(|why| why.contains("asleep")) && sample.get("score").is_none()
        };
        let unscored = samples.iter().filter(failed).count();
        assert!(unscored >= 3 && samples.len() == 3 * SAMPLES, "{unscored} of {samples:?}");
        let totals = run.summary.scores.scorer.clone().expect("a scorer was asked");
        assert!(totals.unscored > 0 && totals.first_error.is_some_and(|why| why.contains("asleep")));
        let page = run.summary.scores.to_string();
        assert!(page.contains("not scored, first: ") && page.contains("asleep"), "{page}");
        task.run("down", &ScriptedScorer::new(vowels), None).expect("it goes on");
        assert!(task.files("down") == task.files("whole"), "files of a run that goes on are those of one that did not");
    }
}

/// Its samples follow from the scores, so a search that went without any is done again.
#[test]
fn a_search_of_which_nothing_is_scored_is_done_again() {
    let down = |_: &ScriptedAnswer<'_>| ScriptedScore::failing("the scorer is asleep");
    for method in by_steps() {
        let task = TestTask::new(method.clone());
        task.run("whole", &ScriptedScorer::new(vowels), None).expect("a sound task");
        task.run("down", &ScriptedScorer::new(down), None).expect("the run goes on");
        task.run("down", &ScriptedScorer::new(vowels), None).expect("it goes on");
        assert!(task.files("down") == task.files("whole"), "{method}");
    }
}

#[test]
fn a_run_of_which_nothing_is_scored_says_so_in_the_end() {
    let down = ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::failing("the scorer is asleep"));
    let quarter = ScriptedScorer::new(|answer: &ScriptedAnswer<'_>| match answer.node.0 % 4 {
        1 => vowels(answer),
        _ => ScriptedScore::failing("the scorer is asleep"),
    });
    let task = TestTask::new(by_reward().remove(0));
    let items = Task::load(&task.path(), &Overrides::default()).and_then(|of| of.items(None));
    let (items, options) = (items.expect("three"), task.options("none"));
    for (name, scorer, is_left_out) in [("none", &down, true), ("some", &quarter, false)] {
        let run = task.run(name, scorer, None).expect("the run goes on");
        let ended = run.failure(&items, &options, Path::new(name));
        assert_eq!(ended.is_err(), is_left_out, "{ended:?}");
        if let Err(error) = ended {
            let error = error.to_string();
            assert!(error.contains("3 of 3 items have no text with a score, first `a`: "), "{error}");
            assert!(error.contains("asleep") && error.contains("tries again"), "{error}");
        }
    }
}

#[test]
fn an_error_of_the_scorer_ends_an_item_if_the_task_says_so() {
    let task = TestTask::new(by_reward().remove(0));
    task.change(|settings| settings["scorer"] = json!({"on_error": "fail"}));
    let down = ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::failing("the scorer is asleep"));
    let run = task.run("run", &down, None).expect("items fail, not the run");
    assert_eq!((run.failed.len(), run.finished.len()), (3, 0));
    assert!(run.failed[0].error.to_string().contains("asleep"));
    assert_eq!(lines(&task.out("run").join("samples.jsonl")).len(), 3 * SAMPLES, "nothing that was sampled is lost");
    // What becomes of texts without a score changes no sample.
    task.change(|settings| settings["scorer"] = json!({"on_error": "unscored"}));
    let again = task.run("run", &down, None).expect("it goes on");
    assert_eq!((again.failed.len(), again.finished.len()), (0, 3));
    let again = task.run("run", &ScriptedScorer::new(vowels), None).expect("it goes on");
    assert_eq!((again.failed.len(), again.finished.len()), (0, 3));
    assert_eq!(again.summary.scores.scorer.map(|scorer| scorer.unscored), Some(0));
}

#[test]
fn a_run_goes_on_with_its_own_scorer_only() {
    let identity = |name: &str, digest: &str| {
        let [name, form, digest] = [name, "last-token", digest].map(str::to_owned);
        ScorerIdentity { name, form, digest }
    };
    let scorer = |name, digest| ScriptedScorer::new(vowels).identified(identity(name, digest));
    let task = TestTask::new(by_reward().remove(0));
    task.run("run", &scorer("small", "12ab"), None).expect("a sound task");
    let error = task.run("run", &scorer("large", "34cd"), None).err().expect("another scorer").to_string();
    for part in ["scorer", "small", "12ab", "large", "34cd"] {
        assert!(error.contains(part), "{error}");
    }
    task.run("run", &scorer("small", "12ab"), None).expect("its own");
}

/// Logits weigh by their sigmoids: a vote of the raw numbers would count against an answer.
#[test]
fn scores_that_are_logits_are_ranked_as_they_are() {
    let task = TestTask::new(by_reward().remove(0));
    let logits = |answer: &ScriptedAnswer<'_>| ScriptedScore::whole(-(answer.text().len() as f64));
    let run = task.run("run", &ScriptedScorer::new(logits).of_scale(Scale::Logit), None).expect("a sound task");
    assert!(run.ended.is_none());
    for item in lines(&task.out("run").join("items.jsonl")) {
        assert_eq!(item["scorer"]["scale"], "logit");
        let samples = lines(&task.out("run").join("samples.jsonl"));
        let own = samples.iter().filter(|sample| sample["id"] == item["id"]);
        let shortest = own.min_by_key(|sample| sample["text"].as_str().map(str::len)).expect("samples");
        assert_eq!(item["chosen"], shortest["index"]);
    }
}
