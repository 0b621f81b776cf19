//! Compares two models on a text, and their matrices: what a quantised model costs in quality. Both are asked for each
//! token of the text after those before it.

use std::collections::HashMap;
use std::fmt;

use offshoot_backend::{Backend, Dtype};
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;

use super::super::config::ModelFolder;
use super::super::decoder::Decoder;
use super::super::layout::{Layout, TensorSpec};
use super::super::sequence::Sequence;
use super::super::weights::{self, Check, ModelFiles};
use super::golden::{likeliest, logprob};

/// Tokens per step.
const CHUNK: usize = 64;

/// What a model says of one token of a text.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// The log-probability of the token that follows in the text.
    pub logprob: f32,
    pub likeliest: TokenId,
}

/// What the model says of each token of a text but the first.
pub fn predictions<B: Backend>(backend: &mut B, model: &mut Decoder<B>, tokens: &[TokenId]) -> Result<Vec<Prediction>> {
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    let vocab = model.config().vocab;
    let mut sequence = Sequence::new(backend, model, tokens.len())?;
    sequence.set_length(tokens.len())?;
    let mut next = tokens.iter().skip(1);
    let mut found = Vec::with_capacity(tokens.len());
    for chunk in tokens.chunks(CHUNK) {
        let logits = sequence.extend(chunk, 0..chunk.len() as u32)?;
        let rows = logits.chunks_exact(vocab).zip(&mut next);
        let of = |row, token| Prediction { logprob: logprob(row, token) as f32, likeliest: likeliest(row) };
        found.extend(rows.map(|(row, &token)| of(row, token)));
    }
    Ok(found)
}

/// How far two models are apart on a text, printable.
#[derive(Clone, Debug)]
pub struct TextComparison {
    /// Predicted tokens.
    pub tokens: usize,
    /// `exp` of the mean of the negative log-probabilities: of the model, and of the other.
    pub perplexity: [f64; 2],
    /// Mean and largest difference of a log-probability, and the number of the token where it is largest.
    pub mean: f64,
    pub largest: f32,
    pub at: usize,
    /// Tokens for which both find the same token likeliest.
    pub same: usize,
}

impl TextComparison {
    /// Both are of one text of at least two tokens.
    pub fn of(model: &[Prediction], other: &[Prediction]) -> Self {
        let tokens = model.len();
        let perplexity = [model, other].map(|predictions| {
            let sum: f64 = predictions.iter().map(|token| f64::from(token.logprob)).sum();
            (-sum / tokens as f64).exp()
        });
        let apart: Vec<f32> = model.iter().zip(other).map(|(a, b)| (a.logprob - b.logprob).abs()).collect();
        let further = |most: usize, i: usize| if apart[i] > apart[most] || apart[i].is_nan() { i } else { most };
        let at = (0..tokens).fold(0, further);
        Self {
            tokens,
            perplexity,
            mean: apart.iter().map(|&x| f64::from(x)).sum::<f64>() / tokens as f64,
            largest: apart[at],
            at: at + 1,
            same: model.iter().zip(other).filter(|(a, b)| a.likeliest == b.likeliest).count(),
        }
    }
}

impl fmt::Display for TextComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [model, other] = self.perplexity;
        let more = 100.0 * (model / other - 1.0);
        writeln!(f, "{:<12}{model:.4}; there {other:.4} ({more:+.2} %)", "perplexity")?;
        let Self { tokens, mean, largest, at, same, .. } = self;
        writeln!(f, "{:<12}{mean:.4} apart on average, {largest:.4} at most (token {at})", "log-probs")?;
        writeln!(f, "{:<12}{same} of {tokens} likeliest tokens the same", "greedy")
    }
}

/// The matrix of a layer that differs most from the other model's.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDifference {
    pub tensor: String,
    /// The root mean square of the differences of its elements over that of the other's elements.
    pub share: f64,
}

