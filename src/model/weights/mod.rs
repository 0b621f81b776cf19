//! Where tensors come from: a checkpoint's files (`checkpoint`) or a seed (`random`), behind one `Source`. What they are stacked
//! into is said by `layout`, how they are packed is the backend's.

mod checkpoint;
mod random;
mod safetensors_file;

use crate::backend::{Backend, Dtype, WeightView};
use crate::error::Result;

use super::layout::TensorSpec;
pub use checkpoint::Checkpoint;
pub use random::RandomWeights;

pub enum Source {
    Checkpoint {
        checkpoint: Checkpoint,
        /// Of the model: of its layers' matrices.
        dtype: Dtype,
    },
    Random(RandomWeights),
}

impl Source {
    /// The matrices of `specs` stacked into one.
    pub fn matrix<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Matrix> {
        match self {
            Source::Checkpoint { checkpoint, dtype } => checkpoint.packed(specs, |views| {
                let mixed = views.iter().any(|view| view.dtype != *dtype);
                if B::MIXES_DTYPES || !mixed { backend.matrix(views) } else { converted(backend, specs, views, *dtype) }
            }),
            Source::Random(random) => {
                let parts: Vec<_> = specs.iter().map(|spec| random.tensor(spec)).collect();
                backend.random_matrix(&parts)
            }
        }
    }

    /// The vectors of `specs` one after another.
    pub fn vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Vector> {
        match self {
            Source::Checkpoint { checkpoint, .. } => checkpoint.packed(specs, |views| backend.vector(views)),
            Source::Random(random) => {
                let parts: Vec<_> = specs.iter().map(|spec| random.tensor(spec)).collect();
                let drawn: Vec<_> = parts.iter().map(|part| part.draw()).collect();
                let views: Vec<WeightView<'_>> =
                    parts.iter().zip(&drawn).map(|(part, bytes)| part.view(bytes)).collect();
                backend.vector(&views)
            }
        }
    }
}

/// The matrices in the model's dtype, for a backend that multiplies by no other.
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
    backend.matrix(&views)
}
