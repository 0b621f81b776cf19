//! Searches by a scorer of another model, on a scripted engine and a scripted scorer: what is handed in and when, what
//! is given up, and what becomes of a search whose scorer fails, is late, or gives numbers that are none.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use offshoot_core::ids::{NodeId, TokenId};
use offshoot_core::{Error, Result};
use offshoot_engine::scripted::text_of;
use offshoot_engine::{Continuation, EngineHandle, FinishReason, ScriptedReply};
use offshoot_score::scripted::ScriptedEvent;
use offshoot_score::{
    Aggregate, Scale, ScoredTree, ScorerIdentity, ScriptedAnswer, ScriptedScore, ScriptedScorer, TextScorer,
};
use offshoot_search::settings::{
    Decide, Mcts, MctsDecide, MctsSelect, ParticleSearch, Resampling, RolloutScoring, SampleScoring, StepSearch,
    StepSettings,
};
use offshoot_search::steps::Stepper;
use offshoot_search::tree::SamplingTree;
use offshoot_search::{
    Assessment, Assessor, Details, ModelScores, OnScorerError, Outcome, Sample, SampleScore, Scorer, SearchJob,
    best_by_scorer, dvts, mcts, particle_gibbs, step_beam, vote_by_scorer,
};
use offshoot_text::Message;

use crate::job;
use job::Order;

/// What the model says: after each text the letters in turn, each a step with a line end; the last of `depth` steps has
/// none, and to its end it says `z`.
fn world(letters: &'static str, depth: usize) -> SamplingTree {
    let mut draws: HashMap<String, usize> = HashMap::new();
    let engine = EngineHandle::scripted(move |call| {
        let Continuation::Sampled { stop, params, .. } = &call.continuation else { panic!("nothing is given") };
        let text = call.text();
        if !stop.strings.contains(&"\n".to_string()) {
            return ScriptedReply::text("z");
        }
        let draw = draws.entry(text.clone()).or_default();
        let letter = match params.temperature {
            0.0 => 'g',
            _ => letters.as_bytes()[*draw % letters.len()] as char,
        };
        *draw += 1;
        match text.matches('\n').count() + 1 >= depth {
            true => ScriptedReply::text(&letter.to_string()),
            false => ScriptedReply::text(&format!("{letter}\n")).reason(FinishReason::StopString("\n".to_string())),
        }
    });
    job::tree_on(engine, "Q:")
}

/// Samples of whole texts, in the order of their branches.
pub(super) fn texts(says: &'static [&'static str]) -> SamplingTree {
    let engine = EngineHandle::scripted(move |call| ScriptedReply::text(says[call.branch.0 as usize - 1]));
    job::tree_on(engine, "Q:")
}

/// The answer is the first letter; `a` is right.
pub(super) fn assess(text: &str) -> Assessment {
    let answer = text.chars().next().map(String::from);
    Assessment { correct: Some(answer.as_deref() == Some("a")), answer, ..Assessment::default() }
}

/// The later in the alphabet a step's letter, the better it is: 0.1 for `a`.
fn letter(step: &str) -> f64 {
    f64::from(step.bytes().next().unwrap_or(b'`') - b'a' + 1) / 10.0
}

fn by_letter(answer: &ScriptedAnswer<'_>) -> ScriptedScore {
    ScriptedScore::steps(answer.steps.iter().map(|step| letter(step)))
}

fn scores(scorer: &ScriptedScorer, on_error: OnScorerError) -> Result<Scorer<'static>> {
    let question = [Message::user("Which letters?")];
    Ok(Scorer::Model(Box::new(ModelScores::new(scorer, &question, on_error)?)))
}

pub(super) fn order(interrupted: bool) -> Order {
    Order { interrupted: AtomicBool::new(interrupted), ..Order::default() }
}

/// Runs a search by steps; also returns the texts that were recorded.
fn stepping(
    scorer: &ScriptedScorer,
    on_error: OnScorerError,
    most: usize,
    run: impl FnOnce(&mut Stepper<'_>, &mut SearchJob<'_>) -> Result<Outcome>,
) -> Result<Outcome> {
    let order = order(false);
    let mut record = |_: &Sample| Ok(());
    let mut job = order.job(Assessor::new(assess), &mut record);
    let steps = StepSettings::delimited("\n", most);
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    run(&mut Stepper::new(&steps, &decode, scores(scorer, on_error)?), &mut job)
}

