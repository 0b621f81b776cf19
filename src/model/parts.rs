//! The parts that every layer is made of, linear layers, norms and the feed-forward part: loaded from a source, applied
//! through the backend.

use crate::backend::Backend;
use crate::error::Result;

use super::activations::Inner;
use super::config::{self, Activation};
use super::layout::{LinearTensors, NormTensors, TensorSpec};
use super::weights::Source;

pub struct Linear<B: Backend> {
    matrix: B::Matrix,
    bias: Option<B::Vector>,
}

pub enum Norm<B: Backend> {
    Rms { weight: B::Vector, eps: f32 },
    Layer { weight: B::Vector, bias: B::Vector, eps: f32 },
}

/// What stands behind attention.
pub enum FeedForward<B: Backend> {
    Dense { activation: Activation, up: Linear<B>, down: Linear<B> },
}

impl<B: Backend> FeedForward<B> {
    /// `residual += feed_forward(x)`
    pub fn add_to(&self, backend: &mut B, residual: &mut B::Buffer, x: &B::Buffer, inner: &mut Inner<B>) {
        match self {
            FeedForward::Dense { activation, up, down } => {
                up.apply(backend, &mut inner.up, x);
                match (activation, &mut inner.gated) {
                    (Activation::GatedSilu, Some(gated)) => {
                        backend.gated_silu(gated, &inner.up);
                        down.add_to(backend, residual, gated);
                    }
                    (Activation::GatedSilu, None) => unreachable!("`Inner::new` makes room for what is gated"),
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
    pub fn load(backend: &mut B, source: &Source, spec: &LinearTensors) -> Result<Self> {
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

impl<B: Backend> Norm<B> {
    /// A norm whose tensors have a bias is a layer norm.
    pub fn load(backend: &mut B, source: &Source, tensors: &NormTensors, norm: config::Norm) -> Result<Self> {
        let mut vector = |tensor: &TensorSpec| source.vector(backend, std::slice::from_ref(tensor));
        let (weight, eps) = (vector(&tensors.weight)?, norm.eps());
        Ok(match &tensors.bias {
            None => Self::Rms { weight, eps },
            Some(bias) => Self::Layer { weight, bias: vector(bias)?, eps },
        })
    }

    pub fn apply(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer) {
        match self {
            Self::Rms { weight, eps } => backend.rms_norm(out, x, weight, *eps),
            Self::Layer { weight, bias, eps } => backend.layer_norm(out, x, weight, bias, *eps),
        }
    }
}
