//! What is said of a judge before a run: who answers, and how many questions.

use serde_json::{Value, json};

use super::graded::graded;
use super::*;
use crate::run::RunOptions;
use crate::run::judge::PlannedQuestions;
use crate::run::prepare::PreparedRun;
use crate::run::prompts::question_of;
use crate::task::{AskedBy, AskedJudge, AskedKey};
use offshoot_core::ids::TokenId;

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
    let judge = prepared.judge.as_ref().expect("there are questions").described();
    assert!(judge.contains("scripted") && judge.contains(SERVER), "{judge}");
}

#[test]
fn a_plan_counts_the_questions_of_searches_and_of_each_items_rubric() {
    // Three items; two samples of three steps at most, of which each is scored, and graded as a whole.
    let scorer = verdicts().remove(1);
    let beam = json!({"step_beam": {
        "samples": 2, "expansions": 2, "delimiter": " ", "steps": 3, "scorer": scorer
    }});
    assert_eq!(planned(&graded(beam.clone(), 0.5)).1.most, Some(3 * (2 * 3 + 2)));
    assert_eq!(planned(&task(beam)).1.most, Some(3 * 2 * 3));
    // Of four samples, by one criterion, by two and by three.
    let by = json!({"prompt": "{{criterion}} {{sample}}", "rubric": "checks", "score": {"high": 5}});
    let of_items = task(json!({"best_of_n": {"samples": SAMPLES, "by": by}}));
    of_items.change(|settings| {
        for (at, item) in settings["items"].as_array_mut().expect("a list").iter_mut().enumerate() {
            item["checks"] = json!(vec![json!({"criterion": "Is it so?", "points": 1}); at + 1]);
        }
    });
    assert_eq!(planned(&of_items).1.most, Some(SAMPLES * (1 + 2 + 3)));
}

#[test]
fn the_command_line_names_another_judge() {
    let task = task(json!({"best_of_n": {"samples": 1, "by": verdicts().remove(0)}}));
    let described = |asked: AskedJudge| {
        let options = RunOptions { asked_judge: asked, ..task.options("run") };
        let prepared = PreparedRun::new(&task.path(), &options)?;
        Ok::<String, Error>(prepared.judge.expect("there are questions").described())
    };
    let url = |url: &str| Some(AskedBy::Url(url.to_owned()));
    let asked = AskedJudge { by: url("https://host/v1"), name: None, key: AskedKey::None };
    assert_eq!(described(asked).expect("a server"), "scripted at https://host/v1");
    let asked = AskedJudge { by: None, name: Some("other".to_owned()), key: AskedKey::None };
    assert_eq!(described(asked).expect("a server"), format!("other at {SERVER}"));
    task.change(|settings| drop(settings.as_object_mut().expect("an object").remove("judge")));
    assert_eq!(described(AskedJudge::default()).expect("its own"), "the model itself");
    let asked = AskedJudge { by: url("https://host/v1"), name: None, key: AskedKey::None };
    assert_eq!(described(asked).expect("a server"), "the only model at https://host/v1");
    let error =
        described(AskedJudge { by: None, name: Some("other".to_owned()), key: AskedKey::None }).expect_err("no server");
    assert!(error.to_string().contains("judge_model"), "{error}");
    let asked = AskedJudge { by: url("https://me:secret@host/v1"), name: None, key: AskedKey::None };
    let error = described(asked).expect_err("an address with a password").to_string();
    assert!(error.contains("judge_url") && !error.contains("secret"), "{error}");
}

/// The answer found in a sample is known where it is graded alone; elsewhere it is a name like others.
#[test]
fn a_prompt_of_a_method_knows_no_answer_of_the_sample() {
    let by = json!({"prompt": "{{sample}}: {{sample_answer}}", "score": {"high": 9}});
    let task = task(json!({"best_of_n": {"samples": 1, "by": by}}));
    let error = PreparedRun::new(&task.path(), &task.options("run")).err().expect("no such field").to_string();
    assert!(error.contains("sample_answer"), "{error}");
    task.change(|settings| settings["items"] = json!([{"id": "a", "pens": 3, "sample_answer": "of the item"}]));
    let (_, PlannedQuestions { first: (_, text), .. }) = planned(&task);
    assert_eq!(text, "[a sample]: of the item");
}

#[test]
fn a_schema_that_no_answer_keeps_is_refused_before_the_run() {
    let schema = json!({"type": "object", "properties": {"score": {"type": "integer", "minimum": 9, "maximum": 1}},
        "required": ["score"]});
    let verdict = json!({"prompt": "{{sample}}", "score": {"high": 9, "schema": schema}});
    let task = TestTask::with(json!({"method": {"best_of_n": {"samples": 1, "by": verdict}}}));
    let error = PreparedRun::new(&task.path(), &task.options("run")).err().expect("no answer keeps it").to_string();
    for part in ["task.json", "method.best_of_n.by", "answers that the judge's tokens can write"] {
        assert!(error.contains(part), "{error}");
    }
    task.change(|settings| settings["judge"] = json!({"url": SERVER, "name": "large"}));
    assert!(PreparedRun::new(&task.path(), &task.options("run")).is_ok(), "what a server can write is its own affair");
}

/// Samples cannot write what the judge's turns are made of, in whichever batch the judge answers.
#[test]
fn special_tokens_of_samples_are_text_in_questions() {
    let task = task(json!({"best_of_n": {"samples": 1, "by": verdicts().remove(0)}}));
    task.change(|settings| drop(settings.as_object_mut().expect("an object").remove("judge")));
    let (mark, end) = ("<|end_of_text|>", TokenId(1));
    for (setting, is_special) in [(None, false), (Some("allow"), true), (Some("escape"), false)] {
        if let Some(setting) = setting {
            task.change(|settings| settings["special_tokens"] = json!(setting));
        }
        let run = PreparedRun::new(&task.path(), &task.options("run")).expect("a sound task");
        let own = run.own_question().expect("the model itself is asked");
        let about =
            |text: &str| question_of(own, &run.items[0], text, &mut run.task.encoder_of_questions(&run.tokenizer));
        assert!(!about("a sample").expect("a question").prompt.contains(&end));
        assert_eq!(about(&format!("a {mark} sample")).expect("a question").prompt.contains(&end), is_special);
    }
}
