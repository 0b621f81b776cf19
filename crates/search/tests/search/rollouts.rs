//! Rollouts of trees and groups as packed tries: what is shared, what each sample's sequence is, and how a trie goes
//! through columns, files and rows.

use std::collections::HashSet;

use offshoot_core::ids::{TokenId, WeightVersion};
use offshoot_engine::{EngineHandle, FinishReason, LogprobsMode, SamplingParams, ScriptedReply, Stop};
use offshoot_search::rollout::{DrawnToken, Leaf, RolloutTrie, TreeLeaf, TrieBuilder};
use proptest::prelude::*;

use crate::job;

/// A token as it was added: how it was sampled, if it was.
type Added = (TokenId, Option<DrawnToken>);

/// A segment behind the prompt (`None`) or behind an earlier segment.
#[derive(Clone, Debug)]
struct Segment {
    parent: Option<usize>,
    tokens: Vec<Added>,
    is_leaf: bool,
}

/// Groups, each with its prompt and its segments.
type Groups = Vec<(Vec<TokenId>, Vec<Segment>)>;

fn added() -> impl Strategy<Value = Added> {
    // Few different tokens, so that many begin alike.
    let drawn = proptest::option::weighted(0.7, (-9.0f32..0.0, 0u64..3));
    (0u32..3, drawn).prop_map(|(id, drawn)| {
        let drawn = drawn.map(|(logprob, weights)| DrawnToken { logprob, weights: WeightVersion(weights) });
        (TokenId(id), drawn)
    })
}

fn groups() -> impl Strategy<Value = Groups> {
    let prompt = proptest::collection::vec((0u32..2).prop_map(TokenId), 1..5);
    let tokens = proptest::collection::vec(added(), 0..5);
    let segments = proptest::collection::vec((any::<prop::sample::Index>(), tokens, any::<bool>()), 0..12);
    let segments = segments.prop_map(|drawn| {
        let of = |(at, (parent, tokens, is_leaf)): (usize, (prop::sample::Index, Vec<Added>, bool))| Segment {
            parent: parent.index(at + 1).checked_sub(1),
            tokens,
            is_leaf,
        };
        drawn.into_iter().enumerate().map(of).collect()
    });
    proptest::collection::vec((prompt, segments), 1..4)
}

/// The trie of the groups, and the sequence of each leaf as it was added.
fn packed(groups: &Groups) -> (RolloutTrie, Vec<Vec<Added>>) {
    let (mut builder, mut sequences) = (TrieBuilder::new(), Vec::new());
    for (group, (prompt, segments)) in (0..).zip(groups) {
        let start = builder.prompt(prompt).expect("a prompt has tokens");
        let start = (start, prompt.iter().map(|&id| (id, None)).collect::<Vec<Added>>());
        let mut ends = Vec::new();
        for (sample, segment) in (0u64..).zip(segments) {
            let (place, before): &(_, Vec<Added>) = segment.parent.map_or(&start, |parent| &ends[parent]);
            let end = builder.segment(*place, segment.tokens.iter().copied());
            let sequence = [&before[..], &segment.tokens].concat();
            if segment.is_leaf {
                let reward = sample.is_multiple_of(2).then_some(sample as f64);
                let (finish, continued) = (FinishReason::StopString("\n".to_owned()), sample == 1);
                builder.leaf(end, |token| Leaf { token, group, sample, reward, finish, continued });
                sequences.push(sequence.clone());
            }
            ends.push((end, sequence));
        }
    }
    (builder.build(), sequences)
}

