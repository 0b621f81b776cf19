//! Decides when a vote can stop: when its winner cannot change any more, or is unlikely to. Pure functions of votes;
//! the search samples and skips.

use std::num::NonZeroU32;

use serde::Deserialize;

use super::tally::VoteTally;

/// When the remaining samples of a vote are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// Never: all samples are taken.
    Never,
    /// When no answers of the remaining samples could change the winner: the leader is ahead of the second by more than
    /// the remaining samples, so that not even a tie is possible.
    Certain,
    /// As `Certain`, or when the leader is the more frequent answer with at least this probability: see [`confidence`].
    Confident(f64),
    /// When all samples of a window gave the same answer (early-stopping self-consistency, Li et al. 2024). Windows of
    /// so many samples follow one another; a window with a sample that has no answer does not agree.
    Agreeing(NonZeroU32),
}

impl Decided {
    /// The fewest of the `remaining` samples that must be drawn before the rest can be skipped, after samples with
    /// these `answers`, in the order of their indices: the number needed if all of them vote for the leader, or the
    /// rest of the window; 0 if the vote is decided. Sampling that many at once and calling this again samples exactly
    /// as many as sampling one by one would.
    pub fn fewest_more<S: AsRef<str>>(self, answers: &[Option<S>], remaining: u32) -> u32 {
        if let Decided::Agreeing(window) = self {
            return if agrees(answers, window) { 0 } else { rest_of(window, answers.len()).min(remaining) };
        }
        let mut votes = VoteTally::default();
        for (ix, answer) in answers.iter().enumerate() {
            votes.add(ix, answer.as_ref().map(S::as_ref));
        }
        let (first, second) = votes.first_two();
        // The decision is monotonic in the votes for the leader, so bisection finds the fewest.
        let (mut low, mut high) = (0, remaining);
        while low < high {
            let more = low + (high - low) / 2;
            match self.by(first + more, second, remaining - more) {
                true => high = more,
                false => low = more + 1,
            }
        }
        low
    }

    /// Whether `remaining` samples can be skipped if the leader has `first` votes and the next answer `second`.
    fn by(self, first: u32, second: u32, remaining: u32) -> bool {
        let certain = remaining == 0 || first > second + remaining;
        match self {
            // Windows are decided by the answers' order, not by their numbers of votes.
            Decided::Never | Decided::Agreeing(_) => remaining == 0,
            Decided::Certain => certain,
            Decided::Confident(enough) => certain || confidence(first, second) >= enough,
        }
    }
}

/// Whether the answers end with a whole window, all of whose samples gave one answer.
fn agrees<S: AsRef<str>>(answers: &[Option<S>], window: NonZeroU32) -> bool {
    let is_whole = !answers.is_empty() && rest_of(window, answers.len()) == window.get();
    let last = &answers[answers.len().saturating_sub(window.get() as usize)..];
    let first = last.first().and_then(Option::as_ref).map(S::as_ref);
    is_whole && first.is_some() && last.iter().all(|answer| answer.as_ref().map(S::as_ref) == first)
}

/// How many samples end the window that the next sample is in, after `drawn` samples.
fn rest_of(window: NonZeroU32, drawn: usize) -> u32 {
    window.get() - (drawn % window.get() as usize) as u32
}

