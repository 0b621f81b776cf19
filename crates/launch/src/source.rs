//! Where the weights of an engine's model come from, and the memory that they take on a device.

use offshoot_backend::{Backend, Dtype};
use offshoot_core::error::Result;
use offshoot_model::check::facts;
use offshoot_model::hashes::hash_of_folder;
use offshoot_model::{Decoder, ModelConfig, ModelFolder, ModelWeights};

/// Where a model's weights come from.
#[derive(Clone, Copy)]
pub struct ModelSource<'a> {
    pub config: &'a ModelConfig,
    /// The compute dtype.
    pub dtype: Dtype,
    /// `None`: random weights.
    folder: Option<&'a ModelFolder>,
}

/// Seed of random weights, so that every run has the same ones.
const SEED: u64 = 1;

impl<'a> ModelSource<'a> {
    pub fn folder(folder: &'a ModelFolder) -> Result<Self> {
        Ok(Self::folder_of(folder, facts(folder)?.dtype))
    }

    /// A folder whose compute dtype is known.
    pub fn folder_of(folder: &'a ModelFolder, dtype: Dtype) -> Self {
        ModelSource { config: &folder.config, dtype, folder: Some(folder) }
    }

    pub fn random(config: &'a ModelConfig, dtype: Dtype) -> Self {
        ModelSource { config, dtype, folder: None }
    }

    /// Bytes of the weights on this device, where matrices become dense whose format it does not multiply; on several
    /// that compute together, of all, each with a copy of what is not divided.
    pub fn weight_bytes_on<B: Backend>(&self, backend: &B) -> usize {
        let (held, devices) = (self.held_by(backend), backend.devices());
        held.held_bytes(self.dtype, backend.latent_map_copies())
            + held.repeated_bytes(self.dtype, devices, backend.sharing())
    }

    /// The model as this device holds it.
    pub fn held_by<B: Backend>(&self, backend: &B) -> ModelConfig {
        self.config.held_where(|format| self.config.is_multiplied(backend, format))
    }

    /// Identifies the weights: a hash of the folder, or what random ones follow from.
    pub(super) fn identity(&self) -> Result<String> {
        match self.folder {
            Some(folder) => hash_of_folder(&folder.path),
            None => Ok(format!("random, seed {SEED}, {:?}, {:?}", self.dtype, self.config)),
        }
    }

    pub fn weights(&self) -> Result<ModelWeights> {
        match self.folder {
            Some(folder) => ModelWeights::open(folder),
            None => Ok(ModelWeights::random(self.config.clone(), self.dtype, SEED)),
        }
    }

    pub fn load<B: Backend>(&self, backend: &mut B) -> Result<Decoder<B>> {
        Decoder::of(backend, &self.weights()?)
    }
}
