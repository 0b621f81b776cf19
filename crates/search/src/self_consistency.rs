//! Self-consistency (Wang et al., 2023): samples N answers of one problem and takes the most frequent one. It can skip
//! the remaining samples once the vote is decided, or once enough have finished ([`SearchJob::group_end`]). The
//! confidence of samples can weigh their votes, and end samples in which the model loses it (DeepConf, Fu et al. 2025).

use std::iter::Peekable;
use std::vec;

use super::vote::Decided;
use crate::confidence::{ConfidenceSource, ConfidenceVote, weigh_votes};
use crate::job::{SearchJob, failed};
use crate::outcome::{Outcome, Sample, first_with, tally, tied, verdict_on};
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_core::sorting::sort_by_number;
use offshoot_engine::{ConfidenceStop, Records, SamplingParams, Stop};

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
    let mut waves = Waves::new(tree, at, n, job)?;
    loop {
        let answers: Vec<Option<&str>> = waves.samples.iter().map(|sample| sample.answer.as_deref()).collect();
        let wave = stop.fewest_more(&answers, waves.remaining());
        if wave == 0 || job.group_is_over(&waves.samples) {
            return Ok(waves.vote(tree, job));
        }
        waves.draw(tree, wave, (job.params, job.stop), job)?;
    }
}

/// The same with votes that count by confidence. With a warm-up, that is the first wave, drawn whole; it sets the bar,
/// and later samples end where a window of their tokens is below it. The bar follows from the recorded confidences of
/// the whole warm-up, so a resumed search has the same. Where one of its samples failed, or none has a known
/// confidence, all samples are drawn whole.
///
/// `stop`: decided by the samples that pass the bar, as if their votes were equal.
pub fn confident_self_consistency(
    tree: &mut SamplingTree,
    at: NodeId,
    n: usize,
    how: &ConfidenceVote,
    stop: Decided,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let ConfidenceSource::Sampler { top, warm_up } = how.source else {
        return Ok(weigh_votes(self_consistency(tree, at, n, stop, job)?, how));
    };
    // The samples' records stay those that the job asks for.
    let params =
        SamplingParams { records: Records { confidence: Some(top), ..job.params.records }, ..job.params.clone() };
    let window = how.windows.window;
    job.window = Some(window);
    let warm_up = warm_up.map_or(0, |samples| u64::from(samples.get()));
    let mut waves = Waves::new(tree, at, n, job)?;
    loop {
        let missing = warm_up.saturating_sub(waves.end).min(waves.remaining().into()) as u32;
        let bar = how.bar(&waves.samples).filter(|_| missing == 0);
        let wave = match missing {
            0 => stop.fewest_more(&how.answers(&waves.samples, bar), waves.remaining()),
            more => more,
        };
        if wave == 0 || job.group_is_over(&waves.samples) {
            return Ok(weigh_votes(waves.vote(tree, job), how));
        }
        let confidence = bar.map(|below| ConfidenceStop { window, below }).or(job.stop.confidence);
        let ending = Stop { confidence, ..job.stop.clone() };
        waves.draw(tree, wave, (&params, &ending), job)?;
    }
}

/// The candidates of a vote, drawn by index in waves.
struct Waves {
    /// How many there are.
    n: usize,
    /// Samples that an earlier process recorded, by index; those of drawn waves are taken.
    already: Peekable<vec::IntoIter<Sample>>,
    /// The nodes of the others, by ordinal; so many of them are begun.
    candidates: Vec<NodeId>,
    begun: usize,
    /// The samples of the drawn waves, by index.
    samples: Vec<Sample>,
    /// All candidates before this index were sampled or failed.
    end: u64,
}

impl Waves {
    fn new(tree: &mut SamplingTree, at: NodeId, n: usize, job: &mut SearchJob<'_>) -> Result<Self> {
        let (already, candidates) = job.candidates(tree, at, n)?;
        let already = already.into_iter().peekable();
        Ok(Waves { n, already, candidates, begun: 0, samples: Vec::with_capacity(n), end: 0 })
    }

    /// Candidates that no wave has drawn.
    fn remaining(&self) -> u32 {
        (self.n as u64 - self.end) as u32
    }

    /// Draws the next `wave` candidates with these parameters.
    fn draw(
        &mut self,
        tree: &mut SamplingTree,
        wave: u32,
        (params, stop): (&SamplingParams, &Stop),
        job: &mut SearchJob<'_>,
    ) -> Result<()> {
        self.end += u64::from(wave);
        let end = self.end;
        self.samples.extend(std::iter::from_fn(|| self.already.next_if(|sample| sample.index < end)));
        let later = &self.candidates[self.begun..];
        let drawn = &later[..later.partition_point(|&node| tree.node(node).ordinal < end)];
        self.begun += drawn.len();
        let mut growing = tree.start(drawn, params, stop)?;
        job.take_group(&mut growing, &mut self.samples)?;
        sort_by_number(&mut self.samples, |sample| sample.index);
        Ok(())
    }

    /// The vote of the samples. Candidates that were not drawn are pruned, those that were cut are set aside.
    fn vote(self, tree: &mut SamplingTree, job: &SearchJob<'_>) -> Outcome {
        let (begun, spared) = self.candidates.split_at(self.begun);
        for &node in spared {
            tree.prune(node);
        }
        let (mut stragglers, mut cancelled_tokens) = (Vec::new(), 0);
        for &node in begun {
            let ordinal = tree.node(node).ordinal;
            let is_taken = self.samples.binary_search_by_key(&ordinal, |sample| sample.index).is_ok();
            if !is_taken && !tree.has_failed(node) {
                cancelled_tokens += tree.node(node).tokens.len();
                stragglers.push(job.set_aside(tree, node));
            }
        }
        let outcome = vote(self.samples, self.n - failed(tree, &self.candidates), job.no_answer());
        Outcome { stragglers, cancelled_tokens, ..outcome }
    }
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
