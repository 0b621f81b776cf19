//! Scores of samples that were made and scored elsewhere: how they are read from a record, and what the best sample,
//! the weighted vote and the majority choose among the first k samples of an item, as search-and-learn's scoring of its
//! files does. `vote` reads the records and writes the results.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::records::RecordPlace;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::percent;
use offshoot_core::json::describe;
use offshoot_core::setting::AGGREGATE;
use offshoot_search::settings::Aggregate;
use offshoot_search::vote::VoteTally;
use offshoot_search::{Sample, first_with, tally};

pub use offshoot_score::Scale;

/// How the scores of samples are used.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The field of the records that has them.
    pub field: String,
    /// What makes one score of those of a sample's steps.
    pub aggregate: Aggregate,
    /// What the scores are: a vote weighs a probability as it is, a logit by its sigmoid.
    pub scale: Scale,
    /// What chooses the prediction of an item among all its samples.
    pub by: VoteBy,
}

impl ReplayOptions {
    /// Refuses products of logits: two steps of -5 would be better than two of 4.
    pub(super) fn check(&self) -> Result<()> {
        match (self.aggregate, self.scale) {
            (Aggregate::Product, Scale::Logit) => {
                Err(Error::value(AGGREGATE, "last, min or mean, as the scores are logits", "product"))
            }
            _ => Ok(()),
        }
    }
}

/// What chooses among scored samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VoteBy {
    /// The answer with the largest sum of scores, each as a probability.
    #[default]
    Weighted,
    /// The sample with the best score.
    Best,
    /// The most frequent answer.
    Majority,
}

/// The answers chosen among the first samples of an item; `None`: no sample that counts has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Picks {
    /// How many samples.
    pub k: usize,
    pub best: Option<String>,
    pub weighted: Option<String>,
    pub majority: Option<String>,
}

impl Picks {
    /// The choices among the first `k` of an item's samples; `scores`: one for each sample, where it has one.
    pub fn among(samples: &[Sample], scores: &[Option<f64>], scale: Scale, k: usize) -> Self {
        let (samples, scores) = (&samples[..k.min(samples.len())], &scores[..k.min(scores.len())]);
        let answer = |at: Option<usize>| at.and_then(|at| samples[at].answer.clone());
        Picks {
            k,
            best: answer(best(scores)),
            weighted: answer(heaviest(samples, scores, scale)),
            majority: tally(samples).leader().map(|votes| votes.value.clone()),
        }
    }

    /// The choice of one of the three.
    pub fn by(&self, by: VoteBy) -> Option<&str> {
        match by {
            VoteBy::Weighted => self.weighted.as_deref(),
            VoteBy::Best => self.best.as_deref(),
            VoteBy::Majority => self.majority.as_deref(),
        }
    }
}

/// The first sample with the best score; `None`: none has a score.
fn best(scores: &[Option<f64>]) -> Option<usize> {
    let known = scores.iter().enumerate().filter_map(|(at, score)| Some((at, (*score)?)));
    known.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(at, _)| at)
}

/// The first sample with the answer that wins the vote by scores as probabilities, in which a sample without a score
/// has no vote; of sums that tie, the answer that was given first.
fn heaviest(samples: &[Sample], scores: &[Option<f64>], scale: Scale) -> Option<usize> {
    let mut tally = VoteTally::default();
    for (at, sample) in samples.iter().enumerate() {
        if let Some(score) = scores[at] {
            tally.add_copies(at, sample.answer.as_deref(), 1, scale.probability(score));
        }
    }
    tally.heaviest().first().map(|votes| votes.first)
}

/// How often the choices among the first k samples are right, over the items with so many.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PickScores {
    pub k: usize,
    /// Items with at least k samples and a verdict.
    pub items: usize,
    pub best: f64,
    pub weighted: f64,
    pub majority: f64,
}