fn beams(samples: u32, expansions: u32, most: usize, lookahead: u32, by: Decide) -> StepSearch {
    let steps = StepSettings::delimited("\n", most);
    StepSearch { samples, expansions, steps, lookahead, aggregate: Aggregate::Last, by }
}

/// Runs a search over whole samples; also returns the indices of the samples that were recorded, rising.
fn whole(
    tree: &mut SamplingTree,
    n: usize,
    scorer: &ScriptedScorer,
    how: &SampleScoring,
    on_error: OnScorerError,
    votes: bool,
) -> (Result<Outcome>, Vec<u64>) {
    let order = order(false);
    let mut recorded = Vec::new();
    let mut record = |sample: &Sample| {
        assert!(sample.scored.is_none(), "what is sampled is recorded before it is scored");
        recorded.push(sample.index);
        Ok(())
    };
    let mut job = order.job(Assessor::new(assess), &mut record);
    let root = tree.root();
    let run = if votes { vote_by_scorer } else { best_by_scorer };
    let outcome = scores(scorer, on_error).and_then(|mut scorer| run(tree, root, n, &mut scorer, how, &mut job));
    drop(job);
    recorded.sort_unstable();
    (outcome, recorded)
}

/// The texts that were handed in, sorted: they come in the order in which branches end.
fn started(scorer: &ScriptedScorer) -> Vec<String> {
    let text = |event| match event {
        ScriptedEvent::Started { text, .. } => Some(text),
        _ => None,
    };
    let mut texts: Vec<String> = scorer.events().into_iter().filter_map(text).collect();
    texts.sort();
    texts
}

/// Whether all that was started has been given up before the tree was dropped.
fn holds_nothing(scorer: &ScriptedScorer) -> bool {
    let mut held: Vec<NodeId> = Vec::new();
    for event in scorer.events() {
        match event {
            ScriptedEvent::Started { node, .. } => held.push(node),
            ScriptedEvent::Pruned { node, .. } => held.retain(|&other| other != node),
            _ => {}
        }
    }
    held.is_empty()
}

#[test]
fn samples_are_scored_as_they_come_and_the_best_is_chosen() {
    let says = &["b\nd", "c", "a\nd", "c", "b"];
    for newest_first in [false, true] {
        let scorer = ScriptedScorer::new(by_letter);
        let scorer = if newest_first { scorer.newest_first() } else { scorer };
        let mut tree = texts(says);
        let how = SampleScoring::default();
        let (outcome, recorded) = whole(&mut tree, 5, &scorer, &how, OnScorerError::Unscored, false);
        let outcome = outcome.expect("nothing fails");
        assert_eq!(recorded, [0, 1, 2, 3, 4]);
        // Two texts end in `d`: they tie, and the first is chosen.
        assert_eq!((outcome.chosen, outcome.prediction.as_deref()), (Some(0), Some("b")));
        assert_eq!(outcome.tied, [0, 2]);
        assert_eq!(outcome.share_right(), Some(0.5));
        let Some(Details::Scores { scores }) = &outcome.details else { panic!("{outcome:?}") };
        assert_eq!(scores, &[0.4, 0.3, 0.4, 0.3, 0.2].map(Some));
        let step_scores = vec![Some(0.2), Some(0.4)];
        assert_eq!(
            outcome.samples[0].scored,
            Some(SampleScore::Scored {
                score: 0.4,
                step_scores,
                part_scores: Vec::new(),
                score_tokens: Some(17),
                verdict: None,
                score_error: None,
            })
        );
        let work = outcome.scorer.expect("it has worked");
        // The question and the text are 14 bytes and the text's; the second `c` is the first one again.
        assert_eq!((work.texts, work.unscored, work.tokens), (4, 0, 4 * 14 + 3 + 1 + 3 + 1));
        assert_eq!(started(&scorer), ["a\nd", "b", "b\nd", "c"], "equal texts are scored once");
        assert!(holds_nothing(&scorer));
    }
}

