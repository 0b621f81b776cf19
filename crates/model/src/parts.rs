//! The building blocks of layers: linear layers and norms. Each is loaded from a weight source and applied through the
//! backend.

use offshoot_backend::{Backend, Gate, OutputMode};
use offshoot_core::error::Result;

use super::config::Norm;
use super::layout::{LinearTensors, NormTensors, TensorSpec};
use super::lora::{AdaptedLayer, StepAdapters};
use super::weights::{WeightSource, split_vector_of, vector_of};

/// A linear layer, with or without bias.
pub struct Linear<B: Backend> {
    matrix: B::Matrix,
    bias: Option<B::Vector>,
    /// What adapters add.
    pub lora: AdaptedLayer<B>,
}

/// A norm with its weights.
pub enum NormLayer<B: Backend> {
    Rms { weight: B::Vector, eps: f32 },
    Layer { weight: B::Vector, bias: B::Vector, eps: f32 },
}

impl<B: Backend> Linear<B> {
    pub fn load(backend: &mut B, source: &WeightSource, spec: &LinearTensors) -> Result<Self> {
        let LinearTensors { weights, biases, rows, split } = spec;
        let matrix = match rows {
            None => source.matrix(backend, weights, split)?,
            Some(rows) => source.matrix_rows(backend, weights, rows, split)?,
        };
        let bias = match (biases.as_slice(), rows) {
            ([], _) => None,
            (biases, None) => Some(source.split_vector(backend, biases, split)?),
            (biases, Some(rows)) => {
                let stacked = biases.iter().map(|bias| source.values(bias)).collect::<Result<Vec<_>>>()?.concat();
                let chosen: Vec<f32> = rows.iter().flat_map(|rows| &stacked[rows.clone()]).copied().collect();
                Some(split_vector_of(backend, &chosen, split)?)
            }
        };
        Ok(Self { matrix, bias, lora: AdaptedLayer::of(spec, source.compute_dtype()) })
    }

    /// `out = w x (+ bias)`, and what the rows' adapters add.
    pub fn apply(&self, backend: &mut B, out: &mut B::Buffer, x: &B::Buffer, adapters: StepAdapters<'_, B>) {
        self.lora.linear(backend, out, x, &self.matrix, self.bias.as_ref(), OutputMode::Replace, adapters);
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
        self.lora.linear(backend, residual, x, &self.matrix, self.bias.as_ref(), OutputMode::Add, adapters);
    }

    /// The matrix, if no adapter reads the layer's input, too.
    fn reads_alone(&self, adapters: StepAdapters<'_, B>) -> Option<&B::Matrix> {
        (!self.lora.adds(adapters)).then_some(&self.matrix)
    }
}

impl<B: Backend> NormLayer<B> {
    /// Loads a layer norm if the tensors have a bias, else an RMS norm.
    pub fn load(backend: &mut B, source: &WeightSource, tensors: &NormTensors, norm: Norm) -> Result<Self> {
        let weight = norm_weight(backend, source, &tensors.weight, norm)?;
        let eps = norm.eps();
        Ok(match &tensors.bias {
            None => Self::Rms { weight, eps },
            Some(bias) => Self::Layer { weight, bias: source.vector(backend, std::slice::from_ref(bias))?, eps },
        })
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
pub fn norm_weight<B: Backend>(
    backend: &mut B,
    source: &WeightSource,
    tensor: &TensorSpec,
    norm: Norm,
) -> Result<B::Vector> {
    match norm {
        Norm::Rms { .. } | Norm::Layer { .. } => source.vector(backend, std::slice::from_ref(tensor)),
        Norm::RmsPlusOne { .. } => {
            let weights: Vec<f32> = source.values(tensor)?.into_iter().map(|weight| 1.0 + weight).collect();
            vector_of(backend, &weights)
        }
    }
}
