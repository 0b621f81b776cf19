//! Task files that ask a judge about samples: who it is, what it is asked, and what each mistake is answered with.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use offshoot_eval::task::{AskedBy, AskedJudge, AskedKey, JudgeChoice, Overrides, Task, TaskPrompt, help};
use offshoot_launch::JudgeFolderOptions;
use offshoot_search::OnScorerError;
use offshoot_verdict::Verdict;

use crate::task_files::{Desk, refused, sample_task, with};

const BEST: &str = "method.best_of_n.by";

fn best(by: Value) -> Value {
    with("method", json!({"best_of_n": {"samples": 4, "by": by}}))
}

fn judged(judge: Value) -> Value {
    let mut task = best(json!({"prompt": "{{sample}}?", "words": {" yes": 1, " no": 0}}));
    task["judge"] = judge;
    task
}

/// A verdict object with these keys beside a prompt about one text.
fn about(keys: Value) -> Value {
    let mut verdict = json!({"prompt": "{{q}} {{sample}}?"});
    verdict.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    verdict
}

fn verdict_of(task: &Task) -> Verdict {
    let item = &task.items(None).unwrap()[0];
    let verdict = task.verdicts().into_iter().flatten().next().expect("it has one");
    Verdict::clone(&verdict.of_item(task.items_path(), item).unwrap())
}

#[test]
fn a_judge_is_the_model_itself_a_folder_or_a_server() {
    let desk = Desk::new();
    let by = |judge: Value| desk.load(&judged(judge)).unwrap().judge;
    assert!(matches!(by(Value::Null).by, JudgeChoice::Own));
    assert!(matches!(by(json!({"on_error": "fail"})).by, JudgeChoice::Own));
    assert_eq!(by(json!({"on_error": "fail"})).on_error, OnScorerError::Fail);
    let path = desk.put("t.json", "").parent().unwrap().join("models/judge");
    let JudgeChoice::Folder(folder) = by(json!("models/judge")).by else { panic!("a folder") };
    assert_eq!(folder, JudgeFolderOptions::new(&path));
    let JudgeChoice::Folder(folder) = by(json!({"model": "models/judge", "memory": 0.3})).by else { panic!("one") };
    assert_eq!(folder, JudgeFolderOptions { path, memory: Some(0.3) });
    let url = "https://host/v1";
    let JudgeChoice::Server(server) = by(json!({ "url": url })).by else { panic!("a server") };
    assert_eq!((server.url.as_str(), &server.model, server.key.is_none()), (url, &None, true));
    assert_eq!((server.requests, server.timeout, server.retries), (16, Duration::from_secs(60), 3));
    let request = json!({"max_tokens": null, "max_completion_tokens": 512});
    let whole = json!({"url": url, "name": "large", "requests": 4, "timeout": 2.5, "retries": 0, "request": request});
    let JudgeChoice::Server(server) = by(whole).by else { panic!("a server") };
    assert_eq!(server.model.as_deref(), Some("large"));
    assert_eq!((server.requests, server.timeout, server.retries), (4, Duration::from_millis(2500), 0));
    assert_eq!(Value::Object(server.request), request, "null takes a key away");
}

#[test]
fn what_is_no_judge_is_named() {
    let url = "https://host/v1";
    refused(&judged(json!(7)), &["`judge`", "a path, or an object with `model` or `url`"]);
    refused(&judged(json!({"model": "a", "url": url})), &["`judge`", "`model` or `url`", "both"]);
    refused(&judged(json!({"folder": "a"})), &["`judge.folder`", "`model`"]);
    refused(&judged(json!({"model": "a", "retries": 1})), &["`judge.retries`", "no `url`"]);
    refused(&judged(json!({"name": "a"})), &["`judge.name`", "no `url`"]);
    refused(&judged(json!({"url": url, "memory": 0.5})), &["`judge.memory`", "no `model`"]);
    refused(&judged(json!({"model": "a", "memory": 1})), &["`judge.memory`", "below 1"]);
    refused(&judged(json!({"url": "host"})), &["`judge.url`"]);
    refused(&judged(json!({"url": url, "requests": 0})), &["`judge.requests`", "at least 1"]);
    refused(&judged(json!({"url": url, "timeout": 0})), &["`judge.timeout`", "seconds above 0"]);
    refused(&judged(json!({"url": url, "request": "max"})), &["`judge.request`", "an object of keys"]);
    refused(&judged(json!({"on_error": "stop"})), &["`judge.on_error`", "`fail`"]);
}

