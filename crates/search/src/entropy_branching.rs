//! Rollouts that branch where the model is least certain: a few samples are drawn to their ends, and each is forked at
//! its tokens of highest entropy, where the token is sampled anew and the sample goes on from it.

use super::settings::EntropyBranching;
use super::steps::{Decode, Solution, segments};
use crate::job::SearchJob;
use crate::outcome::Outcome;
use crate::self_consistency::vote;
use crate::tree::{SamplingTree, ThoughtNode};
use offshoot_core::error::Result;
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::{Records, SamplingParams, TokenRecord};

/// Samples `how.paths` solutions below `at`, and `how.branches` more from each of the `how.forks` tokens of highest
/// entropy of each. The answer chosen is the most frequent one.
pub fn entropy_branching(
    tree: &mut SamplingTree,
    at: NodeId,
    how: &EntropyBranching,
    decode: Decode<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let start = Solution::start(at);
    let paths = tree.fork(at, how.paths as usize)?;
    let from: Vec<(&Solution, NodeId)> = paths.iter().map(|&node| (&start, node)).collect();
    let mut ended = Vec::new();
    let mut heads: Vec<Solution> = Vec::new();
    let recording = recording_entropy(job.params);
    for mut path in segments(decode, tree, &from, job.stop.max_tokens, &recording, job)?.into_iter().flatten() {
        let highest = highest(&entropies(tree.node(path.node)), how.forks as usize);
        for head in cut(tree, &mut path, &highest, decode)? {
            heads.push(head.unwrap_or_else(|| start.clone()));
        }
        ended.push(path);
    }
    let mut forks = Vec::new();
    for head in &heads {
        forks.extend(tree.fork(head.node, how.branches as usize)?.into_iter().map(|node| (head, node)));
    }
    ended.extend(segments(decode, tree, &forks, job.stop.max_tokens, job.params, job)?.into_iter().flatten());
    // All are assessed at once, and then waited for in turn.
    ended.iter().for_each(|solution| job.assessor.request(&solution.text));
    let mut samples = Vec::with_capacity(ended.len());
    for (index, solution) in (0..).zip(&ended) {
        samples.push(job.take_solution(tree, solution, None, index)?);
    }
    for head in heads.iter().filter(|head| head.node != at) {
        tree.close(head.node);
    }
    let n = samples.len();
    Ok(vote(samples, n, job.no_answer()))
}

/// Cuts a path, which is one node, before its tokens number `at`, in rising order; `path` ends at the last piece then.
/// The solution before each of these tokens; `None`: nothing is before it.
fn cut(
    tree: &mut SamplingTree,
    path: &mut Solution,
    at: &[usize],
    decode: Decode<'_>,
) -> Result<Vec<Option<Solution>>> {
    let prompt: Vec<TokenId> = tree.node(tree.root()).tokens.clone();
    let tokens: Vec<TokenId> = tree.node(path.node).tokens.clone();
    let (mut heads, mut done) = (Vec::with_capacity(at.len()), 0);
    for &at in at {
        if at == 0 {
            heads.push(None);
            continue;
        }
        // The part of the node's text that its first tokens spell; a character across the cut is the rest's.
        let before = decode(&prompt, &tokens[..done]).len();
        let head = decode(&prompt, &tokens[..at]);
        let text = common(head.get(before..).unwrap_or(""), &tree.node(path.node).text);
        let rest = tree.split(path.node, at - done, text)?;
        heads.push(Some(Solution { node: path.node, text: head, tokens: at, end: None, ..path.clone() }));
        (path.node, done) = (rest, at);
    }
    Ok(heads)
}

/// Bytes that two texts have in common at their beginnings, up to the border of a character.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// The places of the `n` largest numbers, in rising order; of equal ones, the first.
fn highest(entropies: &[Option<f32>], n: usize) -> Vec<usize> {
    let known = entropies.iter().enumerate().filter_map(|(at, entropy)| Some((at, (*entropy)?)));
    let mut order: Vec<(usize, f32)> = known.collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(n);
    let mut places: Vec<usize> = order.into_iter().map(|(at, _)| at).collect();
    places.sort_unstable();
    places
}

/// Parameters by which the entropy of each token is recorded, too.
fn recording_entropy(params: &SamplingParams) -> SamplingParams {
    SamplingParams { records: Records { entropy: true, ..params.records }, ..params.clone() }
}

/// The entropy, in nats, of the model's distribution in the place of each token of a node; 0 where it is not recorded.
/// `None` of a token that its form forced: in its place every fork would have the same.
fn entropies(node: &ThoughtNode) -> Vec<Option<f32>> {
    let entropy = |record: Option<TokenRecord<'_>>| match record {
        Some(record) if record.forced => None,
        Some(record) => Some(record.entropy.unwrap_or(0.0)),
        None => Some(0.0),
    };
    node.records().map(entropy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_are_found_in_their_order() {
        assert_eq!(highest(&[0.1, 0.9, 0.5, 0.9, 0.7].map(Some), 3), [1, 3, 4]);
        assert_eq!(highest(&[0.5, 0.5, 0.5].map(Some), 2), [0, 1]);
        assert_eq!(highest(&[Some(0.5)], 4), [0]);
        assert_eq!(highest(&[], 4), [0usize; 0]);
        assert_eq!(highest(&[Some(0.1), None, Some(0.2), None], 3), [0, 2], "nothing is forked where it was forced");
    }

    #[test]
    fn common_beginnings_end_between_characters() {
        assert_eq!(common("aéb", "aéc"), 3);
        assert_eq!(common("a\u{fffd}", "aé"), 1);
        assert_eq!(common("", "a"), 0);
    }
}
