//! Starts a model whose values are the vectors of texts, alone. Which vector a text has, and what compares two of them,
//! is left to the callers.

use std::path::Path;
use std::sync::Arc;

use super::{Demand, EngineOptions, Launched, ModelSource, WhyNotCuda};
use offshoot_core::error::Result;
use offshoot_engine::EngineHandle;
use offshoot_model::{EmbedderPooling, ModelConfig, ModelFolder};
use offshoot_text::Tokenizer;

/// An embedder in memory.
pub struct LaunchedEmbedder {
    /// Its values at a token are the vector of the text up to there.
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub config: ModelConfig,
    /// Whether vectors are brought to length 1, as its folder says.
    pub normalises: bool,
    /// Why no GPU is used; `None` if the user chose the device or a GPU is used.
    pub not_cuda: Option<WhyNotCuda>,
    pub seconds_loading: f64,
}

impl EngineOptions {
    /// Opens the folder of an embedder as the only model.
    ///
    /// # Errors
    ///
    /// A budget is out of its range, the folder is no embedder that is read, or no device has room for it.
    pub fn open_embedder(&self, path: &Path) -> Result<LaunchedEmbedder> {
        self.budget.check()?;
        let EmbedderPooling { normalises } = EmbedderPooling::read(path)?;
        let folder = ModelFolder::open_embedder(path)?.with(self.budget.weights)?;
        let tokenizer = Arc::new(Tokenizer::load(path)?);
        let launched = self.launch(ModelSource::folder(&folder)?, None, Demand::unbounded()).start()?;
        let Launched { engine, not_cuda, seconds_loading, .. } = launched;
        Ok(LaunchedEmbedder { engine, tokenizer, config: folder.config, normalises, not_cuda, seconds_loading })
    }
}
