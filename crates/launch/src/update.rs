//! Folders with which the weights of a running engine are updated. The engine checks and applies them; here a folder's
//! configuration is compared with the loaded one, and the new weights get an identity.
#![warn(missing_docs)]

use std::path::Path;
use std::sync::Arc;

use offshoot_core::error::Result;
use offshoot_engine::WeightsUpdate;
use offshoot_model::hashes::hash_of_tensors;
use offshoot_model::{CheckedUpdate, ModelConfig, TensorFolder, TensorSource, UpdateScope, WeightForm};

/// A folder of tensors of a model that is loaded: all of them, or what has changed.
pub struct UpdateFolder {
    tensors: TensorFolder,
    scope: UpdateScope,
}

impl UpdateFolder {
    /// Opens a folder, whose config.json must agree with that of the loaded model if there is one.
    ///
    /// # Errors
    ///
    /// It has no tensors that can be read; or the first field in which the configurations differ.
    pub fn open(path: &Path, scope: UpdateScope, form: &WeightForm) -> Result<Self> {
        let config = path.join("config.json");
        if config.is_file() {
            form.check_config(&ModelConfig::from_file(&config)?, &config)?;
        }
        Ok(Self { tensors: TensorFolder::open(path)?, scope })
    }

    /// Checks all tensors, which can be done while the engine works.
    ///
    /// # Errors
    ///
    /// See [`WeightForm::check`].
    pub fn check<'a>(&'a self, form: &WeightForm) -> Result<CheckedUpdate<'a>> {
        form.check(&self.tensors, self.scope)
    }

    /// The tensors.
    pub fn tensors(&self) -> &TensorFolder {
        &self.tensors
    }

    /// What identifies the model after the update; `None` where only some tensors change, as others are not here, and
    /// of GGUF models. All bytes count, as two steps of a training may differ in few of them.
    pub fn identity(&self) -> Option<String> {
        let hash =
            || hash_of_tensors(&self.tensors).expect("a folder's tensors lie in host memory, where all are read");
        (self.scope == UpdateScope::Whole && self.tensors.gguf().is_none()).then(hash)
    }

    /// The update for an engine (`EngineHandle::update_weights`, which checks it). The identity is found, which reads
    /// all bytes, where the engine keeps prefixes on disk.
    pub fn into_update(self, label: Option<String>, keeps_prefixes: bool) -> WeightsUpdate {
        let identity = if keeps_prefixes { self.identity() } else { None };
        WeightsUpdate { source: Arc::new(self.tensors), scope: self.scope, label, identity }
    }
}