#[test]
fn steps_are_aggregated_as_asked() {
    let says = &["a\ni", "e\ne", "c\nh"];
    for (aggregate, best) in [(Aggregate::Last, 0), (Aggregate::Min, 1), (Aggregate::Product, 1), (Aggregate::Mean, 2)]
    {
        let how = SampleScoring { aggregate, ..SampleScoring::default() };
        let scorer = ScriptedScorer::new(by_letter);
        let (outcome, _) = whole(&mut texts(says), 3, &scorer, &how, OnScorerError::Unscored, false);
        assert_eq!(outcome.expect("nothing fails").chosen, Some(best), "{aggregate:?}");
    }
    let how = SampleScoring { delimiter: "\n\n".to_owned(), aggregate: Aggregate::Min };
    let scorer = ScriptedScorer::new(by_letter);
    let (outcome, _) = whole(&mut texts(says), 3, &scorer, &how, OnScorerError::Unscored, false);
    assert_eq!(outcome.expect("nothing fails").chosen, Some(1), "each text is one step");
}

#[test]
fn votes_weigh_the_scores_of_samples() {
    // Two for a, of 0.1 each, and one for c, of 0.3.
    let (outcome, _) = whole(
        &mut texts(&["a", "c", "a"]),
        3,
        &ScriptedScorer::new(by_letter),
        &SampleScoring::default(),
        OnScorerError::Unscored,
        true,
    );
    let outcome = outcome.expect("nothing fails");
    assert_eq!((outcome.prediction.as_deref(), outcome.chosen, outcome.correct), (Some("c"), Some(1), Some(false)));
    assert_eq!(outcome.votes, [("a".to_owned(), 2), ("c".to_owned(), 1)]);
    // Logits of -3 and -1 weigh 0.047 and 0.27: six of the first are more than one of the second.
    let says = &["a", "c", "a", "a", "a", "a", "a"];
    let logits = |answer: &ScriptedAnswer<'_>| ScriptedScore::whole(if answer.text() == "a" { -3.0 } else { -1.0 });
    let scorer = ScriptedScorer::new(logits).of_scale(Scale::Logit);
    let (outcome, _) = whole(&mut texts(says), 7, &scorer, &SampleScoring::default(), OnScorerError::Unscored, true);
    assert_eq!(outcome.expect("nothing fails").prediction.as_deref(), Some("a"));
}

#[test]
fn what_cannot_be_scored_comes_last_and_says_why() {
    let script = |answer: &ScriptedAnswer<'_>| match answer.text().as_str() {
        "d" => ScriptedScore::failing("too long for it"),
        "c" => ScriptedScore::whole(f64::NAN),
        "e" => ScriptedScore::steps([]),
        _ => by_letter(answer),
    };
    let says = &["d", "a", "c", "b", "e"];
    for votes in [false, true] {
        let scorer = ScriptedScorer::new(script);
        let how = SampleScoring::default();
        let (outcome, _) = whole(&mut texts(says), 5, &scorer, &how, OnScorerError::Unscored, votes);
        let outcome = outcome.expect("the search goes on");
        assert_eq!((outcome.chosen, outcome.prediction.as_deref()), (Some(3), Some("b")));
        let why = |ix: usize| match &outcome.samples[ix].scored {
            Some(SampleScore::Unscored { score_error }) => score_error.clone(),
            other => panic!("{other:?}"),
        };
        assert!(why(0).contains("too long for it") && why(2).contains("NaN") && why(4).contains("no step"));
        let work = outcome.scorer.clone().expect("it has worked");
        assert_eq!((work.texts, work.unscored, work.first_error), (2, 3, Some(why(0))));
        let Some(Details::Scores { scores }) = &outcome.details else { panic!("{outcome:?}") };
        assert_eq!(scores, &[None, Some(0.1), None, Some(0.2), None]);

        let (failed, recorded) =
            whole(&mut texts(says), 5, &ScriptedScorer::new(script), &how, OnScorerError::Fail, votes);
        let error = failed.expect_err("a text fails").to_string();
        assert!(error.contains("too long for it"), "{error}");
        assert_eq!(recorded, [0, 1, 2, 3, 4], "nothing that was sampled is lost");

        // Where nothing has a score, nothing is chosen, and that is wrong where there is a grader.
        let none = ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::failing("it is down"));
        let refusing = ScriptedScorer::new(by_letter).refusing_questions("no question mark");
        for (scorer, why) in [(none, "it is down"), (refusing, "no question mark")] {
            let (outcome, _) = whole(&mut texts(says), 5, &scorer, &how, OnScorerError::Unscored, votes);
            let outcome = outcome.expect("the search goes on");
            assert_eq!((outcome.chosen, outcome.prediction, outcome.correct), (None, None, Some(false)));
            let work = outcome.scorer.expect("it was asked");
            assert!(work.unscored == 5 && work.first_error.is_some_and(|error| error.contains(why)));
        }
    }
}

