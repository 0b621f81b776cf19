//! The search drivers on a scripted engine: who wins, who is stopped, what is recorded, and how a driver ends early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use offshoot_core::{Error, Result};
use offshoot_engine::{Continuation, EngineHandle, FinishReason, Records, SamplingParams, ScriptedReply};
use offshoot_search::settings::{BestBy, BestOfN};
use offshoot_search::tree::{NodeState, SamplingTree};
use offshoot_search::vote::Decided;
use offshoot_search::{
    Assessment, Assessor, Outcome, Sample, SearchJob, best_of_n, sample, self_consistency, verdict_on,
};

use crate::job;
use job::Order;

/// What each sample says: branches are numbered from the root (0) on, so sample `i` is branch `i + 1`.
fn saying(replies: Vec<ScriptedReply>) -> SamplingTree {
    let engine = EngineHandle::scripted(move |call| replies[call.branch.0 as usize - 1].clone());
    job::tree_on(engine, "Q")
}

fn texts(replies: &[&str]) -> Vec<ScriptedReply> {
    replies.iter().map(|text| ScriptedReply::text(text)).collect()
}

/// The answer is the text without its padding, `?` is none; `7` is right.
fn assess(text: &str) -> Assessment {
    let text = text.trim_end();
    let answer = (text != "?" && !text.is_empty()).then(|| text.to_string());
    Assessment { correct: Some(answer.as_deref() == Some("7")), answer, ..Assessment::default() }
}

