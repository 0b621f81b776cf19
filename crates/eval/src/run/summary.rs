//! Computes the summary of a run from its finished items: accuracy, pass@k and maj@k with intervals, and the engine's
//! counters.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::num::{NonZeroU32, NonZeroUsize};

use crate::judged::{is_ungraded, ungraded};
use crate::report::{
    AtK, ConfidenceStops, CutShort, Estimate, Interval, JudgeTotals, OmittedKs, PromptTokens, RunScores, ScorerTotals,
    Summary,
};
use crate::statistics;
use crate::statistics::ranked::{Ranked, best_of_k};
use crate::task::{Method, Task, ThoughtScoring};
use offshoot_core::error::Result;
use offshoot_core::figures::counted;
use offshoot_engine::FinishReason;
use offshoot_judge as judge;
use offshoot_score::{Scale, TextScorer};
use offshoot_search::settings::BestBy;
use offshoot_search::vote::VoteTally;
use offshoot_search::{Details, Outcome, Sample, tally, verdict_on};
use offshoot_verdict::Ask;

use super::judging::Judged;
use super::levels::{LevelCounts, levels};
use super::options::RunOptions;
use super::outcome::Finished;
use super::prepare::PreparedRun;
use offshoot_launch::Launched;

/// Number of samples from which the default values of k are powers of ten instead of two, up to this number: the time
/// of maj@k grows with the square of k.
const MANY_SAMPLES: u32 = 100;

pub fn summarise(
    prepared: &PreparedRun,
    launched: &Launched,
    judge: Option<&dyn Ask>,
    options: &RunOptions,
    finished: &[Finished],
    counts: LevelCounts,
    seconds: f64,
) -> Result<Summary> {
    let task = &prepared.task;
    let levels = levels(counts, finished, launched.engine.facts().kv_bytes_per_token as u64);
    let engine = launched.engine.metrics()?;
    let of_scorer = launched.scorer().map(|scorer| scorer.engine().metrics()).transpose()?;
    let of_scorer = of_scorer.map(|metrics| PromptTokens::of(&metrics));
    Ok(Summary {
        task: task.name.clone(),
        method: task.method.described(),
        model: prepared.model.display().to_string(),
        scorer_model: launched.scorer().map(|scorer| scorer.identity().clone()),
        judge: judge.map(JudgeTotals::of),
        device: launched.engine.facts().device.clone(),
        kv_dtype: options.engine.budget.kv,
        weights: prepared.folder.config.effect_of(options.engine.budget.weights),
        not_cuda: launched.not_cuda.as_ref().map(ToString::to_string),
        plan: options.engine.plan.unwrap_or_default(),
        seed: task.sampling.seed,
        items_asked: prepared.items.len(),
        unfinished_samples: 0,
        failed: 0,
        skipped: 0,
        failed_branches: 0,
        scores: scores(task, finished, options.k.as_deref()),
        prompts: PromptTokens::of(&engine),
        uncounted_processes: 0,
        scorer_prompts: of_scorer,
        levels,
        seconds,
        seconds_loading: launched.seconds_loading,
        engine,
    })
}

