//! The tensors of a model, whichever kind of files stores them: `checkpoint` reads folders as Hugging Face has them, `gguf`
//! the files of llama.cpp.

use std::collections::BTreeMap;

use offshoot_backend::{Dtype, MatrixPart, QuantFormat, WeightView};
use offshoot_core::error::Result;
use offshoot_gguf::Gguf;

use super::super::config::{ModelConfig, ModelFolder, Quantisation};
use super::super::layout::{Layout, TensorSpec};
use super::checkpoint::{self, Checkpoint};
use super::gguf::GgufModel;
use super::stored::{Check, StoredMatrix};

/// The mapped files of a model.
pub enum ModelFiles {
    Safetensors(Checkpoint),
    Gguf(GgufModel),
}

impl ModelFiles {
    pub fn open(model: &ModelFolder) -> Result<Self> {
        Ok(match offshoot_gguf::files(&model.path)? {
            Some(_) => Self::Gguf(GgufModel::new(Gguf::open(&model.path)?, &model.config, model.dtype)?),
            None => Self::Safetensors(Checkpoint::open(model)?),
        })
    }

    /// Whether all files of a model's weights are there.
    pub fn are_there(model: &ModelFolder) -> Result<bool> {
        Ok(offshoot_gguf::files(&model.path)?.is_some() || checkpoint::are_there(&model.path)?)
    }

    /// How matrices are quantised, published or to be made; GGUF files say it of each tensor.
    pub fn quantisation(&self) -> Option<&Quantisation> {
        match self {
            Self::Safetensors(folder) => folder.quantisation.as_ref(),
            Self::Gguf(_) => None,
        }
    }

    /// What the user wants a dense matrix to become.
    pub fn made_format(&self, spec: &TensorSpec) -> Option<QuantFormat> {
        match self {
            Self::Safetensors(folder) => folder.made_format(spec),
            Self::Gguf(_) => None,
        }
    }

    /// Refuses infinite numbers and NaN in what is to be made into codes.
    pub fn refuse_nan(&self, view: &WeightView<'_>, spec: &TensorSpec) -> Result<()> {
        match self {
            Self::Safetensors(folder) => folder.refuse_nan(view, spec),
            Self::Gguf(_) => Ok(()),
        }
    }

    /// Experts in OpenAI's MXFP4.
    pub fn mxfp4(&self, spec: &TensorSpec, check: Check) -> Result<StoredMatrix<'_>> {
        match self {
            Self::Safetensors(folder) => folder.mxfp4(spec, check),
            Self::Gguf(_) => unreachable!("the layout of a GGUF model has no such experts"),
        }
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

    /// Says which tensors are left out, in one line.
    pub fn note_left_out(&self, layout: &Layout) {
        match self {
            Self::Safetensors(folder) => folder.note_left_out(layout),
            // `verify` says so.
            Self::Gguf(_) => {}
        }
    }

    /// The compute dtype: that of the layers' matrices where they have one.
    pub fn dtype(&self, layout: &Layout) -> Result<Dtype> {
        match self {
            Self::Safetensors(folder) => folder.dtype(layout),
            Self::Gguf(model) => model.dtype(layout),
        }
    }

    /// Calls `pack` with the matrices of `specs` as they are stored, then releases their mapped pages. `dtype`: the compute
    /// dtype.
    pub fn parts(
        &self,
        specs: &[TensorSpec],
        dtype: Dtype,
        check: Check,
        pack: &mut dyn FnMut(&[MatrixPart<'_>]) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Safetensors(folder) => folder.parts(specs, check, pack),
            Self::Gguf(model) => model.parts(specs, dtype, pack),
        }
    }

    /// Calls `pack` with the tensors of `specs` as dense ones, then releases their mapped pages.
    pub fn packed(&self, specs: &[TensorSpec], pack: &mut dyn FnMut(&[WeightView<'_>]) -> Result<()>) -> Result<()> {
        match self {
            Self::Safetensors(folder) => folder.packed(specs, pack),
            Self::Gguf(model) => model.packed(specs, pack),
        }
    }
}
