//! The folder of an embedder: a model whose rows are the vectors of texts. It is read and checked before any weights
//! are loaded; how it is started, alone or beside a generator, is left to `pair`.
#![warn(missing_docs)]

use std::path::Path;
use std::sync::Arc;

use super::second::checked_share;
use super::{Demand, EngineOptions, Launched, ModelSource};
use offshoot_backend::Dtype;
use offshoot_core::error::Result;
use offshoot_core::setting::SCORER_MEMORY;
use offshoot_model::check::facts;
use offshoot_model::{EmbedderPooling, ModelConfig, ModelFolder};
use offshoot_text::Tokenizer;

/// An embedder whose weights are not loaded.
pub struct EmbedderFolder {
    folder: ModelFolder,
    dtype: Dtype,
    tokenizer: Arc<Tokenizer>,
    pooling: EmbedderPooling,
    memory: Option<f64>,
}

impl EmbedderFolder {
    /// Reads the folder of an embedder. `memory`: its share of the memory for keys and values beside a generator, in
    /// (0, 1); `None`: as much as holds texts of the length that the generator's part holds.
    ///
    /// # Errors
    ///
    /// The folder is no model whose rows are vectors, or asks for a pooling that is not computed; a tensor is missing
    /// or has another shape; the share is out of its range.
    pub fn open(path: &Path, memory: Option<f64>) -> Result<EmbedderFolder> {
        let memory = checked_share(SCORER_MEMORY, memory)?;
        let pooling = EmbedderPooling::read(path)?;
        let folder = ModelFolder::open_embedder(path)?;
        let dtype = facts(&folder)?.dtype;
        Ok(EmbedderFolder { folder, dtype, tokenizer: Arc::new(Tokenizer::load(path)?), pooling, memory })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder.path
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.folder.config
    }

    /// Its tokenizer, which need not be the generator's.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// What becomes of its rows.
    pub fn pooling(&self) -> EmbedderPooling {
        self.pooling
    }

    /// Its share of the memory for keys and values beside a generator.
    pub fn memory(&self) -> Option<f64> {
        self.memory
    }

    /// The model, for engines.
    pub fn source(&self) -> ModelSource<'_> {
        ModelSource::folder_of(&self.folder, self.dtype)
    }

    /// Loads the embedder as the only model, with the weights that the options ask for. Returns its folder with those.
    ///
    /// # Errors
    ///
    /// A budget is out of its range, or no device has room for it.
    pub fn start(self, options: &EngineOptions) -> Result<(Launched, EmbedderFolder)> {
        options.budget.check()?;
        let folder = EmbedderFolder { folder: self.folder.with(options.budget.weights)?, ..self };
        let launched = options.launch(folder.source(), None, Demand::unbounded()).start()?;
        Ok((launched, folder))
    }
}