/// The scores of `finished`, for each k in `asked`, or else for the default ks, up to the number of samples.
pub fn scores(task: &Task, finished: &[Finished], asked: Option<&[u32]>) -> RunScores {
    let samples: Vec<&[Sample]> = finished.iter().map(|item| item.outcome.samples.as_slice()).collect();
    // Where a vote was stopped when it was decided, its samples are biased towards the winner; where samples end by
    // low confidence, only the warm-up is drawn as it comes.
    let cancelled = finished.iter().map(|item| item.outcome.cancelled).sum();
    let (warm_up, is_whole) = (task.method.warm_up(), cancelled == 0 && task.method.draws_all());
    let graded: Vec<Cow<'_, [Sample]>> = samples.iter().map(|samples| graded_of(samples)).collect();
    let unbiased: Vec<&[Sample]> = match warm_up {
        Some(warm_up) if task.method.group_end().is_none() => {
            graded.iter().map(|samples| warm_up_of(samples, warm_up)).collect()
        }
        _ if is_whole => graded.iter().map(|samples| &**samples).collect(),
        _ => Vec::new(),
    };
    let unbiased = unbiased.as_slice();
    let of_k = if unbiased.is_empty() { samples.as_slice() } else { unbiased };
    let usual = usual_ks(of_k.iter().map(|samples| samples.len()));
    let ks = asked.unwrap_or(&usual);
    let all = || samples.iter().flat_map(|samples| samples.iter());
    let ended_by = |reason| all().filter(|sample| sample.finish == reason).count();
    let chosen: Vec<f64> = finished.iter().filter_map(|item| item.outcome.share_right()).collect();
    let is_silent = |sample: &&Sample| sample.answer.is_none() && sample.finish != FinishReason::LowConfidence;
    let is_tied = |item: &&Finished| item.outcome.correct.is_some() && item.outcome.is_tied();
    let voted = if task.has_answers() { unbiased } else { &[] };
    let ranked: Vec<Vec<Ranked>> = unbiased
        .iter()
        .zip(finished)
        .map(|(samples, item)| ranked(&task.method, samples, &item.outcome).unwrap_or_default())
        .collect();
    let ranked: Vec<&[Ranked]> = ranked.iter().map(Vec::as_slice).collect();
    let votes: Vec<f64> = match voted.iter().any(|samples| samples.len() > 1) {
        true => voted.iter().filter_map(|samples| weighted_vote(samples)).collect(),
        false => Vec::new(),
    };
    let reward_votes: Vec<f64> = match (&task.method, is_whole && task.has_answers()) {
        (Method::BestByScorer { .. }, true) => {
            let both = finished.iter().zip(&graded);
            both.filter_map(|(item, samples)| reward_vote(samples, item.outcome.scorer.as_ref()?.scale)).collect()
        }
        _ => Vec::new(),
    };
    let scores = RunScores {
        items: finished.len(),
        samples: all().count(),
        cancelled,
        spares: task.method.spares(),
        samples_tokens: Some(all().map(|sample| sample.tokens).sum()),
        cancelled_tokens: finished.iter().map(|item| item.outcome.cancelled_tokens).sum(),
        tokens_spared: finished.iter().map(|item| spared(&item.outcome)).sum(),
        low_confidence: warm_up.map(|warm_up| confidence_stops(task, finished, warm_up)),
        verdicts: verdicts(all()),
        ungraded: all().filter(|sample| is_ungraded(sample)).count(),
        first_ungraded: all().find_map(|sample| ungraded(sample).map(str::to_owned)),
        cut_short: CutShort {
            length: ended_by(FinishReason::Length),
            context_full: ended_by(FinishReason::ContextFull),
            dead_end: ended_by(FinishReason::DeadEnd),
            form_limit: ended_by(FinishReason::FormLimit),
        },
        without_answer: if task.has_answers() { all().filter(is_silent).count() } else { 0 },
        accuracy: mean_choice(&chosen),
        without_choice: finished.iter().filter(|item| is_without_choice(&item.outcome)).count(),
        tied: finished.iter().filter(is_tied).count(),
        chosen_by_grader: matches!(task.method, Method::BestOfN { by: BestBy::Grade, .. })
            || task.method.scoring() == Some(&ThoughtScoring::Grade),
        single: mean(unbiased, 1, single),
        pass_at: at_k(unbiased, ks, pass_at_k),
        maj_at: at_k(voted, ks, maj_at_k),
        best_at: at_k(&ranked, ks, if task.method.compares() { best_of_all } else { best_at_k }),
        ranked_by_score: task.method.ranks_by_score(),
        weighted_vote: mean_choice(&votes),
        reward_vote: mean_choice(&reward_votes),
        scorer: scorer_totals(finished),
        k_left_out: None,
    };
    RunScores { k_left_out: left_out(task, &scores, finished, asked.unwrap_or_default()), ..scores }
}

/// Whether there is a verdict on an item's choice, though nothing was chosen: no answer, or nothing that has a score.
fn is_without_choice(outcome: &Outcome) -> bool {
    outcome.chosen.is_none() && outcome.correct.is_some()
}

/// Default values of k for pass@k and the like; `samples`: the number of each item. They are 1, 2, 4, ..., or 1, 10 and
/// 100 if there are many samples, up to the largest number; and the smallest number, for that k covers all items.
pub(super) fn usual_ks(samples: impl Iterator<Item = usize> + Clone) -> Vec<u32> {
    let counts = samples.map(|samples| u32::try_from(samples).unwrap_or(u32::MAX)).filter(|&samples| samples > 0);
    let (Some(most), Some(fewest)) = (counts.clone().max(), counts.min()) else { return Vec::new() };
    let base: u32 = if most < MANY_SAMPLES { 2 } else { 10 };
    let powers = std::iter::successors(Some(1), |k| Some(k * base)).take_while(|&k| k <= most.min(MANY_SAMPLES));
    // The vote of all samples takes no time, whatever their number.
    let all = (fewest == most || fewest <= MANY_SAMPLES).then_some(fewest);
    let mut ks: Vec<u32> = powers.chain(all).collect();
    ks.sort_unstable();
    ks.dedup();
    ks
}

