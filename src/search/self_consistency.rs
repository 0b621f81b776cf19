//! Self-consistency (Wang et al., 2023): sample N answers of one problem, take the one that most samples agree on. Can stop
//! the rest as soon as no outcome of theirs could change the winner.

use petgraph::graph::NodeIndex;

use super::{Job, Outcome};
use crate::error::Result;
use crate::task::Votes;
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
    let mut votes = Votes::default();
    while let Some(sample) = job.next_sample(&mut growing)? {
        if let Some(answer) = &sample.answer {
            votes.cast(answer, sample.index);
        }
        samples.push(sample);
        if stop_when_decided && votes.decided(n - samples.len()) {
            growing.cancel_all();
        }
    }
    samples.sort_by_key(|sample| sample.index);
    let prediction = votes.winner().map(str::to_owned);
    let voter = samples.iter().find(|sample| prediction.is_some() && sample.answer == prediction);
    Ok(Outcome {
        chosen: voter.map(|sample| sample.index),
        correct: voter.and_then(|sample| sample.correct),
        votes: votes.tally(),
        cancelled: n - samples.len(),
        prediction,
        samples,
    })
}
