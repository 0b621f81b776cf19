//! How particles are weighed and drawn again: pure functions of values and of uniform numbers in [0, 1).

use offshoot_score::Scale;
use serde::{Deserialize, Serialize};

/// How particles are drawn by their probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Resampling {
    /// Each is drawn on its own.
    #[default]
    Multinomial,
    /// One random number draws all: at even distances, so that a particle is drawn as often as its share says, rounded
    /// up or down.
    Systematic,
}

/// The weight of a particle whose value is a probability: its log-odds, in nats, of the value clipped to
/// [1e-7, 1 - 1e-7].
pub fn log_odds(value: f64) -> f64 {
    Scale::Probability.logit(value)
}

/// The softmax of weights in nats: equal shares if all of them are minus infinity.
pub fn probabilities(weights: &[f64]) -> Vec<f64> {
    let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return vec![1.0 / weights.len() as f64; weights.len()];
    }
    let shares: Vec<f64> = weights.iter().map(|weight| (weight - most).exp()).collect();
    let sum: f64 = shares.iter().sum();
    shares.into_iter().map(|share| share / sum).collect()
}

/// `n` indices of `probabilities`, of which there is at least one, each drawn on its own.
pub fn multinomial(probabilities: &[f64], n: usize, mut uniform: impl FnMut() -> f64) -> Vec<usize> {
    let sums = running_sums(probabilities);
    let last = sums.len() - 1;
    (0..n).map(|_| uniform() * sums[last]).map(|place| sums[..last].partition_point(|&sum| sum <= place)).collect()
}

/// `n` indices of `probabilities`, of which there is at least one, rising: those that the places (i + u) / n, for one
/// uniform u, fall on.
pub fn systematic(probabilities: &[f64], n: usize, mut uniform: impl FnMut() -> f64) -> Vec<usize> {
    let sums = running_sums(probabilities);
    let last = sums.len() - 1;
    let start = uniform();
    let places = (0..n).map(|ix| (ix as f64 + start) / n as f64);
    places.map(|place| sums[..last].partition_point(|&sum| sum <= place)).collect()
}

fn running_sums(probabilities: &[f64]) -> Vec<f64> {
    let add = |sum: &mut f64, probability: &f64| {
        *sum += probability;
        Some(*sum)
    };
    probabilities.iter().scan(0.0, add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_core::mix::{GOLDEN, mix};

    fn uniforms(seed: u64) -> impl FnMut() -> f64 {
        let mut state = mix(seed);
        move || {
            state = state.wrapping_add(GOLDEN);
            (mix(state) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    #[test]
    fn particles_are_drawn_in_proportion_to_their_odds() {
        // Odds of 1, 3, 0 (clipped) and 9, and one without a value.
        let [a, b, c, d] = [0.5, 0.75, 0.0, 0.9].map(log_odds);
        let weights = [a, b, c, d, f64::NEG_INFINITY];
        let expected = [1.0 / 13.0, 3.0 / 13.0, 0.0, 9.0 / 13.0, 0.0];
        let probabilities = probabilities(&weights);
        for (found, expected) in probabilities.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{probabilities:?}");
        }
        const DRAWS: usize = 8;
        for draw in [multinomial, systematic] {
            let mut times = [0.0; 5];
            for seed in 0..2000 {
                draw(&probabilities, DRAWS, uniforms(seed)).into_iter().for_each(|ix| times[ix] += 1.0);
            }
            let drawn = 2000.0 * DRAWS as f64;
            for (times, expected) in times.into_iter().zip(expected) {
                // Five standard errors of a share of 16,000 draws, of which one is at most 0.004.
                assert!((times / drawn - expected).abs() < 0.02, "{times} for {expected}");
            }
        }
    }

    #[test]
    fn systematic_draws_are_within_one_of_the_shares() {
        let probabilities = [0.3, 0.05, 0.65];
        for seed in 0..200 {
            let drawn = systematic(&probabilities, 10, uniforms(seed));
            for (ix, probability) in probabilities.iter().enumerate() {
                let times = drawn.iter().filter(|&&drawn| drawn == ix).count() as f64;
                assert!((times - 10.0 * probability).abs() < 1.0, "{times} times {probability}");
            }
        }
    }

    #[test]
    fn what_rounds_to_nothing_is_drawn_safely() {
        assert_eq!(probabilities(&[f64::NEG_INFINITY; 2]), [0.5, 0.5]);
        assert_eq!(probabilities(&[f64::NEG_INFINITY, log_odds(0.0)]), [0.0, 1.0]);
        // The sum of ten tenths is below 1, and so may a place be above it.
        let almost: fn() -> f64 = || 1.0 - f64::EPSILON / 2.0;
        let none: fn() -> f64 = || 0.0;
        for draw in [multinomial, systematic] {
            assert_eq!(draw(&[0.1; 10], 1, almost), [9]);
            assert_eq!(draw(&[0.0, 1.0, 0.0], 2, none), [1, 1]);
        }
    }
}
