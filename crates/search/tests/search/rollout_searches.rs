//! Searches whose samples are rollouts, on a scripted engine: groups that end early, segments that branch and fall
//! back, nodes that are split.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::scripted::text_of;
use offshoot_engine::{
    Continuation, EngineHandle, FinishReason, GroupEnd, LogprobsMode, SamplingParams, ScriptedReply, Stop, Stragglers,
};
use offshoot_search::rollout::{RolloutTrie, TrieBuilder};
use offshoot_search::settings::{BestBy, BestOfN, TreePo};
use offshoot_search::tree::{NodeState, SamplingTree};
use offshoot_search::vote::Decided;
use offshoot_search::{
    Assessment, Outcome, SearchJob, best_of_n, finish_stragglers, release_stragglers, sample, self_consistency, tree_po,
};
use proptest::prelude::*;

use crate::job;

fn decode(_: &[TokenId], tokens: &[TokenId]) -> String {
    text_of(tokens)
}

/// The answer is the last letter; `a` is right.
fn assess(text: &str) -> Assessment {
    let answer = text.chars().last().map(String::from);
    Assessment { correct: Some(answer.as_deref() == Some("a")), answer, ..Assessment::default() }
}

/// Branches 2 and 4 wait until they are cancelled, and end when they go on.
fn with_two_stragglers() -> SamplingTree {
    let mut begun: HashMap<u64, usize> = HashMap::new();
    let engine = EngineHandle::scripted(move |call| {
        let extends = begun.entry(call.branch.0).or_default();
        *extends += 1;
        match (call.branch.0, *extends) {
            (2 | 4, 1) => ScriptedReply::text("slo").until_cancelled(),
            (2 | 4, _) => ScriptedReply::text("w a"),
            _ => ScriptedReply::text("b a"),
        }
    });
    job::tree_on(engine, "Q")
}