#[test]
fn the_folder_of_a_judge_is_loaded_where_it_is_asked() {
    let (desk, model) = (Desk::new(), Path::new("models/own"));
    let asked = JudgeFolderOptions::new("models/other");
    let task = desk.load(&judged(json!("models/judge"))).unwrap();
    assert_eq!(task.judge_folder_options(Some(&asked), model), Some(asked.clone()));
    assert!(task.judge_folder_options(None, model).is_some_and(|folder| folder.path.ends_with("models/judge")));
    assert_eq!(task.judge_folder_options(Some(&JudgeFolderOptions::new(model)), model), None, "it is the model");
    let task = desk.load(&judged(json!({"url": "https://host/v1"}))).unwrap();
    assert_eq!(task.judge_folder_options(None, model), None);
    let task = desk.load(&sample_task()).unwrap();
    assert_eq!(task.judge_folder_options(Some(&asked), model), None, "nothing is asked");
}

#[test]
fn the_key_stands_in_a_file_or_in_the_environment() {
    let desk = Desk::new();
    let file = desk.put("key", "secret-of-this-test\n");
    let url = || Some(AskedBy::Url("https://host/v1".to_owned()));
    let asked = AskedJudge { by: url(), name: None, key: AskedKey::File(file) };
    let task = desk.load(&judged(Value::Null)).unwrap();
    let JudgeChoice::Server(server) = task.judge.asked(&asked).unwrap() else { panic!("a server") };
    assert!(server.key.is_some());
    assert!(!format!("{server:?} {asked:?}").contains("secret"), "a key is never shown");
    let lost = || AskedKey::File("no-such-file".into());
    let none = task.judge.asked(&AskedJudge { by: url(), name: None, key: lost() }).unwrap_err().to_string();
    assert!(none.contains("no-such-file"), "{none}");
    let unused = task.judge.asked(&AskedJudge { key: lost(), ..AskedJudge::default() }).unwrap_err().to_string();
    assert!(unused.contains("none, as no server judges"), "the model itself is shown no key: {unused}");
}

#[test]
fn a_verdict_is_one_of_four_kinds() {
    let desk = Desk::new();
    let of = |by: Value| verdict_of(&desk.load(&best(by)).unwrap());
    assert!(matches!(of(about(json!({"words": {" yes": 1, " no": 0}}))), Verdict::Each(_)));
    assert!(matches!(of(about(json!({"score": {"high": 5}, "max_tokens": 9}))), Verdict::Each(_)));
    let rubric = json!([{"criterion": "Is it short?", "points": 2}]);
    let prompt = "{{criterion}} {{sample}}";
    assert!(matches!(of(json!({"prompt": prompt, "rubric": rubric, "score": {"high": 5}})), Verdict::Rubric(_)));
    let pairs = json!({"prompt": "{{first}} {{second}}", "pairs": {"words": [" A", " B"], "opponents": 2}});
    assert!(matches!(of(pairs), Verdict::Pairs(_)));
    let winner = json!({"first": "1", "second": "2", "tie": "0", "at": "/best"});
    assert!(matches!(of(json!({"prompt": "{{first}} {{second}}", "pairs": {"winner": winner}})), Verdict::Pairs(_)));
    let groups = json!({"prompt": "{{samples}}", "groups": {"take": 2, "size": 4, "rotations": 3}});
    assert!(matches!(of(groups), Verdict::Groups(_)));
    // The value of a word is free only where the run's own model reads it.
    let worth = |worth: f64| about(json!({"words": {"sure": worth, "no": 0}}));
    let task = desk.load(&best(worth(20.0))).unwrap();
    let verdict = task.method.verdict().unwrap();
    assert_eq!(verdict.own_question().unwrap().words, [("sure".to_owned(), 20.0), ("no".to_owned(), 0.0)]);
    let error = verdict.check_values().unwrap_err().to_string();
    for part in ["t.json", "method.best_of_n.by.words", "from 0 to 1", "\"sure\"", "20"] {
        assert!(error.contains(part), "{error}");
    }
    let vote = with("method", json!({"self_consistency": {"samples": 4, "weigh_by": worth(20.0)}}));
    let key = "`method.self_consistency.weigh_by.words`";
    refused(&answering(vote), &[key, "from 0 to 1", "20"]);
}

