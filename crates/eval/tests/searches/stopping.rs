//! Stopping and judging while others decode: a vote that is decided draws no more, a candidate that has passed stops
//! its siblings, and whatever a judge does (wait, fail, panic, never end) the driver stays master of its search.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use offshoot_core::{Error, Result};
use offshoot_engine::{EngineHandle, FinishReason, ScriptedReply, Stop};
use offshoot_eval::run::judging::{JudgePool, JudgeQueue, Judged};
use offshoot_judge::{Judgement, TestVerdict, Verdict};
use offshoot_search::settings::{BestBy, BestOfN};
use offshoot_search::tree::{NodeState, SamplingTree};
use offshoot_search::vote::Decided;
use offshoot_search::{Assessment, Assessor, Outcome, Sample, SearchJob, best_of_n, sample, self_consistency};
use offshoot_text::AddSpecial;
use proptest::prelude::*;

use crate::job;
use job::Order;

/// Longer than anything here takes, so that a driver that hangs fails its test.
const PATIENCE: Duration = Duration::from_secs(60);

/// What each sample says: branches are numbered from the root (0) on, so sample `i` is branch `i + 1`.
fn saying(replies: Vec<ScriptedReply>) -> SamplingTree {
    let engine = EngineHandle::scripted(move |call| replies[call.branch.0 as usize - 1].clone());
    job::tree_on(engine, "Q")
}

fn texts(replies: &[&str]) -> Vec<ScriptedReply> {
    replies.iter().map(|text| ScriptedReply::text(text)).collect()
}

/// The answer is the text without its padding, `?` is none; `7` is right.
fn grade(text: &str) -> Assessment {
    let text = text.trim_end();
    let answer = (text != "?").then(|| text.to_string());
    Assessment { correct: Some(answer.as_deref() == Some("7")), answer, ..Assessment::default() }
}

/// Answers only: what is right is the judge's word.
fn answer(text: &str) -> Assessment {
    Assessment::graded(Some(text.to_string()), None)
}

fn judgement(right: bool) -> Judgement {
    let verdict = if right { Verdict::Accepted } else { Verdict::WrongAnswer };
    let (wall, cpu, peak_bytes) = (Duration::from_millis(5), Duration::from_millis(4), 1 << 20);
    Judgement {
        verdict,
        message: None,
        began: true,
        tests: vec![TestVerdict { verdict, message: None }],
        wall,
        cpu,
        peak_bytes,
    }
}

