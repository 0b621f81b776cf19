//! Self-consistency (Wang et al., 2023): samples N answers of one problem and takes the most frequent one. It can skip
//! the remaining samples once the vote is decided, or once enough have finished ([`SearchJob::group_end`]).

use super::vote::Decided;
use crate::job::{SearchJob, failed};
use crate::outcome::{Outcome, Sample, first_with, tally, tied, verdict_on};
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_core::sorting::sort_by_number;

/// Candidates are sampled in waves, by index; a wave has the minimum number of candidates that can decide the vote. So
/// no sample is wasted, and which samples count depends only on the samples: they are the shortest prefix that decides
/// the vote. A failed sample has no vote. The engine's steps are filled with other items meanwhile. Candidates that are
/// not needed have no tokens and no pages, and are pruned.
pub fn self_consistency(
    tree: &mut SamplingTree,
    at: NodeId,
    n: usize,
    stop: Decided,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let (already, candidates) = job.candidates(tree, at, n)?;
    let mut already = already.into_iter().peekable();
    let mut remaining = &candidates[..];
    let mut samples: Vec<Sample> = Vec::with_capacity(n);
    // All candidates before this index were sampled or failed.
    let mut end = 0;
    loop {
        let answers: Vec<Option<&str>> = samples.iter().map(|sample| sample.answer.as_deref()).collect();
        let wave = stop.fewest_more(&answers, (n as u64 - end) as u32);
        if wave == 0 || job.group_is_over(&samples) {
            break;
        }
        end += u64::from(wave);
        samples.extend(std::iter::from_fn(|| already.next_if(|sample| sample.index < end)));
        let (drawn, later) = remaining.split_at(remaining.partition_point(|&node| tree.node(node).ordinal < end));
        remaining = later;
        let mut growing = tree.start(drawn, job.params, job.stop)?;
        job.take_group(&mut growing, &mut samples)?;
        sort_by_number(&mut samples, |sample| sample.index);
    }
    for &spared in remaining {
        tree.prune(spared);
    }
    let begun = &candidates[..candidates.len() - remaining.len()];
    let (mut stragglers, mut cancelled_tokens) = (Vec::new(), 0);
    for &node in begun {
        let is_taken = samples.binary_search_by_key(&tree.node(node).ordinal, |sample| sample.index).is_ok();
        if !is_taken && !tree.has_failed(node) {
            cancelled_tokens += tree.node(node).tokens.len();
            stragglers.push(job.set_aside(tree, node));
        }
    }
    let outcome = vote(samples, n - failed(tree, &candidates), job.no_answer());
    Ok(Outcome { stragglers, cancelled_tokens, ..outcome })
}

/// The vote of `samples`, of at most `n` that did not fail; of answers with equally many votes, the first is chosen.
/// `no_answer`: the verdict if none of them has an answer.
pub fn vote(samples: Vec<Sample>, n: usize, no_answer: Option<bool>) -> Outcome {
    let tally = tally(&samples);
    let leaders = tally.leaders();
    let winner = leaders.first().map(|votes| votes.value.as_str());
    Outcome {
        prediction: winner.map(str::to_owned),
        correct: winner.map_or(no_answer, |winner| verdict_on(winner, &samples)),
        chosen: winner.and_then(|winner| first_with(winner, &samples)).map(|sample| sample.index),
        votes: tally.most_first(),
        tied: tied(leaders.iter().map(|votes| votes.first as u64)),
        cancelled: n - samples.len(),
        samples,
        ..Outcome::default()
    }
}
