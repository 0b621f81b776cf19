//! Scores by chunks of tokens, with the maximum of each, and their weights. The maxima tell which chunks can hold the
//! likeliest tokens.

use crate::Isa;
use crate::exp::{LOWEST, exp};
use crate::rows::for_each_isa;

/// Tokens per chunk.
pub const CHUNK: usize = 128;

/// Up to so many tokens that may pass the filters are sorted; more are cut off by score (`nucleus`).
const FEW: usize = 1024;

/// Scores with the maximum of each chunk.
pub struct Scores<'a> {
    pub scores: &'a [f32],
    pub maxima: &'a [f32],
    pub best: f32,
}

impl<'a> Scores<'a> {
    /// `None`: one of them is NaN or +inf.
    pub fn new(isa: Isa, scores: &'a [f32], maxima: &'a mut Vec<f32>) -> Option<Self> {
        maxima.resize(scores.len().div_ceil(CHUNK), 0.0);
        chunk_maxima(isa, scores, maxima).then(|| {
            let best = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            Self { scores, maxima, best }
        })
    }

    pub fn first_best(&self) -> usize {
        self.at_least(self.best).next().expect("the best score is one of them")
    }

    /// Tokens with a score of at least `lowest`, by rising id.
    pub fn at_least(&self, lowest: f32) -> impl Iterator<Item = usize> {
        let chunks = self.scores.chunks(CHUNK).zip(self.maxima).enumerate();
        chunks.filter(move |(_, (_, max))| **max >= lowest).flat_map(move |(c, (chunk, _))| {
            chunk.iter().enumerate().filter(move |(_, x)| **x >= lowest).map(move |(i, _)| c * CHUNK + i)
        })
    }

    /// The tokens of `at_least` as a list, unless they are more than `FEW` among finite scores.
    pub fn few_at_least(&self, lowest: f32) -> Option<Vec<usize>> {
        if !self.best.is_finite() {
            return Some(Vec::new());
        }
        let tokens: Vec<usize> = self.at_least(lowest).take(FEW + 1).collect();
        (tokens.len() <= FEW).then_some(tokens)
    }

    /// The `count` best tokens, by falling score, ties by rising id.
    pub fn largest(&self, count: usize) -> Vec<usize> {
        if count == 0 {
            return Vec::new();
        }
        let mut lowest = f32::NEG_INFINITY;
        if count < self.maxima.len() {
            // At least `count` tokens reach the `count`-th largest maximum, namely the maxima themselves.
            let mut maxima = self.maxima.to_vec();
            lowest = *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1;
        }
        let mut tokens: Vec<usize> = self.at_least(lowest).collect();
        if count < tokens.len() {
            tokens.select_nth_unstable_by(count, |&a, &b| self.rank(a, b));
            tokens.truncate(count);
        }
        tokens.sort_unstable_by(|&a, &b| self.rank(a, b));
        tokens
    }

    /// How far the `count` best scores lie below the best one, on average: of those alone that are above -inf. The best
    /// score is finite.
    pub fn mean_below_best(&self, count: usize) -> f64 {
        let best = f64::from(self.best);
        let scores = self.largest(count).into_iter().map(|t| f64::from(self.scores[t]));
        let below: Vec<f64> = scores.filter(|score| score.is_finite()).map(|score| best - score).collect();
        below.iter().sum::<f64>() / below.len() as f64
    }

    /// Number of tokens before `token` by falling score, ties by rising id.
    pub fn before(&self, isa: Isa, token: usize) -> usize {
        let score = self.scores[token];
        let chunks = self.scores.chunks(CHUNK).zip(self.maxima).enumerate();
        let before = chunks.filter(|(_, (_, max))| **max >= score).map(|(c, (chunk, _))| {
            let equals = token.saturating_sub(c * CHUNK).min(chunk.len());
            count_before(isa, chunk, score, equals)
        });
        before.sum()
    }

