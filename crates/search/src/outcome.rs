//! What searches return: the samples of a problem, the answer chosen and how. Votes on the samples' answers are counted
//! here, too; `vote` decides when they are settled.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::assess::Assessment;
use crate::confidence::SampleConfidence;
use crate::model_scores::ScorerWork;
use crate::vote::VoteTally;
use offshoot_core::ids::NodeId;
use offshoot_engine::{FinishReason, SampledToken, finish_fields};
use offshoot_score::{Aggregate, TextScores};

/// One finished candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Index among the problem's samples; with the seed it determines all random numbers of the sample.
    pub index: u64,
    /// Its text after the prompt.
    pub text: String,
    /// Number of sampled tokens.
    pub tokens: usize,
    /// Why it ended.
    #[serde(flatten, with = "finish_fields")]
    pub finish: FinishReason,
    /// Natural-log probability of its tokens under the model.
    pub logprob: f64,
    /// Its answer in the form that votes compare.
    pub answer: Option<String>,
    /// Whether it is right; `None`: unknown.
    pub correct: Option<bool>,
    /// [`Assessment::detail`](crate::Assessment::detail); named `judged` in results, after the judges' verdicts.
    #[serde(rename = "judged", default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Value>,
    /// What is recorded of each of its tokens that were sampled or scored, where the parameters ask for a record
    /// ([`SamplingParams::records_tokens`](offshoot_engine::SamplingParams::records_tokens)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<SampledToken>>,
    /// What is recorded, beside `logprobs`, of the end-of-text or stop token that ended it and is neither in `text` nor
    /// counted in `tokens`; its log-probability is part of `logprob`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<SampledToken>,
    /// Its confidence, in searches that measure it ([`SearchJob::window`](crate::SearchJob::window)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<SampleConfidence>,
    /// What the search's scorer made of it; `None`: none was asked, or it has not answered yet.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub scored: Option<SampleScore>,
    /// Why sampling failed. A failed sample is only recorded; it is not part of an outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Sample {
    /// A sample without tokens, of which this is known.
    pub(crate) fn new(index: u64, text: String, finish: FinishReason, assessment: Assessment) -> Self {
        let Assessment { answer, correct, detail, .. } = assessment;
        let (tokens, logprob, logprobs, ending, error) = (0, 0.0, None, None, None);
        let (confidence, scored) = (None, None);
        Sample {
            index,
            text,
            tokens,
            finish,
            logprob,
            answer,
            correct,
            detail,
            logprobs,
            ending,
            confidence,
            scored,
            error,
        }
    }

    /// Its score, if it has one.
    pub fn score(&self) -> Option<f64> {
        self.scored.as_ref().and_then(SampleScore::score)
    }

    /// Whether it has a score that lacks nothing.
    pub fn is_scored(&self) -> bool {
        self.scored.as_ref().is_some_and(|scored| scored.error().is_none())
    }
}

/// What a scorer made of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SampleScore {
    /// It has a score.
    Scored {
        /// The score of the whole text.
        score: f64,
        /// The score of each step, that of its last part; `None`: the step has none of its own. Empty where the scorer
        /// values whole texts.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        step_scores: Vec<Option<f64>>,
        /// The scores of all parts of the text, in order, where the scorer cuts some step into several; empty where it
        /// does not.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        part_scores: Vec<f64>,
        /// The scorer's tokens of the question and the text, where another model scored the text as a whole.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        score_tokens: Option<usize>,
        /// What a judge said of the text: its answers, or the probabilities of the words that it could answer with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verdict: Option<Value>,
        /// Why some of the comparisons that the score should be made of have no answer; `None`: all have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        score_error: Option<String>,
    },
    /// It has none.
    Unscored {
        /// Why.
        score_error: String,
    },
}

