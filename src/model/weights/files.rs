//! The tensors of a model, whichever kind of files stores them: `checkpoint` reads folders as Hugging Face has them, `gguf`
//! the files of llama.cpp.

use std::collections::BTreeMap;
use std::path::Path;

use crate::backend::{WeightFormat, WeightView};
use crate::error::Result;

use super::super::config::ModelConfig;
use super::super::layout::{Layout, TensorSpec};
use super::gguf::GgufModel;
use super::checkpoint::Checkpoint;

/// The mapped files of a model.
pub enum ModelFiles {
    Safetensors(Checkpoint),
    Gguf(GgufModel),
}

impl ModelFiles {
    /// `config`: what is known before the tensors are.
    pub fn open(path: &Path, config: &ModelConfig) -> Result<Self> {
        Ok(match crate::gguf::files(path)? {
            Some(_) => Self::Gguf(GgufModel::open(path, config)?),
            None => Self::Safetensors(Checkpoint::open(path)?),
        })
    }

    pub fn files(&self) -> usize {
        match self {
            Self::Safetensors(folder) => folder.files(),
            Self::Gguf(model) => model.files(),
        }
    }

    pub fn tensors(&self) -> usize {
        match self {
            Self::Safetensors(folder) => folder.tensors(),
            Self::Gguf(model) => model.tensors(),
        }
    }

    /// Bytes of all tensors in all files.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Safetensors(folder) => folder.bytes(),
            Self::Gguf(model) => model.bytes(),
        }
    }

    /// Tensors of each element type.
    pub fn dtypes(&self) -> BTreeMap<String, usize> {
        match self {
            Self::Safetensors(folder) => folder.dtypes(),
            Self::Gguf(model) => model.dtypes(),
        }
    }

    /// `config` with what only the tensors tell.
    pub fn complete(&self, config: &ModelConfig) -> ModelConfig {
        match self {
            Self::Safetensors(folder) => folder.complete(config),
            Self::Gguf(_) => config.clone(),
        }
    }

    /// Checks that every tensor of `layout` exists with its shape and a supported type, and that no tensor outside the
    /// layout would change the result.
    pub fn verify(&self, layout: &Layout) -> Result<()> {
        match self {
            Self::Safetensors(folder) => folder.verify(layout),
            Self::Gguf(model) => model.verify(layout),
        }
    }

    /// The storage format of the layers' matrices, which determines the compute dtype.
    pub fn format(&self, layout: &Layout) -> Result<WeightFormat> {
        match self {
            Self::Safetensors(folder) => folder.format(layout),
            Self::Gguf(model) => model.format(layout),
        }
    }

    /// Calls `pack` with the tensors of `specs` as dense ones, then releases their mapped pages.
    pub fn packed<T>(&self, specs: &[TensorSpec], pack: impl FnOnce(&[WeightView<'_>]) -> Result<T>) -> Result<T> {
        match self {
            Self::Safetensors(folder) => folder.packed(specs, pack),
            Self::Gguf(model) => model.packed(specs, pack),
        }
    }
}
