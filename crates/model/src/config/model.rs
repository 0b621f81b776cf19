//! The configuration of a model as plain data, and what follows from its layers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use offshoot_backend::{Backend, Dtype, HeadLayout, LatentHeads, LayerState, StateDtype, WeightFormat};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::setting::WEIGHTS;

use super::families::Family;
use super::layer::{AttentionSpec, KeySource, LayerSpec, Norm};
use super::modules::Modules;
use super::output::OutputHead;
use super::quantisation::{ActivationChoice, Quantisation, WeightChoice};
use super::recurrent::RecurrentSpec;
use crate::layout::TensorSpec;

/// Everything that distinguishes one decoder from another, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub family: Family,
    /// The names of its tensors.
    pub modules: Modules,
    /// Width of the residual stream.
    pub hidden: usize,
    /// At least one.
    pub layers: Vec<LayerSpec>,
    /// The norm before the output layer.
    pub final_norm: Norm,
    pub vocab: usize,
    /// What becomes of a row behind the final norm.
    pub output: OutputHead,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Factor of the embeddings (Gemma).
    pub embed_scale: Option<EmbedScale>,
    /// Rows of the table of positions, which are added to the embeddings (GPT-2); `None`: there is none.
    pub positions: Option<usize>,
    /// Inputs that each layer gets besides the residual stream (Gemma 4's smaller models).
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Logits become `cap * tanh(logit / cap)` (Gemma 2 and 4).
    pub final_softcap: Option<f32>,
    /// Factor of the logits, before they are capped (MiniCPM3).
    pub logit_scale: Option<f32>,
    /// Whether the output layer has a bias.
    pub head_bias: bool,
    /// Whether the output layer is the embedding table.
    pub tied_embeddings: bool,
    /// How matrices are quantised; `None`: they are dense.
    pub quantisation: Option<Quantisation>,
    /// The compute dtype, to which dense weights are converted; `None`: that of the tensors.
    pub compute: Option<Dtype>,
    /// The dtype in config.json, for information: the dtype of the tensors is what counts.
    pub dtype: Option<Dtype>,
    pub bos: Option<TokenId>,
    /// End-of-text tokens.
    pub eos: Vec<TokenId>,
    /// How the tensors of a GGUF file are stored, by the layout's names; empty for other models.
    pub formats: Arc<HashMap<String, WeightFormat>>,
    /// Whether a layer stores what makes latents in another dtype than what makes queries of the same input: only the
    /// tensors tell. No product gives both then.
    pub latents_apart: bool,
}

/// What embeddings are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbedScale {
    pub factor: f32,
    /// Whether the factor itself is rounded to the compute dtype, as a module of that dtype holds it (Gemma, MiniCPM3).
    pub rounded: bool,
}

impl EmbedScale {
    /// The factor in a model of this compute dtype.
    pub fn in_dtype(self, dtype: Dtype) -> f32 {
        if self.rounded { dtype.round(self.factor) } else { self.factor }
    }
}

/// A second embedding of each token: `width` numbers for each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInputs {
    pub width: usize,
    /// Rows of its table.
    pub vocab: usize,
}

impl ModelConfig {
    /// This config with the weights that the user asks for. Errors, which name `path`: the checkpoint is quantised
    /// already.
    pub fn with(mut self, choice: WeightChoice, path: &Path) -> Result<Self> {
        let exact = choice.activations == ActivationChoice::Bf16;
        self.quantisation = match (self.quantisation, choice.weights) {
            (None, made) => made.map(|format| Quantisation::Made { format, exact, dense_head: false }),
            (Some(stored), None) => Some(if exact { stored.exact() } else { stored }),
            (Some(stored), Some(format)) => {
                let what = format!("{WEIGHTS} {format} is made of dense weights; this checkpoint has {stored}");
                return Err(Error::format(path, what));
            }
        };
        Ok(self)
    }

