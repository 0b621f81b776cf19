//! The folder of a judge: a model that generates and is asked about samples of another one, beside which it stands. It
//! is read and checked before any weights are loaded; how it is started is left to `pair`, and what it is asked to its
//! users.
#![warn(missing_docs)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::second::{checked_share, name_of_folder};
use super::{ModelSource, same_folder};
use offshoot_backend::Dtype;
use offshoot_core::error::Result;
use offshoot_core::setting::JUDGE_MEMORY;
use offshoot_engine::EngineHandle;
use offshoot_model::check::facts;
use offshoot_model::hashes::hash_of_folder;
use offshoot_model::{ModelConfig, ModelFolder};
use offshoot_text::Tokenizer;

/// What a user says of the judge beside a generator.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeFolderOptions {
    /// Its model folder or GGUF file.
    pub path: PathBuf,
    /// Its share of the memory for keys and values of both models, in (0, 1); `None`: what the generator cannot use, or
    /// as much as holds texts of the length that the generator's part holds.
    pub memory: Option<f64>,
}

impl JudgeFolderOptions {
    /// A judge whose memory follows from its folder.
    pub fn new(path: impl Into<PathBuf>) -> JudgeFolderOptions {
        JudgeFolderOptions { path: path.into(), memory: None }
    }

    /// Whether the folder is that of the model in `model`. Then the model's own engine answers, and no second model is
    /// loaded.
    pub fn is_the_model(&self, model: &Path) -> bool {
        same_folder(&self.path, model)
    }

    /// Reads and checks its folder.
    ///
    /// # Errors
    ///
    /// It is no model that generates, has no tokenizer, a tensor is missing or has another shape; or its share of the
    /// memory is out of its range.
    pub fn open(&self) -> Result<JudgeFolder> {
        let memory = checked_share(JUDGE_MEMORY, self.memory)?;
        let folder = ModelFolder::open(&self.path)?;
        let dtype = facts(&folder)?.dtype;
        let tokenizer = Arc::new(Tokenizer::load(&self.path)?);
        let (name, digest) = (name_of_folder(&self.path)?, hash_of_folder(&self.path)?);
        Ok(JudgeFolder { folder, dtype, tokenizer, name, digest, memory })
    }
}

/// A judge whose weights are not loaded.
pub struct JudgeFolder {
    folder: ModelFolder,
    dtype: Dtype,
    tokenizer: Arc<Tokenizer>,
    name: String,
    digest: String,
    memory: Option<f64>,
}

impl JudgeFolder {
    /// The model, for engines.
    pub fn source(&self) -> ModelSource<'_> {
        ModelSource::folder_of(&self.folder, self.dtype)
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

    /// Most tokens of a question with its answer.
    pub fn context(&self) -> usize {
        self.folder.config.context
    }

    /// The folder's name, by which records call the judge.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The digest of its files, which tells it from others in records.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Its share of the memory for keys and values; see [`JudgeFolderOptions::memory`].
    pub fn memory(&self) -> Option<f64> {
        self.memory
    }

    /// The judge whose model runs in this engine.
    pub(super) fn on(&self, engine: EngineHandle) -> LaunchedJudge {
        let (name, digest) = (self.name.clone(), self.digest.clone());
        LaunchedJudge { engine, tokenizer: self.tokenizer.clone(), name, digest }
    }
}

/// A judge in memory.
#[derive(Clone)]
pub struct LaunchedJudge {
    /// Samples and scores like any generator's.
    pub engine: EngineHandle,
    /// That of its folder.
    pub tokenizer: Arc<Tokenizer>,
    /// The name of its folder.
    pub name: String,
    /// The digest of its folder's files.
    pub digest: String,
}