/// For each layer the matrix that differs most from the one of the same name and shape in the other model, as numbers.
/// Experts that are stored in one tensor are not compared.
pub fn layer_differences(model: &ModelFolder, other: &ModelFolder) -> Result<Vec<LayerDifference>> {
    let [own, there] = [Files::open(model)?, Files::open(other)?];
    let matrices: HashMap<&str, &TensorSpec> = there.matrices().map(|spec| (spec.name.as_str(), spec)).collect();
    let mut worst = Vec::new();
    for layer in 0..own.layout.layers.len() {
        let beginning = format!("model.layers.{layer}.");
        let mut of_layer: Option<LayerDifference> = None;
        for spec in own.matrices().filter(|spec| spec.name.starts_with(&beginning)) {
            let Some(same) = matrices.get(spec.name.as_str()).filter(|same| same.elements() == spec.elements()) else {
                continue;
            };
            let share = share(&own.numbers(spec)?, &there.numbers(same)?);
            if of_layer.as_ref().is_none_or(|most| share > most.share || share.is_nan()) {
                of_layer = Some(LayerDifference { tensor: spec.name.clone(), share });
            }
        }
        worst.extend(of_layer);
    }
    Ok(worst)
}

/// A model's files and what is in them.
struct Files {
    files: Box<dyn ModelFiles>,
    layout: Layout,
}

impl Files {
    fn open(model: &ModelFolder) -> Result<Self> {
        let files = weights::open(model)?;
        let layout = Layout::of(&files.complete(&model.config));
        Ok(Self { files, layout })
    }

    fn matrices(&self) -> impl Iterator<Item = &TensorSpec> {
        self.layout.tensors().filter(|spec| spec.shape.len() == 2)
    }

    /// The elements as little-endian f32.
    fn numbers(&self, spec: &TensorSpec) -> Result<Vec<u8>> {
        let mut numbers = Vec::new();
        self.files.parts(std::slice::from_ref(spec), Dtype::F32, Check::Values, &mut |parts| {
            numbers = parts[0].dense_bytes(Dtype::F32, 0..spec.cols());
            Ok(())
        })?;
        Ok(numbers)
    }
}

/// The root of the sum of squared differences over that of squares of `there`; both little-endian f32.
fn share(own: &[u8], there: &[u8]) -> f64 {
    let numbers = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect();
    let [own, there]: [Vec<f64>; 2] = [numbers(own), numbers(there)];
    let apart: f64 = own.iter().zip(&there).map(|(a, b)| (a - b).powi(2)).sum();
    let size: f64 = there.iter().map(|x| x.powi(2)).sum();
    if apart == 0.0 { 0.0 } else { (apart / size).sqrt() }
}

impl fmt::Display for LayerDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, by {:.3} % of its root mean square", self.tensor, 100.0 * self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_say_where_and_how_far() {
        let said = |logprobs: [f32; 3], likeliest: [u32; 3]| -> Vec<Prediction> {
            let pairs = logprobs.into_iter().zip(likeliest);
            pairs.map(|(logprob, token)| Prediction { logprob, likeliest: TokenId(token) }).collect()
        };
        let (a, b) = (said([-1.0, -2.0, -3.0], [1, 2, 3]), said([-1.0, -1.5, -3.25], [1, 2, 4]));
        let found = TextComparison::of(&a, &b);
        assert_eq!((found.tokens, found.same, found.at, found.largest), (3, 2, 2, 0.5));
        assert!((found.mean - 0.25).abs() < 1e-9);
        assert!((found.perplexity[0] - 2f64.exp()).abs() < 1e-9);
        assert!(TextComparison::of(&a, &said([-1.0, f32::NAN, -3.0], [1, 2, 3])).largest.is_nan());
        let bytes = |x: [f32; 2]| x.map(f32::to_le_bytes).concat();
        assert_eq!(share(&bytes([3.0, 4.5]), &bytes([3.0, 4.0])), 0.1);
        assert_eq!(share(&bytes([0.0, 0.0]), &bytes([0.0, 0.0])), 0.0);
    }
}
