//! In what two configurations differ, where the weights of one are to take the place of the other's: everything that
//! decides shapes or the arithmetic, but not special tokens and the longest context.

use std::fmt::Debug;

use super::layer::{AttentionSpec, LayerSpec, Mixer};
use super::model::ModelConfig;
use crate::layout::{Layout, TensorSpec};

/// The first field in which another configuration differs from that of a loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// As config.json calls it, or the part of a layer.
    pub field: String,
    pub loaded: String,
    pub other: String,
}

impl Difference {
    fn of<T: PartialEq + Debug>(field: impl Into<String>, loaded: &T, other: &T) -> Option<Self> {
        let said = |value: &T| format!("{value:?}");
        (loaded != other).then(|| Difference { field: field.into(), loaded: said(loaded), other: said(other) })
    }
}

impl ModelConfig {
    /// The first difference from `other`, whose weights are to take the place of this model's.
    pub fn difference(&self, other: &ModelConfig) -> Option<Difference> {
        let layers = [self, other].map(|config| config.layers.len());
        Difference::of("model_type", &self.family, &other.family)
            .or_else(|| Difference::of("num_hidden_layers", &layers[0], &layers[1]))
            .or_else(|| shape_difference(self, other))
            .or_else(|| self.layers.iter().zip(&other.layers).enumerate().find_map(of_layer))
            .or_else(|| Difference::of("the norm before the output layer", &self.final_norm, &other.final_norm))
            .or_else(|| Difference::of("the factor of the embeddings", &self.embed_scale, &other.embed_scale))
            .or_else(|| Difference::of("the table of positions", &self.positions, &other.positions))
            .or_else(|| Difference::of("per-layer inputs", &self.per_layer_inputs, &other.per_layer_inputs))
            .or_else(|| Difference::of("the factor of logits", &self.logit_scale, &other.logit_scale))
            .or_else(|| Difference::of("final_logit_softcapping", &self.final_softcap, &other.final_softcap))
            .or_else(|| Difference::of("the output", &self.output, &other.output))
            .or_else(|| Difference::of("the bias of the output layer", &self.head_bias, &other.head_bias))
    }
}

/// The first size of a tensor that differs, by its field.
fn shape_difference(loaded: &ModelConfig, other: &ModelConfig) -> Option<Difference> {
    // Names may differ by how experts are stored, and their order by what is stacked.
    let named = ModelConfig { modules: loaded.modules, latents_apart: loaded.latents_apart, ..other.clone() };
    let layouts = [loaded, &named].map(Layout::of);
    let [ours, theirs] = layouts.each_ref().map(|layout| layout.tensors().collect::<Vec<&TensorSpec>>());
    let of_pair = |(ours, theirs): (&&TensorSpec, &&TensorSpec)| {
        let dims = ours.shape.iter().zip(&theirs.shape).find(|(ours, theirs)| ours.size != theirs.size);
        dims.and_then(|(ours, theirs)| Difference::of(ours.field, &ours.size, &theirs.size))
    };
    ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours.name == theirs.name).find_map(of_pair)
}

fn of_layer((ix, (loaded, other)): (usize, (&LayerSpec, &LayerSpec))) -> Option<Difference> {
    let at = |part: &str| format!("layer {ix}, {part}");
    let mixer = match (&loaded.mixer, &other.mixer) {
        (Mixer::Attention(loaded), Mixer::Attention(other)) => of_attention(&at, loaded, other),
        (loaded, other) => Difference::of(at("attention or state"), loaded, other),
    };
    mixer
        .or_else(|| Difference::of(at("feed-forward block"), &loaded.feed_forward, &other.feed_forward))
        .or_else(|| Difference::of(at("norms"), &loaded.norms, &other.norms))
        .or_else(|| Difference::of(at("layer_scalar"), &loaded.output_scale, &other.output_scale))
        .or_else(|| Difference::of(at("the factor of blocks"), &loaded.branch_scale, &other.branch_scale))
}

fn of_attention(at: &impl Fn(&str) -> String, loaded: &AttentionSpec, other: &AttentionSpec) -> Option<Difference> {
    Difference::of(at("heads"), &loaded.heads, &other.heads)
        .or_else(|| Difference::of(at("sliding_window"), &loaded.window, &other.window))
        .or_else(|| Difference::of(at("rope"), &loaded.rope, &other.rope))
        .or_else(|| Difference::of(at("norms of queries and keys"), &loaded.head_norm, &other.head_norm))
        .or_else(|| Difference::of(at("attention"), loaded, other))
}
