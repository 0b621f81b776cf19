//! Searches that go step by step, on a scripted engine: what is kept, what is pruned, how often each way is gone.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use offshoot_core::ids::{NodeId, TokenId};
use offshoot_core::{Error, Result};
use offshoot_engine::scripted::{text_of, tokens_of};
use offshoot_engine::{Continuation, EngineHandle, FinishReason, ForkKind, ScriptedReply};
use offshoot_search::scorer::ScoreQuestion;
use offshoot_search::settings::{
    Aggregate, Decide, Mcts, MctsDecide, MctsSelect, RolloutScoring, SampleScoring, StepEnd, StepSearch, StepSettings,
};
use offshoot_search::steps::Stepper;
use offshoot_search::tree::{NodeState, SamplingTree};
use offshoot_search::{
    Assessment, Assessor, Details, Outcome, Scorer, SearchJob, best_by_scorer, dvts, mcts, step_beam,
};

use crate::job;
use job::Order;

/// What the model says next: the letters in turn after each text. A step is a letter and a line end; `depth` of them
/// are a whole solution, and `!` is a draw that fails. To its end it says the letter `z`. Asked about a solution it
/// says yes by `likely`.
fn model(letters: &'static str, depth: usize, likely: fn(&str) -> f64) -> SamplingTree {
    let mut draws: HashMap<String, usize> = HashMap::new();
    let engine = EngineHandle::scripted(move |call| {
        let text = call.text();
        match call.continuation {
            Continuation::Given { tokens, .. } => {
                let about = text.strip_prefix("good?").expect("a question");
                let yes = likely(about);
                let chance = if text_of(tokens) == "y" { yes } else { 1.0 - yes };
                ScriptedReply::scores(vec![chance.ln() as f32])
            }
            Continuation::Sampled { stop, .. } if stop.strings.contains(&"\n".to_string()) => {
                let draw = draws.entry(text.clone()).or_default();
                let letter = letters.as_bytes()[*draw % letters.len()] as char;
                *draw += 1;
                if letter == '!' {
                    return ScriptedReply::text("beg").failing();
                }
                match text.matches('\n').count() + 1 == depth {
                    true => ScriptedReply::text(&format!("{letter}")),
                    false => {
                        ScriptedReply::text(&format!("{letter}\n")).reason(FinishReason::StopString("\n".to_string()))
                    }
                }
            }
            Continuation::Sampled { .. } => ScriptedReply::text("z"),
        }
    });
    job::tree_on(engine, "Q:")
}

/// The answer is the first letter; `a` is right.
fn assess(text: &str) -> Assessment {
    let answer = text.chars().next().map(String::from);
    Assessment { correct: Some(answer.as_deref() == Some("a")), answer, ..Assessment::default() }
}

/// The earlier in the alphabet the last letter, the better.
fn last_letter(text: &str) -> f64 {
    let last = text.trim_end().bytes().last().unwrap_or(b'z');
    1.0 - f64::from(last - b'a' + 1) / 30.0
}

fn ask(text: &str) -> Result<ScoreQuestion> {
    Ok(ScoreQuestion { prompt: tokens_of(&format!("good?{text}")), words: vec![tokens_of("y"), tokens_of("n")] })
}

fn search(
    scorer: Scorer<'_>,
    most: usize,
    interrupted: bool,
    run: impl FnOnce(&mut Stepper<'_>, &mut SearchJob<'_>) -> Result<Outcome>,
) -> Result<Outcome> {
    let order = Order { interrupted: AtomicBool::new(interrupted), ..Order::default() };
    let mut recorded = 0;
    let mut record = |_: &_| {
        recorded += 1;
        Ok(())
    };
    let mut job = order.job(Assessor::new(assess), &mut record);
    let steps = StepSettings::delimited("\n", most);
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let outcome = run(&mut Stepper::new(&steps, &decode, scorer), &mut job)?;
    drop(job);
    assert_eq!(outcome.samples.len(), recorded, "each sample is recorded, once");
    Ok(outcome)
}

