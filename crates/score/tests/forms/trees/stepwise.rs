//! Scores of answers that grow step by step: they equal those of the whole texts, whatever the engine had to give up.

use std::collections::HashMap;

use offshoot_core::ids::NodeId;
use offshoot_engine::{EngineConfig, PoolSize};
use offshoot_score::{ScorerModel, TextScorer, TextScores};

use super::scorers::{Body, Dice, FormCase, all, question, whole};

/// A step that may have what forms write themselves, or end within a word.
fn step(dice: &mut Dice) -> String {
    const HOSTILE: [&str; 12] = [
        "<extra_0>",
        "<|im_end|>\n",
        " + ",
        "\n",
        "  \n\n",
        "<|eot_id|>",
        "ends in wo",
        "-",
        "<|im_start|>assistant\n",
        "é",
        "+",
        "<extra",
    ];
    let words = 1 + dice.below(7);
    let plain = dice.step(words);
    match dice.below(3) {
        0 => format!("{}{plain}", HOSTILE[dice.below(HOSTILE.len())]),
        1 => format!("{}{}", plain.trim_end(), HOSTILE[dice.below(HOSTILE.len())]),
        _ => plain,
    }
}

/// Answers of a tree, by their nodes: each goes on from a random one of the level before.
fn grown(scorer: &ScorerModel, seed: u64, levels: usize, width: usize) -> HashMap<NodeId, (Vec<String>, TextScores)> {
    let mut dice = Dice(seed);
    let mut tree = scorer.begin(&question()).unwrap();
    let mut answers: HashMap<NodeId, (Vec<String>, TextScores)> = HashMap::new();
    let (mut before, mut next): (Vec<NodeId>, usize) = (Vec::new(), 0);
    for level in 0..levels {
        let mut started = HashMap::new();
        for _ in 0..width {
            let parent = (level > 0).then(|| before[dice.below(before.len())]);
            let mut steps = parent.map_or_else(Vec::new, |parent| answers[&parent].0.clone());
            steps.push(step(&mut dice));
            let node = NodeId::new(next);
            next += 1;
            tree.start(node, parent, &steps).unwrap();
            started.insert(node, steps);
        }
        before = started.keys().copied().collect();
        before.sort();
        for (node, result) in all(&mut *tree) {
            let steps = started.remove(&node).unwrap();
            answers.insert(node, (steps.clone(), result.unwrap_or_else(|error| panic!("{steps:?}: {error}"))));
        }
        // Half of the answers are given up, and may be gone on from.
        for node in before.iter().filter(|node| node.ix() % 2 == 0) {
            tree.prune(*node);
        }
    }
    answers
}

#[test]
fn scores_step_by_step_are_those_of_whole_texts() {
    for case in FormCase::all() {
        let (scorer, fresh) = (case.scorer(20_000), case.resolved());
        for seed in 0..3 {
            for (node, (steps, scored)) in grown(&scorer, seed, 6, 4) {
                let other = case.scorer(4_000);
                let expected = whole(&other, &steps);
                assert_eq!(scored.scores, expected.scores, "{}, seed {seed}, node {node}: {steps:?}", case.name);
                assert_eq!(scored.tokens, fresh.render(&question(), &steps).unwrap().tokens.len());
                assert_eq!(expected.computed, expected.tokens);
                assert!(scored.computed <= scored.tokens);
            }
        }
    }
}

/// Layers whose keys and values are freed behind a window, and layers with states, which exist at few places of a path.
#[test]
fn scores_are_those_of_whole_texts_whatever_the_layers_keep() {
    for body in [Body::Windowed, Body::Mixed, Body::Hybrid] {
        for case in [FormCase::last_token(), FormCase::step_tag()].map(|case| case.with_body(body)) {
            let scorer = case.scorer(20_000);
            for (node, (steps, scored)) in grown(&scorer, 11, 5, 3) {
                let expected = whole(&case.scorer(4_000), &steps);
                assert_eq!(scored.scores, expected.scores, "{body:?}, {}, node {node}: {steps:?}", case.name);
            }
        }
    }
}

/// Pages for little more than one answer at a time, and for few branches in a step.
#[test]
fn scores_are_the_same_where_keys_and_values_are_given_up() {
    for case in [FormCase::last_token(), FormCase::step_tag()] {
        let small = EngineConfig {
            pool: PoolSize::Bytes(14 * 16 * 512),
            max_branches: 3,
            step_rows: 24,
            check_plans: true,
            ..EngineConfig::default()
        };
        let (small, large) = (case.scorer_by(small), case.scorer(20_000));
        let (narrow, wide) = (grown(&small, 7, 5, 6), grown(&large, 7, 5, 6));
        for (node, (steps, scored)) in narrow {
            assert_eq!((&steps, scored.scores), (&wide[&node].0, wide[&node].1.scores.clone()), "{}", case.name);
        }
        let rows = |scorer: &ScorerModel| scorer.engine().metrics().unwrap().rows;
        assert!(rows(&small) > rows(&large), "{}: nothing was computed twice", case.name);
    }
}
