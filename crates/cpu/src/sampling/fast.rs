//! Sampling without sorting the vocabulary. The maximum of each chunk of tokens tells which chunks can hold the
//! likeliest ones. Sampling by temperature alone takes one pass for the maxima, one for the sums of the exponentials by
//! chunk, a search over the sums, and the exponentials of the chunk that is found.

use std::borrow::Cow;
use std::num::NonZeroU32;

use super::chunks::{CHUNK, Scores};
use super::nucleus::Cut;
use super::scores::{adjusted, made_all_safe};
use crate::Isa;
use offshoot_backend::{Filters, Pick, SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// Buffers that a thread reuses between rows.
#[derive(Default)]
pub struct RowScratch {
    /// Chunk maxima of the model's logits.
    model_maxima: Vec<f32>,
    /// Chunk maxima of the adjusted scores.
    maxima: Vec<f32>,
    /// The weight of each token, see `Scores::exponentials`.
    weights: Vec<f32>,
    /// Sum of weights by chunk.
    sums: Vec<f64>,
}

/// Samples one token; `None` if every score is -inf.
pub fn sample_row(isa: Isa, scratch: &mut RowScratch, logits: &[f32], request: &SampleRequest) -> Option<SampledToken> {
    let RowScratch { model_maxima, maxima, weights, sums } = scratch;
    let made_safe;
    let model = match Scores::new(isa, logits, model_maxima) {
        Some(model) => model,
        None => {
            made_safe = made_all_safe(logits);
            Scores::new(isa, &made_safe, model_maxima).expect("NaN and +inf are replaced")
        }
    };
    let adjusted = adjusted(model.scores, request);
    let changed = match &adjusted {
        Cow::Borrowed(_) => None,
        Cow::Owned(scores) => Some(Scores::new(isa, scores, maxima).expect("adjusted scores are no NaN and not +inf")),
    };
    let edited = changed.as_ref().unwrap_or(&model);

    // At temperature 1 the model's weights and sums are those of the edited scores, where nothing was edited.
    let of_model = |temperature: f32| temperature == 1.0 && changed.is_none();
    let stored = match request.pick {
        Pick::Random { filters: Filters { temperature, top_k: None, top_p, .. }, .. } => {
            top_p < 1.0 && of_model(temperature)
        }
        Pick::Random { .. } | Pick::Greedy | Pick::Given { .. } => false,
    };
    let model_sum = match stored {
        true => model.exponentials(isa, 1.0, weights, sums),
        false => model.sum_chunks(isa, 1.0, sums),
    };
    let token = match request.pick {
        Pick::Given { token, .. } => token.ix(),
        _ if edited.best == f32::NEG_INFINITY => return None,
        Pick::Greedy => edited.first_best(),
        Pick::Random { filters, uniform } => {
            let weights = Weights { weights, sums, total: of_model(filters.temperature).then_some(model_sum), stored };
            Filtering(filters).sample(isa, edited, weights, uniform)
        }
    };
    let logprob = |t: usize| match model.best.is_finite() {
        true => (f64::from(model.scores[t]) - f64::from(model.best) - model_sum.ln()) as f32,
        false => model.scores[t],
    };
    let rank = request.top_logprobs.and_then(|_| NonZeroU32::new(model.before(isa, token) as u32 + 1));
    let top = model.largest(request.top()).into_iter().map(|t| (TokenId::new(t), logprob(t))).collect();
    Some(SampledToken { rank, top, ..SampledToken::of(TokenId::new(token), logprob(token)) })
}

/// The weights of all tokens, see `Scores::exponentials`.
struct Weights<'a> {
    weights: &'a mut Vec<f32>,
    /// Sum of weights by chunk.
    sums: &'a mut Vec<f64>,
    /// Their sum, once the sums are computed.
    total: Option<f64>,
    /// Whether the weights are computed, too.
    stored: bool,
}