type Driver = fn(&mut SamplingTree, &mut SearchJob<'_>) -> Outcome;

const DRIVERS: [Driver; 3] = [
    |tree, job| sample(tree, tree.root(), 4, job).unwrap(),
    |tree, job| best_of_n(tree, tree.root(), &BestOfN::new(4, BestBy::Logprob), job).unwrap(),
    |tree, job| self_consistency(tree, tree.root(), 4, Decided::Never, job).unwrap(),
];

#[test]
fn a_group_ends_when_enough_have_finished_and_the_others_are_cancelled() {
    for drive in DRIVERS {
        let mut tree = with_two_stragglers();
        let (params, stop) = (SamplingParams::default(), Stop::default());
        let end = GroupEnd::new(NonZeroUsize::new(2).unwrap());
        let mut job = SearchJob::new(&params, &stop).assessed_by(assess).ending_group(end);
        let outcome = drive(&mut tree, &mut job);
        assert_eq!(outcome.samples.iter().map(|sample| sample.index).collect::<Vec<_>>(), [0, 2]);
        let stragglers: Vec<(u64, bool)> = outcome.stragglers.iter().map(|of| (of.index, of.kept)).collect();
        assert_eq!((outcome.cancelled, stragglers), (2, vec![(1, false), (3, false)]));
        assert_eq!(outcome.cancelled_tokens, outcome.stragglers.iter().map(|of| of.tokens).sum::<usize>());
        assert_eq!(job.leaves.iter().map(|leaf| leaf.sample).collect::<std::collections::BTreeSet<_>>(), [0, 2].into());
        for straggler in &outcome.stragglers {
            assert_eq!(tree.node(straggler.node).finish, Some(FinishReason::Cancelled));
            assert_eq!(tree.node(straggler.node).state(), NodeState::Pruned);
        }
    }
}

#[test]
fn kept_stragglers_are_finished_later_and_marked() {
    for drive in DRIVERS {
        let mut tree = with_two_stragglers();
        let (params, stop) = (SamplingParams::default(), Stop::default());
        let end = GroupEnd { stragglers: Stragglers::Keep, ..GroupEnd::new(NonZeroUsize::new(2).unwrap()) };
        let mut job = SearchJob::new(&params, &stop).assessed_by(assess).ending_group(end);
        let outcome = drive(&mut tree, &mut job);
        assert!(outcome.stragglers.iter().all(|of| of.kept && tree.node(of.node).state() == NodeState::Open));
        let root = tree.root();
        let late = finish_stragglers(&mut tree, root, &outcome.stragglers[..1], &decode, &mut job).unwrap();
        let had = &text_of(&tree.node(outcome.stragglers[0].node).tokens[..outcome.stragglers[0].tokens]);
        assert!("slo".starts_with(had.as_str()), "it goes on from what it had: {had}");
        assert_eq!((late.len(), late[0].index, &late[0].finish), (1, 1, &FinishReason::EndOfText));
        assert_eq!((late[0].text.as_str(), late[0].correct), (format!("{had}w a").as_str(), Some(true)));
        release_stragglers(&mut tree, &outcome.stragglers[1..]);
        assert_eq!(tree.node(outcome.stragglers[1].node).state(), NodeState::Pruned);
        let mut builder = TrieBuilder::new();
        builder.tree(&tree, 0, &job.leaves, LogprobsMode::RawLogprobs).unwrap();
        let trie = builder.build();
        let continued: Vec<u64> = trie.leaves().iter().filter(|leaf| leaf.continued).map(|leaf| leaf.sample).collect();
        assert_eq!((trie.leaves().len(), continued), (3, vec![1]));
    }
}

/// A model whose texts have `length` letters: the first, second, … draw after the same text begins with `a`, `b`, …,
/// which is repeated to the end of the segment. It counts the tokens that it samples.
fn segments_of(length: usize, letters: usize, drawn: Arc<Mutex<usize>>) -> SamplingTree {
    let mut draws: HashMap<String, usize> = HashMap::new();
    let engine = EngineHandle::scripted(move |call| {
        let text = call.text();
        let Continuation::Sampled { stop, .. } = call.continuation else { panic!("nothing is given") };
        let draw = draws.entry(text.clone()).or_default();
        // The later letters are right.
        let letter = (b'z' - (*draw % letters) as u8) as char;
        *draw += 1;
        let left = length - (text.len() - 1);
        let own = left.min(stop.max_tokens);
        *drawn.lock().unwrap() += own;
        let reply = ScriptedReply::text(&letter.to_string().repeat(own)).logprob(-(*draw as f32));
        if own == left { reply } else { reply.reason(FinishReason::Length) }
    });
    job::tree_on(engine, "Q")
}

fn tried(how: &TreePo, length: usize, letters: usize) -> (SamplingTree, Outcome, RolloutTrie, usize) {
    let drawn = Arc::default();
    let mut tree = segments_of(length, letters, Arc::clone(&drawn));
    let (params, stop) = (SamplingParams::default(), Stop::max_tokens(1000));
    let right = |text: &str| {
        let answer = text.chars().last().map(String::from);
        Assessment { correct: Some(answer.as_deref() == Some("x")), answer, ..Assessment::default() }
    };
    let mut job = SearchJob::new(&params, &stop).assessed_by(right);
    let root = tree.root();
    let outcome = tree_po(&mut tree, root, how, &decode, &mut job).unwrap();
    let mut builder = TrieBuilder::new();
    builder.tree(&tree, 0, &job.leaves, LogprobsMode::RawLogprobs).unwrap();
    drop(job);
    let drawn = *drawn.lock().unwrap();
    (tree, outcome, builder.build(), drawn)
}

#[test]
fn segments_branch_and_fall_back_until_there_are_enough_samples() {
    let how = TreePo { samples: 6, segment: 2, branches: 2, tokens: 1000 };
    let (tree, outcome, trie, drawn) = tried(&how, 6, 3);
    let texts: Vec<&str> = outcome.samples.iter().map(|sample| sample.text.as_str()).collect();
    // From the prompt two segments; then four; of the third ones there is room for six.
    assert_eq!(texts.len(), 6);
    assert!(texts.iter().all(|text| text.len() == 6), "{texts:?}");
    assert_eq!(texts.iter().filter(|text| &text[2..4] == "zz").count(), 4, "the likelier half branched: {texts:?}");
    assert_eq!(drawn, 2 * 2 + 4 * 2 + 6 * 2);
    assert_eq!((trie.tokens().len(), trie.unpacked_tokens()), (1 + drawn, 6 * 7));
    assert_eq!(trie.leaves().iter().map(|leaf| leaf.reward).collect::<Vec<_>>(), vec![Some(0.0); 6]);
    let open: Vec<NodeId> = tree.nodes().filter(|&node| tree.node(node).state() == NodeState::Open).collect();
    assert_eq!(open, [tree.root()], "every node is given back");
}

/// One path ends at once and is wrong: the search goes back to the end of its last segment first, then further up.
#[test]
fn the_search_falls_back_where_all_fail() {
    let how = TreePo { samples: 4, segment: 2, branches: 1, tokens: 1000 };
    let (_, outcome, _, _) = tried(&how, 4, 3);
    let texts: Vec<&str> = outcome.samples.iter().map(|sample| sample.text.as_str()).collect();
    assert_eq!(texts, ["zzzz", "zzyy", "yyzz", "yyyy"]);
    assert_eq!(outcome.samples.iter().filter(|sample| sample.correct == Some(true)).count(), 0);
}

/// The tokens are spent right after the search has fallen back: what a sample has gone on from is no sample of its own.
#[test]
fn a_sample_is_no_beginning_of_another_one() {
    let how = TreePo { samples: 4, segment: 2, branches: 1, tokens: 4 };
    let (_, outcome, _, _) = tried(&how, 4, 3);
    let texts: Vec<&str> = outcome.samples.iter().map(|sample| sample.text.as_str()).collect();
    assert_eq!(texts, ["zzzz"]);
}

/// A pause ends a sample in the middle of its segment: it is one of the samples, and does not go on.
#[test]
fn what_a_pause_has_ended_stays_ended() {
    let engine = EngineHandle::scripted(|call| match call.text().as_str() {
        "Q" => ScriptedReply::text("ab").reason(FinishReason::Aborted),
        text => panic!("{text} goes on"),
    });
    let mut tree = job::tree_on(engine, "Q");
    let (params, stop) = (SamplingParams::default(), Stop::max_tokens(100));
    let mut job = SearchJob::new(&params, &stop).assessed_by(assess);
    let (root, how) = (tree.root(), TreePo { samples: 2, segment: 8, branches: 2, tokens: 1000 });
    let outcome = tree_po(&mut tree, root, &how, &decode, &mut job).unwrap();
    let ended: Vec<_> = outcome.samples.iter().map(|sample| (sample.text.as_str(), &sample.finish)).collect();
    assert_eq!(ended, [("ab", &FinishReason::Aborted); 2]);
}

proptest! {
    #[test]
    fn tokens_are_a_fixed_budget(
        samples in 1u32..9, segment in 1usize..6, branches in 1u32..5, tokens in 1usize..60, length in 1usize..20,
        letters in 1usize..4,
    ) {
        let how = TreePo { samples, segment, branches, tokens };
        let (_, outcome, trie, drawn) = tried(&how, length, letters);
        prop_assert!(drawn <= tokens, "{drawn} of {tokens}");
        prop_assert!(outcome.samples.len() <= samples as usize);
        let whole = outcome.samples.iter().filter(|sample| sample.finish == FinishReason::EndOfText).count();
        prop_assert!(whole == samples as usize || drawn + (samples as usize) * (branches as usize) > tokens);
        prop_assert!(trie.leaves().len() == outcome.samples.len());
        for (leaf, sample) in outcome.samples.iter().enumerate() {
            prop_assert_eq!(text_of(&trie.sequence(leaf)), format!("Q{}", sample.text));
            prop_assert_eq!(sample.tokens, sample.text.len());
            let end = trie.leaves()[leaf].token;
            prop_assert_eq!(trie.tokens()[end as usize].end, end + 1, "no sample goes on behind another one");
        }
    }

    /// A node that is split has the same path, and its first part can be forked.
    #[test]
    fn a_split_node_shares_what_is_before_the_split(at in 1usize..7) {
        let engine = EngineHandle::scripted(|call| match call.text().as_str() {
            "Q" => ScriptedReply::text("one two").logprob(-0.5),
            text => ScriptedReply::text(&text[1..].to_uppercase()),
        });
        let mut tree = job::tree_on(engine, "Q");
        let node = tree.fork(tree.root(), 1).unwrap()[0];
        tree.extend(&[node], &SamplingParams::default(), &Stop::default()).unwrap();
        let rest = tree.split(node, at, at).unwrap();
        prop_assert_eq!(tree.path_text(rest), "one two");
        prop_assert_eq!(tree.node(rest).logprob + tree.node(node).logprob, -3.5);
        prop_assert_eq!(tree.node(node).text.as_str(), &"one two"[..at]);
        prop_assert_eq!((&tree.node(node).finish, &tree.node(rest).finish),
            (&Some(FinishReason::Length), &Some(FinishReason::EndOfText)));
        let fork = tree.fork(node, 1).unwrap()[0];
        prop_assert_eq!(tree.node(fork).ordinal, 1);
        tree.extend(&[fork], &SamplingParams::default(), &Stop::default()).unwrap();
        prop_assert_eq!(tree.path_text(fork), format!("{0}{1}", &"one two"[..at], "one two"[..at].to_uppercase()));
        prop_assert!(tree.split(node, 1, 0).is_err(), "it has children");
        prop_assert!(tree.split(rest, 0, 0).is_err() && tree.split(rest, 9, 0).is_err());
        prop_assert!(tree.split(tree.root(), 1, 0).is_err());
    }
}
