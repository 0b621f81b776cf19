//! Filters that leave thousands of tokens: where top-p and min-p cut the ranking of the tokens, found by bins of score
//! instead of by sorting, and the weights of the tokens behind that cut made zero. `fast` decides when this is quicker
//! than its sort.

use super::chunks::{CHUNK, Scores, sum_of_weights};
use crate::Isa;
use crate::exp::LOWEST;
use crate::rows::for_each_isa;

/// Bins of score. Tokens below the lowest score of interest go to bin `BINS`.
const BINS: usize = 512;
/// So few tokens of one bin are sorted; more are divided into bins again, unless they all have one score.
const SORTED: usize = 1024;

/// A token is kept if it ranks before or at this one: by falling score, ties by rising id.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    score: f32,
    last: usize,
}

impl Cut {
    /// Keeps the fewest best tokens whose weights reach `wanted`. `lowest`: tokens of a lower score are not needed to
    /// reach it. `weights`: see `Scores::exponentials`.
    pub fn of_top_p(isa: Isa, scores: &Scores, lowest: f32, weights: &[f32], wanted: f64) -> Cut {
        let mut range = ScoreRange { high: scores.best, low: lowest, tokens: usize::MAX };
        let mut before = 0.0;
        loop {
            let inside = boundary(isa, scores, range, weights, wanted, &mut before);
            if inside.low >= inside.high {
                return Cut::of_ties(isa, scores, inside, weights, wanted - before);
            }
            // The second: no f32 tells the bins of its tokens apart.
            if inside.tokens <= SORTED || inside.tokens == range.tokens {
                return Cut::of_sorted(scores, inside, weights, wanted, before);
            }
            range = inside;
        }
    }

    /// The cut at the token in `range` with which the running sum of weights, `before` at first, reaches `wanted`.
    fn of_sorted(scores: &Scores, range: ScoreRange, weights: &[f32], wanted: f64, mut before: f64) -> Cut {
        let mut tokens: Vec<usize> =
            scores.at_least(range.low).filter(|&token| scores.scores[token] <= range.high).collect();
        tokens.sort_unstable_by(|&a, &b| scores.rank(a, b));
        let reaching = tokens.iter().find(|&&token| {
            before += f64::from(weights[token]);
            before >= wanted
        });
        let last = *reaching.or(tokens.last()).expect("the bin that reaches a positive weight holds a token");
        Cut { score: scores.scores[last], last }
    }

    /// The cut at the first of the tokens in `range`, which all have one score, with which their weights reach
    /// `missing`.
    fn of_ties(isa: Isa, scores: &Scores, range: ScoreRange, weights: &[f32], missing: f64) -> Cut {
        let score = range.high;
        let mut first = scores.at_least(score).filter(|&token| scores.scores[token] == score);
        let first = first.next().expect("the bin that reaches a positive weight holds a token");
        // Their sum is exact wherever a sum of so many equal weights is one in f64.
        let needed = (missing / f64::from(weights[first])).ceil();
        let needed = if needed.is_finite() { (needed as usize).clamp(1, range.tokens) } else { range.tokens };
        let (mut passed, mut last) = (0, first);
        for (c, chunk) in scores.scores.chunks(CHUNK).enumerate().skip(first / CHUNK) {
            let ties = if scores.maxima[c] < score { 0 } else { count_equal(isa, chunk, score) };
            if passed + ties >= needed {
                let mut ids =
                    chunk.iter().enumerate().filter(|(_, other)| **other == score).map(|(i, _)| c * CHUNK + i);
                last = ids.nth(needed - passed - 1).expect("the chunk has so many of them");
                break;
            }
            passed += ties;
        }
        Cut { score, last }
    }

    /// Keeps the tokens whose weight, in f64, is at least `min_p` of the best one's; 0 < `min_p` <= 1.
    pub fn of_min_p(scores: &Scores, temperature: f32, min_p: f32) -> Cut {
        let passes = |score: f32| scores.weight_of(score, temperature) >= f64::from(min_p);
        Cut { score: lowest_that_passes(scores.best, passes), last: usize::MAX }
    }

    /// Keeps the tokens whose weight, see `Scores::exponentials`, is not zero; the best score is finite.
    pub fn of_weighed(scores: &Scores, temperature: f32) -> Cut {
        let passes = |score: f32| (score - scores.best) / temperature >= LOWEST;
        Cut { score: lowest_that_passes(scores.best, passes), last: usize::MAX }
    }

    pub fn keeps(self, scores: &Scores, token: usize) -> bool {
        let score = scores.scores[token];
        score > self.score || (score == self.score && token <= self.last)
    }