/// Runs a driver on what `assessor` says.
fn drive(
    assessor: Assessor<'_>,
    order: &Order,
    search: impl FnOnce(&mut SearchJob<'_>) -> Result<Outcome>,
) -> Result<Outcome> {
    search(&mut order.job(assessor, &mut |_| Ok(())))
}

fn vote(replies: Vec<ScriptedReply>, stop: Decided) -> Outcome {
    let n = replies.len();
    let mut tree = saying(replies);
    let root = tree.root();
    let search = |job: &mut SearchJob<'_>| self_consistency(&mut tree, root, n, stop, job);
    drive(Assessor::new(grade), &Order::default(), search).expect("nothing fails")
}

/// All samples of `replies` under a judge.
fn judged(
    replies: Vec<ScriptedReply>,
    threads: usize,
    judge: impl Fn(&str) -> Result<Judgement> + Send + Sync + 'static,
) -> Result<Outcome> {
    let n = replies.len();
    let mut tree = saying(replies);
    let root = tree.root();
    let judges = JudgePool::new(threads).expect("threads start");
    let assessor = Assessor::new(JudgeQueue::new(&answer, &judges, judge));
    drive(assessor, &Order::default(), |job| sample(&mut tree, root, n, job))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever finishes first: lengths are random too.
    #[test]
    fn a_vote_that_stops_when_certain_elects_whom_the_full_vote_elects(
        says in prop::collection::vec((prop_oneof![Just("?"), Just("7"), Just("8"), Just("9")], 1usize..12), 1..24),
    ) {
        let padded = || says.iter().map(|(answer, width)| ScriptedReply::text(&format!("{answer:<width$}"))).collect();
        let (full, stopped) = (vote(padded(), Decided::Never), vote(padded(), Decided::Certain));
        prop_assert_eq!(&stopped.prediction, &full.prediction);
        prop_assert_eq!((stopped.chosen, stopped.correct), (full.chosen, full.correct));
        prop_assert_eq!(stopped.samples.len() + stopped.cancelled, says.len());
        prop_assert_eq!(full.cancelled, 0);
        let first: Vec<u64> = (0..stopped.samples.len() as u64).collect();
        let counted: Vec<u64> = stopped.samples.iter().map(|sample| sample.index).collect();
        prop_assert_eq!(counted, first, "the first samples by index");
    }
}

#[test]
fn a_vote_that_is_sure_enough_stops() {
    // Four to none: a fair uniform would not show it in 31 of 32 cases.
    let outcome = vote(texts(&["7"; 10]), Decided::Confident(0.95));
    assert_eq!((outcome.votes, outcome.cancelled), (vec![("7".to_string(), 4)], 6));
    let outcome = vote(texts(&["7"; 10]), Decided::Confident(0.97));
    assert_eq!(outcome.cancelled, 5);
}

/// A candidate far longer than any test waits for.
fn endless() -> ScriptedReply {
    ScriptedReply::text(&"8".repeat(1 << 20)).until_cancelled()
}

#[test]
fn a_candidate_that_has_passed_stops_its_siblings() {
    let mut tree = saying(vec![endless(), ScriptedReply::text("6"), ScriptedReply::text("7   "), endless()]);
    let root = tree.root();
    let search = |job: &mut SearchJob<'_>| {
        best_of_n(&mut tree, root, &BestOfN::new(4, BestBy::Grade).stopping_when_passed(), job)
    };
    let outcome = drive(Assessor::new(grade), &Order::default(), search).expect("nothing fails");
    assert_eq!((outcome.chosen, outcome.correct, outcome.cancelled), (Some(2), Some(true), 2));
    let children = tree.children(root);
    let states: Vec<NodeState> = children.iter().map(|&node| tree.node(node).state()).collect();
    assert_eq!(states, [NodeState::Pruned, NodeState::Closed, NodeState::Closed, NodeState::Pruned]);
    assert_eq!(tree.node(children[0]).finish, Some(FinishReason::Cancelled));
    let drawn: usize = [children[0], children[3]].iter().map(|&node| tree.node(node).tokens.len()).sum();
    assert_eq!(outcome.cancelled_tokens, drawn, "what was drawn in vain is told");
}

#[test]
fn without_the_setting_nobody_is_stopped() {
    let mut tree = saying(texts(&["7", "long and wrong", "7"]));
    let root = tree.root();
    let search = |job: &mut SearchJob<'_>| best_of_n(&mut tree, root, &BestOfN::new(3, BestBy::Grade), job);
    let outcome = drive(Assessor::new(grade), &Order::default(), search).expect("nothing fails");
    assert_eq!((outcome.samples.len(), outcome.cancelled), (3, 0));
}

/// On the bundled model: what the siblings held is free when the driver returns.
#[test]
fn a_stopped_sibling_gives_its_pages_back() {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
    let (engine, tokenizer) = offshoot_launch::open(&model).expect("the bundled model opens");
    let prompt = tokenizer.encode("Question: What is 2 + 2?\nAnswer:", AddSpecial::Yes).expect("plain text");
    let page = engine.facts().page_tokens;
    let pages = prompt.len().div_ceil(page) + 1;
    let mut tree = SamplingTree::new(engine.clone(), prompt.into()).expect("a short prompt").seed(1).named("item");
    let root = tree.root();
    let stop = Stop { ignore_eos: true, strings: vec!["1".to_string(), "a".to_string()], ..Stop::max_tokens(3000) };
    let passes = |_: &str| Assessment { correct: Some(true), ..Assessment::default() };
    let assessor = Assessor::new(passes);
    let (order, mut record) = (Order { stop, ..Order::default() }, |_: &Sample| Ok(()));
    let mut job = order.job(assessor, &mut record);
    let outcome = best_of_n(&mut tree, root, &BestOfN::new(8, BestBy::Grade).stopping_when_passed(), &mut job)
        .expect("it samples");
    let metrics = engine.metrics().expect("the engine lives");
    let own = outcome.samples.iter().map(|sample| (sample.tokens + 1).div_ceil(page) + 1).sum::<usize>();
    let kept = metrics.kv_bytes_held + metrics.kv_bytes_cached;
    let most = (pages + own) * engine.facts().page_bytes;
    assert!(kept <= most as u64, "{kept} bytes are kept, prompt and finished samples have {most}");
    assert_eq!(outcome.samples.len() + outcome.cancelled, 8);
}

