//! Answers that cannot be scored: each has its error, and the others their scores.

use std::time::{Duration, Instant};

use offshoot_core::Error;
use offshoot_core::ids::NodeId;
use offshoot_engine::{Continuation, EngineConfig, EngineFacts, EngineHandle, PoolSize, Scoring, ScriptedReply};
use offshoot_score::{ScorerIdentity, ScorerModel, TextScorer};
use offshoot_text::Message;

use super::scorers::{Dice, FormCase, all, only, question, whole};

#[test]
fn an_answer_that_cannot_be_scored_has_an_error_of_its_own() {
    let case = FormCase::step_tag();
    let config = EngineConfig { context: Some(300), pool: PoolSize::Bytes(8_000 * 512), ..EngineConfig::default() };
    let scorer = case.scorer_by(config);
    let mut dice = Dice(2);
    let (good, long, empty) = (vec![dice.step(20)], vec![dice.step(400)], vec![" \n\n".to_owned()]);
    let marked = vec![format!("{} \u{FDD4}", dice.step(4))];
    let mut tree = scorer.begin(&question()).unwrap();
    for (node, steps) in [&good, &long, &empty, &marked].into_iter().enumerate() {
        tree.start(NodeId::new(node), None, steps).unwrap();
    }
    let [first, second, third, fourth] = <[_; 4]>::try_from(all(&mut *tree)).unwrap().map(|(_, result)| result);
    let tokens = scorer.form().render(&question(), &long).unwrap().tokens.len();
    assert!(matches!(second, Err(Error::BeyondScorersContext { tokens: found, context: 300, .. }) if found == tokens));
    let third = third.unwrap_err().to_string();
    assert!(third.contains("at least one step with text"), "{third}");
    let fourth = fourth.unwrap_err().to_string();
    assert!(fourth.contains("U+FDD4"), "{fourth}");
    // What goes on from one of them is scored on its own.
    let longer = vec![empty[0].clone(), good[0].clone()];
    tree.start(NodeId(4), Some(NodeId(2)), &longer).unwrap();
    let scored = only(&mut *tree, NodeId(4)).unwrap();
    assert_eq!(scored.scores.scores[0].score, first.unwrap().scores.scores[0].score);
    assert_eq!(scored.scores.scores[0].step, 1);
}

#[test]
fn an_answer_longer_than_all_memory_has_an_error_of_its_own() {
    for case in [FormCase::last_token(), FormCase::step_tag()] {
        let scorer = case.scorer_by(EngineConfig { pool: PoolSize::Bytes(20 * 16 * 512), ..EngineConfig::default() });
        let mut dice = Dice(2);
        let (good, long) = (vec![dice.step(20)], vec![dice.step(500)]);
        let mut tree = scorer.begin(&question()).unwrap();
        tree.start(NodeId(0), None, &long).unwrap();
        tree.start(NodeId(1), None, &good).unwrap();
        let results = all(&mut *tree);
        assert!(matches!(&results[0].1, Err(Error::OutOfPages { .. })), "{:?}", results[0].1);
        assert_eq!(results[1].1.as_ref().unwrap().scores, whole(&case.scorer(4_000), &good).scores);
    }
}

#[test]
fn what_is_given_up_is_not_reported() {
    let case = FormCase::last_token();
    let scorer = case.scorer(20_000);
    let mut dice = Dice(4);
    let mut tree = scorer.begin(&question()).unwrap();
    let steps: Vec<Vec<String>> = (0..40).map(|_| vec![dice.step(30)]).collect();
    for (node, steps) in steps.iter().enumerate() {
        tree.start(NodeId::new(node), None, steps).unwrap();
    }
    assert!(tree.start(NodeId(3), None, &steps[3]).is_err(), "started twice");
    (0..40).filter(|node| node % 4 != 0).for_each(|node| tree.prune(NodeId::new(node)));
    assert_eq!(tree.waiting(), 10);
    // Another answer at a node that was given up: the scores of the first are nobody's.
    tree.start(NodeId(1), None, &steps[0]).unwrap();
    let results = all(&mut *tree);
    let nodes: Vec<usize> = results.iter().map(|(node, _)| node.ix()).collect();
    assert_eq!(nodes, [0, 1, 4, 8, 12, 16, 20, 24, 28, 32, 36]);
    let scores = |at: usize| results[at].1.as_ref().unwrap().scores.clone();
    assert_eq!(scores(0), scores(1));
    assert_ne!(scores(0), scores(2));
    assert!(tree.poll(Duration::from_secs(3600)).is_none(), "nothing waits, so it does not either");
}

