//! Confidences compared with what deepconf 0.1.0 computes: `reference/confidence.py` made the numbers and says how.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use offshoot_core::ids::TokenId;
use offshoot_engine::{FinishReason, SampledToken};
use offshoot_search::confidence::{
    ConfidenceSource, ConfidenceVote, ConfidentAnswer, Measure, VoteResult, VotingMethod, Windows, bar, group_means,
    lowest_group, percentile, sample_confidences, token_confidence, voting_results, weigh_votes,
};
use offshoot_search::self_consistency::vote;
use offshoot_search::{Details, Outcome, Sample};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    tokens: Vec<TokenCase>,
    windows: Vec<WindowCase>,
    percentiles: Vec<PercentileCase>,
    votes: Vec<VoteCase>,
}

#[derive(Deserialize)]
struct TokenCase {
    logprobs: Vec<f64>,
    confidence: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct WindowCase {
    window: NonZeroUsize,
    seed: u64,
    tokens: usize,
    offset: i64,
    groups: usize,
    sum: f64,
    lowest_group: f64,
    mean: f64,
    tail: f64,
    bottom: f64,
    lowest: f64,
}

#[derive(Deserialize)]
struct PercentileCase {
    seed: u64,
    values: usize,
    offset: i64,
    percent: f64,
    value: f64,
}

#[derive(Deserialize)]
struct VoteCase {
    samples: Vec<(Option<String>, u64, usize, i64)>,
    results: BTreeMap<VotingMethod, VoteResult>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("reference/confidence.json")).expect("the generator writes these fields")
}

/// The confidences of the generator's recipe.
fn confidences(seed: u64, tokens: usize, offset: i64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = (state * 1_103_515_245 + 12_345) % (1 << 31);
        ((state >> 8) % 4000) as i64
    };
    (0..tokens).map(|_| (next() + offset) as f64 / 1000.0).collect()
}

fn equal(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-6
}

#[test]
fn a_token_is_as_confident_as_deepconf_finds_it() {
    for TokenCase { logprobs, confidence } in reference().tokens {
        let found = token_confidence(&logprobs);
        assert_eq!(found.is_some(), confidence.is_some(), "{logprobs:?}");
        let (found, expected) = (found.unwrap_or(0.0), confidence.unwrap_or(0.0));
        assert!(equal(found, expected), "{} log-probabilities: {found} for {expected}", logprobs.len());
    }
}

#[test]
fn windows_and_measures_are_deepconfs() {
    for case in reference().windows {
        let made = confidences(case.seed, case.tokens, case.offset);
        let groups = group_means(&made, case.window);
        assert_eq!(groups.len(), case.groups, "{case:?}");
        // One group that is rounded to the other side is 1e-3 away.
        assert!((groups.iter().sum::<f64>() - case.sum).abs() < 1e-4, "{case:?}");
        let windows = Windows { tail: case.window, window: case.window, ..Windows::default() };
        let pairs = [
            (lowest_group(&made, case.window), case.lowest_group),
            (windows.measure(Measure::Mean, &made), case.mean),
            (windows.measure(Measure::Tail, &made), case.tail),
            (windows.measure(Measure::Bottom, &made), case.bottom),
            (windows.measure(Measure::Lowest, &made), case.lowest),
        ];
        for (ix, (found, expected)) in pairs.into_iter().enumerate() {
            assert!(equal(found, expected), "number {ix} is {found} in {case:?}");
        }
    }
}

#[test]
fn percentiles_are_numpys() {
    for case in reference().percentiles {
        let values = confidences(case.seed, case.values, case.offset);
        let found = percentile(&values, case.percent).expect("there are values");
        assert!(equal(found, case.value), "{} % of {}: {found} for {}", case.percent, case.values, case.value);
    }
    assert_eq!(percentile(&[], 50.0), None);
}

#[test]
fn a_bar_lets_its_share_of_the_warm_up_pass() {
    let lowest: Vec<f64> = (0..16).map(f64::from).collect();
    // deepconf's default keeps 90 %: the 10th percentile, at place 1.5 of 0 to 15.
    assert!(equal(bar(&lowest, 0.9).expect("16 samples"), 1.5));
    assert!(equal(bar(&lowest, 0.1).expect("16 samples"), 13.5));
    assert!(equal(bar(&[2.0], 0.1).expect("one sample"), 2.0));
    assert_eq!(bar(&[], 0.1), None);
}