/// The ks in `asked` without a row in `scores`, and why.
fn left_out(task: &Task, scores: &RunScores, finished: &[Finished], asked: &[u32]) -> Option<OmittedKs> {
    let rows = || [&scores.pass_at, &scores.maj_at, &scores.best_at].into_iter().flatten();
    let shown = |k: u32| rows().any(|at| at.k == k as usize) || (k == 1 && scores.single.is_some());
    let k: Vec<u32> = asked.iter().copied().filter(|&k| !shown(k)).collect();
    if k.is_empty() && task.method.compares() && !scores.best_at.is_empty() {
        let of_best = |k: u32| scores.best_at.iter().any(|at| at.k == k as usize);
        let k: Vec<u32> = asked.iter().copied().filter(|&k| !of_best(k)).collect();
        let why = "of best@k alone, because scores by comparisons are those among all samples".to_owned();
        return (!k.is_empty()).then_some(OmittedKs { k, why });
    }
    let most = finished.iter().map(|item| item.outcome.samples.len()).max().unwrap_or(0);
    let why = match &task.method {
        _ if k.iter().all(|&k| k as usize > most) => {
            format!("no item has more than {}", counted(most as u64, "sample"))
        }
        method if !method.draws_alike() => format!("the samples of `{}` depend on each other", method.name()),
        method if method.warm_up().is_some() => {
            let whole = method.warm_up().map_or(0, NonZeroU32::get);
            format!("only the {} of the warm-up are drawn whole", counted(u64::from(whole), "sample"))
        }
        method if scores.cancelled > 0 || !method.draws_all() => {
            "samples may be cancelled, which biases the others".to_string()
        }
        _ if scores.ungraded > 0 => {
            let of = |item: &Finished| item.outcome.samples.iter().filter(|sample| !is_ungraded(sample)).count();
            let graded = finished.iter().map(of).max().unwrap_or(0);
            format!("no item has more than {} with a grade", counted(graded as u64, "sample"))
        }
        _ => "the task has no grader".to_string(),
    };
    (!k.is_empty()).then_some(OmittedKs { k, why })
}

/// The samples, sorted by index, that were drawn before a bar was set.
fn warm_up_of(samples: &[Sample], warm_up: NonZeroU32) -> &[Sample] {
    &samples[..samples.partition_point(|sample| sample.index < u64::from(warm_up.get()))]
}

/// What ending samples by low confidence did.
fn confidence_stops(task: &Task, finished: &[Finished], warm_up: NonZeroU32) -> ConfidenceStops {
    let mut stops = ConfidenceStops {
        stopped: 0,
        stopped_tokens: 0,
        warm_up: 0,
        warm_up_tokens: 0,
        without_window: 0,
        tokens_spared: 0,
    };
    let window = task.method.confidence_window().map_or(0, NonZeroUsize::get);
    for item in finished {
        let samples = &item.outcome.samples;
        let first = warm_up_of(samples, warm_up);
        let low = samples.iter().filter(|sample| sample.finish == FinishReason::LowConfidence);
        let (stopped, tokens) = low.fold((0, 0), |(n, tokens), sample| (n + 1, tokens + sample.tokens));
        let whole: usize = first.iter().map(|sample| sample.tokens).sum();
        stops.stopped += stopped;
        stops.stopped_tokens += tokens;
        stops.warm_up += first.len();
        stops.warm_up_tokens += whole;
        // The token that ended a sample may be counted in a window and not among its tokens.
        stops.without_window += samples.iter().filter(|sample| sample.tokens + 1 < window).count();
        let mean = whole as f64 / first.len().max(1) as f64;
        stops.tokens_spared += ((mean * stopped as f64).round() as usize).saturating_sub(tokens);
    }
    stops
}

/// Tokens saved by an item's cancelled samples, at the mean length of the others.
fn spared(outcome: &Outcome) -> usize {
    let drawn: usize = outcome.samples.iter().map(|sample| sample.tokens).sum();
    let mean = drawn as f64 / outcome.samples.len().max(1) as f64;
    let all = (mean * outcome.cancelled as f64).round() as usize;
    all.saturating_sub(outcome.cancelled_tokens)
}

/// Samples by verdict.
fn verdicts<'a>(samples: impl Iterator<Item = &'a Sample>) -> BTreeMap<judge::Verdict, usize> {
    let mut counts = BTreeMap::new();
    for judged in samples.filter_map(Judged::of) {
        *counts.entry(judged.verdict).or_default() += 1;
    }
    counts
}

/// A share of items with its Wilson interval.
fn share(right: usize, of: usize) -> Option<Estimate> {
    let (low, high) = statistics::wilson(right as u32, of as u32)?;
    Some(Estimate { value: right as f64 / of as f64, interval: Some(Interval { low, high }) })
}

/// The mean of how far the items' choices are right: with Wilson's interval if no choice is tied, else a bootstrap's.
fn mean_choice(values: &[f64]) -> Option<Estimate> {
    if values.iter().all(|&value| value == 0.0 || value == 1.0) {
        return share(values.iter().filter(|&&value| value == 1.0).count(), values.len());
    }
    let (value, interval) = statistics::mean(values)?;
    Some(Estimate { value, interval: interval.map(|(low, high)| Interval { low, high }) })
}