impl PickScores {
    /// For one k, of the choices and samples of each item; `None`: no item has so many samples and a verdict. An answer
    /// is as right as the first sample that gave it, and no answer is wrong.
    pub fn of(k: usize, items: &[(Vec<Picks>, &[Sample])]) -> Option<Self> {
        let of_k = |(picks, samples): &(Vec<Picks>, &'_ [Sample])| {
            let picks = picks.iter().find(|picks| picks.k == k)?;
            let is_right = |answer: Option<&str>| match answer {
                Some(answer) => first_with(answer, samples)?.correct,
                None => samples.first()?.correct.map(|_| false),
            };
            let right = |by| Some(f64::from(u8::from(is_right(picks.by(by))?)));
            Some([right(VoteBy::Best)?, right(VoteBy::Weighted)?, right(VoteBy::Majority)?])
        };
        let all: Vec<[f64; 3]> = items.iter().filter_map(of_k).collect();
        let mean = |of: usize| all.iter().map(|right| right[of]).sum::<f64>() / all.len() as f64;
        let is_any = !all.is_empty();
        is_any.then(|| PickScores { k, items: all.len(), best: mean(0), weighted: mean(1), majority: mean(2) })
    }
}

impl fmt::Display for PickScores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PickScores { k, items: _, best, weighted, majority } = self;
        let (best, weighted, majority) = (percent(*best), percent(*weighted), percent(*majority));
        write!(f, "{:<11} best {best}   weighted {weighted}   majority {majority}", format!("first {k}"))
    }
}

