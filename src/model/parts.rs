//! The two parts that every layer is made of, linear layers and norms: loaded from a source, applied through the backend.

use crate::backend::Backend;
use crate::error::Result;

use super::layout::{LinearSpec, NormSpec, TensorSpec};
use super::weights::Source;

pub struct Linear<B: Backend> {
    matrix: B::Matrix,
    bias: Option<B::Vector>,
}

pub enum Norm<B: Backend> {
    Rms { weight: B::Vector, eps: f32 },
    Layer { weight: B::Vector, bias: B::Vector, eps: f32 },
}

impl<B: Backend> Linear<B> {
    pub fn load(backend: &mut B, source: &Source, spec: &LinearSpec) -> Result<Self> {
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
    /// A norm with a bias is a layer norm.
    pub fn load(backend: &mut B, source: &Source, spec: &NormSpec, eps: f32) -> Result<Self> {
        let mut vector = |tensor: &TensorSpec| source.vector(backend, std::slice::from_ref(tensor));
        let weight = vector(&spec.weight)?;
        Ok(match &spec.bias {
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