fn by_question() -> Scorer<'static> {
    Scorer::Verdicts { ask: &ask, worth: vec![1.0, 0.0] }
}

fn beams(samples: u32, expansions: u32, by: Decide) -> StepSearch {
    let steps = StepSettings::delimited("\n", 40);
    StepSearch { samples, expansions, steps, lookahead: 0, aggregate: Aggregate::Last, by }
}

/// The thoughts below `at` and what became of them.
fn said(tree: &SamplingTree, at: NodeId) -> Vec<(String, NodeState)> {
    tree.children(at).into_iter().map(|node| (tree.node(node).text.clone(), tree.node(node).state())).collect()
}

fn nothing_is_held(tree: &SamplingTree) {
    let open = tree.nodes().filter(|&node| node != tree.root() && tree.node(node).state() == NodeState::Open);
    assert_eq!(open.count(), 0, "every lease is given back");
}

/// Samples 0 to 4 say `d`, `a`, `c`, `a` and `b`.
#[test]
fn a_scorer_chooses_the_best_of_all_that_were_drawn() {
    let says = ["d", "a", "c", "a", "b"];
    let replies = |prefer: fn(&str) -> f64| {
        EngineHandle::scripted(move |call| match call.continuation {
            Continuation::Given { tokens, .. } => {
                let text = call.text();
                let yes = prefer(text.strip_prefix("good?").expect("a question"));
                let chance = if text_of(tokens) == "y" { yes } else { 1.0 - yes };
                ScriptedReply::scores(vec![chance.ln() as f32])
            }
            // The root is branch 0.
            Continuation::Sampled { .. } => ScriptedReply::text(says[call.branch.0 as usize - 1]),
        })
    };
    let chosen = |prefer: fn(&str) -> f64| {
        let mut tree = job::tree_on(replies(prefer), "Q:");
        let root = tree.root();
        let how = SampleScoring::default();
        let outcome = search(by_question(), 1, false, |s, job| {
            best_by_scorer(&mut tree, root, says.len(), &mut s.scorer, &how, job)
        });
        let outcome = outcome.expect("nothing fails");
        nothing_is_held(&tree);
        let Some(Details::Scores { scores }) = &outcome.details else { panic!("{outcome:?}") };
        for (score, text) in scores.iter().zip(says) {
            assert!((score.expect("a value") - prefer(text)).abs() < 1e-6, "{text}: {score:?}");
        }
        let noted: Vec<Option<f64>> = tree.children(root).iter().map(|&node| tree.node(node).score).collect();
        assert_eq!(&noted, scores);
        assert_eq!(outcome.search_prompt_tokens, says.len() * "good?d".len());
        (outcome.chosen, outcome.prediction, outcome.correct)
    };
    assert_eq!(chosen(last_letter), (Some(1), Some("a".to_string()), Some(true)), "of equals the first");
    assert_eq!(chosen(|text| 1.0 - last_letter(text)), (Some(0), Some("d".to_string()), Some(false)));
}

