//! Filters that leave thousands of tokens: where top-p and min-p cut the ranking of the tokens, found by bins of score
//! instead of by sorting, and the weights of the tokens behind that cut made zero. `fast` decides when this is quicker
//! than its sort.

use super::fast::{CHUNK, Scores};
use crate::backend::cpu::Isa;
use crate::backend::cpu::rows::for_each_isa;

/// Bins of score. Tokens below the lowest score of interest go to bin `BINS`.
const BINS: usize = 512;
/// So few tokens of one bin are sorted; more are divided into bins again.
const SORTED: usize = 1024;

/// A token is kept if it ranks before or at this one: by falling score, ties by rising id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    score: f32,
    last: usize,
}

impl Cut {
    /// Keeps the fewest best tokens whose weights reach `wanted`. `lowest`: tokens of a lower score are not needed to
    /// reach it. `weights`: see `Scores::exponentials`.
    pub(super) fn of_top_p(isa: Isa, scores: &Scores, lowest: f32, weights: &[f32], wanted: f64) -> Cut {
        let mut before = 0.0;
        let mut tokens = boundary_bin(isa, scores, lowest, weights, wanted, &mut before);
        let ranked = |tokens: &mut Vec<usize>| tokens.sort_unstable_by(|&a, &b| scores.rank(a, b));
        while tokens.len() > SORTED {
            let score = |&t: &usize| scores.scores[t];
            let high = tokens.iter().map(score).fold(f32::NEG_INFINITY, f32::max);
            let low = tokens.iter().map(score).fold(f32::INFINITY, f32::min);
            if low == high {
                // Ties, in order already.
                break;
            }
            let bins = Bins::new(high, low);
            let mut sums = [0.0; BINS + 1];
            for &t in &tokens {
                sums[bins.of(scores.scores[t]) as usize] += f64::from(weights[t]);
            }
            let bin = bin_that_reaches(&sums, wanted, &mut before);
            let count = tokens.len();
            tokens.retain(|&t| bins.of(scores.scores[t]) == bin);
            if tokens.len() == count {
                // No f32 tells their bins apart.
                ranked(&mut tokens);
                break;
            }
        }
        if tokens.len() <= SORTED {
            ranked(&mut tokens);
        }
        let reaching = tokens.iter().find(|&&t| {
            before += f64::from(weights[t]);
            before >= wanted
        });
        let last = *reaching.or(tokens.last()).expect("the bin that reaches a positive weight holds a token");
        Cut { score: scores.scores[last], last }
    }

    /// Keeps the tokens whose weight, in f64, is at least `min_p` of the best one's; 0 < `min_p` <= 1.
    pub(super) fn of_min_p(scores: &Scores, temperature: f32, min_p: f32) -> Cut {
        // Weights fall with scores: from the rounded threshold, step to the lowest score that passes.
        let passes = |score: f32| scores.weight_of(score, temperature) >= f64::from(min_p);
        let mut score = (scores.best + temperature * min_p.ln()).clamp(f32::MIN, scores.best);
        while score > f32::MIN && passes(score) {
            score = score.next_down();
        }
        while !passes(score) {
            score = score.next_up();
        }
        Cut { score, last: usize::MAX }
    }

    /// The cut that keeps what both keep.
    pub(super) fn and(self, other: Cut) -> Cut {
        let stricter = self.score > other.score || (self.score == other.score && self.last <= other.last);
        if stricter { self } else { other }
    }

    /// Makes the weights of all other tokens zero, and the sums of the chunks accordingly.
    pub(super) fn apply(self, isa: Isa, scores: &Scores, weights: &mut [f32], sums: &mut [f64]) {
        let chunks = scores.scores.chunks(CHUNK).zip(weights.chunks_mut(CHUNK)).zip(scores.maxima).zip(sums);
        for (c, (((scores, weights), &max), sum)) in chunks.enumerate() {
            // Ids within the chunk; a chunk behind `last` keeps no token of the cut's score.
            let ties = self.last.saturating_add(1).saturating_sub(c * CHUNK).min(CHUNK);
            *sum = if max < self.score { 0.0 } else { keep_chunk(isa, scores, weights, self.score, ties) };
        }
    }
}

/// Equal ranges of score from `high` down to `low`.
struct Bins {
    high: f32,
    low: f32,
    /// Bins per unit of score; 0 if the range is no finite number.
    scale: f32,
}

impl Bins {
    fn new(high: f32, low: f32) -> Bins {
        let scale = (BINS - 1) as f32 / (high - low);
        Bins { high, low, scale: if scale.is_finite() { scale } else { 0.0 } }
    }

