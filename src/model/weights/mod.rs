//! The source of tensors: a model's files (`files`: `checkpoint` or `gguf`) or a seed (`random`).
//! `layout` lists which tensors are stacked; the backend packs them.

mod checkpoint;
mod experts;
mod files;
mod gguf;
mod naming;
mod random;
mod safetensors_file;

use crate::backend::{Backend, Dtype, MatrixPart, WeightView, with_bytes};
use crate::error::Result;

use super::layout::TensorSpec;
pub use checkpoint::compare_index;
pub use files::ModelFiles;
pub use random::RandomWeights;

/// Where weights come from.
pub enum WeightSource {
    Checkpoint {
        checkpoint: ModelFiles,
        /// The compute dtype of the layers.
        dtype: Dtype,
    },
    Random(RandomWeights),
}

impl WeightSource {
    /// The matrices of `specs`, stacked into one.
    pub fn matrix<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Matrix> {
        match self {
            WeightSource::Checkpoint { checkpoint, dtype } => {
                checkpoint.packed(specs, |views| matrix_of(backend, specs, views, *dtype))
            }
            WeightSource::Random(random) => backend.matrix(&random.parts(specs)),
        }
    }

    /// The vectors of `specs`, concatenated.
    pub fn vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Vector> {
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => checkpoint.packed(specs, |views| backend.vector(views)),
            WeightSource::Random(random) => with_bytes(&random.parts(specs), |views| backend.vector(views)),
        }
    }

    /// The elements of a tensor.
    pub fn values(&self, spec: &TensorSpec) -> Result<Vec<f32>> {
        let elements = |views: &[WeightView<'_>]| -> Vec<f32> {
            views.iter().flat_map(|view| (0..view.rows * view.cols).map(|i| view.get(i))).collect()
        };
        let specs = std::slice::from_ref(spec);
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => checkpoint.packed(specs, |views| Ok(elements(views))),
            WeightSource::Random(random) => Ok(with_bytes(&random.parts(specs), elements)),
        }
    }
}

/// A vector of these numbers.
pub fn vector_of<B: Backend>(backend: &mut B, values: &[f32]) -> Result<B::Vector> {
    let bytes = Dtype::F32.encode(values);
    backend.vector(&[WeightView { dtype: Dtype::F32, rows: 1, cols: values.len(), bytes: &bytes }])
}

/// The matrices of `views` stacked into one; `dtype`: the compute dtype.
fn matrix_of<B: Backend>(
    backend: &mut B,
    specs: &[TensorSpec],
    views: &[WeightView<'_>],
    dtype: Dtype,
) -> Result<B::Matrix> {
    let mixed = views.iter().any(|view| view.dtype != dtype);
    if B::MIXES_DTYPES || !mixed { dense(backend, views) } else { converted(backend, specs, views, dtype) }
}

fn dense<B: Backend>(backend: &mut B, views: &[WeightView<'_>]) -> Result<B::Matrix> {
    let parts: Vec<_> = views.iter().copied().map(MatrixPart::Dense).collect();
    backend.matrix(&parts)
}

/// The matrices converted to the model's compute dtype, for backends that cannot mix dtypes.
fn converted<B: Backend>(
    backend: &mut B,
    specs: &[TensorSpec],
    views: &[WeightView<'_>],
    dtype: Dtype,
) -> Result<B::Matrix> {
    for (spec, view) in specs.iter().zip(views) {
        log::warn!(
            "tensor `{}` is {:?}; on this device it becomes {dtype:?}, as the layers are",
            spec.name,
            view.dtype
        );
    }
    let encode = |view: &WeightView<'_>| {
        let values: Vec<f32> = (0..view.rows * view.cols).map(|i| view.get(i)).collect();
        dtype.encode(&values)
    };
    let bytes: Vec<Vec<u8>> = views.iter().map(encode).collect();
    let views: Vec<_> = views.iter().zip(&bytes).map(|(view, bytes)| WeightView { dtype, bytes, ..*view }).collect();
    dense(backend, &views)
}
