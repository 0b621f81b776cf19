//! Statistics of scored samples: unbiased best@k, and the vote weighted by scores. Pure functions of scores and
//! verdicts; searches compute the scores.

/// A sample's score and verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    pub score: f64,
    pub right: bool,
}

/// The probability that the best-scored of `k` samples is right, exactly: the mean over all subsets of size k of the
/// samples, in all orders. Of equal scores each is equally likely to be the best, and NaN is the lowest. `None` if k is
/// 0 or more than the number of samples.
pub fn best_of_k(samples: &[Ranked], k: usize) -> Option<f64> {
    let n = samples.len();
    if k == 0 || k > n {
        return None;
    }
    let mut ranked: Vec<&Ranked> = samples.iter().collect();
    ranked.sort_by(|a, b| key(b.score).total_cmp(&key(a.score)));
    let of = |tied: &[&Ranked]| tied.iter().filter(|sample| sample.right).count() as f64;
    let mut groups = ranked.chunk_by(|a, b| key(a.score) == key(b.score));
    // The only subset, and single samples: their shares are known without rounding.
    if k == n {
        return groups.next().map(|tied| of(tied) / tied.len() as f64);
    }
    if k == 1 {
        return Some(of(&ranked) / n as f64);
    }
    // The sample of rank r (from 0) is the best of C(n-1-r, k-1) of the C(n, k) subsets: those without the r better
    // ones. Samples that tie share what their ranks have.
    let (mut rank, mut best, mut right) = (0, k as f64 / n as f64, 0.0);
    for tied in groups {
        let mut of_ranks = 0.0;
        for _ in tied {
            of_ranks += best;
            best *= (n - rank).saturating_sub(k) as f64 / (n - 1 - rank).max(1) as f64;
            rank += 1;
        }
        right += of_ranks * of(tied) / tied.len() as f64;
    }
    Some(right.min(1.0))
}

fn key(score: f64) -> f64 {
    if score.is_nan() { f64::NEG_INFINITY } else { score }
}

/// The largest relative difference of two sums of the same weights in different orders.
const ROUNDING: f64 = 1e-12;

/// The answers with the largest sum of weights, in the order in which they come first; several if they tie. `votes`:
/// the answers and weights of the samples with an answer, in order. Weights that are not positive are ignored, so that
/// an answer with only such samples cannot win.
pub fn weighted_leaders<'a>(votes: impl IntoIterator<Item = (&'a str, f64)>) -> Vec<&'a str> {
    let mut sums: Vec<(&str, f64)> = Vec::new();
    for (answer, weight) in votes {
        let weight = if weight > 0.0 { weight } else { 0.0 };
        match sums.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, sum)) => *sum += weight,
            None => sums.push((answer, weight)),
        }
    }
    let most = sums.iter().map(|(_, sum)| *sum).fold(0.0, f64::max);
    let is_most = |sum: f64| sum > 0.0 && most - sum <= ROUNDING * most;
    sums.into_iter().filter(|(_, sum)| is_most(*sum)).map(|(answer, _)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples() -> impl Strategy<Value = Vec<Ranked>> {
        // Few values, so that there are ties.
        let sample = (0u8..4, any::<bool>()).prop_map(|(score, right)| Ranked { score: f64::from(score), right });
        prop::collection::vec(sample, 1..10)
    }

    proptest! {
        /// Compared with the definition: the best samples of every subset, of which each is as likely to be chosen.
        #[test]
        fn best_of_k_is_the_mean_over_subsets(samples in samples(), k in 1usize..10) {
            let n = samples.len();
            let (mut subsets, mut right) = (0u32, 0.0);
            for set in (0..1u32 << n).filter(|set| set.count_ones() as usize == k) {
                let drawn: Vec<Ranked> = (0..n).filter(|ix| set >> ix & 1 == 1).map(|ix| samples[ix]).collect();
                let most = drawn.iter().map(|sample| sample.score).fold(f64::NEG_INFINITY, f64::max);
                let best: Vec<&Ranked> = drawn.iter().filter(|sample| sample.score == most).collect();
                subsets += 1;
                right += best.iter().filter(|sample| sample.right).count() as f64 / best.len() as f64;
            }
            match best_of_k(&samples, k) {
                // Ten factors of relative error 2^-53 each, and ten sums.
                Some(exact) => prop_assert!((exact - right / f64::from(subsets)).abs() < 1e-13),
                None => prop_assert!(k > n),
            }
        }
    }

    #[test]
    fn many_samples_stay_finite_and_scores_that_are_none_come_last() {
        let sample = |n: u32| Ranked { score: f64::from(n), right: n.is_multiple_of(2) };
        let many: Vec<Ranked> = (0..5000).map(sample).collect();
        let exact = best_of_k(&many, 2500).expect("enough of them");
        // The best of a random half is the j-th best with probability 2^-j, right at the odd ranks of these: 1/3,
        // nearly.
        assert!((exact - 1.0 / 3.0).abs() < 1e-3, "{exact}");
        let odd = [Ranked { score: f64::NAN, right: true }, Ranked { score: -9.0, right: false }];
        assert_eq!(best_of_k(&odd, 2), Some(0.0));
        assert_eq!(best_of_k(&odd, 3), None);
    }

    #[test]
    fn weights_decide_and_equal_sums_tie() {
        assert_eq!(weighted_leaders([("a", 0.2), ("b", 0.5), ("a", 0.2)]), ["b"]);
        assert_eq!(weighted_leaders([("a", 0.25), ("b", 0.5), ("a", 0.25)]), ["a", "b"]);
        assert_eq!(weighted_leaders([("a", 0.3), ("b", 0.1), ("b", 0.2)]), ["a", "b"], "the sums differ by rounding");
        assert_eq!(weighted_leaders([("a", 0.0), ("b", f64::NAN)]), [] as [&str; 0]);
        assert_eq!(weighted_leaders([]), [] as [&str; 0]);
    }
}