#[test]
fn step_beam_keeps_what_the_scorer_prefers() {
    let mut tree = model("dcba", 2, last_letter);
    let (root, how) = (tree.root(), beams(4, 2, Decide::Best));
    let outcome = search(by_question(), 40, false, |s, job| step_beam(&mut tree, root, &how, s, job)).unwrap();
    let closed = |text: &str| (text.to_string(), NodeState::Closed);
    let pruned = |text: &str| (text.to_string(), NodeState::Pruned);
    assert_eq!(said(&tree, root), [pruned("d\n"), pruned("c\n"), closed("b\n"), closed("a\n")]);
    let kept: Vec<usize> = tree.children(root).iter().map(|&node| tree.children(node).len()).collect();
    assert_eq!(kept, [0, 0, 2, 2]);
    let scores = tree.children(root).into_iter().map(|node| tree.node(node).score.expect("scored"));
    for (score, letter) in scores.zip(["d", "c", "b", "a"]) {
        assert!((score - last_letter(letter)).abs() < 1e-6, "{letter}: {score}");
    }
    // Both beginnings go on with d and c; c is better, and after equal ones the better beginning comes first.
    assert_eq!(
        outcome.samples.iter().map(|sample| sample.text.as_str()).collect::<Vec<_>>(),
        ["a\nc", "b\nc", "a\nd", "b\nd"]
    );
    assert_eq!((outcome.prediction.as_deref(), outcome.chosen, outcome.correct), (Some("a"), Some(0), Some(true)));
    let Some(Details::Solutions { scores, .. }) = outcome.details else { panic!("solutions") };
    let expected = [last_letter("a"), last_letter("c")];
    assert!(scores[0].iter().zip(expected).all(|(score, expected)| (score.expect("a value") - expected).abs() < 1e-6));
    assert_eq!(outcome.search_tokens, 4, "two rejected steps of two letters");
    nothing_is_held(&tree);
}

/// An assessor whose scores turn the alphabet around: nothing is right, and `d` is worth most.
#[test]
fn a_search_follows_the_scores_of_its_assessor() {
    let mut tree = model("dcba", 2, last_letter);
    let (root, how) = (tree.root(), beams(4, 2, Decide::Best));
    let scored = |text: &str| Assessment { score: Some(1.0 - last_letter(text)), ..assess(text) };
    let order = Order::default();
    let mut record = |_: &_| Ok(());
    let mut job = order.job(Assessor::new(scored), &mut record);
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let mut stepper = Stepper::new(&how.steps, &decode, Scorer::Grade);
    let outcome = step_beam(&mut tree, root, &how, &mut stepper, &mut job).expect("nothing fails");
    drop(job);
    assert_eq!(outcome.samples[0].text, "d\nd", "the assessor's best, though `a` is right");
    assert_eq!(outcome.correct, Some(false));
    let scores: Vec<Option<f64>> = tree.children(root).iter().map(|&node| tree.node(node).score).collect();
    let expected = ["d", "c", "b", "a"].map(|letter| Some(1.0 - last_letter(letter)));
    assert_eq!(scores, expected);
}

#[test]
fn a_step_that_fails_is_missed_alone() {
    let drivers = [step_beam, dvts];
    for driver in drivers {
        let mut tree = model("a!cd", 2, last_letter);
        let (root, how) = (tree.root(), beams(4, 2, Decide::Vote));
        let outcome = search(by_question(), 40, false, |s, job| driver(&mut tree, root, &how, s, job)).unwrap();
        let texts: Vec<&str> = outcome.samples.iter().map(|sample| sample.text.as_str()).collect();
        assert_eq!(texts, ["a\na", "c\na"], "a and c go on, each with one of its two draws");
        assert_eq!(tree.take_failures().len(), 3);
        nothing_is_held(&tree);
    }
}

#[test]
fn simulations_go_where_branches_do_not_fail() {
    let run = |letters: &'static str| {
        let mut tree = model(letters, 100, last_letter);
        let (root, how) = (tree.root(), simulations(20, 4, MctsSelect::Uct));
        let outcome = search(Scorer::Grade, 40, false, |s, job| mcts(&mut tree, root, &how, s, job)).unwrap();
        assert!(!tree.take_failures().is_empty());
        nothing_is_held(&tree);
        (outcome, tree)
    };
    let (outcome, tree) = run("a!");
    visits_add_up(&tree, 20);
    assert_eq!(outcome.samples.len(), 20, "one of two steps fails everywhere, and the other goes on");
    // Where every step fails, only the simulation from the root itself is left.
    let (outcome, tree) = run("!");
    assert_eq!((outcome.samples.len(), tree.node(tree.root()).visits), (1, Some(20)));
}