#[test]
fn a_sample_that_is_scored_already_keeps_its_score() {
    let says = &["a", "b", "c", "d"];
    let scorer = ScriptedScorer::new(by_letter);
    let (order, mut record) = (order(false), |_: &Sample| Ok(()));
    let mut job = order.job(Assessor::new(assess), &mut record);
    let (outcome, _) = whole(&mut texts(says), 2, &scorer, &SampleScoring::default(), OnScorerError::Unscored, false);
    let mut earlier = outcome.expect("nothing fails").samples;
    earlier[0].scored = Some(SampleScore::Scored {
        score: 0.95,
        step_scores: vec![Some(0.95)],
        part_scores: Vec::new(),
        score_tokens: Some(15),
        verdict: None,
        score_error: None,
    });
    // It was killed before the second one was scored.
    earlier[1].scored = None;
    job.earlier = earlier;
    let mut tree = texts(&["c", "d"]);
    let (root, again) = (tree.root(), ScriptedScorer::new(by_letter));
    let mut by = scores(&again, OnScorerError::Unscored).expect("it takes the question");
    let outcome = best_by_scorer(&mut tree, root, 4, &mut by, &SampleScoring::default(), &mut job);
    let outcome = outcome.expect("nothing fails");
    assert_eq!(outcome.chosen, Some(0));
    let found: Vec<Option<f64>> = outcome.samples.iter().map(Sample::score).collect();
    assert_eq!(found, [0.95, 0.2, 0.3, 0.4].map(Some));
    assert_eq!(started(&again), ["b", "c", "d"]);
}

/// The definition: the search by the same values as an assessment, which come at once.
#[test]
fn searches_by_steps_equal_those_of_values_that_come_at_once() {
    let at_once = |text: &str| {
        let last = text.trim_end().rsplit('\n').next().unwrap_or_default();
        Assessment { score: Some(letter(last)), ..assess(text) }
    };
    let drivers = [step_beam, dvts];
    for driver in drivers {
        for by in [Decide::Best, Decide::Vote, Decide::WeightedVote] {
            let how = beams(8, 2, 3, 0, by);
            let (order, mut record) = (order(false), |_: &Sample| Ok(()));
            let mut job = order.job(Assessor::new(at_once), &mut record);
            let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
            let mut tree = world("bdacf", 3);
            let root = tree.root();
            let mut stepper = Stepper::new(&how.steps, &decode, Scorer::Grade);
            let expected = driver(&mut tree, root, &how, &mut stepper, &mut job).expect("nothing fails");
            for arrival in 0..3 {
                let scorer = ScriptedScorer::new(move |answer| {
                    by_letter(answer).after_polls(arrival * answer.node.0 as usize % 7)
                });
                let scorer = if arrival == 2 { scorer.newest_first() } else { scorer };
                let mut tree = world("bdacf", 3);
                let outcome = stepping(&scorer, OnScorerError::Unscored, 3, |stepper, job| {
                    driver(&mut tree, root, &how, stepper, job)
                });
                let outcome = outcome.expect("nothing fails");
                let said = |outcome: &Outcome| -> Vec<(String, Option<f64>)> {
                    outcome.samples.iter().map(|sample| (sample.text.clone(), sample.score())).collect()
                };
                assert_eq!(said(&outcome), said(&expected));
                assert_eq!((&outcome.prediction, outcome.chosen), (&expected.prediction, expected.chosen));
                assert_eq!((&outcome.votes, &outcome.tied), (&expected.votes, &expected.tied));
                assert!(started(&scorer).iter().all(|text| !text.is_empty()));
            }
        }
    }
}