impl SampleScore {
    /// What a scorer's numbers make of a text of so many steps. `aggregate`: how the scores of its parts become its
    /// own.
    pub fn of(found: &TextScores, steps: usize, aggregate: Aggregate) -> SampleScore {
        let why = match found.scores.aggregated(aggregate) {
            Some(score) if score.is_finite() => {
                let step_scores = found.scores.by_step(steps);
                let parts: Vec<f64> = found.scores.scores.iter().map(|part| part.score).collect();
                let is_cut = step_scores.iter().flatten().count() < parts.len();
                let part_scores = if is_cut { parts } else { Vec::new() };
                let (score_tokens, verdict) = (Some(found.tokens), found.detail.clone());
                let score_error = found.lacking.clone();
                return SampleScore::Scored { score, step_scores, part_scores, score_tokens, verdict, score_error };
            }
            Some(score) => format!("its score is {score}, which is no number"),
            None => "it has no step that the scorer's form values".to_owned(),
        };
        SampleScore::Unscored { score_error: why }
    }

    /// The score, if there is one.
    pub fn score(&self) -> Option<f64> {
        match self {
            SampleScore::Scored { score, .. } => Some(*score),
            SampleScore::Unscored { .. } => None,
        }
    }

    /// Why it has no score, or one that lacks comparisons.
    pub fn error(&self) -> Option<&str> {
        match self {
            SampleScore::Scored { score_error, .. } => score_error.as_deref(),
            SampleScore::Unscored { score_error } => Some(score_error),
        }
    }

    /// Makes the score of those of the parts in this way. One that has no parts stays as it is.
    pub fn aggregate(&mut self, aggregate: Aggregate) {
        let parts = self.parts();
        if let (SampleScore::Scored { score, .. }, Some(made)) = (self, aggregate.of(&parts)) {
            *score = made;
        }
    }

    /// The scores of which the score is made, in the order of the text; none where it has no score, or one of its own.
    pub fn parts(&self) -> Vec<f64> {
        match self {
            SampleScore::Scored { step_scores, part_scores, .. } if part_scores.is_empty() => {
                step_scores.iter().copied().flatten().collect()
            }
            SampleScore::Scored { part_scores, .. } => part_scores.clone(),
            SampleScore::Unscored { .. } => Vec::new(),
        }
    }
}

/// The result of a search on one problem.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Finished samples by index.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// The answer chosen.
    pub prediction: Option<String>,
    /// Whether the chosen answer is right; `None` if the task has no grader, or it could not grade the choice.
    pub correct: Option<bool>,
    /// Answers with their votes, most votes first; empty for methods without a vote.
    pub votes: Vec<(String, u32)>,
    /// Answers with the sums of what their votes weighed, the largest first; empty where votes are equal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<(String, f64)>,
    /// The sample chosen.
    pub chosen: Option<u64>,
    /// The samples on which the choice could have fallen as well, `chosen` first: of a vote, the first sample of each
    /// answer with the most votes; otherwise, each sample with the best score. Empty if there is only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tied: Vec<u64>,
    /// Candidates that the outcome does not use: never started, stopped, or finished after the decision.
    pub cancelled: usize,
    /// Tokens sampled by those candidates.
    pub cancelled_tokens: usize,
    /// The candidates, by index, that had not finished when the group ended ([`SearchJob::group_end`]); they are among
    /// the cancelled, and part of no choice.
    ///
    /// [`SearchJob::group_end`]: crate::SearchJob::group_end
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<Straggler>,
    /// Sampled tokens that are not part of `samples`: intermediate thoughts, lists of proposals, judgements.
    pub search_tokens: usize,
    /// Tokens given in addition to the item's prompt: questions about thoughts, adopted proposals. Each is counted in
    /// full, even if it was shared.
    pub search_prompt_tokens: usize,
    /// What a scorer beside the search did; `None`: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorer: Option<ScorerWork>,
    /// Branches that failed and are missing from the outcome.
    pub failed: Option<FailedBranches>,
    /// The lowest confidence with which a sample had a vote; `None`: none was too low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<f64>,
    /// Results that only this method has.
    #[serde(flatten)]
    pub details: Option<Details>,
}

impl Outcome {
    /// How far the choice is right: 1 or 0, or, if samples tie, the share of right ones among those of which it is
    /// known, which is the expected value of a choice at random. `None`: it is not known whether the choice is right.
    pub fn share_right(&self) -> Option<f64> {
        let correct = self.correct?;
        let verdicts: Vec<bool> = self.of_tied().filter_map(|sample| self.verdict_of(sample)).collect();
        let right = verdicts.iter().filter(|&&right| right).count();
        Some(if verdicts.is_empty() { f64::from(u8::from(correct)) } else { right as f64 / verdicts.len() as f64 })
    }

