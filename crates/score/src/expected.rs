//! The value of an answer in one word that is not sampled: each word that it could be has a value, and a model gives
//! their probabilities. Who asks the model is left to others.

/// The mean of the values, weighted by the words' probabilities `exp(logprob)` relative to each other. Input: value and
/// natural-log probability per word. 0 if no word has a probability above 0.
pub fn expected_value(words: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let most = words.clone().map(|(_, logprob)| logprob).fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return 0.0;
    }
    let share = |logprob: f64| (logprob - most).exp();
    let (sum, total) =
        words.fold((0.0, 0.0), |(sum, total), (value, logprob)| (sum + value * share(logprob), total + share(logprob)));
    sum / total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expected_value_weighs_by_probability() {
        let value = |chances: [f64; 3]| expected_value([20.0, 1.0, 0.001].into_iter().zip(chances.map(f64::ln)));
        assert!((value([0.5, 0.25, 0.25]) - 10.25025).abs() < 1e-9);
        assert!((value([0.002, 0.001, 0.001]) - 10.25025).abs() < 1e-9, "whatever else could have been said");
        assert_eq!(value([0.0, 0.0, 0.0]), 0.0);
        assert_eq!(value([0.0, 0.0, 1e-300]), 0.001);
    }
}