proptest! {
    #[test]
    fn each_leaf_has_its_sequence_and_nothing_is_stored_twice(groups in groups()) {
        let (trie, sequences) = packed(&groups);
        prop_assert_eq!(trie.leaves().len(), sequences.len());
        for (leaf, sequence) in sequences.iter().enumerate() {
            let of = trie.path(leaf).into_iter().map(|at| &trie.tokens()[at as usize]);
            let of: Vec<Added> = of.map(|token| (token.id, token.drawn)).collect();
            prop_assert_eq!(&of, sequence);
        }
        prop_assert_eq!(trie.unpacked_tokens(), sequences.iter().map(Vec::len).sum::<usize>());
        let mut drawn = 0;
        for (_, segments) in &groups {
            let mut leads: Vec<bool> = segments.iter().map(|segment| segment.is_leaf).collect();
            for (at, segment) in segments.iter().enumerate().rev().filter(|(_, segment)| segment.parent.is_some()) {
                leads[segment.parent.expect("it was filtered")] |= leads[at];
            }
            let led = segments.iter().zip(leads).filter(|&(_, leads)| leads);
            drawn += led.flat_map(|(segment, _)| &segment.tokens).filter(|(_, drawn)| drawn.is_some()).count();
        }
        prop_assert_eq!(trie.tokens().iter().filter(|token| token.drawn.is_some()).count(), drawn);
        let mut given = HashSet::new();
        for token in trie.tokens().iter().filter(|token| token.drawn.is_none()) {
            prop_assert!(given.insert((token.parent, token.id)), "a given token is stored twice");
        }
    }

    #[test]
    fn a_subtree_is_a_range_and_positions_count_ancestors(groups in groups()) {
        let (trie, _) = packed(&groups);
        let tokens = trie.tokens();
        let ancestors = |mut at: usize| {
            let mut above = vec![at];
            while let Some(parent) = tokens[at].parent {
                at = parent as usize;
                above.push(at);
            }
            above
        };
        for (at, token) in tokens.iter().enumerate() {
            let above = ancestors(at);
            prop_assert_eq!(token.position as usize, above.len() - 1);
            for (before, other) in tokens.iter().enumerate() {
                prop_assert_eq!((before..other.end as usize).contains(&at), above.contains(&before));
            }
            let depth = token.parent.map_or(0, |parent| tokens[parent as usize].depth);
            prop_assert!(depth <= token.depth, "depth grows along a path");
        }
    }

    #[test]
    fn columns_and_files_bring_a_trie_back(groups in groups()) {
        let (trie, _) = packed(&groups);
        let finishes: Vec<FinishReason> = trie.leaves().iter().map(|leaf| leaf.finish.clone()).collect();
        let again = RolloutTrie::from_columns(&trie.token_columns(), &trie.leaf_columns(), &finishes);
        prop_assert_eq!(again.expect("columns of a trie"), trie.clone());
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("rollouts.safetensors");
        trie.write(&path).expect("the folder takes files");
        prop_assert_eq!(RolloutTrie::read(&path).expect("a trie was written"), trie);
    }

    /// One number of one column is changed: what comes back is refused, or is a trie again with this number.
    #[test]
    fn changed_columns_are_refused_or_still_a_trie(
        groups in groups(), column in 0usize..5, at in any::<prop::sample::Index>(), by in -3i64..4,
    ) {
        let (trie, _) = packed(&groups);
        let mut columns = trie.token_columns();
        let changed = match column {
            0 => &mut columns.parents,
            1 => &mut columns.ends,
            2 => &mut columns.positions,
            3 => &mut columns.depths,
            _ => &mut columns.token_ids,
        };
        if !changed.is_empty() {
            let at = at.index(changed.len());
            changed[at] += by;
        }
        let finishes: Vec<FinishReason> = trie.leaves().iter().map(|leaf| leaf.finish.clone()).collect();
        if let Ok(again) = RolloutTrie::from_columns(&columns, &trie.leaf_columns(), &finishes) {
            for (leaf, ends) in again.leaves().iter().enumerate() {
                let path = again.path(leaf);
                prop_assert_eq!(path.len(), again.tokens()[ends.token as usize].position as usize + 1);
            }
            let is_fixed = by == 0 || columns.positions.is_empty();
            prop_assert!(is_fixed || column != 2, "a position follows from the parents");
        }
    }

    /// Each position of a row has one next token, each segment reads the path to it, and the loss terms are those of
    /// all samples.
    #[test]
    fn a_row_has_each_sample_and_one_next_token_at_each_position(groups in groups()) {
        let (trie, sequences) = packed(&groups);
        let row = trie.tree_row();
        let mut terms = Vec::new();
        for (leaf, sequence) in sequences.iter().enumerate() {
            let term = |&(id, drawn): &Added| Some((leaf as i64, i64::from(id.0), drawn?.logprob));
            terms.extend(sequence.iter().filter_map(term));
        }
        let found: Vec<(i64, i64, f32)> = row.token_index.iter().zip(&row.leaves).zip(&row.logprobs)
            .map(|((&at, &leaf), &logprob)| (leaf, row.shift_labels[at as usize], logprob)).collect();
        prop_assert_eq!(found, terms);
        prop_assert_eq!(*row.segment_borders.last().expect("it begins with 0"), row.input_ids.len() as i64);
        let starts: HashSet<Vec<i64>> = sequences.iter()
            .map(|sequence| sequence.iter().map(|(id, _)| i64::from(id.0)).collect::<Vec<_>>())
            .flat_map(|ids| (1..=ids.len()).map(move |end| ids[..end].to_vec()))
            .collect();
        for (segment, ends) in row.path_borders.windows(2).enumerate() {
            let path = &row.kv_index[ends[0] as usize..ends[1] as usize];
            let own = row.segment_borders[segment]..row.segment_borders[segment + 1];
            prop_assert!(path.ends_with(&own.collect::<Vec<_>>()), "a path ends with its segment");
            let positions: Vec<i64> = path.iter().map(|&at| row.position_ids[at as usize]).collect();
            prop_assert_eq!(positions, (0..path.len() as i64).collect::<Vec<_>>());
            let ids: Vec<i64> = path.iter().map(|&at| row.input_ids[at as usize]).collect();
            prop_assert!(starts.contains(&ids), "a path is the beginning of a sample");
        }
    }
}