fn answering(mut task: Value) -> Value {
    task["answer"] = json!({"regex": "(.*)"});
    task
}

#[test]
fn what_is_no_verdict_is_named() {
    let one = "one of `words`, `score`, `pairs` and `groups`";
    refused(&best(about(json!({}))), &[BEST, one, "none of the four"]);
    let two = json!({"words": {" yes": 1, " no": 0}, "score": {"high": 1}});
    refused(&best(about(two)), &[BEST, one, "`words`", "`score`"]);
    refused(&best(about(json!({"words": {" yes": 1}}))), &[&format!("{BEST}.words"), "at least two"]);
    let high = |low: f64, high: f64| best(about(json!({"score": {"low": low, "high": high}})));
    refused(&high(3.0, 3.0), &[&format!("{BEST}.score.high"), "above `low`, 3"]);
    refused(&best(about(json!({"score": {}}))), &[&format!("{BEST}.score"), "high"]);
    let at = |at: &str| best(about(json!({"score": {"high": 1, "at": at}})));
    refused(&at("score"), &[&format!("{BEST}.score.at"), "JSON pointer"]);
    refused(&at("/a/b"), &[&format!("{BEST}.score.at"), "no schema"]);
    let words = json!({"words": {" yes": 1, " no": 0}, "max_tokens": 5});
    refused(&best(about(words)), &[&format!("{BEST}.max_tokens"), "nothing where words answer"]);
    let pairs = |pairs: Value| best(json!({"prompt": "{{first}} {{second}}", "pairs": pairs}));
    refused(&pairs(json!({})), &[&format!("{BEST}.pairs"), "`words` or `winner`", "none of them"]);
    refused(&pairs(json!({"words": [" A"]})), &[&format!("{BEST}.pairs.words"), "two words"]);
    refused(&pairs(json!({"words": [" A", " A"]})), &[&format!("{BEST}.pairs.words"), "different"]);
    refused(&pairs(json!({"words": [" A", " B"], "winner": {}})), &[&format!("{BEST}.pairs"), "both"]);
    refused(&pairs(json!({"words": [" A", " B"], "opponents": 0})), &[&format!("{BEST}.pairs.opponents"), "1"]);
    let groups = |groups: Value| best(json!({"prompt": "{{samples}}", "groups": groups}));
    refused(&groups(json!({"take": 8})), &[&format!("{BEST}.groups.take"), "less than", "8"]);
    refused(&groups(json!({"size": 1})), &[&format!("{BEST}.groups.size"), "at least 2"]);
    let both = json!({"prompt": "{{samples}}", "groups": {}, "rubric": "field"});
    refused(&best(both), &[&format!("{BEST}.rubric"), "nothing beside `groups`"]);
    let points = about(json!({"rubric": [{"criterion": "a", "points": 0}], "words": {"a": 1, "b": 0}}));
    refused(&best(points), &[&format!("{BEST}.rubric"), "points"]);
}