    /// How many tokens it keeps, and their smallest score.
    pub fn count(self, isa: Isa, scores: &Scores) -> (usize, f32) {
        let (mut kept, mut lowest) = (0, f32::INFINITY);
        for (c, (chunk, &max)) in scores.scores.chunks(CHUNK).zip(scores.maxima).enumerate() {
            if max >= self.score {
                let of_chunk = kept_of_chunk(isa, chunk, self.score, self.ties(c));
                kept += of_chunk.0 as usize;
                lowest = lowest.min(of_chunk.1);
            }
        }
        (kept, lowest)
    }

    /// The tokens that it keeps, by rising id.
    pub fn tokens<'a>(self, scores: &'a Scores) -> impl Iterator<Item = usize> + 'a {
        scores.at_least(self.score).filter(move |&token| self.keeps(scores, token))
    }

    /// The cut that keeps what both keep.
    pub fn and(self, other: Cut) -> Cut {
        let stricter = self.score > other.score || (self.score == other.score && self.last <= other.last);
        if stricter { self } else { other }
    }

    /// Makes the weights of all other tokens zero, and the sums of the chunks accordingly.
    pub fn apply(self, isa: Isa, scores: &Scores, weights: &mut [f32], sums: &mut [f64]) {
        let chunks = scores.scores.chunks(CHUNK).zip(weights.chunks_mut(CHUNK)).zip(scores.maxima).zip(sums);
        for (c, (((scores, weights), &max), sum)) in chunks.enumerate() {
            *sum = if max < self.score { 0.0 } else { keep_chunk(isa, scores, weights, self.score, self.ties(c)) };
        }
    }

    /// The first so many ids of a chunk keep tokens of the cut's score; in a chunk behind `last`, none does.
    fn ties(self, chunk: usize) -> usize {
        self.last.saturating_add(1).saturating_sub(chunk * CHUNK).min(CHUNK)
    }
}

/// The lowest finite score that passes. A score passes if a lower one does, and `best` passes.
fn lowest_that_passes(best: f32, passes: impl Fn(f32) -> bool) -> f32 {
    // Halves the range of the floats between, which are as many as their numbers say.
    let (mut fails, mut lowest) = (number_of(f32::NEG_INFINITY), number_of(best));
    while lowest - fails > 1 {
        let middle = fails + (lowest - fails) / 2;
        if passes(score_of(middle)) { lowest = middle } else { fails = middle }
    }
    score_of(lowest)
}

/// The number of a score among all f32 by rising value; 0 and -0 have different ones.
fn number_of(score: f32) -> i64 {
    let bits = i64::from(score.to_bits() & 0x7fff_ffff);
    if score.is_sign_negative() { -1 - bits } else { bits }
}

/// The score of a number.
fn score_of(number: i64) -> f32 {
    if number < 0 { -f32::from_bits((-1 - number) as u32) } else { f32::from_bits(number as u32) }
}

/// The tokens with scores from `low` to `high`.
#[derive(Clone, Copy, Debug)]
struct ScoreRange {
    high: f32,
    low: f32,
    /// Their number.
    tokens: usize,
}

/// Equal ranges of score from `high` down to `low`.
struct Bins {
    high: f32,
    low: f32,
    /// Bins per unit of score; 0 if the range is no finite number.
    scale: f32,
}

impl Bins {
    fn new(ScoreRange { high, low, .. }: ScoreRange) -> Bins {
        let scale = (BINS - 1) as f32 / (high - low);
        Bins { high, low, scale: if scale.is_finite() { scale } else { 0.0 } }
    }

    #[inline(always)]
    fn of(&self, score: f32) -> i32 {
        // Rounded by adding 2^23, whose unit is 1: a cast to an integer does not vectorise.
        const UNIT: f32 = 8_388_608.0;
        let bin = ((self.high - score) * self.scale).min((BINS - 1) as f32).max(0.0);
        let bin = ((bin + UNIT).to_bits() - UNIT.to_bits()) as i32;
        if (score >= self.low) & (score <= self.high) { bin } else { BINS as i32 }
    }
}

