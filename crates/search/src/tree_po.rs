//! Rollouts by segments (TreePO, Li et al. 2025): samples grow by segments of a fixed number of tokens; at the end of
//! each segment the most promising ones branch, and once none is left that goes on, the search falls back to earlier
//! ends of segments, first to those behind which every sample failed. The number of sampled tokens is fixed.

use super::settings::TreePo;
use super::steps::{Decode, Solution, segments};
use crate::job::SearchJob;
use crate::outcome::{Outcome, Sample};
use crate::self_consistency::vote;
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// The end of a segment, from which samples branch.
struct Border {
    solution: Solution,
    /// Whether a sample behind it is right.
    is_solved: bool,
    /// How often the search has fallen back to it.
    returns: usize,
}

/// Samples at most `how.samples` solutions below `at` and at most `how.tokens` tokens. The answer chosen is the most
/// frequent one.
pub fn tree_po(
    tree: &mut SamplingTree,
    at: NodeId,
    how: &TreePo,
    decode: Decode<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let before = tree.spent().drawn;
    let mut samples: Vec<Sample> = Vec::new();
    let mut borders = vec![Border { solution: Solution::start(at), is_solved: false, returns: 0 }];
    // Numbers of the borders whose samples go on: nothing is behind them yet.
    let mut going = vec![0];
    while samples.len() < how.samples as usize {
        let room = how.samples as usize - samples.len();
        let from = match going.is_empty() {
            true => fall_back(&mut borders, room.div_ceil(how.branches as usize)),
            false => going.clone(),
        };
        let mut forks = Vec::new();
        for (&border, n) in from.iter().zip(branches(tree, &borders, &from, room, how)) {
            forks.extend(tree.fork(borders[border].solution.node, n)?.into_iter().map(|node| (border, node)));
        }
        let left = how.tokens.saturating_sub(tree.spent().drawn - before);
        let tokens = how.segment.min(left / forks.len());
        if tokens == 0 {
            forks.iter().for_each(|&(_, node)| tree.prune(node));
            break;
        }
        let behind: Vec<(&Solution, NodeId)> =
            forks.iter().map(|&(border, node)| (&borders[border].solution, node)).collect();
        let grown = segments(decode, tree, &behind, tokens, job.params, job)?;
        going.clear();
        if grown.iter().all(Option::is_none) {
            break;
        }
        for solution in grown.into_iter().flatten() {
            if solution.end.is_some() {
                samples.push(take(tree, &mut borders, &solution, samples.len(), job)?);
            } else {
                going.push(borders.len());
                borders.push(Border { solution, is_solved: false, returns: 0 });
            }
        }
    }
    // The tokens are spent: what goes on ends here. What samples have gone on from is none itself.
    for border in going {
        let solution = borders[border].solution.clone();
        if solution.tokens > 0 && samples.len() < how.samples as usize {
            samples.push(take(tree, &mut borders, &solution, samples.len(), job)?);
        }
    }
    for border in borders.iter().filter(|border| border.solution.node != at) {
        tree.close(border.solution.node);
    }
    let n = samples.len();
    Ok(vote(samples, n, job.no_answer()))
}

/// How many samples each of `going` becomes, at most `room` together: one each, then one more for each of the most
/// promising, until they have `branches` each.
fn branches(tree: &SamplingTree, borders: &[Border], going: &[usize], room: usize, how: &TreePo) -> Vec<usize> {
    let promise = |&at: &usize| tree.node(borders[going[at]].solution.node).mean_logprob();
    let mut order: Vec<usize> = (0..going.len()).collect();
    order.sort_by(|a, b| promise(b).total_cmp(&promise(a)));
    let mut branches = vec![1; going.len()];
    let mut left = room - going.len();
    for _ in 1..how.branches {
        for &at in order.iter().take(left) {
            branches[at] += 1;
        }
        left = left.saturating_sub(order.len());
    }
    branches
}

/// At most `n` ends of segments to go on from again: first those behind which no sample is right, of these the ones
/// that were returned to least, of these the longest.
fn fall_back(borders: &mut [Border], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..borders.len()).collect();
    order.sort_by_key(|&at| {
        let Border { solution, is_solved, returns } = &borders[at];
        (*is_solved, *returns, std::cmp::Reverse(solution.tokens))
    });
    order.truncate(n);
    order.iter().for_each(|&at| borders[at].returns += 1);
    order
}

/// Takes a sample, and notes where it was right.
fn take(
    tree: &mut SamplingTree,
    borders: &mut [Border],
    solution: &Solution,
    index: usize,
    job: &mut SearchJob<'_>,
) -> Result<Sample> {
    let sample = job.take_solution(tree, solution, None, index as u64)?;
    if sample.correct == Some(true) {
        let path = tree.path(solution.node);
        let on_path = |border: &&mut Border| border.solution.tokens == 0 || path.contains(&border.solution.node);
        borders.iter_mut().filter(on_path).for_each(|border| border.is_solved = true);
    }
    Ok(sample)
}
