//! The building blocks of layers: linear layers and norms. Each is loaded by a `Loader` and applied through the
//! backend.

use std::sync::Arc;

use offshoot_backend::{Backend, Gate, OutputMode, Split};
use offshoot_core::error::Result;

use super::config::Norm;
use super::layout::{LinearTensors, NormTensors, TensorSpec};
use super::loader::Loader;
use super::lora::{AdaptedIx, AdaptedLayer, StepAdapters};

/// A linear layer, with or without bias.
pub struct Linear<B: Backend> {
    matrix: Arc<B::Matrix>,
    bias: Option<Arc<B::Vector>>,
    /// Its place among the layers that adapters may change.
    adapted: AdaptedIx,
}

/// A norm with its weights.
pub enum NormLayer<B: Backend> {
    Rms { weight: Arc<B::Vector>, eps: f32 },
    Layer { weight: Arc<B::Vector>, bias: Arc<B::Vector>, eps: f32 },
}

impl<B: Backend> Linear<B> {
    pub fn load(loader: &mut Loader<'_, B>, spec: &LinearTensors) -> Result<Self> {
        let LinearTensors { weights, biases, rows, split } = spec;
        let matrix = loader.matrix(weights, rows.as_deref(), split)?;
        let bias = match biases.as_slice() {
            [] => None,
            biases => Some(loader.vector(biases, rows.as_deref(), split)?),
        };
        let adapted = AdaptedLayer::of(spec, loader.compute_dtype());
        Ok(Self { matrix, bias, adapted: loader.adapts(adapted) })
    }

    /// `out = w x (+ bias)`, and what the rows' adapters add.
    pub fn apply(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer, adapters: StepAdapters<'_, B>) {
        let (matrix, bias) = (&*self.matrix, self.bias.as_deref());
        adapters.linear(self.adapted, backend, out, x, matrix, bias, OutputMode::Replace);
    }

    /// `out = gate(x)`, which this layer alone reads.
    pub fn gate_input(
        &self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        gate: Gate,
        adapters: StepAdapters<'_, B>,
    ) {
        backend.gated(out, x, gate, self.reads_alone(adapters));
    }

    /// `residual += w x (+ bias)`, and what the rows' adapters add.
    pub fn add_to(&self, backend: &mut B, residual: &mut B::Buffer, x: &B::Buffer, adapters: StepAdapters<'_, B>) {
        let (matrix, bias) = (&*self.matrix, self.bias.as_deref());
        adapters.linear(self.adapted, backend, residual, x, matrix, bias, OutputMode::Add);
    }

    /// The matrix, if no adapter reads the layer's input, too.
    fn reads_alone(&self, adapters: StepAdapters<'_, B>) -> Option<&B::Matrix> {
        (!adapters.add_to(self.adapted)).then_some(&*self.matrix)
    }
}

impl<B: Backend> NormLayer<B> {
    /// A layer norm without a bias has one of zeros.
    pub fn load(loader: &mut Loader<'_, B>, tensors: &NormTensors, norm: Norm) -> Result<Self> {
        let weight = norm_weight(loader, &tensors.weight, norm)?;
        let eps = norm.eps();
        if !norm.is_layer_norm() {
            return Ok(Self::Rms { weight, eps });
        }
        let bias = match &tensors.bias {
            Some(bias) => loader.vector(std::slice::from_ref(bias), None, &Split::Whole)?,
            None => loader.constant(&vec![0.0; tensors.weight.elements()])?,
        };
        Ok(Self::Layer { weight, bias, eps })
    }

    /// `out = norm(x)`
    pub fn apply(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer) {
        match self {
            Self::Rms { weight, eps } => backend.rms_norm(out, x, weight, *eps, None),
            Self::Layer { weight, bias, eps } => backend.layer_norm(out, x, weight, bias, *eps),
        }
    }

    /// `out = norm(x)`, which nothing but `next` reads, and that next.
    pub fn apply_for(
        &self,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        next: &Linear<B>,
        adapters: StepAdapters<'_, B>,
    ) {
        match self {
            Self::Rms { weight, eps } => backend.rms_norm(out, x, weight, *eps, next.reads_alone(adapters)),
            Self::Layer { .. } => self.apply(backend, out, x),
        }
    }

    /// `out += norm(x)`
    pub fn add_to(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer) {
        match self {
            Self::Rms { weight, eps } => backend.rms_norm_add(out, x, weight, *eps),
            Self::Layer { .. } => unreachable!("no family has a layer norm behind a block"),
        }
    }
}

/// The weights of a norm as they multiply.
pub fn norm_weight<B: Backend>(loader: &mut Loader<'_, B>, tensor: &TensorSpec, norm: Norm) -> Result<Arc<B::Vector>> {
    norm_weights(loader, std::slice::from_ref(tensor), norm, &Split::Whole)
}

/// The weights of norms of one kind, concatenated.
pub fn norm_weights<B: Backend>(
    loader: &mut Loader<'_, B>,
    tensors: &[TensorSpec],
    norm: Norm,
    split: &Split,
) -> Result<Arc<B::Vector>> {
    match (norm, tensors) {
        (Norm::Rms { .. } | Norm::Layer { .. } | Norm::LayerNoBias { .. }, _) => loader.vector(tensors, None, split),
        (Norm::RmsPlusOne { .. } | Norm::LayerPlusOne { .. }, [tensor]) => {
            loader.made_vector(tensor, split, |weight| 1.0 + weight)
        }
        (Norm::RmsPlusOne { .. } | Norm::LayerPlusOne { .. }, _) => {
            unreachable!("no family has heads with norms of their own by one plus the weights")
        }
    }
}