    /// Whether samples with different answers or verdicts tie. One whose verdict is not known differs from none by it.
    pub fn is_tied(&self) -> bool {
        let mut answers = self.of_tied().map(|sample| sample.answer.as_deref());
        let first = answers.next();
        let mut verdicts = self.of_tied().filter_map(|sample| self.verdict_of(sample));
        let known = verdicts.next();
        answers.any(|other| Some(other) != first) || verdicts.any(|other| Some(other) != known)
    }

    /// Whether a sample that ties is right: of a method with a vote, whether its answer is.
    fn verdict_of(&self, tied: &Sample) -> Option<bool> {
        match &tied.answer {
            Some(answer) if !self.votes.is_empty() => verdict_on(answer, &self.samples),
            _ => tied.correct,
        }
    }

    fn of_tied(&self) -> impl Iterator<Item = &Sample> {
        let of_index = |index| self.samples.iter().find(move |sample| sample.index == index);
        self.tied.iter().filter_map(move |&index| of_index(index))
    }
}

/// The indices of samples that tie; none if there is only one.
pub(crate) fn tied(indices: impl Iterator<Item = u64>) -> Vec<u64> {
    let indices: Vec<u64> = indices.collect();
    if indices.len() > 1 { indices } else { Vec::new() }
}

/// A candidate that was cancelled because enough others had finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Straggler {
    /// Its index among the samples.
    pub index: u64,
    /// Its node in the tree.
    pub node: NodeId,
    /// Tokens that it had sampled.
    pub tokens: usize,
    /// Whether its node stays open, to be continued by [`finish_stragglers`](crate::finish_stragglers).
    pub kept: bool,
}

/// Branches that failed while others of the same search continued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedBranches {
    /// How many.
    pub branches: usize,
    /// The error of the first failed branch.
    pub first: String,
}

/// Results of an item that only some methods have.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Details {
    /// The scores of the choices that were offered.
    Choices {
        /// In the order in which they were offered.
        choices: Vec<ChoiceScore>,
    },
    /// In search-and-learn's format: the solutions, and the values of each solution's steps.
    Solutions {
        /// The solutions' texts.
        completions: Vec<String>,
        /// For each solution, the value after each step; `None`: it could not be scored.
        scores: Vec<Vec<Option<f64>>>,
        /// The answer chosen.
        pred: Option<String>,
    },
    /// The scorer's value of each sample, by index. This variant is tried last when reading, because `Solutions` also
    /// has a field `scores`.
    Scores {
        /// By the sample's index; `None`: it could not be scored.
        scores: Vec<Option<f64>>,
    },
}

/// The scores of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceScore {
    /// Its label.
    pub choice: String,
    /// Natural-log probability after the item's prompt.
    pub logprob: f64,
    /// The same after the neutral prompt, if the task has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neutral: Option<f64>,
    /// Number of its tokens.
    pub tokens: usize,
    /// The deciding score: the largest wins; of equal ones, the first.
    pub score: f64,
}

/// Chooses the sample of an outcome with the highest score, of equal ones the first. `score`: of a sample, by its
/// place; `no_answer`: the verdict where none has one.
pub fn best_scored(
    outcome: Outcome,
    score: impl Fn(usize, &Sample) -> Option<f64>,
    no_answer: Option<bool>,
) -> Outcome {
    let scored = outcome.samples.iter().enumerate().filter_map(|(at, sample)| Some((sample, score(at, sample)?)));
    let scored: Vec<(&Sample, f64)> = scored.collect();
    let most = scored.iter().map(|&(_, score)| score).fold(f64::NEG_INFINITY, f64::max);
    let best: Vec<&Sample> = scored.into_iter().filter(|&(_, score)| score == most).map(|(sample, _)| sample).collect();
    let chosen = best.first();
    Outcome {
        chosen: chosen.map(|sample| sample.index),
        prediction: chosen.and_then(|sample| sample.answer.clone()),
        correct: chosen.map_or(no_answer, |sample| sample.correct),
        tied: tied(best.iter().map(|sample| sample.index)),
        ..outcome
    }
}

