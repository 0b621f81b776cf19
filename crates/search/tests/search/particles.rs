//! Particles over steps, compared with what its_hub 1.2.0 makes of the same draws in the same world:
//! `reference/particles.py` made the numbers and says how. And lookahead of beams in that world.

use std::collections::{BTreeMap, HashMap};

use offshoot_core::Result;
use offshoot_core::ids::TokenId;
use offshoot_engine::scripted::text_of;
use offshoot_engine::{Continuation, EngineHandle, FinishReason, ScriptedReply};
use offshoot_search::particles::log_odds;
use offshoot_search::settings::{Aggregate, Decide, ParticleSearch, Resampling, StepSearch, StepSettings};
use offshoot_search::steps::Stepper;
use offshoot_search::tree::{NodeState, SamplingTree};
use offshoot_search::{Assessment, Assessor, Details, Outcome, Scorer, SearchJob, dvts, particle_gibbs, step_beam};
use serde::Deserialize;

use crate::job;
use job::Order;

#[derive(Debug, Deserialize)]
struct Case {
    letters: String,
    most: usize,
    samples: u32,
    iterations: u32,
    references: u32,
    resampling: Resampling,
    texts: Vec<String>,
    log_weights: Vec<f64>,
    chosen: String,
}

/// The generator's world: after a text the model says the letters in turn, each with a line end; `z` ends a text, and
/// `!` is a draw that fails. Greedily it says the first letter, a capital one.
fn world(letters: &str) -> SamplingTree {
    let (letters, mut draws) = (letters.to_string(), HashMap::<String, usize>::new());
    let engine = EngineHandle::scripted(move |call| {
        let Continuation::Sampled { params, .. } = &call.continuation else { panic!("nothing is given") };
        let draw = draws.entry(call.text()).or_default();
        let letter = match params.temperature {
            0.0 => letters.as_bytes()[0].to_ascii_uppercase(),
            _ => {
                *draw += 1;
                letters.as_bytes()[(*draw - 1) % letters.len()]
            }
        };
        match letter {
            b'!' => ScriptedReply::text("?").failing(),
            b'z' => ScriptedReply::text("z"),
            letter => {
                let step = format!("{}\n", letter as char);
                ScriptedReply::text(&step).reason(FinishReason::StopString("\n".to_string()))
            }
        }
    });
    job::tree_on(engine, "Q:")
}

/// The generator's score of a text.
fn score(text: &str) -> f64 {
    let hashed = text.bytes().fold(7u64, |hashed, byte| (hashed * 31 + u64::from(byte)) % 9973);
    (hashed % 997) as f64 / 996.0
}

/// Each text is its own answer.
fn assess(text: &str) -> Assessment {
    Assessment { answer: Some(text.to_string()), ..Assessment::scored(score(text)) }
}

fn search(most: usize, run: impl FnOnce(&mut Stepper<'_>, &mut SearchJob<'_>) -> Result<Outcome>) -> Result<Outcome> {
    let (order, mut record) = (Order::default(), |_: &_| Ok(()));
    let mut job = order.job(Assessor::new(assess), &mut record);
    let steps = StepSettings::delimited("\n", most);
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    run(&mut Stepper::new(&steps, &decode, Scorer::Grade), &mut job)
}

fn particles(tree: &mut SamplingTree, how: &ParticleSearch) -> Result<Outcome> {
    let root = tree.root();
    search(how.steps.most, |stepper, job| particle_gibbs(tree, root, how, stepper, job))
}

fn filtering(samples: u32, most: usize) -> ParticleSearch {
    ParticleSearch {
        samples,
        iterations: 1,
        references: 0,
        steps: StepSettings::delimited("\n", most),
        aggregate: Aggregate::Last,
        resampling: Resampling::Multinomial,
        by: Decide::Best,
    }
}

fn nothing_is_held(tree: &SamplingTree) {
    let open = tree.nodes().filter(|&node| node != tree.root() && tree.node(node).state() == NodeState::Open);
    assert_eq!(open.count(), 0, "every lease is given back");
}

fn first_of_each(texts: &[String]) -> Vec<&str> {
    let mut firsts: Vec<&str> = Vec::new();
    for text in texts {
        if !firsts.contains(&text.as_str()) {
            firsts.push(text);
        }
    }
    firsts
}

#[test]
fn particles_are_those_of_its_hub() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("reference/particles.json")).expect("the generator's");
    for case in cases {
        let how = ParticleSearch {
            iterations: case.iterations,
            references: case.references,
            resampling: case.resampling,
            ..filtering(case.samples, case.most)
        };
        let mut tree = world(&case.letters);
        let outcome = particles(&mut tree, &how).expect("nothing fails");
        nothing_is_held(&tree);
        let mut counted: BTreeMap<&str, u32> = BTreeMap::new();
        case.texts.iter().for_each(|text| *counted.entry(text).or_default() += 1);
        let votes: BTreeMap<&str, u32> = outcome.votes.iter().map(|(text, votes)| (text.as_str(), *votes)).collect();
        assert_eq!(votes, counted, "{case:?}");
        let Some(Details::Solutions { completions, scores, .. }) = &outcome.details else { panic!("{outcome:?}") };
        assert_eq!(first_of_each(completions), first_of_each(&case.texts), "{case:?}");
        assert_eq!(outcome.prediction.as_ref(), Some(&case.chosen), "{case:?}");
        for (text, weight) in case.texts.iter().zip(&case.log_weights) {
            let ix = completions.iter().position(|completion| completion == text).expect("compared above");
            let found = log_odds(scores[ix].last().expect("each has a step").expect("each has a value"));
            assert!((found - weight).abs() < 1e-9, "{found} for {weight} of {text:?} in {case:?}");
        }
        assert!(scores.iter().zip(completions).all(|(scores, text)| {
            let ends = text.match_indices(['\n', 'z']).map(|(at, _)| at + 1);
            ends.map(|end| Some(score(&text[..end]))).eq(scores.iter().copied())
        }));
    }
}