/// The mean of `value` over the items for which it is defined. If each value is a verdict (the item has `drawn`
/// samples, all of which count), the interval is Wilson's; otherwise it is from a bootstrap, which gives none if all
/// values are equal.
fn mean<T>(items: &[&[T]], drawn: usize, value: impl Fn(&[T]) -> Option<f64>) -> Option<Estimate> {
    let defined: Vec<(usize, f64)> = items.iter().filter_map(|item| Some((item.len(), value(item)?))).collect();
    let values: Vec<f64> = defined.iter().map(|&(_, value)| value).collect();
    // A tied vote gives a half, not a verdict; maj@k is computed with logarithms, so a verdict may be off by rounding.
    let verdict = |&(samples, value): &(usize, f64)| samples == drawn && (value - value.round()).abs() < 1e-9;
    if !values.is_empty() && defined.iter().all(verdict) {
        return share(values.iter().filter(|&&value| value > 0.5).count(), values.len());
    }
    let (value, interval) = statistics::mean(&values)?;
    Some(Estimate { value, interval: interval.map(|(low, high)| Interval { low, high }) })
}

/// Share of an item's samples that are right; `None` without a grader.
fn single(samples: &[Sample]) -> Option<f64> {
    let verdicts: Vec<bool> = samples.iter().filter_map(|sample| sample.correct).collect();
    let right = verdicts.iter().filter(|&&right| right).count();
    (!verdicts.is_empty()).then(|| right as f64 / verdicts.len() as f64)
}

/// `value` at each k above 1, over the items for which it is defined; omitted if there are none. `single` covers k = 1.
fn at_k<T>(items: &[&[T]], ks: &[u32], value: fn(&[T], u32) -> Option<f64>) -> Vec<AtK> {
    let estimate = |&k: &u32| {
        let at = |samples: &[T]| value(samples, k);
        let covered = items.iter().filter(|samples| at(samples).is_some()).count();
        Some(AtK { k: k as usize, items: covered, estimate: mean(items, k as usize, at)? })
    };
    let all: Vec<AtK> = ks.iter().filter_map(estimate).collect();
    if matches!(all[..], [AtK { k: 1, .. }]) { Vec::new() } else { all }
}

fn best_at_k(samples: &[Ranked], k: u32) -> Option<f64> {
    best_of_k(samples, k as usize)
}

/// The same where a sample's score follows from comparisons with all others: which one is the best of fewer is not
/// known.
fn best_of_all(samples: &[Ranked], k: u32) -> Option<f64> {
    best_at_k(samples, k).filter(|_| samples.len() == k as usize)
}

/// best@k by scores that samples have from elsewhere, over the items whose samples all have a verdict.
pub(super) fn best_at<'a>(items: impl Iterator<Item = (&'a [Sample], &'a [Option<f64>])>, ks: &[u32]) -> Vec<AtK> {
    let ranked = |(sample, score): (&Sample, &Option<f64>)| Some(Ranked { score: *score, right: sample.correct? });
    let each = |(samples, scores): (&[Sample], &[Option<f64>])| {
        samples.iter().zip(scores).map(ranked).collect::<Option<Vec<Ranked>>>().unwrap_or_default()
    };
    let all: Vec<Vec<Ranked>> = items.map(each).collect();
    let all: Vec<&[Ranked]> = all.iter().map(Vec::as_slice).collect();
    at_k(&all, ks, best_at_k)
}

fn pass_at_k(samples: &[Sample], k: u32) -> Option<f64> {
    let verdicts = samples.iter().map(|sample| sample.correct).collect::<Option<Vec<bool>>>()?;
    let right = verdicts.iter().filter(|&&right| right).count();
    if k == 1 {
        return single(samples); // The same number, without the rounding of a product.
    }
    statistics::pass_at_k(verdicts.len() as u32, right as u32, k)
}

fn maj_at_k(samples: &[Sample], k: u32) -> Option<f64> {
    samples.first()?.correct?;
    statistics::vote_at_k(&tally(samples), |answer| verdict_on(answer, samples) == Some(true), k)
}

fn by_token(sample: &Sample) -> f64 {
    sample.logprob / sample.tokens.max(1) as f64
}

/// The samples, sorted by index, without those that a judge was to grade and could not.
fn graded_of(samples: &[Sample]) -> Cow<'_, [Sample]> {
    match samples.iter().any(is_ungraded) {
        false => Cow::Borrowed(samples),
        true => Cow::Owned(samples.iter().filter(|sample| !is_ungraded(sample)).cloned().collect()),
    }
}

/// The samples, which are of this outcome, with the score by which `method` ranks them, or else the log-probability per
/// token. `None` if some are not graded or have no score; or if some others were compared with them.
fn ranked(method: &Method, samples: &[Sample], outcome: &Outcome) -> Option<Vec<Ranked>> {
    if method.compares() && samples.len() < outcome.samples.len() {
        return None;
    }
    let scores: Vec<Option<f64>> = match (method.ranks_by_score(), method, &outcome.details) {
        (true, _, Some(Details::Scores { scores })) if scores.len() == outcome.samples.len() => {
            let all = outcome.samples.iter().map(|sample| sample.index).zip(scores);
            let by_index: HashMap<u64, &Option<f64>> = all.collect();
            samples.iter().map(|sample| *by_index[&sample.index]).collect()
        }
        (true, ..) => return None,
        (_, Method::BestOfN { by: BestBy::Logprob, .. }, _) => {
            samples.iter().map(|sample| Some(sample.logprob)).collect()
        }
        _ => samples.iter().map(|sample| Some(by_token(sample))).collect(),
    };
    let ranked = |(sample, score): (&Sample, Option<f64>)| Some(Ranked { score, right: sample.correct? });
    samples.iter().zip(scores).map(ranked).collect()
}