impl Weights<'_> {
    /// Computes them unless they are. Returns their sum.
    fn compute(&mut self, isa: Isa, scores: &Scores, temperature: f32) -> f64 {
        match self.total.filter(|_| self.stored) {
            Some(total) => total,
            None => {
                self.stored = true;
                *self.total.insert(scores.exponentials(isa, temperature, self.weights, self.sums))
            }
        }
    }

    /// Computes the sums unless they are.
    fn sum(&mut self, isa: Isa, scores: &Scores, temperature: f32) {
        self.total.get_or_insert_with(|| scores.sum_chunks(isa, temperature, self.sums));
    }

    fn keep(&mut self, isa: Isa, scores: &Scores, cut: Cut) -> Kept {
        cut.apply(isa, scores, self.weights, self.sums);
        Kept::Many
    }

    fn copy_chunk(&self, chunk: usize, to: &mut [f32; CHUNK]) {
        let weights = &self.weights[chunk * CHUNK..self.weights.len().min((chunk + 1) * CHUNK)];
        to[..weights.len()].copy_from_slice(weights);
    }
}

/// What passed the filters.
enum Kept {
    /// All tokens; their weights may not be stored.
    All,
    /// The tokens that passed, by rising id, with their weights in f64.
    Few(Vec<(usize, f64)>),
    /// The tokens whose weight is not zero now.
    Many,
}

/// The temperature and the filters of a request.
struct Filtering(Filters);

impl Filtering {
    /// The token at `uniform` of those that pass the filters.
    fn sample(&self, isa: Isa, scores: &Scores, mut weights: Weights, uniform: f64) -> usize {
        match self.kept(isa, scores, &mut weights) {
            Kept::All => {
                let weigh = |c: usize, to: &mut [f32; CHUNK]| scores.weigh_chunk(isa, self.0.temperature, c, to);
                inverse_cdf(weights.sums, uniform, weigh)
            }
            Kept::Few(tokens) => inverse_cdf_of_kept(&tokens, uniform),
            Kept::Many => inverse_cdf(weights.sums, uniform, |c, to| weights.copy_chunk(c, to)),
        }
    }

    fn none(&self) -> bool {
        self.0.top_k.is_none() && self.0.top_p >= 1.0 && self.0.min_p <= 0.0
    }

    /// The tokens that pass the filters. Computes `weights` where they are needed.
    fn kept(&self, isa: Isa, scores: &Scores, weights: &mut Weights) -> Kept {
        let weight = |t: usize| scores.weight(t, self.0.temperature);
        let mut kept: Vec<(usize, f64)>;
        if self.none() {
            weights.sum(isa, scores, self.0.temperature);
            return Kept::All;
        } else if let Some(k) = self.0.top_k {
            kept = scores.largest(k.max(1) as usize).into_iter().map(|t| (t, weight(t))).collect();
            let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
            kept.truncate(self.reached(&kept, 0.0, total).unwrap_or(kept.len()));
        } else if self.0.top_p < 1.0 {
            let total = weights.compute(isa, scores, self.0.temperature);
            let lowest = self.lowest_of_top_p(scores, total);
            let Some(tokens) = scores.few_at_least(lowest) else {
                let cut = Cut::of_top_p(isa, scores, lowest, weights.weights, f64::from(self.0.top_p) * total);
                let cut = if self.0.min_p > 0.0 { cut.and(self.cut_of_min_p(scores)) } else { cut };
                return weights.keep(isa, scores, cut);
            };
            kept = self.nucleus(scores, tokens, total);
        } else {
            // Half of min-p, so that rounding loses no token at the threshold; `retain` below is exact.
            let lowest = scores.best + self.0.temperature * (0.5 * self.0.min_p).ln();
            let Some(tokens) = scores.few_at_least(lowest.min(scores.best)) else {
                weights.compute(isa, scores, self.0.temperature);
                return weights.keep(isa, scores, self.cut_of_min_p(scores));
            };
            kept = tokens.into_iter().map(|t| (t, weight(t))).collect();
        }
        kept.retain(|(_, weight)| *weight >= f64::from(self.0.min_p.min(1.0)));
        kept.sort_unstable_by_key(|(token, _)| *token);
        Kept::Few(kept)
    }