#[test]
fn a_question_that_the_form_cannot_have_is_refused() {
    let turns = FormCase::all().into_iter().find(|case| case.name == "words at turns").unwrap();
    let scorer = turns.scorer(1_000);
    let answered = [Message::user("1 + 1?"), Message::assistant("2.")];
    assert!(scorer.begin(&answered).is_err());
    let marked = scorer.begin(&[Message::user("\u{FDD4}")]).err().unwrap().to_string();
    assert!(marked.contains("U+FDD4"), "{marked}");
}

#[test]
fn a_poll_waits_as_long_as_its_patience() {
    let case = FormCase::last_token();
    let scorer = case.scorer(4_000);
    scorer.engine().pause(offshoot_engine::PauseMode::Keep).unwrap();
    let mut tree = scorer.begin(&question()).unwrap();
    let mut dice = Dice(4);
    tree.start(NodeId(0), None, &[dice.step(5)]).unwrap();
    let begin = Instant::now();
    assert!(tree.poll(Duration::from_millis(50)).is_none());
    assert!(begin.elapsed() >= Duration::from_millis(50));
    scorer.engine().resume().unwrap();
    only(&mut *tree, NodeId(0)).unwrap();
}

/// A scorer on an engine without a model, whose values a closure gives: `at` are the positions that are asked for.
fn scripted(case: &FormCase, mut values: impl FnMut(&[u32]) -> Vec<Vec<f32>> + Send + 'static) -> ScorerModel {
    let facts = |facts| EngineFacts { values: Some(1), vocab: 1 << 16, ..facts };
    let engine = EngineHandle::scripted_with(facts, move |call| match call.continuation {
        Continuation::Given { scoring: Some(Scoring::Values { at }), .. } => ScriptedReply::values(values(at)),
        other => panic!("{other:?}"),
    });
    let [name, form, digest] = ["scripted", "last-token", "0"].map(str::to_owned);
    ScorerModel::new(engine, case.resolved(), ScorerIdentity { name, form, digest }).unwrap()
}

#[test]
fn a_value_that_is_no_number_is_an_error_of_one_answer() {
    let case = FormCase::last_token();
    let mut asked = 0;
    let scorer = scripted(&case, move |at| {
        asked += 1;
        at.iter().map(|_| vec![if asked == 2 { f32::NAN } else { 0.25 }]).collect()
    });
    let mut tree = scorer.begin(&question()).unwrap();
    tree.start(NodeId(0), None, &["It is 36.".to_owned()]).unwrap();
    let error = only(&mut *tree, NodeId(0)).unwrap_err().to_string();
    assert!(error.contains("a finite number") && error.contains("NaN"), "{error}");
    tree.start(NodeId(1), None, &["It is 12.".to_owned()]).unwrap();
    assert_eq!(only(&mut *tree, NodeId(1)).unwrap().scores.scores[0].score, 0.25);
}

#[test]
fn an_engine_that_stops_or_leaves_values_out_leaves_no_answer_waiting() {
    let case = FormCase::last_token();
    let silent = scripted(&case, |_| Vec::new());
    let mut tree = silent.begin(&question()).unwrap();
    tree.start(NodeId(0), None, &["It is 36.".to_owned()]).unwrap();
    let error = only(&mut *tree, NodeId(0)).unwrap_err().to_string();
    assert!(error.contains("left out a value"), "{error}");
    let broken = scripted(&case, |_| panic!("the script ends"));
    let mut tree = broken.begin(&question()).unwrap();
    for node in 0..3 {
        tree.start(NodeId(node), None, &[format!("It is {node}.")]).unwrap();
    }
    for (_, result) in all(&mut *tree) {
        assert!(matches!(result, Err(Error::EngineStopped { .. })), "{result:?}");
    }
}

#[test]
fn a_model_that_generates_is_no_scorer() {
    let case = FormCase::last_token();
    let engine = EngineHandle::scripted(|_| ScriptedReply::text(""));
    let [name, form, digest] = ["scripted", "last-token", "0"].map(str::to_owned);
    let identity = ScorerIdentity { name, form, digest };
    let error = ScorerModel::new(engine, case.resolved(), identity).err().unwrap().to_string();
    assert!(error.contains("1 values at a token") && error.contains("a model that generates"), "{error}");
}