#[test]
fn a_prompt_contains_what_it_asks_about() {
    let words = json!({" yes": 1, " no": 0});
    let of = |prompt: &str, keys: Value| {
        let mut verdict = keys;
        verdict["prompt"] = json!(prompt);
        best(verdict)
    };
    let key = format!("{BEST}.prompt");
    refused(&of("{{q}}", json!({ "words": words })), &[&key, "`{{sample}}`"]);
    let rubric = json!([{"criterion": "Is it short?", "points": 2}]);
    refused(&of("{{sample}}", json!({"words": words, "rubric": rubric})), &[&key, "`{{criterion}}`"]);
    refused(&of("{{first}}", json!({"pairs": {"words": [" A", " B"]}})), &[&key, "`{{second}}`"]);
    refused(&of("{{sample}}", json!({"groups": {}})), &[&key, "`samples`"]);

    let desk = Desk::new();
    let task = desk.load(&of("{{q}} {{sample}}|{{thoughts}}", json!({ "words": words }))).unwrap();
    let mut item = task.items(None).unwrap().remove(0);
    let verdict = task.method.verdict().unwrap();
    let levels = |text: &str| TaskPrompt::Levels(vec![text.to_owned()]);
    assert_eq!(verdict.prompt_about(&item, "two").unwrap(), levels("1+1? two|two"));
    // A field of such a name is another thing, where the prompt uses it.
    item.fields.insert("take".into(), json!(3));
    assert!(verdict.prompt_about(&item, "two").is_ok());
    item.fields.insert("sample".into(), json!("the item's own"));
    let error = verdict.prompt_about(&item, "two").unwrap_err().to_string();
    assert!(error.contains("without a field `sample`") && error.contains(BEST), "{error}");
}

