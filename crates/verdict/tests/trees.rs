//! Verdicts on the samples of an item, from their texts to scores, by a scripted judge.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::{Map, Value, json};

use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_score::{ScoredTree, TextScores};
use offshoot_verdict::{
    AnswerRule, Ask, Criterion, GroupRule, ItemVerdicts, JudgeAnswer, JudgeCounts, JudgePrompt, PairAnswer, PairRule,
    Question, RubricRule, ScriptedJudge, TextVerdict, Verdict, WordValues,
};

/// The fields that a question was written from: prompts are the fields as JSON.
fn fields(question: &Question) -> Value {
    let JudgePrompt::Text(text) = &question.prompt else { panic!("prompts are texts: {question:?}") };
    serde_json::from_str(text).expect("prompts are JSON")
}

/// The script of a judge that reads the fields of its prompt.
fn judge(script: impl Fn(&Value) -> Result<JudgeAnswer> + Send + Sync + 'static) -> ScriptedJudge {
    ScriptedJudge::new(move |question| script(&fields(question)))
}

fn verdicts(judge: &Arc<ScriptedJudge>, verdict: Verdict) -> ItemVerdicts {
    let write = |fields: &Map<String, Value>| match fields.values().any(|value| value == "unwritable") {
        true => Err(Error::value("prompt", "a text that can be shown", "unwritable")),
        false => Ok(JudgePrompt::Text(Value::from(fields.clone()).to_string())),
    };
    ItemVerdicts::new(Arc::clone(judge) as Arc<dyn Ask>, Arc::new(verdict), Arc::new(write), 7)
}

fn start(tree: &mut dyn ScoredTree, node: usize, text: &str) {
    tree.start(NodeId::new(node), None, &[text.to_owned()]).unwrap();
}

/// What has come, by the node's number.
fn polled(tree: &mut dyn ScoredTree) -> Vec<(usize, Result<TextScores>)> {
    let mut all: Vec<(usize, Result<TextScores>)> =
        std::iter::from_fn(|| tree.poll(Duration::ZERO)).map(|(node, scores)| (node.ix(), scores)).collect();
    all.sort_by_key(|(node, _)| *node);
    all
}

/// The scores that have come; `None`: an error.
fn scores(tree: &mut dyn ScoredTree) -> Vec<(usize, Option<f64>)> {
    let score = |scores: TextScores| scores.scores.scores[0].score;
    polled(tree).into_iter().map(|(node, scores)| (node, scores.ok().map(score))).collect()
}

fn yes_no() -> AnswerRule {
    AnswerRule::Words(WordValues::new([("yes".to_owned(), 1.0), ("no".to_owned(), 0.0)]).unwrap())
}

fn words(yes: f64) -> JudgeAnswer {
    JudgeAnswer::Words(vec![yes, 1.0 - yes])
}

/// A judge that says yes with the probability that a text names, and fails on other texts.
fn reads_numbers() -> ScriptedJudge {
    judge(|fields| {
        let text = fields["sample"].as_str().unwrap_or_default();
        let number = text.parse().map_err(|_| Error::value("sample", "a number", text))?;
        Ok(words(number))
    })
}