/// The probability that the leader, with `first` votes, is really the more frequent answer than the next, with `second`
/// votes: P(p > 1/2) for p ~ Beta(first + 1, second + 1), the posterior of the leader's share among the votes for these
/// two under a uniform prior (the Beta criterion of Adaptive-Consistency, Aggarwal et al. 2023, section 3). For integer
/// parameters it equals the probability that at most `first` of first + second + 1 fair coins show heads.
pub fn confidence(first: u32, second: u32) -> f64 {
    let coins = f64::from(first) + f64::from(second) + 1.0;
    // The probability of at most `most` heads, summed from its largest term down.
    let tail = |most: u32| {
        let mut ln_term = -coins * std::f64::consts::LN_2;
        for heads in 1..=most {
            ln_term += ((coins - f64::from(heads) + 1.0) / f64::from(heads)).ln();
        }
        let (mut term, mut sum) = (ln_term.exp(), 0.0);
        for heads in (0..=most).rev() {
            sum += term;
            term *= f64::from(heads) / (coins - f64::from(heads) + 1.0);
        }
        sum
    };
    if second <= first { 1.0 - tail(second) } else { tail(first) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_core::mix::mix;
    use proptest::prelude::*;

    fn tally(answers: &[Option<u8>]) -> VoteTally {
        let mut tally = VoteTally::default();
        for (ix, answer) in said(answers).iter().enumerate() {
            tally.add(ix, answer.as_deref());
        }
        tally
    }

    fn said(answers: &[Option<u8>]) -> Vec<Option<String>> {
        answers.iter().map(|answer| answer.map(|answer| answer.to_string())).collect()
    }

    /// How many of `answers` are drawn, one after the other.
    fn one_by_one(stop: Decided, answers: &[Option<u8>]) -> usize {
        let n = answers.len();
        (0..n).find(|&drawn| stop.fewest_more(&said(&answers[..drawn]), (n - drawn) as u32) == 0).unwrap_or(n)
    }

    fn in_waves(stop: Decided, answers: &[Option<u8>]) -> usize {
        let mut drawn = 0;
        loop {
            match stop.fewest_more(&said(&answers[..drawn]), (answers.len() - drawn) as u32) {
                0 => return drawn,
                more => drawn += more as usize,
            }
        }
    }

    fn answers() -> impl Strategy<Value = Vec<Option<u8>>> {
        prop::collection::vec(prop_oneof![1 => Just(None), 4 => (0u8..4).prop_map(Some)], 1..60)
    }

    fn leader(answers: &[Option<u8>]) -> Option<String> {
        tally(answers).leader().map(|votes| votes.value.clone())
    }

    fn few_answers() -> impl Strategy<Value = Vec<Option<u8>>> {
        prop::collection::vec(prop_oneof![Just(None), (0u8..4).prop_map(Some)], 1..=6)
    }

    proptest! {
        /// The remaining samples cannot change a decided vote; they can change or tie an undecided one.
        #[test]
        fn decided_means_that_nothing_can_change(given in few_answers(), remaining in 0u32..4) {
            let outcome = |tail: &[Option<u8>]| {
                // The remaining samples may have the smallest indices, so they come first.
                leader(&[tail, &given].concat())
            };
            let mut tails = vec![Vec::new()];
            for _ in 0..remaining {
                tails = tails.iter().flat_map(|t: &Vec<Option<u8>>| {
                    (0..5).map(Some).chain([None]).map(|a| [&t[..], &[a]].concat())
                }).collect();
            }
            let changes = tails.iter().any(|tail| outcome(tail) != outcome(&[]));
            prop_assert_eq!(Decided::Certain.fewest_more(&said(&given), remaining) == 0, !changes);
        }

        #[test]
        fn waves_draw_what_one_by_one_draws(
            answers in answers(),
            enough in 0.51f64..0.999,
            window in (1u32..9).prop_map(|window| NonZeroU32::new(window).expect("from 1 up")),
        ) {
            for stop in [Decided::Never, Decided::Certain, Decided::Confident(enough), Decided::Agreeing(window)] {
                prop_assert_eq!(in_waves(stop, &answers), one_by_one(stop, &answers), "{:?}", stop);
            }
        }
    }

    #[test]
    fn a_window_that_agrees_decides() {
        let stop = Decided::Agreeing(NonZeroU32::new(3).expect("3"));
        let drawn = |answers: &[Option<u8>]| in_waves(stop, answers);
        let (a, b) = (Some(0), Some(1));
        assert_eq!(drawn(&[a, a, a, b, b, b, b]), 3);
        // Three equal answers in a row that no window is.
        assert_eq!(drawn(&[b, a, a, a, b, b, b, b, b, a]), 9);
        assert_eq!(drawn(&[None, None, None, a, a, None, a, a, a, a]), 9);
        assert_eq!(drawn(&[a, b, a, b, b]), 5, "the last window is not whole");
        assert_eq!(stop.fewest_more::<&str>(&[], 2), 2);
        // A failed sample is no part of a window: the next one fills it.
        assert_eq!(stop.fewest_more(&[Some("a"), Some("a")], 7), 1);
    }

    /// Compared with samples of the posterior: the (first + 1)-th smallest of first + second + 1 uniform numbers is
    /// one.
    #[test]
    fn confidence_is_the_posterior_of_the_leader() {
        const DRAWS: u64 = 20_000;
        let mut state = 1;
        let mut uniform = || {
            state = mix(state + 1);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        for (first, second) in [(0, 0), (1, 0), (4, 0), (5, 3), (12, 7), (30, 25), (3, 5)] {
            let ahead = (0..DRAWS).filter(|_| {
                let mut draws: Vec<f64> = (0..first + second + 1).map(|_| uniform()).collect();
                draws.sort_by(f64::total_cmp);
                draws[first as usize] > 0.5
            });
            let simulated = ahead.count() as f64 / DRAWS as f64;
            let exact = confidence(first, second);
            // Five standard errors of the simulated share; one is at most 0.0035.
            assert!((exact - simulated).abs() < 0.018, "{first} to {second}: {exact} {simulated}");
        }
        assert_eq!(confidence(0, 0), 0.5);
        assert!((confidence(4, 0) - (1.0 - 1.0 / 32.0)).abs() < 1e-12, "five coins, not all heads");
        assert!((0.8..0.9).contains(&confidence(600_000, 598_900)), "many votes, no overflow");
    }
}
