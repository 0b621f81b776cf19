//! Sampling without sorting the vocabulary. The maximum of each chunk of tokens tells which chunks can hold the
//! likeliest ones. Sampling by temperature alone takes one pass for the maxima, one for the sums of the exponentials by
//! chunk, a search over the sums, and the exponentials of the chunk that is found.

use std::borrow::Cow;
use std::num::NonZeroU32;

use super::chunks::Scores;
use super::filtered::{Filtering, Weights};
use super::scores::{adjusted, made_all_safe};
use crate::Isa;
use offshoot_backend::{Distribution, Pick, SampleRequest, SampledToken};
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
    let adjusted = match request.depends_on_scores() {
        true => adjusted(model.scores, request),
        false => Cow::Borrowed(model.scores),
    };
    let changed = match &adjusted {
        Cow::Borrowed(_) => None,
        Cow::Owned(scores) => Some(Scores::new(isa, scores, maxima).expect("adjusted scores are no NaN and not +inf")),
    };
    let edited = changed.as_ref().unwrap_or(&model);

    let filtering = Filtering(request.filters().unwrap_or_default());
    let is_recorded = request.records.of_drawn() || (request.lists_drawn() && request.top() > 0);
    let is_filtered = is_recorded || matches!(request.pick, Pick::Random { .. });
    // At temperature 1 the model's weights and sums are those of the edited scores, where nothing was edited.
    let is_of_model = filtering.0.temperature == 1.0 && changed.is_none();
    let stored = is_filtered && is_of_model && filtering.weighs_all();
    let (model_sum, products) = match (stored, request.records.entropy) {
        (true, false) => (model.exponentials(isa, 1.0, weights, sums), None),
        (false, false) => (model.sum_chunks(isa, 1.0, sums), None),
        (true, true) => {
            let sum = model.exponentials(isa, 1.0, weights, sums);
            (sum, Some(model.products(isa, weights)))
        }
        (false, true) => {
            let (sum, products) = model.sum_chunks_and_products(isa, sums);
            (sum, Some(products))
        }
    };
    let weights = Weights { weights, sums, total: is_of_model.then_some(model_sum), stored };
    let filtered = is_filtered.then(|| filtering.apply(isa, edited, weights));
    let token = match request.pick {
        Pick::Given { token, .. } => token.ix(),
        _ if edited.best == f32::NEG_INFINITY => return None,
        Pick::Greedy => edited.first_best(),
        Pick::Random { uniform, .. } => {
            filtered.as_ref().expect("filters are applied for every random pick").sample(isa, uniform)
        }
    };
    let drawn = filtered.as_ref().filter(|_| is_recorded).map(|filtered| filtered.renormalised(isa));
    let of_model = |t: usize| match model.best.is_finite() {
        true => (f64::from(model.scores[t]) - f64::from(model.best) - model_sum.ln()) as f32,
        false => model.scores[t],
    };
    let scores = match request.top_of {
        Distribution::Model => &model,
        Distribution::Drawn => edited,
    };
    let top = match (request.top_of, &drawn) {
        (Distribution::Drawn, Some(drawn)) => drawn.likeliest(request.top()),
        _ => scores.largest(request.top()).into_iter().map(|t| (TokenId::new(t), of_model(t))).collect(),
    };
    let confidence = |count: usize| match model.best.is_finite() {
        true => (model_sum.ln() + model.mean_below_best(count)) as f32,
        false => 0.0,
    };
    let entropy = |products: f64| match model.best.is_finite() {
        true => (model_sum.ln() - products / model_sum) as f32,
        false => 0.0,
    };
    Some(SampledToken {
        rank: request.top_logprobs.and_then(|_| NonZeroU32::new(scores.before(isa, token) as u32 + 1)),
        top,
        drawn: drawn.filter(|_| request.records.of_drawn()).map(|drawn| drawn.record(token, request.records)),
        entropy: products.map(entropy),
        confidence: request.records.confidence.map(|count| confidence(usize::from(count.get()))),
        ..SampledToken::of(TokenId::new(token), of_model(token))
    })
}
