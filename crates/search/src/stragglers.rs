//! Finishes stragglers: candidates that were cancelled when their group had enough finished ones, and whose nodes stay
//! open. They may wait for as long as the tree lives, also while the model's weights change.

use super::steps::{Decode, Solution, segments};
use crate::job::SearchJob;
use crate::outcome::{Sample, Straggler};
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// Continues the kept ones of `stragglers`, which are candidates below `at`, to their ends and returns their samples by
/// index. What they had sampled counts against the limits of the job. While the weights are the same, a sample is the
/// one that it would have been without the pause.
pub fn finish_stragglers(
    tree: &mut SamplingTree,
    at: NodeId,
    stragglers: &[Straggler],
    decode: Decode<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Vec<Sample>> {
    let kept: Vec<&Straggler> = stragglers.iter().filter(|straggler| straggler.kept).collect();
    let start = Solution::start(at);
    let from: Vec<(&Solution, NodeId)> = kept.iter().map(|straggler| (&start, straggler.node)).collect();
    let ended = segments(decode, tree, &from, job.stop.max_tokens, job.params, job)?;
    let mut samples = Vec::with_capacity(kept.len());
    for (straggler, solution) in kept.iter().zip(ended) {
        if let Some(solution) = solution {
            samples.push(job.take_solution(tree, &solution, None, straggler.index)?);
        }
    }
    Ok(samples)
}

/// Releases the kept ones of `stragglers` without finishing them.
pub fn release_stragglers(tree: &mut SamplingTree, stragglers: &[Straggler]) {
    for straggler in stragglers.iter().filter(|straggler| straggler.kept) {
        tree.prune(straggler.node);
    }
}