/// A model that says `abcdefg` and ends: two tokens a step.
#[test]
fn steps_end_after_a_number_of_tokens_or_where_the_text_ends() {
    let engine = EngineHandle::scripted(|call| {
        let Continuation::Sampled { stop, .. } = &call.continuation else { panic!("nothing is given") };
        let (said, text) = (call.text().len() - "Q:".len(), "abcdefg");
        match said + stop.max_tokens < text.len() {
            true => ScriptedReply::text(&text[said..said + stop.max_tokens]).reason(FinishReason::Length),
            false => ScriptedReply::text(&text[said..]),
        }
    });
    let mut tree = job::tree_on(engine, "Q:");
    let root = tree.root();
    let steps = StepSettings { end: StepEnd::Tokens(NonZeroUsize::new(2).expect("2")), most: 9 };
    let how = StepSearch { steps, ..beams(2, 2, Decide::Best) };
    let order = Order::default();
    let mut record = |_: &_| Ok(());
    let mut job = order.job(Assessor::new(assess), &mut record);
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let mut stepper = Stepper::new(&how.steps, &decode, Scorer::MeanLogprob);
    let outcome = step_beam(&mut tree, root, &how, &mut stepper, &mut job).expect("nothing fails");
    let path: Vec<String> = tree
        .nodes()
        .filter(|&node| tree.node(node).state() == NodeState::Closed && node != root)
        .map(|node| tree.node(node).text.clone())
        .collect();
    assert_eq!(path, ["ab", "cd", "ef", "g"]);
    assert_eq!((outcome.samples[0].text.as_str(), &outcome.samples[0].finish), ("abcdefg", &FinishReason::EndOfText));
}

#[test]
fn aggregates_see_all_steps() {
    let mut solution = offshoot_search::steps::Solution::start(NodeId(0));
    assert_eq!([Aggregate::Product, Aggregate::Mean].map(|aggregate| solution.value(aggregate)), [None; 2]);
    solution.scores = vec![Some(0.5), None, Some(0.25), Some(0.75)];
    let all = [Aggregate::Last, Aggregate::Min, Aggregate::Product, Aggregate::Mean];
    assert_eq!(all.map(|aggregate| solution.value(aggregate)), [0.75, 0.25, 0.09375, 0.5].map(Some));
    solution.scores.push(None);
    assert_eq!(all.map(|aggregate| solution.value(aggregate)), [None; 4], "the newest has none");
}

#[test]
fn equal_steps_are_one_and_count_as_many() {
    for (by, prediction) in [(Decide::Vote, "b"), (Decide::WeightedVote, "b"), (Decide::Best, "a")] {
        let mut tree = model("bbba", 1, last_letter);
        let (root, how) = (tree.root(), beams(4, 1, by));
        let outcome = search(by_question(), 40, false, |s, job| step_beam(&mut tree, root, &how, s, job)).unwrap();
        assert_eq!(outcome.votes, [("b".to_string(), 3), ("a".to_string(), 1)]);
        assert_eq!(outcome.samples.len(), 2);
        assert_eq!(outcome.prediction.as_deref(), Some(prediction), "{by:?}");
        let scored = tree.children(root).into_iter().map(|node| tree.node(node).score);
        assert_eq!(scored.map(|score| score.is_some()).collect::<Vec<_>>(), [true, false, false, true]);
    }
}

#[test]
fn equal_votes_tie_unless_values_weigh_them() {
    for (by, tied) in [(Decide::Vote, vec![0, 1]), (Decide::WeightedVote, Vec::new())] {
        let mut tree = model("bbaa", 1, last_letter);
        let (root, how) = (tree.root(), beams(4, 1, by));
        let outcome = search(by_question(), 40, false, |s, job| step_beam(&mut tree, root, &how, s, job)).unwrap();
        assert_eq!(outcome.votes.iter().map(|(_, votes)| *votes).collect::<Vec<_>>(), [2, 2]);
        assert_eq!((outcome.prediction.as_deref(), &outcome.tied), (Some("a"), &tied), "{by:?}");
    }
}