    pub fn rank(&self, a: usize, b: usize) -> std::cmp::Ordering {
        // Adding zero makes -0 and 0 equal.
        (self.scores[b] + 0.0).total_cmp(&(self.scores[a] + 0.0)).then(a.cmp(&b))
    }

    /// Writes the weight `e^((score - best) / temperature)` of every token, and the sum of each chunk. Returns the sum
    /// of all.
    pub fn exponentials(&self, isa: Isa, temperature: f32, weights: &mut Vec<f32>, sums: &mut Vec<f64>) -> f64 {
        weights.resize(self.scores.len(), 0.0);
        sums.resize(self.maxima.len(), 0.0);
        if self.best.is_finite() {
            weigh_chunks(isa, self.scores, self.best, temperature, weights, sums);
        } else {
            weights.fill(0.0);
            sums.fill(0.0);
        }
        sums.iter().sum()
    }

    /// The sums of each chunk's weights, and their total, as `exponentials` has them; the weights are not kept.
    pub fn sum_chunks(&self, isa: Isa, temperature: f32, sums: &mut Vec<f64>) -> f64 {
        sums.resize(self.maxima.len(), 0.0);
        if self.best.is_finite() {
            sum_chunks(isa, self.scores, self.best, temperature, sums);
        } else {
            sums.fill(0.0);
        }
        sums.iter().sum()
    }

    /// The sums at temperature 1 and their total, as `sum_chunks` has them, and the sum over all tokens of the weight
    /// times its exponent, `score - best`; 0 if the best score is not finite.
    pub fn sum_chunks_and_products(&self, isa: Isa, sums: &mut Vec<f64>) -> (f64, f64) {
        sums.resize(self.maxima.len(), 0.0);
        if !self.best.is_finite() {
            sums.fill(0.0);
            return (0.0, 0.0);
        }
        let products = sum_chunks_and_products(isa, self.scores, self.best, sums);
        (sums.iter().sum(), products)
    }

    /// The sum of products of `sum_chunks_and_products`, of the weights at temperature 1.
    pub fn products(&self, isa: Isa, weights: &[f32]) -> f64 {
        if self.best.is_finite() { sum_of_products(isa, self.scores, self.best, weights) } else { 0.0 }
    }

    /// The weights of one chunk, the same as `exponentials` writes; the best score is finite.
    pub fn weigh_chunk(&self, isa: Isa, temperature: f32, chunk: usize, weights: &mut [f32; CHUNK]) {
        let scores = &self.scores[chunk * CHUNK..self.scores.len().min((chunk + 1) * CHUNK)];
        weigh_chunks(isa, scores, self.best, temperature, &mut weights[..scores.len()], &mut [0.0]);
    }

    /// The weight of one token, computed in f64.
    pub fn weight(&self, token: usize, temperature: f32) -> f64 {
        self.weight_of(self.scores[token], temperature)
    }

    /// The weight of a score, computed in f64.
    pub fn weight_of(&self, score: f32, temperature: f32) -> f64 {
        let exponent = (f64::from(score) - f64::from(self.best)) / f64::from(temperature);
        if exponent >= f64::from(LOWEST) { exponent.exp() } else { 0.0 }
    }
}

for_each_isa! {
    /// Returns whether all scores are below +inf, and none is NaN.
    fn chunk_maxima(scores: &[f32], maxima: &mut [f32]) -> bool {
        let mut safe = [true; 16];
        for (chunk, max) in scores.chunks(CHUNK).zip(maxima) {
            let (whole, rest) = chunk.as_chunks::<16>();
            let mut lanes = [f32::NEG_INFINITY; 16];
            for part in whole {
                for ((lane, safe), &x) in lanes.iter_mut().zip(&mut safe).zip(part) {
                    *lane = if x > *lane { x } else { *lane };
                    // NaN fails this comparison, too.
                    *safe &= x <= f32::MAX;
                }
            }
            for (safe, x) in safe.iter_mut().zip(rest) {
                *safe &= *x <= f32::MAX;
            }
            *max = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
        }
        safe == [true; 16]
    }
}