#[test]
fn a_rubric_may_be_a_field_of_the_item() {
    let verdict = json!({"prompt": "{{criterion}} {{sample}}", "rubric": "checks", "words": {" yes": 1, " no": 0}});
    let task = |checks: Value| {
        let mut task = best(verdict.clone());
        task["items"] = json!([{"q": "1+1?", "checks": checks}]);
        Desk::new().load(&task).unwrap()
    };
    let checks = json!([{"criterion": "Is it short?", "points": 1}, {"criterion": "Is it two?", "points": 2.5}]);
    let Verdict::Rubric(rubric) = verdict_of(&task(checks)) else { panic!("a rubric") };
    assert_eq!(rubric.criteria().iter().map(|one| one.points).collect::<Vec<_>>(), [1.0, 2.5]);
    for (checks, found) in [
        (json!("short"), "\"short\""),
        (json!([{"criterion": "Is it short?"}]), "list"),
        (json!([]), "at least one"),
        (json!([{"criterion": "Is it short?", "points": -1}]), "-1"),
    ] {
        let task = task(checks);
        let item = &task.items(None).unwrap()[0];
        let error = task.method.verdict().unwrap().of_item(task.items_path(), item).unwrap_err().to_string();
        for part in ["`checks`", "`criterion`", "`points`", "item `0`", "method.best_of_n.by.rubric", found] {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
    }
}

#[test]
fn searches_by_steps_judge_texts_one_by_one() {
    let steps = |name: &str, scorer: &Value| with("method", json!({name: {"samples": 4, "scorer": scorer}}));
    let pairs = json!({"prompt": "{{first}} {{second}}", "pairs": {"words": [" A", " B"]}});
    let score = about(json!({"score": {"high": 10}}));
    for name in ["step_beam", "dvts", "mcts", "particle_filtering", "particle_gibbs"] {
        let task = Desk::new().load(&answering(steps(name, &score))).unwrap();
        assert!(task.method.verdict().is_some_and(|verdict| verdict.own_question().is_none()), "{name}");
        let key = format!("method.{name}.scorer.pairs");
        refused(&answering(steps(name, &pairs)), &[&key, "only `by` of `best_of_n`"]);
    }
    let tree = |judge: &Value| {
        let tot = json!({"generate": {"sample": {}}, "evaluate": {"judge": judge}});
        with("method", json!({ "tree_of_thought": tot }))
    };
    let task = Desk::new().load(&tree(&score)).unwrap();
    assert!(task.method.verdict().is_some() && task.method.reward_key().is_none());
    refused(&tree(&pairs), &["method.tree_of_thought.evaluate.judge.pairs", "only `by` of `best_of_n`"]);
}

#[test]
fn a_judge_may_grade() {
    let graded = |verdict: Value| with("grade", json!({ "verdict": verdict }));
    let verdict = about(json!({"words": {" yes": 1, " no": 0}, "right_from": 0.7}));
    let task = Desk::new().load(&graded(verdict)).unwrap();
    assert_eq!(task.graded_by_judge().map(|grade| grade.right_from), Some(0.7));
    let items = task.items(None).unwrap();
    assert!(items[0].is_graded() && items[0].graded_by().is_some() && items[0].reference().is_none());
    assert_eq!(task.grade(&items[0], "two", None), None, "only the judge knows");
    let usual = Desk::new().load(&graded(about(json!({"score": {"high": 10}})))).unwrap();
    assert_eq!(usual.graded_by_judge().map(|grade| grade.right_from), Some(0.5));
    refused(&graded(about(json!({"words": {" yes": 2, " no": 0}}))), &["`grade.verdict.words`", "from 0 to 1", "2"]);
    let range = about(json!({"words": {" yes": 1, " no": 0}, "right_from": 2}));
    refused(&graded(range), &["`grade.verdict.right_from`", "a number from 0 to 1"]);
    let groups = json!({"prompt": "{{samples}}", "groups": {}});
    refused(&graded(groups), &["`grade.verdict.groups`", "only `by` of `best_of_n`"]);
}

#[test]
fn votes_that_a_judge_weighs_are_drawn_whole() {
    let vote = |more: Value| {
        let verdict = about(json!({"words": {" yes": 1, " no": 0}}));
        let mut settings = json!({"samples": 4, "weigh_by": verdict});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        answering(with("method", json!({ "self_consistency": settings })))
    };
    assert!(Desk::new().load(&vote(json!({}))).is_ok());
    let key = |key: &str| format!("method.self_consistency.{key}");
    refused(&vote(json!({"stop_when_decided": true})), &[&key("stop_when_decided"), "weigh the votes"]);
    refused(&vote(json!({"confidence": {}})), &[&key("weigh_by"), "`confidence`"]);
    refused(&vote(json!({"min_finished": 2})), &[&key("min_finished"), "a judge weighs the votes"]);
    refused(&vote(json!({"aggregate": "min"})), &[&key("aggregate"), "`reward`"]);
}

#[test]
fn the_help_has_all_keys_of_judges() {
    let page = help::text();
    for key in [
        "judge:",
        "judge.url:",
        "judge.request:",
        "grade.verdict:",
        "grade.verdict.right_from:",
        "grade.verdict.score:",
        "grade.verdict.pairs.opponents:",
        "grade.verdict.groups.take:",
        "method.tree_of_thought.evaluate.judge:",
    ] {
        let verdict_keys = ["score:", "pairs.opponents:", "groups.take:"];
        let found = page.contains(&format!("\n{key} "));
        let elsewhere = verdict_keys.iter().any(|end| key.ends_with(end) && page.contains(&format!(".{end} ")));
        assert!(found || elsewhere, "{key} is not in the help");
    }
    let desk = Desk::new();
    let overrides = Overrides { set: vec!["judge.url=https://host/v1".to_owned()], ..Overrides::default() };
    let task = desk.load_with(&judged(Value::Null), &overrides).unwrap();
    assert!(matches!(task.judge.by, JudgeChoice::Server(_)));
}

/// Each example of docs/judges.md is a task, or keys that are put into the first one.
#[test]
fn the_examples_of_the_page_are_tasks() {
    let page = include_str!("../../../../docs/judges.md");
    let blocks: Vec<Value> = page
        .split("```json\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("it has a beginning"))
        .map(|block| serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}")))
        .collect();
    assert!(blocks.len() > 8, "{}", blocks.len());
    let desk = Desk::new();
    let checks = json!([{"criterion": "It is short.", "points": 2}]);
    let item = json!({"question": "1+1?", "answer": "2", "checks": checks});
    desk.put("questions.jsonl", item.to_string());
    for block in &blocks {
        let mut task = blocks[0].clone();
        task.as_object_mut().unwrap().extend(block.as_object().unwrap().clone());
        let task = desk.load(&task).unwrap_or_else(|error| panic!("{error}: {block}"));
        let item = &task.items(None).unwrap()[0];
        let verdicts: Vec<_> = task.verdicts().into_iter().flatten().collect();
        assert!(!verdicts.is_empty(), "{block}");
        for verdict in verdicts {
            verdict.first_prompt(task.items_path(), item).unwrap_or_else(|error| panic!("{error}: {block}"));
        }
    }
}