    #[inline(always)]
    fn of(&self, score: f32) -> i32 {
        // Rounded by adding 2^23, whose unit is 1: a cast to an integer does not vectorise.
        const UNIT: f32 = 8_388_608.0;
        let bin = ((self.high - score) * self.scale).min((BINS - 1) as f32).max(0.0);
        let bin = ((bin + UNIT).to_bits() - UNIT.to_bits()) as i32;
        if score >= self.low { bin } else { BINS as i32 }
    }
}

/// The tokens, by rising id, of the bin in which the running sum of weights reaches `wanted`; `before` grows by what
/// lies in better bins.
fn boundary_bin(isa: Isa, scores: &Scores, lowest: f32, weights: &[f32], wanted: f64, before: &mut f64) -> Vec<usize> {
    let bins = Bins::new(scores.best, lowest);
    let chunks = || {
        let chunks = scores.scores.chunks(CHUNK).zip(weights.chunks(CHUNK)).zip(scores.maxima).enumerate();
        chunks.filter(|(_, (_, max))| **max >= lowest).map(|(c, ((scores, weights), _))| (c, scores, weights))
    };
    let mut of = [0; CHUNK];
    // Neighbours often have the same bin: four tables, so that one sum need not wait for the other.
    let mut tables = [[0.0; BINS + 1]; 4];
    for (_, scores, weights) in chunks() {
        bins_of_chunk(isa, scores, &bins, &mut of);
        let (whole, rest) = weights.as_chunks::<4>();
        for (of, weights) in of.as_chunks::<4>().0.iter().zip(whole) {
            for ((table, &bin), &weight) in tables.iter_mut().zip(of).zip(weights) {
                table[bin as usize] += f64::from(weight);
            }
        }
        for (&bin, &weight) in of[4 * whole.len()..].iter().zip(rest) {
            tables[0][bin as usize] += f64::from(weight);
        }
    }
    let sums: [f64; BINS + 1] = std::array::from_fn(|bin| tables.iter().map(|table| table[bin]).sum());
    let bin = bin_that_reaches(&sums, wanted, before);
    let mut tokens = Vec::new();
    for (c, scores, _) in chunks() {
        bins_of_chunk(isa, scores, &bins, &mut of);
        let inside = of.iter().take(scores.len()).enumerate().filter(|(_, of)| **of == bin);
        tokens.extend(inside.map(|(i, _)| c * CHUNK + i));
    }
    tokens
}

/// The bin in which `before` plus the sums reaches `wanted`, or the last one with a weight. `before` then holds what
/// lies before that bin.
fn bin_that_reaches(sums: &[f64; BINS + 1], wanted: f64, before: &mut f64) -> i32 {
    let mut last = 0;
    let mut before_last = *before;
    let mut running = *before;
    for (bin, &sum) in sums[..BINS].iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
        (last, before_last) = (bin as i32, running);
        running += sum;
        if running >= wanted {
            break;
        }
    }
    *before = before_last;
    last
}

for_each_isa! {
    fn bins_of_chunk(scores: &[f32], bins: &Bins, of: &mut [i32; CHUNK]) = bins_of_chunk_loop;
}

#[inline(always)]
fn bins_of_chunk_loop(scores: &[f32], bins: &Bins, of: &mut [i32; CHUNK]) {
    for (of, &score) in of.iter_mut().zip(scores) {
        *of = bins.of(score);
    }
}

for_each_isa! {
    fn keep_chunk(scores: &[f32], weights: &mut [f32], lowest: f32, ties: usize) -> f64 = keep_chunk_loop;
}

/// Makes the weights of scores below `lowest`, and of `lowest` itself from index `ties` on, zero; returns the sum of
/// the rest.
#[inline(always)]
fn keep_chunk_loop(scores: &[f32], weights: &mut [f32], lowest: f32, ties: usize) -> f64 {
    let (first, second) = (ties.min(weights.len()), weights.len());
    for (weight, &score) in weights[..first].iter_mut().zip(scores) {
        *weight = if score >= lowest { *weight } else { 0.0 };
    }
    for (weight, &score) in weights[first..second].iter_mut().zip(&scores[first..]) {
        *weight = if score > lowest { *weight } else { 0.0 };
    }
    let (whole, rest) = weights.as_chunks::<16>();
    let mut lanes = [0.0f64; 16];
    for part in whole {
        for (lane, &weight) in lanes.iter_mut().zip(part) {
            *lane += f64::from(weight);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&weight| f64::from(weight)).sum::<f64>()
}