#[test]
fn a_step_goes_on_from_the_scored_step_above_and_pruning_prunes_both() {
    let scorer = ScriptedScorer::new(by_letter);
    let (how, mut tree) = (beams(4, 2, 2, 0, Decide::Best), world("abcd", 2));
    let root = tree.root();
    stepping(&scorer, OnScorerError::Unscored, 2, |stepper, job| step_beam(&mut tree, root, &how, stepper, job))
        .expect("nothing fails");
    let events = scorer.events();
    let parents: Vec<(String, bool)> = events
        .iter()
        .filter_map(|event| match event {
            ScriptedEvent::Started { text, parent, .. } => Some((text.clone(), parent.is_some())),
            _ => None,
        })
        .collect();
    assert!(
        parents
            .iter()
            .all(|(text, has_parent)| *has_parent == text.contains("\n") && text.len() > 2 || text.len() == 2)
    );
    // The two rejected steps are given up before the next are handed in, and the scorer's tree sees the kept ones grow.
    let at = |wanted: &dyn Fn(&ScriptedEvent) -> bool| events.iter().position(wanted).expect("it happens");
    let second = at(&|event| matches!(event, ScriptedEvent::Started { text, .. } if text.len() == 3));
    let node = |text: &str| {
        let is_it = |event: &&ScriptedEvent| matches!(event, ScriptedEvent::Started { text: own, .. } if own == text);
        match events.iter().find(is_it) {
            Some(ScriptedEvent::Started { node, .. }) => *node,
            _ => panic!("{text:?} was not handed in: {events:?}"),
        }
    };
    for rejected in ["a\n", "b\n"].map(node) {
        assert!(at(&|event| matches!(event, ScriptedEvent::Pruned { node, .. } if *node == rejected)) < second);
    }
    for kept in ["c\n", "d\n"].map(node) {
        assert!(at(&|event| matches!(event, ScriptedEvent::Pruned { node, .. } if *node == kept)) > second);
    }
}

#[test]
fn a_look_ahead_is_scored_and_given_up() {
    let scorer = ScriptedScorer::new(by_letter);
    let how = beams(4, 2, 2, 1, Decide::Best);
    for driver in [step_beam, dvts] {
        let mut tree = world("abcd", 9);
        let root = tree.root();
        let outcome =
            stepping(&scorer, OnScorerError::Unscored, 2, |stepper, job| driver(&mut tree, root, &how, stepper, job));
        let outcome = outcome.expect("nothing fails");
        assert!(outcome.samples.iter().all(|sample| !sample.text.contains('g')), "what lies ahead is no part of it");
        let ahead: Vec<String> = started(&scorer).into_iter().filter(|text| text.contains('g')).collect();
        assert!(!ahead.is_empty() && ahead.iter().all(|text| text.ends_with("\ng\n")), "{ahead:?}");
    }
}

#[test]
fn particles_are_drawn_by_logits_and_never_by_what_is_missing() {
    let steps = StepSettings::delimited("\n", 2);
    let how = ParticleSearch {
        samples: 8,
        iterations: 1,
        references: 0,
        steps,
        aggregate: Aggregate::Last,
        resampling: Resampling::Multinomial,
        by: Decide::Best,
    };
    let run = |scorer: &ScriptedScorer| {
        let mut tree = world("ab", 2);
        let root = tree.root();
        stepping(scorer, OnScorerError::Unscored, 2, |stepper, job| particle_gibbs(&mut tree, root, &how, stepper, job))
    };
    // 40 nats apart: whatever is drawn is `b`, though both numbers are far from 0 and 1.
    let logits = ScriptedScorer::new(|answer: &ScriptedAnswer<'_>| {
        ScriptedScore::steps(answer.steps.iter().map(|step| if step.starts_with('b') { 30.0 } else { -10.0 }))
    });
    let outcome = run(&logits.of_scale(Scale::Logit)).expect("nothing fails");
    assert_eq!(outcome.votes, [("b".to_owned(), 8)]);
    let error = run(&ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::whole(1.5))).expect_err("no chance");
    assert!(error.to_string().contains("from 0 to 1"), "{error}");
    let missing = ScriptedScorer::new(|answer: &ScriptedAnswer<'_>| match answer.text().contains('a') {
        true => ScriptedScore::failing("no a"),
        false => ScriptedScore::whole(0.001),
    });
    let outcome = run(&missing).expect("the search goes on");
    assert_eq!(outcome.votes, [("b".to_owned(), 8)]);
    assert!(outcome.scorer.expect("it was asked").unscored > 0);
}