#[test]
fn subtrees_know_nothing_of_each_other() {
    let mut tree = model("dcba", 3, last_letter);
    let (root, how) = (tree.root(), beams(4, 2, Decide::Vote));
    let outcome = search(by_question(), 40, false, |s, job| dvts(&mut tree, root, &how, s, job)).unwrap();
    let grown: Vec<(String, usize)> = tree
        .children(root)
        .into_iter()
        .map(|node| (tree.node(node).text.trim_end().to_string(), tree.children(node).len()))
        .collect();
    // The first subtree drew d and c, the second b and a: c goes on though b is better.
    let expected = [("d", 0), ("c", 2), ("b", 0), ("a", 2)].map(|(letter, children)| (letter.to_string(), children));
    assert_eq!(grown, expected);
    let texts: Vec<&str> = outcome.samples.iter().map(|sample| sample.text.as_str()).collect();
    assert_eq!(texts, ["c\nc\nc", "c\nc\nd", "a\nc\nc", "a\nc\nd"]);
    nothing_is_held(&tree);
}

#[test]
fn a_search_that_takes_too_many_steps_ends_with_what_it_has() {
    let mut tree = model("ab", 100, last_letter);
    let (root, mut how) = (tree.root(), beams(4, 2, Decide::WeightedVote));
    how.steps.most = 3;
    let outcome = search(by_question(), 3, false, |s, job| step_beam(&mut tree, root, &how, s, job)).unwrap();
    assert!(outcome.samples.iter().all(|sample| sample.finish == FinishReason::Length && sample.text.len() == 6));
    assert_eq!(outcome.prediction.as_deref(), Some("a"));
    nothing_is_held(&tree);
}

fn simulations(samples: u32, parallel: u32, select: MctsSelect) -> Mcts {
    Mcts {
        samples,
        tokens: None,
        expansions: 2,
        parallel,
        steps: StepSettings::delimited("\n", 40),
        scoring: RolloutScoring::Scorer,
        select,
        exploration: 0.5,
        widening: None,
        by: MctsDecide::Visits,
    }
}

/// Visits by text, thoughts alone.
fn visits(tree: &SamplingTree) -> HashMap<String, u32> {
    let thoughts = tree.nodes().filter(|&node| tree.node(node).kind == ForkKind::Sample);
    thoughts.filter_map(|node| Some((tree.path_text(node), tree.node(node).visits?))).collect()
}

/// One visit more than the children together, wherever a solution can go on; means of values between 0 and 1.
fn visits_add_up(tree: &SamplingTree, simulations: u32) {
    assert_eq!(tree.node(tree.root()).visits, Some(simulations));
    for node in tree.nodes().filter(|&node| tree.node(node).visits.is_some_and(|visits| visits > 0)) {
        let below: u32 = tree.children(node).into_iter().filter_map(|child| tree.node(child).visits).sum();
        let visits = tree.node(node).visits.expect("filtered");
        assert!(below == visits - 1 || tree.children(node).is_empty(), "{}: {below} of {visits}", tree.path_text(node));
        let mean = tree.node(node).score.expect("visited");
        assert!((0.0..=1.0).contains(&mean), "{mean}");
    }
}

/// How often UCB1 plays each of two arms that always pay 1 and 0, the first before the second; `before` other visits
/// came first.
fn two_arms(plays: u32, exploration: f64, before: u32) -> [u32; 2] {
    let (mut played, pays) = ([0u32; 2], [1.0, 0.0]);
    for play in 0..plays {
        let seen = f64::from(before + play + 1);
        let promise = |arm: usize| match played[arm] {
            0 => f64::INFINITY,
            n => pays[arm] + exploration * (seen.ln() / f64::from(n)).sqrt(),
        };
        let arm = if promise(1) > promise(0) { 1 } else { 0 };
        played[arm] += 1;
    }
    played
}

