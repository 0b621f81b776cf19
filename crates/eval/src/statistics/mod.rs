//! Unbiased pass@k and maj@k, and confidence intervals. Pure functions of counts; `search::vote` counts and decides
//! votes, `run::summary` supplies the counts.

pub mod ranked;

use offshoot_core::mix::{GOLDEN, mix};
use offshoot_search::vote::VoteTally;

/// The probability that at least one of `k` samples is right, if `right` of `samples` were: the mean over all subsets
/// of size k (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"). `None` if k is 0 or more than the
/// number of samples.
pub fn pass_at_k(samples: u32, right: u32, k: u32) -> Option<f64> {
    if k == 0 || k > samples || right > samples {
        return None;
    }
    let wrong = samples - right;
    // All k wrong: C(wrong, k) / C(samples, k) = prod over i in wrong+1..=samples of (1 - k/i); 0 where k > wrong.
    let all_wrong: f64 = (wrong + 1..=samples).map(|i| (1.0 - f64::from(k) / f64::from(i)).max(0.0)).product();
    Some(1.0 - all_wrong)
}

/// [`maj_at_k`] of `votes`; `right` returns whether an answer is right.
pub fn vote_at_k(votes: &VoteTally, right: impl Fn(&str) -> bool, k: u32) -> Option<f64> {
    let groups: Vec<(u32, bool)> = votes.votes().iter().map(|votes| (votes.count, right(&votes.value))).collect();
    maj_at_k(&groups, votes.without_answer(), k)
}

/// The probability that the vote of `k` samples is right, exactly: the mean over all subsets of size k of the samples,
/// in all orders, of the vote with ties broken like [`VoteTally::leader`] (in a random order, each of the tied answers
/// is equally likely to be first). `groups` are the answers, with the number of samples that gave each and whether it
/// is right; `silent` is the number of samples without an answer: they count as sampled but do not vote; without any
/// vote the result is wrong. Biased if sampling stopped when the vote was decided. `None` where k is 0 or more than
/// were drawn.
///
/// Time: at most about 10 n k² for n samples, far less if few answers are frequent.
pub fn maj_at_k(groups: &[(u32, bool)], silent: u32, k: u32) -> Option<f64> {
    let drawn = silent + groups.iter().map(|(count, _)| count).sum::<u32>();
    if k == 0 || k > drawn {
        return None;
    }
    // The only subset, and single samples: their shares are known without rounding.
    if k == drawn {
        return Some(leaders_right(groups));
    }
    if k == 1 {
        let right: u32 = groups.iter().filter(|(_, right)| *right).map(|(count, _)| count).sum();
        return Some(f64::from(right) / f64::from(drawn));
    }
    let draw = BinomialDraw::new(drawn as usize, k as usize);
    let counts: Vec<Vec<f64>> = groups.iter().map(|&(count, _)| draw.counts(count as usize)).collect();
    let silence = draw.counts(silent as usize);
    let mut wins = 0.0;
    for (ix, _) in groups.iter().enumerate().filter(|(_, (_, right))| *right) {
        let rivals: Vec<&[f64]> = counts.iter().enumerate().filter(|(i, _)| *i != ix).map(|(_, c)| &c[..]).collect();
        for (votes, &likely) in counts[ix].iter().enumerate().skip(1) {
            wins += likely * wins_with(votes, &rivals, &silence, k as usize);
        }
    }
    Some((wins / draw.total()).clamp(0.0, 1.0))
}

/// The share of right answers among those with the most votes; 0 without votes. `groups` as in [`maj_at_k`].
fn leaders_right(groups: &[(u32, bool)]) -> f64 {
    let most = groups.iter().map(|(count, _)| *count).max().unwrap_or(0);
    let leaders: Vec<bool> = groups.iter().filter(|(count, _)| *count == most).map(|(_, right)| *right).collect();
    leaders.iter().filter(|&&right| right).count() as f64 / leaders.len().max(1) as f64
}

/// Choosing k of n samples, modelled as n independent coins of probability k/n that show exactly k heads: then the
/// counts of the answers are independent and binomial, which neither overflows nor underflows for many samples.
struct BinomialDraw {
    p: f64,
    k: usize,
    n: usize,
    /// ln(i!)
    ln_factorial: Vec<f64>,
}

impl BinomialDraw {
    fn new(n: usize, k: usize) -> BinomialDraw {
        let mut ln_factorial = vec![0.0; n + 1];
        for i in 1..=n {
            ln_factorial[i] = ln_factorial[i - 1] + (i as f64).ln();
        }
        BinomialDraw { p: k as f64 / n as f64, k, n, ln_factorial }
    }

