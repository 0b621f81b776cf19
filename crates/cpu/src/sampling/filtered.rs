//! The tokens of a row that pass a request's filters, found without sorting the vocabulary: the token at a uniform
//! among them, and the distribution over them, which records describe.

use super::chunks::{CHUNK, Scores};
use super::nucleus::Cut;
use crate::Isa;
use offshoot_backend::{Drawn, Filters, MOST_KEPT, Records};
use offshoot_core::ids::TokenId;

/// The weights of all tokens, see `Scores::exponentials`.
pub struct Weights<'a> {
    pub weights: &'a mut Vec<f32>,
    /// Sum of weights by chunk.
    pub sums: &'a mut Vec<f64>,
    /// Their sum, once the sums are computed.
    pub total: Option<f64>,
    /// Whether the weights are computed, too.
    pub stored: bool,
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
        Kept::Many(cut)
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
    /// The tokens that the cut keeps; the weights of all others are zero now.
    Many(Cut),
}

/// The temperature and the filters of a request.
pub struct Filtering(pub Filters);

impl Filtering {
    /// The tokens of `scores` that pass the filters.
    pub fn apply<'a>(self, isa: Isa, scores: &'a Scores<'a>, mut weights: Weights<'a>) -> Filtered<'a> {
        let kept = self.kept(isa, scores, &mut weights);
        Filtered { scores, temperature: self.0.temperature, kept, weights }
    }

    /// Whether the filters need the weight of every token.
    pub fn weighs_all(&self) -> bool {
        self.0.top_k.is_none() && self.0.top_p < 1.0
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

/// The scores of a row whose tokens have passed the filters.
pub struct Filtered<'a> {
    scores: &'a Scores<'a>,
    temperature: f32,
    kept: Kept,
    weights: Weights<'a>,
}

impl Filtered<'_> {
    /// The token at `uniform` of those that passed.
    pub fn sample(&self, isa: Isa, uniform: f64) -> usize {
        let (scores, weights) = (self.scores, &self.weights);
        match &self.kept {
            Kept::All => {
                let weigh = |c: usize, to: &mut [f32; CHUNK]| scores.weigh_chunk(isa, self.temperature, c, to);
                inverse_cdf(weights.sums, uniform, weigh)
            }
            Kept::Few(tokens) => inverse_cdf_of_kept(tokens, uniform),
            Kept::Many(_) => inverse_cdf(weights.sums, uniform, |c, to| weights.copy_chunk(c, to)),
        }
    }

    /// The distribution over the tokens that passed.
    pub fn renormalised(&self, isa: Isa) -> Renormalised<'_> {
        let scores = self.scores;
        let (kept, total) = match &self.kept {
            Kept::Few(tokens) => {
                let weighed: Vec<usize> = tokens.iter().filter(|(_, weight)| *weight > 0.0).map(|(t, _)| *t).collect();
                (KeptIds::Few(weighed), tokens.iter().map(|(_, weight)| weight).sum())
            }
            Kept::All if !scores.best.is_finite() => (KeptIds::Few(Vec::new()), 0.0),
            Kept::All => {
                (KeptIds::Cut(Cut::of_weighed(scores, self.temperature)), self.weights.sums.iter().sum::<f64>())
            }
            Kept::Many(cut) => (KeptIds::Cut(*cut), self.weights.sums.iter().sum()),
        };
        let (count, lowest) = match &kept {
            KeptIds::Few(tokens) => {
                (tokens.len(), tokens.iter().map(|&t| scores.scores[t]).fold(f32::INFINITY, f32::min))
            }
            KeptIds::Cut(cut) => cut.count(isa, scores),
        };
        Renormalised { scores, temperature: self.temperature, kept, count, lowest, log_total: total.ln() }
    }
}

/// The ids of the tokens that passed the filters and can be sampled.
enum KeptIds {
    /// By rising id.
    Few(Vec<usize>),
    Cut(Cut),
}

/// The distribution that a token is drawn from, see [`Drawn`].
pub struct Renormalised<'a> {
    scores: &'a Scores<'a>,
    temperature: f32,
    kept: KeptIds,
    count: usize,
    /// The smallest score that is kept; +inf if none is.
    lowest: f32,
    /// The logarithm of the sum of the weights that are kept.
    log_total: f64,
}

impl Renormalised<'_> {
    /// The record of `token` under this distribution.
    pub fn record(&self, token: usize, records: Records) -> Drawn {
        let (is_kept, ids): (bool, &dyn Fn() -> Vec<TokenId>) = match &self.kept {
            KeptIds::Few(tokens) => {
                (tokens.binary_search(&token).is_ok(), &|| tokens.iter().map(|&t| TokenId::new(t)).collect())
            }
            KeptIds::Cut(cut) => {
                (cut.keeps(self.scores, token), &|| cut.tokens(self.scores).map(TokenId::new).collect())
            }
        };
        Drawn {
            logprob: if is_kept { self.logprob(token) } else { f32::NEG_INFINITY },
            kept: self.count as u32,
            lowest: self.lowest,
            ids: (records.kept_ids && self.count <= MOST_KEPT).then(ids),
        }
    }

    /// The `most` likeliest of the tokens that are kept, or all, with their log-probabilities, likeliest first.
    pub fn likeliest(&self, most: usize) -> Vec<(TokenId, f32)> {
        // The filters keep the best tokens.
        let tokens = self.scores.largest(most.min(self.count));
        tokens.into_iter().map(|t| (TokenId::new(t), self.logprob(t))).collect()
    }

    /// The log-probability of a token that is kept.
    fn logprob(&self, token: usize) -> f32 {
        let exponent =
            (f64::from(self.scores.scores[token]) - f64::from(self.scores.best)) / f64::from(self.temperature);
        (exponent - self.log_total) as f32
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