#[test]
fn mcts_plays_two_arms_as_ucb1_does() {
    for samples in [2, 3, 10, 100] {
        let mut tree = model("ab", 100, last_letter);
        let (root, how) = (tree.root(), simulations(samples, 1, MctsSelect::Uct));
        let outcome = search(Scorer::Grade, 40, false, |s, job| mcts(&mut tree, root, &how, s, job)).unwrap();
        visits_add_up(&tree, samples);
        let (arms, visits) = (two_arms(samples - 1, 0.5, 1), visits(&tree));
        assert_eq!([visits["a\n"], visits["b\n"]], arms, "{samples} simulations");
        assert_eq!(outcome.samples.len(), samples as usize, "no solution ends before its simulation");
        if samples > 3 {
            assert!(arms[0] > 2 * arms[1], "visits gather where the value is: {arms:?}");
            assert_eq!((outcome.prediction.as_deref(), outcome.correct), (Some("a"), Some(true)));
        }
        nothing_is_held(&tree);
    }
}

#[test]
fn simulations_of_one_batch_take_different_ways() {
    for select in [MctsSelect::Uct, MctsSelect::Puct] {
        let mut tree = model("abcd", 3, last_letter);
        let (root, mut how) = (tree.root(), simulations(64, 8, select));
        how.expansions = 4;
        search(Scorer::Grade, 40, false, |s, job| mcts(&mut tree, root, &how, s, job)).unwrap();
        visits_add_up(&tree, 64);
        let visits = visits(&tree);
        assert!(["a\n", "b\n", "c\n", "d\n"].iter().all(|arm| visits[*arm] > 0), "{select:?}: {visits:?}");
        assert!(visits["a\n"] > 32, "{select:?}: {visits:?}");
    }
}

#[test]
fn the_same_seed_searches_the_same_tree() {
    let run = || {
        let mut tree = model("abcab", 3, last_letter);
        let (root, mut how) = (tree.root(), simulations(40, 8, MctsSelect::Puct));
        (how.expansions, how.widening, how.scoring) = (3, Some(0.5), RolloutScoring::Agreement);
        how.by = MctsDecide::Rollouts(Decide::WeightedVote);
        let outcome = search(Scorer::Grade, 40, false, |s, job| mcts(&mut tree, root, &how, s, job)).unwrap();
        visits_add_up(&tree, 40);
        (tree.trace(), outcome.prediction)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_budget_of_tokens_ends_a_search() {
    let mut tree = model("ab", 100, last_letter);
    let (root, mut how) = (tree.root(), simulations(1_000, 4, MctsSelect::Uct));
    how.tokens = Some(60);
    let outcome = search(Scorer::Grade, 40, false, |s, job| mcts(&mut tree, root, &how, s, job)).unwrap();
    let drawn = tree.spent().drawn;
    assert!((60..100).contains(&drawn), "{drawn} tokens: no simulation begins once they are drawn");
    assert_eq!(outcome.samples.len() as u32, tree.node(root).visits.expect("visited"));
}

#[test]
fn an_interrupt_ends_each_of_them() {
    type Driver = fn(&mut SamplingTree, NodeId, &mut Stepper<'_>, &mut SearchJob<'_>) -> Result<Outcome>;
    let drivers: [Driver; 3] = [
        |tree, root, s, job| step_beam(tree, root, &beams(4, 2, Decide::Best), s, job),
        |tree, root, s, job| dvts(tree, root, &beams(4, 2, Decide::Best), s, job),
        |tree, root, s, job| mcts(tree, root, &simulations(8, 4, MctsSelect::Uct), s, job),
    ];
    for driver in drivers {
        let mut tree = model("ab", 3, last_letter);
        let root = tree.root();
        let ended = search(by_question(), 40, true, |s, job| driver(&mut tree, root, s, job));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    }
}
