//! The tensors of a model, whichever kind of files stores them: `checkpoint` reads folders as Hugging Face has them,
//! `gguf` the files of llama.cpp.

use std::collections::{BTreeMap, HashMap};

use offshoot_backend::{Dtype, MatrixPart, QuantFormat, WeightFormat, WeightView};
use offshoot_core::error::Result;

use super::super::config::{ModelConfig, Quantisation};
use super::super::layout::{Layout, TensorSpec};
use super::stored::{Check, StoredMatrix};

/// What a model's files hold.
#[derive(Clone, Debug)]
pub struct FileFacts {
    pub files: usize,
    /// The number of tensors in all files, and their bytes.
    pub tensors: usize,
    pub bytes: usize,
    /// The number of tensors of each element type.
    pub dtypes: BTreeMap<String, usize>,
}

impl FileFacts {
    /// `dtypes`: the element type of each tensor.
    pub fn of(files: usize, bytes: usize, dtypes: impl Iterator<Item = String>) -> Self {
        let mut facts = Self { files, tensors: 0, bytes, dtypes: BTreeMap::new() };
        for dtype in dtypes {
            facts.tensors += 1;
            *facts.dtypes.entry(dtype).or_default() += 1;
        }
        facts
    }
}

/// The mapped files of a model.
pub trait ModelFiles: Send + Sync {
    /// How matrices are quantised, published or to be made; GGUF files say it of each tensor.
    fn quantisation(&self) -> Option<&Quantisation> {
        None
    }

    /// What the user wants a dense matrix to become.
    fn made_format(&self, _: &TensorSpec) -> Option<QuantFormat> {
        None
    }

    /// Refuses infinite numbers and NaN in what is to be made into codes.
    fn refuse_nan(&self, _: &WeightView<'_>, _: &TensorSpec) -> Result<()> {
        Ok(())
    }

    /// Experts in OpenAI's MXFP4.
    fn mxfp4(&self, _: &TensorSpec, _: Check) -> Result<StoredMatrix<'_>> {
        unreachable!("the layout of a GGUF model has no such experts")
    }

    fn facts(&self) -> FileFacts;

    /// `config` with what only the tensors tell.
    fn complete(&self, config: &ModelConfig) -> ModelConfig {
        config.clone()
    }

    /// Checks that every tensor of `layout` exists with its shape and a supported type, and that no tensor outside the
    /// layout would change the result.
    fn verify(&self, layout: &Layout) -> Result<()>;

    /// How each matrix of `layout` is stored, or is to be made, by the layout's names.
    fn formats(&self, layout: &Layout) -> Result<HashMap<String, WeightFormat>>;

    /// Says which tensors are left out, in one line, where `verify` has not.
    fn note_left_out(&self, _: &Layout) {}

    /// The compute dtype: that of the layers' matrices where they have one.
    fn dtype(&self, layout: &Layout) -> Result<Dtype>;

    /// Calls `pack` with the matrices of `specs` as they are stored, then releases their mapped pages. `dtype`: the
    /// compute dtype.
    fn parts(
        &self,
        specs: &[TensorSpec],
        dtype: Dtype,
        check: Check,
        pack: &mut dyn FnMut(&[MatrixPart<'_>]) -> Result<()>,
    ) -> Result<()>;

    /// Calls `pack` with the tensors of `specs` as dense ones, then releases their mapped pages.
    fn packed(&self, specs: &[TensorSpec], pack: &mut dyn FnMut(&[WeightView<'_>]) -> Result<()>) -> Result<()>;
}