#[test]
fn sampling_goes_on_while_a_candidate_is_judged() {
    // The judge of the short one waits until the long one is before a judge too, so it must have finished meanwhile.
    let both = Barrier::new(2);
    let outcome = judged(texts(&["7", "a much longer candidate"]), 2, move |text| {
        both.wait();
        Ok(judgement(text == "7"))
    });
    let outcome = outcome.expect("nothing fails");
    let verdicts = outcome.samples.iter().map(|sample| Judged::of(sample).map(|judged| judged.verdict));
    assert_eq!(verdicts.collect::<Vec<_>>(), [Some(Verdict::Accepted), Some(Verdict::WrongAnswer)]);
    assert_eq!(outcome.samples.iter().map(|sample| sample.correct).collect::<Vec<_>>(), [Some(true), Some(false)]);
}

#[test]
fn the_same_text_is_judged_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let outcome = judged(texts(&["7", "8", "7", "7", "8"]), 2, move |text| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(judgement(text == "7"))
    });
    let right = outcome.expect("nothing fails").samples.iter().filter(|sample| sample.correct == Some(true)).count();
    assert_eq!((right, count.load(Ordering::Relaxed)), (3, 2));
}

#[test]
fn a_judge_that_fails_is_the_items_error_and_no_verdict() {
    let failing = |text: &str| match text {
        "8" => Err(Error::Internal("no interpreter".to_string())),
        _ => Ok(judgement(true)),
    };
    let error = judged(texts(&["7", "8", "9"]), 1, failing).expect_err("it fails");
    assert!(error.to_string().contains("no interpreter"), "{error}");
    let error = judged(texts(&["7"]), 1, |_| panic!("said on purpose, by a test")).expect_err("it panics");
    assert!(matches!(error, Error::Internal(_)), "{error}");
}

#[test]
fn an_interrupt_ends_a_driver_while_its_candidates_are_judged() {
    let (begun, begins) = channel();
    let (release, released) = channel::<()>();
    let (begun, released) = (Mutex::new(begun), Mutex::new(released));
    let (done, ended) = channel();
    let order = Arc::new(Order::default());
    let interrupt = order.clone();
    std::thread::spawn(move || {
        let mut tree = saying(texts(&["7"]));
        let root = tree.root();
        let judges = JudgePool::new(1).expect("a thread starts");
        let queue = JudgeQueue::new(&answer, &judges, move |_| {
            begun.lock().expect("one judge").send(()).expect("the test waits");
            // It ends when the test does.
            released.lock().expect("one judge").recv().unwrap_or_default();
            Ok(judgement(true))
        });
        let assessor = Assessor::new(queue);
        done.send(drive(assessor, &order, |job| sample(&mut tree, root, 1, job)).map(drop)).expect("waits");
    });
    begins.recv_timeout(PATIENCE).expect("the candidate is judged");
    interrupt.interrupted.store(true, Ordering::Relaxed);
    let outcome = ended.recv_timeout(PATIENCE).expect("the driver ends");
    assert!(matches!(outcome, Err(Error::Interrupted)));
    drop(release);
}