/// How far the vote weighted by likelihood is right. `None` without a grader.
fn weighted_vote(samples: &[Sample]) -> Option<f64> {
    weighted_right(samples, |sample| Some(by_token(sample).exp()))
}

/// How far the vote weighted by a scorer's scores is right. `None` without a grader.
fn reward_vote(samples: &[Sample], scale: Scale) -> Option<f64> {
    weighted_right(samples, |sample| Some(scale.probability(sample.score()?)))
}

/// The share of right ones among the answers that tie in the vote by these weights, mostly one; 0 without any answer.
/// `None` without a grader.
fn weighted_right(samples: &[Sample], weight: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    samples.first()?.correct?;
    let mut tally = VoteTally::default();
    for (sample, weight) in samples.iter().filter_map(|sample| Some((sample, weight(sample)?))) {
        tally.add_copies(sample.index as usize, sample.answer.as_deref(), 1, weight);
    }
    let heaviest = tally.heaviest();
    let right = heaviest.iter().filter(|votes| verdict_on(&votes.value, samples) == Some(true)).count();
    Some(right as f64 / heaviest.len().max(1) as f64)
}

/// What the scorer did for all items; `None`: there was none.
fn scorer_totals(finished: &[Finished]) -> Option<ScorerTotals> {
    let works = || finished.iter().filter_map(|item| item.outcome.scorer.as_ref());
    works().next()?;
    Some(ScorerTotals {
        texts: works().map(|work| work.texts).sum(),
        tokens: works().map(|work| work.tokens).sum(),
        unscored: works().map(|work| work.unscored).sum(),
        first_error: works().find_map(|work| work.first_error.clone()),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::task::Overrides;
    use offshoot_score::Scale;
    use offshoot_search::SampleScore;
    use offshoot_search::best_of_n::choose_best;
    use offshoot_search::by_scorer::{choose_by_scores, scored_samples};
    use offshoot_search::self_consistency::vote;

    fn samples(verdicts: &[bool]) -> Vec<Sample> {
        let sample = |(index, &right): (usize, &bool)| Sample {
            index: index as u64,
            text: String::new(),
            tokens: 1,
            finish: FinishReason::EndOfText,
            logprob: -1.0,
            logprobs: None,
            ending: None,
            confidence: None,
            answer: Some(right.to_string()),
            correct: Some(right),
            detail: None,
            scored: None,
            error: None,
        };
        verdicts.iter().enumerate().map(sample).collect()
    }

    #[test]
    fn an_interval_never_collapses() {
        let (right, mixed) = (samples(&[true, true]), samples(&[true, false]));
        let certain = mean(&[&right, &right], 1, single).expect("two items");
        assert_eq!((certain.value, certain.interval), (1.0, None), "equal values say nothing of how sure they are");
        let spread = mean(&[&right, &mixed], 1, single).expect("two items");
        let interval = spread.interval.expect("the values differ");
        assert!(interval.low < spread.value && spread.value < interval.high, "{spread:?}");

        let alone = samples(&[true]);
        let one_each = mean(&[&alone, &alone, &alone], 1, single).expect("three items");
        assert_eq!(Some(one_each), share(3, 3), "one verdict an item: Wilson");
    }

    #[test]
    fn at_k_counts_the_items_that_it_covers() {
        let (two, four) = (samples(&[true, false]), samples(&[true, true, false, false]));
        let covered: Vec<_> =
            at_k(&[&two, &four], &[1, 2, 4, 8], pass_at_k).iter().map(|at| (at.k, at.items)).collect();
        assert_eq!(covered, [(1, 2), (2, 2), (4, 1)]);
    }

    fn answering(answers: &[&str], right: &str) -> Vec<Sample> {
        let verdicts: Vec<bool> = answers.iter().map(|&answer| answer == right).collect();
        let named = samples(&verdicts).into_iter().zip(answers);
        named.map(|(sample, &answer)| Sample { answer: Some(answer.to_string()), ..sample }).collect()
    }

    fn task(method: Value) -> Task {
        let task = json!({"name": "ties", "model": "m", "items": [{"id": "0", "gold": "B"}], "prompt": "", "answer": {},
            "grade": {"exact": {"field": "gold"}}, "method": method});
        Task::reload(Path::new("ties.json"), task, &Overrides::default()).expect("a task")
    }

    #[test]
    fn the_vote_of_all_samples_is_right_as_often_as_maj_at_all_of_them() {
        let task = task(json!({"self_consistency": {"samples": 2}}));
        let finished = |items: &[(usize, &[&str])]| -> Vec<Finished> {
            let of = |&(index, answers): &(usize, &[&str])| {
                let outcome = vote(answering(answers, "B"), answers.len(), Some(false));
                assert_eq!(outcome.prediction.as_deref(), answers.first().copied(), "the first of equals is shown");
                Finished { index, outcome }
            };
            items.iter().map(of).collect()
        };
        let tied: Vec<(usize, &[&str])> = (0..10).map(|index| (index, &["A", "B"][..])).collect();
        let all = scores(&task, &finished(&tied), None);
        let (accuracy, vote) = (all.accuracy.expect("graded"), all.maj_at.last().expect("two samples").estimate);
        assert_eq!((accuracy, accuracy.value, accuracy.interval), (vote, 0.5, None), "every item has the same value");
        assert_eq!((all.tied, all.weighted_vote.map(|vote| vote.value)), (10, Some(0.5)));
        let page = all.to_string();
        assert!(page.contains("accuracy    50.0 %") && page.contains("2: 50.0 %"), "{page}");
        assert!(page.contains("tied        10 items"), "{page}");

        let mixed: [(usize, &[&str]); 3] = [(0, &["A", "B"]), (1, &["B", "B"]), (2, &["A", "C"])];
        let all = scores(&task, &finished(&mixed), None);
        assert_eq!(all.accuracy, Some(all.maj_at.last().expect("two samples").estimate));
        assert_eq!((all.accuracy.map(|accuracy| accuracy.value), all.tied), (Some(0.5), 2));
        let clear: [(usize, &[&str]); 2] = [(0, &["A", "A"]), (1, &["B", "B"])];
        let all = scores(&task, &finished(&clear), None);
        assert_eq!((all.accuracy, all.tied), (share(1, 2), 0), "without ties: Wilson's interval");
    }

    #[test]
    fn the_best_of_equal_scores_is_any_of_them() {
        let task = task(json!({"best_of_n": {"samples": 4, "by": "logprob"}}));
        let outcome = Outcome { samples: answering(&["A", "B", "B", "A"], "B"), ..Outcome::default() };
        let mut outcome = choose_best(outcome, BestBy::Logprob);
        assert_eq!((outcome.chosen, &outcome.tied[..]), (Some(0), &[0, 1, 2, 3][..]));
        let all = scores(&task, &[Finished { index: 0, outcome: outcome.clone() }], None);
        let values = [all.accuracy.expect("graded"), all.best_at.last().expect("four samples").estimate];
        assert_eq!(values.map(|estimate| estimate.value), [0.5, 0.5]);
        outcome.samples[3].logprob = -0.5;
        let outcome = choose_best(Outcome { tied: Vec::new(), ..outcome }, BestBy::Logprob);
        assert_eq!((outcome.chosen, outcome.share_right(), outcome.is_tied()), (Some(3), Some(0.0), false));
    }

    #[test]
    fn where_nothing_has_a_score_nothing_is_chosen_and_no_best_is_right() {
        let task = task(json!({"best_of_n": {"samples": 2, "by": "reward"}}));
        let item = |index, scores: [Option<f64>; 2]| {
            let mut samples = answering(&["B", "A"], "B");
            for (sample, score) in samples.iter_mut().zip(scores) {
                sample.scored = Some(match score {
                    Some(score) => {
                        let (step_scores, part_scores) = (Vec::new(), Vec::new());
                        let (score_tokens, verdict, score_error) = (Some(3), None, None);
                        SampleScore::Scored { score, step_scores, part_scores, score_tokens, verdict, score_error }
                    }
                    None => SampleScore::Unscored { score_error: "it is asleep".to_owned() },
                });
            }
            let outcome = choose_by_scores(scored_samples(samples, Scale::Probability), Some(false));
            Finished { index, outcome }
        };
        let none = scores(&task, &[item(0, [None, None])], None);
        assert_eq!((none.accuracy.map(|of| of.value), none.without_choice), (Some(0.0), 1));
        assert_eq!(none.best_at.iter().map(|at| at.estimate.value).collect::<Vec<_>>(), [0.0, 0.0]);
        let page = none.to_string();
        assert!(page.contains("of the chosen answers; 1 of 1 item without a choice"), "{page}");
        let both = scores(&task, &[item(0, [None, None]), item(1, [None, Some(0.25)]), item(2, [Some(0.5); 2])], None);
        let best = both.best_at.last().expect("two samples").estimate;
        assert_eq!((both.accuracy, both.without_choice), (Some(best), 1), "accuracy is best@n");
        assert_eq!(best.value, 0.5 / 3.0);
        let page = both.to_string();
        let row = page.lines().find(|line| line.starts_with("best@k")).expect("a row");
        assert!(row.ends_with("   by the score"), "{row}");
        assert!(page.lines().any(|line| line.starts_with("reward vote ")), "{page}");
    }

    /// One sample an answer, of what each is worth: `None`, a judge could not grade it.
    fn graded(answers: &[(&str, Option<bool>)]) -> Vec<Sample> {
        let answered: Vec<&str> = answers.iter().map(|(answer, _)| *answer).collect();
        let with = |(sample, &(_, correct)): (Sample, &(&str, Option<bool>))| {
            let detail = correct.is_none().then(|| json!({"error": "it is asleep"}));
            Sample { correct, detail, ..sample }
        };
        answering(&answered, "").into_iter().zip(answers).map(with).collect()
    }

    fn values(all: &[AtK]) -> Vec<(usize, f64)> {
        all.iter().map(|at| (at.k, (at.estimate.value * 1e6).round() / 1e6)).collect()
    }

    #[test]
    fn what_has_no_grade_moves_no_number() {
        let (right, wrong, unknown) = (Some(true), Some(false), None);
        let vote_of = |answers: &[(&str, Option<bool>)]| vote(graded(answers), answers.len(), Some(false));
        // A and B tie, and it is known of both: of A by its second sample.
        let tied = vote_of(&[("A", unknown), ("A", right), ("B", wrong), ("B", wrong)]);
        assert_eq!((tied.correct, tied.share_right(), tied.is_tied()), (right, Some(0.5), true));
        let unlike = vote_of(&[("A", unknown), ("B", right)]);
        assert_eq!((unlike.correct, unlike.share_right()), (None, None), "of the chosen one it is not known");

        let voting = task(json!({"self_consistency": {"samples": 4}}));
        let of = |outcome: Outcome, index| Finished { index, outcome };
        let whole = vote_of(&[("A", right), ("A", right), ("B", wrong), ("C", wrong)]);
        let items = [of(tied, 0), of(whole, 1), of(vote_of(&[("C", unknown), ("C", unknown)]), 2)];
        let all = scores(&voting, &items, None);
        assert_eq!((all.accuracy.map(|of| of.value), all.tied, all.ungraded), (Some(0.75), 1, 3));
        // One of three graded samples is right, and two of four.
        assert_eq!(all.single.map(|of| of.value), Some((1.0 / 3.0 + 0.5) / 2.0));
        // Of two of the three, two of three subsets have the right one; of two of the four, five of six.
        assert_eq!(values(&all.pass_at)[1], (2, 0.75));
        assert_eq!((all.pass_at[1].items, all.pass_at.last().map(|at| (at.k, at.items))), (2, Some((4, 1))));
        // Subsets of two: A,B A,B B,B; and AA AB AC AB AC BC.
        assert_eq!(values(&all.maj_at)[1], (2, ((1.0 / 3.0 + 0.5) / 2.0 * 1e6_f64).round() / 1e6));
        // All log-probabilities are equal: the best of two is any of them.
        assert_eq!(values(&all.best_at)[1], (2, ((1.0 / 3.0 + 0.5) / 2.0 * 1e6_f64).round() / 1e6));
        let page = all.to_string();
        assert!(page.contains("ungraded    3 samples, in no number below, first: it is asleep"), "{page}");

        let asked = scores(&voting, &items[..1], Some(&[4])).k_left_out.expect("three are graded");
        assert_eq!((&asked.k[..], &*asked.why), (&[4][..], "no item has more than 3 samples with a grade"));
    }

    #[test]
    fn the_best_by_grades_is_not_known_while_one_may_pass() {
        let by_grade = task(json!({"best_of_n": {"samples": 2, "by": "grade"}}));
        let best = |answers: &[(&str, Option<bool>)], likelier: usize| {
            let mut samples = graded(answers);
            samples[likelier].logprob = -0.5;
            choose_best(Outcome { samples, ..Outcome::default() }, BestBy::Grade)
        };
        for likelier in [0, 1] {
            assert_eq!(best(&[("A", Some(false)), ("B", None)], likelier).correct, None);
            assert_eq!(best(&[("A", Some(true)), ("B", None)], likelier).correct, Some(true));
            assert_eq!(best(&[("A", Some(false)), ("B", Some(false))], likelier).correct, Some(false));
        }
        let of = |(index, outcome)| Finished { index, outcome };
        let items = [best(&[("A", Some(true)), ("B", None)], 1), best(&[("A", Some(false)), ("B", None)], 0)];
        let finished: Vec<Finished> = items.into_iter().enumerate().map(of).collect();
        let all = scores(&by_grade, &finished, None);
        assert_eq!((all.accuracy, all.ungraded), (share(1, 1), 2));
        assert_eq!(all.single.map(|of| of.value), Some(0.5));
    }

    #[test]
    fn scores_by_comparisons_rank_all_samples_alone() {
        let pairs = json!({"prompt": "{{first}} or {{second}}?", "pairs": {"words": [" A", " B"]}});
        let task = task(json!({"best_of_n": {"samples": 3, "by": pairs}}));
        let outcome = |graded: usize| {
            let verdicts = |at| if at < graded { Some(at == 0) } else { None };
            let answers: Vec<_> = ["A", "B", "C"].into_iter().enumerate().map(|(at, a)| (a, verdicts(at))).collect();
            let mut samples = self::graded(&answers);
            for (sample, score) in samples.iter_mut().zip([1.0, 0.5, 0.0]) {
                let (step_scores, part_scores) = (Vec::new(), Vec::new());
                let (score_tokens, verdict, score_error) = (Some(3), None, None);
                let scored =
                    SampleScore::Scored { score, step_scores, part_scores, score_tokens, verdict, score_error };
                sample.scored = Some(scored);
            }
            choose_by_scores(scored_samples(samples, Scale::Probability), Some(false))
        };
        let of = |outcome| scores(&task, &[Finished { index: 0, outcome }], Some(&[1, 2, 3]));
        let all = of(outcome(3));
        assert_eq!(values(&all.best_at), [(3, 1.0)]);
        assert_eq!(all.pass_at.len(), 3);
        let left_out = all.k_left_out.expect("two ks");
        assert_eq!(left_out.k, [1, 2]);
        assert!(left_out.why.contains("best@k"), "{}", left_out.why);
        assert!(of(outcome(2)).best_at.is_empty(), "the best of two of three is not known");
    }

    #[test]
    fn one_number_looks_the_same_in_every_row() {
        // 49 of 80 samples are right: 61.25 %. A product of factors and a sum of shares round it to either side.
        let verdicts: Vec<bool> = (0..80).map(|index| index < 49).collect();
        let task = task(json!({"sample": {"samples": 80}}));
        let outcome = Outcome { samples: samples(&verdicts), ..Outcome::default() };
        let page = scores(&task, &[Finished { index: 0, outcome }], Some(&[1, 2])).to_string();
        for row in ["one sample", "pass@k      1:", "maj@k       1:", "best@k      1:"] {
            assert!(page.lines().any(|line| line.starts_with(row) && line.contains(" 61.3 %")), "{row}: {page}");
        }
    }

    #[test]
    fn where_confidence_ends_samples_only_the_warm_up_tells_of_single_ones() {
        let confidence = json!({"warm_up": 2, "window": 4, "weigh_by": "none"});
        let task = task(json!({"self_consistency": {"samples": 5, "confidence": confidence}}));
        let item = |answers: &[&str], lengths: [usize; 5]| {
            let mut all = answering(answers, "B");
            for (sample, tokens) in all.iter_mut().zip(lengths) {
                sample.tokens = tokens;
            }
            for stopped in &mut all[3..] {
                (stopped.finish, stopped.answer, stopped.correct) = (FinishReason::LowConfidence, None, None);
            }
            vote(all, 5, Some(false))
        };
        let finished = [
            Finished { index: 0, outcome: item(&["A", "B", "B", "B", "B"], [10, 20, 2, 4, 5]) },
            Finished { index: 1, outcome: item(&["B", "B", "A", "A", "A"], [8, 8, 9, 4, 4]) },
        ];
        let all = scores(&task, &finished, None);
        let stops = ConfidenceStops {
            stopped: 4,
            stopped_tokens: 17,
            warm_up: 4,
            warm_up_tokens: 46,
            without_window: 1,
            // 2 x 15 - 9, and 2 x 8 - 8.
            tokens_spared: 29,
        };
        assert_eq!(all.low_confidence, Some(stops));
        assert_eq!((all.samples_tokens, all.without_answer), (Some(74), 0));
        assert_eq!(all.accuracy.map(|accuracy| accuracy.value), Some(1.0), "both votes have a majority for B");
        assert_eq!(all.single.map(|single| single.value), Some(0.75), "three of the four of the warm-ups");
        assert_eq!(all.maj_at.iter().map(|at| at.k).collect::<Vec<_>>(), [1, 2]);
        let page = all.to_string();
        assert!(page.contains("warm-up     4 samples, 46 tokens"), "{page}");
        assert!(
            page.contains("4 samples by low confidence, after 17 tokens: about 29 tokens spared, 28 % of"),
            "{page}"
        );
        let asked = scores(&task, &finished, Some(&[2, 4]));
        let left_out = asked.k_left_out.expect("there are no four whole samples");
        assert_eq!(left_out.k, [4]);
        assert!(left_out.why.contains("only the 2 samples of the warm-up"), "{}", left_out.why);
    }

    #[test]
    fn the_usual_ks_end_with_all_samples() {
        let ks = |samples: &[usize]| usual_ks(samples.iter().copied());
        assert_eq!(ks(&[16]), [1, 2, 4, 8, 16]);
        assert_eq!(ks(&[5, 12, 0]), [1, 2, 4, 5, 8]);
        assert_eq!(ks(&[200, 200]), [1, 10, 100, 200]);
        assert_eq!(ks(&[150, 3000]), [1, 10, 100], "the votes of 150 of 3,000 would take long");
        assert_eq!(ks(&[1]), [1]);
        assert_eq!(ks(&[]), [0_u32; 0]);
    }
}
