//! Selects candidates: by value, or at random in proportion to weights. Numbers in, indices out; `evaluate` produces
//! the values.

/// The index of the largest value; of equal ones, the first.
pub fn argmax(values: impl Iterator<Item = f64>) -> Option<usize> {
    let better = |best: (usize, f64), next: (usize, f64)| if next.1 > best.1 { next } else { best };
    values.enumerate().reduce(better).map(|(ix, _)| ix)
}

/// The largest relative difference of two values that are equal but for rounding: sums in another order.
const ROUNDING: f64 = 1e-12;

/// The indices of the largest values, rising; several if they are equal but for rounding. NaN is the smallest value.
pub fn largest(values: &[f64]) -> Vec<usize> {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if values.iter().all(|value| value.is_nan()) {
        return (0..values.len()).collect();
    }
    let is_most = |value: f64| value == most || most - value <= ROUNDING * most.abs();
    (0..values.len()).filter(|&at| is_most(values[at])).collect()
}

/// The indices of the `n` largest values, largest first; of equal ones, the first.
pub fn best(values: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(n);
    order
}

/// `n` indices drawn without replacement, each in proportion to its weight among those left; uniformly if all of these
/// are 0. `uniform` returns numbers in [0, 1), one per draw.
pub fn in_proportion(weights: &[f64], n: usize, mut uniform: impl FnMut() -> f64) -> Vec<usize> {
    let mut left: Vec<usize> = (0..weights.len()).collect();
    let mut drawn = Vec::new();
    while drawn.len() < n && !left.is_empty() {
        let total: f64 = left.iter().map(|&at| weights[at]).sum();
        let weight = |at: usize| if total > 0.0 { weights[at] / total } else { 1.0 / left.len() as f64 };
        let mut rest = uniform();
        let hit = left.iter().position(|&at| {
            rest -= weight(at);
            rest < 0.0
        });
        // Rounding may leave a remainder after the last index: it goes to the last index with a weight above 0.
        let hit = hit.or_else(|| left.iter().rposition(|&at| weight(at) > 0.0)).unwrap_or(0);
        drawn.push(left.remove(hit));
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_best_come_first_and_equals_stay_in_order() {
        assert_eq!(best(&[1.0, 3.0, 2.0, 3.0], 3), [1, 3, 2]);
        assert_eq!(best(&[0.0, 0.0, 0.0], 2), [0, 1]);
        assert_eq!(best(&[5.0], 4), [0]);
    }

    #[test]
    fn what_rounding_alone_tells_apart_ties() {
        assert_eq!(largest(&[0.1, 0.3, 0.1 + 0.2, f64::NAN]), [1, 2], "the sum is larger by its last bit");
        assert_eq!(largest(&[f64::NEG_INFINITY, f64::NEG_INFINITY]), [0, 1]);
        assert_eq!(largest(&[f64::NAN]), [0]);
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        let weights = [6.0, 0.0, 3.0, 1.0];
        let mut counts = [0; 4];
        for draw in 0..1000 {
            counts[in_proportion(&weights, 1, || (f64::from(draw) + 0.5) / 1000.0)[0]] += 1;
        }
        assert_eq!(counts, [600, 0, 300, 100]);
        assert_eq!(in_proportion(&[0.0, 0.0], 1, || 0.6), [1], "without a weight each is as likely");
    }

    proptest! {
        #[test]
        fn draws_are_distinct_and_weights_of_zero_come_last(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.001f64..9.0], 0..8),
            uniforms in prop::collection::vec(0.0f64..1.0, 8),
            n in 0usize..10,
        ) {
            let mut uniforms = uniforms.iter().copied();
            let drawn = in_proportion(&weights, n, || uniforms.next().expect("one a draw"));
            prop_assert_eq!(drawn.len(), n.min(weights.len()));
            let mut sorted = drawn.clone();
            sorted.sort();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), drawn.len());
            let some = weights.iter().filter(|weight| **weight > 0.0).count();
            prop_assert!(drawn.iter().take(some).all(|&at| weights[at] > 0.0));
        }
    }
}