#[test]
fn simulations_value_their_ends_or_their_leaves() {
    let how = |scoring, by| Mcts {
        samples: 24,
        tokens: None,
        expansions: 2,
        parallel: 3,
        steps: StepSettings::delimited("\n", 9),
        scoring,
        select: MctsSelect::Uct,
        exploration: 0.1,
        widening: None,
        by,
    };
    let run = |how: &Mcts, depth: usize| {
        let scorer = ScriptedScorer::new(by_letter);
        let mut tree = world("ac", depth);
        let root = tree.root();
        let outcome =
            stepping(&scorer, OnScorerError::Unscored, 9, |stepper, job| mcts(&mut tree, root, how, stepper, job));
        (outcome.expect("nothing fails"), started(&scorer))
    };
    let best = MctsDecide::Rollouts(Decide::Best);
    let (outcome, texts) = run(&how(RolloutScoring::Scorer, best), 3);
    assert!(
        texts.iter().any(|text| text == "z") && outcome.samples.len() > 5,
        "the prompt alone is sampled to its end"
    );
    let (outcome, texts) = run(&how(RolloutScoring::Leaf, best), 3);
    assert!(!texts.is_empty() && texts.iter().all(|text| !text.contains('z')), "nothing is sampled behind a leaf");
    assert!(outcome.samples.iter().all(|sample| sample.text.matches('\n').count() == 2), "samples have ended");
    for sample in &outcome.samples {
        let Some(SampleScore::Scored { score, step_scores, .. }) = &sample.scored else { panic!("{sample:?}") };
        assert_eq!(step_scores, &[None, None, Some(*score)], "the whole is valued, not its earlier steps");
    }
    assert_eq!(outcome.samples[outcome.chosen.expect("one") as usize].text.chars().last(), Some('c'));
    // Too deep to end: where most simulations have gone, a solution is sampled to its end.
    for by in [best, MctsDecide::Visits] {
        let (outcome, _) = run(&how(RolloutScoring::Leaf, by), 30);
        assert_eq!((outcome.samples.len(), outcome.chosen), (1, Some(0)));
        assert!(outcome.samples[0].text.ends_with('z') && outcome.samples[0].text.contains('c'));
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_a_score() {
    let scorer = ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::whole(0.5).never());
    let (order, mut recorded) = (order(false), 0);
    let interrupted = &order.interrupted;
    let mut record = |_: &Sample| {
        recorded += 1;
        // All are sampled; what is left is the wait for the scorer.
        interrupted.store(recorded == 3, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    };
    let mut job = order.job(Assessor::new(assess), &mut record);
    let mut tree = texts(&["a", "b", "c"]);
    let (root, mut by) = (tree.root(), scores(&scorer, OnScorerError::Unscored).expect("it takes the question"));
    let outcome = best_by_scorer(&mut tree, root, 3, &mut by, &SampleScoring::default(), &mut job);
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
    drop(job);
    assert_eq!(recorded, 3);
}

#[test]
fn logits_are_not_multiplied() {
    let logits = || ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::whole(-5.0)).of_scale(Scale::Logit);
    let how = SampleScoring { aggregate: Aggregate::Product, ..SampleScoring::default() };
    for votes in [false, true] {
        let (outcome, _) = whole(&mut texts(&["a", "b"]), 2, &logits(), &how, OnScorerError::Unscored, votes);
        let error = outcome.expect_err("a product of logits").to_string();
        assert!(error.contains("product") && error.contains("logits"), "{error}");
    }
    let how = StepSearch { aggregate: Aggregate::Product, ..beams(4, 2, 2, 0, Decide::Best) };
    for driver in [step_beam, dvts] {
        let mut tree = world("ab", 2);
        let root = tree.root();
        let ran =
            stepping(&logits(), OnScorerError::Unscored, 2, |stepper, job| driver(&mut tree, root, &how, stepper, job));
        assert!(ran.is_err_and(|error| error.to_string().contains("logits")));
    }
}

/// A scorer whose engine is gone.
struct Stopped(ScorerIdentity);

impl TextScorer for Stopped {
    fn begin(&self, _: &[Message]) -> Result<Box<dyn ScoredTree>> {
        Err(Error::EngineStopped { why: "out of luck".to_owned() })
    }

    fn scale(&self) -> Scale {
        Scale::Probability
    }

    fn aggregate(&self) -> Aggregate {
        Aggregate::Last
    }

    fn identity(&self) -> &ScorerIdentity {
        &self.0
    }
}

#[test]
fn a_scorer_whose_engine_has_stopped_is_named_and_ends_the_search() {
    let [name, form, digest] = ["judge-1b", "last-token", "0"].map(str::to_owned);
    let scorer = Stopped(ScorerIdentity { name, form, digest });
    let error = ModelScores::new(&scorer, &[Message::user("Why?")], OnScorerError::Unscored).err().expect("it stopped");
    assert!(matches!(error, Error::EngineStopped { .. }));
    let said = error.to_string();
    assert!(said.contains("scorer judge-1b") && said.contains("out of luck"), "{said}");
}
