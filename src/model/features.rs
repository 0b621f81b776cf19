//! What a model needs of a backend beyond the ops of a plain decoder, and the error where the backend lacks it.

use crate::backend::{Backend, Feature};
use crate::error::{Error, Result};

use super::config::{AttentionSpec, KeySource, ModelConfig, kinds};

/// The widest heads of a plain decoder.
const WIDE: usize = 256;

/// Refuses a model that needs what `backend` lacks.
pub fn check<B: Backend>(config: &ModelConfig, backend: &B) -> Result<()> {
    match of(config).into_iter().find(|&feature| !backend.supports(feature)) {
        None => Ok(()),
        Some(feature) => {
            let expected = format!("a model without {feature}, which {} lacks and the CPU has", backend.describe());
            Err(Error::value("model_type", expected, config.family.to_string()))
        }
    }
}

/// The features of a model.
fn of(config: &ModelConfig) -> Vec<Feature> {
    let attention = |has: fn(&AttentionSpec) -> bool| config.layers.iter().any(|layer| has(&layer.attention));
    let stored = kinds(config.heads()).len() > 1 || attention(|a| matches!(a.keys, KeySource::OfLayer(_)));
    let all = [
        (config.layers.iter().any(|layer| layer.feed_forward.experts().is_some()), Feature::Experts),
        (attention(|a| a.sinks), Feature::Sinks),
        (attention(|a| a.softcap.is_some()), Feature::Softcaps),
        (config.per_layer_inputs.is_some(), Feature::LayerInputs),
        (stored, Feature::MixedHeads),
        (attention(|a| a.heads.head_dim > WIDE), Feature::WideHeads),
    ];
    all.into_iter().filter(|(needed, _)| *needed).map(|(_, feature)| feature).collect()
}
