//! The definition of attention, dense and in f64, against which every device is checked.

use crate::backend::{HeadLayout, Scoring};

/// Softmax over all positions, times their values, for all query heads of one row. `stored`: for each position that the
/// row sees, the key heads and then the value heads.
pub fn dense(heads: HeadLayout, scoring: &Scoring<'_, Vec<f32>>, query: &[f32], stored: &[&[f32]]) -> Vec<f64> {
    let d = heads.head_dim;
    let of_head = |(head, q): (usize, &[f32])| {
        let key_at = head / heads.group() * d;
        let value_at = key_at + heads.kv_heads * d;
        let score = |kv: &&[f32]| {
            let products = q.iter().zip(&kv[key_at..][..d]).map(|(&q, &k)| f64::from(q) * f64::from(k));
            scoring.score_exactly(products.sum())
        };
        let scores: Vec<f64> = stored.iter().map(score).collect();
        let sink = scoring.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let most = scores.iter().copied().fold(sink, f64::max);
        let (mut sums, mut total) = (vec![0.0; d], (sink - most).exp());
        for (score, kv) in scores.iter().zip(stored) {
            let weight = (score - most).exp();
            total += weight;
            sums.iter_mut().zip(&kv[value_at..][..d]).for_each(|(sum, &v)| *sum += weight * f64::from(v));
        }
        sums.into_iter().map(move |sum| sum / total).collect::<Vec<_>>()
    };
    query.chunks_exact(d).enumerate().flat_map(of_head).collect()
}

/// The norm of the difference of `found` and `exact` divided by the norm of `exact`, over all rows; infinite if a value
/// is NaN.
pub fn relative_error<'a>(rows: impl Iterator<Item = (&'a [f32], &'a [f64])>) -> f64 {
    let (mut difference, mut size) = (0.0, 0.0);
    for (found, exact) in rows {
        difference += found.iter().zip(exact).map(|(&x, y)| (f64::from(x) - y).powi(2)).sum::<f64>();
        size += exact.iter().map(|y| y * y).sum::<f64>();
    }
    let error = (difference / size).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_give_the_mean_of_the_values() {
        let heads = HeadLayout { q_heads: 2, kv_heads: 1, head_dim: 2 };
        let stored: [&[f32]; 2] = [&[1.0, 0.0, 10.0, 20.0], &[1.0, 5.0, 30.0, 60.0]];
        let out = dense(heads, &Scoring::scaled(0.5), &[3.0, 0.0, 0.0, 200.0], &stored);
        assert_eq!(out, [20.0, 40.0, 30.0, 60.0]);
        // Scores of 1.5 and 500, the latter capped to 3: sinks as large halve the weights of one position.
        let sinks = vec![1.5, f32::NEG_INFINITY];
        let scoring = Scoring { sinks: Some(&sinks), ..Scoring::scaled(0.5) };
        assert_eq!(dense(heads, &scoring, &[3.0, 0.0, 0.0, 200.0], &stored[..1]), [5.0, 10.0, 10.0, 20.0]);
        let sinks = vec![f32::NEG_INFINITY, 3.0];
        let scoring = Scoring { softcap: Some(3.0), sinks: Some(&sinks), ..Scoring::scaled(0.5) };
        assert_eq!(dense(heads, &scoring, &[3.0, 0.0, 0.0, 200.0], &stored[1..])[2..], [15.0, 30.0]);
        assert_eq!(relative_error([(&[20.0f32, 40.0, 30.0, 60.0][..], out.as_slice())].into_iter()), 0.0);
        assert_eq!(relative_error([(&[f32::NAN][..], &out[..1])].into_iter()), f64::INFINITY);
    }
}
