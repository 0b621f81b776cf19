//! Says what becomes of matrices that a device does not hold as they are stored, one line for each kind, when a model
//! is loaded. `weights` decides it.

use std::collections::{BTreeMap, HashSet};

use offshoot_backend::{Backend, Dtype, WeightFormat};
use offshoot_core::figures::{bytes, counted};

use super::config::{ModelConfig, Quantisation};
use super::model_weights::ModelWeights;
use super::update::WeightForm;
use super::weights::have_one_dtype;

/// Says it of the weights that are about to be loaded on `backend`.
pub fn note<B: Backend>(backend: &B, weights: &ModelWeights, form: &WeightForm) {
    let (config, dtype) = (weights.config(), weights.dtype());
    if let Some(said) = made_dense(backend, config, dtype) {
        log::warn!("{said}");
    }
    let is_changed = |name: &str, is_of_maps: bool| {
        let changes = is_of_maps || have_one_dtype(B::MIXES_DTYPES, config.compute.is_some());
        form.format(name).and_then(WeightFormat::dense).filter(|&stored| changes && stored != dtype)
    };
    if let Some(said) = rounded(weights, is_changed) {
        log::warn!("{said} become {dtype} on {}, as the layers are", backend.describe());
    }
}

/// Quantised matrices that become dense, as the device does not multiply their formats.
fn made_dense<B: Backend>(backend: &B, config: &ModelConfig, dtype: Dtype) -> Option<String> {
    let held = config.held_where(|format| config.is_multiplied(backend, format));
    let (stored, dense) = (config.weight_bytes(dtype), held.weight_bytes(dtype));
    if stored == dense || matches!(config.quantisation, Some(Quantisation::Made { .. })) {
        return None;
    }
    let device = backend.describe();
    let (stored, dense) = (bytes(stored as u64), bytes(dense as u64));
    Some(format!("quantised matrices become {dtype} on {device}, which multiplies no others: {dense}, stored {stored}"))
}

/// Dense matrices that become the compute dtype: how many, of which dtypes, and the first. `changed`: the stored dtype
/// of a matrix of this name that changes; the flag says whether it has the maps of latents.
fn rounded(weights: &ModelWeights, changed: impl Fn(&str, bool) -> Option<Dtype>) -> Option<String> {
    let maps = weights.layout.layers.iter().filter_map(|layer| layer.latent.as_ref());
    let maps: HashSet<&str> = maps.map(|latent| latent.maps.name.as_str()).collect();
    // Some tensors are read twice.
    let mut seen = HashSet::new();
    let (mut first, mut counts) = (None, BTreeMap::<String, u64>::new());
    for spec in weights.layout.matrices().filter(|spec| seen.insert(&spec.name)) {
        if let Some(stored) = changed(&spec.name, maps.contains(spec.name.as_str())) {
            first.get_or_insert(&spec.name);
            *counts.entry(stored.to_string()).or_default() += 1;
        }
    }
    let of_dtype = |(dtype, &count): (&String, &u64)| format!("{} of {dtype}", counted(count, "tensor"));
    let counts: Vec<String> = counts.iter().map(of_dtype).collect();
    first.map(|first| format!("{} (`{first}` is the first)", counts.join(" and ")))
}