#[test]
fn seven_votes_are_deepconfs() {
    for case in reference().votes {
        let made: Vec<_> = case.samples.iter().map(|&(_, seed, n, offset)| confidences(seed, n, offset)).collect();
        let samples: Vec<ConfidentAnswer<'_>> = case
            .samples
            .iter()
            .zip(&made)
            .map(|((answer, ..), confidences)| ConfidentAnswer { answer: answer.as_deref(), confidences })
            .collect();
        let found: BTreeMap<VotingMethod, VoteResult> =
            voting_results(&samples, &Windows::default()).into_iter().collect();
        assert!(found.keys().eq(case.results.keys()), "{:?} for {:?}", found.keys(), case.results.keys());
        for (method, expected) in &case.results {
            let result = &found[method];
            assert_eq!((&result.answer, result.num_votes), (&expected.answer, expected.num_votes), "{method:?}");
            assert_eq!(result.confidence.is_some(), expected.confidence.is_some(), "{method:?}");
            let (found, expected) = (result.confidence.unwrap_or(0.0), expected.confidence.unwrap_or(0.0));
            assert!(equal(found, expected), "{method:?}: {found} for {expected}");
        }
    }
}

/// A token whose likeliest two have these log-probabilities; its own may be a third.
fn token(id: u32, own: f32, top: [f32; 2]) -> SampledToken {
    SampledToken { top: vec![(TokenId(1), top[0]), (TokenId(2), top[1])], ..SampledToken::of(TokenId(id), own) }
}

/// A sample of one token for each of the confidences.
fn said(index: u64, answer: Option<&str>, confidences: &[f32]) -> Sample {
    let tokens = confidences.iter().map(|&confidence| token(1, -confidence, [-confidence; 2]));
    Sample {
        index,
        text: String::new(),
        tokens: confidences.len(),
        finish: FinishReason::EndOfText,
        logprob: 0.0,
        answer: answer.map(str::to_owned),
        correct: Some(answer == Some("b")),
        detail: None,
        logprobs: Some(tokens.collect()),
        ending: None,
        confidence: None,
        scored: None,
        error: None,
    }
}

#[test]
fn a_samples_confidences_are_of_the_tokens_listed_and_its_own() {
    let sample = Sample {
        logprobs: Some(vec![token(1, -0.5, [-0.5, -1.5]), token(3, -7.0, [-0.5, -1.5])]),
        ending: Some(token(2, -2.0, [-1.0, -2.0])),
        ..said(0, None, &[])
    };
    assert_eq!(sample_confidences(&sample), [1.0, 3.0, 1.5]);
    assert!(sample_confidences(&Sample { logprobs: None, ..said(0, None, &[]) }).is_empty());
}

#[test]
fn the_most_confident_answer_wins_a_weighed_vote() {
    let samples = vec![
        said(0, Some("a"), &[1.0, 1.0, 1.0, 1.0]),
        said(1, Some("a"), &[1.0, 1.0, 1.0, 2.0]),
        said(2, Some("b"), &[5.0, 4.0, 0.5, 0.5]),
        said(3, None, &[9.0; 4]),
    ];
    let plain = vote(samples, 4, Some(false));
    assert_eq!((plain.prediction.as_deref(), plain.correct), (Some("a"), Some(false)));
    let size = NonZeroUsize::new(2).expect("2");
    let weighed = |by, keep| {
        let windows = Windows { tail: size, window: size, bottom: 0.1, keep };
        let outcome =
            weigh_votes(plain.clone(), &ConfidenceVote { by: Some(by), windows, source: ConfidenceSource::Listed });
        let Some(Details::Scores { scores }) = &outcome.details else { panic!("{outcome:?}") };
        let scores: Vec<f64> = scores.iter().map(|score| score.expect("each has one")).collect();
        (outcome.prediction.clone(), outcome.votes.clone(), scores)
    };
    let (a, b) = (Some("a".to_string()), Some("b".to_string()));
    let both = vec![("a".to_string(), 2), ("b".to_string(), 1)];
    assert_eq!(weighed(Measure::Mean, 1.0), (b.clone(), both.clone(), vec![1.0, 1.25, 2.5, 9.0]));
    assert_eq!(weighed(Measure::Tail, 1.0), (a.clone(), both.clone(), vec![1.0, 1.5, 0.5, 9.0]));
    assert_eq!(weighed(Measure::Lowest, 1.0), (a, both, vec![1.0, 1.0, 0.5, 9.0]));
    // Of three with an answer, the 67th percentile lets one pass.
    assert_eq!(weighed(Measure::Mean, 0.33), (b, vec![("b".into(), 1)], vec![1.0, 1.25, 2.5, 9.0]));
}

#[test]
fn a_vote_without_confidences_stays_equal() {
    let plain = vote(vec![said(0, Some("b"), &[]), said(1, Some("a"), &[]), said(2, Some("a"), &[])], 3, None);
    let (by, source) = (Some(Measure::Mean), ConfidenceSource::Listed);
    let how = ConfidenceVote { by, windows: Windows::default(), source };
    let weighed: Outcome = weigh_votes(plain.clone(), &how);
    assert_eq!((weighed.prediction, weighed.votes), (plain.prediction, plain.votes));
}
