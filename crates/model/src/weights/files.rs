//! The tensors of a model, whichever kind of files stores them: `checkpoint` reads folders as Hugging Face has them, `gguf`
//! the files of llama.cpp.

use std::collections::BTreeMap;

use offshoot_backend::{Dtype, MatrixPart, QuantFormat, WeightView};
use offshoot_core::error::Result;

use super::super::config::{ModelConfig, Quantisation};
use super::super::layout::{Layout, TensorSpec};
use super::stored::{Check, StoredMatrix};

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

    /// The number of files.
    fn files(&self) -> usize;

    /// The number of tensors in all files.
    fn tensors(&self) -> usize;

    /// Bytes of all tensors in all files.
    fn bytes(&self) -> usize;

    /// Tensors of each element type.
    fn dtypes(&self) -> BTreeMap<String, usize>;

    /// `config` with what only the tensors tell.
    fn complete(&self, config: &ModelConfig) -> ModelConfig {
        config.clone()
    }

    /// Checks that every tensor of `layout` exists with its shape and a supported type, and that no tensor outside the
    /// layout would change the result.
    fn verify(&self, layout: &Layout) -> Result<()>;

    /// Says which tensors are left out, in one line, where `verify` has not.
    fn note_left_out(&self, _: &Layout) {}

    /// The compute dtype: that of the layers' matrices where they have one.
    fn dtype(&self, layout: &Layout) -> Result<Dtype>;

    /// Calls `pack` with the matrices of `specs` as they are stored, then releases their mapped pages. `dtype`: the compute
    /// dtype.
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