    /// P(i heads of `coins`) for i = 0 ..= min(coins, k).
    fn counts(&self, coins: usize) -> Vec<f64> {
        (0..=coins.min(self.k)).map(|heads| self.binomial(coins, heads)).collect()
    }

    /// P(k heads of all n coins).
    fn total(&self) -> f64 {
        self.binomial(self.n, self.k)
    }

    fn binomial(&self, coins: usize, heads: usize) -> f64 {
        let tails = coins - heads;
        // x^0 is 1, also for ln 0.
        let power = |x: f64, n: usize| if n == 0 { 0.0 } else { n as f64 * x.ln() };
        let ways = self.ln_factorial[coins] - self.ln_factorial[heads] - self.ln_factorial[tails];
        (ways + power(self.p, heads) + power(1.0 - self.p, tails)).exp()
    }
}

/// The probability that k samples are chosen in all and that an answer with `votes` wins: no rival has more, and among
/// t rivals with as many it is first, with probability 1 / (t + 1).
fn wins_with(votes: usize, rivals: &[&[f64]], silence: &[f64], k: usize) -> f64 {
    let tied_at_most = rivals.iter().filter(|counts| counts.len() > votes).count().min(k / votes);
    let width = tied_at_most + 1;
    // likely[drawn * width + tied]
    let mut likely = vec![0.0; (k + 1) * width];
    likely[votes * width] = 1.0;
    let (mut most_drawn, mut most_tied) = (votes, 0);
    for counts in rivals {
        let mut next = vec![0.0; likely.len()];
        for drawn in votes..=most_drawn {
            for (count, &p) in counts.iter().enumerate().take(votes.min(k - drawn) + 1) {
                let ties = usize::from(count == votes);
                let (from, to) = (drawn * width, (drawn + count) * width + ties);
                // Each tied rival takes `votes` more samples, which `tied_at_most` accounts for.
                for tied in 0..=most_tied.min(tied_at_most - ties) {
                    next[to + tied] += p * likely[from + tied];
                }
            }
        }
        most_drawn = k.min(most_drawn + votes.min(counts.len() - 1));
        most_tied = tied_at_most.min(most_tied + usize::from(counts.len() > votes));
        likely = next;
    }
    let rest_silent = |drawn: usize| silence.get(k - drawn).copied().unwrap_or(0.0);
    (votes..=most_drawn)
        .map(|drawn| {
            let share = (0..width).map(|tied| likely[drawn * width + tied] / (tied + 1) as f64);
            rest_silent(drawn) * share.sum::<f64>()
        })
        .sum()
}

/// Two-sided 95 % of the normal distribution.
const Z95: f64 = 1.959_963_984_540_054;

/// The 95 % confidence interval of a proportion (Wilson 1927). `None` without trials.
pub fn wilson(successes: u32, trials: u32) -> Option<(f64, f64)> {
    if trials == 0 {
        return None;
    }
    let (n, z2) = (f64::from(trials), Z95 * Z95);
    let p = f64::from(successes) / n;
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z95 / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    Some(((centre - half).max(0.0), (centre + half).min(1.0)))
}

/// The 95 % confidence interval of the mean of `values` (one per item), by resampling items 2,000 times. The same seed
/// gives the same interval. `None` without values.
pub fn bootstrap(values: &[f64], seed: u64) -> Option<(f64, f64)> {
    const RESAMPLES: usize = 2000;
    if values.is_empty() {
        return None;
    }
    let mut state = seed;
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = (0..values.len()).map(|_| values[below(values.len(), &mut state)]);
            drawn.sum::<f64>() / values.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some((means[RESAMPLES * 25 / 1000], means[RESAMPLES * 975 / 1000 - 1]))
}

/// The mean of `values` and its [`bootstrap`] interval, which is `None` if all are equal: resampling then tells
/// nothing. `None` without values.
pub fn mean(values: &[f64]) -> Option<(f64, Option<(f64, f64)>)> {
    let interval = bootstrap(values, 0)?;
    let differ = values.iter().any(|value| *value != values[0]);
    Some((values.iter().sum::<f64>() / values.len() as f64, differ.then_some(interval)))
}