#[test]
fn what_nobody_waits_for_is_not_judged() {
    let (release, released) = channel::<()>();
    let (released, count) = (Mutex::new(released), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    let mut tree = saying(texts(&["7", "8", "9", "10", "11"]));
    let root = tree.root();
    let judges = JudgePool::new(1).expect("a thread starts");
    let queue = JudgeQueue::new(&answer, &judges, move |text| {
        counted.fetch_add(1, Ordering::Relaxed);
        if text != "7" {
            released.lock().expect("one judge").recv().unwrap_or_default();
        }
        Ok(judgement(text == "7"))
    });
    let search = |job: &mut SearchJob<'_>| {
        best_of_n(&mut tree, root, &BestOfN::new(5, BestBy::Grade).stopping_when_passed(), job)
    };
    let outcome = drive(Assessor::new(queue), &Order::default(), search).expect("nothing fails");
    assert_eq!((outcome.chosen, outcome.samples.len(), outcome.cancelled), (Some(0), 1, 4));
    drop(release);
    // The one judge takes up what is left of the queue after the text it may have been at.
    let (done, ended) = channel();
    let last = JudgeQueue::new(&answer, &judges, move |_| {
        done.send(()).expect("the test waits");
        Ok(judgement(true))
    });
    let mut tree = saying(texts(&["12"]));
    let root = tree.root();
    drive(Assessor::new(last), &Order::default(), |job| sample(&mut tree, root, 1, job)).expect("nothing fails");
    ended.recv_timeout(PATIENCE).expect("it was judged");
    assert!(count.load(Ordering::Relaxed) <= 2, "{count:?} texts judged");
}

#[test]
fn a_sample_that_fails_is_recorded_and_leaves_its_siblings_alone() {
    type Driver = fn(&mut SamplingTree, usize, &mut SearchJob<'_>) -> Result<Outcome>;
    let drivers: [Driver; 4] = [
        |tree, n, job| sample(tree, tree.root(), n, job),
        |tree, n, job| best_of_n(tree, tree.root(), &BestOfN::new(n, BestBy::Logprob), job),
        |tree, n, job| self_consistency(tree, tree.root(), n, Decided::Never, job),
        |tree, n, job| self_consistency(tree, tree.root(), n, Decided::Certain, job),
    ];
    let run = |driver: Driver, replies: Vec<ScriptedReply>| {
        let (n, mut recorded) = (replies.len(), Vec::new());
        let mut tree = saying(replies);
        let mut record = |sample: &Sample| {
            recorded.push(sample.clone());
            Ok(())
        };
        let order = Order::default();
        let outcome = driver(&mut tree, n, &mut order.job(Assessor::new(grade), &mut record)).expect("others go on");
        recorded.sort_by_key(|sample| sample.index);
        (outcome, recorded, tree.take_failures().len())
    };
    for driver in drivers {
        let says = ["7", "8", "9", "7", "8"];
        let (whole, all, none) = run(driver, texts(&says));
        let mut replies = texts(&says);
        replies[2] = replies[2].clone().failing();
        let (outcome, recorded, failed) = run(driver, replies);
        assert_eq!((none, failed, outcome.cancelled, all.len()), (0, 1, 0, 5));
        let left: Vec<Sample> = whole.samples.iter().filter(|sample| sample.index != 2).cloned().collect();
        assert_eq!(outcome.samples, left, "the others are as they were");
        assert_eq!(recorded.len(), 5);
        assert!(recorded.iter().all(|sample| sample.error.is_some() == (sample.index == 2)));
        let line = serde_json::to_value(&recorded[2]).expect("JSON");
        assert_eq!((&line["finish"], &line["text"], &line["tokens"]), (&"failed".into(), &"".into(), &0.into()));
        assert!(line["error"].as_str().is_some_and(|error| error.contains("one that fails")), "{line}");
        assert!(
            serde_json::to_value(&recorded[1]).expect("JSON").get("error").is_none(),
            "healthy lines are as before"
        );

        let (outcome, recorded, failed) = run(driver, texts(&says).into_iter().map(ScriptedReply::failing).collect());
        assert_eq!((outcome.samples.len(), outcome.cancelled, recorded.len(), failed), (0, 0, 5, 5));
    }
}