#[test]
fn a_prompt_of_sixteen_answers_is_stored_once_and_equal_answers_are_not() {
    let mut builder = TrieBuilder::new();
    let prompt: Vec<TokenId> = (0..400).map(TokenId).collect();
    for sample in 0..16 {
        let at = builder.prompt(&prompt).expect("it has tokens");
        let drawn = Some(DrawnToken { logprob: -(sample as f32), weights: WeightVersion(0) });
        let end = builder.segment(at, [(TokenId(7), drawn), (TokenId(8), drawn)]);
        let finish = FinishReason::EndOfText;
        builder.leaf(end, |token| Leaf { token, group: 0, sample, reward: None, finish, continued: false });
    }
    let trie = builder.build();
    assert_eq!((trie.tokens().len(), trie.unpacked_tokens()), (400 + 16 * 2, 16 * 402));
    let firsts: Vec<f32> = trie
        .tokens()
        .iter()
        .filter(|token| token.position == 400)
        .filter_map(|token| Some(token.drawn?.logprob))
        .collect();
    assert_eq!(firsts, (0..16).map(|sample| -(sample as f32)).collect::<Vec<_>>());
    // A row needs the token before the fork once for each answer.
    assert_eq!(trie.tree_row().input_ids.len(), 399 + 16 * 3);
    assert!(TrieBuilder::new().prompt(&[]).is_err());
}

/// A tree of two thoughts, one of which is forked again; a third was given.
#[test]
fn a_tree_becomes_a_trie_with_what_was_given_and_sampled() {
    let engine = EngineHandle::scripted(|call| {
        let text = if call.text().ends_with('Q') { "ab" } else { "cd" };
        ScriptedReply::text(text).logprob(-0.5)
    });
    let mut tree = job::tree_on(engine, "Q");
    let (root, how, stop) = (tree.root(), SamplingParams::default(), Stop::default());
    let thoughts = tree.fork(root, 2).unwrap();
    tree.extend(&thoughts, &how, &stop).unwrap();
    let answers = tree.fork(thoughts[0], 2).unwrap();
    tree.extend_given(&answers[..1], &[TokenId(b'!'.into())]).unwrap();
    tree.extend(&answers, &how, &stop).unwrap();
    let leaves: Vec<TreeLeaf> = (0..)
        .zip([answers[0], answers[1], thoughts[1]])
        .map(|(sample, node)| TreeLeaf { node, sample, reward: Some(sample as f64) })
        .collect();
    let mut builder = TrieBuilder::new();
    builder.tree(&tree, 3, &leaves, LogprobsMode::RawLogprobs).unwrap();
    let trie = builder.build();
    let text = |leaf: usize| trie.sequence(leaf).iter().map(|token| token.0 as u8 as char).collect::<String>();
    assert_eq!([text(0), text(1), text(2)], ["Qab!cd", "Qabcd", "Qab"]);
    assert_eq!(trie.tokens().len(), 1 + 2 * 2 + 3 + 2);
    let marks: String = trie
        .path(0)
        .iter()
        .map(|&at| {
            let token = trie.tokens()[at as usize];
            format!("{}{}", token.depth, if token.drawn.is_some() { 's' } else { 'g' })
        })
        .collect();
    assert_eq!(marks, "0g1s1s2g2s2s");
    assert_eq!(trie.leaves()[2].reward, Some(2.0));
    assert!(trie.leaves().iter().all(|leaf| leaf.group == 3 && !leaf.continued));

    let unsampled = tree.fork(thoughts[1], 1).unwrap()[0];
    let leaf = TreeLeaf { node: unsampled, sample: 0, reward: None };
    let error = TrieBuilder::new().tree(&tree, 0, &[leaf], LogprobsMode::RawLogprobs).unwrap_err().to_string();
    assert!(error.contains("never extended"), "{error}");
    // The model's own log-probability is none of the distribution that was drawn from.
    let error = TrieBuilder::new().tree(&tree, 0, &leaves, LogprobsMode::ProcessedLogprobs).unwrap_err().to_string();
    assert!(error.contains("expected a log-probability under the distribution"), "{error}");
    assert!(error.contains("found only the model's own"), "{error}");
    assert!(tree.node(answers[0]).logprobs(LogprobsMode::ProcessedLogprobs).all(|logprob| logprob.is_none()));
    let own: Vec<Option<f32>> = tree.node(answers[0]).logprobs(LogprobsMode::RawLogprobs).collect();
    assert_eq!(own, [None, Some(-0.5), Some(-0.5)], "what was given was not scored");
}