    fn cut_of_min_p(&self, scores: &Scores) -> Cut {
        Cut::of_min_p(scores, self.0.temperature, self.0.min_p.min(1.0))
    }

    /// All tokens of a lower score together weigh less than 1 - top_p of the total, so top-p is reached without them.
    fn lowest_of_top_p(&self, scores: &Scores, total: f64) -> f32 {
        // The factor 0.25 is a margin for rounding.
        let lightest = 0.25 * (1.0 - f64::from(self.0.top_p)) * total / scores.scores.len() as f64;
        (scores.best + self.0.temperature * lightest.ln() as f32).min(scores.best)
    }

    /// The fewest best of `tokens` whose weights reach `top_p` of `total`. Sorts them in blocks of growing size, from
    /// the best down, and stops as soon as that is reached.
    fn nucleus(&self, scores: &Scores, mut tokens: Vec<usize>, total: f64) -> Vec<(usize, f64)> {
        let mut kept = Vec::new();
        let (mut rest, mut block, mut before) = (tokens.as_mut_slice(), 64, 0.0);
        while !rest.is_empty() {
            if block < rest.len() {
                rest.select_nth_unstable_by(block, |&a, &b| scores.rank(a, b));
            }
            let (head, tail) = rest.split_at_mut(block.min(rest.len()));
            head.sort_unstable_by(|&a, &b| scores.rank(a, b));
            let from = kept.len();
            kept.extend(head.iter().map(|&t| (t, scores.weight(t, self.0.temperature))));
            if let Some(count) = self.reached(&kept[from..], before, total) {
                kept.truncate(from + count);
                break;
            }
            before += kept[from..].iter().map(|(_, weight)| weight).sum::<f64>();
            (rest, block) = (tail, 4 * block);
        }
        kept
    }

    /// How many of `sorted`, after tokens of weight `before`, are needed to reach `top_p` of `total`. `None` if they do
    /// not reach it or top-p is off.
    fn reached(&self, sorted: &[(usize, f64)], before: f64, total: f64) -> Option<usize> {
        let mut before = before;
        (self.0.top_p < 1.0).then_some(())?;
        sorted.iter().position(|(_, weight)| {
            let reached = before > 0.0 && before >= f64::from(self.0.top_p) * total;
            before += weight;
            reached
        })
    }
}

/// The first token at which the running sum of weights exceeds `uniform` times their total. `sums`: by chunk; `weights`
/// writes those of a chunk.
fn inverse_cdf(sums: &[f64], uniform: f64, mut weights: impl FnMut(usize, &mut [f32; CHUNK])) -> usize {
    let target = uniform * sums.iter().sum::<f64>();
    let mut positive_of = |chunk: usize| {
        let mut of_chunk = [0.0; CHUNK];
        weights(chunk, &mut of_chunk);
        of_chunk.into_iter().enumerate().filter(|(_, weight)| *weight > 0.0)
    };
    let (mut before, mut last) = (0.0, None);
    for (c, sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
        if before + sum > target || c + 1 == sums.len() {
            let mut running = before;
            for (i, weight) in positive_of(c) {
                running += f64::from(weight);
                if running > target {
                    return c * CHUNK + i;
                }
            }
        }
        before += sum;
        last = Some(c);
    }
    // No running sum exceeds it, by rounding: the last token with a weight.
    let last_of = |c: usize| c * CHUNK + positive_of(c).next_back().expect("a positive sum has a positive weight").0;
    last.map_or(0, last_of)
}

/// What `inverse_cdf` finds, among tokens that passed the filters.
fn inverse_cdf_of_kept(kept: &[(usize, f64)], uniform: f64) -> usize {
    let target = uniform * kept.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut running = 0.0;
    let positive = kept.iter().filter(|(_, weight)| *weight > 0.0);
    let found = positive.clone().find(|(_, weight)| {
        running += weight;
        running > target
    });
    found.or_else(|| positive.clone().next_back()).map_or(0, |(token, _)| *token)
}
