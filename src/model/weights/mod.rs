//! Where tensors come from: a checkpoint's files (`checkpoint`) or a seed (`random`), behind one `Source`. What they
//! are stacked into is said by `layout`, how they are packed is the backend's.

mod checkpoint;
mod random;
mod safetensors_file;

use crate::backend::{Backend, Dtype, MatrixPart, WeightView, with_bytes};
use crate::error::Result;

use super::layout::TensorSpec;
pub use checkpoint::Checkpoint;
pub use random::RandomWeights;

pub enum Source {
    Checkpoint {
        checkpoint: Checkpoint,
        /// What the products of its layers take.
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
                if B::MIXES_DTYPES || !mixed { dense(backend, views) } else { converted(backend, specs, views, *dtype) }
            }),
            Source::Random(random) => {
                let parts: Vec<_> = specs.iter().map(|spec| MatrixPart::Random(random.tensor(spec))).collect();
                backend.matrix(&parts)
            }
        }
    }

    /// The vectors of `specs` one after another.
    pub fn vector<B: Backend>(&self, backend: &mut B, specs: &[TensorSpec]) -> Result<B::Vector> {
        match self {
            Source::Checkpoint { checkpoint, .. } => checkpoint.packed(specs, |views| backend.vector(views)),
            Source::Random(random) => {
                let parts: Vec<_> = specs.iter().map(|spec| MatrixPart::Random(random.tensor(spec))).collect();
                with_bytes(&parts, |views| backend.vector(views))
            }
        }
    }
}

fn dense<B: Backend>(backend: &mut B, views: &[WeightView<'_>]) -> Result<B::Matrix> {
    let parts: Vec<_> = views.iter().copied().map(MatrixPart::Dense).collect();
    backend.matrix(&parts)
}

/// The matrices in the model's compute dtype, for a backend that multiplies by no other.
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
