//! The building blocks of layers: linear layers, norms and the feed-forward block. Each is loaded from a weight source
//! and applied through the backend.

use crate::backend::Backend;
use crate::error::Result;

use super::activations::InnerBuffers;
use super::config::{Activation, Norm};
use super::layout::{LinearTensors, NormTensors, TensorSpec};
use super::weights::WeightSource;

/// A linear layer, with or without bias.
pub struct Linear<B: Backend> {
    matrix: B::Matrix,
    bias: Option<B::Vector>,
}

/// A norm with its weights.
pub enum NormLayer<B: Backend> {
    Rms { weight: B::Vector, eps: f32 },
    Layer { weight: B::Vector, bias: B::Vector, eps: f32 },
}

/// The feed-forward block of a layer, which follows attention.
pub enum FeedForwardLayer<B: Backend> {
    Dense { activation: Activation, up: Linear<B>, down: Linear<B> },
}

impl<B: Backend> FeedForwardLayer<B> {
    /// `residual += feed_forward(x)`
    pub fn add_to(&self, backend: &mut B, residual: &mut B::Buffer, x: &B::Buffer, inner: &mut InnerBuffers<B>) {
        match self {
            FeedForwardLayer::Dense { activation, up, down } => {
                up.apply(backend, &mut inner.up, x);
                match (activation, &mut inner.gated) {
                    (Activation::GatedSilu, Some(gated)) => {
                        backend.gated_silu(gated, &inner.up);
                        down.add_to(backend, residual, gated);
                    }
                    (Activation::GatedSilu, None) => unreachable!("`InnerBuffers::new` makes a buffer for gated kinds"),
                    (Activation::Gelu, _) => {
                        backend.gelu(&mut inner.up);
                        down.add_to(backend, residual, &inner.up);
                    }
                }
            }
        }
    }
}

impl<B: Backend> Linear<B> {
    pub fn load(backend: &mut B, source: &WeightSource, spec: &LinearTensors) -> Result<Self> {
        let matrix = source.matrix(backend, &spec.weights)?;
        let bias = if spec.biases.is_empty() { None } else { Some(source.vector(backend, &spec.biases)?) };
        Ok(Self { matrix, bias })
    }

    /// `out = w x (+ bias)`
    pub fn apply(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer) {
        backend.linear(out, x, &self.matrix, self.bias.as_ref());
    }

    /// `residual += w x (+ bias)`
    pub fn add_to(&self, backend: &mut B, residual: &mut B::Buffer, x: &B::Buffer) {
        backend.linear_add(residual, x, &self.matrix, self.bias.as_ref());
    }
}

impl<B: Backend> NormLayer<B> {
    /// Loads a layer norm if the tensors have a bias, else an RMS norm.
    pub fn load(backend: &mut B, source: &WeightSource, tensors: &NormTensors, norm: Norm) -> Result<Self> {
        let mut vector = |tensor: &TensorSpec| source.vector(backend, std::slice::from_ref(tensor));
        let (weight, eps) = (vector(&tensors.weight)?, norm.eps());
        Ok(match &tensors.bias {
            None => Self::Rms { weight, eps },
            Some(bias) => Self::Layer { weight, bias: vector(bias)?, eps },
        })
    }

    /// `out = norm(x)`
    pub fn apply(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer) {
        match self {
            Self::Rms { weight, eps } => backend.rms_norm(out, x, weight, *eps),
            Self::Layer { weight, bias, eps } => backend.layer_norm(out, x, weight, bias, *eps),
        }
    }
}
