//! Statistics of scored samples: unbiased best@k. A pure function of scores and verdicts; searches compute the scores.

/// A sample's score and verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// `None`: it has none, and is chosen in no case.
    pub score: Option<f64>,
    pub right: bool,
}

/// The probability that the best-scored of `k` samples is right, exactly: the mean over all subsets of size k of the
/// samples, in all orders. Of equal scores each is equally likely to be the best; among samples without a score none is
/// chosen, which is not right. `None` if k is 0 or more than the number of samples.
pub fn best_of_k(samples: &[Ranked], k: usize) -> Option<f64> {
    let n = samples.len();
    if k == 0 || k > n {
        return None;
    }
    let mut ranked: Vec<&Ranked> = samples.iter().collect();
    // Those without a score come last.
    ranked.sort_by(|a, b| match (a.score, b.score) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
    let of = |tied: &[&Ranked]| tied.iter().filter(|sample| sample.right && sample.score.is_some()).count() as f64;
    let mut groups = ranked.chunk_by(|a, b| a.score == b.score);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples() -> impl Strategy<Value = Vec<Ranked>> {
        // Few values, so that there are ties.
        let score = prop::option::weighted(0.8, (0u8..4).prop_map(f64::from));
        let sample = (score, any::<bool>()).prop_map(|(score, right)| Ranked { score, right });
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
                let most = drawn.iter().filter_map(|sample| sample.score).reduce(f64::max);
                let best: Vec<&Ranked> = drawn.iter().filter(|sample| most.is_some() && sample.score == most).collect();
                subsets += 1;
                right += best.iter().filter(|sample| sample.right).count() as f64 / best.len().max(1) as f64;
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
        let sample = |n: u32| Ranked { score: Some(f64::from(n)), right: n.is_multiple_of(2) };
        let many: Vec<Ranked> = (0..5000).map(sample).collect();
        let exact = best_of_k(&many, 2500).expect("enough of them");
        // The best of a random half is the j-th best with probability 2^-j, right at the odd ranks of these: 1/3,
        // nearly.
        assert!((exact - 1.0 / 3.0).abs() < 1e-3, "{exact}");
        let odd = [Ranked { score: None, right: true }, Ranked { score: Some(-9.0), right: false }];
        assert_eq!(best_of_k(&odd, 2), Some(0.0));
        assert_eq!([1, 2].map(|k| best_of_k(&[odd[0]; 2], k)), [Some(0.0); 2], "where none has a score none is chosen");
        assert_eq!(best_of_k(&odd, 3), None);
    }
}