#[test]
fn failed_particles_are_drawn_anew() {
    // Every second draw fails; the two that are left are four again behind each draw.
    let mut tree = world("a!b!");
    let outcome = particles(&mut tree, &filtering(4, 3)).expect("some go on");
    assert_eq!(outcome.votes.iter().map(|(_, votes)| votes).sum::<u32>(), 4);
    assert!(!tree.take_failures().is_empty());
    nothing_is_held(&tree);
    let outcome = particles(&mut world("!"), &filtering(4, 3)).expect("no particle is no error of the search");
    assert_eq!((outcome.samples.len(), outcome.prediction), (0, None));
}

#[test]
fn a_value_that_is_no_probability_ends_the_search() {
    let (order, mut record) = (Order::default(), |_: &_| Ok(()));
    let mut job = order.job(Assessor::new(|_: &str| Assessment::scored(1.5)), &mut record);
    let (how, mut tree) = (filtering(2, 3), world("a"));
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let mut stepper = Stepper::new(&how.steps, &decode, Scorer::Grade);
    let root = tree.root();
    let error = particle_gibbs(&mut tree, root, &how, &mut stepper, &mut job).expect_err("1.5").to_string();
    assert!(error.contains("from 0 to 1") && error.contains("1.5"), "{error}");
}

#[test]
fn values_that_are_missing_are_not_drawn() {
    let (order, mut record) = (Order::default(), |_: &_| Ok(()));
    let unscored = |text: &str| Assessment {
        answer: Some(text.to_string()),
        ..Assessment::scored(if text.starts_with('b') { 0.0 } else { f64::NAN })
    };
    let mut job = order.job(Assessor::new(unscored), &mut record);
    let (how, mut tree) = (filtering(8, 1), world("ab"));
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let mut stepper = Stepper::new(&how.steps, &decode, Scorer::Grade);
    let root = tree.root();
    let outcome = particle_gibbs(&mut tree, root, &how, &mut stepper, &mut job).expect("nothing fails");
    assert_eq!(outcome.votes, [("b\n".to_string(), 8)]);
}

#[test]
fn a_step_is_scored_by_what_lies_ahead() {
    for lookahead in [0, 2] {
        let steps = StepSettings::delimited("\n", 2);
        let how =
            StepSearch { samples: 4, expansions: 4, steps, lookahead, aggregate: Aggregate::Last, by: Decide::Best };
        for run in [step_beam, dvts] {
            let mut tree = world("abzd");
            let root = tree.root();
            let outcome = search(2, |stepper, job| run(&mut tree, root, &how, stepper, job)).expect("nothing fails");
            nothing_is_held(&tree);
            // One step ahead of the first: the second is the last one, and the look goes on beyond it.
            let ahead = "A\n".repeat(lookahead as usize);
            let Some(Details::Solutions { completions, scores, .. }) = &outcome.details else { panic!("{outcome:?}") };
            assert!(!completions.is_empty());
            for (text, scores) in completions.iter().zip(scores) {
                let mut expected: Vec<Option<f64>> = Vec::new();
                for (end, _) in text.match_indices(['\n', 'z']) {
                    let step = &text[..=end];
                    let is_ended = step.ends_with('z') || expected.len() + 1 == how.steps.most;
                    expected.push(Some(score(&if is_ended { step.to_string() } else { format!("{step}{ahead}") })));
                }
                assert_eq!(scores, &expected, "{text:?} with {lookahead} ahead");
                assert!(!text.contains('A'), "what lies ahead is no part of a solution");
            }
            let kept: usize = outcome.samples.iter().map(|sample| sample.tokens).sum();
            assert!(outcome.search_tokens + kept >= tree.spent().drawn, "all tokens are counted");
        }
    }
}

#[test]
fn solutions_of_one_answer_that_tie_are_each_named() {
    // Two letters with one score each, and one answer for all.
    let of_one = |_: &str| Assessment { answer: Some("7".to_owned()), ..Assessment::scored(0.5) };
    let mut tree = world("ab");
    let (root, steps) = (tree.root(), StepSettings::delimited("\n", 1));
    let (order, mut record) = (Order::default(), |_: &_| Ok(()));
    let mut job = order.job(Assessor::new(of_one), &mut record);
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let mut stepper = Stepper::new(&steps, &decode, Scorer::Grade);
    let how = StepSearch {
        samples: 4,
        expansions: 2,
        steps: steps.clone(),
        lookahead: 0,
        aggregate: Aggregate::Last,
        by: Decide::Best,
    };
    let best = step_beam(&mut tree, root, &how, &mut stepper, &mut job).expect("nothing fails");
    assert_eq!(best.samples.len(), 2);
    assert_eq!((best.chosen, &best.tied[..]), (Some(0), &[0, 1][..]));
    let mut tree = world("ab");
    let how = StepSearch { by: Decide::WeightedVote, ..how };
    let voted = step_beam(&mut tree, root, &how, &mut stepper, &mut job).expect("nothing fails");
    assert!(voted.tied.is_empty(), "one answer has all votes");
    let copies = voted.votes[0].1;
    assert_eq!(voted.weights, [("7".to_owned(), 0.5 * f64::from(copies))]);
}
