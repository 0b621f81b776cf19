//! Votes on samples' answers that confidences weigh or filter: the seven results of deepconf's
//! `compute_all_voting_results`.

use serde::{Deserialize, Serialize};

use super::{Measure, Windows, mean, percentile};

/// A sample in a vote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfidentAnswer<'a> {
    /// Its answer; one without, or with an empty one, has no vote.
    pub answer: Option<&'a str>,
    /// The confidence of each of its tokens.
    pub confidences: &'a [f64],
}

/// How a vote counts samples. The names in files are deepconf's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VotingMethod {
    /// Each sample has one vote.
    Majority,
    /// A vote weighs the sample's mean confidence.
    MeanConfidenceWeighted,
    /// A vote weighs the confidence of the sample's tail.
    TailConfidenceWeighted,
    /// A vote weighs the sample's lowest windows.
    BottomWindowWeighted,
    /// A vote weighs the sample's lowest window.
    MinWindowWeighted,
    /// The samples with the most confident tails vote, weighted by these.
    Top10TailFiltered,
    /// The samples with the most confident lowest windows vote, weighted by these.
    Top10BottomWindowFiltered,
}

impl VotingMethod {
    /// All methods, in deepconf's order.
    pub const ALL: [VotingMethod; 7] = [
        VotingMethod::Majority,
        VotingMethod::MeanConfidenceWeighted,
        VotingMethod::TailConfidenceWeighted,
        VotingMethod::BottomWindowWeighted,
        VotingMethod::MinWindowWeighted,
        VotingMethod::Top10TailFiltered,
        VotingMethod::Top10BottomWindowFiltered,
    ];

    /// The confidence that weighs a vote, and whether only the most confident samples vote; `None`: votes are equal.
    fn weighs_by(self) -> Option<(Measure, bool)> {
        match self {
            VotingMethod::Majority => None,
            VotingMethod::MeanConfidenceWeighted => Some((Measure::Mean, false)),
            VotingMethod::TailConfidenceWeighted => Some((Measure::Tail, false)),
            VotingMethod::BottomWindowWeighted => Some((Measure::Bottom, false)),
            VotingMethod::MinWindowWeighted => Some((Measure::Lowest, false)),
            VotingMethod::Top10TailFiltered => Some((Measure::Tail, true)),
            VotingMethod::Top10BottomWindowFiltered => Some((Measure::Bottom, true)),
        }
    }
}

/// The result of a vote.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct VoteResult {
    /// The answer with the largest sum of weights; of equal ones, the one that was given first.
    pub answer: String,
    /// Samples that voted.
    pub num_votes: usize,
    /// The mean of their confidences; `None` where votes are equal.
    pub confidence: Option<f64>,
}

/// The result of each method on `samples`. A method is left out where no voter has a confidence above 0; there are no
/// results if no sample has an answer.
pub fn voting_results(samples: &[ConfidentAnswer<'_>], windows: &Windows) -> Vec<(VotingMethod, VoteResult)> {
    let answer = |sample: &ConfidentAnswer<'_>| sample.answer.is_some_and(|answer| !answer.is_empty());
    let voters: Vec<ConfidentAnswer<'_>> = samples.iter().copied().filter(answer).collect();
    let result = |method: VotingMethod| Some((method, vote(&voters, method, windows)?));
    VotingMethod::ALL.into_iter().filter_map(result).collect()
}

/// The result of one method; all `voters` have answers.
fn vote(voters: &[ConfidentAnswer<'_>], method: VotingMethod, windows: &Windows) -> Option<VoteResult> {
    let Some((measure, filters)) = method.weighs_by() else {
        let equal: Vec<(&str, f64)> = voters.iter().filter_map(|voter| Some((voter.answer?, 1.0))).collect();
        let answer = heaviest(&equal)?.to_owned();
        return Some(VoteResult { answer, num_votes: equal.len(), confidence: None });
    };
    let answered = voters.iter().filter_map(|voter| Some((voter.answer?, voter.confidences)));
    let mut weighed: Vec<(&str, f64)> =
        answered.map(|(answer, confidences)| (answer, windows.measure(measure, confidences))).collect();
    if filters {
        let all: Vec<f64> = weighed.iter().map(|&(_, weight)| weight).collect();
        let least = percentile(&all, (1.0 - windows.keep) * 100.0)?;
        weighed.retain(|&(_, weight)| weight >= least);
    }
    let weights: Vec<f64> = weighed.iter().map(|&(_, weight)| weight).collect();
    if !weights.iter().any(|&weight| weight > 0.0) {
        return None;
    }
    let answer = heaviest(&weighed)?.to_owned();
    Some(VoteResult { answer, num_votes: weighed.len(), confidence: Some(mean(&weights)) })
}

/// The answer with the largest sum of weights; of equal ones, the first.
fn heaviest<'a>(votes: &[(&'a str, f64)]) -> Option<&'a str> {
    let mut sums: Vec<(&str, f64)> = Vec::new();
    for &(answer, weight) in votes {
        match sums.iter_mut().find(|(other, _)| *other == answer) {
            Some((_, sum)) => *sum += weight,
            None => sums.push((answer, weight)),
        }
    }
    sums.into_iter().reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(answer, _)| answer)
}