/// The tokens of the bin of `range` in which the running sum of weights reaches `wanted`; `before` grows by what lies
/// in better bins.
fn boundary(
    isa: Isa,
    scores: &Scores,
    range: ScoreRange,
    weights: &[f32],
    wanted: f64,
    before: &mut f64,
) -> ScoreRange {
    let bins = Bins::new(range);
    let chunks = || {
        let chunks = scores.scores.chunks(CHUNK).zip(weights.chunks(CHUNK)).zip(scores.maxima);
        chunks.filter(|(_, max)| **max >= range.low).map(|(chunk, _)| chunk)
    };
    let mut of = [0; CHUNK];
    // Neighbours often have the same bin: four tables, so that one sum need not wait for the other.
    let mut tables = [[0.0; BINS + 1]; 4];
    for (scores, weights) in chunks() {
        let one = bins_of_chunk(isa, scores, &bins, &mut of);
        if let Some(bin) = one {
            tables[0][bin as usize] += weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
            continue;
        }
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
    let mut inside = ScoreRange { high: f32::NEG_INFINITY, low: f32::INFINITY, tokens: 0 };
    for (scores, _) in chunks() {
        let of_chunk = range_of_bin(isa, scores, &bins, bin);
        inside.high = inside.high.max(of_chunk.high);
        inside.low = inside.low.min(of_chunk.low);
        inside.tokens += of_chunk.tokens;
    }
    inside
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
    /// The bins of a chunk's scores; returned if they are all one.
    fn bins_of_chunk(scores: &[f32], bins: &Bins, of: &mut [i32; CHUNK]) -> Option<i32> {
        let first = bins.of(scores[0]);
        let mut different = 0;
        for (of, &score) in of.iter_mut().zip(scores) {
            *of = bins.of(score);
            different |= *of ^ first;
        }
        (different == 0).then_some(first)
    }
}

for_each_isa! {
    /// The tokens of a chunk that are in `bin`.
    fn range_of_bin(scores: &[f32], bins: &Bins, bin: i32) -> ScoreRange {
        const LANES: usize = 16;
        let (mut high, mut low, mut tokens) = ([f32::NEG_INFINITY; LANES], [f32::INFINITY; LANES], [0u32; LANES]);
        let mut note = |lane: usize, score: f32| {
            let inside = bins.of(score) == bin;
            high[lane] = if inside & (score > high[lane]) { score } else { high[lane] };
            low[lane] = if inside & (score < low[lane]) { score } else { low[lane] };
            tokens[lane] += u32::from(inside);
        };
        let (whole, rest) = scores.as_chunks::<LANES>();
        for part in whole {
            part.iter().enumerate().for_each(|(lane, &score)| note(lane, score));
        }
        rest.iter().enumerate().for_each(|(lane, &score)| note(lane, score));
        ScoreRange {
            high: high.into_iter().fold(f32::NEG_INFINITY, f32::max),
            low: low.into_iter().fold(f32::INFINITY, f32::min),
            tokens: tokens.iter().sum::<u32>() as usize,
        }
    }
}

for_each_isa! {
    fn count_equal(scores: &[f32], score: f32) -> usize {
        scores.iter().map(|&other| u32::from(other == score)).sum::<u32>() as usize
    }
}

for_each_isa! {
    /// Makes the weights of scores below `lowest`, and of `lowest` itself from index `ties` on, zero; returns the sum
    /// of the rest.
    fn keep_chunk(scores: &[f32], weights: &mut [f32], lowest: f32, ties: usize) -> f64 {
        let (first, second) = (ties.min(weights.len()), weights.len());
        for (weight, &score) in weights[..first].iter_mut().zip(scores) {
            *weight = if score >= lowest { *weight } else { 0.0 };
        }
        for (weight, &score) in weights[first..second].iter_mut().zip(&scores[first..]) {
            *weight = if score > lowest { *weight } else { 0.0 };
        }
        sum_of_weights(weights)
    }
}

for_each_isa! {
    /// How many of a chunk's scores are above `lowest`, or equal to it with an index below `ties`; and the smallest of
    /// them.
    fn kept_of_chunk(scores: &[f32], lowest: f32, ties: usize) -> (u32, f32) {
        const LANES: usize = 16;
        let (mut kept, mut smallest) = ([0u32; LANES], [f32::INFINITY; LANES]);
        let mut note = |lane: usize, score: f32, is_kept: bool| {
            kept[lane] += u32::from(is_kept);
            smallest[lane] = if is_kept & (score < smallest[lane]) { score } else { smallest[lane] };
        };
        let (first, rest) = scores.split_at(ties.min(scores.len()));
        let (whole, odd) = first.as_chunks::<LANES>();
        for part in whole {
            part.iter().enumerate().for_each(|(lane, &score)| note(lane, score, score >= lowest));
        }
        odd.iter().enumerate().for_each(|(lane, &score)| note(lane, score, score >= lowest));
        rest.iter().enumerate().for_each(|(i, &score)| note(i % LANES, score, score > lowest));
        (kept.iter().sum(), smallest.into_iter().fold(f32::INFINITY, f32::min))
    }
}
