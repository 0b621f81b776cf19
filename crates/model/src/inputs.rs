//! Inputs that each layer gets besides the residual stream (Gemma 4's smaller models): a second embedding of the token,
//! mixed with a projection of the first. Made once a step for all layers; each layer reads its part at its end.

use std::sync::Arc;

use offshoot_backend::{Backend, Dtype, HeadKind, HeadLayout, HeadNormForm, Split};
use offshoot_core::error::Result;

use super::activations::{BlockBuffers, StreamBuffers};
use super::config::{ModelConfig, Norm, PerLayerInputs};
use super::layout::{InputTensors, LayerInputTensors};
use super::loader::Loader;
use super::lora::StepAdapters;
use super::parts::{Linear, NormLayer, norm_weight};

/// Makes the inputs of all layers.
pub struct InputTable<B: Backend> {
    embed: Arc<B::Matrix>,
    embed_scale: f32,
    projection: Linear<B>,
    projection_scale: f32,
    /// A head for each layer.
    parts: HeadLayout,
    norm: Arc<B::Vector>,
    eps: f32,
}

/// How a layer reads its input.
pub struct LayerInput<B: Backend> {
    gate: Linear<B>,
    projection: Linear<B>,
    norm: NormLayer<B>,
    /// Its first element in the inputs of all layers.
    first: usize,
}

impl<B: Backend> InputTable<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        tensors: &InputTensors,
        config: &ModelConfig,
        inputs: PerLayerInputs,
        dtype: Dtype,
    ) -> Result<Self> {
        Ok(Self {
            embed: loader.matrix(std::slice::from_ref(&tensors.embed), None, &Split::Whole)?,
            embed_scale: dtype.round((inputs.width as f32).sqrt()),
            projection: Linear::load(loader, &tensors.projection)?,
            projection_scale: 1.0 / (config.hidden as f32).sqrt(),
            parts: HeadLayout::new(config.layers.len(), 0, inputs.width),
            norm: norm_weight(loader, &tensors.norm, config.final_norm)?,
            eps: config.final_norm.eps(),
        })
    }

    /// Fills `inputs` from the tokens of the step and their embeddings in `residual`.
    pub fn fill(&self, backend: &mut B, s: &mut StreamBuffers<B>, step: &B::Step, adapters: StepAdapters<'_, B>) {
        let Some(inputs) = &mut s.inputs else { unreachable!("models with inputs by layer have buffers for them") };
        backend.embed(&mut inputs.tokens, &self.embed, step);
        backend.scale(&mut inputs.tokens, self.embed_scale);
        backend.round(&mut s.normed, &s.residual);
        self.projection.apply(backend, &mut inputs.layers, &s.normed, adapters);
        backend.scale(&mut inputs.layers, self.projection_scale);
        backend.head_norm(&mut inputs.layers, self.parts, HeadKind::Query, HeadNormForm::PLAIN, &self.norm, self.eps);
        backend.add(&mut inputs.layers, &inputs.tokens);
        backend.scale(&mut inputs.layers, std::f32::consts::FRAC_1_SQRT_2);
    }
}

impl<B: Backend> LayerInput<B> {
    /// `first`: the layer's first element in the inputs of all layers.
    pub fn load(loader: &mut Loader<'_, B>, tensors: &LayerInputTensors, norm: Norm, first: usize) -> Result<Self> {
        Ok(Self {
            gate: Linear::load(loader, &tensors.gate)?,
            projection: Linear::load(loader, &tensors.projection)?,
            norm: NormLayer::load(loader, &tensors.norm, norm)?,
            first,
        })
    }

    /// `residual += norm(projection(gelu(gate residual) * input))`
    pub fn add_to(&self, backend: &mut B, s: &mut StreamBuffers<B>, adapters: StepAdapters<'_, B>) {
        let Some(inputs) = &mut s.inputs else { unreachable!("models with inputs by layer have buffers for them") };
        backend.round(&mut s.normed, &s.residual);
        self.gate.apply(backend, &mut inputs.gated, &s.normed, adapters);
        backend.gelu_times(&mut inputs.gated, &inputs.layers, self.first);
        let BlockBuffers { block, .. } = StreamBuffers::behind_blocks(&mut s.blocks);
        self.projection.apply(backend, block, &inputs.gated, adapters);
        self.norm.add_to(backend, &mut s.residual, block);
    }
}