/// Runs a driver and returns its outcome and what was recorded.
fn drive(
    search: impl FnOnce(&mut SearchJob<'_>) -> Result<Outcome>,
    interrupted: bool,
) -> (Result<Outcome>, Vec<Sample>) {
    let order = Order { interrupted: AtomicBool::new(interrupted), ..Order::default() };
    let mut recorded = Vec::new();
    let mut record = |sample: &Sample| {
        recorded.push(sample.clone());
        Ok(())
    };
    let outcome = search(&mut order.job(Assessor::new(assess), &mut record));
    (outcome, recorded)
}

fn vote(replies: Vec<ScriptedReply>, stop: Decided) -> (Outcome, Vec<Sample>) {
    let n = replies.len();
    let mut tree = saying(replies);
    let root = tree.root();
    let (outcome, recorded) = drive(|job| self_consistency(&mut tree, root, n, stop, job), false);
    (outcome.expect("nothing fails"), recorded)
}

#[test]
fn the_majority_wins() {
    let (outcome, recorded) = vote(texts(&["8", "7", "?", "7", "9"]), Decided::Never);
    assert_eq!(outcome.prediction.as_deref(), Some("7"));
    assert_eq!(outcome.correct, Some(true));
    assert_eq!(outcome.chosen, Some(1));
    assert_eq!(outcome.votes, [("7".to_string(), 2), ("8".to_string(), 1), ("9".to_string(), 1)]);
    assert_eq!(recorded.len(), 5);
    assert_eq!(outcome.samples.iter().map(|sample| sample.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn of_equal_votes_the_smallest_index_wins_whoever_finished_first() {
    // Sample 0 is the longest, so it finishes last.
    let (outcome, recorded) = vote(texts(&["long answer", "7", "7", "long answer"]), Decided::Never);
    assert_eq!(recorded[0].index, 1);
    assert_eq!(outcome.prediction.as_deref(), Some("long answer"));
    assert_eq!(outcome.correct, Some(false));
}

#[test]
fn no_answer_is_wrong() {
    let (outcome, _) = vote(texts(&["?", "?"]), Decided::Never);
    assert_eq!((outcome.prediction, outcome.chosen, outcome.correct), (None, None, Some(false)));
}

#[test]
fn an_answer_is_as_right_as_its_first_sample() {
    // Same answer, other verdict: the grader looks at the padding too.
    fn picky(text: &str) -> Assessment {
        Assessment::graded(Some(text.trim_end().to_string()), Some(text == "7 "))
    }
    for (replies, right) in [(["7", "7 ", "8"], false), (["7 ", "7", "8"], true)] {
        let mut tree = saying(texts(&replies));
        let root = tree.root();
        let outcome = drive(
            |job| {
                job.assessor = Assessor::new(picky);
                self_consistency(&mut tree, root, 3, Decided::Never, job)
            },
            false,
        );
        let outcome = outcome.0.expect("nothing fails");
        assert_eq!(outcome.correct, Some(right));
        assert_eq!(verdict_on("7", &outcome.samples), outcome.correct, "the rule of maj@k");
        assert_eq!(verdict_on("9", &outcome.samples), None);
    }
}

#[test]
fn a_decided_vote_stops_the_rest() {
    let mut replies = texts(&["7", "7", "7"]);
    replies.extend([ScriptedReply::text("8").until_cancelled(), ScriptedReply::text("8").until_cancelled()]);
    let (outcome, recorded) = vote(replies, Decided::Certain);
    assert_eq!(outcome.prediction.as_deref(), Some("7"));
    assert_eq!(outcome.cancelled, 2);
    assert_eq!(recorded.len(), 3, "what was cancelled is no sample");
}

#[test]
fn what_decides_a_vote_does_not_depend_on_who_finishes_first() {
    let answers = ["7", "8", "7", "7", "?", "7", "7", "8", "8"];
    for round in 0..40 {
        // Each round has its own lengths, so its own order of finishing.
        let length = |index: usize| 1 + (index + 3) * (round + 5) % 13;
        let padded = (0..).zip(answers).map(|(index, answer)| format!("{answer:<width$}", width = length(index)));
        let (outcome, recorded) = vote(padded.map(|text| ScriptedReply::text(&text)).collect(), Decided::Certain);
        // Four against one leaves three that could draw level; five against one leaves two that cannot.
        let mut indices: Vec<u64> = recorded.iter().map(|sample| sample.index).collect();
        indices.sort();
        assert_eq!(indices, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(outcome.samples.len(), 7);
        assert_eq!(outcome.votes, [("7".to_string(), 5), ("8".to_string(), 1)]);
        assert_eq!((outcome.chosen, outcome.correct, outcome.cancelled), (Some(0), Some(true), 2));
    }
}

#[test]
fn what_the_vote_can_do_without_is_never_drawn() {
    let mut tree = saying(texts(&["7     ", "7     ", "7     ", "8", "8"]));
    let root = tree.root();
    let (outcome, recorded) = drive(|job| self_consistency(&mut tree, root, 5, Decided::Certain, job), false);
    assert_eq!(recorded.len(), 3);
    let outcome = outcome.expect("nothing fails");
    assert_eq!((outcome.cancelled, outcome.cancelled_tokens), (2, 0));
    let states: Vec<NodeState> = tree.children(root).into_iter().map(|node| tree.node(node).state()).collect();
    assert_eq!(states, [NodeState::Closed, NodeState::Closed, NodeState::Closed, NodeState::Pruned, NodeState::Pruned]);
    let grown = tree.children(root).into_iter().filter(|&node| tree.node(node).finish.is_some()).count();
    assert_eq!(grown, 3);
}

#[test]
fn an_undecided_vote_stops_nobody() {
    // After three of five, two more votes could still draw level.
    let (outcome, _) = vote(texts(&["7", "7", "?", "longer 8", "longer 8"]), Decided::Certain);
    assert_eq!(outcome.cancelled, 0);
    assert_eq!(outcome.samples.len(), 5);
}

fn best(replies: Vec<ScriptedReply>, by: BestBy) -> Outcome {
    let n = replies.len();
    let mut tree = saying(replies);
    let root = tree.root();
    drive(|job| best_of_n(&mut tree, root, &BestOfN::new(n, by), job), false).0.expect("nothing fails")
}

#[test]
fn the_best_is_what_the_measure_says() {
    let replies = || {
        vec![
            ScriptedReply::text("longest of all").logprob(-0.1), // sum -1.4, mean -0.1
            ScriptedReply::text("6").logprob(-0.5),              // sum -0.5, mean -0.5
            ScriptedReply::text("7").logprob(-2.0),              // sum -2.0, mean -2.0, right
            ScriptedReply::text("7").logprob(-0.6),              // right too
        ]
    };
    assert_eq!(best(replies(), BestBy::Logprob).chosen, Some(1));
    assert_eq!(best(replies(), BestBy::MeanLogprob).chosen, Some(0));
    let graded = best(replies(), BestBy::Grade);
    assert_eq!((graded.chosen, graded.correct), (Some(2), Some(true)), "the first that is right");
    let wrong = best(texts(&["1", "2"]), BestBy::Grade);
    assert_eq!((wrong.chosen, wrong.correct), (Some(0), Some(false)), "of equals the smallest index");
    assert!(wrong.tied.is_empty() && graded.tied.is_empty(), "all that could be chosen have one verdict");
    let equal = || ["6", "7", "8"].map(|text| ScriptedReply::text(text).logprob(-0.5)).to_vec();
    let tied = best(equal(), BestBy::Logprob);
    assert_eq!((tied.chosen, tied.correct, &tied.tied[..]), (Some(0), Some(false), &[0, 1, 2][..]));
    assert_eq!((tied.share_right(), tied.is_tied()), (Some(1.0 / 3.0), true));
}

#[test]
fn sampling_chooses_none_and_gives_every_branch_back() {
    let mut tree = saying(texts(&["7", "8"]));
    let root = tree.root();
    let outcome = drive(|job| sample(&mut tree, root, 2, job), false).0.expect("nothing fails");
    assert_eq!((outcome.prediction, outcome.chosen, outcome.correct), (None, None, None));
    for node in tree.children(root) {
        assert_eq!(tree.node(node).state(), NodeState::Closed);
        assert_eq!(tree.node(node).finish, Some(FinishReason::EndOfText));
    }
}

#[test]
fn log_probabilities_are_in_the_result_where_they_were_asked_for() {
    let json = |params: SamplingParams| {
        let mut tree = saying(vec![ScriptedReply::text("7").logprob(-0.5)]);
        let root = tree.root();
        let order = Order { params, ..Order::default() };
        let mut record = |_: &Sample| Ok(());
        let outcome = sample(&mut tree, root, 1, &mut order.job(Assessor::new(assess), &mut record));
        serde_json::to_value(&outcome.expect("nothing fails").samples[0]).expect("it is JSON")
    };
    let token = u32::from(b'7');
    let asking = SamplingParams::default;
    let with = |top| serde_json::json!([{ "token": token, "logprob": -0.5, "rank": 1, "top": top }]);
    assert_eq!(json(asking().top_logprobs(2))["logprobs"], with(serde_json::json!([[token, -0.5]])));
    assert_eq!(json(asking().top_logprobs(0))["logprobs"], with(serde_json::json!([])));
    assert!(json(asking()).get("logprobs").is_none());
    let records = Records { kept_ids: true, entropy: true, ..Records::default() };
    let recorded = json(asking().records(records));
    let drawn = serde_json::json!({ "logprob": 0.0, "kept": 1, "lowest": 0.0, "ids": [token] });
    let expected = serde_json::json!([
        { "token": token, "logprob": -0.5, "top": [], "drawn": drawn, "entropy": 0.0 }
    ]);
    assert_eq!(recorded["logprobs"], expected);
    assert!(recorded.get("ending").is_none(), "nothing else was sampled");
}

#[test]
fn an_interrupt_ends_a_driver_while_branches_grow() {
    let mut tree = saying(vec![ScriptedReply::text("never ends").until_cancelled()]);
    let root = tree.root();
    let (outcome, recorded) = drive(|job| sample(&mut tree, root, 1, job), true);
    assert!(matches!(outcome, Err(Error::Interrupted)));
    assert!(recorded.is_empty());
}

#[test]
fn an_interrupt_ends_a_driver_while_nothing_happens() {
    let (done, ended) = std::sync::mpsc::channel();
    let order = Arc::new(Order::default());
    let interrupt = order.clone();
    std::thread::spawn(move || {
        // As during a long prompt: no token, no end.
        let mut tree = saying(vec![ScriptedReply::text("").until_cancelled()]);
        let root = tree.root();
        let mut record = |_: &Sample| Ok(());
        let mut job = order.job(Assessor::new(assess), &mut record);
        done.send(sample(&mut tree, root, 1, &mut job).map(drop)).expect("somebody waits");
    });
    // Makes it likely that the driver waits by then, which nothing tells. It must end at an earlier interrupt, too.
    std::thread::sleep(Duration::from_millis(20));
    interrupt.interrupted.store(true, Ordering::Relaxed);
    let outcome = ended.recv_timeout(Duration::from_secs(20)).expect("the driver ends");
    assert!(matches!(outcome, Err(Error::Interrupted)));
}

#[test]
fn a_sample_that_cannot_be_recorded_ends_the_search() {
    let mut tree = saying(texts(&["7", "8"]));
    let root = tree.root();
    let order = Order::default();
    let mut record = |_: &Sample| Err(Error::Internal("the disk is full".to_string()));
    let mut job = order.job(Assessor::new(assess), &mut record);
    let outcome = sample(&mut tree, root, 2, &mut job);
    assert!(outcome.is_err_and(|error| error.to_string().contains("the disk is full")));
}

/// A tree whose samples depend on their uniforms alone, as the engine's do, and so not on which others are drawn beside
/// them.
fn drawing() -> SamplingTree {
    let engine = EngineHandle::scripted(|call| match call.continuation {
        Continuation::Sampled { uniforms, .. } => {
            ScriptedReply::text(["7", "7   ", "8", "9 ", "7 "][(uniforms.uniform(0) * 5.0) as usize])
        }
        Continuation::Given { .. } => ScriptedReply::text(""),
    });
    job::tree_on(engine, "Q")
}

#[test]
fn a_search_taken_up_ends_as_one_that_was_never_interrupted() {
    const N: usize = 7;
    let search = |which: usize, earlier: &[Sample]| {
        let mut tree = drawing();
        let root = tree.root();
        let (outcome, recorded) = drive(
            |job| {
                job.earlier = earlier.to_vec();
                match which {
                    0 => sample(&mut tree, root, N, job),
                    1 => best_of_n(&mut tree, root, &BestOfN::new(N, BestBy::Logprob), job),
                    2 => self_consistency(&mut tree, root, N, Decided::Never, job),
                    _ => self_consistency(&mut tree, root, N, Decided::Certain, job),
                }
            },
            false,
        );
        (outcome.expect("nothing fails"), recorded, tree)
    };
    for which in 0..4 {
        let (whole, all, _) = search(which, &[]);
        for subset in 0..1u32 << all.len() {
            // In an order of their own: samples come to the disk as they finish.
            let earlier: Vec<Sample> = all.iter().rev().filter(|s| subset >> s.index & 1 == 1).cloned().collect();
            let (outcome, recorded, tree) = search(which, &earlier);
            assert_eq!(outcome.samples, whole.samples, "driver {which}, had {subset:b}");
            assert_eq!(outcome.votes, whole.votes);
            assert_eq!((&outcome.prediction, outcome.correct), (&whole.prediction, whole.correct));
            assert_eq!((outcome.chosen, outcome.cancelled), (whole.chosen, whole.cancelled));
            assert_eq!(earlier.len() + recorded.len(), whole.samples.len(), "nothing is recorded twice");
            let of = |index: u64| tree.nodes().find(|&at| at != tree.root() && tree.node(at).ordinal == index);
            for sample in &outcome.samples {
                assert_eq!(tree.node(of(sample.index).expect("in the tree")).text, sample.text);
            }
        }
    }
}
