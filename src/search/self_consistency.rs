//! Self-consistency (Wang et al., 2023): sample N answers of one problem, take the one that most samples agree on. Can stop
//! the rest as soon as nothing that they could answer would change the winner.

use petgraph::graph::NodeIndex;

use super::{Job, Outcome};
use crate::error::Result;
use crate::task::stats::{Tally, Votes};
use crate::tree::SamplingTree;

pub fn self_consistency(
    tree: &mut SamplingTree,
    at: NodeIndex,
    n: usize,
    stop_when_decided: bool,
    job: &mut Job<'_>,
) -> Result<Outcome> {
    let candidates = tree.fork(at, n)?;
    let mut growing = tree.start(&candidates, job.params, job.stop)?;
    let mut samples = Vec::with_capacity(n);
    let mut tally = Tally::default();
    while let Some(sample) = job.next_sample(&mut growing)? {
        tally.add(sample.index as usize, sample.answer.as_deref());
        samples.push(sample);
        if stop_when_decided && tally.is_decided((n - samples.len()) as u32) {
            growing.cancel_all();
        }
    }
    samples.sort_by_key(|sample| sample.index);
    let winner = tally.leader();
    let chosen = winner.and_then(|winner| samples.iter().find(|sample| sample.index == winner.first as u64));
    Ok(Outcome {
        prediction: winner.map(|winner| winner.value.clone()),
        correct: chosen.map_or_else(|| no_answer(job), |sample| sample.correct),
        chosen: chosen.map(|sample| sample.index),
        votes: most_first(&tally),
        cancelled: n - samples.len(),
        samples,
    })
}

/// Nobody answered: wrong, where the task has a grader.
fn no_answer(job: &Job<'_>) -> Option<bool> {
    (job.assess)("").correct.map(|_| false)
}

fn most_first(tally: &Tally) -> Vec<(String, u32)> {
    let mut votes: Vec<&Votes> = tally.votes().iter().collect();
    votes.sort_by_key(|votes| (std::cmp::Reverse(votes.count), votes.first));
    votes.into_iter().map(|votes| (votes.value.clone(), votes.count)).collect()
}