/// The vote of an outcome's samples by weights: the answer with the largest sum, of sums that tie the one that was
/// given first. `weight`: of a sample, by its place; `None`: it has no vote. `no_answer`: the verdict where none with a
/// vote has an answer.
pub fn weighted_vote(
    outcome: Outcome,
    weight: impl Fn(usize, &Sample) -> Option<f64>,
    no_answer: Option<bool>,
) -> Outcome {
    let mut tally = VoteTally::default();
    for (at, sample) in outcome.samples.iter().enumerate() {
        if let Some(weight) = weight(at, sample) {
            tally.add_copies(sample.index as usize, sample.answer.as_deref(), 1, weight);
        }
    }
    let heaviest = tally.heaviest();
    let winner = heaviest.first().map(|votes| votes.value.as_str());
    Outcome {
        correct: winner.map_or(no_answer, |answer| verdict_on(answer, &outcome.samples)),
        prediction: winner.map(str::to_owned),
        chosen: heaviest.first().map(|votes| votes.first as u64),
        tied: tied(heaviest.iter().map(|votes| votes.first as u64)),
        votes: tally.most_first(),
        weights: tally.heaviest_first(),
        ..outcome
    }
}

/// The votes of `samples`.
pub fn tally(samples: &[Sample]) -> VoteTally {
    let mut tally = VoteTally::default();
    for sample in samples {
        tally.add(sample.index as usize, sample.answer.as_deref());
    }
    tally
}

/// Whether `answer` is right: the verdict on the sample with the smallest index that gave it and was graded. A grader
/// reads whole texts, so samples with the same answer may have different verdicts; every vote (maj@k too) uses this
/// function.
pub fn verdict_on(answer: &str, samples: &[Sample]) -> Option<bool> {
    let graded = samples.iter().filter(|sample| sample.answer.as_deref() == Some(answer) && sample.correct.is_some());
    graded.min_by_key(|sample| sample.index)?.correct
}

/// The sample with the smallest index that gave `answer`.
pub fn first_with<'a>(answer: &str, samples: &'a [Sample]) -> Option<&'a Sample> {
    samples.iter().filter(|sample| sample.answer.as_deref() == Some(answer)).min_by_key(|sample| sample.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_score::{StepScore, StepScores};

    #[test]
    fn parts_are_told_where_steps_have_several() {
        let found = |scores: &[(usize, f64)]| {
            let scores = scores.iter().map(|&(step, score)| StepScore { step, score }).collect();
            TextScores { scores: StepScores { scores }, tokens: 7, computed: 7, detail: None, lacking: None }
        };
        let of = |scores: &[(usize, f64)], steps, aggregate| SampleScore::of(&found(scores), steps, aggregate);
        let whole = of(&[(0, 0.5), (2, 0.25)], 3, Aggregate::Min);
        let step_scores = vec![Some(0.5), None, Some(0.25)];
        let (part_scores, score_tokens) = (Vec::new(), Some(7));
        let (verdict, score_error) = (None, None);
        let expected =
            SampleScore::Scored { score: 0.25, step_scores, part_scores, score_tokens, verdict, score_error };
        assert_eq!((&whole, whole.parts()), (&expected, vec![0.5, 0.25]));
        let cut = of(&[(0, 0.125), (0, 0.5), (1, 0.25)], 2, Aggregate::Min);
        assert_eq!((cut.score(), cut.parts()), (Some(0.125), vec![0.125, 0.5, 0.25]));
        let mut again = cut.clone();
        again.aggregate(Aggregate::Last);
        assert_eq!((again.score(), again.parts()), (Some(0.25), cut.parts()));
        again.aggregate(Aggregate::Min);
        assert_eq!(again, cut);
        let SampleScore::Scored { step_scores, part_scores, .. } = &cut else { panic!("{cut:?}") };
        assert_eq!((&step_scores[..], part_scores.len()), (&[Some(0.5), Some(0.25)][..], 3));
        for none in [of(&[], 1, Aggregate::Last), of(&[(0, f64::NAN)], 1, Aggregate::Last)] {
            assert!(none.score().is_none() && none.parts().is_empty(), "{none:?}");
        }
    }
}