#[test]
fn each_distinct_text_is_judged_once() {
    let judge = Arc::new(reads_numbers());
    let mut tree = verdicts(&judge, Verdict::Each(yes_no())).tree();
    assert!(!tree.compares());
    for (node, text) in ["0.25", "0.5", "0.25", "x", "unwritable"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    assert_eq!(tree.waiting(), 5);
    let mut found = polled(&mut *tree);
    assert_eq!(tree.waiting(), 0);
    let texts: Vec<Value> = judge.questions().iter().map(fields).collect();
    let of = |text: &str| json!({"sample": text, "thoughts": text});
    assert_eq!(texts, ["0.25", "0.5", "x"].map(of));
    let errors: Vec<String> = found.drain(3..).map(|(_, scores)| scores.unwrap_err().to_string()).collect();
    assert_eq!(
        errors,
        ["sample: expected a number, found x", "prompt: expected a text that can be shown, found unwritable"]
    );
    let found: Vec<TextScores> = found.into_iter().map(|(_, scores)| scores.unwrap()).collect();
    assert_eq!(found[0], found[2]);
    assert_eq!(found[0].detail, Some(json!({"yes": 0.25, "no": 0.75})));
    assert_eq!(found[0].tokens, r#"{"sample":"0.25","thoughts":"0.25"}"#.len());
    // An equal text that comes later has the verdict that is there; so has a failed one.
    start(&mut *tree, 5, "0.5");
    start(&mut *tree, 6, "x");
    assert_eq!(scores(&mut *tree), [(5, Some(0.5)), (6, None)]);
    assert_eq!(judge.questions().len(), 3);
    assert!(tree.start(NodeId::new(5), None, &["0.5".to_owned()]).is_err(), "a node starts once");
    assert_eq!(
        judge.counts(),
        JudgeCounts { questions: 3, tokens: found[0].tokens + found[1].tokens, ..JudgeCounts::default() }
    );
}

#[test]
fn the_score_is_that_of_the_last_step() {
    let judge = Arc::new(reads_numbers());
    let mut tree = verdicts(&judge, Verdict::Each(yes_no())).tree();
    tree.start(NodeId::new(0), None, &["0.".to_owned(), "2".to_owned(), "5".to_owned()]).unwrap();
    let (_, scores) = polled(&mut *tree).remove(0);
    assert_eq!(scores.unwrap().scores.by_step(3), [None, None, Some(0.25)]);
}

#[test]
fn a_rubric_asks_about_each_criterion() {
    let judge = Arc::new(judge(|fields| match (&fields["sample"], &fields["criterion"]) {
        (sample, criterion) if sample == "bad" && criterion == "It is short." => {
            Err(Error::busy("question to the judge", "no answer"))
        }
        (_, criterion) => Ok(words(if criterion == "It is right." { 0.5 } else { 1.0 })),
    }));
    let criterion = |criterion: &str, points| Criterion { criterion: criterion.to_owned(), points };
    let criteria = vec![criterion("It is right.", 3.0), criterion("It is short.", 1.0)];
    let rubric = Verdict::Rubric(RubricRule::new(criteria, yes_no()).unwrap());
    assert_eq!(rubric.questions(2), 4);
    let mut tree = verdicts(&judge, rubric).tree();
    start(&mut *tree, 0, "good");
    start(&mut *tree, 1, "bad");
    let mut found = polled(&mut *tree);
    assert_eq!(found.remove(1).1.unwrap_err().to_string(), "question to the judge: no answer");
    let scored = found.remove(0).1.unwrap();
    assert_eq!(scored.scores.scores[0].score, 2.5 / 4.0);
    assert_eq!(scored.detail, Some(json!([{"yes": 0.5, "no": 0.5}, {"yes": 1.0, "no": 0.0}])));
    let asked: Vec<Value> = judge.questions().iter().take(2).map(fields).collect();
    let of = |criterion: &str, points: u32| {
        let sample = "good";
        json!({"sample": sample, "thoughts": sample, "criterion": criterion, "points": points})
    };
    assert_eq!(asked, [of("It is right.", 3), of("It is short.", 1)]);
    assert_eq!(scored.tokens, asked.iter().map(|fields| fields.to_string().len()).sum::<usize>());
}

#[test]
fn one_text_is_judged_with_further_fields() {
    let judge = Arc::new(judge(|fields| Ok(words(if fields["answer"] == "4" { 1.0 } else { 0.0 }))));
    let (send, received) = mpsc::channel();
    let of_one = |verdict: Verdict, answer: Value| {
        let (send, extra) = (send.clone(), [("answer".to_owned(), answer)].into_iter().collect());
        let then = move |verdict: Result<TextVerdict>| send.send(verdict).expect("the test waits");
        verdicts(&judge, verdict).of_one("2 + 2 = 4", extra, Box::new(then));
        received.try_recv().expect("the judge answers at once")
    };
    assert_eq!(of_one(Verdict::Each(yes_no()), json!("4")).unwrap().score, 1.0);
    assert_eq!(of_one(Verdict::Each(yes_no()), json!(null)).unwrap().score, 0.0);
    assert_eq!(fields(&judge.questions()[1]), json!({"answer": null, "sample": "2 + 2 = 4", "thoughts": "2 + 2 = 4"}));
    let error = of_one(pairs(None), json!("4")).unwrap_err().to_string();
    assert!(error.contains("expected `words`, `score` or `rubric`"), "{error}");
}

#[test]
fn an_equal_text_with_equal_fields_is_asked_about_once() {
    let judge = Arc::new(reads_numbers().holding());
    let (send, received) = mpsc::channel();
    let of_item = verdicts(&judge, Verdict::Each(yes_no()));
    let of_one = |name: &'static str, text: &str, answer: Value| {
        let (send, extra) = (send.clone(), [("answer".to_owned(), answer)].into_iter().collect());
        let then = move |verdict: Result<TextVerdict>| {
            let shown = verdict.map(|verdict| verdict.score).map_err(|error| error.to_string());
            send.send((name, shown)).expect("the test waits");
        };
        of_item.clone().of_one(text, extra, Box::new(then));
    };
    of_one("first", "0.5", json!(1));
    of_one("second", "0.5", json!(1));
    of_one("other answer", "0.5", json!(2));
    of_one("wrong", "x", json!(1));
    of_one("wrong, too", "x", json!(1));
    assert_eq!(judge.held(), 3);
    (0..3).for_each(|_| judge.answer_held(0));
    of_one("third", "0.5", json!(1));
    of_one("wrong again", "x", json!(1));
    assert_eq!(judge.questions().len(), 3);
    let why = || Err("sample: expected a number, found x".to_owned());
    let expected = [
        ("first", Ok(0.5)),
        ("second", Ok(0.5)),
        ("other answer", Ok(0.5)),
        ("wrong", why()),
        ("wrong, too", why()),
        ("third", Ok(0.5)),
        ("wrong again", why()),
    ];
    assert_eq!(received.try_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn an_answer_of_another_kind_is_none() {
    let judge = Arc::new(judge(|_| Ok(JudgeAnswer::Words(vec![1.0]))));
    let mut tree = verdicts(&judge, Verdict::Each(yes_no())).tree();
    start(&mut *tree, 0, "a");
    let error = polled(&mut *tree).remove(0).1.unwrap_err().to_string();
    assert!(error.contains("the probabilities of 2 words, found [1.0]"), "{error}");
}

fn pairs(opponents: Option<usize>) -> Verdict {
    Verdict::Pairs(PairRule::new(PairAnswer::words("A", "B").unwrap(), true, opponents).unwrap())
}

/// A judge that finds the longer text better, with `bias` added to the probability of the one that is shown first.
fn likes_length(bias: f64) -> ScriptedJudge {
    judge(move |fields| {
        let length = |field: &str| fields[field].as_str().map_or(0, str::len);
        let first = if length("first") > length("second") { 0.7 } else { 0.3 };
        Ok(words(first + bias))
    })
}

#[test]
fn pairs_are_compared_once_all_texts_are_there() {
    let judge = Arc::new(likes_length(0.2));
    let mut tree = verdicts(&judge, pairs(None)).tree();
    assert!(tree.compares());
    for (node, text) in ["a", "ccc", "bb", "a"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    assert!(polled(&mut *tree).is_empty() && tree.waiting() == 4 && judge.questions().is_empty());
    tree.complete();
    assert_eq!(pairs(None).questions(3), 6);
    // Equal texts are one; what the place adds cancels out: the longer text has 0.7.
    assert_eq!(judge.questions().len(), 6);
    let found = polled(&mut *tree);
    let expected = [0.3, 0.7, 0.5, 0.3];
    for ((_, scores), score) in found.iter().zip(expected) {
        assert!((scores.as_ref().unwrap().scores.scores[0].score - score).abs() < 1e-12, "{scores:?}");
    }
    assert_eq!(found.len(), 4);
    let detail = found[2].1.as_ref().unwrap().detail.clone().unwrap();
    assert!((detail["won"].as_f64().unwrap() - 1.0).abs() < 1e-12 && detail["of"] == 2, "{detail}");
    let tokens: usize = judge.questions().iter().map(|question| fields(question).to_string().len()).sum();
    let counted: usize = found[..3].iter().map(|(_, scores)| scores.as_ref().unwrap().tokens).sum();
    assert_eq!(counted, 2 * tokens, "each question is one about two texts");
    tree.complete();
    assert_eq!(judge.questions().len(), 6, "nothing has come since");
}

#[test]
fn what_is_asked_does_not_depend_on_the_order_in_which_texts_come() {
    let texts = ["d", "a", "c", "e", "b"];
    let groups = || Verdict::Groups(GroupRule::new(1, 3, 2, "/selected", None, 64).unwrap());
    for verdict in [pairs(Some(2)), groups()] {
        let asked = |texts: &mut dyn Iterator<Item = &str>| {
            let judge = Arc::new(ScriptedJudge::new(|_| Err(Error::busy("question to the judge", "no answer"))));
            let mut tree = verdicts(&judge, verdict.clone()).tree();
            texts.enumerate().for_each(|(node, text)| start(&mut *tree, node, text));
            tree.complete();
            judge.questions().iter().map(fields).collect::<Vec<Value>>()
        };
        assert_eq!(asked(&mut texts.into_iter()), asked(&mut texts.into_iter().rev()));
    }
}

#[test]
fn one_contestant_alone_is_asked_nothing() {
    let judge = Arc::new(likes_length(0.0));
    let groups = Verdict::Groups(GroupRule::new(1, 3, 1, "/selected", None, 64).unwrap());
    for (verdict, score) in [(pairs(None), 0.5), (groups, 1.0)] {
        let mut tree = verdicts(&judge, verdict).tree();
        start(&mut *tree, 0, "a");
        start(&mut *tree, 1, "a");
        tree.complete();
        assert_eq!(scores(&mut *tree), [(0, Some(score)), (1, Some(score))]);
    }
    assert!(judge.questions().is_empty());
}

#[test]
fn a_text_that_nobody_could_be_compared_with_has_the_first_error() {
    let judge = Arc::new(judge(|fields| match fields.to_string().contains("bb") {
        true => Err(Error::value("answer of the judge", "a word", fields["first"].to_string())),
        false => Ok(words(1.0)),
    }));
    let mut tree = verdicts(&judge, pairs(None)).tree();
    for (node, text) in ["a", "bb", "ccc"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    tree.complete();
    let mut found = polled(&mut *tree);
    let error = found.remove(1).1.unwrap_err().to_string();
    assert_eq!(error, "answer of the judge: expected a word, found \"a\"");
    assert!(found.iter().all(|(_, scores)| scores.as_ref().unwrap().detail.as_ref().unwrap()["of"] == 1));
}

#[test]
fn a_comparison_that_failed_is_told() {
    let judge = Arc::new(judge(|fields| match (&fields["first"], &fields["second"]) {
        (first, second) if first == "a" && second == "bb" => Err(Error::busy("question to the judge", "no answer")),
        _ => Ok(words(0.5)),
    }));
    let mut tree = verdicts(&judge, pairs(None)).tree();
    for (node, text) in ["a", "bb", "ccc"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    tree.complete();
    let why = Some("question to the judge: no answer".to_owned());
    let lacking: Vec<Option<String>> =
        polled(&mut *tree).into_iter().map(|(_, scores)| scores.expect("it has a pair").lacking).collect();
    assert_eq!(lacking, [why.clone(), why, None]);
}

#[test]
fn a_rotation_that_failed_is_told() {
    let judge = Arc::new(judge(|fields| match fields["samples"][0] == "a" {
        true => Ok(JudgeAnswer::Json(json!({"selected": "a"}))),
        false => Ok(JudgeAnswer::Json(json!({"selected": [1]}))),
    }));
    let verdict = Verdict::Groups(GroupRule::new(1, 2, 2, "/selected", None, 64).unwrap());
    let mut tree = verdicts(&judge, verdict).tree();
    start(&mut *tree, 0, "a");
    start(&mut *tree, 1, "b");
    tree.complete();
    let found: Vec<TextScores> = polled(&mut *tree).into_iter().map(|(_, scores)| scores.unwrap()).collect();
    assert_eq!(found.iter().map(|scores| scores.scores.scores[0].score).collect::<Vec<_>>(), [0.0, 1.0]);
    assert!(found.iter().all(|scores| scores.lacking.as_ref().is_some_and(|why| why.contains("one number"))));
}

#[test]
fn a_panic_while_a_question_is_written_is_an_error_of_its_text() {
    let judge = Arc::new(reads_numbers());
    let write = |fields: &Map<String, Value>| match fields["sample"] == "odd" {
        true => panic!("as it happens"),
        false => Ok(JudgePrompt::Text(Value::from(fields.clone()).to_string())),
    };
    let asked = Arc::<ScriptedJudge>::clone(&judge) as Arc<dyn Ask>;
    let mut tree = ItemVerdicts::new(asked, Arc::new(Verdict::Each(yes_no())), Arc::new(write), 7).tree();
    start(&mut *tree, 0, "odd");
    start(&mut *tree, 1, "0.5");
    let mut found = polled(&mut *tree);
    assert_eq!(found.remove(1).1.unwrap().scores.scores[0].score, 0.5);
    let error = found.remove(0).1.unwrap_err();
    assert!(error.to_string().contains("as it happens") && !error.ends_all(), "{error}");
}

#[test]
fn an_error_of_the_engine_is_every_text_s() {
    let judge = Arc::new(judge(|fields| match fields["first"] == "a" {
        true => Err(Error::EngineStopped { why: "out of power".to_owned() }),
        false => Ok(words(1.0)),
    }));
    let mut tree = verdicts(&judge, pairs(None)).tree();
    for (node, text) in ["a", "bb", "ccc"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    tree.complete();
    let found = polled(&mut *tree);
    assert!(found.len() == 3 && found.iter().all(|(_, scores)| scores.as_ref().is_err_and(Error::ends_all)));
}

#[test]
fn groups_choose_the_best_of_several() {
    // The longest texts.
    let judge = Arc::new(judge(|fields| {
        let samples = fields["samples"].as_array().unwrap();
        let mut numbers: Vec<usize> = (1..=samples.len()).collect();
        numbers.sort_by_key(|number| std::cmp::Reverse(samples[number - 1].as_str().unwrap().len()));
        let take = fields["take"].as_u64().unwrap() as usize;
        assert_eq!(fields["count"], samples.len());
        Ok(JudgeAnswer::Json(json!({"reasoning": "length", "selected": numbers[..take]})))
    }));
    let verdict = Verdict::Groups(GroupRule::new(2, 8, 3, "/selected", None, 64).unwrap());
    assert_eq!((verdict.questions(2), verdict.questions(4), verdict.questions(20)), (0, 3, 9));
    let mut tree = verdicts(&judge, verdict).tree();
    for (node, text) in ["a", "ccc", "bb", "dddd"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    tree.complete();
    assert_eq!(judge.questions().len(), 3);
    let found = polled(&mut *tree);
    let detail = found[1].1.as_ref().unwrap().detail.clone().unwrap();
    assert_eq!((&detail["chosen"], &detail["of"]), (&json!(3), &json!(3)));
    for (answer, question) in detail["answers"].as_array().unwrap().iter().zip(judge.questions()) {
        let number = answer["number"].as_u64().unwrap() as usize;
        assert_eq!(fields(&question)["samples"][number - 1], "ccc");
        assert_eq!(answer["answer"]["reasoning"], "length");
    }
    let scores: Vec<f64> = found.iter().map(|(_, scores)| scores.as_ref().unwrap().scores.scores[0].score).collect();
    assert_eq!(scores, [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn a_group_with_a_wrong_answer_has_its_error() {
    let judge = Arc::new(judge(|fields| {
        let is_bad = fields["samples"].as_array().unwrap().iter().any(|sample| sample == "a");
        Ok(JudgeAnswer::Json(json!({"selected": if is_bad { vec![1, 2] } else { vec![1] }})))
    }));
    let verdict = Verdict::Groups(GroupRule::new(1, 2, 1, "/selected", None, 64).unwrap());
    let mut tree = verdicts(&judge, verdict).tree();
    for (node, text) in ["a", "b", "c", "d"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    tree.complete();
    let found = polled(&mut *tree);
    let errors: Vec<&Error> = found.iter().filter_map(|(_, scores)| scores.as_ref().err()).collect();
    assert!(found[0].1.is_err() && errors.len() == 2, "the group of two that `a` is in");
    assert!(errors.iter().all(|error| error.to_string().contains("one number from 1 to 2 at \"/selected\"")));
}

#[test]
fn texts_that_were_given_up_are_not_compared() {
    let judge = Arc::new(likes_length(0.0));
    let mut tree = verdicts(&judge, pairs(None)).tree();
    for (node, text) in ["a", "bb", "ccc", "ccc"].into_iter().enumerate() {
        start(&mut *tree, node, text);
    }
    [1, 2].into_iter().for_each(|node| tree.prune(NodeId::new(node)));
    assert_eq!(tree.waiting(), 2);
    tree.complete();
    assert_eq!(judge.questions().len(), 2, "`a` with `ccc`, which another node ends with, too");
    assert_eq!(scores(&mut *tree).into_iter().map(|(node, _)| node).collect::<Vec<_>>(), [0, 3]);
    // What starts now is compared among itself.
    start(&mut *tree, 4, "a");
    start(&mut *tree, 5, "dddd");
    tree.complete();
    assert_eq!(judge.questions().len(), 4);
    assert_eq!(scores(&mut *tree).len(), 2);
}

#[test]
fn a_tree_that_is_gone_asks_nothing_more() {
    let judge = Arc::new(ScriptedJudge::new(|_| Ok(words(0.5))).holding());
    let mut tree = verdicts(&judge, pairs(None)).tree();
    (0..40).for_each(|node| start(&mut *tree, node, &node.to_string()));
    tree.complete();
    let asked = judge.questions().len();
    assert!(asked < 40 * 39);
    drop(tree);
    (0..asked).for_each(|_| judge.answer_held(0));
    assert_eq!((judge.questions().len(), judge.held()), (asked, 0));
}

#[test]
fn what_is_pruned_while_it_is_judged_is_not_reported() {
    let judge = Arc::new(reads_numbers().holding());
    let mut tree = verdicts(&judge, Verdict::Each(yes_no())).tree();
    start(&mut *tree, 0, "0.25");
    start(&mut *tree, 1, "0.5");
    tree.prune(NodeId::new(0));
    judge.answer_held(1);
    assert_eq!(scores(&mut *tree), [(1, Some(0.5))]);
    // The text comes again before the answer to the first question about it.
    start(&mut *tree, 0, "0.25");
    assert_eq!((judge.held(), tree.waiting()), (1, 1));
    judge.answer_held(0);
    assert_eq!(scores(&mut *tree), [(0, Some(0.25))]);
    // Nobody takes the answers of a tree that is gone.
    start(&mut *tree, 2, "0.75");
    drop(tree);
    judge.answer_held(0);
}
