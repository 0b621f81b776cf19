//! Self-consistency (Wang et al., 2023): sample N answers of one problem, take the one that most samples agree on. Can stop
//! the rest as soon as nothing that they could answer would change the winner.

use std::collections::HashSet;

use petgraph::graph::NodeIndex;

use super::{Job, Outcome, Sample, first_with, tally, verdict_on};
use crate::error::Result;
use crate::task::stats::{Tally, Votes};
use crate::tree::{Extension, SamplingTree};

pub fn self_consistency(
    tree: &mut SamplingTree,
    at: NodeIndex,
    n: usize,
    stop_when_decided: bool,
    job: &mut Job<'_>,
) -> Result<Outcome> {
    let candidates = tree.fork(at, n)?;
    let mut growing = tree.start(&candidates, job.params, job.stop)?;
    let samples = match stop_when_decided {
        true => until_decided(&candidates, &mut growing, job)?,
        false => all(&mut growing, job)?,
    };
    drop(growing);
    for &late in &candidates[samples.len()..] {
        tree.prune(late);
    }
    let tally = tally(&samples);
    let winner = tally.leader();
    let winner = winner.map(|votes| votes.value.as_str());
    Ok(Outcome {
        prediction: winner.map(str::to_owned),
        correct: winner.map_or_else(|| job.no_answer(), |winner| verdict_on(winner, &samples)),
        chosen: winner.and_then(|winner| first_with(winner, &samples)).map(|sample| sample.index),
        votes: most_first(&tally),
        cancelled: n - samples.len(),
        samples,
        ..Outcome::default()
    })
}

/// Every sample, by index.
fn all(growing: &mut Extension<'_>, job: &mut Job<'_>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    while let Some(sample) = job.next_sample(growing)? {
        samples.push(sample);
    }
    samples.sort_by_key(|sample| sample.index);
    Ok(samples)
}

/// The shortest run of first samples that decides the vote. Samples are taken by index, whoever finishes first; one that has
/// finished beyond the deciding one is no part of the outcome. So which samples count depends on the samples alone, not on
/// what else shared their steps.
fn until_decided(candidates: &[NodeIndex], growing: &mut Extension<'_>, job: &mut Job<'_>) -> Result<Vec<Sample>> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut votes = Tally::default();
    let mut finished = HashSet::new();
    while let Some(node) = job.next_finished(growing)? {
        finished.insert(node);
        while let Some(next) = candidates.get(samples.len()).filter(|next| finished.contains(next)) {
            let sample = job.take(growing, *next)?;
            votes.add(sample.index as usize, sample.answer.as_deref());
            samples.push(sample);
            if votes.is_decided((candidates.len() - samples.len()) as u32) {
                growing.cancel_all();
                return Ok(samples);
            }
        }
    }
    Ok(samples)
}

fn most_first(tally: &Tally) -> Vec<(String, u32)> {
    let mut votes: Vec<&Votes> = tally.votes().iter().collect();
    votes.sort_by_key(|votes| (std::cmp::Reverse(votes.count), votes.first));
    votes.into_iter().map(|votes| (votes.value.clone(), votes.count)).collect()
}