for_each_isa! {
    /// Number of scores above `score`, and among the first `equals` of those equal to it.
    fn count_before(scores: &[f32], score: f32, equals: usize) -> usize {
        let (first, rest) = scores.split_at(equals);
        let first: u32 = first.iter().map(|&other| u32::from(other >= score)).sum();
        let rest: u32 = rest.iter().map(|&other| u32::from(other > score)).sum();
        (first + rest) as usize
    }
}

for_each_isa! {
    pub fn weigh_chunks(scores: &[f32], best: f32, temperature: f32, weights: &mut [f32], sums: &mut [f64]) {
        for ((scores, weights), sum) in scores.chunks(CHUNK).zip(weights.chunks_mut(CHUNK)).zip(sums) {
            *sum = weigh(scores, best, temperature, weights);
        }
    }
}

for_each_isa! {
    fn sum_chunks(scores: &[f32], best: f32, temperature: f32, sums: &mut [f64]) {
        let mut weights = [0.0; CHUNK];
        for (scores, sum) in scores.chunks(CHUNK).zip(sums) {
            *sum = weigh(scores, best, temperature, &mut weights[..scores.len()]);
        }
    }
}

for_each_isa! {
    fn sum_chunks_and_products(scores: &[f32], best: f32, sums: &mut [f64]) -> f64 {
        let mut weights = [0.0; CHUNK];
        let mut products = 0.0;
        for (scores, sum) in scores.chunks(CHUNK).zip(sums) {
            let weights = &mut weights[..scores.len()];
            *sum = weigh(scores, best, 1.0, weights);
            products += products_of_chunk(scores, best, weights);
        }
        products
    }
}

for_each_isa! {
    fn sum_of_products(scores: &[f32], best: f32, weights: &[f32]) -> f64 {
        let chunks = scores.chunks(CHUNK).zip(weights.chunks(CHUNK));
        chunks.map(|(scores, weights)| products_of_chunk(scores, best, weights)).sum()
    }
}

/// The sum of a chunk's weights times their exponents, in the same order for every instruction set.
#[inline(always)]
fn products_of_chunk(scores: &[f32], best: f32, weights: &[f32]) -> f64 {
    // The exponent of a weight of zero may be -inf.
    let product = |score: f32, weight: f32| if weight > 0.0 { weight * (score - best) } else { 0.0 };
    let (whole, rest) = weights.as_chunks::<16>();
    let (scores, rest_of_scores) = scores.as_chunks::<16>();
    let mut lanes = [0.0f64; 16];
    for (weights, scores) in whole.iter().zip(scores) {
        for ((lane, &weight), &score) in lanes.iter_mut().zip(weights).zip(scores) {
            *lane += f64::from(product(score, weight));
        }
    }
    let rest = rest.iter().zip(rest_of_scores).map(|(&weight, &score)| f64::from(product(score, weight)));
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}

/// The weights of a chunk, and their sum.
#[inline(always)]
fn weigh(scores: &[f32], best: f32, temperature: f32, weights: &mut [f32]) -> f64 {
    // Nothing changes by a division by 1, which takes as long as half of an exponential.
    if temperature == 1.0 {
        weights.iter_mut().zip(scores).for_each(|(weight, score)| *weight = exp(score - best));
    } else {
        weights.iter_mut().zip(scores).for_each(|(weight, score)| *weight = exp((score - best) / temperature));
    }
    sum_of_weights(weights)
}

/// The sum of a chunk's weights, in the same order for every instruction set.
#[inline(always)]
pub fn sum_of_weights(weights: &[f32]) -> f64 {
    let (whole, rest) = weights.as_chunks::<16>();
    let mut lanes = [0.0f64; 16];
    for part in whole {
        for (lane, &weight) in lanes.iter_mut().zip(part) {
            *lane += f64::from(weight);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&weight| f64::from(weight)).sum::<f64>()
}
