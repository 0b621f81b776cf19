//! What scoring costs: the distinct tokens of a tree of answers, and no memory once they are given up.

use std::collections::HashMap;

use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::{EngineConfig, PoolSize};
use offshoot_score::TextScorer;

use super::scorers::{Dice, FormCase, all, only, question, whole};

/// The distinct tokens of texts: nodes of the tree of their beginnings.
#[derive(Default)]
struct Trie {
    ids: HashMap<(usize, TokenId), usize>,
}

impl Trie {
    fn add(&mut self, tokens: &[TokenId]) {
        let mut at = 0;
        for &token in tokens {
            let next = self.ids.len() + 1;
            at = *self.ids.entry((at, token)).or_insert(next);
        }
    }

    fn len(&self) -> usize {
        self.ids.len()
    }
}

/// 32 steps of answers that go on by pairs: each of the kept ones has two children, of which one is kept.
#[test]
fn a_tree_of_answers_costs_its_distinct_tokens() {
    const KEPT: usize = 8;
    for case in FormCase::all() {
        let pool = PoolSize::Bytes(200_000 * 512);
        let scorer = case.scorer_by(EngineConfig { pool, check_plans: false, ..EngineConfig::default() });
        let form = case.resolved();
        let mut dice = Dice(1);
        let (mut trie, mut tree) = (Trie::default(), scorer.begin(&question()).unwrap());
        let mut kept: Vec<(Option<NodeId>, Vec<String>)> = vec![(None, Vec::new()); KEPT];
        let (mut next, mut computed) = (0, 0);
        for _ in 0..32 {
            let mut grown = Vec::new();
            for (parent, steps) in &kept {
                for _ in 0..2 {
                    let mut steps = steps.clone();
                    steps.push(dice.step(12));
                    trie.add(&form.render(&question(), &steps).unwrap().tokens);
                    tree.start(NodeId::new(next), *parent, &steps).unwrap();
                    grown.push((Some(NodeId::new(next)), steps));
                    next += 1;
                }
            }
            for (_, result) in all(&mut *tree) {
                computed += result.unwrap().computed;
            }
            for (node, _) in grown.iter().skip(1).step_by(2) {
                node.iter().for_each(|&node| tree.prune(node));
            }
            kept = grown.into_iter().step_by(2).collect();
        }
        let metrics = scorer.engine().metrics().unwrap();
        let distinct = trie.len() as f64;
        let (rows, told) = (metrics.rows as f64 / distinct, computed as f64 / distinct);
        println!("{}: {distinct} distinct tokens; computed {rows:.4} times that, told {told:.4}", case.name);
        assert!((1.0..=1.02).contains(&rows), "{}: {} rows for {distinct} tokens", case.name, metrics.rows);
        assert!((0.98..=1.05).contains(&told), "{}: {computed} told for {distinct} tokens", case.name);
    }
}

#[test]
fn pruned_answers_and_dropped_trees_hold_no_memory() {
    for case in FormCase::all() {
        let scorer = case.scorer(8_000);
        let held = || scorer.engine().metrics().unwrap().kv_bytes_held;
        let mut tree = scorer.begin(&question()).unwrap();
        let mut dice = Dice(3);
        let mut steps = Vec::new();
        for node in 0..4 {
            steps.push(dice.step(12));
            let parent = (node > 0).then(|| NodeId::new(node - 1));
            tree.start(NodeId::new(node), parent, &steps).unwrap();
            only(&mut *tree, NodeId::new(node)).unwrap();
        }
        assert!(held() > 0, "{}", case.name);
        (0..3).for_each(|node| tree.prune(NodeId::new(node)));
        assert!(held() > 0, "{}", case.name);
        drop(tree);
        // The scorer's thread closes the tree before it scores another.
        let mut other = scorer.begin(&question()).unwrap();
        other.start(NodeId(0), None, &steps).unwrap();
        let scored = only(&mut *other, NodeId(0)).unwrap();
        assert_eq!(scored.scores.scores.last().unwrap().step, 3);
        let held_by_one = held();
        other.start(NodeId(1), None, &steps).unwrap();
        only(&mut *other, NodeId(1)).unwrap();
        other.prune(NodeId(0));
        other.start(NodeId(2), None, &steps).unwrap();
        only(&mut *other, NodeId(2)).unwrap();
        other.prune(NodeId(1));
        assert!(held() <= held_by_one, "{}", case.name);
    }
}

/// An answer that was scored before costs nothing, also in another tree.
#[test]
fn what_was_scored_is_found_again() {
    for case in FormCase::all() {
        let scorer = case.scorer(8_000);
        let mut dice = Dice(5);
        let steps = vec![dice.step(20), dice.step(20)];
        let rows = || scorer.engine().metrics().unwrap().rows;
        let mut first = scorer.begin(&question()).unwrap();
        first.start(NodeId(0), None, &steps).unwrap();
        let scored = only(&mut *first, NodeId(0)).unwrap();
        let before = rows();
        let mut second = scorer.begin(&question()).unwrap();
        second.start(NodeId(9), None, &steps).unwrap();
        first.start(NodeId(1), Some(NodeId(0)), &steps).unwrap();
        assert_eq!(only(&mut *second, NodeId(9)).unwrap().scores, scored.scores, "{}", case.name);
        assert_eq!(only(&mut *first, NodeId(1)).unwrap().scores, scored.scores, "{}", case.name);
        assert_eq!(rows(), before, "{}", case.name);
    }
}

/// A search gives a node up as soon as all of its children are started.
#[test]
fn an_answer_keeps_what_it_goes_on_from_when_that_is_given_up() {
    for case in FormCase::all() {
        let scorer = case.scorer(8_000);
        let mut dice = Dice(6);
        let mut tree = scorer.begin(&question()).unwrap();
        let mut steps = vec![" \n\n".to_owned(), dice.step(60)];
        tree.start(NodeId(0), None, &steps).unwrap();
        let first = only(&mut *tree, NodeId(0)).unwrap();
        let read = || scorer.engine().metrics().unwrap().values_reused;
        let before = read();
        steps.push(dice.step(10));
        tree.start(NodeId(1), Some(NodeId(0)), &steps).unwrap();
        tree.prune(NodeId(0));
        let second = only(&mut *tree, NodeId(1)).unwrap();
        assert!(second.tokens - first.tokens >= 10 && second.computed < 40, "{}: {second:?}", case.name);
        assert_eq!(read(), before, "{}: the values before are at hand", case.name);
        assert_eq!(second.scores, whole(&case.scorer(4_000), &steps).scores, "{}", case.name);
    }
}

/// An answer of white space alone, which has no step, is scored by forms that value whole answers.
#[test]
fn an_answer_of_white_space_has_a_value_of_its_own() {
    let case = FormCase::last_token();
    let scorer = case.scorer(8_000);
    let mut tree = scorer.begin(&question()).unwrap();
    let empty = vec!["  \n\n".to_owned()];
    tree.start(NodeId(0), None, &empty).unwrap();
    let scored = only(&mut *tree, NodeId(0)).unwrap();
    assert_eq!(scored.scores, whole(&case.scorer(4_000), &empty).scores);
    let longer = vec![empty[0].clone(), Dice(1).step(9)];
    tree.start(NodeId(1), Some(NodeId(0)), &longer).unwrap();
    let scored = only(&mut *tree, NodeId(1)).unwrap();
    assert_eq!(scored.scores, whole(&case.scorer(4_000), &longer).scores);
}