/// The scores of a record's texts: a number or the numbers of the steps for each; of a lone text also without a list
/// around it. Null, and a text without steps, is no score; nor has a text one whose last step has none, as in searches.
pub(super) fn read_scores(
    path: &Path,
    place: RecordPlace,
    field: &str,
    value: &Value,
    (texts, is_lone): (usize, bool),
    aggregate: Aggregate,
) -> Result<Vec<Option<f64>>> {
    let wrong = |expected: String, found: String| Error::field(path, field, format!("{expected} at {place}"), found);
    let number = |value: &Value| match value {
        Value::Null => Ok(None),
        Value::Number(number) => Ok(number.as_f64()),
        other => Err(wrong("numbers, or lists of numbers,".to_owned(), describe(other))),
    };
    let score = |value: &Value| match value {
        Value::Array(steps) => {
            let steps: Vec<Option<f64>> = steps.iter().map(number).collect::<Result<_>>()?;
            let is_whole = steps.last().is_some_and(Option::is_some);
            Ok(aggregate.of(&steps.into_iter().flatten().collect::<Vec<f64>>()).filter(|_| is_whole))
        }
        other => number(other),
    };
    let all = match value {
        Value::Array(list) if !(is_lone && list.iter().all(|value| !value.is_array()) && list.len() != texts) => {
            list.iter().map(score).collect::<Result<Vec<_>>>()?
        }
        lone if is_lone => vec![score(lone)?],
        other => return Err(wrong(format!("a list of {texts} scores, one for each text,"), describe(other))),
    };
    match all.len() == texts {
        true => Ok(all),
        false => Err(wrong(format!("{texts} scores, one for each text,"), all.len().to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use offshoot_engine::FinishReason;

    fn samples(answers: &[Option<&str>], right: &str) -> Vec<Sample> {
        let sample = |(index, answer): (usize, &Option<&str>)| Sample {
            index: index as u64,
            text: String::new(),
            tokens: 0,
            finish: FinishReason::Given,
            logprob: 0.0,
            answer: answer.map(str::to_owned),
            correct: Some(*answer == Some(right)),
            detail: None,
            logprobs: None,
            ending: None,
            confidence: None,
            scored: None,
            error: None,
        };
        answers.iter().enumerate().map(sample).collect()
    }

    fn read(value: Value, texts: usize, is_lone: bool) -> Result<Vec<Option<f64>>> {
        let place = RecordPlace::Line(3);
        read_scores(Path::new("made.jsonl"), place, "scores", &value, (texts, is_lone), Aggregate::Min)
    }

    #[test]
    fn scores_are_numbers_or_lists_of_steps() {
        assert_eq!(read(json!([0.5, null, -2]), 3, false).unwrap(), [Some(0.5), None, Some(-2.0)]);
        let steps = json!([[0.5, 0.25, 0.75], [], [1], [null, 0.5], [0.5, null]]);
        assert_eq!(read(steps, 5, false).unwrap(), [Some(0.25), None, Some(1.0), Some(0.5), None]);
        assert_eq!(read(json!(0.5), 1, true).unwrap(), [Some(0.5)]);
        assert_eq!(read(json!([0.5, 0.25]), 1, true).unwrap(), [Some(0.25)]);
        assert_eq!(read(json!([[0.5, 0.25]]), 1, true).unwrap(), [Some(0.25)]);
        for (value, expected, found) in [
            (json!([0.5]), "2 scores, one for each text, at line 3", "1"),
            (json!(0.5), "a list of 2 scores", "0.5"),
            (json!(["a", 1]), "numbers, or lists of numbers", "\"a\""),
        ] {
            let error = read(value, 2, false).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(found), "{error}");
        }
    }

    /// What `score()` of search-and-learn chooses for these answers and scores.
    #[test]
    fn picks_are_search_and_learns() {
        let answers = [Some("4"), Some("5"), Some("5"), Some("4"), Some("6"), Some("6"), Some("6"), Some("4")];
        let all = samples(&answers, "6");
        let scores = [0.9, 0.5, 0.5, 0.1, 0.95, 0.2, 0.1, 0.25].map(Some);
        let of = |k| {
            let Picks { best, weighted, majority, .. } = Picks::among(&all, &scores, Scale::Probability, k);
            [best, weighted, majority].map(Option::unwrap)
        };
        assert_eq!(of(1), ["4", "4", "4"]);
        assert_eq!(of(2), ["4", "4", "4"], "of equal votes the first");
        // 0.9 + 0.1 and 0.5 + 0.5: equal sums, and equal numbers.
        assert_eq!(of(4), ["4", "4", "4"]);
        // 4: 1.25, 5: 1.0, 6: 1.25; three, two and three votes.
        assert_eq!(of(8), ["6", "4", "4"]);
        let items = [(vec![Picks::among(&all, &scores, Scale::Probability, 8)], &all[..])];
        let right = PickScores { k: 8, items: 1, best: 1.0, weighted: 0.0, majority: 0.0 };
        assert_eq!(PickScores::of(8, &items), Some(right));
        assert_eq!(PickScores::of(4, &items), None);
    }

    #[test]
    fn what_has_no_score_or_no_answer_has_no_vote() {
        let all = samples(&[None, Some("7"), Some("8"), Some("8")], "7");
        let picks = |scores: [Option<f64>; 4]| Picks::among(&all, &scores, Scale::Probability, 4);
        let none = picks([None; 4]);
        assert_eq!((none.best, none.weighted, none.majority.as_deref()), (None, None, Some("8")));
        let some = picks([Some(0.1), None, Some(0.2), None]);
        assert_eq!((some.best.as_deref(), some.weighted.as_deref()), (Some("8"), Some("8")));
        // The best sample has no answer, and is wrong.
        let silent = vec![picks([Some(0.9), Some(0.5), None, None])];
        let share = PickScores::of(4, &[(silent, &all[..])]).unwrap();
        assert_eq!((share.best, share.weighted, share.majority), (0.0, 1.0, 0.0));
        // What nothing has scored does not win over what is scored low.
        let low = picks([None, None, Some(-1.0), Some(-2.0)]);
        assert_eq!((low.best.as_deref(), low.weighted.as_deref()), (Some("8"), Some("8")));
    }

    #[test]
    fn votes_weigh_logits_by_their_sigmoids() {
        let all = samples(&[Some("7"), Some("8"), Some("8")], "7");
        let weighted =
            |scores: [f64; 3], scale| Picks::among(&all, &scores.map(Some), scale, 3).weighted.expect("all have votes");
        // The sigmoids of 4 and 4 are 1.96 together, that of 9 is below 1.
        assert_eq!(weighted([9.0, 4.0, 4.0], Scale::Logit), "8");
        assert_eq!(weighted([9.0, 4.0, 4.0], Scale::Probability), "7");
        // A second vote helps an answer, however low it is.
        assert_eq!(weighted([-1.0, -1.0, -2.0], Scale::Logit), "8");
    }
}