    /// What of the `choice` with which this was read changes the model: nothing if its matrices are dense.
    pub fn effect_of(&self, choice: WeightChoice) -> WeightChoice {
        if self.quantisation.is_none() { WeightChoice::default() } else { choice }
    }

    /// The attention of the layers that have it, in order.
    pub fn attention(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(LayerSpec::attention)
    }

    /// The heads of each layer with attention.
    pub fn heads(&self) -> impl Iterator<Item = HeadLayout> {
        self.attention().map(|attention| attention.heads)
    }

    /// The widths of latents, where the layers have latent attention: all have the same.
    pub fn latents(&self) -> Option<LatentHeads> {
        self.attention().find_map(|attention| Some(attention.latent()?.heads))
    }

    /// The state of each recurrent layer.
    pub fn states(&self) -> impl Iterator<Item = LayerState> {
        self.layers.iter().filter_map(LayerSpec::recurrent).map(RecurrentSpec::state)
    }

    /// Bytes of one sequence's state in all recurrent layers.
    pub fn state_bytes(&self, dtype: StateDtype) -> usize {
        self.states().map(|layer| layer.state_bytes(dtype)).sum()
    }

    /// What becomes of the dtype of states that is asked for: nothing if there are none.
    pub fn state_dtype(&self, asked: StateDtype) -> StateDtype {
        if self.states().next().is_some() { asked } else { StateDtype::default() }
    }

    /// The heads of each layer that stores keys and values, in order.
    pub fn stored_heads(&self) -> impl Iterator<Item = HeadLayout> {
        self.attention().filter(|attention| attention.stores_keys()).map(|attention| attention.heads)
    }

    /// For each layer, which of the layers that store keys and values it reads; of one without attention, how many come
    /// before it.
    pub fn stored_layers(&self) -> Vec<usize> {
        let stores = |layer: &&LayerSpec| layer.attention().is_some_and(AttentionSpec::stores_keys);
        let before = |layer: usize| self.layers[..layer].iter().filter(stores).count();
        let read = self.layers.iter().enumerate().map(|(layer, spec)| match spec.attention().map(|spec| spec.keys) {
            Some(KeySource::OfLayer(other)) => before(other),
            Some(KeySource::Projected | KeySource::KeysAreValues | KeySource::Latent(_)) | None => before(layer),
        });
        read.collect()
    }

    /// Whether a backend multiplies matrices of `format` in this model, experts among them.
    pub fn is_multiplied<B: Backend>(&self, backend: &B, format: WeightFormat) -> bool {
        backend.multiplies(format) && self.expert_widths().all(|width| backend.multiplies_experts(format, width))
    }

    /// The width of the experts of each mixture.
    pub fn expert_widths(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().filter_map(|layer| Some(layer.feed_forward.experts()?.width))
    }

    /// Whether a layer is a mixture of experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| layer.feed_forward.experts().is_some())
    }

    /// This model as a device holds it that makes matrices dense unless it `multiplies` their format; see
    /// [`Quantisation::held_where`].
    #[must_use]
    pub fn held_where(&self, multiplies: impl Fn(WeightFormat) -> bool) -> Self {
        let mut held = self.clone();
        held.quantisation =
            held.quantisation.and_then(|how| how.held_where(|format| multiplies(WeightFormat::Quantised(format))));
        if held.formats.values().any(|&format| !multiplies(format)) {
            let kept = self.formats.iter().filter(|(_, format)| multiplies(**format));
            held.formats = Arc::new(kept.map(|(name, format)| (name.clone(), *format)).collect());
        }
        held
    }

    /// How a tensor is stored; `dtype`: if it is not quantised.
    pub fn format(&self, tensor: &TensorSpec, dtype: Dtype) -> WeightFormat {
        let quantised = || self.quantisation.as_ref().and_then(|how| how.format(tensor, self.tied_embeddings));
        let stored = self.formats.get(&tensor.name).copied();
        stored.or_else(|| quantised().map(WeightFormat::Quantised)).unwrap_or(WeightFormat::Dense(dtype))
    }
}