/// A number below `n` from the high half of the next number of SplitMix64.
fn below(n: usize, state: &mut u64) -> usize {
    *state = state.wrapping_add(GOLDEN);
    ((u128::from(mix(*state)) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every subset of size k of `n` samples, as bits.
    fn subsets(n: u32, k: u32) -> impl Iterator<Item = u32> {
        (0..1u32 << n).filter(move |set| set.count_ones() == k)
    }

    fn tally(answers: &[Option<u8>]) -> VoteTally {
        let mut tally = VoteTally::default();
        for (ix, answer) in answers.iter().enumerate() {
            tally.add(ix, answer.map(|a| a.to_string()).as_deref());
        }
        tally
    }

    fn leader(answers: &[Option<u8>]) -> Option<String> {
        tally(answers).leader().map(|votes| votes.value.clone())
    }

    /// All orders of `answers`.
    fn orders(answers: &[Option<u8>]) -> Vec<Vec<Option<u8>>> {
        if answers.is_empty() {
            return vec![Vec::new()];
        }
        let mut all = Vec::new();
        for ix in 0..answers.len() {
            let mut rest = answers.to_vec();
            let first = rest.remove(ix);
            all.extend(orders(&rest).into_iter().map(|mut order| {
                order.insert(0, first);
                order
            }));
        }
        all
    }

    fn answers(most: usize) -> impl Strategy<Value = Vec<Option<u8>>> {
        prop::collection::vec(prop_oneof![Just(None), (0u8..4).prop_map(Some)], 1..=most)
    }

    proptest! {
        #[test]
        fn pass_at_k_is_the_mean_over_subsets(n in 1u32..10, right in 0u32..10, k in 1u32..10) {
            let right = right.min(n);
            let with_one_right = subsets(n, k).filter(|set| set & ((1 << right) - 1) != 0).count();
            let expected = (k <= n).then(|| with_one_right as f64 / subsets(n, k).count() as f64);
            // Ten factors of relative error 2^-53 each, and one difference.
            match (pass_at_k(n, right, k), expected) {
                (Some(a), Some(b)) => prop_assert!((a - b).abs() < 1e-14, "{a} {b}"),
                (a, b) => prop_assert_eq!(a, b),
            }
        }

        /// Compared with the definition: one vote for every order of every subset.
        #[test]
        fn maj_at_k_is_the_mean_vote_over_subsets_and_orders(answers in answers(7), k in 1usize..5, two_right: bool) {
            let n = answers.len();
            let k = k.min(n);
            let right = |value: &str| value == "0" || (two_right && value == "1");
            let (mut votes, mut hits) = (0u32, 0u32);
            for set in subsets(n as u32, k as u32) {
                let chosen: Vec<Option<u8>> = (0..n).filter(|i| set >> i & 1 == 1).map(|i| answers[i]).collect();
                for order in orders(&chosen) {
                    votes += 1;
                    hits += u32::from(leader(&order).is_some_and(|value| right(&value)));
                }
            }
            let exact = vote_at_k(&tally(&answers), right, k as u32).unwrap();
            // Logarithms of factorials up to 7! and back: some tens of roundings.
            prop_assert!((exact - f64::from(hits) / f64::from(votes)).abs() < 1e-12, "{exact} {hits}/{votes}");
        }
    }

    #[test]
    fn maj_at_k_of_many_samples_stays_finite() {
        let exact = maj_at_k(&[(1200, true), (800, false)], 0, 101).unwrap();
        // A hundred draws with p = 0.6 each: the normal approximation gives 0.978, without replacement a little more.
        assert!((0.975..0.985).contains(&exact), "{exact}");
        assert_eq!(maj_at_k(&[(3, true), (2, false)], 1, 6), Some(1.0));
        assert_eq!(maj_at_k(&[(3, true)], 0, 4), None);
        assert_eq!(maj_at_k(&[], 4, 2), Some(0.0));
    }

    #[test]
    fn intervals() {
        let (low, high) = wilson(8, 10).unwrap();
        // By hand: centre (0.8 + 0.19207) / 1.38415 = 0.71674, half 1.41601 * sqrt(0.016 + 0.0096036) = 0.22658.
        assert!((low - 0.490_16).abs() < 1e-4 && (high - 0.943_32).abs() < 1e-4, "{low} {high}");
        assert_eq!(wilson(0, 0), None);
        let values: Vec<f64> = (0..400).map(|i| f64::from(i % 2)).collect();
        let (low, high) = bootstrap(&values, 7).unwrap();
        // Standard error 0.025, so 0.5 ± 0.049; the bounds' own error over 2,000 resamples is below 0.005.
        assert!((low - 0.451).abs() < 0.01 && (high - 0.549).abs() < 0.01, "{low} {high}");
        assert_eq!(bootstrap(&values, 7), bootstrap(&values, 7));
    }
}
